"""The commands of "From table to service" in docs/tables.md, one after the other, as a user types them."""

import contextlib
import csv
import json
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from articles import WORDS, articles
from processes import wait_until

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
SECTION = re.search(r"^## From table to service\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)[1]
STEPS = re.findall(r"^    \$ (.*)\n((?:    (?!\$ ).*\n)*)", SECTION, re.MULTILINE)  # commands, and what they print
NEW, NEW_SETS = articles(40, seed=2)
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)(?:/tag\?token=([\w-]+))?")


def step(start):
    """The arguments of the command of the page that begins so, and what the page says that it prints."""
    ((command, printed),) = [own for own in STEPS if own[0].startswith(start)]
    return shlex.split(command), printed


def mlrh(*arguments):
    """The finished command of the environment that runs the tests."""
    command = [Path(sysconfig.get_path("scripts")) / "mlrh", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def done(start):
    """What a command of the page prints, which must go well."""
    arguments, printed = step(start)
    finished = mlrh(*arguments[1:])
    assert finished.returncode == 0, finished.stderr
    return finished.stdout, printed


@contextlib.contextmanager
def running(start, log, *options):
    """A command of the page that runs until it is stopped, and a function that asks it; stopped as by Ctrl-C."""
    command = [Path(sysconfig.get_path("scripts")) / "mlrh", *step(start)[0][1:], *options]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    try:
        wait_until(lambda: ADDRESS.search(log.read_text()) or process.poll() is not None, seconds=300)
        port, token = ADDRESS.search(log.read_text()).groups()

        def ask(method, path, content=None, kind="application/json"):
            connection = HTTPConnection("127.0.0.1", int(port), timeout=120)
            with contextlib.closing(connection):
                headers = {"Content-Type": kind, "Authorization": f"Bearer {token}"}
                connection.request(method, path, content, headers)
                response = connection.getresponse()
                return response.status, json.loads(response.read())

        yield ask
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130, log.read_text()
    finally:
        process.kill()
        process.wait()


def exact_match(text):
    return float(re.search(r"^ *exact match +(\S+)$", text, re.MULTILINE)[1])


def tag_all(ask):
    """Say on the page of every row and label what is true."""
    for row, labels in enumerate(NEW_SETS, start=1):
        for label in WORDS:
            content = {"row": row, "label": label, "value": int(label in labels), "order": "file"}
            status, answer = ask("POST", "/api/decide", json.dumps(content))
            assert status == 200, answer


def labels_of(path):
    with path.open() as file:
        return [set(row["labels"].split(";")) for row in csv.DictReader(file)]


@pytest.mark.slow
def test_a_table_with_text_dates_and_tags_becomes_a_service_by_the_commands_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, ROOT / step("python")[0][1]], check=True)
    done("mlrh fit articles.csv --labels tags --scores")
    found, printed = map(exact_match, done("mlrh evaluate articles.mlrh"))
    assert found == pytest.approx(printed, abs=0.02)  # of 150 rows
    done("mlrh predict")
    first = np.mean([own == other for own, other in zip(labels_of(Path("predictions.csv")), NEW_SETS, strict=True)])

    with running("mlrh tag", tmp_path / "tag.log", "--no-browser") as ask:
        tag_all(ask)
    done("mlrh fit new.csv --decided confirmed.csv --like articles.mlrh")
    found, printed = map(exact_match, done("mlrh evaluate retrained.mlrh"))
    assert found == pytest.approx(printed, abs=0.02)

    with running("mlrh serve", tmp_path / "serve.log", "--port", "0") as ask:
        wait_until(lambda: ask("GET", "/ready")[0] == 200, seconds=300)
        curl, printed = step("curl")
        status, answer = ask("POST", "/predict", curl[curl.index("-d") + 1])
        (found,), (printed,) = answer["predictions"], json.loads(printed)["predictions"]
        assert status == 200 and found["labels"] == printed["labels"]
        assert found["probability"] == pytest.approx(printed["probability"], abs=0.01)
        status, answer = ask("POST", "/predict", Path("new.csv").read_bytes(), "text/csv")
        assert status == 200
        again = np.mean(
            [set(own["labels"]) == labels for own, labels in zip(answer["predictions"], NEW_SETS, strict=True)]
        )
    assert again >= first > 0.5  # it has seen the tags of these rows

    command, printed = step("mlrh export retrained.mlrh")
    refused = mlrh(*command[1:])
    assert refused.returncode == 2 and refused.stderr.split() == printed.split()
    done("mlrh fit articles.csv --labels tags --ignore")
    done("mlrh export numbers.mlrh")
    check_exported(Path("numbers.onnx"), Path("numbers.mlrh"))


def check_exported(graph, model):
    """The file answers as `mlrh predict` does."""
    finished = mlrh("predict", model, "new.csv", "--output", "numbers.csv")
    assert finished.returncode == 0, finished.stderr
    session = onnxruntime.InferenceSession(graph.read_bytes())
    names = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
    inputs = {"X": np.array([[float(row[4])] for row in NEW]), "section": np.array([[row[5]] for row in NEW], object)}
    (answers,) = session.run(["label"], inputs)
    assert [{names[label] for label in np.flatnonzero(row)} for row in answers] == labels_of(Path("numbers.csv"))
