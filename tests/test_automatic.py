"""From a data set to a model with names: the choice is that of MLRHAuto, and copes with whatever data come."""

from dataclasses import replace

import numpy as np
import pytest
from samples import make_multilabel
from scipy import sparse
from sklearn.metrics import hamming_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import KernelMLRHClassifier, MLRHAuto, MLRHClassifier, persistence
from mlrh._indicators import UNKNOWN
from mlrh.automatic import Model, choose, make_preprocessor
from mlrh.data import MultilabelData, load_digit_scenes
from mlrh.estimators import auto
from mlrh.model_selection import MultilabelStratifiedKFold


@pytest.fixture(autouse=True)
def tiny_grids(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (0.01, 1.0))
    monkeypatch.setattr(auto, "RBF_C", (1.0, 30.0))
    monkeypatch.setattr(auto, "RBF_GAMMA", (3.0, 0.3))
    monkeypatch.setattr(auto, "ROUNDS", (3,))
    monkeypatch.setattr(auto, "SEARCH_TOL", 1e-7)


def made(X, Y, categories=None, name="made"):
    features = tuple(f"f{column}" for column in range(X.shape[1]))
    labels = tuple(f"label {column}" for column in range(Y.shape[1]))
    return MultilabelData(X, np.asarray(Y, np.int8), features, labels, name, categories or {})


def sample(n_samples=60, **options):
    return made(*make_multilabel(n_samples, **options))


def test_the_choice_is_that_of_mlrh_auto():
    data = sample()
    model = choose(data, metric="f1", n_folds=3, seed=4, quality="fast")
    expected = MLRHAuto(metric="f1", time_budget=None, cv=3, random_state=4, quality="fast").fit(data.X, data.Y)
    assert model.settings["model"] == expected.leaderboard_[0]["model"]
    assert model.validation == expected.validation_
    np.testing.assert_array_equal(model.predict(data), expected.predict(data.X))


def test_the_final_model_is_the_chosen_pipeline_fitted_to_all_rows():
    data = sample()
    model = choose(data, scores="rbf", quality="fast", label_space="observed", n_folds=3)
    settings = model.settings
    X = StandardScaler().fit_transform(data.X)
    # Standardised columns have variance 1, so that "scale" is 1 / n_features.
    expected = KernelMLRHClassifier(label_space="observed", C=settings["C"], gamma=settings["gamma_units"] / 6)
    expected.fit(X, data.Y)
    np.testing.assert_allclose(model.distribution(data).marginals(), expected.predict_proba(X), atol=1e-9)


def test_preprocessing_does_not_see_the_held_out_rows():
    # A single huge value would shrink all others if the scale were taken from all rows.
    data = sample(30)
    X = data.X.copy()
    X[0] *= 1e6
    model = choose(replace(data, X=X), scores="linear", label_space="cardinality", n_folds=2)
    C, bias = model.settings["C"], model.settings["size_bias"]
    splitter = MultilabelStratifiedKFold(2, shuffle=True, random_state=0)
    for (train, held_out), found in zip(splitter.split(X, data.Y), model.validation["hamming_loss"], strict=True):
        pipeline = make_pipeline(StandardScaler(), MLRHClassifier(C=C, size_bias=bias)).fit(X[train], data.Y[train])
        assert found == pytest.approx(hamming_loss(data.Y[held_out], pipeline.predict(X[held_out])))


def test_of_equally_good_models_the_one_that_is_tried_first_is_chosen():
    # The only set of the space is certain.
    model = choose(made(make_multilabel(20)[0], np.tile([1, 0, 1], (20, 1))), n_folds=3, label_space="observed")
    chosen = {name: model.settings[name] for name in ("scores", "label_space", "C")}
    assert chosen == {"scores": "linear", "label_space": "observed", "C": 0.01}
    assert model.validation["exact_match"] == [1.0] * 3


@pytest.mark.slow
def test_processes_choose_what_one_process_chooses():
    data = sample(40)
    one, two = (choose(data, quality="fast", n_folds=2, n_jobs=n_jobs) for n_jobs in (1, 2))
    assert one.settings == two.settings and one.validation == two.validation
    np.testing.assert_array_equal(one.distribution(data).marginals(), two.distribution(data).marginals())


@pytest.mark.parametrize("scores", ["linear", "rbf", "boosted"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "nominal", "sparse nominal"])
def test_a_saved_model_predicts_bit_for_bit_as_before(scores, kind, tmp_path):
    data = nominal_sample() if "nominal" in kind else sample()
    data = replace(data, X=thinned(data.X)) if "sparse" in kind else data
    if (scores, kind) == ("boosted", "sparse nominal"):
        with pytest.raises(ValueError, match="A sparse X can't have features of categories"):
            choose(data, scores=scores, n_folds=2)
        return
    model = choose(data, scores=scores, quality="fast", n_folds=2)
    persistence.save(model, tmp_path / "model.mlrh")
    loaded = persistence.load(tmp_path / "model.mlrh")
    assert (loaded.schema, loaded.settings, loaded.validation) == (model.schema, model.settings, model.validation)
    np.testing.assert_array_equal(loaded.predict(data), model.predict(data))
    np.testing.assert_array_equal(loaded.distribution(data).scores, model.distribution(data).scores)


def test_a_file_whose_model_has_parts_of_another_model_is_refused(tmp_path):
    three, four = choose(sample(20, n_labels=3), scores="linear", n_folds=2), choose(sample(20), n_folds=2)
    with pytest.raises(TypeError, match="a classifier of its labels"):
        replace(three, classifier=four.classifier)
    forged = Model(three.schema, three.preprocessor, three.classifier, three.settings, three.validation)
    object.__setattr__(forged, "preprocessor", [1, 2])
    with pytest.raises(persistence.ModelFileError):
        persistence.save(forged, tmp_path / "model.mlrh")


def test_columns_in_another_order_and_columns_more_change_nothing():
    data = sample()
    model = choose(data, scores="linear", quality="fast", n_folds=2)
    order = [3, 0, 5, 1, 4, 2]
    moved = replace(
        data,
        X=np.column_stack([data.X[:, order], data.Y]),
        feature_names=(*(data.feature_names[column] for column in order), *data.label_names),
    )
    np.testing.assert_array_equal(model.distribution(moved).scores, model.distribution(data).scores)


@pytest.mark.parametrize("rows", [["a text"], "new.csv", np.zeros((2, 3))], ids=["list", "path", "array"])
def test_rows_without_names_of_columns_are_refused_in_a_sentence(rows):
    model = choose(load_digit_scenes(40), scores="linear", label_space="cardinality", n_folds=2, n_jobs=1)
    with pytest.raises(
        TypeError, match=rf"^Rows must be a pandas or polars DataFrame .* got a {type(rows).__name__}\.$"
    ):
        model.predict(rows)


def test_dense_and_sparse_rows_of_the_same_numbers_are_predicted_alike():
    dense = sample()
    thin = replace(dense, X=thinned(dense.X))
    of_dense, of_sparse = (choose(data, scores="linear", quality="fast", n_folds=2) for data in (dense, thin))
    as_sparse, as_dense = replace(dense, X=sparse.csr_array(dense.X)), replace(thin, X=thin.X.toarray())
    np.testing.assert_allclose(of_dense.distribution(as_sparse).scores, of_dense.distribution(dense).scores)
    np.testing.assert_allclose(of_sparse.distribution(as_dense).scores, of_sparse.distribution(thin).scores)


def test_one_label_is_binary_logistic_regression_and_may_be_absent():
    data = sample(80)
    data = replace(data, Y=data.Y[:, :1], label_names=("only",))
    model = choose(data, scores="linear", label_space="cardinality", n_folds=3)
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
    assert (model.predict(data).sum(axis=1) == 0).sum() > 0


def test_rows_that_are_all_empty_give_a_model_of_the_empty_set():
    model = choose(made(make_multilabel(12)[0], np.zeros((12, 2))), n_folds=3)
    assert not model.predict(made(np.ones((2, 6)), np.zeros((2, 2)))).any()
    assert model.validation["exact_match"] == [1.0] * 3


@pytest.mark.parametrize("make_sparse", [False, True])
def test_a_nominal_value_unknown_in_training_counts_as_none_of_the_known(make_sparse):
    data = nominal_sample()
    if make_sparse:
        data = replace(data, X=sparse.csr_array(data.X))
    model = choose(data, scores="linear", quality="fast", n_folds=2)
    other = replace(data, categories={"f6": ("low", "middle", "new")})
    known, unknown = model.distribution(data).scores, model.distribution(other).scores
    changed = (known != unknown).any(axis=1)
    codes = data.X[:, [6]].toarray().ravel() if make_sparse else data.X[:, 6]
    np.testing.assert_array_equal(changed, codes == 2)


def test_the_probability_to_refuse_below_may_be_a_numpy_number_where_labels_are_unknown():
    data = sample()
    data.Y[::4, 0] = UNKNOWN
    model = choose(data, scores="linear", label_space="cardinality", n_folds=2, refuse_below=np.float64(0.2))
    assert model.rule.refuse_below == 0.2
    assert any(
        note.endswith("the other rows, which calibration and thresholds are by.") for note in model.settings["notes"]
    )


def test_fewer_rows_than_folds_are_left_out_one_by_one():
    data = sample(4)
    model = choose(data, n_folds=10)
    assert model.settings["n_folds"] == 4 and len(model.validation["exact_match"]) == 4
    assert model.settings["notes"][0] == "There are 4 rows, so there are 4 folds, not 10."


@pytest.mark.parametrize(
    "limit, words, absent",
    [
        ("MAX_RBF_ROWS", "An RBF kernel was not tried: there are 40 rows, more than 10.", "RBF"),
        ("MAX_SETS", "The observed label space was not tried: there are", "observed"),
    ],
)
def test_what_is_too_costly_is_not_tried_and_that_is_noted(limit, words, absent, monkeypatch):
    monkeypatch.setattr(auto, limit, 10)
    model = choose(sample(40), n_folds=2)
    assert model.settings["notes"][0].startswith(words)
    assert not any(absent in line["model"] for line in model.classifier.leaderboard_)


def test_steps_are_reported_up_to_the_last():
    steps = []
    choose(sample(20), n_folds=2, report=lambda done, total, text: steps.append((done, total)))
    # (1 linear + 2 gammas + 1 boosted) x (3 label spaces, the open one twice) x 2 folds, 1 fit.
    assert steps == [(step, 33) for step in range(1, 34)]


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
        ({}, {"n_folds": 1}, "The 'cv' parameter of MLRHAuto must be an int in the range"),
        ({}, {"scores": "poly"}, "The 'scores' parameter of MLRHAuto must be a str among"),
        ({}, {"label_space": "all"}, "The 'label_space' parameter of MLRHAuto must be"),
        ({}, {"metric": "beauty"}, "The 'metric' parameter of MLRHAuto must be a str among"),
    ],
)
def test_what_can_not_be_fitted_is_refused_in_a_sentence(change, options, words):
    with pytest.raises(ValueError, match=words):
        choose(replace(sample(20), **change), **options)


@pytest.mark.parametrize(
    ("changed", "value", "why"),
    [
        ("MAX_EXACT_RBF_ROWS", 19, "there are 20 rows, more than 19"),
        (
            "lacking_memory",
            lambda n_rows: f"the exact kernel of {n_rows} rows takes 9 GB",
            "the exact kernel of 20 rows",
        ),
    ],
)
def test_an_rbf_kernel_of_too_many_rows_is_approximated_and_says_so(changed, value, why, monkeypatch):
    monkeypatch.setattr(auto, changed, value)
    monkeypatch.setattr(auto, "N_COMPONENTS", 7)
    model = choose(sample(20), scores="rbf", quality="fast", n_folds=2, n_jobs=1)
    kernel = model.classifier.best_estimator_[-1]
    assert (kernel.kernel_approximation, kernel.n_components) == ("nystroem", 7)
    assert any(f"approximated, by Nystroem with 7 components: {why}" in note for note in model.settings["notes"])
    assert choose(sample(20), scores="linear", quality="fast", n_folds=2, n_jobs=1).settings["notes"] == []


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
