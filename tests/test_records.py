"""Records survive what can happen to a run, and nothing is on record twice."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mlrh.experiments._records import RecordFile, key_of, read_records


def record(fold, method="m", **rest):
    key = {"plan": "p", "dataset": "d", "protocol": "nested", "method": method, "seed": 0, "fold": fold}
    return {**key, "metrics": {}, **rest}


def test_a_file_opened_again_holds_the_records_in_the_order_they_were_appended(tmp_path):
    with RecordFile(tmp_path / "r.jsonl") as file:
        file.append([record(1, value=0.1)])
        file.append([record(0, value=1 / 3), record(0, method="n")])
    with RecordFile(tmp_path / "r.jsonl") as file:
        assert file.records == [record(1, value=0.1), record(0, value=1 / 3), record(0, method="n")]
        assert key_of(record(0)) in file and key_of(record(2)) not in file


def test_a_key_on_record_is_not_written_again(tmp_path):
    with RecordFile(tmp_path / "r.jsonl") as file:
        file.append([record(0, value=1)])
        file.append([record(0, value=2), record(1)])
    assert read_records(tmp_path / "r.jsonl") == [record(0, value=1), record(1)]


@pytest.mark.parametrize("n_bytes", [1, 5, 60])
def test_a_line_cut_short_is_dropped_and_the_next_record_starts_on_a_line_of_its_own(tmp_path, n_bytes):
    path = tmp_path / "r.jsonl"
    with RecordFile(path) as file:
        file.append([record(0)])
    path.write_bytes(path.read_bytes() + json.dumps(record(1)).encode()[:n_bytes])
    assert read_records(path) == [record(0)]
    with RecordFile(path) as file:
        assert file.records == [record(0)]
        file.append([record(2)])
    assert [json.loads(line)["fold"] for line in path.read_text().splitlines()] == [0, 2]


@pytest.mark.parametrize("n_before", [0, 1])
def test_a_whole_record_without_an_end_of_line_is_kept(tmp_path, n_before):
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(json.dumps(record(fold)) for fold in range(n_before + 1)))
    assert read_records(path) == [record(fold) for fold in range(n_before + 1)]
    with RecordFile(path) as file:
        assert file.records == [record(fold) for fold in range(n_before + 1)]
        file.append([record(0), record(7)])
    folds = [json.loads(line)["fold"] for line in path.read_text().splitlines()]
    assert folds == [*range(n_before + 1), 7]


@pytest.mark.parametrize("text", ["my notes", "x", "[1, 2", '{\n "a": 1\n}', '{"a": 1}', "a,b\n1,2"])
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(tmp_path, text):
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"r\.jsonl, line \d: not a record of a run"):
        RecordFile(tmp_path / "r.jsonl")
    assert (tmp_path / "r.jsonl").read_text() == text


def test_of_two_records_of_one_key_in_one_call_the_first_is_written(tmp_path):
    with RecordFile(tmp_path / "r.jsonl") as file:
        file.append([record(0, value=1), record(1), record(0, value=2)])
        assert file.records == [record(0, value=1), record(1)]
    assert read_records(tmp_path / "r.jsonl") == [record(0, value=1), record(1)]


def test_a_file_with_a_key_twice_is_refused_by_both_lines(tmp_path):
    lines = [json.dumps(record(fold)) + "\n" for fold in (0, 1, 0)]
    (tmp_path / "r.jsonl").write_text("".join(lines))
    with pytest.raises(ValueError, match=r"r\.jsonl, line 3: the same task is on record in line 1; delete one of them"):
        RecordFile(tmp_path / "r.jsonl")


def test_a_disk_that_is_full_is_told_by_name_and_leaves_no_half_record(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    with RecordFile(path) as file:
        file.append([record(0)])
        before = path.read_bytes()

        def refuse(number):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left") as error:
            file.append([record(1)])
        assert error.value.filename == str(path)
        assert path.read_bytes() == before and file.records == [record(0)]
        monkeypatch.undo()
        file.append([record(1)])
    assert read_records(path) == [record(0), record(1)]


def test_two_runs_cannot_write_to_one_file(tmp_path):
    with RecordFile(tmp_path / "r.jsonl"), pytest.raises(BlockingIOError, match="Another run is writing"):
        RecordFile(tmp_path / "r.jsonl")


WRONG = (record(0, plan=["p"]), {**record(0), "metrics": 1, "fold": "0"})


@pytest.mark.parametrize("line", ["not json", "[1]", '{"plan": "p"}', "3", *map(json.dumps, WRONG)])
def test_a_complete_line_that_is_no_record_is_an_error_that_names_it(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(record(0)) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2: not a record"):
        read_records(path)


WRITER = """
import sys
from mlrh.experiments._records import RecordFile
with RecordFile(sys.argv[1]) as file:
    fold = len(file.records)
    while True:
        key = {"plan": "p", "dataset": "d", "protocol": "n", "method": "m", "seed": 0, "fold": fold}
        file.append([{**key, "metrics": {}, "padding": "x" * 5000}])
        print(fold, flush=True)
        fold += 1
"""


def test_whatever_was_appended_before_a_kill_is_there_after_it(tmp_path):
    path = tmp_path / "r.jsonl"
    told = -1
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 60
            for line in process.stdout:
                told = int(line)
                if told % 7 == 6 or time.monotonic() > deadline:
                    break
            os.kill(process.pid, signal.SIGKILL)
            told = max([told, *map(int, process.stdout.read().split())])
        folds = [found["fold"] for found in read_records(path)]
        assert folds == list(range(len(folds)))
        assert len(folds) >= told + 1


def test_a_file_where_the_folder_should_be_is_said_in_a_sentence(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(FileExistsError, match="out is a file; name a folder for the records"):
        RecordFile(tmp_path / "out" / "records.jsonl")
