"""Runs over processes: the same records as one by one, nothing lost and nothing repeated after a kill."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from experiment_samples import TINY, small_dataset
from processes import running_in_session, wait_until

from mlrh._processes import as_finished
from mlrh.data import write
from mlrh.experiments import _reproduce as runner
from mlrh.experiments._protocol import PROFILES, nested_tasks
from mlrh.experiments._records import RecordFile, key_of, read_records
from mlrh.experiments._reproduce import run

DATASET, QUICK = small_dataset(), PROFILES["quick"]


def run_all(tasks, path, profile=TINY, n_jobs=1, **options):
    with RecordFile(path) as file:
        failures = run(tasks, {"small": DATASET}, profile, file=file, n_jobs=n_jobs, **options)
        return file.records, failures


@pytest.fixture
def tasks():
    return nested_tasks(DATASET, TINY, ["mlrh-linear", "ml-knn"])


def without_times(records):
    timed = {"task_seconds", "fit_seconds", "predict_seconds", "finished"}
    plain = [{name: value for name, value in record.items() if name not in timed} for record in records]
    return sorted(plain, key=lambda record: json.dumps(record, sort_keys=True))


@pytest.mark.slow
def test_two_processes_make_the_records_of_one(tmp_path):
    tasks = nested_tasks(DATASET, QUICK, ["mlrh-linear", "br-lr"])
    one, failures = run_all(tasks, tmp_path / "one.jsonl", QUICK)
    two, more = run_all(tasks, tmp_path / "two.jsonl", QUICK, n_jobs=2)
    assert failures == more == []
    assert len(one) == 10
    assert without_times(one) == without_times(two)


def test_what_is_on_record_is_not_computed_again(tasks, tmp_path, monkeypatch):
    run_all(tasks[:3], tmp_path / "r.jsonl")
    computed = []
    original = runner.run_task
    monkeypatch.setattr(runner, "run_task", lambda task, *rest: computed.append(task) or original(task, *rest))
    records, _ = run_all(tasks, tmp_path / "r.jsonl")
    assert sorted(map(str, computed)) == sorted(map(str, tasks[3:]))
    assert {key_of(record) for record in records[:3]} == {task.keys[0] for task in tasks[:3]}


def test_a_method_that_fails_leaves_the_others_their_records_and_is_tried_again(tasks, tmp_path, monkeypatch):
    original, broken = runner.run_task, [True]

    def sometimes(task, *rest):
        if task.family == "ml-knn" and task.fold == 2 and broken[0]:
            raise RuntimeError("no neighbours\nat all")
        return original(task, *rest)

    monkeypatch.setattr(runner, "run_task", sometimes)
    records, failures = run_all(tasks, tmp_path / "r.jsonl")
    assert failures == ["ML-kNN on small, seed 0, fold 2: RuntimeError: no neighbours"]
    assert len(records) == 9
    broken[0] = False
    records, failures = run_all(tasks, tmp_path / "r.jsonl")
    assert (len(records), failures) == (10, [])


def test_progress_counts_every_task_once_and_ends_at_the_total(tasks, tmp_path):
    told = []
    run_all(tasks[:4], tmp_path / "r.jsonl")
    run_all(tasks, tmp_path / "r.jsonl", report=told.append)
    assert [progress.n_done for progress in told if progress.finished] == [5, 6, 7, 8, 9, 10]
    assert (told[-1].n_tasks, told[-1].seconds_left) == (10, 0)


def start_compare(folder, n_records):
    """The process of a comparison, when it has so many records or has ended."""
    if not (folder / "songs.arff").exists():
        write(small_dataset(n_samples=200).data, folder / "songs.arff")
    command = [sys.executable, "-m", "mlrh", "compare", "songs.arff", "-o", "out", "--jobs", "2"]
    methods = ["--method", "mlrh-rbf", "--method", "br-svm", "--method", "lp-lr"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command + methods, cwd=folder, start_new_session=True, **pipes)
    path = folder / "out" / "records.jsonl"
    wait_until(lambda: process.poll() is not None or (path.exists() and path.read_bytes().count(b"\n") >= n_records))
    return process


@pytest.mark.slow
def test_a_comparison_killed_twice_goes_on_and_repeats_nothing(tmp_path):
    records = tmp_path / "out" / "records.jsonl"
    kept = b""
    for count in (2, 6):
        process = start_compare(tmp_path, count)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        content = records.read_bytes()
        assert content.startswith(kept)
        kept = content[: content.rfind(b"\n") + 1]
        wait_until(lambda process=process: not running_in_session(process.pid), 20)
    assert len(kept.splitlines()) >= 6
    process = start_compare(tmp_path, 0)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert records.read_bytes().startswith(kept)
    keys = [key_of(record) for record in read_records(records)]
    assert len(keys) == len(set(keys)) == 5 * 4
    assert "MLRH-WTA (RBF)" in output
    assert (tmp_path / "out" / "report.html").exists()


def test_a_worker_that_dies_costs_one_task_and_no_other(tmp_path, monkeypatch):
    tasks = nested_tasks(DATASET, QUICK, ["br-lr"])
    killer = tasks[2]
    lethal = replace(killer, family="lethal")
    monkeypatch.setitem(runner.FAMILIES, "lethal", runner.FAMILIES[killer.family])  # known here, not in the workers
    monkeypatch.setattr(runner, "_outcome", die_if_lethal)
    everything = [lethal if task is killer else task for task in tasks]
    records, failures = run_all(everything, tmp_path / "r.jsonl", QUICK, n_jobs=2)
    assert failures == [
        f"{lethal.methods[0]} on small, seed 0, fold {lethal.fold}: its process died, perhaps for want of memory"
    ]
    assert len(records) == 4


def die_if_lethal(profile, item):
    if item[0].family == "lethal":
        os.kill(os.getpid(), signal.SIGKILL)
    return runner.run_task(*item, profile)


@pytest.mark.slow
def test_an_interrupt_says_where_the_records_are_and_stops_the_workers(tmp_path):
    process = start_compare(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in errors
    assert "Traceback" not in errors
    wait_until(lambda: not running_in_session(process.pid), 20)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["records.jsonl"]


def refuse_odd_numbers(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_results_come_with_their_places_and_an_exception_of_a_task_is_raised(n_jobs):
    events = list(as_finished(refuse_odd_numbers, [4, 0, 2], n_jobs=n_jobs))
    assert sorted((place, result) for place, result, _ in events if place is not None) == [(0, 4), (1, 0), (2, 2)]
    with pytest.raises(ValueError, match="3 is odd"):
        list(as_finished(refuse_odd_numbers, [2, 3], n_jobs=n_jobs))
