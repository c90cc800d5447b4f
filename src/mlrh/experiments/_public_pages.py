"""From the records of the comparison on public sets to its page: who wins, by how much, and whether that is chance.

A method is judged on a set by its means over splits that all methods shown there have; one with fewer splits so far is
left out, and one that ran out of time on any split is last there. Ranks, wins and tests are over the largest table of
sets and methods without gaps. Neither choice looks at figures.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, count, product

import numpy as np
from scipy import stats

from mlrh._words import counted, fixed, p_value
from mlrh.experiments import _plots as plots
from mlrh.experiments._methods import MEANINGS, OPEN_SETS
from mlrh.experiments._pages import COLUMNS, TITLES, by_method, footer, missing, paired, spread, values
from mlrh.experiments._protocol import (
    LARGE_GRIDS,
    N_FOLDS,
    PUBLIC,
    PUBLIC_GRIDS,
    PUBLISHED_GRIDS,
    PUBLISHED_SPLITS,
    SUITES,
)
from mlrh.experiments._public import HIGHER_IS_BETTER, JUDGED, MAX_SECONDS
from mlrh.experiments._report import Figure, Report, Section, Table, part_in_markdown
from mlrh.experiments._winners import LEVEL, OURS, Duel, Ranked, enumerated, holm, who_wins

SETS = SUITES["public"]
WRITTEN = {metric: (title, factor, decimals) for title, metric, factor, decimals, _ in COLUMNS}
MIN_SHARE = 0.75  # of the methods that must be ranked: ranks among few of them would say little of the others
PLANNED_HOURS = 16  # of processor time, for all sets and methods
MAX_NAMED = 3  # methods that are missing on a set, named in the summary
SIDES = ("mlrh", "others")  # the two kinds of marks in figures
PICTURE = "who-wins.svg"  # the first figure, beside the page
README_BEGIN, README_END = "<!-- comparison, by docs/comparison/write.py -->", "<!-- end of comparison -->"
README_LINK = (
    "The table has the best of both sides by exact match; [all methods and measures](docs/comparison/report.md)."
)
README_ROWS = {True: 2, False: 3}  # of the README's table: methods of mlrh, and of others
README_SETS = ("emotions", "scene", "yeast")
SPACES_BEGIN, SPACES_END = "<!-- label spaces, by docs/comparison/write.py -->", "<!-- end of label spaces -->"
SPACES = ("cardinality", "observed", "open")

# One part of a method against another, in words: what the first method has in place of the second.
PARTS = (
    ("a joint model in place of one per label", "MLRH (linear, open)", "BR-LR"),
    ("a kernel in place of linear scores", "MLRH (RBF, open)", "MLRH (linear, open)"),
    ("a bias for every set of training", "MLRH (RBF, open)", "MLRH (RBF, cardinality)"),
    ("other sets possible, too", "MLRH (RBF, open)", "MLRH (RBF, observed)"),
    ("boosted trees in place of a kernel", "MLRH (boosted)", "MLRH (RBF, open)"),
    ("boosted trees under our likelihood in place of BOOMER", "MLRH (boosted)", "BOOMER"),
    ("a pool in place of the kernel alone", "MLRH (pooled)", "MLRH (RBF, open)"),
    ("a pool in place of boosted trees alone", "MLRH (pooled)", "MLRH (boosted)"),
    ("a pool in place of extra trees over label sets alone", "MLRH (pooled)", "LP-ET"),
    ("an automatic choice in place of that pool", "MLRH (automatic)", "MLRH (pooled)"),
    ("label sets as the classes of a forest", "LP-RF", "RF"),
)
_SET = "one model of the whole label set"
_PER_SET, _CHAIN = "every label set of training as a class", "a chain, each classifier sees the labels before"
NAMES = {
    **MEANINGS,
    "MLRH (linear, cardinality)": f"{_SET}, linear scores, all sets of the sizes of training",
    "MLRH (linear, observed)": f"{_SET}, linear scores, the sets that training shows",
    "MLRH (linear, open)": f"{_SET}, linear scores, {OPEN_SETS}",
    "MLRH (RBF, cardinality)": f"{_SET}, RBF kernel, all sets of the sizes of training",
    "MLRH (RBF, observed)": f"{_SET}, RBF kernel, the sets that training shows",
    "MLRH (RBF, open)": f"{_SET}, RBF kernel, {OPEN_SETS}",
    "MLRH (boosted)": f"{_SET}, boosted trees, {OPEN_SETS}",
    "MLRH (pooled)": "a mixture of MLRH (RBF, open), or over 5,000 rows MLRH (linear, open), of MLRH (boosted) and, "
    "where training shows up to 1,000 label sets, of LP-ET",
    "MLRH (automatic)": "MLRHAuto: kind of scores, label space, settings and a pool, chosen by held-out rows",
    "BR-SVM": "one support vector machine per label",
    "CC-SVM": f"{_CHAIN}: support vector machines",
    "LP-SVM": f"{_PER_SET}: support vector machines",
    "RF": "random forest of all labels at once",
    "LP-ET": f"{_PER_SET}: extremely randomised trees",
    "Extra trees": "extremely randomised trees of all labels at once",
    "BOOMER": "boosted rules (mlrl-boomer), with a loss of single labels or of whole sets",
}


@dataclass(frozen=True)
class Standing:
    """A method on a set: its records of the splits that count by (seed, fold), and the means of the measures.

    `reason` says why it is last there, if it is; then it has no means.
    """

    records: dict[tuple[int, int], dict]
    means: dict[str, float]
    reason: str


@dataclass(frozen=True)
class OnSet:
    """The methods on a set, and on how many splits they are compared; none where they have no split in common.

    Methods that have some records, but not of all these splits, are unfinished: they have no standing.
    """

    name: str
    n_splits: int
    methods: dict[str, Standing]
    unfinished: tuple[str, ...]

    @property
    def n_planned(self) -> int:
        """The number of splits when all has run."""
        return n_splits(self.name)


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
    found = results_of(records)
    if not found:
        raise ValueError("There is no record of the comparison on public sets yet; run some methods first.")
    compared = comparisons(found)
    wins = (*_who_wins(found, compared), *_lost_sets(compared), *_lost_by_first(compared))
    summary = (*wins, *_coverage(found), *_out_of_time(found), *missing(left, failures))
    tables = [_figures_table(found, measure, compared) for measure in TITLES]
    ranks = [_ranks_table(compared)] if compared else []
    words = (*_protocol_words(), *_cost_words(_last_records(records)))
    sections = [
        *_winner_section(found, compared),
        Section("All figures", words, (*ranks, *(table for table in tables if table.rows))),
        *_rank_section(compared),
        *_chance_section(found, compared),
        *_losses_section(found, compared),
        *_time_section(found, compared),
        _names_section(found),
    ]
    return Report("Methods on public sets", summary, tuple(sections), footer("mlrh compare --suite public"))


def in_readme(readme, records) -> str:
    """The README with its part on this comparison as the records have it: nothing where no method of others is ranked.

    The part lies between the lines README_BEGIN and README_END.
    """
    return _with_part(readme, "README", (README_BEGIN, README_END), _readme_part(results_of(records)))


def in_how_to_choose(page, records) -> str:
    """The page with its tables of the three label spaces as the records have them, between SPACES_BEGIN and _END."""
    tables = "\n".join([_spaces_table(records, "linear"), _spaces_table(records, "RBF")])
    return _with_part(page, "page", (SPACES_BEGIN, SPACES_END), tables)


def _with_part(page, name, lines, part):
    """The page with a part between two lines; a ValueError where these are missing."""
    before, begin, rest = page.partition(lines[0])
    _, end, after = rest.partition(lines[1])
    if not end:
        raise ValueError(f"The {name} lacks the lines {lines[0]!r} and {lines[1]!r}; put them where the table goes.")
    return f"{before}{begin}\n{part}{end}{after}"


def _spaces_table(records, scores):
    """The label spaces with one kind of scores on every set that all three have a split of, by these splits."""
    methods = [f"MLRH ({scores}, {space})" for space in SPACES]
    found = results_of([record for record in records if record["method"] in methods])
    measures = [*TITLES, *(["impossible_share"] if scores == "linear" else [])]  # the same with any scores
    titles = ["exact match, %", *list(TITLES.values())[1:], "held impossible, %"][: len(measures)]
    rows = []
    for name, own in found.items():
        if own.n_splits and len(own.methods) == len(methods):
            n_seeds = own.n_splits * len(SETS[name].seeds) // n_splits(name)
            cells = [
                " / ".join(_short(own.methods[m].means[measure], measure) for m in methods) for measure in measures
            ]
            rows.append((f"{name} ({n_seeds} seeds)" if n_seeds > 1 else name, *cells))
    return part_in_markdown((), Table("", (scores, *titles), tuple(rows)))


def _short(value, measure):
    """A figure of about three digits: shares of rows in percent, Hamming loss and F1 without a 0 before the point."""
    if measure in ("exact_match", "impossible_share"):
        return f"{100 * value:.1f}".removesuffix(".0") if value in (0, 1) else f"{100 * value:.1f}"
    if measure == "set_log_loss":
        return f"{value:.2f}" if value < 10 else f"{value:.1f}"
    return f"{value:.3f}".lstrip("0")


def _readme_part(found):
    compared = comparisons(found)
    if not compared or all(method.startswith(OURS) for method in compared[0].methods):
        return ""
    sets = [found[name] for name in README_SETS if name in compared[0].sets]
    rows = [
        (*row, *(_cell(own.methods[row[0]], "exact_match", _best(own, "exact_match")) for own in sets))
        for row in _ranks_table(compared, README_ROWS).rows
    ]
    columns = (
        "mean rank by",
        *(TITLES[own.measure] for own in compared),
        *(f"{own.name}, exact match %" for own in sets),
    )
    first = next(iter(who_wins([_ranked(found, own, briefly=True) for own in compared], **_over(compared))))
    words = first, " ".join([*_lost_sets(compared), _finished_words(found)])
    return f"## How good it is\n\n{part_in_markdown(words, Table('', columns, tuple(rows)))}\n{README_LINK}\n\n"


def _finished_words(found):
    """One sentence on how far the comparison is, for the README."""
    sets, _ = ranked_block(found)
    is_done = sum(found[name].n_splits == found[name].n_planned for name in sets) == len(SETS)
    so_far = "" if is_done else f"; so far {_sets_words(found, sets)}"
    return (
        "All are tuned by nested cross validation on the same splits, with grids that were fixed before, but for three "
        f"of ours that were changed when the others were known{so_far}."
    )


# Standings and ranks


def results_of(records) -> dict[str, OnSet]:
    """{data set: OnSet} of the records of this comparison, sets and methods in the order that they are listed in."""
    return {name: _on_set(name, methods) for name, methods in _last_records(records).items()}


def _last_records(records):
    """{data set: {method: {(seed, fold): record}}}, in the order of both lists, a method on a set by its last plan."""
    known = [r for r in records if r["protocol"] == PUBLIC and r["dataset"] in SETS and r["method"] in JUDGED]
    plans = {(record["dataset"], record["method"]): record["plan"] for record in known}
    # Means are never of splits under several plans, such as before and after a change of the grid.
    known = [record for record in known if record["plan"] == plans[record["dataset"], record["method"]]]
    found = {name: by_method(record for record in known if record["dataset"] == name) for name in SETS}
    return {name: {m: own[m] for m in JUDGED if m in own} for name, own in found.items() if own}


def n_splits(name) -> int:
    """Number of splits of a set of the suite."""
    return len(SETS[name].seeds) * (1 if name in PUBLISHED_SPLITS else N_FOLDS)


def _on_set(name, methods):
    last = {m: any("out_of_time" in record for record in own.values()) for m, own in methods.items()}
    splits = {method: frozenset(own) for method, own in methods.items() if not last[method]}
    shared = _splits_that_count(splits)
    standings = {}
    for method, own in methods.items():
        if not last[method] and not splits[method] >= shared:
            continue
        counted = {} if last[method] else {split: own[split] for split in sorted(shared)}
        spreads = {m: spread(values(counted, m)) for m in (*TITLES, "impossible_share", "fit_seconds")}
        means = {measure: found.mean for measure, found in spreads.items() if found is not None}
        standings[method] = Standing(counted, means, "out of time" if last[method] else "")
    return OnSet(name, len(shared), standings, tuple(method for method in methods if method not in standings))


def _splits_that_count(splits):
    """The splits with the most figures: as many as can be that MIN_SHARE of the methods all have, or what all share.

    splits are {method: its splits}. So a method that has just begun doesn't throw the splits of all others away.
    """
    best, most = frozenset.intersection(*splits.values()) if splits else frozenset(), 0
    for own in (best, *splits.values()):
        n_methods = sum(other >= own for other in splits.values())
        if n_methods >= MIN_SHARE * len(splits) and n_methods * len(own) > most:
            best, most = own, n_methods * len(own)
    return best


def ranked_block(found) -> tuple[list[str], list[str]]:
    """The sets and the methods that are ranked: the largest table without gaps that has MIN_SHARE of all methods."""
    shown = _shown(found)
    usable = [name for name, own in found.items() if own.n_splits]
    best: tuple[list[str], list[str]] = ([], [])
    for n_sets in range(len(usable), 0, -1):
        for sets in combinations(usable, n_sets):
            methods = [method for method in shown if all(method in found[name].methods for name in sets)]
            is_larger = n_sets * len(methods) > len(best[0]) * len(best[1])
            if is_larger and len(methods) >= MIN_SHARE * len(shown):
                best = (list(sets), methods)
    return best


def _shown(found):
    """The methods that have any record."""
    begun = {method for own in found.values() for method in (*own.methods, *own.unfinished)}
    return [method for method in JUDGED if method in begun]


def comparisons(found) -> list[Comparison]:
    """The comparison by each measure that ranked methods have."""
    return [own for measure in TITLES if (own := comparison(found, measure))]


def comparison(found, measure) -> Comparison | None:
    """The comparison by a measure; None where nothing is ranked, or no ranked method has the measure."""
    sets, methods = ranked_block(found)
    methods = [method for method in methods if _has(found, sets, method, measure)]
    if not methods:
        return None
    worst = -np.inf if HIGHER_IS_BETTER[measure] else np.inf
    table = np.array([[found[name].methods[m].means.get(measure, worst) for name in sets] for m in methods])
    ranks = stats.rankdata(-_sign(measure) * table, axis=0)
    order = np.argsort(ranks.mean(axis=1), kind="stable")
    return Comparison(measure, [methods[place] for place in order], sets, table[order], ranks[order])


def _has(found, sets, method, measure):
    """Whether the method has the measure on every set where it isn't last, and on one at least."""
    own = [found[name].methods[method] for name in sets]
    return any(measure in s.means for s in own) and all(measure in s.means or s.reason for s in own)


def _sign(measure):
    return 1 if HIGHER_IS_BETTER[measure] else -1


# One method against another, and chance


def against(compared, place, other) -> tuple[int, int, int, float, float]:
    """Wins, ties and losses of one method against another by sets, the mean gain where both have figures, and p.

    p is of Wilcoxon's signed-rank test, two-sided; 1 where all sets are ties. A method that is last on a set is behind
    by more than any other difference.
    """
    gains = _sign(compared.measure) * _differences(compared, place, other)
    both = gains[np.isfinite(gains)]
    largest = 1.0 + 2.0 * float(np.abs(both).max(initial=0.0))
    bounded = np.where(np.isfinite(gains), np.round(gains, 12), np.sign(gains) * largest)
    wins, losses = int((bounded > 0).sum()), int((bounded < 0).sum())
    p = signed_rank_p(bounded[bounded != 0])
    return wins, len(gains) - wins - losses, losses, float(both.mean()) if len(both) else np.nan, p


def signed_rank_p(changes) -> float:
    """p of Wilcoxon's signed-rank test, two-sided, of differences (n,) that are not 0; 1 where there are none.

    All 2^n signs are tried, so that p is exact with ties, too. (SciPy's permutations give the same, much more slowly.)
    """
    ranks = stats.rankdata(np.abs(changes))
    sums = np.array(list(product((0, 1), repeat=len(changes)))) @ ranks
    found = ranks[changes > 0].sum()
    return float(min(1.0, 2 * min((sums >= found - 1e-9).mean(), (sums <= found + 1e-9).mean())))


def _differences(compared, place, other):
    with np.errstate(invalid="ignore"):
        found = compared.values[place] - compared.values[other]
    return np.where(np.isnan(found), 0.0, found)  # both are last


def _tests(compared):
    """The first method against each other one."""
    found = [against(compared, 0, other) for other in range(1, len(compared.methods))]
    corrected = holm([own[-1] for own in found]).tolist()
    return [Duel(method, *own[:-1], p) for method, own, p in zip(compared.methods[1:], found, corrected, strict=True)]


def sets_needed(n_others) -> int:
    """From how many sets on p can be below LEVEL after Holm's correction for so many other methods.

    The smallest p of Wilcoxon's test for n sets is 2 / 2^n, and the correction multiplies it by their number.
    """
    return next(n for n in count(1) if n_others * 2.0 ** (1 - n) < LEVEL)


def on_single_sets(found, compared, one, other) -> tuple[int, int, int]:
    """On how many sets one method is ahead of another by more than chance, on how many behind, and how many tell.

    By the corrected t-test over the splits of a set, with Holm's correction for the number of sets.
    """
    tests = [_paired(found[name], one, other, compared.measure) for name in compared.sets]
    tests = [test for test in tests if test is not None]
    is_sure = holm([test.p for test in tests]) < LEVEL
    is_ahead = np.array([_sign(compared.measure) * test.mean > 0 for test in tests], dtype=bool)
    return int((is_sure & is_ahead).sum()), int((is_sure & ~is_ahead).sum()), len(tests)


def _paired(own, one, other, measure):
    """The difference of two methods on a set over its splits; None where these are fewer than two."""
    return paired(own.methods[one].records, own.methods[other].records, measure)


# Paragraphs


def _who_wins(found, compared) -> Iterator[str]:
    """The first methods and how far they are ahead by exact match; then a paragraph for each other measure."""
    if not compared:
        yield "No set has enough of the methods on a common split yet, so that nobody is ranked."
        return
    yield from who_wins([_ranked(found, own) for own in compared], **_over(compared))


def _over(compared):
    """Options of `who_wins`."""
    sets = compared[0].sets
    over = f"{len(sets)} public sets" if len(sets) > 1 else f"one public set, {sets[0]}"
    return {"over": f"by mean rank over {over}", "always_a_rival": False}


def _ranked(found, compared, *, briefly=False):
    """The Ranked of a measure; briefly: without sentences on single sets."""
    _, factor, decimals = WRITTEN[compared.measure]
    ranks, needed = compared.mean_ranks, sets_needed(len(compared.methods) - 1)
    n_telling = int((compared.values != compared.values[0]).any(axis=0).sum())  # on the others all methods are level
    too_few = (
        f"Whether that is chance can't be told from {counted(n_telling, 'set')} on which methods differ: beside "
        f"{counted(len(ranks) - 1, 'other method')} the test needs {needed}."
    )
    return Ranked(
        TITLES[compared.measure],
        compared.methods,
        [f"{rank:.2f}" for rank in ranks],
        int((ranks == ranks[0]).sum()),
        "mean ranks",
        _tests(compared),
        factor,
        decimals,
        unit="set",
        test="Wilcoxon's test",
        too_few=too_few if n_telling < needed else "",
        beside={} if briefly else {m: _single_words(found, compared, m) for m in compared.methods[1:]},
    )


def _single_words(found, compared, other):
    """A sentence on the first method and another one on single sets."""
    ahead, behind, n_sets = on_single_sets(found, compared, compared.methods[0], other)
    if not n_sets:
        return ""
    if n_sets == 1:
        if ahead or behind:
            return f"Over the splits of the set it is {'ahead' if ahead else 'behind'} by more than chance."
        return "Over the splits of the set the difference may be chance."
    if not (ahead or behind):
        return "On each single set, over its splits, the difference may be chance."
    parts = [f"{where} by more than chance on {n}" for where, n in (("ahead", ahead), ("behind", behind)) if n]
    return f"On single sets, over their splits, it is {enumerated(parts)} of {n_sets}."


def _lost_sets(compared) -> Iterator[str]:
    """One sentence on the sets on which a method of others beats every method of mlrh."""
    both = _of_both_sides(compared)
    parts = _lost_words({own.measure: [(own.methods[w], name) for name, w in _lost_to(own)] for own in both})
    if parts:
        yield f"Where a method of others beats every one of mlrh: {parts}."
    elif both:
        yield "On no ranked set does a method of others beat every one of mlrh."


def _lost_by_first(compared) -> Iterator[str]:
    """One sentence on the further sets on which a method of others beats the first method, where that is of mlrh."""
    lost: dict[str, list] = {}
    for own in (own for own in _of_both_sides(compared) if own.methods[0].startswith(OURS)):
        of_all = {name for name, _ in _lost_to(own)}
        for place, name in enumerate(own.sets):
            _, other = _sides(own, place)
            gain = _sign(own.measure) * _differences(own, other, 0)[place]
            if gain > 1e-12 and name not in of_all:
                lost.setdefault(own.measure, []).append((own.methods[other], name))
    if parts := _lost_words(lost):
        yield f"Where others beat the first method, but not the best of mlrh: {parts}."


def _lost_words(lost):
    """In which measure on which sets by whom, of {measure: [(winner, set)]}."""
    parts = []
    for measure, pairs in lost.items():
        by_winner = [f"{enumerated(names)} ({winner})" for winner, names in _grouped(pairs)]
        if by_winner:
            parts.append(f"in {TITLES[measure]} on {enumerated(by_winner)}")
    return "; ".join(parts)


def _of_both_sides(compared):
    """The comparisons that have methods of mlrh and of others."""
    return [own for own in compared if len({method.startswith(OURS) for method in own.methods}) == 2]


def _lost_to(compared):
    """[(set, place of the best method of others)] of the sets that it wins."""
    lost = []
    for place, name in enumerate(compared.sets):
        ours, others = _sides(compared, place)
        own = _sign(compared.measure) * compared.values[:, place]
        if own[others] - own[ours] > 1e-12:
            lost.append((name, others))
    return lost


def _coverage(found) -> Iterator[str]:
    """What is ranked, and one paragraph on what is not."""
    sets, methods = ranked_block(found)
    if sets:
        yield _ranked_words(found)
    shown, parts = _shown(found), []
    for words, names in _grouped((_lack(found[name], shown), name) for name in found if name not in sets):
        parts.append(f"{enumerated(names)} ({words})")
    never = [name for name in SETS if name not in found]
    parts += [f"{enumerated(never)} (not run)"] if never else []
    unranked = [method for method in shown if sets and method not in methods]
    for words, names in _grouped((enumerated([n for n in sets if m not in found[n].methods]), m) for m in unranked):
        parts.append(f"{enumerated(names)} (not finished on {words})")
    waiting = [method for method in JUDGED if method not in shown]
    if waiting:
        many = f"{len(waiting)} of {len(JUDGED)} methods" if len(waiting) > MAX_NAMED else enumerated(waiting)
        parts.append(f"{many} (not run on any set)")
    if parts:
        yield f"Not finished, and not ranked: {'; '.join(parts)}. Empty cells of the tables are what is missing."


def _ranked_words(found):
    """How many methods are ranked, and over which splits of which sets."""
    sets, methods = ranked_block(found)
    return f"Ranked are {counted(len(methods), 'method')}: {_sets_words(found, sets)}."


def _sets_words(found, sets):
    parts = _grouped((_splits_words(found[name]), name) for name in sets)
    return ", ".join(f"{enumerated(names)} by {words}" for words, names in parts)


def _splits_words(own):
    if own.n_splits == own.n_planned:
        return "the published split" if own.name in PUBLISHED_SPLITS else f"all {own.n_planned} splits"
    return f"{own.n_splits} of {own.n_planned} splits"


def _lack(own, shown):
    """Why a set isn't ranked."""
    lacking = [method for method in shown if method not in own.methods]
    if lacking:
        few = len(lacking) <= MAX_NAMED
        return f"without {enumerated(lacking)}" if few else f"{len(own.methods)} of {len(shown)} methods"
    return "no split that all methods have"


def _grouped(pairs):
    """[(words, names)] of pairs (words, name), in the order that words first occur."""
    found = defaultdict(list)
    for words, name in pairs:
        found[words].append(name)
    return found.items()


def _out_of_time(found) -> Iterator[str]:
    """Which methods were out of time, and where."""
    last = ((m, name) for name, own in found.items() for m, s in own.methods.items() if s.reason)
    parts = [f"{method} on {enumerated(names)}" for method, names in _grouped(last)]
    if parts:
        yield (
            f"Out of time ({MAX_SECONDS // 60} minutes on a split), and so last there: {'; '.join(parts)}. Such a "
            "method isn't run on the set's other splits."
        )


def _protocol_words():
    return (
        "Means over the splits of a set that all methods shown there have: five folds of five seeds on emotions, scene "
        "and yeast, of two seeds on the other small sets, and the published split of the larger ones. Where fewer are "
        "shared so far, the head of the column says so.",
        "Every method is tuned for each measure by cross validation on the training part, over at most six settings "
        f"that were fixed before. MLRH (automatic) instead has {_seconds(PUBLIC_GRIDS)} seconds by the clock "
        f"({_seconds(PUBLISHED_GRIDS)} on the sets with one split) for one search by log-loss, and CCnet chooses a "
        "penalty for each label. When the other methods were known, the settings of MLRH (boosted) and MLRH (pooled) "
        "and what MLRH (automatic) tries were changed, and LP-ET was added (reproduce.md says how). Methods of mlrh "
        "answer exact match with the most probable set, Hamming loss with the labels more likely than not, and F1 with "
        "the set of highest expected F1; the others answer as they do.",
        "Log-loss of the set counts a probability below 1e-6 as 1e-6; where a method has probabilities of single "
        "labels, they are multiplied.",
        f"A method has {MAX_SECONDS // 60} minutes of processor time for a split; out of time is last. Over "
        f"5,000 rows support vector machines are linear, RBF kernels of mlrh are approximated (Nystroem, "
        f"{LARGE_GRIDS['rbf']['n_components']:,} components), and pools have a linear member in place of a kernel one.",
    )


def _seconds(grids):
    """The time budget of MLRHAuto."""
    (seconds,) = grids["automatic"]["time_budget"]
    return f"{seconds:g}"


def _cost_words(found) -> Iterator[str]:
    """What the splits on record took; by the clock, up to the limit, where processor time is not on record."""
    run = [record for methods in found.values() for own in methods.values() for record in own.values()]
    run = [record for record in run if "not_run_after" not in record]
    used = [record["processor_seconds"] for record in run if "processor_seconds" in record]
    timed = [record["task_seconds"] for record in run if "task_seconds" in record and "processor_seconds" not in record]
    parts = [f"{sum(used) / 3600:.1f} hours of processor time ({len(used):,} tasks)"] if used else []
    if timed:
        hours = sum(min(seconds, MAX_SECONDS) for seconds in timed) / 3600
        parts.append(f"about {hours:.1f} more ({len(timed):,} tasks by the clock, on cores that had other work, too)")
    if parts:
        yield f"The splits on record took {' and '.join(parts)}; {PLANNED_HOURS} hours were planned for all."


# Tables and figures


def _figures_table(found, measure, compared):
    """Methods by sets, in the order of the mean ranks where there are any."""
    ranked = next((own for own in compared if own.measure == measure), None)
    ranks = dict(zip(ranked.methods, ranked.mean_ranks, strict=True)) if ranked else {}
    with_figures = [
        m for m in JUDGED if any(m in own.methods and measure in own.methods[m].means for own in found.values())
    ]
    methods = sorted(with_figures, key=lambda method: ranks.get(method, np.inf))
    best = {name: _best(own, measure) for name, own in found.items()}
    rows = []
    for method in methods:
        cells = [_cell(own.methods.get(method), measure, best[name]) for name, own in found.items()]
        rows.append((method, *cells, f"{ranks[method]:.2f}" if method in ranks else ""))
    notes = ["The best of a set is bold."]
    if ranked and len(ranked.sets) < len(found):
        notes.append(f"Mean rank over {enumerated(ranked.sets)}.")
    columns = ("", *(_head(own) for own in found.values()), "mean rank")
    return Table(_title(measure), columns, tuple(rows), tuple(notes))


def _title(measure):
    return _capital(WRITTEN[measure][0])


def _head(own):
    """The head of a set's column."""
    return own.name if own.n_splits == own.n_planned else f"{own.name}\n{own.n_splits} of {own.n_planned}"


def _best(own, measure):
    """The best mean of a set, as it is printed; None where there is none, or where all are printed the same."""
    means = [standing.means[measure] for standing in own.methods.values() if measure in standing.means]
    if len(means) > 1 and len({_written(mean, measure) for mean in means}) == 1:
        return None
    return _written((max if HIGHER_IS_BETTER[measure] else min)(means), measure) if means else None


def _written(mean, measure):
    _, factor, decimals = WRITTEN[measure]
    return f"{factor * mean:.{decimals}f}" if np.isfinite(mean) else "out of time"


def _cell(standing, measure, best):
    if standing is None or measure not in standing.means:
        return "" if standing is None else standing.reason
    text = _written(standing.means[measure], measure)
    return f"**{text}**" if text == best else text


def _winner_section(found, compared) -> Iterable[Section]:
    """How far each method is behind the first by exact match, and how long its fits take."""
    if compared:
        yield Section("Who wins", (), (), (_gaps_figure(compared[0]), *_time_figure(_times(found, compared[0]))))


def _rank_section(compared) -> Iterable[Section]:
    """A figure of ranks on the sets for each measure."""
    figures = []
    for found in compared:
        title = TITLES[found.measure]
        rows = list(zip(found.methods, found.ranks.tolist(), strict=True))
        axis = f"rank by {title} among {len(found.methods)} methods"
        options = {"higher_is_better": False, "dots": SIDES, "decimals": 2}
        svg = plots.spread_plot(rows, title=f"Ranks by {title}", axis=axis, kind=_kind, **options)
        figures.append(Figure(svg, f"Rank of each method by {title}: a mark for each data set, and the mean."))
    if figures:
        yield Section("Ranks", (), (), tuple(figures))


def _kind(method):
    """The place of a method's side in SIDES."""
    return 0 if method.startswith(OURS) else 1


def _gaps_figure(compared):
    """How far each method is behind the first on each set that both finished."""
    _, factor, decimals = WRITTEN[compared.measure]
    first = compared.methods[0]
    stars = {duel.other: " *" for duel in _tests(compared) if duel.is_sure}
    rows = []
    for place, method in enumerate(compared.methods):
        gaps = _sign(compared.measure) * factor * _differences(compared, place, 0)
        rows.append((f"{method}{stars.get(method, '')}", gaps[np.isfinite(gaps)].tolist()))
    axis = f"{TITLES[compared.measure]}{', points' if factor == 100 else ''}, beside {first}"
    options = {"title": f"How far each method is behind {first}", "axis": axis, "decimals": decimals}
    svg = plots.spread_plot([row for row in rows if row[1]], kind=_kind, dots=SIDES, **options)
    caption = (
        f"{_capital(TITLES[compared.measure])} of each method minus that of {first}, the first by mean rank: a mark "
        "for each data set, and the mean. Methods are in the order of their mean ranks."
    )
    if stars:
        caption += f" A star: {first} is ahead by more than chance (Wilcoxon's test over sets, Holm's correction)."
    return Figure(svg, caption, file=PICTURE)


def _ranks_table(compared, n_rows=None):
    """Mean ranks of the methods by each measure, in the order of the first; of each side at most n_rows."""
    ranks = {c.measure: dict(zip(c.methods, c.mean_ranks.tolist(), strict=True)) for c in compared}
    best = {measure: f"{min(own.values()):.2f}" for measure, own in ranks.items()}
    rows, taken = [], {True: 0, False: 0}
    for method in compared[0].methods:
        is_ours = method.startswith(OURS)
        taken[is_ours] += 1
        if n_rows is None or taken[is_ours] <= n_rows[is_ours]:
            written = {measure: f"{own[method]:.2f}" if method in own else "" for measure, own in ranks.items()}
            cells = (f"**{text}**" if text == best[measure] else text for measure, text in written.items())
            rows.append((method, *cells))
    columns = ("mean rank by", *(TITLES[own.measure] for own in compared))
    return Table("Mean ranks", columns, tuple(rows), ("1 is the best; the best of a measure is bold.",))


def _chance_section(found, compared) -> Iterable[Section]:
    """The first against each other method."""
    tables = []
    for own in compared:
        _, factor, decimals = WRITTEN[own.measure]
        rows = []
        for place, (other, wins, ties, lost, gain, p) in enumerate(_tests(own), start=1):
            ahead, behind, _ = on_single_sets(found, own, own.methods[0], other)
            plain = against(own, 0, place)[-1]
            cells = (f"{wins}/{ties}/{lost}", _signed(factor * gain, decimals), p_value(plain), p_value(p))
            rows.append((other, *cells, "yes" if p < LEVEL else "no", f"{ahead}/{behind}"))
        columns = (
            *("", "wins/ties/losses", "mean gain", "p", "p, corrected", "more than chance"),
            "single sets: ahead/behind",
        )
        tables.append(Table(f"{_title(own.measure)}: {own.methods[0]} against each other", columns, tuple(rows)))
    tables = [table for table in tables if table.rows]
    if tables:
        words = (
            "The first by mean rank against each other method: on how many sets it is better, level and worse; the "
            "mean gain over the sets that both finished, above 0 where the first is better; p of Wilcoxon's "
            "signed-rank test over sets, plain and with Holm's correction for the number of methods; and whether the "
            f"corrected p is below {LEVEL:g}.",
            "On a set on which all methods are level there is nothing to tell. Single sets: on how many the first is "
            "ahead and behind by more than chance over the splits of that set, by the corrected t-test, with Holm's "
            "correction for the number of sets. A set with one split can't tell.",
        )
        yield Section("More than chance?", words, tuple(tables))


def _signed(number, decimals):
    return "" if np.isnan(number) else fixed(number, decimals, signed=True)


def _losses_section(found, compared) -> Iterable[Section]:
    """On each set the best of mlrh beside the best of others, and what each part of a method brings."""
    both = _of_both_sides(compared)
    tables, words = [_sides_table(found, own) for own in both], list(_losses(both))
    if tables:
        words.append(
            "The best of each side is picked by the figures shown, which makes both look slightly better than they "
            "are; p is of the corrected t-test over the splits of the set, and says which gaps are more than noise."
        )
    parts = _parts_table(found)
    if parts.rows:
        tables.append(parts)
        words += _lessons(found)
    if tables:
        yield Section("Where mlrh wins and loses, and what that teaches", tuple(words), tuple(tables))


def _sides(compared, place):
    """The places of the best method of mlrh and of the best one of others on a set."""
    order = np.argsort(-_sign(compared.measure) * compared.values[:, place], kind="stable").tolist()
    return [next(p for p in order if compared.methods[p].startswith(OURS) == is_ours) for is_ours in (True, False)]


def _sides_table(found, compared):
    _, factor, decimals = WRITTEN[compared.measure]
    rows = []
    for place, name in enumerate(compared.sets):
        ours, others = _sides(compared, place)
        means, methods = compared.values[[ours, others], place], [compared.methods[p] for p in (ours, others)]
        cells = [f"{method} {_written(mean, compared.measure)}" for method, mean in zip(methods, means, strict=True)]
        gain = _sign(compared.measure) * (means[0] - means[1])
        test = _paired(found[name], methods[0], methods[1], compared.measure)
        result = "level" if round(gain, 12) == 0 else "won" if gain > 0 else "lost"
        written = _signed(factor * gain, decimals) if np.isfinite(gain) else ""
        rows.append((name, result, *cells, written, "" if test is None else p_value(test.p)))
    columns = ("", "mlrh has", "best of mlrh", "best of others", "gain", "p")
    return Table(f"{_title(compared.measure)}, set by set", columns, tuple(rows), words=(1, 2, 3))


def _losses(compared) -> Iterator[str]:
    """Sentences on the sets on which a method of others beats every method of mlrh, and on where none does."""
    won = []
    for own in compared:
        lost = [_lost(own, name, winner) for name, winner in _lost_to(own)]
        if lost:
            n_sets = counted(len(own.sets), "set")
            yield f"In {TITLES[own.measure]} mlrh loses {len(lost)} of {n_sets}: {'; '.join(lost)}."
        else:
            won.append(TITLES[own.measure])
    if won:
        yield f"In {enumerated(won)} no ranked set is lost to a method of others."


def _lost(compared, name, winner):
    """A set, and the figures of the method of others that wins it and of the best one of mlrh."""
    place = compared.sets.index(name)
    both = winner, _sides(compared, place)[0]
    written = [f"{compared.methods[p]} {_written(compared.values[p, place], compared.measure)}" for p in both]
    return f"{name} ({', '.join(written)})"


def _parts_table(found):
    """What one part of a method brings, over all sets that both methods have."""
    rows = []
    for words, one, other in PARTS:
        both = {measure: _gains(found, one, other, measure) for measure in TITLES}
        if len(both["exact_match"]):
            rows.append((f"{words} ({one}, {other})", *(_brought(measure, gains) for measure, gains in both.items())))
    notes = (
        "Wins/ties/losses by sets, ranked or not, of the first in brackets against the second; and its mean gain.",
    )
    return Table("What each part brings", ("", *TITLES.values()), tuple(rows), notes)


def _gains(found, one, other, measure):
    """Differences on the sets where both have figures, above 0 where the first is better."""
    pairs = [
        (own.methods[one].means, own.methods[other].means)
        for own in found.values()
        if {one, other} <= own.methods.keys()
    ]
    differences = [_sign(measure) * (a[measure] - b[measure]) for a, b in pairs if measure in a and measure in b]
    return np.round(np.array(differences, dtype=np.float64), 12)


def _brought(measure, gains):
    if not len(gains):
        return ""
    _, factor, decimals = WRITTEN[measure]
    counts = (gains > 0).sum(), (gains == 0).sum(), (gains < 0).sum()
    return f"{'/'.join(map(str, counts))}, {_signed(factor * gains.mean(), decimals)}"


def _lessons(found) -> Iterator[str]:
    """Which parts help by exact match, and which harm."""
    kinds = defaultdict(list)
    for words, one, other in PARTS:
        gains = _gains(found, one, other, "exact_match")
        if len(gains):
            kinds[int(np.sign((gains > 0).sum() - (gains < 0).sum()))].append(words)
    verbs = {1: "help on more sets than they harm", 0: "help on as many sets as they harm", -1: "harm on more sets"}
    for kind, verb in verbs.items():
        if kinds[kind]:
            yield f"By exact match (last table) these {verb}: {'; '.join(kinds[kind])}."


def _names_section(found):
    rows = tuple((method, NAMES[method]) for method in _shown(found))
    return Section("What the names mean", (), (Table("", ("method", "what it is"), rows, words=(1,)),))


def _capital(words):
    return f"{words[0].upper()}{words[1:]}"


def _time_section(found, compared) -> Iterable[Section]:
    """Seconds of a fit beside exact match; the figure is at the top of the page."""
    points = _times(found, compared[0]) if compared else []
    if points:
        words = (
            "Seconds of one fit at the chosen setting, one thread, among other runs (geometric mean over the ranked "
            "sets), and the mean exact match; methods that are last on a set are left out.",
        )
        rows = tuple((name, f"{seconds:.3g}", f"{exact:.2f}") for name, seconds, exact in points)
        yield Section("Time", words, (Table("", ("", "seconds of a fit", "exact match, %"), rows),))


def _times(found, compared):
    """[(method, seconds of a fit, exact match in %)], fastest first, of methods that finished all ranked sets in time.

    Seconds are the geometric mean over the sets.
    """
    points = []
    for method, own in zip(compared.methods, compared.values, strict=True):
        if np.isfinite(own).all():
            seconds = [max(found[name].methods[method].means["fit_seconds"], 1e-4) for name in compared.sets]
            points.append((method, float(np.exp(np.mean(np.log(seconds)))), 100 * float(own.mean())))
    return sorted(points, key=lambda point: point[1])


def _time_figure(points) -> Iterable[Figure]:
    if points:
        axes = {"across": "seconds of a fit", "up": "exact match, %"}
        svg = plots.scatter_plot(points, title="Fit time against exact match", kind=_kind, kinds=SIDES, **axes)
        yield Figure(svg, "Seconds of a fit and mean exact match; named are the methods that no other beats in both.")
