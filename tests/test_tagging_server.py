"""The page's server asked over real HTTP, and what it refuses."""

import contextlib
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from importlib.resources import files

import numpy as np
import pytest

from mlrh._style import LIGHT, page_css
from mlrh.spaces import CardinalitySpace
from mlrh.web import known_of
from mlrh.web._http import page_files
from mlrh.web._server import Server
from mlrh.web._session import Session
from mlrh.web._store import Store
from mlrh.web._tagging import ACTIONS, Tagging

NAN = np.nan
RNG = np.random.default_rng(0)
NAMES = ["happy", "sad", "<b>calm</b>", "loud"]
DISTRIBUTION = CardinalitySpace(4, 1, 2).distribution(RNG.normal(size=(6, 4)))
JSON = {"Content-Type": "application/json"}
PAGE = files("mlrh.web")


@pytest.fixture
def store(tmp_path):
    (tmp_path / "place").mkdir()
    return Store(tmp_path / "place" / "c.csv", NAMES, [letter * 10 for letter in "abcdef"])


@pytest.fixture(scope="module")
def one_server():
    with running(Server(Tagging(Session(DISTRIBUTION, NAMES)))) as server:
        yield server


@pytest.fixture
def server(one_server, store):
    """The server with a session of its own for each test; to start and stop one takes half a second."""
    one_server.tagging.session = Session(DISTRIBUTION, NAMES, keep=store.keep)
    one_server.tagging.about = {"name": "songs", "output": str(store.path), "n_resumed": 3}
    return one_server


@contextlib.contextmanager
def running(server):
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server, method, path, body=None, headers=None):
    """Status, headers and content of one request with the token; a body that isn't text is sent as JSON."""
    headers = {"Authorization": f"Bearer {server.token}", **(headers or {})}
    connection = HTTPConnection(*server.server_address, timeout=60)  # a first answer may compile
    content = body if body is None or isinstance(body, str) else json.dumps(body)
    try:
        connection.request(method, path, content, (JSON if content is not None else {}) | headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def get(server, path):
    status, headers, content = ask(server, "GET", path)
    assert (status, headers["Content-Type"]) == (200, "application/json"), content
    return json.loads(content)


def post(server, path, **body):
    status, _, content = ask(server, "POST", path, {"order": "file", **body})
    assert status == 200, content
    return json.loads(content)


def click(server, row, label, value):
    return post(server, "/api/decide", row=row, label=label, value=value)


def check_given(answer, known):
    """The numbers of an answer are those of `condition` called directly."""
    row = answer["row"] - 1
    rest = CardinalitySpace(4, 1, 2).distribution(DISTRIBUTION.scores[[row]]).condition([known])
    np.testing.assert_array_equal([label["marginal"] for label in answer["labels"]], rest.marginals()[0])
    assert answer["best"]["labels"] == [NAMES[k] for k in np.flatnonzero(rest.mode()[0])]
    assert answer["best"]["probability"] == rest.prob(rest.mode())[0]
    assert answer["entropy"] == rest.entropy()[0]
    sizes = {size["size"]: size["probability"] for size in answer["sizes"]}
    np.testing.assert_array_equal([sizes[j] for j in sizes], rest.cardinality_pmf()[0, list(sizes)])
    assert [label["known"] for label in answer["labels"]] == [None if np.isnan(value) else value for value in known]


def test_answers_are_those_of_condition_after_every_request(server, store):
    check_given(get(server, "/api/row?row=2"), [NAN] * 4)
    check_given(click(server, 2, "sad", 1), [NAN, 1, NAN, NAN])
    check_given(click(server, 2, "loud", 0), [NAN, 1, NAN, 0])
    check_given(get(server, "/api/row?row=2&order=entropy"), [NAN, 1, NAN, 0])
    check_given(post(server, "/api/undo"), [NAN, 1, NAN, NAN])
    best = DISTRIBUTION.space.distribution(DISTRIBUTION.scores[[1]]).condition([[NAN, 1, NAN, NAN]]).mode()[0]
    check_given(post(server, "/api/accept", row=2), best.astype(float))
    np.testing.assert_array_equal(known_of(store.path, 6)[1], best)
    check_given(post(server, "/api/clear", row=2), [NAN] * 4)
    assert np.isnan(known_of(store.path, 6)).all()


def test_the_session_tells_names_sizes_and_the_file(server, store):
    about = {"name": "songs", "output": str(store.path), "n_resumed": 3}
    expected = {"label_names": NAMES, "n_rows": 6, "min_labels": 1, "max_labels": 2, **about}
    assert get(server, "/api/session").items() >= expected.items()


def test_every_click_is_in_the_file_when_it_is_answered(server, store):
    expected = np.full((6, 4), NAN)
    for row, label, value in [(1, "happy", 1), (6, "loud", 0), (1, "sad", 0), (1, "happy", None)]:
        click(server, row, label, value)
        expected[row - 1, NAMES.index(label)] = NAN if value is None else value
        np.testing.assert_array_equal(known_of(store.path, 6, NAMES), expected)


def test_clicks_at_the_same_time_lose_nothing(server, store):
    together = threading.Barrier(4)

    def person(label):
        for row in range(1, 7):
            together.wait()
            click(server, row, label, 0 if label != "happy" else 1)

    with ThreadPoolExecutor(4) as people:
        list(people.map(person, NAMES))
    np.testing.assert_array_equal(known_of(store.path, 6), [[1, 0, 0, 0]] * 6)


def test_a_choice_that_no_set_fits_is_status_400_with_one_sentence_and_the_state_stays(server, store):
    click(server, 3, "happy", 1)
    click(server, 3, "sad", 1)
    before = get(server, "/api/row?row=3"), store.path.read_bytes()
    status, _, content = ask(server, "POST", "/api/decide", {"row": 3, "label": "loud", "value": 1, "order": "file"})
    sentence = json.loads(content)["error"]
    assert status == 400
    assert sentence.startswith("loud can't be present: a label set of this model has at most 2 labels, and 3 would be")
    assert (get(server, "/api/row?row=3"), store.path.read_bytes()) == before


DECIDE = {"row": 1, "label": "happy", "value": 1, "order": "file"}


@pytest.mark.parametrize(
    "method, path, body, headers, status, words",
    [
        ("POST", "/api/decide", "{", {}, 400, "must be JSON"),
        ("POST", "/api/decide", "[" * 60_000, {}, 400, "must be JSON"),
        ("POST", "/api/decide", DECIDE | {"label": "\ud83d"}, {}, 400, "one of the model's 4 labels"),
        ("POST", "/api/decide", "[]", {}, 400, "must be a JSON object with the keys label, order, row, value"),
        ("POST", "/api/decide", {"row": 1}, {}, 400, "with the keys label, order, row, value"),
        ("POST", "/api/decide", DECIDE | {"session": 1}, {}, 400, "with the keys label, order, row, value"),
        ("POST", "/api/decide", DECIDE | {"row": 1.0}, {}, 400, "whole number from 1 to 6; got 1.0"),
        ("POST", "/api/decide", DECIDE | {"label": ["a"]}, {}, 400, "one of the model's 4 labels"),
        ("POST", "/api/decide", DECIDE | {"value": "1"}, {}, 400, "must be 1 (present), 0 (absent) or null (open)"),
        ("POST", "/api/decide", DECIDE | {"order": {}}, {}, 400, "The order must be entropy or file"),
        ("POST", "/api/undo", {"order": "file"}, {}, 400, "There is nothing to undo"),
        ("GET", "/api/row", None, {}, 400, "must have row="),
        ("GET", "/api/row?row=-1", None, {}, 400, "got '-1'"),
        ("GET", "/api/row?row=" + "9" * 5000, None, {}, 400, "whole number from 1 to 6"),
        ("GET", "/api/row?row=1&order=size", None, {}, 400, "The order must be entropy or file; got 'size'"),
        ("GET", "/api/row?row=1&lock=1", None, {}, 400, "must have row="),
        ("GET", "/api/decide", None, {}, 405, "takes POST only; got GET"),
        ("POST", "/api/row", DECIDE, {}, 405, "takes GET only; got POST"),
        ("PUT", "/api/decide", DECIDE, {}, 405, "takes POST only; got PUT"),
        ("DELETE", "/tag", None, {}, 405, "takes GET only; got DELETE"),
        ("OPTIONS", "/api/decide", None, {}, 405, "takes POST only; got OPTIONS"),
        ("BREW", "/tag", None, {}, 405, "takes GET only; got BREW"),
        ("GET", "/tag.html", None, {}, 404, "nothing at this address"),
        ("GET", "/../session.py", None, {}, 404, "nothing at this address"),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", None, {}, 404, "nothing at this address"),
        ("GET", "//etc/passwd", None, {}, 404, "nothing at this address"),
        ("POST", "/api/lock", DECIDE, {}, 404, "nothing at this address"),
        ("GET", "/", None, {"Host": "evil.example"}, 403, "for this machine only"),
        ("GET", "/api/row?row=1", None, {"Host": "127.0.0.1.evil.example:80"}, 403, "for this machine only"),
        ("GET", "/", None, {"Host": ""}, 403, "for this machine only"),
        ("POST", "/api/decide", DECIDE, {"Host": "evil.example"}, 403, "for this machine only"),
        ("POST", "/api/decide", DECIDE, {"Origin": "http://evil.example"}, 403, "came from 'http://evil.example'"),
        ("POST", "/api/decide", DECIDE, {"Origin": "http://127.0.0.1:1"}, 403, "came from 'http://127.0.0.1:1'"),
        ("POST", "/api/decide", DECIDE, {"Origin": "null"}, 403, "came from 'null'"),
        ("POST", "/api/decide", DECIDE, {"Content-Type": "text/plain"}, 415, "as application/json; got text/plain"),
        ("POST", "/api/decide", "a=1", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ("POST", "/api/decide", " " * 70_000, {}, 413, "at most 65536 bytes; got 70000"),
        ("POST", "/api/decide", "{}", {"Content-Length": "many"}, 400, "must be HTTP/1.1; it can't be read as such"),
        ("POST", "/api/decide", "0\r\n\r\n", {"Transfer-Encoding": "chunked"}, 411, "must say its length"),
        ("POST", "/api/decide", "0\r\n\r\n", {"Transfer-Encoding": "chunked", "Content-Length": "2"}, 411, "in chunks"),
        ("POST", "/api/decide", "", {**JSON, "Content-Length": "9" * 19}, 413, "at most 65536 bytes; got 999"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence_and_changes_nothing(
    server, store, method, path, body, headers, status, words
):
    got, sent, content = ask(server, method, path, body, headers)
    sentence = json.loads(content)
    assert (got, list(sentence)) == (status, ["error"])
    assert words in sentence["error"] and "\n" not in sentence["error"]
    assert len(sentence["error"]) < 250
    assert sent["Allow"] == {405: "POST" if path == "/api/decide" else "GET"}.get(status)
    assert not store.path.exists() and np.isnan(server.tagging.session.known()).all()


@pytest.mark.parametrize(
    "given", ["", "Bearer ", "Bearer wrong", "Bearer {}x", "{}", "Basic {}", "bearer {}", "Bearer é"]
)
@pytest.mark.parametrize(
    "method, path", [("GET", "/api/session"), ("GET", "/api/row?row=1"), ("POST", "/api/decide"), ("GET", "/api/no")]
)
def test_who_does_not_know_the_token_learns_and_changes_nothing(server, store, method, path, given):
    headers = {"Authorization": given.format(server.token).encode()}
    status, _, content = ask(server, method, path, DECIDE if method == "POST" else None, headers)
    assert status == 401
    assert json.loads(content)["error"].startswith("The token is missing or wrong; open the page with ?token=")
    assert not store.path.exists() and np.isnan(server.tagging.session.known()).all()


def test_the_address_of_a_change_says_nothing_but_which_change(server, store):
    click(server, 1, "sad", 1)
    post(server, "/api/clear?name=accept&keys=row", row=1)
    assert np.isnan(server.tagging.session.known()).all()


def test_the_token_is_no_part_of_what_everybody_can_load_and_no_two_are_the_same(server):
    for path in page_files("/tag", "tag"):
        status, headers, content = ask(server, "GET", path, None, {"Authorization": ""})
        assert status == 200 and server.token not in content + str(headers)
        assert "Set-Cookie" not in headers
    other = Server(server.tagging)
    other.server_close()
    assert other.token != server.token and len(server.token) == 32


def test_a_request_that_is_no_http_is_told_so_in_one_sentence(server):
    with socket.create_connection(server.server_address, timeout=10) as connection:
        connection.sendall(b"GET / HTTP/9.9.9 \xff\r\n\r\n")
        answer = connection.makefile("rb").read().decode()
    assert list(json.loads(answer[answer.index("{") :])) == ["error"]


@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_a_body_that_breaks_off_in_nonsense_is_told_so_and_leaves_no_trace(server, capfd, caplog, method):
    head = f"{method} /api/undo HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
    with socket.create_connection(server.server_address, timeout=10) as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\nno length\r\n".encode())
        answer = connection.makefile("rb").read().decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 ")
    assert body == "" if method == "HEAD" else list(json.loads(body)) == ["error"]
    assert caplog.text == ""
    get(server, "/api/row?row=1")
    assert capfd.readouterr().err == ""


def test_head_is_refused_without_a_body(server):
    assert ask(server, "HEAD", "/tag")[::2] == (405, "")


@pytest.mark.parametrize("host", ["localhost:{}", "127.0.0.1:{}", "LOCALHOST", "localhost:9000"])
def test_the_own_page_is_answered_under_its_names_also_through_a_tunnel(server, host):
    host = host.format(server.server_address[1])
    own = {"Host": host, "Origin": f"http://{host}"}
    assert ask(server, "GET", "/tag", None, {"Host": host})[0] == 200
    assert ask(server, "POST", "/api/decide", DECIDE, own)[0] == 200


def test_a_file_that_can_not_be_written_is_status_500_with_one_sentence_and_the_state_stays(server, store):
    store.path.parent.rmdir()
    status, _, content = ask(server, "POST", "/api/decide", DECIDE)
    assert status == 500 and f"{store.path}: can't be written" in json.loads(content)["error"]
    assert np.isnan(server.tagging.session.known()).all()
    store.path.parent.mkdir()
    check_given(click(server, 1, "happy", 1), [1, NAN, NAN, NAN])


def test_a_fault_of_the_program_is_told_to_the_page_and_traced_in_the_terminal(server, monkeypatch, caplog):
    monkeypatch.setattr(server.tagging.session, "row", lambda **query: 1 // 0)
    status, _, content = ask(server, "GET", "/api/row?row=1")
    assert (
        status == 500 and json.loads(content)["error"] == "The program failed (ZeroDivisionError); its log says where."
    )
    assert "ZeroDivisionError in /api/row" in caplog.text and "1 // 0" in caplog.text


def test_a_browser_that_goes_away_leaves_no_trace_in_the_terminal(server, capfd):
    with socket.create_connection(server.server_address) as connection:
        connection.sendall(b"POST /api/undo HTTP/1.1\r\nHost: localhost\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close by a reset
    get(server, "/api/row?row=1")
    assert capfd.readouterr().err == ""


def test_the_server_listens_on_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_address[1]}/tag?token={server.token}"


def test_a_port_that_is_taken_is_one_sentence(server):
    port = server.server_address[1]
    with pytest.raises(ValueError, match=rf"Port {port} can't be used \(Address already in use\); choose another"):
        Server(server.tagging, port)


@pytest.mark.parametrize(
    "path, kind", [("/tag", "text/html"), ("/tag.js", "text/javascript"), ("/tag.css", "text/css")]
)
def test_the_page_comes_with_its_type_and_may_load_nothing_from_elsewhere(server, path, kind):
    status, headers, content = ask(server, "GET", path)
    assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"^\s*//.*|//\s.*", "", content, flags=re.MULTILINE))


def test_the_script_asks_for_addresses_that_there_are_and_uses_elements_that_there_are():
    script, page = (PAGE.joinpath(name).read_text("utf-8") for name in ("tag.js", "tag.html"))
    others = {"/api/session", "/api/row", "/api/image", "/api/retrain", "/api/retraining"}
    assert set(re.findall(r"/api/\w+", script)) == {*ACTIONS, *others}
    assert set(re.findall(r"\$\(\"([\w-]+)\"\)", script)) <= set(re.findall(r"id=\"([\w-]+)\"", page))
    assert "innerHTML" not in script


def test_the_page_has_the_colours_of_the_report_and_no_others():
    own = PAGE.joinpath("tag.css").read_text("utf-8")
    assert set(re.findall(r"var\(--([\w-]+)\)", own)) <= set(LIGHT)
    assert not re.search(r"#[0-9a-f]{3,8}\b[^{]*;|rgb|hsl", own)
    assert page_files("/tag", "tag")["/tag.css"][1].decode() == page_css() + own
