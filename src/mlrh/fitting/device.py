"""Fits to rows on a GPU: features, objective and the solver's vectors stay there as tensors of torch.

The objective is the one of `objective`. Its start, its scale and what is typical of it are computed in NumPy from a few
sums; values, gradients, products with the Hessian and the metric are tensors, in float64 but for products with
features in float32. Rows are gone through in blocks, so that scores take little memory beside the features.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

import mlrh.torch
from mlrh._indicators import UNKNOWN
from mlrh.fitting.design import Design
from mlrh.fitting.metric import MAX_FACTORED, check_squares
from mlrh.fitting.objective import Objective
from mlrh.fitting.solvers.base import State, best_of, solver
from mlrh.fitting.solvers.lbfgs import Lbfgs, Memory, in_stages

BLOCK_SCORES = 2**26  # of the rows that are worked on at a time: 512 MB in float64, and a few times that in all
STEP = 1e-2  # of the largest score, for differences of gradients: right to a percent, which is enough for an estimate
NUMPY = {torch.float64: np.dtype(np.float64), torch.float32: np.dtype(np.float32)}


class DeviceDesign:
    """Features X (n_samples, n_features), a tensor, of rows with weights: what an objective asks of a `Design`."""

    is_on_device, is_sparse, n_jobs = True, False, 1

    def __init__(self, X, weights, *, fit_intercept):
        self.weights, self.fit_intercept = weights, fit_intercept
        self.n_samples, self.n_features = X.shape
        self.n_leading, self.total_weight = self.n_features, weights.sum()
        self.on_device = torch.as_tensor(weights, device=X.device)
        mean = self.on_device.to(X.dtype) @ X / self.total_weight if fit_intercept else X.new_zeros(self.n_features)
        self.mean, self.shift = mean.double().cpu().numpy(), np.zeros(self.n_features)
        self.X = X - mean if fit_intercept else X
        self.dtype = NUMPY[X.dtype]

    @property
    def n_entries(self):
        """Number of features of all rows."""
        return self.X.numel()

    @property
    def in_float32(self):
        """The same rows with features in float32."""
        other = copy(self)
        other.X, other.dtype = self.X.float(), NUMPY[torch.float32]
        return other

    def of_rows(self, rows):
        """A design of some rows in the memory of the CPU."""
        X = self.X[torch.as_tensor(rows, device=self.X.device)].cpu().numpy()
        return Design(X, self.weights[rows], fit_intercept=self.fit_intercept)

    def blocks(self, n_labels):
        """Slices of rows of which the scores of n_labels labels fit into BLOCK_SCORES."""
        step = max(1, BLOCK_SCORES // max(n_labels, 1))
        return [slice(start, min(start + step, self.n_samples)) for start in range(0, self.n_samples, step)]

    def gram(self):
        """X' diag(weights) X, in float64."""
        result = torch.zeros((self.n_features,) * 2, dtype=torch.float64, device=self.X.device)
        for rows in self.blocks(self.n_features):
            X = self.X[rows]
            result += (X.T @ (self.on_device[rows, None].to(X.dtype) * X)).double()
        return result

    def squared_norms(self):
        """The diagonal of `gram`."""
        result = torch.zeros(self.n_features, dtype=torch.float64, device=self.X.device)
        for rows in self.blocks(self.n_features):
            result += self.on_device[rows] @ self.X[rows].double().square()
        return result

    def largest_entries(self):
        """The largest magnitude of each feature."""
        return self.X.abs().amax(0).double().cpu().numpy()


class DeviceGramFeatures:
    """`GramFeatures` of a Gram matrix on a device: by Cholesky, or by eigenvectors where that is not safe.

    torch has no Cholesky with pivoting, which would do for matrices of any rank.
    """

    def __init__(self, gram):
        size = len(gram)
        largest = max(float(gram.diagonal().max()), 0.0)
        eps = float(np.finfo(np.float64).eps)
        self.lost = largest * size * eps
        factor, failed = torch.linalg.cholesky_ex(gram)
        # The smallest pivot by far above rounding errors: then what is lost is no more than that.
        self._back: Callable
        self._forth: Callable
        if not failed and float(factor.diagonal().min()) ** 2 > 100 * self.lost:
            self.features, self._back = factor, partial(torch.linalg.solve_triangular, factor.T, upper=True)
            self._forth = partial(torch.linalg.solve_triangular, factor, upper=False)
            return
        values, vectors = torch.linalg.eigh(gram)
        if float(values[0]) < -1e-8 * max(float(values[-1]), 0.0):
            raise ValueError(
                f"The kernel matrix must be positive semidefinite; its smallest eigenvalue is {float(values[0]):.3g} "
                f"and its largest {float(values[-1]):.3g}. Choose another kernel (sigmoid often fails) or other "
                "parameters."
            )
        kept = values > self.lost
        vectors, roots = vectors[:, kept], values[kept].sqrt()
        self.features = vectors * roots
        self._back = lambda coef: vectors @ (coef / roots[:, None])
        self._forth = lambda scores: (vectors.T @ scores) / roots[:, None]

    def to_dual(self, coef):
        """Dual coefficients (n_samples, n_labels) with gram @ dual = features @ coef; arrays of NumPy."""
        return self._back(self._tensor(coef)).cpu().numpy()

    def from_scores(self, scores):
        """Coefficients whose scores come nearest to these (n_samples, n_labels); arrays of NumPy."""
        return self._forth(self._tensor(scores)).cpu().numpy()

    def _tensor(self, values):
        return torch.as_tensor(np.array(values, np.float64), device=self.features.device)


class DeviceRows:
    """Features and label sets of rows as tensors: the sums over rows that `DeviceObjective` asks for.

    Y (n_samples, n_labels), int8, of 1, 0 and UNKNOWN, lies in the memory of the CPU.
    """

    are_at_hand = False

    def __init__(self, design, space, Y):
        self.design, self._Y = design, Y
        device, weights = design.X.device, design.on_device
        targets = torch.from_numpy(np.ascontiguousarray(Y)).to(device)
        totals = torch.zeros((2, Y.shape[1]), dtype=torch.float64, device=device)
        is_complete = torch.empty(len(Y), dtype=torch.bool, device=device)
        for rows in design.blocks(Y.shape[1]):
            is_known = targets[rows] != UNKNOWN
            is_complete[rows] = is_known.all(1)
            for total, own in zip(totals, (targets[rows] == 1, is_known), strict=True):
                total += weights[rows] @ own.double()
        self.label_totals, self.known_totals = totals.cpu().numpy()
        self.are_complete = bool(is_complete.all())
        complete = slice(None) if self.are_complete else is_complete.cpu().numpy()
        self.bias_counts = space.bias_counts(Y[complete], design.weights[complete])
        # Labels that are not known are NaN, as the losses of torch have them.
        self._targets = targets if self.are_complete else _with_nan(targets, design.X.dtype)
        self._in_torch = mlrh.torch.label_space(space).to(device)
        self._biases = self._in_torch.bias_parts() if space.learns_bias else []

    @property
    def in_float32(self):
        """The same rows with features, scores and losses in float32; sums over rows stay in float64."""
        other = copy(self)
        other.design = self.design.in_float32
        return other

    def for_space(self, space):
        """The same rows in another label space."""
        return DeviceRows(self.design, space, self._Y)

    @cached_property
    def _target_sums(self):
        """X'Y and the sums of Y over rows; unknown labels count as absent, which serves an estimate of their size."""
        weights = self.design.on_device
        return self._pulled(lambda rows: self._targets[rows].double().nan_to_num(0.0) * weights[rows, None])

    def score_of_truth(self, coef, intercept):
        """Sum over rows of weight times the scores of their labels."""
        of_coef, of_intercept = self._target_sums
        return float((of_coef * coef).sum() + of_intercept @ intercept)

    def loss_and_gradient(self, coef, intercept, bias):
        """The loss of all rows, and its gradients in coef, intercept and biases."""
        loss, of_bias = torch.zeros((), dtype=torch.float64, device=coef.device), torch.zeros_like(bias)
        self._set_bias(bias)

        def residuals(rows):
            nonlocal loss, of_bias
            scores, total = self._loss_of(rows, coef, intercept)
            of_scores, *of_biases = torch.autograd.grad(total, [scores, *self._parameters])
            loss, of_bias = loss + total.detach(), of_bias + self._joined(of_biases)
            return of_scores

        of_coef, of_intercept = self._pulled(residuals)
        return float(loss), of_coef, of_intercept, of_bias

    def hessian(self, place):
        """The function direction -> Hessian of the loss @ direction, by differences of gradients; parts as the place.

        Second derivatives of the kernels of torch would take a hundred times as long as a gradient.
        """
        here = self.loss_and_gradient(*place)[1:]

        def product(direction):
            d_coef, d_intercept, d_bias = direction
            largest = float(d_bias.abs().max()) if len(d_bias) else 0.0
            for rows in self.design.blocks(self._Y.shape[1]):
                largest = max(largest, float(self._scores(rows, d_coef, d_intercept).abs().max()))
            if largest == 0.0:
                return tuple(0.0 * own for own in direction)
            step = STEP / largest
            moved = (own + step * along for own, along in zip(place, direction, strict=True))
            there = self.loss_and_gradient(*moved)[1:]
            return tuple((after - before) / step for after, before in zip(there, here, strict=True))

        return product

    def _scores(self, rows, coef, intercept):
        X = self.design.X[rows]
        return X @ coef.to(X.dtype) + intercept.to(X.dtype)

    def _loss_of(self, rows, coef, intercept):
        """Scores of some rows, and the sum of their losses, which depends on them and on the biases."""
        scores = self._scores(rows, coef, intercept).requires_grad_()
        with torch.enable_grad():
            losses = self._in_torch.losses(scores, self._targets[rows], partial=not self.are_complete)
            return scores, self.design.on_device[rows] @ losses.double()

    def _pulled(self, residuals):
        """(X - mean)' R and the sums of R over rows, for R = residuals(rows) block by block; in float64."""
        X, n_labels = self.design.X, self._Y.shape[1]
        of_coef = torch.zeros((self.design.n_features, n_labels), dtype=torch.float64, device=X.device)
        of_intercept = torch.zeros(n_labels, dtype=torch.float64, device=X.device)
        for rows in self.design.blocks(n_labels):
            own = residuals(rows)
            of_coef += (X[rows].T @ own.to(X.dtype)).double()
            if self.design.fit_intercept:
                of_intercept += own.sum(0, dtype=torch.float64)
        return of_coef, of_intercept

    # Biases: a vector here, parts of the parameters of the space in torch.

    @property
    def _parameters(self):
        return [parameter for parameter, _ in self._biases]

    @torch.no_grad()
    def _set_bias(self, bias):
        """Give the space in torch these biases."""
        for (parameter, place), own in zip(self._biases, self._lengths(bias), strict=True):
            parameter[place] = own

    def _lengths(self, bias):
        return bias.split([len(parameter[place]) for parameter, place in self._biases]) if self._biases else ()

    def _joined(self, gradients):
        """Gradients of the parameters as one of the biases."""
        parts = [own[place] for own, (_, place) in zip(gradients, self._biases, strict=True)]
        return torch.cat(parts).double() if parts else torch.zeros(0, dtype=torch.float64, device=self.design.X.device)


def _with_nan(targets, dtype):
    return targets.to(dtype).masked_fill(targets == UNKNOWN, torch.nan)


class DeviceObjective(Objective):
    """The objective of `DeviceRows`, whose parameters, gradients and directions are vectors on the device.

    `start`, `canonical` and the rest that is no part of a solver's work are those of Objective, in NumPy.
    """

    offers = frozenset({"hessian", "metric"})

    def __init__(self, design, space, Y, *, alpha, l1=0.0):
        self._begin(DeviceRows(design, space, Y), space, alpha, l1)

    def _begin(self, rows, space, alpha, l1):
        super()._begin(rows, space, alpha, l1)
        self._device_absorbed, self._device_ridge = self.vector(self._absorbed), self.vector(self._bias_ridge)

    @cached_property
    def in_float32(self):
        """The same objective with features in float32."""
        if self.design.X.dtype == torch.float32:
            return self
        other = copy(self)
        other.rows = self.rows.in_float32
        other.design = other.rows.design
        return other

    def solver_named(self, name):
        return lbfgs_on_device

    def vector(self, values):
        """Numbers of NumPy as a tensor in float64."""
        return torch.as_tensor(np.array(values, np.float64), device=self.design.X.device)

    def value_and_gradient(self, parameters):
        """The objective and its gradient."""
        loss, *gradients = self.rows.loss_and_gradient(*self.split(parameters))
        pulled = self._ridged(parameters)
        value = loss + 0.5 * float(parameters @ pulled)
        return value, self._determined(pulled + _join(gradients))

    def hessian(self, parameters):
        """The function direction -> Hessian @ direction at the parameters."""
        of_rows = self.in_float32.rows.hessian(self.split(parameters))  # for estimates, which need few digits

        def product(direction):
            return self._determined(self._ridged(direction) + _join(of_rows(self.split(direction))))

        return product

    def metric(self, curvature=None, *, at=None, rescaled=False):
        """The function that solves with the typical curvature times the Gram matrix, plus the ridges.

        Beyond MAX_FACTORED features the diagonal of that matrix is used. It is the same wherever the parameters are.
        """
        coefficients = self._coefficients(self.typical_curvature())
        of_intercept = self.vector(self.design.total_weight * self._own_curvatures()) + self._intercept_ridge
        of_bias = self.vector(self._bias_curvatures()) + self._device_ridge if self.n_biases else self._device_ridge
        absorbed = self._device_absorbed

        def solve(gradient):
            coef, intercept, bias = self.split(gradient)
            step = bias / of_bias
            # Different curvatures turn the step out of the conditions on the biases, which it must keep.
            return _join((coefficients(coef), intercept / of_intercept, step - absorbed @ (absorbed.T @ step)))

        return solve

    def _coefficients(self, curvature):
        """The function that solves with curvature * gram + alpha I for a right-hand side (n_features, n_labels)."""
        squares = self.design.squared_norms()
        check_squares(squares.cpu().numpy(), self.design)
        if self.design.n_features > MAX_FACTORED:
            inverse = _reciprocals(curvature * squares + self.alpha)[:, None]
            return lambda right: inverse * right
        matrix = curvature * self.design.gram()
        matrix.diagonal().add_(self.alpha)
        # Scaled to a diagonal of ones, so that columns of very different scale keep their digits.
        scale = _reciprocals(matrix.diagonal()).sqrt()[:, None]
        inverse = scale * _inverse(scale * matrix * scale.T, np.finfo(self.design.dtype).eps) * scale.T
        return lambda right: inverse @ right

    def decrease_bound(self, gradient):
        """As in Objective: half the squared gradient over the ridges, infinite where nothing can be said."""
        if not (
            self.alpha > 0 and (self._bias_ridge > 0).all() and self.rows.are_complete and self._independence >= 0.2
        ):
            return np.inf
        coef, intercept, bias = self.split(gradient)
        of_intercept = 0.1 * self.vector(self.design.total_weight * self._own_curvatures())
        squares = coef.square().sum() / self.alpha + (bias.square() / self._device_ridge).sum()
        return 0.5 * float(squares + (intercept.square() / of_intercept).sum())

    renews_cheaply = rescales_early = False

    def _ridged(self, vector):
        coef, intercept, bias = self.split(vector)
        return _join((self.alpha * coef, self._intercept_ridge * intercept, self._device_ridge * bias))

    def _determined(self, gradient):
        coef, intercept, bias = self.split(gradient)
        absorbed = self._device_absorbed
        return _join((coef, intercept, bias - absorbed @ (absorbed.T @ bias)))


def _join(parts):
    return torch.cat([part.reshape(-1) for part in parts])


def _reciprocals(values):
    """1 / values; 0 where a value is 0 or so small that the reciprocal would overflow, so that nothing moves there."""
    return torch.where(values > 1e-300, 1.0 / values.clamp(min=1e-300), 0.0)


def _inverse(matrix, eps):
    """The inverse of a symmetric matrix with a diagonal of ones, or its pseudoinverse where it is singular."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    # Squared pivots near n * eps are rounding errors: the matrix is singular, and a solve would return noise.
    if len(matrix) == 0 or (not failed and float(factor.diagonal().min()) ** 2 > 10 * len(matrix) * eps):
        return torch.cholesky_inverse(factor)
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > 10 * len(values) * eps * values[-1].clamp(min=0.0)
    return (vectors[:, kept] / values[kept]) @ vectors[:, kept].T


class DeviceMemory(Memory):
    """The memory of lbfgs with its vectors on the device; products and factors, a few numbers each, in NumPy."""

    def __init__(self, n_parameters, *, size, n_blocks=1, device):
        super().__init__(0, size=size, n_blocks=n_blocks)
        shape = (2, size, n_parameters // n_blocks, n_blocks)
        self._vectors: Any = torch.empty(shape, dtype=torch.float64, device=device)

    def slopes(self, gradient, direction):
        return (gradient * direction).reshape(-1, self.n_blocks).sum(0).cpu().numpy()

    def scaled(self, vector, factors):
        return (vector.reshape(-1, self.n_blocks) * torch.as_tensor(factors, device=vector.device)).reshape(-1)

    def _products(self, vector):
        kept, blocks = self._vectors[:, : len(self)], vector.reshape(-1, self.n_blocks)
        return (kept * blocks).sum(2).cpu().numpy()

    def _combine(self, factors, solved):
        kept = self._vectors[:, : len(self)]
        own = torch.as_tensor(factors, device=kept.device)[:, :, None]
        start = torch.as_tensor(-self._factor, device=kept.device) * solved.reshape(-1, self.n_blocks)
        return (start + (own * kept).sum((0, 1))).reshape(-1)


@solver(needs={"metric", "hessian"})
def lbfgs_on_device(objective, start, *, tol, max_iter, report=None):
    """`lbfgs` for a DeviceObjective; the start and the parameters of the Solution are arrays of NumPy.

    In float32 first, where kernels of the loss are several times as fast; the end is in the type of X (`in_stages`).
    """
    rough = objective.in_float32

    def begun(parameters):
        parameters = objective.vector(parameters)
        return State(parameters, *rough.value_and_gradient(parameters))

    def told(iteration, value, left, parameters):
        return report(iteration, value, left, parameters.cpu().numpy())

    state = best_of(start, begun)
    run = Lbfgs(rough, len(state.parameters), objective.metric(), partial(DeviceMemory, device=state.parameters.device))
    limits = {"tol": tol, "max_iter": max_iter, "report": None if report is None else told}
    found = in_stages(run, state, rough, objective, **limits)
    return replace(found, parameters=found.parameters.cpu().numpy())
