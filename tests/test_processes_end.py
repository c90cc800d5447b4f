"""However the program ends, its workers end with it, and faults of handing rows to them are told; in real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import running_in_session, wait_until, workers_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system doesn't list processes")

# Compiled code that holds Python's lock, as some of LAPACK's wrappers do, for longer than the test waits.
HOLD = """
import ctypes, os, pathlib

def hold(seconds):
    pathlib.Path(f"{os.getpid()}.held").touch()
    ctypes.PyDLL(None).sleep(seconds)
"""
PROGRAM = """
from mlrh._processes import as_finished
from busy import hold

list(as_finished(hold, [600] * 4, n_jobs=2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_workers_in_compiled_code_that_holds_the_lock_of_python_end_with_the_program(tmp_path, monkeypatch, ending):
    (tmp_path / "busy.py").write_text(HOLD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with subprocess.Popen(
        (sys.executable, "-c", PROGRAM), cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        wait_until(lambda: len(list(tmp_path.glob("*.held"))) == 2)
        process.send_signal(ending)
        process.wait(30)
    wait_until(lambda: not running_in_session(process.pid), 10)


THREADS = """
import os, pathlib, threading, time
from mlrh._processes import as_finished

found = []
def use():
    events = as_finished(lambda _: os.getpid(), [0, 1], n_jobs=2)
    found.extend(result for place, result, _ in events if place is not None)

thread = threading.Thread(target=use)
thread.start()
thread.join()
time.sleep(1)
print([pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "SR" for pid in found])
"""


def test_workers_outlive_the_thread_that_started_them_since_others_share_them(tmp_path):
    done = subprocess.run((sys.executable, "-c", THREADS), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[True, True]\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_fit_that_is_ended_by_a_signal_leaves_no_process_and_no_file(tmp_path, ending):
    from mlrh.data import load_digit_scenes, write

    write(load_digit_scenes(1500), tmp_path / "large.arff")
    before = sorted(path.name for path in tmp_path.iterdir())
    arguments = (sys.executable, "-m", "mlrh", "fit", "large.arff", "--jobs", "2")
    with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        wait_until(lambda: len(workers_of(process.pid)) == 2)
        process.send_signal(ending)
        process.wait(30)
    wait_until(lambda: not running_in_session(process.pid), 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


MANY_FILES = """
import sys, time
import mlrh.cli
from mlrh.__main__ import main
from mlrh.data import FileParts

def run():
    with FileParts(sys.argv[1:], ["b"]) as parts:
        print(len(list(parts)), flush=True)
        time.sleep(600)

mlrh.cli.run = run
main()
"""


def test_sigterm_ends_the_program_as_such_and_leaves_no_rows_of_many_files_behind(tmp_path, monkeypatch):
    files, folder = [str(tmp_path / f"part{number}.csv") for number in range(2)], tmp_path / "temporary"
    for file in files:
        Path(file).write_text("a,b\n1,0\n2,1\n")
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with subprocess.Popen((sys.executable, "-c", MANY_FILES, *files), stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"2\n"
        assert list(folder.glob("mlrh-parts-*/*.npy"))
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
    assert not list(folder.iterdir())


FULL = """
import resource
import numpy as np
from mlrh._processes import as_finished

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    list(as_finished(np.sum, [np.zeros(300_000), np.zeros(300_000)], n_jobs=2))
except OSError as error:
    print(error)
"""


def test_rows_for_which_the_folder_of_temporary_files_has_no_room_are_told_in_a_sentence(tmp_path):
    pytest.importorskip("resource")
    done = subprocess.run((sys.executable, "-c", FULL), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == (
        "Rows can't be handed to processes by way of the folder for temporary files (File too large); name one with "
        "more room in the variable JOBLIB_TEMP_FOLDER, or use one process.\n"
    )
