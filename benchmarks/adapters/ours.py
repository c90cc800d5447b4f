"""mlrh, and the tight solves that its optima come from."""

from copy import deepcopy

from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel

from benchmarks.ladders import Ladder
from benchmarks.optimum import Optimum, joint, joint_kernel
from benchmarks.timing import quietly, timed
from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.estimators.kernel import gamma_scale

STEPS = (3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 1e-7)


def linear(problem) -> Ladder:
    """The ladder of linear fits."""
    return _ladder(MLRHClassifier(), problem, lambda fitted: joint(fitted, problem.X, problem.Y))


def kernel(problem) -> Ladder:
    """The ladder of fits with the RBF kernel."""
    gram = rbf_kernel(problem.X, gamma=gamma_scale(problem.X))
    return _ladder(KernelMLRHClassifier(), problem, lambda own: joint_kernel(own, gram, problem.X, problem.Y))


def _ladder(classifier, problem, point):
    def fit(tol):
        return clone(classifier).set_params(tol=tol).fit(problem.X, problem.Y)

    optimum = Optimum(lambda: point(tightened(fit(classifier.tol), problem)))
    return Ladder(
        "mlrh",
        "tol=",
        STEPS,
        ("all cores",),
        lambda step, variant: timed(lambda: fit(step))(),
        lambda fitted: optimum.gap(point(fitted).value),
        classifier.tol,
    )


def tightened(fitted, problem, *, tol=1e-10):
    """A fit from there on, by another solver and far closer to the optimum; its certificate says how far it came."""
    other = deepcopy(fitted).set_params(warm_start=True, solver="newton-cg", tol=tol, max_iter=1000)
    return quietly(other.fit, problem.X, problem.Y)
