"""What the penalty and the number of bins do to boosted trees: the table of docs/how-to-choose.md.

Run it with `python docs/boosted-trees/defaults.py`, with the data sets at hand; it takes ten minutes of processor time.
Four fifths of each set are looked at, by five folds of them (shuffled, seed 0): the other rows stay unseen.
"""

import time
import warnings

import numpy as np
from sklearn.model_selection import KFold

from mlrh import MLRHBoostingClassifier
from mlrh.data import load
from mlrh.metrics import evaluate

SETS = ("emotions", "scene", "yeast", "flags", "birds", "medical")
SETTINGS = {
    "1, 256 bins": {"reg_lambda": 1.0, "max_bin": 256},
    "1, 64 bins": {"reg_lambda": 1.0, "max_bin": 64},
    "5, 64 bins": {},
    "20, 64 bins": {"reg_lambda": 20.0, "max_bin": 64},
}


def figures(X, Y, options):
    """Log-loss of the set, exact match and seconds of processor time for a fit, means over the folds."""
    found = []
    for train, held_out in KFold(5, shuffle=True, random_state=0).split(Y):
        begin = time.process_time()
        model = MLRHBoostingClassifier(random_state=0, n_jobs=1, **options).fit(X[train], Y[train])
        seconds, distribution = time.process_time() - begin, model.distribution(X[held_out])
        log_probs = distribution.log_prob(Y[held_out])
        own = evaluate(Y[held_out], distribution.mode(), log_probs)
        found.append((own["set_log_loss"], own["exact_match"], seconds))
    return np.mean(found, axis=0)


def main():
    warnings.simplefilter("ignore")  # folds of medical lack some labels
    print(f"| | {' | '.join(f'`reg_lambda` = {name}' for name in SETTINGS)} |")
    print(f"| --- |{' ---: |' * len(SETTINGS)}")
    for name in SETS:
        data = load(name)
        seen, _ = next(KFold(5, shuffle=True, random_state=0).split(data.Y))
        X, Y = data.X[seen], data.Y[seen]
        cells = (figures(X, Y, options) for options in SETTINGS.values())
        line = " | ".join(f"{loss:.2f} / {exact:.1%} ({seconds:.1f})" for loss, exact, seconds in cells)
        print(f"| {name} | {line} |", flush=True)


if __name__ == "__main__":
    main()
