"""The two classifiers: how X becomes features for the design, and how their coefficients give scores."""

from numbers import Integral, Real

import numpy as np
from scipy import sparse
from sklearn.metrics.pairwise import KERNEL_PARAMS, pairwise_kernels
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from mlrh.base import MLRHBase
from mlrh.design import MAX_FACTORED, Design, gram_features
from mlrh.objective import Objective


class MLRHClassifier(MLRHBase):
    """Multilabel logistic regression: one exact joint model of the whole label set, with linear scores.

    P(y | x) is proportional to exp(sum_k y_k (coef_k . x + intercept_k) + b(y)) over a label space: all sets of
    min_labels to max_labels labels, or the sets seen in training. With one class per row it is softmax regression (two
    classes: binary logistic regression); with min_labels=0 and max_labels=n_labels it is one binary logistic regression
    per label.

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
        Inverse strength of the L2 penalty, as in LogisticRegression: the objective is C * loss + |coef|^2 / 2; no
        penalty where it is np.inf. Intercepts and biases are not penalised beyond what keeps them finite.
    l1_ratio : float, default=0.0
        Share of the L1 penalty, as in LogisticRegression; these solvers minimise smooth objectives, so it must be 0.
    fit_intercept : bool, default=True
    solver : {"auto", "lbfgs", "newton-cg", "mm"}, default="auto"
        "auto" is "lbfgs". "mm" is the paper's majorisation-minimisation. All reach the same optimum.
    mm_step : {"safe", "paper"}, default="safe"
        Step of "mm": the bound that holds for all labels jointly, or the paper's, twice as long, which is allowed where
        it can't increase the objective (cardinality space without size_bias).
    tol : float, default=1e-7
        Stop when the decrease still to be had is estimated below tol times the loss of the uniform distribution.
    max_iter : int, default=1000
    warm_start : bool, default=False
        Start from the last fit, if it has the same features and labels.
    decision : {"exact_match", "hamming"}, default="exact_match"
        What predict maximises: the probability that the whole set is right (never empty or oversized, unless the label
        space allows it), or the expected number of right labels (may be empty).
    n_jobs : int, default=None
        Threads over rows. None: all usable cores, 1 inside a joblib worker.
    verbose : int, default=0
        1 prints a line per iteration.

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
    label_space_ : CardinalitySpace or ObservedSpace
    n_iter_ : int
    objective_ : float
        Final value, in units of the loss.
    history_ : array
        The objective at the start and after every iteration.
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
        self.n_jobs = n_jobs
        self.verbose = verbose

    def largest_weights(self, n=10, *, feature_names=None):
        """The n weights of largest magnitude of each label: {label: [(feature, weight), ...]}.

        feature_names overrides the names of the training columns, for example with those a pipeline's vectorizer gives.
        """
        check_is_fitted(self)
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

    def _fit_rows(self, X, Y, weights, support, space):
        # With fewer rows than features the solution lies in the span of the rows: optimise there, in as many
        # coordinates as there are rows.
        in_row_space = len(weights) < X.shape[1] and len(weights) <= MAX_FACTORED
        back = None
        features = X
        if in_row_space:
            features, back = gram_features(_inner_products(X))
        design = Design(features, weights, fit_intercept=self.fit_intercept)
        objective = Objective(design, space, Y, alpha=1.0 / self.C, learn_bias=self._learns_bias)
        parameters = self._minimise(objective, self._start(objective, design, X, back))
        coef, mean_score, bias = objective.split(parameters)
        intercept = mean_score - design.mean @ coef
        if in_row_space:
            coef = X.T.astype(np.float64) @ (back @ coef)
        self.coef_ = np.ascontiguousarray(coef.T).astype(X.dtype)
        self.intercept_ = intercept.astype(X.dtype)
        self._keep_biases(space, bias, X.dtype)

    def _start(self, objective, design, X, back):
        same = hasattr(self, "coef_") and self.coef_.shape == (objective.n_labels, X.shape[1])
        if not (self.warm_start and same):
            return objective.start()
        coef = self.coef_.T.astype(np.float64)
        if back is not None:
            coef = back.T @ (X.astype(np.float64) @ coef)
        intercept = self.intercept_ + design.mean @ coef
        return np.concatenate([coef.ravel(), intercept, self._warm_bias(objective.space)])

    def _scores(self, X):
        check_is_fitted(self)
        X = self._validate_X(X, reset=False)
        coef = self.coef_.astype(X.dtype, copy=False)
        return np.asarray(X @ coef.T) + self.intercept_.astype(X.dtype, copy=False)


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
    label_space, min_labels, max_labels, size_bias, C, l1_ratio, fit_intercept, solver, mm_step, tol, max_iter
        See MLRHClassifier.
    warm_start, decision, n_jobs, verbose
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

    def _rows(self, X, support):
        return X[support][:, support] if self.kernel == "precomputed" else X[support]

    def _fit_rows(self, X, Y, weights, support, space):
        self._gamma = self._gamma_value(X, weights)
        gram = self._kernel_matrix(X, X)
        features, back = gram_features(0.5 * (gram + gram.T))
        design = Design(features, weights, fit_intercept=self.fit_intercept)
        objective = Objective(design, space, Y, alpha=1.0 / self.C, learn_bias=self._learns_bias)
        parameters = self._minimise(objective, self._start(objective, design, X, back))
        coef, mean_score, bias = objective.split(parameters)
        self.support_ = support
        self.X_fit_ = None if self.kernel == "precomputed" else X
        self.dual_coef_ = np.ascontiguousarray((back @ coef).T).astype(X.dtype)
        self.intercept_ = (mean_score - design.mean @ coef).astype(X.dtype)
        self._keep_biases(space, bias, X.dtype)

    def _start(self, objective, design, X, back):
        if not (self.warm_start and hasattr(self, "dual_coef_") and len(self.dual_coef_) == objective.n_labels):
            return objective.start()
        if self.kernel == "precomputed" and self.dual_coef_.shape[1] != len(back):
            return objective.start()
        cross = self._kernel_matrix(X, self.X_fit_)
        # The last fit's scores at these rows, projected onto the features: inner products with back undo the root.
        coef = back.T @ (cross @ self.dual_coef_.T.astype(np.float64))
        intercept = self.intercept_ + design.mean @ coef
        return np.concatenate([coef.ravel(), intercept, self._warm_bias(objective.space)])

    def _scores(self, X):
        check_is_fitted(self)
        X = self._validate_X(X, reset=False)
        gram = self._kernel_matrix(X[:, self.support_] if self.kernel == "precomputed" else X, self.X_fit_)
        return (gram @ self.dual_coef_.T + self.intercept_).astype(X.dtype)

    def _kernel_matrix(self, X, other):
        """Kernel values in float64: rounded to float32 the matrix would have negative eigenvalues."""
        if self.kernel == "precomputed":
            return np.asarray(X.toarray() if sparse.issparse(X) else X, np.float64)
        X, other = X.astype(np.float64, copy=False), other.astype(np.float64, copy=False)
        if callable(self.kernel):
            return np.asarray(self.kernel(X, other), np.float64)
        parameters = {"gamma": self._gamma, "degree": self.degree, "coef0": self.coef0}
        return pairwise_kernels(X, other, metric=self.kernel, filter_params=True, **parameters)

    def _gamma_value(self, X, weights):
        if isinstance(self.gamma, Real):
            return float(self.gamma)
        if self.gamma == "auto":
            return 1.0 / X.shape[1]
        mean = (weights @ X).mean() / weights.sum()
        if sparse.issparse(X):
            variance = (weights @ X.multiply(X)).mean() / weights.sum() - mean**2
        else:
            variance = (weights @ np.square(X - mean)).mean() / weights.sum()
        return 1.0 / (X.shape[1] * variance) if variance > 0 else 1.0


def _inner_products(X):
    products = X.astype(np.float64) @ X.T.astype(np.float64)
    return products.toarray() if sparse.issparse(products) else products
