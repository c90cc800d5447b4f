"""The question "torch loss" runs, in small, and says so where torch is missing."""

import os
import secrets
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import machine, torch_loss, torch_loss_cpu
from mlrh.torch import CardinalitySpace

BENCHMARKS = Path(torch_loss.__file__).parent
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


def test_the_checks_for_a_gpu_hold_the_kernels_to_float64_at_shapes_drawn_at_random():
    program = "import torch_loss_checks as c; c.DEVICE = 'cpu'; c.check_random(int(__import__('sys').argv[1]), 3, 3000)"
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(BENCHMARKS)}
    seed = secrets.randbelow(10**6)
    command = [sys.executable, "-c", program, str(seed)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, f"seed {seed}: {found.stdout}{found.stderr}"
    assert found.stdout.count("sets of") == 6  # each with all labels known and with some unknown
