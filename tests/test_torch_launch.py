"""Launches of kernels by address: the arguments of Triton's own launch, and only where they are known to be right."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from triton import knobs
from triton.compiler.compiler import CompiledKernel

from mlrh.torch import kernels_launch
from mlrh.torch.kernels_launch import Launch, addresses_of, can_go_by_address

DEVICE, STREAM = 3, 77


class Kernel:
    """A kernel whose launch gives the compiled kernel back, as on a GPU."""

    def __init__(self, compiled):
        self.compiled = compiled

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.compiled


@pytest.fixture
def compiled():
    """A compiled kernel that was loaded, with `calls` of its launcher."""
    kernel = CompiledKernel.__new__(CompiledKernel)
    kernel.calls = []
    kernel.module, kernel.function, kernel.packed_metadata = object(), 5, (4, 1, 0)
    kernel.src, kernel.name = None, "kernel"
    kernel._run = lambda *arguments: kernel.calls.append(arguments)
    yield kernel
    kernel.module = None  # nothing is to be unloaded


@pytest.fixture(autouse=True)
def device(monkeypatch):
    streams = {DEVICE: STREAM}
    active = SimpleNamespace(get_current_stream=streams.__getitem__)
    monkeypatch.setattr(kernels_launch, "driver", SimpleNamespace(active=active))


def launched(compiled, *, keep=True):
    launch = Launch(Kernel(compiled), 9, (1, 2.5, True), {"num_warps": 4})
    launch.ordinary((torch.zeros(2),), keep)
    return launch


def test_a_launch_by_address_passes_what_the_launch_of_triton_passes(compiled):
    launched(compiled).by_address((4096, None), DEVICE)
    compiled[9, 1, 1](4096, None, 1, 2.5, True, stream=STREAM)
    by_address, by_triton = compiled.calls
    n_before_hooks = 6  # grid, stream, function, metadata; then the metadata for hooks and two hooks
    assert by_address[:n_before_hooks] == by_triton[:n_before_hooks]
    assert by_address[n_before_hooks : n_before_hooks + 3] == (None, None, None)
    assert by_address[n_before_hooks + 3 :] == by_triton[n_before_hooks + 3 :]


def test_kernels_compiled_for_tensors_out_of_line_are_not_kept(compiled):
    assert can_go_by_address(launched(compiled))
    assert not can_go_by_address(launched(compiled), launched(compiled, keep=False))


@pytest.mark.parametrize(("version", "known"), [("3.5.1", False), ("3.6.0", True), ("3.9.0", True), ("3.10.0", False)])
def test_kernels_of_unknown_versions_of_triton_are_not_kept(compiled, monkeypatch, version, known):
    monkeypatch.setattr(kernels_launch.triton, "__version__", version)
    assert can_go_by_address(launched(compiled)) == known


def test_nothing_is_kept_in_the_interpreter():
    assert not can_go_by_address(launched(None))


def test_a_tool_that_wants_to_know_of_launches_is_told_of_them(compiled):
    launch = launched(compiled)
    hook = knobs.runtime.launch_enter_hook
    hook.add(print)
    try:
        assert not can_go_by_address(launch)
    finally:
        hook.remove(print)
    assert can_go_by_address(launch)


def test_addresses_are_those_of_the_tensors_and_out_of_line_if_one_is():
    tensor = torch.zeros(64)
    start = tensor.data_ptr()
    assert addresses_of((tensor, None)) == ([start, None], start % 16 == 0)
    assert not addresses_of((tensor[1:], tensor))[1]
