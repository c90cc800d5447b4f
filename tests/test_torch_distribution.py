"""The distribution in torch: equal to the NumPy side, to the oracle and to enumeration, in all its arithmetics."""

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from scipy import stats
from test_oracle import ABSOLUTE, CARDINALITY, by_name, largest_bias, log_partition_tolerance

from mlrh import spaces as label_space
from mlrh.torch import CardinalitySpace
from mlrh.torch._eager import dispatch

every_enumerated_case = by_name([case for case in CARDINALITY if "sets" in case])
SPACES = {  # n_rows, n_labels, min_labels, max_labels, scale of the scores
    "small": (7, 6, 1, 3, 2.0),
    "all-sizes": (5, 9, 0, 9, 3.0),
    "one-label": (4, 1, 0, 1, 1.0),
    "one-set": (4, 1, 1, 1, 1.0),
    "one-size": (6, 12, 3, 3, 5.0),
    "many-labels": (5, 133, 2, 5, 1.0),
    "wide": (3, 1000, 1, 4, 3.0),
    "many-sizes": (3, 90, 0, 40, 2.0),
    "large-scores": (3, 70, 1, 4, 300.0),
    "huge-scores": (3, 8, 1, 4, 1e4),
    "only-the-empty-set": (2, 5, 0, 0, 1.0),
    "no-rows": (0, 5, 1, 2, 1.0),
}
every_space = pytest.mark.parametrize("name", SPACES)


def both(name, biased):
    """The same distribution by NumPy and by torch, in float64."""
    n_rows, n_labels, min_labels, max_labels, scale = SPACES[name]
    rng = np.random.default_rng(0)
    scores = scale * rng.normal(size=(n_rows, n_labels))
    size_bias = rng.normal(size=n_labels + 1) if biased else None
    sizes = (n_labels, min_labels, max_labels)
    in_torch = CardinalitySpace(*sizes, size_bias).distribution(torch.tensor(scores))
    return label_space.CardinalitySpace(*sizes, size_bias).distribution(scores), in_torch


def of_all_labels(d):
    return d.log_prob(
        np.ones(d.scores.shape, np.int8) if isinstance(d.scores, np.ndarray) else torch.ones(d.scores.shape)
    )


QUESTIONS = {
    "log_partition": lambda d: d.log_partition(),
    "marginals": lambda d: d.marginals(),
    "cardinality_pmf": lambda d: d.cardinality_pmf(),
    "mode": lambda d: d.mode(),
    "log_prob of the mode": lambda d: d.log_prob(d.mode()),
    "log_prob of all labels": of_all_labels,
    "top_sets": lambda d: d.top_sets(6)[0],
    "log_probs of top_sets": lambda d: d.top_sets(6)[1],
}


@every_space
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_equal_those_of_numpy(name, biased, question):
    in_numpy, in_torch = both(name, biased)
    answer, expected = QUESTIONS[question](in_torch).numpy(), QUESTIONS[question](in_numpy)
    exact = expected.dtype == np.int8
    atol = 0 if exact else 1e-10 * max(1.0, 1e-4 * np.abs(in_numpy.scores).max(initial=0.0))
    np.testing.assert_allclose(answer, expected, rtol=0, atol=atol)


ANSWERS = ("log_partition", "marginals", "cardinality_pmf", "mode")
KNOWN = [(case, answer) for case in CARDINALITY for answer in ANSWERS if answer != "mode" or case["mode_is_unique"]]


@pytest.mark.parametrize(("case", "question"), KNOWN, ids=[f"{case['name']}-{answer}" for case, answer in KNOWN])
def test_answers_equal_the_oracle(case, question):
    tolerance = {"log_partition": log_partition_tolerance(case), "mode": 0}.get(question, ABSOLUTE)
    answer = getattr(distribution(case), question)()[0].numpy()
    np.testing.assert_allclose(answer, case[question], rtol=0, atol=tolerance)


@every_enumerated_case
def test_log_prob_of_every_set_equals_the_oracle(case):
    log_probs = distribution(case, repeats=len(case["sets"])).log_prob(torch.tensor(case["sets"])).numpy()
    scale = np.maximum(np.array(case["sets"]) @ np.abs(case["scores"]), max(1, largest_bias(case)))
    # The difference of log-partition and score, both rounded: relative to the larger of the two.
    assert (np.abs(log_probs - case["log_probs"]) <= ABSOLUTE * np.maximum(scale, abs(case["log_partition"]))).all()
    assert log_probs.max() <= 0


@every_enumerated_case
def test_curvature_along_each_label_equals_the_oracle_covariance(case):
    n_labels = len(case["scores"])
    rows = torch.tensor(case["scores"], dtype=torch.float64).repeat(n_labels, 1)
    d = distribution(case)
    log_weights = d.space.log_weights(d.scores)
    no_sizes = torch.zeros(n_labels, len(log_weights), dtype=torch.float64)
    covariance, _ = dispatch.curvature(rows, log_weights, torch.eye(n_labels, dtype=torch.float64), no_sizes)
    expected = np.array(case["pair_marginals"]) - np.outer(case["marginals"], case["marginals"])
    np.testing.assert_allclose(covariance.numpy(), expected, rtol=0, atol=ABSOLUTE)


def test_a_row_that_defeats_every_tilt_has_the_marginals_worked_out_by_hand():
    d = CardinalitySpace(3, 0, 3, [1000.0, 0.0, 0.0, 1000.0]).distribution(torch.tensor([[1000.0, 0.0, -1000.0]]))
    torch.testing.assert_close(d.marginals(), torch.tensor([[0.75, 0.5, 0.25]]), rtol=0, atol=1e-7)


@given(case=reference.cases())
@settings(max_examples=150, deadline=None)
def test_answers_equal_the_enumeration_at_any_scale(case):
    n_labels = len(case.scores)
    space = CardinalitySpace(n_labels, case.min_labels, case.max_labels, case.size_bias)
    d, enumeration = space.distribution(torch.tensor(case.scores)[None]), case.enumerate()
    assert d.log_partition()[0].item() == pytest.approx(enumeration.log_partition(), rel=0, abs=1e-13 * case.scale())
    np.testing.assert_allclose(d.marginals()[0].numpy(), enumeration.marginals(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(d.cardinality_pmf()[0].numpy(), enumeration.cardinality_pmf(), rtol=0, atol=1e-10)
    log_probs = enumeration.log_probs()  # sets that are equal may differ there by the order of their sums
    found = enumeration.sets.tolist().index(d.mode()[0].tolist())
    assert log_probs[found] >= max(log_probs) - 1e-13 * case.scale()


@given(case=reference.cases(reference.MODERATE))
@settings(max_examples=60, deadline=None)
def test_top_sets_of_the_whole_space_are_in_the_order_of_the_enumeration(case):
    enumeration = case.enumerate()
    space = CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)
    sets, log_probs = space.distribution(torch.tensor(case.scores)[None]).top_sets(len(enumeration.sets))
    np.testing.assert_allclose(log_probs[0].numpy(), sorted(enumeration.log_probs())[::-1], rtol=0, atol=1e-10)
    assert sorted(sets[0].tolist()) == sorted(enumeration.sets.tolist())


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_are_computed_in_float32(dtype, scale):
    scores = (scale * torch.randn(40, 50, generator=torch.Generator().manual_seed(0))).to(dtype)
    space = CardinalitySpace(50, 1, 4)
    narrow, wide = space.distribution(scores), space.distribution(scores.double())
    assert narrow.log_partition().dtype == torch.float32
    torch.testing.assert_close(narrow.log_partition().double(), wide.log_partition(), rtol=1e-6, atol=1e-5)
    rounding = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
    torch.testing.assert_close(narrow.marginals().double(), wide.marginals(), rtol=0, atol=rounding)


@pytest.mark.parametrize("scores", [[1e5] * 4, [-1e5] * 4, [1e5, -1e5, 0.0, 500.3]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_1e5_have_finite_answers_that_sum_to_one(scores, dtype):
    d = CardinalitySpace(4, 1, 2).distribution(torch.tensor([scores], dtype=dtype))
    assert d.log_partition().isfinite().all()
    assert d.cardinality_pmf().sum().item() == pytest.approx(1.0)
    assert 1 - 1e-6 <= d.marginals().sum().item() <= 2 + 1e-6


def test_every_arithmetic_gives_the_same_answers():
    scores = torch.randn(20, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    log_weights = torch.tensor([-torch.inf, 0.3, -0.2, 0.1], dtype=torch.float64).expand(20, -1)
    tilted, is_safe = dispatch._tilted(scores, log_weights, True)
    unlimited = dispatch._unlimited(scores, log_weights, want_marginals=True)
    assert is_safe.all()
    for one, other in zip(tilted, unlimited, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("question", "entries"), [("marginals", 7 * 30), ("top_sets", 7 * 10 * 5 * 8)])
def test_answers_do_not_depend_on_the_blocks_of_rows(question, entries, monkeypatch):
    scores = torch.randn(50, 30, generator=torch.Generator().manual_seed(2))
    d = CardinalitySpace(30, 1, 4).distribution(scores)
    asked = d.marginals if question == "marginals" else lambda: d.top_sets(5)
    expected = asked()
    monkeypatch.setattr(dispatch, "TARGET_ENTRIES", entries)
    torch.testing.assert_close(asked(), expected, rtol=0, atol=1e-7 if question == "marginals" else 0)


def test_the_order_of_labels_and_rows_does_not_matter():
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(9, 37, dtype=torch.float64, generator=generator)
    rows, labels = torch.randperm(9, generator=generator), torch.randperm(37, generator=generator)
    space = CardinalitySpace(37, 1, 5)
    expected = space.distribution(scores).marginals()[rows][:, labels]
    torch.testing.assert_close(space.distribution(scores[rows][:, labels]).marginals(), expected, rtol=0, atol=1e-14)


def test_the_gradient_of_a_top_set_is_its_own_where_rounding_disorders_the_log_probs():
    generator = torch.Generator().manual_seed(5)
    scores = 40.0 + 2.0**-18 * torch.randint(20, (50, 12), generator=generator)
    scores.requires_grad_()
    d = CardinalitySpace(12, 2, 3).distribution(scores)
    sets, log_probs = d.top_sets(30)
    assert (log_probs.diff(dim=1) <= 0).all()
    weights = torch.randn(50, 30, generator=generator)
    (gradient,) = torch.autograd.grad((weights * log_probs).sum(), scores)
    expected = (weights[:, :, None] * (sets - d.marginals().detach()[:, None])).sum(1)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-4)


def test_scores_are_left_unchanged():
    scores = torch.randn(5, 8, generator=torch.Generator().manual_seed(4))
    before = scores.clone()
    d = CardinalitySpace(8, 1, 3).distribution(scores)
    for answer in (d.log_partition, d.marginals, d.cardinality_pmf, d.mode, d.sample, lambda: d.top_sets(3)):
        answer()
    torch.testing.assert_close(scores, before, rtol=0, atol=0)


def test_scores_that_are_nan_have_nan_answers():
    d = CardinalitySpace(3, 1, 2).distribution(torch.tensor([[0.0, torch.nan, 1.0], [0.0, 0.0, 0.0]]))
    assert d.log_partition().isnan().tolist() == [True, False]


SAMPLED = {
    "plain": (np.array([0.8, -0.5, 0.1, -1.5]), 1, 3, None),
    "biased": (np.array([0.8, -0.5, 0.1, -1.5, 0.3]), 0, 5, np.array([0.0, 1.0, -0.5, 0.4, 0.0, 1.0])),
    "one-size": (np.array([0.8, -0.5, 0.1, -1.5]), 2, 2, None),
    "beyond-floating-point": (np.array([1000.0, 0.4, -0.3, -1000.0]), 0, 4, np.array([1000.0, 0.0, 0.5, 0.0, 1000.0])),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_every_set_is_drawn_as_often_as_its_probability_says(name):
    scores, min_labels, max_labels, size_bias = SAMPLED[name]
    enumeration = reference.enumerate_sizes(scores, min_labels, max_labels, size_bias)
    d = CardinalitySpace(len(scores), min_labels, max_labels, size_bias).distribution(torch.tensor(scores)[None])
    samples = d.sample(20_000, generator=torch.Generator().manual_seed(0))[0].tolist()
    likely = enumeration.log_probs() > -20
    index = {tuple(labels): s for s, labels in enumerate(enumeration.sets[likely].tolist())}
    counts = np.bincount([index[tuple(labels)] for labels in samples], minlength=likely.sum())
    expected = np.exp(enumeration.log_probs()[likely])
    assert stats.chisquare(counts, 20_000 * expected / expected.sum()).pvalue > 1e-4


def test_rows_are_drawn_by_their_own_scores_and_independently():
    d = CardinalitySpace(3, 1, 2).distribution(torch.tensor([[3.0, -3.0, 0.0], [-3.0, 3.0, 1.0], [-3.0, 3.0, 1.0]]))
    samples = d.sample(20_000, generator=torch.Generator().manual_seed(1)).double()
    expected = d.marginals().double()
    assert (samples.mean(1) - expected).abs().max() < 5 * 0.5 / np.sqrt(20_000)
    assert 0.01 < (samples[1] != samples[2]).any(1).double().mean() < 0.99


def test_the_same_generator_draws_the_same_sets():
    d = CardinalitySpace(6, 1, 3).distribution(torch.zeros(4, 6))
    first, second = (d.sample(5, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, d.sample(5, generator=torch.Generator().manual_seed(8)))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((3, 2, 1), "0 <= min_labels <= max_labels <= n_labels; got min_labels=2, max_labels=1, n_labels=3"),
        ((3, 1, 4), "max_labels=4, n_labels=3"),
        ((3, -1, 2), "min_labels=-1"),
        ((3, 1.5, 2), "min_labels=1.5"),
    ],
)
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        CardinalitySpace(*sizes)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda d: d.log_prob(torch.ones(2, 4)), r"Y must have shape \(2, 3\), one set per row; got \(2, 4\)"),
        (
            lambda d: d.log_prob(torch.tensor([[1, 0, 0], [0, 0.9, 0]])),
            "only 0 and 1, .* found 0.9.* in row 1, column 1",
        ),
        (lambda d: d.log_prob(torch.tensor([[1, 0, 0], [0, -1, 0]])), "found -1 in row 1, column 1"),
        (lambda d: d.top_sets(0), "positive integer; got 0"),
        (lambda d: d.sample(2.5), "positive integer; got 2.5"),
        (lambda d: d.space.distribution(torch.zeros(2, 4)), r"shape \(n_rows, 3\); got \(2, 4\)"),
        (
            lambda d: d.space.distribution(torch.zeros(2, 3, dtype=torch.int64)),
            "floating point tensor .* got torch.int64",
        ),
        (lambda d: CardinalitySpace(3, 1, 2, [0.0]), r"max_labels \+ 1 = 3 entries.* got shape \(1,\)"),
    ],
)
def test_a_wrong_question_is_one_sentence(ask, message):
    with pytest.raises(ValueError, match=message):
        ask(CardinalitySpace(3, 1, 2).distribution(torch.zeros(2, 3)))


def distribution(case, repeats=1):
    space = CardinalitySpace(len(case["scores"]), case["min_labels"], case["max_labels"], case["size_bias"])
    return space.distribution(torch.tensor(case["scores"], dtype=torch.float64).repeat(repeats, 1))


@given(case=reference.cases(reference.SMALL_INTEGERS))
@settings(deadline=None, max_examples=150)
def test_ties_go_to_the_smaller_set_and_then_to_the_lower_labels(case):
    space = CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)
    mode = space.distribution(torch.tensor(case.scores, dtype=torch.float64)[None]).mode()[0]
    assert mode.tolist() == case.enumerate().best_sets()[0].tolist()


def test_more_sets_than_there_are_cost_no_more_than_all_of_them():
    distribution = CardinalitySpace(n_labels=4, min_labels=1, max_labels=2).distribution(torch.randn(3, 4))
    all_sets, all_log_probs = distribution.top_sets(10)
    sets, log_probs = distribution.top_sets(100_000)
    assert sets.shape == (3, 100_000, 4)
    torch.testing.assert_close(sets[:, :10], all_sets)
    torch.testing.assert_close(log_probs[:, :10], all_log_probs)
    assert not sets[:, 10:].any()
    assert (log_probs[:, 10:] == -torch.inf).all()
