"""The service at its edges: pools of many labels, a model that can't be compiled, wrong lengths, hosts, and its end."""

import asyncio
import io
import json
import socket
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from processes import wait_until
from samples import make_multilabel
from test_service import Client, refused, starting
from uvicorn.server import ServerState

from mlrh import automatic
from mlrh.data import MultilabelData, read
from mlrh.estimators import auto
from mlrh.spaces import CardinalitySpace, Mixture
from mlrh.web import _answers, _http, _service, _workers
from mlrh.web._application import make_app
from mlrh.web._session import Session

N_LABELS = 16  # more than the 14 of which a pool of models lists all sets
NAMES = tuple(f"label {place}" for place in range(N_LABELS))
ROWS = [{"a": 1.0, "b": -2.0}, {"a": None, "b": 0.5}]


@pytest.fixture(scope="module")
def model():
    X, Y = make_multilabel(60, 2, N_LABELS)
    data = MultilabelData(X, Y.astype(np.int8), ("a", "b"), NAMES, "songs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "LINEAR_C", (1.0,))
        return automatic.choose(data, scores="linear", label_space="cardinality", quality="fast", n_folds=2)


class Pooled(automatic.Model):
    """A model whose distribution is that of a pool."""

    def distribution(self, data):
        own = super().distribution(data)
        return Mixture([own, CardinalitySpace(N_LABELS, 0, 2).distribution(np.zeros(own.shape))], [0.75, 0.25])


@pytest.fixture(scope="module")
def ask(model):
    client = Client(make_app(Pooled(**vars(model)), "songs"))
    yield client
    client.close()


# Pools


def test_a_pool_of_more_labels_than_can_be_listed_is_served_without_its_entropy(ask, model):
    distribution = Pooled(**vars(model)).distribution(_answers._Cells(ROWS, ("a", "b")))
    with pytest.raises(ValueError, match="at most 14 labels"):
        distribution.entropy()
    for path, more in (("/distribution", {}), ("/condition", {"known": [{}, {}]})):
        response = ask("POST", path, json={"rows": ROWS, **more})
        assert response.status_code == 200, response.text
        given = response.json()["distributions"]
        assert [own["entropy"] for own in given] == [None, None]
        marginals = [[label["marginal"] for label in own["labels"]] for own in given]
        np.testing.assert_allclose(marginals, distribution.marginals(), rtol=1e-12)


def test_rows_of_such_a_pool_are_tagged_those_with_the_least_probable_best_set_first():
    scores = np.random.default_rng(0).normal(size=(5, N_LABELS)) * np.array([[3.0], [0.1], [1.0], [5.0], [2.0]])
    members = [
        CardinalitySpace(N_LABELS, 0, 3).distribution(scores),
        CardinalitySpace(N_LABELS, 1, 1).distribution(scores),
    ]
    pool = Mixture(members, [0.5, 0.5])
    session = Session(pool, NAMES)
    row, best = session.overview()["start"]["entropy"], []
    while row is not None:
        answer = session.row(row, "entropy")
        json.dumps(answer, allow_nan=False)
        assert (answer["entropy"], answer["entropy_before"], answer["effective_sets"]) == (None, None, None)
        best.append(answer["best"]["probability"])
        row = answer["next"]
    np.testing.assert_allclose(best, np.sort(pool.prob(pool.mode())), rtol=1e-12)
    assert session.decide(1, NAMES[3], 1)["entropy"] is None


# Before the first answer


def test_a_model_that_can_not_be_compiled_is_a_fault_and_not_asked_again_later(model, monkeypatch):
    def fail(self, question):
        raise RuntimeError("no memory for it")

    monkeypatch.setattr(_answers.Answers, "expected", fail)

    async def story():
        async with starting(model) as client:
            deadline = time.monotonic() + 60
            while (await client.get("/ready")).status_code == 503 and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            return [await client.get(path) for path in ("/ready", "/model", "/health")]

    ready, about, health = asyncio.run(story())
    assert refused(ready, 500) == refused(about, 500) == "The model can't be compiled; the log says why."
    assert "Retry-After" not in ready.headers and health.status_code == 200


# Requests


def test_a_request_in_chunks_is_refused_also_where_it_says_a_length(ask):
    headers = {"Content-Type": "application/json", "Content-Length": "2", "Transfer-Encoding": "chunked"}
    content = json.dumps({"rows": ROWS}).encode()
    response = ask("POST", "/predict", content=content, headers=headers)
    assert "and not come in chunks" in refused(response, 411)
    assert response.headers["Connection"] == "close"


def test_what_was_received_is_forgotten_once_it_is_answered_or_refused(model):
    service = _service.Service(model, "songs", _service.Limits(bytes=100), _service.Metrics())

    async def received(length, *parts):
        rest = list(parts)

        async def receive():
            return {"type": "http.request", "body": rest.pop(0), "more_body": bool(rest)}

        scope = {"type": "http", "headers": [(b"content-length", length)]}
        async with service._body(_http.Request(scope, receive)) as got:
            assert (got, service._received) == (b"".join(parts), sum(map(len, parts)))

    asyncio.run(received(b"50", b"sho", b"rt"))
    assert service._received == 0
    service._received = most = 17 * 100 - 4
    with pytest.raises(_http.RequestError, match="requests wait already"):
        asyncio.run(received(b"50", b"sho", b"rt"))
    assert service._received == most


def test_warnings_of_other_libraries_and_threads_are_no_notes_of_an_answer(ask, monkeypatch):
    read = _answers.read

    def reading(*arguments, **options):
        warnings.warn("old", DeprecationWarning, stacklevel=2)
        warnings.warn("other.csv: column 'a' was dropped", UserWarning, stacklevel=2)
        warnings.warn("The request: for the user", UserWarning, stacklevel=2)
        return read(*arguments, **options)

    monkeypatch.setattr(_answers, "read", reading)
    response = ask("POST", "/predict", content=b"a,b\n1,2\n", headers={"Content-Type": "text/csv"})
    assert response.json()["notes"] == ["The request: for the user"]


@pytest.mark.parametrize("value", [1e103, -1.7e308])
@pytest.mark.parametrize("kind", ["application/json", "text/csv"])
def test_a_number_too_far_away_for_an_answer_is_told_by_row_and_column(ask, value, kind, capfd):
    rows = [*ROWS, {"a": value, "b": 1.0}]
    content = json.dumps({"rows": rows}) if kind == "application/json" else f"a,b\n1,2\n,3\n{value},1\n"
    sentence = refused(ask("POST", "/predict", content=content.encode(), headers={"Content-Type": kind}), 422)
    assert sentence.startswith(f"Row 3, column 'a' is too far from what training showed; found {value:g}, where")
    assert capfd.readouterr().err == ""


# Host and end


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine_is_told_so_and_not_the_port(host):
    with pytest.raises(ValueError, match=rf"^{host} is no address of this machine; correct --host\.$"):
        _http.listening(host, 0)


async def give_a_long_answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(2**24)})  # more than the system keeps for a client


def test_a_client_that_takes_nothing_of_its_answer_is_left(monkeypatch):
    monkeypatch.setattr(_http, "SECONDS", 0.2)
    server = _http.uvicorn.Server(_http.server_config(give_a_long_answer, lifespan="off"))
    with _http.listening("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname(), timeout=60) as client:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(8, socket.MSG_PEEK) == b"HTTP/1.1"
        try:
            wait_until(lambda: not server.server_state.connections, seconds=30)
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def test_a_slow_client_is_left_only_once_it_takes_nothing_any_more():
    sizes, done = iter([900, 500, 500, 100, 100, 100]), []
    transport = SimpleNamespace(get_write_buffer_size=lambda: next(sizes), abort=lambda: done.append("abort"))
    loop = SimpleNamespace(call_later=lambda *own: SimpleNamespace(cancel=int))
    config = _http.server_config(give_a_long_answer, lifespan="off")
    protocol = _http.Protocol(config, ServerState(), {}, _loop=loop)
    protocol.transport = transport
    protocol._wait()
    for _ in range(2):
        protocol._leave()
        assert not done
    protocol._leave()
    assert done == ["abort"]


def test_connections_are_refused_while_workers_end(monkeypatch):
    sock = _http.listening("127.0.0.1", 0)
    address, ended = sock.getsockname(), []

    class Worker:
        sentinel = None

        def start(self):
            pass

        def terminate(self):
            pass

        def join(self):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, timeout=5).close()
            ended.append(self)

    def interrupted(sentinels):
        raise KeyboardInterrupt

    context = SimpleNamespace(Process=lambda **options: Worker(), RawArray=lambda *size: None)
    monkeypatch.setattr(_workers.multiprocessing, "get_context", lambda kind: context)
    monkeypatch.setattr(_workers.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(_workers, "wait", interrupted)
    with sock, pytest.raises(KeyboardInterrupt):
        _workers._supervise(None, None, _workers.Serving(workers=2), sock)
    assert len(ended) == 2


# Nominal columns of numbers


@pytest.fixture(scope="module")
def by_length():
    """A model with a nominal column whose values are numbers."""
    X, Y = make_multilabel(60)
    X = np.column_stack([X[:, 0], np.arange(60) % 3])
    values = {"length": ("455", "662", "7.50")}
    data = MultilabelData(X, Y.astype(np.int8), ("a", "length"), tuple("wxyz"), "songs", values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "LINEAR_C", (1.0,))
        return automatic.choose(data, scores="linear", label_space="cardinality", quality="fast", n_folds=2)


@pytest.fixture(scope="module")
def ask_by_length(by_length):
    client = Client(make_app(by_length, "songs"))
    yield client
    client.close()


def test_a_nominal_column_of_numbers_takes_the_numbers_that_mlrh_predict_takes(ask_by_length, by_length):
    rows = [{"a": 0.5, "length": cell} for cell in ("662", 662, 662.0, 455, 7.5, None, 663, 10**40)]
    text = "\n".join(map(json.dumps, rows)).encode()
    with pytest.warns(UserWarning, match="length"):  # 663 counts as missing
        data = read(io.BytesIO(text), (), format="jsonl", schema=by_length.schema)
    given = ask_by_length("POST", "/distribution", json={"rows": rows})
    assert given.status_code == 200, given.text
    marginals = [[label["marginal"] for label in own["labels"]] for own in given.json()["distributions"]]
    np.testing.assert_allclose(marginals, by_length.distribution(data).marginals(), rtol=1e-12)
    assert marginals[0] == marginals[1] == marginals[2] != marginals[3] and marginals[5] == marginals[6]
    note = "Column 'length': values that the model doesn't know count as missing in 2 rows (row 7: '663')."
    assert given.json()["notes"] == [note]
    kinds = ask_by_length("GET", "/openapi.json").json()["components"]["schemas"]["Row"]["properties"]["length"]
    assert [own["type"] for own in kinds["anyOf"]] == ["string", "number", "null"]


@pytest.mark.parametrize("cell", ["true", "[662]", "NaN", "-Infinity", "1e999", f"1{'0' * 5000}"])
def test_such_a_column_takes_nothing_else(ask_by_length, cell):
    content = f'{{"rows": [{{"a": 0.5, "length": {cell}}}]}}'
    response = ask_by_length("POST", "/predict", content=content, headers={"Content-Type": "application/json"})
    assert refused(response, 422).startswith(("Row 1, column 'length' must be a text", "The request must be JSON"))
