"""One of our fits beside the finalists of the competition, in turns: what the questions on fits share."""

from benchmarks.optimum import ENOUGH
from benchmarks.table import broken, compared
from benchmarks.timing import SLOW, interleaved, timed


def beside(found, question, problem, fit, gap_of, repeats, context, *, target, floor):
    """The line of a problem: fit() against the finalists `found`, whichever of them is the fastest.

    gap_of(fitted) is the relative distance to the optimum; floor(n_iter) the seconds that so many iterations need.
    """
    if not found:
        return broken(question, str(problem), f"no competitor reached a gap of {ENOUGH:g}")
    seconds, fitted = timed(fit)()
    gap = gap_of(fitted)
    context.tell(f"  mlrh: {seconds:.3g} s, {fitted.n_iter_} iterations, gap {gap:.1e}")
    calls = {"ours": timed(fit), **{setting.name: setting.call for setting in found}}
    runs = interleaved(calls, repeats, warm_up=False)
    best = min(found, key=lambda setting: runs[setting.name].median)
    return compared(
        question,
        str(problem),
        runs["ours"].median,
        best.name,
        runs[best.name].median,
        target=target,
        gap=gap,
        their_gap=best.gap,
        floor=floor(fitted.n_iter_),
        reached=gap <= ENOUGH,
        note=turns(runs["ours"], repeats),
    )


def turns(runs, repeats) -> str:
    """A few words on fewer turns than were asked for."""
    return f"{len(runs.seconds)} turns, since a run takes over {SLOW:.0f} s" if len(runs.seconds) < repeats else ""
