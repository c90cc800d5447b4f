"""Measures of predicted label sets and of their probabilities: arrays in, numbers out."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from scipy import stats
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    hamming_loss,
    jaccard_score,
    label_ranking_average_precision_score,
    ndcg_score,
    precision_recall_fscore_support,
    precision_score,
    roc_auc_score,
)

__all__ = [
    "FLOOR",
    "NAMES",
    "RANKING_NAMES",
    "CoveragePoint",
    "Reliability",
    "RiskCoverage",
    "assured_threshold",
    "broken_share",
    "by_label",
    "empty_share",
    "evaluate",
    "expected_calibration_error",
    "hierarchical_f1",
    "impossible_share",
    "present_rows",
    "ranking",
    "reliability",
    "risk_coverage",
    "set_log_loss",
    "size_counts",
    "with_ancestors",
]

FLOOR = 1e-6  # smallest probability in a log-loss: one impossible set costs 13.8, not infinity
NAMES = {  # titles of the measures of `evaluate`, for tables
    "exact_match": "exact match",
    "hamming_loss": "Hamming loss",
    "f1_example": "F1 by row",
    "f1_micro": "F1 micro",
    "f1_macro": "F1 macro",
    "jaccard": "Jaccard index",
    "set_log_loss": "log-loss of the set",
    "impossible_share": "held impossible",
    "empty_share": "empty answers",
}
PLACES = (1, 3, 5)  # k of the precisions at k
RANKING_NAMES = {  # titles of the measures of `ranking`
    **{f"precision_at_{k}": f"P@{k}" for k in PLACES},
    "ndcg": "nDCG",
    "lrap": "LRAP",
    "auc_macro": "AUC macro",
    "auc_micro": "AUC micro",
}


def evaluate(Y, predicted, log_prob=None) -> dict[str, float]:
    """Measures of predicted label sets against the true ones, by name.

    Where a measure is 0/0: F1 and Jaccard index of a row are 1 if its true and predicted sets are both empty. A label
    that no row has counts as F1 = 0 in f1_macro, whether or not it is predicted, so it lowers the average of every
    method alike. f1_micro is 0 where there is no label at all. These two are scikit-learn's defaults, without its
    warning.

    Parameters
    ----------
    Y, predicted : indicator matrices of shape (n_samples, n_labels), dense or sparse
    log_prob : array of shape (n_samples,), optional
        Logarithm of the probability that the model gave to the true set of each row.

    Returns
    -------
    dict
        exact_match (share of rows whose set is right as a whole), hamming_loss, f1_example, f1_micro, f1_macro, jaccard
        (averaged over rows) and empty_share; with log_prob also set_log_loss and impossible_share.

    Examples
    --------
    >>> from mlrh.metrics import evaluate
    >>> measures = evaluate([[1, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 0, 1]])
    >>> measures["exact_match"], measures["jaccard"]
    (0.5, 0.75)
    """
    Y, predicted = _indicator(Y, "Y"), _indicator(predicted, "predicted")
    if Y.shape != predicted.shape:
        raise ValueError(f"Y and predicted must have the same shape; got {Y.shape} and {predicted.shape}.")
    measures = _measures_of_sets(Y, predicted)
    if log_prob is not None:
        log_prob = _log_probabilities(log_prob)
        if len(log_prob) != len(Y):
            raise ValueError(f"log_prob must have one value per row of Y, {len(Y)}; got {len(log_prob)}.")
        measures["set_log_loss"] = set_log_loss(log_prob)
        measures["impossible_share"] = impossible_share(log_prob)
    return measures


def ranking(Y, scores) -> dict[str, float]:
    """Measures of how labels are ranked by scores, such as their marginals, by name; all are scikit-learn's.

    precision_at_1, _3 and _5 are the shares of right labels among the k labels of highest score, averaged over rows
    (ties go to the lower label; only for k below the number of labels). ndcg is `ndcg_score`, in which a row without
    labels counts as 0, and lrap `label_ranking_average_precision_score`, in which it counts as 1. auc_macro is the mean
    area under the ROC curve of the labels that some rows have and others don't, and auc_micro that of all entries. What
    the rows don't determine is left out: with one label all but the areas, with constant labels these.

    Parameters
    ----------
    Y : indicator matrix of shape (n_samples, n_labels)
    scores : array of shape (n_samples, n_labels)
        Higher for a label that is more likely.

    Examples
    --------
    >>> from mlrh.metrics import ranking
    >>> round(ranking([[1, 0], [0, 1], [1, 1]], [[0.9, 0.2], [0.7, 0.6], [0.8, 0.9]])["lrap"], 3)
    0.833
    """
    Y, scores = _indicator(Y, "Y"), np.asarray(scores, np.float64)
    _check_scores(Y, scores)
    measures = {}
    if Y.shape[1] > 1:
        order = np.argsort(-scores, axis=1, kind="stable")
        for k in (k for k in PLACES if k < Y.shape[1]):
            first = np.zeros(Y.shape, np.int8)
            np.put_along_axis(first, order[:, :k], 1, axis=1)
            measures[f"precision_at_{k}"] = precision_score(Y, first, average="samples", zero_division=0)
        measures["ndcg"] = ndcg_score(Y, scores)
        measures["lrap"] = label_ranking_average_precision_score(Y, scores)
    areas = [area for area in _areas(Y, scores) if area is not None]
    if areas:
        measures["auc_macro"] = np.mean(areas)
        measures["auc_micro"] = roc_auc_score(Y.ravel(), scores.ravel())
    return {name: float(value) for name, value in measures.items()}


def by_label(Y, predicted, scores=None) -> list[dict]:
    """For each label its measures, by name.

    rows (that have it), predicted (rows that are answered with it), precision, recall and f1 (0 where they are 0/0),
    and with scores auc, the area under the ROC curve; None where all rows have the label or none has it.

    Parameters
    ----------
    Y, predicted : indicator matrices of shape (n_samples, n_labels)
    scores : array of shape (n_samples, n_labels), optional
        Higher for a label that is more likely.

    Examples
    --------
    >>> from mlrh.metrics import by_label
    >>> by_label([[1, 0], [1, 1]], [[1, 0], [0, 1]])[0]
    {'rows': 2, 'predicted': 1, 'precision': 1.0, 'recall': 0.5, 'f1': 0.6666666666666666}
    """
    Y, predicted = _indicator(Y, "Y"), _indicator(predicted, "predicted")
    if Y.shape != predicted.shape:
        raise ValueError(f"Y and predicted must have the same shape; got {Y.shape} and {predicted.shape}.")
    # To scikit-learn a single column is two classes.
    given = (Y, predicted, None) if Y.shape[1] > 1 else (Y[:, 0], predicted[:, 0], [1])
    shares = precision_recall_fscore_support(*given[:2], labels=given[2], average=None, zero_division=0)[:3]
    counts = (Y.sum(axis=0, dtype=np.int64), predicted.sum(axis=0, dtype=np.int64))
    names = ("rows", "predicted", "precision", "recall", "f1")
    columns = [column.tolist() for column in (*counts, *shares)]
    lines = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    if scores is not None:
        scores = np.asarray(scores, np.float64)
        _check_scores(Y, scores)
        lines = [{**line, "auc": area} for line, area in zip(lines, _areas(Y, scores), strict=True)]
    return lines


def _areas(Y, scores):
    """The area under the ROC curve of each label; None where the label is constant."""
    varies = np.ptp(Y, axis=0) > 0
    return [float(roc_auc_score(Y[:, k], scores[:, k])) if varies[k] else None for k in range(Y.shape[1])]


def _check_scores(Y, scores):
    if scores.shape != Y.shape or np.isnan(scores).any():
        raise ValueError(f"scores must have the shape of Y, {Y.shape}, without NaN; got {scores.shape}.")


def set_log_loss(log_prob, floor=FLOOR) -> float:
    """Mean of -log max(P, floor) over the probabilities P of the true sets, from their logarithms (n_samples,).

    Because of the floor, an impossible set costs -log(floor), 13.8 by default. With floor=0 the mean is then infinite.

    Examples
    --------
    >>> from mlrh.metrics import set_log_loss
    >>> round(set_log_loss([0.0, float("-inf")]), 4)
    6.9078
    """
    if not isinstance(floor, int | float) or not 0 <= floor < 1:
        raise ValueError(f"floor must be a probability below 1; got {floor!r}.")
    lowest = np.log(floor) if floor > 0 else -np.inf
    return float(np.mean(-np.maximum(_log_probabilities(log_prob), lowest))) + 0.0  # not -0.0


def impossible_share(log_prob) -> float:
    """Share of rows whose true set was given probability 0, from the logarithms (n_samples,).

    Examples
    --------
    >>> from mlrh.metrics import impossible_share
    >>> impossible_share([-0.5, float("-inf"), -700.0, 0.0])
    0.25
    """
    return float(np.mean(np.isneginf(_log_probabilities(log_prob))))


def empty_share(predicted) -> float:
    """Share of rows of an indicator matrix (n_samples, n_labels) that have no label.

    Examples
    --------
    >>> from mlrh.metrics import empty_share
    >>> empty_share([[0, 1], [0, 0]])
    0.5
    """
    return float(np.mean(~_indicator(predicted, "predicted").any(axis=1)))


def hierarchical_f1(Y, predicted, parents) -> float:
    """F1 of label sets in a hierarchy: of all entries, once the ancestors of every label are added to both sets.

    So a sibling in place of the right label still finds its parents. (Kiritchenko, Matwin and Famili, 2005.) 0 where
    there is no label at all.

    Parameters
    ----------
    Y, predicted : indicator matrices of shape (n_samples, n_labels)
    parents : array of shape (n_labels,)
        The index of each label's parent, -1 for a root.

    Examples
    --------
    >>> from mlrh.metrics import hierarchical_f1
    >>> hierarchical_f1([[1, 1, 0]], [[1, 0, 1]], parents=[-1, 0, 0])  # animal, dog, cat: a cat taken for a dog
    0.5
    """
    truth, answer = (with_ancestors(sets, parents, name) for sets, name in ((Y, "Y"), (predicted, "predicted")))
    if truth.shape != answer.shape:
        raise ValueError(f"Y and predicted must have the same shape; got {truth.shape} and {answer.shape}.")
    both, total = int((truth & answer).sum()), int(truth.sum(dtype=np.int64) + answer.sum(dtype=np.int64))
    return 2.0 * both / total if total else 0.0


def broken_share(predicted, parents) -> float:
    """Share of rows of an indicator matrix (n_samples, n_labels) that have a label without its parent.

    Examples
    --------
    >>> from mlrh.metrics import broken_share
    >>> broken_share([[1, 1, 0], [0, 0, 1]], parents=[-1, 0, 0])
    0.5
    """
    whole = with_ancestors(predicted, parents, "predicted")
    return float(np.mean((whole != _indicator(predicted, "predicted")).any(axis=1)))


def with_ancestors(sets, parents, name="sets") -> np.ndarray:
    """An indicator matrix (n_samples, n_labels) with the ancestors of all its labels, parents as in `hierarchical_f1`.

    Examples
    --------
    >>> from mlrh.metrics import with_ancestors
    >>> with_ancestors([[0, 1, 0], [0, 0, 0]], parents=[-1, 0, 0]).tolist()
    [[1, 1, 0], [0, 0, 0]]
    """
    whole, parents = _indicator(sets, name).copy(), np.asarray(parents)
    if parents.shape != whole.shape[1:] or parents.dtype.kind not in "iu" or (parents >= len(parents)).any():
        raise ValueError(
            f"parents must be an index per label, -1 for a root, for {whole.shape[1]} labels; got {parents!r}."
        )
    children = np.flatnonzero(parents >= 0)
    n_before = -1
    while n_before < (n_present := int(whole.sum(dtype=np.int64))):  # each pass goes at least one step up
        n_before = n_present
        for child in children:
            whole[:, parents[child]] |= whole[:, child]
    return whole


def size_counts(Y, n_labels) -> np.ndarray:
    """Number of rows with 0, 1, ..., n_labels labels, for an indicator matrix (n_samples, n_labels).

    Examples
    --------
    >>> from mlrh.metrics import size_counts
    >>> size_counts([[0, 1, 0], [1, 1, 0], [0, 0, 1]], n_labels=3)
    array([0, 2, 1, 0])
    """
    Y = _indicator(Y, "Y")
    if Y.shape[1] != n_labels:
        raise ValueError(f"Y must have n_labels={n_labels} columns; got {Y.shape[1]}.")
    return np.bincount(np.count_nonzero(Y, axis=1), minlength=n_labels + 1)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Bins of rows by confidence, lowest first: mean confidence, share of correct rows, number (or weight) of rows."""

    confidence: np.ndarray
    share_correct: np.ndarray
    count: np.ndarray


def reliability(confidence, correct, n_bins=15, *, sample_weight=None) -> Reliability:
    """Mean confidence, share of correct rows and number of rows in bins of nearly equal numbers of rows.

    Rows of equal confidence share a bin, the one that holds the middle of their ranks, so the order of rows does not
    matter. Bins without rows, because of such ties or because there are fewer rows than n_bins, are left out.

    Parameters
    ----------
    confidence : array of shape (n_samples,)
        Probabilities that the model gave to what it predicted.
    correct : array of shape (n_samples,)
        Whether (1 or True) the prediction was right.
    n_bins : int
        The largest number of bins.
    sample_weight : array of shape (n_samples,), optional
        A row of weight 2 counts as the row twice, one of weight 0 as absent.

    Examples
    --------
    >>> from mlrh.metrics import reliability
    >>> bins = reliability([0.9, 0.5, 0.7, 0.5], [1, 0, 1, 1], n_bins=2)
    >>> bins.confidence, bins.share_correct, bins.count
    (array([0.5, 0.8]), array([0.5, 1. ]), array([2, 2]))
    """
    values, ties, hits = _tied(*present_rows(confidence, correct, sample_weight))
    _check_positive_integer(n_bins, "n_bins")
    # Bin = floor(n_bins * middle rank / total weight), with both doubled to stay exact for whole weights.
    middle = 2 * np.cumsum(ties) - ties
    _, bins = np.unique(middle * int(n_bins) // (2 * ties.sum()), return_inverse=True)
    count = np.bincount(bins, weights=ties)
    return Reliability(
        np.bincount(bins, weights=values * ties) / count,
        np.bincount(bins, weights=hits) / count,
        count.astype(np.int64) if sample_weight is None else count,
    )


def expected_calibration_error(confidence, correct, n_bins=15, *, sample_weight=None) -> float:
    """Mean over the bins of `reliability` of |confidence - share of correct rows|, weighted by their rows.

    Chance alone makes it positive: with few rows per bin, even perfect probabilities don't reach 0.

    Examples
    --------
    >>> from mlrh.metrics import expected_calibration_error
    >>> round(expected_calibration_error([0.9, 0.5, 0.7, 0.5], [1, 0, 1, 1], n_bins=2), 3)
    0.1
    """
    bins = reliability(confidence, correct, n_bins, sample_weight=sample_weight)
    return float(np.average(np.abs(bins.confidence - bins.share_correct), weights=bins.count))


class CoveragePoint(NamedTuple):
    """Share of rows answered, and share of these that are wrong, if rows of at least the threshold are answered."""

    coverage: float
    risk: float
    threshold: float


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Share of rows answered (coverage) and share of these that are wrong (risk), for every threshold of confidence.

    One entry for each distinct confidence, the highest first: rows of equal confidence are answered together.
    """

    coverage: np.ndarray
    risk: np.ndarray
    threshold: np.ndarray

    @property
    def area(self) -> float:
        """Integral of the risk over coverages from 0 to 1; lower is better.

        Between two entries, part of the rows of one confidence are answered. The wrong ones count as spread evenly
        among them, so that the order of rows does not matter, and n copies of every row change nothing.
        """
        step = np.diff(self.coverage, prepend=0.0) > 0  # not where rows weigh too little to change the coverage
        coverage, wrong = self.coverage[step], (self.coverage * self.risk)[step]
        before = np.append(0.0, coverage[:-1])
        slope = np.diff(wrong, prepend=0.0) / (coverage - before)
        # Between entries the number of wrong rows is linear in the coverage c, so risk(c) = constant / c + slope, whose
        # integral is constant * log(c) + slope * c. The constant is 0 before the first entry.
        constant = np.append(0.0, wrong[:-1] - slope[1:] * before[1:])
        logs = np.append(0.0, np.log(coverage[1:] / coverage[:-1]))
        return float(np.sum(constant * logs + slope * (coverage - before)))

    def largest_coverage(self, risk) -> CoveragePoint:
        """The point of largest coverage among those with at most this risk.

        Where there is none, coverage and risk are 0 and the threshold is infinite: nothing is answered.
        """
        allowed = np.flatnonzero(self.risk <= _share(risk, "risk"))
        if len(allowed) == 0:
            return CoveragePoint(0.0, 0.0, float("inf"))
        last = allowed[-1]
        return CoveragePoint(float(self.coverage[last]), float(self.risk[last]), float(self.threshold[last]))


def risk_coverage(confidence, correct, *, sample_weight=None) -> RiskCoverage:
    """The risk-coverage curve: the share of wrong rows among those of at least a confidence, for every confidence.

    Parameters
    ----------
    confidence : array of shape (n_samples,)
        Probabilities that the model gave to what it predicted.
    correct : array of shape (n_samples,)
        Whether (1 or True) the prediction was right.
    sample_weight : array of shape (n_samples,), optional
        A row of weight 2 counts as the row twice, one of weight 0 as absent.

    Examples
    --------
    >>> from mlrh.metrics import risk_coverage
    >>> curve = risk_coverage([0.9, 0.5, 0.7, 0.5], [1, 0, 1, 1])
    >>> curve.threshold, curve.coverage, curve.risk
    (array([0.9, 0.7, 0.5]), array([0.25, 0.5 , 1.  ]), array([0.  , 0.  , 0.25]))
    >>> curve.largest_coverage(risk=0.1)
    CoveragePoint(coverage=0.5, risk=0.0, threshold=0.7)
    """
    values, ties, hits = (part[::-1] for part in _tied(*present_rows(confidence, correct, sample_weight)))
    answered, right = np.cumsum(ties), np.cumsum(hits)
    wrong = np.cumsum(ties - hits)
    return RiskCoverage(answered / answered[-1], wrong / (wrong + right), values)


def assured_threshold(confidence, correct, *, risk, assurance, n_looks=20) -> float:
    """The lowest confidence at or above which at most a share `risk` of answers is wrong, with some assurance; or inf.

    The thresholds that answer 1/n_looks, 2/n_looks, ... of the rows (5 %, 10 %, ...) are tried. Each has the exact
    upper bound of Clopper and Pearson on its risk, at the level 1 - (1 - assurance) / n_looks. So all bounds hold
    together with probability `assurance`, whichever threshold is then taken (Bonferroni). The lowest threshold whose
    bound is at most `risk` is returned; infinity where there is none, since few rows can't assure a small risk.

    This holds for new rows drawn like these and answered by the same model. The rows must be independent, and neither
    the model nor its confidence may have been fitted to them.

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh.metrics import assured_threshold
    >>> confidence = np.linspace(0, 1, 1001)
    >>> assured_threshold(confidence, confidence > 0.4, risk=0.1, assurance=0.95)  # all above 0.4 are right
    0.4
    """
    confidence, correct = _confidences(confidence, correct)
    _check_positive_integer(n_looks, "n_looks")
    level = 1 - (1 - _share(assurance, "assurance")) / n_looks
    ranked = np.sort(confidence)[::-1]
    looks = ranked[np.ceil(np.arange(1, n_looks + 1) * len(ranked) / n_looks).astype(np.int64) - 1]
    n_answered = np.count_nonzero(confidence >= looks[:, None], axis=1)
    n_wrong = np.count_nonzero((confidence >= looks[:, None]) & (correct == 0), axis=1)
    bounds = np.ones(n_looks)
    some = n_wrong < n_answered
    bounds[some] = stats.beta.ppf(level, n_wrong[some] + 1, (n_answered - n_wrong)[some])
    return float(looks[bounds <= _share(risk, "risk")].min(initial=np.inf))


def present_rows(confidence, correct, sample_weight=None):
    """Confidence, whether right (1.0 or 0.0) and weight of the rows of positive weight, checked; (n_present,) each."""
    confidence, correct = _confidences(confidence, correct)
    weights = _weights(sample_weight, len(confidence))
    present = weights > 0
    return confidence[present], correct[present], weights[present]


def _measures_of_sets(Y, predicted):
    # scikit-learn takes a single column for one class per row; a second label, which no row has, prevents that.
    truth, answer = (np.pad(sets, ((0, 0), (0, 1))) if sets.shape[1] == 1 else sets for sets in (Y, predicted))
    labels = np.arange(Y.shape[1])
    return {
        "exact_match": float(accuracy_score(truth, answer)),
        "hamming_loss": float(hamming_loss(Y.ravel(), predicted.ravel())),
        "f1_example": float(f1_score(truth, answer, labels=labels, average="samples", zero_division=1)),
        "f1_micro": float(f1_score(truth, answer, labels=labels, average="micro", zero_division=0)),
        "f1_macro": float(f1_score(truth, answer, labels=labels, average="macro", zero_division=0)),
        "jaccard": float(jaccard_score(truth, answer, labels=labels, average="samples", zero_division=1)),
        "empty_share": empty_share(predicted),
    }


def _indicator(values, name):
    """The values, which may be sparse, as an int8 matrix of 0 and 1 with at least one row and one column."""
    values = np.asarray(values.toarray() if hasattr(values, "toarray") else values)
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"{name} must be a matrix with a row per sample and a column per label; got {values.shape}.")
    bad = ~((values == 0) | (values == 1))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{name} must contain only 0 and 1, 1 where the row has the label; found {values[row, column]} in row "
            f"{row}, column {column}."
        )
    return values.astype(np.int8)


def _log_probabilities(log_prob):
    log_prob = np.asarray(log_prob, np.float64)
    if log_prob.ndim != 1 or len(log_prob) == 0:
        raise ValueError(f"log_prob must hold one value per row, at least one; got shape {log_prob.shape}.")
    bad = ~(log_prob <= 1e-6)  # allows for rounding errors of a sum of logarithms; also true for NaN
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"log_prob must hold logarithms of probabilities, at most 0; got {log_prob[row]} in row {row}."
        )
    return log_prob


def _confidences(confidence, correct):
    confidence, correct = np.asarray(confidence, np.float64), np.asarray(correct)
    if confidence.ndim != 1 or confidence.shape != correct.shape or len(confidence) == 0:
        raise ValueError(
            "confidence and correct must have one value per row, at least one; got shapes "
            f"{confidence.shape} and {correct.shape}."
        )
    bad = ~((confidence >= 0) & (confidence <= 1))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"confidence must hold probabilities; got {confidence[row]} in row {row}.")
    if not np.isin(correct, (0, 1)).all():
        raise ValueError("correct must hold 1 where the prediction was right and 0 elsewhere; got other values.")
    return confidence, correct.astype(np.float64)


def _weights(sample_weight, n_rows):
    if sample_weight is None:
        return np.ones(n_rows)
    weights = np.asarray(sample_weight, np.float64)
    if weights.shape != (n_rows,) or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise ValueError(
            "sample_weight must hold one number per row, finite, not negative and not all 0; got "
            f"shape {weights.shape} for {n_rows} rows, or such numbers."
        )
    return weights


def _check_positive_integer(value, name):
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer; got {value!r}.")


def _tied(confidence, correct, weights):
    """Distinct confidences in ascending order, the weight of their rows, and that of the correct ones among them."""
    values, group = np.unique(confidence, return_inverse=True)
    return values, np.bincount(group, weights=weights), np.bincount(group, weights=weights * correct)


def _share(value, name):
    share = float(value) if isinstance(value, Real) and not isinstance(value, bool) else np.nan
    if not 0 <= share <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1; got {value!r}.")
    return share
