"""What the README shows is what the code does."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_examples_of_the_readme_print_what_it_says():
    results = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert results.attempted > 15
    assert results.failed == 0


def test_the_readme_is_short_and_its_prose_fits_a_screen():
    lines = README.splitlines()
    assert len(lines) < 150
    begin, end = (
        next(i for i, line in enumerate(lines) if line.startswith(mark)) for mark in ("<!-- comp", "<!-- end")
    )
    assert not [line for line in lines[:begin] + lines[end:] if len(line) > 120 and not line.startswith("|")]


def test_the_torch_example_of_the_readme_runs():
    pytest.importorskip("torch")
    (block,) = re.findall(r"```python\n(import torch\n.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(block, names)
    sizes = names["sets"].sum(1)
    assert names["network"].weight.grad.abs().max() > 0
    assert names["sets"].shape == (256, 10) and sizes.min() >= 1


@pytest.mark.parametrize(
    ("page", "at_least"),
    [
        ("unknown-labels.md", 5),
        ("extending.md", 15),
        ("confidence.md", 11),
        ("structure.md", 20),
        ("pools.md", 12),
        ("scale.md", 15),
        ("export.md", 20),
        ("tables.md", 15),
        ("automatic.md", 5),
        pytest.param("how-to-choose.md", 20, marks=pytest.mark.slow),
        pytest.param("scale-dask.md", 9, marks=pytest.mark.slow),
    ],
)
def test_the_examples_of_the_pages_print_what_they_say(page, at_least):
    if page == "export.md":
        pytest.importorskip("torch")  # which the environment of the oldest versions lacks
    results = doctest.testfile(str(ROOT / "docs" / page), module_relative=False)
    assert results.attempted >= at_least
    assert results.failed == 0


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]), ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link
