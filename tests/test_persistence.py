"""Files give back the model they were made from, bit for bit; what could not come back is refused by save."""

import gzip
import json
import sys
from collections import UserList
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from packaging.version import Version
from samples import BOTH, FORMS, make_multilabel, one_sentence
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.experimental import enable_halving_search_cv  # noqa: F401  makes the halving search known
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    LeaveOneOut,
    PredefinedSplit,
    RandomizedSearchCV,
    RepeatedKFold,
    ShuffleSplit,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

from mlrh import CalibratedSets, KernelMLRHClassifier, KernelMLRHClassifierCV, MLRHClassifier, MLRHClassifierCV
from mlrh.baselines import IBLR, CCnet, CorrLog, LabelPowerset, MLkNN, OrConstant, ProbabilisticChain
from mlrh.data import MultilabelData
from mlrh.data.containers import Schema
from mlrh.estimators._targets import Targets
from mlrh.estimators.thresholds import TunedThresholds
from mlrh.persistence import ModelFileError, load, save
from mlrh.spaces import CardinalitySpace, ObservedSpace

X, Y = make_multilabel(60)
CLASSES = {"two": np.array(["no", "yes"])[Y[:, 0]], "three": Y[:, :2].sum(axis=1) * 10}
ALL_FORMS = {
    **{name: form(Y) for name, form in FORMS.items()},
    **CLASSES,
    "tuples": [tuple("abcd"[k] for k in np.flatnonzero(row)) for row in Y],
    "frozensets of numbers": [frozenset(np.flatnonzero(row).tolist()) for row in Y],
    "sets of tuples": [{("label", int(k)) for k in np.flatnonzero(row)} for row in Y],
    "booleans": Y.astype(bool),
    "int8": Y.astype(np.int8),
    "csc array": sparse.csc_array(Y),
    "boolean frame": pd.DataFrame(Y.astype(bool), columns=[1, 2, 3, 4]),
}
INPUTS = {
    "dense": X,
    "float32": X.astype(np.float32),
    "fortran": np.asfortranarray(X),
    "sparse": sparse.csr_array(np.where(X > 0, X, 0)),
    "sparse float32": sparse.csr_matrix(np.where(X > 0, X, 0).astype(np.float32)),
    "pandas": pd.DataFrame(X, columns=list("uvwxyz")),
    "polars": pl.DataFrame(X, schema=list("uvwxyz"), orient="row"),
}


def again(value, folder):
    """The value after a trip through a file."""
    save(value, folder / "trip.mlrh")
    return load(folder / "trip.mlrh")


def assert_same(a, b):
    """Equal in type and value, in every bit of every array, all the way down."""
    a = a.data if isinstance(a, UserList) else a  # scikit-learn 1.6 has lists of its own, which come back plain
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert_same(list(a), list(b))
        assert_same(list(a.values()), list(b.values()))
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same(left, right)
    elif isinstance(a, np.ndarray) and a.dtype == object:
        assert a.shape == b.shape
        assert_same(a.ravel().tolist(), b.ravel().tolist())
    elif isinstance(a, np.ndarray | np.generic):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    elif sparse.issparse(a):
        for part in ("data", "indices", "indptr"):
            assert_same(getattr(a, part), getattr(b, part))
        assert a.shape == b.shape
    elif hasattr(a, "__dict__") and not isinstance(a, type | np.ufunc):
        assert_same(vars(a), vars(b))
    else:
        assert a == b or (a != a and b != b)


def assert_equal_answers(a, b):
    if isinstance(a, pd.DataFrame | pl.DataFrame):
        assert type(a) is type(b) and a.equals(b)
    else:
        assert_same(a, b)


def assert_predicts_the_same(model, loaded, X):
    # A copy: of one array with itself NumPy takes a product of another order of summation than of two equal ones.
    X = X.clone() if isinstance(X, pl.DataFrame) else X.copy()
    for method in ("predict", "predict_proba", "decision_function", "confidence"):
        assert hasattr(model, method) == hasattr(loaded, method)
        if hasattr(model, method):
            assert_equal_answers(getattr(model, method)(X), getattr(loaded, method)(X))


@BOTH
@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
@pytest.mark.parametrize("form", ALL_FORMS)
def test_every_form_of_y_is_predicted_bit_for_bit_as_before(classifier, label_space, form, tmp_path):
    model = classifier(label_space=label_space, C=3).fit(X, ALL_FORMS[form])
    loaded = again(model, tmp_path)
    assert_predicts_the_same(model, loaded, X)
    assert model.score(X, ALL_FORMS[form]) == loaded.score(X, ALL_FORMS[form])


@BOTH
@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
@pytest.mark.parametrize("kind", INPUTS)
def test_every_kind_of_features_is_predicted_bit_for_bit_as_before(classifier, label_space, kind, tmp_path):
    model = classifier(label_space=label_space, size_bias=label_space == "cardinality").fit(INPUTS[kind], Y)
    loaded = again(model, tmp_path)
    assert_predicts_the_same(model, loaded, INPUTS[kind])
    assert_same(model, loaded)


def test_answers_about_label_sets_are_the_same_bit_for_bit(tmp_path):
    model = MLRHClassifier(label_space="observed", decision="hamming").fit(X, Y)
    before, after = model.distribution(X), again(model, tmp_path).distribution(X)
    assert_same(before.log_prob(Y), after.log_prob(Y))
    assert_same(list(before.top_sets(3)), list(after.top_sets(3)))
    assert_same(before.sample(5, random_state=0), after.sample(5, random_state=0))


def test_a_precomputed_kernel_and_its_support_come_back(tmp_path):
    weights = np.arange(len(X)) % 3
    model = KernelMLRHClassifier(kernel="precomputed").fit(X @ X.T, Y, sample_weight=weights)
    loaded = again(model, tmp_path)
    assert_same(model, loaded)
    assert_predicts_the_same(model, loaded, X @ X.T)


def test_rows_mapped_from_a_file_come_back_as_an_array(tmp_path):
    mapped = np.memmap(tmp_path / "rows", np.float64, "w+", shape=X.shape)
    mapped[:] = X
    model = KernelMLRHClassifier().fit(X, Y)
    model.X_fit_ = mapped
    loaded = again(model, tmp_path)
    assert type(loaded.X_fit_) is np.ndarray
    assert_predicts_the_same(model, loaded, X)


@BOTH
def test_a_warm_start_goes_on_where_the_saved_fit_ended(classifier, tmp_path):
    model = classifier(warm_start=True, C=2, label_space="observed").fit(X, Y)
    loaded = again(model, tmp_path)
    rows = X.copy()
    assert_same(model.fit(rows, Y), loaded.fit(rows, Y))
    assert model.n_iter_ < classifier(C=2, label_space="observed").fit(X, Y).n_iter_


TEXTS = ["rates rise again", "striker scores twice", "club sold for millions", "bank raises rates"]
TOPICS = [{"economy"}, {"sport"}, {"economy", "sport"}, {"economy"}]
FRAME = pd.DataFrame(X, columns=list("uvwxyz")).assign(place=["here", "there", None] * 20)
FRAME.loc[3, "u"] = np.nan
COLUMNS = ColumnTransformer(
    [
        ("number", make_pipeline(SimpleImputer(), StandardScaler()), ["u", "v"]),
        ("place", OneHotEncoder(handle_unknown="ignore"), ["place"]),
    ],
    remainder="passthrough",
)
FOLDS = KFold(2, shuffle=True, random_state=0)
HALVES = [(np.arange(30), np.arange(30, 60)), (np.arange(30, 60), np.arange(30))]
MODELS = {
    "text to label sets": (make_pipeline(TfidfVectorizer(), MLRHClassifier(C=10)), TEXTS, TOPICS),
    "columns of a frame": (make_pipeline(COLUMNS, MLRHClassifier()), FRAME, FORMS["pandas"](Y)),
    "folds of its own": (MLRHClassifierCV(Cs=[0.1, 1.0], cv=RepeatedKFold(n_splits=2, n_repeats=1)), X, Y),
    "chosen C": (MLRHClassifierCV(Cs=[0.1, 1.0], cv=2), X, Y),
    "chosen C of kernels": (KernelMLRHClassifierCV(Cs=[0.1, 1.0], cv=2), X, Y),
    "answer sizes": (MLRHClassifier(decision=("top", 2), answer_sizes=(None, 3)), X, Y),
    "zeros": (MLRHClassifier(C=0.3, l1_ratio=0.7), X, Y),
    "powerset": (LabelPowerset(), X, Y),
    "powerset of kernels": (LabelPowerset(KernelMLRHClassifier()), X, Y),
    "neighbours by a tree": (MLkNN(n_neighbors=3), X, Y),
    "neighbours by cosine": (MLkNN(n_neighbors=3, metric="cosine"), X, Y),
    "shares of neighbours": (IBLR(n_neighbors=3, with_features=True), X, Y),
    "pairs of labels": (CorrLog(), X, FORMS["sets"](Y)),
    "searched chain": (ProbabilisticChain(order=[2, 0, 3, 1], epsilon=0.1), X, Y),
    "elastic nets in a chain": (CCnet([0.1, 1.0], l1_ratios=[0.5], cv=HALVES), X, Y),
    "chain": (make_pipeline(StandardScaler(), ClassifierChain(OrConstant(LogisticRegression()))), X, Y),
    "chain of ours": (ClassifierChain(MLRHClassifier()), X, Y),
    "one vs rest of ours": (OneVsRestClassifier(KernelMLRHClassifier()), X, Y),
    "many outputs of ours": (MultiOutputClassifier(MLRHClassifier()), X, Y),
    "calibrated": (CalibratedSets(MLRHClassifier(decision="f1"), cv=2), X, FORMS["sets"](Y)),
    "by isotonic": (CalibratedSets(MLRHClassifier(label_space="observed"), method="isotonic", cv=FOLDS), X, Y),
    "calibrated classes": (CalibratedSets(LogisticRegression(), cv=HALVES), X, CLASSES["three"]),
    "calibrated kernels": (CalibratedSets(make_pipeline(StandardScaler(), KernelMLRHClassifier()), cv=2), X, Y),
    "calibrated neighbours": (CalibratedSets(MLkNN(n_neighbors=3), method="isotonic", cv=2), X, Y),
    "thresholds": (TunedThresholds(MLRHClassifier(), cv=2), X, FORMS["pandas"](Y)),
    "thresholds of decision values": (TunedThresholds(OneVsRestClassifier(LinearSVC()), cv=FOLDS), X, Y),
    "thresholds of calibrated sets": (TunedThresholds(CalibratedSets(MLRHClassifier(), cv=2), cv=2), X, Y),
    "pipeline of calibrated sets": (make_pipeline(StandardScaler(), CalibratedSets(MLRHClassifier(), cv=2)), X, Y),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back_the_same_and_predicts_as_before(name, tmp_path):
    model, features, y = MODELS[name]
    loaded = again(model.fit(features, y), tmp_path)
    assert_predicts_the_same(model, loaded, features)
    assert_same(model, loaded)


def test_a_label_that_every_row_has_comes_back_in_one_vs_rest(tmp_path):
    constant = np.column_stack([Y[:, 0], np.ones(len(Y), int)])
    with pytest.warns(UserWarning, match="Label 1 is present in all training examples"):
        model = OneVsRestClassifier(MLRHClassifier()).fit(X, constant)
    assert_predicts_the_same(model, again(model, tmp_path), X)


WRAPS = {
    "alone": (lambda model: model, lambda saved: saved),
    "in a pipeline": (lambda model: make_pipeline(StandardScaler().fit(X), model), lambda saved: saved[-1]),
}


@pytest.mark.parametrize("wrap, unwrap", WRAPS.values(), ids=WRAPS)
def test_rows_shown_to_partial_fit_are_not_in_the_file_unless_asked_for(wrap, unwrap, path):
    model = wrap(MLRHClassifier(size_bias=True).partial_fit(X[:30], Y[:30], classes=range(4)))
    row = X[7].tobytes()
    save(model, path)
    assert row not in path.read_bytes()
    loaded = unwrap(load(path))
    assert_predicts_the_same(unwrap(model), loaded, X)
    with pytest.warns(UserWarning, match="not saved with the model, .* save the model with keep_rows=True"):
        loaded.partial_fit(X[30:], Y[30:])
    anew = MLRHClassifier(size_bias=True).partial_fit(X[30:], Y[30:], classes=range(4))
    assert_predicts_the_same(anew, loaded, X)
    save(model, path, keep_rows=True)
    assert row in path.read_bytes()


@pytest.mark.parametrize("wrap, unwrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_partial_fit_goes_on_as_if_never_saved_where_rows_are_kept(form, wrap, unwrap, path):
    model = MLRHClassifier(size_bias=True).partial_fit(form(X[:30]), Y[:30], classes=range(4))
    save(wrap(model), path, keep_rows=True)
    loaded = unwrap(load(path))
    assert_same(model.partial_fit(form(X[30:]), Y[30:]), loaded.partial_fit(form(X[30:]), Y[30:]))


OLD = Path(__file__).parent / "model_files" / "0.1"
EXPECTED = json.loads((OLD / "expected.json").read_text())
# Attributes of scikit-learn's own estimators are those of 1.9, which wrote the files.
OF_SCIKIT_LEARN = {"chain", "label_powerset"} if Version(sklearn.__version__) < Version("1.9") else set()


@pytest.mark.parametrize("name", sorted(EXPECTED["models"].keys() - OF_SCIKIT_LEARN))
@pytest.mark.filterwarnings("ignore:.*was saved with:UserWarning")
def test_a_file_of_version_0_1_predicts_as_then(name, path):
    path.write_bytes(gzip.decompress((OLD / f"{name}.mlrh.gz").read_bytes()))
    model, expected = load(path), EXPECTED["models"][name]
    if name.startswith("mlrh_fit"):  # a Model, of which the third column is nominal
        rows = np.array(EXPECTED["rows"])
        features = sparse.csr_array(rows) if name.endswith("sparse") else rows
        labels, names = np.zeros((len(rows), 3), np.int8), (("u", "v", "place"), ("a", "b", "c"))
        data = MultilabelData(features, labels, *names, "toy", categories={"place": ("here", "there")})
        answer, probabilities = model.predict(data), model.distribution(data).marginals()
    else:
        answer, probabilities = model.predict(np.array(EXPECTED["X"])), model.predict_proba(np.array(EXPECTED["X"]))
    answer = [sorted(labels) for labels in answer] if isinstance(answer, list) else answer.tolist()
    assert answer == expected["predict"]
    np.testing.assert_allclose(probabilities, expected["predict_proba"], rtol=1e-9)
    assert not hasattr(model, "_stream")


class OwnSpace(CardinalitySpace):
    """A label space that only this file knows."""


def test_a_label_space_of_ones_own_is_loaded_where_its_class_is_trusted(path):
    model = MLRHClassifier().fit(X, Y)
    model.label_space_ = OwnSpace(4, 1, 2)
    save(model, path)
    loaded = load(path, spaces=[ObservedSpace, OwnSpace])
    assert type(loaded.label_space_) is OwnSpace
    assert_predicts_the_same(model, loaded, X)
    named_alike = type("OwnSpace", (CardinalitySpace,), {"__module__": "elsewhere"})
    for spaces in ([], [named_alike]):
        with pytest.raises(ModelFileError, match=r"test_persistence\.OwnSpace; .* spaces=\[OwnSpace\]") as error:
            load(path, spaces=spaces)
        assert one_sentence(error)


@pytest.mark.parametrize("algorithm", ["kd_tree", "ball_tree", "brute"])
@pytest.mark.parametrize("options", [{}, {"metric": "manhattan"}, {"metric": "minkowski", "p": 3, "leaf_size": 4}])
def test_neighbours_are_the_same_also_where_distances_tie(algorithm, options, tmp_path):
    rows = np.round(X[:, :2])
    model = NearestNeighbors(n_neighbors=4, algorithm=algorithm, **options).fit(rows)
    assert_same(list(model.kneighbors(rows)), list(again(model, tmp_path).kneighbors(rows)))


@pytest.mark.parametrize(
    "value",
    [
        [np.nan, np.inf, -0.0, 1e-320, 10**30, True, None, "", "\x00\u2028"],
        {False: "no", True: "yes"},
        {1: "number", "1": "text", 1.5: 0, None: 1, ("a", 2): 2, b"\xff": 3},
        {np.int64(3): np.float32(0.1), np.str_("x"): np.bool_(False)},
        {"mlrh": "tuple", "items": [1]},
        {"nested": {"mlrh": {"mlrh": "json", "text": "[]"}}},
        [(), [], {}, set(), frozenset({1, (2, "x")}), {"a", 3}],
        np.array([[("a", 1), [2, 3]], [None, {"k": np.nan}]], object),
        np.array({"a": 1}, object),
        np.zeros((0, 3), object),
        np.array(["2020-01-01", "NaT"], "M8[D]"),
        np.array(["a", "longer"]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">i2"),
        np.array(4.0),
        np.zeros((2, 0), np.int8),
        [np.dtype(np.float32), np.dtype(object), np.dtype(">i4"), np.float32, np.log1p],
        sparse.csc_matrix([[0.0, 1.0], [2.0, 0.0]]),
        sparse.csr_array((0, 3)),
        [LeaveOneOut(), PredefinedSplit([0, 1, -1]), ShuffleSplit(2, random_state=0), RepeatedKFold(n_splits=3)],
        KernelMLRHClassifier(C=np.inf, gamma=0.1, n_jobs=2),
        {"schema": Schema(("a", "b"), ("x", "é \udcff"), {"b": ("0", "1")}), "model": None},
        [Targets("matrix", np.array(["a", 1, ("b", 2.5)], object), kind) for kind in ("int64", "bool", "float32")],
        [CardinalitySpace(5, 1, 3, [0.0, 0.1, -0.2, 0.3, 0.0, 0.0]), CardinalitySpace(1, 0, 0)],
        [ObservedSpace([[1, 0, 0], [0, 1, 1]], [0.5, -0.25]), ObservedSpace(np.eye(120, dtype=int))],
    ],
    ids=lambda value: repr(value)[:25],
)
def test_values_come_back_equal_in_type_and_bits(value, tmp_path):
    assert_same(value, again(value, tmp_path))


def test_what_is_shared_stays_shared(tmp_path):
    model = MLRHClassifier().fit(X, Y)
    first, second, rows, same_rows = again([model, {"again": model}, X, X], tmp_path)
    assert first is second["again"] and rows is same_rows


def test_saving_leaves_the_model_as_it_was(tmp_path):
    model = make_pipeline(StandardScaler(), MLRHClassifier(label_space="observed")).fit(X, Y)
    steps, space = model.steps, model[-1].label_space_
    save(model, tmp_path / "m")
    assert model.steps is steps and model[-1].label_space_ is space


def test_a_vocabulary_takes_little_more_than_its_text(path):
    words = [f"word{i}" for i in range(5000)]
    save(TfidfVectorizer().fit([" ".join(words)]), path)
    assert path.stat().st_size < 5 * len(json.dumps({word: i for i, word in enumerate(words)}))


def a_global_kernel(A, B):
    return A @ B.T


def a_local_function():
    def decision(tp, fp, fn):
        return tp

    return decision


class OwnClassifier(MLRHClassifier):
    """A subclass that only this file knows."""


class OwnText(str):
    """A subclass that would come back as plain text."""

    __slots__ = ()


HOLDS_ITSELF: list = []
HOLDS_ITSELF.append(HOLDS_ITSELF)
REFUSED = {
    "lambda": (KernelMLRHClassifier(kernel=lambda A, B: A @ B.T), r"model\.kernel .*test_persistence\.<lambda>"),
    "global": (KernelMLRHClassifier(kernel=a_global_kernel), r"model\.kernel .*a_global_kernel"),
    "local": (MLRHClassifier(decision=a_local_function()), r"model\.decision .*decision"),
    "method": ({"f": MLRHClassifier().fit}, r"model\['f'\] .*builtins\.method"),
    "own class": (make_pipeline(OwnClassifier()), r"model\.steps\[0\]\[1\] .*OwnClassifier"),
    "around own class": (make_pipeline(OwnClassifier().fit(X, Y)), r"may not hold \S*OwnClassifier\.$"),
    "own text": ({"name": [OwnText("x")]}, r"model\['name'\]\[0\] .*OwnText"),
    "key": ({len: 1}, r"a key of model .*builtins\.len"),
    "transformer": (make_pipeline(FunctionTransformer(print)), r"model\.steps\[0\]\[1\]\.func .*print"),
    "objects": (np.array([1, object()], object), r"model\[1\] .*object"),
    "text without a width": (np.array(["a"], np.dtypes.StringDType()), r"model can't be saved, .*StringDType"),
    "coordinates": (sparse.coo_array(np.eye(2)), r"model .*coo_array"),
    "open file": ({"log": sys.__stderr__}, "TextIOWrapper"),
    "itself": (HOLDS_ITSELF, "holds itself"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_loaded_is_refused_by_name_before_the_file_is_touched(name, path):
    model, pattern = REFUSED[name]
    path.write_bytes(b"the old content")
    with pytest.raises(ModelFileError, match=pattern) as error:
        save(model, path)
    assert one_sentence(error)
    assert path.read_bytes() == b"the old content" and list(path.parent.iterdir()) == [path]


GRID = {"C": [0.1, 1.0]}
SEARCHES = {
    "grid": (GridSearchCV(MLRHClassifier(), GRID, cv=2), "model"),
    "without the best": (GridSearchCV(MLRHClassifier(), GRID, cv=2, refit=False), "model"),
    "random": (RandomizedSearchCV(MLRHClassifier(), GRID, cv=2, n_iter=1), "model"),
    "halving": (HalvingGridSearchCV(MLRHClassifier(), GRID, cv=2), "model"),
    "inside": (CalibratedSets(GridSearchCV(MLRHClassifier(), GRID, cv=2), cv=2), r"model\.estimator_"),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_fitted_search_is_refused_with_the_advice_to_save_its_best_estimator(name, path):
    search, where = SEARCHES[name]
    search.fit(X, CLASSES["two"])
    words = rf"^{where} can't .* fitted \w+SearchCV .*; save its best_estimator_"
    with pytest.raises(ModelFileError, match=words) as error:
        save(search, path)
    assert one_sentence(error) and not path.exists()
