"""The page of a comparison on one file says first who wins, by how much, and whether that is more than chance."""

import numpy as np
import pytest
from experiment_samples import TINY, small_dataset
from scipy import stats
from sklearn.metrics import f1_score, label_ranking_average_precision_score
from statsmodels.stats.multitest import multipletests

from mlrh._words import fixed, impossible_note
from mlrh.experiments import _pages as pages
from mlrh.experiments import compare, read_records, to_markdown
from mlrh.experiments._methods import FAMILIES, MEANINGS
from mlrh.experiments._protocol import PROFILES, QUICK_GRIDS, Profile
from mlrh.experiments._report import Report, Section, Table, without_empty

QUICK = Profile("quick", (0,), 3, 2, QUICK_GRIDS)
FOLDS = range(5)


def record(method, fold, *, C=1.0, impossible=0.0, n_test=20, n_train=80, **metrics):
    return {
        **{"dataset": "mine", "method": method, "seed": 0, "fold": fold, "settings": {"C": C}, "n_train": n_train},
        **{"metrics": {"empty_share": 0.0, "impossible_share": impossible, **metrics}, "n_test": n_test},
        **{"fit_seconds": 1.0, "predict_seconds": 0.1, "confidence": None},
        **{"true_sizes": [0, 20], "predicted_sizes": [0, 20]},
    }


FIRST = [0.50, 0.54, 0.47, 0.52, 0.55]
SECOND = [0.45, 0.50, 0.44, 0.46, 0.52]
THIRD = [0.40, 0.55, 0.30, 0.60, 0.35]


def three_methods():
    by_name = {"MLRH-WTA (linear)": FIRST, "BR-LR": SECOND, "LP-LR": THIRD}
    return [
        record(method, fold, exact_match=exact[fold], hamming_loss=0.1)
        for method, exact in by_name.items()
        for fold in FOLDS
    ]


def corrected_p(first, other):
    """Nadeau and Bengio's test, for 5 folds: the variance of the mean is s^2 (1/5 + 1/4)."""
    differences = np.subtract(first, other)
    t = differences.mean() / (differences.std(ddof=1) * np.sqrt(1 / 5 + 1 / 4))
    return 2 * stats.t.sf(abs(t), 4)


def test_the_first_paragraph_says_who_wins_by_how_much_and_whether_it_is_chance():
    first, *others = pages.winners(three_methods())
    p = multipletests([corrected_p(FIRST, SECOND), corrected_p(FIRST, THIRD)], method="holm")[1][0]
    assert p < 0.05
    assert first == (
        "First of 3 methods by the mean over 5 folds: MLRH-WTA (linear) in exact match; MLRH-WTA (linear), LP-LR and "
        "BR-LR in Hamming loss. In exact match MLRH-WTA (linear) beats BR-LR, the best method of others, on all 5 "
        "folds; on average it is 4.20 points better (means 51.60% and 47.40%). That is more than chance (corrected "
        f"t-test, p = {p:.3f} with Holm's correction). It is ahead of 1 of the 2 others by more than chance."
    )
    assert others == [
        "In Hamming loss MLRH-WTA (linear) is level with LP-LR, the best method of others, on all 5 folds (means "
        "0.1000 and 0.1000)."
    ]


def test_a_tiny_p_is_told_as_in_the_tables_and_not_as_0():
    by_name = {"MLRH-WTA (linear)": [0.9, 0.91, 0.9, 0.91, 0.9], "BR-LR": [0.1, 0.1, 0.1, 0.1, 0.1]}
    records = [record(method, fold, exact_match=own[fold]) for method, own in by_name.items() for fold in FOLDS]
    assert next(pages.winners(records)).endswith(
        "more than chance (corrected t-test, p < 0.001 with Holm's correction)."
    )


def test_methods_of_the_same_mean_are_level_and_the_folds_they_win_are_told():
    by_name = {"MLRH-WTA (linear)": [0.5, 0.25, 0.5, 0.25, 0.5], "BR-LR": [0.25, 0.5, 0.25, 0.5, 0.5]}
    records = [record(method, fold, exact_match=own[fold]) for method, own in by_name.items() for fold in FOLDS]
    first = next(pages.winners(records))
    assert "In exact match MLRH-WTA (linear) beats BR-LR, the best method of others, on 2 of 5 folds, " in first
    assert "is level on 1 and loses on 2; on average the two are level (means 40.00% and 40.00%). That may be" in first


def test_where_others_win_the_best_of_mlrh_stands_beside_them_and_among_one_side_the_second():
    names = {"BR-LR": "MLRH-WTA (linear)", "MLRH-WTA (linear)": "BR-LR", "LP-LR": "LP-LR"}
    swapped = [{**own, "method": names[own["method"]]} for own in three_methods()]
    assert "In exact match BR-LR beats MLRH-WTA (linear), the best of mlrh, on all 5" in next(pages.winners(swapped))
    one_side = next(pages.winners([own for own in three_methods() if not own["method"].startswith("MLRH")]))
    assert one_side.startswith("First of 2 methods by the mean over 5 folds: BR-LR in exact match; ")
    assert "BR-LR beats LP-LR, the second, on 3 of 5 folds and loses on 2; on average it is 3.40 points" in one_side


def test_one_method_wins_against_nobody_and_one_fold_says_nothing_of_chance():
    alone = [own for own in three_methods() if own["method"] == "BR-LR"]
    assert list(pages.winners(alone)) == ["BR-LR is the only method that was run, so that nobody wins."]
    first = next(pages.winners([own for own in three_methods() if own["fold"] == 0]))
    assert "beats BR-LR, the best method of others, on one fold; on average it is 5.00 points better" in first
    assert first.endswith("Whether that is chance can't be told from one fold.")


def test_a_lower_loss_is_better():
    records = [
        record(method, fold, exact_match=0.5, hamming_loss=loss + 0.01 * fold)
        for method, loss in (("MLRH-WTA (linear)", 0.2), ("BR-LR", 0.1))
        for fold in FOLDS
    ]
    second = list(pages.winners(records))[1]
    assert second.startswith("In Hamming loss BR-LR beats MLRH-WTA (linear), the best of mlrh, on all 5 folds; ")
    assert "on average it is 0.1000 better (means 0.1200 and 0.2200)" in second


def test_a_note_says_where_c_is_at_an_end_of_its_grid_and_where_true_sets_are_impossible():
    records = [record("LP-LR", fold, C=0.01 if fold else 1.0, impossible=0.39, exact_match=0.5) for fold in FOLDS]
    records += [record("BR-LR", fold, C=10.0 if fold < 2 else 1.0, impossible=0.05, exact_match=0.5) for fold in FOLDS]
    edge, impossible = pages.notes_on(records, QUICK)
    words = "C was chosen at an end of its grid by LP-LR (0.01 on 4 of 5 folds); beyond it may be a better one"
    assert edge == f"{words}, which --full looks for."
    assert impossible.startswith("39% of the true sets are impossible to LP-LR, so that it can't be right there;")
    assert impossible_note(0.05, "x") == ""


def test_all_methods_with_c_at_an_end_of_the_grid_are_in_one_note():
    methods = {"MLRH-WTA (linear)": 10.0, "BR-LR": 10.0, "CorrLog": 1.0, "LP-LR": 0.01}
    records = [record(method, fold, C=C, exact_match=0.5) for method, C in methods.items() for fold in FOLDS]
    (note,) = pages.notes_on(records, QUICK)
    of_all = "MLRH-WTA (linear) (10 on 5 of 5 folds), LP-LR (0.01 on 5 of 5 folds), BR-LR (10 on 5 of 5 folds)"
    assert f"by {of_all}; beyond" in note
    (whole,) = pages.notes_on([{**own, "settings": {"C": 100.0}} for own in records], PROFILES["full"])
    assert whole.endswith("; beyond it may be a better one.")


def test_every_method_has_a_meaning():
    assert set(MEANINGS) == {name for family in FAMILIES.values() for name in family.names}


@pytest.mark.parametrize("number, written", [(-0.004, "0.00"), (-0.0, "0.00"), (-0.006, "-0.01"), (1.005, "1.00")])
def test_what_rounds_to_0_has_no_minus_sign(number, written):
    assert fixed(number, 2) == fixed(np.float64(number), 2) == written
    assert fixed(number, 2, signed=True) == (written if written.startswith("-") else f"+{written}")


def test_empty_columns_and_tables_are_left_out():
    table = Table("t", ("", "a", "b"), (("x", "", "1"), ("y", "", "")))
    blank = Table("t", ("", "a"), (("x", ""),))
    (section,) = without_empty(Report("r", (), (Section("s", (), (table, blank, Table("t", ("", "a"), ()))),))).sections
    assert section.tables == (Table("t", ("", "b"), (("x", "1"), ("y", ""))),)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    report = compare(small_dataset(n_samples=40), ["mlrh-linear", "br-svm", "br-lr", "lp-svm"], TINY, folder, n_jobs=1)
    return report, read_records(folder / "records.jsonl")


def test_the_page_begins_with_the_winner_then_says_what_the_data_are_and_ends_with_the_names(compared):
    report, _ = compared
    assert " of 4 methods by the mean over 5 folds" in report.summary[0]
    assert any(text.startswith("small: 40 rows, 4 features, 3 labels; ") for text in report.summary)
    assert report.sections[-1].title == "What the names mean"
    assert {row[0] for row in report.sections[-1].tables[0].rows} == {
        *("MLRH-WTA (linear)", "BR-SVM (RBF)", "BR-LR", "LP-SVM (RBF)")
    }
    page = to_markdown(report)
    assert "-0.00 " not in page and "| -0.0000 " not in page


def table_of(report, words):
    found = next(table for section in report.sections for table in section.tables if words in table.title)
    return {row[0]: dict(zip(found.columns[1:], row[1:], strict=True)) for row in found.rows}


def test_labels_and_rankings_are_those_of_scikit_learn(compared):
    report, records = compared
    data = small_dataset(n_samples=40)
    from mlrh.automatic import make_preprocessor
    from mlrh.estimators import MLRHClassifier

    lrap, truths, answers = [], [], []
    for own in (r for r in records if r["method"] == "MLRH-WTA (linear)"):
        train, test = data.split(5, 0, own["fold"])
        preprocessor = make_preprocessor(data.data)
        X = preprocessor.fit_transform(data.data.X[train])
        fitted = MLRHClassifier(C=own["settings"]["C"]).fit(X, data.data.Y[train])
        new = preprocessor.transform(data.data.X[test])
        lrap.append(label_ranking_average_precision_score(data.data.Y[test], fitted.predict_proba(new)))
        truths.append(data.data.Y[test])
        answers.append(fitted.predict(new))
    ranked = table_of(report, "how labels are ranked")
    assert ranked["MLRH-WTA (linear)"]["LRAP"].strip("*").split(" ")[0] == fixed(np.mean(lrap), 3)
    assert ranked["BR-SVM (RBF)"]["AUC macro"] and not ranked["LP-SVM (RBF)"]["LRAP"]
    labels = table_of(report, "F1 of each label")
    expected = f1_score(np.vstack(truths), np.vstack(answers), average=None, zero_division=0)
    for name, value, rows in zip("abc", expected, np.vstack(truths).sum(axis=0), strict=True):
        assert labels[name]["MLRH-WTA (linear)"].strip("*") == fixed(value, 3)
        assert labels[name]["rows"] == str(rows)
