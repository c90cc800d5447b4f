"""Small files for the tests of readers, and what a data set holds in a form that can be compared."""

import pytest
from scipy import sparse

from mlrh.data import DataError, read


def save(folder, text, name):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def assert_refused(path, labels, message):
    """Reading the file is an error of one sentence that begins with its path."""
    with pytest.raises(DataError, match=message) as caught:
        read(path, labels)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def dense(X):
    return X.toarray() if sparse.issparse(X) else X


def words(data):
    """The columns of X as numbers, words and None."""
    columns = {}
    for column, name in enumerate(data.feature_names):
        own, values = data.categories.get(name), dense(data.X)[:, column].tolist()
        columns[name] = [None if v != v else v if own is None else own[int(v)] for v in values]
    return columns
