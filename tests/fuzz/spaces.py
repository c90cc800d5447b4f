"""Random label spaces and scores up to 1e100: every answer of a distribution against exact sums over all sets.

Log-weights are rational numbers, so sums of huge numbers cancel exactly. Only their differences from the highest one go
through an exponential, in 60 digits. `SPACES` lists what is tried; a new space is one more line there.
"""

import time
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from math import inf

import numpy as np

from mlrh.spaces import (
    CardinalitySpace,
    GroupSpace,
    HierarchySpace,
    LabelSetDistribution,
    Mixture,
    ObservedSpace,
    OpenSpace,
    listed_sets,
)
from tests import reference

SMALLEST = 1e-60  # probabilities below may come out as 0
DIGITS = 1e-10  # relative error of a probability
METRICS = ("exact_match", "hamming", "f1", "jaccard")
# Exponents of the largest scale. Sums of six numbers, four times as large at another temperature, stay below the limits
# of a space: 1e100, or 1e6 for those that add up floats.
LARGEST, SMALLER = 98, 4.3
N_DRAWS = 50  # sets that are sampled


@dataclass(frozen=True)
class Case:
    """A distribution of one row; all its sets (n_sets, n_labels), and the log-weight of each as a rational number."""

    distribution: LabelSetDistribution
    sets: np.ndarray
    log_weights: list
    magnitude: float = 1.0  # of the numbers that are added up to a log-weight
    exactly_best: tuple = METRICS  # the metrics whose best answer is exact in this space
    has_log_partition: bool = True

    def tempered(self, temperature):
        """The case at a temperature that is a power of two: scores and biases are then divided without rounding."""
        log_weights = [w / Fraction(temperature) for w in self.log_weights]
        cooled = self.distribution.temper(temperature)
        return replace(self, distribution=cooled, log_weights=log_weights, magnitude=self.magnitude / temperature)

    def given(self, known):
        """The case when some labels are known, (n_labels,) with NaN elsewhere."""
        left = ((self.sets == known) | np.isnan(known)).all(axis=1)
        log_weights = [w for w, is_left in zip(self.log_weights, left, strict=True) if is_left]
        conditioned = self.distribution.condition(known[None])
        return replace(self, distribution=conditioned, sets=self.sets[left], log_weights=log_weights)


def run(seconds: float, seed: int, most: float = inf) -> int:
    """Try up to `most` random cases for so many seconds; returns their number. AssertionErrors name a case's seed."""
    for make in SPACES.values():  # compiles what most cases need, before the clock starts
        check_case(make, np.random.default_rng(0))
    end, n = time.monotonic() + seconds, 0
    while n < most and time.monotonic() < end:
        try:
            check(seed + n)
        except Exception as error:
            raise AssertionError(f"check(seed={seed + n}): {error}") from error
        n += 1
    return n


def check(seed):
    """Check one random case of a random space."""
    random = np.random.default_rng(seed)
    check_case(SPACES[random.choice(list(SPACES))], random)


def check_case(make, random):
    """Check a case, half of the time with some labels known and a quarter of the time at another temperature."""
    case = make(random)
    if random.random() < 0.25:
        case = case.tempered(2.0 ** random.integers(-2, 3))
    known = np.where(random.random(case.sets.shape[1]) < 0.5, case.sets[random.integers(len(case.sets))], np.nan)
    if random.random() < 0.5:
        check_evidence(case, known)
        case = case.given(known)
    exact = _exact(case)
    check_sums(case, exact)
    check_single_sets(case.distribution, exact[1], random)
    check_metrics(case, exact[1], random)
    check_draws(case.distribution, exact[1], random)


def check_evidence(case, known):
    """The log-probability of what is known."""
    whole, left = _exact(case)[1], case.given(known)
    log_probs = whole.log_probs()[((case.sets == known) | np.isnan(known)).all(axis=1)]
    highest = log_probs.max()
    # Not a sum of probabilities: all of them may be too small for a float.
    expected = highest + np.log(np.exp(log_probs - highest).sum())
    assert left.distribution.fits(known[None]).all()
    _close_logs(case.distribution.log_prob_of_known(known[None])[0], expected)


def check_sums(case, exact):
    """Log-partition, marginals, joint marginals, sizes and entropy."""
    d, (highest, enumeration) = case.distribution, exact
    probs, sets = _probs(enumeration), enumeration.sets.astype(float)
    if case.has_log_partition:
        expected = float(highest + Fraction(enumeration.exact_log_partition))
        _close(d.log_partition()[0], expected, 1e-14 * max(1.0, case.magnitude))
    _close(d.marginals()[0], probs @ sets)
    _close(d.joint_marginals()[0], sets.T @ (probs[:, None] * sets))
    pmf = probs @ np.eye(sets.shape[1] + 1)[enumeration.sets.sum(axis=1, dtype=int)]
    _close(d.cardinality_pmf()[0], pmf)
    _close(d.size_tail(2)[0], pmf[2:].sum())
    with np.errstate(invalid="ignore"):
        # What is lost, SMALLEST, counts with its logarithm of -138, for up to 64 sets.
        entropy = float(-np.where(probs > 0, probs * enumeration.log_probs(), 0.0).sum())
        _close(d.entropy()[0], entropy, atol=1e4 * SMALLEST)


def check_single_sets(d, enumeration, random):
    """Log-probabilities of all sets, the mode, also within limits, top sets, and the probability of a group."""
    n_sets, n_labels = enumeration.sets.shape
    log_probs = {tuple(labels): value for labels, value in zip(enumeration.sets, enumeration.log_probs(), strict=True)}
    for labels in product((0, 1), repeat=n_labels):
        _close_logs(d.log_prob([labels])[0], log_probs.get(labels, -np.inf))
    listed, values = d.listed()
    _close_logs(values[0], [log_probs.get(tuple(labels), -np.inf) for labels in listed])
    assert np.isfinite(values[0]).sum() == n_sets, "listed lacks a set"
    ranked = np.sort(list(log_probs.values()))[::-1]
    _close_logs(log_probs[tuple(d.mode()[0])], ranked[0])
    sets, values = d.top_sets(n_sets + 1)
    assert len({tuple(labels) for labels in sets[0, :n_sets]}) == n_sets, "top_sets has a set twice"
    _close_logs(values[0], np.append(ranked, -np.inf))
    _close_logs([log_probs[tuple(labels)] for labels in sets[0, :n_sets]], ranked)
    low, high = np.sort(random.integers(0, n_labels + 1, size=2)).tolist()
    within = [value for labels, value in log_probs.items() if low <= sum(labels) <= high]
    possible, modes = d.modes_within(low, high)
    assert possible[0] == bool(within), f"modes_within {low} to {high}"
    if within:
        assert low <= modes[0].sum() <= high, f"modes_within breaks its limits {low} to {high}"
        _close_logs(log_probs[tuple(modes[0])], max(within))
    group = random.random(n_labels) < 0.5
    _close(d.any_of(group)[0], _probs(enumeration) @ enumeration.sets[:, group].any(axis=1))


def check_metrics(case, enumeration, random):
    """Expected metrics of a random answer; no other answer is better than `best`."""
    d, n_labels, probs = case.distribution, enumeration.sets.shape[1], _probs(enumeration)
    answers = np.array(list(product((0, 1), repeat=n_labels)))
    low, high = np.sort(random.integers(0, n_labels + 1, size=2))
    allowed = (answers.sum(axis=1) >= low) & (answers.sum(axis=1) <= high)
    for metric in METRICS:
        values = _metric_values(metric, answers, enumeration.sets) @ probs
        some = random.integers(len(answers))
        _close(d.expected(metric, answers[some : some + 1])[0], values[some])
        if metric in case.exactly_best:
            best = d.best(metric, (low, high))[0]
            reached = values[(answers == best).all(axis=1) & allowed]
            assert len(reached) == 1, f"best {metric} breaks its limits {low} to {high}: {best}"
            _close(reached[0], values[allowed].max())
    # The m likeliest labels together have the highest sum of marginals.
    marginals, m = probs @ enumeration.sets, int(random.integers(n_labels + 1))
    _close(marginals @ d.likeliest(np.array([m]))[0], np.sort(marginals)[n_labels - m :].sum())


def check_draws(d, enumeration, random):
    """Sampled sets are possible and about as frequent as they are probable."""
    probs = {tuple(labels): p for labels, p in zip(enumeration.sets, _probs(enumeration), strict=True)}
    draws = [tuple(labels) for labels in d.sample(N_DRAWS, random_state=int(random.integers(2**31)))[0]]
    # Sets that together have a chance of 1e-12 in all draws don't occur.
    rare = sum(p for labels, p in probs.items() if p < 1e-15)
    assert rare < 1e-12 and all(probs.get(labels, 0.0) >= 1e-15 for labels in draws), "an impossible set was drawn"
    # By Hoeffding's inequality a share is off by more than 0.6 in one of 2e15 cases.
    for labels, p in probs.items():
        assert abs(draws.count(labels) / N_DRAWS - p) < 0.6, f"{labels} has probability {p}"


def cardinality(random):
    """A cardinality space; its biases may cancel the scores, so that many sizes matter."""
    n_labels = int(random.integers(1, 7))
    low, high = np.sort(random.integers(0, n_labels + 1, size=2))
    scores, scale = _numbers(random, n_labels)
    bias = _numbers(random, n_labels + 1, scale)[0]
    if random.random() < 0.5:
        bias = random.normal(scale=3, size=n_labels + 1) - _highest_sums(scores)
    sets = reference.sets_of_sizes(n_labels, low, high)
    space = CardinalitySpace(n_labels, int(low), int(high), bias)
    return _case(space, scores, sets, [bias[size] for size in sets.sum(axis=1)])


def observed(random):
    """An observed space; its biases may cancel the scores, so that many sets matter."""
    n_labels = int(random.integers(1, 6))
    sets = _some(random, reference.sets_of_sizes(n_labels, 0, n_labels))
    scores, scale = _numbers(random, n_labels)
    bias = _numbers(random, len(sets), scale)[0]
    if random.random() < 0.5:
        bias = random.normal(scale=3, size=len(sets)) - sets @ scores
    return _case(ObservedSpace(sets, bias), scores, sets, bias, ("exact_match", "hamming", "f1"))


def listed(random):
    """Listed sets with log-probabilities of their own."""
    n_labels = int(random.integers(1, 6))
    sets = _some(random, reference.sets_of_sizes(n_labels, 0, n_labels))
    log_probs = _numbers(random, len(sets))[0]
    log_probs[1:][random.random(len(sets) - 1) < 0.2] = -np.inf
    d, kept = listed_sets(sets, log_probs[None]), np.isfinite(log_probs)
    log_weights = [Fraction(value) for value in log_probs[kept].tolist()]
    magnitude = float(np.abs(log_probs[kept]).max())
    return Case(d, sets[kept], log_weights, magnitude, ("exact_match", "hamming", "f1"))


def groups(random):
    """A space of groups; the biases of a group may cancel its scores."""
    n_labels = int(random.integers(1, 7))
    scores, scale = _numbers(random, n_labels)
    labels, given, biases = random.permutation(n_labels), [], []
    while len(labels) and (not given or random.random() < 0.6):
        own, labels = np.split(labels, [int(random.integers(1, len(labels) + 1))])
        least, most = np.sort(random.integers(0, len(own) + 1, size=2)).tolist()
        bias = _numbers(random, len(own) + 1, scale)[0]
        if random.random() < 0.5:
            bias = random.normal(scale=3, size=len(own) + 1) - _highest_sums(scores[own])
        given.append((own.tolist(), least, most))
        biases.append(bias)
    every = reference.sets_of_sizes(n_labels, 0, n_labels)
    counts = np.array([every[:, own].sum(axis=1) for own, _, _ in given])
    limits = np.array([[least, most] for _, least, most in given])
    fits = ((counts >= limits[:, :1]) & (counts <= limits[:, 1:])).all(axis=0)
    of_sets = [sum(Fraction(bias[j]) for bias, j in zip(biases, column, strict=True)) for column in counts[:, fits].T]
    of_sizes = [bias[least : most + 1] for bias, (_, least, most) in zip(biases, given, strict=True)]
    return _case(GroupSpace(given, n_labels, bias=np.concatenate(of_sizes)), scores, every[fits], of_sets)


def hierarchy(random):
    """A hierarchy, in half of the cases with limits on the leaves; a parent may cancel what is below it."""
    n_labels = int(random.integers(1, 7))
    places = random.permutation(n_labels)
    parents = np.full(n_labels, -1)
    for i in range(1, n_labels):
        parents[places[i]] = (-1, *places[:i])[random.integers(i + 1)]
    is_leaf = ~np.isin(np.arange(n_labels), parents)
    is_limited = random.random() < 0.5
    limits = np.sort(random.integers(0, is_leaf.sum() + 1, size=2)).tolist() if is_limited else (None, None)
    scores, _ = _numbers(random, n_labels, largest=SMALLER)
    if random.random() < 0.5:
        for parent in places[::-1]:  # children before their parents
            below = scores[parents == parent]
            if len(below) and random.random() < 0.7:
                scores[parent] = random.normal(scale=3) - below[below > 0].sum()
    every = reference.sets_of_sizes(n_labels, 0, n_labels)
    has_parents = (every <= np.where(parents < 0, 1, every[:, parents])).all(axis=1)
    n_leaves = every[:, is_leaf].sum(axis=1)
    fits = has_parents if not is_limited else has_parents & (n_leaves >= limits[0]) & (n_leaves <= limits[1])
    best = ("exact_match", "hamming", "f1") if is_limited else METRICS
    sets = every[fits]
    return _case(HierarchySpace(parents, *limits), scores, sets, np.zeros(len(sets)), best)


def open_(random):
    """An open space; biases of sizes may cancel the scores, and biases of sets what is left."""
    n_labels = int(random.integers(1, 6))
    low, high = np.sort(random.integers(0, n_labels + 1, size=2)).tolist()
    scores, scale = _numbers(random, n_labels, largest=SMALLER)
    size_bias = _numbers(random, n_labels + 1, scale)[0]
    if random.random() < 0.5:
        size_bias = random.normal(scale=3, size=n_labels + 1) - _highest_sums(scores)
    sets = reference.sets_of_sizes(n_labels, low, high)
    sizes, is_seen = sets.sum(axis=1), random.random(len(sets)) < random.random()
    set_bias = np.where(is_seen, _numbers(random, len(sets), scale if random.random() < 0.3 else 3.0)[0], 0.0)
    if random.random() < 0.3:
        set_bias = np.where(is_seen, random.normal(scale=3, size=len(sets)) - sets @ scores - size_bias[sizes], 0.0)
    space = OpenSpace(n_labels, low, high, sets[is_seen].reshape(-1, n_labels), set_bias[is_seen], size_bias)
    bias = [Fraction(own) + Fraction(other) for own, other in zip(set_bias, size_bias[sizes], strict=True)]
    return _case(space, scores, sets, bias, ("hamming", "f1"))


def mixture(random):
    """A mixture of two spaces with numbers up to 1000: its weights are as exact as the members' log-probabilities."""
    n_labels, members = int(random.integers(1, 6)), []
    weights = random.random(2) + 0.01
    for weight in weights:
        scores = _numbers(random, n_labels, 10.0 ** random.uniform(-2, 3))[0]
        low, high = np.sort(random.integers(0, n_labels + 1, size=2)).tolist()
        sets = reference.sets_of_sizes(n_labels, low, high)
        case = _case(CardinalitySpace(n_labels, low, high), scores, sets, np.zeros(len(sets)))
        members.append((weight, case))
    log_weights: dict[tuple, list] = {}
    with localcontext(reference.DIGITS):
        total = sum(Decimal(weight) for weight in weights)
        for weight, case in members:
            enumeration, log_share = _exact(case)[1], (Decimal(weight) / total).ln()
            for labels, value in zip(case.sets, enumeration.exact_log_weights, strict=True):
                terms = log_weights.setdefault(tuple(labels), [])
                terms.append(log_share + value - enumeration.exact_log_partition)
        sums = [
            Fraction(max(terms) + sum((t - max(terms)).exp() for t in terms).ln()) for terms in log_weights.values()
        ]
    d = Mixture([case.distribution for _, case in members], weights)
    exact = list(map(Fraction, sums))
    return Case(d, np.array(list(log_weights)), exact, exactly_best=("hamming", "f1"), has_log_partition=False)


# One line per space: a function of a numpy Generator that returns a Case.
SPACES = {
    "cardinality": cardinality,
    "observed": observed,
    "listed": listed,
    "groups": groups,
    "hierarchy": hierarchy,
    "open": open_,
    "mixture": mixture,
}


def _case(space, scores, sets, bias, exactly_best=METRICS):
    """The case of a space with one row of scores and the bias b(y) of every set."""
    exact_scores = [Fraction(score) for score in scores.tolist()]
    log_weights = [
        Fraction(own) + sum((s for s, y in zip(exact_scores, labels, strict=True) if y), Fraction(0))
        for labels, own in zip(sets, bias, strict=True)
    ]
    magnitude = float(np.abs(scores).sum() + max(abs(float(own)) for own in bias))
    return Case(space.distribution(scores[None]), sets, log_weights, magnitude, exactly_best)


def _numbers(random, n, scale=None, *, largest=LARGEST):
    """n numbers of any scale up to 10**largest, and that scale; some small, equal or 0."""
    if scale is None:
        scale = 10.0 ** (random.uniform(-2, 4) if random.random() < 0.5 else random.uniform(4, largest))
    kind = random.integers(4)
    if kind == 0:
        return random.normal(size=n) * scale, scale
    if kind == 1:
        return random.integers(-3, 4, size=n) * scale, scale
    if kind == 2:  # of very different scales
        return random.normal(size=n) * np.array([1.0, np.sqrt(scale), scale])[random.integers(3, size=n)], scale
    return random.normal(size=n) + scale * random.integers(-1, 2, size=n), scale


def _some(random, sets):
    """Some of the sets, at least one."""
    return random.permutation(sets)[: random.integers(1, len(sets) + 1)]


def _highest_sums(scores):
    """Sums of the 0, 1, ..., n highest scores."""
    return np.append(0.0, np.cumsum(-np.sort(-scores)))


def _exact(case):
    """The highest log-weight, and the enumeration of all sets relative to it."""
    highest = max(case.log_weights)
    with localcontext(reference.DIGITS):
        relative = [Decimal((w - highest).numerator) / Decimal((w - highest).denominator) for w in case.log_weights]
        weights = [w.exp() for w in relative]
        total = sum(weights)
        return highest, reference.Enumeration(case.sets, relative, total.ln(), [w / total for w in weights])


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
