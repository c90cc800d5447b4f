"""Run by tests/test_mlflow.py with a Python that has MLflow: logs, loads and serves a model, compares answers."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd

import mlrh.mlflow
from mlrh.automatic import choose
from mlrh.data import MultilabelData

SECONDS = 150  # that a server may take to start on a busy machine


def main(folder):
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment("songs")
    model, frame = fitted()
    with mlflow.start_run():
        info = mlrh.mlflow.log_model(model, "songs", input_example=frame[:2])
    loaded = mlflow.pyfunc.load_model(info.model_uri)
    check(loaded.predict(frame), model, frame)
    columns = loaded.metadata.get_input_schema().input_names()
    assert columns == ["tempo", "loudness", "genre"], columns
    refuses(loaded, frame.drop(columns="tempo"))
    path = folder / "saved"
    mlrh.mlflow.save_model(model, path)
    check(pd.DataFrame(served(path, frame)), model, frame)
    print("logged, loaded and served", mlflow.__version__)


def fitted():
    """A model of numbers and a nominal column that refuses some rows, and rows to ask it about."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(80, 2)), rng.integers(0, 2, 80)])
    Y = np.column_stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 2] > 0]).astype(np.int8)
    names = ("tempo", "loudness", "genre"), ("happy", "loud", "jazz")
    data = MultilabelData(X, Y, *names, "songs", {"genre": ("rock", "jazz")})
    options = {"label_space": "cardinality", "n_folds": 2, "n_jobs": 1, "refuse_below": 0.8}
    model = choose(data, quality="fast", scores="linear", **options)
    frame = pd.DataFrame(X, columns=list(names[0])).assign(genre=np.where(X[:, 2] > 0, "jazz", "rock"))
    return model, frame


def check(answers, model, frame):
    distribution, names = model.distribution(frame), list(model.schema.label_names)
    expected, marginals = model.answer(distribution), [f"P({name})" for name in names]
    assert list(answers.columns) == [*names, *marginals, "probability", "answered"], answers.columns
    np.testing.assert_array_equal(answers[names], expected.sets)
    np.testing.assert_allclose(answers[marginals], distribution.marginals(), rtol=1e-12)
    np.testing.assert_allclose(answers["probability"], expected.probability, rtol=1e-12)
    assert 0 < expected.is_answered.sum() < len(frame)
    np.testing.assert_array_equal(answers["answered"], expected.is_answered)


def refuses(loaded, frame):
    try:
        loaded.predict(frame)
    except mlflow.exceptions.MlflowException as error:
        assert "tempo" in str(error)
    else:
        raise AssertionError("a missing column was taken")


def served(path, frame):
    """The predictions of `mlflow models serve` for the rows of a frame."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    programs = Path(sys.executable).parent
    command = [programs / "mlflow", "models", "serve", "-m", path, "-p", port, "--env-manager", "local", "-w", 1]
    environment = {**os.environ, "PATH": os.pathsep.join([str(programs), os.environ["PATH"]])}
    server = subprocess.Popen([*map(str, command)], env=environment, start_new_session=True)
    try:
        wait_for(server, f"http://127.0.0.1:{port}/ping")
        body = json.dumps({"dataframe_split": frame.to_dict(orient="split")}).encode()
        question = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(question, timeout=SECONDS) as answer:
            return json.load(answer)["predictions"]
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


def wait_for(server, address):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError("the server did not start")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
