"""Tables of a report: the cells are the numbers of the records beside the paper's."""

from itertools import product

import numpy as np
import pytest

from mlrh.experiments import _pages as pages
from mlrh.experiments._protocol import QUICK_GRIDS, Profile
from mlrh.experiments._reproduce import digit_scenes, multiclass_datasets

TWO_SEEDS = Profile("quick", (0, 1), 3, 2, QUICK_GRIDS)


def nested_record(method, fold, exact, hamming, *, seed=0, dataset="scene", log_loss=None):
    metrics = {"exact_match": exact, "hamming_loss": hamming, "empty_share": 0.0}
    metrics |= {} if log_loss is None else {"set_log_loss": log_loss, "impossible_share": 0.01}
    return {
        **{"dataset": dataset, "method": method, "seed": seed, "fold": fold, "metrics": metrics},
        **{"settings": {"C": 10.0 if fold else 1.0, "gamma": 0.3}, "fit_seconds": 1.5, "predict_seconds": 0.25},
        **{"true_sizes": [0, 90, 10], "predicted_sizes": [0, 95, 5], "n_test": 100},
        "confidence": None if log_loss is None else [[0, 0.0, 0], [100, 80.0, 75]],
    }


def records_of_two_methods():
    folds = list(product((0, 1), range(2)))
    mlrh = [
        nested_record("MLRH-WTA (RBF)", fold, 0.7 + 0.02 * fold + 0.04 * seed, 0.08, seed=seed, log_loss=1.0)
        for seed, fold in folds
    ]
    return [nested_record("BR-SVM (RBF)", fold, 0.6, 0.1, seed=seed) for seed, fold in folds] + mlrh


def rows_of(table):
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}


def test_table_7_has_ours_the_papers_and_the_difference_of_the_means():
    (section,) = pages.published_sections(records_of_two_methods(), TWO_SEEDS, protocol="nested")
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["MLRH-WTA (RBF)", "BR-SVM (RBF)"]
    deviation = 100 * np.std([0.7, 0.72, 0.74, 0.76], ddof=1)
    exact, loss = (f"**73.00 ± {deviation:.2f}**", "72.61", "+0.39"), ("**0.0800 ± 0.0000**", "0.079", "+0.001")
    assert table.rows[0][1:] == exact + loss
    assert table.rows[1][1:] == ("60.00 ± 0.00", "64.90", "-4.90", "0.1000 ± 0.0000", "0.075", "+0.025")


def test_a_method_the_paper_lacks_has_empty_cells_there():
    records = [nested_record("LP-RF", fold, 0.7, 0.1) for fold in range(2)]
    (section,) = pages.published_sections(records, TWO_SEEDS, protocol="nested")
    (table,) = section.tables
    assert table.rows[0][2:4] == ("", "")


def test_the_comparison_has_all_measures_differences_settings_and_figures():
    (section,) = pages.comparison_sections(records_of_two_methods(), TWO_SEEDS)
    measures, probabilities, differences, settings = section.tables
    assert rows_of(measures)["BR-SVM (RBF)"]["Hamming loss"] == "0.1000 ± 0.0000"
    cells = rows_of(probabilities)["MLRH-WTA (RBF)"]
    assert cells["log-loss of the set"] == "**1.000 ± 0.000**"
    assert cells["held impossible, %"] == "1.00 ± 0.00"
    assert rows_of(probabilities)["BR-SVM (RBF)"]["log-loss of the set"] == ""
    assert differences.rows[0][:2] == ("BR-SVM (RBF)", "-13.00")
    assert differences.rows[0][3] == "0/0/4"
    chosen = rows_of(settings)["BR-SVM (RBF)"]
    assert chosen["settings"] == "C: 1 (2x), 10 (2x); gamma: 0.3 (4x)"
    assert chosen["folds with the first or last of the grid"] == "C: 2 of 4"  # of 1, 10, 100; gamma has but two values
    assert chosen["folds with warnings"] == ""


def test_settings_that_are_words_are_counted_too():
    records = [nested_record("MLRH (automatic)", fold, 0.6, 0.1) | {"settings": {"model": "linear"}} for fold in (0, 1)]
    (section,) = pages.comparison_sections(records, TWO_SEEDS)
    assert rows_of(section.tables[-1])["MLRH (automatic)"]["settings"] == "model: linear (2x)"


def test_one_method_alone_has_no_differences():
    records = [nested_record("LP-RF", fold, 0.7, 0.1, dataset="mine") for fold in range(2)]
    (section,) = pages.comparison_sections(records, TWO_SEEDS)
    assert not any("differences" in table.title for table in section.tables)


def test_table_5_averages_folds_before_seeds():
    records = []
    for dataset, program, seed, fold in product(
        ("iris", "wine"), ("mm", "scikit-learn", "statsmodels"), (0, 1), (0, 1)
    ):
        metrics = {"accuracy": 0.9 + 0.1 * fold + 0.02 * seed, "n_iter": 20 * (fold + 1), "train_log_loss": 0.5}
        records.append(a_record(program, fold, seed, dataset=dataset, metrics=metrics))
    (section,) = pages.multiclass_sections(records, 2)
    (table,) = section.tables
    deviation = 100 * np.std([0.95, 0.97], ddof=1)
    assert table.rows[0][:5] == ("MM algorithm", "100", f"96.00 ± {deviation:.2f}", "98.02", "-2.02")
    assert table.rows[0][5:7] == ("30", "0.5000")


def test_table_6_is_computed_from_the_data():
    (table,) = pages.statistics_section([digit_scenes(), multiclass_datasets()[0]]).tables
    assert table.rows[0][:6] == ("digits", "", "1500", "64", "10", "3")
    assert table.rows[1][2:6] == ("150", "4", "3", "1")


@pytest.mark.parametrize("place, is_cure", [(0, False), (1, True)])
def test_tables_1_and_2_sum_to_the_model_only_where_hidden_and_visible_match(place, is_cure):
    table = pages.hidden_variable_tables()[place]
    assert table.rows[0][0] == "{1}"
    for row in table.rows[:2]:
        assert (row[-2] == row[-1]) == is_cure
    weights = [float(cell) for cell in table.rows[0][1:5]]
    assert sum(weights) == pytest.approx(float(table.rows[0][-2]), abs=2e-4)
    assert float(table.rows[0][-1]) == pytest.approx(np.exp(pages.SCORES[0]), abs=1e-4)


def test_what_is_left_out_or_failed_is_said():
    said = pages.missing(["scene: no network"], ["br-svm on mine, fold 1: out of memory"])
    assert said == ("Left out: scene: no network", "Failed: br-svm on mine, fold 1: out of memory")


def test_sections_without_records_are_left_out():
    published, compared = (
        pages.published_sections([], TWO_SEEDS, protocol="nested"),
        pages.comparison_sections([], TWO_SEEDS),
    )
    assert [*published, *compared, *pages.multiclass_sections([], 2), *pages.descent_sections([])] == []


def test_without_the_usual_reference_the_first_method_is_it():
    records = [nested_record(m, fold, exact, 0.1) for m, exact in (("LP-RF", 0.7), ("BR-LR", 0.6)) for fold in range(2)]
    (section,) = pages.comparison_sections(records, TWO_SEEDS)
    assert section.tables[2].title == "scene: paired differences to BR-LR"
    assert section.tables[2].rows[0][:2] == ("LP-RF", "+10.00")


def test_equal_means_are_all_bold_and_missing_folds_are_said():
    records = [nested_record(method, fold, 0.7, 0.1) for method in ("LP-RF", "BR-LR") for fold in range(2)]
    (section,) = pages.published_sections(records[:3], TWO_SEEDS, protocol="nested")
    names = [row[0] for row in section.tables[0].rows]
    assert names == ["BR-LR: 1 of 2 folds", "LP-RF"]
    assert all(row[1].startswith("**70.00") for row in section.tables[0].rows)


def test_folds_with_warnings_are_counted():
    records = [nested_record("LP-RF", fold, 0.7, 0.1) | {"warnings": {"ConvergenceWarning": 4}} for fold in range(2)]
    (section,) = pages.comparison_sections(records, TWO_SEEDS)
    assert section.tables[-1].rows[0][-1] == "ConvergenceWarning (2x)"


def test_captions_speak_of_the_paper_only_where_it_has_a_figure_and_of_methods_not_drawn():
    names = ("MLRH-WTA (linear)", "BR-LR", "CC-LR", "LP-RF", "ML-kNN")
    records = [
        nested_record(method, fold, 0.7, 0.1, dataset="mine", log_loss=1.0) for method in names for fold in (0, 1)
    ]
    (section,) = pages.comparison_sections(records, TWO_SEEDS)
    captions = [figure.caption for figure in section.figures]
    assert not any("paper" in caption for caption in captions)
    assert captions[2].endswith("Not drawn: ML-kNN.")
    assert "MLRH-WTA (linear)" in section.figures[2].svg


# Summaries


def a_record(method, fold, seed=0, **rest):
    return {"method": method, "seed": seed, "fold": fold, **rest}


def on_folds(values, name="exact_match", method="m"):
    return {(0, fold): a_record(method, fold, metrics={name: value}) for fold, value in enumerate(values)}


def test_records_are_grouped_by_method_and_fold():
    records = [a_record("b", 0), a_record("a", 1), a_record("b", 1, seed=2)]
    grouped = pages.by_method(records)
    assert list(grouped) == ["b", "a"]
    assert grouped["b"] == {(0, 0): records[0], (2, 1): records[2]}


def test_a_spread_has_the_sample_deviation():
    found = pages.spread([1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(7 / 3)
    assert found.deviation == pytest.approx(np.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2))
    assert pages.spread([5.0]) == pages.Spread(5.0, 0.0, 1)
    assert pages.spread([]) is None


def test_values_come_in_the_order_of_seeds_and_folds_from_metrics_or_beside_them():
    records = {
        (1, 0): a_record("m", 0, 1, metrics={"f": 3.0}, fit_seconds=0.3),
        (0, 1): a_record("m", 1, 0, metrics={"f": 2.0}, fit_seconds=0.2),
        (0, 0): a_record("m", 0, 0, metrics={"f": 1.0}, fit_seconds=0.1),
    }
    assert pages.values(records, "f").tolist() == [1.0, 2.0, 3.0]
    assert pages.values(records, "fit_seconds").tolist() == [0.1, 0.2, 0.3]
    assert pages.values(records, "absent").size == 0


def test_paired_differences_are_taken_fold_by_fold_with_the_corrected_interval():
    found = pages.paired(on_folds([0.5, 0.7, 0.6, 0.9, 0.8]), on_folds([0.4, 0.7, 0.7, 0.7, 0.7]), "exact_match")
    differences = np.array([0.1, 0.0, -0.1, 0.2, 0.1])
    assert found.mean == pytest.approx(0.06)
    # t of 4 degrees of freedom at 97.5% is 2.7764; the variance is s^2 (1/5 + 1/4).
    half = 2.7764451 * differences.std(ddof=1) * np.sqrt(0.45)
    assert (found.low, found.high) == pytest.approx((0.06 - half, 0.06 + half))
    assert found.counts == (3, 1, 1)


def test_only_folds_that_both_have_are_compared():
    other = on_folds([0.1, 0.2, 0.3])
    del other[0, 1]
    assert pages.paired(on_folds([0.5, 9.0, 0.5]), other, "exact_match").mean == pytest.approx(0.3)
    assert pages.paired(on_folds([0.5]), other, "exact_match") is None


def test_reliability_adds_up_the_bins_of_all_folds():
    records = {
        (0, 0): a_record("m", 0, confidence=[[2, 0.3, 0], [0, 0.0, 0], [4, 3.6, 4]]),
        (0, 1): a_record("m", 1, confidence=[[2, 0.1, 1], [0, 0.0, 0], [0, 0.0, 0]]),
    }
    points = pages.reliability_points(records)
    assert points == [pytest.approx((0.1, 0.25, 4)), pytest.approx((0.9, 1.0, 4))]
    assert pages.reliability_points({(0, 0): a_record("m", 0, confidence=None)}) == []


def test_shares_of_sizes_are_weighted_by_rows():
    records = {(0, 0): a_record("m", 0, true_sizes=[0, 3, 1]), (0, 1): a_record("m", 1, true_sizes=[0, 1, 0])}
    np.testing.assert_allclose(pages.size_shares(records, "true_sizes"), [0, 0.8, 0.2])
