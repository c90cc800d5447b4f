"""Loss and gradient on the CPU by code that numba compiles (`kernels`), with little to keep between the two.

Few labels are added one by one, in eight rows at a time: prefixes and suffixes of the sums over sets give loss and
gradient at once. Of many labels a row is taken at a time.

There a label weighs w_k = exp(score_k - shift), at most 1. The few heavy labels of a row are those that weigh more than
1 / (4 max_labels) of all others together. The sums over sets of the light ones come from a recurrence, e_j += w_k
e_{j-1}; heavy ones are added one by one, and their marginals are products of prefixes and suffixes: nothing is
subtracted. Without a light label k the sums are e_j - w_k e_{j-1} + w_k^2 e_{j-2} - ..., so that its marginal is a
polynomial in w_k. For light labels w_k e_{j-1} is at most a third of e_j, and next to nothing cancels.

So such a row is read once for the loss and once for the gradient. Rows with too many heavy labels, or with sums beyond
the range of float64, are marked by NaN and left to the tree of products (`dispatch`).
"""

import importlib.util
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch

from mlrh.torch._private import is_watched
from mlrh.torch._telling import tell_of_compiling

LARGEST_SET = 32  # labels; with larger sets most labels would be heavy
BLOCK_ENTRIES = 2**16  # scores in a block of rows, for one thread: about 0.1 ms
READ = (torch.float32, torch.float64)  # types that kernels take
# mlrh._parallel needs all three. `mlrh.torch` also runs where only torch is installed.
HAS_NUMBA = all(importlib.util.find_spec(name) is not None for name in ("joblib", "numba", "threadpoolctl"))


class Summary(NamedTuple):
    """What the gradient needs of each row.

    numbers : (n_rows, max_labels + 1), float64: the shift, NaN where the row is left to others, and coefficients
    marginals : (n_rows, n_heavy), of the heavy labels
    heavy : (n_rows, n_heavy), int32, the heavy labels, filled up with -1
    """

    numbers: torch.Tensor
    marginals: torch.Tensor
    heavy: torch.Tensor


def serve(scores, log_weights):
    """Whether compiled code serves these; known from their devices and shapes alone."""
    return scores.device.type == "cpu" and fit(log_weights)


def fit(log_weights):
    """Whether there is compiled code for sets of so many labels."""
    return HAS_NUMBA and 1 <= log_weights.shape[-1] - 1 <= LARGEST_SET


def warm_up(dtype, of_targets, *, few):
    """Compile all of a step for few or many scores a row, of a type that kernels take, and for targets of a type."""
    scores, log_weights = torch.zeros(1, 2, dtype=dtype), torch.zeros(2)
    _CALLED.update((name, dtype) for name in (("expectations",) if few else ("summarise", "differentiate")))
    if few:
        expectations(scores, None, log_weights, keep=True)
    else:
        _, _, summary, _ = summarise(scores, None, log_weights, 1)
        differentiate(scores, None, summary, torch.ones(1))
    if of_targets in READ:
        are_binary(scores.to(of_targets))


def empty_summary(scores, max_labels, n_heavy, dtype):
    """A summary without numbers, of the shapes and types that `summarise` gives."""
    n_rows = scores.shape[0]
    return Summary(
        scores.new_empty((n_rows, max_labels + 1), dtype=torch.float64),
        scores.new_empty((n_rows, n_heavy), dtype=dtype),
        scores.new_empty((n_rows, n_heavy), dtype=torch.int32),
    )


def summarise(scores, targets, log_weights, n_heavy):
    """Losses (n_rows,), P(|y| = j) (n_rows, n_sizes), a Summary with up to n_heavy heavy labels a row, and n_left.

    scores are float32 or float64, targets None or `dispatch.Targets`. Losses and probabilities of the n_left rows that
    are left to others are not filled.
    """
    n_rows, n_sizes = scores.shape[0], log_weights.shape[-1]
    loss, pmf = scores.new_empty(n_rows), scores.new_empty((n_rows, n_sizes))
    summary = empty_summary(scores, n_sizes - 1, n_heavy, scores.dtype)
    return loss, pmf, summary, _run_kernel("summarise", scores, targets, log_weights, (loss, pmf, *summary))


def expectations(scores, targets, log_weights, *, keep):
    """Of few labels, losses (n_rows,), P(|y| = j) (n_rows, n_sizes), marks (n_rows, 1), marginals - y, and n_left.

    The n_left rows marked by NaN are left to others, and not filled. Without `keep` there are no rows of marginals - y.
    """
    n_rows, n_labels = scores.shape
    loss, pmf = scores.new_empty(n_rows), scores.new_empty((n_rows, log_weights.shape[-1]))
    marked, residuals = scores.new_empty((n_rows, 1)), scores.new_empty((n_rows if keep else 0, n_labels))
    outputs = (loss, pmf, marked, residuals)
    return *outputs, _run_kernel("expectations", scores, targets, log_weights, outputs)


def _run_kernel(name, scores, targets, log_weights, outputs):
    """Have a function of `kernels` write the outputs (n_rows, ...); how many rows it leaves to others."""
    log_weights = _array(log_weights.to(torch.float64).reshape(-1, log_weights.shape[-1]))
    by_row = [_array(scores), *_targets_of(scores, targets), *map(_array, outputs)]
    compute = getattr(_kernels(), name)

    def work(rows):
        block, dense, indices, *own = (array[rows] for array in by_row)
        return compute(block, dense, indices, log_weights if len(log_weights) == 1 else log_weights[rows], *own)

    with _telling(name, scores.dtype):
        return _over_rows(work, scores)


def differentiate(scores, targets, summary, factors):
    """factors (n_rows,) times marginals - y, (n_rows, n_labels), and n_left: so many rows are left to others."""
    result = torch.empty_like(scores)
    tensors = (*summary, factors.to(scores.dtype), result)
    by_row = [_array(scores), *_targets_of(scores, targets), *map(_array, tensors)]
    with _telling("differentiate", scores.dtype):
        return result, _over_rows(lambda rows: _kernels().differentiate(*(array[rows] for array in by_row)), scores)


def can_read(tensor):
    """Whether a tensor is of a type that compiled code takes, with numbers of its own in the memory of the CPU."""
    is_plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and not is_watched()
    return HAS_NUMBA and is_plain and tensor.dtype in READ


def are_binary(dense):
    """Whether all numbers of a tensor that can be read are 0 or 1."""
    values = _array(dense.reshape(-1))
    blocks = _map_blocks(lambda entries: _kernels().has_others(values[entries]), len(values), 32 * BLOCK_ENTRIES)
    return not any(blocks)


_CALLED: set[tuple] = set()  # kernels by name and type of scores


def _telling(name, dtype):
    """A block that says so if a kernel has to be compiled for a type; only for the first call in a process."""
    if (name, dtype) in _CALLED:
        return nullcontext()
    from mlrh._parallel import telling_of_compilation

    _CALLED.add((name, dtype))
    return telling_of_compilation(lambda: tell_of_compiling("CPU kernels"))


def _targets_of(scores, targets):
    """Arrays of dense targets in the type of the scores, and of indices; the one that is not given has no rows."""
    dense, indices = _none(scores.dtype), _none(torch.int64)
    if targets is None:
        return dense, indices
    if targets.are_indices:
        return dense, _array(targets.sets.to(torch.int64))
    return _array(targets.sets.to(scores.dtype)), indices


@cache
def _none(dtype):
    return torch.empty((0, 0), dtype=dtype, device="cpu").numpy()


def _array(tensor):
    """The numbers of a tensor as an array that shares its memory, if they lie one after the other."""
    return tensor.contiguous().numpy(force=True)


def _over_rows(work, scores):
    """The sum of the results of work over blocks of rows."""
    n_rows, n_labels = scores.shape
    return sum(_map_blocks(work, n_rows, max(1, BLOCK_ENTRIES // n_labels)))


def _map_blocks(work, n_rows, rows_per_block):
    """As many threads as torch has: whoever limits these means all that a loss may use."""
    from mlrh._parallel import map_blocks

    return map_blocks(work, n_rows, rows_per_block=rows_per_block, n_jobs=torch.get_num_threads())


@cache
def _kernels():
    from mlrh.torch._eager import kernels  # needs numba, whose import takes half a second

    return kernels
