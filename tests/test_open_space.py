"""The open space: exact at the edges, between the cardinality and the observed space, and in every classifier."""

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import reference
from samples import make_multilabel
from scipy import sparse

from mlrh import KernelMLRHClassifier, MLRHClassifier, MLRHClassifierCV, persistence
from mlrh._indicators import UNKNOWN
from mlrh.spaces import CardinalitySpace, ObservedSpace, OpenSpace
from mlrh.spaces import open as module

CASES = json.loads((Path(__file__).parent / "oracle" / "open.json").read_text())
ABSOLUTE = 1e-12  # as in tests/test_oracle.py
every_case = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
SETS = reference.sets_of_sizes(5, 1, 3)
RNG = np.random.default_rng(0)
SCORES = RNG.normal(scale=2, size=(20, 5))


def space_of(case):
    sizes = (len(case["scores"]), case["min_labels"], case["max_labels"])
    return OpenSpace(*sizes, case["seen"], case["set_bias"], case["size_bias"])


def distribution(case, repeats=1):
    return space_of(case).distribution(np.tile(case["scores"], (repeats, 1)))


def tolerances(case, sets):
    """What the oracle promises of log-probabilities: 1e-12 of the scores in the set and of the largest bias."""
    biases = np.abs([*case["set_bias"], *case["size_bias"]]).max()
    return ABSOLUTE * np.maximum(np.array(sets) @ np.abs(case["scores"]), max(1.0, biases))


@every_case
def test_log_partition_marginals_and_sizes_equal_the_oracle(case):
    d = distribution(case)
    scale = max(abs(case["log_partition"]), tolerances(case, case["mode"]) / ABSOLUTE)
    assert d.log_partition()[0] == pytest.approx(case["log_partition"], rel=0, abs=ABSOLUTE * scale)
    np.testing.assert_allclose(d.marginals()[0], case["marginals"], rtol=0, atol=ABSOLUTE)
    np.testing.assert_allclose(d.cardinality_pmf()[0], case["cardinality_pmf"], rtol=0, atol=ABSOLUTE)


@every_case
def test_log_prob_and_order_of_every_set_equal_the_oracle(case):
    log_probs = distribution(case, repeats=len(case["sets"])).log_prob(case["sets"])
    assert (np.abs(log_probs - case["log_probs"]) <= tolerances(case, case["sets"])).all() and log_probs.max() <= 0
    sets, ranked = distribution(case).top_sets(len(case["sets"]))
    assert sorted(sets[0].tolist()) == sorted(case["sets"])
    largest = tolerances(case, case["sets"]).max()
    np.testing.assert_allclose(ranked[0], sorted(case["log_probs"], reverse=True), rtol=0, atol=largest)
    if case["mode_is_unique"]:
        assert distribution(case).mode()[0].tolist() == sets[0, 0].tolist() == case["mode"]


@every_case
def test_entropy_pairs_and_groups_equal_the_oracle(case):
    d = distribution(case)
    assert d.entropy()[0] == pytest.approx(case["entropy"], rel=1e-10, abs=1e-50)
    np.testing.assert_allclose(d.joint_marginals()[0], case["pair_marginals"], rtol=0, atol=ABSOLUTE)
    any_of = d.any_of(np.arange(len(case["scores"])) < 2)[0]
    assert any_of == pytest.approx(case["any_of_first_two"], rel=1e-10)


@every_case
def test_answers_given_known_labels_equal_the_oracle(case):
    d, given = distribution(case), case["conditioned"]
    known = np.array([given["known"]], float)
    np.testing.assert_allclose(d.condition(known).marginals()[0], given["marginals"], rtol=0, atol=ABSOLUTE)
    log_prob = d.log_prob_of_known(known)[0]
    biases = np.abs([*case["set_bias"], *case["size_bias"]]).max()
    assert log_prob == pytest.approx(given["log_prob_of_known"], rel=1e-12, abs=ABSOLUTE * max(1.0, biases))


def test_with_all_sets_seen_it_is_the_observed_space_with_both_biases():
    set_bias, size_bias = RNG.normal(size=len(SETS)), RNG.normal(size=6)
    d = OpenSpace(5, 1, 3, SETS, set_bias, size_bias).distribution(SCORES)
    observed = ObservedSpace(SETS, set_bias + size_bias[SETS.sum(axis=1)]).distribution(SCORES)
    np.testing.assert_allclose(d.log_partition(), observed.log_partition(), rtol=1e-13)
    np.testing.assert_allclose(d.marginals(), observed.marginals(), rtol=1e-11)
    np.testing.assert_allclose(d.entropy(), observed.entropy(), rtol=1e-11)
    np.testing.assert_array_equal(d.mode(), observed.mode())


def test_without_biases_of_sets_it_is_the_cardinality_space():
    size_bias = RNG.normal(size=6)
    d = OpenSpace(5, 1, 3, SETS[::2], size_bias=size_bias).distribution(SCORES)
    plain = CardinalitySpace(5, 1, 3, size_bias).distribution(SCORES)
    np.testing.assert_array_equal(d.log_partition(), plain.log_partition())
    np.testing.assert_array_equal(d.marginals(), plain.marginals())
    np.testing.assert_array_equal(d.top_sets(25)[0], plain.top_sets(25)[0])


def test_with_a_constant_added_to_all_biases_it_approaches_the_observed_space():
    seen, set_bias = SETS[::3], np.round(1024 * RNG.normal(size=len(SETS[::3]))) / 1024  # exact also beside 1e5
    observed = ObservedSpace(seen, set_bias).distribution(SCORES).marginals()
    far = [
        np.abs(OpenSpace(5, 1, 3, seen, set_bias + c).distribution(SCORES).marginals() - observed).max()
        for c in (0.0, 10.0, 20.0, 40.0, 400.0, 1e5)
    ]
    assert far[0] > 0.1 and far[1] < 0.1 and far[2] < 1e-4 * far[0]
    assert max(far[3:]) < 1e-12  # the last two are answered without plain floating point


def test_float32_scores_get_the_rounded_answers_of_float64():
    space, scores = OpenSpace(5, 1, 3, SETS[::3], np.linspace(-3, 3, 9)), SCORES.astype(np.float32)
    narrow, wide = space.distribution(scores), space.distribution(scores.astype(np.float64))
    for answer in ("log_partition", "marginals", "entropy", "cardinality_pmf", "joint_marginals"):
        assert getattr(narrow, answer)().dtype == np.float32
        np.testing.assert_allclose(getattr(narrow, answer)(), getattr(wide, answer)(), rtol=1e-6, atol=1e-7)


def test_seen_sets_that_contradict_what_is_known_drop_out():
    space = OpenSpace(3, 1, 2, [[1, 1, 0], [0, 0, 1]], [5.0, 5.0])
    known = np.array([[1, np.nan, np.nan], [0, 0, np.nan], [0, np.nan, 0]])
    given = space.distribution(np.zeros((3, 3))).condition(known)
    # Row 0 has {0}, {0, 1} with a bias and {0, 2} left; row 1 only {2}; row 2 only {1}, which has no bias.
    np.testing.assert_allclose(given.log_partition(), [np.log(2 + np.exp(5)), 5.0, 0.0], rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(given.marginals()[0], [1, np.exp(5) / (2 + np.exp(5)), 1 / (2 + np.exp(5))], rtol=1e-13)


def test_many_rows_and_threads_give_the_answers_of_one_row_at_a_time():
    sets = np.unique(np.random.default_rng(1).random((60, 12)) < 0.2, axis=0).astype(np.int8)
    sets = sets[(sets.sum(axis=1) >= 1) & (sets.sum(axis=1) <= 4)]
    scores, bias = np.random.default_rng(2).normal(-1, 2, (500, 12)), np.random.default_rng(3).normal(size=len(sets))
    spaces = [OpenSpace(12, 1, 4, sets, bias, n_jobs=n_jobs) for n_jobs in (1, 2)]
    weights = np.random.default_rng(4).random(500)
    alone, threaded = (space.expectations(scores, weights) for space in spaces)
    for one, two in zip(alone, threaded, strict=True):
        np.testing.assert_array_equal(one, two)
    rows = [spaces[0].expectations(scores[i : i + 1], weights[i : i + 1]) for i in range(0, 500, 50)]
    np.testing.assert_allclose(alone[1][::50], np.concatenate([row[1] for row in rows]), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 1, 2, [[1, 1, 1]]), "row 0 has 3. Leave it out"),
        ((3, 1, 2, [[1, 0, 0], [1, 0, 0]]), "sets must be distinct"),
        ((3, 1, 2, [[1, 0]]), "a column per label, 3; got 2"),
        ((3, 1, 2, [[1, 0, 0]], [0.0, 1.0]), "set_bias must be 1 finite numbers"),
        ((3, 1, 2, [[1, 0, 0]], None, [0.0]), "size_bias must be 4 finite numbers"),
    ],
)
def test_an_error_says_what_is_wrong_with_the_sets_or_biases(arguments, message):
    with pytest.raises(ValueError, match=message):
        OpenSpace(*arguments)


def test_a_strength_must_be_positive_or_auto():
    with pytest.raises(ValueError, match="set_bias_strength must be 'auto' or a positive number; got 0"):
        OpenSpace(3, 1, 2, [[1, 0, 0]], set_bias_strength=0)
    with pytest.raises(ValueError, match="set_bias_strength"):
        MLRHClassifier(label_space="open", set_bias_strength=-1.0).fit(*make_multilabel(n_labels=5))
    with pytest.raises(ValueError, match="belong to the label spaces that are given by name"):
        MLRHClassifier(label_space=OpenSpace(5, 1, 3, SETS), set_bias_strength=1.0).fit(*make_multilabel(n_labels=5))


# Fits.


def rows(n=200, seed=0):
    """Rows whose labels attract each other, so that biases of sets have something to learn."""
    X = np.random.RandomState(seed).normal(size=(n, 4))
    scores = X @ np.random.RandomState(1).normal(size=(4, 5))
    space = OpenSpace(5, 1, 3, SETS[::4], np.full(len(SETS[::4]), 2.0))
    return X, space.distribution(scores).sample(1, random_state=seed)[:, 0]


def test_an_instance_fits_as_its_name_does():
    X, Y = rows()
    named = MLRHClassifier(label_space="open").fit(X, Y)
    given = MLRHClassifier(label_space=OpenSpace(5, 1, 3, named.sets_)).fit(X, Y)
    np.testing.assert_array_equal(given.coef_, named.coef_)
    np.testing.assert_array_equal(given.set_bias_, named.set_bias_)
    assert given.set_bias_strength_ == named.set_bias_strength_ in module.STRENGTHS


def test_a_handful_of_rows_gets_the_usual_strength():
    X, Y = rows(6)[0], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1]]
    assert MLRHClassifier(label_space="open").fit(X, Y).set_bias_strength_ == 1.0
    assert MLRHClassifier(label_space="open").fit(X[:2], [[1, 0], [0, 1]]).set_bias_strength_ == 1.0


def test_sets_that_no_row_has_and_folds_without_complete_rows_leave_a_usable_choice():
    X, Y = rows(60)
    absent = np.array([y for y in SETS if not (y == Y).all(axis=1).any()])
    model = MLRHClassifier(label_space=OpenSpace(5, 1, 3, absent)).fit(X, Y)
    assert model.set_bias_strength_ == max(module.STRENGTHS) and (model.set_bias_ < 0).all()
    # The folds are every second row of a shuffled order; here only those of the first one are complete.
    hidden = Y.astype(float)
    hidden[np.random.RandomState(0).permutation(60)[np.arange(60) % 2 > 0], 0] = np.nan
    assert MLRHClassifier(label_space="open").fit(X, hidden).set_bias_strength_ in module.STRENGTHS


def test_a_strong_ridge_gives_the_cardinality_space_with_size_bias():
    X, Y = rows()
    held = MLRHClassifier(label_space="open", set_bias_strength=1e9, tol=1e-10).fit(X, Y)
    plain = MLRHClassifier(size_bias=True, tol=1e-10).fit(X, Y)
    np.testing.assert_allclose(held.coef_, plain.coef_, atol=1e-4)
    np.testing.assert_allclose(held.size_bias_, plain.size_bias_, atol=1e-4)
    assert np.abs(held.set_bias_).max() < 1e-6


def test_at_the_optimum_each_bias_balances_its_ridge():
    X, Y = rows()
    model = MLRHClassifier(label_space="open", set_bias_strength=0.5, tol=1e-12).fit(X, Y)
    expected = np.array([np.exp(model.distribution(X).log_prob(np.tile(y, (len(X), 1)))).sum() for y in model.sets_])
    counts = np.array([(y == Y).all(axis=1).sum() for y in model.sets_])
    np.testing.assert_allclose(counts - expected, 0.5 * model.set_bias_, atol=1e-3)


@pytest.mark.parametrize("solver", ["newton-cg", "mm"])
def test_every_solver_reaches_the_same_optimum(solver):
    X, Y = rows(80)
    options = {"label_space": "open", "set_bias_strength": 1.0, "tol": 1e-7, "max_iter": 20_000}
    reached, best = (MLRHClassifier(solver=name, **options).fit(X, Y) for name in (solver, "lbfgs"))
    assert reached.objective_ == pytest.approx(best.objective_, rel=1e-5)


def test_duplicating_a_row_equals_doubling_its_weight():
    X, Y = rows(60)
    twice = np.concatenate([np.arange(60), np.arange(20)])
    options = {"label_space": "open", "set_bias_strength": 1.0, "tol": 1e-12}
    weighted = MLRHClassifier(**options).fit(X, Y, sample_weight=1.0 + (np.arange(60) < 20))
    repeated = MLRHClassifier(**options).fit(X[twice], Y[twice])
    np.testing.assert_allclose(weighted.set_bias_, repeated.set_bias_, atol=1e-5)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-5)


def test_a_linear_kernel_gives_the_linear_model():
    X, Y = rows()
    linear = MLRHClassifier(label_space="open", tol=1e-10).fit(X, Y)
    kernel = KernelMLRHClassifier(kernel="linear", label_space="open", tol=1e-10).fit(X, Y)
    assert linear.set_bias_strength_ == kernel.set_bias_strength_
    np.testing.assert_allclose(kernel.predict_proba(X), linear.predict_proba(X), atol=1e-4)


def test_unknown_labels_are_summed_over_and_sets_come_from_complete_rows():
    X, Y = rows()
    hidden = np.where(np.random.RandomState(2).random_sample(Y.shape) < 0.1, np.nan, Y)
    model = MLRHClassifier(label_space="open").fit(X, hidden)
    complete = Y[~np.isnan(hidden).any(axis=1)]
    assert {y.tobytes() for y in model.sets_} == {y.tobytes() for y in complete}
    full = MLRHClassifier(label_space="open").fit(X, Y)
    known = model.distribution(X).log_prob_of_known(hidden)
    assert known.mean() > full.distribution(X).log_prob_of_known(hidden).mean() - 0.05
    nothing = MLRHClassifier(label_space="open").fit(
        X, np.where(np.arange(5) == np.arange(len(Y))[:, None] % 5, np.nan, Y)
    )
    assert nothing.sets_.shape == (0, 5)


def test_l1_gives_zeros_and_cross_validation_chooses_C():
    X, Y = rows(120)
    sparse = MLRHClassifier(label_space="open", C=0.05, l1_ratio=1.0, set_bias_strength=1.0).fit(X, Y)
    assert (sparse.coef_ == 0).any() and np.abs(sparse.set_bias_).max() > 0.1
    chosen = MLRHClassifierCV(label_space="open", Cs=[0.01, 1.0], cv=2, scoring="log_prob").fit(X, Y)
    again = MLRHClassifier(label_space="open", C=chosen.C_).fit(X, Y)
    np.testing.assert_allclose(chosen.predict_proba(X), again.predict_proba(X), atol=1e-4)


def test_a_saved_model_answers_as_before(tmp_path):
    X, Y = rows()
    model = MLRHClassifier(label_space="open").fit(X, Y)
    persistence.save(model, tmp_path / "model.mlrh")
    loaded = persistence.load(tmp_path / "model.mlrh")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.label_space_.set_bias, model.set_bias_)
    assert loaded.set_bias_strength_ == model.set_bias_strength_


def test_a_warm_start_goes_on_from_the_last_biases():
    X, Y = rows()
    model = MLRHClassifier(label_space="open", set_bias_strength=1.0, warm_start=True).fit(X, Y)
    first = model.n_iter_
    assert model.fit(X, Y).n_iter_ < max(2, first / 4)


def test_too_many_sets_are_thinned_to_the_most_frequent_with_a_warning(monkeypatch):
    X, Y = rows()
    sets, counts = np.unique(Y, axis=0, return_counts=True)
    monkeypatch.setattr(module, "MAX_SETS", 5)
    with pytest.warns(UserWarning, match=f"Training shows {len(sets)} different label sets. Only the 5 most frequent"):
        model = MLRHClassifier(label_space="open").fit(X, Y)
    kept = [counts[(sets == y).all(axis=1)][0] for y in model.sets_]
    assert sorted(kept, reverse=True) == sorted(counts, reverse=True)[:5]
    assert np.isfinite(model.distribution(X).log_prob(Y)).all()


def test_a_chosen_strength_is_the_best_of_the_grid_by_a_full_cross_validation_or_nearly():
    """The choice keeps the scores of each fold fixed; refitting all for every strength must not do much better."""
    X, Y = rows(400)
    fold = np.random.RandomState(3).permutation(len(X)) % 4
    losses = {}
    for strength in module.STRENGTHS:
        options = {"label_space": "open", "min_labels": 1, "max_labels": 3, "set_bias_strength": strength}
        held_out = [
            MLRHClassifier(**options).fit(X[fold != f], Y[fold != f]).distribution(X[fold == f]).log_prob(Y[fold == f])
            for f in range(4)
        ]
        losses[strength] = -np.concatenate(held_out)
    chosen = losses[MLRHClassifier(label_space="open").fit(X, Y).set_bias_strength_]
    best = min(losses.values(), key=np.mean)
    error = (chosen - best).std() / np.sqrt(len(chosen))
    assert chosen.mean() - best.mean() <= error + 1e-9


@pytest.mark.skipif(not os.environ.get("MLRH_DATA"), reason="set MLRH_DATA to a folder with the public data sets")
@pytest.mark.parametrize(
    ("name", "C"),
    [
        *(("emotions", 0.1), ("flags", 0.1)),
        *(
            pytest.param(name, C, marks=pytest.mark.slow)
            for name, C in (("scene", 0.1), ("yeast", 0.01), ("birds", 0.1), ("medical", 10.0))
        ),
    ],
)
def test_a_chosen_strength_is_within_a_standard_error_of_the_best_on_test_rows(name, C):
    from sklearn.preprocessing import StandardScaler

    from mlrh.data import load

    train, test = load(name, "train"), load(name, "test")
    scaler = StandardScaler(with_mean=not sparse.issparse(train.X), with_std=not sparse.issparse(train.X)).fit(train.X)
    losses = {}
    for strength in ("auto", *module.STRENGTHS):
        model = MLRHClassifier(label_space="open", set_bias_strength=strength, C=C)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # labels and sizes that the training rows of a set lack
            model.fit(scaler.transform(train.X), train.Y)
        log_probs = model.distribution(scaler.transform(test.X)).log_prob(test.Y)
        losses[strength] = -np.maximum(log_probs, np.log(1e-6))
    best = min(losses.values(), key=np.mean)
    assert losses["auto"].mean() - best.mean() <= best.std() / np.sqrt(len(best))


def test_knowledge_of_all_labels_leaves_one_set_and_its_biases():
    space = OpenSpace(5, 1, 3, SETS[::3], np.linspace(-60, 60, 9))
    scores = np.tile(SCORES[:1], (len(SETS), 1))
    by_knowledge = space.given(SETS).log_partition(scores)
    np.testing.assert_allclose(space.log_weight(scores, SETS), by_knowledge, rtol=1e-13, atol=1e-13)
    outside = np.ones((1, 5), np.int8)
    assert space.fits(np.concatenate([outside, np.full((1, 5), UNKNOWN, np.int8)])).tolist() == [False, True]
    assert space.log_weight(SCORES[:1], outside)[0] == -np.inf


@pytest.mark.parametrize("some_known", [False, True])
def test_curvature_along_scores_and_biases_is_the_covariance_by_enumeration(some_known):
    seen = reference.sets_of_sizes(5, 1, 4)[::3]
    own, size_bias, weights = RNG.normal(scale=2, size=len(seen)), RNG.normal(size=6), RNG.random(len(SCORES))
    space, sets = OpenSpace(5, 1, 4, seen, own, size_bias), reference.sets_of_sizes(5, 1, 4)
    direction, bias_direction = RNG.normal(size=SCORES.shape), RNG.normal(size=space.n_biases)
    # Indicators of the sizes 1..4 and of the seen sets: what carries a bias.
    carries = np.column_stack([sets.sum(axis=1)[:, None] == np.arange(1, 5), (sets[:, None] == seen).all(axis=2)])
    log_weights = SCORES @ sets.T + carries @ space.bias
    if some_known:
        known = np.where(RNG.random(SCORES.shape) < 0.2, 1, UNKNOWN).astype(np.int8)
        known[:, 4] = UNKNOWN
        space = space.given(known)
        log_weights[((known[:, None] == 1) & (sets == 0)).any(axis=2)] = -np.inf
    probs = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    change = direction @ sets.T + carries @ bias_direction
    change = probs * (change - (probs * change).sum(axis=1, keepdims=True))
    d_marginals, d_biases = space.curvature(SCORES, direction, bias_direction, weights)
    np.testing.assert_allclose(d_marginals, change @ sets, rtol=0, atol=1e-12)
    np.testing.assert_allclose(d_biases, weights @ change @ carries, rtol=0, atol=1e-12)


def test_the_expected_metric_of_a_set_that_its_bias_makes_improbable_keeps_its_digits():
    # Without its bias of -26 the set has probability 0.6, so that a difference would leave five digits of 1e-11.
    space = OpenSpace(1, 0, 1, [[1]], [-26.0], [0.0, 0.5])
    probability = np.exp(0.5 - 26.0) / (1 + np.exp(0.5 - 26.0))
    for metric in ("exact_match", "hamming", "f1", "jaccard"):
        assert space.distribution([[0.0]]).expected(metric, [[1]])[0] == pytest.approx(probability, rel=1e-12, abs=0)
