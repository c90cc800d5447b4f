"""LIBSVM multilabel text agrees with scikit-learn's own reader; faults are named by line."""

from io import BytesIO

import data_files
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from mlrh.data._readers import read
from mlrh.data.containers import DataError, Schema


def save(folder, text):
    return data_files.save(folder, text, "toy.libsvm")


def test_rows_with_and_without_labels_comments_and_any_order_of_indices(tmp_path):
    text = "# head\n0,5 1:0.2 9:1 # note\n 3:1e-3\n2:4 1:-1\n\n10,5.0\n-1 4:nan\n"
    data = read(save(tmp_path, text))
    expected = np.zeros((5, 9))
    expected[0, [0, 8]], expected[1, 2], expected[2, [0, 1]], expected[4, 3] = [0.2, 1], 1e-3, [-1, 4], np.nan
    np.testing.assert_array_equal(data.X.toarray(), expected)
    assert isinstance(data.X, sparse.csr_array)
    assert data.label_names == ("-1", "0", "5", "10") and data.feature_names == tuple("123456789")
    assert data.Y.tolist() == [[0, 1, 1, 0], [0] * 4, [0] * 4, [0, 0, 1, 1], [1, 0, 0, 0]]


@pytest.mark.parametrize("zero_based", [False, True])
def test_the_matrix_equals_the_one_that_scikit_learn_reads(tmp_path, zero_based):
    rng = np.random.RandomState(0)
    X = rng.standard_normal((40, 12)) * (rng.random_sample((40, 12)) < 0.3)
    X[0, [0, 11]] = 1.25
    Y = rng.randint(2, size=(40, 5))
    path = tmp_path / "sets.svm"
    dump_svmlight_file(sparse.csr_matrix(X), sparse.csr_matrix(Y), str(path), multilabel=True, zero_based=zero_based)
    data = read(path)
    theirs, sets = load_svmlight_file(str(path), multilabel=True, zero_based=zero_based)
    assert np.array_equal(data.X.toarray(), theirs.toarray())
    assert [tuple(np.flatnonzero(row)) for row in data.Y] == [tuple(int(label) for label in own) for own in sets]
    assert data.feature_names[0] == ("0" if zero_based else "1")


def test_n_features_pins_the_number_of_columns(tmp_path):
    path = save(tmp_path, "1 2:1\n0 3:1\n")
    assert read(path, n_features=6).X.shape == (2, 6)
    with pytest.raises(DataError, match=r"toy.libsvm, line 2: index 3 is too large, the limit is 2 columns"):
        read(path, n_features=2)


def test_chosen_labels_come_in_their_order_and_must_occur(tmp_path):
    path = save(tmp_path, "1,2 1:1\n7 2:1\n")
    data = read(path, ["7", "1"])
    assert data.label_names == ("7", "1") and data.Y.tolist() == [[0, 1], [1, 0]]
    assert read(path, ()).Y.shape == (2, 0)
    for wrong, message in (
        (["7", "3"], "toy.libsvm: no row has the label '3', which the list of labels names"),
        (["x"], "no label can be 'x', which the list of labels names"),
        (["1", "1.0"], "are the same number"),
    ):
        with pytest.raises(DataError, match=message):
            read(path, wrong)


@pytest.mark.parametrize("features", [("0", "1", "2", "3"), ("1", "2", "3"), ("3", "1")])
def test_the_columns_of_a_schema_are_matched_by_index_and_may_be_absent(tmp_path, features):
    path = save(tmp_path, "1 1:2 99999999999:1\n5 3:4 7:1\n")
    data = read(path, (), schema=Schema(features, ()))
    values = {"1": [2, 0], "3": [0, 4]}
    assert data.X.toarray().T.tolist() == [values.get(name, [0, 0]) for name in features]
    assert data.feature_names == features


def test_labels_of_a_schema_may_be_absent_and_others_come_after_them(tmp_path):
    path = save(tmp_path, "9,2 1:1\n2 1:1\n9,4 1:2\n")
    data = read(path, schema=Schema(("1",), ("3", "2")))
    assert data.label_names == ("3", "2", "4", "9")
    assert data.Y.tolist() == [[0, 1, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]]
    assert read(path, ["2", "3"], schema=Schema(("1",), ("3", "2"))).Y.tolist() == [[1, 0], [1, 0], [0, 0]]


def test_features_with_names_are_not_found_in_a_libsvm_file(tmp_path):
    with pytest.raises(DataError, match="lacks 1 of the model's features: a"):
        read(save(tmp_path, "1 1:2\n"), (), schema=Schema(("a",), ()))


def test_explicit_zeros_are_not_stored_but_count_as_columns(tmp_path):
    data = read(save(tmp_path, "1 1:0 2:3 5:0\n"))
    assert data.X.nnz == 1 and data.X.shape == (1, 5)


FAULTS = {
    "counts": ("3 5 2\n0 1:2\n1 2:3\n", "line 1: the first line, '3 5 2', counts rows, features and labels"),
    "repeated index": ("1 1:1\n1 2:1 2:1\n", "line 2: index 2 is listed twice"),
    "cut pair": ("1 1:1 2\n", "line 1: expected index:value; found '2'"),
    "no value": ("1 1:1\n1 2:", "line 2: the value of index 2 must be a number; found ''"),
    "no number": ("1 1:1\n\n1 2:x\n", "line 3: the value of index 2 must be a number; found 'x'"),
    "two colons": ("1 1:1:1\n", "line 1: expected index:value; found '1:1:1'"),
    "infinite": ("1 1:inf\n", "line 1: the value of index 1 must be finite"),
    "negative index": ("1 -1:1\n", "line 1: expected index:value; found '-1:1'"),
    "qid": ("1 qid:3 1:1\n", r"line 1: expected index:value; found 'qid:3' \(qid is for ranking"),
    "huge index": ("1 99999999999:1\n", "line 1: index 99999999999 is too large, the limit is 2000000 columns"),
    "fraction": ("1.5 1:1\n", "line 1: a label must be a whole number; found '1.5'"),
    "words": ("a,b 1:1\n", "line 1: a label must be a whole number; found 'a'"),
    "trailing comma": ("1, 1:1\n", "line 1: a label must be a whole number; found ''"),
    "no rows": ("# nothing\n\n", "has no rows"),
    "NUL": ("1 1:1\n1 1:\x001\n", "line 2: a NUL byte is no text"),
}


@pytest.mark.parametrize("text, message", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_sentence_with_file_and_line(tmp_path, text, message):
    data_files.assert_refused(save(tmp_path, text), None, message)


def test_a_number_to_predict_is_not_taken_for_labels_without_end():
    content = b"".join(b"%d 1:1\n" % row for row in range(50_000))
    with pytest.raises(DataError, match="50000 rows with 50000 different labels are too many"):
        read(BytesIO(content))
