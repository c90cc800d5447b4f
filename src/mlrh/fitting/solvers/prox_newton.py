"""prox_newton: the minimiser of an objective plus its L1 penalty, (objective, start) -> Solution, with exact zeros.

An iteration has up to two steps, neither of which increases the objective.

* Every label's coefficients and intercept go to the minimum of a quadratic model of their own plus the L1 penalty, by
  coordinate descent over a working set: the coefficients that aren't zero, and the zeros that are pulled away most.
  This finds out which are zero; where labels are independent, it is Newton's method.
* If that was slow, since labels or features depend on each other, a step of Newton's method for all labels jointly, by
  conjugate gradients, among the coefficients that aren't zero. One that would change its sign becomes zero.

It stops by the rule of `solvers`, with the smallest subgradient for the gradient. Knows nothing of probabilities.
"""

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from mlrh._parallel import map_blocks
from mlrh.fitting.metric import MAX_FACTORED, check_squares, reciprocals
from mlrh.fitting.solvers._coordinate_descent import columns_of, descend
from mlrh.fitting.solvers.base import iterate, newton_decrease

MAX_SWEEPS = 50  # over the working set of a label in one iteration
SMALL_GAIN = 0.03  # of a sweep, as a share of all gains, after which no other follows
MIN_GROWTH = 32  # zeros that may join a working set, or twice as many as there are nonzero coefficients
QUICK = 0.25  # factor by which the decrease left must shrink in each iteration to do without joint steps
TARGET_OPERATIONS = 500_000  # in a sweep over the labels that one thread takes at a time


def prox_newton(objective, start, *, tol, max_iter, n_jobs=None, report=None):
    """Proximal Newton's method, every label by itself, and all of them jointly where that is slow.

    Its own estimate of the decrease left is that of the labels' models; where it is small enough, that of the joint
    model has the last word.
    """
    fit = _Fit(objective, n_jobs)
    enough = tol * objective.scale

    def propose(state, history):
        own = fit.own_step(state)
        if max(state.left, own.decrease) > enough:
            return own, own.decrease
        return own, max(own.decrease, fit.joint_step(state, enough).decrease)

    begin = fit.arrive(objective.canonical(start))
    return iterate(objective, begin, propose, fit.move, None, tol=tol, max_iter=max_iter, report=report)


@dataclass(frozen=True)
class _State:
    parameters: np.ndarray
    value: float
    smooth: float  # the value without the L1 penalty
    gradient: np.ndarray  # of the smooth part, or on a face that of all
    curvatures: tuple  # of single scores, what misfit adds to them, and of single biases
    diagonal: np.ndarray  # what that of the Hessian is like
    slope: np.ndarray  # the smallest subgradient

    @property
    def left(self):
        """Estimated decrease left by the diagonal."""
        return 0.5 * float(self.slope @ (self.slope * reciprocals(self.diagonal)))


@dataclass(frozen=True)
class _FaceState:
    parameters: np.ndarray
    gradient: np.ndarray
    solved: np.ndarray  # the gradient, solved with the metric


@dataclass(frozen=True)
class _Step:
    direction: np.ndarray
    decrease: float  # that its quadratic model predicts
    is_joint: bool


class _Fit:
    """Steps and line searches for one objective, and what they have taught about the labels' models.

    `stretch` multiplies the labels' own curvatures where those found along a step were larger. `caution`, from 1 to 0,
    is the share of misfit that is added: far from the optimum, the curvature of a rare label says little of the way.
    """

    def __init__(self, objective, n_jobs):
        design = objective.design
        self.objective, self.n_jobs, self.faces = objective, n_jobs, Faces(objective)
        self.columns = columns_of(design.X)
        with np.errstate(over="ignore", invalid="ignore"):
            self.squares = design.squared_norms()
        check_squares(self.squares, design)
        rounding = 8 * np.finfo(design.X.dtype).eps * np.abs(design.mean)
        self.varies = self.squares > design.total_weight * rounding**2
        self.stretch, self.caution, self.last_decrease = 1.0, 1.0, np.inf

    def arrive(self, parameters):
        objective = self.objective
        smooth, gradient, *curvatures = objective.with_curvatures(parameters)
        return _State(
            parameters=parameters,
            value=smooth + objective.l1_penalty(parameters),
            smooth=smooth,
            gradient=gradient,
            curvatures=tuple(curvatures),
            diagonal=self._diagonal(curvatures),
            slope=_smallest_subgradient(objective, parameters, gradient),
        )

    def move(self, state, step):
        """The state after the step, and after a joint one where the decreases left shrink slowly; None if stuck."""
        following = self._search(state, step)
        is_quick, self.last_decrease = step.decrease <= QUICK * self.last_decrease, step.decrease
        if following is not None and is_quick:
            return following
        middle = state if following is None else following
        further = self._search(middle, self.joint_step(middle, np.inf))
        return following if further is None else further

    def own_step(self, state):
        """To the minima of the labels' own models, and of a diagonal one of the biases."""
        objective, design = self.objective, self.objective.design
        coef, intercept, _ = objective.split(state.parameters)
        moved, offsets, decreases = self._descended(state, np.array(coef.T, order="C"))
        d_coef = moved.T - coef
        d_intercept = offsets + design.shift @ d_coef if design.fit_intercept else np.zeros_like(intercept)
        d_bias, decrease = self._bias_step(state)
        direction = np.concatenate([d_coef.ravel(), d_intercept, d_bias])
        return _Step(direction, float(decreases.sum()) + decrease, is_joint=False)

    def joint_step(self, state, enough):
        """Towards the minimum of the joint model on the face; not further than a decrease that is more than enough."""
        objective, face = self.objective, self.faces.at(state.parameters)
        shares = state.curvatures[0].sum(axis=0, dtype=np.float64) / objective.design.total_weight
        solve = self.faces.metric(face, state.diagonal, shares)
        gradient = face.free * state.slope
        begin = _FaceState(state.parameters, gradient, solve(gradient))
        direction, decrease = newton_decrease(face, begin, solve, enough)
        return _Step(direction, decrease, is_joint=True)

    def _descended(self, state, coef):
        """Coefficients (n_labels, n_features) and offsets at the minima of the labels' models, and their decreases."""
        objective, design = self.objective, self.objective.design
        variances, misfit, _ = state.curvatures
        weights = np.ascontiguousarray((self.stretch * variances + self.caution * misfit).T, np.float64)
        d_coef, d_intercept, _ = objective.split(state.gradient)
        gradient = np.ascontiguousarray((d_coef + np.outer(design.shift, d_intercept)).T)
        slope = objective.split(state.slope)[0]
        ridge = float(objective.split(objective.ridges)[1][0]) if design.fit_intercept else np.inf
        offsets, decreases = np.zeros(len(coef)), np.zeros(len(coef))

        def work(labels):
            for k in range(labels.start, labels.stop):
                offsets[k], decreases[k] = descend(
                    self.columns,
                    self._working_set(coef[k], slope[:, k]),
                    weights[k],
                    coef[k],
                    gradient[k],
                    (float(d_intercept[k]), ridge),
                    (float(objective.l1), float(objective.alpha)),
                    (MAX_SWEEPS, SMALL_GAIN),
                )

        labels_per_block = max(1, TARGET_OPERATIONS // max(1, len(self.columns[0])))
        map_blocks(work, len(coef), rows_per_block=labels_per_block, n_jobs=self.n_jobs)
        return coef, offsets, decreases

    def _working_set(self, coef, slope):
        """Indices of a label's coefficients that may move."""
        members = np.flatnonzero(coef)
        pulled = np.flatnonzero((coef == 0) & (slope != 0) & self.varies)
        growth = max(MIN_GROWTH, 2 * len(members))
        if len(pulled) > growth:
            pull = np.abs(slope[pulled]) / np.sqrt(self.squares[pulled])
            pulled = pulled[np.argpartition(-pull, growth)[:growth]]
        return np.sort(np.concatenate([members, pulled]))

    def _bias_step(self, state):
        """The step of the biases against their gradients, each divided by its curvature, and its decrease."""
        objective, gradient = self.objective, self.objective.split(state.gradient)[2]
        curvature = self.stretch * state.curvatures[2] + objective.split(objective.ridges)[2]
        padded = np.zeros_like(state.gradient)
        objective.split(padded)[2][...] = -gradient * reciprocals(curvature)
        step = objective.split(objective.determined(padded))[2]
        slope, bend = float(gradient @ step), float(step @ (curvature * step))
        length = min(1.0, -slope / bend) if slope < 0 < bend else 0.0
        return length * step, -(length * slope + 0.5 * length**2 * bend)

    def _diagonal(self, curvatures):
        """The mean curvature of a label times the squares of columns, and so on; with the ridges."""
        objective, design = self.objective, self.objective.design
        sums = curvatures[0].sum(axis=0, dtype=np.float64)
        coef = np.outer(self.squares / design.total_weight, sums)
        return np.concatenate([coef.ravel(), sums * design.fit_intercept, curvatures[2]]) + objective.ridges

    def _search(self, state, step):
        """The state at a length of the step that gains its share of what is predicted, or None if there is none."""
        objective, allowance = self.objective, self.objective.rounding_error(state.value)
        length = 1.0
        for _ in range(30):
            parameters = _moved(objective, state, length * step.direction, keep_signs=step.is_joint)
            predicted = _predicted(objective, state, parameters)
            reached = self.arrive(parameters) if predicted < 0 else None
            if reached is not None and reached.value <= state.value + 1e-4 * predicted + allowance:
                if not step.is_joint:
                    self._learn(state, step, reached, length)
                return reached
            excess = np.inf if reached is None else reached.value - state.value - predicted
            shorter = -0.5 * length * predicted / excess if 0 < excess < np.inf else 0.0
            length = float(np.clip(shorter, 0.1 * length, 0.5 * length))
        return None

    def _learn(self, state, step, reached, length):
        """Adapt stretch and caution to the curvature found along a step of the labels' own models."""
        slope = float(state.gradient @ step.direction)
        change = _predicted(self.objective, state, state.parameters + step.direction)
        expected = -(step.decrease + change) * length**2
        if not expected > 0:
            return
        ratio = (reached.smooth - state.smooth - length * slope) / expected
        was_bold = length < 1.0 or ratio > 2.0
        self.stretch = max(1.0, self.stretch * float(np.clip(ratio, 0.5, 4.0 if was_bold else 1.0)))
        self.caution = min(1.0, 4.0 * self.caution + 0.1) if was_bold else 0.25 * self.caution * (self.caution > 1e-3)


def _predicted(objective, state, parameters):
    """The change of the objective if its smooth part were linear; small differences are not lost in large sums."""
    coef, before = objective.split(parameters)[0], objective.split(state.parameters)[0]
    penalty = objective.l1 * float((np.abs(coef) - np.abs(before)).sum())
    return float(state.gradient @ (parameters - state.parameters)) + penalty


def _moved(objective, state, change, *, keep_signs):
    """Parameters after the change; to keep signs, coefficients that would leave them become zero."""
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


MAX_WORK = 100  # products with the Hessian that the factors of a metric may cost at most


class Faces:
    """The faces of one objective. What they share, the features' Gram matrix, is computed when it is first needed."""

    def __init__(self, objective):
        self.objective = objective
        self._gram = None

    def at(self, parameters):
        """The face of the parameters: all intercepts and biases are free, and coefficients that aren't zero."""
        free = np.ones(len(parameters), bool)
        self.objective.split(free)[0][...] = self.objective.split(parameters)[0] != 0
        return Face(self.objective, free)

    def metric(self, face, diagonal, shares):
        """The function that solves with what the Hessian is like on a face.

        For the coefficients of a label that is its share (n_labels,) of the Gram matrix plus their ridge, for the rest
        (for all, where that would be too large to factorise) the diagonal.
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
        """For each label its free coefficients, and the Cholesky factor of their part of the metric."""
        design, alpha = self.objective.design, self.objective.alpha
        members = [np.flatnonzero(free[:, k]) for k in range(len(shares))]
        work = sum(len(m) ** 3 for m in members)
        if design.n_features > MAX_FACTORED or work > MAX_WORK * design.X.size * len(shares):
            return []
        if self._gram is None:
            self._gram = design.gram()
        return [(m, _factor(share * self._gram[np.ix_(m, m)], alpha)) for m, share in zip(members, shares, strict=True)]


class Face:
    """An objective whose Hessian moves and shows nothing but what is `free`, a mask of its parameters."""

    def __init__(self, objective, free):
        self._objective, self.free = objective, free

    def hessian(self, parameters):
        """The function direction -> Hessian @ direction at the parameters, on the face."""
        product = self._objective.hessian(parameters)
        return lambda direction: self.free * product(direction)


def _factor(matrix, alpha):
    """A Cholesky factor; columns that repeat each other, which an L1 penalty alone leaves singular, are told apart."""
    matrix[np.diag_indices_from(matrix)] += alpha + 1e-8 * np.diag(matrix) + 1e-300
    return linalg.cho_factor(matrix, overwrite_a=True, check_finite=False)
