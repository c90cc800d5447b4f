"""A small data set, a tiny grid and a profile, so that whole experiments run in a second."""

import numpy as np
from samples import make_multilabel

from mlrh.data import MultilabelData
from mlrh.experiments._protocol import Dataset, Profile

TINY_GRID = {
    "rbf": {"C": (1.0, 10.0), "gamma": (0.3, 1.0)},
    "linear": {"C": (0.1, 1.0)},
    "forest": {"n_estimators": 5, "min_samples_leaf": (1, 3)},
    "neighbours": {"n_neighbors": (3, 5)},
    "nets": {"cv": (2,), "Cs": (0.1, 1.0), "l1_ratios": (0.5,)},
    "automatic": {"time_budget": None, "scores": "linear", "quality": "fast"},
}
TINY = Profile("tiny", (0,), 2, 1, TINY_GRID)


def small_dataset(name="small", n_samples=60, seed=0):
    X, Y = make_multilabel(n_samples=n_samples, n_features=4, n_labels=3, seed=seed)
    features, labels = tuple(f"x{d}" for d in range(4)), ("a", "b", "c")
    return Dataset(
        name, MultilabelData(X * [1.0, 10.0, 0.1, 1.0] + 3.0, np.asarray(Y, np.int8), features, labels, name)
    )
