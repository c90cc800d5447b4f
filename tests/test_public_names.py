"""What is public is listed: in `__all__` of mlrh, of its sub-packages and of the modules that users import."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mlrh

FOLDER = Path(mlrh.__file__).parent
# Old places of public names, which warn and pass the name on (test_moved.py).
MOVED = {"calibration", "label_space", "selection", "tagging", "thresholds"}


def places():
    """The sub-packages and modules right below mlrh without an underscore, and what torch has beside its own."""
    found = {path.stem for path in FOLDER.glob("[a-z]*.py")} | {
        path.parent.name for path in FOLDER.glob("[a-z]*/__init__.py")
    }
    return sorted(
        {f"mlrh.{name}" for name in found - MOVED} | {"mlrh", "mlrh.torch.hugging_face", "mlrh.fitting.solvers"}
    )


def source_of(place):
    path = FOLDER.joinpath(*place.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("place", places())
def test_every_function_and_class_without_an_underscore_is_listed(place):
    tree = ast.parse(source_of(place).read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    listed = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    assert len(listed) == 1, f"{place} has no __all__"
    names = {node.value for node in ast.walk(listed[0]) if isinstance(node, ast.Constant)}
    assert {name for name in defined if not name.startswith("_")} <= names


@pytest.mark.parametrize("place", places())
def test_every_listed_name_is_there_and_says_what_it_is(place):
    try:
        module = import_module(place)
    except ImportError as error:  # an extra that is not installed, as MLflow's never is beside the others
        pytest.skip(str(error))
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert inspect.getdoc(value), f"{place}.{name} has no docstring"


def test_rooms_that_the_documentation_names_are_attributes_of_the_package():
    code = (
        "import mlrh; assert mlrh.persistence.load and mlrh.decisions.BY_NAME and 'spaces' in dir(mlrh); "
        "assert len(dir(mlrh)) == len(set(dir(mlrh)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


WITHOUT_TORCH = """
import importlib.abc, inspect, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import mlrh
assert dict(inspect.getmembers(mlrh))["spaces"]
"""


def test_the_package_can_be_listed_without_torch():
    assert subprocess.run([sys.executable, "-c", WITHOUT_TORCH]).returncode == 0
