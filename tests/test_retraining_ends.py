"""A fit that the tagging page has started ends with the page, also where that is killed; and not before."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from processes import wait_until

from mlrh.cli._decided import PROGRAM, fit_command
from mlrh.spaces import CardinalitySpace
from mlrh.web._retraining import Retrained, Retraining
from mlrh.web._session import Session

# A program whose fit holds Python's lock in compiled code, as some of LAPACK's wrappers do, until it is killed.
FIT = """
import ctypes, os, pathlib, sys
from mlrh._processes import end_with

end_with(int(sys.argv[1]))
pathlib.Path("fit.part").write_text(str(os.getpid()))
os.replace("fit.part", "fit.pid")
ctypes.PyDLL(None).sleep(600)
"""
PAGE = f"""
import os, sys, threading, time
from types import SimpleNamespace
from mlrh.web._retraining import Retraining

session = SimpleNamespace(decided=lambda: [True])
retraining = Retraining(session, [sys.executable, "-c", {FIT!r}, str(os.getpid())], None, kept="")
request = threading.Thread(target=retraining.start)
request.start()
request.join()
time.sleep(600)
"""


LOADING = """
import sys, threading, time
from types import SimpleNamespace
from mlrh.web._retraining import Retraining

loading = threading.Event()

def load():
    loading.set()
    time.sleep(600)

retraining = Retraining(SimpleNamespace(decided=lambda: [True]), [sys.executable, "-c", ""], load, kept="")
retraining.start()
loading.wait()
retraining.close()
"""


def is_running(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_fit_ends_with_the_page_that_is_killed(tmp_path, ending):
    with subprocess.Popen((sys.executable, "-c", PAGE), cwd=tmp_path) as page:
        try:
            wait_until((tmp_path / "fit.pid").exists)
            fit = int((tmp_path / "fit.pid").read_text())
            assert is_running(fit)
        finally:
            page.send_signal(ending)
    wait_until(lambda: not is_running(fit), 10)


def test_the_program_ends_also_while_a_retrained_model_is_being_loaded():
    assert subprocess.run((sys.executable, "-c", LOADING), timeout=60).returncode == 0


def test_a_fit_that_does_not_hear_its_end_is_killed(tmp_path):
    session = Session(CardinalitySpace(2, 0, 2).distribution(np.zeros((2, 2))), ("a", "b"))
    session.decide(1, "a", 1)
    code = "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    code += "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    retraining = Retraining(session, [sys.executable, "-c", code, str(tmp_path / "deaf")], None, kept="")
    retraining.start()
    wait_until((tmp_path / "deaf").exists)
    retraining.close()
    wait_until(lambda: retraining.state()["state"] == "failed", 10)


def test_a_fit_that_can_not_be_started_is_told_to_who_asked_for_it(tmp_path):
    session = Session(CardinalitySpace(2, 0, 2).distribution(np.zeros((2, 2))), ("a", "b"))
    session.decide(1, "a", 1)
    retraining = Retraining(session, [str(tmp_path / "none")], None, kept="")
    with pytest.raises(FileNotFoundError):
        retraining.start()
    assert retraining.state() == {"state": "none"}


def test_a_fit_goes_on_when_the_request_that_started_it_has_ended():
    distribution = CardinalitySpace(2, 0, 2).distribution(np.zeros((2, 2)))
    session = Session(distribution, ("a", "b"))
    session.decide(1, "a", 1)
    code = "import sys, time; from mlrh._processes import end_with; end_with(int(sys.argv[1])); time.sleep(2)"
    retraining = Retraining(
        session, [sys.executable, "-c", code, str(os.getpid())], lambda: Retrained(distribution), kept="confirmed.mlrh"
    )
    request = threading.Thread(target=retraining.start)
    request.start()
    request.join()
    wait_until(lambda: retraining.state()["state"] != "running")
    assert retraining.state()["state"] == "done", retraining.state()


def test_the_command_of_the_page_is_mlrh_fit_that_ends_with_it():
    command = fit_command(Path("old.mlrh"), "new.csv", "confirmed.csv", Path("new.mlrh"), format="csv")
    assert command[:6] == [sys.executable, "-P", "-c", PROGRAM, str(os.getpid()), "fit"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.startswith("Error: There is no model file old.mlrh")


def test_the_fit_of_the_page_runs_no_python_file_of_the_working_folder(tmp_path):
    (tmp_path / "typer.py").write_text("open('ran', 'w')")
    command = fit_command(Path("old.mlrh"), "new.csv", "confirmed.csv", Path("new.mlrh"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stderr.startswith("Error: There is no model file old.mlrh") and not (tmp_path / "ran").exists()
