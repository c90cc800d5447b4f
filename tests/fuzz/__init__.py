"""Random cases against what takes files and requests from others, within limits of time and memory.

Every module here without an underscore has a function `run(seconds, seed, most)`: the number of cases it tried.
Case number k draws from Random(seed + k): the seed that an AssertionError names makes its case the first one of a run.
Folder corpus/ holds the real files and requests from which mutants are made; each run tries them first as they are.
"""

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def fuzzers() -> dict[str, Callable[..., int]]:
    """The function `run` of every fuzzer, by the name of its module."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    return {name: importlib.import_module(f"{__name__}.{name}").run for name in names}
