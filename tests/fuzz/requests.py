"""Raw HTTP requests to the server of a model and of rows to tag, mutated byte by byte and made by a grammar.

The server answers with a well-formed response or closes the connection, prints no traceback, goes on serving, shows
rows and answers only to who knows the token, loses no change that it has acknowledged, and needs little more memory
than at first.
"""

import contextlib
import json
import math
import multiprocessing
import os
import re
import socket
import struct
import tempfile
import time
from itertools import count
from pathlib import Path
from random import Random

import numpy as np

from mlrh.automatic import Model, choose
from mlrh.data import MultilabelData
from mlrh.spaces import CardinalitySpace
from mlrh.web import known_of
from mlrh.web._server import HOST
from mlrh.web._server import Server as PageServer
from mlrh.web._session import Session
from mlrh.web._store import Store
from mlrh.web._tagging import Tagging

from . import CORPUS
from ._limits import START_SECONDS, limit_memory
from ._mutations import LONGEST, MARKS, NUMBERS, mutant

SECONDS = 25  # for an answer on a busy machine; the server itself waits 30 for the rest of a request
GROWTH = 2**26  # bytes of memory beyond those at the start that the server may have needed at any time
MEMORY = (
    2**32
)  # bytes of address space, which stop it before the machine; threads take 72 MiB each and use little of it
MOST = 50_000  # requests of one run; each leaves a port of this machine in use for a minute
MOST_IDLE = 20  # connections that are open and say nothing
EVERY = 20  # cases after which the server is looked at
NAMES = ("happy", "sad", "<b>calm</b>", "loud")
N_ROWS = 6
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # before the answer, to who asked for it
HEAD = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2}) [ -~]*((?:\r\n[!#-'*+.0-9A-Z^-z|~-]+: [\t -~]*)*)")


def run(seconds: float, seed: int, most: float = MOST) -> int:
    """The number of requests tried; an AssertionError names the seed of the first with a fault."""
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        end, corpus = time.monotonic() + seconds, kept(server)
        for request in corpus:
            fault = server.fault(request, [request])
            assert fault is None, f"{fault}\nthe corpus has {request!r}"
        for number in count():
            if number >= most or time.monotonic() > end:
                fault = server.fault_so_far()
                assert fault is None, f"after {number} cases from seed {seed}: {fault}"
                return len(corpus) + number
            random = Random(seed + number)
            request = drawn(random, corpus, server)
            fault = server.fault(request, _pieces(random, request))
            if fault is None and random.random() < 0.1:
                server.leave(random, random.choice(corpus))
            if fault is None and number % EVERY == 0:
                fault = server.fault_so_far()
            again = f"python -m tests.fuzz --seconds 1 --only requests --seed {seed + number}"
            assert fault is None, f"{again}\n{fault}\n{request[:2000]!r}"


class Server:
    """The server in a process of its own, and what it has acknowledged so far."""

    def __init__(self, folder: Path):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, folder), daemon=True)
        self._process.start()
        theirs.close()
        assert ours.poll(START_SECONDS), "the server doesn't start"
        self.port, self.token = ours.recv()
        self._wait_until_ready()
        self._decisions, self._printed = _paths(folder)
        self._expected = np.full((N_ROWS, len(NAMES)), np.nan)
        self._idle: list[socket.socket] = []
        self._resident = self._memory()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for connection in self._idle:
            connection.close()
        self._process.kill()
        self._process.join()

    def _wait_until_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while not self._answer([self.request("GET", "/ready")]).startswith(b"HTTP/1.1 200"):
            assert time.monotonic() < deadline, "the model isn't compiled"
            time.sleep(0.1)

    def fault(self, request: bytes, pieces: list[bytes]) -> str | None:
        """What is wrong with the answer to a request that is sent in pieces, and with what it has changed."""
        try:
            answer = self._answer(pieces)
        except TimeoutError:
            return f"no answer after {SECONDS} s"
        if answer:
            return self._fault_of_answer(request, answer)
        # Closed before the request was read to its end, or because there was none. A change before that may stand.
        self._expected = self._in_file()
        return None

    def leave(self, random: Random, request: bytes) -> None:
        """Send the start of a good request and go away, or stay and say nothing more; it changes nothing."""
        connection = socket.create_connection((HOST, self.port), timeout=SECONDS)
        connection.sendall(request[: random.randrange(len(request.rstrip()))])
        if random.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
            connection.close()
        else:
            self._idle.append(connection)
        if len(self._idle) > MOST_IDLE:
            self._idle.pop(0).close()

    def fault_so_far(self) -> str | None:
        """What is wrong with the server as a whole."""
        status, _, body = parts_of(self._answer([self.request("GET", "/api/session")])) or (None, None, b"")
        if status != 200 or json.loads(body)["label_names"] != list(NAMES):
            return f"the server no longer answers: {status}, {body[:300]!r}"
        if printed := self._printed.read_text():
            return f"the server printed {printed}"
        grown = self._memory() - self._resident
        return f"the server has taken {grown} bytes more" if grown > GROWTH else None

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """A request as the page sends it."""
        length = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{self.port}\r\nAuthorization: Bearer {self.token}\r\n{length}"
        return head.encode() + b"\r\n" + (body or b"")

    def _answer(self, pieces):
        """The whole answer; nothing where the server closed the connection without one."""
        answer = b""
        with socket.create_connection((HOST, self.port), timeout=SECONDS) as connection:
            with contextlib.suppress(OSError):  # it needn't read all before it answers and closes
                for piece in pieces:
                    connection.sendall(piece)
                connection.shutdown(socket.SHUT_WR)
            try:
                while part := connection.recv(2**16):
                    answer += part
            except ConnectionError:  # closed while something of the request was unread: the rest may be lost
                parts = parts_of(answer)
                return answer if parts and parts[1].get("content-length") == str(len(parts[2])) else b""
        return answer.removeprefix(CONTINUE)

    def _fault_of_answer(self, request, answer):
        parts = parts_of(answer)
        if parts is None:
            return f"no HTTP answer: {answer[:300]!r}"
        status, headers, body = parts
        method = (request.decode("latin-1").split() or [""])[0]
        if headers.get("content-length") != str(len(body)) and not (method == "HEAD" and not body):
            return f"Content-Length is {headers.get('content-length')} for {len(body)} bytes"
        if headers.get("x-content-type-options") != "nosniff":
            return "the answer lacks the headers that protect the page"
        if status == 500:
            return f"a fault of the program: {body[:500]!r}"
        if method == "HEAD" or (status == 200 and headers["content-type"] != "application/json"):
            return None
        content = json.loads(body, parse_constant=_refuse)
        if status != 200:
            return _fault_of_sentence(content)
        if self.token.encode() not in request and list(content) != ["status"]:  # of /health and /ready
            return f"who doesn't know the token is told {content}"
        return self._fault_of_row(method, content) if "row" in content else None

    def _fault_of_row(self, method, content):
        """Compare what is said of a row, and the file, with what was acknowledged before."""
        known = [math.nan if label["known"] is None else label["known"] for label in content["labels"]]
        row = content["row"] - 1
        if method == "POST":
            self._expected[row] = known
        for where, values in {"answer": np.array(known), "file": self._in_file()}.items():
            expected = self._expected[row] if where == "answer" else self._expected
            if not np.array_equal(values, expected, equal_nan=True):
                return f"the {where} has {values.tolist()} where {expected.tolist()} was acknowledged"
        return None

    def _in_file(self):
        """What the file of decisions says of all rows."""
        return known_of(self._decisions, N_ROWS)

    def _memory(self):
        """The most bytes that have been resident (Linux)."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])


def parts_of(answer: bytes) -> tuple[int, dict[str, str], bytes] | None:
    """Status, headers in lower case and body of a response; None where it is none."""
    head, mark, body = answer.partition(b"\r\n\r\n")
    match = HEAD.fullmatch(head)
    if not match or not mark:
        return None
    lines = [line.partition(": ") for line in match[2].decode().split("\r\n")[1:]]
    return int(match[1]), {name.lower(): value for name, _, value in lines}, body


def _fault_of_sentence(content):
    if list(content) != ["error"] or "\n" in content["error"] or not 0 < len(content["error"]) < 600:
        return f"not one sentence: {content}"
    return None


def _refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def _paths(folder):
    return folder / "decisions.csv", folder / "printed.txt"


def _serve(connection, folder):
    """Serve six rows until the process is ended; what would be printed in the terminal goes into a file."""
    path, printed = _paths(folder)
    os.dup2(os.open(printed, os.O_CREAT | os.O_WRONLY), 2)
    distribution = CardinalitySpace(len(NAMES), 1, 2).distribution(np.random.default_rng(0).normal(size=(N_ROWS, 4)))
    store = Store(path, NAMES, [letter * 10 for letter in "abcdef"])
    session = Session(distribution, NAMES, keep=store.keep)
    for change in (lambda: session.decide(1, "sad", 1), session.undo):  # compiles what answers need
        change()
    server = PageServer(Tagging(session), model=_model())
    limit_memory(MEMORY)
    connection.send((server.server_address[1], server.token))
    server.serve_forever()


def _model() -> Model:
    """A model of two columns and the labels of the rows."""
    X = np.random.default_rng(0).normal(size=(40, 2))
    X[:, 1] = np.arange(40) % 2
    Y = np.column_stack([X[:, 0] > 0, X[:, 0] <= 0, X[:, 1] == 0, X[:, 0] > 1]).astype(np.int8)
    data = MultilabelData(X, Y, ("tempo", "mode"), NAMES, "songs", {"mode": ("major", "minor")})
    return choose(data, scores="linear", label_space="cardinality", n_folds=2, n_jobs=1)


# Cases


def kept(server: Server) -> list[bytes]:
    """The requests of the corpus, for this server."""
    texts = [path.read_bytes() for path in sorted((CORPUS / "requests").iterdir())]
    return [text.replace(b"TOKEN", server.token.encode()).replace(b"PORT", str(server.port).encode()) for text in texts]


def drawn(random: Random, corpus: list[bytes], server: Server) -> bytes:
    """A mutant of the corpus, a request by the grammar, or a change that is taken."""
    kind = random.random()
    if kind < 0.4:
        return mutant(random, random.choice(corpus), corpus)
    if kind < 0.6:
        return server.request("POST", *_change(random))
    request = _made(random, server)
    return mutant(random, request, corpus) if random.random() < 0.2 else request


def _pieces(random, request):
    """The request in one or several parts."""
    cuts = sorted(random.randrange(len(request) + 1) for _ in range(random.choice([0, 0, 0, 1, 4])))
    return [request[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(request)], strict=True)]


def _change(random):
    """Address and body of a change that there is; that no set fits, or that nothing can be undone, is refused."""
    row = {"row": random.randint(1, N_ROWS), "order": random.choice(["file", "entropy"])}
    address = random.choice(["decide", "decide", "decide", "accept", "clear", "undo"])
    if address == "decide":
        row |= {"label": random.choice(NAMES), "value": random.choice([0, 1, None])}
    if address == "undo":
        del row["row"]
    return f"/api/{address}", json.dumps(row).encode()


PATHS = [
    "/",
    "/start.js",
    "/tag",
    "/tag.js",
    "/tag.css",
    "/drawing.js",
    "/drawing.css",
    "/api/session",
    "/api/row",
    "/api/image",
    "/api/retraining",
    "/api/retrain",
    "/api/decide",
    "/api/accept",
    "/api/clear",
    "/api/undo",
    "/predict",
    "/predict",
    "/distribution",
    "/condition",
    "/expected",
    "/model",
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
]
ODD_PATHS = [
    "*",
    "",
    "//",
    "/../x",
    "/%2e%2e/",
    "http://127.0.0.1/",
    "//[",
    "http://[::1",
    "/\xff",
    "/%",
    "/api/row;x",
    "#",
]
QUERIES = [
    "?decision=f1",
    "?answer_sizes=1,",
    "?row=1",
    "?row=6&order=entropy",
    "?row=0",
    "?row=",
    "?",
    "?row=1&row=2",
    "?row=1&x",
    "?row=%00",
    "?&&&=&",
]
METHODS = ["GET", "POST", "POST", "PUT", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "__init__", "G\xcbT", ""]
VERSIONS = [
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/0.9",
    "HTTP/2.0",
    "HTTP/1",
    "HTTP/1.1.1",
    "http/1.1",
    "HTTP/-1.1",
    "X",
    "",
]


def _made(random, server):
    """A request by the grammar, mostly right."""
    body = _json(random, 0).encode("utf-8", "surrogatepass") if random.random() < 0.6 else b""
    path = random.choice(PATHS if random.random() < 0.9 else ODD_PATHS)
    path += random.choice(QUERIES) if path == "/api/row" or random.random() < 0.1 else ""
    path += "x" * LONGEST * 4 if random.random() < 0.005 else ""
    method = random.choice(METHODS[:3] if random.random() < 0.8 else METHODS)
    lines = [f"{method} {path} {random.choice(VERSIONS[:3] if random.random() < 0.9 else VERSIONS)}"]
    lines += [f"{name}: {value}" for name, value in _headers(random, server, len(body)).items()]
    end = "\r\n" if random.random() < 0.95 else random.choice(["\n", "\r", "\r\n "])
    return end.join([*lines, "", ""]).encode("latin-1", "replace") + body


def _headers(random, server, length):
    headers = {
        "Host": f"{HOST}:{server.port}",
        "Authorization": f"Bearer {server.token}",
        "Content-Type": "application/json",
        "Content-Length": str(length),
    }
    for name in random.sample(sorted(headers), random.choice([0, 0, 0, 1, 2])):
        headers[name] = random.choice([*NUMBERS, *MARKS, str(length + 1), str(max(0, length - 1)), "x" * LONGEST])
    odd = [
        "Origin",
        "Transfer-Encoding",
        "Expect",
        "Connection",
        "Cookie",
        "X" * 300,
        "content-length",
        "Content-Length ",
    ]
    for name in random.sample(odd, random.choice([0, 0, 1, 2])):
        headers[name] = random.choice(
            ["chunked", "100-continue", "keep-alive", "null", "5", f"http://{HOST}:{server.port}"]
        )
    many = 200 if random.random() < 0.01 else 0  # more than http.client takes
    return headers | {f"X-{number}": "1" for number in range(many)}


def _json(random, depth):
    """A JSON text, often an object with the keys that changes or questions about rows have."""
    kind = random.random()
    if depth == 0 and kind < 0.4:
        row = {"tempo": random.choice(["1.5", "null", "-1e30"]), "mode": random.choice(['"minor"', '"x"', "null"])}
        cells = [f'"{key}":{value if random.random() < 0.8 else _json(random, 1)}' for key, value in row.items()]
        parts = ['"rows":[{' + ",".join(cells) + "}]"]
        more = ['"known":[{"sad":1}]', '"sets":[["loud"]],"metric":"f1"', '"top":2', '"decision":"f1"']
        parts += random.sample(more, random.choice([0, 0, 1, 1, 2]))
        return "{" + ",".join(parts) + "}"
    if depth == 0 and kind < 0.8:
        keys = ["row", "label", "value", "order"][: random.choice([4, 4, 4, 2, 1])]
        good = {"row": "1", "label": '"sad"', "value": random.choice("01"), "order": '"file"'}
        pairs = [f'"{key}":{good[key] if random.random() < 0.8 else _json(random, 1)}' for key in keys]
        return "{" + ",".join(pairs) + "}"
    if kind < 0.6 or depth > 3:
        texts = [
            *NUMBERS,
            "null",
            "true",
            "NaN",
            "-Infinity",
            '"\\ud83d"',
            '"\xff"',
            "'x'",
            '"' + "x" * 3000 + '"',
            "1E400",
        ]
        return random.choice(texts)
    if kind < 0.65:
        return random.choice(["[", '{"a":', "[[", " "]) * random.choice([10, 2000, LONGEST])
    items = [_json(random, depth + 1) for _ in range(random.randint(0, 3))]
    if kind < 0.8:
        return "[" + ",".join(items) + "]"
    return "{" + ",".join(f'"row":{item}' for item in items) + "}"
