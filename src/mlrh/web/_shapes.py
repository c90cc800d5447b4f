"""What requests about rows and their answers look like: types made of a model's columns and labels.

The same types check what is sent (pydantic) and describe it (OpenAPI), so that the two can't differ.
"""

import math
import re
import reprlib
import urllib.parse
from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on only

from mlrh.data._columns import is_number, number
from mlrh.data._sources import shown
from mlrh.data.containers import Schema, days_of
from mlrh.decisions import BY_NAME

MAX_TOP = 100  # sets that are listed for a row
DEFAULT_TOP = 5
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
SIZES = "^[0-9]{0,6},[0-9]{0,6}$"  # answer_sizes in an address, such as 1,3 or ,3
REFERENCE = "#/components/schemas/{model}"
REFUSALS = {
    401: "The token is missing or wrong.",
    403: "The host name is not the server's.",
    411: "The request doesn't say its length.",
    413: "The request is too large.",
    415: "The request is of another type.",
    422: "The request is not what this address takes; the sentence names row and column.",
    500: "The program failed.",
    503: "Too many requests wait, and the header Retry-After says when to ask again; or the answer takes too long.",
}
QUESTIONS = {
    "/predict": ("Predict", "Predictions"),
    "/distribution": ("Distribution", "Distributions"),
    "/condition": ("Condition", "Distributions"),
    "/expected": ("Expected", "ExpectedValues"),
}


def _date(text):
    try:
        days_of(text)
    except ValueError:
        raise PydanticCustomError("date", "no date") from None
    return text


Missing = None
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)] | Missing
Text = Annotated[str, Field(strict=True)] | Missing
Date = Annotated[str, Field(strict=True), AfterValidator(_date)] | Missing
Probability = Annotated[float, Field(ge=0, le=1 + 1e-9)]  # a sum of probabilities may exceed 1 by rounding
Metric = Literal["exact_match", "f1", "hamming", "jaccard"]


class LabelSet(TypedDict):
    """A set of labels and its probability."""

    labels: list[str]
    probability: Probability


class Label(TypedDict):
    """What is known of a label of a row, 1, 0 or null, and its probability given all that is known of the row."""

    name: str
    known: Literal[0, 1] | None
    marginal: Probability


class RowDistribution(TypedDict):
    """The distribution of a row's label set.

    `sizes[j]` is the probability of j labels. The entropy is in nats, null where a pool of models has too many sets to
    list them.
    """

    labels: list[Label]
    top_sets: list[LabelSet]
    sizes: list[Probability]
    entropy: float | None


class Prediction(LabelSet):
    """A set of labels and the probability that it is right.

    A model that refuses improbable sets also says whether it answers: if not, there are no labels, and the probability
    is that of the set it would have given.
    """

    answered: NotRequired[bool]


class Predictions(TypedDict):
    """A label set for each row."""

    predictions: list[Prediction]
    notes: list[str]


class Distributions(TypedDict):
    """The distribution of the label set of each row."""

    distributions: list[RowDistribution]
    notes: list[str]


class ExpectedValues(TypedDict):
    """The expected metric of a label set for each row."""

    expected: list[float]
    notes: list[str]


class About(TypedDict):
    """What the model is, and what may be asked of it."""

    name: str
    version: str
    columns: list[dict[str, Any]]
    labels: list[str]
    space: dict[str, Any]
    decision: str
    decisions: list[str]
    training: dict[str, Any]
    held_out: dict[str, Any]
    limits: dict[str, Any]
    tagging: bool


class Status(TypedDict):
    """How the process is doing."""

    status: str


class Refusal(TypedDict):
    """What is wrong, in one sentence."""

    error: str


ANSWERS = (Predictions, Distributions, ExpectedValues, About, Status, Refusal)


class Shapes:
    """Requests and answers of a model.

    Parameters
    ----------
    schema : Schema
    max_rows : int

    Attributes
    ----------
    columns : list of dict
        Name and kind of each of the model's columns; of a nominal one the values.
    """

    def __init__(self, schema: Schema, *, max_rows: int):
        self.columns = [_column(schema, name) for name in schema.feature_names]
        requests = _requests(schema, self.columns, max_rows)
        self._requests = {path: TypeAdapter(requests[request]) for path, (request, _) in QUESTIONS.items()}
        query = {"decision": NotRequired[Metric], "answer_sizes": NotRequired[str]}
        self._query = TypeAdapter(_object("Query", query, extra="forbid"))
        types = [*requests.values(), *ANSWERS]
        described: list[Any] = [(own.__name__, "validation", TypeAdapter(own)) for own in types]
        _, definitions = TypeAdapter.json_schemas(described, ref_template=REFERENCE)
        self.definitions: dict[str, Any] = definitions["$defs"]

    def read(self, path: str, content: bytes) -> dict[str, Any]:
        """The JSON that was sent to an address; a ValueError in one sentence that names row and column."""
        try:
            return self._requests[path].validate_json(content)
        except ValidationError as error:
            raise ValueError(_sentence(error)) from None

    def query(self, path: str, query: str) -> dict[str, Any]:
        """What the part of an address behind ? says."""
        given = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        if path != "/predict":
            if given:
                raise ValueError(
                    f"The address takes no ?{next(iter(given))[:60]}=; put what there is to say in the JSON."
                )
            return {}
        try:
            given = self._query.validate_python(given)
        except ValidationError as error:
            raise ValueError(_sentence(error, whole="The address")) from None
        if "answer_sizes" in given:
            given["answer_sizes"] = _sizes(given["answer_sizes"])
        return given

    def request(self, path: str) -> dict[str, Any]:
        """What OpenAPI says of the requests to an address."""
        content = {"application/json": {"schema": _reference(QUESTIONS[path][0])}}
        if path != "/predict":
            return {"requestBody": {"required": True, "content": content}}
        content["text/csv"] = {"schema": {"type": "string", "description": "A header with the columns, then rows."}}
        parameters = [
            {"name": "decision", "in": "query", "schema": {"enum": sorted(BY_NAME)}},
            {
                "name": "answer_sizes",
                "in": "query",
                "schema": {"type": "string", "pattern": SIZES},
                "description": "The least and the most labels of an answer, such as 1,3 or ,3.",
            },
        ]
        return {"parameters": parameters, "requestBody": {"required": True, "content": content}}

    def responses(self, path: str) -> dict[int | str, dict[str, Any]]:
        """What OpenAPI says of the answers of an address."""
        answers: dict[int | str, dict[str, Any]]
        if path == "/metrics":
            answers = {200: {"description": "Counts", "content": {PROMETHEUS: {"schema": {"type": "string"}}}}}
        else:
            name = QUESTIONS[path][1] if path in QUESTIONS else {"/model": "About"}.get(path, "Status")
            answers = {200: {"description": name, "content": {"application/json": {"schema": _reference(name)}}}}
        content = {"application/json": {"schema": _reference("Refusal")}}
        refusals = REFUSALS if path in QUESTIONS else (401, 403, 500, 503)
        return {**answers, **{code: {"description": REFUSALS[code], "content": content} for code in refusals}}

    def add_to(self, document: dict[str, Any], *, has_token: bool) -> dict[str, Any]:
        """The OpenAPI document with the types that it refers to, and the token where there is one."""
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(self.definitions)
        if has_token:
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        return document


# Types


def _column(schema, name):
    if name in schema.categories:
        return {"name": name, "kind": "nominal", "values": schema.categories[name]}
    return {"name": name, "kind": "text" if name in schema.texts else "date" if name in schema.dates else "number"}


def _requests(schema, columns, max_rows):
    types = {"number": Number, "date": Date, "text": Text}
    cells = {own["name"]: types.get(own["kind"]) or _nominal(own["values"]) for own in columns}
    Row = _object("Row", cells, extra="ignore")  # said, since it would inherit "forbid" from what it is in
    Known = _object("Known", dict.fromkeys(schema.label_names, NotRequired[Literal[0, 1]]), extra="forbid")
    rows = Annotated[list[Row], FailFast(), Field(min_length=1, max_length=max_rows)]
    size = Annotated[int, Field(strict=True, ge=0, le=len(schema.label_names))] | None
    sizes = Annotated[list[size], Field(min_length=2, max_length=2)] | None
    top = NotRequired[Annotated[int, Field(strict=True, ge=1, le=MAX_TOP)]]
    known = Annotated[list[Known], FailFast(), Field(min_length=1, max_length=max_rows)]
    sets = Annotated[list[list[Literal[schema.label_names]]], FailFast(), Field(min_length=1, max_length=max_rows)]
    predict = {"rows": rows, "decision": NotRequired[Metric | None], "answer_sizes": NotRequired[sizes]}
    return {
        "Predict": _object("Predict", predict, extra="forbid"),
        "Distribution": _object("Distribution", {"rows": rows, "top": top}, extra="forbid"),
        "Condition": _object("Condition", {"rows": rows, "known": known, "top": top}, extra="forbid"),
        "Expected": _object("Expected", {"rows": rows, "sets": sets, "metric": Metric}, extra="forbid"),
    }


def _nominal(values):
    """The type of a nominal column; one with values that spell numbers takes numbers, too, as `mlrh predict` does."""
    spelled = {number(value): value for value in values if is_number(value) and math.isfinite(number(value))}
    if not spelled:
        return Text
    known = set(values)

    def as_text(cell):
        # By its type: to isinstance, a truth value is a number.
        if type(cell) is not int and not (type(cell) is float and math.isfinite(cell)):
            return cell
        text = str(cell)
        return text if text in known else spelled.get(number(text), text)

    described = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]}
    return Annotated[Text, BeforeValidator(as_text), WithJsonSchema(described)]


def _object(name, fields, *, extra):
    """A type of objects with these keys; `extra` says what becomes of others."""
    own = TypedDict(name, fields)
    own.__pydantic_config__ = ConfigDict(extra=extra)
    return own


def _reference(name):
    return {"$ref": REFERENCE.format(model=name)}


# Sentences


def _sentence(error, whole="The request"):
    """The first of the errors, in one sentence."""
    first = error.errors(include_url=False)[0]
    kind, place = first["type"], list(first["loc"])
    if kind == "json_invalid":
        return f"{whole} must be JSON; it can't be read as such ({first['ctx']['error']})."
    if kind in ("missing", "extra_forbidden"):
        return _sentence_of_key(kind, place, whole)
    rule = first["msg"].replace("Input should ", "must ").replace("List should ", "must ")
    rule = {
        "float_type": "must be a number, or null where it is missing",
        "finite_number": "must be a finite number, or null where it is missing",
        "string_type": "must be a text, or null where it is missing",
        "date": "must be a date such as 2024-03-31 or 2024-03-31 18:05, or null where it is missing",
        "list_type": "must be a list",
        "dict_type": "must be an object",
        "too_short": f"must have at least {first.get('ctx', {}).get('min_length')} entries",
        "too_long": f"must have at most {first.get('ctx', {}).get('max_length')} entries",
    }.get(kind, rule)
    if kind == "literal_error" and place[0] == "sets":
        rule = "must be labels of the model"
    found = "" if kind in ("too_short", "too_long") else f"; found {reprlib.repr(first['input'])}"
    return f"{_place(place, whole)} {rule}{found}."


def _sentence_of_key(kind, place, whole):
    key = place[-1]
    if kind == "missing":
        if len(place) == 1:
            return f"{whole} must have the key {key}."
        return f"Row {place[1] + 1} lacks the column {shown(key)}; where its value is missing, write null."
    if len(place) == 1:
        return f"{whole} must not have the key {shown(key)}; leave it out."
    return f"Row {place[1] + 1}, known: {shown(key)} is no label of the model."


def _place(place, whole):
    """Where in a request something stands, such as Row 3, column 'size'."""
    if len(place) < 2 or place[0] == "answer_sizes":
        return str(place[0]) if place else whole
    row = f"Row {place[1] + 1}"
    if len(place) == 2:
        return row if place[0] == "rows" else f"{row} of {place[0]}"
    return f"{row}, column {shown(place[2])}" if place[0] == "rows" else f"{row}, {place[0]}:"


def _sizes(text):
    if not re.fullmatch(SIZES, text):
        raise ValueError(f"answer_sizes must be the least and the most labels, such as 1,3 or ,3; found {shown(text)}.")
    return [int(part) if part else None for part in text.split(",")]
