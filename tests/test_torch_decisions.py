"""Decisions in torch: those of the NumPy side, and the best of all answers by enumeration."""

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings

from mlrh import decisions
from mlrh import spaces as label_space
from mlrh.torch import CardinalitySpace, decide

SPACES = [
    (7, 6, 1, 3, 2.0),
    (5, 9, 0, 9, 3.0),
    (4, 1, 0, 1, 1.0),
    (6, 40, 3, 3, 5.0),
    (3, 8, 1, 4, 3000.0),
    (0, 5, 1, 2, 1.0),
]


def costs(tp, fp, fn):
    return -(fp + 3.0 * fn)


DECISIONS = {name: name for name in ("exact_match", "hamming", "f1", "jaccard")} | {"costs": costs, "top": ("top", 1)}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize("biased", [False, True])
def test_decisions_equal_those_of_numpy(space, name, biased):
    n_rows, n_labels, min_labels, max_labels, scale = space
    rng = np.random.default_rng(0)
    scores, bias = scale * rng.normal(size=(n_rows, n_labels)), rng.normal(size=n_labels + 1) if biased else None
    expected = label_space.CardinalitySpace(n_labels, min_labels, max_labels, bias).distribution(scores)
    actual = CardinalitySpace(n_labels, min_labels, max_labels, bias).distribution(torch.tensor(scores))
    sets = decide(actual, DECISIONS[name])
    np.testing.assert_array_equal(sets.numpy(), decisions.resolve(DECISIONS[name])(expected))


@given(case=reference.cases(reference.MODERATE))
@settings(max_examples=40, deadline=None)
def test_the_decision_for_f1_is_no_worse_than_any_set(case):
    enumeration = case.enumerate()
    space = CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)
    (answer,) = decide(space.distribution(torch.tensor(case.scores)[None]), "f1").numpy()
    every_answer = reference.sets_of_sizes(len(case.scores), 0, len(case.scores))
    best = max(expected_f1(enumeration, other) for other in every_answer)
    assert expected_f1(enumeration, answer) >= best - 1e-12


def expected_f1(enumeration, answer):
    tp = enumeration.sets @ answer
    sizes = enumeration.sets.sum(1) + answer.sum()
    return enumeration.mean(np.where(sizes == 0, 1.0, 2 * tp / np.maximum(sizes, 1)))


def test_ties_go_to_the_smaller_set_and_the_lower_label():
    d = CardinalitySpace(3, 0, 2).distribution(torch.zeros(1, 3))
    assert decide(d, ("top", 1)).tolist() == [[1, 0, 0]]
    assert decide(d, "exact_match").tolist() == [[0, 0, 0]]
    assert decide(d, "hamming").tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_marginals_of_one_half_are_left_out_in_every_type(dtype):
    d = CardinalitySpace(100, 0, 100).distribution(torch.zeros(1, 100, dtype=dtype))
    assert decide(d, "hamming").sum() == 0


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        ("best", r"'exact_match', 'f1', 'hamming', 'jaccard', \('top', k\) or a function f\(tp, fp, fn\); got 'best'"),
        (("top", 4), "from 0 to the number of labels, 3; got 4"),
        (("top", True), "got True"),
        (lambda tp, fp, fn: fp + fn, r"must never fall .* If it is a loss"),
        (lambda tp, fp, fn: 1.0, "must return a tensor .* got float"),
        (lambda tp, fp, fn: tp / (tp + fp), r"must be finite at all counts that can occur; got f\(0, 0, 1\) = nan"),
    ],
)
def test_a_wrong_decision_is_one_sentence(decision, message):
    with pytest.raises(ValueError, match=message):
        decide(CardinalitySpace(3, 1, 2).distribution(torch.zeros(1, 3)), decision)


def test_logits_in_place_of_a_distribution_are_one_clear_error():
    with pytest.raises(ValueError, match="decide takes a distribution, not logits"):
        decide(torch.zeros(2, 3), "f1")
