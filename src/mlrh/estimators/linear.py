"""MLRHClassifier: scores that are linear in the features."""

from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from mlrh import _sklearn
from mlrh._indicators import any_known
from mlrh._warnings import warn
from mlrh.estimators import _chunks, _device, _features, _targets
from mlrh.estimators._base import N_TUNING_FOLDS, MLRHBase, check_strength, tuning_sample, warn_where_undetermined
from mlrh.fitting.checkpoint import Checkpoint, DigestOfRows, check_folder, digest_of
from mlrh.fitting.design import Design, GramRows, OrthogonalRows, row_space, triangular_design
from mlrh.fitting.metric import needs_gram
from mlrh.fitting.objective import Objective
from mlrh.fitting.rows import RowsInChunks

FEW_ROWS = 8  # up to so many sparse rows are multiplied one by one, which spares a copy of all coefficients
MAX_BYTES = 2**28  # of the rows that partial_fit keeps: 256 MiB


@dataclass(frozen=True)
class _LinearPart:
    """The design of X (`outer`) and the one to solve in (`design`): the same, or that of its row space."""

    design: Design
    outer: Design
    rows: OrthogonalRows | GramRows | None


@dataclass(frozen=True)
class _KeptRows:
    """Rows that represent all rows shown to partial_fit: all of them, or one in 2**level with 2**level the weight."""

    X: Any
    Y: np.ndarray
    weights: np.ndarray
    numbers: np.ndarray  # of the rows within their calls, for errors
    n_shown: int = 0
    level: int = 0

    def plus(self, X, Y, weights, numbers):
        """These rows and more, thinned by half until they take no more than MAX_BYTES."""
        X = self._alike(X)
        # The same sequence of calls draws the same rows: the seed is the number of rows shown before.
        random, n_shown = np.random.RandomState(self.n_shown % 2**32), self.n_shown + len(Y)
        # New rows are thinned as much as the rows kept, so that every row had the same chance to be kept.
        drawn = np.flatnonzero(random.random_sample(len(Y)) < 0.5**self.level)
        new = (X[drawn], Y[drawn], weights[drawn] * 2.0**self.level, numbers[drawn])
        stack = partial(sparse.vstack, format="csr") if sparse.issparse(X) else np.concatenate
        pairs = zip((self.Y, self.weights, self.numbers), new[1:], strict=True)
        Y, weights, numbers = (np.concatenate(pair) for pair in pairs)
        rows = _KeptRows(stack([self.X, new[0]]), Y, weights, numbers, n_shown, self.level)
        while rows._n_bytes() > MAX_BYTES and len(rows.Y) > 1:
            half = np.flatnonzero(random.random_sample(len(rows.Y)) < 0.5)
            half = half if len(half) else np.zeros(1, np.int64)  # a fit needs a row
            X, Y, weights, numbers = rows.X[half], rows.Y[half], 2 * rows.weights[half], rows.numbers[half]
            rows = _KeptRows(X, Y, weights, numbers, n_shown, rows.level + 1)
        return rows

    def _alike(self, X):
        """X in the form of the rows kept: sparse or dense, float32 or float64."""
        if sparse.issparse(self.X) and not sparse.issparse(X):
            X = sparse.csr_array(X)
        elif sparse.issparse(X) and not sparse.issparse(self.X):
            X = X.toarray()
        return X.astype(self.X.dtype, copy=False)

    def _n_bytes(self):
        parts = (self.X.data, self.X.indices, self.X.indptr) if sparse.issparse(self.X) else (self.X,)
        return sum(part.nbytes for part in (*parts, self.Y, self.weights))


def _has_one_C(model):
    """True; an AttributeError says why a classifier that chooses C has no partial_fit and no fit_chunks."""
    if not hasattr(model, "C"):
        raise AttributeError(
            "partial_fit and fit_chunks need one C, and this class chooses it; use MLRHClassifier with that C."
        )
    return True


class MLRHClassifier(MLRHBase):
    """Multilabel logistic regression: one exact joint model of the whole label set, with linear scores.

    P(y | x) is proportional to exp(sum_k y_k (coef_k . x + intercept_k) + b(y)) over a label space: all sets of
    min_labels to max_labels labels, or the sets seen in training, or all sets with a bias for those seen. With one
    class per row it is softmax regression (with two classes, binary logistic regression). With min_labels=0 and
    max_labels=n_labels it is one binary logistic regression per label.

    y may be an indicator matrix (array, nested list of 0 and 1, sparse matrix, or a pandas or polars DataFrame whose
    columns name the labels), a list of label sets (sets of any labels, or tuples or lists of strings), or one class per
    row. predict answers in the same form: an array for nested lists and Series, else the container that was given.

    An indicator matrix may hold NaN (or None, or be masked) where a label is unknown. The fit then maximises the
    probability of what is known, summed over all sets that agree with it. This is no longer convex; the fit starts from
    one logistic regression per label on its known entries. Automatic sizes count the labels known to be present.
    Observed sets come from complete rows.

    Parameters
    ----------
    label_space : {"cardinality", "observed", "open"} or LabelSpace, default="cardinality"
        "cardinality": all sets of an admissible size. "observed": the sets that training shows, each with a learned
        bias, so that labels can attract each other. "open": all sets of an admissible size; those that training shows
        have a learned bias too. Or an instance of a class of mlrh.spaces, such as GroupSpace and HierarchySpace, or of
        your own.
    min_labels, max_labels : int or "auto", default="auto"
        Smallest and largest admissible size. "auto" takes them from the training rows. So after a small training set
        whose rows all happen to have two labels or more, one label is impossible: set min_labels=1 to allow it. Rows
        outside the given sizes are an error. Not used with one class per row.
    size_bias : bool, default=False
        Learn a bias b(|y|) per size in the cardinality space. In the observed space a bias per set is always learned,
        in the open space one per size and per seen set.
    set_bias_strength : float or "auto", default="auto"
        Open space only: how strongly biases of sets are held to 0, by strength/2 * set_bias^2 in units of the loss.
        "auto" chooses it on held-out rows, by two further fits without these biases to at most 5,000 rows.
    C : float, default=1.0
        Inverse strength of the penalty, as in LogisticRegression: the objective is C * loss + |coef|^2 / 2. np.inf: no
        penalty. Intercepts and biases are only penalised as much as it takes to keep them finite.
    l1_ratio : float, default=0.0
        Share of the L1 penalty, as in LogisticRegression: the penalty is l1_ratio |coef|_1 + (1 - l1_ratio) / 2
        |coef|^2. Where it is not 0, coefficients of features that hardly help are exactly 0.
    fit_intercept : bool, default=True
    solver : {"auto", "lbfgs", "newton-cg", "mm", "prox-newton"} or function, default="auto"
        "auto" is "lbfgs", or "prox-newton" where l1_ratio is not 0, the only one that can minimise an L1 penalty. "mm"
        is the paper's majorisation-minimisation. All reach the same optimum, mm slowly. For a function of your own see
        docs/extending.md.
    mm_step : {"safe", "paper"}, default="safe"
        Step of "mm". "safe": by a bound on the curvature of all labels jointly. "paper": by the paper's bound, twice as
        long; allowed where it can't increase the objective (cardinality space without size_bias).
    tol : float, default=1e-5
        Stop when the decrease that is left is estimated at no more than tol times the objective (or times a hundredth
        of the loss of the uniform distribution, where the objective is less). What that means for probabilities, on
        seven public sets: 1e-4 ends within 3e-2 of the optimum's, 1e-5 within 7e-3, 1e-6 within 1e-3; on the eighth,
        with 983 labels, within 1e-1, 3e-2 and 7e-3 (docs/speed.md). That is at C=1: with weak penalties the estimate
        may be far too low, on emotions by a factor of 30 at C=10,000 (docs/model.md), so lower tol with them.
    max_iter : int, default=1000
    warm_start : bool, default=False
        Start from the last fit, if it has the same features and labels. If Ctrl-C interrupts such a fit, what it has
        reached is kept: a usable model, from which the next fit goes on. Without warm_start the model stays as it was.
    decision : {"exact_match", "hamming", "f1", "jaccard"}, ("top", k) or callable, default="exact_match"
        What predict maximises. "exact_match": the probability that the whole set is right; always a set of the label
        space. "hamming": the expected number of right entries. "f1", "jaccard": the expected metric of a row's set.
        ("top", k): the expected number of right labels among k. A function f(tp, fp, fn): its expectation, see
        mlrh.decisions.best. All but "exact_match" may answer with an empty set, or with more than max_labels labels,
        unless answer_sizes forbids it. With one class per row, it is always the most probable class.
    answer_sizes : (int or None, int or None), default=None
        Smallest and largest number of labels that predict answers with; it finds the best answer within them. None: no
        limit. (min_labels and max_labels say which sets can be true.) Not used with one class per row.
    n_jobs : int, default=None
        Threads over rows in the cardinality space and in products with sparse features or few labels. None: all usable
        cores, 1 inside a joblib worker.
    verbose : int, default=0
        1 prints a line per iteration, and says on standard error when kernels have to be compiled first.
        `set_callbacks` takes scikit-learn's callbacks, such as ProgressBar.

    Attributes
    ----------
    coef_ : array of shape (n_labels, n_features)
    intercept_ : array of shape (n_labels,)
    classes_ : array
        Names of the labels, or the classes for one class per row (two classes have one label, the second class).
    min_labels_, max_labels_ : int
    size_bias_ : array of shape (n_labels + 1,)
        Cardinality and open space only; zeros unless learned.
    sets_, set_bias_ : arrays of shape (n_sets, n_labels) and (n_sets,)
        Observed and open space only.
    set_bias_strength_ : float
        Open space only: as given, or as chosen.
    label_space_ : mlrh.spaces.LabelSpace
        With its learned biases.
    support_ : array
        Indices of the training rows of positive weight.
    n_iter_ : int
    objective_ : float
        Final value, in units of the loss.
    history_ : array
        The objective at the start and after every iteration.
    n_samples_seen_, n_samples_kept_ : int
        After partial_fit only: rows shown to it, and how many of them are kept.
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
    n_samples_seen_: int
    _kept: _KeptRows

    def __init__(
        self,
        *,
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

    @available_if(_has_one_C)
    @_sklearn.fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, classes=None, sample_weight=None) -> Self:
        """Fit to more rows: the model becomes that of `fit` to all rows shown so far, starting from the last one.

        All rows are kept, up to 256 MiB. Beyond that, a uniform random sample represents them; it is thinned by half
        whenever it outgrows the budget. The objective is then that of the sample, scaled up, and the label space has
        the sizes and sets of the rows kept. A row shown twice counts twice. The time of a call grows with the number of
        rows kept, so a few large calls are cheaper than many small ones.

        `fit` keeps no rows, so the first call after it starts anew. So does the first call after loading a model from a
        file, unless it was saved with `mlrh.persistence.save(model, path, keep_rows=True)`.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_samples, n_features)
            Converted to the type of the first call, sparse or dense, float32 or float64.
        y : indicator matrix, list of label sets, or classes of shape (n_samples,)
            In the form of the first call. NaN as in `fit`.
        classes : array-like
            Needed at the first call, unless after `fit`: all classes, for one class per row; all labels, for label
            sets; the names of the columns, for an indicator matrix (range(n_labels) will do).
        sample_weight : array of shape (n_samples,), optional
            A row of weight 2 counts as the row twice, one of weight 0 as absent.

        Returns
        -------
        self
        """
        _device.refuse(X, "partial_fit")
        self._check_penalty()
        is_first = not hasattr(self, "_kept")
        if is_first and hasattr(self, "n_samples_seen_"):
            warn(
                "The rows shown to partial_fit before were not saved with the model, so that only those shown from now "
                "on count. To go on with all of them, save the model with keep_rows=True."
            )
        form = self._declared_form(y, classes, is_first=is_first)
        Y = form.indicator(y, partly_known=True)
        _targets.check_same_length(X, Y)
        if len(Y) == 0:
            raise ValueError("X and y must have at least one row; got none. Leave empty chunks out.")
        noting = copy(self)  # gets n_features_in_ and names: if this call fails, self keeps what it had
        X = noting._validate_X(X, reset=is_first)
        weights = _sklearn.check_sample_weight(
            sample_weight, Y, dtype=np.float64, ensure_non_negative=True, allow_all_zero_weights=True
        )
        check_strength(self.C, weights, X.dtype)
        _features.check_float32_sums(X, weights)
        support = np.flatnonzero((weights > 0) & any_known(Y))
        before = _KeptRows(X[:0], Y[:0], weights[:0], support[:0]) if is_first else self._kept
        kept = before.plus(X[support], Y[support], weights[support], support)
        _targets.check_any(kept.weights)
        problem = self._problem(kept.X, kept.Y, kept.weights, kept.numbers, form, noting)
        n_seen = len(Y) if is_first else self.n_samples_seen_ + len(Y)
        rows = {"_kept": kept, "n_samples_kept_": len(kept.Y), "n_samples_seen_": n_seen}
        self._solve(problem, warm=not is_first, rows=rows)
        return self

    def _declared_form(self, y, classes, *, is_first):
        """The form of y: declared at the first call, later that of the first call or of an earlier fit."""
        if is_first and (classes is not None or not hasattr(self, "_targets")):
            return _targets.declared(y, classes)
        if classes is not None:
            _targets.check_same(self._targets, classes)
        return self._targets

    @available_if(_has_one_C)
    @_sklearn.fit_context(prefer_skip_nested_validation=True)
    def fit_chunks(self, chunks, classes=None, *, unknown=None, checkpoint=None) -> Self:
        """Fit to rows that need not fit into memory: the model is that of `fit` to all rows together.

        The chunks are gone through once for each evaluation of the objective, and two or three times before: one looks
        at all rows, one adds up what no coefficient changes. The next chunk is fetched by another thread meanwhile. In
        memory are two chunks and what the solver needs, some 25 arrays as large as `coef_`, with dense features also
        two square matrices of n_features rows.

        Parameters
        ----------
        chunks : iterable, list of files, tuple of arrays, or function
            * Anything that can be gone through again and again and gives tuples (X, Y) or (X, Y, weight), such as a
              list of them or an object whose `__iter__` reads them. Not a generator, which can be gone through once.
            * A function without arguments that returns an iterator of such tuples, such as a generator function.
            * A list of files: Parquet, CSV, LIBSVM, ARFF or .npz (see `mlrh.data.FileParts`), also compressed with
              gzip, or of tuples (X.npy, Y.npy) or (X.npy, Y.npy, weight.npy). Other files than .npy are read once and
              kept as numbers in a temporary folder (in TMPDIR).
            * One tuple of arrays (X, Y) or (X, Y, weight), for example memory-mapped ones, which is cut into chunks.

            X dense or CSR, Y in the forms of `fit`, NaN where a label is unknown; each chunk in the same form.
        classes : array-like, optional
            All labels or classes, as for `partial_fit`. Needed where Y holds label sets or one class per row, and for
            CSV and Parquet files, where they are the names of the label columns.
        unknown : str, optional
            The text of unknown labels in CSV, JSON lines and Parquet files, as for `mlrh.data.read`: "" takes empty and
            missing ones, which are an error by default. Arrays have NaN there.
        checkpoint : path, optional
            A file, in a folder that exists, to which the answer of each pass is added. The same call after the fit was
            killed goes on where it was. A file of other rows or parameters is an error. It may be deleted after the
            fit.

        Returns
        -------
        self
            Without `support_`. With verbose=1 passes, the objective and the time left are shown.
        """
        self._check_penalty()
        if checkpoint is not None:
            check_folder(checkpoint)  # before the first look at the rows, which may take long
        with _chunks.opened(chunks, classes, unknown) as source, _chunks.progress_of(self) as progress:
            noting = copy(self)  # gets n_features_in_ and names: if this call fails, self keeps what it had
            rows = _chunks.CheckedChunks(source, noting, progress, None if checkpoint is None else DigestOfRows())
            look = rows.look()
            problem = self._problem(None, look.Y, look.counts, look.places, look.form, noting, counts=look.counts)
            if not look.form.is_one_class_per_row:
                warn_where_undetermined(problem)
            self._solve_chunks(problem, rows, look.features, checkpoint=checkpoint, progress=progress)
        return self

    def _solve_chunks(self, problem, chunks, features, *, checkpoint, progress):
        """Fit to the chunks of a problem, of which the sums of features are known, and keep the result."""
        # Before the space is tuned, which may round differently on another machine; what passes answer is the same.
        described = None if checkpoint is None else self._described(problem, features, chunks.digest.text())
        problem, start = self._tuned_on_sample(problem, features.n_samples, partial(_chunks.sampled, chunks))
        options = self._options_of_sums(problem, features)
        with ExitStack() as stack:
            if described is not None:
                options["checkpoint"] = stack.enter_context(Checkpoint(checkpoint, described))
            rows = RowsInChunks(chunks, features, problem.space, n_jobs=self.n_jobs, **options)
            self._solve_sums(problem, rows, start, progress)

    def _options_of_sums(self, problem, features):
        """Options of SummedRows."""
        with_gram = needs_gram(features, problem.space.operations_per_score, **self._strengths)
        return {"fit_intercept": self.fit_intercept, "with_gram": with_gram}

    def _solve_sums(self, problem, rows, from_sample, progress):
        """Fit to SummedRows of a problem and keep the result; from_sample is what `_tuned_on_sample` gave."""
        objective = Objective.over(rows, problem.space, **self._strengths)
        prepared = _LinearPart(rows.design, rows.design, None)
        is_warm = self.warm_start and getattr(self, "_fitted_as", None) == problem.fitted_as
        earlier = self._earlier_scores(None) if is_warm else None
        starts = () if earlier is None else ((*self._project(prepared, earlier), self.label_space_),)
        metric_at = None
        if not starts and problem.is_complete and from_sample is not None:
            (coef, score, space), mean = from_sample
            starts = ((coef, score + (rows.design.mean - mean) @ coef, space),)  # the score at the mean of all rows
            metric_at = Objective.metric_near
        self._conclude(problem, prepared, objective, starts, metric_at=metric_at, more={}, tell=progress.tell)

    def _tuned_on_sample(self, problem, n_rows, sampled):
        """`_tuned`, on rows that are not at hand: sampled(numbers) collects X, Y and weights of some of them.

        Also the start of `_tuned_space` and the mean of these rows, or None.
        """
        if problem.space.simpler() is None or n_rows < N_TUNING_FOLDS:
            return problem, None
        X, Y, weights = sampled(tuning_sample(n_rows))
        design = Design(X, weights, fit_intercept=self.fit_intercept, n_jobs=self.n_jobs)
        sets = problem.space.completed(Y)
        space, start = self._tuned_space(problem.space, design, np.arange(len(Y)), sets, n_rows)
        return replace(problem, space=space), (start, design.mean)

    def _described(self, problem, features, rows):
        """What a fit to chunks is about, by name, each as a short text: a checkpoint is of use for nothing else.

        rows is the digest of all rows. Sums over them don't do: they round differently on another machine.
        """
        space, solver = problem.space, self.solver if isinstance(self.solver, str) else repr(self.solver)
        penalty = (self.C, self.l1_ratio, self.set_bias_strength)
        return {
            "the number of rows": str(features.n_samples),
            "the number of features": str(features.n_features),
            "the labels": digest_of(problem.form.classes),
            "the label space": digest_of(type(space).__name__, *space.to_dict().items()),
            "the rows": rows,
            "the parameters": repr((*penalty, self.fit_intercept, solver, self.mm_step, self.warm_start)),
        }

    def largest_weights(self, n: int = 10, *, feature_names=None) -> dict[Any, list[tuple[str, float]]]:
        """The n weights of largest magnitude of each label: {label: [(feature, weight), ...]}.

        feature_names replaces the names of the training columns, for example by those of a pipeline's vectorizer.
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
        return _features.validated(self, X, reset=reset)

    def _rows(self, X, support):
        return X[support]

    def _form_of_scores(self, support):
        return ("linear",)

    def _prepare(self, X, weights, C, *, keep_gram=False):
        if _device.is_tensor(X):
            design = _device.design(X, weights, self.fit_intercept)
            return _LinearPart(design, design, None)
        options = {"fit_intercept": self.fit_intercept, "keep_gram": keep_gram, "n_jobs": self.n_jobs}
        outer = Design(X, weights, **options)
        rows = row_space(outer, C) if self.l1_ratio == 0 else None  # an L1 penalty needs the coefficients of X itself
        inner = outer if rows is None else triangular_design(rows, weights, **options)
        return _LinearPart(inner, outer, rows)

    def _earlier_scores(self, X):
        return self.coef_.T.astype(np.float64), self.intercept_

    def _project(self, prepared, earlier):
        coef, intercept = earlier
        inner = coef if prepared.rows is None else prepared.rows.reduce(coef)
        return inner, intercept + prepared.outer.mean @ coef

    def _attributes_of(self, prepared, coef, mean_score):
        coef = coef if prepared.rows is None else prepared.rows.expand(coef)
        dtype = prepared.outer.dtype
        coef = np.ascontiguousarray(coef.T).astype(dtype)
        # From the coefficients as they are stored: in float32 their rounding error times a large mean would matter.
        return {"coef_": coef, "intercept_": (mean_score - coef @ prepared.outer.mean).astype(dtype)}

    def _compared(self, X):
        return self._validate_X(X, reset=False)

    def _scores_of(self, compared):
        X = compared
        if _device.is_tensor(X):
            coef, intercept = (_device.tensor_like(values, X) for values in (self.coef_, self.intercept_))
            return X @ coef.T + intercept
        return _products(X, self.coef_.astype(X.dtype, copy=False)) + self.intercept_.astype(X.dtype, copy=False)


def _products(X, coef):
    """X @ coef.T (n_samples, n_labels); SciPy's sparse product would copy all coefficients even for a few rows."""
    if not sparse.issparse(X) or X.shape[0] > FEW_ROWS:
        return np.asarray(X @ coef.T)
    products = np.empty((X.shape[0], len(coef)), X.dtype)
    for i in range(X.shape[0]):
        entries = slice(X.indptr[i], X.indptr[i + 1])
        products[i] = coef[:, X.indices[entries]] @ X.data[entries]
    return products
