"""CCnet: a classifier chain whose links are logistic regressions with an elastic net."""

from numbers import Integral
from typing import Self

import numpy as np
from scipy.special import log_expit

from mlrh._sklearn import fit_context
from mlrh.baselines.or_constant import OrConstant
from mlrh.baselines.probabilistic_chain import EPSILON, ORDER, _Chain
from mlrh.estimators import MLRHClassifier, _held_out
from mlrh.estimators.cv import DECIMALS, SEARCH_TOL, best_index, log_prob, validation_scores

LINK_TOL = 1e-7  # three digits of each coefficient, as other programs for elastic nets give them


class CCnet(_Chain):
    """CCnet: a chain of logistic regressions with an elastic net, each with a penalty of its own by cross validation.

    The link of label j is logistic regression on the features and the labels before j in the chain. Its C and l1_ratio
    are those with the best mean log-likelihood of held-out rows; ties go to the strongest penalty. Features and earlier
    labels that don't help have a coefficient of exactly 0. (A logistic regression is MLRHClassifier with one label,
    whose solver for the elastic net is used.) The answer is the most probable set, as in ProbabilisticChain.
    With one class per row as y, the sets of one class each are the only ones possible, and their probabilities are
    scaled to sum to one. A label that all training rows have, or none, is always answered so.

    Parameters
    ----------
    Cs : sequence of floats, default=(0.01, 0.1, 1.0, 10.0, 100.0)
        Inverse strengths of the penalty to choose from, as in LogisticRegression.
    l1_ratios : sequence of floats, default=(0.1, 0.5, 0.9)
        Shares of L1 in the penalty to choose from, from 0 (only L2) to 1 (only L1).
    cv : int, splitter, iterable of (training rows, held-out rows) or None, default=None
        None is 5; a number means folds that keep the shares of labels and of label sets. For each label, folds whose
        training part shows only one of its values are left out.
    order : array-like of shape (n_labels,), "random" or None, default=None
        Numbers of the labels in the order of the chain; None: as they come.
    epsilon : float, default=0.0
        See ProbabilisticChain: 0 finds the most probable set always; from 0.5 on the answer is greedy.
    n_jobs : int, default=None
        Processes over folds, as in joblib.
    random_state : int, RandomState or None, default=None
        For order="random".

    Attributes
    ----------
    links_ : list of OrConstant around the fitted logistic regressions, in the order of the chain
        `estimator_.coef_` (1, n_features + place in the chain) is what was selected.
    C_, l1_ratio_ : arrays of shape (n_labels,)
        What was chosen, in the order of the labels; NaN for a constant label.
    order_ : array of shape (n_labels,)
    classes_ : array
        Names of the labels, or the classes of y. For two classes the second one is the label.
    n_features_in_, feature_names_in_ : of X

    References
    ----------
    P. Teisseyre, "CCnet: Joint multi-label classification and feature selection using classifier chains and elastic net
    regularization", Neurocomputing 235 (2017), 98-111.

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh.baselines import CCnet
    >>> X = np.random.RandomState(0).normal(size=(100, 4))
    >>> first = X[:, 0] > 0
    >>> Y = np.column_stack([first, first & (X[:, 1] > 0)]).astype(int)
    >>> clf = CCnet(Cs=[0.1, 1.0], cv=3).fit(X, Y)
    >>> clf.links_[1].estimator_.coef_[0, 4] > 1  # the first label speaks for the second
    np.True_
    >>> clf.predict([[2.0, 2.0, 0.0, 0.0], [2.0, -2.0, 0.0, 0.0], [-2.0, 2.0, 0.0, 0.0]])
    array([[1, 1],
           [1, 0],
           [0, 0]])
    """

    _parameter_constraints: dict = {
        "Cs": ["array-like"],
        "l1_ratios": ["array-like"],
        "cv": ["cv_object"],
        "order": ORDER,
        "epsilon": EPSILON,
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        Cs=(0.01, 0.1, 1.0, 10.0, 100.0),
        *,
        l1_ratios=(0.1, 0.5, 0.9),
        cv=None,
        order=None,
        epsilon=0.0,
        n_jobs=None,
        random_state=None,
    ):
        self.Cs = Cs
        self.l1_ratios = l1_ratios
        self.cv = cv
        self.order = order
        self.epsilon = epsilon
        self.n_jobs = n_jobs
        self.random_state = random_state

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit to X (n_samples, n_features), dense or sparse, and y in any of the forms of MLRHClassifier.

        sample_weight (n_samples,), if given, counts in every fit and in every score; a row of weight 0 is left out.
        """
        _checked("Cs", self.Cs, lambda C: C > 0, "positive numbers")
        _checked("l1_ratios", self.l1_ratios, lambda ratio: 0 <= ratio <= 1, "numbers from 0 to 1")
        return self._fit(X, y, MLRHClassifier(), sample_weight)

    def _link_fitter(self, task):
        folds, weights = _held_out.folds(self.cv, task), None if task.weights_name is None else task.weights
        Cs, l1_ratios = sorted(self.Cs), list(self.l1_ratios)
        self.C_, self.l1_ratio_ = np.full((2, task.Y.shape[1]), np.nan)

        def fit_link(features, label):
            y = task.Y[:, label]
            values = y[task.weights > 0]
            if values.min() == values.max():
                return OrConstant(MLRHClassifier()).fit(features, y, weights)
            scores = validation_scores(
                MLRHClassifier(tol=SEARCH_TOL, n_jobs=1),
                features,
                y,
                Cs=Cs,
                settings=[{"l1_ratio": ratio} for ratio in l1_ratios],
                splits=_folds_with_both(folds, y, task.weights, name=self.classes_.tolist()[label]),
                scorers=[log_prob],
                sample_weight=weights,
                n_jobs=self.n_jobs,
            )
            ratio, C = best_index(scores[0], decimals=DECIMALS)
            self.C_[label], self.l1_ratio_[label] = Cs[C], l1_ratios[ratio]
            link = OrConstant(MLRHClassifier(C=Cs[C], l1_ratio=l1_ratios[ratio], tol=LINK_TOL))
            return link.fit(features, y, weights)

        return fit_link

    def _log_proba_of(self, link, features):
        if link.estimator_ is None:
            return link.predict_log_proba(features)
        log_odds = link.estimator_.decision_function(features)
        return log_expit(np.column_stack([-log_odds, log_odds]))  # finite at any score


def _checked(name, values, is_valid, rule):
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or len(values) == 0 or not all(map(is_valid, values)):
        raise ValueError(f"{name} must be a sequence of {rule}, at least one; got {values.tolist()}.")


def _folds_with_both(folds, y, weights, *, name):
    """The folds whose training part shows the label present and absent."""
    shown = [np.unique(y[train[weights[train] > 0]]) for train, _ in folds]
    kept = [fold for fold, values in zip(folds, shown, strict=True) if len(values) == 2]
    if not kept:
        raise ValueError(
            f"Some fold must train on rows with and without each label; none does for label {name!r}. Give cv other "
            "folds, or leave the label out of y."
        )
    return kept
