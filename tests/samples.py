"""Multilabel rows drawn from the model itself, and the forms that y can take, shared by the tests of classifiers."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.spaces import CardinalitySpace

BOTH = pytest.mark.parametrize("classifier", [MLRHClassifier, KernelMLRHClassifier])


TIGHT = {"tol": 1e-16, "max_iter": 10_000}


def make_multilabel(n_samples=200, n_features=6, n_labels=4, *, min_labels=1, max_labels=3, seed=0):
    """Rows drawn from the model itself."""
    rng = np.random.RandomState(seed)
    X = rng.normal(size=(n_samples, n_features))
    scores = X @ rng.normal(size=(n_features, n_labels))
    return X, CardinalitySpace(n_labels, min_labels, max_labels).sample(scores, 1, rng)[:, 0].astype(np.int64)


FORMS = {
    "array": lambda Y: Y,
    "list": lambda Y: Y.tolist(),
    "sparse": sparse.csr_matrix,
    "pandas": lambda Y: pd.DataFrame(Y, columns=list("abcd")),
    "polars": lambda Y: pl.DataFrame(Y, schema=list("abcd"), orient="row"),
    "sets": lambda Y: [{"abcd"[k] for k in np.flatnonzero(row)} for row in Y],
}


def assert_in_form(answer, sets, form):
    """The answer is these rows of 0 and 1 in that form of y; a list of rows is answered with an array."""
    wanted = FORMS[form](sets)
    assert type(answer) is (np.ndarray if form == "list" else type(wanted))
    assert (answer != wanted).nnz == 0 if form == "sparse" else np.array_equal(answer, wanted)


def one_sentence(error):
    text = str(error.value)
    return "\n" not in text and text.endswith(".") and ". " not in text


def marginals_of(fitted, X):
    """Probabilities (n_samples, n_labels), which may come as a sparse matrix or as a list of one array per label."""
    answer = fitted.predict_proba(X)
    if not isinstance(answer, list):
        return answer.toarray() if sparse.issparse(answer) else answer
    return np.column_stack([part @ (np.asarray(own) == 1) for part, own in zip(answer, fitted.classes_, strict=True)])
