"""The contract of a label space: every space, and one written here from the abstract methods alone, answers as the
enumeration of its sets does, and every classifier, decision and calibration works with it."""

import numpy as np
import pytest
import reference
from samples import make_multilabel
from scipy.special import logsumexp

from mlrh import CalibratedSets, KernelMLRHClassifier, MLRHClassifier, TunedThresholds, decisions, persistence
from mlrh._indicators import UNKNOWN
from mlrh.fitting.design import Design
from mlrh.fitting.objective import Objective
from mlrh.spaces import CardinalitySpace, GroupSpace, HierarchySpace, LabelSpace, ObservedSpace, OpenSpace
from mlrh.spaces.independent import IndependentLabels

RNG = np.random.default_rng(0)
N_LABELS = 5
SCORES = RNG.normal(scale=2, size=(12, N_LABELS))
NAN = np.nan


class Runs(LabelSpace):
    """Sets of consecutive labels, with a bias per length: what an author of a space has to write, and no more."""

    def __init__(self, n_labels, length_bias=None):
        first, last = np.triu_indices(n_labels)
        labels = np.arange(n_labels)
        self.n_labels, self.lengths = n_labels, last - first
        self.runs = ((labels >= first[:, None]) & (labels <= last[:, None])).astype(np.int8)
        self.bias = np.zeros(n_labels) if length_bias is None else np.array(length_bias, np.float64)

    def for_targets(self, Y, *, classes, rows=None):
        self.check_targets(Y, rows)
        return self

    def with_bias(self, bias):
        return Runs(self.n_labels, bias)

    def to_dict(self):
        return {"n_labels": self.n_labels, "length_bias": self.bias}

    def log_weights(self, scores):
        result = scores @ self.runs.T + self.bias[self.lengths]
        if self.known is None:
            return result
        wrong = (self.known == 1) @ (1 - self.runs).T + (self.known == 0) @ self.runs.T
        return np.where(wrong > 0, -np.inf, result)

    def expectations(self, scores, weights):
        log_weights = self.log_weights(scores)
        log_partition = logsumexp(log_weights, axis=1)
        probs = np.exp(log_weights - log_partition[:, None])
        return log_partition, probs @ self.runs, np.bincount(self.lengths, weights @ probs, self.n_labels)

    def mode(self, scores):
        return self.runs[np.argmax(self.log_weights(scores), axis=1)]


RUNS = Runs(N_LABELS, RNG.normal(size=N_LABELS))
BIAS_OF_RUN = dict(zip(map(bytes, RUNS.runs), RUNS.bias[RUNS.lengths], strict=True))
LISTED = reference.sets_of_sizes(N_LABELS, 0, 4)[::2]
BIAS_OF_LISTED = dict(zip(map(bytes, LISTED), np.linspace(-1, 1, len(LISTED)), strict=True))
SEEN = reference.sets_of_sizes(N_LABELS, 1, 4)[::3]
BIAS_OF_SEEN = dict(zip(map(bytes, SEEN), np.linspace(-3, 3, len(SEEN)), strict=True))
LOWERED = reference.sets_of_sizes(N_LABELS, 0, 2)[:-3]  # all sets but three, far below those
OPEN_SIZES = [0.0, -1.0, 0.3, 2.0, -0.7, 0.0]
PARENTS, LEAVES = [3, 3, -1, -1, 1], [0, 2, 4]  # 4 below 1, 0 and 1 below 3; 2 stands alone


def obeys(y):
    return all(y[child] <= y[parent] for child, parent in enumerate(PARENTS) if parent >= 0)


SPACES = {
    "cardinality": (CardinalitySpace(N_LABELS, 1, 3), lambda y: 0.0 if 1 <= y.sum() <= 3 else -np.inf),
    "size bias": (
        CardinalitySpace(N_LABELS, 0, 4, [0.5, -1.0, 0.3, 2.0, -0.7, 0.0], learn_bias=True),
        lambda y: [0.5, -1.0, 0.3, 2.0, -0.7, -np.inf][y.sum()],
    ),
    "one size": (CardinalitySpace(N_LABELS, 2, 2), lambda y: 0.0 if y.sum() == 2 else -np.inf),
    "observed": (
        ObservedSpace(LISTED, np.linspace(-1, 1, len(LISTED))),
        lambda y: BIAS_OF_LISTED.get(bytes(y), -np.inf),
    ),
    "open": (
        OpenSpace(N_LABELS, 1, 4, SEEN, np.linspace(-3, 3, len(SEEN)), OPEN_SIZES),
        lambda y: OPEN_SIZES[y.sum()] + BIAS_OF_SEEN.get(bytes(y), 0.0) if 1 <= y.sum() <= 4 else -np.inf,
    ),
    "open, seen sets lowered": (
        OpenSpace(N_LABELS, 0, 2, LOWERED, np.full(len(LOWERED), -40.0)),
        lambda y: (-40.0 if bytes(y) in set(map(bytes, LOWERED)) else 0.0) if y.sum() <= 2 else -np.inf,
    ),
    "open, nothing seen": (
        OpenSpace(N_LABELS, 1, 3, np.zeros((0, N_LABELS), np.int8)),
        lambda y: 0.0 if 1 <= y.sum() <= 3 else -np.inf,
    ),
    "independent": (IndependentLabels(N_LABELS), lambda y: 0.0),
    "groups": (
        GroupSpace([([3, 0], 1, 1), ([1, 4], 0, 2)], N_LABELS, bias=[0.4, -1.0, 0.3, 1.5]),
        lambda y: 0.4 + [-1.0, 0.3, 1.5][y[[1, 4]].sum()] if y[[0, 3]].sum() == 1 else -np.inf,
    ),
    "hierarchy": (HierarchySpace(PARENTS), lambda y: 0.0 if obeys(y) else -np.inf),
    "a leaf or more": (HierarchySpace(PARENTS, 1), lambda y: 0.0 if obeys(y) and y[LEAVES].any() else -np.inf),
    "one or two leaves": (
        HierarchySpace(PARENTS, 1, 2),
        lambda y: 0.0 if obeys(y) and 1 <= y[LEAVES].sum() <= 2 else -np.inf,
    ),
    "written here": (RUNS, lambda y: BIAS_OF_RUN.get(bytes(y), -np.inf)),
}
BEST_OF_CANDIDATES = (
    "observed",
    "open",
    "written here",
    "one or two leaves",
    "a leaf or more",
)  # for other metrics than F1
every_space = pytest.mark.parametrize("name", SPACES)


def enumerated(name, known=None):
    """The sets of a space, and the probability of each for every row of SCORES, given what is known of it."""
    sets = reference.sets_of_sizes(N_LABELS, 0, N_LABELS)
    biases = np.array([SPACES[name][1](y) for y in sets])
    log_weights = np.where(np.isfinite(biases), SCORES @ sets.T + biases, -np.inf)
    if known is not None:
        agrees = ((known[:, None, :] == UNKNOWN) | (known[:, None, :] == sets)).all(axis=2)
        log_weights = np.where(agrees, log_weights, -np.inf)
    return sets, log_weights


def some_knowledge(name):
    """For every row one or two labels of a possible set."""
    sets, log_weights = enumerated(name)
    possible = sets[np.isfinite(log_weights[0])]
    known = np.full(SCORES.shape, UNKNOWN, np.int8)
    for i in range(len(SCORES)):
        chosen = RNG.permutation(N_LABELS)[: 1 + i % 2]
        known[i, chosen] = possible[i % len(possible)][chosen]
    return known


@pytest.fixture(params=["nothing known", "some known"])
def asked(request, name):
    """A distribution of the space, and sets, log-weights and probabilities by enumeration."""
    space, known = SPACES[name][0], None
    if request.param == "some known":
        known = some_knowledge(name)
        space = space.given(known)
    sets, log_weights = enumerated(name, known)
    probs = np.exp(log_weights - logsumexp(log_weights, axis=1, keepdims=True))
    return space.distribution(SCORES), sets, log_weights, probs


@every_space
def test_sums_over_sets_are_those_of_the_enumeration(asked):
    d, sets, log_weights, probs = asked
    np.testing.assert_allclose(d.log_partition(), logsumexp(log_weights, axis=1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(d.marginals(), probs @ sets, rtol=1e-11, atol=1e-14)
    pmf = np.stack([probs[:, sets.sum(axis=1) == j].sum(axis=1) for j in range(N_LABELS + 1)], axis=1)
    np.testing.assert_allclose(d.cardinality_pmf(), pmf, rtol=1e-10, atol=1e-14)
    joint = np.einsum("ns,sj,sk->njk", probs, sets, sets)
    np.testing.assert_allclose(d.joint_marginals(), joint, rtol=1e-10, atol=1e-13)
    terms = np.where(probs > 0, probs * np.log(np.maximum(probs, 1e-300)), 0.0)
    np.testing.assert_allclose(d.entropy(), -terms.sum(axis=1), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(d.any_of([0, 3]), probs @ sets[:, [0, 3]].any(axis=1), rtol=1e-10, atol=1e-14)


@every_space
def test_sets_come_by_falling_probability_and_no_set_twice(asked):
    d, sets, _, probs = asked
    top, log_probs = d.top_sets(len(sets))
    np.testing.assert_array_equal(top[:, 0], d.mode())
    np.testing.assert_allclose(np.exp(log_probs), -np.sort(-probs, axis=1), rtol=1e-10, atol=1e-14)
    for i in range(len(SCORES)):
        n_possible = np.count_nonzero(probs[i])
        assert len(np.unique(top[i, :n_possible], axis=0)) == n_possible
        np.testing.assert_allclose(
            np.exp(log_probs[i, :n_possible]), [probs[i, index_of(sets, y)] for y in top[i, :n_possible]]
        )
        assert np.isneginf(log_probs[i, n_possible:]).all() and not top[i, n_possible:].any()


def index_of(sets, y):
    return int(np.flatnonzero((sets == y).all(axis=1))[0])


@every_space
def test_probabilities_of_any_set_are_those_of_the_enumeration(asked):
    d, sets, _, probs = asked
    for y, column in zip(sets, probs.T, strict=True):
        np.testing.assert_allclose(d.prob(np.tile(y, (len(SCORES), 1))), column, rtol=1e-10, atol=1e-14)


@every_space
def test_samples_are_possible_and_as_frequent_as_probable(asked):
    d, sets, _, probs = asked
    n = 4000
    drawn = d.sample(n, random_state=0)
    codes = drawn @ (1 << np.arange(N_LABELS)[::-1])
    of_sets = sets @ (1 << np.arange(N_LABELS)[::-1])
    shares = np.stack([(codes == code).mean(axis=1) for code in of_sets], axis=1)
    assert not shares[probs == 0].any()
    # Five standard deviations, and for sets so rare that their counts are not normal a few draws more.
    assert (np.abs(shares - probs) <= 5 * np.sqrt(probs * (1 - probs) / n) + 4 / n).all()


@every_space
@pytest.mark.parametrize("metric", ["exact_match", "hamming", "f1", "jaccard"])
def test_expected_metrics_and_decisions_are_those_of_the_enumeration(asked, name, metric):
    d, sets, _, probs = asked
    functions = {
        "exact_match": lambda a, b: (a == b).all(),
        "hamming": lambda a, b: (a == b).mean(),
        "f1": lambda a, b: 1.0 if not (a | b).any() else 2 * (a & b).sum() / (a.sum() + b.sum()),
        "jaccard": lambda a, b: 1.0 if not (a | b).any() else (a & b).sum() / (a | b).sum(),
    }
    table = np.array([[functions[metric](answer, truth) for truth in sets] for answer in sets])
    values = probs @ table.T
    for place in (0, 7, len(sets) - 1):
        answers = np.tile(sets[place], (len(SCORES), 1))
        np.testing.assert_allclose(d.expected(metric, answers), values[:, place], rtol=1e-9, atol=1e-12)
    answers = decisions.best(d, metric)
    reached = d.expected(metric, answers)
    if metric != "jaccard" or not name.startswith(BEST_OF_CANDIDATES):
        np.testing.assert_allclose(reached, values.max(axis=1), rtol=1e-9)
    within = decisions.best(d, metric, min_labels=2, max_labels=3)
    assert ((within.sum(axis=1) >= 2) & (within.sum(axis=1) <= 3)).all()
    sizes = sets.sum(axis=1)
    best_within = values[:, (sizes >= 2) & (sizes <= 3)].max(axis=1)
    assert (d.expected(metric, within) <= best_within + 1e-9).all()
    if metric in ("exact_match", "hamming", "f1"):
        np.testing.assert_allclose(d.expected(metric, within), best_within, rtol=1e-9, atol=1e-12)


@every_space
def test_the_likeliest_labels_are_those_of_the_highest_marginals(asked):
    d, *_ = asked
    marginals = d.marginals()
    for k in range(N_LABELS + 1):
        chosen = decisions.top(d, k)
        assert (chosen.sum(axis=1) == k).all()
        lowest_in = np.where(chosen == 1, marginals, 2).min(axis=1)
        assert (lowest_in >= np.where(chosen == 0, marginals, -1).max(axis=1) - 1e-12).all()


@every_space
def test_conditioning_on_what_no_set_fits_is_an_error_that_names_the_row(name):
    space, sets = SPACES[name][0], reference.sets_of_sizes(N_LABELS, 0, N_LABELS)
    impossible = [y for y in sets if not np.isfinite(SPACES[name][1](y))]
    known = np.full((3, N_LABELS), UNKNOWN, np.int8)
    if not impossible:
        assert space.fits(np.tile(sets[0], (3, 1))).all()
        return
    known[1] = impossible[0]
    assert space.fits(known).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="row 1"):
        space.distribution(SCORES[:3]).condition(np.where(known == UNKNOWN, NAN, known))


@every_space
def test_a_row_that_agrees_with_no_set_has_log_partition_minus_infinity_and_no_marginals(name):
    space, sets = SPACES[name][0], reference.sets_of_sizes(N_LABELS, 0, N_LABELS)
    log_weights = np.array([SPACES[name][1](y) for y in sets]) + sets @ SCORES[0]
    np.testing.assert_allclose(space.log_weight(np.tile(SCORES[0], (len(sets), 1)), sets), log_weights, atol=1e-12)
    impossible = sets[np.isneginf(log_weights)]
    marginals = space.given(impossible).marginals(np.tile(SCORES[0], (len(impossible), 1)))
    assert np.isnan(marginals).all()


@every_space
def test_biases_and_scores_have_the_derivatives_that_expectations_say(name):
    space, weights = SPACES[name][0], RNG.random(len(SCORES)) + 0.5

    def total(scores, bias):
        return float(weights @ space.with_bias(bias).log_partition(scores))

    _, marginals, in_bias = space.expectations(SCORES, weights)
    direction, bias_direction = RNG.normal(size=SCORES.shape), RNG.normal(size=space.n_biases)
    slope = reference.central_difference(
        lambda t: total(SCORES + t * direction, space.bias + t * bias_direction if space.n_biases else space.bias)
    )
    expected = weights @ (marginals * direction).sum(axis=1) + (in_bias @ bias_direction if space.n_biases else 0.0)
    assert slope == pytest.approx(expected, rel=0, abs=1e-8)


@every_space
def test_curvature_is_the_covariance_by_enumeration(name):
    space, weights = SPACES[name][0], RNG.random(len(SCORES)) + 0.5
    sets, log_weights = enumerated(name)
    probs = np.exp(log_weights - logsumexp(log_weights, axis=1, keepdims=True))
    direction = RNG.normal(size=SCORES.shape)
    along = direction @ sets.T
    centred = along - (probs * along).sum(axis=1, keepdims=True)
    d_marginals, _ = space.curvature(SCORES, direction, np.zeros(space.n_biases), weights)
    np.testing.assert_allclose(d_marginals, (probs * centred) @ sets, rtol=1e-7, atol=1e-8)
    for p in probs:
        covariance = (sets.T * p) @ sets - np.outer(p @ sets, p @ sets)
        assert np.linalg.eigvalsh(covariance)[-1] <= space.curvature_bound(moving_bias=False) + 1e-9


@every_space
def test_counts_of_biases_sizes_and_the_number_of_sets_are_those_of_the_enumeration(name):
    space = SPACES[name][0]
    sets, log_weights = enumerated(name)
    possible = sets[np.isfinite(log_weights[0])]
    weights = RNG.random(len(possible))
    by_definition = space.given(possible).expectations(np.zeros(possible.shape), weights)[2]
    np.testing.assert_allclose(space.bias_counts(possible, weights), by_definition, atol=1e-12)
    assert space.log_count() == pytest.approx(np.log(len(possible)), abs=1e-12)
    assert space.sizes() == (possible.sum(axis=1).min(), possible.sum(axis=1).max())
    assert space.is_shift_invariant() == (np.ptp(possible.sum(axis=1)) == 0)


@every_space
def test_a_space_comes_back_from_its_plain_form_and_knows_its_own_sets(name):
    space = SPACES[name][0]
    again = type(space).from_dict(space.to_dict())
    np.testing.assert_array_equal(again.distribution(SCORES).marginals(), space.distribution(SCORES).marginals())
    moved = space.with_bias(space.bias + 1.0)
    assert space.has_sets_of(again) and space.has_sets_of(moved)
    others = [SPACES[other][0] for other in SPACES if other != name]
    assert not any(space.has_sets_of(other) for other in others)


@every_space
def test_tempering_takes_probabilities_to_a_power(name):
    d = SPACES[name][0].distribution(SCORES)
    _, log_weights = enumerated(name)
    tempered = log_weights / 2.5
    expected = np.exp(tempered - logsumexp(tempered, axis=1, keepdims=True)) @ reference.sets_of_sizes(5, 0, 5)
    np.testing.assert_allclose(d.temper(2.5).marginals(), expected, rtol=1e-10)


@every_space
def test_answers_leave_scores_as_they_were_and_do_not_depend_on_the_order_of_rows(name):
    scores = SCORES.copy()
    d, turned = (SPACES[name][0].distribution(rows) for rows in (scores, scores[::-1]))
    for answer in ("log_partition", "marginals", "entropy", "mode"):
        # Rows go through kernels in groups, and sums may round in another order there.
        np.testing.assert_allclose(getattr(turned, answer)()[::-1], getattr(d, answer)(), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(scores, SCORES)


# What is built on spaces works with the one written here.


def rows_of_runs(n=150):
    X = np.random.RandomState(0).normal(size=(n, 3))
    scores = X @ np.random.RandomState(1).normal(size=(3, N_LABELS))
    return X, RUNS.distribution(scores).sample(1, random_state=0)[:, 0]


@pytest.mark.parametrize("classifier", [MLRHClassifier, KernelMLRHClassifier])
def test_a_classifier_with_a_space_of_ones_own_minimises_its_objective(classifier):
    X, Y = rows_of_runs()
    model = classifier(label_space=Runs(N_LABELS)).fit(X, Y)
    np.testing.assert_array_equal(model.bias_, model.label_space_.bias)
    # Against the same sets in the observed space, whose biases per set can say at least as much, and no bias at all.
    observed = classifier(label_space="observed").fit(X, Y)
    assert model.distribution(X).log_prob(Y).mean() <= observed.distribution(X).log_prob(Y).mean() + 1e-3
    assert all(np.ptp(np.flatnonzero(y)) == y.sum() - 1 for y in model.predict(X))


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "mm"])
def test_every_solver_reaches_the_optimum_of_a_space_of_ones_own(solver):
    X, Y = rows_of_runs()
    reached = MLRHClassifier(label_space=Runs(N_LABELS), solver=solver, tol=1e-9, max_iter=20_000).fit(X, Y)
    design = Design(X, np.ones(len(X)), fit_intercept=True)
    objective = Objective(design, Runs(N_LABELS), Y, alpha=1.0)
    parameters = objective.start_from(
        reached.coef_.T, reached.intercept_ + X.mean(axis=0) @ reached.coef_.T, reached.bias_
    )
    value, gradient = objective.value_and_gradient(parameters)
    assert value == pytest.approx(reached.objective_, rel=1e-9)
    assert np.abs(gradient).max() < 1e-2


def test_unknown_entries_of_y_are_summed_over_in_a_space_of_ones_own():
    X, Y = rows_of_runs()
    hidden = np.where(np.random.RandomState(2).random_sample(Y.shape) < 0.2, NAN, Y)
    model = MLRHClassifier(label_space=Runs(N_LABELS)).fit(X, hidden)
    full = MLRHClassifier(label_space=Runs(N_LABELS)).fit(X, Y)
    known = model.distribution(X).log_prob_of_known(hidden)
    assert np.isfinite(known).all() and known.mean() > full.distribution(X).log_prob(Y).mean()


def test_calibration_and_thresholds_take_a_space_of_ones_own():
    X, Y = rows_of_runs()
    calibrated = CalibratedSets(MLRHClassifier(label_space=Runs(N_LABELS), C=100)).fit(X, Y)
    assert 0.01 < calibrated.temperature_ < 1e4 and calibrated.confidence(X).max() <= 1
    tuned = TunedThresholds(MLRHClassifier(label_space=Runs(N_LABELS))).fit(X, Y)
    assert tuned.best_score_ >= tuned.default_score_


def test_a_model_with_a_space_of_ones_own_is_saved_and_loaded_by_naming_the_class(tmp_path):
    X, Y = rows_of_runs()
    model = MLRHClassifier(label_space=Runs(N_LABELS)).fit(X, Y)
    persistence.save(model, tmp_path / "model.mlrh")
    loaded = persistence.load(tmp_path / "model.mlrh", spaces=[Runs])
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    with pytest.raises(persistence.ModelFileError, match="Runs"):
        persistence.load(tmp_path / "model.mlrh")


def test_a_row_that_a_space_does_not_have_is_named():
    X, Y = rows_of_runs()
    Y[7] = [1, 0, 1, 0, 1]
    with pytest.raises(ValueError, match="row 7 agrees with none, as do 1 of 150 rows"):
        MLRHClassifier(label_space=Runs(N_LABELS)).fit(X, Y)


def test_one_class_per_row_takes_only_a_space_of_single_labels():
    X, y = np.arange(12.0)[:, None], np.arange(12) % 3
    with pytest.raises(ValueError, match=r"With one class per row .* label_space='cardinality'"):
        MLRHClassifier(label_space=CardinalitySpace(3, 0, 2)).fit(X, y)


def test_a_space_of_another_number_of_labels_is_an_error_that_names_both():
    X, Y = rows_of_runs()
    for space in (Runs(4), CardinalitySpace(4, 1, 2), IndependentLabels(4)):
        with pytest.raises(ValueError, match="The label space has 4 labels and y has 5"):
            MLRHClassifier(label_space=space).fit(X, Y)


def test_an_instance_takes_no_limits_beside_its_own():
    X, Y = make_multilabel(n_labels=5)
    with pytest.raises(ValueError, match="belong to the label spaces that are given by name"):
        MLRHClassifier(label_space=CardinalitySpace(5, 1, 3), max_labels=3).fit(X, Y)


def test_an_instance_of_a_named_space_fits_as_its_name_does():
    X, Y = make_multilabel(n_labels=5)
    named = MLRHClassifier(size_bias=True).fit(X, Y)
    given = MLRHClassifier(label_space=CardinalitySpace(5, 1, 3, learn_bias=True)).fit(X, Y)
    np.testing.assert_array_equal(given.coef_, named.coef_)
    np.testing.assert_array_equal(given.size_bias_, named.size_bias_)


def test_a_fixed_bias_of_an_instance_stays():
    X, Y = make_multilabel(n_labels=5)
    model = MLRHClassifier(label_space=CardinalitySpace(5, 1, 3, [0.0, 1.0, -1.0, 2.0, 0.0, 0.0])).fit(X, Y)
    np.testing.assert_array_equal(model.size_bias_, [0.0, 1.0, -1.0, 2.0, 0.0, 0.0])


def test_what_takes_all_sets_says_so_beyond_fourteen_labels():
    space = Runs(15)
    with pytest.raises(ValueError, match="at most 14 labels; got 15"):
        space.distribution(np.zeros((1, 15))).cardinality_pmf()
    assert space.distribution(np.zeros((1, 15))).entropy() == pytest.approx(np.log(120))
    assert space.distribution(np.zeros((1, 15))).top_sets(3)[1] == pytest.approx(np.full((1, 3), -np.log(120)))
