"""MLRHAuto: its figures are those of pipelines written out, and time, Ctrl-C and categories are dealt with."""

import warnings

import numpy as np
import pandas as pd
import pytest
from samples import make_multilabel
from scipy import sparse
from sklearn.metrics import accuracy_score, f1_score, hamming_loss, jaccard_score
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from mlrh import (
    KernelMLRHClassifier,
    MLRHAuto,
    MLRHBoostingClassifier,
    MLRHClassifier,
    PooledSets,
    _budget,
    decisions,
    persistence,
)
from mlrh.estimators import auto
from mlrh.estimators.pool import largest_likelihood
from mlrh.model_selection import MultilabelStratifiedKFold
from mlrh.spaces import GroupSpace, Mixture

X, Y = make_multilabel(60)
# By log-loss the largest C is best for the easy data of the checks, where tol leaves more digits open than they allow.
CHECKED = [
    MLRHAuto(scores="linear", quality="fast", metric="f1", cv=2, time_budget=None, select_by="metric"),
]


@pytest.fixture
def tiny_grids(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (0.01, 1.0))
    monkeypatch.setattr(auto, "RBF_C", (1.0, 30.0))
    monkeypatch.setattr(auto, "RBF_GAMMA", (1.0, 0.3))
    monkeypatch.setattr(auto, "ROUNDS", (2, 6))
    monkeypatch.setattr(auto, "SEARCH_TOL", 1e-7)


@pytest.fixture
def two_values_of_c(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (0.1, 1.0))


@pytest.mark.usefixtures("two_values_of_c")  # the checks ask how it is called, not what it finds
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    CHECKED,
    expected_failed_checks=lambda _: {"check_sample_weight_equivalence_on_dense_data": "scaling knows no weights"},
)
def test_scikit_learn_check_passes(estimator, check):
    check(estimator)


def pipeline_of(line, decision):
    """The candidate of a line of the leaderboard, written out; standardised columns make "scale" 1 / n_features."""
    names = ("label_space", "set_bias_strength", "size_bias")
    form = {**{name: line[name] for name in names}, "decision": decision}
    if line["scores"] == "boosted":
        return make_pipeline(
            MLRHBoostingClassifier(n_estimators=line["n_estimators"], random_state=0, n_jobs=1, **form)
        )
    if line["scores"] == "linear":
        return make_pipeline(StandardScaler(), MLRHClassifier(C=line["C"], **form))
    classifier = KernelMLRHClassifier(C=line["C"], gamma=line["gamma_units"] / X.shape[1], **form)
    return make_pipeline(StandardScaler(), classifier)


def held_out(pipeline):
    """Held-out predictions and log-probabilities of all rows, fold by fold, and the true sets."""
    predicted, log_probs, truth = [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for train, rows in MultilabelStratifiedKFold(3, shuffle=True, random_state=0).split(X, Y):
            pipeline.fit(X[train], Y[train])
            predicted.append(pipeline.predict(X[rows]))
            distribution = pipeline[-1].distribution(pipeline[:-1].transform(X[rows]) if len(pipeline) > 1 else X[rows])
            log_probs.append(distribution.log_prob(Y[rows]))
            truth.append(Y[rows])
    return np.concatenate(predicted), np.concatenate(log_probs), np.concatenate(truth)


METRICS = {
    "exact_match": accuracy_score,
    "hamming": hamming_loss,
    "f1": lambda Y, predicted: f1_score(Y, predicted, average="samples", zero_division=1),
    "jaccard": lambda Y, predicted: jaccard_score(Y, predicted, average="samples", zero_division=1),
}


@pytest.mark.parametrize(
    "metric, quality",
    [*((metric, "fast") for metric in METRICS), pytest.param("exact_match", "best", marks=pytest.mark.slow)],
)
def test_every_line_of_the_leaderboard_is_that_of_a_pipeline_written_out(metric, quality, tiny_grids):
    model = MLRHAuto(metric=metric, quality=quality, cv=3, time_budget=None, n_jobs=1).fit(X, Y)
    lines = model.leaderboard_
    singles = [line for line in lines if line["scores"] != "pool"]
    # Best: (linear, two gammas, boosted) x (three label spaces, the open one twice).
    assert len(singles) == {"best": 16, "fast": 3}[quality]
    for line in singles:
        predicted, log_probs, truth = held_out(pipeline_of(line, metric))
        assert line["log_loss"] == pytest.approx(-np.maximum(log_probs, np.log(1e-6)).mean(), rel=1e-3)
        assert line[metric] == pytest.approx(METRICS[metric](truth, predicted), abs=1e-9)
    assert [line["log_loss"] for line in lines] == sorted(line["log_loss"] for line in lines)
    assert model.decision == metric


@pytest.mark.parametrize(("scores", "n_jobs", "expected"), [("linear", 1, 1), ("linear", 3, 3), ("boosted", 3, 1)])
def test_what_is_chosen_has_as_many_threads_as_the_search_has_processes_if_they_pay(
    scores, n_jobs, expected, tiny_grids, monkeypatch
):
    monkeypatch.setattr(auto, "_pays_off", lambda *_: False)  # the search itself starts no process here
    model = MLRHAuto(scores=scores, quality="fast", cv=3, time_budget=None, n_jobs=n_jobs).fit(X, Y)
    assert model.best_estimator_[-1].n_jobs == expected


def test_the_best_value_of_a_path_is_taken(tiny_grids):
    model = MLRHAuto(scores="rbf", quality="fast", label_space="observed", cv=3, time_budget=None).fit(X, Y)
    losses = {
        C: -np.maximum(held_out(pipeline_of({**model.leaderboard_[0], "C": C}, "exact_match"))[1], np.log(1e-6)).mean()
        for C in (1.0, 30.0)
    }
    assert model.leaderboard_[0]["C"] == min(losses, key=losses.get)


def test_a_path_ends_where_the_held_out_log_loss_has_risen_unless_the_metric_decides(monkeypatch):
    fitted, settle = [], MLRHClassifier._settle
    monkeypatch.setattr(auto, "LINEAR_C", (1e-3, 1e3, 1e4, 1e5))

    def watched(classifier, *arguments, **options):
        fitted.append(classifier.C)
        return settle(classifier, *arguments, **options)

    monkeypatch.setattr(MLRHClassifier, "_settle", watched)
    options = {"scores": "linear", "label_space": "cardinality", "cv": 3, "time_budget": None, "n_jobs": 1}
    n_rows = 3 * auto.ENOUGH_TO_TELL
    noise, sets = np.random.default_rng(0).normal(size=(n_rows, 20)), np.resize(Y, (n_rows, Y.shape[1]))
    MLRHAuto(**options).fit(noise, sets)  # which a weak penalty fits to
    assert fitted == 3 * [1e-3, 1e3] + [1e-3]
    for other, rows in (({"select_by": "metric"}, n_rows), ({}, n_rows - 3)):  # or too few rows to tell
        fitted.clear()
        MLRHAuto(**options, **other).fit(noise[:rows], sets[:rows])
        assert fitted[:-1] == 3 * [1e-3, 1e3, 1e4, 1e5]


def test_selecting_by_the_metric_orders_the_leaderboard_by_it(tiny_grids):
    model = MLRHAuto(metric="hamming", select_by="metric", quality="fast", time_budget=None).fit(X, Y)
    losses = [line["hamming"] for line in model.leaderboard_]
    np.testing.assert_allclose(losses, sorted(losses), atol=1e-11)


def test_a_pool_is_judged_by_weights_that_do_not_know_the_fold(tiny_grids):
    model = MLRHAuto(label_space="cardinality", cv=3, time_budget=None, n_jobs=1).fit(X, Y)
    pool = next(line for line in model.leaderboard_ if line["scores"] == "pool")
    singles = {line["model"]: line for line in model.leaderboard_}
    members = [pipeline_of(singles[name], "exact_match") for name in pool["members"]]
    folds = list(MultilabelStratifiedKFold(3, shuffle=True, random_state=0).split(X, Y))
    log_probs = np.stack([held_out(member)[1] for member in members], axis=1)
    number = np.repeat(np.arange(3), [len(rows) for _, rows in folds])
    losses = []
    for fold in range(3):
        weights = largest_likelihood(log_probs[number != fold], np.ones((number != fold).sum()))
        with np.errstate(divide="ignore"):
            mixed = np.log(np.exp(log_probs[number == fold]) @ weights)
        losses.append(-np.maximum(mixed, np.log(1e-6)))
    assert pool["log_loss"] == pytest.approx(np.concatenate(losses).mean(), rel=1e-4)
    assert pool["weights"] == pytest.approx(largest_likelihood(log_probs, np.ones(len(X))).tolist(), abs=1e-2)


def test_a_chosen_pool_is_fitted_with_its_weights_and_answers_by_the_decision(tiny_grids, monkeypatch, tmp_path):
    monkeypatch.setattr(auto._Judge, "loss", lambda judge, entry: 0 if entry.candidate is None else 1)
    model = MLRHAuto(metric="hamming", label_space="observed", cv=3, time_budget=None, n_jobs=1).fit(X, Y)
    best = model.best_estimator_
    assert isinstance(best, PooledSets) and model.leaderboard_[0]["weights"] == pytest.approx(best.weights_.tolist())
    parts = [_held_out_distribution(member, X) for member in best.estimators_]
    expected = decisions.hamming(Mixture(parts, best.weights_))
    np.testing.assert_array_equal(model.predict(X), expected)
    persistence.save(model, tmp_path / "model.mlrh")
    loaded = persistence.load(tmp_path / "model.mlrh")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert loaded.leaderboard_ == model.leaderboard_


def _held_out_distribution(pipeline, X):
    return pipeline[-1].distribution(pipeline[:-1].transform(X) if len(pipeline) > 1 else X)


class Clock:
    """A clock that each finished fit moves on by a second."""

    def __init__(self, monkeypatch):
        self.now, real = 0.0, auto._Evaluation.__call__
        monkeypatch.setattr(auto.time, "perf_counter", lambda: self.now)

        def evaluated(*arguments):
            parts, _ = real(*arguments)
            self.now += 1.0
            return parts, 1.0

        monkeypatch.setattr(auto._Evaluation, "__call__", evaluated)


def test_a_search_ends_when_its_time_is_up_and_says_what_was_not_tried(tiny_grids, monkeypatch):
    Clock(monkeypatch)
    # Two candidates of three fits take 6 s, the last fit of both kinds about 2 s.
    model = MLRHAuto(cv=3, time_budget=8.5, n_jobs=1).fit(X, Y)
    assert [line["model"].split(",")[0] for line in model.leaderboard_ if line["scores"] != "pool"] in (
        ["linear", "RBF"],
        ["RBF", "linear"],
    )
    (note,) = model.notes_
    assert note.startswith("Time was up before these were tried in full: boosted, open; linear, observed;")
    assert note.endswith("and 9 more. A larger time budget tries more.")


def test_one_candidate_is_always_finished(tiny_grids, monkeypatch):
    Clock(monkeypatch)
    model = MLRHAuto(cv=3, time_budget=0.1, n_jobs=1).fit(X, Y)
    assert len(model.leaderboard_) == 1 and model.predict(X).shape == Y.shape


def interrupted(monkeypatch, after):
    """Ctrl-C at a fit."""
    real, done = auto._Evaluation.__call__, []

    def evaluated(*arguments):
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(0)
        return real(*arguments)

    monkeypatch.setattr(auto._Evaluation, "__call__", evaluated)


def test_ctrl_c_keeps_the_best_so_far_with_a_warning(tiny_grids, monkeypatch):
    interrupted(monkeypatch, after=4)
    with pytest.warns(UserWarning, match="interrupted; the best of 1 of 16 candidates is fitted"):
        model = MLRHAuto(cv=3, time_budget=None, n_jobs=1).fit(X, Y)
    assert [line["scores"] for line in model.leaderboard_] == ["linear"]
    assert model.notes_ == ["No pool was tried: the search was interrupted."]
    assert (model.predict(X) == Y).mean() > 0.7


def test_ctrl_c_while_a_pool_is_judged_keeps_the_best_candidate_with_a_warning(tiny_grids, monkeypatch):
    def pool(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(auto._Judge, "pool", pool)
    with pytest.warns(UserWarning, match="interrupted; the best of 2 of 2 candidates is fitted"):
        model = MLRHAuto(cv=3, time_budget=None, n_jobs=1, scores="linear", label_space="open").fit(X, Y)
    assert len(model.leaderboard_) == 2
    assert model.notes_ == ["No pool was tried: the search was interrupted."]
    assert (model.predict(X) == Y).mean() > 0.7


def test_ctrl_c_in_a_search_by_processes_keeps_the_best_so_far(tiny_grids, monkeypatch):
    real = auto.as_finished

    def stopped(*arguments, **options):
        for number, event in enumerate(real(*arguments, **options)):
            yield event
            if number == 20:
                raise KeyboardInterrupt

    monkeypatch.setattr(auto, "as_finished", stopped)
    with pytest.warns(UserWarning, match="interrupted; the best of [0-9]+ of 16 candidates is fitted"):
        model = MLRHAuto(cv=2, time_budget=None, n_jobs=2).fit(X, Y)
    assert 1 <= len(model.leaderboard_) < 16


def test_ctrl_c_before_the_first_candidate_is_an_interrupt_and_leaves_the_last_fit(tiny_grids, monkeypatch):
    model = MLRHAuto(quality="fast", scores="linear", time_budget=None).fit(X, Y)
    before = model.predict_proba(X)
    interrupted(monkeypatch, after=2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:30], Y[:30])
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_a_process_that_dies_is_told_with_what_it_was_fitting(monkeypatch):
    def dying(work, tasks, *, n_jobs):
        yield 1, ChildProcessError("its process died"), []

    monkeypatch.setattr(auto, "as_finished", dying)
    with pytest.raises(
        ChildProcessError, match=r"A fit \(linear, open\) failed: its process died; use fewer processes"
    ):
        MLRHAuto(n_jobs=2).fit(X, Y)


def test_without_xgboost_boosted_trees_are_not_tried_and_that_is_noted(tiny_grids, monkeypatch):
    monkeypatch.setattr(auto, "find_spec", lambda name: None)
    model = MLRHAuto(quality="fast", time_budget=None).fit(X, Y)
    assert {line["scores"] for line in model.leaderboard_} == {"linear", "rbf"}
    assert model.notes_ == ['Boosted trees were not tried: they need XGBoost, pip install "xgboost>=2.1".']


def test_a_kernel_for_which_memory_is_lacking_is_left_out_with_a_note_and_approximated_where_it_is_asked_for(
    tiny_grids, monkeypatch
):
    monkeypatch.setattr(_budget, "available", lambda: 33 * 50**2)
    model = MLRHAuto(quality="fast", time_budget=None, n_jobs=1, cv=2).fit(X, Y)
    assert {line["scores"] for line in model.leaderboard_} == {"linear", "boosted"}
    lacking = "the exact kernel of 60 rows takes about 0.0 GB, and 0.0 GB are available."
    assert model.notes_ == [f"An RBF kernel was not tried: a fit with {lacking}"]
    asked = MLRHAuto(scores="rbf", quality="fast", cv=3, time_budget=None, n_jobs=1).fit(X, Y)
    assert asked.notes_ == [f"The RBF kernel is approximated, by Nystroem with 1,000 components: {lacking}"]


def test_missing_values_and_categories_are_taken_by_every_kind_of_scores(tiny_grids, monkeypatch, tmp_path):
    monkeypatch.setattr(auto, "ROUNDS", (20,))  # after six, what was drawn still decides
    rng = np.random.default_rng(0)
    colour = pd.Categorical(rng.choice(["red", "green", "blue"], 150))
    frame = pd.DataFrame({"size": np.where(rng.random(150) < 0.3, np.nan, rng.normal(size=150)), "colour": colour})
    labels = np.column_stack([colour == "green", frame["size"].fillna(-1) > 0]).astype(int)
    for scores in auto.SCORES:
        model = MLRHAuto(scores=scores, quality="fast", time_budget=None).fit(frame, labels)
        assert (model.predict(frame)[:, 0] == labels[:, 0]).mean() > 0.9, scores
        persistence.save(model, tmp_path / "model.mlrh")
        loaded = persistence.load(tmp_path / "model.mlrh")
        np.testing.assert_array_equal(loaded.predict_proba(frame), model.predict_proba(frame))
    new = pd.DataFrame({"size": [0.5], "colour": pd.Categorical(["pink"])})
    assert model.predict(new).shape == (1, 2)


def test_sparse_and_dense_rows_are_answered_alike(tiny_grids):
    thin = np.where(X > 0, X, 0.0)
    for scores in auto.SCORES:
        model = MLRHAuto(scores=scores, quality="fast", time_budget=None).fit(sparse.csr_array(thin), Y)
        np.testing.assert_array_equal(model.predict_proba(thin), model.predict_proba(sparse.csr_array(thin)))


def test_a_label_space_of_groups_by_name_is_kept_to(tiny_grids):
    colour = (X[:, 0] > 0).astype(int)
    sets = [{"red" if own else "blue", *(["new"] if extra else [])} for own, extra in zip(colour, Y[:, 0], strict=True)]
    space = GroupSpace([(["red", "blue"], 1, 1)])
    model = MLRHAuto(label_space=space, quality="fast", time_budget=None).fit(X, sets)
    assert all(len(answer & {"red", "blue"}) == 1 for answer in model.predict(X))


def test_weights_count_in_fits_and_figures(tiny_grids):
    folds = list(KFold(3).split(X))
    weights = np.where(np.arange(60) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(60), weights.astype(int))
    fold = np.repeat(np.arange(3), [len(rows) for _, rows in folds])[twice]
    repeated = [(np.flatnonzero(fold != number), np.flatnonzero(fold == number)) for number in range(3)]
    options = {"scores": "linear", "label_space": "cardinality", "time_budget": None}
    weighted = MLRHAuto(cv=folds, **options).fit(X, Y, sample_weight=weights).leaderboard_[0]
    # Preprocessing knows no weights, so that the columns of repeated rows are scaled a little differently.
    expected = MLRHAuto(cv=repeated, **options).fit(X[twice], Y[twice]).leaderboard_[0]
    assert weighted["log_loss"] == pytest.approx(expected["log_loss"], rel=0.02)
