"""Launches of kernels by address, and the private parts of torch that the package uses."""

from operator import attrgetter

import pytest
import torch

from mlrh.torch import _private


@pytest.mark.parametrize("name", _private.PARTS)
def test_the_private_parts_of_torch_are_still_there(name):
    try:
        assert callable(attrgetter(name.removeprefix("torch."))(torch))
    except AttributeError:
        pytest.fail(f"{name} is gone from torch {torch.__version__}; it {_private.PARTS[name]} (mlrh.torch._private).")


def test_a_transform_or_a_mode_is_noticed_and_nothing_else():
    from torch.utils.flop_counter import FlopCounterMode

    seen = []
    assert not _private.is_watched()
    torch.func.vmap(lambda x: seen.append(_private.is_watched()) or x)(torch.zeros(2))
    with FlopCounterMode(display=False):
        seen.append(_private.is_watched())
    assert seen == [True, True]


@pytest.fixture
def compiled():
    """A compiled kernel of Triton that was loaded, with `calls` of its launcher."""
    pytest.importorskip("triton")
    from triton.compiler.compiler import CompiledKernel

    kernel = CompiledKernel.__new__(CompiledKernel)
    kernel.calls = []
    kernel.module, kernel.function, kernel.packed_metadata = object(), 5, (4, 1, 0)
    kernel.src, kernel.name, kernel._module_pid = None, "kernel", None
    kernel._run = lambda *arguments: kernel.calls.append(arguments)
    yield kernel
    kernel.module = None  # nothing is to be unloaded


@pytest.fixture(autouse=True)
def stream_of_device(monkeypatch):
    """Stream 77 on the current device, as Triton's own launcher asks for it."""
    compiler = pytest.importorskip("triton.compiler.compiler")

    class Driver:
        class active:  # noqa: N801, the name of Triton
            get_current_device = staticmethod(lambda: 3)
            get_current_stream = staticmethod({3: 77}.__getitem__)

    monkeypatch.setattr(compiler, "driver", Driver)


class Kernel:
    """A kernel whose launch gives the compiled kernel back, as on a GPU; in the interpreter that is None."""

    def __init__(self, compiled):
        self.compiled = compiled

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.compiled


def launched(compiled, *, keep=True):
    from mlrh.torch._triton.launch import Launch

    launch = Launch(Kernel(compiled), 9, (1, 2.5, True), {"num_warps": 4})
    launch.ordinary((torch.zeros(2),), keep)
    return launch


def test_a_launch_by_address_passes_grid_stream_kernel_addresses_and_numbers(compiled):
    launched(compiled).by_address((4096, None))
    (passed,) = compiled.calls
    assert passed[:6] == (9, 1, 1, 77, 5, (4, 1, 0))
    assert passed[-5:] == (4096, None, 1, 2.5, True)


def test_a_tool_that_wants_to_know_of_launches_is_told_of_them(compiled):
    from triton import knobs

    told = []
    launch = launched(compiled)
    knobs.runtime.launch_enter_hook.add(told.append)
    try:
        launch.by_address((4096, None))
        compiled.calls[-1][7](compiled.calls[-1][6])  # as Triton's launcher does
    finally:
        knobs.runtime.launch_enter_hook.remove(told.append)
    assert [metadata.get()["name"] for metadata in told] == ["kernel"]


@pytest.mark.parametrize("case", ["out of line", "interpreted"])
def test_kernels_compiled_for_tensors_out_of_line_or_interpreted_are_not_kept(compiled, case):
    assert launched(compiled).kept is not None
    assert launched(None if case == "interpreted" else compiled, keep=case == "interpreted").kept is None


def test_addresses_are_those_of_the_tensors_and_out_of_line_if_one_is():
    from mlrh.torch._triton.launch import addresses_of

    tensor = torch.zeros(64)
    start = tensor.data_ptr()
    assert addresses_of((tensor, None)) == ([start, None], start % 16 == 0)
    assert not addresses_of((tensor[1:], tensor))[1]
