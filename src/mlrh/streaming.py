"""Fitting to rows that come in parts, in memory that doesn't grow with them. Knows nothing of forms of y.

The objective is that of `objective` for all rows shown so far, where showing all of them again changes nothing. Rows
are kept while they fit into MAX_BYTES; until then nothing is approximate but the tolerance. Beyond that a uniform
sample of the rows stands for the curvature, while the gradient is that of all rows:

    minimise   loss of the sample, scaled up  +  v . parameters  +  damping  +  penalty

v makes the gradient, where the last minimisation ended, the sum over all rows shown. In the first pass each row's part
dates from when it was shown, and the sample says how it has changed since. A further pass computes it anew, at
parameters that stay for the whole pass; if the objective has increased since the pass before, it goes back, and on with
more damping.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from mlrh import solvers
from mlrh.design import Design
from mlrh.label_space import CardinalitySpace
from mlrh.row_sample import RowSample, mixed, row_hashes
from mlrh.stream_objective import Settings, StreamObjective, loss_and_gradient, split, zeros

MAX_BYTES = 2**25  # of the rows kept
BLOCK_BYTES = 2**22  # of the rows that are looked at together
EVALUATIONS = 24  # of its gradient that a row pays for when it is shown; minimisations wait until they are paid for
MIN_ITER = 8  # of a minimisation, even if it goes into debt
TOLERANCE = 1e-4
CURVATURE = 0.25  # of a label's own score, at most: the unit of the damping


@dataclass(frozen=True)
class Tally:
    """Sums over rows; the checksum is the same for the same rows and weights in any order.

    squares are those of the features (n_features,). loss and gradient are those of the rows at the parameters of the
    stream, kept only where rows are left out of the sample.
    """

    n_rows: int = 0
    weight: float = 0.0
    checksum: int = 0
    squares: Any = 0.0
    loss: float = 0.0
    gradient: Any = 0.0

    def plus(self, other):
        """Both together."""
        sums = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return Tally(**{**sums, "checksum": sums["checksum"] % 2**64})

    def has_rows_of(self, other):
        """Whether these are the same rows with the same weights."""
        return (self.n_rows, self.checksum) == (other.n_rows, other.checksum)


@dataclass(frozen=True)
class Best:
    """The parameters with the lowest objective that a whole pass has found, and the gradient of the loss there."""

    objective: float = np.inf
    parameters: Any = None
    gradient: Any = None


PARTS = {"sample": RowSample, "counted": Tally, "again": Tally, "best": Best}


@dataclass(frozen=True)
class Stream:
    """Where a stream has come to; every method returns another one, so that a call that fails changes nothing.

    counted are the rows of the objective. again are the last ones, as long as they may all be rows shown before: they
    count once one of them is new, and are forgotten once all have been shown again.
    """

    n_labels: int
    sizes: tuple[int, int]
    parameters: np.ndarray
    strength: tuple = ()
    sample: RowSample = field(default_factory=RowSample)
    counted: Tally = field(default_factory=Tally)
    again: Tally = field(default_factory=Tally)
    best: Best = field(default_factory=Best)
    damping: float = 1.0
    credit: float = 0.0  # evaluations of a row's gradient that are paid for
    is_changed: bool = True  # since the last minimisation
    is_settled: bool = False
    n_seen: int = 0
    n_iter: int = 0
    n_passes: int = 1

    @classmethod
    def begin(cls, n_labels):
        """A stream without rows."""
        return cls(n_labels, (0, n_labels), zeros(0, n_labels))

    @classmethod
    def from_state(cls, state):
        """The stream that `state` describes."""
        return cls(**{**state, **{name: kind(**state[name]) for name, kind in PARTS.items()}})

    def state(self):
        """The stream as plain containers, arrays and numbers."""
        return {**vars(self), **{name: dict(vars(getattr(self, name))) for name in PARTS}}

    def space(self, n_jobs=None):
        """The label space of the stream's sizes with the biases of its parameters."""
        return CardinalitySpace(self.n_labels, *self.sizes, split(self.parameters, self.n_labels)[2], n_jobs=n_jobs)

    def under(self, sizes, settings: Settings):
        """The stream with a smallest and largest size, which must hold those of all rows shown, and settings."""
        strength = (settings.alpha, settings.fit_intercept, settings.learn_bias)
        is_same = (sizes, strength) == (self.sizes, self.strength)
        return self if is_same else replace(self, sizes=sizes, strength=strength)._changed()

    def show(self, X, Y, weights, settings: Settings):
        """The stream after more rows of positive weight; its parameters stay until `settle`, but for a step back."""
        hashes = row_hashes(X, Y)
        repeated = self.sample.repeat(weights, hashes) if self.counted.n_rows else None
        following = (
            self._adding(X, Y, weights, hashes, settings) if repeated is None else replace(self, sample=repeated)
        )
        tally = following._tally(X, Y, weights, hashes, settings)
        if repeated is None:
            following = replace(following, counted=following.counted.plus(tally))
        else:
            following = replace(following, again=following.again.plus(tally))
        most = 2 * EVALUATIONS * len(following.sample.weights)
        credit = min(self.credit + EVALUATIONS * len(weights), most)
        following = replace(following, credit=credit, n_seen=self.n_seen + len(weights))
        return following._end_pass(settings) if following.again.has_rows_of(following.counted) else following

    def settle(self, settings: Settings):
        """The stream nearer to the minimum of its objective, as far as the rows shown pay for it."""
        if not self._is_due():
            return self
        X, Y = self.sample.rows()
        scale = 1.0 if self.sample.is_complete else self.counted.weight / self.sample.weights.sum()
        design = Design(X, scale * self.sample.weights, fit_intercept=settings.fit_intercept, n_jobs=settings.n_jobs)
        space = self.space(settings.n_jobs)
        before, corrections = None, {}
        if not self.sample.is_complete:
            _, before = loss_and_gradient(space, self.parameters, X, Y, design.weights)
            damping = self.damping * CURVATURE * min(1.0, design.n_features / len(Y)) * self.counted.squares
            corrections = {"linear": self.counted.gradient - before, "origin": self.parameters, "damping": damping}
        objective = StreamObjective(design, space, Y, settings, **corrections)
        # Few rows may have led far astray, so that beginning afresh is better.
        start = min((objective.parameters_from(self.parameters), objective.start()), key=objective.value)
        max_iter = max(MIN_ITER, int(self.credit / len(Y)))
        tol = max(settings.tol, TOLERANCE)
        solution = solvers.lbfgs(objective, start, tol=tol, max_iter=max_iter, report=settings.report)
        if solution.interrupted:
            raise KeyboardInterrupt
        moved = replace(
            self,
            parameters=objective.parameters_to(solution.parameters),
            credit=self.credit - objective.n_evaluations * len(Y),
            is_changed=False,
            is_settled=solution.converged,
            n_iter=self.n_iter + max(solution.n_iter, 1),
        )
        if before is None:
            return moved
        _, after = loss_and_gradient(moved.space(settings.n_jobs), moved.parameters, X, Y, design.weights)
        gradient = self.counted.gradient + after - before
        return replace(moved, counted=replace(self.counted, gradient=gradient))

    def _is_due(self):
        """Whether there is something to gain, paid for; in a further pass with rows left out, only at its end."""
        needed = 0 if self.is_changed else EVALUATIONS * len(self.sample.weights)
        is_measuring = not self.sample.is_complete and self.again.n_rows > 0
        return not self.is_settled and not is_measuring and self.credit >= needed

    def _adding(self, X, Y, weights, hashes, settings):
        """The stream with a sample that holds more rows; what seemed to be shown again counts from here on."""
        counted, sample = self.counted.plus(self.again), self.sample.count_repeated()
        sample = sample.add(X, Y, weights, hashes, max_bytes=MAX_BYTES)
        if self.sample.is_complete and not sample.is_complete and counted.n_rows:
            rows = self.sample.count_repeated()
            kept_X, kept_Y = rows.rows()
            space = self.space(settings.n_jobs)
            loss, gradient = loss_and_gradient(space, self.parameters, kept_X, kept_Y, rows.weights)
            counted = replace(counted, loss=loss, gradient=gradient)
        parameters = self.parameters if counted.n_rows else zeros(X.shape[1], self.n_labels)
        changes = {"sample": sample, "counted": counted, "again": Tally(), "best": Best(), "parameters": parameters}
        return replace(self, **changes)._changed()

    def _end_pass(self, settings):
        """The stream after every row was shown again: with the gradient of this pass, or back at a better point."""
        following = replace(self, sample=self.sample.forget_repeated(), again=Tally(), n_passes=self.n_passes + 1)
        if self.sample.is_complete:
            return following
        coef = split(self.parameters, self.n_labels)[0]
        objective = self.again.loss + 0.5 * settings.alpha * float(np.square(coef).sum())
        best, damping = Best(objective, self.parameters, self.again.gradient), self.damping
        if objective > self.best.objective:
            best, damping = self.best, 4 * self.damping
        counted = replace(self.counted, gradient=best.gradient)
        return replace(following, counted=counted, parameters=best.parameters, best=best, damping=damping)._changed()

    def _changed(self):
        return replace(self, is_changed=True, is_settled=False)

    def _tally(self, X, Y, weights, hashes, settings):
        """The sums over rows."""
        checks = mixed(hashes + weights.view(np.uint64))
        squares = weights @ (X.multiply(X) if sparse.issparse(X) else np.square(X))
        tally = Tally(len(weights), float(weights.sum()), int(checks.sum(dtype=np.uint64)), squares)
        if self.sample.is_complete:
            return tally
        loss, gradient = loss_and_gradient(self.space(settings.n_jobs), self.parameters, X, Y, weights)
        return replace(tally, loss=loss, gradient=gradient)


def blocks_of(X, n_labels):
    """Consecutive slices of the rows of X, dense or CSR, of about BLOCK_BYTES of features and scores; at least one."""
    n_rows = X.shape[0]
    stored = X.nnz * 12 if sparse.issparse(X) else n_rows * X.shape[1] * 8
    per_row = stored / max(n_rows, 1) + 16 * n_labels
    step = max(1, int(BLOCK_BYTES / max(per_row, 1)))
    return [slice(start, min(start + step, n_rows)) for start in range(0, max(n_rows, 1), step)]
