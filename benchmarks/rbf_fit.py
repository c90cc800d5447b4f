"""How long does a fit with an RBF kernel take beside one support vector machine per label? At C = 1, gamma="scale"."""

from benchmarks import ladders, problems
from benchmarks.adapters import ours, support_vectors
from benchmarks.fits import beside
from benchmarks.table import attempted

QUESTION = "RBF fit"
TARGET = 1.0


def measure(repeats, context):
    """Yields a line for each data set: scene, the 1,925 training rows of a fold, and yeast, all rows."""
    sets = ("emotions",) if context.quick else ("scene", "yeast")
    for name in sets:
        yield from attempted(QUESTION, name, _of_set(name, repeats, context))


def _of_set(name, repeats, context):
    yield line(problems.first_fold(name) if name == "scene" else problems.public(name, part="all"), repeats, context)


def line(problem, repeats, context):
    """The line of a problem; each machine's own objective is the dual one that libsvm minimises."""
    context.tell(str(problem))
    found = ladders.finalists(support_vectors.kernel(problem), tell=context.tell)
    limits = {"target": TARGET, "floor": lambda n_iter: floor(context.machine, *problem.X.shape)}
    return beside(found, QUESTION, problem, *ours.kernel(problem), repeats, context, **limits)


def floor(machine, n_samples, n_features) -> float:
    """Seconds of the kernel matrix, one half of it, and one Cholesky factorisation."""
    return machine.floor(flops=n_samples**2 * n_features + n_samples**3 / 3)
