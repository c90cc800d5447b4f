"""The page of the comparison on public sets says what its records say: ranks, wins, chance, and what is missing."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from mlrh.experiments import _plots as plots
from mlrh.experiments import read_records, to_html, to_markdown
from mlrh.experiments._protocol import PUBLISHED_SPLITS, SUITES
from mlrh.experiments._public_pages import against, comparison, holm, n_splits, standings_of, suite_report

SETS = list(SUITES["public"])
PUBLISHED = Path(__file__).parents[1] / "docs" / "comparison"


def records(method, name, *, exact=None, hamming=0.1, f1=0.5, log_loss=None, splits=None, **rest):
    """The records of a method on all splits of a set, or on the first ones, with the same figures."""
    measures = {"exact_match": exact, "hamming_loss": hamming, "f1_example": f1, "set_log_loss": log_loss}
    metrics = {} if exact is None else {key: value for key, value in measures.items() if value is not None}
    folds = [0] if name in PUBLISHED_SPLITS else range(5)
    shared = {"plan": "p", "dataset": name, "protocol": "public", "method": method, "metrics": metrics} | rest
    pairs = list(product(SUITES["public"][name].seeds, folds))[:splits]
    return [{**shared, "seed": seed, "fold": fold, "fit_seconds": 1.0} for seed, fold in pairs]


def table_of(report, title):
    found = next(t for section in report.sections for t in section.tables if t.title.startswith(title))
    return {row[0]: dict(zip(found.columns[1:], row[1:], strict=True)) for row in found.rows}


THREE = [
    *(records("MLRH (pooled)", "emotions", exact=0.4) + records("LP-RF", "emotions", exact=0.37)),
    *(records("MLRH (pooled)", "bibtex", exact=0.1) + records("LP-RF", "bibtex", out_of_time=900)),
    *(records("MLRH (pooled)", "flags", exact=0.2) + records("LP-RF", "flags", exact=0.25)),
    *records("BR-LR", "emotions", exact=0.3),
    *records("BR-LR", "bibtex", exact=0.2),
    *records("BR-LR", "flags", max_rows=5000),
]


def test_ranks_are_means_over_sets_and_out_of_time_or_too_many_rows_is_last():
    report = suite_report(THREE)
    rows = table_of(report, "Exact match, %")
    assert {name: row["mean rank"] for name, row in rows.items()} == {
        "MLRH (pooled)": "1.67",  # 1, 2, 2
        "BR-LR": "2.33",  # 3, 1, 3
        "LP-RF": "2.00",  # 2, 3, 1
    }
    assert list(rows) == ["MLRH (pooled)", "LP-RF", "BR-LR"]
    assert rows["LP-RF"]["bibtex"] == "out of time" and rows["BR-LR"]["flags"] == "over 5,000 rows"
    assert rows["LP-RF"]["flags"] == "**25.00**" and rows["MLRH (pooled)"]["flags"] == "20.00"


def test_the_first_paragraph_says_who_wins_and_by_how_much_and_the_page_where_it_loses():
    report = suite_report(THREE)
    assert report.summary[0].startswith("First by mean rank over 3 sets: MLRH (pooled) in exact match, ")
    assert (
        "the best method of others is LP-RF with 2.00, 1.00 points ahead on average: it loses on 2, ties on 0 and wins "
        "on 1. Whether that is chance can't be told from so few sets; the test needs 6." in report.summary[0]
    )
    assert (
        report.sections[0].figures[0].svg.count("<svg") == 1
        and "ranks by exact match" in report.sections[0].figures[0].svg
    )
    losses = next(s for s in report.sections if s.title == "More than chance?").paragraphs[1]
    assert losses == (
        "By exact match MLRH (pooled) is beaten on 2 of 3 sets: flags (LP-RF 25.00, MLRH (pooled) 20.00); bibtex "
        "(BR-LR 20.00, MLRH (pooled) 10.00)."
    )


def test_where_another_method_is_first_the_best_of_mlrh_is_named_beside_it():
    both = [
        r
        for name in SETS
        for m, exact in (("LP-RF", 0.5), ("MLRH (boosted)", 0.4))
        for r in records(m, name, exact=exact)
    ]
    words = suite_report(both).summary[0]
    assert "LP-RF in exact match" in words
    assert "the best of mlrh is MLRH (boosted) with 2.00, 10.00 points behind on average: it loses on 10" in words
    assert "That is more than chance (p = 0.002)." in words


def test_p_is_that_of_wilcoxons_test_and_holms_correction_that_of_statsmodels():
    random = np.random.RandomState(0)
    exact = {method: random.uniform(0.2, 0.6, 10) for method in ("MLRH (pooled)", "LP-RF", "BR-LR", "ML-kNN")}
    exact["MLRH (pooled)"] += 0.2
    every = [
        r
        for m, own in exact.items()
        for name, value in zip(SETS, own, strict=True)
        for r in records(m, name, exact=value)
    ]
    found = comparison(standings_of(every), "exact_match")
    assert found.methods[0] == "MLRH (pooled)" and found.sets == SETS
    plain = []
    for place, method in enumerate(found.methods[1:], start=1):
        gains = exact["MLRH (pooled)"] - exact[method]
        wins, ties, losses, mean, p = against(found, 0, place)
        assert (wins, ties, losses) == ((gains > 0).sum(), 0, (gains < 0).sum())
        assert (mean, p) == pytest.approx((gains.mean(), stats.wilcoxon(gains).pvalue))
        plain.append(p)
    np.testing.assert_allclose(holm(plain), multipletests(plain, method="holm")[1])
    table = table_of(suite_report(every), "Exact match, %: MLRH (pooled)")
    assert [float(row["p"]) for row in table.values()] == pytest.approx(holm(plain), abs=5e-4)


def test_holms_correction_never_falls_and_ends_at_one():
    p_values = [0.04, 0.01, 0.5, 0.011, 0.03]
    np.testing.assert_allclose(holm(p_values), multipletests(p_values, method="holm")[1])
    assert holm([0.9, 0.8]).tolist() == [1.0, 1.0] and holm([]).tolist() == []


def test_a_method_that_is_last_loses_by_more_than_any_other_difference_and_two_that_are_last_tie():
    found = comparison(standings_of(THREE), "exact_match")
    pooled, forest, separate = (found.methods.index(m) for m in ("MLRH (pooled)", "LP-RF", "BR-LR"))
    assert against(found, pooled, forest)[:4] == (2, 0, 1, pytest.approx(-0.01))
    assert against(found, forest, separate)[:4] == (2, 0, 1, pytest.approx(0.07))
    last = [*records("MLRH (pooled)", "bibtex", exact=0.5)]
    last += [r for m in ("LP-RF", "BR-LR") for r in records(m, "bibtex", out_of_time=900)]
    last += [r for m in ("MLRH (pooled)", "LP-RF", "BR-LR") for r in records(m, "flags", exact=0.5)]
    found = comparison(standings_of(last), "exact_match")
    assert against(found, 1, 2)[:3] == (0, 2, 0) and against(found, 1, 2)[4] == 1.0


def test_sets_that_some_method_has_not_finished_are_not_ranked_and_are_named():
    some = THREE + records("MLRH (pooled)", "medical", exact=0.7) + records("LP-RF", "medical", exact=0.6, splits=4)
    report = suite_report(some)
    rows = table_of(report, "Exact match, %")
    assert rows["LP-RF"]["medical"] == "60.00 (4 of 10)" and rows["MLRH (pooled)"]["medical"] == "**70.00**"
    assert rows["LP-RF"]["mean rank"] == "2.00"
    (words,) = [sentence for sentence in report.summary if sentence.startswith("Not finished yet")]
    assert "medical: BR-LR, LP-RF (4 of 10 splits)" in words and "scene: all methods" in words and "flags" not in words
    assert any(sentence.startswith("Not run yet on any set: MLRH (linear, cardinality)") for sentence in report.summary)


def test_without_a_set_that_all_have_finished_nobody_is_ranked():
    report = suite_report(records("LP-RF", "medical", exact=0.6, splits=4))
    assert report.summary[0] == "No set is finished by all methods yet, so that nobody is ranked."
    assert table_of(report, "Exact match, %")["LP-RF"]["mean rank"] == ""
    with pytest.raises(ValueError, match="There is no record of the comparison on public sets yet"):
        suite_report([])


def test_log_loss_is_compared_among_methods_that_give_it_on_every_set():
    some = [r for name in ("flags", "cal500") for r in records("MLRH (pooled)", name, exact=0.5, log_loss=2.0)]
    some += [r for name in ("flags", "cal500") for r in records("LP-RF", name, exact=0.4, log_loss=3.0)]
    some += [r for name in ("flags", "cal500") for r in records("BR-SVM", name, exact=0.3)]
    some += records("CorrLog", "flags", exact=0.3, log_loss=1.0) + records("CorrLog", "cal500", exact=0.3)
    assert comparison(standings_of(some), "set_log_loss").methods == ["MLRH (pooled)", "LP-RF"]
    rows = table_of(suite_report(some), "Log-loss of the set")
    assert rows["CorrLog"]["flags"] == "**1.000**" and rows["CorrLog"]["mean rank"] == ""


def test_of_two_records_of_a_split_the_later_one_counts():
    twice = records("LP-RF", "bibtex", exact=0.3) + [{**r, "plan": "q"} for r in records("LP-RF", "bibtex", exact=0.4)]
    assert standings_of(twice)["bibtex"]["LP-RF"].means["exact_match"] == 0.4


def test_named_in_the_figure_of_time_are_the_methods_that_no_other_beats_in_both():
    points = [("fast", 0.01, 20.0), ("good", 10.0, 40.0), ("between", 1.0, 30.0), ("beaten", 2.0, 29.0)]
    svg = plots.scatter_plot(points, title="time", across="seconds", up="exact match, %")
    assert all(f">{name}</text>" in svg for name in ("fast", "good", "between"))
    assert ">beaten</text>" not in svg and "beaten: 2, 29.000" in svg


def test_the_splits_are_five_seeds_two_seeds_or_the_published_one():
    assert {n_splits(name) for name in ("emotions", "scene", "yeast")} == {25}
    assert {n_splits(name) for name in ("birds", "medical", "flags", "cal500")} == {10}
    assert {n_splits(name) for name in PUBLISHED_SPLITS} == {1} and len(SETS) == 10


def test_the_published_page_is_what_the_published_records_say():
    report = suite_report(read_records(PUBLISHED / "records.jsonl"))
    written = (PUBLISHED / "report.md").read_text(encoding="utf-8")
    assert to_markdown(report).split("Made by")[0] == written.split("Made by")[0]
    page = (PUBLISHED / "report.html").read_text(encoding="utf-8")
    assert to_html(report).split("Made by")[0] == page.split("Made by")[0]
