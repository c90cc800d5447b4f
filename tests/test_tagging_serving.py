"""How the page is started from Python, with a classifier or a model, and what is told then."""

import re
import threading
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
from samples import make_multilabel
from scipy import sparse
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import MLRHClassifier
from mlrh.automatic import choose
from mlrh.data import DataError, MultilabelData
from mlrh.web import _server as serving_module
from mlrh.web import known_of, serve
from mlrh.web._server import make_session

NAN = np.nan
RNG = np.random.default_rng(0)


def fitted():
    X, Y = make_multilabel(80)
    return MLRHClassifier().fit(X, Y), X


@pytest.fixture
def person(monkeypatch):
    """A function that says what a person does with the server, instead of serving it."""

    def does(action):
        def run(server):
            try:
                action(server)
            finally:
                server.server_close()

        monkeypatch.setattr(serving_module, "run", run)

    return does


def test_serve_returns_what_was_decided_until_the_interrupt(person, tmp_path):
    classifier, X = fitted()
    told = []

    @person
    def decides(server):
        server.tagging.session.decide(2, "rock", 1)
        server.tagging.session.decide(80, "jazz", 0)
        raise KeyboardInterrupt

    names = ["rock", "jazz", "folk", "soul"]
    options = {"label_names": names, "output": tmp_path / "c.csv", "open_browser": False, "tell": told.append}
    known = serve(classifier, X, **options)
    expected = np.full((80, 4), NAN)
    expected[1, 0], expected[79, 1] = 1, 0
    np.testing.assert_array_equal(known, expected)
    np.testing.assert_array_equal(known_of(tmp_path / "c.csv", 80, names), expected)
    assert len(told) == 2 and told[0] == f"Decisions are saved in {tmp_path / 'c.csv'}."
    assert re.match(
        r"The page is at http://127\.0\.0\.1:\d+/tag\?token=[\w-]{32} for this machine; Ctrl-C ends it", told[1]
    )


@pytest.mark.parametrize(
    "text, words",
    [
        ("row,0,1,2,3\n2,1,,,\n", r" in .*c\.csv, where .*; it lacks the fingerprint of 1 decided row, so make sure"),
        (None, r" in .*c\.csv, where decisions are saved\.$"),
    ],
)
def test_going_on_from_a_file_is_told_in_the_terminal_and_to_the_page(person, tmp_path, text, words):
    classifier, X = fitted()
    path = tmp_path / "c.csv"
    if text is None:
        make_session(classifier, X, output=path)[0].decide(2, "0", 1)
    else:
        path.write_text(text)
    told, overviews = [], []
    person(lambda server: overviews.append(server.tagging.about))
    serve(classifier, X, output=path, open_browser=False, tell=told.append)
    assert re.match(f"Going on from 1 decided row{words}", told[0]) and len(told) == 2
    assert (overviews[0]["n_resumed"], overviews[0]["output"]) == (1, str(path))


def test_decisions_about_other_rows_are_not_gone_on_from(tmp_path):
    classifier, X = fitted()
    session, _ = make_session(classifier, X, output=tmp_path / "c.csv")
    session.decide(2, "0", 1)
    session.decide(5, "0", 1)
    make_session(classifier, sparse.csr_array(X), feature_names=list("abcdef"), output=tmp_path / "c.csv")
    with pytest.raises(DataError, match="the decisions are about other rows: 2 of 2 have other features here, row 2"):
        make_session(classifier, X[::-1], output=tmp_path / "c.csv")


@pytest.mark.parametrize("screen, opened", [({"DISPLAY": ":0"}, 1), ({}, 0)])
def test_the_browser_is_opened_where_there_is_a_screen(person, monkeypatch, screen, opened):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in screen.items():
        monkeypatch.setenv(name, value)
    asked, pages, told, done = [], [], [], threading.Event()
    monkeypatch.setattr(serving_module.sys, "platform", "linux")

    def browse(address):
        asked.append(address)
        page = Path(urlsplit(address).path)
        assert page.parent.stat().st_mode & 0o777 == 0o700
        pages.append(page.read_text())
        done.set()

    monkeypatch.setattr(serving_module.webbrowser, "open", browse)

    @person
    def waits(server):
        assert done.wait(5 if opened else 0.1) == bool(opened)

    serve(*fitted(), tell=told.append)
    address = re.search(r"http:\S+", told[0])[0]
    assert len(asked) == len(pages) == opened
    assert all(f'content="0; url={address}"' in page for page in pages)
    assert all("token" not in page and not Path(urlsplit(page).path).exists() for page in asked)


def test_answers_of_a_classifier_are_its_distribution_given_the_decision():
    classifier, X = fitted()
    session, _ = make_session(classifier, X)
    answer = session.decide(7, "2", 1)
    expected = classifier.distribution(X[[6]]).condition([[NAN, NAN, 1, NAN]]).marginals()[0]
    np.testing.assert_allclose([label["marginal"] for label in answer["labels"]], expected, rtol=1e-12)
    assert {feature["name"] for feature in answer["features"]} == {f"feature {k}" for k in range(1, 7)}


def test_rows_of_a_frame_and_classes_of_one_label_each_have_their_own_names():
    X = pd.DataFrame(RNG.normal(size=(60, 2)), columns=["height", "width"])
    kinds = np.array(["cat", "dog", "owl"])[np.argmax(np.c_[X, np.zeros(60)], axis=1)]
    session, _ = make_session(MLRHClassifier().fit(X, kinds), X)
    answer = session.decide(1, "owl", 1)
    assert [label["marginal"] for label in answer["labels"]] == [0.0, 0.0, 1.0]
    assert {feature["name"] for feature in answer["features"]} == {"height", "width"}
    two, _ = make_session(MLRHClassifier().fit(X, kinds == "owl"), X)
    assert two.overview()["label_names"] == ["True"]


def test_a_model_of_a_file_shows_its_own_names_and_nominal_values():
    X = np.column_stack([np.arange(12) % 3, RNG.normal(size=12)]).astype(float)
    Y = np.column_stack([X[:, 0] == 0, X[:, 0] != 0]).astype(np.int8)
    data = MultilabelData(X, Y, ("colour", "size"), ("warm", "cold"), "things", {"colour": ("red", "blue", "grey")})
    model = choose(data, scores="linear", label_space="cardinality", n_folds=2)
    colours = np.array(["red", "blue", "grey"])[X[:, 0].astype(int)]
    for rows in (data, pd.DataFrame({"size": X[:, 1], "colour": colours})):
        session, about = make_session(model, rows)
        answer = session.decide(1, "warm", 0)
        expected = model.distribution(data.rows([0])).condition([[0, NAN]]).marginals()[0]
        np.testing.assert_allclose([label["marginal"] for label in answer["labels"]], expected, rtol=1e-12)
        assert {cell["name"]: cell["text"] for cell in answer["cells"]} == {"colour": "red"}
        shown = {feature["name"]: feature["value"] for feature in answer["features"]}
        assert shown == {"size": f"{X[0, 1]:.4g}"}
        assert about["output"] is None


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda c, X: (make_pipeline(StandardScaler(), c), X, {}), r"got Pipeline\. Of a pipeline p pass p\[-1\]"),
        (lambda c, X: (c, X, {"label_names": ["a", "b"]}), "must name the model's 4 labels; got 2"),
        (lambda c, X: (c, X, {"label_names": ["a", "a", "b", "c"]}), "4 different names, one per label"),
        (lambda c, X: (c, X, {"feature_names": ["a"]}), "must name the 6 columns of X; got 1"),
        (lambda c, X: (c, X[:, :3], {}), "X has 3 features"),
        (lambda c, X: (c, X, {"output": "folder/c.txt"}), r"ends in \.csv"),
        (lambda c, X: (c, X, {"port": 70_000}), "Port 70000 can't be used"),
    ],
)
def test_serve_refuses_what_it_can_not_show_in_one_sentence(change, words):
    model, rows, options = change(*fitted())
    with pytest.raises(ValueError, match=words):
        serve(model, rows, open_browser=False, **options)


def test_a_model_refuses_plain_arrays_and_names_of_features():
    X, Y = make_multilabel(30, n_labels=2, max_labels=2)
    data = MultilabelData(X, Y.astype(np.int8), tuple("uvwxyz"), ("a", "b"), "things")
    model = choose(data, scores="linear", label_space="cardinality", n_folds=2)
    with pytest.raises(ValueError, match="takes a MultilabelData or a DataFrame as X; got ndarray"):
        make_session(model, X)
    with pytest.raises(ValueError, match="feature_names must be left out"):
        make_session(model, data, feature_names=list("uvwxyz"))


def test_complete_rows_of_the_file_fit_a_classifier_as_their_labels_do(tmp_path):
    classifier, X = fitted()
    session, _ = make_session(classifier, X, output=tmp_path / "c.csv")
    for row in range(1, 61):
        session.accept(row)
    session.decide(61, "0", 1)
    known = known_of(tmp_path / "c.csv", len(X))
    complete = ~np.isnan(known).any(axis=1)
    assert complete.sum() == 60
    again = MLRHClassifier().fit(X[complete], known[complete].astype(int))
    expected = MLRHClassifier().fit(X[:60], classifier.predict(X[:60]))
    np.testing.assert_array_equal(again.coef_, expected.coef_)
