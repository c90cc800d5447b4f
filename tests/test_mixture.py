"""Mixtures, geometric means and listed sets answer as the enumeration of all sets does."""

import inspect

import numpy as np
import pytest
import reference
from scipy.special import logsumexp

from mlrh import decisions
from mlrh.spaces import (
    CardinalitySpace,
    LabelSetDistribution,
    Mixture,
    ObservedSpace,
    geometric_mean,
    listed_sets,
    mixture,
)

N_ROWS, N_LABELS = 7, 5
NAN = np.nan
SETS = reference.sets_of_sizes(N_LABELS, 0, N_LABELS)
SIZES = SETS.sum(axis=1)
RNG = np.random.default_rng(0)
SCORES = RNG.normal(scale=2, size=(3, N_ROWS, N_LABELS))
WEIGHTS = np.array([0.5, 0.2, 0.3])
SEEN = SETS[RNG.permutation(len(SETS))[:9]]
PROBS_OF_SEEN = np.where(RNG.random((N_ROWS, 9)) < 0.3, 0.0, RNG.random((N_ROWS, 9))) + np.eye(N_ROWS, 9)
# Something is known of most rows; in row 0 nothing, and in every row a set of the list is left.
KNOWN = np.full((N_ROWS, N_LABELS), NAN)
for row in range(1, N_ROWS):
    KNOWN[row, row % N_LABELS] = SEEN[row][row % N_LABELS]


def probs_of(space_sets, log_weights):
    """Probabilities (N_ROWS, len(SETS)) from log-weights of listed sets."""
    every = np.full((N_ROWS, len(SETS)), -np.inf)
    for place, y in enumerate(space_sets):
        every[:, np.flatnonzero((y == SETS).all(axis=1))[0]] = log_weights[:, place]
    return np.exp(every - logsumexp(every, axis=1, keepdims=True))


def members():
    """A cardinality space, an observed space and listed sets, and their probabilities by enumeration."""
    few = SETS[(SIZES >= 1) & (SIZES <= 3)]
    bias = np.linspace(-1, 1, len(SEEN))
    with np.errstate(divide="ignore"):
        log_probs = np.log(PROBS_OF_SEEN)
    distributions = [
        CardinalitySpace(N_LABELS, 1, 3).distribution(SCORES[0]),
        ObservedSpace(SEEN, bias).distribution(SCORES[1]),
        listed_sets(SEEN, log_probs),
    ]
    probs = [
        probs_of(few, SCORES[0] @ few.T),
        probs_of(SEEN, SCORES[1] @ SEEN.T + bias),
        probs_of(SEEN, log_probs),
    ]
    return distributions, probs


KINDS = ["cardinality", "observed", "listed", "mixture", "nested"]


@pytest.fixture(params=[(kind, known) for kind in KINDS for known in ("nothing known", "some known")], ids="-".join)
def asked(request):
    """A distribution, and the probability of every set in every row by enumeration."""
    kind, knowledge = request.param
    distributions, probs = members()
    if kind in KINDS[:3]:
        d, p = distributions[KINDS.index(kind)], probs[KINDS.index(kind)]
    else:
        d, p = Mixture(distributions, WEIGHTS), np.tensordot(WEIGHTS, probs, axes=1)
    if kind == "nested":
        d, p = Mixture([d, distributions[0]], [1.0, 3.0]), 0.25 * p + 0.75 * probs[0]
    if knowledge == "some known":
        agrees = (np.isnan(KNOWN[:, None, :]) | (KNOWN[:, None, :] == SETS)).all(axis=2)
        known = np.where((p * agrees).any(axis=1)[:, None], KNOWN, NAN)
        p = np.where(np.isnan(known).all(axis=1)[:, None], p, p * agrees)
        d, p = d.condition(known), p / p.sum(axis=1, keepdims=True)
    return d, p


def test_means_are_those_of_the_enumeration(asked):
    d, probs = asked
    np.testing.assert_allclose(d.marginals(), probs @ SETS, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(d.joint_marginals(), np.einsum("ns,sj,sk->njk", probs, SETS, SETS), atol=1e-13)
    np.testing.assert_allclose(d.any_of([0, 3]), probs @ SETS[:, [0, 3]].any(axis=1), rtol=1e-11, atol=1e-13)
    pmf = np.stack([probs[:, j == SIZES].sum(axis=1) for j in range(N_LABELS + 1)], axis=1)
    np.testing.assert_allclose(d.cardinality_pmf(), pmf, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(d.size_tail(2), pmf[:, 2:].sum(axis=1), rtol=1e-11, atol=1e-13)
    entropy = -np.where(probs > 0, probs * np.log(np.maximum(probs, 1e-300)), 0.0).sum(axis=1)
    np.testing.assert_allclose(d.entropy(), entropy, rtol=1e-10, atol=1e-12)


def test_probabilities_of_sets_are_those_of_the_enumeration(asked):
    d, probs = asked
    for y, column in zip(SETS, probs.T, strict=True):
        np.testing.assert_allclose(d.prob(np.tile(y, (N_ROWS, 1))), column, rtol=1e-10, atol=1e-14)
    sets, log_probs = d.listed()
    np.testing.assert_allclose(probs_of(sets, log_probs), probs, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 3, 40])
def test_top_sets_are_the_most_probable_of_all_sets(asked, n):
    d, probs = asked
    sets, log_probs = d.top_sets(n)
    expected = -np.sort(-np.hstack([probs, np.zeros((N_ROWS, 40))]), axis=1)[:, :n]
    np.testing.assert_allclose(np.exp(log_probs), expected, rtol=1e-10, atol=1e-14)
    for i, place in np.argwhere(log_probs > -np.inf):
        own = probs[i, np.flatnonzero((sets[i, place] == SETS).all(axis=1))[0]]
        assert np.exp(log_probs[i, place]) == pytest.approx(own, rel=1e-10)
    assert not sets[np.isneginf(log_probs)].any()
    np.testing.assert_array_equal(d.mode(), d.top_sets(1)[0][:, 0])


@pytest.mark.parametrize("low, high", [(0, 0), (2, 2), (3, 5), (5, 5)])
def test_the_most_probable_set_within_limits_is_that_of_the_enumeration(asked, low, high):
    d, probs = asked
    possible, sets = d.modes_within(low, high)
    best = np.where((low <= SIZES) & (high >= SIZES), probs, 0).max(axis=1)
    if possible.any():
        np.testing.assert_allclose(d.take(possible).prob(sets[possible]), best[possible], rtol=1e-10)
    assert not best[~possible].any() and best[possible].all()


@pytest.mark.parametrize("metric", ["exact_match", "hamming", "f1", "jaccard"])
def test_expected_metrics_are_those_of_the_enumeration_and_decisions_the_best(asked, metric):
    d, probs = asked
    table = {
        "exact_match": lambda a, b: (a == b).all(),
        "hamming": lambda a, b: (a == b).mean(),
        "f1": lambda a, b: 1.0 if not (a | b).any() else 2 * (a & b).sum() / (a.sum() + b.sum()),
        "jaccard": lambda a, b: 1.0 if not (a | b).any() else (a & b).sum() / (a | b).sum(),
    }[metric]
    values = probs @ np.array([[table(answer, truth) for truth in SETS] for answer in SETS]).T
    np.testing.assert_allclose(d.expected(metric, np.tile(SETS[7], (N_ROWS, 1))), values[:, 7], rtol=1e-10, atol=1e-12)
    for limits in ({}, {"min_labels": 2, "max_labels": 3}):
        allowed = (limits.get("min_labels", 0) <= SIZES) & (limits.get("max_labels", N_LABELS) >= SIZES)
        answers = decisions.best(d, metric, **limits)
        highest = np.where(allowed, values, -1).max(axis=1)
        # The best Jaccard index is that of candidates; here they are never worse by more than 3 %.
        tolerance = 0.03 if metric == "jaccard" else 1e-10
        np.testing.assert_allclose(d.expected(metric, answers), highest, rtol=tolerance, atol=1e-12)
        assert allowed[[np.flatnonzero((y == SETS).all(axis=1))[0] for y in answers]].all()


def test_marginals_by_size_are_those_of_the_enumeration(asked):
    d, probs = asked
    sizes = np.array([1, 2, N_LABELS])
    expected = np.array([probs @ (SETS * (size == SIZES)[:, None]) for size in sizes])
    np.testing.assert_allclose(d._marginals_by_size(sizes), expected, rtol=1e-10, atol=1e-13)


def test_samples_are_as_frequent_as_probable(asked):
    d, probs = asked
    n = 4000
    codes = d.sample(n, random_state=0) @ (1 << np.arange(N_LABELS))
    shares = np.stack([(codes == code).mean(axis=1) for code in SETS @ (1 << np.arange(N_LABELS))], axis=1)
    assert not shares[probs == 0].any()
    # Five standard deviations, and for sets so rare that their counts are not normal a few draws more.
    assert (np.abs(shares - probs) <= 5 * np.sqrt(probs * (1 - probs) / n) + 4 / n).all()


def test_what_is_known_has_the_probability_of_the_sets_that_agree(asked):
    d, probs = asked
    known = np.full((N_ROWS, N_LABELS), NAN)
    known[:, 1], known[:, 4] = 1, 0
    agrees = (SETS[:, 1] == 1) & (SETS[:, 4] == 0)
    expected = probs[:, agrees].sum(axis=1)
    np.testing.assert_allclose(np.exp(d.log_prob_of_known(known)), expected, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(d.fits(known), expected > 0)
    fits = d.fits(known)
    if not fits.all():
        with pytest.raises(ValueError, match=f"row {int(np.argmin(fits))}"):
            d.condition(known)
    if fits.any():
        given = d.take(fits).condition(known[fits])
        np.testing.assert_allclose(
            given.marginals(), (probs * agrees)[fits] @ SETS / expected[fits, None], rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("temperature", [0.5, 1, 3.0])
def test_a_tempered_distribution_is_that_of_the_powers(asked, temperature):
    d, probs = asked
    powers = probs ** (1 / temperature)
    np.testing.assert_allclose(
        d.temper(temperature).marginals(), powers @ SETS / powers.sum(axis=1, keepdims=True), rtol=1e-9, atol=1e-12
    )


def test_some_rows_answer_as_they_do_among_all(asked):
    d, _ = asked
    for rows in (slice(2, 5), np.array([4, 0, 4]), np.arange(N_ROWS) % 2 == 0):
        np.testing.assert_allclose(d.take(rows).marginals(), d.marginals()[rows], rtol=1e-12)
        np.testing.assert_array_equal(d.take(rows).mode(), d.mode()[rows])
        assert d.take(rows).shape == d.marginals()[rows].shape


def test_a_mixture_answers_every_question_by_itself():
    questions = {name for name, _ in inspect.getmembers(LabelSetDistribution) if not name.startswith("_")}
    # These two are written in terms of other questions.
    assert questions - set(vars(Mixture)) == {"size_tail", "prob"}


def test_a_search_that_is_stopped_says_how_much_better_another_set_could_be(monkeypatch):
    # Two flat members that agree on nothing: the first sets of each are poor ones for the other.
    rng = np.random.default_rng(3)
    scores = rng.normal(scale=0.3, size=(2, 4, 10))
    d = Mixture([CardinalitySpace(10, 0, 10).distribution(s) for s in scores], [0.5, 0.5])
    sets, log_probs, gap = d.top_sets_and_gap(1)
    highest = np.exp(d.listed()[1]).max(axis=1)
    assert not gap.any()
    np.testing.assert_allclose(np.exp(log_probs[:, 0]), highest, rtol=1e-10)
    monkeypatch.setattr(mixture, "MAX_WALKED", 8)
    sets, log_probs, gap = d.top_sets_and_gap(1)
    assert gap.max() > 0
    assert (np.exp(log_probs[:, 0]) + gap >= highest - 1e-12).all()
    np.testing.assert_allclose(d.prob(sets[:, 0]), np.exp(log_probs[:, 0]), rtol=1e-12)


def test_scores_of_100_000_leave_a_mixture_exact():
    one = CardinalitySpace(3, 0, 3).distribution([[1e5, -1e5, 0.0]])
    other = CardinalitySpace(3, 1, 1).distribution([[-1e5, 1e5, 0.0]])
    d = Mixture([one, other], [0.25, 0.75])
    np.testing.assert_allclose(d.marginals(), [[0.25, 0.75, 0.125]], rtol=1e-12)
    assert d.mode().tolist() == [[0, 1, 0]]
    # Given that label 1 is absent and label 0 present, the second member has e^-200000 of its weight left.
    given = d.condition([[1, 0, NAN]])
    np.testing.assert_allclose(given.marginals(), [[1, 0, 0.5]], rtol=1e-12)
    assert given.log_weights[0, 1] == pytest.approx(np.log(3) - 2e5, rel=1e-12)


def test_ties_go_to_the_smaller_set_and_the_lower_label():
    sets = [[0, 1, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    tied = listed_sets(sets, np.zeros((1, 4)))
    top, _ = Mixture([tied, tied], [0.5, 0.5]).top_sets(4)
    assert top[0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1]]


def test_no_rows_and_one_label_are_no_special_cases():
    d = Mixture(
        [CardinalitySpace(1, 0, 1).distribution([[0.0]]), ObservedSpace([[1]]).distribution([[0.0]])], [0.5, 0.5]
    )
    assert d.marginals().tolist() == [[0.75]]
    assert d.mode().tolist() == [[1]]
    nobody = d.take([])
    assert nobody.mode().shape == (0, 1) and nobody.entropy().shape == (0,)
    assert decisions.f1(nobody).shape == decisions.jaccard(nobody).shape == (0, 1)
    assert nobody.sample(2).shape == (0, 2, 1) and nobody.temper(2.0).shape == (0, 1)


def test_float32_members_pool_to_float64():
    d = Mixture([CardinalitySpace(N_LABELS, 0, 4).distribution(SCORES[0].astype(np.float32))], [1.0])
    exact = CardinalitySpace(N_LABELS, 0, 4).distribution(SCORES[0])
    assert d.marginals().dtype == np.float64
    np.testing.assert_allclose(d.marginals(), exact.marginals(), rtol=0, atol=1e-6)  # float32 has 7 digits
    np.testing.assert_array_equal(d.mode(), exact.mode())


def test_many_labels_have_no_entropy_or_temperature_but_a_sentence():
    d = Mixture([CardinalitySpace(20, 0, 5).distribution(np.zeros((1, 20)))], [1.0])
    with pytest.raises(ValueError, match="at most 14 labels; got 20"):
        d.entropy()
    assert d.temper(1) is d


@pytest.mark.parametrize(
    "weights, message",
    [([1.0], "2 numbers, one per member"), ([1, -1], "not negative"), ([0, 0], "not all 0"), ([1, NAN], "finite")],
)
def test_weights_that_are_none_are_refused(weights, message):
    one = CardinalitySpace(2, 0, 2).distribution([[0.0, 0.0]])
    for pool in (Mixture, geometric_mean):
        with pytest.raises(ValueError, match=message):
            pool([one, one], weights)


def test_members_of_different_shapes_are_refused():
    one, other = (CardinalitySpace(k, 0, 2).distribution(np.zeros((1, k))) for k in (2, 3))
    with pytest.raises(ValueError, match=r"one shape .* got \[\(1, 2\), \(1, 3\)\]"):
        Mixture([one, other], [1, 1])


@pytest.mark.parametrize("space", ["size bias", "observed"])
def test_the_geometric_mean_is_the_normalised_product_of_powers(space):
    if space == "observed":
        parts = [ObservedSpace(SEEN, b).distribution(s) for b, s in zip(RNG.normal(size=(3, 9)), SCORES, strict=True)]
    else:
        biases = RNG.normal(size=(3, N_LABELS + 1))
        parts = [CardinalitySpace(N_LABELS, 0, 5, b).distribution(s) for b, s in zip(biases, SCORES, strict=True)]
    every = [np.stack([part.log_prob(np.tile(y, (N_ROWS, 1))) for y in SEEN], axis=1) for part in parts]
    expected = np.tensordot(WEIGHTS, every, axes=1)
    pooled = geometric_mean(parts, 2 * WEIGHTS)
    log_probs = np.stack([pooled.log_prob(np.tile(y, (N_ROWS, 1))) for y in SEEN], axis=1)
    # The normalising constant differs from row to row, differences between sets don't depend on it.
    np.testing.assert_allclose(log_probs - log_probs[:, :1], expected - expected[:, :1], rtol=1e-9, atol=1e-10)
    assert pooled.cardinality_pmf().sum(axis=1) == pytest.approx(1)


def test_a_geometric_mean_over_different_sets_is_refused():
    distributions, _ = members()
    for other in (distributions[1], Mixture(distributions, WEIGHTS)):
        with pytest.raises(ValueError, match="label spaces of the same sets"):
            geometric_mean([distributions[0], other], [1, 1])


@pytest.mark.parametrize(
    "log_probs, message",
    [
        ([[0.0]], r"a column for each of the 2 sets; got shape \(1, 1\)"),
        ([[0.0, NAN]], "found nan in row 0, column 1"),
        ([[0.0, 1.0], [-np.inf, -np.inf]], "row 1 has none"),
    ],
)
def test_listed_sets_without_probabilities_are_refused(log_probs, message):
    with pytest.raises(ValueError, match=message):
        listed_sets([[1, 0], [0, 1]], log_probs)
