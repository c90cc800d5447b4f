"""HierarchySpace: its forms, its errors, fits, and answers that always obey it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from mlrh import (
    CalibratedSets,
    KernelMLRHClassifier,
    MLRHClassifier,
    MLRHClassifierCV,
    TunedThresholds,
    data,
    decisions,
    metrics,
    persistence,
)
from mlrh.spaces import CardinalitySpace, HierarchySpace

NAN = np.nan
some = settings(deadline=None, max_examples=80)
PARENTS = np.array([3, 3, -1, -1, 1, 1, 2])  # 4 and 5 below 1; 0 and 1 below 3; 6 below 2


def obey(sets, parents):
    children = np.flatnonzero(np.asarray(parents) >= 0)
    return (sets[:, children] <= sets[:, np.asarray(parents)[children]]).all(axis=1)


def rows_of_hierarchy(n=150, parents=PARENTS, seed=0):
    X = np.random.RandomState(seed).normal(size=(n, 3))
    scores = X @ np.random.RandomState(seed + 1).normal(scale=2, size=(3, len(parents)))
    return X, HierarchySpace(parents).distribution(scores).sample(1, random_state=seed)[:, 0]


@given(reference.forest_sets(reference.MODERATE), st.integers(0, 3), st.integers(0, 3))
@some
def test_the_most_probable_set_within_limits_on_the_size_is_that_of_the_enumeration(case, low, more):
    parents, limits, scores, sets = case
    d = HierarchySpace(parents, *limits).distribution(scores[None])
    sizes, log_probs = sets.sum(axis=1), reference.enumerate_sets(scores, sets).log_probs()
    inside = (sizes >= low) & (sizes <= low + more)
    (possible,), modes = d.modes_within(low, low + more)
    assert possible == inside.any()
    if possible:
        assert d.log_prob(modes)[0] == pytest.approx(log_probs[inside].max(), abs=1e-11)


@pytest.mark.parametrize("limits", [(), (1,), (1, 2)])
def test_samples_are_as_frequent_as_probable(limits):
    d = HierarchySpace(PARENTS, *limits).distribution(np.random.default_rng(0).normal(scale=1.5, size=(3, 7)))
    drawn = d.sample(20_000, random_state=0)
    np.testing.assert_allclose(drawn.mean(axis=1), d.marginals(), atol=0.02)
    pairs = np.einsum("rnj,rnk->rjk", drawn.astype(float), drawn.astype(float)) / 20_000
    np.testing.assert_allclose(pairs, d.joint_marginals(), atol=0.02)


@pytest.mark.parametrize("metric", ["f1", "jaccard", "own"])
def test_decisions_are_the_best_of_all_sets_and_obey_the_hierarchy(metric):
    d = HierarchySpace(PARENTS).distribution(np.random.default_rng(0).normal(scale=1.5, size=(20, 7)))
    function = (lambda tp, fp, fn: tp - 0.4 * fp - 0.1 * fn**2) if metric == "own" else metric
    answers = decisions.best(d, function)
    every = [d.expected(function, np.tile(y, (20, 1))) for y in reference.sets_of_sizes(7, 0, 7)]
    np.testing.assert_allclose(d.expected(function, answers), np.max(every, axis=0), rtol=1e-12)
    assert obey(answers, PARENTS).all()


@pytest.mark.parametrize("limits", [(), (1,), (1, 3)])
@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_every_decision_obeys_the_hierarchy_beyond_what_can_be_listed(limits, scale):
    random = np.random.default_rng(1)
    parents = np.array([-1, *[random.integers(-1, k) for k in range(1, 24)]])
    space = HierarchySpace(parents, *limits)
    d = space.distribution(scale * random.normal(size=(4, 24)))
    for decision in ("exact_match", "hamming", "f1", "jaccard", ("top", 5), lambda tp, fp, fn: tp - fp):
        for answer_sizes in (None, (2, 6)):
            decisions.check(decision, answer_sizes, space)  # decides on no rows, as a fit does first
            answers = decisions.resolve(decision, answer_sizes)(d)
            assert obey(answers, parents).all()
            assert answer_sizes is None or ((answers.sum(axis=1) >= 2) & (answers.sum(axis=1) <= 6)).all()


def test_expected_metrics_of_many_labels_are_those_of_samples():
    random = np.random.default_rng(2)
    parents = np.array([-1, *[random.integers(-1, k) for k in range(1, 30)]])
    d = HierarchySpace(parents, 1, 6).distribution(random.normal(size=(2, 30)))
    drawn, answers = d.sample(20_000, random_state=0), decisions.best(d, "jaccard")
    tp, union = (drawn & answers[:, None]).sum(axis=2), (drawn | answers[:, None]).sum(axis=2)
    np.testing.assert_allclose(d.expected("jaccard", answers), (tp / union).mean(axis=1), atol=0.01)
    shares = np.array([np.bincount(row, minlength=31) for row in drawn.sum(axis=2)]) / 20_000
    np.testing.assert_allclose(d.cardinality_pmf(), shares, atol=0.02)


def test_a_forest_of_roots_alone_is_one_logistic_regression_per_label():
    scores = np.random.default_rng(0).normal(size=(5, 4))
    d = HierarchySpace([-1, -1, -1, -1]).distribution(scores)
    np.testing.assert_allclose(d.marginals(), expit(scores), rtol=1e-14)
    one = HierarchySpace([-1, -1, -1, -1], 1, 1).distribution(scores)
    np.testing.assert_allclose(one.marginals(), CardinalitySpace(4, 1, 1).distribution(scores).marginals(), rtol=1e-13)


def test_one_label_and_a_long_chain_are_right():
    single = HierarchySpace([-1])
    assert single.distribution([[0.3]]).marginals()[0, 0] == pytest.approx(expit(0.3), rel=1e-15)
    assert HierarchySpace([-1], 1).distribution([[-1e5]]).marginals().tolist() == [[1.0]]
    # In a chain the sets are the beginnings of it: a softmax over their cumulative scores.
    scores = np.random.default_rng(0).normal(size=(3, 3000))
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(scores, axis=1)], axis=1)
    weights = np.exp(sums - sums.max(axis=1, keepdims=True))
    expected = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1][:, 1:] / weights.sum(axis=1, keepdims=True)
    chain = HierarchySpace(np.arange(-1, 2999)).distribution(scores)
    np.testing.assert_allclose(chain.marginals(), expected, rtol=1e-9, atol=1e-14)
    np.testing.assert_array_equal(chain.mode().sum(axis=1), np.argmax(sums, axis=1))


def test_many_children_of_one_parent_do_not_overflow():
    scores = np.full((1, 5001), 2.0)
    d = HierarchySpace([-1, *[0] * 5000]).distribution(scores)
    assert d.log_partition()[0] == pytest.approx(2 + 5000 * np.log1p(np.exp(2.0)), rel=1e-13)
    np.testing.assert_allclose(d.marginals()[0, 1:], expit(2.0), rtol=1e-12)


def test_a_fit_maximises_the_likelihood_of_the_sets():
    X, Y = rows_of_hierarchy()
    parents = PARENTS
    sets = reference.sets_of_sizes(7, 0, 7)
    sets = sets[obey(sets, parents)].astype(float)

    def objective(flat):
        coef, intercept = flat[:21].reshape(3, 7), flat[21:]
        log_weights = (X @ coef + intercept) @ sets.T
        highest = log_weights.max(axis=1)
        log_partition = highest + np.log(np.exp(log_weights - highest[:, None]).sum(axis=1))
        loss = (log_partition - ((X @ coef + intercept) * Y).sum(axis=1)).sum() + 0.5 * (coef**2).sum()
        return loss

    model = MLRHClassifier(label_space=HierarchySpace(parents), tol=1e-11).fit(X, Y)
    reached = np.concatenate([model.coef_.T.ravel(), model.intercept_])
    best = minimize(objective, reached, method="BFGS")
    assert objective(reached) <= best.fun + 1e-6
    assert model.objective_ == pytest.approx(objective(reached), rel=1e-9)


@pytest.mark.parametrize("limits", [(), (1, 2)])
@pytest.mark.parametrize("solver", ["newton-cg", "mm"])
def test_every_solver_reaches_the_same_optimum(solver, limits):
    X, Y = rows_of_hierarchy()
    inside = HierarchySpace(PARENTS, *limits).fits(Y)
    X, Y = X[inside], Y[inside]
    options = {"label_space": HierarchySpace(PARENTS, *limits), "max_iter": 5000}
    reference_fit = MLRHClassifier(**options, tol=1e-10).fit(X, Y)
    fitted = MLRHClassifier(**options, solver=solver, tol=1e-8).fit(X, Y)
    assert fitted.objective_ == pytest.approx(reference_fit.objective_, rel=1e-6)


def test_the_forms_of_a_hierarchy_are_the_same_space():
    names = ["pug", "dog", "plant", "animal", "cat", "fish", "tree"]
    by_index = HierarchySpace([1, 3, -1, -1, 3, 3, 2])
    pairs = {"pug": "dog", "dog": "animal", "cat": "animal", "fish": "animal", "tree": "plant"}
    Y, classes = np.zeros((1, 7), np.int8), np.array(names)
    for form in (pairs, list(pairs.items())):
        resolved = HierarchySpace(form).for_targets(Y, classes=classes)
        np.testing.assert_array_equal(resolved.parents, by_index.parents)
    numbers = {names.index(child): names.index(parent) for child, parent in pairs.items()}
    np.testing.assert_array_equal(HierarchySpace(numbers).for_targets(Y, classes=classes).parents, by_index.parents)
    paths = ["a/d/pug", "a/d", "p", "a", "a/cat", "a/fish", "p/tree"]
    np.testing.assert_array_equal(HierarchySpace.from_paths(paths).parents, by_index.parents)


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([1, 2, 0], "must not be its own ancestor; got the cycle 0 -> 1 -> 2 -> 0"),
        ([0], "got the cycle 0 -> 0"),
        ({"a": "b", "b": "a"}, "got the cycle 'a' -> 'b' -> 'a'"),
        ([("dog", "animal"), ("dog", "pet")], "one parent at most; label 'dog' has 'animal' and 'pet'"),
        ([-1, 5], "must be an index below 2, or -1; got 5 for label 1"),
        ([-2, 0], "got -2 for label 0"),
        ([0.5, 1.5], "must be an index per label, -1 for a root, or pairs"),
        ([], "at least one pair"),
        ({"a": 3}, "must be label indices or label names, all of one kind"),
        ([(1, -1)], "Labels must be indices from 0; got -1"),
        ([(1, 2, 3)], "at least one pair"),
        ([("a", "b"), ("c",)], "at least one pair"),
        (3, "must be an index per label"),
        ("abc", "must be an index per label"),
        (np.array([[1, 0]]), "must be an index per label"),
    ],
)
def test_what_is_no_forest_is_an_error_that_says_why(parents, message):
    with pytest.raises(ValueError, match=message):
        HierarchySpace(parents)


def test_limits_that_no_set_can_meet_are_errors():
    with pytest.raises(ValueError, match="at most the number of leaves of the hierarchy, 4; got 5"):
        HierarchySpace(PARENTS, 5)
    with pytest.raises(ValueError, match="min_leaves must be at most max_leaves; got 3 and 2"):
        HierarchySpace(PARENTS, 3, 2)
    with pytest.raises(ValueError, match=r"max_leaves must be an integer from 0 on, or None; got 1\.5"):
        HierarchySpace(PARENTS, max_leaves=1.5)
    assert HierarchySpace(PARENTS, max_leaves=0).sizes() == (0, 3)


def frame(Y):
    return pd.DataFrame(Y, columns=["fish", "dog", "plant", "animal", "pug", "poodle", "tree"])


NAMED = {"fish": "animal", "dog": "animal", "pug": "dog", "poodle": "dog", "tree": "plant"}


def test_a_row_that_breaks_the_hierarchy_is_named_with_child_and_parent():
    X, Y = rows_of_hierarchy()
    Y[9] = [0, 0, 0, 1, 1, 0, 0]
    with pytest.raises(ValueError, match=r"Row 9 of y has label 'pug' .* without its parent 'dog'; 1 of 150 rows"):
        MLRHClassifier(label_space=HierarchySpace(NAMED)).fit(X, frame(Y))
    # What is known contradicts the hierarchy also across a parent that is not known.
    partly = np.array(Y, float)
    partly[9] = [NAN, NAN, NAN, 0, 1, NAN, NAN]
    with pytest.raises(ValueError, match=r"Row 9 of y has label 'dog' \(or one below it\) without its parent 'animal'"):
        MLRHClassifier(label_space=HierarchySpace(NAMED)).fit(X, frame(partly))


def test_complete_adds_the_ancestors_in_a_fit():
    X, Y = rows_of_hierarchy()
    leaves_alone = Y * ~np.isin(np.arange(7), PARENTS)
    completing = HierarchySpace(PARENTS, complete=True)
    whole = HierarchySpace(PARENTS).completed(leaves_alone)
    np.testing.assert_array_equal(whole, leaves_alone)  # without complete=True rows stay as they are
    whole = completing.completed(leaves_alone)
    assert obey(whole, PARENTS).all() and (whole >= leaves_alone).all()
    fitted = MLRHClassifier(label_space=completing).fit(X, leaves_alone)
    by_hand = MLRHClassifier(label_space=HierarchySpace(PARENTS)).fit(X, whole)
    np.testing.assert_array_equal(fitted.coef_, by_hand.coef_)


def test_rows_outside_the_limits_on_leaves_are_named():
    X, Y = rows_of_hierarchy()
    Y = np.where(HierarchySpace(PARENTS, max_leaves=1).fits(Y)[:, None], Y, 0)
    Y[3] = 1
    with pytest.raises(ValueError, match=r"row 3 agrees with none"):
        MLRHClassifier(label_space=HierarchySpace(PARENTS, max_leaves=1)).fit(X, Y)


def test_unknown_labels_of_y_are_summed_over():
    X, Y = rows_of_hierarchy()
    hidden = np.where(np.random.RandomState(2).random_sample(Y.shape) < 0.2, NAN, Y)
    model = MLRHClassifier(label_space=HierarchySpace(PARENTS)).fit(X, hidden)
    log_probs = model.distribution(X).log_prob_of_known(hidden)
    sets = reference.sets_of_sizes(7, 0, 7)
    sets = sets[obey(sets, PARENTS)]
    every = np.exp(model.decision_function(X) @ sets.T)
    agree = (np.isnan(hidden)[:, None] | (hidden[:, None] == sets)).all(axis=2)
    np.testing.assert_allclose(np.exp(log_probs), (every * agree).sum(axis=1) / every.sum(axis=1), rtol=1e-9)


@pytest.mark.parametrize("limits", [(), (0, 2)])
def test_thresholds_are_raised_to_the_parents_so_that_answers_obey(limits):
    X, Y = rows_of_hierarchy(300)
    space = HierarchySpace(PARENTS, *limits)
    X, Y = X[space.fits(Y)], Y[space.fits(Y)]
    for metric in ("f1_macro", "jaccard"):
        tuned = TunedThresholds(MLRHClassifier(label_space=space), metric=metric, cv=3).fit(X, Y)
        children = np.flatnonzero(PARENTS >= 0)
        assert (tuned.thresholds_[children] >= tuned.thresholds_[PARENTS[children]]).all()
        assert obey(tuned.predict(X), PARENTS).all()
        assert tuned.best_score_ >= tuned.default_score_
    thresholds = space.distribution(np.zeros((1, 7))).raised_thresholds([0.1, 0.2, 0.3, 0.4, 0.1, 0.5, 0.6])
    assert thresholds.tolist() == [0.4, 0.4, 0.3, 0.4, 0.4, 0.5, 0.6]


def test_every_estimator_takes_a_hierarchy_and_files_keep_it(tmp_path):
    X, Y = rows_of_hierarchy(100)
    space = HierarchySpace(NAMED, max_leaves=3)
    inside = HierarchySpace(PARENTS, max_leaves=3).fits(Y)
    X, Y = X[inside], frame(Y[inside])
    models = [
        MLRHClassifier(label_space=space),
        MLRHClassifier(label_space=space, l1_ratio=0.5),
        KernelMLRHClassifier(label_space=space),
        MLRHClassifierCV(label_space=space, Cs=[0.1, 1.0], cv=2),
    ]
    for number, model in enumerate(models):
        fitted = model.fit(X, Y)
        assert obey(fitted.predict(X).to_numpy(), PARENTS).all()
        persistence.save(fitted, tmp_path / f"{number}.mlrh")
        loaded = persistence.load(tmp_path / f"{number}.mlrh")
        np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    by_index = HierarchySpace(PARENTS, max_leaves=3)
    calibrated = CalibratedSets(MLRHClassifier(label_space=by_index), cv=2).fit(X, Y)
    assert 0.01 < calibrated.temperature_ < 1e4


def test_a_file_can_not_bring_a_space_that_its_constructor_would_refuse():
    good = HierarchySpace(PARENTS, 1, 2).to_dict()
    for name, bad in [
        ("parents", np.array([0.0, 1.0])),
        ("parents", np.array([1, 0])),
        ("parents", np.array([[0, 1]])),
        ("parents", np.zeros(0, int)),
        ("names", ["a"]),
        ("names", "abcdefg"),
        ("min_leaves", 9),
        ("max_leaves", -1),
        ("complete", "yes"),
        ("is_open", 1),
        ("paths", "abcdefg"),
        ("paths", ["a"]),
        ("paths", ["a"] * 7),
        ("paths", [1, 2, 3, 4, 5, 6, 7]),
    ]:
        with pytest.raises(ValueError, match=r"\w"):
            HierarchySpace.from_dict({**good, name: bad})
    for space in (HierarchySpace(NAMED, 1), HierarchySpace({1: 0}), HierarchySpace(PARENTS, complete=True)):
        again = HierarchySpace.from_dict(space.to_dict())
        np.testing.assert_array_equal(again.parents, space.parents)
        assert (again.min_leaves, again.complete, repr(again)) == (space.min_leaves, space.complete, repr(space))


def test_a_loaded_hierarchy_of_paths_still_goes_by_the_names_of_labels(tmp_path):
    paths = ["animal", "animal/dog", "animal/cat", "plant"]
    X = np.random.default_rng(0).normal(size=(40, 3))
    Y = pd.DataFrame(np.tile([[1, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 1]], (14, 1))[:40], columns=paths)
    model = MLRHClassifier(label_space=HierarchySpace.from_paths(paths)).fit(X, Y)
    persistence.save(model, tmp_path / "model.mlrh")
    turned = Y[paths[::-1]]
    for own in (model, persistence.load(tmp_path / "model.mlrh")):
        assert own.fit(X, turned).label_space_.parents.tolist() == [-1, 3, 3, -1]


@pytest.mark.parametrize("limits", [(), (1, 2)])
def test_float32_scores_have_float32_answers_near_those_of_float64(limits):
    scores, space = np.random.default_rng(0).normal(size=(6, 7)), HierarchySpace(PARENTS, *limits)
    d, single = space.distribution(scores), space.distribution(scores.astype(np.float32))
    for answer in ("log_partition", "marginals", "cardinality_pmf", "entropy", "joint_marginals"):
        assert getattr(single, answer)().dtype == np.float32
        np.testing.assert_allclose(getattr(single, answer)(), getattr(d, answer)(), atol=2e-6)
    assert single.log_prob(d.mode()).dtype == np.float32


def test_threads_change_nothing():
    random = np.random.default_rng(0)
    parents = np.array([-1, *[random.integers(-1, k) for k in range(1, 2000)]])
    scores = random.normal(size=(200, 2000))
    one, two = (HierarchySpace(parents).with_jobs(n).distribution(scores).marginals() for n in (1, 2))
    np.testing.assert_array_equal(one, two)


NESTED = """<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="animal"><label name="dog"><label name="pug"/></label><label name="cat"/></label><label name="plant"/>
</labels>"""
ARFF = """@relation pets
@attribute x numeric
@attribute pug {0,1}
@attribute plant {0,1}
@attribute dog {0,1}
@attribute animal {0,1}
@attribute cat {0,1}
@data
0.5,1,0,1,1,0
1.5,0,1,0,0,0
"""


def test_nested_labels_of_a_mulan_file_are_a_hierarchy(tmp_path):
    (tmp_path / "pets.arff").write_text(ARFF)
    (tmp_path / "pets.xml").write_text(NESTED)
    pets = data.read(tmp_path / "pets.arff")
    assert pets.label_names == ("pug", "plant", "dog", "animal", "cat")
    assert pets.parents.tolist() == [2, -1, 3, -1, 3]
    assert HierarchySpace(pets.parents).fits(pets.Y).all()
    assert data.read(tmp_path / "pets.arff", tmp_path / "pets.xml").parents.tolist() == [2, -1, 3, -1, 3]
    assert data.read(tmp_path / "pets.arff", ["dog", "cat"]).parents.tolist() == [-1, -1]
    data.write(pets, tmp_path / "again.arff")
    again = data.read(tmp_path / "again.arff")
    assert again.parents.tolist() == pets.parents.tolist() and again.parent_names == pets.parent_names
    table = tmp_path / "pets.csv"
    data.write(pets, table)
    assert data.read(table, tmp_path / "pets.xml").parents.tolist() == [2, -1, 3, -1, 3]


def test_a_label_inside_two_others_of_a_mulan_file_is_an_error(tmp_path):
    (tmp_path / "pets.arff").write_text(ARFF)
    (tmp_path / "pets.xml").write_text(
        NESTED.replace('<label name="plant"/>', '<label name="plant"><label name="pug"/></label>')
    )
    with pytest.raises(data.DataError, match="label 'pug' has two parents, 'dog' and 'plant'; keep one"):
        data.read(tmp_path / "pets.arff")
    pets = replace(data.load_digit_scenes(5), parent_names={"digit 0": "digit 1", "digit 1": "digit 0"})
    with pytest.raises(data.DataError, match="must be a forest; parent_names holds a cycle"):
        data.write(pets, tmp_path / "cycle.arff")


def test_hierarchical_measures_are_those_of_sets_with_ancestors():
    # Labels: animal, dog, cat, plant. Truth {dog}, {plant}; answers {cat}, {plant, animal}.
    Y, predicted, parents = [[0, 1, 0, 0], [0, 0, 0, 1]], [[0, 0, 1, 0], [1, 0, 0, 1]], [-1, 0, 0, -1]
    # With ancestors: {animal, dog} against {animal, cat}; {plant} against {plant, animal}: 2 of 3 and 2 of 4 found.
    assert metrics.hierarchical_f1(Y, predicted, parents) == pytest.approx(2 * 2 / (3 + 4))
    assert metrics.broken_share(predicted, parents) == 0.5
    deep = metrics.with_ancestors(np.eye(6, dtype=int), [1, 2, 3, 4, 5, -1])
    np.testing.assert_array_equal(deep, np.triu(np.ones((6, 6), int)))
    assert metrics.hierarchical_f1([[0, 0]], [[0, 0]], [-1, 0]) == 0.0
    with pytest.raises(ValueError, match="parents must be an index per label"):
        metrics.broken_share(predicted, [-1, 0])
