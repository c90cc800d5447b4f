"""Two processes and one file: nothing that one was told to be saved is lost by the other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import wait_until
from samples import one_sentence

from mlrh._files import lock
from mlrh.data import DataError
from mlrh.web import known_of
from mlrh.web._store import Store, held

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")

DECIDE = """
import sys
import numpy as np
from mlrh.data import DataError
from mlrh.web._store import Store

path, first, n_rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
letters = ["x" * 10] * n_rows
print("ready", flush=True)
sys.stdin.readline()
for row in range(first, n_rows + 1, 2):
    while True:  # as a person would: start again after the sentence that tells to
        try:
            Store(path, ["a"], letters).keep(row, np.ones(1))
            break
        except DataError as error:
            assert "was changed by another program" in str(error), error
    print(row, flush=True)
"""


@pytest.mark.slow
def test_of_two_processes_that_write_at_the_same_time_no_decision_is_lost(tmp_path):
    path, n_rows = tmp_path / "c.csv", 80
    command = [sys.executable, "-c", DECIDE, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    one, two = (subprocess.Popen([*command, first, str(n_rows)], **pipes) for first in "12")
    for process in (one, two):
        assert process.stdout.readline() == "ready\n"
    for process in (one, two):
        process.stdin.write("\n")
        process.stdin.flush()
    told = [int(line) for process in (one, two) for line in process.communicate(timeout=120)[0].split()]
    assert (one.returncode, two.returncode) == (0, 0)
    assert sorted(told) == list(range(1, n_rows + 1))
    assert known_of(path, n_rows).tolist() == [[1.0]] * n_rows
    assert [found.name for found in tmp_path.iterdir()] == ["c.csv"]


HOLD = """
import sys, time
from mlrh._files import lock
lock(sys.argv[1])
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder():
    """Starts processes that take the lock of a path and keep it; ends them."""
    started = []

    def start(path):
        started.append(subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_lock_is_refused_while_another_process_has_it_and_free_once_that_is_killed(tmp_path, holder):
    process = holder(tmp_path / "f")
    with pytest.raises(BlockingIOError):
        lock(tmp_path / "f")
    lock(tmp_path / "g")()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    lock(tmp_path / "f")()
    assert list(tmp_path.iterdir()) == []


def test_a_change_waits_for_another_process_and_gives_up_with_a_sentence_that_names_the_file(
    tmp_path, holder, monkeypatch
):
    process = holder(tmp_path / "c.csv")
    store = Store(tmp_path / "c.csv", ["a"], ["x" * 10])
    monkeypatch.setattr("mlrh.web._store.PATIENCE", 0.1)
    with pytest.raises(DataError, match=r"c\.csv is being written by another program") as error:
        store.keep(1, np.ones(1))
    assert one_sentence(error) and not (tmp_path / "c.csv").exists()
    process.kill()
    process.wait()
    store.keep(1, np.ones(1))
    assert known_of(tmp_path / "c.csv", 1).tolist() == [[1.0]]


def test_a_second_page_on_the_same_file_is_refused_by_name_also_through_a_link(tmp_path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "c.csv")
    with held(tmp_path / "c.csv"):
        with (
            pytest.raises(DataError, match=r"c\.csv is open on another page for tagging") as error,
            held(tmp_path / "link.csv"),
        ):
            pytest.fail("the block must not be reached")
        assert one_sentence(error)
        Store(tmp_path / "c.csv", ["a"], ["x" * 10]).keep(1, np.ones(1))  # the page's own changes
    with held(tmp_path / "c.csv"):
        pass
    assert sorted(found.name for found in tmp_path.iterdir()) == ["c.csv", "link.csv"]


def test_serving_a_file_that_is_being_tagged_is_refused_in_a_sentence(tmp_path):
    from mlrh import MLRHClassifier
    from mlrh.web import serve

    X = np.arange(6.0)[:, None]
    classifier = MLRHClassifier().fit(X, [[0, 1], [1, 0]] * 3)
    with held(tmp_path / "c.csv"), pytest.raises(DataError, match="is open on another page for tagging"):
        serve(classifier, X, output=tmp_path / "c.csv", open_browser=False)
    assert list(Path(tmp_path).iterdir()) == []


def test_a_lock_that_is_given_back_while_others_wait_goes_to_one_of_them(tmp_path, holder):
    give_back = lock(tmp_path / "f")
    taken = subprocess.Popen(
        [sys.executable, "-c", HOLD.replace("lock(sys.argv[1])", "lock(sys.argv[1], 60)"), str(tmp_path / "f")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: taken.poll() is None)
        give_back()
        assert taken.stdout.readline() == "ready\n"
        with pytest.raises(BlockingIOError):
            lock(tmp_path / "f")
    finally:
        taken.kill()
        taken.communicate()
