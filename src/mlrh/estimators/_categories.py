"""Columns of X that hold categories: which they are, and their values as numbers.

The number of a value is its place among those that training showed. A value that training didn't show is missing (NaN).
"""

import numpy as np
from scipy import sparse
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from mlrh.estimators import _device, _features

KINDS = ("q", "c")  # XGBoost's names of a feature of numbers (quantities), and of one of categories
# How the dtype of a column of categories begins: pandas has category, polars Categorical and Enum.
DTYPES = ("category", "categorical", "enum")
NUMBERS = ("int", "uint", "float", "bool")


def validated(estimator, X, *, reset):
    """X as an array or CSR matrix of numbers and NaN; with reset, the estimator notes its columns and categories.

    The estimator has a parameter `feature_types`, and its categories are `_categories` (see `found`).
    """
    _device.refuse(X, type(estimator).__name__)
    _features.check(X)
    if reset:
        estimator._categories = found(X, estimator.feature_types)
    if hasattr(X, "columns"):
        _check_numbers(X, estimator._categories)
    options = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
    if not estimator._categories:
        return validate_data(estimator, X, reset=reset, accept_sparse="csr", **options)
    if estimator.feature_types is None and not hasattr(X, "columns"):
        raise ValueError(
            f"X must be a DataFrame, since that of training had columns of categories; got a {type(X).__name__}."
        )
    validate_data(estimator, X, reset=reset, skip_check_array=True)  # notes or compares number and names of columns
    return check_array(coded(X, estimator._categories), **options)


def found(X, feature_types) -> dict[int, tuple]:
    """The values of each column of categories in X, by the column's number.

    feature_types is None, for the columns of a DataFrame whose dtype says so, or a list with a kind per feature.
    """
    if feature_types is None:
        dtypes = X.dtypes if hasattr(X, "columns") else ()
        columns = [d for d, dtype in enumerate(dtypes) if str(dtype).lower().startswith(DTYPES)]
    else:
        _check_types(X, feature_types)
        columns = [d for d, kind in enumerate(feature_types) if kind == "c"]
    if columns and sparse.issparse(X):
        raise ValueError("A sparse X can't have features of categories; give X as an array or a DataFrame.")
    return {d: _distinct(_column(X, d)) for d in columns}


def coded(X, categories) -> np.ndarray:
    """X (n_samples, n_features) as floats, with the numbers of categories."""
    columns = []
    for d in range(np.shape(X)[1]):
        column = _column(X, d)
        if d in categories:
            place = {value: float(number) for number, value in enumerate(categories[d])}
            column = [place.get(value, np.nan) for value in column]
        columns.append(np.asarray(column, np.float64))
    return np.column_stack(columns)


def _column(X, d):
    if hasattr(X, "columns"):
        return X[X.columns[d]].to_list()
    return np.asarray(X)[:, d].tolist()


def _distinct(values):
    """The different values that are not missing, in an order that doesn't depend on that of the rows."""
    present = {value for value in values if value is not None and value == value}
    return tuple(sorted(present, key=lambda value: (type(value).__name__, value)))


def _check_types(X, feature_types):
    n_features = np.shape(X)[1] if np.ndim(X) == 2 or sparse.issparse(X) else None
    if len(feature_types) != n_features or any(kind not in KINDS for kind in feature_types):
        raise ValueError(
            f"feature_types must have 'q' (number) or 'c' (category) for each feature of X; got {feature_types!r} for "
            f"{n_features} features."
        )


def _check_numbers(X, categories):
    """Raise a ValueError that names the first column of a DataFrame that holds neither numbers nor categories."""
    for d, (name, dtype) in enumerate(zip(X.columns, X.dtypes, strict=True)):
        if d in categories or str(dtype).lower().startswith(NUMBERS):
            continue
        found = next((value for value in _column(X, d) if not _is_number(value)), None)
        if found is not None:
            raise ValueError(
                f"Column {name!r} of X must hold numbers or categories; found {found!r}. Make it numbers, or a column "
                "of categories by its dtype (category in pandas, Categorical in polars) or by feature_types."
            )


def _is_number(value):
    try:
        float(value)
    except (TypeError, ValueError):
        return value is None
    return True
