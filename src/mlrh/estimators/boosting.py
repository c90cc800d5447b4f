"""MLRHBoostingClassifier: scores that are sums of boosted trees (XGBoost).

Every round adds one tree per label. The trees are fitted to the gradient of the exact log-likelihood of the label set,
which in the scores is marginals - Y, with the variances p (1 - p) as curvatures. The biases of the label space move
along by a step of the same learning rate. xgboost is an extra: it is imported when a model is fitted or asked.
"""

import json
from dataclasses import dataclass
from functools import partial
from math import ceil
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from mlrh import _sklearn
from mlrh._indicators import UNKNOWN
from mlrh._parallel import effective_threads, map_blocks
from mlrh._sklearn import Interval
from mlrh.estimators import _categories, _whole_fit
from mlrh.estimators._base import NOTED_OF_X, WEIGHTS, JointClassifier
from mlrh.fitting.design import Design
from mlrh.fitting.objective import Objective
from mlrh.fitting.rows import RowsInMemory
from mlrh.fitting.solvers import BY_NAME
from mlrh.metrics import FLOOR
from mlrh.model_selection import MultilabelStratifiedShuffleSplit

LEAST_CURVATURE = 1e-16  # of a row in a tree, as in XGBoost's own objectives: a leaf divides by their sum
START_TOL, START_MAX_ITER = 1e-10, 200  # of the fit without features, which is as good as exact and takes no time
LARGEST_FEATURE = float(np.finfo(np.float32).max)  # XGBoost keeps features in float32
# Of X, for each thread of XGBoost that is started unasked. Its threads wait for each other by spinning, after every
# level of every tree: with less work in between, two took 1.3 to 2.8 times as long as one, and on busy cores 13 to 17
# times (python -m benchmarks.boosting).
ENTRIES_PER_THREAD = 2_500_000
OF_PREDICTIONS = {"nthread": 1}  # rows are shared out among our own threads, which don't spin
ENTRIES_PER_BLOCK = 1_000_000  # of X, in a prediction: some milliseconds of work
OF_BOOSTER = (  # parameters that are XGBoost's own
    *("learning_rate", "max_depth", "min_child_weight", "subsample", "colsample_bynode"),
    *("reg_lambda", "max_bin"),
)


class MLRHBoostingClassifier(JointClassifier):
    """Gradient boosted trees under one exact joint model of the whole label set.

    P(y | x) is proportional to exp(sum_k y_k F_k(x) + b(y)) over a label space, with F_k a sum of trees. y may have any
    of the forms that MLRHClassifier takes, NaN for unknown labels included. Features needn't be scaled. They may be
    missing (NaN) or categories, and are compared in float32. In a sparse X, an entry that is not stored is missing, not
    0.

    Needs XGBoost: pip install "xgboost>=2.1". An installed xgboost-cpu serves as well.

    Parameters
    ----------
    label_space, min_labels, max_labels, size_bias, decision, answer_sizes
        As in MLRHClassifier, but label_space="open" is the default.
    set_bias_strength : float or "auto", default="auto"
        As in MLRHClassifier, but "auto" is 1: to choose it on held-out rows would take several fits.
    n_estimators : int, default=200
        Number of rounds, each with one tree per label.
    learning_rate : float, default=0.05
        Share of each tree, and of each step of the biases, that is added.
    max_depth : int, default=6
        Of a tree.
    min_child_weight : float, default=0.01
        Least sum of the curvatures p (1 - p) in a leaf. It must be small where labels are rare: then p, and so the sum,
        is.
    subsample : float, default=0.7
        Share of rows that the trees of a round are fitted to.
    colsample_bynode : float, default=0.3
        Share of features that a split chooses from.
    reg_lambda : float, default=5.0
        L2 penalty on the values of leaves. XGBoost's default of 1 is too weak for leaves as small as min_child_weight
        allows: on six public sets the log-loss of held-out sets is lower with 5 on five and level on one
        (docs/how-to-choose.md). For labels that only a few rows have, lower it to 1.
    max_bin : int, default=64
        Number of bins that the values of a feature are sorted into. XGBoost's default of 256 takes two to three times
        as long on some thousand rows, and is no better there.
    early_stopping_rounds : int or None, default=None
        Stop when the log-loss of held-out rows has not improved for so many rounds, and keep the best round's trees.
    validation_fraction : float, default=0.1
        Share of rows held out for early stopping, with the same frequencies of labels and label sets. Trees and biases
        are not fitted to them.
    feature_types : list of {"q", "c"} or None, default=None
        For each feature "q" (a number) or "c" (a category: any value that is equal or not). None: the columns of a
        pandas or polars DataFrame with a dtype for categories are "c", all others "q". A category that training didn't
        show counts as missing.
    random_state : int, RandomState instance or None, default=None
        For the rows and features drawn, and for the rows held out.
    n_jobs : int, default=None
        Threads. None: all cores, but for XGBoost only as many as pay for so many rows and features, mostly one.
    verbose : int, default=0
        1 prints a line per round.

    Attributes
    ----------
    booster_ : xgboost.Booster
        Tree i belongs to label i % n_labels.
    intercept_ : array of shape (n_labels,)
        Scores before the first tree.
    classes_ : array
    label_space_ : mlrh.spaces.LabelSpace
        With its learned biases.
    n_estimators_ : int
        Number of rounds kept.
    history_ : array
        Mean log-loss of the training rows before every round.
    validation_history_ : array
        That of the held-out rows after every round, with early stopping only. A probability below 1e-6 counts as 1e-6.
    support_ : array
        Indices of the training rows of positive weight.
    n_features_in_, feature_names_in_

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh import MLRHBoostingClassifier
    >>> X = np.arange(40.0)[:, None]
    >>> Y = np.column_stack([X[:, 0] < 20, X[:, 0] % 20 >= 10]).astype(int)
    >>> MLRHBoostingClassifier(random_state=0).fit(X, Y).predict([[5], [15], [35]])
    array([[1, 0],
           [1, 1],
           [0, 1]])
    """

    booster_: Any
    intercept_: np.ndarray

    _parameter_constraints: dict = {
        **JointClassifier._parameter_constraints,
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, 1, closed="right")],
        "max_depth": [Interval(Integral, 1, None, closed="left")],
        "min_child_weight": [Interval(Real, 0, None, closed="left")],
        "subsample": [Interval(Real, 0, 1, closed="right")],
        "colsample_bynode": [Interval(Real, 0, 1, closed="right")],
        "reg_lambda": [Interval(Real, 0, None, closed="left")],
        "max_bin": [Interval(Integral, 2, None, closed="left")],
        "early_stopping_rounds": [Interval(Integral, 1, None, closed="left"), None],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "feature_types": [list, tuple, None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        label_space="open",
        min_labels="auto",
        max_labels="auto",
        size_bias=False,
        set_bias_strength="auto",
        n_estimators=200,
        learning_rate=0.05,
        max_depth=6,
        min_child_weight=0.01,
        subsample=0.7,
        colsample_bynode=0.3,
        reg_lambda=5.0,
        max_bin=64,
        early_stopping_rounds=None,
        validation_fraction=0.1,
        feature_types=None,
        decision="exact_match",
        answer_sizes=None,
        random_state=None,
        n_jobs=None,
        verbose=0,
    ):
        self.label_space = label_space
        self.min_labels = min_labels
        self.max_labels = max_labels
        self.size_bias = size_bias
        self.set_bias_strength = set_bias_strength
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.min_child_weight = min_child_weight
        self.subsample = subsample
        self.colsample_bynode = colsample_bynode
        self.reg_lambda = reg_lambda
        self.max_bin = max_bin
        self.early_stopping_rounds = early_stopping_rounds
        self.validation_fraction = validation_fraction
        self.feature_types = feature_types
        self.decision = decision
        self.answer_sizes = answer_sizes
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    @_sklearn.fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit to X (n_samples, n_features) and y in any of the forms the class documents.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_samples, n_features)
        y : indicator matrix, list of label sets, or classes of shape (n_samples,)
            An indicator matrix may hold NaN (or be masked) where a label is unknown.
        sample_weight : array of shape (n_samples,), optional
            A row of weight 2 counts as the row twice, one of weight 0 as absent. Positive weights lie from 1e-15 to
            1e15.

        Returns
        -------
        self
        """
        problem = self._pose(X, y, sample_weight)
        boosting, patience = self._begin(problem), self.early_stopping_rounds
        for number in range(self.n_estimators):
            boosting.add_round()
            self._report(boosting)
            if patience is not None and number - int(np.argmin(boosting.losses_held_out)) >= patience:
                break
        best = boosting.n_rounds if patience is None else int(np.argmin(boosting.losses_held_out)) + 1
        self._keep(problem, boosting, best)
        return self

    def _fit_path(self, X, y, rounds, sample_weight=None, form=None):
        """Yields a fitted copy of this estimator for each number of rounds in turn, an ascending sequence.

        The form is that of all rows, of which y may be a part. Nothing is held out.
        """
        problem = self._pose(X, y, sample_weight, form)
        boosting = clone(self).set_params(early_stopping_rounds=None)._begin(problem)
        for n_rounds in rounds:
            while boosting.n_rounds < n_rounds:
                boosting.add_round()
            fitted = clone(self).set_params(n_estimators=n_rounds)
            fitted._keep(problem, boosting, n_rounds)
            yield fitted

    def _begin(self, problem):
        """The _Boosting of a problem before its first round."""
        xgboost = _xgboost()
        random = check_random_state(self.random_state)
        training, held_out = self._parts(problem, random)
        n_threads = self._n_threads(problem.X)
        matrix = partial(xgboost.QuantileDMatrix, max_bin=self.max_bin, **self._reading(problem.noted, n_threads))
        trained = matrix(problem.X[training], weight=problem.weights[training])
        watched = None
        if held_out is not None:
            rows = matrix(problem.X[held_out], ref=trained)
            watched = _Watched(rows, problem.Y[held_out], problem.weights[held_out])
        options = {
            **{name: getattr(self, name) for name in OF_BOOSTER},
            "tree_method": "hist",
            "multi_strategy": "one_output_per_tree",
            "num_target": problem.space.n_labels,
            "base_score": 0.0,
            "seed": int(random.randint(2**31 - 1)),
            "nthread": n_threads,
        }
        booster = xgboost.Booster(options, [trained] if watched is None else [trained, watched.rows])
        course = _Course(problem.space, problem.Y[training], problem.weights[training], self.learning_rate)
        return _Boosting(booster, trained, course, watched)

    def _keep(self, problem, boosting, n_rounds):
        """Set the fitted attributes, all in one step."""
        space = boosting.course.space_after(n_rounds)
        booster = boosting.booster[:n_rounds]  # a copy, without the training rows that the other one holds
        booster.set_param(OF_PREDICTIONS)
        fitted = {
            **problem.noted,
            **space.fitted_attributes(),
            "booster_": booster,
            "intercept_": boosting.course.intercept,
            "classes_": problem.form.classes,
            "label_space_": space,
            "n_estimators_": n_rounds,
            "history_": np.array(boosting.course.losses),
            "support_": problem.support,
            "_targets": problem.form,
        }
        if boosting.losses_held_out:
            fitted["validation_history_"] = np.array(boosting.losses_held_out)
        # Attributes that this fit may not have must not be left over from the last one.
        of_space = self.label_space_.fitted_attributes() if hasattr(self, "label_space_") else {}
        _whole_fit.keep(self, fitted, without={*NOTED_OF_X, *of_space, "validation_history_"})

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each feature in the gain of all splits, (n_features,)."""
        gains = self.importances_by_label().sum(axis=0)
        return gains / gains.sum() if gains.any() else gains

    def importances_by_label(self) -> np.ndarray:
        """Gain of the splits by each feature in the trees of each label, (n_labels, n_features)."""
        check_is_fitted(self)
        n_labels = len(self.intercept_)
        gains = np.zeros((n_labels, self.n_features_in_))
        for number, tree in enumerate(self.booster_.get_dump(dump_format="json", with_stats=True)):
            _add_gains(json.loads(tree), gains[number % n_labels])
        return gains

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def _compared(self, X):
        """Blocks of rows of X as XGBoost reads them, a list."""
        X = self._validate_X(X, reset=False)
        matrix = partial(_xgboost().DMatrix, **self._reading(vars(self), OF_PREDICTIONS["nthread"]))
        rows_per_block = max(1, ENTRIES_PER_BLOCK * X.shape[0] // max(1, X.size))  # of sparse X, what is stored counts
        return map_blocks(lambda rows: matrix(X[rows]), X.shape[0], rows_per_block=rows_per_block, n_jobs=self.n_jobs)

    def _scores_of(self, compared):
        def work(blocks):
            return [self.booster_.predict(block, output_margin=True) for block in compared[blocks]]

        parts = map_blocks(work, len(compared), rows_per_block=1, n_jobs=self.n_jobs)
        return self.intercept_ + _margins(np.concatenate([part for (part,) in parts]), len(self.intercept_))

    def _validate_X(self, X, *, reset):
        X = _categories.validated(self, X, reset=reset)
        _check_range(X)
        return X

    def _rows(self, X, support):
        return X[support]

    def _check_weights(self, X, weights):
        positive, (low, high) = weights[weights > 0], WEIGHTS[np.dtype(np.float32)]
        if len(positive) and not (positive.min() >= low and positive.max() <= high):
            raise ValueError(
                f"A sample_weight must be 0 or lie from {low:g} to {high:g}, since XGBoost computes in float32; got "
                f"positive weights from {positive.min():g} to {positive.max():g}. Scale them."
            )

    def _n_threads(self, X):
        """Threads of XGBoost for the rows of X."""
        return threads_that_pay(X, None) if self.n_jobs is None else effective_threads(self.n_jobs)

    @staticmethod
    def _reading(noted, n_threads):
        """Options for reading rows: which features are categories."""
        kinds = ["c" if d in noted["_categories"] else "q" for d in range(noted["n_features_in_"])]
        return {"feature_types": kinds, "enable_categorical": True, "nthread": n_threads}

    def _parts(self, problem, random):
        """Numbers of the rows to fit to, and of the rows held out for early stopping or None."""
        every = np.arange(len(problem.Y))
        if self.early_stopping_rounds is None:
            return every, None
        n_held_out = ceil(self.validation_fraction * len(every))
        if n_held_out == len(every):
            raise ValueError(
                f"early_stopping_rounds holds out validation_fraction={self.validation_fraction:g} of the rows, which "
                f"leaves none of {len(every)} to train with. Give more rows, or early_stopping_rounds=None."
            )
        splitter = MultilabelStratifiedShuffleSplit(1, test_size=n_held_out, random_state=random)
        Y = np.where(problem.Y == UNKNOWN, 0, problem.Y)
        training, held_out = next(splitter.split(Y, Y))
        return np.sort(training), np.sort(held_out)

    def _report(self, boosting):
        if self.verbose:
            losses = boosting.losses_held_out
            held_out = f", held out {losses[-1]:.6g}" if losses else ""
            loss = boosting.course.losses[-1]
            print(f"[{type(self).__name__}] round {boosting.n_rounds}: log-loss before {loss:.6g}{held_out}")


@dataclass(frozen=True, eq=False)
class _Watched:
    """Rows held out for early stopping, as XGBoost reads them, with their label sets and weights."""

    rows: Any
    Y: np.ndarray
    weights: np.ndarray


class _Boosting:
    """Boosting as it goes on: the trees so far, the course of the label space, the losses of held-out rows."""

    def __init__(self, booster, trained, course, watched):
        self.booster, self._trained, self.course, self._watched = booster, trained, course, watched
        self.n_rounds, self.losses_held_out = 0, []

    def add_round(self):
        """Add one tree per label, and move the biases."""
        self.booster.update(self._trained, self.n_rounds, fobj=self.course.gradient)
        self.n_rounds += 1
        if self._watched is not None:
            margins = self.booster.predict(self._watched.rows, output_margin=True)
            loss = _log_loss(self.course.distribution(margins), self._watched.Y, self._watched.weights)
            self.losses_held_out.append(loss)


@dataclass(frozen=True, eq=False)
class _Identity:
    """A design whose coefficients are the scores themselves, so that `RowsInMemory` gives gradients in scores."""

    weights: np.ndarray
    dtype = np.dtype(np.float64)

    def scores(self, coef, intercept):
        return coef

    def pull_back(self, residuals):
        return residuals.copy(), residuals.sum(axis=0)  # a copy, since the rows go on to change the residuals


class _Course:
    """The label space and its biases as boosting goes on: gradients for trees, and a step of the biases per round."""

    def __init__(self, space, Y, weights, learning_rate):
        self.intercept, self._space = _without_features(space, Y, weights)
        self._rate, self._total = learning_rate, weights.sum()
        self._rows = RowsInMemory(_Identity(weights), self._space, Y)
        self._biases, self.losses = [self._space.bias], []

    def gradient(self, margins, _):
        """Gradient and curvature of the loss in the scores, (n_samples, n_labels) each; then the biases move."""
        scores = self._scores(margins)
        sums, (curvatures, _, bias_mean) = self._rows.with_curvatures(
            self._space, scores, np.zeros(self._space.n_labels)
        )
        loss, gradient, _, bias_gradient = sums
        self.losses.append(loss / self._total)
        self._biases.append(self._next_bias(bias_gradient, bias_mean))
        self._space = self.space_after(len(self.losses))
        return gradient, np.maximum(curvatures, LEAST_CURVATURE)

    def distribution(self, margins):
        """The distribution of rows with these margins, the sums of trees, at the present biases."""
        return self._space.distribution(self._scores(margins))

    def space_after(self, n_rounds):
        """The label space with its biases after so many rounds."""
        return self._space.with_bias(self._biases[n_rounds]) if self._space.n_biases else self._space

    def _scores(self, margins):
        return self.intercept + _margins(margins, self._space.n_labels)

    def _next_bias(self, gradient, mean):
        """A step against the gradient, by the means of the indicators, which bound their variances."""
        space = self._space
        if not space.learns_bias or not space.n_biases:
            return space.bias
        return space.bias - self._rate * (gradient + space.bias_ridge * space.bias) / (mean + space.bias_ridge)


def _without_features(space, Y, weights):
    """Intercepts (n_labels,) and the space with its biases, fitted to the label sets alone."""
    # Without features, rows with the same set are alike: one with their weight stands for all.
    sets, number = np.unique(Y, axis=0, return_inverse=True)
    totals = np.bincount(number.ravel(), weights, len(sets))
    objective = Objective(Design(np.zeros((len(sets), 1)), totals, fit_intercept=True), space, sets, alpha=1.0)
    solution = BY_NAME["lbfgs"](objective, objective.start(), tol=START_TOL, max_iter=START_MAX_ITER)
    parameters = objective.canonical(solution.parameters)
    return objective.split(parameters)[1].copy(), objective.space_at(parameters)


def _log_loss(distribution, Y, weights):
    """Mean of -log P(what is known of a row), each probability at least FLOOR."""
    if (Y != UNKNOWN).all():
        log_probs = distribution.log_prob(Y)
    else:
        log_probs = distribution.log_prob_of_known(np.where(Y == UNKNOWN, np.nan, Y))
    return float(np.average(-np.maximum(log_probs, np.log(FLOOR)), weights=weights))


def _check_range(X):
    values = X.data if sparse.issparse(X) else X
    with np.errstate(invalid="ignore"):
        largest = float(np.abs(values).max(initial=0.0, where=~np.isnan(values)))
    if largest > LARGEST_FEATURE:
        raise ValueError(
            f"Features must be at most {LARGEST_FEATURE:g} in magnitude, since XGBoost keeps them in float32; got "
            f"{largest:g}. Scale them, or take their logarithms."
        )


def threads_that_pay(X, n_jobs):
    """At most as many threads of XGBoost as n_jobs says, and one for every ENTRIES_PER_THREAD of X."""
    return min(effective_threads(n_jobs), max(1, X.size // ENTRIES_PER_THREAD))


def _xgboost():
    try:
        import xgboost
    except ImportError:
        raise ImportError('MLRHBoostingClassifier needs XGBoost: pip install "xgboost>=2.1".') from None
    return xgboost


def _margins(margins, n_labels):
    """XGBoost's float32 answer, (n_samples,) where there is one label, as a float64 matrix."""
    return np.asarray(margins, np.float64).reshape(-1, n_labels)


def _add_gains(node, gains):
    """Add the gain of every split in a tree to that of its feature, named f0, f1, ... in a dump without names."""
    if "children" in node:
        gains[int(node["split"][1:])] += node["gain"]
        for child in node["children"]:
            _add_gains(child, gains)
