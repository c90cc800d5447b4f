"""From the records of the comparison on public sets to its page: who wins, by how much, and whether that is chance.

A method is judged on a set by its means over the splits. Ranks, wins and tests are over the sets on which every method
shown is finished; one that ran out of time, or isn't run on so many rows, is finished there, and last.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from mlrh.experiments import _plots as plots
from mlrh.experiments._pages import COLUMNS, by_method, footer, missing, spread, values
from mlrh.experiments._protocol import N_FOLDS, PUBLIC, PUBLISHED_SPLITS, SUITES
from mlrh.experiments._public import HIGHER_IS_BETTER, JUDGED, MAX_KERNEL_ROWS, MAX_SECONDS
from mlrh.experiments._report import Figure, Report, Section, Table

SETS = SUITES["public"]
WRITTEN = {metric: (title, factor, decimals) for title, metric, factor, decimals, _ in COLUMNS}
OURS = "MLRH"  # how the names of mlrh's own methods begin
LEVEL = 0.05  # of the tests
# The smallest p of Wilcoxon's test for n sets is 2 / 2^n, which is below LEVEL from here on.
MIN_SETS = 6
TITLES = {
    "exact_match": "exact match",
    "hamming_loss": "Hamming loss",
    "f1_example": "F1 by row",
    "set_log_loss": "log-loss of the set",
}


@dataclass(frozen=True)
class Standing:
    """A method on a set: means of the measures over the splits; `reason` says why it is last there, if it is."""

    means: dict[str, float]
    reason: str
    n_splits: int
    is_finished: bool


@dataclass(frozen=True)
class Comparison:
    """A measure over the ranked sets.

    values : (n_methods, n_sets), inf or -inf where the method is last
    methods : by mean rank, the first one is the best
    """

    measure: str
    methods: list[str]
    sets: list[str]
    values: np.ndarray
    ranks: np.ndarray

    @property
    def mean_ranks(self):
        """One per method."""
        return self.ranks.mean(axis=1)


def suite_report(records, *, left=(), failures=()) -> Report:
    """The page of all records of the comparison on public sets, whichever of them are there."""
    standings = standings_of(records)
    if not standings:
        raise ValueError("There is no record of the comparison on public sets yet; run some methods first.")
    compared = [found for measure in TITLES if (found := comparison(standings, measure))]
    summary = (*_who_wins(compared), *_unfinished(standings), *missing(left, failures))
    sections = [
        *_rank_section(compared),
        Section("All figures", _protocol_words(), tuple(_figures_table(standings, m, compared) for m in TITLES)),
        *_chance_section(compared),
        *_time_section(standings, compared),
    ]
    return Report("Methods on public sets", summary, tuple(sections), footer("mlrh compare --suite public"))


# Standings and ranks


def standings_of(records) -> dict[str, dict[str, Standing]]:
    """{data set: {method: Standing}} of the records of this comparison, both in the order that they are listed in."""
    known = [r for r in records if r["protocol"] == PUBLIC and r["dataset"] in SETS and r["method"] in JUDGED]
    found: dict[str, dict[str, Standing]] = {}
    for name in SETS:
        # Of several records of one split, with different grids say, the last one stays.
        own = by_method(record for record in known if record["dataset"] == name)
        if own:
            found[name] = {method: _standing(name, own[method]) for method in JUDGED if method in own}
    return found


def n_splits(name) -> int:
    """Number of splits of a set of the suite."""
    return len(SETS[name].seeds) * (1 if name in PUBLISHED_SPLITS else N_FOLDS)


def _standing(name, records):
    reason = next(filter(None, (_reason(record) for record in records.values())), "")
    means = {}
    for measure in (*TITLES, "impossible_share", "fit_seconds"):
        own = spread(values(records, measure))
        if own is not None and not reason:
            means[measure] = own.mean
    return Standing(means, reason, len(records), bool(reason) or len(records) == n_splits(name))


def _reason(record):
    if "out_of_time" in record:
        return "out of time"
    return f"over {record['max_rows']:,} rows" if "max_rows" in record else ""


def comparison(standings, measure) -> Comparison | None:
    """The comparison by a measure; None where no set is finished by all methods, or no method has the measure."""
    shown = [method for method in JUDGED if any(method in own for own in standings.values())]
    sets = [name for name, own in standings.items() if all(m in own and own[m].is_finished for m in shown)]
    methods = [method for method in shown if sets and _has(standings, sets, method, measure)]
    if not methods:
        return None
    worst = -np.inf if HIGHER_IS_BETTER[measure] else np.inf
    table = np.array([[standings[name][m].means.get(measure, worst) for name in sets] for m in methods])
    sign = -1 if HIGHER_IS_BETTER[measure] else 1
    ranks = stats.rankdata(sign * table, axis=0)
    order = np.argsort(ranks.mean(axis=1), kind="stable")
    return Comparison(measure, [methods[place] for place in order], sets, table[order], ranks[order])


def _has(standings, sets, method, measure):
    """Whether the method has the measure on every set where it isn't last, and on one at least."""
    own = [standings[name][method] for name in sets]
    return any(measure in s.means for s in own) and all(measure in s.means or s.reason for s in own)


# One method against another, and chance


def against(compared, place, other) -> tuple[int, int, int, float, float]:
    """Wins, ties and losses of one method against another by sets, the mean gain where both have figures, and p.

    p is of Wilcoxon's signed-rank test, two-sided; 1 where all sets are ties. A method that is last on a set is behind
    by more than any other difference.
    """
    gains = (1 if HIGHER_IS_BETTER[compared.measure] else -1) * _differences(compared, place, other)
    both = gains[np.isfinite(gains)]
    largest = 1.0 + 2.0 * float(np.abs(both).max(initial=0.0))
    bounded = np.where(np.isfinite(gains), np.round(gains, 12), np.sign(gains) * largest)
    wins, losses = int((bounded > 0).sum()), int((bounded < 0).sum())
    changes = bounded[bounded != 0]
    # All signs are tried, so that p is exact with ties, too.
    signs = stats.PermutationMethod(n_resamples=2 ** len(changes))
    p = float(stats.wilcoxon(changes, method=signs).pvalue) if len(changes) > 1 else 1.0
    return wins, len(gains) - wins - losses, losses, float(both.mean()) if len(both) else np.nan, p


def _differences(compared, place, other):
    with np.errstate(invalid="ignore"):
        found = compared.values[place] - compared.values[other]
    return np.where(np.isnan(found), 0.0, found)  # both are last


def holm(p_values) -> np.ndarray:
    """p values after Holm's correction: the smallest times n, the next times n - 1, and so on, never falling."""
    p_values = np.asarray(p_values, dtype=np.float64)
    order, n = np.argsort(p_values), len(p_values)
    corrected = np.empty(n)
    corrected[order] = np.maximum.accumulate(p_values[order] * (n - np.arange(n)))
    return np.minimum(corrected, 1.0)


def _tests(compared):
    """The first method against each other one: [(other, wins, ties, losses, mean gain, corrected p), ...]."""
    found = [against(compared, 0, other) for other in range(1, len(compared.methods))]
    corrected = holm([own[-1] for own in found])
    return [(method, *own[:-1], p) for method, own, p in zip(compared.methods[1:], found, corrected, strict=True)]


# Paragraphs


def _who_wins(compared):
    """The first methods and how far they are ahead by exact match; then a paragraph for each other measure."""
    if not compared:
        yield "No set is finished by all methods yet, so that nobody is ranked."
        return
    firsts: dict[str, list[str]] = {}
    for found in compared:
        level = [m for m, rank in zip(found.methods, found.mean_ranks, strict=True) if rank == found.mean_ranks[0]]
        firsts.setdefault(_enumerated(level), []).append(TITLES[found.measure])
    winners = "; ".join(f"{methods} in {_enumerated(titles)}" for methods, titles in firsts.items())
    sets = compared[0].sets
    over = f"{len(sets)} sets" if len(sets) > 1 else f"one set, {sets[0]}"
    details = [_ahead(found) for found in compared]
    yield f"First by mean rank over {over}: {winners}. {details[0]}"
    yield from details[1:]


def _enumerated(words):
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _ahead(compared):
    """The first method and the best of the other side: of the others if the first is ours, else of ours."""
    title, first, ranks = TITLES[compared.measure], compared.methods[0], compared.mean_ranks
    words = f"{title[0].upper()}{title[1:]}: {first} has mean rank {ranks[0]:.2f} among {len(ranks)} methods"
    is_ours = first.startswith(OURS)
    rivals = [test for test in _tests(compared) if test[0].startswith(OURS) != is_ours]
    if not rivals:
        return f"{words}."
    rival, wins, ties, losses, gain, p = rivals[0]
    side = "best method of others" if is_ours else "best of mlrh"
    place, gap = compared.methods.index(rival), _behind(compared.measure, gain)
    words += f"; the {side} is {rival} with {ranks[place]:.2f}, {gap}: it loses on {wins}, ties on {ties} and wins on "
    return f"{words}{losses}. {_chance(p, len(compared.sets))}"


def _behind(measure, gain):
    _, factor, decimals = WRITTEN[measure]
    if np.isnan(gain):
        return "with no set that both have finished in time"
    unit = " points" if factor == 100 else ""
    return f"{abs(factor * gain):.{decimals}f}{unit} {'behind' if gain >= 0 else 'ahead'} on average"


def _chance(p, n_sets):
    if n_sets < MIN_SETS:
        return f"Whether that is chance can't be told from so few sets; the test needs {MIN_SETS}."
    return f"That {'is more than' if p < LEVEL else 'may be'} chance (p = {p:.3f})."


def _unfinished(standings):
    """What is missing, if anything."""
    shown = [method for method in JUDGED if any(method in own for own in standings.values())]
    never = [method for method in JUDGED if method not in shown]
    parts = []
    for name in SETS:
        own = standings.get(name, {})
        some = [f"{m} ({own[m].n_splits} of {n_splits(name)} splits)" for m in own if not own[m].is_finished]
        none = [method for method in shown if method not in own]
        if len(none) == len(shown):
            parts.append(f"{name}: all methods")
        elif none or some:
            parts.append(f"{name}: {', '.join([*none, *some])}")
    if parts:
        yield f"Not finished yet, and these sets are not ranked: {'; '.join(parts)}."
    if never:
        yield f"Not run yet on any set: {', '.join(never)}."


def _protocol_words():
    return (
        "Means over the splits of a set: five folds of five seeds on emotions, scene and yeast, of two seeds on the "
        "other small sets, and the published split of the larger ones.",
        "Every method is tuned for each measure by cross validation on the training part, over at most six settings "
        "that were fixed before. Methods of mlrh answer exact match with the most probable set, Hamming loss with the "
        "labels more likely than not, and F1 with the set of highest expected F1; the others answer as they do.",
        "Log-loss of the set counts a probability below 1e-6 as 1e-6; where a method has probabilities of single "
        "labels, they are multiplied.",
        f"A method has {MAX_SECONDS // 60} minutes of processor time for a split; out of time is last. RBF kernels of "
        f"mlrh are not run over {MAX_KERNEL_ROWS:,} rows, where support vector machines are linear.",
    )


# Tables and figures


def _figures_table(standings, measure, compared):
    """Methods by sets, in the order of the mean ranks where there are any."""
    ranked = next((found for found in compared if found.measure == measure), None)
    ranks = dict(zip(ranked.methods, ranked.mean_ranks, strict=True)) if ranked else {}
    with_figures = [m for m in JUDGED if any(m in own and measure in own[m].means for own in standings.values())]
    methods = sorted(with_figures, key=lambda method: ranks.get(method, np.inf))
    title, best = WRITTEN[measure][0], {name: _best(own, measure) for name, own in standings.items()}
    rows = []
    for method in methods:
        cells = [_cell(name, standings[name].get(method), measure, best[name]) for name in standings]
        rows.append((method, *cells, f"{ranks[method]:.2f}" if method in ranks else ""))
    notes = ["The best of a set is bold."]
    if ranked and len(ranked.sets) < len(standings):
        notes.append(f"Mean rank over {', '.join(ranked.sets)}.")
    return Table(f"{title[0].upper()}{title[1:]}", ("", *standings, "mean rank"), tuple(rows), tuple(notes))


def _best(standings, measure):
    """The best mean of a set, as it is printed, among the methods that are finished there; None where there is none."""
    means = [own.means[measure] for own in standings.values() if own.is_finished and measure in own.means]
    return _written((max if HIGHER_IS_BETTER[measure] else min)(means), measure) if means else None


def _written(mean, measure):
    _, factor, decimals = WRITTEN[measure]
    return f"{factor * mean:.{decimals}f}"


def _cell(name, standing, measure, best):
    if standing is None or measure not in standing.means:
        return "" if standing is None else standing.reason
    text = _written(standing.means[measure], measure)
    if not standing.is_finished:
        return f"{text} ({standing.n_splits} of {n_splits(name)})"
    return f"**{text}**" if text == best else text


def _rank_section(compared) -> Iterable[Section]:
    """A figure per measure: the ranks of each method on the sets."""
    figures = []
    for found in compared:
        title = TITLES[found.measure]
        rows = list(zip(found.methods, found.ranks.tolist(), strict=True))
        axis = f"rank by {title} among {len(found.methods)} methods"
        svg = plots.spread_plot(rows, title=f"ranks by {title}", axis=axis, higher_is_better=False, dots="data set")
        figures.append(Figure(svg, f"Rank of each method by {title} on each data set, and its mean."))
    if figures:
        yield Section("Who wins", (), (), tuple(figures))


def _chance_section(compared) -> Iterable[Section]:
    """The first against each other method, and where it isn't the best."""
    tables, losses = [], []
    for found in compared:
        title, factor, decimals = WRITTEN[found.measure]
        rows = [
            (other, f"{wins}/{ties}/{lost}", _signed(factor * gain, decimals), f"{p:.3f}", "yes" if p < LEVEL else "no")
            for other, wins, ties, lost, gain, p in _tests(found)
        ]
        columns = ("", "wins/ties/losses", "mean gain", "p", "more than chance")
        name = f"{title[0].upper()}{title[1:]}: {found.methods[0]} against each other"
        tables.append(Table(name, columns, tuple(rows)))
        losses.append(_losses(found))
    if tables:
        words = (
            "The first by mean rank against each other method: on how many sets it is better, level and worse; the "
            "mean gain over the sets that both finished, above 0 where the first is better; p of Wilcoxon's "
            "signed-rank test over sets, with Holm's correction for the number of methods; and whether p is below "
            f"{LEVEL:g}.",
        )
        yield Section("More than chance?", (*words, *losses), tuple(tables))


def _signed(number, decimals):
    return "" if np.isnan(number) else f"{number:+.{decimals}f}"


def _losses(compared):
    """The sets on which another method is better than the first, and by what figures."""
    title, (_, factor, decimals) = TITLES[compared.measure], WRITTEN[compared.measure]
    sign, parts = (1 if HIGHER_IS_BETTER[compared.measure] else -1), []
    for place, name in enumerate(compared.sets):
        best = int(np.argmax(sign * compared.values[:, place]))
        if sign * compared.values[best, place] > sign * compared.values[0, place]:
            own = compared.values[0, place]
            written = f"{factor * own:.{decimals}f}" if np.isfinite(own) else "out of time"
            other = f"{compared.methods[best]} {factor * compared.values[best, place]:.{decimals}f}"
            parts.append(f"{name} ({other}, {compared.methods[0]} {written})")
    n_sets = len(compared.sets)
    if not parts:
        return f"By {title} {compared.methods[0]} is the best on all of {n_sets} sets."
    return f"By {title} {compared.methods[0]} is beaten on {len(parts)} of {n_sets} sets: {'; '.join(parts)}."


def _time_section(standings, compared) -> Iterable[Section]:
    """Seconds of a fit against exact match, over the ranked sets that all methods shown there finished in time."""
    if not compared:
        return
    found = compared[0]
    points = []
    for method, own in zip(found.methods, found.values, strict=True):
        if np.isfinite(own).all():
            seconds = [max(standings[name][method].means["fit_seconds"], 1e-4) for name in found.sets]
            points.append((method, float(np.exp(np.mean(np.log(seconds)))), 100 * float(own.mean())))
    if not points:
        return
    points.sort(key=lambda point: point[1])
    axes = {"across": "seconds of a fit", "up": "exact match, %"}
    svg = plots.scatter_plot(points, title="fit time against exact match", **axes)
    rows = tuple((name, f"{seconds:.3g}", f"{exact:.2f}") for name, seconds, exact in points)
    words = (
        "Seconds of one fit at the chosen setting, one thread, among other runs (geometric mean over the ranked sets), "
        "and the mean exact match; methods that are last on a set are left out.",
    )
    table = Table("Fit time and exact match", ("", "seconds of a fit", "exact match, %"), rows)
    caption = "Seconds of a fit and mean exact match; named are the methods that no other beats in both."
    yield Section("Time", words, (table,), (Figure(svg, caption),))
