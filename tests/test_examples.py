"""Every script of examples/ runs at a small size and shows what it promises."""

import io
import re
import runpy
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL_SIZES = {"digits.py": {"n_train": 400, "n_test": 300}}  # arguments of main that keep a run short


@cache
def output_of(script):
    """What the script's main prints at the small size."""
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


def test_every_model_of_the_digits_example_beats_one_vs_rest_in_exact_match():
    table = digits_table()
    reference = table.pop("one-vs-rest LR")
    assert len(table) == 3
    assert all(row["exact match"] > reference["exact match"] for row in table.values())


def test_the_kernel_beats_the_linear_model_in_the_digits_example():
    table = digits_table()
    assert table["MLRH kernel (RBF)"]["exact match"] > table["MLRH linear"]["exact match"]


def test_only_one_vs_rest_answers_with_empty_sets_in_the_digits_example():
    assert {name for name, row in digits_table().items() if row["empty"] > 0} == {"one-vs-rest LR"}


def test_marginals_of_the_digits_example_sum_to_between_one_and_three_labels():
    marginals = re.findall(r"^    \d  (0\.\d{3}|1\.000)", output_of("digits.py"), re.MULTILINE)
    assert len(marginals) == 10
    assert 1 - 0.01 <= sum(map(float, marginals)) <= 3 + 0.01
