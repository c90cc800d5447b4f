"""mm: the paper's majorisation-minimisation."""

import numpy as np

from mlrh.fitting.solvers.base import arrive, best_of, iterate, solver


@solver(needs={"metric", "majoriser"}, options=("step",))
def mm(objective, start, *, tol, max_iter, step="safe", report=None):
    """The Solution by majorisation-minimisation: parameters -= (c gram + ridges)^-1 gradient, factorised once.

    step="safe": c bounds the curvature of all labels jointly, everywhere, so every step decreases the objective.
    step="paper": c = 1/4, the bound for one label alone, which doubles the step. Where the joint bound is 1/2, it still
    never increases the objective. mm's own estimate of the decrease left extrapolates the last two decreases
    geometrically.
    """
    bound = objective.curvature_bound()
    if step == "paper" and bound > 0.5:
        raise ValueError(
            "mm_step='paper' can increase the objective unless labels repel each other, as they do in the cardinality "
            "space without a learned bias; use mm_step='safe'."
        )
    curvature = min(bound, 0.25) if step == "paper" else bound
    solve = objective.majoriser(curvature)
    # The bound c is larger than the typical curvature, so a gradient measured with the majoriser promises too little:
    # by about this factor.
    stretch = max(curvature / objective.typical_curvature(), 1.0)

    def propose(state, history):
        return -state.solved, max(
            stretch * state.left,
            _extrapolated_decrease(history, objective.rounding_error(state.parameters, state.value)),
        )

    def move(state, direction):
        return arrive(objective, state.parameters - state.solved, solve)

    begin = best_of(start, lambda parameters: arrive(objective, parameters, solve))
    return iterate(objective, begin, propose, move, solve, tol=tol, max_iter=max_iter, report=report)


def _extrapolated_decrease(history, rounding_error):
    """What is left if decreases keep shrinking by the factor r of the last two: last * r / (1 - r); 0 before that."""
    if len(history) < 3:
        return 0.0
    before, last = history[-3] - history[-2], history[-2] - history[-1]
    if last <= rounding_error:
        return 0.0
    return last**2 / (before - last) if before > last else np.inf
