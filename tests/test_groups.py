"""GroupSpace: against one softmax per group, decisions, names, errors and files."""

import numpy as np
import pandas as pd
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from mlrh import (
    CalibratedSets,
    KernelMLRHClassifier,
    MLRHClassifier,
    MLRHClassifierCV,
    TunedThresholds,
    decisions,
    persistence,
)
from mlrh.spaces import CardinalitySpace, GroupSpace

NAN = np.nan
some = settings(deadline=None, max_examples=80)


def rows_of_two_choices(n=200, seed=0):
    """X, and Y with exactly one of labels 0, 2, 4 and exactly one of labels 1, 3."""
    random = np.random.RandomState(seed)
    X = random.normal(size=(n, 3))
    first, second = (np.argmax(X @ random.normal(size=(3, k)) + random.gumbel(size=(n, k)), axis=1) for k in (3, 2))
    Y = np.zeros((n, 5), np.int8)
    Y[np.arange(n), np.array([0, 2, 4])[first]] = 1
    Y[np.arange(n), np.array([1, 3])[second]] = 1
    return X, Y, first, second


CHOICES = GroupSpace([([0, 2, 4], 1, 1), ([1, 3], 1, 1)])


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "mm"])
def test_groups_of_exactly_one_are_one_softmax_regression_each(solver):
    X, Y, first, second = rows_of_two_choices()
    model = MLRHClassifier(label_space=CHOICES, solver=solver, tol=1e-12, max_iter=5000).fit(X, Y)
    softmax = LogisticRegression(tol=1e-10, max_iter=5000).fit(X, first)
    np.testing.assert_allclose(model.coef_[[0, 2, 4]], softmax.coef_, atol=1e-5)
    np.testing.assert_allclose(model.intercept_[[0, 2, 4]], softmax.intercept_, atol=1e-5)
    np.testing.assert_allclose(model.predict_proba(X)[:, [0, 2, 4]], softmax.predict_proba(X), atol=1e-5)
    # scikit-learn fits two classes by one column of twice the size, under a penalty of its own: the softmax of two
    # columns, w and -w, has half of the penalty for the same probabilities.
    binary = LogisticRegression(C=2.0, tol=1e-10, max_iter=5000).fit(X, second)
    np.testing.assert_allclose(model.predict_proba(X)[:, 3], binary.predict_proba(X)[:, 1], atol=1e-5)
    np.testing.assert_allclose(model.coef_[[1, 3]].sum(axis=0), 0.0, atol=1e-12)


def test_one_group_of_all_labels_is_the_cardinality_space():
    X, Y, *_ = rows_of_two_choices()
    Y[:20, :2] = 1
    grouped = MLRHClassifier(label_space=GroupSpace([(range(5), 2, 4)]), tol=1e-11).fit(X, Y)
    whole = MLRHClassifier(label_space=CardinalitySpace(5, 2, 4, learn_bias=True), tol=1e-11).fit(X, Y)
    np.testing.assert_allclose(grouped.coef_, whole.coef_, atol=1e-8)
    np.testing.assert_allclose(grouped.bias_, whole.size_bias_[2:5], atol=1e-8)


def test_labels_in_no_group_are_one_logistic_regression_each():
    X, Y, first, _ = rows_of_two_choices()
    Y[:, 1] = first == 0
    Y[:60, 1] = 1 - Y[:60, 1]
    model = MLRHClassifier(label_space=GroupSpace([([0, 2, 4], 1, 1)]), tol=1e-11).fit(X, Y)
    own = LogisticRegression(tol=1e-10).fit(X, Y[:, 1])
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], own.predict_proba(X)[:, 1], atol=1e-6)


@given(reference.grouped_sets(reference.MODERATE), st.integers(0, 3), st.integers(0, 3))
@some
def test_the_most_probable_set_within_limits_on_the_size_is_that_of_the_enumeration(case, low, more):
    groups, bias, scores, sets, set_bias = case
    d, expected = GroupSpace(groups, len(scores), bias=bias).distribution(scores[None]), (scores, sets, set_bias)
    sizes, log_probs = sets.sum(axis=1), reference.enumerate_sets(*expected).log_probs()
    inside = (sizes >= low) & (sizes <= low + more)
    (possible,), modes = d.modes_within(low, low + more)
    assert possible == inside.any()
    if possible:
        assert d.log_prob(modes)[0] == pytest.approx(log_probs[inside].max(), abs=1e-11)


@pytest.mark.parametrize("metric", ["f1", "jaccard", "own"])
def test_decisions_are_the_best_of_all_sets(metric):
    # 7 labels: all 128 answers are compared.
    space = GroupSpace([([0, 1, 2], 1, 2), ([3, 4], 0, 1)], 7, bias=[0.3, -0.5, 1.0, -1.0])
    d = space.distribution(np.random.default_rng(0).normal(scale=1.5, size=(20, 7)))
    function = (lambda tp, fp, fn: tp - 0.4 * fp - 0.1 * fn**2) if metric == "own" else metric
    answers = decisions.best(d, function)
    every = [d.expected(function, np.tile(y, (20, 1))) for y in reference.sets_of_sizes(7, 0, 7)]
    np.testing.assert_allclose(d.expected(function, answers), np.max(every, axis=0), rtol=1e-12)


def test_many_groups_are_answered_without_a_list_of_sets():
    groups = [(range(5 * g, 5 * g + 5), g % 2, 1 + g % 3) for g in range(6)]
    scores = np.random.default_rng(1).normal(size=(4, 40))
    space = GroupSpace(groups, 40)
    d = space.distribution(scores)
    drawn = d.sample(20_000, random_state=0)
    np.testing.assert_allclose(drawn.mean(axis=1), d.marginals(), atol=0.02)
    shares = np.array([np.bincount(row, minlength=41) for row in drawn.sum(axis=2)]) / 20_000
    np.testing.assert_allclose(d.cardinality_pmf(), shares, atol=0.02)
    for name in ("f1", "jaccard"):
        decisions.check(name, (2, 6), space)  # decides on no rows, as a fit does first
        answers = decisions.best(d, name)
        tp = (drawn * answers[:, None]).sum(axis=2)
        union, both = ((drawn + answers[:, None]) > 0).sum(axis=2), drawn.sum(axis=2) + answers.sum(axis=1)[:, None]
        mean = (2 * tp / both if name == "f1" else tp / union).mean(axis=1)
        np.testing.assert_allclose(d.expected(name, answers), mean, atol=0.02)
        assert (d.expected(name, answers) >= d.expected(name, d.mode()) - 1e-12).all()


def frame(Y):
    return pd.DataFrame(Y, columns=["red", "small", "blue", "large", "green"])


NAMED = GroupSpace([(["red", "blue", "green"], 1, 1), (["small", "large"], 1, 1)])


def test_names_are_those_of_the_labels_of_y():
    X, Y, *_ = rows_of_two_choices()
    named = MLRHClassifier(label_space=NAMED).fit(X, frame(Y))
    by_index = MLRHClassifier(label_space=CHOICES).fit(X, Y)
    np.testing.assert_array_equal(named.coef_, by_index.coef_)
    assert named.label_space_.groups == [([0, 2, 4], 1, 1), ([1, 3], 1, 1)]


def test_a_space_given_by_name_says_when_it_can_be_asked():
    with pytest.raises(ValueError, match="names its labels, and so can be asked only once"):
        NAMED.distribution(np.zeros((1, 5)))
    X, Y, *_ = rows_of_two_choices()
    with pytest.raises(ValueError, match="names the label 'red', which y doesn't have; its labels have no names"):
        MLRHClassifier(label_space=NAMED).fit(X, Y)
    with pytest.raises(ValueError, match="the label 'green', which y doesn't have; its labels are 'red', 'small'"):
        MLRHClassifier(label_space=NAMED).fit(X, frame(Y).rename(columns={"green": "lime"}))


def test_a_row_that_breaks_a_group_is_named():
    X, Y, *_ = rows_of_two_choices()
    Y[7] = [1, 1, 1, 0, 0]
    with pytest.raises(
        ValueError, match=r"Row 7 of y has 2 labels of group 0 \('red', 'blue', 'green'\), which takes 1"
    ):
        MLRHClassifier(label_space=NAMED).fit(X, frame(Y))
    with pytest.raises(ValueError, match="The label space has 6 labels and y has 5"):
        MLRHClassifier(label_space=GroupSpace([([0, 1], 0, 1)], 6)).fit(X, Y)


@pytest.mark.parametrize(
    ("groups", "n_labels", "message"),
    [
        ([], 3, "at least one group; got none"),
        ([([0, 1], 1)], None, r"must be \(labels, least, most\); group 0"),
        ([([], 0, 0)], 3, "must be label indices or label names, all of one kind"),
        ([([0, "b"], 0, 1)], None, "all of one kind; got"),
        ([("ab", 0, 1)], None, "all of one kind; got"),
        ([([0], 0, 1), (["b"], 0, 1)], None, "indices or by label names; got both"),
        ([([0, 1], 1, 3)], None, "group 0 has least=1, most=3"),
        ([([0, 1], 2, 1)], None, "group 0 has least=2, most=1"),
        ([([0, 1], True, 1)], None, "group 0 has least=True"),
        ([([0, 1], 0, 1), ([1, 2], 0, 1)], None, "label 1 is in groups 0 and 1"),
        ([([1, 1], 0, 1)], None, "label 1 is twice in group 0"),
        ([([0, 5], 0, 1)], 4, r"lie in 0..n_labels - 1; got 0 to 5 and n_labels=4"),
        ([([-1, 0], 0, 1)], None, "got -1 to 0"),
        ([(["a", "b"], 0, 1)], 4, "n_labels belongs to groups of label indices"),
    ],
)
def test_what_is_no_group_is_an_error_that_says_why(groups, n_labels, message):
    with pytest.raises(ValueError, match=message):
        GroupSpace(groups, n_labels)


def test_unknown_labels_of_y_are_summed_over():
    X, Y, *_ = rows_of_two_choices()
    hidden = np.where(np.random.RandomState(2).random_sample(Y.shape) < 0.2, NAN, Y)
    model = MLRHClassifier(label_space=CHOICES).fit(X, hidden)
    log_probs = model.distribution(X).log_prob_of_known(hidden)
    # Each group on its own: the same likelihood by two cardinality spaces.
    scores = model.decision_function(X)
    parts = [CardinalitySpace(len(own), 1, 1).distribution(scores[:, own]) for own in ([0, 2, 4], [1, 3])]
    known = [hidden[:, own] for own in ([0, 2, 4], [1, 3])]
    sums = sum(part.log_prob_of_known(own) for part, own in zip(parts, known, strict=True))
    np.testing.assert_allclose(log_probs, sums, atol=1e-10)
    # If red is known to be the colour, the other colours are known to be absent.
    given_red = model.distribution(X[:1]).condition([[1, NAN, NAN, NAN, NAN]])
    np.testing.assert_array_equal(given_red.marginals()[0, [0, 2, 4]], [1, 0, 0])


def test_every_estimator_takes_groups_and_files_keep_them(tmp_path):
    X, Y, *_ = rows_of_two_choices(120)
    models = [
        MLRHClassifier(label_space=NAMED),
        MLRHClassifier(label_space=NAMED, l1_ratio=0.5),
        KernelMLRHClassifier(label_space=NAMED),
        MLRHClassifierCV(label_space=NAMED, Cs=[0.1, 1.0], cv=3),
    ]
    for number, model in enumerate(models):
        fitted = model.fit(X, frame(Y))
        answers = fitted.predict(X).to_numpy()
        assert (answers[:, [0, 2, 4]].sum(axis=1) == 1).all() and (answers[:, [1, 3]].sum(axis=1) == 1).all()
        persistence.save(fitted, tmp_path / f"{number}.mlrh")
        loaded = persistence.load(tmp_path / f"{number}.mlrh")
        np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
        assert loaded.label_space.groups == NAMED.groups
    calibrated = CalibratedSets(MLRHClassifier(label_space=CHOICES)).fit(X, Y)
    assert 0.01 < calibrated.temperature_ < 1e4
    tuned = TunedThresholds(MLRHClassifier(label_space=CHOICES)).fit(X, Y)
    assert tuned.best_score_ >= tuned.default_score_


def test_a_file_can_not_bring_a_space_that_its_constructor_would_refuse():
    good = GroupSpace([([0, 1], 1, 1)], 4).to_dict()
    for name, bad in [
        ("group_of", np.array([0.0, 0, -1, -1])),
        ("group_of", np.zeros((2, 2), int)),
        ("limits", np.array([1, 1])),
        ("limits", np.array([[1, 9]])),
        ("limits", np.array([[1, 1], [1, 1]])),
        ("names", ["a"]),
        ("bias", np.array([np.nan])),
        ("bias", np.zeros(3)),
    ]:
        with pytest.raises(ValueError, match=r"\w"):
            GroupSpace.from_dict({**good, name: bad})


def test_float32_scores_have_float32_answers_near_those_of_float64():
    scores = np.random.default_rng(0).normal(size=(6, 5))
    d, single = CHOICES.distribution(scores), CHOICES.distribution(scores.astype(np.float32))
    for answer in ("log_partition", "marginals", "cardinality_pmf", "entropy", "joint_marginals"):
        assert getattr(single, answer)().dtype == np.float32
        np.testing.assert_allclose(getattr(single, answer)(), getattr(d, answer)(), atol=2e-6)
    assert single.top_sets(3)[1].dtype == single.log_prob(d.mode()).dtype == np.float32


def test_what_no_row_shows_of_a_group_is_told():
    X, Y, *_ = rows_of_two_choices()
    with pytest.warns(UserWarning, match="in group 0, the only size of the training rows: 1, at the limit"):
        MLRHClassifier(label_space=GroupSpace([([0, 2, 4], 1, 2), ([1, 3], 1, 1)])).fit(X, Y)
