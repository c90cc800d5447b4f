"""mm: the paper's majorisation-minimisation."""

from mlrh.fitting.solvers.base import _arrive, _extrapolated_decrease, iterate


def mm(objective, start, *, tol, max_iter, step="safe", report=None):
    """Majorisation-minimisation: parameters -= (c gram + ridges)^-1 gradient, factorised once.

    step="safe": c bounds the curvature everywhere, so every step decreases the objective. step="paper": c = 1/4, the
    bound for one label alone, twice the step; it is still never uphill where the joint bound is 1/2. Its own estimate
    of the decrease left extrapolates the last two decreases geometrically.
    """
    bound = objective.curvature_bound()
    if step == "paper" and bound > 0.5:
        raise ValueError(
            "mm_step='paper' can increase the objective unless labels repel each other (no learned size bias, no "
            "observed label space); use mm_step='safe'."
        )
    curvature = min(bound, 0.25) if step == "paper" else bound
    solve = objective.majoriser(curvature)
    # The typical curvature makes the gradient longer than the majoriser does, by about this factor.
    stretch = max(curvature / objective.typical_curvature(), 1.0)

    def propose(state, history):
        return -state.solved, max(
            stretch * state.left, _extrapolated_decrease(history, objective.rounding_error(state.value))
        )

    def move(state, direction):
        return _arrive(objective, state.parameters - state.solved, solve)

    begin = _arrive(objective, start, solve)
    return iterate(objective, begin, propose, move, solve, tol=tol, max_iter=max_iter, report=report)
