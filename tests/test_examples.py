"""Every script of examples/ runs at a small size and shows what it promises."""

import io
import re
import runpy
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL_SIZES = {  # arguments of main that keep a run short
    "chunks.py": {"n_rows": 400},
    "confidence.py": {"n_train": 300, "n_test": 400},
    "digits.py": {"n_train": 400, "n_test": 300},
    "hierarchy.py": {"n_train": 800, "n_test": 300},
    "neural_network.py": {"n_train": 300, "n_test": 200, "n_seeds": 2, "n_epochs": 4},
    "questions.py": {"n_train": 400, "n_test": 200},
    "stream.py": {"n_train": 600, "n_test": 300},
    "thresholds.py": {"n_train": 200, "n_test": 200},
    "unknown_labels.py": {"n_train": 800, "n_test": 300},
}


@cache
def output_of(script):
    """What the script's main prints at the small size."""
    if script == "neural_network.py":
        pytest.importorskip("torch")
    main = runpy.run_path(str(EXAMPLES / script))["main"]
    printed = io.StringIO()
    with redirect_stdout(printed):
        main(**SMALL_SIZES.get(script, {}))
    return printed.getvalue()


def digits_table():
    """{model: {column: number}} of the table that examples/digits.py prints."""
    header, *rows = output_of("digits.py").split("\n\n")[1].splitlines()
    columns = re.split(r"\s{2,}", header.strip())
    cells = [re.split(r"\s{2,}", row) for row in rows]
    return {name: dict(zip(columns, map(float, numbers), strict=True)) for name, *numbers in cells}


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example_runs_and_prints(script):
    assert output_of(script).strip()


def test_joint_models_beat_one_vs_rest_in_exact_match_even_where_it_never_answers_with_none():
    table = digits_table()
    joint = [row["exact match"] for name, row in table.items() if name.startswith("MLRH") and "Hamming" not in name]
    assert len(joint) == 3
    assert min(joint) > table["one-vs-rest LR, never empty"]["exact match"] > table["one-vs-rest LR"]["exact match"]


def test_the_decision_for_hamming_loss_has_the_lower_one():
    table = digits_table()
    assert table["MLRH linear, for Hamming"]["Hamming loss"] < table["MLRH linear"]["Hamming loss"]


def test_the_kernel_beats_the_linear_model_in_the_digits_example():
    table = digits_table()
    assert table["MLRH kernel (RBF)"]["exact match"] > table["MLRH linear"]["exact match"]


def test_only_decisions_label_by_label_answer_with_empty_sets_in_the_digits_example():
    empty = {name for name, row in digits_table().items() if row["empty"] > 0}
    assert empty == {"one-vs-rest LR", "MLRH linear, for Hamming"}


def test_marginals_of_the_digits_example_sum_to_between_one_and_three_labels():
    marginals = re.findall(r"^    \d  (0\.\d{3}|1\.000)", output_of("digits.py"), re.MULTILINE)
    assert len(marginals) == 10
    assert 1 - 0.01 <= sum(map(float, marginals)) <= 3 + 0.01


def test_a_hierarchy_is_never_broken_and_its_limits_help_in_the_hierarchy_example():
    lines = output_of("hierarchy.py").split("\n\n")[1].splitlines()[1:]
    rows = {name: list(map(float, numbers)) for name, *numbers in (re.split(r"\s{2,}", line) for line in lines)}
    assert all(row[2] == 0 for name, row in rows.items() if "hierarchy" in name or "added" in name)
    assert rows["one LR per label"][2] > 0 and rows["flat MLRH, for F1"][2] > 0
    with_limits = rows["MLRH, hierarchy, 1 to 3 leaves, for exact match"]
    assert with_limits[1] > max(row[1] for name, row in rows.items() if "hierarchy" not in name)


def test_training_on_the_known_entries_jointly_beats_separate_fits_and_zeros_in_the_example():
    lines = output_of("unknown_labels.py").split("\n\n")[1].splitlines()[1:]
    exact = {name: float(value) for name, value, _ in (re.split(r"\s{2,}", line) for line in lines)}
    assert exact["known entries, jointly"] > exact["known entries, one LR per label"] > exact["NaN filled with 0"]
    assert exact["nothing hidden"] > exact["known entries, jointly"]


def test_the_chunks_of_the_stream_example_end_where_fit_does():
    *chunks, fitted = (float(line.split()[-1]) for line in output_of("stream.py").splitlines()[1:])
    assert len(chunks) == 3 and abs(chunks[-1] - fitted) < 0.001 < fitted - chunks[0]


def confidence_table():
    """{(model, calibration): (error, error in cross validation)} of the table that examples/confidence.py prints."""
    rows = [re.split(r"\s{2,}", line) for line in output_of("confidence.py").split("\n\n")[1].splitlines()[1:]]
    return {(name, method): (float(error), float(promised)) for name, _, method, error, promised, _ in rows}


@pytest.mark.parametrize("name", ["one-vs-rest LR", "MLRH kernel (RBF)"])
def test_isotonic_confidence_has_the_lower_calibration_error_in_the_confidence_example(name):
    table = confidence_table()
    assert table[name, "isotonic"][0] < table[name, "none"][0]
    assert all(abs(error - promised) < 0.05 for (_, method), (error, promised) in table.items() if method != "none")


def test_fewer_answers_are_wrong_among_the_more_confident_in_the_confidence_example():
    shares = re.findall(r"^ +\d\.\d\d  (\d\.\d{3})   \d\.\d{3}$", output_of("confidence.py"), re.MULTILINE)
    assert len(shares) == 5 and float(shares[0]) < float(shares[2]) < float(shares[4])


def test_only_answers_label_by_label_are_empty_in_the_table_of_the_neural_network():
    lines = output_of("neural_network.py").splitlines()
    empty = {line[:30].strip() for line in lines if " ± " in line and line.split()[-6] != "0.000"}
    assert empty <= {"BCE, above 1/2", "MLRHLoss, for Hamming"}
    assert "BCE, above 1/2" in empty
