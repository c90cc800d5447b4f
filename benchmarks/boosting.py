"""How long do boosted trees under one model of the label set take beside separate fits? At most 1.5 times as long.

Ours is MLRHBoostingClassifier with the open label space. Theirs is XGBClassifier for one label after the other, with
the same number of trees and the same settings. Both use the same number of threads.
"""

import xgboost

from benchmarks import problems
from benchmarks.table import attempted, raced
from mlrh import MLRHBoostingClassifier
from mlrh.estimators.boosting import OF_BOOSTER

QUESTION = "boosted fit"
TARGET = 1.5
CASES = ("emotions", "scene", "yeast")
N_ROUNDS = 100


def measure(repeats, context):
    """Yields a line per case: seconds of both (median of interleaved runs) and their ratio."""
    for name in CASES[:1] if context.quick else CASES:
        context.tell(name)
        yield from attempted(QUESTION, name, _lines, name, repeats, 10 if context.quick else N_ROUNDS)


def _lines(name, repeats, n_rounds):
    problem = problems.public(name)
    X, Y = problem.X, problem.Y
    ours = MLRHBoostingClassifier(n_estimators=n_rounds, random_state=0, n_jobs=1)
    settings = {own: getattr(ours, own) for own in OF_BOOSTER}
    theirs = xgboost.XGBClassifier(n_estimators=n_rounds, tree_method="hist", random_state=0, n_jobs=1, **settings)

    def separate():
        for column in Y.T:
            theirs.fit(X, column)

    rows, features = X.shape
    case = f"{name} ({rows:,} x {features}, K={Y.shape[1]}), {n_rounds} rounds"
    yield raced(QUESTION, case, lambda: ours.fit(X, Y), "XGBClassifier per label", separate, repeats, target=TARGET)
