"""What a model answers to questions about rows: label sets and distributions as JSON. Knows nothing of HTTP's server.

A question is JSON or CSV as it was sent; what is wrong with it is a ValueError in one sentence.
"""

import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlrh import __version__, decisions
from mlrh.data import read
from mlrh.data._columns import BadCellError
from mlrh.data._sources import GZIP_MAGIC, shown
from mlrh.data.containers import DataError
from mlrh.estimators.auto import of_folds_with_rows
from mlrh.web._session import entropies
from mlrh.web._shapes import DEFAULT_TOP, Shapes

MAX_CHARACTERS = 2**17  # of one text, as in a cell of CSV; its words and letters take 125 bytes each while counted
MAX_ENTRIES = 2**18  # labels and sets that an answer lists; each takes some 400 bytes while it is made, 100 MiB in all


class Answers:
    """Answers of one model, whatever becomes of the service that gives them.

    Parameters
    ----------
    model : Model of `mlrh.automatic`
    name : str
        What the model is called.
    max_rows : int
        Of a question.

    Attributes
    ----------
    shapes : Shapes
        Of questions and answers.
    about : dict or None
        What the model is; None before `warm_up`.
    """

    def __init__(self, model: Any, name: str, *, max_rows: int):
        self.model, self._name, self._max_rows = model, name, max_rows
        self.shapes = Shapes(model.schema, max_rows=max_rows)
        self.about: dict[str, Any] | None = None
        self._labels = model.schema.label_names

    def warm_up(self) -> None:
        """Compile what answers need, and describe the model."""
        row = {column["name"]: None for column in self.shapes.columns}
        question = _Question(_Cells([row], self.model.schema.feature_names), 1, {}, [])
        self.predict(question)
        self.distribution(question)
        self.condition(question._replace(options={"known": [{}]}))
        self.expected(question._replace(options={"sets": [[]], "metric": "f1"}))
        self.about = self._described_model(self.model.distribution(question.rows).sizes())

    def answer(self, path: str, kind: str, content: bytes, query: str) -> tuple[int, bytes]:
        """Number of rows, and the answer as JSON, to what was sent to an address as JSON or, by its type, as CSV."""
        question = self._question(path, kind, content, query)
        answer = getattr(self, path[1:])(question)
        return question.n_rows, json.dumps(answer, allow_nan=False).encode()

    def predict(self, question):
        """Label sets by the model's decision, or by another, and their probabilities, as `mlrh predict` gives them."""
        rule, decision = self.model.rule, question.options.get("decision")
        sizes = question.options.get("answer_sizes", (None, None))
        has_limits = any(size is not None for size in sizes)
        if has_limits and decision is None and rule.thresholds is not None:
            raise ValueError(
                "The model answers by thresholds, which keep to no sizes; leave out answer_sizes, or give a decision."
            )
        distribution = self.model.distribution(question.rows)
        if decision is None and not has_limits:
            answer = self.model.answer(distribution)
        else:
            chosen = decisions.resolve(decision or self.model.classifier.decision, sizes)(distribution)
            answer = rule.judge(distribution, chosen)
        answers = self._sets(answer.sets, answer.probability)
        if rule.refuse_below:
            marks = answer.is_answered.tolist()
            answers = [{**own, "answered": mark} for own, mark in zip(answers, marks, strict=True)]
        return {"predictions": answers, "notes": question.notes}

    def distribution(self, question):
        """Marginals, the most probable sets, sizes and entropy of each row."""
        self._check_entries(question)
        unknown = np.full((question.n_rows, len(self._labels)), np.nan)
        return self._described_rows(self.model.distribution(question.rows), unknown, question)

    def condition(self, question):
        """The same, given some labels of each row."""
        given = question.options["known"]
        _check_length("known", given, question)
        self._check_entries(question)
        known = np.array([[row.get(label, np.nan) for label in self._labels] for row in given], np.float64)
        distribution = self.model.distribution(question.rows)
        fits = distribution.fits(known)
        if not fits.all():
            row = int(np.argmin(fits)) + 1
            raise ValueError(f"Row {row}: no label set of the model fits what is known; leave out some of it.")
        return self._described_rows(distribution.condition(known), known, question)

    def expected(self, question):
        """The expected metric of a label set for each row."""
        sets = question.options["sets"]
        _check_length("sets", sets, question)
        places = {label: place for place, label in enumerate(self._labels)}
        Y = np.zeros((len(sets), len(places)), np.int8)
        for row, labels in enumerate(sets):
            Y[row, [places[label] for label in labels]] = 1
        values = decisions.expected(self.model.distribution(question.rows), question.options["metric"], Y)
        return {"expected": values.tolist(), "notes": question.notes}

    def _check_entries(self, question):
        """Refuse more rows than an answer may describe, before anything is computed."""
        top = question.options.get("top", DEFAULT_TOP)
        most = MAX_ENTRIES // (len(self._labels) + top)
        if question.n_rows > most:
            what = f"With {len(self._labels)} labels and {top} sets a row, an answer describes at most {most} rows"
            raise ValueError(f"{what}; got {question.n_rows}. Ask for fewer at once.")

    def _described_rows(self, distribution, known, question):
        sets, log_probs = distribution.top_sets(question.options.get("top", DEFAULT_TOP))
        columns = distribution.marginals().tolist(), distribution.cardinality_pmf().tolist(), entropies(distribution)
        answers = []
        for row, (marginals, sizes, entropy) in enumerate(zip(*columns, strict=True)):
            said = [None if math.isnan(value) else int(value) for value in known[row]]
            labels = zip(self._labels, said, marginals, strict=True)
            possible = log_probs[row] > -np.inf  # the label space may have fewer sets
            answers.append(
                {
                    "labels": [dict(zip(("name", "known", "marginal"), label, strict=True)) for label in labels],
                    "top_sets": self._sets(sets[row][possible], np.exp(np.minimum(log_probs[row][possible], 0.0))),
                    "sizes": sizes,
                    "entropy": entropy,
                }
            )
        return {"distributions": answers, "notes": question.notes}

    def _sets(self, sets, probabilities):
        names = [[self._labels[label] for label in np.flatnonzero(labels)] for labels in sets]
        return [{"labels": own, "probability": p} for own, p in zip(names, probabilities.tolist(), strict=True)]

    def _described_model(self, sizes):
        settings = {name: own for name, own in self.model.settings.items() if name != "feature_scale"}
        space = {"description": str(settings.pop("label_space", "")), "min_labels": sizes[0], "max_labels": sizes[1]}
        held_out = {}
        for metric, folds in self.model.validation.items():
            known = of_folds_with_rows(folds)
            held_out[metric] = {"mean": float(np.mean(known)) if known else None, "folds": list(folds)}
        about = {"name": self._name, "version": __version__, "columns": self.shapes.columns, "labels": self._labels}
        about |= {"space": space, "decision": settings.pop("decision"), "decisions": sorted(decisions.BY_NAME)}
        return _plain({**about, "training": settings, "held_out": held_out})

    # What is asked

    def _question(self, path, kind, content, query):
        """What a request asks; a ValueError where it is wrong."""
        options = self.shapes.query(path, query)
        if kind == "text/csv":
            data, notes = self._read_csv(content)
            return _Question(data, len(data.Y), options, notes)
        body = self.shapes.read(path, content)
        rows = body.pop("rows")
        table = _Cells(rows, self.model.schema.feature_names)
        self._check_texts(table)
        said = {key: value for key, value in body.items() if value is not None}  # null is as good as nothing
        return _Question(table, len(rows), {**options, **said}, self._notes(table))

    def _read_csv(self, content):
        """The data set of a CSV text, and notes."""
        if content.startswith(GZIP_MAGIC):
            raise ValueError("The request must be CSV as plain text; it is compressed with gzip.")
        self._check_lines(content)
        stream = io.BytesIO(content)
        stream.name = "The request"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                data = read(stream, (), format="csv", schema=self.model.schema)
            except DataError as error:
                cell = error.__cause__
                if not isinstance(cell, BadCellError):
                    raise ValueError(str(error)) from None
                place = str(error).removeprefix("The request, ")
                raise ValueError(f"Row {cell.position + 1}, {place}") from None
        if len(data.Y) > self._max_rows:
            raise ValueError(f"The request must have at most {self._max_rows} rows; got {len(data.Y)}.")
        # Python catches the warnings of all threads; those of this reading begin with its name.
        told = [str(own.message) for own in caught if issubclass(own.category, UserWarning)]
        return data, [note for note in told if note.startswith(stream.name)]

    def _check_lines(self, content):
        """Refuse far too many rows before they are read, which takes some 200 bytes for each.

        Ends of lines between quotes are no ends of rows. A quote within a cell may mislead this count, so that it
        only refuses what is far beyond the limit.
        """
        outside = b"".join(content.split(b'"')[::2])
        lines = max(outside.count(b"\n"), outside.count(b"\r"))
        if lines > 2 * self._max_rows + 1000:
            raise ValueError(f"The request must have at most {self._max_rows} rows; got {lines} lines.")

    def _check_texts(self, table):
        """Refuse a text that would take too much memory."""
        for name in self.model.schema.texts:
            for row, text in enumerate(table[name], start=1):
                if text is not None and len(text) > MAX_CHARACTERS:
                    what = f"must have at most {MAX_CHARACTERS} characters; got {len(text)}"
                    raise ValueError(f"Row {row}, column {shown(name)} {what}.")

    def _notes(self, table):
        """What is to be said of values that the model doesn't know."""
        notes = []
        for name, values in self.model.schema.categories.items():
            known = {None, *values}
            foreign = [row for row, cell in enumerate(table[name]) if cell not in known]
            if foreign:
                first = f"row {foreign[0] + 1}: {shown(table[name][foreign[0]])}"
                rows = f"{len(foreign)} row{'' if len(foreign) == 1 else 's'}"
                what = f"values that the model doesn't know count as missing in {rows} ({first})"
                notes.append(f"Column {shown(name)}: {what}.")
        return notes


class _Question(NamedTuple):
    """Rows in a form that a Model takes, how many they are, what else was asked, and notes for the answer."""

    rows: Any
    n_rows: int
    options: dict
    notes: list[str]


class _Cells:
    """Rows of JSON as a table of columns, for `Model.distribution`."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], names: Sequence[str]):
        self.columns = names
        self._cells = {name: [row[name] for row in rows] for name in names}
        self._n_rows = len(rows)

    def __getitem__(self, name):
        return self._cells[name]

    def __len__(self):
        return self._n_rows


def _check_length(key, values, question):
    if len(values) != question.n_rows:
        raise ValueError(f"{key} must have an entry for each of the {question.n_rows} rows; got {len(values)}.")


def _plain(value):
    """The value as JSON holds it: numbers that are none are null, and what else there is, is text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
