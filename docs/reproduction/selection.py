"""How the criterion of the inner cross validation moves MLRH-WTA (RBF) on emotions: 25 outer folds, the full grid.

Run it with `python docs/reproduction/selection.py`, with the data sets at hand; it takes several minutes.
"""

import numpy as np
from sklearn.model_selection import KFold

from mlrh import KernelMLRHClassifier
from mlrh.data import load
from mlrh.estimators.cv import best_index, validation_scores
from mlrh.experiments._protocol import PROFILES, Dataset, _rows, nested_tasks


def exact_match(model, X, Y):
    return model.score(X, Y)


def log_prob(model, X, Y):
    return float(np.maximum(model.distribution(X).log_prob(Y), np.log(1e-6)).mean())


profile, dataset = PROFILES["full"], Dataset("emotions", load("emotions"))
grid = profile.grids["rbf"]
names = ("exact match", "log-loss of the set", "exact match, three seeds", "best of each fold")
found: dict[str, list] = {name: [] for name in names}
table = []
for task in nested_tasks(dataset, profile, ["mlrh-rbf"]):
    rows = _rows(task, dataset, profile, 5)
    n = len(rows.Y)
    options = {"Cs": grid["C"], "gammas": [g * rows.gamma_unit for g in grid["gamma"]]}
    model = KernelMLRHClassifier(tol=1e-5, n_jobs=1)
    inner = [s for seed in (task.seed, 100, 200) for s in KFold(5, shuffle=True, random_state=seed).split(rows.X)]
    match, loss = validation_scores(model, rows.X, rows.Y, splits=inner, scorers=[exact_match, log_prob], **options)
    X, Y = np.vstack([rows.X, rows.X_test]), np.vstack([rows.Y, rows.Y_test])
    outer = [(np.arange(n), np.arange(n, len(Y)))]
    test = validation_scores(model, X, Y, splits=outer, scorers=[exact_match], **options)[0, 0]
    found["exact match"].append(test[best_index(match[:5])])
    found["log-loss of the set"].append(test[best_index(loss[:5])])
    found["exact match, three seeds"].append(test[best_index(match)])
    found["best of each fold"].append(test.max())
    table.append(test)
for name, values in found.items():
    print(f"{name}: {100 * np.mean(values):.2f}")
mean = 100 * np.mean(table, axis=0)
print(f"best single setting on all outer folds: {mean.max():.2f}")
print(f"all single settings, rows gamma {grid['gamma']}, columns C {grid['C']}:", mean.round(2), sep="\n")
