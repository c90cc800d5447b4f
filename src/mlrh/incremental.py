"""partial_fit for linear scores: checks what a call is given, shows it to the stream, keeps what comes out."""

from copy import copy
from typing import Self

import numpy as np
from scipy import sparse
from sklearn.base import _fit_context
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight

from mlrh import admissible, decisions, declared, targets
from mlrh.base import NOTED_OF_X, MLRHBase
from mlrh.knowledge import UNKNOWN
from mlrh.stream_objective import Settings, split
from mlrh.streaming import Stream, blocks_of


def _can_stream(model):
    """True, or an AttributeError that says why this model has no partial_fit."""
    if not hasattr(model, "C"):
        raise AttributeError("partial_fit needs one C, and this class chooses it; use MLRHClassifier with that C.")
    if model.label_space == "observed":
        raise AttributeError(
            "partial_fit can't know the sets still to come, so label_space must be 'cardinality'; got 'observed'."
        )
    if model.l1_ratio > 0:
        raise AttributeError(f"partial_fit minimises smooth objectives, so l1_ratio must be 0; got {model.l1_ratio}.")
    return True


class Incremental(MLRHBase):
    """A classifier with linear scores that can be fitted to rows in parts."""

    coef_: np.ndarray

    @available_if(_can_stream)
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, classes=None, sample_weight=None) -> Self:
        """Fit to more rows, of a stream or of data larger than memory.

        The objective is that of `fit` for all rows shown so far, with the same C. Rows shown again count as another
        pass, not as more data, once all of them have been shown, in any order and in calls of any size. With "auto",
        sizes widen as rows arrive. Rows are kept up to 32 MiB, which is what later calls build on; beyond that a sample
        of them, and then the first pass must end with a call. Rows that the first call holds twice count twice.

        Expect the objective to be within 1% of that of `fit` after one to three passes while all rows are kept, or
        five or more for every feature, with weights of similar size; with about one for every feature it stays far off.

        Always L-BFGS, stopped at max(tol, 1e-4): solver, max_iter and mm_step are ignored, and not to have converged
        is no reason to warn, since later calls go on. X is converted to the dtype of the first call.

        After `fit`, which keeps no rows, the first call begins anew: rows that are to count must be shown.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_samples, n_features)
            A numpy.memmap, or a CSR matrix whose arrays are such, is read in blocks and never as a whole.
        y : indicator matrix, list of label sets, or classes of shape (n_samples,)
            In the form of the first call. NaN as in `fit`.
        classes : array-like
            Needed at the first call, unless after `fit`: all classes, for one class per row; all labels, for label
            sets; the names of the columns, for an indicator matrix (range(n_labels) will do).
        sample_weight : array of shape (n_samples,), optional
            A row of weight 2 counts as the row twice, one of weight 0 as absent.

        Returns
        -------
        self
        """
        is_first = not hasattr(self, "_stream")
        form = self._form_of_stream(y, classes, is_first=is_first)
        Y = form.indicator(y, partly_known=True)
        targets.check_same_length(X, Y)
        if len(Y) == 0:
            raise ValueError("X and y must have at least one row; got none. Leave empty chunks out.")
        weights = _check_sample_weight(
            sample_weight, Y, dtype=np.float64, ensure_non_negative=True, allow_all_zero_weights=True
        )
        with np.errstate(divide="ignore", over="ignore"):
            alpha = float(np.divide(1.0, self.C))
        if not np.isfinite(alpha + weights.sum()):
            raise ValueError(f"1 / C and the sum of sample_weight must be finite; got C={self.C} and {weights.sum()}.")
        support = np.flatnonzero((weights > 0) & (Y != UNKNOWN).any(axis=1))
        if is_first:
            admissible.check_any(support)
        settings = Settings(alpha, self.fit_intercept, self.size_bias, self.tol, self.n_jobs, self._report("lbfgs"))
        sizes = self._sizes_of_stream(form, Y[support], support)
        noting = copy(self)  # so that a call that fails leaves what is known of X
        stream = Stream.begin(Y.shape[1]) if is_first else Stream.from_state(self._stream)
        stream = stream.under(sizes, settings)
        for rows, X_block in self._checked_blocks(noting, X, Y.shape[1], reset=is_first):
            chosen = support[(support >= rows.start) & (support < rows.stop)]
            if len(chosen):
                X_block = stream.sample.alike(X_block[chosen - rows.start])
                stream = stream.show(X_block, Y[chosen], weights[chosen], settings).settle(settings)
        if not form.is_one_class_per_row:
            decisions.check(self.decision, self.answer_sizes, stream.space(stream.result))
        self._keep_stream(stream, form, {name: vars(noting)[name] for name in NOTED_OF_X if name in vars(noting)})
        return self

    def _form_of_stream(self, y, classes, *, is_first):
        """The form of y: declared at the first call, or that of an earlier fit, and then the same."""
        if is_first and (classes is not None or not hasattr(self, "_targets")):
            return declared.declared(y, classes)
        if classes is not None:
            declared.check_same(self._targets, classes)
        return self._targets

    def _sizes_of_stream(self, form, Y, support):
        """Smallest and largest size of all rows so far and these; automatic ones only ever widen."""
        if form.is_one_class_per_row:
            return admissible.ONE_CLASS[Y.shape[1] == 1]
        seen = [] if not hasattr(self, "_stream") else [(self.min_labels_, self.max_labels_)]
        if len(Y):
            seen.append(admissible.sizes(Y, support, self.min_labels, self.max_labels))
        return min(low for low, _ in seen), max(high for _, high in seen)

    def _checked_blocks(self, noting, X, n_labels, *, reset):
        """Slices of the rows and the checked features of each; an array or CSR matrix is never copied as a whole."""
        is_sliceable = isinstance(X, np.ndarray) or (sparse.issparse(X) and X.format == "csr")
        if not is_sliceable or X.ndim != 2:
            X, is_sliceable = noting._validate_X(X, reset=reset), False
        for i, rows in enumerate(blocks_of(X, n_labels)):
            yield rows, noting._validate_X(X[rows], reset=reset and i == 0) if is_sliceable else X[rows]

    def _keep_stream(self, stream, form, noted):
        """Store the stream and all that predictions need of it."""
        coef, intercept, _ = split(stream.result, stream.n_labels)
        dtype = stream.sample.parts[0][0].dtype
        for name in (*NOTED_OF_X, "support_", "objective_", "history_"):
            self.__dict__.pop(name, None)
        self.__dict__.update(noted)
        self._keep_biases(stream.space(stream.result, self.n_jobs), np.zeros(0), dtype)
        self.coef_, self.intercept_ = np.ascontiguousarray(coef.T).astype(dtype), intercept.astype(dtype)
        self.min_labels_, self.max_labels_ = stream.sizes
        self._targets, self.classes_ = form, form.classes
        self._fitted_as = (self.n_features_in_, form.classes.tolist(), *self._form_of_scores(None))
        self.n_iter_, self.n_passes_ = stream.n_iter, stream.n_passes
        self.n_samples_seen_, self.n_samples_counted_ = stream.n_seen, stream.counted.n_rows
        self._stream = stream.state()
