"""Which label sets the training rows admit: their sizes, the sets seen, and what the rows leave undetermined.

Y is (n_samples, n_labels), int8, of 1, 0 and UNKNOWN; support holds the number of each of its rows in the y that was
given, for errors. Knows nothing of features or of fitting.
"""

import numpy as np

from mlrh._indicators import UNKNOWN
from mlrh.spaces import ObservedSpace

ONE_CLASS = {False: (1, 1), True: (0, 1)}  # sizes for one class per row; True where two classes share one label


def sizes(Y, support, min_labels, max_labels):
    """Smallest and largest admissible size, from the rows where they are "auto"; an error names the first row excluded.

    Of a row that is not complete the labels known to be present count.
    """
    if "auto" not in (min_labels, max_labels) and min_labels > max_labels:
        raise ValueError(f"min_labels must be at most max_labels; got {min_labels} and {max_labels}.")
    present, possible = _size_ranges(Y)
    smallest = int(present.min()) if min_labels == "auto" else min_labels
    largest = int(present.max()) if max_labels == "auto" else max_labels
    _check_sizes(present, possible, support, smallest, largest)
    return smallest, largest


def check_any(support):
    """Raise a ValueError unless there is a row to learn from."""
    if len(support) == 0:
        raise ValueError("y must show a label of at least one row of positive weight; every entry is NaN or masked.")


def check_every_label_known(names, Y):
    """Raise a ValueError that names the first label of which nothing is known in any row."""
    never = np.flatnonzero((Y == UNKNOWN).all(axis=0))
    if len(never):
        name = names[never].tolist()[0]
        raise ValueError(
            f"Every label must be known, present or absent, in at least one row; label {name!r} is NaN or masked in "
            "all of them. Leave its column out of y."
        )


def observed_space(Y, support):
    """The sets of the complete rows; an error names the first row that agrees with none, by its place in support."""
    is_complete = (Y != UNKNOWN).all(axis=1)
    if not is_complete.any():
        raise ValueError(
            "label_space='observed' takes its sets from the rows of y without NaN, and there are none; use "
            "label_space='cardinality'."
        )
    space = ObservedSpace(_canonical_sets(Y[is_complete]))
    fits = space.fits(Y)
    if not fits.all():
        raise ValueError(
            f"With label_space='observed', every row of y must agree with the set of a complete row; row "
            f"{support[np.argmin(fits)]} agrees with none, as do {len(fits) - fits.sum()} of {len(fits)} rows. Use "
            "label_space='cardinality', or drop these rows."
        )
    return space


def undetermined(names, Y, sizes, *, learns_sizes):
    """What the rows leave without a finite optimum, in words; names are those of the labels."""
    smallest, largest = sizes
    problems = []
    for value, state in ((0, "absent from"), (1, "present in")):
        constant = np.flatnonzero(np.isin(Y, (value, UNKNOWN)).all(axis=0))
        if len(constant):
            listed = [repr(name) for name in names[constant].tolist()]
            more = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
            problems.append(f"{state} every training row: label {', '.join(listed[:10])}{more}")
    seen = _possible_sizes(Y)
    if len(seen) == 1 and smallest < largest and seen[0] in sizes:
        problems.append(f"the only size of the training rows: {seen[0]}, at the limit of the admissible sizes")
    absent = np.setdiff1d(np.arange(smallest, largest + 1), seen)
    if learns_sizes and len(absent):
        problems.append(f"a bias to learn for a size that no training row has: {', '.join(map(str, absent))}")
    return problems


def _canonical_sets(Y):
    """The distinct rows of Y, smaller sets first, then those with lower labels: the order in which ties are broken."""
    distinct = np.unique(Y, axis=0)[::-1]
    return distinct[np.argsort(distinct.sum(axis=1, dtype=np.int64), kind="stable")]


def _size_ranges(Y):
    """Numbers of labels that each row has at least, those known to be present, and at most, (n_samples,) each."""
    return np.count_nonzero(Y == 1, axis=1), np.count_nonzero(Y != 0, axis=1)


def _possible_sizes(Y):
    """The sizes that some row can have, ascending."""
    ranges = np.unique(np.stack(_size_ranges(Y), axis=1), axis=0)
    return np.unique(np.concatenate([np.arange(low, high + 1) for low, high in ranges.tolist()]))


def _check_sizes(present, possible, support, smallest, largest):
    for counts, excluded, name, limit, needed in (
        (possible, np.flatnonzero(possible < smallest), "min_labels", smallest, possible.min()),
        (present, np.flatnonzero(present > largest), "max_labels", largest, present.max()),
    ):
        if len(excluded):
            first = excluded[0]
            has = "has" if present[first] == possible[first] else f"has at {'most' if counts is possible else 'least'}"
            raise ValueError(
                f"Row {support[first]} of y {has} {counts[first]} labels, which {name}={limit} excludes, as it does "
                f"{len(excluded)} of {len(counts)} rows; set {name}={needed} or {name}='auto', or drop these rows."
            )
    if smallest > largest:
        raise ValueError(f"min_labels must not exceed max_labels; got {smallest} and {largest}.")
