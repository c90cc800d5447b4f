"""The classifiers that choose C, and l1_ratio or gamma, by cross validation as they are fitted.

In the style of LogisticRegressionCV: the same arguments as the classifier itself, with `Cs` in place of `C`.
`validation_scores` fits a path of C for each fold and scores the held-out rows.
"""

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.model_selection import check_cv
from sklearn.utils import indexable

from mlrh import _sklearn
from mlrh._indicators import UNKNOWN
from mlrh._sklearn import Interval, StrOptions
from mlrh._warnings import warn
from mlrh.estimators import _device, _features, _targets, _whole_fit
from mlrh.estimators._base import MLRHBase
from mlrh.estimators.kernel import KernelMLRHClassifier
from mlrh.estimators.linear import MLRHClassifier
from mlrh.metrics import FLOOR

LOG10_CS = (-4, 4)  # of the smallest and the largest C unless told others: the decades of LogisticRegressionCV
SEARCH_TOL = 1e-5  # of fits that only serve to choose: a rank needs no more digits, whatever the final fit has
LOG_PROB = "log_prob"
WITHOUT_GAMMA = ("linear", "cosine", "additive_chi2", "precomputed")
DECIMALS = 12  # of mean scores that are compared, so that rounding decides no tie
_PARAMETERS = {
    "Cs": [Interval(Integral, 1, None, closed="left"), "array-like"],
    "cv": ["cv_object"],
    "scoring": [StrOptions({*get_scorer_names(), LOG_PROB}), callable, None],
}


class _Chosen(MLRHBase):
    """What both classes add to the classifier that they extend: a search before the fit."""

    _CLASSIFIER: type[MLRHBase]
    Cs: Any
    cv: Any
    scoring: Any
    n_jobs: int | None

    @abstractmethod
    def _settings(self) -> Sequence[dict]: ...

    @abstractmethod
    def _attributes_of_scores(self, scores, setting) -> dict[str, Any]: ...

    @_sklearn.fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Choose by cross validation, then fit to all rows; X, y and sample_weight as for the classifier itself.

        Weights count in every fit and in every score. Callbacks are called for the fit to all rows only.
        """
        Cs, settings = _grid(self.Cs), self._settings()
        for own in settings:
            self._with_C(Cs[0], **own)._check_penalty()
        _features.check(X)
        y, sample_weight = _device.to_numpy(y), _device.to_numpy(sample_weight)
        X, y = (X, y) if _device.stays(X) else indexable(X, y)
        if self.n_jobs == 0:
            raise ValueError(
                "n_jobs must not be 0; use None or 1 for one process, -1 for one per core, or their number."
            )
        self._with_C(Cs[0])._validate_X(X, reset=True)  # errors in the whole of X are reported before folds are made
        form, Y = _targets.encode(y, partly_known=True)
        _targets.check_same_length(X, Y)
        _check_scoring(self.scoring, form, Y, X)
        y = np.asarray(y).ravel() if form.is_one_class_per_row else y
        weights = sample_weight
        if weights is not None:
            weights = _sklearn.check_sample_weight(weights, Y, ensure_non_negative=True)
        scores = self._scores_of_folds((X, y, weights), Cs, settings, _splits(self.cv, form, y, Y))
        setting, C = best_index(scores, decimals=DECIMALS)
        fitted = self._with_C(Cs[C], **settings[setting])
        _sklearn.share_callbacks(self, fitted).fit(X, y, sample_weight)
        chosen = {"Cs_": np.array(Cs), "C_": Cs[C], "best_score_": float(scores[:, setting, C].mean())}
        of_scores = self._attributes_of_scores(scores, settings[setting])
        of_fit = {name: vars(fitted)[name] for name in vars(fitted).keys() - fitted.get_params().keys()}
        earlier = [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]
        _whole_fit.keep(self, {**of_fit, **chosen, **of_scores}, without=earlier)
        return self

    def _scores_of_folds(self, rows, Cs, settings, splits):
        """Scores (n_folds, n_settings, n_Cs), without folds that have no scores at all."""
        X, y, weights = rows
        options = {"Cs": Cs, "settings": settings, "splits": splits, "scorers": [_scorer(self.scoring)]}
        scores = validation_scores(self._with_C(1.0), X, y, sample_weight=weights, n_jobs=self.n_jobs, **options)[0]
        scores = scores[~np.isnan(scores).all(axis=(1, 2))]
        if len(scores) == 0 or np.isnan(scores.mean(axis=0)).all():
            raise ValueError("No fold gave a score to choose by; the scoring answered with NaN for all of them.")
        return scores

    def _with_C(self, C, **changes):
        """The classifier itself at this C, not fitted."""
        parameters = self.get_params(deep=False)
        for name in ("Cs", "cv", "scoring", "gammas", "l1_ratios"):
            parameters.pop(name, None)
        return self._CLASSIFIER(**{**parameters, **changes, "C": C})


class MLRHClassifierCV(_Chosen, MLRHClassifier):
    """MLRHClassifier with C, and l1_ratio if asked for, chosen by cross validation.

    Each fold is fitted along the whole path of C, from strong to weak penalties; each fit starts from those before it
    (where y holds NaN, each starts anew). The mean score over the folds decides; ties go to the strongest penalty. The
    fit to all rows starts anew. To save a fitted classifier, `cv` must be an int or None and `scoring` a name or None
    (set_params can change them).

    Parameters
    ----------
    Cs : int or sequence of floats, default=10
        Values of C to try; an int stands for that many from 1e-4 to 1e4, evenly spaced in their logarithm.
    cv : int, splitter, iterable of (training rows, held-out rows) or None, default=None
        None and int as in scikit-learn: 5, or that many folds, stratified where y has one class per row.
    scoring : str, callable or None, default=None
        None: exact match. "log_prob": mean log-probability of the set (with NaN in y, of what is known of it), at least
        log 1e-6 per row. Otherwise a name that scikit-learn knows, or a function (estimator, X, y) -> float, which gets
        the weights if it has an argument sample_weight.
    n_jobs : int, default=None
        Processes over folds in fit, as in joblib; threads over rows in predictions, as for MLRHClassifier.
    l1_ratios : sequence of floats, default=None
        Values of l1_ratio to try; None: only `l1_ratio`. Ties go to the smallest C, then to the first l1_ratio.
    label_space, min_labels, max_labels, size_bias, set_bias_strength, l1_ratio, fit_intercept, solver, mm_step, tol
        See MLRHClassifier.
    max_iter, decision, answer_sizes, verbose
        See MLRHClassifier.

    Attributes
    ----------
    C_, l1_ratio_ : float
    Cs_ : array of shape (n_Cs,)
        In ascending order.
    scores_ : array of shape (n_folds, n_Cs), with l1_ratios (n_folds, n_l1_ratios, n_Cs)
    best_score_ : float
        Mean of scores_ at C_; somewhat optimistic, since it is the best of several.
    coef_, intercept_ and all others
        See MLRHClassifier.

    Examples
    --------
    >>> from mlrh import MLRHClassifierCV
    >>> from mlrh.data import load_digit_scenes
    >>> scenes = load_digit_scenes(300)
    >>> clf = MLRHClassifierCV(Cs=[0.0001, 0.001, 0.01], scoring="log_prob").fit(scenes.X, scenes.Y)
    >>> clf.C_, clf.scores_.mean(axis=0).round(1).tolist()
    (0.001, [-4.3, -3.9, -4.4])
    """

    _CLASSIFIER = MLRHClassifier
    _parameter_constraints: dict = {
        **MLRHClassifier._parameter_constraints,
        **_PARAMETERS,
        "l1_ratios": ["array-like", None],
    }

    def __init__(
        self,
        *,
        Cs=10,
        l1_ratios=None,
        cv=None,
        scoring=None,
        label_space="cardinality",
        min_labels="auto",
        max_labels="auto",
        size_bias=False,
        set_bias_strength="auto",
        l1_ratio=0.0,
        fit_intercept=True,
        solver="auto",
        mm_step="safe",
        tol=1e-5,
        max_iter=1000,
        decision="exact_match",
        answer_sizes=None,
        n_jobs=None,
        verbose=0,
    ):
        self.Cs = Cs
        self.l1_ratios = l1_ratios
        self.cv = cv
        self.scoring = scoring
        self.label_space = label_space
        self.min_labels = min_labels
        self.max_labels = max_labels
        self.size_bias = size_bias
        self.set_bias_strength = set_bias_strength
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.mm_step = mm_step
        self.tol = tol
        self.max_iter = max_iter
        self.decision = decision
        self.answer_sizes = answer_sizes
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _settings(self):
        if self.l1_ratios is None:
            return [{"l1_ratio": self.l1_ratio}]
        ratios = np.asarray(self.l1_ratios)
        is_list = ratios.ndim == 1 and len(ratios) > 0 and ratios.dtype.kind in "iuf"
        if not is_list or not ((ratios >= 0) & (ratios <= 1)).all():
            raise ValueError(f"l1_ratios must be numbers from 0 to 1, at least one; got {self.l1_ratios!r}.")
        return [{"l1_ratio": float(ratio)} for ratio in ratios]

    def _attributes_of_scores(self, scores, setting):
        return {"scores_": scores[:, 0] if self.l1_ratios is None else scores, "l1_ratio_": setting["l1_ratio"]}


class KernelMLRHClassifierCV(_Chosen, KernelMLRHClassifier):
    """KernelMLRHClassifier with C and gamma chosen by cross validation.

    One factorisation of the kernel matrix per fold and gamma serves all C. The mean score over the folds decides; ties
    go to the smallest C, then to the first gamma.

    Parameters
    ----------
    Cs, cv, scoring, n_jobs
        See MLRHClassifierCV.
    gammas : sequence of floats, "scale" and "auto", default=("scale",)
        Values of gamma to try; "scale" is computed from the training rows of each fold. More than one makes sense only
        for kernels that have a gamma.
    kernel, degree, coef0, kernel_approximation, n_components, random_state
        See KernelMLRHClassifier.
    label_space, min_labels, max_labels, size_bias, set_bias_strength, fit_intercept, solver, mm_step, tol, max_iter
        See MLRHClassifier.
    l1_ratio : 0
        Kernel models have no L1 penalty.
    decision, answer_sizes, verbose
        See MLRHClassifier.

    Attributes
    ----------
    C_, gamma_ : the values chosen, gamma_ as it stands in gammas
    Cs_ : array of shape (n_Cs,)
        In ascending order.
    scores_ : array of shape (n_folds, n_gammas, n_Cs)
    best_score_ : float
        Mean of scores_ at the values chosen; somewhat optimistic, since it is the best of several.
    dual_coef_, intercept_ and all others
        See KernelMLRHClassifier.

    Examples
    --------
    >>> from mlrh import KernelMLRHClassifierCV
    >>> from mlrh.data import load_digit_scenes
    >>> scenes = load_digit_scenes(300)
    >>> clf = KernelMLRHClassifierCV(Cs=[1.0, 10.0, 100.0], gammas=[0.001, "scale"]).fit(scenes.X, scenes.Y)
    >>> clf.C_, clf.gamma_, clf.scores_.shape
    (100.0, 'scale', (5, 2, 3))
    """

    _CLASSIFIER = KernelMLRHClassifier
    _parameter_constraints: dict = {
        **KernelMLRHClassifier._parameter_constraints,
        **_PARAMETERS,
        "gammas": ["array-like"],
    }

    def __init__(
        self,
        *,
        Cs=10,
        gammas=("scale",),
        cv=None,
        scoring=None,
        kernel="rbf",
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
        l1_ratio=0.0,
        fit_intercept=True,
        solver="auto",
        mm_step="safe",
        tol=1e-5,
        max_iter=1000,
        decision="exact_match",
        answer_sizes=None,
        n_jobs=None,
        verbose=0,
    ):
        self.Cs = Cs
        self.gammas = gammas
        self.cv = cv
        self.scoring = scoring
        self.kernel = kernel
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
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.mm_step = mm_step
        self.tol = tol
        self.max_iter = max_iter
        self.decision = decision
        self.answer_sizes = answer_sizes
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _settings(self):
        gammas = list(self.gammas)
        for gamma in gammas:
            if gamma not in ("scale", "auto") and not (isinstance(gamma, Real) and 0 <= float(gamma) < np.inf):
                raise ValueError(f"gammas must hold finite numbers of at least 0, 'scale' or 'auto'; got {gamma!r}.")
        if not gammas:
            raise ValueError("gammas must hold at least one value; got none.")
        if len(gammas) > 1 and self.kernel in WITHOUT_GAMMA:
            warn(
                f"kernel={self.kernel!r} has no gamma, so that all {len(gammas)} gammas give the same fits; give one.",
            )
        return [{"gamma": gamma} for gamma in gammas]

    def _attributes_of_scores(self, scores, setting):
        return {"scores_": scores, "gamma_": setting["gamma"]}


def _grid(Cs):
    """The values of C in ascending order, floats."""
    if isinstance(Cs, Integral) and not isinstance(Cs, bool):
        return np.logspace(*LOG10_CS, Cs).tolist()
    values = np.asarray(Cs)
    is_list = values.dtype.kind in "iuf" and values.ndim <= 1
    values = np.sort(values.ravel().astype(np.float64)).tolist() if is_list else []
    if not values or not values[0] > 0 or np.isnan(values[-1]):
        raise ValueError(f"Cs must be a positive integer or positive numbers; got {Cs!r}.")
    return values


def _check_scoring(scoring, form, Y, X):
    if callable(scoring) or scoring == LOG_PROB:
        return
    if scoring is not None:
        _device.refuse(X, f"scoring={scoring!r} of scikit-learn")
    if (Y == UNKNOWN).any():
        raise ValueError(
            f"With NaN in y nobody knows whether a set is right, as scoring={scoring!r} asks; use scoring='log_prob'."
        )
    if form.kind == "sets" and scoring is not None:
        raise ValueError(
            f"scoring={scoring!r} of scikit-learn takes no label sets; make an indicator matrix of them with "
            "MultiLabelBinarizer, or use scoring='log_prob' or None."
        )


def _splits(cv, form, y, Y):
    """Pairs (training rows, held-out rows); stratified for one class per row, which scikit-learn can do."""
    classes = y if form.is_one_class_per_row else None
    folds = list(check_cv(cv, classes, classifier=form.is_one_class_per_row).split(np.zeros(len(Y)), classes))
    if not folds:
        raise ValueError("cv must give at least one fold; got none.")
    return folds


def _scorer(scoring):
    if scoring is None:
        return exact_match
    if callable(scoring):
        return scoring
    return log_prob if scoring == LOG_PROB else get_scorer(scoring)


def validation_scores(
    estimator, X, y, *, Cs, splits, scorers, settings=({},), sample_weight=None, n_jobs=None
) -> np.ndarray:
    """Scores of held-out rows, (n_scorers, n_folds, n_settings, n_Cs).

    Parameters
    ----------
    estimator : MLRHClassifier or KernelMLRHClassifier, not fitted here
    X, y : training rows, as for its fit
    Cs : ascending sequence of floats
    splits : list of (training indices, validation indices)
    scorers : sequence of functions (fitted estimator, X, y) -> float, higher is better
    settings : sequence of dictionaries of further parameters to try
    sample_weight : array of shape (n_samples,), optional
        For the fits, and for scorers with an argument of that name. Rows of weight 0 are left out. The scores of a fold
        that holds out only such rows are NaN.
    n_jobs : processes over folds and settings
    """
    tasks = [(train, held_out, setting) for train, held_out in splits for setting in settings]
    n_jobs = 1 if _device.stays(X) else n_jobs  # rows on a device stay in this process
    form, _ = _targets.encode(y, partly_known=True)  # a fold may lack a label
    paths = Parallel(n_jobs=min(effective_n_jobs(n_jobs), len(tasks)))(
        delayed(_path_scores)(estimator, (X, y, sample_weight, form), train, held_out, setting, Cs, scorers)
        for train, held_out, setting in tasks
    )
    scores = np.array(paths, dtype=np.float64).reshape(len(splits), len(settings), len(Cs), len(scorers))
    return np.moveaxis(scores, -1, 0)


def exact_match(model, X, y, sample_weight=None) -> float:
    """Share of rows whose predicted set is right as a whole: the scoring None."""
    return model.score(X, y, sample_weight)


def log_prob(model, X, y, sample_weight=None) -> float:
    """Mean log-probability of what is known of the rows of y, at least log 1e-6 each: the scoring "log_prob".

    Where y is complete, that of the true set. A set with a label that training didn't show counts as log 1e-6. A row of
    which nothing is known is left out; NaN if there is no other row.
    """
    return _log_prob_of(model, model.distribution(X), y, sample_weight)


def _exact_match_of(model, distribution, y, sample_weight=None):
    return model._targets.share_right(model._decide(distribution), y, sample_weight)


def _log_prob_of(model, distribution, y, sample_weight=None):
    Y, unseen = model._targets.partial_indicator(y, partly_known=True)
    log_probs = distribution.log_prob_of_known(np.where(Y == UNKNOWN, np.nan, Y))
    weights = np.ones(len(Y)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    weights = weights * (Y != UNKNOWN).any(axis=1)
    losses = np.where(unseen, np.log(FLOOR), np.maximum(log_probs, np.log(FLOOR)))
    return float(weights @ losses / weights.sum()) if weights.any() else np.nan


OF_DISTRIBUTIONS = {exact_match: _exact_match_of, log_prob: _log_prob_of}  # the same, from a distribution at hand


def best_index(scores, *, decimals=None) -> tuple[int, int]:
    """Indices of setting and C with the best mean over folds of scores (n_folds, n_settings, n_Cs).

    Ties go to the smallest C, then to the first setting; with decimals, means are rounded first. A mean that is NaN
    counts as the worst.
    """
    mean = scores.mean(axis=0) if decimals is None else np.round(scores.mean(axis=0), decimals)
    mean = np.where(np.isnan(mean), -np.inf, mean)
    C_index, setting_index = np.unravel_index(np.argmax(mean.T), mean.T.shape)
    return int(setting_index), int(C_index)


def _path_scores(estimator, rows, train, held_out, setting, Cs, scorers):
    """Scores (n_Cs, n_scorers) of one fold at one setting; rows are X, y, weights (or None) and the form of y."""
    X, y, weights, form = rows
    model = clone(estimator).set_params(**setting)
    if weights is not None:
        train, held_out = (np.asarray(part)[weights[part] > 0] for part in (train, held_out))
    if len(held_out) == 0:
        return np.full((len(Cs), len(scorers)), np.nan)
    X_train, X_held_out = _parts(model, X, train, held_out)
    y_train, y_held_out = _sklearn.safe_indexing(y, train), _sklearn.safe_indexing(y, held_out)
    weight, weighted = (None, {}) if weights is None else (weights[train], {"sample_weight": weights[held_out]})
    arguments = [weighted if _takes_weights(scorer) else {} for scorer in scorers]
    with warnings.catch_warnings():
        # A label may be constant within a fold, and a fit with an extreme C may not converge. Neither matters to the
        # user: the fit to all rows has its own warnings.
        warnings.filterwarnings("ignore", "The training rows don't determine the model", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        held_out_rows = _HeldOut(X_held_out, y_held_out)
        return [
            [held_out_rows.score(fitted, scorer, own) for scorer, own in zip(scorers, arguments, strict=True)]
            for fitted in _fits(model, X_train, y_train, Cs, weight, form)
        ]


class _HeldOut:
    """Held-out rows, and what scores are computed from; kernel values are the same for all C and computed once."""

    def __init__(self, X, y):
        self._X, self._y, self._compared = X, y, None

    def score(self, fitted, scorer, arguments):
        if scorer not in OF_DISTRIBUTIONS:
            return scorer(fitted, self._X, self._y, **arguments)
        if not isinstance(self._compared, list):  # a generator: blocks too large to keep are computed again
            self._compared = fitted._compared(self._X)
        # Held-out rows of a device are scored on the CPU: what is asked of them is written for NumPy.
        distribution = fitted._distribution_of(_device.to_numpy(fitted._scores_of(self._compared)))
        return OF_DISTRIBUTIONS[scorer](fitted, distribution, self._y, **arguments)


def _fits(model, X, y, Cs, weight, form):
    """Yields the model fitted at each C; an error of a fit says that it belongs to a fold."""
    try:
        yield from model._fit_path(X, y, Cs, weight, form)
    except ValueError as error:
        raise ValueError(f"A fold can't be fitted (rows are counted within its training part): {error}") from error


def _parts(model, X, train, held_out):
    """Training and held-out rows of X; of a precomputed kernel only the columns of the training rows."""
    if _device.stays(X):
        is_square = getattr(model, "kernel", None) == "precomputed"
        return (X[train][:, train], X[held_out][:, train]) if is_square else (X[train], X[held_out])
    if getattr(model, "kernel", None) != "precomputed":
        return _sklearn.safe_indexing(X, train), _sklearn.safe_indexing(X, held_out)
    X = X if sparse.issparse(X) else np.asarray(X)
    return X[train][:, train], X[held_out][:, train]


def _takes_weights(scorer):
    """Whether a scorer has an argument sample_weight, as scikit-learn's own scorers do."""
    parameters = signature(scorer).parameters
    return "sample_weight" in parameters or any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
