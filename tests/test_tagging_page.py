"""What the page's script asks for when keys come faster than answers; run by node on a document of a few lines."""

import json
import shutil
import subprocess
from importlib.resources import files

import pytest

from mlrh.spaces import CardinalitySpace, Mixture
from mlrh.web._session import Session

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
NAMES = ["happy", "sad", "calm"]
DOCUMENT = r"""
class Element {
  constructor(id = "") {
    Object.assign(this, { id, children: [], dataset: {}, style: {}, heard: {}, value: "", textContent: "" });
    this.classList = { toggle() {} };
    this.parent = null;
  }
  append(...items) { for (const item of items) { this.children.push(item); item.parent = this; } }
  prepend(...items) { this.append(...items); }
  replaceChildren(...items) { this.children = []; this.append(...items); }
  get firstElementChild() { return this.children[0]; }
  addEventListener(name, action) { this.heard[name] = action; }
  setAttribute() {}
  matches() { return false; }
  closest() { let one = this; while (one && !one.dataset.label) one = one.parent; return one; }
  querySelector(what) { return what === "button" ? this.children.at(-1).children[0] : new Element(); }
  focus() { document.activeElement = this; }
  select() {}
}
const elements = {};
const document = new Element();
document.getElementById = (id) => (elements[id] ??= new Element(id));
document.createElement = () => new Element();
document.body = document.activeElement = new Element();
document.getElementById("order").value = "file";
const location = { search: "?token=secret", hash: "" };
const history = { replaceState() {} };
const calm = () => new Promise((resolve) => setTimeout(resolve, 30));

let input = "";
const waiting = [];
process.stdin.on("data", (piece) => {
  input += piece;
  for (let end = input.indexOf("\n"); end >= 0; end = input.indexOf("\n")) {
    waiting.shift()(JSON.parse(input.slice(0, end)));
    input = input.slice(end + 1);
  }
});
// An answer comes a while after the question, so that all keys are pressed before the first.
async function fetch(path, options) {
  console.log(JSON.stringify({ path, token: options.headers.Authorization, body: options.body || null }));
  const answer = await new Promise((resolve) => waiting.push(resolve));
  await new Promise((resolve) => setTimeout(resolve, 5));
  return { ok: !answer.error, json: async () => answer };
}
const type = (key) => document.heard.keydown({ key, target: document.body, preventDefault() {} });
"""
PRESS = """
(async () => {
  setTimeout(() => process.exit(1), 120000);  // a busy machine may take long to compile
  while (!row) await calm();
  for (const key of KEYS_PRESSED) type(key);
  for (let seen = null; seen !== pending; await calm()) { seen = pending; await pending; }
  console.log(JSON.stringify({ message: $("message").textContent, entropy: $("entropy").textContent, row: row.row }));
  process.exit();
})();
"""


def typed(session, *keys):
    """The session's changes and the end of a page on which these keys are pressed before the first answer comes."""
    script = "\n".join(
        [
            DOCUMENT,
            *(files("mlrh.web").joinpath(name).read_text("utf-8") for name in ("drawing.js", "tag.js")),
            PRESS.replace("KEYS_PRESSED", json.dumps(keys)),
        ]
    ).replace('"use strict";', "")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    changes = []
    with subprocess.Popen(["node", "-e", script], **pipes) as node:
        for line in node.stdout:
            request = json.loads(line)
            if "path" not in request:
                return changes, request
            assert request["token"] == "Bearer secret"
            answer = answered(session, request["path"], request["body"], changes)
            node.stdin.write(json.dumps(answer) + "\n")
            node.stdin.flush()
    raise AssertionError("the script ended early")


def answered(session, path, body, changes):
    if path == "/api/session":
        return {**session.overview(), "name": "songs", "output": None, "n_resumed": 0}
    if path.startswith("/api/row"):
        return session.row(int(path.split("row=")[1].split("&")[0]))
    body = json.loads(body)
    try:
        answer = getattr(session, path.removeprefix("/api/"))(**body)
    except ValueError as error:
        return {"error": str(error)}
    changes.append((path.removeprefix("/api/"), *[value for key, value in body.items() if key != "order"]))
    return answer


def session_of(scores, smallest=1, largest=1):
    n_labels = len(scores[0])
    names = NAMES if n_labels == 3 else list(map(str, range(n_labels)))
    return Session(CardinalitySpace(n_labels, smallest, largest).distribution(scores), names)


SCORES = [[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [0.0, 2.0, 1.0]]


@pytest.mark.parametrize(
    "keys, changes, row",
    [
        ("na", [("accept", 2)], 2),
        ("ana", [("accept", 1), ("accept", 2)], 2),
        ("nnapa", [("accept", 3), ("accept", 2)], 2),
        ("ac", [("accept", 1), ("clear", 1)], 1),
        ("naua", [("accept", 2), ("undo",), ("accept", 2)], 2),
        ("nnnna", [("accept", 3)], 3),
        ("aoa", [("accept", 1), ("accept", 2)], 2),
        (["ArrowDown", "1", "n", "1"], [("decide", 1, "happy", 1), ("decide", 2, "calm", 1)], 2),
        (["ArrowDown", "n", "ArrowDown", "0"], [("decide", 2, "sad", 0)], 2),
        (["ArrowDown", "0", "Delete"], [("decide", 1, "happy", 0), ("decide", 1, "happy", None)], 1),
        ("u", [], 1),
    ],
)
def test_keys_typed_ahead_act_on_the_row_that_is_shown_after_those_before_them(keys, changes, row):
    done, end = typed(session_of(SCORES), *keys)
    assert (done, end["row"], end["message"]) == (changes, row, "")


def test_keys_behind_one_that_is_refused_are_dropped_and_the_sentence_stays():
    done, end = typed(session_of(SCORES), "ArrowDown", "1", "ArrowDown", "1", "n", "a")
    assert (done, end["row"]) == ([("decide", 1, "happy", 1)], 1)
    assert end["message"].startswith("sad can't be present: a label set of this model has at most 1 label, and 2 would")


@pytest.mark.parametrize("n_labels", [40, 1100])
def test_the_number_of_sets_is_shown_however_large_it_is(n_labels):
    _, end = typed(session_of([[0.0] * n_labels], 0, n_labels))
    digits = str(2**n_labels)
    exponent = str(len(digits) - 1).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    tenths = round(int(digits[:6]) / 1e4)
    words = f"{tenths // 10}.{tenths % 10} \u00d7 10{exponent}"
    assert f"as uncertain as {words} equally probable sets." in end["entropy"]


def test_a_row_whose_entropy_can_not_be_had_is_shown_without_it():
    members = [CardinalitySpace(16, 0, largest).distribution([[0.0] * 16] * 2) for largest in (1, 2)]
    _, end = typed(Session(Mixture(members, [0.5, 0.5]), list(map(str, range(16)))), "n")
    assert end == {"message": "", "entropy": "", "row": 2}
