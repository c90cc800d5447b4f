"""Ranking measures and measures of single labels, against their definitions by loops and pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mlrh.metrics import by_label, ranking, set_log_loss


@st.composite
def ranked_rows(draw):
    n_rows, n_labels = draw(st.integers(2, 6)), draw(st.integers(2, 7))
    order = draw(st.permutations(range(n_rows * n_labels)))
    scores = (np.array(order, float).reshape(n_rows, n_labels) + 0.5) / len(order)  # no ties
    return draw(arrays(np.int64, (n_rows, n_labels), elements=st.integers(0, 1))), scores


def area(truth, scores):
    """How often a row that has the label is above one that hasn't; a tie counts half."""
    pairs = [(a, b) for a in scores[truth == 1] for b in scores[truth == 0]]
    return np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]) if pairs else None


def average_precision(truth, scores):
    """Mean over the right labels of the share of right ones among those at least as high; 1 for none or all."""
    if truth.all() or not truth.any():
        return 1.0
    return np.mean([truth[scores >= scores[k]].mean() for k in np.flatnonzero(truth)])


def gain(truth, scores):
    """Discounted gain of the ranking, relative to the best one; 0 without labels."""
    discounts = 1 / np.log2(np.arange(2, len(truth) + 2))
    best = np.sort(truth)[::-1] @ discounts
    return truth[np.argsort(-scores)] @ discounts / best if best else 0.0


@settings(deadline=None, max_examples=40)  # scikit-learn checks its input at length
@given(ranked_rows())
def test_rankings_are_measured_by_their_definitions(rows):
    Y, scores = rows
    found = ranking(Y, scores)
    for k in (1, 3, 5):
        if k < Y.shape[1]:
            first = [truth[np.argsort(-own)[:k]].mean() for truth, own in zip(Y, scores, strict=True)]
            assert found[f"precision_at_{k}"] == pytest.approx(np.mean(first))
        else:
            assert f"precision_at_{k}" not in found
    pairs = list(zip(Y, scores, strict=True))
    assert found["lrap"] == pytest.approx(np.mean([average_precision(*pair) for pair in pairs]))
    assert found["ndcg"] == pytest.approx(np.mean([gain(*pair) for pair in pairs]))
    areas = [own for own in (area(Y[:, k], scores[:, k]) for k in range(Y.shape[1])) if own is not None]
    assert ("auc_macro" in found) == ("auc_micro" in found) == bool(areas)
    if areas:
        assert found["auc_macro"] == pytest.approx(np.mean(areas))
        assert found["auc_micro"] == pytest.approx(area(Y.ravel(), scores.ravel()))


@settings(deadline=None, max_examples=40)  # scikit-learn checks its input at length
@given(ranked_rows())
def test_a_label_is_measured_by_counting(rows):
    Y, scores = rows
    predicted = (scores > 0.5).astype(int)
    for k, found in enumerate(by_label(Y, predicted, scores)):
        truth, answer = Y[:, k], predicted[:, k]
        both = int((truth & answer).sum())
        assert (found["rows"], found["predicted"]) == (truth.sum(), answer.sum())
        assert found["precision"] == pytest.approx(both / answer.sum() if answer.any() else 0.0)
        assert found["recall"] == pytest.approx(both / truth.sum() if truth.any() else 0.0)
        total = truth.sum() + answer.sum()
        assert found["f1"] == pytest.approx(2 * both / total if total else 0.0)
        assert found["auc"] == pytest.approx(area(truth, scores[:, k]))


def test_one_label_has_an_area_only_and_a_line_of_its_own():
    Y, scores = np.array([[1], [0], [1]]), np.array([[0.9], [0.5], [0.2]])
    assert ranking(Y, scores) == {"auc_macro": 0.5, "auc_micro": 0.5}
    (line,) = by_label(Y, scores > 0.4, scores)
    assert line == {"rows": 2, "predicted": 2, "precision": 0.5, "recall": 0.5, "f1": 0.5, "auc": 0.5}


def test_ties_go_to_the_lower_label():
    assert ranking([[1, 0]], [[0.5, 0.5]])["precision_at_1"] == 1.0
    assert ranking([[0, 1]], [[0.5, 0.5]])["precision_at_1"] == 0.0


@pytest.mark.parametrize("scores", [[[0.5]], [[np.nan, 0.1]]])
def test_scores_of_another_shape_or_without_an_order_are_refused(scores):
    for measure in (ranking, lambda Y, scores: by_label(Y, Y, scores)):
        with pytest.raises(ValueError, match="scores must have the shape of Y"):
            measure([[1, 0]], scores)


def test_a_log_loss_of_nothing_is_0_without_a_sign():
    assert np.signbit(set_log_loss([0.0, 0.0])) == np.False_
