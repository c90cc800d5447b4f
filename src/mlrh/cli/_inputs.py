"""What commands read: data files or standard input, names of labels, and model files. Prints nothing."""

import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Format = Literal["arff", "libsvm", "csv", "jsonl", "parquet"]
# Panels of --help: what options are about.
OF_COLUMNS = "What columns hold"
OF_CHOICE = "How the model is chosen"
OF_ANSWERS = "How rows are answered"
OF_DECISIONS = "Rows that were tagged by hand"
OF_MANY = "Several files"

FORMAT_HELP = "Format of the data file; default: found out by its content and suffix."
FormatOption = Annotated[Format | None, typer.Option("--format", help=FORMAT_HELP)]
DATA_HELP = "Data file (ARFF, LIBSVM, CSV, JSON lines, Parquet; also .gz), or - for standard input."
TRAINING_HELP = f"{DATA_HELP} Or a name of `mlrh datasets`."
LabelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--labels",
        metavar="NAMES",
        help="Label columns, separated by commas; or a MULAN .xml file, or a .txt file with one name per line. May "
        "be repeated. A name with commas, or spaces at its ends, needs double quotes. ARFF and LIBSVM files can say "
        "it themselves. One column may list the labels of each row: see --separator.",
    ),
]
SeparatorOption = Annotated[
    str | None,
    typer.Option(
        "--separator",
        metavar="TEXT",
        rich_help_panel=OF_COLUMNS,
        help="What separates the labels in the one column of --labels, such as ';'. Found out where it is plain.",
    ),
]
UnknownOption = Annotated[
    str | None,
    typer.Option(
        "--unknown",
        metavar="TEXT",
        rich_help_panel=OF_COLUMNS,
        help='Text of labels nobody looked at, such as "" or "?". Default: all are known.',
    ),
]


def _of_kind(name, what, default=" Default: found out."):
    about: dict[str, Any] = {
        "metavar": "COLUMN",
        "rich_help_panel": OF_COLUMNS,
        "help": f"{what} May be repeated.{default}",
    }
    return Annotated[list[str] | None, typer.Option(name, **about)]


IdOption = _of_kind("--id", "Column that identifies rows: no feature, but carried to the predictions.")
TextOption = _of_kind("--text", "Column of text, which counts by its words and letters.")
DateOption = _of_kind("--date", "Column of dates, which count as days and by parts of the calendar.")
NominalOption = _of_kind("--nominal", "Column of words or numbers to tell apart, such as postal codes.")
NumberOption = _of_kind("--number", "Column of numbers that measure something.")
IgnoreOption = _of_kind("--ignore", "Column that is not looked at, whatever it holds.", default="")
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Folder with the public data sets; default: the variable MLRH_DATA.",
    ),
]
GroupsOption = Annotated[
    Path | None,
    typer.Option(
        "--groups",
        metavar="FILE",
        rich_help_panel=OF_CHOICE,
        help='JSON file of groups of labels with limits: [{"labels": ["red", "blue"], "least": 1, "most": 1}, ...]. '
        "Labels in no group are free.",
    ),
]
JobsOption = Annotated[int | None, typer.Option("--jobs", min=1, metavar="N", help="Processes; default: all cores.")]
XML = re.compile(r"\.xml(\.gz)?$", re.IGNORECASE)
QUOTED = re.compile(r'"((?:[^"]|"")*)"')
NAME = re.compile(rf"\s*(?:{QUOTED.pattern}|(?!\")([^,]*?))\s*(,|\Z)", re.DOTALL)


def read_data(file: Any, labels: Any, format: str | None, schema: Any = None, **options: Any) -> Any:
    """The data set of a file or stream, or of standard input for "-"; options are those of `mlrh.data.read`."""
    from mlrh.data import read

    if file == "-" and sys.stdin is None:
        raise ValueError("Standard input is closed; give the name of a file, or pipe the data in.")
    return read(sys.stdin.buffer if file == "-" else file, labels, format=format, schema=schema, **options)


def check_finite(**options: float) -> None:
    """Raise a ValueError where the number of an option is infinite or NaN, which some releases of typer let pass."""
    for name, value in options.items():
        if not math.isfinite(value):
            raise ValueError(f"--{name.replace('_', '-')} must be finite; got {value:g}.")


def is_public(file: str) -> bool:
    """Whether a name is no file's, but that of a public data set, or looks like one."""
    from mlrh.data._catalogue import CATALOGUE

    return not Path(file).exists() and (file in CATALOGUE or re.fullmatch(r"\w+", file) is not None)


def read_table(file: str, labels: Any, format: str | None, data_dir: Path | None, **options: Any) -> Any:
    """The data set of a file, or the public one of that name; options are those of `mlrh.data.read`."""
    if not is_public(file):
        return read_data(file, labels, format, **options)
    from mlrh.data import load

    about = {"labels": labels, "format": format, **options}
    said = [name for name, value in about.items() if value is not None and value != {}]
    ignored = [name for name, kind in (options.get("columns") or {}).items() if kind == "ignored"]
    if said and (said != ["columns"] or len(ignored) < len(options["columns"])):
        what = f"{file} is no file, but may be a public data set, which says itself what its columns are"
        raise ValueError(f"{what}; correct the name, or leave out all options on columns but --ignore.")
    return load(file, data_dir=data_dir).without(ignored)


def column_kinds(**names: list[str] | None) -> dict[str, str]:
    """What the options --text, --date and so on say of columns, as `mlrh.data.read` takes it."""
    kinds: dict[str, str] = {}
    for kind, own in names.items():
        for name in own or ():
            if kinds.setdefault(name, kind) != kind:
                both = f"{option_of(kinds[name])} and {option_of(kind)}"
                raise ValueError(f"Column {name!r} is named by two options, {both}; name it once.")
    return kinds


def option_of(kind: str) -> str:
    """The option that says of a column that it is of a kind."""
    return "--ignore" if kind == "ignored" else f"--{kind}"


def read_with_cells(file: str, format: str | None, schema: Any) -> Any:
    """The data set of a file for a model, without labels; of a table with all columns as they are in `kept`."""
    from mlrh.data._readers import is_table

    rows: Any = _standard_input() if file == "-" else file
    keeps = is_table(rows, format)
    if file == "-":
        rows.seek(0)  # standard input can be read only once
    return read_data(rows, (), format, schema, keep_all=keeps)


def _standard_input():
    from mlrh.data._sources import load

    if sys.stdin is None:
        raise ValueError("Standard input is closed; give the name of a file, or pipe the data in.")
    rows = io.BytesIO(load(sys.stdin.buffer).content)
    rows.name = "<stdin>"
    return rows


def names_of(text: str, option: str) -> list[str]:
    """The names in the text of an option, separated by commas; one that holds a comma stands in double quotes."""
    names, place, more = [], 0, ","
    while more:
        match = NAME.match(text, place)
        if match is None:
            raise ValueError(f"A name in {option} that begins with a double quote must end with one; got {text!r}.")
        names.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        place, more = match.end(), match[3]
    if not all(names):
        raise ValueError(f"{option} must list names, separated by commas; got an empty name in {text!r}.")
    return names


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
        names += _names_in_file(value) if is_file else names_of(value, "--labels")
    return names


def read_labelled_rows(
    file: str,
    model: Any,
    labels: Any,
    format: str | None,
    *,
    separator: str | None = None,
    unknown: str | None = None,
) -> Any:
    """Rows with the model's features, and their labels in the order of the model's.

    `labels` is None or what `chosen_labels` gives. Labels of other names are the model's by position if they were
    listed by name, and as many. Labels that a LIBSVM file or a column of label sets has, and the model has not, come
    after the model's. separator and unknown are those of `mlrh.data.read`.
    """
    from dataclasses import replace

    from mlrh.data.containers import DataError, listed

    own = model.schema.label_names
    if labels is None and separator is not None:
        if not model.schema.tags:
            raise ValueError("--separator is for one column of label sets; name that column with --labels.")
        labels = [model.schema.tags[0]]
    data = read_data(file, labels, format, model.schema, separator=separator, unknown=unknown)
    found = data.label_names
    if labels is None or data.tags:
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


def complete_rows(data: Any) -> Any:
    """The rows whose labels are all known; a warning tells how many are left out, and it is a DataError if all are."""
    import warnings

    from mlrh._indicators import UNKNOWN
    from mlrh.data import DataError

    is_complete = (data.Y != UNKNOWN).all(axis=1)
    if is_complete.all():
        return data
    what = f"{data.name}: {(~is_complete).sum()} of {len(data.Y)} rows have unknown labels"
    if not is_complete.any():
        raise DataError(f"{what}, so that there is none to measure on; complete some.")
    warnings.warn(f"{what} and are left out.", UserWarning, stacklevel=2)
    return data.rows(is_complete)


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
