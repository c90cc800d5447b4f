"""Writes open.json: exact answers of the open space in 60-digit arithmetic, by enumeration of all sets.

Run `python tests/oracle/make_open.py`; it needs mpmath. The seed is fixed, so the file comes out the same.
"""

import json
from itertools import combinations
from pathlib import Path

import mpmath
import numpy as np

mpmath.mp.dps = 60
RNG = np.random.default_rng(0)


def sets_of_sizes(n_labels, min_labels, max_labels):
    """All sets of these sizes as lists of 0 and 1: smaller sets first, then those of lower labels."""
    chosen = [c for size in range(min_labels, max_labels + 1) for c in combinations(range(n_labels), size)]
    return [[int(k in labels) for k in range(n_labels)] for labels in chosen]


def answers(name, scores, min_labels, max_labels, seen, set_bias, size_bias):
    """A case: what goes in, and what must come out."""
    n_labels = len(scores)
    every = sets_of_sizes(n_labels, min_labels, max_labels)
    own = {tuple(y): b for y, b in zip(seen, set_bias, strict=True)}
    case = {
        "name": name,
        "scores": scores,
        "min_labels": min_labels,
        "max_labels": max_labels,
        "seen": seen,
        "set_bias": set_bias,
        "size_bias": size_bias,
    }
    log_weights = [log_weight(y, scores, size_bias, own) for y in every]
    probs, log_partition = normalised(log_weights)
    known = [every[-1][k] if k < n_labels // 2 else None for k in range(n_labels)]
    agreeing = [s for s, y in enumerate(every) if all(b is None or a == b for a, b in zip(y, known, strict=True))]
    given, log_known = normalised([log_weights[s] for s in agreeing])
    best = max(log_weights)
    return case | {
        "log_partition": float(log_partition),
        "marginals": [float(mean(probs, [y[k] for y in every])) for k in range(n_labels)],
        "cardinality_pmf": [float(mean(probs, [sum(y) == j for y in every])) for j in range(n_labels + 1)],
        "pair_marginals": [
            [float(mean(probs, [y[j] * y[k] for y in every])) for k in range(n_labels)] for j in range(n_labels)
        ],
        "entropy": float(sum(p * (log_partition - w) for p, w in zip(probs, log_weights, strict=True))),
        "any_of_first_two": float(mean(probs, [max(y[:2]) for y in every])),
        "mode": every[log_weights.index(best)],
        "mode_is_unique": sum(w == best for w in log_weights) == 1,
        "sets": every,
        "log_probs": [float(w - log_partition) for w in log_weights],
        "conditioned": {
            "known": known,
            "marginals": [float(mean(given, [every[s][k] for s in agreeing])) for k in range(n_labels)],
            "log_prob_of_known": float(log_known - log_partition),
        },
    }


def log_weight(y, scores, size_bias, own):
    terms = [mpmath.mpf(s) for s, present in zip(scores, y, strict=True) if present]
    return mpmath.fsum([*terms, mpmath.mpf(size_bias[sum(y)]), mpmath.mpf(own.get(tuple(y), 0.0))])


def normalised(log_weights):
    """Probabilities, and the logarithm of the sum of the weights."""
    highest = max(log_weights)
    total = mpmath.fsum(mpmath.exp(w - highest) for w in log_weights)
    return [mpmath.exp(w - highest) / total for w in log_weights], highest + mpmath.log(total)


def mean(probs, values):
    return mpmath.fsum(p * int(v) for p, v in zip(probs, values, strict=True))


def some(n_labels, min_labels, max_labels, share):
    """A share of all sets, at random; at least one."""
    every = sets_of_sizes(n_labels, min_labels, max_labels)
    kept = np.sort(RNG.permutation(len(every))[: max(1, round(share * len(every)))])
    return [every[s] for s in kept]


def numbers(n, scale):
    return RNG.normal(scale=scale, size=n).tolist()


def cases():
    for number, (n_labels, low, high) in enumerate([(1, 0, 1), (4, 1, 3), (5, 0, 5), (6, 2, 2), (6, 1, 4)]):
        seen = some(n_labels, low, high, 0.4)
        sizes = numbers(n_labels + 1, 1.0)
        yield answers(f"moderate-{number}", numbers(n_labels, 2.0), low, high, seen, numbers(len(seen), 1.5), sizes)
    for name, bias in (("60", 60.0), ("minus-60", -60.0)):
        seen = some(5, 1, 3, 0.5)
        zeros = [0.0] * 6
        yield answers(f"biases-of-{name}", numbers(5, 2.0), 1, 3, seen, [bias] * len(seen), zeros)
        spread = RNG.uniform(-60, 60, len(seen)).tolist()
        yield answers(f"biases-up-to-{name}", numbers(5, 5.0), 1, 3, seen, spread, numbers(6, 3.0))
    # All sets but the least probable ones are seen: these hold less than 1e-15 of the mass, and the biases remove it.
    scores = [20.0, -19.0, -18.5, 0.3, -21.0]
    every = sets_of_sizes(5, 1, 4)
    seen = [y for y in every if sum(s for s, present in zip(scores, y, strict=True) if present) > -18]
    for bias in (0.0, -20.0, -36.0, -40.0, -60.0):
        yield answers(f"seen-hold-nearly-all{bias:g}", scores, 1, 4, seen, [bias] * len(seen), [0.0] * 6)
    yield answers("all-seen-but-one", numbers(4, 1.0), 0, 4, sets_of_sizes(4, 0, 4)[:-1], [-50.0] * 15, [0.0] * 5)
    yield answers("all-seen", numbers(4, 1.0), 0, 4, sets_of_sizes(4, 0, 4), numbers(16, 3.0), numbers(5, 1.0))
    seen = some(5, 1, 4, 0.5)
    huge, cancelling = [1e5, 500.0, 500.3, 499.0, -1e5], [1e5, -1e5, 3.0, -2.0, 0.5]
    yield answers("scores-of-1e5", huge, 1, 4, seen, numbers(len(seen), 3.0), [0.0] * 6)
    yield answers("scores-of-1e5-that-cancel", cancelling, 1, 4, seen, numbers(len(seen), 5.0), [0.0] * 6)
    against = [-float(sum(s for s, present in zip(huge, y, strict=True) if present)) for y in seen]
    yield answers("biases-against-scores-of-1e5", huge, 1, 4, seen, against, [0.0] * 6)
    yield answers("equal-scores", [1.0] * 5, 1, 4, seen, [2.0] * len(seen), [0.0] * 6)
    two, convex = [[0, 1, 0], [1, 1, 0]], [1000.0, 0.0, 0.0, 1000.0]
    yield answers("convex-size-bias", [1000.0, 0.0, -1000.0], 0, 3, two, [3.0, -3.0], convex)


if __name__ == "__main__":
    path = Path(__file__).with_name("open.json")
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases()) + "\n]\n")
