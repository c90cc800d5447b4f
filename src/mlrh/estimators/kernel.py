"""KernelMLRHClassifier: scores that are linear in a kernel of the training rows."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.metrics.pairwise import KERNEL_PARAMS, pairwise_kernels

from mlrh._sklearn import Interval, StrOptions
from mlrh._warnings import warn
from mlrh.estimators import _features
from mlrh.estimators._base import MLRHBase
from mlrh.fitting.design import Design, GramFeatures

BLOCK_ENTRIES = 2**22  # entries of a kernel matrix that exist at a time in predictions: 32 MB


@dataclass(frozen=True)
class _KernelPart:
    """The design to solve in, and the Gram features it is made of, which lead back to dual coefficients."""

    design: Design
    X: Any
    gamma: float
    features: GramFeatures


class KernelMLRHClassifier(MLRHBase):
    """Multilabel logistic regression with kernel scores: scores = kernel(X, X_fit_) @ dual_coef_.T + intercept_.

    The model and the other parameters are those of MLRHClassifier; the kernel and its parameters are those of
    sklearn.svm.SVC. A linear kernel gives the same model as MLRHClassifier. Fitting takes O(n_samples^3) time and
    O(n_samples^2) memory.

    Parameters
    ----------
    kernel : {"rbf", "linear", "poly", "sigmoid", "precomputed", ...} or callable, default="rbf"
        Any name of sklearn.metrics.pairwise.pairwise_kernels, "precomputed", or a function of two matrices (n, d) and
        (m, d) that returns (n, m). The kernel matrix of the training rows must be positive semidefinite.
    gamma : {"scale", "auto"} or float, default="scale"
        "scale" is 1 / (n_features * X.var()), "auto" is 1 / n_features.
    degree : int, default=3
    coef0 : float, default=0.0
    l1_ratio : float, default=0.0
        Must be 0: there are no coefficients of features for an L1 penalty to bring to 0.
    label_space, min_labels, max_labels, size_bias, set_bias_strength, C, fit_intercept, solver, mm_step, tol, max_iter
        See MLRHClassifier.
    warm_start, decision, answer_sizes, n_jobs, verbose
        See MLRHClassifier.

    Attributes
    ----------
    dual_coef_ : array of shape (n_labels, n_fit)
    X_fit_ : training rows of positive weight, (n_fit, n_features); None for a precomputed kernel
    support_ : array of shape (n_fit,)
        Indices of these rows in the X of training.
    intercept_, classes_, min_labels_, max_labels_, size_bias_, sets_, set_bias_, set_bias_strength_, label_space_
        See MLRHClassifier.
    n_iter_, objective_, history_, n_features_in_, feature_names_in_
        See MLRHClassifier.

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh import KernelMLRHClassifier
    >>> X = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> y = [{"even"}, {"odd", "right"}, {"odd"}, {"even", "right"}]  # no linear score tells even from odd
    >>> clf = KernelMLRHClassifier(gamma=2, C=100).fit(X, y)
    >>> [sorted(labels) for labels in clf.predict([[0.1, 0.1], [0.9, 0.2], [0.9, 1.0]])]
    [['even'], ['odd'], ['even', 'right']]
    """

    _parameter_constraints: dict = {
        **MLRHBase._parameter_constraints,
        "kernel": [StrOptions({*KERNEL_PARAMS, "precomputed"}), callable],
        "gamma": [StrOptions({"scale", "auto"}), Interval(Real, 0.0, None, closed="left")],
        "degree": [Interval(Integral, 0, None, closed="left")],
        "coef0": [Interval(Real, None, None, closed="neither")],
    }
    dual_coef_: np.ndarray
    X_fit_: Any

    def __init__(
        self,
        *,
        kernel="rbf",
        gamma="scale",
        degree=3,
        coef0=0.0,
        label_space="cardinality",
        min_labels="auto",
        max_labels="auto",
        size_bias=False,
        set_bias_strength="auto",
        C=1.0,
        l1_ratio=0.0,
        fit_intercept=True,
        solver="auto",
        mm_step="safe",
        tol=1e-7,
        max_iter=1000,
        warm_start=False,
        decision="exact_match",
        answer_sizes=None,
        n_jobs=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.label_space = label_space
        self.min_labels = min_labels
        self.max_labels = max_labels
        self.size_bias = size_bias
        self.set_bias_strength = set_bias_strength
        self.C = C
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.mm_step = mm_step
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.decision = decision
        self.answer_sizes = answer_sizes
        self.n_jobs = n_jobs
        self.verbose = verbose

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags

    def _validate_X(self, X, *, reset):
        X = _features.validated(self, X, reset=reset)
        if reset and self.kernel == "precomputed" and X.shape[0] != X.shape[1]:
            raise ValueError(f"A precomputed kernel matrix must be square in fit; got shape {X.shape}.")
        return X

    def _check_penalty(self):
        if self.l1_ratio > 0:
            raise ValueError(
                "A kernel model has no coefficients of features for an L1 penalty to bring to 0, so l1_ratio must be "
                f"0; got {self.l1_ratio}. Use MLRHClassifier."
            )
        super()._check_penalty()

    def _rows(self, X, support):
        return X[support][:, support] if self.kernel == "precomputed" else X[support]

    def _form_of_scores(self, support):
        return self.kernel, support.tolist() if self.kernel == "precomputed" else None

    def _prepare(self, X, weights, C, *, keep_gram=False):
        gamma = self._gamma_value(X, weights)
        gram = self._kernel_matrix(X, X, gamma)
        # scikit-learn's own kernels are symmetric; others may be off by rounding, so the mean is taken.
        if callable(self.kernel) or self.kernel == "precomputed":
            _check_symmetric(gram)
            gram = 0.5 * (gram + gram.T)
        features = GramFeatures(gram)
        options = {"fit_intercept": self.fit_intercept, "keep_gram": keep_gram, "n_jobs": self.n_jobs}
        design = Design(features.features, weights, n_leading=features.n_leading, **options)
        return _KernelPart(design, X, gamma, features)

    def _earlier_scores(self, X):
        return self._kernel_matrix(X, self.X_fit_, self._gamma) @ self.dual_coef_.T.astype(np.float64), self.intercept_

    def _project(self, prepared, earlier):
        scores, intercept = earlier
        coef = prepared.features.from_scores(scores)
        return coef, intercept + prepared.design.mean @ coef

    def _warn_of_rounding(self, prepared):
        # The penalty is 1/C: what rounding hides of the kernel matrix matters if it is not small beside that.
        if prepared.features.lost > 0.01 / self.C > 0:
            warn(
                "The kernel matrix is so unevenly scaled that rounding hides a part of it that matters at this C. "
                "Scale the features, for example with StandardScaler.",
            )

    def _attributes_of(self, prepared, coef, mean_score):
        dtype = prepared.X.dtype
        return {
            "_gamma": prepared.gamma,
            "X_fit_": None if self.kernel == "precomputed" else prepared.X.copy(),  # the caller may change X later
            "dual_coef_": np.ascontiguousarray(prepared.features.to_dual(coef).T).astype(dtype),
            "intercept_": (mean_score - prepared.design.mean @ coef).astype(dtype),
        }

    def _compared(self, X):
        """Kernel values of X and the rows of the fit, in blocks: a list of one, or a generator of several."""
        X = self._validate_X(X, reset=False)
        X = X[:, self.support_] if self.kernel == "precomputed" else X
        n_rows, step = X.shape[0], max(1, BLOCK_ENTRIES // self.dual_coef_.shape[1])
        if n_rows <= step:
            return [self._kernel_block(X)]
        return (self._kernel_block(X[start : start + step]) for start in range(0, n_rows, step))

    def _kernel_block(self, X):
        return self._kernel_matrix(X, self.X_fit_, self._gamma), X.dtype

    def _scores_of(self, compared):
        parts = [(block @ self.dual_coef_.T + self.intercept_).astype(dtype) for block, dtype in compared]
        return np.concatenate(parts)

    def _kernel_matrix(self, X, other, gamma):
        """Kernel values (n_samples, n_fit) in float64: in float32 the matrix could have negative eigenvalues."""
        if self.kernel == "precomputed":
            return np.asarray(X.toarray() if sparse.issparse(X) else X, np.float64)
        X, other = X.astype(np.float64, copy=False), other.astype(np.float64, copy=False)
        if callable(self.kernel):
            return _checked_kernel(np.asarray(self.kernel(X, other), np.float64), (X.shape[0], other.shape[0]))
        parameters = {"gamma": gamma, "degree": self.degree, "coef0": self.coef0}
        return pairwise_kernels(X, other, metric=self.kernel, filter_params=True, **parameters)

    def _gamma_value(self, X, weights):
        if isinstance(self.gamma, Real):
            return float(self.gamma)
        if self.gamma == "auto":
            return 1.0 / X.shape[1]
        return gamma_scale(X, weights)


def gamma_scale(X, weights=None) -> float:
    """1 / (n_features * variance of X), the value of gamma="scale", with weighted rows."""
    weights = np.ones(X.shape[0]) if weights is None else weights
    mean = (weights @ X).mean() / weights.sum()
    if sparse.issparse(X):
        variance = (weights @ X.multiply(X)).mean() / weights.sum() - mean**2
    else:
        variance = (weights @ np.square(X - mean)).mean() / weights.sum()
    return 1.0 / float(X.shape[1] * variance) if variance > 0 else 1.0


def _check_symmetric(gram):
    difference, largest = np.abs(gram - gram.T).max(), np.abs(gram).max()
    if difference > 1e-8 * largest:
        raise ValueError(
            f"The kernel matrix must be symmetric; entries differ by up to {difference:.3g} across the diagonal, where "
            f"the largest entry is {largest:.3g}."
        )


def _checked_kernel(matrix, shape):
    if matrix.shape != shape or not np.isfinite(matrix).all():
        got = f"shape {matrix.shape}" if matrix.shape != shape else "values that are not finite"
        raise ValueError(f"The kernel function must return finite numbers of shape {shape}; got {got}.")
    return matrix
