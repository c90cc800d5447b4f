"""Debian's Chromium for tests, driven by playwright, which never downloads one of its own."""

import shutil
import time
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

CHROMIUM = shutil.which("chromium")
PATIENCE = 120_000  # milliseconds to wait for a condition, on a machine that is busy with other things
WIDTHS = (390, 1280)  # a telephone and a notebook

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="needs playwright and Debian's chromium",
)


@contextmanager
def chromium():
    """A running browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Chromium's own sandbox needs rights that a container lacks; these pages are ours.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page of the browser, and what it did besides: errors, dialogs and requests to other hosts."""

    def __init__(self, browser, address, *, width=1280, scheme="light", routes=None):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page, self.faults, self.foreign = self.context.new_page(), [], []
        self.page.set_default_timeout(PATIENCE)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.faults.append(dialog.message), dialog.dismiss()))
        self.page.on("request", self._note)
        self._host = address.split("/")[2]
        for pattern, answer in (routes or {}).items():
            self.page.route(pattern, _answering(answer))
        self.page.goto(address)

    def _note(self, request):
        if not request.url.startswith(("data:", "blob:", f"http://{self._host}/")):
            self.foreign.append(request.url)

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def wait(self, expression):
        """Until a JavaScript expression is true.

        playwright's own wait evaluates texts within the page, which the page's policy forbids.
        """
        deadline = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, f"never became true: {expression}; {self._told()}"
            self.page.wait_for_timeout(20)  # between two looks; lets the browser's events arrive

    def _told(self):
        return f"the page says {self.page.text_content('#message')!r}, faults: {self.faults}"

    def focused(self):
        """What a screen reader calls the element that has the focus, or its id."""
        return self.page.evaluate(
            "document.activeElement.getAttribute('aria-label') || document.activeElement.id || 'nothing'"
        )

    def overflow(self):
        """Pixels by which the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")

    def violations(self):
        """What axe-core finds, one line each."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]


def _answering(answer):
    return lambda route: route.fulfill(**answer)
