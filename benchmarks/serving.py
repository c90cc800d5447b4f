"""What load does `mlrh serve` bear? Throughput beside plain predict, latency, overload, memory, and a killed page.

Every part ends by itself, after a number of seconds or requests. The parts of a comparison take turns, so that other
programs of the machine slow both down. Run: python -m benchmarks.serving (MLRH_DATA names the folder of public sets).
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

N_ROWS = 100  # of a request, as CSV
FULL = 16  # connections that fill the queue, so that none is refused: the load that the server accepts
CROWD = 64  # connections that are too many for a queue of 16
SHARE, TAIL = 0.4, 5.0  # of plain predict's throughput, at least; of the median latency, at most the 99th percentile
GROWTH = 8 * 2**20  # bytes; what Python's allocator keeps wanders by as much
PEOPLE = 4  # who tag at the same time
START_SECONDS = 300  # to import and compile on a busy machine
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)(?:/tag\?token=([\w-]+))?")


@dataclass
class Figures:
    """What was measured.

    ratio is the median of the turns, by the clock; processor_ratio is that of rows per second of processor time in all
    turns, which other programs of the machine don't change. beyond counts the answers to more requests than are taken,
    by status.
    """

    served_rows_per_second: float
    plain_rows_per_second: float
    ratio: float
    processor_ratio: float
    median_ms: float
    p99_ms: float
    beyond: dict[int, int]
    requests_for_memory: int
    memory_mib: list[float]
    growth_mib: float
    acknowledged: int
    lost: int

    def faults(self) -> list[str]:
        """The promises that these figures break."""
        promises = {
            f"throughput at least {SHARE:.0%} of predict": self.ratio >= SHARE,
            f"p99 under {TAIL:g} times the median": self.p99_ms < TAIL * self.median_ms,
        }
        return _broken(promises) + self.faults_at_any_load()

    def faults_at_any_load(self) -> list[str]:
        """Those of the broken promises that other programs of the machine can't break: none is by the clock."""
        promises = {
            f"per processor time at least {SHARE:.0%} of the rows of predict": self.processor_ratio >= SHARE,
            "only 200 and 503 beyond": set(self.beyond) == {200, 503},
            "memory flat": self.growth_mib * 2**20 < GROWTH,
            "no acknowledged decision lost": self.acknowledged > 0 and self.lost == 0,
        }
        return _broken(promises)


def _broken(promises):
    return [promise for promise, is_kept in promises.items() if not is_kept]


def measure(*, seconds: float, rounds: int, n_requests: int, tell=print) -> Figures:
    """All figures: `rounds` turns of so many seconds each, and so many requests for the growth of memory."""
    import pandas as pd

    from mlrh.persistence import load

    with tempfile.TemporaryDirectory() as folder:
        model_file, rows_file = prepare(Path(folder))
        frame = pd.read_csv(rows_file).iloc[:N_ROWS]
        model = load(model_file)
        content, headers = frame.to_csv(index=False).encode(), {"Content-Type": "text/csv"}
        with running(["serve", str(model_file), "--port", "0"]) as (process, port, _):
            wait_until_ready(port)
            ask = (port, "/predict", content, headers)
            served, plain, latencies, used, used_by_plain = [], [], [], [], []
            for number in range(rounds):
                before = _processor_seconds(process.pid)
                answers, taken = asked(*ask, connections=FULL, seconds=seconds)
                used.append((_processor_seconds(process.pid) - before, len(answers)))
                assert {status for status, _ in answers} == {200}, "a request was refused within the queue"
                served.append(N_ROWS * len(answers) / taken)
                latencies += [latency for _, latency in answers]
                rate, *of_calls = plain_rate(model, frame, seconds)
                plain.append(rate)
                used_by_plain.append(of_calls)
                tell(f"turn {number + 1}: served {served[-1]:.0f}, predict {plain[-1]:.0f} rows a second")
            median, p99 = 1e3 * np.quantile(latencies, [0.5, 0.99])
            tell(f"{FULL} connections: median {median:.1f} ms, 99th percentile {p99:.1f} ms")
            answers, _ = asked(*ask, connections=CROWD, seconds=seconds)
            statuses = [status for status, _ in answers]
            beyond = {status: statuses.count(status) for status in sorted(set(statuses))}
            tell(f"{CROWD} connections: {beyond}")
            memory = memory_over(process.pid, ask, n_requests, tell)
        acknowledged, lost = killed_page(model_file, rows_file, Path(folder, "decided.csv"), seconds)
        tell(f"killed page: {acknowledged} decisions acknowledged, {lost} lost")
    return Figures(
        served_rows_per_second=float(np.median(served)),
        plain_rows_per_second=float(np.median(plain)),
        ratio=float(np.median(np.array(served) / plain)),
        processor_ratio=_each(used_by_plain) / _each(used),
        median_ms=float(median),
        p99_ms=float(p99),
        beyond=beyond,
        requests_for_memory=n_requests,
        memory_mib=[round(value / 2**20, 1) for value in memory],
        # The first tenth fills caches.
        growth_mib=float((max(memory[-5:]) - max(memory[1:6])) / 2**20),
        acknowledged=acknowledged,
        lost=lost,
    )


def prepare(folder: Path) -> tuple[Path, Path]:
    """A model of emotions with linear scores, whose predict is the quickest there is, and a table of its test rows."""
    from mlrh.automatic import choose
    from mlrh.data import read, write
    from mlrh.persistence import save

    data = Path(os.environ["MLRH_DATA"], "emotions")
    model = choose(read(data / "emotions-train.arff"), scores="linear", label_space="cardinality", n_folds=2, n_jobs=1)
    save(model, folder / "emotions.mlrh")
    write(read(data / "emotions-test.arff"), folder / "test.csv")
    return folder / "emotions.mlrh", folder / "test.csv"


# The server and its clients


@contextlib.contextmanager
def running(arguments: list[str]):
    """A command of mlrh in a process of its own, its port and its token; killed at the end."""
    command = [sys.executable, "-m", "mlrh", *arguments]
    with tempfile.NamedTemporaryFile("w") as log:
        process, printed = subprocess.Popen(command, stderr=log), Path(log.name)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (found := ADDRESS.search(printed.read_text())):
                assert process.poll() is None and time.monotonic() < deadline, printed.read_text()
                time.sleep(0.1)
            yield process, int(found[1]), found[2]
        finally:
            process.kill()
            process.wait()


def wait_until_ready(port: int) -> None:
    """Return once /ready is answered with 200."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/ready")
        status = connection.getresponse().status
        connection.close()
        if status == 200:
            return
        assert time.monotonic() < deadline, "the server doesn't get ready"
        time.sleep(0.2)


def asked(port, path, content, headers, *, connections, seconds=None, n_requests=None):
    """(status, seconds) of every request of so many clients, each of which asks again once it is answered.

    Each asks once at least where there is no number of requests, also on a machine so busy that the time is up before.
    """
    answers: list[tuple[int, float]] = []
    begun, start = iter(range(n_requests or 2**62)), time.monotonic()
    end = start + (seconds or 2**30)
    faults: list[BaseException] = []

    def client():
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            while next(begun, None) is not None:
                sent = time.monotonic()
                connection.request("POST", path, content, headers)
                response = connection.getresponse()
                response.read()
                answers.append((response.status, time.monotonic() - sent))
                if time.monotonic() >= end:
                    break
                if response.status == 503:
                    time.sleep(0.02)  # much sooner than Retry-After says
            connection.close()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=client) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, f"a connection failed: {faults[0]!r}"
    return answers, time.monotonic() - start


def plain_rate(model, frame, seconds: float) -> tuple[float, float, int]:
    """Rows a second of the model's own predict, seconds of processor time that calls took, and how many there were."""
    start, used, n_calls = time.monotonic(), time.process_time(), 0
    while time.monotonic() < start + seconds:
        model.predict(frame)
        n_calls += 1
    return N_ROWS * n_calls / (time.monotonic() - start), time.process_time() - used, n_calls


def memory_over(pid: int, ask: tuple, n_requests: int, tell) -> list[int]:
    """Bytes in memory of the server at the start and after each twentieth of so many requests."""
    memory = [_resident(pid)]
    for part in range(20):
        answers, _ = asked(*ask, connections=FULL, n_requests=-(-n_requests // 20))
        statuses = {status for status, _ in answers}
        assert statuses <= {200, 503}, f"answered with {statuses}"  # 503: a busy machine takes longer than allowed
        memory.append(_resident(pid))
        tell(f"after {(part + 1) * -(-n_requests // 20)} requests: {memory[-1] / 2**20:.1f} MiB")
    return memory


def _each(used):
    """Processor time of one request or call, of (time, number) of several turns."""
    times, numbers = zip(*used, strict=True)
    return sum(times) / sum(numbers)


def _processor_seconds(pid):
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _resident(pid):
    return 1024 * int(re.search(r"VmRSS:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1])


# The tagging page


def killed_page(model_file: Path, rows_file: Path, decisions: Path, seconds: float) -> tuple[int, int]:
    """How many decisions a page had acknowledged when it was killed under load, and how many its file lacks."""
    from mlrh.web import known_of

    command = ["tag", str(model_file), str(rows_file), "-o", str(decisions), "--no-browser"]
    with running(command) as (process, port, token):
        clients = [_Person(port, token, start, step=PEOPLE) for start in range(PEOPLE)]
        for client in clients:
            client.start()
        time.sleep(seconds)
        while not any(own.acknowledged for own in clients) and any(own.is_alive() for own in clients):
            time.sleep(0.1)  # on a busy machine the first answer may take longer
        process.send_signal(signal.SIGKILL)
        for client in clients:
            client.join()
    said = [own for client in clients for own in client.acknowledged]
    n_rows = len(rows_file.read_text().splitlines()) - 1
    known = known_of(decisions, n_rows)
    return len(said), sum(bool(known[row - 1, label] != value) for (row, label), value in _last(said).items())


def _last(said):
    return {(row, label): value for row, label, value in said}


class _Person(threading.Thread):
    """Says of every so manieth row, again and again, that a label is absent or open, until the page is gone."""

    def __init__(self, port, token, start, step):
        super().__init__(daemon=True)
        self._page, self._rows, self.acknowledged = (port, token), (start, step), []

    def run(self):
        port, token = self._page
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        with contextlib.suppress(OSError, http.client.HTTPException):
            names = json.loads(_said(port, "GET", "/api/session", None, headers))["label_names"]
            for label, name in enumerate(names[:-1]):
                for row in range(1 + self._rows[0], 200, self._rows[1]):
                    body = json.dumps({"row": row, "label": name, "value": 0, "order": "file"})
                    json.loads(_said(port, "POST", "/api/decide", body, headers))["labels"]
                    self.acknowledged.append((row, label, 0))


def _said(port, method, path, body, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, headers)
    content = connection.getresponse().read()
    connection.close()
    return content


def main() -> int:
    """1 where a promise is broken, else 0; prints the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100_000, help="for the growth of memory")
    options = parser.parse_args()
    figures = measure(seconds=options.seconds, rounds=options.rounds, n_requests=options.requests)
    print(json.dumps(asdict(figures), indent=1))
    for promise in figures.faults():
        print(f"BROKEN: {promise}")
    return 1 if figures.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
