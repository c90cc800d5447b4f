"""A fit in the background with what a person has decided so far, and what it moved. Knows nothing of HTTP."""

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from mlrh.spaces import LabelSetDistribution
from mlrh.web._session import Session

STOP_SECONDS = 2  # that a fit may take to remove its files once it is told to end
SHOWN = 8  # labels and rows that moved most


class Retrained(NamedTuple):
    """What a fit has made: the distribution of the session's rows, and the model with its least probable answer."""

    distribution: LabelSetDistribution
    least_probability: float = 0.0
    model: Any = None


class Retraining:
    """Runs a command that fits anew, one at a time; then the session answers by the new model.

    The fit is a process of its own, so that the page answers as fast as before.

    Parameters
    ----------
    session : Session
    command : sequence of str
        The program and its arguments. An error is its last line on standard error.
    load : function without arguments
        Gives a Retrained of what the command has made.
    kept : str
        Where the model is kept, in words.

    Attributes
    ----------
    adopting : function of a model
        Prepares those who answer by the model beside the session, and gives a function that makes them do so.
    """

    def __init__(
        self,
        session: Session,
        command: Sequence[str],
        load: Callable[[], Retrained],
        *,
        kept: str,
    ):
        self._session, self._command, self._load, self._kept = session, list(command), load, kept
        self.adopting: Callable[[Any], Callable[[], None]] = lambda model: lambda: None
        self._state: dict[str, Any] = {"state": "none"}
        self._process: subprocess.Popen | None = None
        self._begin, self._lock = 0.0, threading.Lock()

    def start(self) -> dict[str, Any]:
        """Begin a fit; a ValueError where one runs or nothing is decided."""
        with self._lock:
            if self._state["state"] == "running":
                raise ValueError("A fit is running already; wait until it has ended.")
            n_rows = int(np.count_nonzero(self._session.decided()))
            if not n_rows:
                raise ValueError("No row has a decision yet, so there is nothing to retrain with; decide some first.")
            started: Future[subprocess.Popen] = Future()
            # A daemon: the program can end while a model is being loaded.
            threading.Thread(target=self._fit, args=(started, n_rows), daemon=True).start()
            self._process = started.result()
            self._begin, self._state = time.monotonic(), {"state": "running", "n_rows": n_rows}
        return self.state()

    def state(self) -> dict[str, Any]:
        """none, running (with seconds), failed (with an error), or done (with a sentence and what moved)."""
        with self._lock:
            if self._state["state"] == "running":
                return {**self._state, "seconds": int(time.monotonic() - self._begin)}
            return self._state

    def close(self) -> None:
        """End a fit that is running."""
        with self._lock:
            process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:  # in compiled code, which hears nothing
                process.kill()
                process.wait()

    def _fit(self, started, n_rows):
        """Start a fit and wait for it, in one thread.

        To Linux the parent of a process is the thread that started it: a fit that ends with its parent would end with
        the request that asked for it.
        """
        # A session of its own: Ctrl-C in the terminal ends this program, which then ends the fit.
        how: dict[str, Any] = {"text": True, "errors": "replace", "start_new_session": True}
        how |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        try:
            process = subprocess.Popen(self._command, **how)
        except BaseException as error:
            started.set_exception(error)  # raised where the fit was asked for
            return
        started.set_result(process)
        self._finish(process, n_rows)

    def _finish(self, process, n_rows):
        try:
            state = self._outcome(process, n_rows)
        except Exception as error:  # nobody waits for this thread; the page tells it
            state = {"state": "failed", "error": f"The retrained model can't be used: {error}"}
        with self._lock:
            self._state = {**state, "n_rows": n_rows}

    def _outcome(self, process, n_rows):
        said = process.communicate()[1].strip().splitlines()
        if process.returncode:
            reason = said[-1].removeprefix("Error: ") if said else f"it ended with code {process.returncode}"
            return {"state": "failed", "error": f"The fit failed: {reason}"}
        after, least_probability, model = self._load()
        adopt = self.adopting(model)  # whoever can't refuses before anything has changed
        before = self._session.retrained(after, least_probability)
        adopt()
        changes = moved(before, after, self._session)
        rows = f"{n_rows} decided row{'' if n_rows == 1 else 's'}"
        what = f"{changes['n_sets']} of {changes['n_open']} rows without decisions have another most probable set now"
        sentence = f"Retrained with {rows}: {what}. The model is kept in {self._kept}."
        return {"state": "done", "sentence": sentence, "moved": changes}


def moved(before: LabelSetDistribution, after: LabelSetDistribution, session: Session) -> dict[str, Any]:
    """How the answers about the rows without decisions differ: labels and rows that moved most.

    labels: expected number of these rows that have the label, before and after. rows: the most probable sets, of those
    rows where they differ, by the sum of changes in marginals.
    """
    open_rows = np.flatnonzero(~session.decided())
    names = session.overview()["label_names"]
    before, after = before.take(open_rows), after.take(open_rows)
    marginals, new_marginals = before.marginals(), after.marginals()
    expected, new_expected = marginals.sum(axis=0), new_marginals.sum(axis=0)
    sets, new_sets = before.mode(), after.mode()
    differ = (sets != new_sets).any(axis=1)
    change = np.where(differ, np.abs(new_marginals - marginals).sum(axis=1), -1.0)
    labels = np.argsort(-np.abs(new_expected - expected), kind="stable")[:SHOWN]
    rows = [place for place in np.argsort(-change, kind="stable")[:SHOWN] if differ[place]]
    return {
        "n_open": len(open_rows),
        "n_sets": int(np.count_nonzero(differ)),
        "labels": [
            {"name": names[label], "before": float(expected[label]), "after": float(new_expected[label])}
            for label in labels
        ],
        "rows": [
            {
                "row": int(open_rows[place]) + 1,
                "before": [names[label] for label in np.flatnonzero(sets[place])],
                "after": [names[label] for label in np.flatnonzero(new_sets[place])],
            }
            for place in rows
        ],
    }
