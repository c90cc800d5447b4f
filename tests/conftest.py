"""Settings that must stand before numpy and scipy are imported, and before a test is interrupted."""

import os
import signal
import sys

import hypothesis
import pytest

# The same examples in every run: a failure is seen where it was made, and again.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")
# Tests run in parallel processes; OpenBLAS threads that wait by spinning would take each other's cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# scikit-learn's checks of array API input are skipped without it.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
# A shell lets what it starts in the background ignore Ctrl-C, which tests send to themselves and to what they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def failure(capsys, monkeypatch):
    """A function that runs a command that must fail, and gives the one line that it prints."""
    from mlrh.__main__ import main

    def line_of(*arguments):
        monkeypatch.setattr(sys, "argv", ["mlrh", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        assert stop.value.code == 2 and printed.out == ""
        assert printed.err.count("\n") == 1 and printed.err.startswith("Error: ")
        return printed.err

    return line_of


@pytest.fixture
def path(tmp_path):
    """Where a model file goes."""
    return tmp_path / "model.mlrh"


collect_ignore = ["oracle/make_open.py"]  # a script without examples; it needs mpmath, which the tests do not
