"""Fitting to rows that come in parts, in memory that doesn't grow with them. Knows nothing of forms of y.

The objective is that of `objective` for all rows shown so far, where showing all of them again changes nothing. Rows
are kept while they fit into MAX_BYTES; until then nothing is approximate but the tolerance. Beyond that a uniform
sample of the rows stands for the curvature, while the gradient is that of all rows:

    minimise   loss of the sample, scaled up  +  v . parameters  +  damping  +  penalty

v makes the gradient, where the last minimisation ended, the sum over all rows shown. In the first pass each row's part
dates from when it was shown, and the sample says how it has changed since. Further passes take turns. One measures
objective and gradient, at parameters that stay for the whole pass; if the objective has increased since the last
measurement, it goes back, and on with more damping. The next one goes in steps from what was measured: minibatches of
rows say by how much the gradient has changed since (the variance-reduced gradient of SVRG), and the pass ends at the
mean of the steps that the rows after them have confirmed.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse

from mlrh import solvers
from mlrh.design import Design
from mlrh.label_space import CardinalitySpace
from mlrh.row_sample import RowSample, mixed, row_hashes
from mlrh.stream_objective import Settings, StreamObjective, loss_and_gradient, penalty, split, zeros
from mlrh.stream_sums import Best, Steps, Tally

MAX_BYTES = 2**25  # of the rows kept
BLOCK_BYTES = 2**22  # of the rows that are looked at together
EVALUATIONS = 24  # of its gradient that a row pays for when it is shown; minimisations wait until they are paid for
MIN_ITER = 8  # of a minimisation, even if it goes into debt
TOLERANCE = 1e-4
CURVATURE = 0.25  # of a label's own score, at most: the unit of the damping
N_STEPS = 4  # of a pass that goes in steps
MAX_UNCLEAR = 2048  # rows
ROUNDING = 1e-9  # of a loss
PARTS = {"sample": RowSample, "counted": Tally, "again": Tally, "best": Best, "steps": Steps}


@dataclass(frozen=True)
class Stream:
    """Where a stream has come to; every method returns another one, so that a call that fails changes nothing.

    counted are the rows of the objective. again are the last ones, as long as they may all be rows shown before: they
    count once one of them is new, and are forgotten once all have been shown again. unclear are the first parts
    of these (X, Y, weights, hashes and checksum), of MAX_UNCLEAR rows at most, before one that tells if it was shown
    before: some of them may end the pass before, which shows at the end of this one.
    """

    n_labels: int
    sizes: tuple[int, int]
    parameters: np.ndarray
    strength: tuple = ()
    sample: RowSample = field(default_factory=RowSample)
    counted: Tally = field(default_factory=Tally)
    again: Tally = field(default_factory=Tally)
    unclear: tuple = ()
    best: Best = field(default_factory=Best)
    steps: Steps = field(default_factory=Steps)
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
        # What an older model file doesn't have is as at the start.
        return cls(**{**state, **{name: kind(**state.get(name, {})) for name, kind in PARTS.items()}})

    def state(self):
        """The stream as plain containers, arrays and numbers."""
        return {**vars(self), **{name: dict(vars(getattr(self, name))) for name in PARTS}}

    @property
    def result(self):
        """The parameters to predict by: the mean of this pass's steps, if it goes in steps and has taken one."""
        return self.parameters if self.steps.mean is None else self.steps.mean

    def space(self, parameters, n_jobs=None):
        """The label space of the stream's sizes with the biases of parameters."""
        return CardinalitySpace(self.n_labels, *self.sizes, split(parameters, self.n_labels)[2], n_jobs=n_jobs)

    def under(self, sizes, settings: Settings):
        """The stream with a smallest and largest size, which must hold those of all rows shown, and settings."""
        strength = (settings.alpha, settings.fit_intercept, settings.learn_bias)
        if (sizes, strength) == (self.sizes, self.strength):
            return self
        if self.steps.is_on:
            return self._landed(settings).under(sizes, settings)
        parameters = self.parameters.copy()
        _, intercept, bias = split(parameters, self.n_labels)
        for part, is_learned in ((intercept, settings.fit_intercept), (bias, settings.learn_bias)):
            part *= is_learned
        changes = {"sizes": sizes, "strength": strength, "parameters": parameters, "best": Best(), "damping": 1.0}
        following = replace(self, **changes)._changed()
        if self.sample.is_complete:
            return following
        moved = following._gradient_of_sample(parameters, settings)
        moved -= self._gradient_of_sample(self.parameters, settings)
        # A loss measured before and after the change would be compared with later ones: inf is below none of them.
        share = self.again.weight / self.counted.weight
        again = replace(self.again, gradient=self.again.gradient + share * moved, loss=np.inf)
        again = again if self.again.n_rows else self.again
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
        space = self.space(self.parameters, settings.n_jobs)
        before, corrections = None, {}
        if not self.sample.is_complete:
            before = self._gradient_of_sample(self.parameters, settings)
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
        gradient = self.counted.gradient + self._gradient_of_sample(moved.parameters, settings) - before
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
        if repeated is None:
            following = self._adding(X, Y, weights, hashes, settings)
            tally = following._tally(following.parameters, X, Y, weights, hashes, settings)
            following = replace(following, counted=following.counted.plus(tally))
        else:
            following = replace(self, sample=repeated)._showing_again(X, Y, weights, hashes, settings)
        credit = min(self.credit + EVALUATIONS * len(weights), 2 * EVALUATIONS * len(following.sample.weights))
        following = replace(following, credit=credit, n_seen=self.n_seen + len(weights))
        for n_parts, n_rows, checksum in following._possible_passes():
            if (n_rows, checksum) == (following.again.n_rows, following.again.checksum):
                return following._counting_unclear(n_parts, settings)._end_pass(settings)
        return following._end_minibatch(settings) if following._share_of_step() >= 1 else following

    def _showing_again(self, X, Y, weights, hashes, settings):
        """The stream with the sums over rows that may all have been shown before."""
        tally, steps, unclear = (
            self._tally(self._measured_at, X, Y, weights, hashes, settings),
            self.steps,
            self.unclear,
        )
        if steps.is_on:
            loss, gradient = self._loss_and_gradient(self.parameters, X, Y, weights, settings)
            steps = steps.with_rows(tally, loss, gradient, self.parameters - self.best.parameters)
        n_unclear = sum(len(weights) for _, _, weights, _, _ in unclear)
        is_bounded = n_unclear + len(weights) <= MAX_UNCLEAR
        if self.again.n_rows == n_unclear and is_bounded and not self.sample.would_keep_any(hashes):
            unclear = (*unclear, (X, Y, weights, hashes, _checksum(weights, hashes)))
        return replace(self, again=self.again.plus(tally), steps=steps, unclear=unclear)

    @property
    def _measured_at(self):
        """The parameters at which a further pass sums losses and gradients up."""
        return self.best.parameters if self.steps.is_on else self.parameters

    def _possible_passes(self):
        """Number of unclear parts that end the pass before, number and checksum of all rows shown when this one ends.

        Such parts are in the pass before and in this one, and have been shown twice.
        """
        n_rows, checksum = self.counted.n_rows, self.counted.checksum
        if n_rows:
            yield 0, n_rows, checksum
        for n_parts, (_, _, weights, _, own) in enumerate(self.unclear, start=1):
            n_rows, checksum = n_rows + 2 * len(weights), (checksum + 2 * own) % 2**64
            yield n_parts, n_rows, checksum

    def _counting_unclear(self, n_parts, settings):
        """The stream where the first unclear parts count, and this pass begins after them."""
        following = self
        for X, Y, weights, hashes, _ in self.unclear[:n_parts]:
            tally, best = following._tally(following._measured_at, X, Y, weights, hashes, settings), Best()
            if self.steps.is_on:
                objective, gradient = following.best.objective + tally.loss, following.best.gradient + tally.gradient
                best = Best(objective, following.best.parameters, gradient)
            counted, again = following.counted.plus(tally), following.again.minus(tally)
            following = replace(following, counted=counted, again=again, best=best)
        return following

    def _end_of_pass_in(self, weights, hashes):
        """After how many of these rows a pass ends, if one does; else their number.

        A further pass ends where its checksum is that of the rows counted; the first one, after its last new row.
        """
        for _, n_rows, checksum in self._possible_passes():
            n_left = n_rows - self.again.n_rows
            if 0 < n_left < len(weights):
                shown = self.again.checksum + _checksum(weights[:n_left], hashes[:n_left])
                if shown % 2**64 == checksum:
                    return n_left
        # Where rows are left out, or in the first block, nothing tells a further pass from rows that are there twice.
        if not self.sample.is_complete or not self.counted.n_rows:
            return len(weights)
        distinct, first = np.unique(hashes, return_index=True)
        new = first[~self.sample.holds(distinct)]
        return int(new.max()) + 1 if len(new) else len(weights)

    def _gradient_of_sample(self, parameters, settings):
        """The gradient of the sample's loss at parameters, scaled up to all rows."""
        weights = self.sample.weights * (self.counted.weight / self.sample.weights.sum())
        X, Y = self.sample.rows()
        return self._loss_and_gradient(parameters, X, Y, weights, settings)[1]

    def _loss_and_gradient(self, parameters, X, Y, weights, settings):
        return loss_and_gradient(self.space(parameters, settings.n_jobs), parameters, X, Y, weights)

    def _is_due(self):
        """Whether there is something to gain, paid for; in a further pass with rows left out, only between steps."""
        needed = 0 if self.is_changed else EVALUATIONS * len(self.sample.weights)
        is_measuring = not self.sample.is_complete and self.again.n_rows > 0
        is_waiting = is_measuring and not (self.steps.is_on and self.is_changed)
        return not self.is_settled and not is_waiting and self.credit >= needed

    def _adding(self, X, Y, weights, hashes, settings):
        """The stream with a sample that holds more rows; what seemed to be shown again counts from here on."""
        if self.steps.is_on:
            return self._landed(settings)._adding(X, Y, weights, hashes, settings)
        counted, sample = self.counted.plus(self.again), self.sample.count_repeated()
        sample = sample.add(X, Y, weights, hashes, max_bytes=MAX_BYTES)
        if self.sample.is_complete and not sample.is_complete and counted.n_rows:
            rows = self.sample.count_repeated()
            kept_X, kept_Y = rows.rows()
            loss, gradient = self._loss_and_gradient(self.parameters, kept_X, kept_Y, rows.weights, settings)
            counted = replace(counted, loss=loss, gradient=gradient)
        parameters = self.parameters if counted.n_rows else zeros(X.shape[1], self.n_labels)
        changes = {"sample": sample, "counted": counted, "best": Best(), "damping": 1.0, "parameters": parameters}
        return replace(self, again=Tally(), unclear=(), **changes)._changed()

    def _share_of_step(self):
        """How much of the rows that a step takes has been shown."""
        return N_STEPS * self.steps.weight / self.counted.weight

    def _end_minibatch(self, settings):
        """The stream with the gradient to step by, the last step confirmed; or back at the best parameters.

        A step is confirmed if it has lowered the objective, as far as the minibatch says, which came after it. What
        lies beyond the tangent is estimated from these rows; the tangent is known.
        """
        best, scale = self.best, self.counted.weight / self.steps.weight
        rise = scale * self.steps.excess + float(best.gradient @ (self.parameters - best.parameters))
        rise += penalty(self.parameters, self.n_labels, settings) - penalty(best.parameters, self.n_labels, settings)
        if rise <= ROUNDING * scale * self.steps.loss:
            steps, parameters, damping = self.steps.with_step(self.parameters), self.parameters, self.damping
            gradient = best.gradient + scale * self.steps.change
        else:
            steps, parameters, damping = self.steps.without_step(best.parameters), best.parameters, 4 * self.damping
            gradient = best.gradient
        counted = replace(self.counted, gradient=gradient)
        changes = {"parameters": parameters, "damping": damping, "steps": steps.begun_again(), "counted": counted}
        return replace(self, **changes)._changed()

    def _landed(self, settings):
        """The stream at the mean of its steps, which end here; the sample says how gradients change from the best."""
        change = self._gradient_of_sample(self.result, settings)
        change -= self._gradient_of_sample(self.best.parameters, settings)
        counted = replace(self.counted, gradient=self.best.gradient + change)
        share = self.again.weight / self.counted.weight
        # A loss measured elsewhere would be compared with later ones: inf is below none of them.
        again = replace(self.again, gradient=self.again.gradient + share * change, loss=np.inf)
        again = again if self.again.n_rows else self.again
        return replace(self, parameters=self.result, counted=counted, again=again, steps=Steps())

    def _end_pass(self, settings):
        """The stream after every row was shown again: measured, or after its last step."""
        following = replace(self, n_passes=self.n_passes + 1)
        if self.steps.is_on:
            following = following._end_minibatch(settings) if self._share_of_step() >= 0.5 else following
            following = replace(following._landed(settings), is_changed=False, is_settled=True)
        elif not self.sample.is_complete:
            following = following._measured(settings)
        return replace(following, sample=self.sample.forget_repeated(), again=Tally(), unclear=())

    def _measured(self, settings):
        """The stream with the gradient of this pass, or back at a better point; the next pass goes in steps."""
        objective = self.again.loss + penalty(self.parameters, self.n_labels, settings)
        best, damping = Best(objective, self.parameters, self.again.gradient), max(1.0, self.damping / 4)
        if objective > self.best.objective + ROUNDING * abs(objective):
            best, damping = self.best, 4 * self.damping
        counted = replace(self.counted, gradient=best.gradient)
        changes = {"parameters": best.parameters, "damping": damping, "steps": Steps(is_on=True)}
        return replace(self, best=best, counted=counted, **changes)._changed()

    def _changed(self):
        return replace(self, is_changed=True, is_settled=False)

    def _tally(self, parameters, X, Y, weights, hashes, settings):
        """The sums over rows, with loss and gradient at parameters."""
        squares = weights @ (X.multiply(X) if sparse.issparse(X) else np.square(X))
        tally = Tally(len(weights), float(weights.sum()), _checksum(weights, hashes), squares)
        if self.sample.is_complete:
            return tally
        loss, gradient = self._loss_and_gradient(parameters, X, Y, weights, settings)
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
