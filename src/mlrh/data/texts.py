"""Numbers and nominal codes as the text that every written format shares. Knows nothing of formats."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from mlrh.data.containers import DataError, MultilabelData
from mlrh.data.sources import shown


def check_names(data: MultilabelData, where: Any) -> None:
    """Raise a DataError for what no table can hold: a name used twice, an infinite value, a code without a value."""
    seen: set[str] = set()
    for name in (*data.feature_names, *data.label_names):
        if name in seen:
            raise DataError(f"{where}: two columns are called {shown(name)}; rename one before writing.")
        seen.add(name)
    check_finite(data, where)
    for column in data.nominal:
        _check_codes(data, column, where)


def check_finite(data: MultilabelData, where: Any) -> None:
    """Raise a DataError where X holds an infinite value."""
    values = data.X.data if sparse.issparse(data.X) else data.X
    if np.isinf(values).any():
        raise DataError(f"{where}: X holds an infinite value, which no reader takes; replace it before writing.")


def number_texts(values: np.ndarray, missing: str) -> list[str]:
    """The shortest texts that give back the same numbers bit for bit."""
    return [missing if value != value else repr(value).removesuffix(".0") for value in values.tolist()]


def value_texts(
    values: np.ndarray, names: Sequence[str], words: Mapping[str, Sequence[str]], missing: str
) -> list[str]:
    """Texts of one row's values: numbers, or for the names in `words` the word of that index."""
    texts = number_texts(values, missing)
    if words:
        for place, name in enumerate(names):
            if name in words and texts[place] != missing:
                texts[place] = words[name][int(values[place])]
    return texts


def _check_codes(data, column, where):
    name, values = data.feature_names[column], data.X[:, [column]]
    codes = values.data if sparse.issparse(values) else values
    codes = codes[~np.isnan(codes)]
    n_values = len(data.categories[name])
    if ((codes < 0) | (codes >= n_values) | (codes != np.floor(codes))).any():
        raise DataError(f"{where}: feature {shown(name)} must be coded 0 to {n_values - 1}; X holds another code.")
