"""DataFrames in the coding of a schema."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from mlrh.data import DataError, Schema
from mlrh.data.containers import from_frame

SCHEMA = Schema(("size", "colour"), ("a",), {"colour": ("red", "green")})


@pytest.mark.parametrize("frame_of", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_columns_are_taken_by_name_and_coded_as_in_training(frame_of):
    frame = frame_of({"colour": ["green", "blue", None, "red"], "extra": [1, 2, 3, 4], "size": [1.5, None, 3.0, 4.0]})
    found = from_frame(frame, SCHEMA)
    np.testing.assert_array_equal(found.X, [[1.5, 1], [np.nan, np.nan], [3, np.nan], [4, 0]])
    assert found.Y.shape == (4, 0)


def test_missing_values_of_pandas_are_missing():
    frame = pd.DataFrame({"size": pd.array([1, pd.NA], dtype="Int64"), "colour": pd.Categorical(["red", None])})
    np.testing.assert_array_equal(from_frame(frame, SCHEMA).X, [[1, 0], [np.nan, np.nan]])


def test_a_column_that_is_missing_or_holds_text_is_named():
    with pytest.raises(DataError, match="lacks 1 of the model's features: colour"):
        from_frame(pd.DataFrame({"size": [1]}), SCHEMA)
    with pytest.raises(DataError, match="'size' of the DataFrame must hold numbers"):
        from_frame(pd.DataFrame({"size": ["large"], "colour": ["red"]}), SCHEMA)
