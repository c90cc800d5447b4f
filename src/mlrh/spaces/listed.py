"""The distribution of listed sets with probabilities of their own in every row, as label powerset and forests give it.

It is an observed space whose biases differ from row to row, at scores of 0.
"""

from copy import copy

import numpy as np

from mlrh.spaces.base import LabelSetDistribution, LabelSpace
from mlrh.spaces.observed import ObservedSpace


def listed_sets(sets, log_probs) -> LabelSetDistribution:
    """The distribution of listed sets with given probabilities.

    Parameters
    ----------
    sets : array of shape (n_sets, n_labels)
        Distinct rows of 0 and 1.
    log_probs : array of shape (n_samples, n_sets)
        Logarithms of the probabilities of the sets, -inf for 0. Each row is scaled so that they sum to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh.spaces import listed_sets
    >>> d = listed_sets([[1, 0], [0, 1], [1, 1]], np.log([[0.5, 0.3, 0.2]]))
    >>> d.marginals().round(3).tolist()
    [[0.7, 0.5]]
    """
    space = _ListedSets(sets, log_probs)
    return space.distribution(np.zeros((len(space.log_weights), space.n_labels)))


class _ListedSets(ObservedSpace):
    """Listed sets for a fixed number of rows, with one more bias for every set in every row, -inf where impossible."""

    learns_bias = False

    def __init__(self, sets, log_weights):
        super().__init__(sets)
        self.log_weights = np.array(log_weights, np.float64)
        if self.log_weights.ndim != 2 or self.log_weights.shape[1] != len(self.sets):
            raise ValueError(
                f"log_probs must have a column for each of the {len(self.sets)} sets; got shape "
                f"{self.log_weights.shape}."
            )
        bad = np.isnan(self.log_weights) | np.isposinf(self.log_weights)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            found = self.log_weights[row, column]
            raise ValueError(f"log_probs must be finite or -inf; found {found} in row {row}, column {column}.")
        impossible = np.isneginf(self.log_weights).all(axis=1)
        if impossible.any():
            raise ValueError(f"Every row must have a possible set; row {int(np.argmax(impossible))} has none.")

    def __repr__(self):
        return f"{self.n_biases} listed sets of {self.n_labels} labels for {len(self.log_weights)} rows"

    def to_dict(self):
        return {"sets": self.sets, "log_weights": self.log_weights}

    def has_sets_of(self, other):
        """False: which sets are possible differs from row to row."""
        return False

    def _of_rows(self, rows):
        other = self._with(self.log_weights[rows])
        other.known = None if self.known is None else self.known[rows]
        return other

    def fits(self, known):
        # Not by the list alone: a set that agrees may be impossible in its row.
        return LabelSpace.fits(self, known)

    def modes_within(self, scores, low, high):
        counts = np.count_nonzero(self.sets, axis=1)
        within = self._with(np.where((counts >= low) & (counts <= high), self.log_weights, -np.inf))
        possible = np.isfinite(within.log_partition(scores))
        return possible, within.mode(scores) * possible[:, None]

    def temper(self, temperature):
        return self._with(self.log_weights / temperature)

    def _log_weights(self, scores, rows):
        relative, reference = super()._log_weights(scores, rows)
        return relative + self.log_weights[rows], reference

    def _with(self, log_weights):
        other = copy(self)
        other.log_weights = log_weights
        return other
