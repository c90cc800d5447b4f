"""Runs over processes: the same records as one by one, nothing lost and nothing repeated after a kill."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from experiment_samples import TINY, small_dataset
from processes import number_once_there, refuse_odd_numbers, running_in_session, wait_until

from mlrh._processes import as_finished
from mlrh.data import write
from mlrh.experiments import _reproduce as runner
from mlrh.experiments._protocol import PROFILES, nested_tasks, public_tasks
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
    timed = {"task_seconds", "processor_seconds", "fit_seconds", "predict_seconds", "finished"}
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


def test_a_method_that_is_out_of_time_is_not_run_on_the_other_splits_of_the_set(tmp_path, monkeypatch):
    tasks, begun = public_tasks(DATASET, TINY, ["ML-kNN", "BR-LR"]), []

    def slow_neighbours(task, *_):
        begun.append((task.family, task.fold))
        plan, dataset, protocol, method, seed, fold = task.keys[0]
        key = {"plan": plan, "dataset": dataset, "protocol": protocol, "method": method, "seed": seed, "fold": fold}
        is_slow = method == "ML-kNN" and fold == 1
        return [{**key, "metrics": {}, "task_seconds": 1.0, **({"out_of_time": 900} if is_slow else {})}]

    monkeypatch.setattr(runner, "run_task", slow_neighbours)
    records, failures = run_all(tasks, tmp_path / "r.jsonl")
    assert failures == []
    # The first fold of each method comes first.
    assert begun == [(m, 0) for m in ("ML-kNN", "BR-LR")] + [("ML-kNN", 1)] + [("BR-LR", fold) for fold in range(1, 5)]
    spared = {r["fold"]: r for r in records if "not_run_after" in r}
    assert spared.keys() == {2, 3, 4}
    for record in spared.values():
        assert record["method"] == "ML-kNN" and record["metrics"] == {} and record["out_of_time"] == 900
        assert record["not_run_after"] == [0, 1]

    # A run that goes on where such a record is the last one runs nothing either.
    kept = [line for line in (tmp_path / "r.jsonl").read_text().splitlines() if "not_run_after" not in line]
    (tmp_path / "r.jsonl").write_text("".join(f"{line}\n" for line in kept))
    begun.clear()
    records, _ = run_all(tasks, tmp_path / "r.jsonl")
    assert begun == [] and len(records) == 10


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


@pytest.mark.slow
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
    task, dataset, _ = item
    if task.family == "lethal":
        os.kill(os.getpid(), signal.SIGKILL)
    return runner.run_task(task, dataset, profile)


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


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_results_come_with_their_places_and_an_exception_of_a_task_is_raised(n_jobs):
    events = list(as_finished(refuse_odd_numbers, [4, 0, 2], n_jobs=n_jobs))
    assert sorted((place, result) for place, result, _ in events if place is not None) == [(0, 4), (1, 0), (2, 2)]
    with pytest.raises(ValueError, match="3 is odd"):
        list(as_finished(refuse_odd_numbers, [2, 3], n_jobs=n_jobs))


def test_a_task_that_waits_can_be_replaced(tmp_path):
    begun, later = tmp_path / "begun", tmp_path / "later"
    begun.touch()
    tasks, found = [(begun, 0), *((later, number) for number in range(1, 8))], {}
    for place, result, _ in as_finished(number_once_there, tasks, n_jobs=2):
        found[place] = result
        if place == 0:  # of all others, none can end yet
            tasks[7] = (later, 70)
            later.touch()
    del found[None]
    assert found == {**{number: number for number in range(7)}, 7: 70}
