"""What commands read: data files or standard input, names of labels, and model files. Prints nothing."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Format = Literal["arff", "libsvm", "csv", "parquet"]
FORMAT_HELP = "Format of the data file; default: found out by its content and suffix."
FormatOption = Annotated[Format | None, typer.Option("--format", help=FORMAT_HELP)]
DATA_HELP = "Data file (ARFF, LIBSVM, CSV, Parquet; also .gz), or - for standard input."
LabelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--labels",
        help="Label columns, separated by commas; or a MULAN .xml file, or a .txt file with one name per line. May "
        "be repeated. A name with commas, or spaces at its ends, needs double quotes. ARFF and LIBSVM files can say "
        "it themselves.",
    ),
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore", help="Column that is not a feature, such as a number that identifies rows. May be repeated."
    ),
]
GroupsOption = Annotated[
    Path | None,
    typer.Option(
        "--groups",
        help='JSON file of groups of labels with limits: [{"labels": ["red", "blue"], "least": 1, "most": 1}, ...]. '
        "Labels in no group are free.",
    ),
]
JobsOption = Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; default: all cores.")]
XML = re.compile(r"\.xml(\.gz)?$", re.IGNORECASE)
QUOTED = re.compile(r'"((?:[^"]|"")*)"')
NAME = re.compile(rf"\s*(?:{QUOTED.pattern}|(?!\")([^,]*?))\s*(,|\Z)", re.DOTALL)


def read_data(file: str, labels: Any, format: str | None, schema: Any = None) -> Any:
    """The data set of a file, or of standard input for "-"."""
    from mlrh.data import read

    if file == "-" and sys.stdin is None:
        raise ValueError("Standard input is closed; give the name of a file, or pipe the data in.")
    return read(sys.stdin.buffer if file == "-" else file, labels, format=format, schema=schema)


def chosen_labels(values: list[str] | None) -> Any:
    """What the option --labels chooses, as `mlrh.data.read` takes it: None, the path of an XML file, or names.

    A value that ends in .xml is a MULAN file; one that ends in .txt or is a path holds one name per line; any other
    lists names, separated by commas. Spaces around a name don't count, unless it stands in double quotes, as in CSV.
    """
    if not values:
        return None
    if len(values) == 1 and XML.search(values[0]):
        return values[0]
    names: list[str] = []
    for value in values:
        if XML.search(value):
            raise ValueError(f"An XML file must be the only value of --labels; got {', '.join(values)}.")
        # A bare word is a name, also where a file happens to be called the same.
        is_file = value.lower().endswith(".txt") or ("/" in value and Path(value).is_file())
        names += _names_in_file(value) if is_file else _names_in_text(value)
    return names


def read_labelled_rows(file: str, model: Any, labels: Any, format: str | None) -> Any:
    """Rows with the model's features, and their labels in the order of the model's.

    `labels` is None or what `chosen_labels` gives. Labels of other names are the model's by position if they were
    listed by name, and as many. Where nothing was listed, labels that a LIBSVM file has and the model has not come
    after the model's.
    """
    from dataclasses import replace

    from mlrh.data.containers import DataError, listed

    own = model.schema.label_names
    data = read_data(file, labels, format, model.schema)
    found = data.label_names
    if labels is None:
        return data
    if set(found) == set(own):
        data = replace(data, Y=data.Y[:, [found.index(name) for name in own]], label_names=own)
    elif isinstance(labels, list) and len(found) == len(own):
        data = replace(data, label_names=own)
    else:
        raise DataError(
            f"{data.name}: the labels must be the model's {len(own)} ({listed(own, 3)}); --labels names {len(found)} "
            f"({listed(found, 3)})."
        )
    return data


def read_groups(path: Path) -> Any:
    """The label space of a JSON file: a list of objects with labels (names), least and most."""
    from mlrh.data import DataError
    from mlrh.spaces import GroupSpace

    form = 'a list such as [{"labels": ["red", "blue"], "least": 1, "most": 1}]'
    try:
        groups = json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; --groups takes a JSON file, {form}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8; convert it.") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: is not JSON ({error.msg}); write {form}.") from error
    except RecursionError as error:
        raise DataError(f"{path}: is nested too deeply; write {form}.") from error
    for number, group in enumerate(groups if isinstance(groups, list) else [groups]):
        is_group = isinstance(group, dict) and group.keys() == {"labels", "least", "most"}
        if not isinstance(groups, list) or not is_group or not isinstance(group["labels"], list):
            raise DataError(f"{path}: group {number} must have labels, least and most; write {form}.")
        if not all(isinstance(label, str) for label in group["labels"]):
            raise DataError(f"{path}: the labels of group {number} must be names; write {form}.")
    try:
        return GroupSpace([(group["labels"], group["least"], group["most"]) for group in groups])
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


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


def _names_in_file(value):
    from mlrh.data import DataError
    from mlrh.data._sources import load

    if not Path(value).exists():
        raise DataError(f"{value}: no such file; --labels takes names, an XML file, or a file of names.")
    lines = load(value).lines()
    names = [_name_in_line(line.strip()) for line in lines if line.strip()]
    if not names:
        raise DataError(f"{value}: holds no name of a label; write one per line.")
    return names


def _name_in_line(line):
    quoted = QUOTED.fullmatch(line)
    return quoted[1].replace('""', '"') if quoted else line


def _names_in_text(value):
    names, place, more = [], 0, ","
    while more:
        match = NAME.match(value, place)
        if match is None:
            raise ValueError(f"A name in --labels that begins with a double quote must end with one; got {value!r}.")
        names.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        place, more = match.end(), match[3]
    if not all(names):
        raise ValueError(f"--labels must list names, separated by commas; got an empty name in {value!r}.")
    return names
