"""ONNX models answer as ours do: the oracle, every label space and decision, pipelines, calibration and thresholds."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import skl2onnx
from exported import answers_of, classifier_of, run
from samples import make_multilabel
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from test_oracle import CARDINALITY, OBSERVED, by_name, space_of
from test_spaces_contract import Runs

from mlrh import (
    CalibratedSets,
    KernelMLRHClassifier,
    KernelMLRHClassifierCV,
    MLRHAuto,
    MLRHBoostingClassifier,
    MLRHClassifier,
    MLRHClassifierCV,
    PooledSets,
    TunedThresholds,
    decisions,
)
from mlrh.baselines import LabelPowerset
from mlrh.export import to_onnx
from mlrh.spaces import CardinalitySpace, GroupSpace, HierarchySpace, ObservedSpace, OpenSpace

OPEN = json.loads((Path(__file__).parent / "oracle" / "open.json").read_text())
RNG = np.random.default_rng(0)
N_LABELS = 9
SCORES = 3 * RNG.normal(size=(40, N_LABELS))
SETS = np.unique(RNG.random((40, N_LABELS)) < 0.4, axis=0).astype(np.int8)
SETS = SETS[(SETS.sum(axis=1) >= 1) & (SETS.sum(axis=1) <= 5)]
PARENTS = [-1, 0, 0, 1, 1, -1, 5, 6, -1]
SIZE_BIAS = 2 * RNG.normal(size=N_LABELS + 1)
SPACES = {
    "cardinality": CardinalitySpace(N_LABELS, 1, 5),
    "size bias": CardinalitySpace(N_LABELS, 0, N_LABELS, SIZE_BIAS),
    "observed": ObservedSpace(SETS, RNG.normal(size=len(SETS))),
    "open": OpenSpace(N_LABELS, 1, 5, SETS, 2 * RNG.normal(size=len(SETS)), SIZE_BIAS),
    "open, biases below 0": OpenSpace(N_LABELS, 1, 5, SETS, -6 * RNG.random(len(SETS)), SIZE_BIAS),
    "groups": GroupSpace([([0, 3], 1, 1), ([1, 5, 7], 0, 2)], N_LABELS, bias=RNG.normal(size=4)),
    "hierarchy": HierarchySpace(PARENTS),
    "hierarchy with limits": HierarchySpace(PARENTS, 1, 2),
    "a space of a user": Runs(N_LABELS, RNG.normal(size=N_LABELS)),
}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


def space_of_case(case):
    if "seen" not in case:
        return space_of(case)
    sizes = len(case["scores"]), case["min_labels"], case["max_labels"]
    return OpenSpace(*sizes, case["seen"], case["set_bias"], case["size_bias"])


def sizes_of_case(case):
    if "cardinality_pmf" in case:
        return case["cardinality_pmf"]
    counts = np.sum(case["sets"], axis=1)
    return np.bincount(counts, weights=np.exp(case["log_probs"]), minlength=len(case["scores"]) + 1)


@by_name(CARDINALITY + OBSERVED + OPEN)
def test_an_exported_model_equals_the_oracle_in_double_and_in_float(case):
    model, scores = classifier_of(space_of_case(case)), np.array([case["scores"]])
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-4)):
        given = scores.astype(dtype)
        # A score that moves by d moves no probability by more than d / 2, and float32 rounds the scores themselves.
        tolerance = tolerance + 0.5 * np.abs(given.astype(np.float64) - scores).sum()
        answers = answers_of(model, given)
        np.testing.assert_allclose(answers["probabilities"][0], case["marginals"], rtol=0, atol=tolerance)
        np.testing.assert_allclose(answers["sizes"][0], sizes_of_case(case), rtol=0, atol=tolerance)
        assert {answers[name].dtype for name in answers if name != "label"} == {np.dtype(dtype)}
        if case["mode_is_unique"] and dtype == np.float64:
            assert answers["label"][0].tolist() == case["mode"]
            expected = np.exp(case["mode_log_prob"] if "mode_log_prob" in case else mode_log_prob(case))
            assert answers["set_probability"][0] == pytest.approx(expected, rel=0, abs=1e-10)


def mode_log_prob(case):
    return case["log_probs"][case["sets"].index(case["mode"])]


@every_space
def test_marginals_sizes_and_the_probability_of_the_answer_are_those_of_the_space(space):
    answers, d = answers_of(classifier_of(space), SCORES), space.distribution(SCORES)
    np.testing.assert_allclose(answers["probabilities"], d.marginals(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(answers["sizes"], d.cardinality_pmf(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(answers["set_probability"], d.prob(d.mode()), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(answers["label"], d.mode())
    np.testing.assert_array_equal(answers["scores"], SCORES)


@every_space
@pytest.mark.parametrize("options", [{"decision": "hamming"}, {"decision": ("top", 2)}], ids=str)
def test_decisions_by_marginals_are_those_of_the_space(space, options):
    answers, d = answers_of(classifier_of(space, **options), SCORES), space.distribution(SCORES)
    expected = decisions.resolve(options["decision"])(d)
    np.testing.assert_array_equal(answers["label"], expected)
    np.testing.assert_allclose(answers["set_probability"], d.prob(expected), rtol=0, atol=1e-12)


TIED = {
    "cardinality": CardinalitySpace(33, 0, 33),
    "open": OpenSpace(33, 0, 33, np.eye(33, dtype=int)[:1], [0.0]),
    "groups": GroupSpace([([26], 0, 1)], 33),
    "hierarchy": HierarchySpace([-1] * 33),
}


@pytest.mark.parametrize("space", TIED.values(), ids=TIED)
def test_labels_with_a_probability_of_one_half_are_left_out_whatever_rounding_does(space):
    answers = answers_of(classifier_of(space, decision="hamming"), np.zeros((2, 33)))
    np.testing.assert_allclose(answers["probabilities"], 0.5, rtol=0, atol=5e-14)
    assert not answers["label"].any()


@pytest.mark.parametrize("sizes", [None, (2, 3), (None, 1), (7, 8)], ids=str)
@pytest.mark.parametrize("name", ["cardinality", "size bias", "observed", "open", "open, biases below 0"])
def test_the_best_set_within_limits_is_that_of_the_space(name, sizes):
    space = SPACES[name]
    for decision in ("exact_match", "hamming", "f1"):
        answers = answers_of(classifier_of(space, decision=decision, answer_sizes=sizes), SCORES)
        expected = decisions.resolve(decision, sizes)(space.distribution(SCORES))
        np.testing.assert_array_equal(answers["label"], expected, decision)


@pytest.mark.parametrize("decision", ["jaccard", lambda tp, fp, fn: -(fp + 5 * fn)], ids=["jaccard", "costs"])
@pytest.mark.parametrize("name", ["cardinality", "size bias"])
def test_metrics_of_a_cardinality_space_are_decided_as_by_the_space(name, decision):
    answers = answers_of(classifier_of(SPACES[name], decision=decision), SCORES)
    expected = decisions.resolve(decision)(SPACES[name].distribution(SCORES))
    np.testing.assert_array_equal(answers["label"], expected)


@pytest.mark.parametrize("n_labels", [1, 2, 5])
def test_one_label_and_all_sizes_are_independent_logistic_regressions(n_labels):
    scores = SCORES[:, :n_labels]
    answers = answers_of(classifier_of(CardinalitySpace(n_labels, 0, n_labels)), scores)
    np.testing.assert_allclose(answers["probabilities"], 1 / (1 + np.exp(-scores)), rtol=0, atol=1e-14)


@every_space
def test_scores_of_1e5_and_ties_are_answered_as_by_the_space(space):
    extreme = np.round(SCORES[:8]) * np.array([1e5, 1e3, 1, 0])[np.arange(8) % 4, None]
    answers, d = answers_of(classifier_of(space), extreme), space.distribution(extreme)
    np.testing.assert_allclose(answers["probabilities"], d.marginals(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(answers["set_probability"], d.prob(d.mode()), rtol=0, atol=1e-9)


@every_space
@pytest.mark.parametrize("scale", [1e7, 1e50, 1e99])
def test_scores_beyond_the_range_give_nan_and_no_wrong_answer(space, scale):
    scores = np.clip(np.round(SCORES[:8]), -9, 9) * np.where(np.arange(N_LABELS) % 3 == 0, 1, scale)
    answers = answers_of(classifier_of(space), scores)
    if type(space) in (CardinalitySpace, GroupSpace):
        d = space.distribution(scores)
        np.testing.assert_allclose(answers["probabilities"], d.marginals(), rtol=0, atol=1e-12)
        np.testing.assert_array_equal(answers["label"], d.mode())
    else:
        assert np.isnan(answers["probabilities"]).all() and np.isnan(answers["set_probability"]).all()


def test_an_open_space_whose_modes_are_held_back_answers_with_the_best_of_the_others():
    scores, d = SCORES[:6], SPACES["size bias"].distribution(SCORES[:6])
    held_back = np.unique(d.top_sets(4)[0].reshape(-1, N_LABELS), axis=0)
    space = OpenSpace(N_LABELS, 0, N_LABELS, held_back, np.full(len(held_back), -9.0), SIZE_BIAS)
    np.testing.assert_array_equal(answers_of(classifier_of(space), scores)["label"], space.distribution(scores).mode())


@every_space
def test_a_row_with_nan_has_nan_for_probabilities_and_leaves_other_rows_alone(space):
    scores = SCORES[:6].copy()
    scores[1, 4], scores[2], scores[4, 0] = np.nan, -np.inf, 10 * space.largest_score
    wrong = np.isin(np.arange(6), [1, 2, 4])
    answers, d = answers_of(classifier_of(space), scores), space.distribution(SCORES[:6][~wrong])
    assert (answers["label"][wrong] == 0).all()
    np.testing.assert_array_equal(answers["label"][~wrong], d.mode())
    expected = {"probabilities": d.marginals(), "sizes": d.cardinality_pmf(), "set_probability": d.prob(d.mode())}
    for name, values in expected.items():
        assert np.isnan(answers[name][wrong]).all(), name
        np.testing.assert_allclose(answers[name][~wrong], values, rtol=0, atol=1e-12, err_msg=name)


def test_no_rows_give_no_answers():
    for space in SPACES.values():
        answers = answers_of_rows(classifier_of(space), np.zeros((0, N_LABELS)))
        assert {len(values) for values in answers.values()} == {0}


def answers_of_rows(model, X):
    return run(to_onnx(model), {"X": X})


X, Y = make_multilabel(120)


@pytest.fixture(scope="module")
def linear():
    return make_pipeline(StandardScaler(), MLRHClassifier(label_space="open")).fit(X, Y)


def assert_same(model, exported, X):
    answers = run(exported, {"X": X})
    np.testing.assert_array_equal(answers["label"], model.predict(X))
    np.testing.assert_allclose(answers["probabilities"], model.predict_proba(X), rtol=0, atol=1e-10)


def test_a_pipeline_answers_as_its_export_by_skl2onnx(linear):
    assert_same(linear, skl2onnx.to_onnx(linear, X[:1]), X)


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
def test_kernel_scores_are_those_of_the_classifier(kernel):
    model = KernelMLRHClassifier(kernel=kernel, gamma=0.01, coef0=0.5, degree=2).fit(X, Y)
    answers = run(to_onnx(model), {"X": X})
    # Where a kernel matrix is nearly singular, dual coefficients are large and cancel: rounding of the kernel shows.
    terms = np.abs(pairwise_kernels(X, metric=kernel, filter_params=True, gamma=0.01, coef0=0.5, degree=2))
    tolerance = 1e-14 * (terms @ np.abs(model.dual_coef_.T)).max()
    np.testing.assert_allclose(answers["scores"], model.decision_function(X), rtol=0, atol=1e-12 + tolerance)


@pytest.mark.parametrize("approximation", ["nystroem", "fourier"])
def test_scores_of_an_approximate_kernel_are_those_of_the_classifier(approximation):
    options = {"kernel_approximation": approximation, "n_components": 10, "random_state": 0}
    model = KernelMLRHClassifier(gamma=0.1, **options).fit(X, Y)
    answers = run(to_onnx(model), {"X": X})
    tolerance = 1e-14 * np.abs(model.dual_coef_).sum(axis=1).max()  # kernel values and cosines are at most 1
    np.testing.assert_allclose(answers["scores"], model.decision_function(X), rtol=0, atol=1e-12 + tolerance)


def test_a_precomputed_kernel_is_the_input():
    gram = X @ X.T
    model = KernelMLRHClassifier(kernel="precomputed").fit(gram, Y)
    assert_same(model, to_onnx(model), gram)


@pytest.mark.parametrize("cls", [MLRHClassifierCV, KernelMLRHClassifierCV])
def test_classifiers_with_cross_validation_are_exported(cls):
    model = cls(Cs=[0.1, 1.0], cv=2).fit(X, Y)
    assert_same(model, to_onnx(model), X)


def test_a_search_is_exported():
    search = GridSearchCV(MLRHClassifier(), {"C": [0.1, 1.0]}, cv=2).fit(X, Y)
    assert_same(search, skl2onnx.to_onnx(search, X[:1]), X)
    assert_same(search, to_onnx(search), X)


def test_a_search_within_a_pipeline_and_around_one_is_exported():
    search = GridSearchCV(MLRHClassifier(), {"C": [0.1, 1.0]}, cv=2)
    inner = make_pipeline(StandardScaler(), search).fit(X, Y)
    assert_same(inner, to_onnx(inner), X)
    outer = GridSearchCV(make_pipeline(StandardScaler(), search), {"standardscaler__with_mean": [True]}, cv=2).fit(X, Y)
    assert_same(outer, to_onnx(outer), X)


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_calibration_is_exported_with_its_confidence(linear, method):
    model = CalibratedSets(linear, method=method, cv=2).fit(X, Y)
    answers = run(to_onnx(model), {"X": X})
    np.testing.assert_array_equal(answers["label"], model.predict(X))
    np.testing.assert_allclose(answers["set_probability"], model.confidence(X), rtol=0, atol=1e-10)
    if method == "temperature":
        np.testing.assert_allclose(answers["probabilities"], model.predict_proba(X), rtol=0, atol=1e-10)


def test_thresholds_are_exported(linear):
    model = TunedThresholds(linear, cv=2).fit(X, Y)
    assert_same(model, to_onnx(model), X)
    calibrated = TunedThresholds(CalibratedSets(linear, cv=2), cv=2).fit(X, Y)
    assert_same(calibrated, to_onnx(calibrated), X)


def test_the_model_that_was_chosen_automatically_is_exported():
    model = MLRHAuto(quality="fast", scores="linear", label_space="open", cv=2).fit(X, Y)
    assert_same(model, to_onnx(model), X)


@pytest.mark.parametrize("pooling", ["mixture", "geometric"])
@pytest.mark.parametrize("decision", ["exact_match", "f1"])
def test_a_pool_is_exported(linear, pooling, decision):
    other = "observed" if pooling == "mixture" else "open"  # a geometric mean is of members with the same sets
    members = [("linear", linear), ("kernel", KernelMLRHClassifier(label_space=other))]
    model = PooledSets(members, weights=[0.4, 0.6], pooling=pooling, decision=decision).fit(X, Y)
    assert_same(model, to_onnx(model), X)
    calibrated = CalibratedSets(model, cv=2).fit(X, Y)
    assert_same(calibrated, to_onnx(calibrated), X)


@pytest.mark.parametrize("classes", [["a", "b", "c"], [3, 5, 7], ["no", "yes"]], ids=str)
def test_one_class_per_row_is_answered_by_its_class(classes):
    y = np.array(classes)[np.argmax(X[:, : len(classes)], axis=1)]
    model = MLRHClassifier().fit(X, y)
    exported = to_onnx(model)
    assert run(exported, {"X": X})["label"].tolist() == model.predict(X).tolist()
    np.testing.assert_allclose(run(exported, {"X": X})["probabilities"], model.predict_proba(X), rtol=0, atol=1e-10)


def test_columns_of_text_and_numbers_are_inputs_of_their_own():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": X[:, 0], "colour": np.where(X[:, 1] > 0, "red", "blue")})
    columns = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["colour"]))
    model = make_pipeline(columns, MLRHClassifier()).fit(frame, Y)
    inputs = {name: frame[[name]].to_numpy() for name in frame}
    answers = run(skl2onnx.to_onnx(model, frame[:1]), inputs)
    np.testing.assert_allclose(answers["probabilities"], model.predict_proba(frame), rtol=0, atol=1e-6)


def test_names_of_nodes_values_and_subgraphs_are_unique():
    space = GroupSpace([([0, 3], 1, 1), ([1, 5, 7], 0, 2)], N_LABELS)
    nodes, values, graphs = [], [], []

    def look(graph):
        graphs.append(graph.name)
        for node in graph.node:
            nodes.append(node.name)
            values.extend(node.output)
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    look(attribute.g)

    look(to_onnx(classifier_of(space)).graph)
    assert len(graphs) > 5
    for names in (nodes, values, graphs):
        assert "" not in names and len(set(names)) == len(names)


def test_the_graph_passes_the_checker_of_onnx_and_names_labels_and_features():
    names = ["one", "two"]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:, :2], columns=["height", "width"])
    exported = to_onnx(MLRHClassifier().fit(frame, pandas.DataFrame(Y[:, :2], columns=names)))
    onnx.checker.check_model(exported, full_check=True)
    about = {entry.key: json.loads(entry.value) for entry in exported.metadata_props}
    assert about == {"labels": names, "features": ["height", "width"]}


def test_a_file_is_a_few_kilobytes_and_no_larger_for_more_rows():
    exported = to_onnx(classifier_of(CardinalitySpace(20, 1, 5)))
    assert len(exported.SerializeToString()) < 20_000


REFUSED = {
    "another classifier": (lambda: LabelPowerset(MLRHClassifier()).fit(X, Y), "LabelPowerset can't be exported"),
    "a kernel of one's own": (
        lambda: KernelMLRHClassifier(kernel=lambda a, b: a @ b.T).fit(X, Y),
        "A kernel must be one of",
    ),
    "boosted trees": (lambda: MLRHBoostingClassifier(n_estimators=1).fit(X, Y), "Boosted trees can't be exported"),
    "a metric beyond the cardinality space": (
        lambda: classifier_of(SPACES["observed"], decision="jaccard"),
        "Decisions for a metric are exported for a cardinality space",
    ),
    "many labels to list": (
        lambda: classifier_of(HierarchySpace([-1] * 15, max_leaves=2)),
        "can be exported only as the list of its sets",
    ),
    "many labels of a space of a user": (
        lambda: classifier_of(Runs(15)),
        r"Runs\(n_labels=15\) can be exported only as the list of its sets, which takes at most 14 labels; got 15",
    ),
    # It may have other sets than the class that it is derived from, whose graph would answer otherwise.
    "many labels of a space derived from one of ours": (
        lambda: classifier_of(type("Own", (CardinalitySpace,), {})(15, 1, 3)),
        "can be exported only as the list of its sets",
    ),
    "sets that are held back": (
        lambda: classifier_of(OpenSpace(15, 0, 15, np.eye(15, dtype=int), np.full(15, -11.0))),
        "biases of sets of at least -10",
    ),
}


@pytest.mark.parametrize(("model", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cant_be_exported_gets_a_sentence(model, sentence):
    with pytest.raises(ValueError, match=sentence):
        to_onnx(model())


def test_character_tfidf_gets_a_sentence():
    texts = np.array(["red house", "blue house", "red car", "blue car"] * 5)
    model = make_pipeline(TfidfVectorizer(analyzer="char_wb"), MLRHClassifier()).fit(texts, Y[:20])
    with pytest.raises(ValueError, match=r"A step of this model can't be exported to ONNX \(.*\); do this step before"):
        to_onnx(model, texts[:, None])


TEXTS = np.array(["red house", "blue house", "a red car", "na ve car's, na"] * 5)


@pytest.mark.parametrize("cls", [CountVectorizer, TfidfVectorizer])
def test_words_in_ascii_answer_as_in_the_model(cls):
    model = make_pipeline(cls(lowercase=False), MLRHClassifier(C=10)).fit(TEXTS, Y[:20])
    answers = run(to_onnx(model, TEXTS[:, None]), {"X": TEXTS[:, None]})
    np.testing.assert_allclose(answers["probabilities"], model.predict_proba(TEXTS), rtol=0, atol=1e-4)


TEXT_STEPS = {
    "other letters": (TfidfVectorizer(lowercase=False), "TfidfVectorizer .* aren't ASCII, .*; got 'naïve'"),
    "counts of other letters": (CountVectorizer(lowercase=False), "CountVectorizer .* aren't ASCII"),
    "lower case": (TfidfVectorizer(), "lowercase=True, .*; make texts lower-case beforehand"),
    "lower case of characters": (CountVectorizer(analyzer="char"), "lowercase=True, .*; make texts lower-case"),
    "two words": (
        TfidfVectorizer(lowercase=False, ngram_range=(1, 2), vocabulary=["red", "red house"]),
        r"several words in a row, .*; got ngram_range=\(1, 2\)",
    ),
    "logarithms of counts": (
        TfidfVectorizer(lowercase=False, sublinear_tf=True, vocabulary=["red", "house"]),
        "sublinear_tf=True, .*; fit it with sublinear_tf=False",
    ),
}


@pytest.mark.parametrize(("step", "sentence"), TEXT_STEPS.values(), ids=TEXT_STEPS)
def test_texts_that_would_be_answered_otherwise_get_a_sentence(step, sentence):
    texts = np.array([text.replace("na ve", "naïve") for text in TEXTS])
    for steps in ([step], [make_column_transformer((make_union(step), 0))]):
        given = texts if steps == [step] else texts[:, None]
        model = make_pipeline(*steps, MLRHClassifier()).fit(given, Y[:20])
        with pytest.raises(ValueError, match=sentence):
            to_onnx(model, texts[:, None])


def test_a_step_that_mixes_types_gets_a_sentence_and_is_exported_for_float32():
    model = make_pipeline(PolynomialFeatures(2), StandardScaler(), MLRHClassifier()).fit(X[:, :2], Y)
    with pytest.raises(ValueError, match=r"can't be exported to ONNX \(.*\); export for float32"):
        to_onnx(model)
    rows = X[:, :2].astype(np.float32)
    answers = run(to_onnx(model, dtype=np.float32), {"X": rows})
    np.testing.assert_allclose(answers["probabilities"], model.predict_proba(rows), rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", [MLRHClassifier(), make_pipeline(StandardScaler(), MLRHClassifier())], ids=type)
def test_a_model_that_is_not_fitted_is_refused(model):
    with pytest.raises(NotFittedError, match="MLRHClassifier instance is not fitted"):
        to_onnx(model)


def test_an_older_operator_set_gets_a_sentence(linear):
    with pytest.raises(ValueError, match="target_opset must be at least 18"):
        skl2onnx.to_onnx(linear, X[:1], target_opset=15)
