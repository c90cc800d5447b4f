"""scikit-learn's SVC with an RBF kernel, one per label by MultiOutputClassifier; without probabilities."""

from functools import partial

import numpy as np
from joblib import cpu_count, parallel_config
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.multioutput import MultiOutputClassifier
from sklearn.svm import SVC

from benchmarks.ladders import Ladder
from benchmarks.optimum import Optimum, Point, support_vector
from benchmarks.timing import timed
from mlrh.estimators.kernel import gamma_scale

STEPS = (0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4)
TIGHT = 1e-6
VARIANTS = ("MultiOutput", "MultiOutput with processes", "MultiOutput with threads")
CACHES = (200, 1000)  # MB; 200 is the default


def kernel(problem) -> list[Ladder]:
    """A ladder for each size of the cache."""
    gram = rbf_kernel(problem.X, gamma=gamma_scale(problem.X))
    optimum = Optimum(lambda: _point(_fit(problem, TIGHT, 1000, VARIANTS[2]), gram, problem))
    return [_ladder(problem, gram, optimum, megabytes) for megabytes in CACHES]


def _ladder(problem, gram, optimum, megabytes):
    def run(step, variant):
        return timed(partial(_fit, problem, step, megabytes, variant))()

    name = f"scikit-learn SVC, cache {megabytes} MB"
    return Ladder(name, "tol=", STEPS, VARIANTS, run, lambda fitted: optimum.gap(_point(fitted, gram, problem).value))


def _fit(problem, tol, megabytes, variant):
    jobs = cpu_count() if "with" in variant else None
    model = MultiOutputClassifier(SVC(kernel="rbf", gamma="scale", tol=tol, cache_size=megabytes), n_jobs=jobs)
    with parallel_config("threading" if "threads" in variant else "loky"):
        return model.fit(problem.X, problem.Y)


def _point(fitted, gram, problem):
    """The sum over labels of what each machine minimises, and of its slack."""
    points = []
    for single, labels in zip(fitted.estimators_, problem.Y.T, strict=True):
        dual = np.zeros(len(gram))
        dual[single.support_] = single.dual_coef_[0]
        points.append(support_vector(gram, 2.0 * labels - 1.0, dual, single.intercept_[0]))
    return Point(sum(point.value for point in points), sum(point.slack for point in points))
