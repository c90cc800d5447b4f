"""ARFF files as text, in the layouts of MULAN and MEKA. Knows nothing of reading them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse

from mlrh.data.arff_header import quoted
from mlrh.data.containers import DataError, MultilabelData
from mlrh.data.labels import MEKA, xml_text
from mlrh.data.sources import parts_of
from mlrh.data.texts import check_names, value_texts


def arff_texts(data: MultilabelData, path: Path, layout: str) -> dict[Path, Iterator[str]]:
    """Paths and contents of the files that hold a data set as ARFF: for MULAN the XML with the labels too."""
    if layout not in ("mulan", "meka"):
        raise ValueError(f"layout must be 'mulan' or 'meka'; got {layout!r}.")
    check_names(data, path)
    name = data.name.replace("\0", "")
    if layout == "meka":
        if not data.label_names:
            raise DataError(f"{path}: layout 'meka' needs at least one label; use layout='mulan'.")
        return {path: _file(data, f"{name}: -C {len(data.label_names)}", labels_first=True)}
    xml = path.with_name(parts_of(path.name)[0] + ".xml")
    if xml == path:
        raise DataError(f"{path}: the labels' XML file has this name; choose another for the ARFF file.")
    relation = "data" if MEKA.search(name) else name
    return {xml: iter([xml_text(data.label_names, str(xml))]), path: _file(data, relation, labels_first=False)}


def _file(data, relation, *, labels_first):
    """The lines of an ARFF file."""
    yield f"@relation {quoted(relation or 'data')}\n\n"
    yield from _declarations(data, labels_first=labels_first)
    yield "\n@data\n"
    yield from _sparse_rows(data, labels_first) if sparse.issparse(data.X) else _dense_rows(data, labels_first)


def _declarations(data, *, labels_first):
    features = [f"@attribute {quoted(name)} {_type(data.categories.get(name))}\n" for name in data.feature_names]
    labels = [f"@attribute {quoted(name)} {{0,1}}\n" for name in data.label_names]
    return labels + features if labels_first else features + labels


def _type(values):
    return "numeric" if values is None else "{" + ",".join(map(quoted, values)) + "}"


def _dense_rows(data, labels_first):
    values = {name: list(map(quoted, values)) for name, values in data.categories.items()}
    for row, labels in zip(data.X, data.Y, strict=True):
        features = value_texts(row, data.feature_names, values, missing="?")
        marks = list(map(str, labels.tolist()))
        yield ",".join(marks + features if labels_first else features + marks) + "\n"


def _sparse_rows(data, labels_first):
    X = sparse.csr_array(data.X).copy()
    X.sum_duplicates()
    X.eliminate_zeros()
    values = {name: list(map(quoted, values)) for name, values in data.categories.items()}
    n_features, n_labels = X.shape[1], data.Y.shape[1]
    first_feature, first_label = (n_labels, 0) if labels_first else (0, n_features)
    for row in range(X.shape[0]):
        own = slice(X.indptr[row], X.indptr[row + 1])
        columns = X.indices[own].tolist()
        names = [data.feature_names[column] for column in columns]
        texts = value_texts(X.data[own], names, values, missing="?")
        features = [f"{first_feature + column} {text}" for column, text in zip(columns, texts, strict=True)]
        marks = [f"{first_label + label} 1" for label in np.flatnonzero(data.Y[row]).tolist()]
        yield "{" + ",".join(marks + features if labels_first else features + marks) + "}\n"
