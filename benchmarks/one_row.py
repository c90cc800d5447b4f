"""How long does predict_proba of one row take beside LogisticRegression's? A row at a time is how servers ask."""

from functools import partial

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks import problems
from benchmarks.table import raced
from benchmarks.timing import quietly
from mlrh import MLRHClassifier

QUESTION = "one row"
TARGET = 3.0
CALLS = 200  # in a turn
N_ROWS = 2000


def measure(repeats, context):
    """Yields a line for dense and one for sparse features, and one for very many labels."""
    for name in ("emotions",) if context.quick else ("scene", "tmc2007-500", "delicious"):
        yield line(problems.public(name), repeats, context)


def line(problem, repeats, context):
    """The line of a problem; LogisticRegression has as many classes as there are labels, so that both have K scores.

    What a prediction costs doesn't depend on the coefficients, so neither is fitted to the end, or to many rows.
    """
    few = problems.prepared(problem.name, problem.X[:N_ROWS], problem.Y[:N_ROWS])
    classes = np.arange(len(few.Y)) % few.Y.shape[1]
    ours = quietly(MLRHClassifier(max_iter=3).fit, few.X, few.Y)
    theirs = quietly(LogisticRegression(max_iter=3).fit, few.X, classes)
    context.tell(f"one row of {problem}")
    own, other = (partial(model.predict_proba, few.X[:1]) for model in (ours, theirs))
    case, competitor = f"predict_proba, {problem}", "LogisticRegression.predict_proba, K classes"
    return raced(QUESTION, case, own, competitor, other, repeats, calls=CALLS, target=TARGET)
