"""The two classifiers: how X becomes features for the design, and how their coefficients give scores."""

import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.metrics.pairwise import KERNEL_PARAMS, pairwise_kernels
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from mlrh.base import MLRHBase
from mlrh.blocks import map_blocks
from mlrh.design import Design
from mlrh.gram_features import GramFeatures
from mlrh.incremental import Incremental
from mlrh.row_space import GramRows, OrthogonalRows, row_space

FEW_ROWS = 8
BLOCK_ENTRIES = 2**22  # of a kernel matrix that are there at a time


@dataclass(frozen=True)
class _LinearPart:
    """The design of X (`outer`) and the one to solve in: the same, or that of its row space."""

    design: Design
    outer: Design
    rows: OrthogonalRows | GramRows | None


@dataclass(frozen=True)
class _KernelPart:
    """The design of the kernel matrix's features, and the features with the way to dual coefficients."""

    design: Design
    X: Any
    gamma: float
    features: GramFeatures


class _Shared:
    """Kernel values of the rows that were last asked for, for fits to the same rows with another C."""

    def __init__(self):
        self._X, self._kernel = None, None

    def of(self, X, compute):
        if self._X is not X:
            self._X, self._kernel = X, compute()
        return self._kernel


class MLRHClassifier(Incremental):
    """Multilabel logistic regression: one exact joint model of the whole label set, with linear scores.

    P(y | x) is proportional to exp(sum_k y_k (coef_k . x + intercept_k) + b(y)) over a label space: all sets of
    min_labels to max_labels labels, or the sets seen in training. With one class per row it is softmax regression (two
    classes: binary logistic regression); with min_labels=0 and max_labels=n_labels it is one binary logistic regression
    per label.

    y may be an indicator matrix (array, nested list of 0 and 1, sparse matrix, or a pandas or polars DataFrame whose
    columns name the labels), a list of label sets (sets of any labels, or tuples or lists of strings), or one class per
    row. predict answers in the same form: an array for nested lists and Series, else the container that was given.

    An indicator matrix may hold NaN (or None, or be masked) where nobody looked. The fit then maximises the probability
    of what is known, summed over all sets that agree with it; this is no longer convex, and starts from one logistic
    regression per label on its known entries. Automatic sizes count known ones. Observed sets come from complete rows.

    Parameters
    ----------
    label_space : {"cardinality", "observed"}, default="cardinality"
        "cardinality": all sets of an admissible size. "observed": the sets that training shows, each with a learned
        bias, so that labels can attract each other.
    min_labels, max_labels : int or "auto", default="auto"
        Smallest and largest admissible size. "auto" takes them from the training rows, so a small training set whose
        rows all happen to have two labels or more can never answer with one: min_labels=1 is the remedy. Rows outside
        given sizes are an error. They don't apply to one class per row.
    size_bias : bool, default=False
        Learn a bias b(|y|) per size in the cardinality space. In the observed space a bias per set is always learned.
    C : float, default=1.0
        Inverse strength of the penalty, as in LogisticRegression: the objective is C * loss + |coef|^2 / 2; no
        penalty where it is np.inf. Intercepts and biases are not penalised beyond what keeps them finite.
    l1_ratio : float, default=0.0
        Share of the L1 penalty, as in LogisticRegression: the penalty is l1_ratio |coef|_1 + (1 - l1_ratio) / 2
        |coef|^2. Where it is not 0, coefficients of features that hardly help are exactly 0.
    fit_intercept : bool, default=True
    solver : {"auto", "lbfgs", "newton-cg", "mm", "prox-newton"}, default="auto"
        "auto" is "lbfgs", or "prox-newton" where l1_ratio is not 0, which is the only one that can do that. "mm" is the
        paper's majorisation-minimisation. All reach the same optimum, mm slowly.
    mm_step : {"safe", "paper"}, default="safe"
        Step of "mm": the bound that holds for all labels jointly, or the paper's, twice as long, which is allowed where
        it can't increase the objective (cardinality space without size_bias).
    tol : float, default=1e-7
        Stop when the decrease still to be had is estimated below tol times the loss of the uniform distribution.
    max_iter : int, default=1000
    warm_start : bool, default=False
        Start from the last fit, if it has the same features and labels. A fit that Ctrl-C interrupts then leaves what
        it has reached, a usable model from which the next fit goes on; otherwise it leaves the model as it was.
    decision : {"exact_match", "hamming", "f1", "jaccard"}, ("top", k) or callable, default="exact_match"
        What predict maximises. "exact_match": the probability that the whole set is right; always a set of the label
        space. "hamming": the expected number of right labels. "f1", "jaccard": that metric of a row's set, expected.
        ("top", k): the right labels among k. A function f(tp, fp, fn): its expectation, see mlrh.decisions.best. All
        but "exact_match" may answer with an empty set, or with more than max_labels labels, unless answer_sizes forbids
        it. One class per row is always predicted as the most probable class.
    answer_sizes : (int or None, int or None), default=None
        Smallest and largest number of labels that predict answers with, the best within them being found. (min_labels
        and max_labels say which sets can be true.) None: no limit. They don't apply to one class per row.
    n_jobs : int, default=None
        Threads over rows in the cardinality space and in products with sparse features or few labels. None: all usable
        cores, 1 inside a joblib worker.
    verbose : int, default=0
        1 prints a line per iteration. `set_callbacks` takes scikit-learn's callbacks, such as ProgressBar.

    Attributes
    ----------
    coef_ : array of shape (n_labels, n_features)
    intercept_ : array of shape (n_labels,)
    classes_ : array
        Names of the labels, or the classes for one class per row (two classes have one label, the second class).
    min_labels_, max_labels_ : int
    size_bias_ : array of shape (n_labels + 1,)
        Cardinality space only; zeros unless learned.
    sets_, set_bias_ : arrays of shape (n_sets, n_labels) and (n_sets,)
        Observed space only.
    label_space_ : mlrh.label_space.CardinalitySpace or ObservedSpace
    support_ : array
        Indices of the training rows of positive weight.
    n_iter_ : int
    objective_ : float
        Final value, in units of the loss.
    history_ : array
        The objective at the start and after every iteration.
    n_samples_seen_, n_samples_counted_, n_passes_ : int
        After partial_fit only: rows shown to it, in all passes; rows that count as data; passes it has recognised.
    n_features_in_, feature_names_in_

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh import MLRHClassifier
    >>> X = np.array([[0.0, 0.1], [0.2, 1.0], [1.0, 0.0], [0.9, 1.1]])
    >>> y = [{"calm"}, {"calm", "sad"}, {"happy"}, {"happy", "sad"}]
    >>> clf = MLRHClassifier(C=10).fit(X, y)
    >>> [sorted(labels) for labels in clf.predict([[0.1, 0.9], [1.1, 0.1]])]
    [['calm', 'sad'], ['happy']]
    """

    coef_: np.ndarray

    def __init__(
        self,
        *,
        label_space="cardinality",
        min_labels="auto",
        max_labels="auto",
        size_bias=False,
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
        self.label_space = label_space
        self.min_labels = min_labels
        self.max_labels = max_labels
        self.size_bias = size_bias
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

    def largest_weights(self, n: int = 10, *, feature_names=None) -> dict[Any, list[tuple[str, float]]]:
        """The n weights of largest magnitude of each label: {label: [(feature, weight), ...]}.

        feature_names overrides the names of the training columns, for example with those a pipeline's vectorizer gives.
        """
        check_is_fitted(self)
        if not isinstance(n, Integral) or n < 1:
            raise ValueError(f"n must be a positive integer; got {n!r}.")
        if feature_names is None:
            feature_names = getattr(self, "feature_names_in_", [f"x{d}" for d in range(self.n_features_in_)])
        if len(feature_names) != self.n_features_in_:
            raise ValueError(f"feature_names must have {self.n_features_in_} entries; got {len(feature_names)}.")
        labels = self.classes_[-len(self.coef_) :].tolist()
        order = np.argsort(-np.abs(self.coef_), axis=1, kind="stable")[:, :n]
        return {
            label: [(str(feature_names[d]), float(weights[d])) for d in best]
            for label, weights, best in zip(labels, self.coef_, order, strict=True)
        }

    def _validate_X(self, X, *, reset):
        return validate_data(self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32])

    def _rows(self, X, support):
        return X[support]

    def _form_of_scores(self, support):
        return ("linear",)

    def _prepare(self, X, weights, C):
        options = {"fit_intercept": self.fit_intercept, "n_jobs": self.n_jobs}
        outer = Design(X, weights, **options)
        rows = row_space(outer, C) if self.l1_ratio == 0 else None  # an L1 penalty is one on coefficients of X itself
        inner = outer if rows is None else Design(rows.features, weights, n_leading=rows.n_leading, **options)
        return _LinearPart(inner, outer, rows)

    def _earlier_scores(self, X):
        return self.coef_.T.astype(np.float64), self.intercept_

    def _project(self, prepared, earlier):
        coef, intercept = earlier
        inner = coef if prepared.rows is None else prepared.rows.reduce(coef)
        return inner, intercept + prepared.outer.mean @ coef

    def _keep(self, prepared, coef, mean_score):
        coef = coef if prepared.rows is None else prepared.rows.expand(coef)
        dtype = prepared.outer.X.dtype
        self.coef_ = np.ascontiguousarray(coef.T).astype(dtype)
        # With the coefficients as they are stored: their rounding times a large mean would not be small.
        self.intercept_ = (mean_score - self.coef_ @ prepared.outer.mean).astype(dtype)

    def _scores(self, X):
        check_is_fitted(self)
        X = self._validate_X(X, reset=False)
        return _products(X, self.coef_.astype(X.dtype, copy=False)) + self.intercept_.astype(X.dtype, copy=False)


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
    label_space, min_labels, max_labels, size_bias, C, fit_intercept, solver, mm_step, tol, max_iter
        See MLRHClassifier.
    warm_start, decision, answer_sizes, n_jobs, verbose
        See MLRHClassifier.

    Attributes
    ----------
    dual_coef_ : array of shape (n_labels, n_fit)
    X_fit_ : training rows of positive weight, (n_fit, n_features); None for a precomputed kernel
    support_ : array of shape (n_fit,)
        Indices of these rows in the X of training.
    intercept_, classes_, min_labels_, max_labels_, size_bias_, sets_, set_bias_, label_space_
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
        X = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32])
        if reset and self.kernel == "precomputed" and X.shape[0] != X.shape[1]:
            raise ValueError(f"A precomputed kernel matrix must be square in fit; got shape {X.shape}.")
        return X

    def _check_penalty(self):
        if self.l1_ratio > 0:
            raise ValueError(
                "A kernel model has no coefficients of features for an L1 penalty to bring to 0, so l1_ratio must be "
                f"0; got {self.l1_ratio}. Use MLRHClassifier."
            )

    def _rows(self, X, support):
        return X[support][:, support] if self.kernel == "precomputed" else X[support]

    def _form_of_scores(self, support):
        return self.kernel, support.tolist() if self.kernel == "precomputed" else None

    def _prepare(self, X, weights, C):
        gamma = self._gamma_value(X, weights)
        gram = self._kernel_matrix(X, X, gamma)
        if callable(self.kernel) or self.kernel == "precomputed":
            _check_symmetric(gram)
            gram = 0.5 * (gram + gram.T)
        features = GramFeatures(gram)
        options = {"fit_intercept": self.fit_intercept, "n_jobs": self.n_jobs}
        design = Design(features.features, weights, n_leading=features.n_leading, **options)
        return _KernelPart(design, X, gamma, features)

    def _earlier_scores(self, X):
        return self._kernel_matrix(X, self.X_fit_, self._gamma) @ self.dual_coef_.T.astype(np.float64), self.intercept_

    def _project(self, prepared, earlier):
        scores, intercept = earlier
        coef = prepared.features.from_scores(scores)
        return coef, intercept + prepared.design.mean @ coef

    def _warn_of_rounding(self, prepared):
        if prepared.features.lost > 0.01 / self.C > 0:
            warnings.warn(
                "The kernel matrix is so unevenly scaled that rounding hides a part of it that matters at this C. "
                "Scale the features, for example with StandardScaler.",
                UserWarning,
                stacklevel=5,
            )

    def _keep(self, prepared, coef, mean_score):
        dtype = prepared.X.dtype
        self._gamma = prepared.gamma
        self.X_fit_ = None if self.kernel == "precomputed" else prepared.X.copy()  # a later change of X is not ours
        self.dual_coef_ = np.ascontiguousarray(prepared.features.to_dual(coef).T).astype(dtype)
        self.intercept_ = (mean_score - prepared.design.mean @ coef).astype(dtype)

    def _share_kernel(self):
        self._shared = _Shared()

    def _scores(self, X):
        check_is_fitted(self)
        shared = vars(self).get("_shared")
        given, X = X, self._validate_X(X, reset=False)
        X = X[:, self.support_] if self.kernel == "precomputed" else X
        n_rows, n_fitted = X.shape[0], self.dual_coef_.shape[1]
        scores = np.empty((n_rows, len(self.dual_coef_)), X.dtype)

        def work(rows):
            scores[rows] = self._kernel_matrix(X[rows], self.X_fit_, self._gamma) @ self.dual_coef_.T + self.intercept_

        if shared is not None and n_rows * n_fitted <= BLOCK_ENTRIES:
            kernel = shared.of(given, lambda: self._kernel_matrix(X, self.X_fit_, self._gamma))
            return (kernel @ self.dual_coef_.T + self.intercept_).astype(X.dtype, copy=False)
        # Blocks bound the memory of the kernel matrix; the products inside have threads of their own.
        map_blocks(work, n_rows, rows_per_block=max(1, BLOCK_ENTRIES // n_fitted), n_jobs=1)
        return scores

    def _kernel_matrix(self, X, other, gamma):
        """Kernel values in float64: rounded to float32 the matrix would have negative eigenvalues."""
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


def _products(X, coef):
    """X @ coef.T; a few sparse rows are multiplied without the copy of all coefficients that the product would make."""
    if not sparse.issparse(X) or X.shape[0] > FEW_ROWS:
        return np.asarray(X @ coef.T)
    products = np.empty((X.shape[0], len(coef)), X.dtype)
    for i in range(X.shape[0]):
        entries = slice(X.indptr[i], X.indptr[i + 1])
        products[i] = coef[:, X.indices[entries]] @ X.data[entries]
    return products


def gamma_scale(X, weights=None) -> float:
    """1 / (n_features * variance of X), what gamma="scale" means; rows count by their weights."""
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
