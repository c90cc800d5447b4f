"""mlrh with its default settings, and the tight solves that its optima come from."""

from copy import deepcopy

from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel

from benchmarks.optimum import Optimum, joint, joint_kernel
from benchmarks.timing import quietly
from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.estimators.kernel import gamma_scale


def linear(problem):
    """The function that fits, and the one that gives a fit's relative gap to the optimum."""
    return _fit_and_gap(MLRHClassifier(), problem, lambda fitted: joint(fitted, problem.X, problem.Y))


def kernel(problem):
    """The same for the RBF kernel."""
    gram = rbf_kernel(problem.X, gamma=gamma_scale(problem.X))
    return _fit_and_gap(KernelMLRHClassifier(), problem, lambda own: joint_kernel(own, gram, problem.X, problem.Y))


def _fit_and_gap(classifier, problem, point):
    def fit():
        return clone(classifier).fit(problem.X, problem.Y)

    def gap(fitted):
        return Optimum(lambda: point(_tightened(fitted, problem))).gap(point(fitted).value)

    return fit, gap


def _tightened(fitted, problem):
    """A fit from there on, by another solver and far closer to the optimum; its certificate says how far it came."""
    other = deepcopy(fitted).set_params(warm_start=True, solver="newton-cg", tol=1e-10, max_iter=1000)
    return quietly(other.fit, problem.X, problem.Y)
