"""The page about security names tests that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")


def test_every_test_that_the_page_names_is_there():
    defined = {
        name
        for path in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.M)
    }
    named = set(re.findall(r"`(test_\w+)(?:\[\w+\])?`", PAGE))
    assert len(named) > 15 and named <= defined


def test_the_packages_that_the_page_counts_are_those_that_are_pinned():
    counted = int(re.search(r"(\d+) packages \(d\)", PAGE)[1])
    files = [(ROOT / name).read_text("utf-8") for name in ("requirements-run.txt", "requirements-build.txt")]
    assert counted == sum(text.count("==") for text in files) - files[0].count(" == ")
