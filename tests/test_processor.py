"""`make test-kernels` gets the kernels of other processors that it asks for, and `make test-oldest` checked ones."""

import os

import numpy as np
import pytest
from numba import njit
from numba.core.registry import cpu_target
from numpy._core import _multiarray_umath
from threadpoolctl import threadpool_info


def asked_for(name):
    """The value of an environment variable; skips where it isn't set."""
    return os.environ.get(name) or pytest.skip(f"{name} is not set")


def test_blas_has_the_kernels_that_were_asked_for():
    architecture = asked_for("OPENBLAS_CORETYPE")
    np.dot(np.ones((2, 2)), np.ones((2, 2)))
    found = {library["architecture"] for library in threadpool_info() if library["internal_api"] == "openblas"}
    assert found == {architecture}


def test_numba_compiles_for_the_processor_that_was_asked_for():
    processor = asked_for("NUMBA_CPU_NAME")
    assert cpu_target.target_context.codegen().magic_tuple()[1:] == (processor, "")


def test_torch_has_the_kernels_that_were_asked_for():
    capability = asked_for("ATEN_CPU_CAPABILITY")
    torch = pytest.importorskip("torch")
    assert torch.backends.cpu.get_cpu_capability() == capability.upper()


def test_numpy_has_none_of_the_vector_instructions_that_were_disabled():
    disabled = asked_for("NPY_DISABLE_CPU_FEATURES").split()
    assert [name for name in disabled if _multiarray_umath.__cpu_features__[name]] == []


def test_compiled_code_checks_the_bounds_of_arrays_where_that_was_asked_for():
    asked_for("NUMBA_BOUNDSCHECK")

    @njit
    def element(values, place):
        return values[place]

    with pytest.raises(IndexError, match="out of bounds"):
        element(np.ones(3), 3)
