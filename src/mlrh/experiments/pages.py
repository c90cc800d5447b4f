"""From records to a report: which tables and figures it has and how numbers are written."""

import platform
from collections import Counter
from collections.abc import Iterator
from datetime import date
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from mlrh.experiments import paper, plots, summaries
from mlrh.experiments.methods import FAMILIES
from mlrh.experiments.multiclass import MAX_ITER, PROGRAM_NAMES
from mlrh.experiments.plans import N_FOLDS, N_MULTICLASS_FOLDS
from mlrh.experiments.report import Figure, Section, Table, escaped
from mlrh.metrics import NAMES

REFERENCE = "MLRH-WTA (RBF)"  # whom paired differences are held against
COLUMNS = (  # title, metric, factor, decimals, whether higher is better (None: not a matter of better)
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
PLOTTED = ("MLRH-WTA (RBF)", "MLRH-WTA (RBF, observed)", "BR-LR", "LP-RF")
ORDER = [name for family in FAMILIES.values() for name in family.names]


def hidden_variables_section() -> Section:
    """Tables 1 and 2."""
    return Section("Tables 1 and 2: hidden variables, enumerated", (), paper.hidden_variable_tables(), ())


def multiclass_sections(records, n_seeds) -> Iterator[Section]:
    """Table 5, where there are records for it."""
    if records:
        yield _multiclass_section(records, n_seeds)


def _multiclass_section(records, n_seeds):
    rows = []
    for program, name in PROGRAM_NAMES.items():
        row = [name, str(MAX_ITER[program])]
        for dataset, published in paper.TABLE_5.items():
            own = summaries.by_method(r for r in records if r["dataset"] == dataset).get(program, {})
            row += _beside_published(_seed_means(own, "accuracy"), published[program], 100, 2)
        rows.append(tuple(row))
    columns: tuple[str, ...] = ("", "iterations at most")
    for dataset in paper.TABLE_5:
        columns += (f"{dataset.title()}: ours, %", "paper, %", "difference")
    notes = (
        f"Mean ± standard deviation over {n_seeds} seeds of the accuracy in {N_MULTICLASS_FOLDS}-fold cross validation "
        "(shuffled; features standardised on the training part; no penalty).",
        "Training parts are often separable, so that the likelihood has no maximum and the cap on the iterations "
        "decides where a program stops. The paper says neither its caps nor its seed.",
        "MM takes the paper's step; scikit-learn is lbfgs; statsmodels is MNLogit by BFGS, since its default, Newton's "
        "method, meets singular matrices here.",
    )
    return Section("Table 5: multiclass logistic regression", (), (Table("Table 5", columns, tuple(rows), notes),))


def statistics_section(datasets) -> Section:
    """Table 6, computed from the data."""
    rows = []
    for dataset in datasets:
        counts = dataset.data.Y.sum(axis=1)
        own = (*dataset.data.X.shape, dataset.data.Y.shape[1], int(counts.max()))
        published = paper.TABLE_6.get(dataset.name)
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
    published = paper.TABLE_7.get(name, {})
    exact = {method: summaries.spread(summaries.values(own, "exact_match")) for method, own in methods.items()}
    loss = {method: summaries.spread(summaries.values(own, "hamming_loss")) for method, own in methods.items()}
    best_exact, best_loss = _best(exact, True), _best(loss, False)
    rows = []
    for method in methods:
        figures = published.get(method, (None, None))
        row = _beside_published(exact[method], figures[0], 100, 2, is_best=method == best_exact)
        row += _beside_published(loss[method], figures[1], 1, 4, is_best=method == best_loss)
        rows.append((method, *row))
    columns = ("", "exact match: ours, %", "paper, %", "difference", "Hamming loss: ours", "paper", "difference")
    return Table(f"Table 7: {name}", columns, tuple(rows), (_spread_note(profile),))


def comparison_sections(records, profile) -> Iterator[Section]:
    """All metrics, paired differences, chosen settings and figures of the nested protocol, for each data set."""
    for name, methods in _by_dataset(records).items():
        tables = [_metrics_table(name, methods, profile)]
        if REFERENCE in methods and len(methods) > 1:
            tables.append(_differences_table(name, methods))
        tables.append(_settings_table(name, methods))
        yield Section(f"{name}: all measures", (), tuple(tables), tuple(_figures(name, methods)))


def _metrics_table(name, methods, profile):
    spreads = {
        metric: {method: summaries.spread(summaries.values(own, metric)) for method, own in methods.items()}
        for _, metric, *_ in COLUMNS
    }
    best = {metric: _best(spreads[metric], higher) for _, metric, _, _, higher in COLUMNS}
    rows = [
        (
            method,
            *(
                _written(spreads[metric][method], factor, decimals, is_best=method == best[metric])
                for _, metric, factor, decimals, _ in COLUMNS
            ),
        )
        for method in methods
    ]
    notes = (
        _spread_note(profile),
        "Log-loss of the set: mean of -log max(P, 1e-6) over the test rows, P the probability of the true set; held "
        "impossible: the share of true sets with P = 0. Empty cells: the method gives no probability of a set. BR-LR "
        "and ML-kNN multiply the probabilities of their labels.",
        "Fit and predict: seconds of one fit at the chosen setting and of all test rows, one thread, among other runs.",
    )
    return Table(f"{name}: every method by every measure", ("", *(title for title, *_ in COLUMNS)), tuple(rows), notes)


def _differences_table(name, methods):
    rows = []
    for method, own in methods.items():
        if method == REFERENCE:
            continue
        row = [method]
        for metric, factor, decimals in (("exact_match", 100, 2), ("hamming_loss", 1, 4), ("set_log_loss", 1, 3)):
            row += _difference_cells(summaries.paired(own, methods[REFERENCE], metric), factor, decimals)
        rows.append(tuple(row))
    columns: tuple[str, ...] = ("",)
    for title in ("exact match, points", "Hamming loss", "log-loss of the set"):
        columns += (title, "95% interval", "folds +/=/-")
    notes = (
        "Each method minus the reference on the same folds. Folds share training rows; the interval takes that into "
        "account (the corrected variance for repeated cross validation).",
    )
    return Table(f"{name}: paired differences to {REFERENCE}", columns, tuple(rows), notes)


def _settings_table(name, methods):
    rows = []
    for method, own in methods.items():
        chosen = [record["settings"] for _, record in sorted(own.items())]
        parts = []
        for parameter in sorted({parameter for setting in chosen for parameter in setting}):
            counts = Counter(setting[parameter] for setting in chosen)
            parts.append(f"{parameter}: " + ", ".join(f"{value:g} ({counts[value]}x)" for value in sorted(counts)))
        rows.append((method, "; ".join(parts)))
    notes = ("gamma is in units of 1 / (number of features x variance of the scaled features).",)
    return Table(f"{name}: settings chosen, and on how many folds", ("", "settings"), tuple(rows), notes)


def _figures(name, methods):
    published = paper.TABLE_7.get(name, {})
    for place, (metric, axis, factor, higher) in enumerate(
        (("exact_match", "exact match, %", 100, True), ("hamming_loss", "Hamming loss", 1, False))
    ):
        rows = [
            (
                method,
                [factor * value for value in summaries.values(own, metric)],
                published.get(method, (None, None))[place],
            )
            for method, own in methods.items()
        ]
        svg = plots.spread_plot(rows, title=f"{axis}: {name}", axis=axis, higher_is_better=higher)
        yield Figure(
            svg,
            f"{axis[0].upper()}{axis[1:]} on {escaped(name)}: every outer fold, their mean, and the paper's figure.",
        )
    series = [(method, summaries.reliability_points(methods[method])) for method in PLOTTED if method in methods]
    series = [(method, points) for method, points in series if points]
    if series:
        svg = plots.reliability_plot(series, title=f"reliability of set probabilities: {name}")
        yield Figure(
            svg, f"How often the predicted set of {escaped(name)} is right, by the probability the method gave it."
        )
    shown = [method for method in ("MLRH-WTA (RBF)", "MLRH-MP (RBF)", "BR-SVM (RBF)") if method in methods]
    shown = shown or list(methods)[:3]
    truth = summaries.size_shares(methods[shown[0]], "true_sizes")
    shares = [("true", truth)] + [
        (method, summaries.size_shares(methods[method], "predicted_sizes")) for method in shown
    ]
    largest = max(int(np.flatnonzero(share)[-1]) for _, share in shares)
    svg = plots.size_plot(
        list(range(largest + 1)),
        [(label, share[: largest + 1].tolist()) for label, share in shares],
        title=f"sizes: {name}",
    )
    yield Figure(svg, f"Share of the rows of {escaped(name)} by number of labels, true and predicted.")


def descent_sections(records) -> Iterator[Section]:
    """The objective by iteration for the solvers that have records, all on one data set."""
    if records:
        yield _descent_section(records[0]["dataset"], records)


def _descent_section(name, records):
    series = [(record["method"], record["history"]) for record in records]
    svg = plots.descent_plot(series, title=f"objective by iteration: {name}")
    rows = tuple(
        (r["method"], str(len(r["history"]) - 1), f"{r['history'][-1]:.6f}", f"{r['task_seconds']:.2f}")
        for r in records
    )
    words = (
        f"Linear MLRH on all rows of {escaped(name)}, C = 1: the same objective by the paper's "
        "majorisation-minimisation (with the step that is safe for all labels jointly), by L-BFGS and by Newton's "
        "method with conjugate gradients.",
    )
    table = Table(
        "Solvers", ("", "iterations", "objective reached", "seconds"), rows, ("Iterations are capped at 500.",)
    )
    caption = f"Objective above the best value found, by iteration, on {escaped(name)}."
    return Section("Objective by iteration", words, (table,), (Figure(svg, caption),))


def missing(left, failures) -> tuple[str, ...]:
    """Paragraphs that say what a report lacks."""
    sentences = [f"Left out: {sentence}" for sentence in left] + [f"Failed: {sentence}" for sentence in failures]
    return tuple(escaped(sentence) for sentence in sentences)


def footer(command) -> tuple[str, ...]:
    """How a report was made: the command, versions and the day."""
    names = ("mlrh", "numpy", "scipy", "scikit-learn", "statsmodels")
    versions = ", ".join(f"{name} {_version(name)}" for name in names)
    python = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return f"Made by `{command}` on {date.today().isoformat()}.", f"{versions}; {python}."


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _by_dataset(records):
    """{data set: {method: {(seed, fold): record}}}, larger data sets first, methods in the order of the families."""
    sizes: Counter[str] = Counter()
    for record in records:
        sizes[record["dataset"]] += record["n_test"]
    grouped = {}
    for name, _ in sizes.most_common():
        methods = summaries.by_method(record for record in records if record["dataset"] == name)
        grouped[name] = {method: methods[method] for method in sorted(methods, key=ORDER.index)}
    return grouped


def _seed_means(records, metric):
    """Spread over seeds of the mean over folds."""
    by_seed: dict[int, list[float]] = {}
    for (seed, _), record in records.items():
        by_seed.setdefault(seed, []).append(record["metrics"][metric])
    return summaries.spread([np.mean(found) for found in by_seed.values()])


def _beside_published(own, published, factor, decimals, *, is_best=False):
    """Three cells: ours, the paper's, the difference."""
    cell = _written(own, factor, decimals, is_best=is_best)
    if published is None or own is None:
        return [cell, "" if published is None else f"{published:.{_digits(decimals)}f}", ""]
    printed = _digits(decimals)
    return [cell, f"{published:.{printed}f}", f"{factor * own.mean - published:+.{printed}f}"]


def _digits(decimals):
    """Decimals of the paper's figures: two of a percentage, three of a loss."""
    return 2 if decimals == 2 else 3


def _written(own, factor, decimals, *, is_best=False):
    if own is None:
        return ""
    cell = f"{factor * own.mean:.{decimals}f} ± {factor * own.deviation:.{decimals}f}"
    return f"**{cell}**" if is_best else cell


def _difference_cells(difference, factor, decimals):
    if difference is None:
        return ["", "", ""]
    low, high = (f"{factor * end:+.{decimals}f}" for end in (difference.low, difference.high))
    return [f"{factor * difference.mean:+.{decimals}f}", f"{low} to {high}", "/".join(map(str, difference.counts))]


def _best(spreads, higher_is_better):
    """The name with the best mean, or None where better has no meaning or nobody has the number."""
    found = {name: spread.mean for name, spread in spreads.items() if spread is not None}
    if higher_is_better is None or not found:
        return None
    return (max if higher_is_better else min)(found, key=found.__getitem__)


def _spread_note(profile):
    seeds = f"{len(profile.seeds)} seeds" if len(profile.seeds) > 1 else f"seed {profile.seeds[0]}"
    return f"Mean ± standard deviation over the {N_FOLDS} outer folds of {seeds}; the best mean of a column is bold."
