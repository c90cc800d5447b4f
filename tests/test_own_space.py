"""What is built on label spaces takes one that a test wrote: chunks, boosting, pools, searches, files and pages."""

import numpy as np
import pytest
import sklearn
from test_spaces_contract import N_LABELS, Runs, rows_of_runs

from mlrh import (
    CalibratedSets,
    KernelMLRHClassifier,
    KernelMLRHClassifierCV,
    MLRHAuto,
    MLRHBoostingClassifier,
    MLRHClassifier,
    MLRHClassifierCV,
    PooledSets,
    TunedThresholds,
    automatic,
    persistence,
)
from mlrh.data import MultilabelData

X, Y = rows_of_runs()
RUNS = Runs(N_LABELS)
HALVES = [(X[:70], Y[:70]), (X[70:], Y[70:])]
TIGHT = {"tol": 1e-12, "max_iter": 10_000}


def are_runs(sets):
    """Whether no set is empty or has a gap; about half of all sets have."""
    return all(y.any() and np.ptp(np.flatnonzero(y)) == y.sum() - 1 for y in sets)


@pytest.fixture(scope="module")
def whole():
    return MLRHClassifier(label_space=RUNS, **TIGHT).fit(X, Y)


@pytest.mark.parametrize("checkpoint", [None, "fit.checkpoint"])
def test_a_fit_over_chunks_is_that_to_all_rows(whole, tmp_path, checkpoint):
    kept = None if checkpoint is None else tmp_path / checkpoint
    chunks = MLRHClassifier(label_space=RUNS, **TIGHT).fit_chunks(HALVES, checkpoint=kept)
    assert chunks.objective_ == pytest.approx(whole.objective_, rel=1e-10)
    np.testing.assert_allclose(chunks.coef_, whole.coef_, atol=1e-5)


def test_partial_fits_come_to_the_fit_to_all_rows(whole):
    model = MLRHClassifier(label_space=RUNS, **TIGHT)
    for rows, sets in HALVES:
        model.partial_fit(rows, sets, classes=range(N_LABELS))
    np.testing.assert_allclose(model.predict_proba(X), whole.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("classifier", [MLRHClassifierCV, KernelMLRHClassifierCV])
def test_a_search_over_c_scores_held_out_rows_by_the_space(classifier):
    model = classifier(Cs=[1e-6, 1.0], cv=2, label_space=RUNS).fit(X, Y)
    assert model.C_ == 1.0 and are_runs(model.predict(X))


def test_an_l1_penalty_leaves_features_out():
    dense, sparse = (MLRHClassifier(label_space=RUNS, l1_ratio=share, C=0.02).fit(X, Y) for share in (0.0, 1.0))
    assert np.count_nonzero(dense.coef_) == dense.coef_.size > np.count_nonzero(sparse.coef_)


def boosted(n_estimators):
    return MLRHBoostingClassifier(label_space=RUNS, n_estimators=n_estimators, random_state=0, n_jobs=1)


def test_boosting_makes_its_sets_more_probable_round_by_round():
    log_probs = [boosted(n).fit(X, Y).distribution(X).log_prob(Y).mean() for n in (1, 5, 25)]
    assert log_probs[0] < log_probs[1] < log_probs[2]
    assert are_runs(boosted(5).fit(X, Y).predict(X))


@pytest.mark.parametrize("pooling", ["mixture", "geometric"])
def test_a_pool_averages_the_probabilities_of_its_members(pooling):
    members = [("a", MLRHClassifier(label_space=RUNS)), ("b", KernelMLRHClassifier(label_space=RUNS))]
    pool = PooledSets(members, weights=[0.25, 0.75], pooling=pooling).fit(X, Y)
    sets = RUNS.runs
    first, second = (
        np.stack([member.distribution(X).prob(np.tile(y, (len(X), 1))) for y in sets], axis=1)
        for member in pool.estimators_
    )
    expected = 0.25 * first + 0.75 * second if pooling == "mixture" else first**0.25 * second**0.75
    expected /= expected.sum(axis=1, keepdims=True)
    for y, column in zip(sets, expected.T, strict=True):
        np.testing.assert_allclose(pool.distribution(X).prob(np.tile(y, (len(X), 1))), column, rtol=1e-9)


SAVED = {
    "linear": lambda: MLRHClassifier(label_space=RUNS),
    "kernel": lambda: KernelMLRHClassifier(label_space=RUNS),
    "search over C": lambda: MLRHClassifierCV(Cs=[0.1, 1.0], cv=2, label_space=RUNS),
    "boosted": lambda: boosted(3),
    "pool": lambda: PooledSets([("a", MLRHClassifier(label_space=RUNS)), ("b", boosted(3))], weights="equal"),
    "calibrated": lambda: CalibratedSets(MLRHClassifier(label_space=RUNS), cv=2),
    "thresholds": lambda: TunedThresholds(MLRHClassifier(label_space=RUNS), cv=2),
    "automatic": lambda: MLRHAuto(label_space=RUNS, quality="fast", scores="linear", time_budget=None, cv=2),
}


@pytest.mark.parametrize("make", SAVED.values(), ids=SAVED)
def test_every_classifier_is_saved_and_loaded_by_naming_the_class(make, path):
    model = make().fit(X, Y)
    persistence.save(model, path)
    np.testing.assert_array_equal(persistence.load(path, spaces=[Runs]).predict_proba(X), model.predict_proba(X))
    with pytest.raises(persistence.ModelFileError, match=r"Runs; .*persistence\.load and spaces=\[Runs\]"):
        persistence.load(path)


NAMES = tuple("abc")


DATA = MultilabelData(X, Y.astype(np.int8), NAMES, tuple("klmno"), "runs")


@pytest.fixture(scope="module")
def of_table():
    """A model as `mlrh fit` makes it."""
    return automatic.choose(DATA, scores="linear", quality="fast", label_space=RUNS, n_folds=2)


def test_the_service_and_the_page_answer_with_its_sets(of_table):
    pytest.importorskip("fastapi")
    from test_service import Client

    from mlrh.web._application import make_app
    from mlrh.web._server import make_session

    rows = [dict(zip(NAMES, row, strict=True)) for row in X[:5].tolist()]
    client = Client(make_app(of_table, "runs"))
    try:
        answers = client("POST", "/predict", json={"rows": rows}).json()["predictions"]
        about = client("GET", "/model").json()["space"]
    finally:
        client.close()
    for answer, mode in zip(answers, of_table.distribution(DATA).mode()[:5], strict=True):
        assert answer["labels"] == ["klmno"[k] for k in np.flatnonzero(mode)]
    assert about == {"description": "Runs", "min_labels": 1, "max_labels": N_LABELS}
    session, _ = make_session(of_table, DATA)
    session.accept(1)
    np.testing.assert_array_equal(session.known()[0], of_table.distribution(DATA).mode()[0])


@pytest.mark.parametrize("command", ["predict", "serve", "export"])
def test_a_command_says_where_a_model_with_such_a_space_can_be_loaded(of_table, path, failure, command):
    persistence.save(of_table, path)
    rows = path.with_name("new.csv")
    rows.write_text("a,b,c\n1,2,3\n")
    line = failure(command, path, *([rows] if command == "predict" else []))
    assert "in Python by mlrh.persistence.load and spaces=[Runs]" in line


def test_tensors_are_fitted_and_answered_by_the_space_itself(whole, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # which scikit-learn asks for
    with sklearn.config_context(array_api_dispatch=True):
        model = MLRHClassifier(label_space=RUNS, tol=1e-9).fit(torch.tensor(X), torch.tensor(Y))
        answers = model.predict_proba(torch.tensor(X))
    assert isinstance(answers, torch.Tensor)
    np.testing.assert_allclose(answers.numpy(), whole.predict_proba(X), atol=1e-4)
