"""Where something is missing, the package says how to install it, in a way that works from a checkout, too."""

import itertools
import re
import shlex
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = sorted((ROOT / "src" / "mlrh").rglob("*.py"))
HINT = re.compile(r"""pip install((?: (?:"[^"]+"|'[^']+'|[a-z][\w-]*))+)""")


def hints():
    """Pairs of a file and what it says to install, one requirement each."""
    for path in SOURCES:
        for words in HINT.findall(path.read_text(encoding="utf-8")):
            yield from ((path, requirement) for requirement in shlex.split(words))


def requirements():
    """The requirements of the package and of all its extras, without markers, by name."""
    listed = itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    found = [requirement.partition(";")[0].strip() for requirement in listed]
    return {re.match(r"[\w-]+", requirement)[0]: requirement for requirement in found}


@pytest.mark.parametrize(("path", "hint"), list(hints()), ids=lambda part: getattr(part, "name", part))
def test_a_hint_names_a_package_of_an_index_in_the_versions_of_its_extra(path, hint):
    name = re.match(r"[\w-]+", hint)[0]
    assert name != "mlrh", "an extra of mlrh is found on no index by who has a checkout"
    assert hint in (name, requirements()[name])


def test_hints_are_found():
    assert {"torch>=2.9", "xgboost>=2.1", "dask[array]>=2025.1", "pyarrow"} <= {hint for _, hint in hints()}
