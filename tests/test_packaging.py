"""The wheel holds the package and nothing else, and needs no more than the dependencies it names; CI finds its data."""

import doctest
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from test_readme import README

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Not in constraints-oldest.txt: torch, Hugging Face and what asks the pages are tested as constraints.txt pins them,
# and so are the tools; MLflow has an environment of its own.
# xgboost-cpu stands for xgboost, whose versions are the same.
NOT_OLDEST = {"mlrh", "torch", "triton", "onnxscript", "safetensors", "transformers", "accelerate", "setfit", "xgboost"}
NOT_OLDEST |= {"mlflow", "schemathesis", "playwright", "axe-playwright-python"}
NOT_OLDEST |= {"ruff", "mypy", "import-linter", "build", "hatchling"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("mlrh-*.whl"))


def test_the_wheel_holds_every_module_the_page_and_the_type_marker(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = [path for path in (ROOT / "src" / "mlrh").rglob("*") if path.is_file()]
    assert names == {path.relative_to(ROOT / "src").as_posix() for path in files if "__pycache__" not in path.parts}
    assert "mlrh/py.typed" in names
    assert {Path(name).suffix for name in names} == {".py", ".html", ".js", ".css", ".sha256", ".typed"}


@pytest.mark.slow
def test_the_readme_holds_for_the_wheel_alone_in_a_fresh_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel)
    where = run(programs / "python", "-c", "import mlrh; print(mlrh.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    n_examples = len(doctest.DocTestParser().get_examples(README))
    shown = run(programs / "python", "-m", "doctest", "-v", ROOT / "README.md", cwd=tmp_path)
    assert f"{n_examples} passed" in shown and n_examples > 15
    check_commands(programs, tmp_path)


def rounded(text):
    """The text with three digits of each probability: the last ones depend on the processor, within what tol allows."""
    return re.sub(r"0\.\d{6}", lambda found: f"{float(found[0]):.3f}", text)


def check_commands(programs, folder):
    """Run the README's commands in a folder, with the mlrh of a folder of programs."""
    (block,) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    environment = {"PYTHONPATH": "", "PATH": os.pathsep.join([str(programs), os.environ["PATH"]])}
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (command, done.stderr)
        if expected:
            assert rounded(done.stdout) == rounded(expected), command


@pytest.mark.slow
@pytest.mark.parametrize(
    "version", [kind.split()[-1] for kind in PYPROJECT["classifiers"] if re.search(r":: 3\.\d+$", kind)]
)
def test_every_python_version_that_is_named_finds_built_dependencies(wheel, tmp_path, version):
    resolve = ["install", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--target", tmp_path]
    shown = run(sys.executable, "-m", "pip", *resolve, "--python-version", version, f"{wheel}[paper,parquet]")
    assert re.search(r"Would install .*\bmlrh-", shown)


def test_the_least_versions_are_the_ones_that_are_tested():
    tested = dict(line.split("==") for line in (ROOT / "constraints-oldest.txt").read_text().split())
    stated = [*PYPROJECT["dependencies"], *chain(*PYPROJECT["optional-dependencies"].values())]
    least = dict(re.match(r"([\w-]+)(?:\[.*\])?(?:>=([\d.]+))?", one).groups() for one in stated)
    wrong = {
        name: (version, tested.get(name))
        for name, version in least.items()
        if name not in NOT_OLDEST and not f"{tested.get(name)}.".startswith(f"{version}.")
    }
    assert wrong == {}


def run(*command, **options):
    """What a command prints, which must end well; no other package than those installed is found."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="a source distribution has no CI")
@pytest.mark.parametrize("given", [None, "", "elsewhere", "missing"])
@pytest.mark.parametrize("is_there", [True, False])
def test_ci_takes_the_public_data_where_they_are_and_names_no_folder_that_is_not_there(tmp_path, given, is_there):
    programs = tmp_path / "programs"
    checkout, data, elsewhere = (tmp_path / name for name in ("checkout", "shared/data", "checkout/elsewhere"))
    for folder in (programs, checkout / ".ci", elsewhere, *([data] if is_there else [])):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci" / "run")
    for name, script in (("make", 'echo "${MLRH_DATA-none}"'), ("chromium", "")):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "MLRH_DATA"}
    environment |= {"PATH": f"{programs}:{os.environ['PATH']}"} | ({} if given is None else {"MLRH_DATA": given})
    done = subprocess.run([checkout / ".ci" / "run"], env=environment, capture_output=True, text=True)
    if given == "missing":
        assert done.returncode != 0 and "missing" in done.stderr and not done.stdout
    else:
        folder = elsewhere if given == "elsewhere" else data if is_there else "none"
        assert done.returncode == 0 and set(done.stdout.split()) == {str(folder)}
