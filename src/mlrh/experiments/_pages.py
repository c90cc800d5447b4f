"""From records to a report: means and spreads over folds, the paper's own figures, tables and figures."""

import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from itertools import product

import numpy as np
from scipy import stats

from mlrh._words import counted, fixed, impossible_note
from mlrh.experiments import _plots as plots
from mlrh.experiments._methods import FAMILIES, MAX_ITER, MEANINGS, PROGRAM_NAMES
from mlrh.experiments._protocol import N_FOLDS, N_MULTICLASS_FOLDS
from mlrh.experiments._report import Figure, Section, Table
from mlrh.experiments._winners import Duel, Ranked, holm, who_wins
from mlrh.metrics import NAMES, RANKING_NAMES

REFERENCE = "MLRH-WTA (RBF)"  # paired differences are to this method
COLUMNS = (  # title, metric, factor, decimals, whether higher is better (None: neither is)
    (f"{NAMES['exact_match']}, %", "exact_match", 100, 2, True),
    (NAMES["hamming_loss"], "hamming_loss", 1, 4, False),
    (NAMES["f1_example"], "f1_example", 1, 3, True),
    (NAMES["f1_micro"], "f1_micro", 1, 3, True),
    (NAMES["f1_macro"], "f1_macro", 1, 3, True),
    (NAMES["jaccard"], "jaccard", 1, 3, True),
    (NAMES["set_log_loss"], "set_log_loss", 1, 3, False),
    (f"{NAMES['impossible_share']}, %", "impossible_share", 100, 2, None),
    (f"{NAMES['empty_share']}, %", "empty_share", 100, 2, None),
    ("fit, s", "fit_seconds", 1, 2, None),
    ("predict, s", "predict_seconds", 1, 3, None),
)
RANKING_COLUMNS = tuple((title, metric, 1, 3, True) for metric, title in RANKING_NAMES.items())
MAX_LABELS = 40  # of a table of labels: those of hundreds are no longer read
MULTICLASS_EXTRA = (("n_iter", ".0f"), ("train_log_loss", ".4f"))
TITLES = {
    "exact_match": "exact match",
    "hamming_loss": "Hamming loss",
    "f1_example": "F1 by row",
    "set_log_loss": "log-loss of the set",
}  # of measures in sentences
PLOTTED = ("MLRH-WTA (RBF)", "MLRH-WTA (RBF, observed)", "BR-LR", "LP-RF")  # first, if they are there
MAX_SERIES = 4


def hidden_variables_section() -> Section:
    """Tables 1 and 2."""
    return Section("Tables 1 and 2: hidden variables, enumerated", (), hidden_variable_tables(), ())


def multiclass_sections(records, n_seeds) -> Iterator[Section]:
    """Table 5, where there are records for it."""
    if not records:
        return
    rows = []
    for program, name in PROGRAM_NAMES.items():
        row = [name, str(MAX_ITER[program])]
        for dataset, published in TABLE_5.items():
            own = by_method(r for r in records if r["dataset"] == dataset).get(program, {})
            row += _beside_published(_seed_means(own, "accuracy"), published[program], 100, 2)
            row += [_mean_of(own, name, form) for name, form in MULTICLASS_EXTRA]
        rows.append(tuple(row))
    columns: tuple[str, ...] = ("", "iterations at most")
    for dataset in TABLE_5:
        columns += (f"{dataset.title()}: ours, %", "paper, %", "difference", "iterations", "training log-loss")
    notes = (
        f"Mean ± standard deviation over {n_seeds} seeds of the accuracy in {N_MULTICLASS_FOLDS}-fold cross validation "
        "(shuffled; features standardised on the training part; no penalty).",
        "Training parts are often separable, so that the likelihood has no maximum, and what a program returns depends "
        "on where it stops: by its cap or, before that, by its own tolerance, left at its default. Iterations and "
        "training log-loss are means over all fits. The paper says neither its caps nor its seed.",
        "MM takes the paper's step; scikit-learn is lbfgs; statsmodels is MNLogit by BFGS, since its default, Newton's "
        "method, meets singular matrices here.",
    )
    yield Section("Table 5: multiclass logistic regression", (), (Table("Table 5", columns, tuple(rows), notes),))


def _mean_of(records, name, form):
    found = values(records, name)
    return f"{found.mean():{form}}" if len(found) else ""


def statistics_section(datasets) -> Section:
    """Table 6, computed from the data."""
    rows = []
    for dataset in datasets:
        counts = dataset.data.Y.sum(axis=1)
        own = (*dataset.data.X.shape, dataset.data.Y.shape[1], int(counts.max()))
        published = TABLE_6.get(dataset.name)
        agrees = "" if published is None else "as published" if published[1:] == own else f"paper: {published[1:]}"
        domain = "" if published is None else published[0]
        rows.append(
            (dataset.name, domain, *map(str, own), f"{counts.mean():.3f}", str(int((counts == 0).sum())), agrees)
        )
    columns = ("", "domain", "rows", "features", "labels", "largest set", "mean size", "empty rows", "")
    return Section("Table 6: the data", (), (Table("Table 6", columns, tuple(rows)),))


def published_sections(records, profile, *, protocol) -> Iterator[Section]:
    """Table 7 beside the paper's figures, for one protocol and the data sets that have records."""
    title, words = _PROTOCOL_WORDS[protocol]
    tables = [_published_table(name, methods, profile) for name, methods in _by_dataset(records).items()]
    if tables:
        yield Section(title, (words,), tuple(tables))


_PROTOCOL_WORDS = {
    "paper": (
        "Table 7, tuned as the paper says",
        "One setting per data set and seed: the C and gamma of the grid at which BR-SVM has the best mean exact match "
        "on these very folds. MLRH and BR-SVM use both, LP-LR the C. This is optimistic for BR-SVM and says little of "
        "the others at their own best.",
    ),
    "nested": (
        "Table 7, nested",
        "Every hyperparameter of every method is chosen by inner cross validation on the training part of each outer "
        "fold, by exact match. The paper's figures were not nested.",
    ),
}


def _published_table(name, methods, profile):
    published = TABLE_7.get(name, {})
    exact = {method: spread(values(own, "exact_match")) for method, own in methods.items()}
    loss = {method: spread(values(own, "hamming_loss")) for method, own in methods.items()}
    best_exact, best_loss = _best(exact, True, 100, 2), _best(loss, False, 1, 4)
    rows = []
    for method in methods:
        figures = published.get(method, (None, None))
        row = _beside_published(exact[method], figures[0], 100, 2, is_best=method in best_exact)
        row += _beside_published(loss[method], figures[1], 1, 4, is_best=method in best_loss)
        rows.append((_with_folds(method, methods), *row))
    columns = ("", "exact match: ours, %", "paper, %", "difference", "Hamming loss: ours", "paper", "difference")
    return Table(f"Table 7: {name}", columns, tuple(rows), (_spread_note(profile),))


def in_short(nested, as_paper, page) -> tuple[str, ...]:
    """Five lines: what was reproduced, by both protocols, what is better than the paper, and where the page is."""
    grouped = _by_dataset(nested)
    tables = (
        f"Tables 1, 2, 5, 6 and 7 on {' and '.join(grouped)}, beside the paper's figures." if grouped else "nothing."
    )
    return (
        f"Reproduced: {tables}",
        f"{REFERENCE}, exact match, nested: {_beside_paper(grouped)}.",
        f"The same, tuned as the paper says: {_beside_paper(_by_dataset(as_paper))}.",
        f"Better than the best figure of the paper: {_better(grouped)}.",
        f"The report: {page}",
    )


def _beside_paper(grouped):
    """The exact match of the paper's model on each data set, with the paper's own."""
    parts = []
    for name, methods in grouped.items():
        found, published = _percent(methods.get(REFERENCE, {})), TABLE_7.get(name, {}).get(REFERENCE)
        if found is not None:
            parts.append(f"{name} {found:.1f}%" + (f" (paper {published[0]:.1f}%)" if published else ""))
    return ", ".join(parts) or "no figures"


def _better(grouped):
    """Each data set's best method of ours, where its exact match is above all that the paper has."""
    parts = []
    for name, methods in grouped.items():
        published = max((figures[0] for figures in TABLE_7.get(name, {}).values()), default=None)
        ours = {method: _percent(own) for method, own in methods.items() if method.startswith("MLRH")}
        best = max(ours, key=lambda method: ours[method], default=None)
        if published is not None and best is not None and ours[best] > published:
            parts.append(f"{name} {ours[best]:.1f}% by {best} (paper {published:.1f}%)")
    return ", ".join(parts) or ("none" if TABLE_7.keys() & grouped.keys() else "it has none for these data")


def _percent(records):
    found = values(records, "exact_match")
    return 100 * float(found.mean()) if len(found) else None


def winners(records) -> Iterator[str]:
    """Paragraphs on who wins on one data set, by how much, and whether that is more than chance."""
    (methods,) = _by_dataset(records).values()
    ranked = [found for measure in TITLES if (found := _ranked(methods, measure))]
    if len(methods) == 1:
        yield f"{next(iter(methods))} is the only method that was run, so that nobody wins."
        return
    n_folds = max(map(len, methods.values()))
    yield from who_wins(ranked, f"by the mean over {counted(n_folds, 'fold')}", always_a_rival=True)


def _ranked(methods, measure):
    """The methods that have the measure on all folds, the best first; None where there are none."""
    _, _, factor, decimals, is_higher = next(column for column in COLUMNS if column[1] == measure)
    n_folds = max(map(len, methods.values()))
    by_fold = {method: values(own, measure) for method, own in methods.items()}
    means = {method: float(found.mean()) for method, found in by_fold.items() if len(found) == n_folds}
    if not means:
        return None
    order = sorted(means, key=lambda method: -means[method] if is_higher else means[method])
    unit = "%" if factor == 100 else ""
    figures = [f"{fixed(factor * means[method], decimals)}{unit}" for method in order]
    duels = _fold_duels(methods, order, measure, 1 if is_higher else -1)
    too_few = "Whether that is chance can't be told from one fold." if any(np.isnan(duel.p) for duel in duels) else ""
    return Ranked(
        TITLES[measure],
        order,
        figures,
        figures.count(figures[0]),
        "means",
        duels,
        factor,
        decimals,
        unit="fold",
        test="corrected t-test",
        too_few=too_few,
    )


def _fold_duels(methods, order, measure, sign):
    """The first method against each other one on the same folds, by the corrected t-test."""
    found = [paired(methods[order[0]], methods[other], measure) for other in order[1:]]
    corrected = iter(holm([difference.p for difference in found if difference is not None]).tolist())
    duels = []
    for other, difference in zip(order[1:], found, strict=True):
        if difference is None:  # one fold only, which has no spread
            gain = sign * float(values(methods[order[0]], measure)[0] - values(methods[other], measure)[0])
            duels.append(Duel(other, int(gain > 0), int(gain == 0), int(gain < 0), gain, np.nan))
            continue
        higher, level, lower = difference.counts
        wins, losses = (higher, lower) if sign > 0 else (lower, higher)
        duels.append(Duel(other, wins, level, losses, sign * difference.mean, next(corrected)))
    return duels


def notes_on(records, profile) -> Iterator[str]:
    """Sentences on what a reader should know of the methods: ends of grids, and impossible true sets."""
    (methods,) = _by_dataset(records).values()
    at_edges = [found for method, own in methods.items() for found in _mostly_at_edges(method, own, profile)]
    if at_edges:
        where = ", which --full looks for" if profile.name == "quick" else ""
        by = ", ".join(at_edges)
        yield f"C was chosen at an end of its grid by {by}; beyond it may be a better one{where}."
    for method, own in methods.items():
        shares = values(own, "impossible_share")
        if len(shares) and (note := impossible_note(float(shares.mean()), method)):
            yield note


def _mostly_at_edges(method, own, profile):
    """The method, with the end of its grid of C that it chose on most folds, if it did."""
    chosen = [record["settings"].get("C") for record in own.values()]
    for value in _edges(profile, method, "C"):
        n_folds = chosen.count(value)
        if 2 * n_folds > len(chosen):
            yield f"{method} ({value:g} on {n_folds} of {len(chosen)} folds)"


def comparison_sections(records, profile, label_names=None) -> Iterator[Section]:
    """All metrics, paired differences, chosen settings and figures of the nested protocol, for each data set.

    label_names are those of each data set, by its name; a data set without them has no table of labels.
    """
    for name, methods in _by_dataset(records).items():
        tables = list(_metrics_tables(name, methods, profile))
        if len(methods) > 1:
            tables.append(_differences_table(name, methods))
        tables += _labels_tables(name, methods, (label_names or {}).get(name, ()))
        tables.append(_settings_table(name, methods, profile))
        yield Section(f"{name}: all measures", (), tuple(tables), tuple(_figures(name, methods)))


def meanings_section(records) -> Iterator[Section]:
    """What the names of the methods mean."""
    methods = [method for own in _by_dataset(records).values() for method in own]
    rows = tuple((method, MEANINGS[method]) for method in dict.fromkeys(methods) if method in MEANINGS)
    if rows:
        words = "The names are those of the literature; what comes after them in brackets says which scores and sets."
        yield Section("What the names mean", (words,), (Table("", ("method", "what it is"), rows, words=(1,)),))


def _metrics_tables(name, methods, profile):
    """Every method by every measure: how right the sets are, and what else there is to know."""
    probabilities: tuple[str, ...] = (
        "Log-loss of the set: mean of -log max(P, 1e-6) over the test rows, P the probability of the true set; held "
        "impossible: the share of true sets with P = 0. Empty cells: the method gives no probability of a set. BR-LR "
        "and ML-kNN multiply the probabilities of their labels.",
        "Fit and predict: seconds of one fit at the chosen setting and of all test rows, one thread, among other runs.",
    )
    if {"IBLR-ML", "IBLR-ML+"} & set(methods):
        probabilities += ("IBLR-ML and IBLR-ML+ multiply the probabilities of their labels, too.",)
    yield _columns_table(f"{name}: how right the sets are", methods, COLUMNS[:6], (_spread_note(profile),))
    if any(len(values(own, metric)) for own in methods.values() for metric in RANKING_NAMES):
        yield _columns_table(f"{name}: how labels are ranked", methods, RANKING_COLUMNS, (_RANKING_NOTE,))
    yield _columns_table(f"{name}: probabilities, empty answers, time", methods, COLUMNS[6:], probabilities)


_RANKING_NOTE = (
    "By the probabilities of single labels, or decision values, as scikit-learn measures them. P@k: share of right "
    "labels among the first k; nDCG and LRAP: how far up the right labels stand; AUC: how often a row that has the "
    "label is above one that hasn't. Empty cells: the method has neither, or there are too many labels for them."
)


def _labels_tables(name, methods, label_names):
    """F1 of each label over the test rows of all folds, the most frequent labels first; none without their counts."""
    counted_methods = {
        method: np.sum([record["labels"] for record in own.values()], axis=0)
        for method, own in methods.items()
        if all("labels" in record for record in own.values())
    }
    if not counted_methods or not label_names:
        return
    n_rows = np.max([counts[:, 0] for counts in counted_methods.values()], axis=0)  # a method may lack folds
    rows = []
    for label in np.argsort(-n_rows, kind="stable")[:MAX_LABELS]:
        found = [_f1(*counts[label]) for counts in counted_methods.values()]
        written = [fixed(value, 3) for value in found]
        best = fixed(max(found), 3)
        cells = [f"**{cell}**" if cell == best and max(found) > 0 else cell for cell in written]
        rows.append((label_names[label], f"{n_rows[label]:,}", *cells))
    left = len(n_rows) - len(rows)
    more = (f"The {MAX_LABELS} most frequent labels; there are {left} more.",) if left else ()
    notes = ("Over the test rows of all folds together; the best of a label is bold.", *more)
    yield Table(f"{name}: F1 of each label", ("label", "rows", *counted_methods), tuple(rows), notes)


def _f1(n_rows, n_predicted, n_both):
    return float(2 * n_both / (n_rows + n_predicted)) if n_rows + n_predicted else 0.0


def _columns_table(title, methods, columns, notes):
    rows = {method: [_with_folds(method, methods)] for method in methods}
    for _, metric, factor, decimals, higher in columns:
        spreads = {method: spread(values(own, metric)) for method, own in methods.items()}
        best = _best(spreads, higher, factor, decimals)
        for method, row in rows.items():
            row.append(_written(spreads[method], factor, decimals, is_best=method in best))
    return Table(title, ("", *(column for column, *_ in columns)), tuple(map(tuple, rows.values())), notes)


def _differences_table(name, methods):
    reference = REFERENCE if REFERENCE in methods else next(iter(methods))
    rows = []
    for method, own in methods.items():
        if method == reference:
            continue
        row = [method]
        for metric, factor, decimals in (("exact_match", 100, 2), ("hamming_loss", 1, 4), ("set_log_loss", 1, 3)):
            row += _difference_cells(paired(own, methods[reference], metric), factor, decimals)
        rows.append(tuple(row))
    columns: tuple[str, ...] = ("",)
    for title in ("exact match, points", "Hamming loss", "log-loss of the set"):
        columns += (title, "95% interval", "folds +/=/-")
    notes = (
        "Each method minus the reference on the same folds. Folds share training rows; the interval takes that into "
        "account (the corrected variance for repeated cross validation).",
    )
    return Table(f"{name}: paired differences to {reference}", columns, tuple(rows), notes)


def _settings_table(name, methods, profile):
    rows = []
    for method, own in methods.items():
        chosen, edges = [record["settings"] for record in own.values()], []
        parts = []
        for parameter in sorted({parameter for setting in chosen for parameter in setting}):
            counts = Counter(setting[parameter] for setting in chosen)
            values = ((value if isinstance(value, str) else f"{value:g}", counts[value]) for value in sorted(counts))
            parts.append(f"{parameter}: " + ", ".join(f"{value} ({number}x)" for value, number in values))
            at_edge = sum(counts[value] for value in _edges(profile, method, parameter))
            edges += [f"{parameter}: {at_edge} of {len(chosen)}"] if at_edge else []
        warned = Counter(kind for record in own.values() for kind in record.get("warnings", ()))
        rows.append((method, "; ".join(parts), "; ".join(edges), ", ".join(f"{k} ({n}x)" for k, n in warned.items())))
    columns = ("", "settings", "folds with the first or last of the grid", "folds with warnings")
    gamma = "gamma is in units of 1 / (number of features x variance of the scaled features)."
    notes = (gamma,) if any("gamma" in row[1] for row in rows) else ()
    return Table(f"{name}: settings chosen, and on how many folds", columns, tuple(rows), notes)


def _edges(profile, method, parameter):
    """The first and the last value of the grid from which a method's parameter was chosen."""
    grid = next(profile.grids[family.grid] for family in FAMILIES.values() if method in family.names)
    candidates = grid.get(parameter, ())
    return {candidates[0], candidates[-1]} if isinstance(candidates, tuple) and len(candidates) > 2 else set()


def _figures(name, methods):
    for place, (metric, axis, factor, higher) in enumerate(
        (("exact_match", "exact match, %", 100, True), ("hamming_loss", "Hamming loss", 1, False))
    ):
        published = {method: figures[place] for method, figures in TABLE_7.get(name, {}).items()}
        rows = [
            (method, [factor * value for value in values(own, metric)], published.get(method))
            for method, own in methods.items()
        ]
        svg = plots.spread_plot(rows, title=f"{axis}: {name}", axis=axis, higher_is_better=higher)
        beside = ", and the paper's figure" if published else ""
        yield Figure(svg, f"{axis[0].upper()}{axis[1:]} on {name}: every outer fold and their mean{beside}.")
    yield from _reliability_figures(name, methods)
    yield _size_figure(name, methods)


def _reliability_figures(name, methods):
    """One figure of at most MAX_SERIES methods that give the probability of a set, or none."""
    order = sorted(methods, key=lambda method: PLOTTED.index(method) if method in PLOTTED else len(PLOTTED))
    series = [(method, reliability_points(methods[method])) for method in order]
    series = [(method, points) for method, points in series if points]
    if series:
        svg = plots.reliability_plot(series[:MAX_SERIES], title=f"reliability of set probabilities: {name}")
        caption = f"How often the predicted set of {name} is right, by the probability the method gave it."
        others = ", ".join(method for method, _ in series[MAX_SERIES:])
        yield Figure(svg, f"{caption} Not drawn: {others}." if others else caption)


def _size_figure(name, methods):
    shown = [method for method in ("MLRH-WTA (RBF)", "MLRH-MP (RBF)", "BR-SVM (RBF)") if method in methods]
    shown = shown or list(methods)[:3]
    shares = [("true", size_shares(methods[shown[0]], "true_sizes"))]
    shares += [(method, size_shares(methods[method], "predicted_sizes")) for method in shown]
    sizes = range(1 + max(int(np.flatnonzero(share)[-1]) for _, share in shares))
    series = [(label, share[: len(sizes)].tolist()) for label, share in shares]
    svg = plots.size_plot(list(sizes), series, title=f"sizes: {name}")
    return Figure(svg, f"Share of the rows of {name} by number of labels, true and predicted.")


def descent_sections(records) -> Iterator[Section]:
    """The objective by iteration for the solvers that have records, all on one data set."""
    if not records:
        return
    name = records[0]["dataset"]
    series = [(record["method"], record["history"]) for record in records]
    svg = plots.descent_plot(series, title=f"objective by iteration: {name}")
    rows = tuple(
        (r["method"], str(len(r["history"]) - 1), f"{r['history'][-1]:.6f}", f"{r['task_seconds']:.2f}")
        for r in records
    )
    words = (
        f"Linear MLRH on all rows of {name}, C = 1: the same objective by the paper's "
        "majorisation-minimisation (with the step that is safe for all labels jointly), by L-BFGS and by Newton's "
        "method with conjugate gradients.",
    )
    table = Table(
        "Solvers", ("", "iterations", "objective reached", "seconds"), rows, ("Iterations are capped at 500.",)
    )
    caption = f"Objective above the best value found, by iteration, on {name}."
    yield Section("Objective by iteration", words, (table,), (Figure(svg, caption),))


def missing(left, failures) -> tuple[str, ...]:
    """Paragraphs that say what a report lacks."""
    return *(f"Left out: {sentence}" for sentence in left), *(f"Failed: {sentence}" for sentence in failures)


def footer(command) -> tuple[str, ...]:
    """How a report was made: the command, versions and the day."""
    names = ("mlrh", "numpy", "scipy", "scikit-learn", "statsmodels")
    versions = ", ".join(f"{name} {_version(name)}" for name in names)
    python = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return f'Made by "{command}" on {date.today().isoformat()}.', f"{versions}; {python}."


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _by_dataset(records):
    """{data set: {method: {(seed, fold): record}}}, larger data sets first, methods in the order of the families."""
    order = [name for family in FAMILIES.values() for name in family.names]
    sizes: Counter[str] = Counter()
    for record in records:
        sizes[record["dataset"]] += record["n_test"]
    grouped = {}
    for name, _ in sizes.most_common():
        methods = by_method(record for record in records if record["dataset"] == name)
        grouped[name] = {method: methods[method] for method in sorted(methods, key=order.index)}
    return grouped


def _seed_means(records, metric):
    """Spread over seeds of the mean over folds."""
    by_seed: dict[int, list[float]] = defaultdict(list)
    for (seed, _), record in records.items():
        by_seed[seed].append(record["metrics"][metric])
    return spread([np.mean(found) for found in by_seed.values()])


def _beside_published(own, published, factor, decimals, *, is_best=False):
    """Three cells: ours, the paper's, the difference."""
    cell = _written(own, factor, decimals, is_best=is_best)
    if published is None:
        return [cell, "", ""]
    printed = min(decimals, 3)  # decimals of the paper's figures: two of a percentage, three of a loss
    difference = "" if own is None else fixed(factor * own.mean - published, printed, signed=True)
    return [cell, f"{published:.{printed}f}", difference]


def _written(own, factor, decimals, *, is_best=False):
    if own is None:
        return ""
    cell = f"{fixed(factor * own.mean, decimals)} ± {fixed(factor * own.deviation, decimals)}"
    return f"**{cell}**" if is_best else cell


def _difference_cells(difference, factor, decimals):
    if difference is None:
        return ["", "", ""]
    ends = (difference.mean, difference.low, difference.high)
    mean, low, high = (fixed(factor * end, decimals, signed=True) for end in ends)
    return [mean, f"{low} to {high}", "/".join(map(str, difference.counts))]


def _best(spreads, higher_is_better, factor, decimals):
    """The names whose mean, as it is printed, is the best; none where better has no meaning."""
    found = {name: round(factor * spread.mean, decimals) for name, spread in spreads.items() if spread is not None}
    if higher_is_better is None or not found:
        return set()
    best = (max if higher_is_better else min)(found.values())
    return {name for name, mean in found.items() if mean == best}


def _with_folds(method, methods):
    """The method's name, with the number of its folds where it has fewer than others."""
    most = max(map(len, methods.values()))
    return method if len(methods[method]) == most else f"{method}: {len(methods[method])} of {most} folds"


def _spread_note(profile):
    seeds = f"{len(profile.seeds)} seeds" if len(profile.seeds) > 1 else f"seed {profile.seeds[0]}"
    return f"Mean ± standard deviation over the {N_FOLDS} outer folds of {seeds}; the best mean of a column is bold."


# What the paper published: Jaemoon Lee and Hoda Shajari, A Hidden Variables Approach to Multilabel Logistic Regression.
# Exact match and accuracy are in percent, as printed there.

TABLE_5 = {
    "iris": {"mm": 98.02, "scikit-learn": 97.22, "statsmodels": 97.38},
    "wine": {"mm": 96.08, "scikit-learn": 96.11, "statsmodels": 95.55},
}
TABLE_6 = {"scene": ("Image", 2407, 294, 6, 3), "emotions": ("Music", 593, 72, 6, 3)}
TABLE_7 = {  # exact match in percent, Hamming loss
    "scene": {
        "MLRH-WTA (RBF)": (72.61, 0.079),
        "MLRH-MP (RBF)": (54.22, 0.096),
        "BR-SVM (RBF)": (64.90, 0.075),
        "LP-LR": (65.33, 0.111),
    },
    "emotions": {
        "MLRH-WTA (RBF)": (33.37, 0.188),
        "MLRH-MP (RBF)": (31.03, 0.189),
        "BR-SVM (RBF)": (33.20, 0.178),
        "LP-LR": (24.59, 0.228),
    },
}
SCORES = (0.7, -0.4)  # w_1'x and w_2'x in the worked example of Tables 1 and 2
NAMED_SETS = {(1, 0): "{1}", (0, 1): "{2}", (1, 1): "{1, 2}"}


def exponential_scheme(y, h, scores) -> float:
    """prod_k h_k^y_k exp(h_k s_k), with 0^0 = 1: the joint weight of labels and hidden variables in section 3.2."""
    return float(np.prod(np.asarray(h, float) ** y * np.exp(np.multiply(h, scores))))


def multiplication_scheme(y, h, scores) -> float:
    """prod_k (r_k + 1) / 2 exp(h_k s_k), r_k = (2 h_k - 1)(2 y_k - 1): the joint weight that replaces it."""
    y, h = np.asarray(y), np.asarray(h)
    return float(np.prod(((2 * h - 1) * (2 * y - 1) + 1) / 2 * np.exp(h * scores)))


def hidden_variable_tables() -> tuple[Table, Table]:
    """Tables 1 and 2: the weight of every label set and hidden state by each scheme, enumerated."""
    note = f"Example scores w_1'x = {SCORES[0]}, w_2'x = {SCORES[1]}; a weight of 0 is impossible."
    mismatch = (
        "The hidden state (1, 1) adds the same term to every label set, so each weighs more than its own score says.",
        "The paper prints exp(w'x) for y = {2}, h = (0, 1); it is exp(w_2'x).",
    )
    cure = ("Only h = y is left, and the weights are those of the model: exp of the sum of the scores of the set.",)
    return (
        _scheme_table("Table 1. The mismatch problem, enumerated", exponential_scheme, (note, *mismatch)),
        _scheme_table("Table 2. Its cure, enumerated", multiplication_scheme, (note, *cure)),
    )


def _scheme_table(title, scheme: Callable, notes):
    states = list(product((0, 1), repeat=2))
    rows = []
    for y, name in NAMED_SETS.items():
        weights = [scheme(y, h, SCORES) for h in states]
        model = np.exp(np.dot(y, SCORES))
        rows.append((name, *(f"{weight:.4f}" for weight in weights), f"{sum(weights):.4f}", f"{model:.4f}"))
    hidden = [f"h = ({first}, {second})" for first, second in states]
    return Table(title, ("label set", *hidden, "sum over h", "model's weight"), tuple(rows), notes)


# Means and spreads over folds, and paired differences


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a number over folds."""

    mean: float
    deviation: float
    n: int


@dataclass(frozen=True)
class Difference:
    """A method minus another on the same folds: a 95% interval, and on how many folds it is higher, equal, lower.

    p is that of the test to which the interval belongs.
    """

    mean: float
    low: float
    high: float
    counts: tuple[int, int, int]
    p: float


def by_method(records: Iterable[dict]) -> dict[str, dict[tuple[int, int], dict]]:
    """{method: {(seed, fold): record}}, methods in the order they first occur."""
    grouped: dict[str, dict[tuple[int, int], dict]] = defaultdict(dict)
    for record in records:
        grouped[record["method"]][record["seed"], record["fold"]] = record
    return dict(grouped)


def values(records: dict, name: str) -> np.ndarray:
    """A metric, or a number that stands beside the metrics, over the folds of one method; empty where it has none."""
    ordered = [record for _, record in sorted(records.items())]
    found = [record["metrics"].get(name, record.get(name)) for record in ordered]
    return np.array([value for value in found if value is not None], dtype=np.float64)


def spread(numbers) -> Spread | None:
    """None for no numbers; the deviation is that of a sample (n - 1), 0 for one number."""
    numbers = np.asarray(numbers, dtype=np.float64)
    if len(numbers) == 0:
        return None
    return Spread(float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0, len(numbers))


def paired(of: dict, minus: dict, name: str) -> Difference | None:
    """Difference of a metric over the folds both have; None where that is fewer than two.

    Folds share training rows, so their differences are not independent: the interval is the corrected one for repeated
    cross validation (Nadeau and Bengio; Bouckaert and Frank), with variance s^2 (1 / n + n_test / n_train).
    """
    shared = sorted(set(of) & set(minus))
    pairs = [(of[fold]["metrics"].get(name), minus[fold]["metrics"].get(name)) for fold in shared]
    differences = np.array([a - b for a, b in pairs if a is not None and b is not None], dtype=np.float64)
    if len(differences) < 2:
        return None
    mean, n = float(differences.mean()), len(differences)
    ratio = float(np.mean([_test_share(of[fold]) for fold in shared]))
    error = float(differences.std(ddof=1) * np.sqrt(1 / n + ratio))
    half = float(stats.t.ppf(0.975, n - 1) * error)
    higher, lower = int((differences > 0).sum()), int((differences < 0).sum())
    with np.errstate(divide="ignore"):  # differences that are all the same
        p = float(2 * stats.t.sf(np.divide(abs(mean), error), n - 1)) if mean else 1.0
    return Difference(mean, mean - half, mean + half, (higher, n - higher - lower, lower), p)


def _test_share(record):
    """Test rows per training row; plain cross validation where the record doesn't say."""
    return record["n_test"] / record["n_train"] if "n_train" in record else 1 / (N_FOLDS - 1)


def reliability_points(records: dict) -> list[tuple[float, float, int]]:
    """(mean confidence, share correct, count) of each bin of confidence that holds rows, over all folds."""
    binned = [record["confidence"] for record in records.values() if record.get("confidence")]
    if not binned:
        return []
    total = np.sum(binned, axis=0)
    return [(confidence / count, correct / count, int(count)) for count, confidence, correct in total if count]


def size_shares(records: dict, name: str) -> np.ndarray:
    """Share of the test rows by number of labels; name is true_sizes or predicted_sizes."""
    counts = np.sum([record[name] for record in records.values()], axis=0)
    return counts / counts.sum()
