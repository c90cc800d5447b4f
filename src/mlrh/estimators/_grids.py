"""The values of C and gamma that a search tries unless it is told others, and how exact its fits are.

C weighs the log-likelihood against the penalty, so what is a small C depends on the scale of the features. gamma is in
units of 1 / (n_features * variance of the features), which is what gamma="scale" means.
"""

from typing import Any

SEARCH_TOL = 1e-5  # of fits that only serve to choose: a rank needs fewer digits than the final fit, with its default

# Features of any scale: the decades of scikit-learn's LogisticRegressionCV, for the classes that search as they fit.
LOG10_CS = (-4, 4)

# Features that were scaled (mlrh.automatic): fewer decades are enough.
LINEAR_C = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
RBF_C = (
    0.1,
    1.0,
    10.0,
    100.0,
    1000.0,
)  # larger: entries of the kernel are at most 1, while a scaled row's square is about n_features
RBF_GAMMA = (0.3, 1.0, 3.0)

# The comparison of methods (mlrh.experiments). Fixed before its first run and not touched since: the key of a record on
# file depends on the grid, so another value here is another experiment.
GRIDS: dict[str, dict[str, Any]] = {
    "quick": {
        "rbf": {"C": (1.0, 10.0, 100.0), "gamma": (0.3, 1.0)},
        "linear": {"C": (0.01, 0.1, 1.0, 10.0)},
        "forest": {"n_estimators": 200, "min_samples_leaf": (1, 3)},
        "neighbours": {"n_neighbors": (5, 10, 20)},
    },
    "full": {
        "rbf": {"C": (0.3, 3.0, 30.0, 300.0), "gamma": (0.1, 0.3, 1.0, 3.0)},
        "linear": {"C": (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)},
        "forest": {"n_estimators": 200, "min_samples_leaf": (1, 3)},
        "neighbours": {"n_neighbors": (5, 10, 15, 20, 30)},
    },
}
