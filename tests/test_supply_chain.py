"""What is installed is pinned with hashes, and a release has the same bytes whoever builds it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ["requirements-run.txt", "requirements-build.txt", "requirements-release.txt"]
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+)(?: ; [^\\]+?)?((?: --hash=sha256:[0-9a-f]{64})*)")


def canonical(name):
    """One spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(file):
    """{name: (version, hashes)} of a file of pinned requirements; every line must be one."""
    text = re.sub(r" \\\n\s*", " ", (ROOT / file).read_text("utf-8"))
    found = [REQUIREMENT.fullmatch(line) for line in text.splitlines()]
    assert found and None not in found
    return {canonical(match[1]): (match[2], re.findall("[0-9a-f]{64}", match[3])) for match in found}


def constraints():
    lines = (ROOT / "constraints.txt").read_text("utf-8").split()
    return {canonical(name): version for name, version in (line.split("==") for line in lines)}


@pytest.mark.parametrize("file", LOCKS)
def test_every_pinned_package_has_hashes(file):
    # An sdist or a wheel at least; those with compiled parts have one for each system and Python.
    assert [name for name, (_, hashes) in locked(file).items() if not hashes] == []
    assert len(set(locked("requirements-run.txt")["numpy"][1])) > 20


@pytest.mark.parametrize("file", LOCKS)
def test_pinned_versions_are_those_of_the_constraints(file):
    versions = constraints()
    other = {name: version for name, (version, _) in locked(file).items() if versions.get(name, version) != version}
    assert other == {}


def test_everything_that_make_run_installs_is_pinned_and_constrained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    named = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["paper"]]
    named += project["build-system"]["requires"]
    pinned = {**locked("requirements-run.txt"), **locked("requirements-build.txt")}
    assert {canonical(re.match(r"[\w.-]+", one)[0]) for one in named} <= set(pinned) <= set(constraints())


@pytest.mark.slow
def test_two_builds_of_a_release_have_the_same_bytes_and_the_sums_and_parts_that_are_listed(tmp_path):
    first, second = (release(tmp_path / name) for name in ("one", "two"))
    assert first == second
    sums = dict(reversed(line.split("  ")) for line in first.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in first.items()}
    assert sorted(Path(name).suffix for name in first) == [".gz", ".json", ".whl"]
    parts = {
        part["name"]: part
        for part in json.loads(next(first[name] for name in first if name.endswith(".json")))["components"]
    }
    wheel = next(name for name in first if name.endswith(".whl"))
    expected = {name: (version, set(hashes)) for name, (version, hashes) in locked("requirements-run.txt").items()}
    expected["mlrh"] = wheel.split("-")[1], {sums[wheel]}
    assert {canonical(name): (part["version"], hashes_of(part)) for name, part in parts.items()} == expected


def release(folder):
    """The files of a release that is built in a copy of the project, by name."""
    ignored = shutil.ignore_patterns(".git", ".venv*", "dist", "__pycache__", ".*_cache", ".hypothesis", "reproduction")
    shutil.copytree(ROOT, folder, ignore=ignored, copy_function=shutil.copyfile)  # with times of its own
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    make = ["make", "release", f"VENV={ROOT / '.venv'}"]
    done = subprocess.run(make, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: path.read_bytes() for path in (folder / "dist").iterdir()}


def hashes_of(part):
    return {one["content"] for reference in part["externalReferences"] for one in reference["hashes"]}
