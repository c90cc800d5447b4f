"""The page of a served model in a real browser: what it shows is what the model says, by keys and on any screen."""

import contextlib
import re
import struct
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser import WIDTHS, Tab, chromium, needs_chromium
from processes import wait_until
from samples import make_multilabel

from mlrh import automatic
from mlrh.data import MultilabelData
from mlrh.estimators import auto
from mlrh.web import _http
from mlrh.web._application import make_app
from mlrh.web._server import make_session
from mlrh.web._tagging import Tagging

pytestmark = needs_chromium
HOSTILE = '<img src=x onerror="window.hacked=1">\'\u202e' + "w" * 80
NAMES = ("happy", "sad", "calm", HOSTILE)
MODES = ("major", "minor", HOSTILE)
TOKEN = "a-secret"


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def model():
    X, Y = make_multilabel(80)
    X = np.column_stack([X[:, :2], np.arange(80) % 3])
    data = MultilabelData(X, Y.astype(np.int8), ("tempo", HOSTILE, "mode"), NAMES, "songs", {"mode": MODES})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "LINEAR_C", (1.0,))
        return automatic.choose(data, scores="linear", label_space="cardinality", n_folds=2)


@pytest.fixture(scope="module")
def address(model):
    with served(make_app(model, HOSTILE, token=TOKEN)) as address:
        yield address


@contextlib.contextmanager
def served(app):
    """The address of the page of a running application."""
    socket = _http.listening("127.0.0.1", 0)
    server = _http.uvicorn.Server(_http.server_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    port = socket.getsockname()[1]
    wait_until(lambda: _is_ready(port), seconds=300)  # the model may have to be compiled first
    yield f"http://127.0.0.1:{port}/?token={TOKEN}"
    server.should_exit = True
    thread.join()
    socket.close()


def _is_ready(port):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200


@contextlib.contextmanager
def opened(browser, address, **options):
    """A tab with the page, once the model has answered; it must have had no fault and asked nobody else."""
    tab = Tab(browser, address, **options)
    tab.wait("now !== null || !$('message').hidden")
    yield tab
    assert tab.faults == [] and tab.foreign == [] and tab.page.evaluate("window.hacked") is None
    tab.context.close()


def settle(tab):
    tab.page.evaluate("(async () => { for (let seen = null; seen !== pending; ) { seen = pending; await seen; } })()")


def row_of(tempo=None, other=None, mode=None):
    return pd.DataFrame({"tempo": [tempo], HOSTILE: [other], "mode": [mode]})


def percent(share):
    """As the page writes it."""
    if share in (0, 1):
        return f"{100 * share:.0f}%"
    return "<0.1%" if share < 0.001 else ">99.9%" if share > 0.999 else f"{100 * share:.1f}%"


def check_shown(tab, distribution, known=None):
    """The labels, sets and sizes on the page are those of the distribution."""
    marginals = dict(zip(NAMES, distribution.marginals()[0], strict=True))
    for item in tab.page.locator("#labels > li").all():
        name = item.locator(".name").text_content()
        state = {1: "present", 0: "absent"}.get((known or {}).get(name))
        assert item.locator(".share").text_content() == (state or percent(marginals[name]))
    sets, log_probs = distribution.top_sets(8)
    shown = tab.page.locator("#sets > li").all()
    n_possible = np.count_nonzero(np.exp(log_probs[0]) > 0)
    assert len(shown) == max(min(3, n_possible), np.count_nonzero(np.exp(log_probs[0]) >= 0.001))
    assert tab.page.is_visible("#other-sets") == (len(shown) < n_possible)
    for item, own, log_prob in zip(shown, sets[0], log_probs[0], strict=False):
        assert item.locator(".share").text_content() == percent(float(np.exp(log_prob)))
        names = {text.removeprefix("✓") for text in item.locator(".chips li").all_text_contents()}
        assert names == ({NAMES[label] for label in np.flatnonzero(own)} or {"no label"})
    pmf = distribution.cardinality_pmf()[0]
    for item in tab.page.locator("#sizes > li").all():
        size, share = re.match(r"(\d+) labels?: ([^,]+),", item.get_attribute("title")).groups()
        assert share == percent(float(pmf[int(size)]))


def test_a_row_typed_by_keys_shows_what_the_model_says_of_it(browser, address, model):
    with opened(browser, address) as tab:
        check_shown(tab, model.distribution(row_of()))
        tab.page.focus("#find")
        tab.press("Tab")
        tab.page.keyboard.type("1.5")
        tab.press("Tab")
        tab.page.keyboard.type("-0.5")
        tab.press("Tab")
        tab.page.keyboard.type("minor")
        tab.press("Tab", "Enter")
        settle(tab)
        check_shown(tab, model.distribution(row_of(1.5, -0.5, "minor")))
        assert tab.page.text_content("#message") == ""


def test_sets_that_hardly_occur_are_left_out_beyond_three(browser, address, model):
    with opened(browser, address) as tab:
        assert not tab.page.is_visible("#other-sets")
        tab.page.fill("[data-column=tempo]", "40")
        tab.press("Enter")
        settle(tab)
        check_shown(tab, model.distribution(row_of(40.0)))
        assert tab.page.locator("#sets > li").count() == 3 and tab.page.is_visible("#other-sets")


def test_bars_of_labels_begin_below_each_other_and_take_what_short_names_leave(browser, address):
    with opened(browser, address) as tab:
        boxes = [bar.bounding_box() for bar in tab.page.locator("#labels .bar").all()]
        assert len({(round(box["x"]), round(box["width"])) for box in boxes}) == 1
        narrow = boxes[0]["width"]
        tab.page.evaluate("document.querySelectorAll('#labels .name').forEach((name) => { name.textContent = 'sad'; })")
        assert tab.page.locator("#labels .bar").first.bounding_box()["width"] > narrow + 80


def test_a_label_that_is_clicked_is_known_and_the_others_move_as_in_condition(browser, address, model):
    with opened(browser, address) as tab:
        tab.page.click(f'[aria-label="{NAMES[1]}: present"]')
        settle(tab)
        nan = np.nan
        check_shown(tab, model.distribution(row_of()).condition([[nan, 1, nan, nan]]), {"sad": 1})
        tab.page.focus('[aria-label="happy: absent"]')
        tab.press("Enter")
        settle(tab)
        given = model.distribution(row_of()).condition([[0, 1, nan, nan]])
        check_shown(tab, given, {"sad": 1, "happy": 0})
        tab.press("Enter")
        settle(tab)
        check_shown(tab, model.distribution(row_of()).condition([[nan, 1, nan, nan]]), {"sad": 1})
        tab.page.click("#forget")
        settle(tab)
        check_shown(tab, model.distribution(row_of()))
        assert tab.focused().endswith(": present")


def test_what_no_label_set_fits_is_refused_with_a_sentence_and_changes_nothing(browser, address, model):
    largest = model.classifier.distribution(np.zeros((1, 3))).sizes()[1]
    with opened(browser, address) as tab:
        for name in NAMES[: largest + 1]:
            tab.page.locator("#labels > li", has_text=name).locator("button").first.click()
        settle(tab)
        assert tab.page.is_visible("#message") == (largest < len(NAMES))
        pressed = tab.page.locator('#labels [aria-pressed="true"]').count()
        assert pressed == min(largest, len(NAMES))


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_scrolls_sideways_and_axe_core_finds_nothing(browser, address, width):
    with opened(browser, address, width=width) as tab:
        tab.page.click('[aria-label="sad: present"]')
        settle(tab)
        assert tab.overflow() <= 0 and tab.violations() == []


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_core_finds_nothing_in_the_dark(browser, address, width):
    with opened(browser, address, width=width, scheme="dark") as tab:
        assert tab.overflow() <= 0 and tab.violations() == []


def test_columns_are_found_by_their_names_and_emptied_together(browser, address, model):
    with opened(browser, address) as tab:
        tab.page.fill("#find", "TEM")
        assert [item.is_visible() for item in tab.page.locator(".field").all()] == [True, False, False]
        tab.page.fill("#column-0", "3")
        tab.page.press("#column-0", "Enter")
        settle(tab)
        check_shown(tab, model.distribution(row_of(3.0)))
        tab.page.click("#empty")
        settle(tab)
        check_shown(tab, model.distribution(row_of()))


def test_without_the_token_the_page_says_what_to_do(browser, address):
    with opened(browser, address.split("?")[0]) as tab:
        assert "token" in tab.page.text_content("#message")


def test_the_page_of_the_model_and_the_page_for_tagging_lead_to_each_other_with_the_token(browser, address, model):
    with opened(browser, address) as tab:
        assert not tab.page.is_visible("#other")  # no rows to tag
    session, about = make_session(model, row_of(1.5, -0.5, "minor"))
    app = make_app(model, HOSTILE, token=TOKEN, tagging=Tagging(session, about))
    with served(app) as both, opened(browser, both) as tab:
        tab.page.focus("#other a")
        tab.press("Enter")
        tab.page.wait_for_url("**/tag?token=*")
        tab.wait("row !== null")
        assert tab.page.text_content("#row-number") == "1" and tab.violations() == []
        tab.page.click("#other a")
        tab.page.wait_for_url(both)
        tab.wait("now !== null")
        check_shown(tab, model.distribution(row_of()))


def test_an_entropy_that_the_model_can_not_tell_is_left_out(browser, address):
    with opened(browser, address) as tab:
        assert tab.page.is_visible("#entropy")
        tab.page.evaluate("(() => { for (const one of [alone, now]) one.distributions[0].entropy = null; draw(); })()")
        assert not tab.page.is_visible("#entropy")


@pytest.mark.slow
def test_the_pictures_of_the_documentation_can_be_made_anew(tmp_path):
    program = Path(__file__).parents[1] / "docs" / "screenshots.py"
    subprocess.run([sys.executable, program, tmp_path], check=True, capture_output=True, timeout=600)
    for name in ("serving.png", "tagging.png"):
        start = (tmp_path / name).read_bytes()[:24]
        width, height = struct.unpack(">II", start[16:])  # where every PNG file has them
        assert start[1:4] == b"PNG" and width == 1280 and height > 900
