"""One run of the benchmarks: what breaks or is interrupted leaves the rest, and the page comes from what was kept."""

import json
from pathlib import Path

import pytest

from benchmarks import machine, run, table

ROOT = Path(__file__).parents[1]
GIVEN = {"question": "q", "case": "c", "ours_s": 1.0, "competitor_s": 4.0, "ratio": 0.25, "target": 2.0}
MACHINE = machine.Machine("a machine", 2, 1, bandwidth=1e10, gemm_rate=1e11, load=0.0, versions={})


@pytest.fixture
def asked(monkeypatch):
    """run.main with the questions' answers replaced by given ones, on a machine that needs no measuring."""
    answers = {}
    monkeypatch.setattr(run, "limit_blas", lambda n_threads: None)
    monkeypatch.setattr(run, "measure", lambda blas_threads, quick: MACHINE)
    monkeypatch.setattr(run, "answer", lambda question, repeats, context: answers[question]())
    return answers


def fine(question, ratio=0.5):
    return lambda: iter([table.compared(question, "a case", ratio, "them", 1.0, target=1.0)])


def test_one_question_that_breaks_leaves_the_others(asked, tmp_path, capsys):
    asked.update({question: fine(question) for question in run.QUESTIONS})

    def fails():
        yield table.compared("growth", "first", 0.5, "them", 1.0, target=1.0)
        raise RuntimeError("no more")

    asked["growth"] = fails
    assert run.main(["--output", str(tmp_path / "a" / "b.json")]) == 1
    record = json.loads((tmp_path / "a" / "b.json").read_text())
    assert [line["question"] for line in record["lines"]].count("growth") == 2
    assert {line["question"] for line in record["lines"]} == set(run.QUESTIONS)
    assert [own["machine"]["name"] for own in record["runs"]] == ["a machine"]
    assert "NOT MEASURED: RuntimeError: no more" in " ".join(capsys.readouterr().out.split())


def test_an_interrupted_run_keeps_what_was_measured(asked, tmp_path, capsys):
    def interrupted():
        yield table.compared("inference", "first", 0.5, "them", 1.0, target=1.0)
        raise KeyboardInterrupt

    asked.update({"linear fit": fine("linear fit"), "inference": interrupted})
    options = ["--only", "linear fit", "--only", "inference", "--output", str(tmp_path / "b.json")]
    assert run.main(options) == 130
    assert [line["case"] for line in json.loads((tmp_path / "b.json").read_text())["lines"]] == ["a case", "first"]
    assert "geometric mean of 1 cases" in capsys.readouterr().out


def test_a_question_asked_anew_replaces_its_lines_in_what_was_read(asked, tmp_path, capsys):
    asked.update({"growth": fine("growth", 0.9), "one row": fine("one row", 0.4)})
    path, page = tmp_path / "b.json", tmp_path / "page.md"
    assert run.main(["--only", "growth", "--only", "one row", "--output", str(path)]) == 0
    asked["growth"] = fine("growth", 0.25)
    page.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
    assert run.main(["--read", str(path), "--only", "growth", "--output", str(path), "--write", str(page)]) == 0
    ratios = {line["question"]: line["ratio"] for line in json.loads(path.read_text())["lines"]}
    assert ratios == {"growth": 0.25, "one row": 0.4}
    assert [own["questions"] for own in json.loads(path.read_text())["runs"]] == [["one row"], ["growth"]]
    text = page.read_text()
    assert text.startswith(f"before\n{run.BEGIN}\nMeasured ") and text.endswith(f"{run.END}\nafter\n")
    assert "old" not in text and "a machine, 2 cores, copies 10.0 GB/s" in text and "| 0.25 | 1.00 | yes |" in text
    asked.clear()
    assert run.main(["--read", str(path), "--write", str(page)]) == 0  # asks nothing
    assert page.read_text() == text


def test_a_page_without_marks_is_refused_before_anything_is_measured(asked, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(SystemExit):
        run.main(["--write", str(page)])
    assert "must be a page with the marks" in capsys.readouterr().err


def test_an_earlier_run_that_is_not_there_is_said_in_a_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run.main(["--read", str(tmp_path / "nothing.json")])
    assert "must name the JSON file of an earlier run" in capsys.readouterr().err


@pytest.mark.parametrize(("gap", "passes"), [(1e-5, True), (1e-3, False)])
def test_a_script_of_its_own_is_held_to_the_same_gap(gap, passes):
    line = run.judged({**GIVEN, "ours_gap": gap, "competitor_gap": 9e-5})
    assert line.passes is passes and line.note == ""
    assert (line.ours, line.theirs, line.gap, line.their_gap) == (1.0, 4.0, gap, 9e-5)


def test_a_competitor_that_misses_the_gap_is_named_as_such():
    assert "misses the gap of 0.0001" in run.judged({**GIVEN, "ours_gap": 1e-6, "competitor_gap": 2e-4}).note


def test_the_page_holds_the_marks_and_a_measured_table():
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    measured = text.partition(run.BEGIN)[2].partition(run.END)[0]
    assert "| " + " | ".join(table.HEADS) + " |" in measured and "Measured " in measured


def test_every_question_has_a_module_that_measures_it():
    for name in run.QUESTIONS.values():
        assert (ROOT / "benchmarks" / f"{name}.py").exists()
