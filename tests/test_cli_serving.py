"""The command `mlrh serve` as it is started, killed and stopped, with one process and with several."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mlrh import automatic, persistence
from mlrh.cli import app
from mlrh.data import load_digit_scenes
from mlrh.estimators import auto

TRAIN, TEST = load_digit_scenes(60, part="train"), load_digit_scenes(15, part="test")
SECONDS = 300  # to start on a busy machine
TOKEN = {"Authorization": "Bearer abc"}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "scenes.mlrh"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "LINEAR_C", (1.0,))
        model = automatic.choose(TRAIN, scores="linear", label_space="cardinality", n_folds=2)
    persistence.save(model, path)
    return path


@contextlib.contextmanager
def serving(model_file, *options, **environment):
    """The running command, its port and the file of what it prints; killed at the end."""
    command = [sys.executable, "-m", "mlrh", "serve", str(model_file), "--port", "0", *options]
    log = model_file.with_suffix(f".{time.monotonic_ns()}.log")
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env={**os.environ, **environment})
    try:
        port = int(eventually(lambda: re.search(r"is served at http://127\.0\.0\.1:(\d+);", log.read_text()), log)[1])
        eventually(lambda: status_of(port, "/ready") == 200, log)
        yield process, port, log
    finally:
        process.kill()
        process.wait()


def eventually(question, log):
    deadline = time.monotonic() + SECONDS
    while not (answer := question()):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return answer


@pytest.fixture(scope="module")
def served(model_file):
    """One command for all tests that leave it as it was."""
    with serving(model_file, MLRH_TOKEN="abc") as (_, port, log):
        yield port, log


def ask(port, method, path, body=None, headers=TOKEN):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, response.read().decode()


def status_of(port, path):
    try:
        return ask(port, "GET", path)[0]
    except (OSError, HTTPException):
        return None


ROWS = [dict(zip(TEST.feature_names, row, strict=True)) for row in TEST.X.tolist()]


def predicted(port):
    status, text = ask(port, "POST", "/predict", {"rows": ROWS})
    assert status == 200, text
    sets = [own["labels"] for own in json.loads(text)["predictions"]]
    return np.array([[name in labels for name in TRAIN.label_names] for labels in sets])


def children(process):
    """Ids of the processes that compute for a process (Linux)."""
    ids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return {int(own) for own in ids if "spawn_main" in Path(f"/proc/{own}/cmdline").read_text()}


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_a_served_model_predicts_as_it_does_here_and_logs_a_line(served, model_file):
    port, log = served
    np.testing.assert_array_equal(predicted(port), persistence.load(model_file).predict(TEST))
    line = re.compile(r"^\d{4}-\d\d-\d\dT\S+ POST /predict 200, 15 rows, \d+ ms$", re.MULTILINE)
    eventually(lambda: line.search(log.read_text()), log)


def test_the_token_comes_from_the_environment(served):
    assert ask(served[0], "GET", "/model", headers={})[0] == 401
    assert ask(served[0], "GET", "/model")[0] == 200


def test_a_client_that_is_slow_or_talks_no_http_holds_nobody_up(served):
    port, log = served
    announced = b"Authorization: Bearer abc\r\nContent-Type: application/json\r\nContent-Length: 8388608\r\n\r\n"
    starts = [b"", b"POST /predict HTTP/1.1\r\n", b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"] * 10
    with contextlib.ExitStack() as slow:
        for start in starts + [starts[-1] + announced] * 20:
            connection = slow.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(start)
        assert predicted(port).shape == (15, 10)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            answer = connection.makefile("rb").read().decode()
    assert answer.startswith("HTTP/1.1 400 ") and '{"error": "The request must be HTTP/1.1' in answer
    assert "Traceback" not in log.read_text()


def test_a_request_that_is_too_large_is_told_so_also_who_sends_all_of_it_first(served):
    status, text = ask(served[0], "POST", "/predict", " " * 9 * 2**20)
    assert status == 413 and "at most 8388608 bytes; got 9437186" in text


@pytest.mark.slow
@pytest.mark.parametrize("sent, code", [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_request_that_has_come_is_answered_before_the_end_and_no_other_is_taken(model_file, sent, code):
    with serving(model_file, "--max-size", "64") as (process, port, log):
        answers = []
        body = {"rows": ROWS * 600}  # takes a moment
        asking = threading.Thread(target=lambda: answers.append(ask(port, "POST", "/predict", body)))
        asking.start()
        eventually(lambda: "mlrh_waiting 1" in ask(port, "GET", "/metrics")[1] or answers, log)
        process.send_signal(sent)
        asking.join()
        assert process.wait(timeout=60) == code
        assert [status for status, _ in answers] == [200]
        assert len(json.loads(answers[0][1])["predictions"]) == len(body["rows"])
        assert status_of(port, "/health") is None


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_counts_of_all_are_summed(model_file):
    with serving(model_file, "--workers", "2") as (process, port, log):
        first = eventually(lambda: len(found := children(process)) == 2 and found, log)
        for _ in range(10):
            assert predicted(port).any()
        os.kill(min(first), signal.SIGKILL)
        again = eventually(lambda: len(found := children(process)) == 2 and found != first and found, log)
        assert len(again & first) == 1
        assert predicted(port).any()
        assert 'mlrh_requests_total{path="/predict",status="200"} 11' in ask(port, "GET", "/metrics")[1]
        assert "Worker" in log.read_text() and "started again" in log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
        assert not any(map(is_alive, again))


@pytest.mark.slow
def test_a_worker_that_can_not_load_the_model_says_so_in_a_line_and_no_copy_of_the_model_is_left(
    model_file, tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(model_file, "--workers", "2") as (process, port, log):
        workers = eventually(lambda: len(found := children(process)) == 2 and found, log)
        (copy,) = tmp_path.glob("mlrh-serve-*/*.mlrh")
        copy.write_bytes(b"no model")
        os.kill(min(workers), signal.SIGKILL)
        eventually(lambda: "can't load the model: " in log.read_text(), log)
        assert "Traceback" not in log.read_text() and status_of(port, "/health") == 200
        process.terminate()
        process.wait(SECONDS)
        assert not list(tmp_path.glob("mlrh-serve-*"))


@pytest.mark.slow
def test_a_replaced_worker_answers_by_the_model_of_the_start_also_where_its_file_is_another(model_file, tmp_path):
    path, model = tmp_path / "copy.mlrh", persistence.load(model_file)
    path.write_bytes(model_file.read_bytes())
    with serving(path, "--workers", "2") as (process, port, log):
        first = eventually(lambda: len(found := children(process)) == 2 and found, log)
        expected = model.predict(TEST)
        model.classifier.best_estimator_[-1].coef_ *= -1
        persistence.save(model, path)
        for worker in first:
            os.kill(worker, signal.SIGKILL)
        eventually(lambda: not children(process) & first and status_of(port, "/ready") == 200, log)
        np.testing.assert_array_equal(predicted(port), expected)
        assert (expected != model.predict(TEST)).any() and "Traceback" not in log.read_text()


@pytest.mark.slow
def test_workers_end_when_the_command_is_killed(model_file):
    with serving(model_file, "--workers", "2") as (process, _, log):
        workers = eventually(lambda: len(found := children(process)) == 2 and found, log)
        process.kill()
        process.wait()
        eventually(lambda: not any(map(is_alive, workers)), log)


def test_a_taken_port_or_a_file_that_is_no_model_is_one_sentence(model_file, tmp_path, failure):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port} can't be used (Address already in use)" in failure("serve", model_file, "--port", port)
    assert "There is no model file" in failure("serve", tmp_path / "none.mlrh")
    assert "must have at least one character" in failure("serve", model_file, "--token", "")
    assert "Error: --max-size must be finite; got inf." in failure("serve", model_file, "--max-size", "inf")
    assert "Error: --timeout must be finite; got inf." in failure("serve", model_file, "--timeout", "inf")


def test_the_help_names_the_command_and_its_options():
    text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "160"}).stdout
    options = ("--port", "--host", "--workers", "--token", "--allow-origin", "--max-size", "--max-rows", "--timeout")
    assert all(option in text for option in (*options, "--queue", "--allow-host"))
