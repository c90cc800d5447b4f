"""The wheel holds the package, its type marker and nothing else, and works where the sources are not."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import mlrh, numpy as np
from mlrh.data import load_digit_scenes
scenes = load_digit_scenes(50)
sets = mlrh.MLRHClassifier().fit(scenes.X, scenes.Y).predict(scenes.X)
print(mlrh.__file__)
print(int(sets.sum(axis=1).min()), int(sets.sum(axis=1).max()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("mlrh-*.whl"))


def test_the_wheel_holds_every_module_the_page_and_the_type_marker(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "mlrh").rglob("*.py")}
    page = {f"mlrh/web/page.{suffix}" for suffix in ("html", "js", "css")} | {"mlrh/_style.css"}
    assert names == sources | page | {"mlrh/py.typed"}


def test_the_wheel_works_where_the_sources_are_not(wheel, tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(tmp_path), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path)
    where, sizes = run.stdout.splitlines()
    assert Path(where).is_relative_to(tmp_path)
    assert sizes == "1 3"
