"""Counts of requests that several processes share, in the text format of Prometheus."""

import multiprocessing
from typing import Any

import numpy as np

PATHS = (  # all that there are, and "other" for those that there aren't
    *("/predict", "/distribution", "/condition", "/expected", "/model", "/health", "/ready", "/metrics"),
    *("/openapi.json", "/", "/start.js", "/start.css", "/drawing.js", "/drawing.css", "/tag", "/tag.js", "/tag.css"),
    *("/api/session", "/api/row", "/api/image", "/api/retraining", "/api/retrain"),
    *("/api/decide", "/api/accept", "/api/clear", "/api/undo", "other"),
)
STATUSES = (200, 400, 401, 403, 404, 405, 411, 413, 415, 422, 500, 503)
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, float("inf"))  # in seconds
N_REQUESTS = len(PATHS) * len(STATUSES)
N_TIMES = len(PATHS) * (len(BUCKETS) + 1)  # the last of each path is the sum
SIZE = N_REQUESTS + N_TIMES + 2  # rows, and requests that wait


class Metrics:
    """Counts of one process, beside those of the others.

    A process writes its own line of the shared array only, so that no lock is needed, which a killed process could
    keep. What its predecessor counted stays.

    Parameters
    ----------
    shared : array of `shared_counts`, optional
    worker : int, default=0
        The line of this process.
    """

    def __init__(self, shared: Any = None, worker: int = 0):
        counts = np.zeros((1, SIZE)) if shared is None else np.frombuffer(shared).reshape(-1, SIZE)
        self._counts, self._own = counts, counts[worker]
        self.set_waiting(0)

    def add(self, path: str, status: int, seconds: float, n_rows: int) -> None:
        """Count an answer."""
        place = PATHS.index(path if path in PATHS else "other")
        self._own[place * len(STATUSES) + STATUSES.index(status)] += 1
        bucket = next(bucket for bucket, bound in enumerate(BUCKETS) if seconds <= bound)
        times = self._own[N_REQUESTS:-2].reshape(len(PATHS), -1)
        times[place, bucket] += 1
        times[place, -1] += seconds
        self._own[-2] += n_rows

    def set_waiting(self, n: int) -> None:
        """Say how many requests wait or are computed now."""
        self._own[-1] = n

    def text(self) -> str:
        """The sums over all processes."""
        counts = self._counts.sum(axis=0)
        requests = counts[:N_REQUESTS].reshape(len(PATHS), -1)
        times = counts[N_REQUESTS:-2].reshape(len(PATHS), -1)
        lines = ["# HELP mlrh_requests_total Requests answered.", "# TYPE mlrh_requests_total counter"]
        for place, status in zip(*np.nonzero(requests), strict=True):
            labels = f'path="{PATHS[place]}",status="{STATUSES[status]}"'
            lines.append(f"mlrh_requests_total{{{labels}}} {requests[place, status]:.0f}")
        lines += ["# HELP mlrh_request_seconds Time from request to answer.", "# TYPE mlrh_request_seconds histogram"]
        for place in np.flatnonzero(times[:, :-1].any(axis=1)).tolist():
            lines += _histogram(PATHS[place], times[place])
        for name, kind, what, value in (
            ("mlrh_rows_total", "counter", "Rows answered.", counts[-2]),
            ("mlrh_waiting", "gauge", "Requests that wait or are computed now.", counts[-1]),
        ):
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}", f"{name} {value:.0f}"]
        return "\n".join(lines) + "\n"


def shared_counts(n_workers: int) -> Any:
    """Counts of so many processes, all 0, to hand to each of them as it is started."""
    return multiprocessing.get_context("spawn").RawArray("d", n_workers * SIZE)


def _histogram(path, times):
    below = np.cumsum(times[:-1])
    for bound, count in zip(BUCKETS, below, strict=True):
        name = "+Inf" if bound == float("inf") else f"{bound:g}"
        yield f'mlrh_request_seconds_bucket{{path="{path}",le="{name}"}} {count:.0f}'
    yield f'mlrh_request_seconds_sum{{path="{path}"}} {times[-1]:.6f}'
    yield f'mlrh_request_seconds_count{{path="{path}"}} {below[-1]:.0f}'
