"""MLflow logs, loads and serves models, in an environment of its own: its pins and ours differ."""

import copy
import os
import site
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from test_packaging import run

import mlrh.mlflow
from mlrh import MLRHBoostingClassifier, MLRHClassifier, PooledSets, persistence
from mlrh.automatic import AnswerRule, choose
from mlrh.data import load_digit_scenes

DATA = load_digit_scenes(60, part="train")
FRAME = pd.DataFrame(DATA.X, columns=list(DATA.feature_names), index=np.arange(60) * 2)


@pytest.fixture(scope="module")
def model():
    return choose(DATA, quality="fast", scores="linear", label_space="cardinality", n_folds=2, n_jobs=1)


@pytest.fixture
def served(model, tmp_path):
    """A function from a rule to the answers of a model with it, as MLflow loads it."""

    def answers(rule):
        persistence.save(replace(model, rule=rule), tmp_path / "model.mlrh")
        return mlrh.mlflow._load_pyfunc(tmp_path / "model.mlrh").predict(FRAME)

    return answers


def test_the_probability_of_an_answer_is_lowered_by_the_share_of_impossible_sets(model, served):
    found = served(AnswerRule(temperature=2.0, inside_share=0.75))
    tempered = model.distribution(DATA).temper(2.0)
    sets = tempered.mode()
    np.testing.assert_allclose(found["probability"], 0.75 * tempered.prob(sets), rtol=1e-12)
    np.testing.assert_array_equal(found[list(DATA.label_names)], sets)
    marginals = [f"P({name})" for name in DATA.label_names]
    np.testing.assert_allclose(found[marginals], tempered.marginals(), rtol=1e-12)


def test_rows_that_the_model_refuses_are_marked_and_have_no_labels(model, served):
    distribution = model.distribution(DATA)
    probability = distribution.prob(distribution.mode())
    found = served(AnswerRule(refuse_below=float(np.median(probability))))
    np.testing.assert_array_equal(found["answered"], probability >= np.median(probability))
    assert found["answered"].sum() == 30
    assert (found.loc[found["answered"] == 0, list(DATA.label_names)] == 0).all(axis=None)
    assert "answered" not in served(AnswerRule())


def test_answers_have_the_index_of_the_rows(served):
    assert served(AnswerRule()).index.equals(FRAME.index)


def test_a_label_with_the_name_of_another_column_is_refused(model):
    names = ("probability", *DATA.label_names[1:])
    renamed = replace(model, schema=replace(model.schema, label_names=names))
    with pytest.raises(ValueError, match="The answers have a column 'probability' besides the label of that name"):
        mlrh.mlflow._Served(renamed).predict(FRAME)


@pytest.fixture
def logged(monkeypatch):
    """A function that logs or saves with a stand-in for MLflow, and returns the arguments that MLflow gets."""
    mlflow = MagicMock()
    for name in ("mlflow", "mlflow.models", "mlflow.pyfunc", "mlflow.types"):
        monkeypatch.setitem(sys.modules, name, mlflow)
    mlflow.pyfunc = mlflow.models = mlflow.types = mlflow

    def arguments(function, *args, **options):
        getattr(mlrh.mlflow, function)(*args, **options)
        return getattr(mlflow, function).call_args.kwargs

    return arguments


@pytest.mark.parametrize("function", ["log_model", "save_model"])
def test_options_stand_in_place_of_what_mlrh_sets(function, model, logged):
    found = logged(function, model, "songs", pip_requirements=["mlrh @ file:mlrh"], signature="mine", code_paths=["a"])
    assert found["pip_requirements"] == ["mlrh @ file:mlrh"]
    assert (found["signature"], found["code_paths"], found["loader_module"]) == ("mine", ["a"], "mlrh.mlflow")


def test_the_requirements_are_this_version_of_mlrh(model, logged):
    assert logged("log_model", model)["pip_requirements"] == [f"mlrh=={mlrh.__version__}"]


@pytest.mark.parametrize("pooled", [False, True], ids=["alone", "in a pool"])
def test_the_requirements_of_boosted_trees_name_xgboost(pooled, model, logged):
    chosen = make_pipeline(MLRHBoostingClassifier(n_estimators=2, max_depth=1, n_jobs=1))
    if pooled:
        chosen = PooledSets([("linear", MLRHClassifier()), ("trees", chosen)], weights=[0.5, 0.5])
    classifier = copy.copy(model.classifier)
    classifier.best_estimator_ = chosen.fit(DATA.X, DATA.Y)
    found = logged("save_model", replace(model, classifier=classifier), "songs")
    assert found["pip_requirements"] == [f"mlrh[boosting]=={mlrh.__version__}"]


@pytest.mark.slow
def test_a_model_is_logged_loaded_and_served_as_a_pyfunc_with_its_signature(tmp_path):
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    # What is installed here, pip too, serves there, but for packages that MLflow wants in another version.
    (folder,) = run(python, "-c", "import site; print(*site.getsitepackages())").split()
    here = [str(Path(mlrh.__file__).parents[1]), *site.getsitepackages()]
    Path(folder, "here.pth").write_text("\n".join(here))
    install = (python, "-m", "pip", "install", "--quiet", "--no-compile")
    run(*install, "mlflow>=3")
    run(*install, "--no-deps", "--ignore-installed", "uvicorn")  # MLflow starts the program of this environment
    shown = run(python, Path(__file__).with_name("mlflow_served.py"), tmp_path, cwd=tmp_path)
    assert "logged, loaded and served" in shown


def test_without_mlflow_the_error_says_how_to_install_it():
    code = "import sys; sys.modules['mlflow'] = None; import mlrh.mlflow; mlrh.mlflow.signature(None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'install it with: pip install "mlflow>=3"' in done.stderr
