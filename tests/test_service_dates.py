"""Dates in requests to the service of a model."""

import json

import pytest

from mlrh.data import Schema
from mlrh.web._shapes import Shapes

SHAPES = Shapes(Schema(("posted", "x"), ("a", "b"), dates=("posted",)), max_rows=10)


def sent(*dates):
    return SHAPES.read("/predict", json.dumps({"rows": [{"posted": own, "x": 1.5} for own in dates]}).encode())


def test_dates_and_missing_ones_are_taken_as_they_are():
    dates = ["2024-03-31", "31.3.2024", "2024-03-31 18:05", None]
    assert [row["posted"] for row in sent(*dates)["rows"]] == dates


@pytest.mark.parametrize("wrong", ["yesterday", "03/04/2024", "2024-02-30", ""])
def test_a_wrong_date_is_told_by_row_and_column(wrong):
    with pytest.raises(ValueError, match="Row 2, column 'posted' must be a date such as 2024-03-31") as raised:
        sent("2024-03-31", wrong)
    assert str(raised.value).endswith(f"or null where it is missing; found {wrong!r}.")
