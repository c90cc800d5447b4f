"""Splits of multilabel data that keep the frequencies of labels and of label sets.

One rule deals out rows, or groups of rows: those with the rarest label set first, and each to the part that still lacks
most of what it carries. They are used as scikit-learn's own splitters are: `cv=MultilabelStratifiedKFold(5)`.
"""

import numpy as np
from scipy import sparse
from sklearn.model_selection import KFold, ShuffleSplit, StratifiedGroupKFold
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from mlrh._indicators import UNKNOWN, as_partly_known

__all__ = ["MultilabelStratifiedGroupKFold", "MultilabelStratifiedKFold", "MultilabelStratifiedShuffleSplit"]


class MultilabelStratifiedKFold(KFold):
    """Folds with the same share of every label and of every label set, as far as whole rows allow.

    Fold sizes differ by at most one row. Costs O(n_splits * number of labels of all rows).

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, at least 2.
    shuffle : bool, default=False
        Whether to shuffle the rows first, which gives other folds for another random_state.
    random_state : int, RandomState instance or None, default=None
        For shuffle.

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh.model_selection import MultilabelStratifiedKFold
    >>> Y = np.repeat([[1, 0, 0], [1, 1, 0], [0, 1, 1]], [6, 4, 2], axis=0)
    >>> for train, test in MultilabelStratifiedKFold(2).split(Y, Y):
    ...     print(len(train), len(test), Y[test].sum(axis=0))
    6 6 [5 3 1]
    6 6 [5 3 1]
    """

    def split(self, X, y, groups=None):
        """Pairs (training rows, held-out rows) of row numbers, one pair per fold.

        Parameters
        ----------
        X : array-like with one row per row of y
        y : indicator matrix of shape (n_samples, n_labels), dense or sparse, or classes of shape (n_samples,)
            NaN is an unknown label and counts as absent here.
        groups : ignored
        """
        tests = [test for _, test in super().split(X, y, groups)]  # checks n_splits and the lengths; gives the sizes
        kinds = _kinds(y)
        n_rows = kinds.shape[0]
        rng = check_random_state(self.random_state) if self.shuffle else None
        fold = _deal(
            kinds, np.array([len(test) for test in tests]) / n_rows, _rarest_first(kinds, rng), whole_rows=True
        )
        for number in range(self.n_splits):
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)


class MultilabelStratifiedShuffleSplit(ShuffleSplit):
    """Random splits into a training and a test part with the same share of every label and of every label set.

    Parameters
    ----------
    n_splits : int, default=10
        Number of splits.
    test_size, train_size : float, int or None, default=None
        Share or number of rows; by default a tenth is for testing and the rest for training.
    random_state : int, RandomState instance or None, default=None
        An int gives the same splits at every call.

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh.model_selection import MultilabelStratifiedShuffleSplit
    >>> Y = np.repeat([[1, 0, 0], [1, 1, 0], [0, 1, 1]], [6, 4, 2], axis=0)
    >>> train, test = next(MultilabelStratifiedShuffleSplit(test_size=0.5, random_state=0).split(Y, Y))
    >>> print(Y[train].sum(axis=0), Y[test].sum(axis=0))
    [5 3 1] [5 3 1]
    """

    def split(self, X, y, groups=None):
        """Pairs (training rows, test rows) of row numbers in random order; X, y and groups as in the folds' split."""
        sizes = [len(part) for part in next(super().split(X, y, groups))]
        kinds = _kinds(y)
        n_rows = kinds.shape[0]
        shares = np.array([*sizes, n_rows - sum(sizes)]) / n_rows  # the last part is left out
        rng = check_random_state(self.random_state)
        for _ in range(self.n_splits):
            part = _deal(kinds, shares, _rarest_first(kinds, rng), whole_rows=True)
            yield tuple(rng.permutation(np.flatnonzero(part == number)) for number in (0, 1))


class MultilabelStratifiedGroupKFold(StratifiedGroupKFold):
    """Folds that keep groups of rows together, with shares of rows, labels and label sets as even as that allows.

    Parameters are those of `MultilabelStratifiedKFold`. A fold may get no row where a few groups hold most rows.
    """

    def split(self, X, y, groups=None):
        """Pairs (training rows, held-out rows) of row numbers; rows with the same entry of `groups` stay together."""
        if groups is None:
            raise ValueError(
                "groups must have an entry per row; got None. Without groups use MultilabelStratifiedKFold. Where a "
                "fit takes no groups, give it the folds: cv=list(splitter.split(X, y, groups))."
            )
        check_consistent_length(X, y)
        kinds = _kinds(y)
        _, group = np.unique(_checked_groups(groups), return_inverse=True)
        if len(group) != kinds.shape[0]:
            raise ValueError(f"groups must have an entry per row; got {len(group)} entries for {kinds.shape[0]} rows.")
        n_groups = group.max() + 1
        if n_groups < self.n_splits:
            raise ValueError(f"n_splits={self.n_splits} folds need at least as many groups; got {n_groups}.")
        members = sparse.csr_array((np.ones(len(group)), (group, np.arange(len(group)))))
        by_group = sparse.csr_array(members @ kinds)
        rng = check_random_state(self.random_state) if self.shuffle else None
        # Large groups first: the small ones then even out what these have left.
        order = _shuffled(n_groups, rng)
        order = order[np.argsort(-by_group[:, [0]].toarray()[order, 0], kind="stable")]
        fold = _deal(by_group, np.full(self.n_splits, 1 / self.n_splits), order, whole_rows=False)[group]
        for number in range(self.n_splits):
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)


def _checked_groups(groups):
    """The groups (n_samples,), of which none is missing."""
    groups = column_or_1d(groups)
    missing = [i for i, group in enumerate(groups) if group is None or group != group]
    if missing:
        first = missing[0]
        raise ValueError(f"groups must have an entry per row; that of row {first} is missing ({groups[first]}).")
    return groups


def _kinds(y):
    """What rows carry and parts should share, (n_samples, n_kinds): the row itself, each label, its label set."""
    Y = _labels(y)
    Y.sum_duplicates()  # sorts the labels of a row, so that equal sets have equal bytes
    keys = [Y.indices[start:end].tobytes() for start, end in zip(Y.indptr[:-1], Y.indptr[1:], strict=True)]
    numbers: dict[bytes, int] = {}
    sets = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    rows = np.arange(Y.shape[0])
    own_set = sparse.csr_array((np.ones(len(rows)), (rows, sets)), shape=(len(rows), len(numbers)))
    kinds = sparse.csr_array(sparse.hstack([np.ones((len(rows), 1)), Y, own_set]))
    return kinds[:, kinds.sum(axis=0) > 0]


def _labels(y):
    """y as a sparse indicator matrix of floats; a column per class where y has one class per row."""
    if not sparse.issparse(y):
        if isinstance(y, list | tuple) and _are_label_sets(y):
            raise ValueError(
                "y must be an indicator matrix or one class per row; got a list of label sets. "
                "MultiLabelBinarizer().fit_transform(y) makes the matrix."
            )
        if np.ndim(y) == 1:
            check_classification_targets(y)
            classes, number = np.unique(np.asarray(y), return_inverse=True)
            shape = (len(number), len(classes))
            return sparse.csr_array((np.ones(len(number)), (np.arange(len(number)), number)), shape=shape)
        y = as_partly_known(y, "y")
        y = np.where(y == UNKNOWN, 0, y)
    Y = sparse.csr_array(y, dtype=np.float64, copy=True)  # changed below
    Y.data[np.isnan(Y.data)] = 0
    Y.eliminate_zeros()
    if (Y.data != 1).any():
        raise ValueError(f"y must contain only 0 and 1; found {Y.data[Y.data != 1][0]}.")
    return Y


def _are_label_sets(rows):
    """Whether rows are sets, or lists of different lengths: as classes, nearly every row would be one of its own."""
    if any(isinstance(row, set | frozenset) for row in rows):
        return True
    return len({len(row) for row in rows if isinstance(row, list | tuple)}) > 1


def _rarest_first(kinds, rng):
    """Row numbers, those with the rarest kind first: common rows, dealt out last, fit in everywhere."""
    order = _shuffled(kinds.shape[0], rng)
    counts = np.asarray(kinds.sum(axis=0)).ravel()
    rarest = np.minimum.reduceat(counts[kinds.indices], kinds.indptr[:-1])  # every row has a kind: the row itself
    return order[np.argsort(rarest[order], kind="stable")]


def _shuffled(n, rng):
    return np.arange(n) if rng is None else rng.permutation(n)


def _deal(kinds, shares, order, *, whole_rows):
    """The part (n_units,) of each unit, so that part p gets about shares[p] of every kind.

    With whole_rows each unit is a row, and part p gets exactly shares[p] of the rows.
    """
    counts = np.asarray(kinds.sum(axis=0)).ravel()
    # Dealing at random leaves errors of the order of sqrt(count): in these units all kinds weigh alike. Weights of
    # 1 / count and 1 / count^2 left labels and sets less even on emotions, yeast and medical, bibtex was the same.
    weight = 1 / np.sqrt(counts)
    given = np.zeros((len(counts), len(shares)))
    wanted = np.outer(counts, shares)
    room = np.rint(wanted[0]) if whole_rows else np.full(len(shares), np.inf)
    scale = np.divide(1, shares, out=np.zeros(len(shares)), where=shares > 0)
    part = np.empty(kinds.shape[0], np.int64)
    for unit in order:
        carried = slice(kinds.indptr[unit], kinds.indptr[unit + 1])
        kind, amount = kinds.indices[carried], kinds.data[carried]
        # Summed row by row, not by BLAS, whose rounding differs between processors: it would decide ties.
        lacking = ((amount * weight[kind])[:, None] * (wanted[kind] - given[kind])).sum(axis=0) * scale
        lacking[room < 1] = -np.inf
        best = int(np.argmax(lacking))
        part[unit] = best
        given[kind, best] += amount
        room[best] -= 1
    return part
