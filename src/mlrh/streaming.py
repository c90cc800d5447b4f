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
from mlrh.stream_objective import Settings, StreamObjective, loss_and_gradient, penalty, split, zeros

MAX_BYTES = 2**25  # of the rows kept
BLOCK_BYTES = 2**22  # of the rows that are looked at together
EVALUATIONS = 24  # of its gradient that a row pays for when it is shown; minimisations wait until they are paid for
MIN_ITER = 8  # of a minimisation, even if it goes into debt
TOLERANCE = 1e-4
CURVATURE = 0.25  # of a label's own score, at most: the unit of the damping


@dataclass(frozen=True)
class Tally:
    """Sums over rows; the checksum is the same for the same rows and weights in any order.

    squares are those of the features (n_features,). loss and gradient are those of the rows, kept only where rows are
    left out of the sample: a pass that goes on has both at the parameters of the stream, rows that count have the
    gradient there, but losses that date from when each row was shown, which nothing reads.
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
        if (sizes, strength) == (self.sizes, self.strength):
            return self
        parameters = self.parameters.copy()
        _, intercept, bias = split(parameters, self.n_labels)
        for part, is_learned in ((intercept, settings.fit_intercept), (bias, settings.learn_bias)):
            part *= is_learned
        changes = {"sizes": sizes, "strength": strength, "parameters": parameters, "best": Best(), "damping": 1.0}
        following = replace(self, **changes)._changed()
        if self.sample.is_complete:
            return following
        moved = following._gradient_of_sample(settings) - self._gradient_of_sample(settings)
        # A loss measured before and after the change would be compared with later ones: inf is below none of them.
        again = replace(self.again, loss=np.inf) if self.again.n_rows else self.again
        return replace(following, counted=replace(self.counted, gradient=self.counted.gradient + moved), again=again)

    def show(self, X, Y, weights, settings: Settings):
        """The stream after more rows of positive weight, nearer to the minimum where a pass ends among them.

        Other than that, its parameters stay until `settle`.
        """
        hashes, following, start = row_hashes(X, Y), self, 0
        while start < len(weights):
            if start:
                following = following.settle(settings)
            following, end = following._counting_what_waits(weights[start:], hashes[start:])
            part = slice(start, start + end)
            following = following._show_part(X[part], Y[part], weights[part], hashes[part], settings)
            start = part.stop
        return following

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

    def _counting_what_waits(self, weights, hashes):
        """The stream, and after how many of these rows a pass ends; what waits counts if these can't continue it.

        So rows that are there twice, at the end of a pass, don't keep the next one from being recognised.
        """
        end = self._end_of_pass_in(weights, hashes)
        is_waiting = self.sample.is_complete and self.again.n_rows > 0
        if not is_waiting or self.sample.repeat(weights[:end], hashes[:end]) is not None:
            return self, end
        changes = {"sample": self.sample.count_repeated(), "counted": self.counted.plus(self.again), "again": Tally()}
        following = replace(self, **changes)._changed()
        return following, following._end_of_pass_in(weights, hashes)

    def _show_part(self, X, Y, weights, hashes, settings):
        """The stream after rows among which no pass ends, unless with the last one."""
        repeated = self.sample.repeat(weights, hashes) if self.counted.n_rows else None
        following = (
            self._adding(X, Y, weights, hashes, settings) if repeated is None else replace(self, sample=repeated)
        )
        tally = following._tally(X, Y, weights, hashes, settings)
        if repeated is None:
            following = replace(following, counted=following.counted.plus(tally))
        else:
            following = replace(following, again=following.again.plus(tally))
        credit = min(self.credit + EVALUATIONS * len(weights), 2 * EVALUATIONS * len(following.sample.weights))
        following = replace(following, credit=credit, n_seen=self.n_seen + len(weights))
        return following._end_pass(settings) if following.again.has_rows_of(following.counted) else following

    def _end_of_pass_in(self, weights, hashes):
        """After how many of these rows a pass ends, if one does; else their number.

        A further pass ends where its checksum is that of the rows counted; the first one, after its last new row.
        """
        n_left = self.counted.n_rows - self.again.n_rows
        if self.counted.n_rows and 0 < n_left < len(weights):
            checksum = self.again.checksum + _checksum(weights[:n_left], hashes[:n_left])
            if checksum % 2**64 == self.counted.checksum:
                return n_left
        # Where rows are left out, or in the first block, nothing tells a further pass from rows that are there twice.
        if not self.sample.is_complete or not self.counted.n_rows:
            return len(weights)
        distinct, first = np.unique(hashes, return_index=True)
        new = first[~np.isin(distinct, self.sample.hashes)]
        return int(new.max()) + 1 if len(new) else len(weights)

    def _gradient_of_sample(self, settings):
        """The gradient of the sample's loss, scaled up to all rows."""
        X, Y = self.sample.rows()
        weights = self.sample.weights * (self.counted.weight / self.sample.weights.sum())
        return loss_and_gradient(self.space(settings.n_jobs), self.parameters, X, Y, weights)[1]

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
        objective = self.again.loss + penalty(self.parameters, self.n_labels, settings)
        best, damping = Best(objective, self.parameters, self.again.gradient), self.damping
        if objective > self.best.objective:
            best, damping = self.best, 4 * self.damping
        counted = replace(self.counted, gradient=best.gradient)
        return replace(following, counted=counted, parameters=best.parameters, best=best, damping=damping)._changed()

    def _changed(self):
        return replace(self, is_changed=True, is_settled=False)

    def _tally(self, X, Y, weights, hashes, settings):
        """The sums over rows."""
        squares = weights @ (X.multiply(X) if sparse.issparse(X) else np.square(X))
        tally = Tally(len(weights), float(weights.sum()), _checksum(weights, hashes), squares)
        if self.sample.is_complete:
            return tally
        loss, gradient = loss_and_gradient(self.space(settings.n_jobs), self.parameters, X, Y, weights)
        return replace(tally, loss=loss, gradient=gradient)


def _checksum(weights, hashes):
    """A number that is the same for the same rows and weights in any order."""
    return int(mixed(hashes + weights.view(np.uint64)).sum(dtype=np.uint64))


def blocks_of(X, n_labels):
    """Consecutive slices of the rows of X, dense or CSR, of about BLOCK_BYTES of features and scores; at least one."""
    n_rows = X.shape[0]
    stored = X.nnz * 12 if sparse.issparse(X) else n_rows * X.shape[1] * 8
    per_row = stored / max(n_rows, 1) + 16 * n_labels
    step = max(1, int(BLOCK_BYTES / max(per_row, 1)))
    return [slice(start, min(start + step, n_rows)) for start in range(0, max(n_rows, 1), step)]
