"""Seconds of the first training step on a GPU, which compiles the kernels of the loss, and of one that finds them kept.

    PYTHONPATH=src python3 benchmarks/torch_first_call_gpu.py --output FOLDER

Each row of the table is two fresh processes, one after the other: the first with an empty cache of Triton, the other
with what the first one left there. Importing torch and starting CUDA are not counted. The first row is Triton's own
part: a kernel that adds 1 to a number. Prints the table, and writes it to FOLDER/torch_first_call_gpu.json. It needs a
CUDA GPU and torch with Triton, nothing else.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

CASES = [(0, 1, "float32")]  # no loss: the smallest kernel
CASES += [(max_labels, 1024, "float32") for max_labels in (4, 8, 16, 24, 32)]
CASES += [(4, 20, "float32"), (4, 64, "float32"), (20, 20, "float32"), (4, 1024, "bfloat16")]
N_ROWS = 256


def main():
    """Time all cases, each in processes of its own; or one case in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, help="folder for the figures as JSON")
    parser.add_argument("--one", nargs=3, metavar=("M", "K", "TYPE"), help="time one case with the cache as it is")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("This measures on a GPU of NVIDIA, and torch finds none here.")
    if options.one:
        max_labels, n_labels, dtype = options.one
        print(first_step(int(max_labels), int(n_labels), dtype) if int(max_labels) else smallest_kernel())
        return
    print(f"{'M':>3}{'K':>6} {'type':9}{'cold':>8}{'kept':>8}  seconds")
    rows = []
    for case in CASES:
        rows.append(row := time_case(*case))
        print(f"{row['M']:3}{row['K']:6} {row['dtype']:9}{row['cold_s']:8.2f}{row['kept_s']:8.2f}", flush=True)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "torch_first_call_gpu.json").write_text(json.dumps(rows, indent=1))


def time_case(max_labels, n_labels, dtype):
    """Seconds of a first step in a process that compiles, and in the next one."""
    command = [sys.executable, __file__, "--one", str(max_labels), str(n_labels), dtype]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TRITON_CACHE_DIR": folder}
        runs = [subprocess.run(command, env=environment, check=True, capture_output=True, text=True) for _ in range(2)]
    cold, kept = (float(run.stdout) for run in runs)
    return {"M": max_labels, "K": n_labels, "dtype": dtype, "cold_s": cold, "kept_s": kept}


def first_step(max_labels, n_labels, dtype):
    """Seconds of the first forward and backward pass of this process, with dense targets."""
    import torch

    from mlrh.torch import MLRHLoss

    scores = torch.randn(N_ROWS, n_labels, device="cuda").to(getattr(torch, dtype)).requires_grad_()
    targets = torch.zeros_like(scores)
    targets[:, 0] = 1
    (scores.detach() * 2).sum().item()  # CUDA is there before the clock starts
    begin = time.perf_counter()
    MLRHLoss(max_labels)(scores, targets).backward()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def smallest_kernel():
    """Seconds of the first launch of a Triton kernel that does next to nothing, with the import of Triton."""
    import torch

    number = torch.zeros(1, device="cuda")
    number.sum().item()  # CUDA is there before the clock starts
    begin = time.perf_counter()
    from smallest_kernel import add_one

    add_one[(1,)](number)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
