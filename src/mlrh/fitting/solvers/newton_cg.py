"""newton_cg: Newton's method with conjugate gradients."""

from itertools import islice

import numpy as np

from mlrh.fitting.solvers.base import MAX_INNER, _arrive, _conjugate_gradients, _line_search, iterate


def newton_cg(objective, start, *, tol, max_iter, report=None):
    """Newton's method; its systems are solved by conjugate gradients preconditioned with the metric.

    Its own estimate of the decrease left is half the squared Newton decrement.
    """
    solve = objective.metric()
    begin = _arrive(objective, start, solve)

    def propose(state, history):
        accuracy = min(0.3, (state.left / begin.left) ** 0.25) if begin.left > 0 else 0.3
        enough, direction = accuracy * np.linalg.norm(state.gradient), -state.solved
        for direction, _, residual in islice(_conjugate_gradients(objective, state, solve), MAX_INNER):  # noqa: B007
            if np.linalg.norm(residual) <= enough:
                break
        return direction, -0.5 * float(state.gradient @ direction)

    def move(state, direction):
        following = _line_search(objective, state, direction, solve)
        return _line_search(objective, state, -state.solved, solve) if following is None else following

    return iterate(objective, begin, propose, move, None, tol=tol, max_iter=max_iter, report=report)
