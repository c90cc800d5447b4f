"""The choice of a model equals a search written out with scikit-learn's tools, and copes with whatever data come."""

import warnings
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from samples import make_multilabel
from scipy import sparse
from sklearn.metrics import accuracy_score, f1_score, hamming_loss, jaccard_score
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import KernelMLRHClassifier, MLRHClassifier, automatic, persistence
from mlrh.automatic import Model, choose, make_preprocessor
from mlrh.data import MultilabelData, load_digit_scenes


@pytest.fixture(autouse=True)
def tiny_grids(monkeypatch):
    monkeypatch.setattr(automatic, "LINEAR_C", (0.01, 1.0))
    monkeypatch.setattr(automatic, "RBF_C", (1.0, 30.0))
    monkeypatch.setattr(automatic, "RBF_GAMMA", (0.3, 3.0))
    monkeypatch.setattr(automatic, "SEARCH_TOL", 1e-7)


def made(X, Y, categories=None, name="made"):
    features = tuple(f"f{column}" for column in range(X.shape[1]))
    labels = tuple(f"label {column}" for column in range(Y.shape[1]))
    return MultilabelData(X, np.asarray(Y, np.int8), features, labels, name, categories or {})


def sample(n_samples=60, **options):
    return made(*make_multilabel(n_samples, **options))


def all_forms():
    """Every form of the tiny grids, simplest first, as (settings, pipeline)."""
    spaces = [("cardinality", False), ("cardinality", True), ("observed", False)]
    for (space, bias), C in product(spaces, (0.01, 1.0)):
        form = {"label_space": space, "size_bias": bias, "C": C}
        yield {"kernel": "linear", **form}, make_pipeline(StandardScaler(), MLRHClassifier(**form))
    for (space, bias), units, C in product(spaces, (0.3, 3.0), (1.0, 30.0)):
        form = {"label_space": space, "size_bias": bias, "C": C}
        # Standardised columns have variance 1, so that "scale" is 1 / n_features.
        classifier = KernelMLRHClassifier(**form, gamma=units / 6)
        yield {"kernel": "rbf", "gamma_units": units, **form}, make_pipeline(StandardScaler(), classifier)


def fold_scores(pipeline, data, decision):
    pipeline[-1].set_params(decision=decision)
    scores = []
    for train, held_out in KFold(3, shuffle=True, random_state=4).split(data.X):
        predicted = pipeline.fit(data.X[train], data.Y[train]).predict(data.X[held_out])
        scores.append(METRICS[decision][1](data.Y[held_out], predicted))
    return scores


METRICS = {  # the name on record, and what scikit-learn has for it
    "exact_match": ("exact_match", accuracy_score),
    "hamming": ("hamming_loss", hamming_loss),
    "f1": ("f1_example", partial(f1_score, average="samples", zero_division=1)),
    "jaccard": ("jaccard", partial(jaccard_score, average="samples", zero_division=1)),
}


@pytest.mark.parametrize(
    ("decision", "seed"),
    [("exact_match", 0), ("exact_match", 1), ("hamming", 0), ("hamming", 1), ("f1", 0), ("jaccard", 1)],
)
def test_the_choice_is_that_of_a_search_written_out_with_pipelines(decision, seed):
    data = sample(seed=seed)
    model = choose(data, decision=decision, n_folds=3, seed=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scored = [(settings, fold_scores(pipeline, data, decision)) for settings, pipeline in all_forms()]
    sign = -1 if decision == "hamming" else 1
    settings, scores = max(scored, key=lambda pair: round(sign * float(np.mean(pair[1])), 9))  # the first of equals
    assert {name: model.settings[name] for name in settings} == settings
    np.testing.assert_allclose(model.validation[METRICS[decision][0]], scores, atol=1e-12)


def test_the_final_model_is_the_chosen_pipeline_fitted_to_all_rows():
    data = sample()
    model = choose(data, kernel="rbf", label_space="observed", n_folds=3)
    settings = model.settings
    X = StandardScaler().fit_transform(data.X)
    expected = KernelMLRHClassifier(label_space="observed", C=settings["C"], gamma=settings["gamma_units"] / 6)
    expected.fit(X, data.Y)
    np.testing.assert_allclose(model.distribution(data).marginals(), expected.predict_proba(X), atol=1e-9)
    assert settings["gamma"] == pytest.approx(settings["gamma_units"] / 6)


def test_preprocessing_does_not_see_the_held_out_rows():
    # A single huge value would shrink all others if the scale were taken from all rows.
    data = sample(30)
    X = data.X.copy()
    X[0] *= 1e6
    model = choose(replace(data, X=X), kernel="linear", label_space="cardinality", n_folds=2)
    C, bias = model.settings["C"], model.settings["size_bias"]
    for (train, held_out), found in zip(
        KFold(2, shuffle=True, random_state=0).split(X), model.validation["hamming_loss"], strict=True
    ):
        pipeline = make_pipeline(StandardScaler(), MLRHClassifier(C=C, size_bias=bias)).fit(X[train], data.Y[train])
        assert found == pytest.approx(hamming_loss(data.Y[held_out], pipeline.predict(X[held_out])))


def test_of_equally_good_models_the_simplest_is_chosen():
    model = choose(made(make_multilabel(20)[0], np.tile([1, 0, 1], (20, 1))), n_folds=3)
    chosen = {name: model.settings[name] for name in ("kernel", "label_space", "size_bias", "C")}
    assert chosen == {"kernel": "linear", "label_space": "cardinality", "size_bias": False, "C": 0.01}
    assert model.validation["exact_match"] == [1.0] * 3


def test_processes_choose_what_one_process_chooses():
    data = sample(40)
    one, two = (choose(data, n_folds=2, n_jobs=n_jobs) for n_jobs in (1, 2))
    assert one.settings == two.settings and one.validation == two.validation
    np.testing.assert_array_equal(one.distribution(data).scores, two.distribution(data).scores)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "nominal", "sparse nominal"])
def test_a_saved_model_predicts_bit_for_bit_as_before(kernel, kind, tmp_path):
    data = nominal_sample() if "nominal" in kind else sample()
    data = replace(data, X=thinned(data.X)) if "sparse" in kind else data
    model = choose(data, kernel=kernel, n_folds=2)
    persistence.save(model, tmp_path / "model.mlrh")
    loaded = persistence.load(tmp_path / "model.mlrh")
    assert (loaded.schema, loaded.settings, loaded.validation) == (model.schema, model.settings, model.validation)
    np.testing.assert_array_equal(loaded.predict(data), model.predict(data))
    np.testing.assert_array_equal(loaded.distribution(data).scores, model.distribution(data).scores)


def test_a_file_whose_model_has_parts_of_another_model_is_refused(tmp_path):
    three, four = choose(sample(20, n_labels=3), kernel="linear", n_folds=2), choose(sample(20), n_folds=2)
    with pytest.raises(TypeError, match="a classifier of its labels"):
        replace(three, classifier=four.classifier)
    forged = Model(three.schema, three.preprocessor, three.classifier, three.settings, three.validation)
    object.__setattr__(forged, "preprocessor", [1, 2])
    with pytest.raises(persistence.ModelFileError):
        persistence.save(forged, tmp_path / "model.mlrh")


def test_columns_in_another_order_and_columns_more_change_nothing():
    data = sample()
    model = choose(data, kernel="linear", n_folds=2)
    order = [3, 0, 5, 1, 4, 2]
    moved = replace(
        data,
        X=np.column_stack([data.X[:, order], data.Y]),
        feature_names=(*(data.feature_names[column] for column in order), *data.label_names),
    )
    np.testing.assert_array_equal(model.distribution(moved).scores, model.distribution(data).scores)


def test_dense_and_sparse_rows_of_the_same_numbers_are_predicted_alike():
    dense = sample()
    thin = replace(dense, X=thinned(dense.X))
    of_dense, of_sparse = (choose(data, kernel="linear", n_folds=2) for data in (dense, thin))
    as_sparse, as_dense = replace(dense, X=sparse.csr_array(dense.X)), replace(thin, X=thin.X.toarray())
    np.testing.assert_allclose(of_dense.distribution(as_sparse).scores, of_dense.distribution(dense).scores)
    np.testing.assert_allclose(of_sparse.distribution(as_dense).scores, of_sparse.distribution(thin).scores)


def test_one_label_is_binary_logistic_regression_and_may_be_absent():
    data = sample(80)
    data = replace(data, Y=data.Y[:, :1], label_names=("only",))
    model = choose(data, kernel="linear", label_space="cardinality", n_folds=3)
    y = data.Y[:, 0]
    binary = MLRHClassifier(C=model.settings["C"]).fit(StandardScaler().fit_transform(data.X), y)
    expected = binary.predict_proba(StandardScaler().fit_transform(data.X))[:, 1]
    np.testing.assert_allclose(model.distribution(data).marginals()[:, 0], expected, atol=1e-5)
    assert model.predict(data).shape == (80, 1) and set(model.predict(data).ravel().tolist()) == {0, 1}


@pytest.mark.parametrize("value, words", [(0, "No row has the label label 1"), (1, "Every row has the label label 1")])
def test_a_label_that_never_changes_is_noted_by_name_and_predicted_as_always(value, words):
    data = sample(40)
    Y = data.Y.copy()
    Y[:, 1] = value
    model = choose(replace(data, Y=Y), n_folds=2)
    assert [note.startswith(words) for note in model.settings["notes"]] == [True]
    assert (model.predict(data)[:, 1] == value).all()


def test_rows_without_labels_can_be_predicted_to_have_none():
    data = sample(80, min_labels=0)
    X = data.X.copy()
    X[:, 0] += 20 * (data.Y.sum(axis=1) == 0)
    data = replace(data, X=X)
    assert (data.Y.sum(axis=1) == 0).sum() > 5
    model = choose(data, n_folds=3)
    assert model.settings["min_labels"] == 0
    assert (model.predict(data).sum(axis=1) == 0).sum() > 0


def test_rows_that_are_all_empty_give_a_model_of_the_empty_set():
    model = choose(made(make_multilabel(12)[0], np.zeros((12, 2))), n_folds=3)
    assert model.settings["max_labels"] == 0 and model.validation["exact_match"] == [1.0] * 3


@pytest.mark.parametrize("make_sparse", [False, True])
def test_a_nominal_value_unknown_in_training_counts_as_none_of_the_known(make_sparse):
    data = nominal_sample()
    if make_sparse:
        data = replace(data, X=sparse.csr_array(data.X))
    model = choose(data, kernel="linear", n_folds=2)
    other = replace(data, categories={"f6": ("low", "middle", "new")})
    known, unknown = model.distribution(data).scores, model.distribution(other).scores
    changed = (known != unknown).any(axis=1)
    codes = data.X[:, [6]].toarray().ravel() if make_sparse else data.X[:, 6]
    np.testing.assert_array_equal(changed, codes == 2)


def test_fewer_rows_than_folds_are_left_out_one_by_one():
    data = sample(4)
    model = choose(data, n_folds=10)
    assert model.settings["n_folds"] == 4 and len(model.validation["exact_match"]) == 4
    assert model.settings["notes"][0] == "There are 4 rows, so there are 4 folds, not 10."


@pytest.mark.parametrize(
    "limit, words, setting",
    [
        ("MAX_RBF_ROWS", "An RBF kernel was not tried: there are 40 rows, more than 10.", ("kernel", "linear")),
        ("MAX_SETS", "The observed label space was not tried: there are", ("label_space", "cardinality")),
    ],
)
def test_what_is_too_costly_is_not_tried_and_that_is_noted(limit, words, setting, monkeypatch):
    monkeypatch.setattr(automatic, limit, 10)
    model = choose(sample(40), n_folds=2)
    assert model.settings["notes"][0].startswith(words)
    assert model.settings[setting[0]] == setting[1]


def test_steps_are_reported_up_to_the_last():
    steps = []
    choose(sample(20), n_folds=2, report=lambda done, total, text: steps.append((done, total)))
    # (1 linear + 2 gammas) x 3 label spaces x 2 folds, 2 validations, 1 fit.
    assert steps == [(step, 21) for step in range(1, 22)]


def test_what_a_first_fit_compiles_does_not_count_in_the_time_that_starts_processes(monkeypatch):
    clock, fitted = [0.0], set()
    real = automatic.validation_scores

    def slow_at_first(classifier, *args, **kwargs):
        form = type(classifier), classifier.label_space, classifier.size_bias
        clock[0] += 0.1 if form in fitted else 100.0
        fitted.add(form)
        return real(classifier, *args, **kwargs)

    def processes(work, tasks, *, n_jobs):
        assert not tasks, "processes were started"
        yield from ()

    monkeypatch.setattr(automatic, "validation_scores", slow_at_first)
    monkeypatch.setattr(automatic.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(automatic, "cpu_count", lambda: 2)
    monkeypatch.setattr(automatic, "as_finished", processes)
    choose(sample(20), n_folds=2)
    assert len(fitted) == 6 and clock[0] > 600
    monkeypatch.setattr(automatic, "SERIAL_SECONDS", 0.5)
    with pytest.raises(AssertionError, match="processes were started"):
        choose(sample(20), n_folds=2)


def test_a_process_that_dies_is_told_with_what_it_was_fitting(monkeypatch):
    def dying(work, tasks, *, n_jobs):
        yield 1, ChildProcessError("its process died"), []

    monkeypatch.setattr(automatic, "as_finished", dying)
    words = r"A fit \(linear, cardinality\) failed: its process died; use fewer processes\."
    with pytest.raises(ChildProcessError, match=words):
        choose(sample(20), n_folds=2, n_jobs=2)


def test_an_interrupt_ends_the_choice():
    def report(done, total, text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        choose(sample(20), n_folds=2, report=report)


def test_digit_scenes_are_predicted_better_by_the_chosen_model_than_by_the_commonest_set():
    train, test = load_digit_scenes(200, part="train"), load_digit_scenes(100, part="test")
    model = choose(train, n_folds=2)
    right = (model.predict(test) == test.Y).all(axis=1).mean()
    sets, counts = np.unique(train.Y, axis=0, return_counts=True)
    assert right > (sets[counts.argmax()] == test.Y).all(axis=1).mean() + 0.05


@pytest.mark.parametrize(
    "change, options, words",
    [
        ({"X": np.ones((1, 2)), "Y": np.ones((1, 2), np.int8)}, {}, "made has 1 row; cross validation needs at least"),
        ({"X": np.ones((20, 0))}, {}, "made has no feature, only labels"),
        ({"Y": np.ones((20, 0), np.int8)}, {}, "made has no label"),
        ({}, {"n_folds": 1}, "n_folds must be at least 2; got 1"),
        ({}, {"kernel": "poly"}, "kernel must be one of 'auto', 'linear', 'rbf'; got 'poly'"),
        ({}, {"label_space": "all"}, "label_space must be one of"),
        ({}, {"decision": "beauty"}, "decision must be one of"),
    ],
)
def test_what_can_not_be_fitted_is_refused_in_a_sentence(change, options, words):
    with pytest.raises(ValueError, match=words):
        choose(replace(sample(20), **change), **options)


def test_an_rbf_kernel_for_too_many_rows_is_refused(monkeypatch):
    monkeypatch.setattr(automatic, "MAX_ASKED_RBF_ROWS", 19)
    with pytest.raises(ValueError, match="An RBF kernel takes at most 19 rows"):
        choose(sample(20), kernel="rbf")


def thinned(X):
    return sparse.csr_array(np.where(X > 0, X, 0))


def nominal_sample():
    data = sample()
    codes = np.random.RandomState(0).randint(3, size=(60, 1))
    codes[:, 0] = np.where(data.Y[:, 0] == 1, 2, codes[:, 0])
    return made(np.hstack([data.X, codes]), data.Y, {"f6": ("low", "middle", "high")})


# Preprocessing


def data_of(X, *values):
    """Rows whose first column is nominal where values are given."""
    return made(X, np.ones((X.shape[0], 1)), {"f0": values} if values else {})


def test_dense_numbers_are_standardised_and_missing_ones_are_the_median():
    X = np.array([[1.0, 10.0], [2.0, np.nan], [6.0, 30.0], [3.0, 80.0]])
    filled = np.array([[1.0, 10.0], [2.0, 30.0], [6.0, 30.0], [3.0, 80.0]])
    expected = (filled - filled.mean(axis=0)) / filled.std(axis=0)
    np.testing.assert_allclose(make_preprocessor(data_of(X)).fit_transform(X), expected)


def test_sparse_columns_stay_sparse_and_are_divided_by_their_largest_magnitude():
    X = sparse.csr_array(np.array([[0.0, -4.0], [1.0, 0.0], [0.0, 2.0]]))
    found = make_preprocessor(data_of(X)).fit_transform(X)
    assert sparse.issparse(found)
    np.testing.assert_array_equal(found.toarray(), [[0, -1], [1, 0], [0, 0.5]])


def test_a_nominal_column_becomes_one_column_per_value_and_missing_is_a_value():
    X = np.array([[0.0, 5.0], [2.0, 7.0], [np.nan, 9.0], [0.0, 7.0]])
    found = make_preprocessor(data_of(X, "red", "green", "blue")).fit_transform(X)
    np.testing.assert_array_equal(found[:, :3], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(found[:, 3], (X[:, 1] - 7) / np.sqrt(2))


def test_a_nominal_value_that_training_lacks_becomes_zeros():
    X = np.array([[0.0], [1.0], [1.0]])
    preprocessor = make_preprocessor(data_of(X, "red", "green", "blue")).fit(X)
    np.testing.assert_array_equal(preprocessor.transform(np.array([[2.0]])), [[0, 0]])


def test_a_column_missing_throughout_becomes_zeros():
    X = np.array([[np.nan, 1.0], [np.nan, 2.0]])
    found = make_preprocessor(data_of(X)).fit_transform(X)
    np.testing.assert_array_equal(found, [[0, -1], [0, 1]])


def test_a_sparse_nominal_column_stays_sparse():
    X = sparse.csr_array(np.array([[0.0, 3.0], [1.0, 0.0]]))
    found = make_preprocessor(data_of(X, "no", "yes")).fit_transform(X)
    assert sparse.issparse(found)
    np.testing.assert_array_equal(found.toarray(), [[1, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize("missing", [True, False])
def test_new_rows_with_missing_numbers_are_filled_also_where_training_had_none(missing):
    X = np.array([[1.0], [2.0], [6.0], [np.nan if missing else 2.0]])
    preprocessor = make_preprocessor(data_of(X)).fit(X)
    np.testing.assert_allclose(preprocessor.transform([[np.nan]]), preprocessor.transform([[2.0]]))
