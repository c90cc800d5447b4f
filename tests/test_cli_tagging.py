"""The command `mlrh tag` as a user starts, stops, kills and starts it again."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
from processes import wait_until
from typer.testing import CliRunner

from mlrh import automatic, persistence
from mlrh.cli import app
from mlrh.data import load_digit_scenes, write
from mlrh.estimators import auto
from mlrh.web import _server as serving
from mlrh.web import known_of

TRAIN, TEST = load_digit_scenes(60, part="train"), load_digit_scenes(15, part="test")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A folder with test.csv and a model of the training scenes."""
    place = tmp_path_factory.mktemp("scenes")
    write(TEST, place / "test.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "LINEAR_C", (1.0,))
        model = automatic.choose(TRAIN, scores="linear", label_space="cardinality", n_folds=2)
    persistence.save(model, place / "model.mlrh")
    return place


@contextlib.contextmanager
def tagging(scenes, folder, *options):
    """The running command and its port and token; what is left of it is killed."""
    command = [sys.executable, "-m", "mlrh", "tag", str(scenes / "model.mlrh"), *options, "--no-browser"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        said = process.stderr.readline() + process.stderr.readline()
        found = re.search(r"The page is at http://127\.0\.0\.1:(\d+)/tag\?token=([\w-]+)", said)
        assert found, said
        process.said = said
        yield process, (int(found[1]), found[2])
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def ask(page, path, body=None, order=True):
    port, token = page
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    content = None if body is None else json.dumps({**({"order": "file"} if order else {}), **body})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    connection.request("POST" if body else "GET", path, content, headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def click(page, row, label, value):
    return ask(page, "/api/decide", {"row": row, "label": label, "value": value})


@pytest.mark.slow
def test_clicks_survive_a_kill_and_the_same_command_goes_on(scenes, tmp_path):
    rows, decisions = tmp_path / "test.csv", tmp_path / "test-confirmed.csv"
    rows.write_bytes((scenes / "test.csv").read_bytes())
    with tagging(scenes, scenes, str(rows)) as (process, page):
        assert process.said.startswith(f"Decisions are saved in {decisions}.\n")
        click(page, 4, "digit 2", 1)
        answer = click(page, 4, "digit 5", 0)
        process.send_signal(signal.SIGKILL)
        process.wait()
    model = persistence.load(scenes / "model.mlrh")
    known = np.full((15, 10), np.nan)
    known[3, 2], known[3, 5] = 1, 0
    expected = model.distribution(TEST).condition(known)
    np.testing.assert_allclose([label["marginal"] for label in answer["labels"]], expected.marginals()[3], rtol=1e-9)
    np.testing.assert_array_equal(known_of(decisions, 15, TRAIN.label_names), known)
    assert {path.name for path in tmp_path.iterdir()} == {"test.csv", "test-confirmed.csv"}
    with tagging(scenes, tmp_path, "test.csv") as (process, page):
        assert process.said.startswith(f"Going on from 1 decided row in {decisions}, where decisions are saved.\n")
        again = ask(page, "/api/row?row=4")
        assert again["labels"] == answer["labels"] and again["n_touched"] == 1
        click(page, 5, "digit 0", 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        left = process.stderr.read()
    sentence = "what was decided is in test-confirmed.csv, and the same command goes on from there."
    assert left.strip() == f"Stopped; {sentence}"
    known[4, 0] = 1
    np.testing.assert_array_equal(known_of(decisions, 15), known)


@pytest.fixture
def tag(scenes, monkeypatch):
    """A function that runs the command, with what a person decides before Ctrl-C; gives what it printed."""

    def stderr_of(*arguments, decisions=((3, "digit 1", 1),), **options):
        def person(server):
            for decision in decisions:
                server.tagging.session.decide(*decision)
            server.server_close()
            raise KeyboardInterrupt

        monkeypatch.setattr(serving, "run", person)
        command = ["tag", scenes / "model.mlrh", *arguments, "--no-browser"]
        result = CliRunner().invoke(app, list(map(str, command)), **options)
        assert result.exit_code == 130, result.stderr
        return result.stderr

    return stderr_of


def test_two_files_of_the_same_name_have_their_own_decisions_and_never_those_of_the_other(
    scenes, tag, tmp_path, monkeypatch, failure
):
    monkeypatch.chdir(tmp_path)
    for name, rows in (("a", TEST), ("b", TEST.rows(np.arange(15)[::-1]))):
        Path(name).mkdir()
        write(rows, Path(name, "new.csv"))
        assert f"in {name}/new-confirmed.csv, and" in tag(f"{name}/new.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    told = failure("tag", scenes / "model.mlrh", "a/new.csv", "-o", "b/new-confirmed.csv", "--no-browser")
    assert "b/new-confirmed.csv, line 2: the decisions are about other rows: 1 of 1 have other features" in told


def test_the_same_rows_in_another_format_are_the_same_rows(tag, tmp_path):
    for name in ("new.csv", "new.arff", "new.csv.gz"):
        write(TEST, tmp_path / name)
        told = tag(tmp_path / name)
    assert "Going on from 1 decided row" in told


def test_a_page_closed_without_a_decision_names_no_file(scenes, tag, tmp_path):
    told = tag(scenes / "test.csv", "-o", tmp_path / "none.csv", decisions=())
    assert "Stopped; nothing was decided." in told and not (tmp_path / "none.csv").exists()


@pytest.mark.slow
def test_the_page_retrains_by_the_command_that_fits_to_decisions_and_answers_by_its_model(scenes, tmp_path):
    write(TRAIN, tmp_path / "train.csv")
    options = [str(scenes / "test.csv"), "-o", "confirmed.csv", "--also", "train.csv", "--show", "digit 1,pixel_0_0"]
    with tagging(scenes, tmp_path, *options) as (_, page):
        cells = ask(page, "/api/row?row=3")["cells"]
        assert [cell["name"] for cell in cells] == ["digit 1", "pixel_0_0"]
        assert ask(page, "/api/session")["can_retrain"]
        for row in range(1, 11):
            answer = ask(page, "/api/accept", {"row": row})
        assert retrain(page)["state"] == "running"
        wait_until(lambda: ask(page, "/api/retraining")["state"] != "running", seconds=300)
        state = ask(page, "/api/retraining")
        assert state["state"] == "done" and state["sentence"].startswith("Retrained with 10 decided rows"), state
        answer = ask(page, "/api/row?row=11")
        row = dict(zip(TEST.feature_names, TEST.X[10].tolist(), strict=True))
        served = ask(page, "/distribution", {"rows": [row]}, order=False)["distributions"][0]
    model = persistence.load(tmp_path / "confirmed.mlrh")
    assert model.settings["n_rows"] == 70
    for labels in (answer["labels"], served["labels"]):  # of the page and of the service
        marginals = [label["marginal"] for label in labels]
        np.testing.assert_allclose(marginals, model.distribution(TEST).marginals()[10], rtol=1e-9)


def retrain(page):
    port, token = page
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(
        "POST", "/api/retrain", "{}", {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    )
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def test_rows_of_standard_input_are_tagged_into_the_file_that_is_named(scenes, tag, tmp_path):
    rows = (scenes / "test.csv").read_bytes()
    told = tag("-", "-o", tmp_path / "named.csv", decisions=[(15, "digit 9", 0)], input=rows)
    assert "Stopped; what was decided is in" in told
    known = known_of(tmp_path / "named.csv", 15)
    assert known[14, 9] == 0 and np.isnan(known).sum() == 149


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("{}/model.mlrh", "-"), "Decisions about standard input need a file"),
        (("{}/model.mlrh", "{}/test.csv", "-o", "-"), "need a file; give its name with --output"),
        (("{}/model.mlrh", "{}/test.csv", "-o", "{}/test.csv"), "is also read"),
        (("{}/model.mlrh", "{}/test.csv", "-o", "absent/c.csv"), "There is no folder"),
        (("{}/model.mlrh", "{}/test.csv", "-o", "c.xlsx"), "choose a name that ends in .csv"),
        (("{}/model.mlrh", "{}/test.csv", "-o", "notes.csv"), "notes.csv, line 1: the columns must be row and the"),
        (("{}/model.mlrh", "{}/test.csv", "-o", "many.csv"), "many.csv, line 2: rows must be different numbers from 1"),
        (("{}/model.mlrh", "{}/test.csv", "-o", "full.csv"), "What is known of row 1 can't be: a label set of this"),
        (("{}/model.mlrh", "{}/test.csv", "--show", "title"), "There is no column 'title' to show; the file has"),
        (("{}/model.mlrh", "{}/test.csv", "--show", "a\nb"), "There is no column 'a\\nb' to show; the file has"),
        (("{}/model.mlrh", "{}/test.csv", "--show", "title,"), "--show must list names, separated by commas; got an"),
        (("{}/model.mlrh", "{}/test.csv", "--images", "absent"), "The folder of images, absent, is not there"),
        (("{}/model.mlrh", "{}/test.csv", "--retrained", "{}/model.mlrh"), "choose another name with --retrained"),
        (("{}/model.mlrh", "{}/test.csv", "--retrained", "notes.csv"), "is not a model file; remove it or choose"),
        (("{}/model.mlrh", "absent.csv"), "absent.csv: no such file"),
        (("absent.mlrh", "{}/test.csv"), "There is no model file absent.mlrh"),
        (("{}/model.mlrh", "{}/test.csv", "--port", "99999"), "Invalid value for '--port'"),
    ],
)
def test_a_fault_is_told_in_one_line_and_leaves_every_file(arguments, words, scenes, tmp_path, monkeypatch, failure):
    monkeypatch.chdir(tmp_path)
    header = ",".join(["row", *TRAIN.label_names])
    Path("notes.csv").write_text("name,age\nAnn,3\n")
    Path("many.csv").write_text(f"{header}\n16,{',' * 9}\n")
    Path("full.csv").write_text(f"{header}\n1{',1' * 10}\n")
    before = {path: path.read_bytes() for place in (tmp_path, scenes) for path in place.iterdir()}
    told = failure("tag", *(argument.format(scenes) for argument in arguments), "--no-browser")
    assert words in told
    assert {path: path.read_bytes() for place in (tmp_path, scenes) for path in place.iterdir()} == before


def test_the_help_names_the_command_and_its_options():
    assert "tag" in CliRunner().invoke(app, ["--help"]).stdout
    text = CliRunner().invoke(app, ["tag", "--help"]).stdout
    assert all(option in text for option in ("--output", "--port", "--no-browser", "--format"))
