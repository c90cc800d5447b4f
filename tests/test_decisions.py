"""Decisions are the best of all answers: against the oracle and enumeration; limits, ties, and the classifiers."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import cases, listed_sets, sets_of_sizes
from samples import BOTH, FORMS, make_multilabel
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.metrics import f1_score, hamming_loss, jaccard_score
from test_expected import counts, enumerated_values, every_metric, monotone_metrics
from test_oracle import CARDINALITY, OBSERVED, by_name, distribution

from mlrh import MLRHClassifier, decisions
from mlrh.spaces import CardinalitySpace, ObservedSpace
from mlrh.spaces._kernels.expected_metrics import metric_function

EXAMPLE = Path(__file__).parents[1] / "examples" / "decisions.py"
LIMITS = st.tuples(st.integers(0, 7), st.integers(0, 7)).map(sorted)
ORACLE_NAMES = {"exact_match": "exact_match", "hamming": "hamming_accuracy", "f1": "f1", "jaccard": "jaccard"}
with_best_decisions = by_name([case for case in CARDINALITY + OBSERVED if "best_decisions" in case])


def space_of(case):
    return CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)


def limited(limits, n_labels):
    return {"min_labels": min(limits[0], n_labels), "max_labels": min(limits[1], n_labels)}


def cost(tp, fp, fn):
    """Missing a label costs as much as three too many."""
    return -(fp + 3.0 * fn)


@with_best_decisions
def test_no_answer_is_better_than_the_decision_by_the_oracle(case):
    d = distribution(case)
    for name, theirs in ORACLE_NAMES.items():
        if theirs in case["best_decisions"]:
            value = decisions.expected(d, name, decisions.BY_NAME[name](d))[0]
            assert value == pytest.approx(case["best_decisions"][theirs], rel=0, abs=1e-12), name


@every_metric
@settings(max_examples=60, deadline=None)
@given(case=cases(), limits=LIMITS)
def test_no_answer_within_the_limits_is_better_in_a_cardinality_space(metric, case, limits):
    n_labels = len(case.scores)
    limits = limited(limits, n_labels)
    chosen = decisions.BY_NAME[metric](space_of(case).distribution(case.scores[None]), **limits)
    answers = np.concatenate([chosen, sets_of_sizes(n_labels, *limits.values())])
    values = enumerated_values(case.enumerate(), answers, metric_function(metric, n_labels))
    assert limits["min_labels"] <= chosen.sum() <= limits["max_labels"]
    assert values[0] >= values[1:].max() - 1e-12


@pytest.mark.parametrize("metric", ["exact_match", "hamming", "f1"])
@settings(max_examples=60, deadline=None)
@given(drawn=listed_sets(), limits=LIMITS)
def test_no_answer_within_the_limits_is_better_in_an_observed_space(metric, drawn, limits):
    scores, sets, bias = drawn
    limits = limited(limits, len(scores))
    d = ObservedSpace(sets, bias).distribution(scores[None])
    chosen = decisions.BY_NAME[metric](d, **limits)
    answers = sets_of_sizes(len(scores), *limits.values())
    every = ObservedSpace(sets, bias).distribution(np.tile(scores, (len(answers), 1)))
    values = decisions.expected(every, metric, answers)
    assert limits["min_labels"] <= chosen.sum() <= limits["max_labels"]
    assert decisions.expected(d, metric, chosen)[0] >= values.max() - 1e-12


@settings(max_examples=60, deadline=None)
@given(drawn=listed_sets(), metric=monotone_metrics())
def test_in_an_observed_space_no_listed_set_and_no_set_of_likeliest_labels_is_better(drawn, metric):
    scores, sets, bias = drawn
    d = ObservedSpace(sets, bias).distribution(scores[None])
    probs = np.exp(ObservedSpace(sets, bias).distribution(np.tile(scores, (len(sets), 1))).log_prob(sets))
    likeliest = [decisions.top(d, m)[0] for m in range(len(scores) + 1)]
    values = metric(*counts(np.concatenate([decisions.best(d, metric), sets, likeliest]), sets)) @ probs
    assert values[0] >= values[1:].max() - 1e-12 * max(1, np.abs(values).max())


@settings(max_examples=80, deadline=None)
@given(case=cases(), metric=monotone_metrics(), limits=LIMITS)
def test_no_answer_within_the_limits_is_better_than_the_best_for_a_random_metric(case, metric, limits):
    limits = limited(limits, len(case.scores))
    chosen = decisions.best(space_of(case).distribution(case.scores[None]), metric, **limits)
    answers = np.concatenate([chosen, sets_of_sizes(len(case.scores), *limits.values())])
    values = enumerated_values(case.enumerate(), answers, metric)
    assert limits["min_labels"] <= chosen.sum() <= limits["max_labels"]
    assert values[0] >= values[1:].max() - 1e-12 * max(1, np.abs(values).max())


@pytest.mark.parametrize("space", [CardinalitySpace(4, 1, 3), ObservedSpace(sets_of_sizes(4, 1, 3))])
def test_limits_hold_where_labels_are_known(space):
    d = space.distribution(np.random.default_rng(0).normal(size=(6, 4))).condition([[1, 1, np.nan, 0]] * 6)
    for decision in (*decisions.BY_NAME.values(), lambda d, **limits: decisions.top(d, 2, **limits)):
        assert decision(d, max_labels=1).sum(axis=1).tolist() == [1] * 6
        assert decision(d, min_labels=3, max_labels=3)[:, :3].all()
    np.testing.assert_array_equal(decisions.exact_match(d, min_labels=3), [[1, 1, 1, 0]] * 6)


@settings(max_examples=40, deadline=None)
@given(case=cases(), seed=st.integers(0, 1000))
def test_expected_f1_is_the_mean_of_scikit_learn_s_over_all_truths(case, seed):
    enumeration, n_labels = case.enumerate(), len(case.scores)
    answer = np.random.default_rng(seed).integers(0, 2, size=n_labels)
    options = {"average": "samples", "zero_division": 1.0}
    for name, score in (("f1", f1_score), ("jaccard", jaccard_score)):
        if n_labels == 1:
            options["average"] = "binary"
        values = [score(np.atleast_2d(t), np.atleast_2d(answer), **options) for t in enumeration.sets]
        found = decisions.expected(space_of(case).distribution(case.scores[None]), name, answer[None])[0]
        assert found == pytest.approx(enumeration.mean(values), rel=0, abs=1e-12), name


@every_metric
def test_float32_scores_decide_as_the_same_scores_in_float64(metric):
    scores = np.random.default_rng(1).normal(scale=3, size=(200, 7)).astype(np.float32)
    for space in (CardinalitySpace(7, 1, 4), ObservedSpace(sets_of_sizes(7, 1, 3))):
        narrow, wide = space.distribution(scores), space.distribution(scores.astype(np.float64))
        np.testing.assert_array_equal(decisions.BY_NAME[metric](narrow), decisions.BY_NAME[metric](wide))
        np.testing.assert_array_equal(
            decisions.expected(narrow, metric, narrow.mode()), decisions.expected(wide, metric, wide.mode())
        )


def test_of_equally_good_answers_the_smaller_set_of_lower_labels_wins():
    # With one label of four, all alike, every answer but the empty one has an expected Jaccard index of 1/4.
    d = CardinalitySpace(4, 1, 1).distribution(np.zeros((1, 4)))
    np.testing.assert_allclose(decisions.expected(d, "jaccard", [[1, 1, 1, 0]]), 0.25, atol=1e-15)
    assert decisions.jaccard(d).tolist() == [[1, 0, 0, 0]]
    assert decisions.jaccard(d, min_labels=2).tolist() == [[1, 1, 0, 0]]
    assert decisions.top(d, 2).tolist() == [[1, 1, 0, 0]]
    assert decisions.hamming(d, min_labels=1).tolist() == [[1, 0, 0, 0]]
    assert decisions.best(d, lambda tp, fp, fn: 0 * tp).tolist() == [[0, 0, 0, 0]]
    listed = ObservedSpace(np.eye(4, dtype=int)[::-1]).distribution(np.zeros((1, 4)))
    assert decisions.jaccard(listed).tolist() == [[1, 0, 0, 0]]
    assert decisions.f1(listed, max_labels=1).tolist() == [[1, 0, 0, 0]]


@pytest.mark.parametrize("scale", [1.0, 1e5])
@pytest.mark.parametrize("decision", [*decisions.BY_NAME.values(), lambda d: decisions.best(d, cost)])
def test_the_order_of_labels_and_of_rows_does_not_matter(decision, scale):
    rng = np.random.default_rng(2)
    scores, columns, rows = scale * rng.normal(size=(50, 6)), rng.permutation(6), rng.permutation(50)
    space = CardinalitySpace(6, 0, 4, rng.normal(size=7))
    permuted = decision(space.distribution(scores[rows][:, columns]))
    np.testing.assert_array_equal(permuted, decision(space.distribution(scores))[rows][:, columns])


def test_limits_bring_the_number_of_top_labels_within_them():
    d = CardinalitySpace(5, 1, 3).distribution([[5.0, 4.0, 3.0, 2.0, 1.0]])
    assert decisions.top(d, 1, min_labels=2).tolist() == [[1, 1, 0, 0, 0]]
    assert decisions.top(d, 4, max_labels=3).tolist() == [[1, 1, 1, 0, 0]]


def test_without_limits_only_exact_match_keeps_to_the_sizes_of_the_label_space():
    d = CardinalitySpace(20, 1, 1).distribution(np.zeros((1, 20)))
    sizes = {name: int(decision(d).sum()) for name, decision in decisions.BY_NAME.items()}
    assert sizes == {"exact_match": 1, "hamming": 0, "f1": 20, "jaccard": 1}
    rarely = CardinalitySpace(3, 0, 2).distribution([[-5.0, -6.0, -7.0]])
    assert decisions.f1(rarely).sum() == decisions.jaccard(rarely).sum() == 0
    assert decisions.f1(rarely, min_labels=1).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("space", [CardinalitySpace(4, 1, 2), ObservedSpace(sets_of_sizes(4, 1, 2))])
def test_limits_without_any_set_of_the_label_space_leave_the_likeliest_labels(space):
    d = space.distribution([[1.0, 3.0, 2.0, 0.0]])
    assert decisions.exact_match(d, min_labels=3).tolist() == [[1, 1, 1, 0]]
    assert decisions.exact_match(d, max_labels=0).tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("space", [CardinalitySpace(1, 0, 1), CardinalitySpace(1, 1, 1), ObservedSpace([[1], [0]])])
def test_one_label_is_decided_too(space):
    d = space.distribution([[2.0], [-2.0]])
    certain = not isinstance(space, ObservedSpace) and space.min_labels == 1
    for decision in decisions.BY_NAME.values():
        assert decision(d).tolist() == [[1], [1 if certain else 0]]
        assert decision(d, min_labels=1).tolist() == [[1], [1]]


@pytest.mark.parametrize("space", [CardinalitySpace(3, 1, 2), ObservedSpace(np.eye(3, dtype=int))])
def test_no_rows_are_no_answers(space):
    d = space.distribution(np.empty((0, 3)))
    for answers in (*(decision(d) for decision in decisions.BY_NAME.values()), decisions.best(d, cost)):
        assert answers.shape == (0, 3)
    assert decisions.expected(d, "f1", np.empty((0, 3))).shape == (0,)


def test_a_name_given_to_best_is_the_decision_of_that_name():
    d = ObservedSpace(sets_of_sizes(5, 1, 2)).distribution(np.random.default_rng(5).normal(size=(30, 5)))
    for name, decision in decisions.BY_NAME.items():
        np.testing.assert_array_equal(decisions.best(d, name, min_labels=2), decision(d, min_labels=2))


def test_inputs_stay_as_they_are():
    scores = np.random.default_rng(6).normal(size=(20, 5))
    before = scores.copy()
    for space in (CardinalitySpace(5, 1, 3), ObservedSpace(sets_of_sizes(5, 1, 2))):
        d, listed = space.distribution(scores), sets_of_sizes(5, 1, 2)
        for decision in decisions.BY_NAME.values():
            decision(d, min_labels=2, max_labels=2)[:] = 1
        np.testing.assert_array_equal(scores, before)
        if hasattr(space, "sets"):
            np.testing.assert_array_equal(space.sets, listed)


@pytest.mark.parametrize(
    ("decide", "message"),
    [
        (lambda d: decisions.f1(d, min_labels=4), r"min_labels <= 3, the number of labels; got min_labels=4"),
        (lambda d: decisions.f1(d, min_labels=2, max_labels=1), "got min_labels=2, max_labels=1"),
        (lambda d: decisions.hamming(d, max_labels=-1), "got min_labels=None, max_labels=-1"),
        (lambda d: decisions.jaccard(d, min_labels=1.5), "must be integers"),
        (lambda d: decisions.top(d, 4), "k must be an integer from 0 to the number of labels, 3; got 4"),
        (lambda d: decisions.top(d, "a"), "k must be an integer"),
        (lambda d: decisions.best(d, "f2"), "metric must be one of .* got 'f2'"),
        (lambda d: decisions.best(d, lambda tp, fp, fn: fp), r"got f\(1, 0, 0\) = 0 below f\(0, 1, 1\) = 1"),
        (lambda d: decisions.expected(d, "f1", [[1, 0]]), r"Y must have shape \(1, 3\), one set per row; got \(1, 2\)"),
        (lambda d: decisions.expected(d, "f1", [[1, 0, 2]]), "Y must contain only 0 and 1"),
        (lambda d: decisions.expected(d, lambda tp, fp, fn: tp / fn, [[1, 0, 0]]), "must be finite"),
    ],
)
@pytest.mark.parametrize("space", [CardinalitySpace(3, 0, 2), ObservedSpace(sets_of_sizes(3, 0, 2))])
def test_what_can_not_be_decided_is_one_clear_error(space, decide, message):
    with pytest.raises(ValueError, match=message):
        decide(space.distribution([[1.0, 0.0, -1.0]]))


@BOTH
@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_a_classifier_predicts_by_its_decision_within_its_answer_sizes(classifier, label_space):
    X, Y = make_multilabel()
    fitted = classifier(label_space=label_space).fit(X, Y)
    d, limits = fitted.distribution(X), {"min_labels": 2, "max_labels": 2}
    wanted = {name: decision(d, **limits) for name, decision in decisions.BY_NAME.items()}
    wanted |= {("top", 1): decisions.top(d, 1, **limits), cost: decisions.best(d, cost, **limits)}
    for decision, sets in wanted.items():
        fitted.set_params(decision=decision, answer_sizes=(2, 2))
        np.testing.assert_array_equal(fitted.predict(X), sets)


def test_each_side_of_the_answer_sizes_can_be_left_open():
    X, Y = make_multilabel()
    fitted = MLRHClassifier(C=0.01, decision="hamming", answer_sizes=(1, None)).fit(X, Y)
    assert fitted.predict(X).sum(axis=1).min() == 1
    assert fitted.set_params(answer_sizes=[None, 1]).predict(X).sum(axis=1).max() == 1
    assert fitted.set_params(answer_sizes=(None, None)).predict(X).sum(axis=1).min() == 0


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_y_is_answered_within_the_answer_sizes(form):
    X, Y = make_multilabel()
    fitted = MLRHClassifier(decision="f1", answer_sizes=(2, 2)).fit(X, FORMS[form](Y))
    answers, _ = fitted._targets.partial_indicator(fitted.predict(X))
    assert (answers.sum(axis=1) == 2).all()


@pytest.mark.parametrize("decision", [*decisions.BY_NAME, ("top", 3), ("top", 0), cost])
@pytest.mark.parametrize("load", [load_iris, load_breast_cancer])
def test_classes_get_exactly_one_class_whatever_the_decision_and_answer_sizes(load, decision):
    X, y = load(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    plain = MLRHClassifier(C=1e-3).fit(X, y)
    fitted = MLRHClassifier(C=1e-3, decision=decision, answer_sizes=(2, 2)).fit(X, y)
    np.testing.assert_array_equal(fitted.predict(X), plain.predict(X))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"decision": "f2"}, "'decision' parameter"),
        ({"decision": ("top",)}, r"decision must be one of 'exact_match', .* got \('top',\)"),
        ({"decision": ("best", 2)}, "decision must be one of"),
        ({"decision": ("top", -1)}, "decision must be one of"),
        ({"decision": ("top", 5)}, "from 0 to the number of labels, 4; got 5"),
        ({"decision": lambda tp, fp, fn: fn}, "must never fall"),
        ({"answer_sizes": (1, 2, 3)}, "answer_sizes must be None or a pair"),
        ({"answer_sizes": (0.5, None)}, r"each an integer or None; got \(0.5, None\)"),
        ({"answer_sizes": (5, None)}, "min_labels <= 4, the number of labels"),
        ({"answer_sizes": (3, 2)}, "got min_labels=3, max_labels=2"),
        ({"answer_sizes": 2}, "'answer_sizes' parameter"),
    ],
)
@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_a_decision_that_can_not_be_taken_is_refused_before_the_fit(parameters, message, label_space):
    X, Y = make_multilabel()
    classifier = MLRHClassifier(label_space=label_space, **parameters)
    with pytest.raises(ValueError, match=message):
        classifier.fit(X, Y)
    assert not hasattr(classifier, "coef_")


def test_rows_drawn_from_the_distribution_score_what_was_expected():
    rng = np.random.default_rng(7)
    space = CardinalitySpace(6, 0, 4)
    d = space.distribution(np.repeat(rng.normal(size=(20, 6)), 2000, axis=0))
    truth = d.sample(1, random_state=0)[:, 0]
    options = {"average": "samples", "zero_division": 1.0}
    answers = {name: decision(d) for name, decision in decisions.BY_NAME.items()}
    found = {
        "exact_match": (truth == answers["exact_match"]).all(axis=1).mean(),
        "hamming": 1 - hamming_loss(truth, answers["hamming"]),
        "f1": f1_score(truth, answers["f1"], **options),
        "jaccard": jaccard_score(truth, answers["jaccard"], **options),
    }
    for name, value in found.items():
        assert value == pytest.approx(decisions.expected(d, name, answers[name]).mean(), abs=0.01), name


def test_each_decision_of_the_example_wins_on_its_own_metric():
    table = runpy.run_path(str(EXAMPLE))["main"]()
    for name, row in table.items():
        assert row[name] == max(other[name] for other in table.values()), name
