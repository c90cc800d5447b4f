"""One application: the service of a model and, where there are rows, the page for tagging them, by the same model."""

import sys

import numpy as np
import pandas as pd
import pytest
from processes import wait_until
from samples import make_multilabel
from test_service import Client, refused

from mlrh import automatic
from mlrh.data import MultilabelData
from mlrh.estimators import auto
from mlrh.spaces import CardinalitySpace
from mlrh.web import _answers
from mlrh.web._application import make_app
from mlrh.web._retraining import Retrained, Retraining
from mlrh.web._server import Server, make_session
from mlrh.web._session import Session
from mlrh.web._tagging import Tagging

NAMES = ("happy", "sad", "calm", "loud")
TOKEN = {"Authorization": "Bearer abc"}


def fitted(seed, modes):
    """A model of songs and its rows."""
    X, Y = make_multilabel(80, seed=seed)
    X = np.column_stack([X[:, :2], np.arange(80) % len(modes)])
    data = MultilabelData(X, Y.astype(np.int8), ("tempo", "key", "mode"), NAMES, "songs", {"mode": modes})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "LINEAR_C", (1.0,))
        return automatic.choose(data, scores="linear", label_space="cardinality", n_folds=2)


@pytest.fixture(scope="module")
def model():
    return fitted(0, ("major", "minor"))


@pytest.fixture(scope="module")
def new_model():
    return fitted(1, ("major", "minor", "dorian"))


FRAME = pd.DataFrame({"tempo": [0.5, -1.5, 2.0], "key": [1.0, 0.0, -2.5], "mode": ["minor", "major", "minor"]})
ROWS = FRAME.to_dict("records")


def tagging_of(model, load=None):
    """Three rows to tag, the first of which is decided, and a fit that ends at once."""
    session, about = make_session(model, FRAME)
    session.accept(1)
    retraining = None if load is None else Retraining(session, [sys.executable, "-c", ""], load, kept="new.mlrh")
    return Tagging(session, about, retraining)


@pytest.fixture
def start(model):
    """A function that gives a client of a new application of the model; all are closed at the end."""
    clients = []

    def started(**options):
        clients.append(Client(make_app(model, "songs", **options)))
        return clients[-1]

    yield started
    for client in clients:
        client.close()


def asked(ask):
    """Marginals of the third row by the service and by the page."""
    served = ask("POST", "/distribution", json={"rows": ROWS}).json()["distributions"][2]
    page = ask("GET", "/api/row?row=3").json()
    return [label["marginal"] for label in served["labels"]], [label["marginal"] for label in page["labels"]]


def retrained(ask):
    """The state of the fit once it has ended."""
    assert ask("POST", "/api/retrain", json={}).json()["state"] == "running"
    wait_until(lambda: ask("GET", "/api/retraining").json()["state"] != "running")
    return ask("GET", "/api/retraining").json()


def test_the_service_and_the_page_answer_about_the_same_row_by_the_same_model(start, model):
    ask = start(tagging=tagging_of(model))
    expected = model.distribution(FRAME).marginals()[2]
    for marginals in asked(ask):
        np.testing.assert_allclose(marginals, expected, rtol=1e-12)
    assert ask("GET", "/model").json()["tagging"] is True
    assert ask("GET", "/api/session").json()["has_service"] is True
    assert [ask("GET", path).status_code for path in ("/", "/tag", "/ready", "/metrics")] == [200] * 4


def test_without_rows_there_is_no_page_for_tagging(start):
    ask = start()
    for path in ("/tag", "/tag.js", "/api/session", "/api/row?row=1"):
        assert "/openapi.json lists the addresses" in refused(ask("GET", path), 404)


def test_a_classifier_that_knows_no_columns_by_name_has_the_page_only():
    session = Session(CardinalitySpace(4, 1, 2).distribution(np.zeros((2, 4))), NAMES)
    ask = Client(make_app(None, "songs", tagging=Tagging(session)), ready="/tag")
    try:
        assert ask("GET", "/tag").status_code == 200
        assert ask("GET", "/api/session").json()["has_service"] is False
        for path in ("/", "/model", "/ready", "/openapi.json"):
            assert "the page is at /tag" in refused(ask("GET", path), 404)
    finally:
        ask.close()


def test_the_changes_of_the_page_are_no_part_of_the_openapi(start, model):
    paths = start(tagging=tagging_of(model))("GET", "/openapi.json").json()["paths"]
    assert "/predict" in paths and not [path for path in paths if path.startswith(("/api", "/tag"))]


def test_one_token_is_for_both_parts_and_the_pages_themselves_need_none(start, model):
    ask = start(tagging=tagging_of(model), token="abc")
    for method, path in (("GET", "/model"), ("POST", "/predict"), ("GET", "/api/row?row=1"), ("POST", "/api/undo")):
        response = ask(method, path)
        assert "token is missing or wrong" in refused(response, 401)
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert [ask("GET", path).status_code for path in ("/", "/tag", "/health", "/ready")] == [200] * 4
    assert ask("GET", "/api/row?row=1", headers=TOKEN).status_code == 200


def test_after_a_fit_by_the_key_r_the_service_answers_by_the_new_model_too(start, model, new_model):
    new = Retrained(new_model.distribution(FRAME), 0.0, new_model)
    ask = start(tagging=tagging_of(model, lambda: new))
    assert ask("GET", "/model").json()["columns"][2]["values"] == ["major", "minor"]
    dorian = {"rows": [{**ROWS[0], "mode": "dorian"}]}
    assert "doesn't know" in ask("POST", "/predict", json=dorian).json()["notes"][0]
    assert retrained(ask)["state"] == "done"
    expected = new_model.distribution(FRAME).marginals()[2]
    for marginals in asked(ask):
        np.testing.assert_allclose(marginals, expected, rtol=1e-12)
    assert ask("GET", "/model").json()["columns"][2]["values"] == ["major", "minor", "dorian"]
    assert ask("POST", "/predict", json=dorian).json()["notes"] == []


def test_a_new_model_that_one_part_can_not_use_is_used_by_none(start, model, new_model, monkeypatch):
    distribution = new_model.distribution(FRAME)
    never = CardinalitySpace(4, 4, 4).distribution(np.zeros((3, 4)))  # without the set that was accepted
    fits = iter([Retrained(distribution, 0.0, new_model), Retrained(never, 0.0, new_model)])
    ask = start(tagging=tagging_of(model, lambda: next(fits)))
    before = asked(ask)
    with monkeypatch.context() as patch:
        patch.setattr(_answers.Answers, "warm_up", lambda self: 1 // 0)
        assert retrained(ask)["error"].startswith("The retrained model can't be used: ")
    assert asked(ask) == before
    assert "What is known of row 1 can't be" in retrained(ask)["error"]
    assert asked(ask) == before


def test_the_server_of_rows_listens_on_this_machine_with_a_token_of_its_own_also_for_the_service(model):
    server = Server(tagging_of(model), model=model, name="songs")
    try:
        assert server.address.startswith("http://127.0.0.1:") and server.address.endswith(f"/tag?token={server.token}")
    finally:
        server.server_close()
