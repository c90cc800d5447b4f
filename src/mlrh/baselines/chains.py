"""The probability of a label set under separate classifiers, and under a chain of them."""

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted, validate_data

from mlrh._indicators import as_indicator
from mlrh._sklearn import num_samples
from mlrh.baselines._base import _log_proba
from mlrh.estimators import _device, _targets


def independent_set_log_proba(marginals, Y) -> np.ndarray:
    """Logarithm of the probability of each row's label set if the labels were independent, (n_samples,).

    It is sum_k log(p_k) over the labels of the set plus sum_k log(1 - p_k) over the others; -inf where a label with
    marginal 0 is in the set or one with marginal 1 is not.

    Parameters
    ----------
    marginals : array of shape (n_samples, n_labels)
        P(y_k = 1 | x), as predict_proba of a OneVsRestClassifier gives them.
    Y : indicator matrix of shape (n_samples, n_labels)

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh.baselines import independent_set_log_proba
    >>> np.exp(independent_set_log_proba([[0.5, 0.2]], [[1, 0]])).round(3)
    array([0.4])
    """
    marginals, Y = np.asarray(marginals, np.float64), as_indicator(Y, "Y")
    if marginals.shape != Y.shape:
        raise ValueError(f"marginals and Y must have the same shape; got {marginals.shape} and {Y.shape}.")
    bad = ~((marginals >= 0) & (marginals <= 1))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        found = marginals[row, column]
        raise ValueError(f"marginals must hold probabilities; got {found} in row {row}, column {column}.")
    with np.errstate(divide="ignore"):
        return np.where(Y, np.log(marginals), np.log1p(-marginals)).sum(axis=1)


def chain_set_log_proba(chain, X, Y) -> np.ndarray:
    """Logarithm of the probability of each row's label set under a fitted ClassifierChain, (n_samples,).

    It is sum_j log P(y_j | x, y_1, ..., y_{j-1}) in the order of the chain, each link given the set's own earlier
    labels as in training. (The chain's predict_proba gives each link the labels predicted before it instead.)

    Parameters
    ----------
    chain : sklearn.multioutput.ClassifierChain
        Fitted on an indicator matrix, with an estimator that has predict_proba.
    X : array or sparse matrix of shape (n_samples, n_features)
    Y : indicator matrix of shape (n_samples, n_labels)

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multioutput import ClassifierChain
    >>> from mlrh.baselines import chain_set_log_proba
    >>> X, Y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[1, 0], [0, 1], [1, 1], [0, 0]])
    >>> chain = ClassifierChain(LogisticRegression()).fit(X, Y)
    >>> sets = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> print(round(np.exp(chain_set_log_proba(chain, X[[2, 2, 2, 2]], sets)).sum(), 6))
    1.0
    """
    check_is_fitted(chain)
    Y = as_indicator(Y, "Y")
    if Y.shape[1] != len(chain.estimators_):
        raise ValueError(f"Y must have {len(chain.estimators_)} columns, one per link; got {Y.shape[1]}.")
    _check_chain(chain)
    _device.refuse(X, "chain_set_log_proba")
    X = validate_data(chain, X, accept_sparse="csr", reset=False)
    _targets.check_same_length(X, Y)
    earlier = Y[:, chain.order_]
    log_proba = np.zeros(len(Y))
    for place, (link, label) in enumerate(zip(chain.estimators_, chain.order_, strict=True)):
        both = _log_proba_of_both(link, with_labels(X, earlier[:, :place]))
        log_proba += both[np.arange(len(Y)), Y[:, label]]
    return log_proba


def with_labels(X, labels):
    """What a link sees: the features and the labels before it."""
    return sparse.hstack([X, labels], format="csr") if sparse.issparse(X) else np.hstack([X, labels])


def _log_proba_of_both(estimator, X):
    """log P(y = 0) and log P(y = 1) of each row, (n_samples, 2); -inf for a class that the estimator doesn't know."""
    both = np.full((num_samples(X), 2), -np.inf)
    both[:, np.asarray(estimator.classes_, np.int64)] = _log_proba(estimator, X)
    return both


def _check_chain(chain):
    if any(not np.isin(link.classes_, (0, 1)).all() for link in chain.estimators_):
        raise ValueError("The chain must be fitted on an indicator matrix; a link has other classes than 0 and 1.")
    if not all(hasattr(link, "predict_proba") for link in chain.estimators_):
        raise ValueError(f"The chain's estimator must have predict_proba; {chain.estimators_[0]} has none.")
    if chain.cv is not None and chain.chain_method_ != "predict":
        raise ValueError(
            "With cv, the links must be trained on labels for a set to have a probability; use chain_method='predict' "
            f"in place of {chain.chain_method_!r}."
        )
