"""Rows of one model, what a person has said of their labels, and exact answers about the rest, as plain dicts.

Knows nothing of HTTP or of files. Rows are numbered from 1 and labels go by their names, as in the files of `mlrh`.
"""

import math
from collections.abc import Callable, Collection, Sequence
from threading import RLock
from typing import Any

import numpy as np
from scipy import sparse

from mlrh._indicators import UNKNOWN, as_known
from mlrh.automatic import mean_and_deviation
from mlrh.data.containers import date_text, listed
from mlrh.spaces import LabelSetDistribution
from mlrh.web._rows import Cells

WORDS = {1: "present", 0: "absent", None: "open"}
ORDERS = ("entropy", "file")
BRIEF = 24  # labels shown at first where there are many; those that matter for the row come on top
LIKELY = 0.01  # marginal from which on a label is always shown
NEAR_ZERO = 0.005  # marginal below which a label is folded away unless it is decided: 0% to a reader of whole percents
NEVER_FOLDED = 3  # labels that are shown however improbable they are, so that the list is never empty
SMALLEST_SHARE = 1e-3  # probability from which on a size is shown
LARGEST_EXPONENT = 700.0  # exp of 710 is no floating point number any more

Keep = Callable[[int, np.ndarray], None]


class Session:
    """What is known of every row, and answers given that; calls from several threads are answered one by one.

    Parameters
    ----------
    distribution : LabelSetDistribution
        Of all rows, given nothing.
    label_names : sequence of str
    known : array of shape (n_rows, n_labels) of 1, 0 and NaN, optional
        What is known at the start.
    features : function of a row's index, optional
        Gives a list of dicts that describe the row; the session hands them on.
    cells : Cells, optional
        The texts, links and images of the rows that a person reads.
    keep : function of (row number, values of 1, 0 and NaN), optional
        Called after the answer to a change is computed, before the change takes effect; if it raises, nothing changes.
    least_probability : float, default=0.0
        A most probable set of less is marked as refused: by itself, the model would not answer with it.
    """

    def __init__(
        self,
        distribution: LabelSetDistribution,
        label_names: Sequence[str],
        *,
        known=None,
        features: Callable[[int], list[dict]] | None = None,
        cells: Cells | None = None,
        keep: Keep | None = None,
        least_probability: float = 0.0,
    ):
        self._distribution = distribution
        self._names = _checked_names(label_names, distribution.shape)
        self._index = {name: index for index, name in enumerate(self._names)}
        self._sizes = distribution.sizes()  # of the smallest and the largest label set
        shape = distribution.shape
        self._known = as_known(np.full(shape, np.nan) if known is None else known, shape)
        self._touched = (self._known != UNKNOWN).any(axis=1)
        self._refuse_impossible_rows()
        self._orders = _orders(distribution)
        self._features = features or (lambda index: [])
        self._cells = cells or Cells({})
        self._keep = keep or (lambda row, values: None)
        self._least_probability = least_probability
        self._history: list[tuple[int, np.ndarray]] = []
        self.lock = RLock()

    def known(self) -> np.ndarray:
        """What is known of all rows, (n_rows, n_labels) of 1, 0 and NaN."""
        with self.lock:
            return _with_nan(self._known)

    def decided(self) -> np.ndarray:
        """Whether each row has a decision, (n_rows,)."""
        with self.lock:
            return self._touched.copy()

    def retrained(self, distribution: LabelSetDistribution, least_probability: float) -> LabelSetDistribution:
        """From now on answer by another distribution of the same rows and labels; returns the one before.

        least_probability is that of the new model. A ValueError, and no change, if what is known of a row fits no set
        of it.
        """
        orders = _orders(distribution)  # of many rows it takes a while, in which others are answered
        with self.lock:
            before = self._distribution, self._sizes
            if distribution.shape != before[0].shape:
                what = f"{before[0].shape[0]} rows and {before[0].shape[1]} labels"
                raise ValueError(f"The model must be about the same {what}; it is about {distribution.shape}.")
            self._distribution, self._sizes = distribution, distribution.sizes()
            try:
                self._refuse_impossible_rows()
            except BaseException:
                self._distribution, self._sizes = before
                raise
            self._orders, self._least_probability = orders, least_probability
            return before[0]

    def overview(self) -> dict[str, Any]:
        """What doesn't depend on a row: names, sizes, the orders, and in each the first row nobody has looked at."""
        with self.lock:
            return {
                "label_names": self._names,
                "n_rows": len(self._known),
                "min_labels": self._sizes[0],
                "max_labels": self._sizes[1],
                "start": {order: self._untouched_from(order, 0) or int(self._orders[order][0]) + 1 for order in ORDERS},
            }

    def row(self, row: int, order: str = "file") -> dict[str, Any]:
        """Everything about one row, given what is known of it; `order` says which rows come before and after.

        labels: for each its name, known (1, 0 or None), its marginal, and the marginal given nothing (before).
        best: the most probable set and its probability. is_refused: whether that is too low for an answer. sizes:
        P(|y| = j) now and before. entropy: of the set in nats, see `entropies`, and effective_sets, its exponential:
        the number of equally probable sets that would be as uncertain, None where there is no entropy or where that is
        beyond floating point numbers.
        """
        with self.lock:
            return self._answer(self._checked_row(row), _checked_order(order))

    def image(self, row: int, column: str) -> tuple[str, bytes]:
        """Type and content of the image of this machine that a cell names; see `Cells.image`."""
        return self._cells.image(self._checked_row(row), column)

    @property
    def loads_links(self) -> bool:
        """Whether cells show images of other hosts."""
        return self._cells.loads_links

    def decide(self, row: int, label: str, value: int | None, order: str = "file") -> dict[str, Any]:
        """The row after a label is said to be present (1), absent (0) or open (None).

        A ValueError, and no change, if no set of the label space fits.
        """
        with self.lock:
            values = self._known[index := self._checked_row(row)].copy()
            values[self._checked_label(label)] = _checked_value(value)
            conflict = self._conflict(values)
            if conflict:
                raise ValueError(f"{label} can't be {WORDS[value]}: {conflict}; set another label to open first.")
            return self._change(index, values, _checked_order(order))

    def accept(self, row: int, order: str = "file") -> dict[str, Any]:
        """The row after all its open labels are set as in the most probable set."""
        with self.lock:
            index = self._checked_row(row)
            return self._change(index, self._now(index).mode()[0], _checked_order(order))

    def clear(self, row: int, order: str = "file") -> dict[str, Any]:
        """The row after all its labels are open again."""
        with self.lock:
            index = self._checked_row(row)
            return self._change(index, np.full(len(self._names), UNKNOWN, np.int8), _checked_order(order))

    def undo(self, order: str = "file") -> dict[str, Any]:
        """The row of the last change, after that change is taken back.

        A ValueError where the row, as it was before, fits no set of a model retrained since; that change then stays,
        and the next undo is of the one before.
        """
        with self.lock:
            order = _checked_order(order)
            if not self._history:
                raise ValueError("There is nothing to undo since the program was started.")
            *earlier, (index, values) = self._history
            conflict = self._conflict(values)
            if conflict:
                self._history = earlier
                raise ValueError(f"Row {index + 1} can't become what it was: {conflict}; undo again for earlier ones.")
            return self._become(index, values, order, history=earlier)

    def _change(self, index, values, order):
        before = self._known[index].copy()
        if np.array_equal(before, values):
            return self._answer(index, order)
        return self._become(index, values, order, history=[*self._history, (index, before)])

    def _become(self, index, values, order, *, history):
        """The answer given these values of a row, which are kept once there is one; all or nothing."""
        before = self._known[index].copy(), self._history
        self._set(index, values, history)
        try:
            answer = self._answer(index, order)
            self._keep(index + 1, _with_nan(values))
        except BaseException:
            self._set(index, *before)
            raise
        return answer

    def _set(self, index, values, history):
        self._known[index], self._history = values, history
        self._touched[index] = (values != UNKNOWN).any()

    def _before(self, index):
        return self._distribution.take(slice(index, index + 1))

    def _now(self, index):
        return self._before(index).condition(_with_nan(self._known[index : index + 1]))

    def _answer(self, index, order):
        before, now = self._before(index), self._now(index)
        best = now.mode()
        (entropy,), (entropy_before,) = entropies(now), entropies(before)
        probability = float(now.prob(best)[0])
        marginals, marginals_before = now.marginals()[0], before.marginals()[0]
        return {
            "row": index + 1,
            **self._place(index, order),
            "labels": self._labels(index, marginals, marginals_before),
            "by_probability": np.argsort(-marginals_before, kind="stable").tolist(),
            "brief": self._brief(index, marginals, marginals_before, best[0]),
            "best": {"labels": self._names_of(best[0]), "probability": probability},
            "is_refused": probability < self._least_probability,
            "sizes": _sizes(now.cardinality_pmf()[0], before.cardinality_pmf()[0]),
            "entropy": entropy,
            "entropy_before": entropy_before,
            "effective_sets": math.exp(entropy) if entropy is not None and entropy < LARGEST_EXPONENT else None,
            "cells": self._cells(index),
            "features": self._features(index),
            "n_touched": int(np.count_nonzero(self._touched)),
            "can_undo": bool(self._history),
        }

    def _place(self, index, order):
        """Where the row stands in the order, and which rows stand around it."""
        rows = self._orders[order]
        place = int(np.flatnonzero(rows == index)[0])
        return {
            "order": order,
            "position": place + 1,
            "previous": int(rows[place - 1]) + 1 if place else None,
            "next": int(rows[place + 1]) + 1 if place + 1 < len(rows) else None,
            "next_untouched": self._untouched_from(order, place + 1),
        }

    def _untouched_from(self, order, place):
        """The first row that nobody has looked at, from this place of the order on, and then from its start."""
        rows = np.roll(self._orders[order], -place)
        untouched = rows[~self._touched[rows]]
        return int(untouched[0]) + 1 if len(untouched) else None

    def _labels(self, index, marginals, marginals_before):
        known = [None if value == UNKNOWN else value for value in self._known[index].tolist()]
        columns = zip(self._names, known, marginals.tolist(), marginals_before.tolist(), strict=True)
        return [dict(zip(("name", "known", "marginal", "before"), column, strict=True)) for column in columns]

    def _brief(self, index, marginals, marginals_before, best):
        """Labels to show at first, by their probability before any decision, so that a click moves no line."""
        order = np.argsort(-marginals_before, kind="stable")
        matters = (self._known[index] != UNKNOWN) | (marginals >= LIKELY) | (best == 1)
        possible = np.maximum(marginals, marginals_before) >= NEAR_ZERO  # a decision that rules a label out folds none
        matters[order[:BRIEF]] |= possible[order[:BRIEF]]
        matters[order[:NEVER_FOLDED]] = True
        return order[matters[order]].tolist()

    def _names_of(self, labels):
        return [self._names[label] for label in np.flatnonzero(labels)]

    def _refuse_impossible_rows(self):
        for index in np.flatnonzero(self._touched).tolist():
            conflict = self._conflict(self._known[index])
            if conflict:
                what = f"What is known of row {index + 1} can't be"
                raise ValueError(f"{what}: {conflict}; correct the row or leave it out.")

    def _conflict(self, values):
        """Why no set of the label space fits what is known of a row, in words; None where one does."""
        known = np.where(values == UNKNOWN, np.nan, values)[None]
        if self._distribution.take(slice(0, 1)).fits(known)[0]:
            return None
        smallest, largest = self._sizes
        n_present, n_left = np.count_nonzero(values == 1), np.count_nonzero(values != 0)
        if n_present > largest:
            return f"a label set of this model has at most {_counted(largest)}, and {n_present} would be present"
        if n_left < smallest:
            return f"a label set of this model has at least {_counted(smallest)}, and only {n_left} would be left"
        present, absent = self._names_of(values == 1), self._names_of(values == 0)
        without = f" without {listed(absent)}" if absent else ""
        return f"no label set that this model knows {f'holds {listed(present)}' if present else 'is left'}{without}"

    def _checked_row(self, row):
        n_rows = len(self._known)
        if type(row) is not int or not 1 <= row <= n_rows:
            raise ValueError(f"The row must be a whole number from 1 to {n_rows}; got {_short(row)}.")
        return row - 1

    def _checked_label(self, label):
        if not isinstance(label, str) or label not in self._index:
            raise ValueError(f"The label must be one of the model's {len(self._names)} labels; got {_short(label)}.")
        return self._index[label]


def entropies(distribution: LabelSetDistribution) -> list[float | None]:
    """The entropy of each row's label set in nats; None where a pool of models has too many sets to list them."""
    try:
        return distribution.entropy().tolist()
    except ValueError:
        return [None] * distribution.shape[0]


def _orders(distribution):
    """The rows' indices in the orders that a person can choose: the most uncertain first, or as in the file.

    Where the entropy can't be had, rows whose most probable set is the least probable come first.
    """
    entropy = entropies(distribution)
    certainty = distribution.log_prob(distribution.mode()) if None in entropy else -np.array(entropy)
    return {"entropy": np.argsort(certainty, kind="stable"), "file": np.arange(distribution.shape[0])}


def _checked_names(names, shape):
    names = [str(name) for name in names]
    if len(names) != shape[1] or len(set(names)) < len(names):
        raise ValueError(f"label_names must be {shape[1]} different names, one per label; got {_short(names)}.")
    if not shape[0] or not shape[1]:
        raise ValueError(f"There must be at least one row and one label; got {shape[0]} rows and {shape[1]} labels.")
    return names


def _checked_value(value):
    if value is None:
        return UNKNOWN
    if type(value) is not int or value not in (0, 1):
        raise ValueError(f"The value must be 1 (present), 0 (absent) or null (open); got {_short(value)}.")
    return value


def _checked_order(order):
    if order not in ORDERS:
        raise ValueError(f"The order must be {' or '.join(ORDERS)}; got {_short(order)}.")
    return order


def _with_nan(known):
    return np.where(known == UNKNOWN, np.nan, known)


def _sizes(now, before):
    """The sizes from the smallest to the largest that is not negligible, with their probabilities."""
    most = np.maximum(now, before)
    shown = np.flatnonzero(most >= min(SMALLEST_SHARE, most.max() / 2))  # of thousands of sizes each can be below
    return [
        {"size": size, "probability": float(now[size]), "before": float(before[size])}
        for size in range(int(shown[0]), int(shown[-1]) + 1)
    ]


def _counted(n):
    return f"{n} label{'' if n == 1 else 's'}"


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


# The features of a row that stand out

SHOWN = 10
STANDS_OUT = 2.0  # standard deviations from the mean; of normal numbers one in twenty is farther
FAR = 3.0  # of normal numbers, one in four hundred
OTHER = "another value than all training rows have"


class Features:
    """Numbers and dates of single rows, those farthest from their mean first.

    The deviation is in standard deviations of the column. In sparse rows only what is stored counts; missing values are
    left out.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_rows, n_features)
    names : sequence of str
    words : collection of str, optional
        Nominal features and texts, whose columns hold indices of words and so no numbers: they are left out.
    dates : sequence of str, optional
        The features that hold dates, as days since 1970.
    scale : pair of arrays of shape (n_features,), optional
        Mean and standard deviation of each feature over the rows that the model was fitted to; by default over X.
    """

    def __init__(
        self,
        X,
        names: Sequence[str],
        *,
        words: Collection[str] = (),
        dates: Sequence[str] = (),
        scale=None,
    ):
        self._X: Any = sparse.csr_array(X) if sparse.issparse(X) else np.asarray(X, np.float64)
        self._names, self._dates = names, dates
        self._is_shown = np.array([name not in words for name in names], bool)
        self._mean, self._deviation = map(np.asarray, mean_and_deviation(self._X) if scale is None else scale)

    def __call__(self, index: int) -> list[dict[str, Any]]:
        """At most SHOWN features of a row: name, value in words, and deviation (None where the column is constant).

        `words` says the deviation in words, and `stands_out` whether it is large.
        """
        columns, values = self._values(index)
        deviations = np.array([self._in_deviations(*pair) for pair in zip(columns, values, strict=True)])
        order = np.argsort(-np.abs(np.nan_to_num(deviations)), kind="stable")[:SHOWN]
        return [self._described(columns[place], values[place], float(deviations[place])) for place in order]

    def _described(self, column, value, deviation):
        is_other = np.isnan(deviation) and not np.isclose(value, self._mean[column])
        words = OTHER if is_other else _compared(deviation)
        return {
            "name": self._names[column],
            "value": self._in_words(column, value),
            "deviation": deviation if np.isfinite(deviation) else None,
            "words": words,
            "stands_out": bool(abs(deviation) >= STANDS_OUT) or words == OTHER,
        }

    def _values(self, index):
        """Columns and values of the row that are there."""
        if sparse.issparse(self._X):
            row = self._X[[index]]
            columns, values = row.indices, row.data
        else:
            columns, values = np.arange(self._X.shape[1]), self._X[index]
        there = self._is_shown[columns] & ~np.isnan(values)
        return columns[there].tolist(), values[there].tolist()

    def _in_deviations(self, column, value):
        mean, deviation = self._mean[column], self._deviation[column]
        return (value - mean) / deviation if deviation > 0 else np.nan

    def _in_words(self, column, value):
        return date_text(value) if self._names[column] in self._dates else f"{value:.4g}"


def _compared(deviation):
    """How a number compares with its mean, in words."""
    if np.isnan(deviation):
        return "the same in all rows"
    side = "above" if deviation > 0 else "below"
    if abs(deviation) >= FAR:
        return f"far {side} the mean"
    return f"well {side} the mean" if abs(deviation) >= STANDS_OUT else "near the mean"
