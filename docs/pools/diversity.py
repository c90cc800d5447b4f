"""What each kind of diversity brings to a pool, on emotions: the table of docs/pools.md.

Run it with `python docs/pools/diversity.py`, with the data set at hand; it takes three minutes of processor time. Five
outer folds (shuffled, seed 0), standardised features; all settings are fixed, and weights are chosen inside the
training rows of each outer fold.
"""

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import KernelMLRHClassifier, MLRHBoostingClassifier, MLRHClassifier, PooledSets, decisions
from mlrh.baselines import LabelPowerset
from mlrh.data import load

N_FEATURES = 72


class OnDraw(ClassifierMixin, BaseEstimator):
    """A classifier that is fitted to as many rows drawn with replacement, as in bagging."""

    def __init__(self, estimator, seed):
        self.estimator = estimator
        self.seed = seed

    def fit(self, X, y):
        rows = np.random.default_rng(self.seed).integers(len(X), size=len(X))
        self.estimator_ = clone(self.estimator).fit(X[rows], y[rows])
        self.classes_ = self.estimator_.classes_
        return self

    def distribution(self, X):
        return self.estimator_.distribution(X)

    def predict(self, X):
        return self.estimator_.predict(X)


def kernel(label_space="observed", width=0.5):
    size_bias = label_space == "cardinality"
    return KernelMLRHClassifier(C=10, gamma=width / N_FEATURES, label_space=label_space, size_bias=size_bias)


def forest(seed=0):
    return LabelPowerset(RandomForestClassifier(200, min_samples_leaf=2, random_state=seed))


def boosted():
    return MLRHBoostingClassifier(n_estimators=100, learning_rate=0.1, label_space="observed", random_state=0, n_jobs=1)


LINEAR = MLRHClassifier(C=0.1, label_space="observed")
WIDTHS = [kernel(width=0.2), kernel(width=1.0)]
SINGLE = {
    "kernel": [kernel()],
    "linear": [LINEAR],
    "kernel, cardinality space": [kernel("cardinality")],
    "forest": [forest()],
    "boosted": [boosted()],
}
POOLS = {
    "kernel and linear": [kernel(), LINEAR],
    "two spaces: kernel, observed and cardinality": [kernel(), kernel("cardinality")],
    "two widths of the kernel": WIDTHS,
    "bagging: kernel, five draws of rows": [OnDraw(kernel(), seed) for seed in range(5)],
    "seeds: five forests": [forest(seed) for seed in range(5)],
    "kernel and forest": [kernel(), forest()],
    "kernel and boosted": [kernel(), boosted()],
    "kernel, boosted and forest": [kernel(), boosted(), forest()],
    "kernel, linear, cardinality space and forest": [kernel(), LINEAR, kernel("cardinality"), forest()],
}
ROWS = [
    *((name, "", members, {"weights": "equal"}) for name, members in SINGLE.items()),
    *(
        (name, weights, members, {"weights": weights})
        for name, members in POOLS.items()
        for weights in ("equal", "held-out")
    ),
    *(
        (
            "two widths, geometric",
            weights,
            POOLS["two widths of the kernel"],
            {"weights": weights, "pooling": "geometric"},
        )
        for weights in ("equal", "held-out")
    ),
]


def measured(members, params, train, test):
    """For each test row: whether the set is right, the share of wrong labels by marginals, and the log-loss."""
    data = load("emotions")
    named = [(f"member{place}", make_pipeline(StandardScaler(), member)) for place, member in enumerate(members)]
    d = PooledSets(named, **params).fit(data.X[train], data.Y[train]).distribution(data.X[test])
    right = (decisions.exact_match(d) == data.Y[test]).all(axis=1)
    wrong = (decisions.hamming(d) != data.Y[test]).mean(axis=1)
    return np.column_stack([right, wrong, -np.log(np.maximum(d.prob(data.Y[test]), 1e-6))])


def main():
    folds = list(KFold(5, shuffle=True, random_state=0).split(load("emotions").X))
    work = [delayed(measured)(members, params, *fold) for _, _, members, params in ROWS for fold in folds]
    parts = Parallel(n_jobs=-1)(work)
    results = [np.concatenate(parts[start : start + 5]) for start in range(0, len(parts), 5)]
    print(
        "| members | weights | exact match % | beside kernel alone | Hamming loss by marginals | log-loss of the set |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for (name, weights, _, _), rows in zip(ROWS, results, strict=True):
        gain = 100 * (rows[:, 0] - results[0][:, 0])
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        beside = "" if name == "kernel" else f"{gain.mean():+.1f} ± {error:.1f}"
        right, wrong, loss = rows.mean(axis=0)
        print(f"| {name} | {weights} | {100 * right:.1f} | {beside} | {wrong:.3f} | {loss:.2f} |", flush=True)


if __name__ == "__main__":
    main()
