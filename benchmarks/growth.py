"""How does time grow with rows, labels and the largest size? Slopes in log-log over a factor of 16; and M = K = 2,000.

Fits make ten iterations (tol=0), so that what grows is the cost of an iteration and not their number.
"""

from functools import partial

import numpy as np

from benchmarks.inference import ACCURATE, floor, largest_error
from benchmarks.problems import synthetic
from benchmarks.table import Line, compared, raced
from benchmarks.timing import interleaved, quietly, timed
from mlrh import MLRHClassifier
from mlrh.spaces import CardinalitySpace

QUESTION = "growth"
TARGET = 1.1
FACTORS = (1, 2, 4, 8, 16)
N_ITER = 10
FIT = {"n_samples": 2000, "n_features": 100, "n_labels": 40, "max_labels": 4}
FIT_QUICK = {"n_samples": 100, "n_features": 5, "n_labels": 20, "max_labels": 1}
INFERENCE = {"n_samples": 20_000, "n_labels": 32, "max_labels": 4}
INFERENCE_QUICK = {"n_samples": 200, "n_labels": 16, "max_labels": 1}
SYMBOLS = {"n_samples": "N", "n_labels": "K", "max_labels": "M"}
MANY = 2000


def measure(repeats, context):
    """Yields the slopes of fit and inference in N, K and M, and the lines of very many labels."""
    for symbol in SYMBOLS:
        yield slope_line("fit", fit_call, FIT_QUICK if context.quick else FIT, symbol, repeats, context)
    for symbol in SYMBOLS:
        base = INFERENCE_QUICK if context.quick else INFERENCE
        yield slope_line("inference", inference_call, base, symbol, repeats, context)
    yield from many_labels(100 if context.quick else MANY, repeats, context)


def slope_line(what, call_of, base, symbol, repeats, context):
    """The line of one slope: seconds at five sizes that take turns, a factor of two apart."""
    sizes = [_enlarged(base, symbol, factor) for factor in FACTORS]
    runs = interleaved({str(own[symbol]): timed(call_of(**own)) for own in sizes}, repeats)
    seconds = [own.median for own in runs.values()]
    shown = " ".join(f"{1e3 * own:.3g}" for own in seconds)
    steepness = slope(FACTORS, seconds)
    context.tell(f"growth of {what} in {SYMBOLS[symbol]}: {shown} ms, slope {steepness:.2f}")
    ends = f"{SYMBOLS[symbol]}={sizes[0][symbol]:,}..{sizes[-1][symbol]:,}"
    rest = ", ".join(f"{SYMBOLS.get(name, 'D')}={own:,}" for name, own in sizes[0].items() if name != symbol)
    case = f"{what}, {ends} ({rest}): {shown} ms"
    return Line(QUESTION, case, steepness, "linear growth", 1.0, steepness, TARGET, unit="slope")


def _enlarged(base, symbol, factor):
    """The base with one size larger; sizes of sets leave room among the labels."""
    n_labels = base["n_labels"] if symbol != "max_labels" else 2 * FACTORS[-1] * base["max_labels"]
    return {**base, "n_labels": n_labels, symbol: {**base, "n_labels": n_labels}[symbol] * factor}


def slope(sizes, seconds) -> float:
    """Least-squares slope of log seconds in log sizes."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def fit_call(n_samples, n_features, n_labels, max_labels):
    """The function that fits N_ITER iterations of a synthetic problem of these sizes."""
    problem = synthetic(n_samples, n_features, n_labels, max_size=min(2, max_labels))
    options = {"min_labels": 0, "max_labels": max_labels, "tol": 0, "max_iter": N_ITER}
    return partial(quietly, MLRHClassifier(**options).fit, problem.X, problem.Y)


def inference_call(n_samples, n_labels, max_labels):
    """The function that computes log-partition and marginals of scores of this size."""
    scores = np.random.default_rng(0).standard_normal((n_samples, n_labels)) - 2
    space = CardinalitySpace(n_labels, 1, max_labels)
    return partial(space.expectations, scores, np.ones(n_samples))


def many_labels(n_labels, repeats, context):
    """Yields lines for K labels, M = K and M = K / 2: time beside 16 times that of M = K / 16, and accuracy.

    The plain recurrence would take about as long as that. The scores expect about M labels where M = K / 2.
    """
    scores = np.random.default_rng(0).standard_normal((16, n_labels))
    few = partial(CardinalitySpace(n_labels, 1, n_labels // 16).expectations, scores - 3.2, np.ones(len(scores)))
    for max_labels in (n_labels, n_labels // 2):
        space = CardinalitySpace(n_labels, 1, max_labels)
        error = largest_error(space, scores[:2])
        context.tell(f"K={n_labels}, M={max_labels}: error {error:.1e}")
        case, factor = f"inference of {len(scores)} rows, K={n_labels:,}, M={max_labels:,}", 16 * max_labels / n_labels
        ours, linear = (
            partial(space.expectations, scores, np.ones(len(scores))),
            f"{factor:.0f} times M={n_labels // 16}",
        )
        least = floor(context.machine, scores.shape, max_labels)
        yield raced(QUESTION, case, ours, linear, few, repeats, times=factor, target=TARGET, floor=least)
        yield compared(QUESTION, f"{case}: largest error", error, "what is allowed", ACCURATE, target=1.0, unit="abs")
