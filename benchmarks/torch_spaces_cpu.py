"""Milliseconds of MLRHLoss on the CPU with each label space, forward and backward, beside BCEWithLogitsLoss.

Run it with `python benchmarks/torch_spaces_cpu.py [threads]`. The losses take turns, as in `torch_loss_cpu.py`; each
figure is the lowest decile of its turns. Logits are standard normal float32. 500 listed sets of one to four labels;
groups of eight labels, of which one or two are present; a forest whose labels have eight children each. The open space
with biases below -10, of which a step takes seconds with many labels, is timed with 64 labels only.
"""

import torch
import torch_loss_cpu

from mlrh.torch import CardinalitySpace, GroupSpace, HierarchySpace, MLRHLoss, ObservedSpace, OpenSpace

N_SETS, MAX_LABELS, FAN_OUT = 500, 4, 8
torch_loss_cpu.TURNS = 21  # a tenth of a second each


def main():
    options = torch_loss_cpu.arguments(__doc__)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    print(f"threads: {torch.get_num_threads()}; ms, and ratio to BCE\n")
    print(f"{'label space':<42} {'rows':>5} {'labels':>7} {'ms':>8} {'BCE':>7} {'ratio':>7}")
    for n_rows, n_labels in ((1024, 64), (256, 1000)):
        report(n_rows, n_labels)


def report(n_rows, n_labels):
    """Print the lines of one shape."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n_rows, n_labels, generator=generator).requires_grad_()
    cases = spaces(n_labels, random_sets(n_labels, generator))
    calls = [(torch.nn.BCEWithLogitsLoss(), logits, torch.zeros(n_rows, n_labels))]
    for space in cases.values():
        targets = space.distribution(torch.zeros(n_rows, n_labels)).mode().float()
        calls.append((MLRHLoss(label_space=space), logits, targets))
    bce, *others = torch_loss_cpu.low_deciles(*calls)
    for name, milliseconds in zip(cases, others, strict=True):
        ratio = milliseconds / bce
        print(f"{name:<42} {n_rows:>5} {n_labels:>7} {milliseconds:>8.2f} {bce:>7.2f} {ratio:>7.1f}", flush=True)


def random_sets(n_labels, generator):
    order = torch.rand(2 * N_SETS, n_labels, generator=generator).argsort(1)
    counts = torch.randint(1, MAX_LABELS + 1, (2 * N_SETS, 1), generator=generator)
    return (order < counts).to(torch.int8).unique(dim=0)[:N_SETS]


def spaces(n_labels, sets):
    """The label spaces, by what the table calls them."""
    groups = [(range(start, min(start + FAN_OUT, n_labels)), 1, 2) for start in range(0, n_labels, FAN_OUT)]
    parents = [label // FAN_OUT - 1 for label in range(n_labels)]
    sizes = (n_labels, 1, MAX_LABELS)
    low = {
        "open, 500 sets, biases below -10": OpenSpace(*sizes, sets, torch.nn.Parameter(torch.full((len(sets),), -20.0)))
    }
    return {
        "cardinality, 1 to 4 labels": CardinalitySpace(*sizes),
        "observed, 500 sets": ObservedSpace(sets, set_bias=True),
        "open, 500 sets": OpenSpace(*sizes, sets, set_bias=True),
        **(low if n_labels <= 64 else {}),
        "groups of 8 labels, 1 or 2 of each": GroupSpace(groups, n_labels),
        "hierarchy, 8 children each": HierarchySpace(parents),
        "hierarchy, 1 to 4 leaves": HierarchySpace(parents, 1, 4),
    }


if __name__ == "__main__":
    main()
