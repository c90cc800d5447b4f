"""KernelMLRHClassifier: scores that are linear in a kernel of the training rows."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy import linalg, sparse
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.metrics.pairwise import KERNEL_PARAMS, pairwise_kernels
from sklearn.utils import check_random_state

from mlrh import _budget
from mlrh._parallel import blas_suited_to
from mlrh._sklearn import Interval, StrOptions
from mlrh._warnings import warn
from mlrh.estimators import _device, _features
from mlrh.estimators._base import MLRHBase
from mlrh.fitting.design import Design, GramFeatures, triangular_design

BLOCK_ENTRIES = 2**22  # entries of a kernel matrix that exist at a time in predictions: 32 MB
# Square matrices of n_samples rows that an exact fit holds at its peak: the factor of the kernel matrix, the features
# made of it, these centred, and what the solver takes. Measured: 4.1 at 2,000 and at 5,000 rows.
N_MATRICES = 4.1
MANY_ROWS = 10_000  # beyond, `verbose` tells the memory of an exact fit: from 3.3 GB on
CHECKED_ROWS = 1000  # of the training rows, for which an approximation is compared with the kernel: 8 MB each


@dataclass(frozen=True)
class _KernelPart:
    """The design to solve in, and the Gram features it is made of, which lead back to dual coefficients.

    X are the rows that predictions are compared with, None for a precomputed kernel; dtype is that of the fit.
    """

    design: Design
    X: Any
    dtype: np.dtype
    gamma: float
    features: GramFeatures

    @property
    def lost(self):
        """What rounding hides of the kernel matrix."""
        return self.features.lost

    def nearest_to(self, scores):
        """Coefficients and mean scores that come nearest to these scores."""
        coef = self.features.from_scores(scores)
        return coef, self.design.mean @ coef

    def attributes_of(self, coef):
        """The fitted attributes that stand for the kernel and these coefficients, by name."""
        return {
            "kernel_map_": None,
            "kernel_error_": 0.0,
            # A copy, because the caller may change X later.
            "X_fit_": None if self.X is None else _device.copied(self.X),
            "dual_coef_": np.ascontiguousarray(self.features.to_dual(coef).T).astype(self.dtype),
        }


@dataclass(frozen=True)
class _ApproximatePart:
    """The design to solve in, made of the features of a fitted Nystroem or RBFSampler, and how far these are off.

    drawn are the numbers of the rows that Nystroem drew, None for the cosines of RBFSampler.
    """

    design: Design
    X: Any
    dtype: np.dtype
    gamma: float
    kernel_map: Nystroem | RBFSampler
    drawn: np.ndarray | None
    error: float

    @property
    def lost(self):
        """Nothing: the error tells of more than rounding."""
        return 0.0

    def nearest_to(self, scores):
        """Coefficients and mean scores that come nearest to these scores."""
        mean = self.design.weights @ scores / self.design.total_weight
        mean = mean if self.design.fit_intercept else np.zeros_like(mean)
        return linalg.lstsq(self.design.X, scores - mean, check_finite=False)[0], mean

    def attributes_of(self, coef):
        """The fitted attributes that stand for the approximation and these coefficients, by name."""
        if self.drawn is None:
            rows, kernel_map, dual = None, self.kernel_map, coef
        else:
            # The features of Nystroem are kernel(X, components) @ normalization.T, so that scores have the form of
            # exact ones. Its dual coefficients may be huge and cancel: they stay in float64, whatever the type of X.
            rows, kernel_map, dual = self.X[self.drawn], None, self.kernel_map.normalization_.T @ coef
        fitted = {"X_fit_": rows, "kernel_map_": kernel_map, "kernel_error_": self.error}
        return {**fitted, "dual_coef_": np.ascontiguousarray(dual.T)}


class KernelMLRHClassifier(MLRHBase):
    """Multilabel logistic regression with kernel scores: scores = kernel(X, X_fit_) @ dual_coef_.T + intercept_.

    The model and the other parameters are those of MLRHClassifier; the kernel and its parameters are those of
    sklearn.svm.SVC. A linear kernel gives the same model as MLRHClassifier. Fitting takes O(n_samples^3) time and
    O(n_samples^2) memory, about 3.3 GB for 10,000 rows. With kernel_approximation it takes O(n_samples n_components^2)
    time and O(n_samples n_components) memory.

    Parameters
    ----------
    kernel : {"rbf", "linear", "poly", "sigmoid", "precomputed", ...} or callable, default="rbf"
        Any name of sklearn.metrics.pairwise.pairwise_kernels, "precomputed", or a function of two matrices (n, d) and
        (m, d) that returns (n, m). The kernel matrix of the training rows (with kernel_approximation="nystroem", of
        the drawn ones) must be positive semidefinite.
    gamma : {"scale", "auto"} or float, default="scale"
        "scale" is 1 / (n_features * X.var()), "auto" is 1 / n_features.
    degree : int, default=3
    coef0 : float, default=0.0
    kernel_approximation : {None, "nystroem", "fourier"}, default=None
        None: the exact kernel. "nystroem": by scikit-learn's Nystroem, for any kernel that has a name; scores are
        combinations of kernel values of n_components training rows, drawn at random. "fourier": by its RBFSampler, for
        the RBF kernel only; scores are linear in n_components random cosines. `kernel_error_` says how far it is off.
    n_components : int, default=1000
        Rows or cosines of an approximation. At most as many rows as there are.
    random_state : int, RandomState instance or None, default=None
        For the rows or cosines of an approximation.
    l1_ratio : float, default=0.0
        Must be 0: there are no coefficients of features for an L1 penalty to bring to 0.
    label_space, min_labels, max_labels, size_bias, set_bias_strength, C, fit_intercept, solver, mm_step, tol, max_iter
        See MLRHClassifier.
    warm_start, decision, answer_sizes, n_jobs, verbose
        See MLRHClassifier.

    Attributes
    ----------
    dual_coef_ : array of shape (n_labels, n_fit)
        With kernel_approximation="fourier" those of the cosines, (n_labels, n_components).
    X_fit_ : array or sparse matrix of shape (n_fit, n_features)
        Training rows of positive weight; with kernel_approximation="nystroem" those that were drawn. None for a
        precomputed kernel and with kernel_approximation="fourier".
    support_ : array of shape (n_fit,)
        Indices of these rows in the X of training; with kernel_approximation="fourier" of all rows of positive weight.
    kernel_map_ : RBFSampler or None
        With kernel_approximation="fourier" the map from X to cosines.
    kernel_error_ : float
        How far an approximation is off: |approximate - exact| / |exact| of the kernel matrix of at most 1,000 training
        rows, drawn at random, by Frobenius norms. 0 for the exact kernel. Also printed if verbose.
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
        "kernel_approximation": [StrOptions({"nystroem", "fourier"}), None],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }
    dual_coef_: np.ndarray
    X_fit_: Any
    # Models in files of earlier formats have neither attribute: they are exact.
    kernel_map_: RBFSampler | None = None
    kernel_error_: float = 0.0

    def __init__(
        self,
        *,
        kernel="rbf",
        gamma="scale",
        degree=3,
        coef0=0.0,
        kernel_approximation=None,
        n_components=1000,
        random_state=None,
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
        tol=1e-5,
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
        self.kernel_approximation = kernel_approximation
        self.n_components = n_components
        self.random_state = random_state
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
        if reset and self.kernel_approximation is not None:
            self._check_approximation(X)
        return X

    def _check_approximation(self, X):
        what = f"kernel_approximation={self.kernel_approximation!r}"
        if self.kernel_approximation == "fourier" and self.kernel != "rbf":
            raise ValueError(f"{what} is for kernel='rbf' only; got {self.kernel!r}. Use 'nystroem' or None.")
        if callable(self.kernel) or self.kernel == "precomputed":
            raise ValueError(f"{what} needs a kernel that has a name; got {self.kernel!r}. Use None.")
        if _device.is_tensor(X):
            raise ValueError(f"{what} is for X on the CPU; got X on a device. Use None, or move X to the CPU.")

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
        if self.kernel_approximation is not None:
            return self._approximated(X, weights, gamma, keep_gram)
        if not _device.is_tensor(X):
            self._check_memory(X.shape[0])
        n_rows = X.shape[0]
        # The kernel matrix takes about n_rows^2 n_features operations, its Cholesky factor n_rows^3 / 3.
        with blas_suited_to(n_rows**2 * max(n_rows // 3, X.shape[1])):
            return self._exact(X, weights, gamma, keep_gram)

    def _exact(self, X, weights, gamma, keep_gram):
        """The _KernelPart of the rows."""
        gram = self._kernel_matrix(X, X, gamma)
        if _device.is_tensor(gram):
            if self.kernel == "precomputed":
                _check_symmetric(gram)
                gram = 0.5 * (gram + gram.T)
            features = _device.gram_features(gram)
            design = _device.design(features.features, weights, self.fit_intercept)
            return self._exact_part(design, X, gamma, features)
        # scikit-learn's own kernels are symmetric; others may be off by rounding, so the mean is taken.
        if callable(self.kernel) or self.kernel == "precomputed":
            _check_symmetric(gram)
            gram = 0.5 * (gram + gram.T)
        features = GramFeatures(gram, evenly=True)
        del gram  # makes room
        options = {"fit_intercept": self.fit_intercept, "keep_gram": keep_gram, "n_jobs": self.n_jobs}
        design = triangular_design(features, weights, **options)
        return self._exact_part(design, X, gamma, features)

    def _exact_part(self, design, X, gamma, features):
        rows = None if self.kernel == "precomputed" else X
        return _KernelPart(design, rows, _features.dtype_of(X), gamma, features)

    def _check_memory(self, n_samples):
        """Tell the memory that an exact fit will take where it is much; a MemoryError where there isn't as much."""
        lacking = lacking_memory(n_samples)
        if lacking:
            has_name = not callable(self.kernel) and self.kernel != "precomputed"  # others are not approximated
            advice = "Use kernel_approximation='nystroem', or fewer rows." if has_name else "Use fewer rows."
            raise MemoryError(f"A fit with {lacking}. {advice}")
        if self.verbose and n_samples > MANY_ROWS:
            needed = _bytes_of_fit(n_samples) / 1e9
            print(f"[{type(self).__name__}] exact kernel of {n_samples} rows: about {needed:.1f} GB of memory")

    def _approximated(self, X, weights, gamma, keep_gram):
        """The _ApproximatePart of the rows."""
        # In float64, as exact kernels are: in float32 Nystroem would divide by the roots of eigenvalues that are noise.
        X64, random = X.astype(np.float64, copy=False), check_random_state(self.random_state)
        kernel_map = self._new_map(X.shape[0], gamma, random.randint(2**31 - 1)).fit(X64)
        drawn = None
        if self.kernel_approximation == "nystroem":
            drawn, rows = kernel_map.component_indices_, kernel_map.components_
            GramFeatures(self._kernel_matrix(rows, rows, gamma))  # refuses one that isn't positive semidefinite
        error = self._error_of(kernel_map, X64[random.permutation(X.shape[0])[:CHECKED_ROWS]], gamma)
        if self.verbose:
            words = f"kernel_approximation={self.kernel_approximation!r}, {kernel_map.n_components} components"
            print(f"[{type(self).__name__}] {words}: relative error of the kernel {error:.2g}")
        options = {"fit_intercept": self.fit_intercept, "keep_gram": keep_gram, "n_jobs": self.n_jobs}
        design = Design(kernel_map.transform(X64), weights, **options)
        return _ApproximatePart(design, X, _features.dtype_of(X), gamma, kernel_map, drawn, error)

    def _new_map(self, n_samples, gamma, seed):
        if self.kernel_approximation == "fourier":
            return RBFSampler(gamma=gamma, n_components=self.n_components, random_state=seed)
        parameters = {"gamma": gamma, "degree": self.degree, "coef0": self.coef0}
        n_components = min(self.n_components, n_samples)
        return Nystroem(self.kernel, n_components=n_components, random_state=seed, **parameters)

    def _error_of(self, kernel_map, X, gamma):
        """|approximate - exact| / |exact| of the kernel matrix of X, by Frobenius norms."""
        exact, features = self._kernel_matrix(X, X, gamma), kernel_map.transform(X)
        norm = float(linalg.norm(exact))
        return float(linalg.norm(features @ features.T - exact)) / norm if norm > 0 else 0.0

    def _earlier_scores(self, X):
        values = _device.to_numpy(self._kernel_block(X)[0])
        return values @ self.dual_coef_.T.astype(np.float64), self.intercept_

    def _project(self, prepared, earlier):
        scores, intercept = earlier
        coef, mean = prepared.nearest_to(scores)
        return coef, intercept + mean

    def _warn_of_rounding(self, prepared):
        # The penalty is 1/C: what rounding hides of the kernel matrix matters if it is not small beside that.
        if prepared.lost > 0.01 / self.C > 0:
            warn(
                "The kernel matrix is so unevenly scaled that rounding hides a part of it that matters at this C. "
                "Scale the features, for example with StandardScaler.",
            )

    def _attributes(self, problem, prepared, found):
        attributes = super()._attributes(problem, prepared, found)
        if self.kernel_approximation == "nystroem":
            attributes["support_"] = problem.support[prepared.drawn]
        return attributes

    def _attributes_of(self, prepared, coef, mean_score):
        intercept = (mean_score - prepared.design.mean @ coef).astype(prepared.dtype)
        return {"_gamma": prepared.gamma, "intercept_": intercept, **prepared.attributes_of(coef)}

    def _compared(self, X):
        """Kernel values of X and the rows of the fit, in blocks: a list of one, or a generator of several."""
        X = self._validate_X(X, reset=False)
        X = X[:, self.support_] if self.kernel == "precomputed" else X
        n_rows, step = X.shape[0], max(1, BLOCK_ENTRIES // self.dual_coef_.shape[1])
        if n_rows <= step:
            return [self._kernel_block(X)]
        return (self._kernel_block(X[start : start + step]) for start in range(0, n_rows, step))

    def _kernel_block(self, X):
        """Kernel values of X and the rows of the fit, or cosines that stand for them, in float64; and the type of X."""
        if self.kernel_map_ is None:
            return self._kernel_matrix(X, self.X_fit_, self._gamma), X.dtype
        if _device.is_tensor(X):
            raise ValueError("A model with kernel_approximation='fourier' is for X on the CPU; got X on a device.")
        return self.kernel_map_.transform(X.astype(np.float64, copy=False)), X.dtype

    def _scores_of(self, compared):
        parts = []
        for block, dtype in compared:
            if _device.is_tensor(block):
                dual, intercept = (_device.tensor_like(values, block) for values in (self.dual_coef_, self.intercept_))
                parts.append((block @ dual.T + intercept).to(dtype))
            else:
                parts.append((block @ self.dual_coef_.T + self.intercept_).astype(dtype))
        return _device.concatenated(parts)

    def _kernel_matrix(self, X, other, gamma):
        """Kernel values (n_samples, n_fit) in float64: in float32 the matrix could have negative eigenvalues."""
        if _device.is_tensor(X):
            parameters = {"gamma": gamma, "degree": self.degree, "coef0": self.coef0}
            return _device.kernel_matrix(self.kernel, X, other, **parameters)
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
        return _device.gamma_scale(X, weights) if _device.is_tensor(X) else gamma_scale(X, weights)


def lacking_memory(n_samples: int) -> str:
    """How much memory the exact kernel of so many rows takes and how much there is, if that is less; else nothing."""
    needed, available = _bytes_of_fit(n_samples), _budget.available()
    if available is None or needed <= available:
        return ""
    have = f"{available / 1e9:.1f} GB are available"
    return f"the exact kernel of {n_samples} rows takes about {needed / 1e9:.1f} GB, and {have}"


def _bytes_of_fit(n_samples):
    return N_MATRICES * 8 * n_samples**2


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
    difference, largest = abs(gram - gram.T).max(), abs(gram).max()
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
