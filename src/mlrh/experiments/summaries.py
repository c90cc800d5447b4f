"""From records to numbers: means and spreads over folds, and paired differences. Knows nothing of tables or pages."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from mlrh.experiments.plans import N_FOLDS


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a number over folds."""

    mean: float
    deviation: float
    n: int


@dataclass(frozen=True)
class Difference:
    """A method minus another on the same folds: a 95% interval, and on how many folds it is higher, equal, lower."""

    mean: float
    low: float
    high: float
    counts: tuple[int, int, int]


def by_method(records: Iterable[dict]) -> dict[str, dict[tuple[int, int], dict]]:
    """{method: {(seed, fold): record}}, methods in the order they first occur."""
    grouped: dict[str, dict[tuple[int, int], dict]] = defaultdict(dict)
    for record in records:
        grouped[record["method"]][record["seed"], record["fold"]] = record
    return dict(grouped)


def values(records: dict, name: str) -> np.ndarray:
    """A metric, or a number that stands beside the metrics, over the folds of one method; empty where it has none."""
    ordered = [record for _, record in sorted(records.items())]
    found = [record["metrics"].get(name, record.get(name)) for record in ordered]
    return np.array([value for value in found if value is not None], dtype=np.float64)


def spread(numbers) -> Spread | None:
    """None for no numbers; the deviation is that of a sample (n - 1), 0 for one number."""
    numbers = np.asarray(numbers, dtype=np.float64)
    if len(numbers) == 0:
        return None
    return Spread(float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0, len(numbers))


def paired(of: dict, minus: dict, name: str) -> Difference | None:
    """Difference of a metric over the folds both have; None where that is fewer than two.

    Folds share training rows, so their differences are not independent: the interval is the corrected one for repeated
    cross validation (Nadeau and Bengio; Bouckaert and Frank), with variance s^2 (1 / n + n_test / n_train).
    """
    shared = sorted(set(of) & set(minus))
    pairs = [(of[fold]["metrics"].get(name), minus[fold]["metrics"].get(name)) for fold in shared]
    differences = np.array([a - b for a, b in pairs if a is not None and b is not None], dtype=np.float64)
    if len(differences) < 2:
        return None
    mean, n = float(differences.mean()), len(differences)
    ratio = float(np.mean([_test_share(of[fold]) for fold in shared]))
    half = float(stats.t.ppf(0.975, n - 1) * differences.std(ddof=1) * np.sqrt(1 / n + ratio))
    signs = np.sign(differences)
    return Difference(
        mean, mean - half, mean + half, (int((signs > 0).sum()), int((signs == 0).sum()), int((signs < 0).sum()))
    )


def _test_share(record):
    """Test rows per training row; plain cross validation where the record doesn't say."""
    return record["n_test"] / record["n_train"] if "n_train" in record else 1 / (N_FOLDS - 1)


def reliability_points(records: dict) -> list[tuple[float, float, int]]:
    """(mean confidence, share correct, count) of each bin of confidence that holds rows, over all folds."""
    binned = [record["confidence"] for record in records.values() if record.get("confidence")]
    if not binned:
        return []
    total = np.sum(binned, axis=0)
    return [(confidence / count, correct / count, int(count)) for count, confidence, correct in total if count]


def size_shares(records: dict, name: str) -> np.ndarray:
    """Share of the test rows by number of labels; name is true_sizes or predicted_sizes."""
    counts = np.sum([record[name] for record in records.values()], axis=0)
    return counts / counts.sum()
