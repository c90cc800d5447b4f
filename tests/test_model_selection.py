"""Splits that keep the frequencies of labels and label sets, beside scikit-learn's splits and its checks of them."""

import math
from collections import Counter

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_score, cross_validate
from sklearn.multiclass import OneVsRestClassifier

from mlrh.data import load_digit_scenes
from mlrh.model_selection import (
    MultilabelStratifiedGroupKFold,
    MultilabelStratifiedKFold,
    MultilabelStratifiedShuffleSplit,
)


def labels(n_rows=1000, n_labels=20, seed=0):
    """Labels from common to rare (about 40% to 1% of rows), which occur in rare and common sets."""
    rng = np.random.default_rng(seed)
    shares = np.geomspace(0.4, 0.01, n_labels)
    return (rng.random((n_rows, n_labels)) < shares).astype(int)


def set_counts(Y, rows, keys):
    return np.array([(Y[rows] == key).all(axis=1).sum() for key in keys])


@pytest.mark.parametrize("n_splits", [2, 5, 10])
@pytest.mark.parametrize("seed", range(3))
def test_labels_and_sets_are_spread_evenly_over_folds(n_splits, seed):
    Y = labels(seed=seed)
    keys, counts = np.unique(Y, axis=0, return_counts=True)
    for _, test in MultilabelStratifiedKFold(n_splits).split(Y, Y):
        # Rows are whole, so an error below 1 is the best there is; greedy dealing may miss it by another row or two.
        assert np.abs(Y[test].sum(axis=0) - Y.sum(axis=0) / n_splits).max() < 3
        assert np.abs(set_counts(Y, test, keys) - counts / n_splits).max() < 2
        assert abs(len(test) - len(Y) / n_splits) < 1


def test_folds_are_far_more_even_than_random_ones():
    Y = labels(2000, 40)

    def unevenness(splitter):
        tests = [Y[test].sum(axis=0) for _, test in splitter.split(Y, Y)]
        return np.abs(np.array(tests) - Y.sum(axis=0) / 5).mean()

    random = np.mean([unevenness(KFold(5, shuffle=True, random_state=seed)) for seed in range(5)])
    assert unevenness(MultilabelStratifiedKFold(5)) < random / 4  # 1/8 to 1/10 were seen


def dealt_by_hand(Y, n_splits):
    """The fold of each row by the rule of the module, one number after the other."""
    carried = [["row", *np.flatnonzero(row), row.tobytes()] for row in Y]
    counts = Counter(kind for kinds in carried for kind in kinds)
    sizes = [len(test) for _, test in KFold(n_splits).split(Y)]
    shares, room = [size / len(Y) for size in sizes], list(sizes)
    given, fold = Counter(), {}
    for row in sorted(range(len(Y)), key=lambda row: min(counts[kind] for kind in carried[row])):
        lacking = []
        for part, share in enumerate(shares):
            total = 0.0
            for kind in carried[row]:
                total += 1 / math.sqrt(counts[kind]) * (counts[kind] * share - given[kind, part])
            lacking.append(total * (1 / share) if room[part] else -math.inf)
        fold[row] = lacking.index(max(lacking))
        room[fold[row]] -= 1
        given.update((kind, fold[row]) for kind in carried[row])
    return [fold[row] for row in range(len(Y))]


@pytest.mark.parametrize("n_splits", [3, 5, 7])
def test_folds_are_the_same_on_every_processor(n_splits):
    Y = labels(600)
    fold = np.empty(len(Y), int)
    for number, (_, test) in enumerate(MultilabelStratifiedKFold(n_splits).split(Y, Y)):
        fold[test] = number
    assert fold.tolist() == dealt_by_hand(Y, n_splits)


@pytest.mark.parametrize(
    "splitter", [MultilabelStratifiedKFold(4), MultilabelStratifiedKFold(4, shuffle=True, random_state=0)]
)
def test_every_row_is_held_out_once_and_folds_repeat(splitter):
    Y = labels(203)
    first, second = (list(splitter.split(Y, Y)) for _ in range(2))
    assert sorted(np.concatenate([test for _, test in first])) == list(range(203))
    for (train, test), (again, same) in zip(first, second, strict=True):
        assert not set(train) & set(test) and len(train) + len(test) == 203
        np.testing.assert_array_equal(train, again)
        np.testing.assert_array_equal(test, same)
    assert splitter.get_n_splits(Y, Y) == 4
    assert [len(test) for _, test in first] == [51, 51, 51, 50]  # as KFold has them


def test_another_random_state_gives_other_folds():
    Y = labels(200)
    first, other = (
        next(MultilabelStratifiedKFold(5, shuffle=True, random_state=seed).split(Y, Y))[1] for seed in (0, 1)
    )
    assert set(first) != set(other)


def test_every_form_of_y_gives_the_same_folds():
    Y = labels(150, 6)
    expected = [test for _, test in MultilabelStratifiedKFold(3).split(Y, Y)]
    unknown = Y.astype(float)
    unknown[Y == 0] = np.where(np.arange((Y == 0).sum()) % 3, 0, np.nan)  # unknown counts as absent
    for y in (sparse.csr_matrix(Y), sparse.coo_array(Y), Y.astype(bool), unknown, sparse.csr_array(unknown)):
        for (_, test), same in zip(MultilabelStratifiedKFold(3).split(Y, y), expected, strict=True):
            np.testing.assert_array_equal(test, same)


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix])
@pytest.mark.parametrize(
    "splitter", [MultilabelStratifiedKFold(2), MultilabelStratifiedShuffleSplit(1), MultilabelStratifiedGroupKFold(2)]
)
def test_sparse_y_stays_as_it_was_and_may_be_read_only(splitter, kind):
    Y = kind(np.array([[1.0, np.nan], [0, 1], [1, 0], [np.nan, 1]]))
    Y.indices[:2] = Y.indices[:2][::-1].copy()  # not in order, as scipy allows
    Y.has_sorted_indices = False
    arrays = (Y.data, Y.indices, Y.indptr)
    before = [array.tobytes() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    groups = np.arange(4) if isinstance(splitter, MultilabelStratifiedGroupKFold) else None
    list(splitter.split(np.zeros((4, 1)), Y, groups))
    assert [array.tobytes() for array in arrays] == before


def test_groups_may_be_a_column():
    Y, groups = labels(40), np.repeat(np.arange(20), 2)
    splitter = MultilabelStratifiedGroupKFold(4)
    for one, other in zip(splitter.split(Y, Y, groups), splitter.split(Y, Y, groups[:, None]), strict=True):
        assert np.array_equal(one[1], other[1])


@pytest.mark.parametrize("missing", [None, np.nan])
def test_a_missing_group_is_named(missing):
    groups = np.array(["a", "b", missing, "a"], object)
    with pytest.raises(ValueError, match="that of row 2 is missing"):
        next(MultilabelStratifiedGroupKFold(2).split(np.zeros((4, 1)), labels(4), groups))


def test_one_class_per_row_is_stratified_as_scikit_learn_does():
    classes = np.repeat(["a", "b", "c"], [31, 50, 9])
    for _, test in MultilabelStratifiedKFold(3).split(classes, classes):
        assert np.unique(classes[test], return_counts=True)[1].tolist() in (
            [10, 17, 3],
            [11, 16, 3],
            [10, 16, 3],
            [11, 17, 3],
        )


@pytest.mark.parametrize(
    "test_size, train_size, sizes", [(0.3, None, (700, 300)), (100, 50, (50, 100)), (None, None, (900, 100))]
)
def test_shuffled_splits_have_the_asked_sizes_and_even_labels(test_size, train_size, sizes):
    Y = labels()
    splitter = MultilabelStratifiedShuffleSplit(3, test_size=test_size, train_size=train_size, random_state=0)
    splits = list(splitter.split(Y, Y))
    assert len(splits) == splitter.get_n_splits() == 3
    for train, test in splits:
        assert (len(train), len(test)) == sizes and not set(train) & set(test)
        for rows in (train, test):
            assert np.abs(Y[rows].sum(axis=0) - Y.sum(axis=0) * len(rows) / 1000).max() < 3
    assert set(splits[0][1]) != set(splits[1][1])
    np.testing.assert_array_equal(splits[0][1], next(splitter.split(Y, Y))[1])


def test_groups_stay_together_and_labels_are_even():
    Y = labels(3000, 10)
    groups = np.random.default_rng(1).integers(0, 400, 3000)
    held_out = []
    for train, test in MultilabelStratifiedGroupKFold(5).split(Y, Y, groups):
        assert not set(groups[train]) & set(groups[test])
        share = Y[test].sum(axis=0) / Y.sum(axis=0)
        assert np.abs(share - 0.2).max() < 0.05  # the rarest label has 30 rows: 0.05 is 1.5 of them
        held_out.append(test)
    assert sorted(np.concatenate(held_out)) == list(range(3000))


def test_scikit_learn_routes_groups_and_folds_into_its_own_functions():
    scenes = load_digit_scenes(n_samples=300, random_state=0)
    X, Y = scenes.X / 16, scenes.Y
    model = OneVsRestClassifier(LogisticRegression(C=0.1, max_iter=1000))
    assert len(cross_val_score(model, X, Y, cv=MultilabelStratifiedKFold(3))) == 3
    groups = np.arange(300) // 4
    by_argument = cross_validate(model, X, Y, cv=MultilabelStratifiedGroupKFold(3), groups=groups)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = cross_validate(model, X, Y, cv=MultilabelStratifiedGroupKFold(3), params={"groups": groups})
    np.testing.assert_array_equal(by_argument["test_score"], routed["test_score"])


def test_splitters_show_their_parameters():
    assert (
        repr(MultilabelStratifiedKFold(3)) == "MultilabelStratifiedKFold(n_splits=3, random_state=None, shuffle=False)"
    )
    assert "test_size=0.3" in repr(MultilabelStratifiedShuffleSplit(test_size=0.3))


def test_groups_are_of_as_many_rows_as_x_and_y():
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        next(MultilabelStratifiedGroupKFold(2).split(np.ones((3, 1)), np.ones((4, 2)), [0, 1, 1, 0]))


@pytest.mark.parametrize(
    "splitter, y, groups, message",
    [
        (MultilabelStratifiedKFold(5), np.ones((3, 2)), None, "n_splits=5"),
        (MultilabelStratifiedKFold(2), np.full((4, 2), 2), None, "only 0 and 1"),
        (MultilabelStratifiedKFold(2), sparse.csr_array(np.full((4, 2), 2.0)), None, "only 0 and 1"),
        (MultilabelStratifiedGroupKFold(2), np.ones((4, 2)), None, "Without groups"),
        (MultilabelStratifiedGroupKFold(2), np.ones((4, 2)), [0, 1, 1], "3 entries for 4 rows"),
        (MultilabelStratifiedGroupKFold(3), np.ones((4, 2)), [0, 1, 1, 0], "at least as many groups; got 2"),
        (MultilabelStratifiedKFold(2), np.array([0.1, 0.2, 0.3, 0.4]), None, "continuous"),
    ],
)
def test_wrong_input_gets_a_sentence(splitter, y, groups, message):
    with pytest.raises(ValueError, match=message):
        list(splitter.split(np.zeros((y.shape[0], 1)), y, groups))


@pytest.mark.parametrize("y", [[{"a"}, {"a", "b"}] * 5, [["a"], ["a", "b"]] * 5, [frozenset("a")] * 10])
def test_a_list_of_label_sets_is_refused_in_a_sentence(y):
    with pytest.raises(ValueError, match=r"got a list of label sets\. MultiLabelBinarizer.*makes the matrix"):
        next(MultilabelStratifiedKFold(2).split(np.zeros((10, 1)), y))
