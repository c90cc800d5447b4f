"""Random label spaces and scores up to 1e100: every answer of a distribution against exact sums over all sets.

Log-weights are rational numbers, so sums of huge numbers cancel exactly. Only their differences from the highest one go
through an exponential, in 60 digits. `SPACES` lists what is tried; a new space is one more line there.
"""

import time
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product

import numpy as np

from mlrh.spaces import CardinalitySpace, ObservedSpace
from tests import reference

SMALLEST = 1e-60  # probabilities below may come out as 0
DIGITS = 1e-10  # relative error of a probability
METRICS = ("exact_match", "hamming", "f1", "jaccard")


@dataclass(frozen=True)
class Case:
    """A space with a row of scores; all its sets (n_sets, n_labels), and b(y) of each as a rational number."""

    space: object
    scores: np.ndarray
    sets: np.ndarray
    bias: list
    exactly_best: tuple = METRICS  # the metrics whose best answer is exact in this space


def run(seconds: float, seed: int) -> int:
    """Try random cases for so many seconds; returns their number. An AssertionError names the seed of its case."""
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            check(seed + n)
        except Exception as error:
            raise AssertionError(f"check(seed={seed + n}): {error}") from error
        n += 1
    return n


def check(seed):
    """Check one random case: its distribution, in half of the cases with some labels known."""
    random = np.random.default_rng(seed)
    case = SPACES[random.choice(list(SPACES))](random)
    d, left = case.space.distribution(case.scores[None]), np.ones(len(case.sets), bool)
    if random.random() < 0.5:
        known = np.where(random.random(len(case.scores)) < 0.5, case.sets[random.integers(len(case.sets))], np.nan)
        d, left = d.condition(known[None]), ((case.sets == known) | np.isnan(known)).all(axis=1)
    exact = _exact(case, left)
    check_sums(d, exact, _magnitude(case))
    check_single_sets(d, exact, random)
    check_metrics(d, exact, case.exactly_best, random)


def check_sums(d, exact, magnitude):
    """Log-partition, marginals, joint marginals, sizes and entropy."""
    highest, enumeration = exact
    probs, sets = _probs(enumeration), enumeration.sets.astype(float)
    _close(d.log_partition()[0], float(highest + Fraction(enumeration.exact_log_partition)), 1e-14 * magnitude)
    _close(d.marginals()[0], probs @ sets)
    _close(d.joint_marginals()[0], sets.T @ (probs[:, None] * sets))
    sizes = np.eye(sets.shape[1] + 1)[enumeration.sets.sum(axis=1, dtype=int)]
    _close(d.cardinality_pmf()[0], probs @ sizes)
    with np.errstate(invalid="ignore"):
        # What is lost, SMALLEST, counts with its logarithm of -138, for up to 64 sets.
        entropy = float(-np.where(probs > 0, probs * enumeration.log_probs(), 0.0).sum())
        _close(d.entropy()[0], entropy, atol=1e4 * SMALLEST)


def check_single_sets(d, exact, random):
    """Log-probabilities of all sets, the mode, top sets, and the probability of a group."""
    enumeration = exact[1]
    n_sets, n_labels = enumeration.sets.shape
    log_probs = {tuple(labels): value for labels, value in zip(enumeration.sets, enumeration.log_probs(), strict=True)}
    for labels in product((0, 1), repeat=n_labels):
        _close_logs(d.log_prob([labels])[0], log_probs.get(labels, -np.inf))
    ranked = np.sort(list(log_probs.values()))[::-1]
    _close_logs(log_probs[tuple(d.mode()[0])], ranked[0])
    sets, values = d.top_sets(n_sets + 1)
    assert len({tuple(labels) for labels in sets[0, :n_sets]}) == n_sets, "top_sets has a set twice"
    _close_logs(values[0], np.append(ranked, -np.inf))
    _close_logs([log_probs[tuple(labels)] for labels in sets[0, :n_sets]], ranked)
    group = random.random(n_labels) < 0.5
    _close(d.any_of(group)[0], _probs(enumeration) @ enumeration.sets[:, group].any(axis=1))


def check_metrics(d, exact, exactly_best, random):
    """Expected metrics of a random answer; no other answer is better than `best`."""
    enumeration = exact[1]
    n_labels, probs = enumeration.sets.shape[1], _probs(enumeration)
    answers = np.array(list(product((0, 1), repeat=n_labels)))
    low, high = np.sort(random.integers(0, n_labels + 1, size=2))
    allowed = (answers.sum(axis=1) >= low) & (answers.sum(axis=1) <= high)
    for metric in METRICS:
        values = _metric_values(metric, answers, enumeration.sets) @ probs
        some = random.integers(len(answers))
        _close(d.expected(metric, answers[some : some + 1])[0], values[some])
        if metric in exactly_best:
            best = d.best(metric, (low, high))[0]
            reached = values[(answers == best).all(axis=1) & allowed]
            assert len(reached) == 1, f"best {metric} breaks its limits {low} to {high}: {best}"
            _close(reached[0], values[allowed].max())


def cardinality(random):
    """A cardinality space; its biases may cancel the scores, so that many sizes matter."""
    n_labels = int(random.integers(1, 7))
    low, high = np.sort(random.integers(0, n_labels + 1, size=2))
    scores, scale = _numbers(random, n_labels)
    bias = _numbers(random, n_labels + 1, scale)[0]
    if random.random() < 0.5:
        sums = np.append(0.0, np.cumsum(-np.sort(-scores)))
        bias = random.normal(scale=3, size=n_labels + 1) - sums
    sets = reference.sets_of_sizes(n_labels, low, high)
    space = CardinalitySpace(n_labels, int(low), int(high), bias)
    return Case(space, scores, sets, [bias[size] for size in sets.sum(axis=1)])


def observed(random):
    """An observed space; its biases may cancel the scores, so that many sets matter."""
    n_labels = int(random.integers(1, 6))
    every = reference.sets_of_sizes(n_labels, 0, n_labels)
    sets = random.permutation(every)[: random.integers(1, len(every) + 1)]
    scores, scale = _numbers(random, n_labels)
    bias = _numbers(random, len(sets), scale)[0]
    if random.random() < 0.5:
        bias = random.normal(scale=3, size=len(sets)) - sets @ scores
    return Case(ObservedSpace(sets, bias), scores, sets, list(bias), ("exact_match", "hamming", "f1"))


# One line per space: a function of a numpy Generator that returns a Case.
SPACES = {"cardinality": cardinality, "observed": observed}


def _numbers(random, n, scale=None):
    """n numbers of any scale up to 1e98 (sums stay below 1e100), and that scale; some small, equal or 0."""
    if scale is None:
        scale = 10.0 ** (random.uniform(-2, 4) if random.random() < 0.5 else random.uniform(4, 98))
    kind = random.integers(4)
    if kind == 0:
        return random.normal(size=n) * scale, scale
    if kind == 1:
        return random.integers(-3, 4, size=n) * scale, scale
    if kind == 2:  # of very different scales
        return random.normal(size=n) * np.array([1.0, np.sqrt(scale), scale])[random.integers(3, size=n)], scale
    return random.normal(size=n) + scale * random.integers(-1, 2, size=n), scale


def _exact(case, left):
    """The highest log-weight of the sets that are left, and their enumeration relative to it."""
    scores = [Fraction(score) for score in case.scores.tolist()]
    sets = case.sets[left]
    log_weights = [
        Fraction(bias) + sum((s for s, y in zip(scores, labels, strict=True) if y), Fraction(0))
        for labels, bias in zip(sets, np.array(case.bias, object)[left], strict=True)
    ]
    highest = max(log_weights)
    with localcontext(reference.DIGITS):
        relative = [Decimal((w - highest).numerator) / Decimal((w - highest).denominator) for w in log_weights]
        weights = [w.exp() for w in relative]
        total = sum(weights)
        return highest, reference.Enumeration(sets, relative, total.ln(), [w / total for w in weights])


def _magnitude(case):
    return max(1.0, np.abs(case.scores).sum() + max(abs(float(bias)) for bias in case.bias))


def _probs(enumeration):
    return np.array([float(p) for p in enumeration.exact_probs])


def _metric_values(metric, answers, truths):
    """Values of a metric (n_answers, n_truths)."""
    tp = answers @ truths.T.astype(int)
    wrong = answers.sum(axis=1)[:, None] + truths.sum(axis=1, dtype=int) - 2 * tp
    if metric == "exact_match":
        return (wrong == 0).astype(float)
    if metric == "hamming":
        return 1 - wrong / answers.shape[1]
    denominator = (2 * tp if metric == "f1" else tp) + wrong
    return np.where(denominator == 0, 1.0, (2 * tp if metric == "f1" else tp) / np.maximum(denominator, 1))


def _close(got, expected, atol=SMALLEST):
    np.testing.assert_allclose(got, expected, rtol=DIGITS, atol=atol)


def _close_logs(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-13, atol=DIGITS)
