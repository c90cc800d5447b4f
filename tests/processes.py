"""What a program that was started in a session of its own still runs, waiting for it, and work for a process.

Processes that tests start import this file: it imports nothing of the package, so that they start at once.
"""

import time
from pathlib import Path


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def refuse_odd_numbers(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


def number_once_there(task):
    """The number of a task (path, number), as soon as the path is there."""
    path, number = task
    wait_until(Path(path).exists)
    return number


def workers_of(session):
    """The processes of joblib that compute."""
    return [line for line in running_in_session(session).values() if b"popen_loky" in line]


def running_in_session(session):
    """Command lines by process, of those that haven't ended."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, own = (place / "stat").read_text().rpartition(") ")[2].split()[:4]
            if int(own) == session and state != "Z":
                found[place.name] = (place / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
    return found
