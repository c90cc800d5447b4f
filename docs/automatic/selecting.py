"""Is a model for a metric better selected by that metric on held-out rows, or by the log-loss of the set?

    python docs/automatic/selecting.py [RECORDS]     goes on from the records, and prints the table of docs/automatic.md

Nested: the rows of each outer fold (five of each of SEEDS seeds) judge what inner folds of the other rows (at most
MAX_ROWS of them) select among 21 settings: linear scores and RBF kernels with the observed label space. The inner folds
are repeated with REPEATS seeds. A record is the figures of one outer fold; a run that was interrupted goes on after the
last one. It takes about three minutes of processor time. Outer folds share training rows: the standard error of a
difference is the corrected one for repeated cross validation, s^2 (1 / n + 1 / 4).
"""

import json
import sys
from itertools import product
from pathlib import Path

import numpy as np

from mlrh import decisions
from mlrh._indicators import as_indicator
from mlrh.data import load
from mlrh.estimators import auto
from mlrh.metrics import FLOOR
from mlrh.model_selection import MultilabelStratifiedKFold, MultilabelStratifiedShuffleSplit

NAMES = ("emotions", "scene", "yeast")
MAX_ROWS, MAX_TEST_ROWS = 400, 500
REPEATS, N_INNER, N_OUTER, SEEDS = 3, 3, 5, 4
METRICS = {"exact match, %": decisions.exact_match, "Hamming loss": decisions.hamming}
FORMS = [("linear", None), *(("rbf", gamma) for gamma in auto.RBF_GAMMA)]
RULES = {
    "log-loss": ("log-loss", 1),
    f"log-loss, {REPEATS} repeats": ("log-loss", REPEATS),
    "the metric": ("metric", 1),
    f"the metric, {REPEATS} repeats": ("metric", REPEATS),
}


def main(path):
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(record["data"], record["seed"], record["fold"]) for record in records}
    for seed, fold, name in product(range(SEEDS), range(N_OUTER), NAMES):
        if (name, seed, fold) in done:
            continue
        data = load(name)
        X, Y = np.asarray(data.X, np.float64), as_indicator(data.Y, "Y")
        splits = MultilabelStratifiedKFold(N_OUTER, shuffle=True, random_state=seed).split(X, Y)
        train, test = list(splits)[fold]
        rows = few(train, Y, MAX_ROWS), few(test, Y, MAX_TEST_ROWS)
        records.append({"data": name, "seed": seed, "fold": fold, **figures(X, Y, *rows)})
        with open(path, "a") as file:
            file.write(json.dumps(records[-1]) + "\n")
        print(f"{name}, seed {seed}, outer fold {fold + 1} of {N_OUTER}", file=sys.stderr)
    print(table(records))


def few(rows, Y, n_rows):
    """At most so many of the rows, with the same shares of labels and sets."""
    if len(rows) <= n_rows:
        return rows
    splitter = MultilabelStratifiedShuffleSplit(1, train_size=n_rows, test_size=len(rows) - n_rows, random_state=0)
    return np.sort(rows[next(splitter.split(Y[rows], Y[rows]))[0]])


def figures(X, Y, train, test):
    """Log-loss and losses of each setting: inner (repeats, settings, figures), and outer (settings, figures)."""
    inner = []
    for seed in range(REPEATS):
        splits = MultilabelStratifiedKFold(N_INNER, shuffle=True, random_state=seed).split(train, Y[train])
        folds = [(train[one], train[other]) for one, other in splits]
        inner.append(losses(X, Y, folds))
    return {"inner": inner, "outer": losses(X, Y, [(train, test)])}


def losses(X, Y, folds):
    """Mean losses of each setting over all held-out rows: log-loss, share of wrong sets, Hamming loss."""
    of_all_rows = auto._task(X, Y, None), folds, "log_loss", auto._Columns((), ()), 0, auto.SEARCH_TOL
    evaluate = auto._Evaluation(*of_all_rows, whole_paths=True)
    found = []
    for scores, gamma in FORMS:
        candidate = auto._Candidate(
            scores, "observed", "auto", False, gamma, auto.LINEAR_C if scores == "linear" else auto.RBF_C
        )
        paths = [evaluate((candidate, number))[0] for number in range(len(folds))]
        for parts in zip(*paths, strict=True):
            rows = np.concatenate([np.column_stack([*of_rows(part)]) for part in parts])
            found.append(rows.mean(axis=0).round(6).tolist())
    return found


def of_rows(part):
    yield -np.maximum(part.log_probs, np.log(FLOOR))
    yield (decisions.exact_match(part.distribution) != part.truth).any(axis=1)
    yield (decisions.hamming(part.distribution) != part.truth).mean(axis=1)


def table(records):
    lines = ["| data | metric | " + " | ".join(RULES) + " | the best of all settings |"]
    lines.append("| --- | --- |" + " ---: |" * (len(RULES) + 1))
    for name in NAMES:
        own = [record for record in records if record["data"] == name]
        for place, metric in enumerate(METRICS, start=1):
            outer = np.array([record["outer"] for record in own])[:, :, place]
            cells = []
            for kind, repeats in RULES.values():
                figure = place if kind == "metric" else 0
                chosen = [np.array(r["inner"])[:repeats, :, figure].mean(axis=0).argmin() for r in own]
                cells.append(outer[np.arange(len(own)), chosen])
            difference = cells[0] - cells[-1]
            cells.append(outer.min(axis=1))
            shown = [f"{100 * (1 - cell.mean()):.1f}" if place == 1 else f"{cell.mean():.4f}" for cell in cells]
            lines.append(f"| {name} | {metric} | " + " | ".join(shown) + " |")
            error = difference.std(ddof=1) * np.sqrt(1 / len(own) + 1 / (N_OUTER - 1)) if len(own) > 1 else np.nan
            scale = -100 if place == 1 else 1
            print(
                f"{name}, {metric}: log-loss beside the repeated metric {scale * difference.mean():+.4f} +- "
                f"{abs(scale) * error:.4f}",
                file=sys.stderr,
            )
        lost = [of_chosen(own, figure, 0) for figure in range(len(METRICS) + 1)]
        words = ", ".join(f"{values.mean():.3f}" for values in lost)
        print(f"{name}, log-loss of what log-loss, exact match and Hamming loss select: {words}", file=sys.stderr)
    return "\n".join(lines)


def of_chosen(records, figure, place):
    """A loss on the rows of each outer fold, of the setting that has least of a figure over one repeat."""
    chosen = [np.array(record["inner"])[0, :, figure].argmin() for record in records]
    return np.array([record["outer"][setting][place] for record, setting in zip(records, chosen, strict=True)])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("selecting.jsonl"))
