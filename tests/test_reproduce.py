"""The whole reproduction on little data: every table is there, and what is missing is said."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from experiment_samples import TINY, small_dataset

from mlrh.experiments import FAMILIES, PROFILES, compare, paper_datasets, read_records, reproduce, to_html, to_markdown
from mlrh.experiments import _reproduce as module


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """Neither a folder nor a network: downloads go to a port where nobody listens."""
    monkeypatch.delenv("MLRH_DATA", raising=False)
    monkeypatch.setenv("MLRH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("mlrh.data._catalogue.BASE_URL", "http://127.0.0.1:9/")


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """The folder and the report of a whole reproduction."""
    folder = tmp_path_factory.mktemp("reproduction")
    return folder, reproduce([small_dataset()], TINY, folder, left=["scene: not here"], n_jobs=1)


def again(reproduced, tmp_path, monkeypatch, **options):
    """The report of the same records, of which nothing may be computed."""
    shutil.copy(reproduced[0] / "records.jsonl", tmp_path)
    monkeypatch.setattr(module, "run_task", None)  # would fail if called
    return reproduce([small_dataset()], TINY, tmp_path, n_jobs=1, **options)


def test_the_report_holds_every_table_and_a_second_run_computes_nothing(reproduced, tmp_path, monkeypatch):
    folder, report = reproduced
    titles = [table.title for section in report.sections for table in section.tables]
    for title in ("Table 7: small", "Table 5", "Table 6", "Table 1. The", "Table 2. Its", "Solvers", "paired"):
        assert any(title in found for found in titles), title
    assert sum(title == "Table 7: small" for title in titles) == 2
    assert "Left out: scene: not here" in report.summary
    assert report.closing[3] == "Better than the best figure of the paper: it has none for these data."
    markdown, page = to_markdown(report), to_html(report)
    assert "98.02" in markdown and "98.02" in page
    assert page.count("<svg") == 5
    records = read_records(folder / "records.jsonl")
    assert len({(r["dataset"], r["protocol"], r["method"], r["seed"], r["fold"]) for r in records}) == len(records)
    assert to_markdown(again(reproduced, tmp_path, monkeypatch, left=["scene: not here"])) == markdown


def test_without_folder_and_network_the_digit_scenes_stand_in_and_both_ways_out_are_said(no_data):
    found, left = paper_datasets(["scene", "emotions"])
    assert [dataset.name for dataset in found] == ["digits"]
    assert [sentence.split(":")[0] for sentence in left] == ["scene", "emotions"]
    for sentence in left:
        assert "MLRH_DATA" in sentence and "--data-dir" in sentence and "http" in sentence


@pytest.mark.skipif(not os.environ.get("MLRH_DATA"), reason="set MLRH_DATA to a folder with the public data sets")
def test_the_published_report_is_what_the_published_records_say(tmp_path, monkeypatch):
    published = Path(__file__).parents[1] / "docs" / "reproduction"
    shutil.copy(published / "records.jsonl", tmp_path)
    monkeypatch.setattr(module, "run_task", None)  # nothing is left to be computed
    datasets, left = paper_datasets(["scene", "emotions"])
    report = reproduce(datasets, PROFILES["full"], tmp_path, left=left, n_jobs=1)
    assert report.closing == (
        "Reproduced: Tables 1, 2, 5, 6 and 7 on scene and emotions, beside the paper's figures.",
        "MLRH-WTA (RBF), exact match, nested: scene 75.6% (paper 72.6%), emotions 30.5% (paper 33.4%).",
        "The same, tuned as the paper says: scene 74.6% (paper 72.6%), emotions 31.6% (paper 33.4%).",
        "Better than the best figure of the paper: scene 75.6% by MLRH-WTA (RBF) (paper 72.6%), emotions 36.6% by "
        "MLRH-WTA (RBF, observed) (paper 33.4%).",
        f"The report: {tmp_path / 'report.html'}",
    )
    written = (published / "report.md").read_text(encoding="utf-8")
    assert to_markdown(report).split("Made by")[0] == written.split("Made by")[0]


def test_a_comparison_says_which_methods_fail_shows_the_others_and_without_any_is_an_error(tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("it can't take this")

    monkeypatch.setitem(FAMILIES, "br-lr", replace(FAMILIES["br-lr"], outcomes=broken))
    report = compare(small_dataset(), ("br-lr", "mlrh-linear"), TINY, tmp_path, n_jobs=1)
    assert sum("ValueError: it can't take this" in sentence for sentence in report.summary) == 5
    assert [row[0] for row in report.sections[0].tables[0].rows] == ["MLRH-WTA (linear)"]
    reason = "No method could be run: BR-LR on small, seed 0, fold 0: ValueError: it can't"
    with pytest.raises(ValueError, match=reason):
        compare(small_dataset(), ("br-lr",), TINY, tmp_path, n_jobs=1)


def test_without_statsmodels_table_5_has_the_other_programs_and_one_sentence(reproduced, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "available_programs", lambda: ["mm", "scikit-learn"])
    report = again(reproduced, tmp_path, monkeypatch)
    assert [sentence for sentence in report.summary if "statsmodels" in sentence] == [
        "Left out: statsmodels in Table 5 is not installed; run: pip install statsmodels"
    ]
    (table,) = next(section.tables for section in report.sections if section.title.startswith("Table 5"))
    assert table.rows[2][2] == ""
