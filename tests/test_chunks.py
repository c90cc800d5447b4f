"""fit_chunks is fit to the joined rows, from every source of chunks, in about as many passes as fit has evaluations."""

import gzip
import io
import threading

import numpy as np
import pandas as pd
import pytest
from samples import make_multilabel, one_sentence
from scipy import sparse
from sklearn.exceptions import NotFittedError

from mlrh import MLRHClassifier, MLRHClassifierCV, persistence
from mlrh._indicators import UNKNOWN
from mlrh.data import DataError, FileParts, MultilabelData, write
from mlrh.data._parts import N_READERS
from mlrh.estimators import _chunks
from mlrh.fitting import rows
from mlrh.fitting.rows import RowsInMemory
from mlrh.spaces import GroupSpace, HierarchySpace

X, Y = make_multilabel(400, 8, 5, min_labels=0, max_labels=3)
X = X + 0.5
WEIGHTS = np.random.RandomState(1).uniform(0.5, 2.0, size=400)
CUTS = [slice(0, 90), slice(90, 91), slice(91, 300), slice(300, 400)]
FEWER = np.column_stack([Y[:, 0], Y[:, 1] & ~Y[:, 0] & 1, Y[:, 2:]])  # no set has both of the first two labels
NESTED = np.column_stack([Y[:, 0] | Y[:, 1], Y[:, 1], Y[:, 2:]])
TIGHT = {"tol": 1e-13}
PROBLEMS = {
    "cardinality": ({}, Y),
    "size bias": ({"size_bias": True, "C": 0.3}, Y),
    "observed": ({"label_space": "observed"}, FEWER),
    "open": ({"label_space": "open"}, Y),
    "groups": ({"label_space": GroupSpace([([0, 1], 0, 2), ([2, 3, 4], 0, 3)])}, Y),
    "hierarchy": ({"label_space": HierarchySpace([-1, 0, -1, -1, -1])}, NESTED),
    "completed hierarchy": ({"label_space": HierarchySpace([-1, 0, -1, -1, -1], complete=True)}, Y),
    "no intercept": ({"fit_intercept": False}, Y),
    "no penalty": ({"C": np.inf}, Y),
    "L1": ({"l1_ratio": 1.0, "C": 0.1}, Y),
    "elastic net": ({"l1_ratio": 0.5, "C": 0.1, "size_bias": True}, Y),
    "newton-cg": ({"solver": "newton-cg"}, Y),
    "mm": ({"solver": "mm", "tol": 1e-11}, Y),
}


class Parts:
    """Chunks that count how often they are gone through."""

    def __init__(self, X, Y, weights=None, cuts=CUTS):
        self._parts = [(X[cut], Y[cut]) if weights is None else (X[cut], Y[cut], weights[cut]) for cut in cuts]
        self.n_passes = 0

    def __iter__(self):
        self.n_passes += 1
        return iter(self._parts)


def hidden(Y):
    known = Y.astype(float)
    known[np.random.RandomState(0).uniform(size=Y.shape) < 0.05] = np.nan
    known[7] = np.nan  # a row of which nothing is known
    return known


def assert_same_optimum(chunked, fitted):
    assert chunked.objective_ == pytest.approx(fitted.objective_, rel=1e-8)
    np.testing.assert_allclose(chunked.coef_, fitted.coef_, atol=1e-5)
    np.testing.assert_allclose(chunked.intercept_, fitted.intercept_, atol=1e-5)
    np.testing.assert_allclose(chunked.label_space_.bias, fitted.label_space_.bias, atol=1e-5)
    np.testing.assert_array_equal(chunked.classes_, fitted.classes_)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("name", PROBLEMS)
def test_chunks_have_the_optimum_of_all_rows(name, form):
    options, labels = PROBLEMS[name]
    thinned = np.where(np.random.RandomState(3).uniform(size=X.shape) < 0.5, X, 0.0) if form is not np.asarray else X
    fitted = MLRHClassifier(**{**TIGHT, **options}).fit(form(thinned), labels, WEIGHTS)
    chunked = MLRHClassifier(**{**TIGHT, **options}).fit_chunks(Parts(form(thinned), labels, WEIGHTS))
    assert_same_optimum(chunked, fitted)
    assert not hasattr(chunked, "support_")
    np.testing.assert_array_equal(chunked.predict(form(thinned)), fitted.predict(form(thinned)))


def test_the_observed_space_of_chunks_has_the_sets_that_occur_and_no_others():
    model = MLRHClassifier(label_space="observed").fit_chunks(Parts(X, FEWER))
    possible = MLRHClassifier().fit_chunks(Parts(X, FEWER)).label_space_
    assert possible.sizes() == (0, 3)  # 26 sets of five labels
    assert len(model.label_space_.sets) == len(np.unique(FEWER, axis=0)) < 26


@pytest.mark.parametrize("options", [{}, {"label_space": "observed"}, {"size_bias": True}])
def test_chunks_with_unknown_labels_have_the_optimum_of_all_rows(options):
    fitted = MLRHClassifier(**TIGHT, **options).fit(X, hidden(FEWER), WEIGHTS)
    assert_same_optimum(MLRHClassifier(**TIGHT, **options).fit_chunks(Parts(X, hidden(FEWER), WEIGHTS)), fitted)


def counted_evaluations(monkeypatch, options, X, Y):
    """The evaluations of fit, products with the Hessian included."""
    counts = []
    sums, hessian = RowsInMemory.expected_sums, RowsInMemory.hessian
    inner = RowsInMemory._with_curvatures

    def counting(function):
        def call(self, *arguments):
            counts.append(1)
            return function(self, *arguments)

        return call

    def counting_products(self, *arguments):
        product = hessian(self, *arguments)
        return lambda *direction: counts.append(1) or product(*direction)

    with monkeypatch.context() as patch:
        patch.setattr(RowsInMemory, "expected_sums", counting(sums))
        patch.setattr(RowsInMemory, "_with_curvatures", counting(inner))
        patch.setattr(RowsInMemory, "hessian", counting_products)
        MLRHClassifier(**options).fit(X, Y)
    return len(counts)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("options", [{}, {"label_space": "observed"}, {"size_bias": True, "C": 10}])
def test_passes_are_at_most_1_3_times_the_evaluations_of_fit(form, options, monkeypatch):
    parts = Parts(form(X), Y)
    MLRHClassifier(**options).fit_chunks(parts)
    assert parts.n_passes <= 1.3 * counted_evaluations(monkeypatch, options, form(X), Y)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("l1_ratio", [0.5, 1.0])
def test_passes_with_an_l1_penalty_are_at_most_1_3_times_the_evaluations_of_fit(form, l1_ratio, monkeypatch):
    options = {"l1_ratio": l1_ratio}
    parts = Parts(form(X), Y)
    MLRHClassifier(**options).fit_chunks(parts)
    assert parts.n_passes <= 1.3 * counted_evaluations(monkeypatch, options, form(X), Y)


def test_stand_ins_lead_to_the_optimum_where_own_models_are_too_large(monkeypatch):
    options, labels = PROBLEMS["elastic net"]
    monkeypatch.setattr(rows, "MAX_OWN_SUMS", 0)
    fitted = MLRHClassifier(**TIGHT, **options).fit(X, labels, WEIGHTS)
    assert_same_optimum(MLRHClassifier(**TIGHT, **options).fit_chunks(Parts(X, labels, WEIGHTS)), fitted)


# Sources


def mapped(folder, array, name):
    np.save(folder / f"{name}.npy", array)
    return np.load(folder / f"{name}.npy", mmap_mode="r")


@pytest.fixture(scope="module")
def fitted():
    return MLRHClassifier().fit(X, Y)


def test_a_function_is_called_for_every_pass(fitted):
    def parts():
        for cut in CUTS:
            yield X[cut], Y[cut]

    assert_same_optimum(MLRHClassifier().fit_chunks(parts), fitted)


def test_memory_mapped_arrays_are_cut_into_chunks(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(_chunks, "CHUNK_BYTES", 5000)
    arrays = mapped(tmp_path, X, "X"), mapped(tmp_path, Y, "Y"), mapped(tmp_path, np.ones(400), "weight")
    assert len(list(_chunks._cut(*arrays))) > 4
    assert_same_optimum(MLRHClassifier().fit_chunks(arrays), fitted)


def test_a_memory_mapped_csr_matrix_is_cut_into_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(_chunks, "CHUNK_BYTES", 5000)
    whole = sparse.csr_array(np.where(X > 0.5, X, 0.0))
    parts = tuple(mapped(tmp_path, getattr(whole, name), name) for name in ("data", "indices", "indptr"))
    arrays = sparse.csr_array(parts, shape=whole.shape, copy=False), Y
    assert_same_optimum(MLRHClassifier().fit_chunks(arrays), MLRHClassifier().fit(whole, Y))


LABELS = tuple("abcde")


def written(folder, suffix):
    """Four files of all rows."""
    paths = []
    for i, cut in enumerate(CUTS):
        paths.append(folder / f"part{i}{suffix}")
        features = sparse.csr_array(np.where(X[cut] > 0, X[cut], 0.0)) if "svm" in suffix else X[cut]
        names = tuple(str(d) for d in range(1, 9)) if "svm" in suffix else tuple(f"x{d}" for d in range(8))
        labels = tuple("01234") if "svm" in suffix else LABELS
        write(MultilabelData(features, Y[cut].astype(np.int8), names, labels, "part"), paths[-1])
    return paths


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".arff", ".arff.gz", ".svm", ".svm.gz"])
def test_files_are_chunks(suffix, tmp_path):
    paths = written(tmp_path, suffix)
    classes = LABELS if suffix.startswith((".csv", ".parquet")) else None
    chunked = MLRHClassifier().fit_chunks(paths, classes)
    fitted = MLRHClassifier().fit(sparse.csr_array(np.where(X > 0, X, 0.0)) if "svm" in suffix else X, Y)
    assert chunked.objective_ == pytest.approx(fitted.objective_, rel=1e-8)
    np.testing.assert_allclose(chunked.coef_, fitted.coef_, atol=1e-5)
    assert chunked.classes_.tolist() == list("01234" if "svm" in suffix else LABELS)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_files_with_unknown_labels_have_the_optimum_of_all_rows(suffix, tmp_path):
    known, paths = hidden(Y), []
    known[CUTS[0]] = Y[CUTS[0]]  # the first file knows all labels
    cells = np.where(np.isnan(known), UNKNOWN, known).astype(np.int8)
    for i, cut in enumerate(CUTS):
        paths.append(tmp_path / f"part{i}{suffix}")
        write(MultilabelData(X[cut], cells[cut], tuple(f"x{d}" for d in range(8)), LABELS, "part"), paths[-1])
    with FileParts(paths, LABELS, unknown="") as parts:
        np.testing.assert_array_equal(np.concatenate([own for _, own in parts]), known)
    chunked = MLRHClassifier(**TIGHT).fit_chunks(paths, LABELS, unknown="")
    fitted = MLRHClassifier(**TIGHT).fit(X, known)
    assert chunked.objective_ == pytest.approx(fitted.objective_, rel=1e-8)
    np.testing.assert_allclose(chunked.coef_, fitted.coef_, atol=1e-5)
    with pytest.raises(DataError, match="unknown= in Python"):
        MLRHClassifier().fit_chunks(paths, LABELS)


def test_a_text_for_unknown_labels_is_refused_where_there_are_no_files():
    with pytest.raises(ValueError, match="unknown is for a list of files"):
        MLRHClassifier().fit_chunks(Parts(X, Y), unknown="")


def test_files_without_classes_are_told_the_parameter_of_fit_chunks(tmp_path):
    with pytest.raises(DataError, match="name the label columns with classes=") as raised:
        MLRHClassifier().fit_chunks(written(tmp_path, ".csv"))
    assert one_sentence(raised) and "labels=" not in str(raised.value)


def test_libsvm_files_that_show_different_labels_and_features_are_parts_of_one_set(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1 2:2\n1,4 1:3\n")
    (tmp_path / "b.svm").write_text("2 3:1 1:.5\n10 2:1\n")
    (tmp_path / "c.svm").write_text("2,1 0:7 1:1\n")  # counts from 0, so all of them do
    with FileParts([tmp_path / name for name in ("a.svm", "b.svm", "c.svm")]) as parts:
        found = list(parts)
        assert parts.label_names == ("1", "2", "4", "10")
    joined = np.concatenate([part[0].toarray() for part in found])
    np.testing.assert_array_equal(joined, [[0, 1, 2, 0], [0, 3, 0, 0], [0, 0.5, 0, 1], [0, 0, 1, 0], [7, 1, 0, 0]])
    sets = np.concatenate([part[1] for part in found])
    np.testing.assert_array_equal(sets, [[1, 0, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0]])


@pytest.mark.parametrize("zipped", [False, True])
def test_files_of_arrays_are_chunks(zipped, tmp_path):
    whole = sparse.csr_array(np.where(X > 0, X, 0.0))
    members = {f"X_{name}": getattr(whole[CUTS[2]], name) for name in ("data", "indices", "indptr", "shape")}
    paths = []
    for i, cut in enumerate(CUTS):
        own = members if i == 2 else {"X": whole[cut].toarray()}
        content = io.BytesIO()
        np.savez(content, **own, Y=Y[cut], weight=WEIGHTS[cut])
        paths.append(tmp_path / f"{i}.npz{'.gz' * zipped}")
        paths[-1].write_bytes(gzip.compress(content.getvalue()) if zipped else content.getvalue())
    for name, array in (("X", whole[CUTS[3]].toarray()), ("Y", Y[CUTS[3]]), ("w", WEIGHTS[CUTS[3]])):
        mapped(tmp_path, array, name)
    paths[3] = tuple(tmp_path / f"{name}.npy" for name in "XYw")
    assert_same_optimum(MLRHClassifier(**TIGHT).fit_chunks(paths), MLRHClassifier(**TIGHT).fit(whole, Y, WEIGHTS))


def test_decoded_files_leave_nothing_in_the_temporary_folder(tmp_path, monkeypatch):
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(room))
    paths = written(tmp_path, ".csv")
    with FileParts(paths, LABELS) as parts:
        assert len(list(parts)) == 4 and len(list(room.glob("*/*.npy"))) == 8
    assert not list(room.iterdir())
    with pytest.raises(DataError, match="no such file"), FileParts([*paths, tmp_path / "none.csv"], LABELS):
        pass
    assert not list(room.iterdir())


SUFFIXES_TO_DECODE = [".csv", ".parquet", ".arff", ".jsonl", ".csv.gz", ".npz", "-csr.npz"]


def many(tmp_path, suffix, n_files=8):
    """Paths of files of 50 rows each."""
    paths = [tmp_path / f"own{i}{suffix}" for i in range(n_files)]
    for i, path in enumerate(paths):
        rows = slice(50 * i, 50 * (i + 1))
        if suffix.endswith(".npz"):
            own = sparse.csr_array(X[rows])
            members = {f"X_{name}": getattr(own, name) for name in ("data", "indices", "indptr", "shape")}
            np.savez(path, **(members if "csr" in suffix else {"X": X[rows]}), Y=Y[rows])
        else:
            write(MultilabelData(X[rows], Y[rows], tuple(f"x{d}" for d in range(8)), LABELS, "part"), path)
    return paths


@pytest.mark.parametrize("suffix", SUFFIXES_TO_DECODE)
def test_the_first_look_is_at_files_as_they_are_decoded_and_the_next_is_decoded_meanwhile(
    suffix, tmp_path, monkeypatch
):
    paths, decoded, second_began = many(tmp_path, suffix), [], threading.Event()
    looked_at_first, last_waited = threading.Event(), []
    read_part, plus_sums = FileParts._read, _chunks.plus_sums

    def reading(self, number, schema):
        decoded.append(number)
        if number == 1:
            second_began.set()
        if number == len(paths) - 1:  # must wait for the look at the first file
            last_waited.append(looked_at_first.wait(30))
        return read_part(self, number, schema)

    def looking(*arguments):
        sums = plus_sums(*arguments)
        if not looked_at_first.is_set():
            assert second_began.wait(30)  # by another thread, while this one works on the first
            assert len(decoded) < len(paths)
            looked_at_first.set()
        return sums

    monkeypatch.setattr(FileParts, "_read", reading)
    monkeypatch.setattr(_chunks, "plus_sums", looking)
    fitted = MLRHClassifier(**TIGHT).fit(X, Y)
    chunked = MLRHClassifier(**TIGHT).fit_chunks(paths, None if suffix.endswith((".npz", ".arff")) else LABELS)
    assert last_waited == [True]
    assert sorted(decoded) == list(range(len(paths)))  # each once, whatever the number of passes
    assert chunked.objective_ == pytest.approx(fitted.objective_, rel=1e-8)
    np.testing.assert_allclose(chunked.coef_, fitted.coef_, atol=1e-5)


def test_no_more_files_are_decoded_than_a_fit_comes_to_and_those_that_come_next(tmp_path, monkeypatch):
    paths, begun, running, most = many(tmp_path, ".csv"), [], [], []
    read_part = FileParts._read

    def reading(self, number, schema):
        begun.append(number)
        running.append(number)
        most.append(len(running))
        try:
            return read_part(self, number, schema)
        finally:
            running.remove(number)

    monkeypatch.setattr(FileParts, "_read", reading)
    with FileParts(paths, LABELS) as parts:
        for number, _ in enumerate(parts):
            assert max(begun) <= number + N_READERS
    assert max(most) <= N_READERS and len(begun) == len(paths)


def test_a_bad_file_ends_the_look_with_a_sentence_that_names_it_and_leaves_no_thread(tmp_path):
    paths = many(tmp_path, ".csv")
    lines = paths[5].read_text().splitlines()
    paths[5].write_text("\n".join([*lines[:-1], lines[-1].replace(lines[-1].split(",")[0], "many", 1)]))
    with pytest.raises(DataError, match=r"own5\.csv") as raised:
        MLRHClassifier().fit_chunks(paths, LABELS)
    assert one_sentence(raised)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mlrh-files")]


def test_a_file_that_is_not_there_is_told_before_any_is_read(tmp_path, monkeypatch):
    paths = many(tmp_path, ".csv")
    monkeypatch.setattr(FileParts, "_read", lambda *arguments: pytest.fail("a file was read"))
    with pytest.raises(DataError, match=r"none\.csv: no such file"):
        MLRHClassifier().fit_chunks([*paths, tmp_path / "none.csv"], LABELS)


# Rows


def test_rows_without_weight_or_knowledge_do_not_count():
    weights, labels = WEIGHTS.copy(), hidden(Y)
    weights[::3] = 0
    weights[CUTS[1]] = 0  # a whole chunk
    X_bad = X.copy()
    X_bad[CUTS[1]] = 1e6
    fitted = MLRHClassifier(**TIGHT).fit(X_bad, labels, weights)
    assert_same_optimum(MLRHClassifier(**TIGHT).fit_chunks(Parts(X_bad, labels, weights)), fitted)


def test_empty_chunks_are_passed_over(fitted):
    cuts = [slice(0, 0), *CUTS, slice(400, 400)]
    assert_same_optimum(MLRHClassifier().fit_chunks(Parts(X, Y, cuts=cuts)), fitted)


@pytest.mark.parametrize("kind", ["sets", "classes", "two classes", "frame"])
def test_chunks_take_the_forms_of_y(kind):
    names = np.array(list("vwxyz"))
    classes = {"classes": [*names, "never"], "two classes": ["no", "yes"], "sets": [*names, "never"], "frame": None}[
        kind
    ]
    if kind == "sets":
        y = [set(names[row == 1]) for row in Y]
    elif kind == "frame":
        y = pd.DataFrame(Y, columns=names)
    else:
        y = names[Y.argmax(axis=1)] if kind == "classes" else np.where(Y[:, 0] == 1, "yes", "no")
    fitted = MLRHClassifier(**TIGHT).fit(X, y)
    chunked = MLRHClassifier(**TIGHT).fit_chunks(Parts(X, y), classes)
    assert_same_optimum(chunked, fitted)
    assert type(chunked.predict(X[:3])) is type(fitted.predict(X[:3]))


def test_dense_and_sparse_chunks_of_both_precisions_are_rows_of_one_fit():
    thin = np.where(X > 0.5, X, 0.0).astype(np.float32)
    kinds = [lambda part: part, sparse.csr_array, lambda part: part.astype(np.float64), sparse.csr_matrix]
    parts = [(kind(thin[cut]), Y[cut]) for kind, cut in zip(kinds, CUTS, strict=True)]
    fitted = MLRHClassifier(**TIGHT).fit(thin.astype(np.float64), Y)
    assert_same_optimum(MLRHClassifier(**TIGHT).fit_chunks(parts), fitted)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e7])
def test_a_constant_feature_changes_nothing(form, constant, fitted):
    wide = np.column_stack([X, np.full(400, constant)])
    chunked = MLRHClassifier(**TIGHT).fit_chunks(Parts(form(wide), Y))
    assert_same_optimum(chunked, MLRHClassifier(**TIGHT).fit(form(wide), Y))
    # What rounding leaves of a centred constant moves its coefficient by next to nothing.
    np.testing.assert_allclose(chunked.coef_[:, :-1], MLRHClassifier(**TIGHT).fit(X, Y).coef_, atol=1e-5)


def test_a_model_of_chunks_is_saved_and_loaded(path, fitted):
    model = MLRHClassifier().fit_chunks(Parts(X, Y))
    persistence.save(model, path)
    np.testing.assert_array_equal(persistence.load(path).predict(X), model.predict(X))


def test_features_of_1e5_and_a_single_label_are_fitted_as_in_memory():
    wide, labels = X * 1e5, Y[:, :1]
    labels = sparse.csr_matrix(labels)
    fitted = MLRHClassifier(**TIGHT, C=1e-8).fit(wide, labels)
    chunked = MLRHClassifier(**TIGHT, C=1e-8).fit_chunks(Parts(wide, labels))
    assert chunked.objective_ == pytest.approx(fitted.objective_, rel=1e-8)
    np.testing.assert_allclose(chunked.decision_function(wide), fitted.decision_function(wide), atol=1e-4)


def test_chunks_in_float32_are_fitted_in_float32():
    small = X.astype(np.float32)
    chunked, fitted = MLRHClassifier().fit_chunks(Parts(small, Y)), MLRHClassifier().fit(small, Y)
    assert chunked.coef_.dtype == np.float32
    np.testing.assert_allclose(chunked.coef_, fitted.coef_, atol=1e-3)  # where float32 ends, not where tol does


def test_names_of_columns_are_noted_and_checked():
    frame = pd.DataFrame(X, columns=[f"x{d}" for d in range(8)])
    parts = [(frame.iloc[cut], Y[cut]) for cut in CUTS]
    chunked = MLRHClassifier().fit_chunks(parts)
    assert chunked.feature_names_in_.tolist() == list(frame.columns)
    parts[2] = (parts[2][0][frame.columns[::-1]], parts[2][1])
    with pytest.raises(ValueError, match="chunk 2: The feature names should match"):
        MLRHClassifier().fit_chunks(parts)


def test_warm_start_goes_on_from_the_last_model():
    model = MLRHClassifier(warm_start=True, tol=1e-9).fit_chunks(Parts(X, Y))
    parts = Parts(X, Y)
    before = model.n_iter_
    model.fit_chunks(parts)
    assert model.n_iter_ <= 1 < before


def test_only_the_most_frequent_sets_get_a_bias_whatever_the_chunks(monkeypatch):
    monkeypatch.setattr("mlrh.spaces.open.MAX_SETS", 6)
    options = {"label_space": "open", "set_bias_strength": 1.0, **TIGHT}
    with pytest.warns(UserWarning, match="most frequent") as told:
        fitted = MLRHClassifier(**options).fit(X, Y)
        chunked = MLRHClassifier(**options).fit_chunks(Parts(X, Y))
    assert len({str(warning.message) for warning in told}) == 1
    np.testing.assert_array_equal(chunked.sets_, fitted.sets_)
    assert_same_optimum(chunked, fitted)


def test_what_rows_do_not_determine_is_told_once():
    constant = np.column_stack([Y, np.zeros(400, int)])
    with pytest.warns(UserWarning, match="absent from every training row: label 5"):
        MLRHClassifier().fit_chunks(Parts(X, constant))


# Errors


def refused(chunks, message, error=ValueError, **options):
    model = MLRHClassifier(**options)
    with pytest.raises(error, match=message) as raised:
        model.fit_chunks(chunks)
    assert "\n" not in str(raised.value)
    with pytest.raises(NotFittedError):
        model.predict(X)
    return raised


def test_a_generator_is_refused_with_what_to_give_instead():
    raised = refused(((X[cut], Y[cut]) for cut in CUTS), "generator can be gone through once. Give the function")
    assert str(raised.value).count(". ") == 1


def test_a_function_must_return_a_new_iterator():
    parts = iter([(X, Y)])
    refused(lambda: parts, "return a new iterator at each call")
    refused(lambda: None, "must return an iterator")


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ("parts/*.csv", "must be a list of files, not one path"),
        (3, "must be an iterable"),
        ([X, Y], "must be a tuple"),
        ([(X, Y, WEIGHTS, 1)], "must be a tuple"),
        ([], "at least one chunk"),
        ([(X, Y[:-1])], "chunk 0: X and y must have the same number of rows"),
        ([(X, Y), (X[:, :3], Y)], "chunk 1: X has 3 features"),
        ([(X, Y), (X, Y[:, :3])], "chunk 1: y must have 5 columns"),
        ([(X, Y), (X, Y + 1)], "chunk 1: y must contain only 0 and 1"),
        ([(X, Y), (X, Y, -WEIGHTS)], "chunk 1: Negative values in data passed to `sample_weight`"),
        ([(X, Y[:, 0])], "classes must be given"),
        ([(X, [{"a"}] * 400)], "classes must be given"),
        ([(X, np.full(Y.shape, np.nan))], "must show a label of at least one row"),
    ],
)
def test_what_is_no_chunk_is_refused(chunks, message):
    refused(chunks, message)


def test_a_row_outside_the_label_space_is_named_with_its_chunk():
    many = Y.copy()
    many[95] = 1
    refused(Parts(X, many), "Row 4 of chunk 2 of y has 5 labels", max_labels=3)


def test_other_rows_in_a_later_pass_are_refused():
    class Shrinking:
        n_passes = 0

        def __iter__(self):
            self.n_passes += 1
            rows = 200 if self.n_passes < 3 else 199
            return iter([(X[:200], Y[:200]), (X[200:][:rows], Y[200:][:rows])])

    refused(Shrinking(), "chunk 1 has 199 rows and had 200 rows in the first pass")


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("later", [(X[:, :7], Y), (np.hstack([X, X]), Y), (X, Y[:, :4]), (X, Y[:-1])])
def test_other_columns_or_sets_in_a_later_pass_are_refused(later, form):
    class Changing:
        n_passes = 0

        def __iter__(self):
            self.n_passes += 1
            X_now, Y_now = (X, Y) if self.n_passes < 3 else later
            return iter([(form(X_now), Y_now)])

    refused(Changing(), "^chunk 0: (X has|y must have|X and y must)")


def test_nested_lists_are_chunks(fitted):
    parts = [(X[cut].tolist(), Y[cut].tolist()) for cut in CUTS]
    assert_same_optimum(MLRHClassifier().fit_chunks(parts), fitted)


@pytest.mark.parametrize("bad", ["missing", "words", "labels", "npy", "npz", "mixed"])
def test_a_file_that_is_no_part_is_named(bad, tmp_path):
    first, *_ = written(tmp_path, ".csv")
    other = tmp_path / f"other.{bad if bad in ('npy', 'npz') else 'csv'}"
    lines = first.read_text().splitlines()
    if bad == "words":
        other.write_text("\n".join([lines[0], *(f"red{line[line.index(',') :]}" for line in lines[1:])]))
    elif bad == "labels":
        other.write_text(first.read_text().replace("e", "f", 1))
    elif bad != "missing":
        np.savez(other, Z=X) if bad == "npz" else np.save(tmp_path / "other.npy", X)
    paths = [first, other]
    if bad == "mixed":
        np.savez(tmp_path / "mixed.npz", X=X, Y=Y)
        paths = [first, tmp_path / "mixed.npz"]
    with pytest.raises(DataError) as raised:
        MLRHClassifier().fit_chunks(paths, LABELS)
    assert bad == "mixed" or str(other) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_fit_that_fails_leaves_the_model_as_it_was():
    model = MLRHClassifier().fit(X, Y)
    before = model.coef_

    def parts():
        yield X, Y
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        model.fit_chunks(parts)
    assert model.coef_ is before and hasattr(model, "support_")


def test_a_classifier_that_chooses_its_penalty_has_no_fit_chunks():
    assert not hasattr(MLRHClassifierCV(), "fit_chunks")


# Threads and progress


def test_the_next_chunk_is_fetched_while_one_is_worked_on():
    fetched = [threading.Event() for _ in range(3)]

    def chunks():
        for number, event in enumerate(fetched):
            event.set()
            yield number

    for number in rows.ahead(chunks()):
        assert number == 2 or fetched[number + 1].wait(10)


def test_an_iterator_is_made_and_gone_through_in_one_thread():
    names = set()

    def chunks():
        names.add(threading.current_thread().name)
        for number in range(3):
            names.add(threading.current_thread().name)
            yield number

    assert list(rows.ahead(chunks())) == [0, 1, 2]
    assert len(names) == 1 and threading.current_thread().name not in names


def test_passes_objective_and_time_left_are_told(capsys):
    parts = Parts(X, Y)
    model = MLRHClassifier(verbose=1).fit_chunks(parts)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_
    assert lines[0].startswith("[MLRHClassifier] iteration 1, pass 4: objective ")
    assert lines[-2].endswith("s left")
    assert f"objective {model.objective_:.8g}" in lines[-1]


def test_time_left_goes_on_as_it_did():
    reached = [(10.0, 1e-1), (12.0, 1e-3)]  # two decades in two seconds
    assert _chunks.seconds_left(reached, 1e-7) == pytest.approx(4.0)
    assert _chunks.seconds_left(reached, 0) is None
    assert _chunks.seconds_left([(10.0, 1e-3), (12.0, 1e-1)], 1e-7) is None


def test_the_bar_on_a_terminal_shows_pass_and_objective(monkeypatch):
    from rich.console import Console

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=140)
    monkeypatch.setattr(_chunks.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(_chunks, "Progress", lambda *columns: _Progress(*columns, console=console))
    parts = Parts(X, Y)
    model = MLRHClassifier(verbose=1).fit_chunks(parts)
    shown = screen.getvalue()
    assert f"pass {parts.n_passes}" in shown and f"objective {model.objective_:.8g}" in shown


_Progress = _chunks.Progress


def test_sentences_of_errors_are_single():
    with pytest.raises(ValueError, match="must be an iterable") as raised:
        MLRHClassifier().fit_chunks(3)
    assert one_sentence(raised)
