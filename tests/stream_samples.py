"""Rows shown to partial_fit in calls, and what it has reached, shared by the tests of streams."""

import numpy as np
from samples import make_multilabel
from scipy import sparse


def shown(model, X, y, *, classes, chunk=50, passes=1, weights=None):
    """The model after passes over the rows in calls of that many rows."""
    for _ in range(passes):
        for start in range(0, X.shape[0], chunk):
            rows = slice(start, start + chunk)
            weight = None if weights is None else weights[rows]
            model.partial_fit(X[rows], y[rows], classes=classes, sample_weight=weight)
    return model


def objective(model, X, y):
    """The penalised loss of the model, from the probabilities that it gives."""
    Y = model._targets.indicator(y)
    loss = -model.distribution(X).log_prob(Y).sum(dtype=np.float64)
    penalty = np.square(model.coef_, dtype=np.float64).sum() / (2 * model.C)
    return loss + penalty + 0.05 * np.square(model.size_bias_).sum()


def sparse_rows():
    X, Y = make_multilabel(400, 30)
    return sparse.csr_array(np.where(np.abs(X) > 0.8, X, 0.0)), Y
