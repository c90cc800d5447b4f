"""prox_newton: proximal Newton's method for an objective plus its L1 penalty, with exact zeros.

An iteration has up to two steps, neither of which increases the objective.

* The own step. Each label's coefficients and intercept go to the minimum of the label's own quadratic model plus the L1
  penalty, by coordinate descent over a working set: coefficients that are not zero, and the zeros that are pulled away
  most. It finds out which coefficients are zero. Where labels are independent, it is Newton's method. Where rows are
  known by sums over them, the models are gathered by the evaluation before, for the working set that is expected then:
  so an iteration takes no pass over the rows more than it has evaluations, unless the guess was bad.
* The joint step, if that was slow because labels or features depend on each other: a Newton step for all labels
  together, by conjugate gradients, over the coefficients that are not zero. One that would change sign becomes zero.

It stops by the rule of `base`, with the smallest subgradient in place of the gradient. A face is the set of parameters
with the same zeros; on it, the penalised objective is smooth as long as no sign changes.
"""

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from mlrh._parallel import BLOCK_OPERATIONS, map_blocks
from mlrh.fitting.metric import MAX_FACTORED, check_squares, reciprocals
from mlrh.fitting.solvers._coordinate_descent import columns_of, descend, descend_by_sums
from mlrh.fitting.solvers.base import best_of, enough_for, iterate, newton_decrease, solver

MAX_SWEEPS = 50  # over a label's working set in one iteration: bounds its price where coordinates depend on each other
SMALL_GAIN = 0.03  # a sweep that adds less than this share to the gains is the last: the model is only an approximation
MIN_GROWTH = 32  # zeros that may join a working set; or twice the number of nonzero coefficients, if that is more
# A zero whose gradient is beyond this share of l1 may join the next working set (see `_Fit._expected`). With 0.4, yeast
# and scene took as many passes, for up to 2.5 times as many sums.
NEAR = 0.7
# Members that were not expected are left out if they hold at most this share of what is left to gain: so little that
# five sets took as many iterations as with all of them, and up to two passes less.
LOST = 0.1
QUICK = 0.25  # without joint steps, the decrease left must shrink to this share in each iteration


@solver(needs={"hessian", "l1"}, options=("n_jobs",))
def prox_newton(objective, start, *, tol, max_iter, n_jobs=None, report=None):
    """The Solution by proximal Newton's method: each label by itself, and all labels jointly where that is slow.

    Its own estimate of the decrease left is that of the labels' models. Where it is small enough, the joint model must
    confirm it.
    """
    fit = _Fit(objective, n_jobs)

    def propose(state, history):
        own, enough = fit.own_step(state), enough_for(objective, state.value, tol)
        if max(state.left, own.decrease) > enough:
            return own, own.decrease
        return own, max(own.decrease, fit.joint_step(state, enough).decrease)

    begin = best_of(start, fit.begin)
    return iterate(objective, begin, propose, fit.move, None, tol=tol, max_iter=max_iter, report=report)


@dataclass(frozen=True)
class _State:
    """Where the solver is; values include the L1 penalty, gradients and curvatures do not."""

    parameters: np.ndarray
    value: float
    smooth: float  # the value without the L1 penalty
    gradient: np.ndarray  # of the smooth part
    curvatures: tuple  # of scores, misfit, and of biases (see RowsInMemory.with_curvatures)
    diagonal: np.ndarray  # an approximation of the Hessian's diagonal
    slope: np.ndarray  # the smallest subgradient
    models: "_Models | None" = None  # of the labels, where rows are known by sums and the same pass gave them

    @property
    def left(self):
        """Estimated decrease left, by the diagonal."""
        return 0.5 * float(self.slope @ (self.slope * reciprocals(self.diagonal)))


@dataclass(frozen=True)
class _Models:
    """Sums for the labels' own models over more columns than may be needed: see `Rows.with_models`."""

    members: list[np.ndarray]
    sums: list[tuple[np.ndarray, np.ndarray]]  # by the curvatures of scores, and by misfit

    def of(self, wanted, shares):
        """The models of the wanted members of each label, all of which were expected."""
        models = []
        for own, members, (curvatures, misfit) in zip(wanted, self.members, self.sums, strict=True):
            places = np.concatenate([[0], np.searchsorted(members, own) + 1])  # the first is the offset
            place = np.ix_(places, places)
            models.append(shares[0] * curvatures[place] + shares[1] * misfit[place])
        return models


@dataclass(frozen=True)
class _FaceState:
    """A state on a face, as conjugate gradients take it: the gradient is that of the penalised objective there."""

    parameters: np.ndarray
    gradient: np.ndarray
    solved: np.ndarray  # the gradient, solved with the metric


@dataclass(frozen=True)
class _Step:
    """A proposed step, own or joint."""

    direction: np.ndarray
    decrease: float  # that its quadratic model predicts
    is_joint: bool


class _Fit:
    """Steps and line searches for one objective, and what they have taught about the labels' models.

    `stretch`, 1 or more, multiplies the labels' own curvatures: it grows where the curvature found along a step was
    larger. `caution`, from 1 to 0, is the share of misfit that is added to them: far from the optimum, the variance of
    a rare label is tiny and would allow steps that are far too long.
    """

    def __init__(self, objective, n_jobs):
        design = objective.design
        self.objective, self.n_jobs, self.faces = objective, n_jobs, Faces(objective)
        self.columns = columns_of(design.X)
        with np.errstate(over="ignore", invalid="ignore"):
            self.squares = design.squared_norms()
        check_squares(self.squares, design)
        # A feature whose variation is only rounding error of its mean is left at 0.
        rounding = 8 * np.finfo(design.dtype).eps * np.abs(design.mean)
        self.varies = self.squares > design.total_weight * rounding**2
        self.stretch, self.caution, self.last_decrease = 1.0, 1.0, np.inf

    def begin(self, parameters):
        """The _State at parameters to start from."""
        parameters = self.objective.canonical(parameters)
        return self.arrive(parameters, self._expected_at_start(parameters))

    def arrive(self, parameters, expected=None):
        """The _State at the parameters, with models of the members expected in the next own step, if the rows offer."""
        objective, models = self.objective, None
        if expected is None:
            smooth, gradient, *curvatures = objective.with_curvatures(parameters)
        else:
            (smooth, gradient, *curvatures), sums = objective.with_models(parameters, expected)
            models = None if sums is None else _Models(expected, sums)
        return _State(
            parameters=parameters,
            value=smooth + objective.l1_penalty(parameters),
            smooth=smooth,
            gradient=gradient,
            curvatures=tuple(curvatures),
            diagonal=self._diagonal(curvatures),
            slope=_smallest_subgradient(objective, parameters, gradient),
            models=models,
        )

    def move(self, state, step):
        """The state after the step, and after a joint one where the decreases left shrink slowly; None if stuck."""
        is_quick, self.last_decrease = step.decrease <= QUICK * self.last_decrease, step.decrease
        following = self._search(state, step, is_last=is_quick)
        if following is not None and is_quick:
            return following
        middle = state if following is None else following
        further = self._search(middle, self.joint_step(middle, np.inf), is_last=True)
        return following if further is None else further

    def own_step(self, state):
        """The _Step to the minima of the labels' own models, and of a diagonal model of the biases."""
        objective, design = self.objective, self.objective.design
        coef, intercept, _ = objective.split(state.parameters)
        moved, offsets, decreases = self._descended(state, np.array(coef.T, order="C"))
        d_coef = moved.T - coef
        d_intercept = offsets + design.shift @ d_coef if design.fit_intercept else np.zeros_like(intercept)
        d_bias, decrease = self._bias_step(state)
        direction = np.concatenate([d_coef.ravel(), d_intercept, d_bias])
        return _Step(direction, float(decreases.sum()) + decrease, is_joint=False)

    def joint_step(self, state, enough):
        """The _Step towards the minimum of the joint model on the face; ends once its decrease is more than enough."""
        objective, face = self.objective, self.faces.at(state.parameters)
        shares = state.curvatures[0].sum(axis=0, dtype=np.float64) / objective.design.total_weight
        solve = self.faces.metric(face, state.diagonal, shares)
        gradient = face.free * state.slope
        begin = _FaceState(state.parameters, gradient, solve(gradient))
        direction, decrease = newton_decrease(face, begin, solve, enough)
        return _Step(direction, decrease, is_joint=True)

    def _descended(self, state, coef):
        """Coefficients (n_labels, n_features), offsets, decreases (n_labels,) at the minima of the labels' models."""
        # Features are stored without their shift: the offset takes up what centring them would change.
        objective, design = self.objective, self.objective.design
        variances, misfit, _ = state.curvatures
        d_coef, d_intercept, _ = objective.split(state.gradient)
        gradient = np.ascontiguousarray((d_coef + np.outer(design.shift, d_intercept)).T)
        slope = objective.split(state.slope)[0]
        ridge = float(objective.split(objective.ridges)[1][0]) if design.fit_intercept else np.inf
        offsets, decreases = np.zeros(len(coef)), np.zeros(len(coef))
        members = [self._working_set(coef[k], slope[:, k]) for k in range(len(coef))]
        shares, known = (self.stretch, self.caution), self._expected_among(state, members)
        if known is not None:
            members, models = known, state.models.of(known, shares)
        else:
            models = objective.own_models(state.parameters, members, shares)
        weights = (self.stretch * variances + self.caution * misfit).T if models is None else ()
        options = (float(objective.l1), float(objective.alpha)), (MAX_SWEEPS, SMALL_GAIN)

        def work(labels):
            for k in range(labels.start, labels.stop):
                own, offset = members[k], (float(d_intercept[k]), ridge)
                if models is None:
                    weight = np.ascontiguousarray(weights[k], np.float64)
                    found = descend(self.columns, own, weight, coef[k], gradient[k], offset, *options)
                else:
                    moved = coef[k, own]
                    found = descend_by_sums(models[k], moved, gradient[k, own], offset, *options)
                    coef[k, own] = moved
                offsets[k], decreases[k] = found

        labels_per_block = max(1, BLOCK_OPERATIONS // max(1, len(self.columns[0])))
        map_blocks(work, len(coef), rows_per_block=labels_per_block, n_jobs=self.n_jobs)
        return coef, offsets, decreases

    def _working_set(self, coef, slope):
        """Indices of a label's coefficients that may move, ascending."""
        members = np.flatnonzero(coef)
        pulled = self._most_pulled(slope, (coef == 0) & (slope != 0) & self.varies, len(members))
        return np.sort(np.concatenate([members, pulled]))

    def _most_pulled(self, slope, is_pulled, n_members):
        """Indices of the zeros that are pulled most, as many as may join a working set of so many members."""
        # Pull per unit of scale: what a zero would gain first, whatever the unit of its feature.
        pulled, growth = np.flatnonzero(is_pulled), max(MIN_GROWTH, 2 * n_members)
        if len(pulled) > growth:
            pull = np.abs(slope[pulled]) / np.sqrt(self.squares[pulled])
            pulled = pulled[np.argpartition(-pull, growth)[:growth]]
        return pulled

    def _expected_among(self, state, members):
        """The members that the state has models of; None without models, or where too much would be lost.

        Those left out join at the next step: they are pulled, and so expected there.
        """
        if state.models is None:
            return None
        known = [np.intersect1d(*pair, assume_unique=True) for pair in zip(members, state.models.members, strict=True)]
        gains = self.objective.split(0.5 * state.slope**2 * reciprocals(state.diagonal))[0]
        lost = sum(gains[own, k].sum() - gains[known[k], k].sum() for k, own in enumerate(members))
        return known if lost <= LOST * state.left else None

    def _expected_at_start(self, parameters):
        """`_expected` where all coefficients are 0: there the gradient is -X'Y, which is known; else None."""
        objective = self.objective
        if objective.split(parameters)[0].any() or not objective.models_by_sums:
            return None
        gradient = -objective.targets
        slope = np.sign(gradient) * np.maximum(np.abs(gradient) - objective.l1, 0.0)
        return [self._working_set(np.zeros(len(slope)), slope[:, k]) for k in range(objective.n_labels)]

    def _expected(self, state, parameters):
        """Of each label, a guess at the working set at the parameters, made at the state before, ascending.

        Where rows are known by sums, the pass that evaluates the parameters can then add up the models too. It has the
        coefficients that are not zero there, the working set of the state, and zeros that are pulled nearly enough.
        """
        objective, coef = self.objective, self.objective.split(parameters)[0]
        before, gradient, slope = (objective.split(own)[0] for own in (state.parameters, state.gradient, state.slope))
        expected = []
        for k in range(objective.n_labels):
            own = np.union1d(self._working_set(before[:, k], slope[:, k]), np.flatnonzero(coef[:, k]))
            is_near = (np.abs(gradient[:, k]) > NEAR * objective.l1) & self.varies
            is_near[own] = False
            more = self._most_pulled(gradient[:, k], is_near, np.count_nonzero(coef[:, k]))
            expected.append(np.union1d(own, more))
        return expected

    def _bias_step(self, state):
        """The step of the biases, -gradient / curvature without what scores absorb, and the decrease it predicts."""
        objective, gradient = self.objective, self.objective.split(state.gradient)[2]
        curvature = self.stretch * state.curvatures[2] + objective.split(objective.ridges)[2]
        padded = np.zeros_like(state.gradient)
        objective.split(padded)[2][...] = -gradient * reciprocals(curvature)
        step = objective.split(objective.determined(padded))[2]
        slope, bend = float(gradient @ step), float(step @ (curvature * step))
        length = min(1.0, -slope / bend) if slope < 0 < bend else 0.0
        return length * step, -(length * slope + 0.5 * length**2 * bend)

    def _diagonal(self, curvatures):
        """Approximate diagonal of the Hessian (n_parameters,), ridges included: squared norms times mean curvatures."""
        objective, design = self.objective, self.objective.design
        sums = curvatures[0].sum(axis=0, dtype=np.float64)
        coef = np.outer(self.squares / design.total_weight, sums)
        return np.concatenate([coef.ravel(), sums * design.fit_intercept, curvatures[2]]) + objective.ridges

    def _search(self, state, step, *, is_last):
        """The _State after the step, shortened until it gains a share of what is predicted; None if no length does.

        is_last says whether an own step comes next, for which the state then has models.
        """
        objective, allowance = self.objective, self.objective.rounding_error(state.parameters, state.value)
        length = 1.0
        for _ in range(30):
            parameters = _moved(objective, state, length * step.direction, keep_signs=step.is_joint)
            predicted = _predicted(objective, state, parameters)
            expected = self._expected(state, parameters) if is_last and objective.models_by_sums else None
            reached = self.arrive(parameters, expected) if predicted < 0 else None
            if reached is not None and reached.value <= state.value + 1e-4 * predicted + allowance:
                if not step.is_joint:
                    self._learn(state, step, reached, length)
                return reached
            excess = np.inf if reached is None else reached.value - state.value - predicted
            shorter = -0.5 * length * predicted / excess if 0 < excess < np.inf else 0.0
            length = float(np.clip(shorter, 0.1 * length, 0.5 * length))
        return None

    def _learn(self, state, step, reached, length):
        """Adapt stretch and caution to the curvature found along an own step.

        The ratio compares the curvature of the smooth part along the step with what the labels' models expected.
        """
        slope = float(state.gradient @ step.direction)
        change = _predicted(self.objective, state, state.parameters + step.direction)
        expected = -(step.decrease + change) * length**2
        if not expected > 0:
            return
        ratio = (reached.smooth - state.smooth - length * slope) / expected
        # Bold steps raise both quickly; after good ones, stretch falls by half at most and caution to a quarter.
        was_bold = length < 1.0 or ratio > 2.0
        self.stretch = max(1.0, self.stretch * float(np.clip(ratio, 0.5, 4.0 if was_bold else 1.0)))
        self.caution = min(1.0, 4.0 * self.caution + 0.1) if was_bold else 0.25 * self.caution * (self.caution > 1e-3)


def _predicted(objective, state, parameters):
    """The change of the penalised objective if its smooth part were linear, from differences, so that none is lost."""
    coef, before = objective.split(parameters)[0], objective.split(state.parameters)[0]
    penalty = objective.l1 * float((np.abs(coef) - np.abs(before)).sum())
    return float(state.gradient @ (parameters - state.parameters)) + penalty


def _moved(objective, state, change, *, keep_signs):
    """Parameters after the change; with keep_signs, coefficients that would change sign become zero."""
    moved = state.parameters + change
    if keep_signs:
        coef, before = objective.split(moved)[0], objective.split(state.parameters)[0]
        coef[np.sign(coef) != np.sign(before)] = 0.0
    return objective.canonical(moved)


def _smallest_subgradient(objective, parameters, gradient):
    """The subgradient of the penalised objective that is nearest to 0 in every entry."""
    slope = gradient.copy()
    part, coef, l1 = objective.split(slope)[0], objective.split(parameters)[0], objective.l1
    at_zero = np.sign(part) * np.maximum(np.abs(part) - l1, 0.0)
    part[...] = np.where(coef == 0, at_zero, part + l1 * np.sign(coef))
    return slope


MAX_WORK = 100  # the factors of a metric may cost at most as much as this many products with the features


class Faces:
    """The faces of one objective. They share the Gram matrix of the features, computed when it is first needed."""

    def __init__(self, objective):
        self.objective = objective
        self._gram = None

    def at(self, parameters):
        """The Face of the parameters: intercepts, biases and the coefficients that are not zero are free."""
        free = np.ones(len(parameters), bool)
        self.objective.split(free)[0][...] = self.objective.split(parameters)[0] != 0
        return Face(self.objective, free)

    def metric(self, face, diagonal, shares):
        """The function that solves with an approximation of the Hessian on a face: gradient -> (n_parameters,).

        For the free coefficients of a label, it is the Gram matrix times the label's share (n_labels,), plus their
        ridge. For the other parameters, and where the matrices are too large to factorise, it is the diagonal.
        """
        objective, inverse = self.objective, face.free * reciprocals(diagonal)
        factors = self._factors(objective.split(face.free)[0], shares)

        def solve(gradient):
            solved = objective.determined(inverse * gradient)
            coef, right = objective.split(solved)[0], objective.split(gradient)[0]
            for k, (members, factor) in enumerate(factors):
                if len(members):  # SciPy before 1.14 refuses systems without unknowns
                    coef[members, k] = linalg.cho_solve(factor, right[members, k], check_finite=False)
            return solved

        return solve

    def _factors(self, free, shares):
        """For each label the indices of its free coefficients and the Cholesky factor of their matrix; or nothing."""
        design, alpha = self.objective.design, self.objective.alpha
        members = [np.flatnonzero(free[:, k]) for k in range(len(shares))]
        # Nothing where factors would cost too much: the diagonal then serves all coefficients.
        work = sum(len(m) ** 3 for m in members)
        if design.n_features > MAX_FACTORED or work > MAX_WORK * design.n_entries * len(shares):
            return []
        if self._gram is None:
            self._gram = design.gram()
        return [(m, _factor(share * self._gram[np.ix_(m, m)], alpha)) for m, share in zip(members, shares, strict=True)]


class Face:
    """An objective restricted to its free parameters, a mask (n_parameters,): its Hessian ignores all others."""

    def __init__(self, objective, free):
        self._objective, self.free = objective, free

    def hessian(self, parameters):
        """The function direction -> Hessian @ direction at the parameters, on the face."""
        product = self._objective.hessian(parameters)
        return lambda direction: self.free * product(direction)


def _factor(matrix, alpha):
    """Cholesky factor of matrix + alpha I.

    Without alpha, columns that repeat each other make it singular: 1e-8 of the diagonal is added to prevent that.
    """
    matrix[np.diag_indices_from(matrix)] += alpha + 1e-8 * np.diag(matrix) + 1e-300
    return linalg.cho_factor(matrix, overwrite_a=True, check_finite=False)
