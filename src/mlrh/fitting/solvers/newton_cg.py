"""newton_cg: Newton's method with conjugate gradients."""

from itertools import islice

import numpy as np

from mlrh.fitting.solvers.base import arrive, best_of, conjugate_gradients, iterate, line_search, solver

MAX_INNER = 200  # products with the Hessian in one step: a system that needs more is not worth solving so exactly


@solver(needs={"metric", "hessian"})
def newton_cg(objective, start, *, tol, max_iter, report=None):
    """The Solution by Newton's method; its systems are solved by conjugate gradients, preconditioned with the metric.

    Its own estimate of the decrease left is half the squared Newton decrement.
    """
    solve = objective.metric()
    begin = best_of(start, lambda parameters: arrive(objective, parameters, solve))

    def propose(state, history):
        # Loose systems far from the optimum, tighter ones near it, which is enough for superlinear convergence.
        accuracy = min(0.3, (state.left / begin.left) ** 0.25) if begin.left > 0 else 0.3
        enough, direction = accuracy * np.linalg.norm(state.gradient), -state.solved
        for direction, _, residual in islice(conjugate_gradients(objective, state, solve), MAX_INNER):  # noqa: B007
            if np.linalg.norm(residual) <= enough:
                break
        return direction, -0.5 * float(state.gradient @ direction)

    def move(state, direction):
        following = line_search(objective, state, direction, solve)
        # If the step fails, the metric's own descent direction is tried.
        return line_search(objective, state, -state.solved, solve) if following is None else following

    return iterate(objective, begin, propose, move, None, tol=tol, max_iter=max_iter, report=report)
