"""The tagging page in a real browser: by keys alone, on narrow and wide screens, for axe-core, with hostile names."""

import contextlib
import struct
import sys
import threading
import zlib

import numpy as np
import pytest
from browser import WIDTHS, Tab, chromium, needs_chromium

from mlrh.spaces import CardinalitySpace
from mlrh.web._retraining import Retrained, Retraining
from mlrh.web._rows import Cells
from mlrh.web._server import Server
from mlrh.web._session import Features, Session
from mlrh.web._tagging import Tagging

pytestmark = needs_chromium
RNG = np.random.default_rng(0)
HOSTILE = '<img src=x onerror="window.hacked=1">\'\u202e' + "w" * 80
NAMES = ["happy", "sad", "calm", "loud", HOSTILE, "rare"]
SCORES = np.column_stack([RNG.normal(size=(6, 4)), RNG.normal(size=6) - 1, np.full(6, -12.0)])
SPACE = CardinalitySpace(6, 1, 3)
HOST = "https://photos.example"


def png(width, height):
    """A picture of one colour."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\x20\x80\xc0" * width) * height
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    (folder / "a.png").write_bytes(png(40, 30))
    return folder


COLUMNS = {
    "title": ["First song", HOSTILE, "Third", "Fourth", "Fifth", "Sixth"],
    "text": ["word " * 400, "<script>window.hacked=2</script>", "", "", "", ""],
    "page": ["https://example.org/first", "javascript:window.hacked=3", "", "", "", ""],
    "remote": [f"{HOST}/b.png", "", "", "", "", ""],
    "photo": ["a.png", "../secret.png", "absent.png", "", "", ""],
}


def session_of(photos, show=None):
    features = Features(SCORES, ["score of " + name for name in NAMES], scale=(np.zeros(6), np.ones(6)))
    cells = Cells(COLUMNS, show, photos)
    return Session(SPACE.distribution(SCORES), NAMES, features=features, cells=cells)


@contextlib.contextmanager
def opened(browser, session, *, retraining=None, **options):
    """A tab with the page of a session; it must have had no fault."""
    about = {"name": HOSTILE, "scale": "the training rows", "output": "confirmed.csv", "n_resumed": 0}
    server = Server(Tagging(session, about, retraining))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        tab = Tab(browser, server.address + "#1", **options)
        tab.wait("row !== null")
        yield tab
        assert tab.faults == [] and tab.page.evaluate("window.hacked") is None
        tab.context.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def settle(tab):
    """Until all that was typed is answered and drawn."""
    tab.page.evaluate("(async () => { for (let seen = null; seen !== pending; ) { seen = pending; await seen; } })()")


def test_everything_can_be_done_by_keys_and_the_focus_follows_them(browser, photos):
    session = session_of(photos)
    with opened(browser, session) as tab:
        tab.page.select_option("#order", "file")
        settle(tab)
        tab.press("/")
        assert tab.focused() == "Find a label"
        tab.page.keyboard.type("lou")
        tab.press("Enter")
        assert tab.focused() == "loud: present"
        tab.press("0")
        settle(tab)
        assert tab.focused() == "loud: absent"
        tab.press("Escape")
        assert tab.page.input_value("#find") == "" and tab.focused() == "loud: absent"
        assert tab.page.locator("#labels > li").count() == 5
        tab.press("n", "a")
        settle(tab)
        assert tab.page.input_value("#row") == "2"
        tab.press("g")
        assert tab.focused() == "row"
        tab.page.keyboard.type("4")
        tab.press("Enter")
        settle(tab)
        tab.press("Escape", "1", "o")
        settle(tab)
        assert tab.page.input_value("#row") == "5"
        tab.press("u")
        settle(tab)
        tab.wait("row.row === 4 && row.labels.every((label) => label.known === null)")
    known = session.known()
    assert known[0, 3] == 0 and np.isnan(known[0]).sum() == 5
    np.testing.assert_array_equal(known[1], SPACE.distribution(SCORES[[1]]).mode()[0])
    assert np.isnan(known[2:]).all()


def test_the_question_mark_shows_the_keys_until_escape_and_other_keys_do_nothing_meanwhile(browser, photos):
    session = session_of(photos)
    with opened(browser, session) as tab:
        tab.press("ArrowDown")
        before = tab.focused()
        tab.press("?")
        tab.wait("$('keys').open")
        tab.press("1", "a")
        tab.press("Escape")
        tab.wait("!$('keys').open")
        settle(tab)
        assert tab.focused() == before
    assert np.isnan(session.known()).all()


def test_escape_clears_the_search_from_the_field_too_and_folds_the_list(browser, photos):
    with opened(browser, session_of(photos)) as tab:
        tab.press("/")
        tab.page.keyboard.type("nothing like this")
        assert tab.page.is_visible("#none")
        tab.press("Escape")
        assert tab.page.input_value("#find") == "" and tab.page.locator("#labels > li").count() == 5
        assert tab.focused().endswith(": present")
        tab.page.click("#all")
        assert tab.page.locator("#labels > li").count() == 6
        tab.press("Escape")
        assert tab.page.locator("#labels > li").count() == 5


def test_a_button_that_is_disabled_by_its_own_click_leaves_the_focus_on_a_label(browser, photos):
    with opened(browser, session_of(photos)) as tab:
        tab.page.focus("#accept")
        tab.press("Enter")
        settle(tab)
        assert tab.page.is_disabled("#accept") and tab.focused().endswith(": present")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_scrolls_sideways_and_axe_core_finds_nothing(browser, photos, width):
    with opened(browser, session_of(photos), width=width) as tab:
        for row in ("1", "2"):
            tab.page.fill("#row", row)
            tab.page.press("#row", "Enter")
            settle(tab)
            assert tab.overflow() <= 0
        tab.press("Escape", "ArrowDown", "1", "ArrowDown", "0")
        settle(tab)
        assert tab.violations() == []


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_core_finds_nothing_in_dialogs_and_messages_in_both_schemes(browser, photos, width, scheme):
    with opened(browser, session_of(photos), width=width, scheme=scheme) as tab:
        tab.press("?")
        tab.wait("$('keys').open")
        assert tab.violations() == [] and tab.overflow() <= 0
        tab.press("Escape", "1")
        tab.wait("!$('message').hidden")
        assert tab.violations() == [] and tab.overflow() <= 0


def test_hostile_names_and_cells_are_shown_as_they_are_and_load_nothing(browser, photos):
    with opened(browser, session_of(photos)) as tab:
        tab.page.fill("#row", "2")
        tab.page.press("#row", "Enter")
        settle(tab)
        tab.wait("$('row-number').textContent === '2'")
        texts = tab.page.locator("#cells dd").all_text_contents()
        assert texts[:3] == [cells[1] for cells in list(COLUMNS.values())[:3]]
        tab.wait("$('cells').textContent.includes('outside of the folder of images')")
        assert tab.page.locator("#cells a").count() == 0
        assert HOSTILE in tab.page.locator("#labels .name").all_text_contents()
        assert tab.foreign == []


def test_links_and_images_are_shown_and_other_hosts_only_where_their_column_was_named(browser, photos):
    with opened(browser, session_of(photos)) as tab:
        tab.wait("document.querySelector('#cells .file img')?.naturalWidth === 40")
        link = tab.page.locator("#cells .link a").first
        assert (link.get_attribute("href"), link.get_attribute("rel")) == (COLUMNS["page"][0], "noopener noreferrer")
        assert tab.page.locator("#cells .image").count() == 0 and tab.foreign == []
    routes = {f"{HOST}/*": {"body": png(50, 20), "content_type": "image/png"}}
    with opened(browser, session_of(photos, ["title", "remote"]), routes=routes) as tab:
        tab.wait("document.querySelector('#cells .image img')?.naturalWidth === 50")
        assert tab.page.locator("#cells dt").all_text_contents() == ["title", "remote"]
        assert tab.foreign == [f"{HOST}/b.png"]


def test_numbers_that_stand_out_are_told_in_words(browser, photos):
    with opened(browser, session_of(photos)) as tab:
        shown = tab.page.locator("#features li").all_text_contents()
        assert len(shown) == np.count_nonzero(np.abs(SCORES[0]) >= 2)
        assert shown[0] == "score of rare-12far below the mean"
        assert "the training rows" in tab.page.text_content("#features-title")


def test_where_nothing_moved_no_empty_lists_are_shown(browser, photos):
    session = session_of(photos)
    session.accept(1)
    same = Retrained(SPACE.distribution(SCORES))
    retraining = Retraining(session, [sys.executable, "-c", ""], lambda: same, kept="confirmed.mlrh")
    with opened(browser, session, retraining=retraining) as tab:
        tab.press("r")
        tab.wait("!$('moved').hidden")
        assert "0 of 5 rows without decisions have another" in tab.page.text_content("#moved-words")
        assert not tab.page.is_visible("#moved-labels") and not tab.page.is_visible("#moved h3 >> nth=1")


def test_a_key_retrains_in_the_background_and_shows_what_moved(browser, photos, tmp_path):
    session, go = session_of(photos), tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    new = SPACE.distribution(-SCORES)
    retraining = Retraining(session, [sys.executable, "-c", wait], lambda: Retrained(new), kept="confirmed.mlrh")
    try:
        with opened(browser, session, retraining=retraining) as tab:
            tab.page.select_option("#order", "file")
            tab.press("r")
            settle(tab)
            assert "No row has a decision yet" in tab.page.text_content("#message")
            tab.press("a", "r")
            tab.wait("$('retraining').textContent.startsWith('Retraining with 1 decided row')")
            tab.press("n", "a")  # the page stays usable
            settle(tab)
            assert tab.page.input_value("#row") == "2"
            go.touch()
            tab.wait("!$('moved').hidden")
            assert "rows without decisions have another most probable set now" in tab.page.text_content("#moved-words")
            name, figures = tab.page.locator("#moved-labels li").first.locator("span").all()
            assert abs(name.bounding_box()["y"] - figures.bounding_box()["y"]) < 5  # in one line
            tab.page.locator("#moved-rows button").first.click()
            settle(tab)
            row = int(tab.page.input_value("#row"))
            assert tab.page.locator("#moved-rows button").first.text_content() == f"Row {row}"
            best = [NAMES[label] for label in np.flatnonzero(new.mode()[row - 1])]
            assert tab.page.locator("#best li").all_text_contents() == best
            assert tab.violations() == [] and tab.overflow() <= 0
            tab.page.click("#moved-close")
            assert tab.focused() == "retrain"
    finally:
        go.touch()
        retraining.close()
