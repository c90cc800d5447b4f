"""The service of a model, asked over HTTP within this process."""

import asyncio
import contextlib
import json
import logging
import re
import threading
import time
from dataclasses import replace

import httpx
import numpy as np
import pandas as pd
import pytest
from samples import make_multilabel

from mlrh import automatic, decisions
from mlrh.data import MultilabelData
from mlrh.estimators import auto
from mlrh.spaces import CardinalitySpace
from mlrh.web import _answers
from mlrh.web._application import make_app
from mlrh.web._http import page_files
from mlrh.web._metrics import PATHS
from mlrh.web._service import Limits
from mlrh.web._session import Session
from mlrh.web._tagging import ACTIONS, Tagging
from mlrh.web._workers import Serving

NAMES = ("happy", "sad", "calm", "loud")
MODES = ("major", "minor", "dorian")
SECRET = "secret-row-content"


@pytest.fixture(scope="module")
def model():
    X, Y = make_multilabel(80)
    X = np.column_stack([X[:, :3], np.arange(80) % 3])
    X[::9, 1] = np.nan
    data = MultilabelData(X, Y.astype(np.int8), ("tempo", "key, b", "höhe", "mode"), NAMES, "songs", {"mode": MODES})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "LINEAR_C", (1.0,))
        return automatic.choose(data, scores="linear", label_space="observed", n_folds=2)


class Client:
    """Requests to an application within this process, whose lifespan it runs."""

    def __init__(self, app, ready="/ready"):
        self._loop = asyncio.new_event_loop()
        self._events = asyncio.Queue()
        self._said = asyncio.Queue()
        self._life = self._loop.create_task(app({"type": "lifespan"}, self._events.get, self._said.put))
        self._run(self._tell("startup"))
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60)
        deadline = time.monotonic() + 120
        while self("GET", ready).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def __call__(self, method, path, **options):
        return self._run(self._client.request(method, path, **options))

    def together(self, *requests):
        """Answers to requests that are sent at the same time."""

        async def all_of():
            return await asyncio.gather(*(self._client.request(*own, **options) for own, options in requests))

        return self._run(all_of())

    def close(self):
        self._run(self._client.aclose())
        self._run(self._tell("shutdown"))
        self._run(self._life)
        self._loop.close()

    def _run(self, work):
        return self._loop.run_until_complete(work)

    async def _tell(self, event):
        await self._events.put({"type": f"lifespan.{event}"})
        assert (await self._said.get())["type"] == f"lifespan.{event}.complete"


@pytest.fixture(scope="module")
def start(model):
    """A function that gives a client of a new application; all are closed at the end."""
    clients = []

    def started(**options):
        clients.append(Client(make_app(model, "songs", **options)))
        return clients[-1]

    yield started
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def ask(start):
    return start()


ROWS = [
    {"tempo": 1.5, "key, b": 0, "höhe": -0.25, "mode": "minor"},
    {"tempo": None, "key, b": 2.5, "höhe": 1e5, "mode": None},
    {"tempo": -1, "key, b": None, "höhe": 0.5, "mode": "dorian"},
]
FRAME = pd.DataFrame(ROWS).astype({"mode": object})


def answer(ask, path, **body):
    response = ask("POST", path, json={"rows": ROWS, **body})
    assert response.status_code == 200, response.text
    return response.json()


def refused(response, status):
    """The sentence of a refusal."""
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"] and "\n" not in response.json()["error"]
    return response.json()["error"]


def sets_of(answers):
    return np.array([[name in answer["labels"] for name in NAMES] for answer in answers], np.int8)


# Answers


@pytest.mark.parametrize("form", ["json", "csv"])
def test_predictions_are_those_of_the_model(ask, model, form):
    if form == "json":
        given = answer(ask, "/predict", rows=[{**row, "other": ["x"]} for row in ROWS])
    else:
        text = FRAME.assign(other="x").to_csv(index=False).encode()
        response = ask("POST", "/predict", content=text, headers={"Content-Type": "text/csv; charset=utf-8"})
        assert response.status_code == 200, response.text
        given = response.json()
    expected = model.predict(FRAME)
    np.testing.assert_array_equal(sets_of(given["predictions"]), expected)
    probabilities = [own["probability"] for own in given["predictions"]]
    np.testing.assert_allclose(probabilities, model.distribution(FRAME).prob(expected), rtol=1e-12)
    assert given["notes"] == []


@pytest.mark.parametrize("decision", sorted(decisions.BY_NAME))
@pytest.mark.parametrize("sizes", [None, [2, 2], [None, 1], [3, None]])
def test_a_decision_and_limits_of_the_answer_are_kept_to_in_json_and_in_the_address(ask, model, decision, sizes):
    expected = decisions.resolve(decision, sizes)(model.distribution(FRAME))
    given = answer(ask, "/predict", decision=decision, answer_sizes=sizes)
    np.testing.assert_array_equal(sets_of(given["predictions"]), expected)
    limits = "" if sizes is None else "&answer_sizes=" + ",".join("" if size is None else str(size) for size in sizes)
    content, headers = FRAME.to_csv(index=False).encode(), {"Content-Type": "text/csv"}
    response = ask("POST", f"/predict?decision={decision}{limits}", content=content, headers=headers)
    np.testing.assert_array_equal(sets_of(response.json()["predictions"]), expected)


def test_a_model_that_refuses_says_which_rows_it_answers_with_the_probabilities_of_its_rule(model):
    rule = automatic.AnswerRule(temperature=1.5, inside_share=0.9)
    calibrated = replace(model, rule=rule)
    least = np.median(calibrated.answer(calibrated.distribution(FRAME)).probability)
    refusing = replace(model, rule=replace(rule, refuse_below=float(least) + 1e-9))
    distribution = refusing.distribution(FRAME)
    by_size = rule.probability(distribution.log_prob(decisions.resolve("f1", [2, 2])(distribution)))
    client = Client(make_app(refusing, "songs"))
    try:
        given = answer(client, "/predict")["predictions"]
        other = answer(client, "/predict", decision="f1", answer_sizes=[2, 2])["predictions"]
    finally:
        client.close()
    expected = refusing.answer(distribution)
    assert [own["answered"] for own in given] == expected.is_answered.tolist() and 0 < expected.is_answered.sum() < 3
    np.testing.assert_array_equal(sets_of(given), expected.sets)
    np.testing.assert_allclose([own["probability"] for own in given], expected.probability, rtol=1e-12)
    np.testing.assert_allclose([own["probability"] for own in other], by_size, rtol=1e-12)
    for own in other:
        assert own["answered"] == (own["probability"] > least) and len(own["labels"]) == 2 * own["answered"]


@pytest.mark.parametrize("sizes", [None, [None, None]])
def test_thresholds_are_kept_to_where_sizes_have_no_limit_and_sizes_are_refused_without_a_decision(model, sizes):
    tuned = replace(model, rule=automatic.AnswerRule(thresholds=np.full(len(NAMES), 0.05)))
    distribution = tuned.distribution(FRAME)
    assert (tuned.answer(distribution).sets != model.answer(distribution).sets).any()
    client = Client(make_app(tuned, "songs"))
    try:
        given = answer(client, "/predict", answer_sizes=sizes, decision=None)["predictions"]
        other = answer(client, "/predict", answer_sizes=[None, 1], decision="f1")["predictions"]
        sentence = refused(client("POST", "/predict", json={"rows": ROWS, "answer_sizes": [None, 1]}), 422)
    finally:
        client.close()
    np.testing.assert_array_equal(sets_of(given), tuned.answer(distribution).sets)
    np.testing.assert_array_equal(sets_of(other), decisions.resolve("f1", [None, 1])(distribution))
    assert sentence.startswith("The model answers by thresholds, which keep to no sizes; leave out answer_sizes")


def test_null_in_the_json_leaves_what_the_address_says(ask, model):
    body = {"rows": ROWS, "decision": None, "answer_sizes": None}
    given = ask("POST", "/predict?decision=f1&answer_sizes=3,", json=body).json()["predictions"]
    np.testing.assert_array_equal(sets_of(given), decisions.resolve("f1", [3, None])(model.distribution(FRAME)))


def check_described(given, distribution, known, top=5):
    sets, log_probs = distribution.top_sets(top)
    for row, own in enumerate(given["distributions"]):
        assert [label["name"] for label in own["labels"]] == list(NAMES)
        assert [label["known"] for label in own["labels"]] == known[row]
        marginals = [label["marginal"] for label in own["labels"]]
        np.testing.assert_allclose(marginals, distribution.marginals()[row], rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(own["sizes"], distribution.cardinality_pmf()[row], rtol=1e-12, atol=1e-300)
        assert own["entropy"] == pytest.approx(distribution.entropy()[row], rel=1e-12)
        n_sets = np.count_nonzero(log_probs[row] > -np.inf)
        np.testing.assert_array_equal(sets_of(own["top_sets"]), sets[row, :n_sets])
        probabilities = [each["probability"] for each in own["top_sets"]]
        np.testing.assert_allclose(probabilities, np.exp(log_probs[row, :n_sets]), rtol=1e-12)


@pytest.mark.parametrize("top", [1, 3, 100])
def test_a_distribution_is_that_of_the_model(ask, model, top):
    check_described(answer(ask, "/distribution", top=top), model.distribution(FRAME), [[None] * 4] * 3, top)


def test_conditions_are_those_of_the_distribution(ask, model):
    known = [{"sad": 1}, {}, {"happy": 0, "loud": 0}]
    matrix = np.array([[row.get(name, np.nan) for name in NAMES] for row in known])
    words = [[row.get(name) for name in NAMES] for row in known]
    check_described(answer(ask, "/condition", known=known), model.distribution(FRAME).condition(matrix), words)


@pytest.mark.parametrize("metric", sorted(decisions.BY_NAME))
def test_expected_metrics_are_those_of_the_distribution(ask, model, metric):
    given = answer(ask, "/expected", sets=[["sad"], [], ["loud", "happy", "sad"]], metric=metric)
    Y = np.array([[0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]])
    np.testing.assert_allclose(given["expected"], decisions.expected(model.distribution(FRAME), metric, Y), rtol=1e-12)


def test_a_value_that_the_model_does_not_know_counts_as_missing_and_is_noted(ask):
    foreign = [{**row, "mode": "lydian"} for row in ROWS[:2]]
    missing = [{**row, "mode": None} for row in ROWS[:2]]
    given, expected = (ask("POST", "/predict", json={"rows": rows}).json() for rows in (foreign, missing))
    assert given["predictions"] == expected["predictions"]
    (note,) = given["notes"]
    assert note == ("Column 'mode': values that the model doesn't know count as missing in 2 rows (row 1: 'lydian').")
    text = pd.DataFrame(foreign).to_csv(index=False).encode()
    of_csv = ask("POST", "/predict", content=text, headers={"Content-Type": "text/csv"}).json()
    assert of_csv["predictions"] == expected["predictions"] and "doesn't know" in of_csv["notes"][0]


def test_the_model_tells_columns_labels_space_training_and_held_out_figures(ask, model):
    about = ask("GET", "/model").json()
    assert about["columns"] == [
        {"name": "tempo", "kind": "number"},
        {"name": "key, b", "kind": "number"},
        {"name": "höhe", "kind": "number"},
        {"name": "mode", "kind": "nominal", "values": list(MODES)},
    ]
    assert (about["name"], about["labels"], about["decision"]) == ("songs", list(NAMES), "exact_match")
    smallest, largest = model.distribution(FRAME).sizes()
    assert about["space"] == {"description": "observed", "min_labels": smallest, "max_labels": largest}
    assert about["training"]["n_rows"] == 80 and about["training"]["n_folds"] == 2
    folds = model.validation["exact_match"]
    assert about["held_out"]["exact_match"] == {"mean": np.mean(folds), "folds": folds}
    assert about["tagging"] is False
    assert about["limits"] == {"bytes": 2**23, "rows": 10_000, "seconds": 30.0, "queue": 16, "top": 100}


def test_held_out_means_are_those_of_the_folds_with_complete_rows(model):
    folds = {"exact_match": [np.nan, 0.25, 0.5], "hamming_loss": [np.nan, np.nan, np.nan]}
    client = Client(make_app(replace(model, validation=folds), "songs"))
    try:
        found = client("GET", "/model").json()["held_out"]
    finally:
        client.close()
    assert found["exact_match"] == {"mean": 0.375, "folds": [None, 0.25, 0.5]}
    assert found["hamming_loss"] == {"mean": None, "folds": [None] * 3}


@contextlib.asynccontextmanager
async def starting(model):
    """A client of a service that has just been started."""
    app = make_app(model, "songs")
    async with (
        app._app._app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        yield client


def test_the_process_says_that_it_runs_before_and_that_it_is_ready_after_all_is_compiled(model, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(_answers.Answers, "warm_up", lambda self: (go.wait(30), setattr(self, "about", {})))

    async def story():
        async with starting(model) as client:
            early = [(await client.get(path)).status_code for path in ("/health", "/ready", "/model")]
            assert (await client.get("/ready")).headers["Retry-After"] == "1"
            go.set()
            for _ in range(1000):
                if (await client.get("/ready")).status_code == 200:
                    return early
                await asyncio.sleep(0.01)

    assert asyncio.run(story()) == [200, 503, 503]


# What is wrong


def changed(row, **cells):
    rows = [dict(own) for own in ROWS]
    rows[row].update(cells)
    return {"rows": rows}


def without(row, name):
    rows = [dict(own) for own in ROWS]
    del rows[row][name]
    return {"rows": rows}


@pytest.mark.parametrize(
    "path, body, words",
    [
        ("/predict", changed(1, tempo="fast"), "Row 2, column 'tempo' must be a number, or null .*; found 'fast'"),
        ("/predict", changed(2, tempo=True), "Row 3, column 'tempo' must be a number, or null .*; found True"),
        ("/predict", changed(0, tempo=[1]), r"Row 1, column 'tempo' must be a number, or null .*; found \[1\]"),
        ("/predict", changed(0, mode=3), "Row 1, column 'mode' must be a text, or null .*; found 3"),
        ("/predict", without(2, "key, b"), "Row 3 lacks the column 'key, b'; where its value is missing, write null"),
        ("/predict", {"rows": []}, "rows must have at least 1 entries"),
        ("/predict", {"rows": [1]}, "Row 1 must be an object; found 1"),
        ("/predict", {"rows": {}}, "rows must be a list; found {}"),
        ("/predict", [], "The request must be an object"),
        ("/predict", {}, "The request must have the key rows"),
        ("/predict", {"rows": ROWS, "dicision": "f1"}, "must not have the key 'dicision'"),
        ("/predict", {"rows": ROWS, "decision": "best"}, "decision must be 'exact_match', 'f1', .*found 'best'"),
        ("/predict", {"rows": ROWS, "answer_sizes": [1]}, "answer_sizes must have at least 2 entries"),
        ("/predict", {"rows": ROWS, "answer_sizes": [3, 1]}, "0 <= min_labels <= max_labels"),
        ("/predict", {"rows": ROWS, "answer_sizes": [-1, 1]}, "answer_sizes must be greater than or equal to 0"),
        ("/distribution", {"rows": ROWS, "top": 0}, "top must be greater than or equal to 1"),
        ("/distribution", {"rows": ROWS, "top": 101}, "top must be less than or equal to 100"),
        ("/condition", {"rows": ROWS}, "must have the key known"),
        ("/condition", {"rows": ROWS, "known": [{}]}, "known must have an entry for each of the 3 rows; got 1"),
        ("/condition", {"rows": ROWS, "known": [{}, {"glad": 1}, {}]}, "Row 2, known: 'glad' is no label"),
        ("/condition", {"rows": ROWS, "known": [{"sad": 2}, {}, {}]}, "Row 1, known: must be 0 or 1; found 2"),
        (
            "/condition",
            {"rows": ROWS, "known": [{}, {}, dict.fromkeys(NAMES, 0)]},
            "Row 3: no label set of the model fits",
        ),
        ("/expected", {"rows": ROWS, "sets": [[], [], ["glad"]], "metric": "f1"}, "Row 3, sets: must be labels of"),
        ("/expected", {"rows": ROWS, "sets": [[]], "metric": "f1"}, "sets must have an entry for each of the 3 rows"),
        ("/expected", {"rows": ROWS, "sets": [[]] * 3, "metric": "auc"}, "metric must be 'exact_match'"),
    ],
)
def test_what_is_wrong_with_json_is_told_by_row_and_column(ask, path, body, words):
    assert re.search(words, refused(ask("POST", path, json=body), 422))


@pytest.mark.parametrize(
    "text",
    ["{", "", "\xff", "NaN", '{"rows": [{"tempo": 1e999}]}', '{"rows": ' + "[" * 5000, '{"rows": "\\ud83d"}'],
)
def test_json_that_is_none_is_told_so(ask, text):
    content, headers = text.encode("latin-1"), {"Content-Type": "application/json"}
    assert refused(ask("POST", "/predict", content=content, headers=headers), 422)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e999", "1" + "0" * 400])
def test_numbers_that_are_not_finite_are_refused_by_row_and_column(ask, number):
    text = json.dumps(changed(1, tempo=0.123)).replace("0.123", number)
    sentence = refused(ask("POST", "/predict", content=text, headers={"Content-Type": "application/json"}), 422)
    assert re.match("Row 2, column 'tempo' must be a (finite )?number, or null", sentence)


def test_the_address_of_a_table_is_checked_too(ask):
    content, headers = FRAME.to_csv(index=False).encode(), {"Content-Type": "text/csv"}
    for query, words in {
        "decision=best": "decision must be 'exact_match'",
        "dicision=f1": "The address must not have the key 'dicision'",
        "answer_sizes=1": "answer_sizes must be the least and the most labels, such as 1,3 or ,3; found '1'",
        "answer_sizes=1,-1": "answer_sizes must be the least",
    }.items():
        assert words in refused(ask("POST", f"/predict?{query}", content=content, headers=headers), 422)
    assert "takes no ?top=" in refused(ask("POST", "/distribution?top=3", json={"rows": ROWS}), 422)


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda table: table.assign(tempo=["1", "x", "2"]),
            r"^Row 2, line 3: column 'tempo' must be a number; found 'x'\.$",
        ),
        (lambda table: table.drop(columns="höhe"), "The request lacks 1 of the model's features: höhe"),
        (lambda table: table.iloc[:0], "has no rows"),
    ],
)
def test_what_is_wrong_with_a_table_is_told_by_row_and_column(ask, change, words):
    content = change(FRAME).to_csv(index=False).encode()
    sentence = refused(ask("POST", "/predict", content=content, headers={"Content-Type": "text/csv"}), 422)
    assert re.search(words, sentence)


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08\x00", b"\xff\xfe", b"a\0b", b'"', b"PK\x03\x04"])
def test_bytes_that_are_no_table_are_told_so(ask, content):
    assert refused(ask("POST", "/predict", content=content, headers={"Content-Type": "text/csv"}), 422)


@pytest.mark.parametrize(
    "method, path, options, status, words",
    [
        ("GET", "/predict", {}, 405, "takes POST only; got GET"),
        ("POST", "/model", {}, 405, "takes GET only; got POST"),
        ("GET", "/nothing", {}, 404, "nothing at this address"),
        ("GET", "/docs", {}, 404, "nothing at this address"),
        ("POST", "/predict", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "application/json or"),
        ("POST", "/expected", {"content": b"{}", "headers": {"Content-Type": "text/csv"}}, 415, "json; got text/csv"),
        ("POST", "/predict", {"content": iter([b"{}"])}, 411, "must say its length"),
        ("GET", "/model", {"headers": {"Host": "evil.example"}}, 403, "for this machine only"),
    ],
)
def test_requests_that_are_not_answered_are_told_why(ask, method, path, options, status, words):
    if "content" in options and not isinstance(options["content"], bytes):

        async def pieces():
            yield b"{}"

        options = {"content": pieces()}
    assert words in refused(ask(method, path, **options), status)


# Limits


def test_larger_requests_than_the_limits_are_refused(start):
    ask = start(limits=Limits(bytes=1000, rows=2))
    headers = {"Content-Type": "application/json"}
    sentence = refused(ask("POST", "/predict", content=b" " * 1001, headers=headers), 413)
    assert "at most 1000 bytes; got 1001" in sentence
    assert "rows must have at most 2 entries" in refused(ask("POST", "/predict", json={"rows": ROWS}), 422)
    table = FRAME.to_csv(index=False).encode()
    sentence = refused(ask("POST", "/predict", content=table, headers={"Content-Type": "text/csv"}), 422)
    assert "at most 2 rows; got 3" in sentence


@pytest.mark.parametrize("path, more", [("/distribution", {}), ("/condition", {"known": [{}] * 3000})])
def test_an_answer_that_would_be_too_long_is_refused(ask, path, more):
    body = {"rows": ROWS * 1000, "top": 100, **more}
    words = r"With 4 labels and 100 sets a row, an answer describes at most 2520 rows; got 3000"
    assert re.match(words, refused(ask("POST", path, json=body), 422))


@pytest.mark.parametrize("path, more", [("/distribution", {}), ("/condition", {"known": [{}] * 3000})])
def test_an_answer_that_would_be_too_long_is_not_computed_first(ask, path, more, monkeypatch):
    monkeypatch.setattr(automatic.Model, "distribution", lambda *_: pytest.fail("computed"))
    assert "at most 2520 rows" in refused(ask("POST", path, json={"rows": ROWS * 1000, "top": 100, **more}), 422)


def test_far_too_many_lines_are_refused_before_they_are_read(ask, monkeypatch):
    headers = {"Content-Type": "text/csv"}
    quoted = b'"tempo","key, b",mode,"h\xc3\xb6he"\n1,2,"' + b"\n" * 30_000 + b'",3\n'
    assert ask("POST", "/predict", content=quoted, headers=headers).status_code == 200  # one row of many lines
    monkeypatch.setattr(_answers, "read", lambda *_, **__: pytest.fail("read"))
    sentence = refused(ask("POST", "/predict", content=b"tempo\n" + b"1\n" * 30_000, headers=headers), 422)
    assert sentence == "The request must have at most 10000 rows; got 30001 lines."


def test_a_text_that_would_take_too_much_memory_is_refused_by_its_place(monkeypatch):
    texts = tuple(f"word{place % 5} other" for place in range(40))
    Y = np.arange(80).reshape(40, 2) % 3 == 0
    data = MultilabelData(
        np.arange(40.0)[:, None], Y.astype(np.int8), ("title",), ("a", "b"), "d", texts={"title": texts}
    )
    monkeypatch.setattr(auto, "LINEAR_C", (1.0,))
    model = automatic.choose(data, scores="linear", label_space="cardinality", quality="fast", n_folds=2)
    ask = Client(make_app(model, "d"))
    rows = [{"title": "a" * _answers.MAX_CHARACTERS}, {"title": "a" * (_answers.MAX_CHARACTERS + 1)}]
    assert ask("POST", "/predict", json={"rows": rows[:1]}).status_code == 200
    sentence = refused(ask("POST", "/predict", json={"rows": rows}), 422)
    assert sentence == "Row 2, column 'title' must have at most 131072 characters; got 131073."
    ask.close()


@pytest.fixture
def stopped(model, monkeypatch):
    """An event until which every answer waits."""
    go, answer = threading.Event(), automatic.Model.answer
    monkeypatch.setattr(automatic.Model, "answer", lambda self, given: (go.wait(30), answer(self, given))[1])
    return go


def predictions(n):
    return [(("POST", "/predict"), {"json": {"rows": ROWS}})] * n


def test_requests_beyond_the_queue_are_told_to_come_again_and_the_others_are_answered(start, stopped):
    stopped.set()
    ask = start(limits=Limits(queue=2))
    stopped.clear()
    threading.Timer(1.0, stopped.set).start()
    answers = ask.together(*predictions(8))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [503] * 5
    for refusal in (answer for answer in answers if answer.status_code == 503):
        assert refused(refusal, 503) == "2 requests wait already; ask again later."
        assert refusal.headers["Retry-After"] == "1"
    assert ask("POST", "/predict", json={"rows": ROWS}).status_code == 200


def test_only_a_request_whose_turn_has_not_come_is_told_to_come_again(start, stopped):
    stopped.set()
    ask = start(limits=Limits(queue=2, seconds=0.2))
    stopped.clear()
    begun, waiting = ask.together(*predictions(2))
    assert refused(begun, 503) == "The answer takes longer than 0.2 s; ask for fewer rows."
    assert "Retry-After" not in begun.headers and waiting.headers["Retry-After"] == "1"
    stopped.set()


def test_an_answer_that_takes_too_long_is_told_so_and_keeps_its_place_until_it_is_done(start, stopped):
    stopped.set()
    ask = start(limits=Limits(queue=0, seconds=0.2))
    stopped.clear()
    sentence = refused(ask("POST", "/predict", json={"rows": ROWS}), 503)
    assert sentence.startswith("The answer takes longer than 0.2 s")
    assert refused(ask("POST", "/predict", json={"rows": ROWS}), 503).startswith("0 requests wait already")
    stopped.set()
    deadline = time.monotonic() + 20
    while ask("POST", "/predict", json={"rows": ROWS}).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Who may ask, and what is told of it


def test_with_a_token_only_who_knows_it_is_answered_but_for_the_state_of_the_process(start):
    ask = start(token="abc")
    for path in ("/health", "/ready"):
        assert ask("GET", path).status_code == 200
    for method, path in (("GET", "/model"), ("GET", "/openapi.json"), ("GET", "/metrics"), ("POST", "/predict")):
        for header in ({}, {"Authorization": "Bearer abcd"}, {"Authorization": "abc"}):
            response = ask(method, path, headers=header)
            assert "token is missing or wrong" in refused(response, 401)
            assert response.headers["WWW-Authenticate"] == "Bearer"
    given = {"Authorization": "Bearer abc"}
    assert ask("GET", "/model", headers=given).status_code == 200
    assert ask("GET", "/openapi.json", headers=given).json()["security"] == [{"token": []}]


def test_foreign_pages_may_ask_only_where_their_origin_is_named(ask, start):
    foreign = {"Origin": "https://example.org"}
    preflight = {**foreign, "Access-Control-Request-Method": "POST"}
    assert ask("OPTIONS", "/predict", headers=preflight).status_code == 405
    assert "access-control-allow-origin" not in ask("GET", "/health", headers=foreign).headers
    named = start(origins=["https://example.org"], token="abc")
    response = named("OPTIONS", "/predict", headers=preflight)
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "https://example.org")
    other = named("GET", "/health", headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "serving, host, status",
    [
        (Serving(), "127.0.0.1:8000", 200),
        (Serving(), "[::1]:8000", 200),
        (Serving(), "models.example", 403),
        (Serving(names=("Models.example",)), "models.example:80", 200),
        (Serving(names=("models.example",)), "other.example", 403),
        (Serving("0.0.0.0"), "models.example", 200),
        (Serving("0.0.0.0", names=("models.example",)), "other.example", 403),
    ],
)
def test_the_server_is_asked_under_its_own_names(model, serving, host, status):
    async def asked():
        transport = httpx.ASGITransport(serving.app(model, "songs"))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/health", headers={"Host": host})

    assert asyncio.run(asked()).status_code == status


@pytest.mark.parametrize("path", ["/", "/start.js", "/drawing.css"])
def test_the_address_changes_nothing_of_a_file_of_the_page(ask, path):
    plain = ask("GET", path)
    asked = ask("GET", path, params={"content": "<script src='/start.js?content=alert(1)'></script>", "kind": "text/x"})
    assert (asked.status_code, asked.content) == (200, plain.content)
    assert asked.headers["Content-Type"] == plain.headers["Content-Type"]


def test_every_answer_has_the_headers_that_protect_a_page(ask):
    for response in (ask("GET", "/health"), ask("GET", "/nothing"), ask("POST", "/predict", json={})):
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_the_log_has_times_and_numbers_and_nothing_that_was_sent(ask, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("mlrh.web"), "propagate", True)
    with caplog.at_level(logging.INFO, "mlrh.web"):
        answer(ask, "/predict")
        ask("POST", "/predict", json=changed(0, mode=SECRET))
        ask("POST", "/predict", json=changed(0, tempo=SECRET))
        ask("POST", f"/predict?{SECRET}=1", json={"rows": ROWS})
        ask("GET", f"/{SECRET}")
    lines = caplog.text.splitlines()
    assert re.search(r"POST /predict 200, 3 rows, \d+ ms$", lines[0])
    assert len(lines) == 5 and SECRET not in caplog.text


def test_the_log_and_the_metrics_name_every_address_that_there_is_and_no_other(start, caplog, monkeypatch):
    rows = CardinalitySpace(4, 1, 2).distribution(np.zeros((2, 4)))
    ask = start(tagging=Tagging(Session(rows, NAMES)))
    monkeypatch.setattr(logging.getLogger("mlrh.web"), "propagate", True)
    pages = [*page_files("/", "start"), *page_files("/tag", "tag")]
    others = [
        "/openapi.json",
        *ACTIONS,
        *(f"/api/{name}" for name in ("session", "row", "image", "retrain", "retraining")),
    ]
    paths = [*dict.fromkeys(pages), *others, *ask("GET", "/openapi.json").json()["paths"]]
    caplog.clear()
    with caplog.at_level(logging.INFO, "mlrh.web"):
        for path in (*paths, "/favicon.ico"):
            ask("GET", path)
    said = [re.search(r"GET (\S+) ", line)[1] for line in caplog.text.splitlines()]
    assert said == [*paths, "other"]
    assert 'path="/",status="200"' in ask("GET", "/metrics").text
    assert set(PATHS) == {*paths, "other"}


def test_a_fault_of_the_program_is_traced_in_the_log_without_what_was_sent(ask, caplog, monkeypatch):
    def fail(self, distribution):
        raise RuntimeError(SECRET)

    monkeypatch.setattr(automatic.Model, "answer", fail)
    monkeypatch.setattr(logging.getLogger("mlrh.web"), "propagate", True)
    with pytest.raises(RuntimeError):  # the server of HTTP is told too
        ask("POST", "/predict", json={"rows": ROWS})
    assert "RuntimeError in /predict" in caplog.text and "in fail" in caplog.text
    assert SECRET not in caplog.text


def test_metrics_count_answers_rows_and_times_as_prometheus_reads_them(start):
    ask = start()
    answer(ask, "/predict")
    answer(ask, "/distribution")
    refused(ask("POST", "/predict", json={}), 422)
    response = ask("GET", "/metrics")
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    line = re.compile(r'(?:# (?:HELP|TYPE) .+|[a-z_]+(?:\{[a-z]+="[^"]*"(?:,[a-z]+="[^"]*")*\})? [0-9.]+)')
    lines = response.text.splitlines()
    assert all(line.fullmatch(own) for own in lines)
    assert 'mlrh_requests_total{path="/predict",status="200"} 1' in lines
    assert 'mlrh_requests_total{path="/predict",status="422"} 1' in lines
    assert 'mlrh_request_seconds_count{path="/predict"} 2' in lines
    assert 'mlrh_request_seconds_bucket{path="/predict",le="+Inf"} 2' in lines
    assert "mlrh_rows_total 6" in lines and "mlrh_waiting 0" in lines


def test_the_openapi_names_the_columns_and_labels_of_the_model(ask):
    document = ask("GET", "/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert list(schemas["Row"]["properties"]) == schemas["Row"]["required"] == ["tempo", "key, b", "höhe", "mode"]
    assert set(schemas["Known"]["properties"]) == set(NAMES)
    paths = {"/predict", "/distribution", "/condition", "/expected", "/model", "/health", "/ready", "/metrics"}
    assert set(document["paths"]) == paths
    assert set(document["paths"]["/predict"]["post"]["requestBody"]["content"]) == {"application/json", "text/csv"}
    asked = [method for path in document["paths"].values() for method in path.values() if method.get("parameters")]
    parameters = [(own["operationId"], {one["name"] for one in own["parameters"]}) for own in asked]
    assert parameters == [("predict_predict_post", {"decision", "answer_sizes"})]
