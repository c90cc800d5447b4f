"""Parts of other packages that have no public name: each is used in one module, which says why, and is still there."""

import ast
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

import mlrh

FOLDER = Path(mlrh.__file__).parent
# {what is used: the module that alone uses it}. Whether parts of scikit-learn are still there is tested in
# test_scikit_learn_parts.py; those of torch and Triton in test_torch_launch.py.
PRIVATE = {
    "skl2onnx._parse.parse_sklearn": "export/_models.py",
    "sklearn.base._fit_context": "_sklearn.py",
    "sklearn.utils._param_validation.HasMethods": "_sklearn.py",
    "sklearn.utils._param_validation.Interval": "_sklearn.py",
    "sklearn.utils._param_validation.StrOptions": "_sklearn.py",
    "sklearn.utils._param_validation.validate_parameter_constraints": "_sklearn.py",
    "sklearn.utils._safe_indexing": "_sklearn.py",
    "sklearn.utils.metaestimators._safe_split": "_sklearn.py",
    "sklearn.utils.validation._check_sample_weight": "_sklearn.py",
    "sklearn.utils.validation._num_samples": "_sklearn.py",
    "torch._C._are_functorch_transforms_active": "torch/_private.py",
    "torch._C._len_torch_dispatch_stack": "torch/_private.py",
}
# Not private by name, but of the inside of a package that is no library of such parts.
INSIDE = {
    "numba.core.event": "_parallel.py",
    "uvicorn.protocols.http.h11_impl": "web/_http.py",
}


@cache
def used():
    """What the package takes from others, as pairs (dotted name, module of ours)."""
    return {
        (name, path.relative_to(FOLDER).as_posix())
        for path in FOLDER.rglob("*.py")
        for name in taken(ast.parse(path.read_text(encoding="utf-8")))
    }


def taken(tree):
    """Dotted names of all that a module imports from other packages, or reads from what it imports."""
    names, chains = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for own in node.names:
                first = own.name.split(".")[0]  # `import a.b` gives a name to a
                names[own.asname or first] = own.name if own.asname else first
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {own.asname or own.name: f"{node.module}.{own.name}" for own in node.names}
        elif isinstance(node, ast.Attribute):
            chains.append(dotted(node))
    names = {name: what for name, what in names.items() if what.split(".")[0] not in ("mlrh", "__future__")}
    heads = ((names.get(head), rest) for head, _, rest in (chain.partition(".") for chain in chains))
    return {*names.values(), *(f"{what}.{rest}" for what, rest in heads if what is not None)}


def dotted(node):
    """A name with attributes, such as a.b.c; "" of anything else."""
    if isinstance(node, ast.Attribute):
        return (inner := dotted(node.value)) and f"{inner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_private(name):
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def test_the_list_of_private_parts_is_complete_and_each_is_used_in_one_module():
    # os._exit is documented; torch._C is listed with what is read from it.
    found = {(name, module) for name, module in used() if is_private(name) and name not in ("torch._C", "os._exit")}
    assert found == set(PRIVATE.items())


@pytest.mark.parametrize("part", INSIDE)
def test_the_inside_of_a_package_is_used_in_one_module(part):
    package = ".".join(part.split(".")[:2])
    found = {(name, module) for name, module in used() if name.startswith(package)}
    assert found and all(name.startswith(part) and module == INSIDE[part] for name, module in found)


def test_skl2onnx_still_has_what_puts_a_step_before_a_classifier():
    parse = getattr(pytest.importorskip("skl2onnx._parse"), "parse_sklearn", None)
    assert parse is not None, "skl2onnx._parse.parse_sklearn, which mlrh.export uses, has gone"
    assert {"scope", "model", "inputs", "custom_parsers"} <= signature(parse).parameters.keys()


def test_numba_still_tells_of_compilation():
    event = import_module("numba.core.event")
    missing = [name for name in ("Listener", "install_listener") if not hasattr(event, name)]
    assert not missing, f"numba.core.event, which mlrh._parallel uses, no longer has {missing}"


def test_uvicorn_still_has_what_our_protocol_changes():
    h11_impl = pytest.importorskip("uvicorn.protocols.http.h11_impl")
    source = Path(h11_impl.__file__).read_text(encoding="utf-8")
    calls = ("connection_made", "connection_lost", "eof_received", "on_response_complete", "send_400_response")
    gone = [name for name in calls if not callable(getattr(h11_impl.H11Protocol, name, None))]
    # Set as the protocol runs, so that only the source shows them.
    gone += [f"self.{name}" for name in ("conn", "cycle", "loop", "transport") if f"self.{name}" not in source]
    states = ("disconnected", "keep_alive", "message_event", "more_body", "response_complete")
    gone += [f"cycle.{name}" for name in states if f"self.{name}" not in source]
    assert not gone, f"uvicorn no longer has {gone}, which mlrh.web._http.Protocol uses"
