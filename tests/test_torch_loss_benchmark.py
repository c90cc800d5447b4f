"""The question "torch loss" runs, in small, and says so where torch is missing."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import machine, torch_loss, torch_loss_cpu
from mlrh.torch import CardinalitySpace

MACHINE = machine.Machine("a machine", 2, 1, bandwidth=1e10, gemm_rate=1e11, load=0.0, versions={})
CONTEXT = SimpleNamespace(machine=MACHINE, quick=True, tell=lambda message: None)


def test_small_batches_are_measured_by_all_cores_and_held_to_three_times_bce():
    before = torch.get_num_threads()
    lines = list(torch_loss.measure(1, CONTEXT))
    assert [line.case.partition(",")[0] for line in lines] == ["64 rows"] * len(torch_loss.KINDS)
    for line in lines:
        assert line.question == "torch loss" and line.target == 3 and line.ratio == line.ours / line.theirs
        assert "BCEWithLogitsLoss" in line.competitor and "threads: 2" in line.competitor
    assert torch.get_num_threads() == before


def test_a_wrong_gradient_is_no_measurement(monkeypatch):
    monkeypatch.setattr(torch_loss_cpu, "CardinalitySpace", lambda n, low, high: CardinalitySpace(n, low, high - 1))
    lines = list(torch_loss.measure(1, CONTEXT))
    assert [line.passes for line in lines] == [False, False]
    assert all("NOT MEASURED: AssertionError" in line.note for line in lines)


def test_without_torch_the_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (line,) = torch_loss.measure(1, CONTEXT)
    assert not line.passes and "NOT MEASURED: torch is missing" in line.note
