"""Calibration, thresholds and refusal of a model of `mlrh fit`: from held-out rows, kept in its file, and honoured."""

import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from samples import make_multilabel
from sklearn.base import clone
from typer.testing import CliRunner

from mlrh import CalibratedSets, MLRHClassifier, TunedThresholds, metrics, persistence
from mlrh.automatic import AnswerRule, choose
from mlrh.cli import app
from mlrh.cli._models import Thresholds
from mlrh.data import MultilabelData, write
from mlrh.estimators import auto
from mlrh.estimators.thresholds import METRICS
from mlrh.model_selection import MultilabelStratifiedKFold
from mlrh.web._server import make_session

X, Y = make_multilabel(90, n_features=4, n_labels=3, seed=3)
DATA = MultilabelData(X, Y, ("w", "x", "y", "z"), ("red", "round", "soft"), "things")
NEW_X, NEW_Y = make_multilabel(40, n_features=4, n_labels=3, seed=4)
NEW = replace(DATA, X=NEW_X, Y=NEW_Y, name="new")
FOLDS = list(MultilabelStratifiedKFold(3, shuffle=True, random_state=0).split(Y, Y))
KEPT = Path(__file__).parent / "model_files" / "0.2-answers"


@pytest.fixture(autouse=True)
def one_exact_candidate(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (0.5, 20.0))
    monkeypatch.setattr(auto, "SEARCH_TOL", 1e-9)


def chosen(**options):
    return choose(DATA, scores="linear", label_space="observed", n_folds=3, n_jobs=1, **options)


def test_the_temperature_is_that_of_calibrated_sets_on_the_same_folds():
    model = chosen(calibrate=True)
    expected = CalibratedSets(clone(model.classifier.best_estimator_), cv=FOLDS).fit(X, Y)
    # The searched fits end at 1e-9 of the objective, those of CalibratedSets at the default tolerance.
    assert model.rule.temperature == pytest.approx(expected.temperature_, rel=1e-3)
    assert model.rule.inside_share == pytest.approx(1 - expected.outside_share_)
    assert model.settings["calibration_error"] >= 0
    np.testing.assert_allclose(model.predict_proba(NEW), expected.predict_proba(NEW_X), atol=1e-3)
    answer = model.answer(model.distribution(NEW))
    np.testing.assert_allclose(answer.probability, expected.confidence(NEW_X), atol=1e-3)
    np.testing.assert_array_equal(answer.sets, expected.predict(NEW_X))


@pytest.mark.parametrize("metric", ["f1_macro", "hamming"])
def test_thresholds_are_those_of_tuned_thresholds_on_the_same_folds(metric):
    model = chosen(thresholds=metric)
    expected = TunedThresholds(clone(model.classifier.best_estimator_), metric=metric, cv=FOLDS).fit(X, Y)
    np.testing.assert_allclose(model.rule.thresholds, expected.thresholds_, atol=1e-4)
    np.testing.assert_array_equal(model.predict(NEW), expected.predict(NEW_X))
    if metric == "hamming":  # measured with the thresholds of the other folds
        np.testing.assert_allclose(1 - np.array(model.validation["hamming_loss"]), expected.honest_scores_, atol=1e-9)


def test_thresholds_of_a_calibrated_model_are_for_its_calibrated_marginals():
    model = chosen(calibrate=True, thresholds="f1_macro")
    sets = model.predict_proba(NEW) > model.rule.thresholds
    np.testing.assert_array_equal(model.predict(NEW), sets)


def test_rows_whose_set_is_less_probable_are_not_answered():
    sure, all_rows = chosen(refuse_below=0.5), chosen()
    probability = np.exp(all_rows.distribution(NEW).log_prob(all_rows.predict(NEW)))
    answer = sure.answer(sure.distribution(NEW))
    np.testing.assert_allclose(answer.probability, probability)
    np.testing.assert_array_equal(answer.is_answered, probability >= 0.5)
    assert 0 < answer.is_answered.sum() < len(NEW_Y)
    assert not sure.predict(NEW)[~answer.is_answered].any()
    np.testing.assert_array_equal(sure.predict(NEW)[answer.is_answered], all_rows.predict(NEW)[answer.is_answered])
    assert sure.validation == all_rows.validation


def test_what_is_told_of_refusal_is_what_the_held_out_rows_show():
    model = chosen(refuse_below=0.5)
    answered = right = 0
    for train, held_out in FOLDS:
        fitted = clone(model.classifier.best_estimator_).fit(X[train], Y[train])
        distribution = fitted[-1].distribution(fitted[:-1].transform(X[held_out]))
        sets = distribution.mode()
        is_answered = distribution.prob(sets) >= 0.5
        answered += is_answered.sum()
        right += ((sets == Y[held_out]).all(axis=1) & is_answered).sum()
    assert model.settings["answered_share"] == pytest.approx(answered / len(Y))
    assert model.settings["right_share_of_answered"] == pytest.approx(right / answered)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"thresholds": "f2"}, "metric must be one of"),
        ({"refuse_below": 1.5}, "refuse_below must be a probability"),
        ({"refuse_below": float("nan")}, "refuse_below must be a probability"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_fitted(options, words, monkeypatch):
    monkeypatch.setattr(auto.MLRHAuto, "_search", lambda *_, **__: pytest.fail("it was fitted"))
    with pytest.raises(ValueError, match=words):
        chosen(**options)


def test_a_calibrated_choice_has_no_pool_and_says_so():
    model = choose(DATA, label_space="observed", quality="best", n_folds=2, n_jobs=1, calibrate=True, scores="linear")
    assert not any(line["scores"] == "pool" for line in model.classifier.leaderboard_)
    assert any("A pool was not tried" in note for note in model.settings["notes"])


# From the command line


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(DATA, tmp_path / "things.csv")
    write(NEW, tmp_path / "new.csv")
    return tmp_path


FIT = ("fit", "things.csv", "--labels", "red,round,soft", "--scores", "linear", "--label-space", "observed")
OPTIONS = ("--calibrate", "--thresholds", "f1_macro", "--refuse-below", "0.45", "--folds", "3", "--jobs", "1")


def test_a_file_keeps_the_answers_and_predict_evaluate_and_tag_honour_them(folder):
    told = run(*FIT, *OPTIONS).stderr
    assert "Calibrated by a temperature of" in told and "thresholds that are tuned for f1_macro" in told
    assert "With --refuse-below 0.45," in told
    model = persistence.load("things.mlrh")
    answer = model.answer(model.distribution(NEW))
    assert model.rule.temperature != 1 and 0 < answer.is_answered.sum() < 40

    rows = list(csv.DictReader(io.StringIO(run("predict", "things.mlrh", "new.csv").stdout)))
    assert list(rows[0]) == ["row", "labels", "probability", "answered"]
    np.testing.assert_array_equal([int(row["answered"]) for row in rows], answer.is_answered)
    np.testing.assert_allclose([float(row["probability"]) for row in rows], answer.probability, rtol=1e-5)
    for row, labels in zip(rows, answer.sets, strict=True):
        assert row["labels"] == ";".join(np.array(DATA.label_names)[labels == 1])

    measured = json.loads(run("evaluate", "things.mlrh", "new.csv", "--json").stdout)
    kept = answer.is_answered
    log_prob = model.distribution(NEW).log_prob(NEW_Y)[kept]
    assert measured["answered_share"] == kept.mean()
    expected = metrics.evaluate(NEW_Y[kept], answer.sets[kept], log_prob)
    assert {name: measured[name] for name in expected} == pytest.approx(expected)
    assert f"{kept.mean():.1%} of the rows that the model answers" in run("evaluate", "things.mlrh", "new.csv").stdout

    session, _ = make_session(model, NEW)
    for row in range(1, 41):
        best = session.row(row)
        assert best["is_refused"] == (best["best"]["probability"] * model.rule.inside_share < 0.45)


def test_every_output_format_marks_rows_without_an_answer_and_top_lists_their_sets(folder):
    run(*FIT, "--refuse-below", "0.5", "--folds", "2", "--jobs", "1")
    plain = list(csv.DictReader(io.StringIO(run("predict", "things.mlrh", "new.csv").stdout)))
    run("predict", "things.mlrh", "new.csv", "-o", "out.jsonl")
    run("predict", "things.mlrh", "new.csv", "-o", "out.parquet")
    from pyarrow import parquet

    of_json = [json.loads(line)["answered"] for line in Path("out.jsonl").read_text().splitlines()]
    assert of_json == parquet.read_table("out.parquet")["answered"].to_pylist()
    assert of_json == [int(row["answered"]) for row in plain]
    top = list(csv.DictReader(io.StringIO(run("predict", "things.mlrh", "new.csv", "--top", "1").stdout)))
    assert "answered" not in top[0] and all(row["labels"] for row in top)
    np.testing.assert_allclose([float(r["probability"]) for r in top], [float(r["probability"]) for r in plain])


def test_a_model_of_several_files_has_the_thresholds_of_its_sample(folder):
    for number, rows in enumerate((slice(0, 45), slice(45, 90))):
        write(DATA.rows(rows), folder / f"part{number}.csv")
    run("fit", "part*.csv", *FIT[2:], "--thresholds", "hamming", "--folds", "2", "--jobs", "1", "-o", "parts.mlrh")
    model = persistence.load("parts.mlrh")
    np.testing.assert_array_equal(model.predict(NEW), model.predict_proba(NEW) > model.rule.thresholds)
    assert isinstance(model.classifier, MLRHClassifier) and model.settings["thresholds"] == "hamming"


def test_a_model_that_answers_no_row_is_told_so_by_evaluate(folder, failure):
    persistence.save(replace(chosen(), rule=AnswerRule(refuse_below=1.0)), "sure.mlrh")
    assert "none of 40 rows is answered with a probability of 1, so that" in failure("evaluate", "sure.mlrh", "new.csv")


def test_the_help_lists_every_metric_of_thresholds():
    assert set(get_args(Thresholds)) == set(METRICS)


# Files


def test_a_rule_that_no_fit_makes_is_refused(tmp_path):
    model = chosen()
    with pytest.raises(TypeError, match="A Model needs"):
        replace(model, rule=AnswerRule(thresholds=np.array([0.5])))
    for wrong in (
        {"temperature": 0.0},
        {"inside_share": 0.0},
        {"refuse_below": 2.0},
        {"thresholds": np.array([0.5, np.nan, 0.5])},
    ):
        with pytest.raises(persistence.ModelFileError, match="whose"):
            persistence.save(replace(model, rule=AnswerRule(**wrong)), tmp_path / "model.mlrh")


@pytest.mark.filterwarnings("ignore:.*was saved with:UserWarning")
def test_the_kept_file_with_answers_predicts_as_then(tmp_path):
    path = tmp_path / "model.mlrh"
    path.write_bytes(gzip.decompress((KEPT / "model.mlrh.gz").read_bytes()))
    expected = json.loads((KEPT / "expected.json").read_text())
    model = persistence.load(path)
    answer = model.answer(model.distribution(NEW))
    assert answer.sets.tolist() == expected["sets"] and answer.is_answered.tolist() == expected["is_answered"]
    np.testing.assert_allclose(answer.probability, expected["probability"], rtol=1e-9)
