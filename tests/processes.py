"""What a program that was started in a session of its own still runs, and waiting for it."""

import time
from pathlib import Path


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


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
