"""How long does a fit with an RBF kernel take beside one support vector machine per label? At C = 1, gamma="scale"."""

from benchmarks import ladders, problems
from benchmarks.adapters import ours, support_vectors
from benchmarks.linear_fit import turns
from benchmarks.optimum import ENOUGH
from benchmarks.table import attempted, broken, compared
from benchmarks.timing import interleaved, timed

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
    if not found:
        return broken(QUESTION, str(problem), f"no competitor reached a gap of {ENOUGH:g}")
    fit, gap_of = ours.kernel(problem)
    seconds, fitted = timed(fit)()
    gap = gap_of(fitted)
    context.tell(f"  mlrh: {seconds:.3g} s, {fitted.n_iter_} iterations, gap {gap:.1e}")
    runs = interleaved(
        {"ours": timed(fit), **{setting.name: setting.call for setting in found}}, repeats, warm_up=False
    )
    best = min(found, key=lambda setting: runs[setting.name].median)
    more = {"gap": gap, "their_gap": best.gap, "reached": gap <= ENOUGH, "note": turns(runs["ours"], repeats)}
    return compared(
        QUESTION,
        str(problem),
        runs["ours"].median,
        best.name,
        runs[best.name].median,
        target=TARGET,
        floor=floor(context.machine, *problem.X.shape),
        **more,
    )


def floor(machine, n_samples, n_features) -> float:
    """Seconds of the kernel matrix, one half of it, and one Cholesky factorisation."""
    return machine.floor(flops=n_samples**2 * n_features + n_samples**3 / 3)
