"""The training rows of an objective: sums over rows of loss, gradient and curvature, at any parameters.

An objective is a sum over rows plus penalties. It asks its rows for these sums only (`Rows`). The loss is

    sum_i weight_i [log Z(x_i) - sum_k y_ik s_k(x_i) - b(y_i)]

Where labels of a row are unknown, log Z(x_i | known) is subtracted from log Z instead: the logarithm of the sum over
the sets that agree with the row.

Rows may lie in memory (`RowsInMemory`) or in parts elsewhere (`SummedRows`): in chunks on disk (`RowsInChunks`), or on
the workers of a cluster. A part is a RowsInMemory about the mean of all rows. What all parts are asked is the name of
one of its methods, which returns a tuple of numbers and arrays; `add_up` adds the tuples, entry by entry. That is one
pass. A subclass of SummedRows only says how a pass is made.

All solvers work from sums alone, and take the same steps as in memory, with three exceptions. Only in memory may a fit
begin in float32 (`Objective.in_float32`). `prox-newton` needs the labels' own models: they come with the evaluation
before (`with_models`), or, where other columns turn out to be needed than were expected, by one more pass
(`own_models`). Where these would take too much room, they are made of stand-ins for the rows (`SummedDesign.X`), and it
may take more iterations. And `metric(at=...)` renews only diagonals.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np
from scipy import sparse

from mlrh._indicators import UNKNOWN, has_unknown
from mlrh._parallel import map_blocks
from mlrh.fitting.design import FeatureSums, PartOfDesign, SummedDesign


class Rows(ABC):
    """All that an objective asks of its rows; sums are over all of them, weighted.

    Attributes
    ----------
    design : Design or SummedDesign
        Sums that only the features matter for: mean, squares, Gram matrix.
    label_totals, known_totals : arrays of shape (n_labels,)
        Total weight of the rows that have a label, and of those where it is known.
    bias_counts : array of shape (n_biases,)
        Total weight of the complete rows that carry each bias.
    are_complete : bool
        Whether every label of every row is known.
    targets : (array of shape (n_features, n_labels), array of shape (n_labels,))
        X'Y and the sums of Y over complete rows.
    are_at_hand : bool
        Whether each row can be asked, by `curvatures`.
    """

    design: Any
    label_totals: np.ndarray
    known_totals: np.ndarray
    bias_counts: np.ndarray
    are_complete: bool
    targets: tuple[np.ndarray, np.ndarray]
    are_at_hand = False

    @abstractmethod
    def expected_sums(self, space, coef, intercept):
        """Sums of log Z, of the gradients in coef and intercept, and of the expected indicators of biases.

        From log Z and the indicators, what is known of partly known rows is subtracted; what complete rows hold is
        not: `loss_and_gradient` does that, once for all rows.
        """

    @abstractmethod
    def with_curvatures(self, space, coef, intercept):
        """`loss_and_gradient`, and (curvatures of scores, misfit, curvatures of biases).

        The first two have a row for each row of `design.X` and a column for each label.
        """

    @abstractmethod
    def diagonal_curvatures(self, space, coef, intercept):
        """Squares of the features weighted by the curvature of each score (n_features, n_labels); sums of the latter.

        The sums are those of the curvatures over rows, (n_labels,).
        """

    @abstractmethod
    def coupled_sums(self, space, coef, intercept):
        """The `coupled_sums` of the space at the parameters, as if every label were known."""

    @abstractmethod
    def hessian(self, space, coef, intercept):
        """The function (d_coef, d_intercept, d_bias) -> the Hessian times these, in the same three parts."""

    @abstractmethod
    def for_space(self, space):
        """The same rows as an objective in another label space asks them."""

    def own_models(self, space, coef, intercept, members, shares):
        """Of each label the sums sum_i v_i z_i z_i' for z = (1, x) of its member columns, or None.

        v is shares[0] times the curvatures of its scores plus shares[1] times the misfit. None where the rows, or
        stand-ins for them, lie in `design.X`, from which a solver makes such models itself.
        """
        return None

    def with_models(self, space, coef, intercept, members):
        """`with_curvatures`, and for each label a pair of the sums of `own_models`, or None.

        The pair has the sums by the curvatures of scores, and by the misfit, whose shares are not known yet.
        """
        return self.with_curvatures(space, coef, intercept), None

    def loss_and_gradient(self, space, coef, intercept):
        """The loss of all rows, and its gradients in coef, intercept and the biases of the space."""
        return self._of_truth(space, coef, intercept, self.expected_sums(space, coef, intercept))

    def score_of_truth(self, coef, intercept):
        """sum_i weight_i sum_k y_ik s_k(x_i) over complete rows, from X'Y, which is computed only once."""
        target_coef, target_intercept = self.targets
        return float(coef.ravel() @ target_coef.ravel() + intercept @ target_intercept)

    def _of_truth(self, space, coef, intercept, sums):
        """`loss_and_gradient` from the `expected_sums`."""
        log_sums, d_coef, d_intercept, bias_mean = sums
        loss = log_sums - self.score_of_truth(coef, intercept) - space.bias @ self.bias_counts
        return float(loss), d_coef, d_intercept, bias_mean - self.bias_counts


class RowsInMemory(Rows):
    """Features and label sets of the rows, (n_samples, ...): all rows, or a part of them.

    Parameters
    ----------
    design : Design
    space : LabelSpace
    Y : array of shape (n_samples, n_labels), int8
        Of 1, 0 and UNKNOWN; every row agrees with a set of the space.
    """

    are_at_hand = True

    def __init__(self, design, space, Y):
        self.design, self._space, self._known = design, space, Y
        # To look along short rows takes ten times as long as at the whole, and is done for every part in every pass.
        self._is_complete = (Y != UNKNOWN).all(axis=1) if has_unknown(Y) else np.ones(len(Y), bool)
        self._partly_known = np.flatnonzero(~self._is_complete)
        self._given = space.given(Y[self._partly_known]) if len(self._partly_known) else None
        # Complete rows as they are, zeros in the others: `_expected_sums` corrects these.
        self.Y = Y if self._given is None else np.where(self._is_complete[:, None], Y, 0).astype(Y.dtype)
        # None where all weights are 1, which spares multiplying by them.
        weights = design.weights
        self._weights = weights if np.ptp(weights) > 0 or weights[0] != 1 else None

    # Sums that no parameter changes, computed when they are asked for: a part of the rows is asked once for all.

    @cached_property
    def label_totals(self):  # type: ignore[override]
        return self.design.weights @ (self._known == 1)

    @cached_property
    def known_totals(self):  # type: ignore[override]
        return self.design.weights @ (self._known != UNKNOWN)

    @cached_property
    def bias_counts(self):  # type: ignore[override]
        return self._space.bias_counts(self._known[self._is_complete], self.design.weights[self._is_complete])

    @property
    def are_complete(self):  # type: ignore[override]
        return self._given is None

    @cached_property
    def targets(self):  # type: ignore[override]
        of_coef, of_intercept = self._pull_back(self.Y.astype(self.design.dtype))
        return np.ascontiguousarray(of_coef), of_intercept  # in the order of coef, which it is multiplied with often

    def totals(self):
        """label_totals, known_totals, bias_counts, number of partly known rows, and the two targets, for `add_up`."""
        return (
            *(self.label_totals, self.known_totals, self.bias_counts),
            *(np.array(len(self._partly_known)), *self.targets),
        )

    def totals_and_gram(self):
        """`totals`, and the Gram matrix of the features."""
        return *self.totals(), self.design.gram()

    def gram(self):
        """The Gram matrix of the features, for `add_up`."""
        return (self.design.gram(),)

    # Sums at parameters.

    @property
    def in_float32(self):
        """The same rows with features, scores and the gradient in coef in float32; other sums stay in float64."""
        other = copy(self)
        other.design, other.targets = self.design.in_float32, self.targets
        return other

    def for_space(self, space):
        return RowsInMemory(self.design, space, self._known)

    def expected_sums(self, space, coef, intercept):
        """See `Rows`. The gradient in scores is marginals - Y; of partly known rows, Y is the marginals given that."""
        scores, expectations = self._expectations(space, coef, intercept)
        if self._given is None:
            scores = None  # frees memory as large as the marginals
        return self._expected_sums(space, scores, expectations)

    def with_curvatures(self, space, coef, intercept):
        """`loss_and_gradient`, and (curvatures of scores, misfit, curvatures of biases).

        The curvatures of scores (n_samples, n_labels) are the labels' variances times the weights, as if nothing were
        known of a row. Misfit (n_samples, n_labels) is how much the secant curvature of `_secants` exceeds them: much,
        where a label is a surprise. The curvatures of biases (n_biases,) are their means, which bound the variances.
        """
        sums, variances, misfit, bias_mean = self._with_curvatures(space, coef, intercept)
        result = self._of_truth(space, coef, intercept, sums)
        return result, (self._weighted(variances), self._weighted(misfit), bias_mean)

    def curvature_sums(self, space, coef, intercept):
        """`expected_sums`; sums over rows of curvatures and misfit (n_labels,); curvatures of biases; for `add_up`."""
        sums, variances, misfit, bias_mean = self._with_curvatures(space, coef, intercept)
        weights = self.design.weights
        return *sums, weights @ variances.astype(np.float64), weights @ misfit.astype(np.float64), bias_mean

    def own_sums(self, space, coef, intercept, members, ends, shares):
        """`own_models` for `add_up`, in one array; members are those of all labels, which end at these places."""
        _, variances, misfit, _ = self._with_curvatures(space, coef, intercept)
        return (self._weighted_squares(members, ends, shares[0] * variances + shares[1] * misfit),)

    def curvature_and_model_sums(self, space, coef, intercept, members, ends):
        """`curvature_sums`, and two of `own_sums`: by the curvatures of scores, and by the misfit; for `add_up`."""
        sums, variances, misfit, bias_mean = self._with_curvatures(space, coef, intercept)
        weights = self.design.weights
        totals = weights @ variances.astype(np.float64), weights @ misfit.astype(np.float64), bias_mean
        return *sums, *totals, *(self._weighted_squares(members, ends, own) for own in (variances, misfit))

    def _weighted_squares(self, members, ends, curvatures):
        """Of each label the sums of `own_models` for curvatures (n_samples, n_labels), in one array."""
        weights, columns = self.design.weights[:, None] * curvatures, np.split(members, ends[:-1])
        sums: list[Any] = [None] * len(columns)

        def work(labels):
            for k in range(labels.start, labels.stop):
                own = np.ascontiguousarray(weights[:, k], np.float64)
                sums[k] = self.design.weighted_squares(columns[k], own).ravel()

        map_blocks(work, len(columns), rows_per_block=1, n_jobs=self.design.n_jobs)
        return np.concatenate(sums)

    def _with_curvatures(self, space, coef, intercept):
        """`expected_sums`, and what `with_curvatures` adds to it, not yet weighted."""
        scores, expectations = self._expectations(space, coef, intercept)
        _, marginals, bias_mean = expectations
        variances = marginals * (1 - marginals)
        sums = self._expected_sums(space, scores, expectations)  # marginals are now residuals
        misfit = np.maximum(_secants(scores, marginals) - variances, 0)
        return sums, variances, misfit, bias_mean

    def curvatures(self, space, coef, intercept):
        """Sum of the variances and the misfit of `with_curvatures`, (n_samples, n_labels), without the loss."""
        scores, (_, marginals, _) = self._expectations(space, coef, intercept)
        variances = marginals * (1 - marginals)
        marginals -= self.Y
        return self._weighted(np.maximum(variances, _secants(scores, marginals), out=variances))

    def diagonal_curvatures(self, space, coef, intercept):
        curvatures = self.curvatures(space, coef, intercept)
        return self.design.squared_norms_by_label(curvatures), curvatures.sum(axis=0, dtype=np.float64)

    def coupled_sums(self, space, coef, intercept):
        return space.coupled_sums(self.design.scores(coef, intercept), self.design.weights)

    def hessian(self, space, coef, intercept):
        scores, weights, rows = self.design.scores(coef, intercept), self.design.weights, self._partly_known
        given = self._given_in(space)
        curvature = space.curvature_at(scores, weights)
        of_known = None if given is None else given.curvature_at(scores[rows], weights[rows])

        def product(d_coef, d_intercept, d_bias):
            d_scores = self.design.scores(d_coef, d_intercept)
            d_marginals, d_bias_mean = curvature(d_scores, d_bias)
            if of_known is not None:
                # The gradient is marginals - marginals given what is known: so is its derivative.
                d_expected, d_known = of_known(d_scores[rows], d_bias)
                d_marginals[rows] -= d_expected
                d_bias_mean = d_bias_mean - d_known
            return *self._pull_back(d_marginals), d_bias_mean

        return product

    def hessian_product(self, space, coef, intercept, *direction):
        """The Hessian times a direction (d_coef, d_intercept, d_bias), for `add_up`."""
        return self.hessian(space, coef, intercept)(*direction)

    def _expectations(self, space, coef, intercept):
        """Scores (n_samples, n_labels), and the `expectations` of the space at them."""
        scores = self.design.scores(coef, intercept)
        return scores, space.expectations(scores, self.design.weights)

    def _expected_sums(self, space, scores, expectations):
        """`expected_sums`; changes the marginals among the expectations into residuals, in place."""
        log_partition, marginals, bias_mean = expectations
        weights = self.design.weights
        log_sums = weights @ log_partition.astype(np.float64)
        marginals -= self.Y
        if self._given is not None:
            rows = self._partly_known
            log_known, expected, known_bias_mean = self._given_in(space).expectations(scores[rows], weights[rows])
            log_sums -= weights[rows] @ log_known.astype(np.float64)
            marginals[rows] -= expected
            bias_mean = bias_mean - known_bias_mean
        return log_sums, *self._pull_back(marginals), bias_mean

    def _given_in(self, space):
        """The space given what is known of the partly known rows; None if there are none."""
        if self._given is None or space is self._space:
            return self._given
        return self._given.rebiased(space.bias)

    def _pull_back(self, residuals):
        """Gradients in coef and intercept, from the gradients in the scores per unit of weight."""
        return self.design.pull_back(self._weighted(residuals))

    def _weighted(self, values):
        return values if self._weights is None else values * self._weights[:, None].astype(values.dtype)


def _secants(scores, residuals):
    """|residual| / (|score| + 2): the curvature of the parabola whose minimum lies a step of |score| + 2 away.

    A wrong label has a residual near 1 and a variance near 0, and its score must cross 0: by the variance alone, the
    step would be far too long. The residuals are changed.
    """
    distances = np.abs(scores)
    distances += 2
    return np.divide(np.abs(residuals, out=residuals), distances, out=distances)


class SummedRows(Rows):
    """Rows that are known by sums over their parts only.

    A subclass makes a pass: `add_up` asks every part the same question. The first pass here collects what no parameter
    changes, with_gram says whether the Gram matrix too: right where the metric needs it, which spares another pass.

    Parameters
    ----------
    whole : FeatureSums
        Of all rows: parts are PartOfDesign about its mean.
    space : LabelSpace
    fit_intercept, with_gram : bool
    """

    def __init__(self, whole, space, *, fit_intercept, with_gram):
        self._space = space
        *totals, target_coef, target_intercept, gram = (
            self.add_up("totals_and_gram", space) if with_gram else (*self.add_up("totals", space), None)
        )
        self.label_totals, self.known_totals, self.bias_counts, n_partly_known = totals
        self.are_complete = bool(n_partly_known == 0)
        self.targets = target_coef, target_intercept
        self.design = SummedDesign(
            whole, fit_intercept=fit_intercept, gram=gram, gram_of_rows=lambda: self.add_up("gram", space)[0]
        )

    @abstractmethod
    def add_up(self, question, space, *arguments):
        """The sum, over all parts, of the tuples that a method of RowsInMemory returns, entry by entry.

        question is the method's name. A part is a RowsInMemory in the space, which is also the first argument of
        methods that take arguments: part.question(space, *arguments), else part.question().
        """

    def for_space(self, space):
        other = copy(self)
        other._space, other.bias_counts = space, np.zeros(0)
        if space.n_biases:
            other.bias_counts = other.add_up("totals", space)[2]
        return other

    def expected_sums(self, space, coef, intercept):
        return self.add_up("expected_sums", space, coef, intercept)

    def with_curvatures(self, space, coef, intercept):
        """See `Rows`. Each stand-in for the rows has an equal share of the sums of curvatures and misfit over rows."""
        return self._shared_out(space, coef, intercept, self.add_up("curvature_sums", space, coef, intercept))

    def with_models(self, space, coef, intercept, members):
        """See `Rows`: one pass for all."""
        sizes = [(len(own) + 1) ** 2 for own in members]
        if 2 * sum(sizes) > MAX_OWN_SUMS:
            return self.with_curvatures(space, coef, intercept), None
        place = (np.concatenate(members), np.cumsum([len(own) for own in members]))
        *sums, by_curvature, by_misfit = self.add_up("curvature_and_model_sums", space, coef, intercept, *place)
        models = zip(_squares(by_curvature, sizes), _squares(by_misfit, sizes), strict=True)
        return self._shared_out(space, coef, intercept, sums), list(models)

    def _shared_out(self, space, coef, intercept, answer):
        """`with_curvatures` from the `curvature_sums`."""
        *sums, variances, misfit, bias_mean = answer
        n_rows = self.design.X.shape[0]
        shares = (np.broadcast_to(total / n_rows, (n_rows, len(total))) for total in (variances, misfit))
        return self._of_truth(space, coef, intercept, sums), (*shares, bias_mean)

    def own_models(self, space, coef, intercept, members, shares):
        """See `Rows`: one more pass. None where the sums take too much room: stand-ins must do."""
        sizes = [(len(own) + 1) ** 2 for own in members]
        if sum(sizes) > MAX_OWN_SUMS:
            return None
        ends = np.cumsum([len(own) for own in members])
        place = (np.concatenate(members), ends, np.array(shares))
        (sums,) = self.add_up("own_sums", space, coef, intercept, *place)
        return _squares(sums, sizes)

    def coupled_sums(self, space, coef, intercept):
        return self.add_up("coupled_sums", space, coef, intercept)

    def diagonal_curvatures(self, space, coef, intercept):
        return self.add_up("diagonal_curvatures", space, coef, intercept)

    def hessian(self, space, coef, intercept):
        return lambda *direction: self.add_up("hessian_product", space, coef, intercept, *direction)


def _squares(sums, sizes):
    """Square matrices of so many entries each, one after the other in an array."""
    parts = np.split(sums, np.cumsum(sizes)[:-1])
    return [part.reshape(isqrt(size), -1) for part, size in zip(parts, sizes, strict=True)]


MAX_OWN_SUMS = 2**23  # numbers that make up the labels' own models with an L1 penalty: 64 MB


def added(total, answer):
    """The sums of two answers, tuples of numbers and arrays, entry by entry; total, None at first, is changed."""
    if total is None:
        return [np.array(part, np.float64) for part in answer]
    for own, part in zip(total, answer, strict=True):
        own += part
    return total


BLOCK_SCORES = 2**18  # scores of the rows that are looked at together: 2 MB, and a few arrays of that size besides
BLOCK_ENTRIES = 2**21  # features of these rows: 16 MB where they must be copied; fewer would leave threads without work


def blocks_of(X, n_labels, max_entries=None) -> list[slice]:
    """Consecutive rows of a chunk for which scores and copies stay small, whatever the size of the chunk.

    max_entries is the number of features of a block, by default BLOCK_ENTRIES.
    """
    n_entries, most = X.nnz if sparse.issparse(X) else X.size, max_entries or BLOCK_ENTRIES
    step = max(min(BLOCK_SCORES // n_labels, most * X.shape[0] // max(n_entries, 1)), 1)
    return [slice(start, min(start + step, X.shape[0])) for start in range(0, X.shape[0], step)]


def rows_of(X, block):
    """Some consecutive rows of X, dense or CSR, as a view: memory-mapped rows are not copied."""
    if not sparse.issparse(X):
        return X[block]
    starts = X.indptr[block.start : block.stop + 1]
    entries = slice(starts[0], starts[-1])
    parts = (X.data[entries], X.indices[entries], starts - starts[0])
    return sparse.csr_array(parts, shape=(len(starts) - 1, X.shape[1]), copy=False)


class RowsInChunks(SummedRows):
    """Rows that come in chunks, one pass after the other, while the next chunk is fetched by another thread.

    Parameters
    ----------
    chunks : iterable of (X, Y, weights)
        The same rows in every pass. X dense or CSR, Y int8 of 1, 0 and UNKNOWN, positive weights (n_samples,).
    checkpoint : Checkpoint, optional
        Is told the answer of every pass, and spares those whose answer it knows.
    """

    def __init__(
        self, chunks: Iterable, whole: FeatureSums, space, *, fit_intercept, with_gram, n_jobs=None, checkpoint=None
    ):
        self._chunks, self._whole, self._checkpoint = chunks, whole, checkpoint
        self._options = {"fit_intercept": fit_intercept, "n_jobs": n_jobs}
        super().__init__(whole, space, fit_intercept=fit_intercept, with_gram=with_gram)

    def add_up(self, question, space, *arguments):
        if self._checkpoint is None:
            return self._pass(question, space, *arguments)
        place = (type(space).__name__, space.bias, *arguments)
        return self._checkpoint.answer(question, place, lambda: self._pass(question, space, *arguments))

    def _pass(self, question, space, *arguments):
        total: Any = None
        for chunk in ahead(self._chunks):
            for answer in answers_of(chunk, self._whole, space, question, *arguments, **self._options):
                total = added(total, answer)
            del chunk  # or three chunks would be in memory while the next but one is fetched
        return tuple(total)


def answers_of(chunk, whole, space, question, *arguments, **options) -> Iterator[tuple]:
    """Yields what the parts of a chunk (X, Y, weights) answer, as `SummedRows.add_up` asks; options of PartOfDesign."""
    X, Y, weights = chunk
    Y, asked = space.completed(Y), (space, *arguments) if arguments else ()
    for block in blocks_of(X, Y.shape[1]):
        design = PartOfDesign(rows_of(X, block), weights[block], whole, **options)
        yield getattr(RowsInMemory(design, space, Y[block]), question)(*asked)


def ahead(chunks: Iterable) -> Iterator:
    """The chunks, each fetched by one other thread while the one before is worked on."""
    with ThreadPoolExecutor(1, thread_name_prefix="mlrh-chunks") as thread:
        chunks, end = thread.submit(iter, chunks).result(), object()
        following = thread.submit(next, chunks, end)
        while (chunk := following.result()) is not end:
            following = thread.submit(next, chunks, end)
            yield chunk
