"""C and other settings of the classifiers by cross validation, over a whole path of C at once.

What doesn't depend on C is done once per fold: for a kernel that is the factorisation of its matrix. Fits go from
strong to weak penalties, each from where those before point to.
"""

import warnings
from inspect import Parameter, signature

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing

from mlrh.knowledge import UNKNOWN
from mlrh.metrics import FLOOR


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
    settings : sequence of parameters to set beside C, as dictionaries
    sample_weight : array of shape (n_samples,), optional
        For the fits, and for the scorers that take an argument of that name. Rows of weight 0 are left out; where a
        fold holds out no others, its scores are NaN.
    n_jobs : processes over folds and settings
    """
    tasks = [(train, held_out, setting) for train, held_out in splits for setting in settings]
    paths = Parallel(n_jobs=min(effective_n_jobs(n_jobs), len(tasks)))(
        delayed(_path_scores)(estimator, (X, y, sample_weight), train, held_out, setting, Cs, scorers)
        for train, held_out, setting in tasks
    )
    scores = np.array(paths, dtype=np.float64).reshape(len(splits), len(settings), len(Cs), len(scorers))
    return np.moveaxis(scores, -1, 0)


def exact_match(model, X, y, sample_weight=None) -> float:
    """Share of rows whose predicted set is right as a whole; the scoring None."""
    return model.score(X, y, sample_weight)


def log_prob(model, X, y, sample_weight=None) -> float:
    """Mean log-probability of what is known of the rows of y, each counted as at least log 1e-6; "log_prob".

    Where y is complete, of the true set. A set with a label that training didn't show counts as log 1e-6, a row of
    which nothing is known not at all; NaN if there are no others.
    """
    Y, unseen = model._targets.partial_indicator(y, partly_known=True)
    log_probs = model.distribution(X).log_prob_of_known(np.where(Y == UNKNOWN, np.nan, Y))
    weights = np.ones(len(Y)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    weights = weights * (Y != UNKNOWN).any(axis=1)
    losses = np.where(unseen, np.log(FLOOR), np.maximum(log_probs, np.log(FLOOR)))
    return float(weights @ losses / weights.sum()) if weights.any() else np.nan


def best_index(scores, *, decimals=None) -> tuple[int, int]:
    """Indices of setting and C with the best mean over folds of scores (n_folds, n_settings, n_Cs).

    Among equals the smallest C and then the first setting; with decimals, means equal to so many are equal. A mean that
    isn't a number counts as the worst.
    """
    mean = scores.mean(axis=0) if decimals is None else np.round(scores.mean(axis=0), decimals)
    mean = np.where(np.isnan(mean), -np.inf, mean)
    C_index, setting_index = np.unravel_index(np.argmax(mean.T), mean.T.shape)
    return int(setting_index), int(C_index)


def _path_scores(estimator, rows, train, held_out, setting, Cs, scorers):
    """Scores (n_Cs, n_scorers) of one fold at one setting; rows are X, y and their weights or None."""
    X, y, weights = rows
    model = clone(estimator).set_params(**setting)
    if weights is not None:
        train, held_out = (np.asarray(part)[weights[part] > 0] for part in (train, held_out))
    if len(held_out) == 0:
        return np.full((len(Cs), len(scorers)), np.nan)
    X_train, X_held_out = _parts(model, X, train, held_out)
    if all(scorer in (exact_match, log_prob) for scorer in scorers):
        model._share_kernel()  # others might change rows in place, unnoticed
    y_train, y_held_out = _safe_indexing(y, train), _safe_indexing(y, held_out)
    weight, weighted = (None, {}) if weights is None else (weights[train], {"sample_weight": weights[held_out]})
    arguments = [weighted if _takes_weights(scorer) else {} for scorer in scorers]
    with warnings.catch_warnings():
        # A label may be constant within a fold, and an extreme C stop early; the final fit has its own warnings.
        warnings.filterwarnings("ignore", "The training rows don't determine the model", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        return [
            [scorer(fitted, X_held_out, y_held_out, **own) for scorer, own in zip(scorers, arguments, strict=True)]
            for fitted in _fits(model, X_train, y_train, Cs, weight)
        ]


def _fits(model, X, y, Cs, weight):
    """Yields the model fitted at each C; what goes wrong in a fit, not in a score, is said to be of a fold."""
    try:
        yield from model._fit_path(X, y, Cs, weight)
    except ValueError as error:
        raise ValueError(f"A fold can't be fitted (rows are counted within its training part): {error}") from error


def _parts(model, X, train, held_out):
    """Training and held-out rows; of a precomputed kernel the columns of the training rows."""
    if getattr(model, "kernel", None) != "precomputed":
        return _safe_indexing(X, train), _safe_indexing(X, held_out)
    X = X if sparse.issparse(X) else np.asarray(X)
    return X[train][:, train], X[held_out][:, train]


def _takes_weights(scorer):
    """Whether a function of (estimator, X, y) has an argument sample_weight; scikit-learn's own scorers do."""
    parameters = signature(scorer).parameters
    return "sample_weight" in parameters or any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
