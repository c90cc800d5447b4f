"""Data files of every known format, in and out: the table of formats, and how a file's own is found out."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy import sparse

from mlrh.data._arff import arff_texts, read_arff, read_xml
from mlrh.data._columns import LabelChoice, check_separator, refuse_repeats
from mlrh.data._jsonl import jsonl_text, read_jsonl
from mlrh.data._kinds import checked_kinds, refuse_kinds
from mlrh.data._libsvm import libsvm_text, read_libsvm
from mlrh.data._sources import Source, load, parts_of, shown, write_texts
from mlrh.data._tables import csv_text, read_csv, read_parquet, write_parquet
from mlrh.data.containers import DataError, MultilabelData, Schema, listed


@dataclass(frozen=True)
class Format:
    """How files of one kind are read, how they are written where that is offered, and what their names end with.

    read : function of (source, choice of labels or None, schema or None) that returns a MultilabelData; of tables also
        of kinds and keep_all
    write : function of (data, path, layout), or None
    """

    read: Callable[..., MultilabelData]
    suffixes: tuple[str, ...]
    write: Callable[..., None] | None = None
    write_suffixes: tuple[str, ...] = ()


def _write_arff(data, path, layout):
    write_texts(arff_texts(data, path, layout))


def _write_libsvm(data, path, layout):
    write_texts({path: libsvm_text(data, path)})


FORMATS = {
    "arff": Format(read_arff, (".arff",), _write_arff, (".arff",)),
    "libsvm": Format(read_libsvm, (".libsvm", ".svm", ".svmlight"), _write_libsvm, (".libsvm", ".svm", ".txt")),
    "csv": Format(
        read_csv, (".csv", ".tsv"), lambda data, path, _: write_texts({path: csv_text(data, path)}), (".csv",)
    ),
    "jsonl": Format(
        read_jsonl,
        (".jsonl", ".ndjson", ".json"),
        lambda data, path, _: write_texts({path: jsonl_text(data, path)}),
        (".jsonl", ".ndjson"),
    ),
    "parquet": Format(
        read_parquet, (".parquet", ".pq"), lambda data, path, _: write_parquet(data, path), (".parquet",)
    ),
}
TABLES = ("csv", "jsonl", "parquet")
PARQUET_MAGIC = b"PAR1"
JSON_START = re.compile(rb'(?:\xef\xbb\xbf)?\s*+\{\s*+(?:"|\})')
ARFF_START = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s++|%[^\r\n]*+)*+@(?:relation|attribute|data)\b", re.IGNORECASE)
COUNTS_START = re.compile(rb"(?:\xef\xbb\xbf)?([0-9]++[ \t][0-9]++[ \t][0-9]++)[ \t\r]*+\n[0-9,]*+[ \t]*+[0-9]++:")
LIBSVM_START = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s++|#[^\r\n]*+)*+(?:[-+0-9.,]++[ \t]++)?+[0-9]++:[-+.0-9nNiI]")


def read(
    source: str | PathLike | IO[bytes],
    labels: str | PathLike | Sequence[str] | None = None,
    *,
    format: str | None = None,
    n_features: int | None = None,
    name: str | None = None,
    schema: Schema | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    unknown: str | None = None,
    keep_all: bool = False,
    find_ids: bool = False,
) -> MultilabelData:
    """The multilabel data set of a file: ARFF (MULAN or MEKA, dense or sparse), LIBSVM, CSV, JSON lines or Parquet.

    Parameters
    ----------
    source : path or binary file object
        May be compressed with gzip, whatever its suffix. The file is read into memory as a whole; one that would take
        more than a quarter of the available memory, or much more than its size makes likely, is a DataError that says
        how to allow it (the environment variable MLRH_MAX_BYTES).
    labels : None, path of a MULAN XML file, or sequence of names, default=None
        Which columns are labels. A sequence also gives their order; an XML file only selects, and the order is the data
        file's. An empty sequence makes every column a feature, as for new rows to predict. None: for ARFF the first n
        attributes if the relation name has MEKA's option ``-C n`` (the last if n is negative; ignored where Weka's
        record of filters shows that columns were moved since), else the XML file of the same stem in the same folder,
        where the stem may lack final -train, -test and -sparse; for LIBSVM the label ids that occur; for tables (CSV,
        JSON lines, Parquet) an error. In a table, one name may be that of a column of label sets: see `separator`.
    format : {"arff", "libsvm", "csv", "jsonl", "parquet"} or None, default=None
        None finds out by the content and, where that leaves a doubt, the suffix.
    n_features : int or None, default=None
        The number of columns of a LIBSVM file; other formats must have as many features if it is given.
    name : str or None, default=None
        What to call the set; None is the file's stem.
    schema : Schema or None, default=None
        That of a model for which the rows are: X then has its features, in its order and coding, and no column is
        dropped as an identifier. What else the file holds is ignored, whatever its type. A numeric feature must be
        numbers; nominal values that the schema doesn't know are NaN and told in one warning. With labels=None the
        labels are the schema's; in a LIBSVM file, where they may be absent, and in a column of label sets, others that
        occur come after them.
    columns : mapping of str to {"number", "nominal", "text", "date", "id", "ignored"}, optional
        What columns of a table are; of the others it is found out, and told in a warning where it is text, dates or an
        identifier. Columns of the kind "id" are no features, and are in `kept` as the file has them; "ignored" ones are
        not looked at, whatever their type. Columns of ARFF and LIBSVM files can only be ignored.
    separator : str or None, default=None
        What separates the labels in a column of label sets, such as ";". None: `;`, `|` or `,`, where one of them
        alone occurs and cells are not 0 and 1; told in a warning. A list needs none, also as text (``['a', 'b']``).
    unknown : str or None, default=None
        Cells of labels with this text ("" is an empty or missing one) are unknown: -1 in Y. In a column of label sets
        that is the whole set. None: every label must be known.
    keep_all : bool, default=False
        Keep all columns of a table in `kept`, features and labels too.
    find_ids : bool, default=False
        Keep identifiers of a table aside, and tell what columns are, also where there are no labels, because another
        file has them.

    Returns
    -------
    MultilabelData
        X is a CSR array for sparse ARFF and LIBSVM, else an array. A nominal feature holds the index of its value in
        `categories`; of one or two values that spell numbers, in ARFF, it holds the numbers. A missing value (``?``,
        empty, nan) is NaN.
        In CSV columns of numbers the usual words for missing (NA, N/A, null, None, ``-``) are NaN too. A CSV column of
        numbers with ``-`` or ``?`` in it, or of words with numbers among them, is told in a warning.
        What a column of words in a table is:

        - text, where it has at least 21 different values, more than a fifth of the rows, of two words or more on
          average,
        - dates, where all values are dates: 2024-03-31, 2024/3/31 or 31.3.2024, also with a time,
        - identifiers, where nine rows of ten have their own value and there are more than 20 rows, or where all are
          links. Whole numbers of which nine rows of ten have their own are identifiers, too, in a column called id,
          song_id or the like. Without labels nothing is.

        In ARFF a column of words that all differ is dropped with a warning (of declared words: in 20 rows or more), and
        so is the index of a pandas table. Labels that the XML file nests have their parents in `parents`.

    Raises
    ------
    DataError
        One sentence that names the file, and the line where there is one.

    Notes
    -----
    LIBSVM indices count from 1 unless index 0 occurs; then the whole file counts from 0. Features are named by index.
    Labels must be 0 or 1, also written false and true or no and yes, in every row. In a column of label sets a
    separator or backslash within a name has a backslash before it, as in the predictions of `mlrh predict`.

    Examples
    --------
    >>> from io import BytesIO
    >>> from mlrh.data._readers import read
    >>> data = read(BytesIO(b"0,5 1:0.2 3:1\\n5 2:4\\n"), name="two rows")
    >>> data
    MultilabelData('two rows': 2 rows, 3 features, 2 labels)
    >>> data.label_names, data.Y.tolist()
    (('0', '5'), [[1, 1], [0, 1]])
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(map(repr, FORMATS))} or None; got {format!r}.")
    if n_features is not None and (not isinstance(n_features, Integral) or n_features < 1):
        raise ValueError(f"n_features must be a positive integer or None; got {n_features!r}.")
    kinds, choice = checked_kinds(columns), label_choice(labels)
    if separator is not None:
        check_separator(separator)
        if choice is None or len(choice.names) != 1:
            raise ValueError("A separator is for one column of label sets; name that column alone as labels.")
    loaded = load(source)
    if format in (None, "libsvm") and (counts := COUNTS_START.match(loaded.content)):
        what = f"the first line, {counts[1].decode()!r}, counts rows, features and labels, as in files for extreme "
        raise loaded.error(f"{what}classification; remove it, and the rest is LIBSVM.", 1)
    format = format or format_of(loaded)
    if choice is None and schema is not None and format != "libsvm":
        choice = _choice_of(schema, is_table=format in TABLES)
    ignored: list[str] = []  # that were read; tables leave them out before
    if format in TABLES:
        if choice is not None:
            own = choice.separator if separator is None else separator
            choice = replace(choice, separator=own, unknown=unknown)
        data = FORMATS[format].read(loaded, choice, schema, kinds=kinds, keep_all=keep_all, find_ids=find_ids)
    else:
        ignored = refuse_kinds(kinds, loaded)
        if separator is not None or unknown is not None or keep_all:
            what = (
                "label sets in one column, unknown labels and columns to keep are for CSV, JSON lines and Parquet files"
            )
            raise loaded.error(f"{what}; convert it.")
        options = (n_features,) if format == "libsvm" else ()
        data = FORMATS[format].read(loaded, choice, *options, schema)
    if format != "libsvm" and n_features not in (None, data.X.shape[1]):
        raise loaded.error(f"has {data.X.shape[1]} features; n_features asks for {n_features}.")
    data = data.without(ignored) if ignored else data
    data = data if name is None else replace(data, name=name)
    data = data if choice is None else replace(data, parent_names=choice.parent_names)
    return data if schema is None else _conformed(data, schema, loaded)


def _choice_of(schema, *, is_table):
    """The labels of a model: its columns, or in a table the one that holds label sets."""
    if schema.tags and is_table:
        column, separator = schema.tags
        return LabelChoice((column,), True, "the model", separator=separator)
    return LabelChoice(schema.label_names, True, "the model")


def is_table(source: str | PathLike | IO[bytes], format: str | None = None) -> bool:
    """Whether a file is a table, whose columns can be kept as they are."""
    return (format or format_of(load(source))) in TABLES


def write(data: MultilabelData, path: str | PathLike, *, format: str | None = None, layout: str = "mulan") -> None:
    """Write a data set so that `read` gives it back, numbers bit for bit; a half-written file never stays.

    Parameters
    ----------
    data : MultilabelData
    path : path
        The suffix says the format: .arff, .libsvm, .svm or .txt, .csv, .jsonl, .parquet; a final .gz compresses (not
        Parquet).
    format : {"arff", "libsvm", "csv", "jsonl", "parquet"} or None, default=None
        Needed only where the suffix doesn't say it.
    layout : {"mulan", "meka"}, default="mulan"
        For ARFF: labels last and named in an XML file beside it, or labels first and counted in the relation name.

    Notes
    -----
    The set's name isn't stored: `read` calls it by the file's stem. What else a format loses, and what it refuses with
    a DataError:

    * Every format: explicit zeros of a sparse X; refuses infinite values.
    * Every format but ARFF with layout="mulan": parents of labels.
    * ARFF: a nominal feature of one or two values that spell numbers comes back numeric. Refuses equal names of two
      columns.
    * ARFF and LIBSVM: columns in `kept`. They refuse text, dates and unknown labels.
    * Tables: what words are is found out anew, as `read` tells; a column of label sets comes back as a column per
      label; unknown labels are empty cells, read with unknown="".
    * CSV: a nominal feature whose values all spell numbers comes back numeric; a sparse X comes back dense, nominal
      values in order of appearance, without those that no row has; one of nothing but words for missing values is
      missing. Refuses a name of blanks, nothing but numbers as names, a set without rows, and nominal values that look
      like faulty numbers.
    * JSON lines: a sparse X comes back dense, nominal values in order of appearance. Refuses a set without rows.
    * Parquet: a sparse X comes back dense. Refuses a name of blanks and a set without rows.
    * LIBSVM: names of features; names of labels unless they are ascending whole numbers; labels that no row has. A
      dense X comes back sparse. Refuses nominal features and missing values.
    """
    path = Path(path)
    _writer(path, format)(data, path, layout)


def label_choice(labels: Any) -> LabelChoice | None:
    """What the argument `labels` of a reader chooses: None, the path of an XML file, or a sequence of names."""
    if labels is None:
        return None
    if isinstance(labels, str | Path):
        return read_xml(labels)
    names = tuple(labels)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"labels must be names, the path of an XML file or None; found {wrong[0]!r} among them.")
    refuse_repeats(names, "the list of labels")
    return LabelChoice(names, True, "the list of labels")


def format_of(source: Source) -> str:
    """The format by content where it is certain, else by suffix, else by the look of the first line."""
    if source.content.startswith(PARQUET_MAGIC):
        return "parquet"
    if ARFF_START.match(source.content):
        return "arff"
    for name, format in FORMATS.items():
        if source.suffix in format.suffixes:
            return name
    if LIBSVM_START.match(source.content):
        return "libsvm"
    return "jsonl" if JSON_START.match(source.content) else "csv"


def _conformed(data, schema, source):
    """The data in the schema's order and coding, with a warning of nominal values that the schema doesn't know."""
    conformed = data.conform(schema)
    told = []
    for name in schema.categories:
        before, after = _column(data, name), _column(conformed, name)
        lost = np.flatnonzero(np.isnan(after) & ~np.isnan(before))
        if len(lost):
            first, own = before[lost[0]], data.words(name)
            value = f"{first:g}" if own is None else own[int(first)]
            told.append(f"column {shown(name)} in {len(lost)} of {len(after)} rows (first: {shown(value)})")
    if told:
        what = f"values that the model doesn't know count as missing: {listed(told)}."
        warnings.warn(f"{source.where}: {what}", UserWarning, stacklevel=3)
    return conformed


def _column(data, name):
    column = data.X[:, [data.feature_names.index(name)]]
    return (column.toarray() if sparse.issparse(column) else column).ravel()


def _writer(path, format):
    _, suffix, zipped = parts_of(path.name)
    names = [name for name, own in FORMATS.items() if own.write is not None]
    if format is not None and format not in names:
        raise ValueError(f"format must be one of {', '.join(map(repr, names))} or None; got {format!r}.")
    format = format or next((name for name in names if suffix in FORMATS[name].write_suffixes), None)
    if format is None:
        known = ", ".join(suffix for name in names for suffix in FORMATS[name].write_suffixes)
        raise DataError(f"{path}: the suffix must be one of {known} (and .gz), or give the format.")
    if format == "parquet" and zipped:
        raise DataError(f"{path}: Parquet files are compressed inside; leave out .gz.")
    return FORMATS[format].write
