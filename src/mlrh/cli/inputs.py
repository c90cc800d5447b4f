"""What commands read: data files or standard input, names of labels, and model files. Prints nothing."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Format = Literal["arff", "libsvm", "csv", "parquet"]
FORMAT_HELP = "Format of the data file; default: found out by its content and suffix."
FormatOption = Annotated[Format | None, typer.Option("--format", help=FORMAT_HELP, show_default=False)]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--labels",
        help="Label columns, separated by commas; or a MULAN .xml file, or a .txt file with one name per line. May "
        "be repeated. ARFF and LIBSVM files can say it themselves.",
        show_default=False,
    ),
]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes; default: all cores.", show_default=False)
]
XML = re.compile(r"\.xml(\.gz)?$", re.IGNORECASE)


def read_data(file: str, labels: Any, format: str | None) -> Any:
    """The data set of a file, or of standard input for "-"."""
    from mlrh.data import read

    return read(sys.stdin.buffer if file == "-" else file, labels, format=format)


def chosen_labels(values: list[str] | None) -> Any:
    """What the option --labels chooses, as `mlrh.data.read` takes it: None, the path of an XML file, or names.

    A value that ends in .xml is a MULAN file; one that ends in .txt or is a path holds one name per line; any other
    lists names, separated by commas.
    """
    if not values:
        return None
    if len(values) == 1 and XML.search(values[0]):
        return values[0]
    names: list[str] = []
    for value in values:
        if XML.search(value):
            raise ValueError(f"An XML file must be the only value of --labels; got {', '.join(values)}.")
        names += _names_in_file(value) if _is_list_file(value) else _names_in_text(value)
    return names


def read_rows(file: str, model: Any, format: str | None) -> Any:
    """New rows with the model's features; the file may have or lack labels, which aren't looked at."""
    return _aligned(read_data(file, (), format), model.schema).conform(model.schema)


def read_labelled_rows(file: str, model: Any, labels: Any, format: str | None) -> Any:
    """Rows with their labels in the order of the model's.

    `labels` is None or what `chosen_labels` gives. Labels of other names are the model's by position if they were
    listed by name, and as many.
    """
    from dataclasses import replace

    from mlrh.data import DataError

    own = model.schema.label_names
    data = read_data(file, list(own) if labels is None else labels, format)
    found = data.label_names
    if set(found) == set(own):
        data = replace(data, Y=data.Y[:, [found.index(name) for name in own]], label_names=own)
    elif isinstance(labels, list) and len(found) == len(own):
        data = replace(data, label_names=own)
    else:
        raise DataError(
            f"{data.name}: the labels must be the model's {len(own)} ({_shortened(own)}); --labels names {len(found)} "
            f"({_shortened(found)})."
        )
    return _aligned(data, model.schema)


def load_model(path: Path) -> Any:
    """The model of a file that `mlrh fit` saved."""
    from mlrh.automatic import Model
    from mlrh.persistence import ModelFileError, load

    model = load(path)
    if not isinstance(model, Model):
        raise ModelFileError(
            f"{path} holds a {type(model).__name__} without names of features and labels, so it can't be used on "
            "files; load it in Python with mlrh.persistence.load, or make a model with mlrh fit."
        )
    return model


def _aligned(data, schema):
    """LIBSVM rows in the columns of a model of LIBSVM rows.

    A LIBSVM file leaves out zeros, so its last columns may be missing, or its column 0, which makes it look as if it
    counted from 1. Columns that training did not have are left to `conform`.
    """
    from dataclasses import replace

    from scipy import sparse

    is_counted = _first_index(data.feature_names) is not None and _first_index(schema.feature_names) is not None
    if not (sparse.issparse(data.X) and is_counted):
        return data
    first = min(_first_index(data.feature_names), _first_index(schema.feature_names))
    shift = _first_index(data.feature_names) - first
    end = max(int(data.feature_names[-1]), int(schema.feature_names[-1])) + 1
    entries = data.X.tocoo()
    X = sparse.csr_array((entries.data, (entries.row, entries.col + shift)), shape=(data.X.shape[0], end - first))
    return replace(data, X=X, feature_names=tuple(map(str, range(first, end))))


def _first_index(names):
    """Where names count from if they are consecutive numbers from 0 or 1, else None."""
    if not names or names[0] not in ("0", "1"):
        return None
    first = int(names[0])
    return first if all(name == str(index) for index, name in enumerate(names, first)) else None


def _is_list_file(value):
    # A bare word is a name, also where a file happens to be called the same.
    return value.lower().endswith(".txt") or ("/" in value and Path(value).is_file())


def _names_in_file(value):
    from mlrh.data import DataError

    try:
        lines = Path(value).read_text("utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{value}: no such file; --labels takes names, an XML file, or a file of names.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{value}: is not UTF-8; convert it.") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise DataError(f"{value}: holds no name of a label; write one per line.")
    return names


def _names_in_text(value):
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise ValueError(f"--labels must list names, separated by commas; got an empty name in {value!r}.")
    return names


def _shortened(names):
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
