"""From a file to a model file to predictions and measures by the command line, as a user or a script would."""

import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import running_in_session, wait_until, workers_of
from scipy import sparse
from typer.testing import CliRunner

from mlrh import MLRHClassifier, metrics, persistence
from mlrh.automatic import choose
from mlrh.cli import app
from mlrh.data import load_digit_scenes, read, write
from mlrh.estimators import auto
from mlrh.web._store import Store

TRAIN, TEST = load_digit_scenes(120, part="train"), load_digit_scenes(15, part="test")
NAMES = ",".join(TRAIN.label_names)
PROGRAM = (sys.executable, "-m", "mlrh")


@pytest.fixture(autouse=True)
def tiny_grids(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (0.01, 1.0))
    monkeypatch.setattr(auto, "RBF_C", (10.0,))
    monkeypatch.setattr(auto, "RBF_GAMMA", (1.0,))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A folder with train.csv, test.csv, and a model of the former."""
    place = tmp_path_factory.mktemp("scenes")
    write(TRAIN, place / "train.csv")
    write(TEST, place / "test.csv")
    persistence.save(choose(TRAIN, scores="linear", quality="fast", n_folds=2), place / "model.mlrh")
    return place


def run(*arguments, stdin=None):
    """The finished command, which must have gone well."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def as_matrix(rows, names):
    """The indicator matrix of the column labels; no name here holds a semicolon."""
    return np.array([[name in row["labels"].split(";") for name in names] for row in rows], np.int8)


@pytest.mark.parametrize(
    "file, layout",
    [
        *(("set.arff", "mulan"), ("set.arff.gz", "mulan"), ("set.arff", "meka"), ("set.arff.gz", "meka")),
        *((f"set.{suffix}", None) for suffix in ("libsvm", "svm.gz", "csv", "csv.gz", "parquet")),
    ],
)
def test_a_model_of_any_format_predicts_what_the_model_in_memory_predicts(file, layout, folder):
    is_libsvm = "svm" in file
    options = {"layout": layout} if layout else {}
    labels = None if layout or is_libsvm else NAMES
    (folder / "new").mkdir()
    write(TRAIN, folder / file, **options)
    write(TEST, folder / "new" / file, **options)
    run(
        "fit",
        file,
        "--kernel",
        "linear",
        "--quality",
        "fast",
        "--folds",
        "2",
        *(["--labels", labels] if labels else []),
    )
    predicted = rows_of(run("predict", "set.mlrh", f"new/{file}").stdout)
    train, test = (replace(data, X=sparse.csr_array(data.X)) if is_libsvm else data for data in (TRAIN, TEST))
    model = choose(train, scores="linear", quality="fast", n_folds=2)
    names = [str(digit) for digit in range(10)] if is_libsvm else TRAIN.label_names
    np.testing.assert_array_equal(as_matrix(predicted, names), model.predict(test))
    expected = np.exp(model.distribution(test).log_prob(model.predict(test)))
    np.testing.assert_allclose([float(row["probability"]) for row in predicted], expected, rtol=1e-5)


@pytest.mark.parametrize("decision", ["hamming", "f1"])
def test_a_kernel_model_of_a_file_is_that_of_memory(decision, folder):
    write(TRAIN, folder / "train.csv")
    options = ("--folds", "2", "--metric", decision, "--scores", "rbf", "--quality", "fast", "--time", "600")
    result = run("fit", "train.csv", "--labels", NAMES, *options)
    expected = choose(TRAIN, n_folds=2, metric=decision, scores="rbf", quality="fast")
    loaded = persistence.load(folder / "train.mlrh")
    assert loaded.settings == expected.settings and loaded.validation == expected.validation
    mean = np.mean(expected.validation["exact_match"])
    assert result.stdout == "" and f"exact match {mean:.3f}" in " ".join(result.stderr.split())
    assert "slightly optimistic" in result.stderr and "Saved: train.mlrh" in result.stderr


@pytest.mark.parametrize("values", [[NAMES], TRAIN.label_names, ["names.txt"], ["./names"], ["names.xml"]])
def test_labels_can_be_named_in_every_way(values, folder):
    write(TRAIN, folder / "train.csv")
    write(TRAIN, folder / "names.arff")
    for name in ("names.txt", "names"):
        (folder / name).write_text("\n".join(TRAIN.label_names) + "\n\n")
    arguments = [part for value in values for part in ("--labels", value)]
    run("fit", "train.csv", "--kernel", "linear", "--label-space", "cardinality", "--folds", "2", *arguments)
    assert persistence.load(folder / "train.mlrh").schema == TRAIN.schema


def test_names_in_quotes_may_have_commas_and_spaces_at_their_ends(folder):
    data = replace(TRAIN, label_names=(*TRAIN.label_names[:7], 'ro;ck, "x"', " y ", "list.txt"))
    write(data, folder / "train.csv")
    more = '"ro;ck, ""x""" , " y ","list.txt"'
    Path("names.txt").write_text("\n".join([*data.label_names[:7], 'ro;ck, "x"', '" y "', "list.txt"]))
    options = ("--kernel", "linear", "--label-space", "cardinality", "--folds", "2")
    for labels in (f"{','.join(data.label_names[:7])}, {more}", "names.txt"):
        run("fit", "train.csv", "--labels", labels, *options)
        assert persistence.load(folder / "train.mlrh").schema == data.schema


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder with a model of a number and a nominal column, whose values are places."""
    folder = tmp_path_factory.mktemp("places")
    rows = [f"{row % 7},{('Rome', 'Oslo', '3')[row % 3]},{row % 2},{int(row % 3 == 0)}\n" for row in range(40)]
    (folder / "train.csv").write_text("a,place,p,q\n" + "".join(rows))
    with pytest.warns(UserWarning, match="column 'place' holds words, and numbers in 13 rows that count as words"):
        data = read(folder / "train.csv", ["p", "q"])
    model = choose(data, scores="linear", label_space="cardinality", n_folds=2)
    persistence.save(model, folder / "model.mlrh")
    return folder


def test_a_file_in_which_every_row_has_another_place_is_measured_with_its_places(places, folder):
    text = "a,place,p,q\n1,Rome,0,1\n2,Oslo,1,1\n" + "".join(f"{row},new {row},0,0\n" for row in range(30))
    Path("test.csv").write_text(text)
    result = run("evaluate", places / "model.mlrh", "test.csv", "--json")
    model = persistence.load(places / "model.mlrh")
    data = read("test.csv", ["p", "q"], schema=replace(model.schema, categories={}, feature_names=("a",)))
    codes = np.r_[0, 1, [np.nan] * 30]
    data = replace(data, X=np.c_[data.X, codes], feature_names=("a", "place"), categories=model.schema.categories)
    assert json.loads(result.stdout)["exact_match"] == pytest.approx((model.predict(data) == data.Y).all(axis=1).mean())
    assert result.stderr.count("Note: ") == 1
    assert "column 'place' in 30 of 32 rows (first: 'new 0')" in result.stderr


def test_columns_that_the_model_does_not_know_may_hold_anything(places, folder):
    Path("plain.csv").write_text("a,place\n1,3\n2,3\n")
    Path("more.csv").write_text(',place,a,when,"half, numbers",p\n0,3,1,2020-01-01,x1y,?\n1,3,2,,5,maybe\n')
    table = pa.table({"when": pa.array([0, 1], pa.timestamp("s")), "place": [3, 3], "a": [1.0, 2.0], "z": [[1], []]})
    pq.write_table(table, "more.parquet")
    expected = run("predict", places / "model.mlrh", "plain.csv", "--marginals")
    for file in ("more.csv", "more.parquet"):
        found = run("predict", places / "model.mlrh", file, "--marginals")
        assert (found.stdout, found.stderr) == (expected.stdout, "")


def test_rows_with_labels_that_the_model_does_not_know_are_noted_and_not_matched(folder):
    rows = [f"{('1', '2', '1,2')[row % 3]} 1:{row % 3} 2:{row % 5}" for row in range(30)]
    Path("train.svm").write_text("\n".join(rows))
    Path("new.svm").write_text("\n".join("9," + row if place < 3 else row for place, row in enumerate(rows)))
    run("fit", "train.svm", "--kernel", "linear", "--folds", "2")
    plain, result = (run("evaluate", "train.mlrh", file, "--json") for file in ("train.svm", "new.svm"))
    before, after = json.loads(plain.stdout), json.loads(result.stdout)
    model, data = persistence.load("train.mlrh"), read("train.svm")
    right = (model.predict(data) == data.Y).all(axis=1)
    assert before["exact_match"] == pytest.approx(right.mean()) and right[:3].any()
    assert after["exact_match"] == pytest.approx(right[3:].sum() / 30)
    assert after["impossible_share"] == pytest.approx(before["impossible_share"] + 0.1)
    assert after["hamming_loss"] == before["hamming_loss"]
    note = "Note: new: 3 of 30 rows have labels that the model doesn't know (9), so they count as not matched.\n"
    assert (plain.stderr, result.stderr) == ("", note)


def test_new_rows_may_lack_labels_and_have_other_columns_in_another_order(scenes, folder):
    order = np.random.RandomState(0).permutation(64)
    X, names = np.column_stack([np.arange(15), TEST.X[:, order]]), [TEST.feature_names[column] for column in order]
    bare = replace(TEST, X=X, Y=np.empty((15, 0), np.int8), feature_names=("number", *names), label_names=())
    write(bare, folder / "bare.csv")
    predict = ("predict", scenes / "model.mlrh")
    assert run(*predict, "bare.csv").stdout == run(*predict, scenes / "test.csv").stdout


def test_libsvm_rows_without_the_last_or_the_first_columns_are_padded(folder):
    rows = ["0 0:1 2:3", "1 1:2 3:1", "0,1 0:2 1:1", "1 1:3 2:1", "0 0:3 3:2", "0 0:1"]
    (folder / "train.svm").write_text("\n".join(rows))
    (folder / "new.svm").write_text("1 1:2\n0 2:1\n")
    run("fit", "train.svm", "--kernel", "linear", "--folds", "2")
    found = rows_of(run("predict", "train.mlrh", "new.svm", "--marginals").stdout)
    data = read("train.svm")
    new = replace(data, X=sparse.csr_array([[0.0, 2, 0, 0], [0, 0, 1, 0]]), Y=data.Y[:2])
    expected = persistence.load("train.mlrh").distribution(new).marginals()
    np.testing.assert_allclose([[float(row[f"P({k})"]) for k in "01"] for row in found], expected, rtol=1e-5)


def test_top_and_marginals_are_those_of_the_distribution(scenes):
    model = persistence.load(scenes / "model.mlrh")
    arguments = ("predict", scenes / "model.mlrh", scenes / "test.csv", "--top", "3", "--marginals")
    rows = rows_of(run(*arguments).stdout)
    sets, log_probs = model.distribution(TEST).top_sets(3)
    assert [(row["row"], row["rank"]) for row in rows] == [(str(r), str(k)) for r in range(1, 16) for k in (1, 2, 3)]
    np.testing.assert_array_equal(as_matrix(rows, TEST.label_names), sets.reshape(45, 10))
    np.testing.assert_allclose([float(row["probability"]) for row in rows], np.exp(log_probs).ravel(), rtol=1e-5)
    marginals = [[float(row[f"P({name})"]) for name in TEST.label_names] for row in rows]
    np.testing.assert_allclose(marginals, np.repeat(model.distribution(TEST).marginals(), 3, axis=0), rtol=1e-5)


def test_no_more_sets_are_listed_than_the_label_space_has(folder):
    (folder / "train.csv").write_text("x,a,b\n1,1,0\n2,0,1\n3,1,0\n4,0,1\n")
    run("fit", "train.csv", "--labels", "a,b", "--folds", "2", "--kernel", "linear")
    rows = rows_of(run("predict", "train.mlrh", "train.csv", "--top", "5").stdout)
    assert len(rows) == 8
    assert sum(float(row["probability"]) for row in rows) == pytest.approx(4, abs=1e-4)


def test_every_output_format_holds_the_same_predictions(scenes, folder):
    options = ("predict", scenes / "model.mlrh", scenes / "test.csv", "--marginals")
    for name in ("out.csv", "out.csv.gz", "out.jsonl", "out.parquet"):
        assert run(*options, "-o", name).stdout == ""
    text = run(*options).stdout
    assert Path("out.csv").read_text() == gzip.decompress(Path("out.csv.gz").read_bytes()).decode() == text
    assert Path("out.jsonl").read_text() == run(*options, "--to", "jsonl").stdout
    records = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    table = pq.read_table("out.parquet").to_pylist()
    for row, record, entry in zip(rows_of(text), records, table, strict=True):
        assert list(row) == list(record) == list(entry)
        assert row["labels"].split(";") == record["labels"] == entry["labels"]
        assert int(row["row"]) == record["row"] == entry["row"]
        for name in list(row)[2:]:
            assert float(row[name]) == record[name] == pytest.approx(entry[name], rel=1e-5)


def test_rows_of_many_chunks_are_numbered_through(scenes, monkeypatch):
    arguments = ("predict", scenes / "model.mlrh", scenes / "test.csv")
    whole = run(*arguments).stdout
    monkeypatch.setattr("mlrh.cli._models.CELLS_PER_CHUNK", 40)
    assert run(*arguments).stdout == whole


def test_a_number_too_far_away_is_told_by_its_row_also_in_a_later_chunk(scenes, folder, failure, monkeypatch):
    lines = (scenes / "test.csv").read_text().splitlines()
    lines[6] = ",".join(["3e150", *lines[6].split(",")[1:]])
    (folder / "far.csv").write_text("\n".join(lines))
    monkeypatch.setattr("mlrh.cli._models.CELLS_PER_CHUNK", 40)
    told = failure("predict", scenes / "model.mlrh", folder / "far.csv", "-o", folder / "answers.csv")
    assert f"Row 6, column {lines[0].split(',')[0]!r} is too far from what training showed; found 3e+150" in told


def test_standard_input_is_read_and_its_model_needs_a_name(scenes, folder, failure):
    train, test = ((scenes / name).read_bytes() for name in ("train.csv", "test.csv"))
    options = ("--labels", NAMES, "--kernel", "linear", "--folds", "2")
    run("fit", "-", "-o", "piped.mlrh", *options, stdin=train)
    run("fit", scenes / "train.csv", "-o", "named.mlrh", *options)
    answers = [run("predict", model, "-", stdin=test).stdout for model in ("piped.mlrh", "named.mlrh")]
    assert answers[0] == answers[1] == run("predict", "named.mlrh", scenes / "test.csv").stdout
    assert "give it with --output" in failure("fit", "-")


def test_evaluate_prints_the_measures_of_the_model_on_the_file(scenes):
    model = persistence.load(scenes / "model.mlrh")
    expected = metrics.evaluate(TEST.Y, model.predict(TEST), model.distribution(TEST).log_prob(TEST.Y))
    found = json.loads(run("evaluate", scenes / "model.mlrh", scenes / "test.csv", "--json").stdout)
    assert {name: found[name] for name in ("n_rows", *expected)} == pytest.approx({"n_rows": 15, **expected})
    table = run("evaluate", scenes / "model.mlrh", scenes / "test.csv").stdout
    assert "test: 15 rows" in table
    assert f"Hamming loss {expected['hamming_loss']:.4f}" in " ".join(table.split())


def test_evaluate_takes_labels_in_any_order_and_of_other_names_by_position(scenes, folder):
    renamed = replace(TEST, label_names=tuple(f"other {digit}" for digit in range(10)))
    write(renamed, folder / "renamed.csv")
    evaluate = ("evaluate", scenes / "model.mlrh", "--json")
    as_trained = run(*evaluate, scenes / "test.csv").stdout
    for file, names in ((scenes / "test.csv", reversed(TEST.label_names)), ("renamed.csv", renamed.label_names)):
        assert run(*evaluate, file, "--labels", ",".join(names)).stdout == as_trained


def test_only_a_model_file_is_replaced(scenes, folder, failure):
    fit = ("fit", scenes / "train.csv", "--labels", NAMES, "--kernel", "linear", "--folds", "2", "-o", "out")
    Path("out").write_text("my notes")
    assert "exists and is not a model file" in failure(*fit)
    assert Path("out").read_text() == "my notes"
    Path("out").write_bytes((scenes / "model.mlrh").read_bytes())
    run(*fit, "--decision", "hamming")
    assert persistence.load("out").settings["decision"] == "hamming"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("fit", "absent.csv", "--labels", "a"), "absent.csv: no such file"),
        (("fit", "{}/train.csv"), "nothing says which columns are labels"),
        (("fit", "{}/train.csv", "--labels", "digit 0,digit 10"), "has no column 'digit 10'"),
        (("fit", "{}/train.csv", "--labels", "digit 0,,digit 1"), "an empty name"),
        (("fit", "{}/train.csv", "--labels", "a.xml", "--labels", "b"), "must be the only value of --labels"),
        (("fit", "{}/train.csv", "--labels", "absent.txt"), "absent.txt: no such file"),
        (("fit", "{}/train.csv", "-o", "absent/model.mlrh"), "There is no folder"),
        (("fit", "{}/train.csv", "-o", "{}"), "is a folder"),
        (("fit", "{}/train.csv", "-o", "{}/train.csv"), "is also read"),
        (("fit", "{}/train.csv", "-o", os.devnull), "is not a regular file"),
        (("predict", "absent.mlrh", "{}/test.csv"), "There is no model file absent.mlrh"),
        (("predict", "{}/train.csv", "{}/test.csv"), "is not a model file"),
        (("predict", "classifier.mlrh", "{}/test.csv"), "holds a MLRHClassifier without names"),
        (("predict", "{}/model.mlrh", "few.csv"), "few lacks 63 of the model's features"),
        (("predict", "{}/model.mlrh", "{}/test.csv", "-o", "out.docx"), "say the format with --to"),
        (("predict", "{}/model.mlrh", "{}/test.csv", "-o", "out.parquet.gz"), "leave out .gz"),
        (("predict", "{}/model.mlrh", "{}/test.csv", "-o", "{}/test.csv"), "is also read"),
        (("predict", "{}/model.mlrh", "{}/test.csv", "-o", "absent/out.csv"), "There is no folder"),
        (("evaluate", "{}/model.mlrh", "few.csv"), "has no column 'digit 0', which the model names as a label"),
        (("fit", "{}/train.csv", "--labels", ""), "got an empty name in ''"),
        (("fit", "{}/train.csv", "-o", "classifier.mlrh", "--labels", ""), "got an empty name in ''"),
        (("fit", "{}/train.csv", "--labels", '"digit 0'), "must end with one"),
        (("fit", "{}/train.csv", "-o", "-"), "can't be written to standard output"),
        (("fit", "few.csv"), "(--labels, or labels= in Python)"),
        (("evaluate", "{}/model.mlrh", "{}/test.csv", "--labels", "digit 0"), "the labels must be the model's 10"),
    ],
)
def test_a_fault_is_told_in_one_line_and_leaves_no_file(arguments, words, scenes, folder, failure):
    (folder / "few.csv").write_text("pixel_0_0\n1\n2\n")
    persistence.save(MLRHClassifier().fit([[0.0], [1.0]], [[1, 0], [0, 1]]), folder / "classifier.mlrh")
    before = sorted(path.name for place in (folder, scenes) for path in place.iterdir())
    assert words in failure(*(argument.format(scenes) for argument in arguments))
    assert sorted(path.name for place in (folder, scenes) for path in place.iterdir()) == before


def test_labels_that_never_occur_and_rare_forms_are_noted_in_one_line_each(folder):
    write(replace(TRAIN, Y=TRAIN.Y * (np.arange(10) > 0)), folder / "train.csv")
    printed = run("fit", "train.csv", "--labels", NAMES, "--kernel", "linear", "--folds", "2").stderr
    notes = [line for line in printed.splitlines() if line.startswith("Note: ")]
    assert [note[:35] for note in notes] == ["Note: No row has the label digit 0,"]


def test_predictions_go_through_a_pipe_that_may_close_early(scenes):
    arguments = (*PROGRAM, "predict", "model.mlrh", "-", "--top", "1000", "--to", "jsonl")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(arguments, cwd=scenes, **pipes) as process:
        process.stdin.write((scenes / "test.csv").read_bytes())
        process.stdin.close()
        first = json.loads(process.stdout.readline())
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")
    best = persistence.load(scenes / "model.mlrh").distribution(TEST).mode()[0]
    assert first["labels"] == [TEST.label_names[digit] for digit in np.flatnonzero(best)]


def test_an_interrupt_during_a_fit_ends_it_without_a_traceback_or_a_file(tmp_path):
    write(load_digit_scenes(1500), tmp_path / "large.csv")
    arguments = (*PROGRAM, "fit", "large.csv", "--labels", NAMES, "--jobs", "1")
    with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == 130
    assert b"1,500 rows" in first and b"Traceback" not in rest
    assert [path.name for path in tmp_path.iterdir()] == ["large.csv"]


def test_an_interrupt_after_a_finished_candidate_saves_the_best_so_far(scenes, folder, monkeypatch):
    real, done = auto._Evaluation.__call__, []

    def evaluated(*arguments):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(0)
        return real(*arguments)

    monkeypatch.setattr(auto._Evaluation, "__call__", evaluated)
    result = run("fit", scenes / "train.csv", "--labels", NAMES, "-o", "out.mlrh", "--folds", "3", "--jobs", "1")
    assert "The search was interrupted; the best of 1 of" in result.output
    assert persistence.load("out.mlrh").predict_proba(TEST).shape == TEST.Y.shape


def test_a_fault_in_a_process_of_its_own_is_one_line_and_exit_code_2(tmp_path):
    done = subprocess.run((*PROGRAM, "predict", "none.mlrh", "-"), cwd=tmp_path, capture_output=True, input=b"")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == "Error: There is no model file none.mlrh.\n"


CLOSED = {
    "output": (">&-", "Standard output is closed"),
    "input": ("<&-", "Standard input is closed"),
    "full": (">/dev/full", "Standard output can't be written (No space left on device)"),
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
@pytest.mark.parametrize("command", ["predict", pytest.param("evaluate", marks=pytest.mark.slow)])
@pytest.mark.parametrize("stream", [pytest.param("output", marks=pytest.mark.slow), "input", "full"])
def test_a_standard_stream_that_is_closed_or_full_is_one_sentence(command, stream, scenes):
    redirection, words = CLOSED[stream]
    file = "-" if stream == "input" else "test.csv"
    line = f'exec "{sys.executable}" -m mlrh {command} model.mlrh {file} {redirection}'
    done = subprocess.run(["sh", "-c", line], cwd=scenes, capture_output=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"Error: {words}") and done.stderr.count(b"\n") == 1


def test_predictions_for_which_the_disk_has_no_room_are_told_with_the_path(scenes, folder, failure):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name in ("out.csv", "out.jsonl", "out.parquet"):
        arguments = ("predict", scenes / "model.mlrh", scenes / "test.csv", "--top", "500", "-o", name)
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, limits[1]))
        try:
            message = failure(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert message == f"Error: {name}: can't be written (File too large); choose another place.\n"
    assert list(folder.iterdir()) == []


def test_output_that_the_disk_takes_only_a_part_of_is_an_error_also_where_python_does_not_buffer(scenes, folder):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    arguments = ("predict", str(scenes / "model.mlrh"), str(scenes / "test.csv"), "--top", "500")
    run(*arguments)  # compiles what is to be compiled, which would be written too
    variables = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with open(folder / "out.csv", "wb") as output:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, limits[1]))
        try:
            done = subprocess.run((*PROGRAM, *arguments), stdout=output, stderr=subprocess.PIPE, env=variables)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (folder / "out.csv").stat().st_size == 9_000
    assert (done.returncode, done.stderr) == (2, b"Error: Standard output can't be written (File too large).\n")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system doesn't list processes in /proc")
@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.3, 3.0])
def test_an_interrupt_of_a_fit_and_its_processes_ends_all_of_them_without_a_traceback(tmp_path, delay):
    write(load_digit_scenes(1500), tmp_path / "large.csv")
    arguments = (*PROGRAM, "fit", "large.csv", "--labels", NAMES, "--jobs", "2")
    with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True) as process:
        wait_until(lambda: process.poll() is not None or len(workers_of(process.pid)) == 2)
        time.sleep(delay)  # while they start, or while they compute
        os.killpg(process.pid, signal.SIGINT)
        printed = process.communicate(timeout=120)[1]
    assert process.returncode == 130 and b"Traceback" not in printed
    wait_until(lambda: not running_in_session(process.pid))
    assert [path.name for path in tmp_path.iterdir()] == ["large.csv"]


def test_a_column_to_ignore_is_no_feature(scenes, folder):
    fit = ("fit", scenes / "train.csv", "--labels", NAMES, "-o", "out.mlrh", "--kernel", "linear", "--folds", "2")
    run(*fit, "--ignore", TRAIN.feature_names[3])
    assert persistence.load("out.mlrh").schema.feature_names == TRAIN.feature_names[:3] + TRAIN.feature_names[4:]


def test_predictions_replace_predictions_and_nothing_else(scenes, folder, failure):
    predict = ("predict", scenes / "model.mlrh", scenes / "test.csv", "-o")
    for target in ("out.csv", "out.csv.gz", "out.jsonl", "out.parquet"):
        run(*predict, target)
        run(*predict, target)
    write(TRAIN, folder / "scenes.arff")
    before = (folder / "scenes.arff").read_bytes()
    for taken in ("scenes.arff", "scenes.xml"):
        assert "holds no predictions" in failure(*predict, taken, "--to", "csv")
    assert (folder / "scenes.arff").read_bytes() == before


def test_a_file_of_decisions_is_not_replaced_by_predictions(scenes, folder, failure):
    decided = folder / "confirmed.csv"
    Store(decided, list(TRAIN.label_names), ["a" * 10]).keep(1, np.ones(len(TRAIN.label_names)))
    before = decided.read_bytes()
    predict = ("predict", scenes / "model.mlrh", scenes / "test.csv", "-o")
    assert "holds no predictions" in failure(*predict, "confirmed.csv")
    assert decided.read_bytes() == before


@pytest.mark.parametrize("target", ["out.csv", "out.csv.gz", "out.jsonl"])
def test_predictions_after_many_columns_of_the_file_replace_such_predictions(scenes, folder, target):
    more = pd.DataFrame(0, range(15), [f"a column with a long name {place}" for place in range(300)])
    wide = pd.concat([pd.read_csv(scenes / "test.csv"), more], axis=1)
    wide.to_csv("wide.csv", index=False)
    predict = ("predict", scenes / "model.mlrh", "wide.csv", "--append", "-o", target)
    run(*predict)
    run(*predict)
    found = pd.read_json(target, lines=True) if target.endswith("jsonl") else pd.read_csv(target)
    assert list(found.columns) == [*wide.columns, "labels", "probability"] and len(found) == len(wide)


def test_a_saved_model_predicts_a_data_frame_in_python(scenes):
    model = persistence.load(scenes / "model.mlrh")
    frame = pd.DataFrame(TEST.X, columns=list(TEST.feature_names))[list(reversed(TEST.feature_names))]
    np.testing.assert_array_equal(model.predict(frame), model.predict(TEST))


@pytest.mark.filterwarnings("ignore:.*was saved with:UserWarning")
@pytest.mark.parametrize("name", ["mlrh_fit", "mlrh_fit_sparse"])
def test_a_model_of_version_0_1_is_evaluated(name, tmp_path):
    old = Path(__file__).parent / "model_files" / "0.1" / f"{name}.mlrh.gz"
    (tmp_path / "old.mlrh").write_bytes(gzip.decompress(old.read_bytes()))
    (tmp_path / "new.csv").write_text("u,v,place,a,b,c\n0.5,1,here,1,0,0\n-1,0,there,0,1,1\n")
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "old.mlrh"), str(tmp_path / "new.csv")])
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "exact match" in result.stdout
