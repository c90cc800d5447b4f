"""CSV and Parquet files give the cells that pandas gives; faults are named by line and column."""

import sys
from pathlib import Path

import data_files
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlrh.data._readers import read, write
from mlrh.data.containers import DataError, MultilabelData, Schema

CSV = 'a,"b, c",y1,colour,y2\n1.5,2,0,red,1\n,-1e3,1,"dark, ""blue""",0\nnan,4,1,,1\n'


def save(folder, text, name="toy.csv"):
    return data_files.save(folder, text, name)


def save_frame(folder, suffix, columns):
    path, frame = folder / f"toy.{suffix}", pd.DataFrame(columns)
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, index=False)
    return path


def save_table(folder, columns):
    path = folder / "toy.parquet"
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path)
    return path


def test_csv_columns_are_numbers_codes_and_labels(tmp_path):
    data = read(save(tmp_path, CSV), ["y2", "y1"])
    np.testing.assert_array_equal(data.X, [[1.5, 2, 0], [np.nan, -1000, 1], [np.nan, 4, np.nan]])
    assert data.Y.tolist() == [[1, 0], [0, 1], [1, 1]] and data.label_names == ("y2", "y1")
    assert data.feature_names == ("a", "b, c", "colour")
    assert data.categories == {"colour": ("red", 'dark, "blue"')}


def test_numbers_are_those_that_pandas_reads(tmp_path):
    numbers = np.random.RandomState(0).standard_normal((50, 3)) * 10.0 ** np.arange(-150, 150, 100)
    path = tmp_path / "toy.csv"
    pd.DataFrame(numbers, columns=list("abc")).assign(y=1).to_csv(path, index=False)
    data = read(path, ["y"])
    assert np.array_equal(data.X, numbers)
    np.testing.assert_allclose(data.X, pd.read_csv(path)[list("abc")].to_numpy(), rtol=1e-15)


@pytest.mark.parametrize("delimiter", [";", "\t", ",", "|"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_delimiter_byte_order_mark_and_line_ends_are_found_by_content(tmp_path, delimiter, mark, end):
    rows = [["a", '"text; x,y;\tz"', "y"], ["1", '"p;q,r;\ts"', "0"], ["2", "plain", "1"]]
    text = end.join(delimiter.join(row) for row in rows)
    data = read(save(tmp_path, mark + text.encode()), ["y"])
    assert data.feature_names == ("a", "text; x,y;\tz")
    assert data.categories == {"text; x,y;\tz": ("p;q,r;\ts", "plain")}
    assert data.X[:, 0].tolist() == [1, 2] and data.Y.ravel().tolist() == [0, 1]


@pytest.mark.filterwarnings("ignore:.*that count as missing:UserWarning")
def test_words_for_missing_values_among_numbers_are_those_of_pandas_and_some_more(tmp_path):
    words = ["NA", "N/A", "n/a", "nan", "NaN", "null", "NULL", "None", "", "#N/A", "<NA>"]
    path = save(tmp_path, "a,y\n" + "".join(f"{word},0\n" for word in [*words, "1.5"]))
    data = read(path, ["y"])
    np.testing.assert_array_equal(data.X[:, 0], pd.read_csv(path)["a"].to_numpy())
    path = save(tmp_path, "a,b,y\n?,?,0\n-,?,0\n na ,?,1\n2,?,1\n")
    np.testing.assert_array_equal(read(path, ["y"]).X, [[np.nan] * 2] * 3 + [[2, np.nan]])


def test_words_for_missing_values_among_other_words_are_values(tmp_path):
    data = read(save(tmp_path, "country,y\nNA,0\nDE,1\nZA,1\n,1\n"), ["y"])
    assert data.categories == {"country": ("NA", "DE", "ZA")}


@pytest.mark.filterwarnings("ignore:.*that count as words:UserWarning")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_the_line_in_which_excel_names_the_delimiter_is_no_header(tmp_path, end, quote):
    text = end.join([f"{quote}sep=;{quote}", "a,b;y", "1;0", "x,y;2"])
    data = read(save(tmp_path, text.replace("2", "1")), ["y"])
    assert data.feature_names == ("a,b",) and data.categories == {"a,b": ("1", "x,y")}
    with pytest.raises(DataError, match="line 4: column 'y' must be 0 or 1"):
        read(save(tmp_path, text), ["y"])


def test_a_first_line_of_whole_numbers_is_names_with_a_warning(tmp_path):
    path = save(tmp_path, "5,1,0\n2,3,1\n")
    with pytest.warns(UserWarning, match="toy.csv: the first line holds whole numbers only, taken as names"):
        data = read(path, ["0"])
    assert data.feature_names == ("5", "1")
    assert read(path, schema=data.schema).X.tolist() == [[2, 3]]


MODEL = Schema(("a", "colour"), ("y", "z"), {"colour": ("red", "7", "NA")})


@pytest.mark.filterwarnings("ignore:.*that count as missing:UserWarning")
def test_new_rows_are_read_by_the_types_of_the_schema(tmp_path):
    text = ",colour,note,note,a,y,z\n0,7,1,x,NA,1,0\n1,7.0,2,5,3,0,1\n2,NA,3,5,4,0,1\n3,?,3,5,-,0,1\n"
    data = read(save(tmp_path, text), schema=MODEL)
    np.testing.assert_array_equal(data.X, [[np.nan, 1], [3, 1], [4, 2], [np.nan, np.nan]])
    assert data.schema == MODEL and data.Y.tolist() == [[1, 0], [0, 1], [0, 1], [0, 1]]
    for wrong, message in (
        ("a,colour\n1,7\nb,7\nc,7\n", "line 3: column 'a' must be a number; found 'b'"),
        ("a;colour\n1,5;7\n", "line 2: column 'a' must have decimal points"),
        ("a,a,colour\n1,5,7\n", "two columns are called 'a'"),
    ):
        with pytest.raises(DataError, match=message):
            read(save(tmp_path, wrong), (), schema=MODEL)


def test_a_feature_with_another_value_in_every_row_stays_where_the_schema_names_it(tmp_path):
    values = tuple(f"v{row}" for row in range(30))
    text = "s,y\n" + "".join(f"{value},1\n" for value in values)
    data = read(save(tmp_path, text), schema=Schema(("s",), ("y",), {"s": values[::-1]}))
    assert data.X[:, 0].tolist() == list(range(29, -1, -1))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_nominal_values_that_the_schema_does_not_know_are_missing_with_one_warning(tmp_path, suffix):
    columns = {"a": [1, 2, 3], "colour": ["RED", "red", "blue"], "shape": ["x", "x", "round"]}
    path = save_frame(tmp_path, suffix, columns)
    schema = Schema(("shape", "colour"), (), {"colour": ("blue", "red"), "shape": ("round", "square")})
    told = r"column 'colour' in 1 of 3 rows \(first: 'RED'\), column 'shape' in 2 of 3 rows \(first: 'x'\)\."
    with pytest.warns(UserWarning, match=rf"toy.{suffix}: values that the model doesn't know .*: {told}$") as caught:
        data = read(path, (), schema=schema)
    assert len(caught) == 1
    np.testing.assert_array_equal(data.X, [[np.nan, np.nan], [np.nan, 1], [0, 0]])


def test_parquet_columns_that_the_schema_does_not_name_may_have_any_type(tmp_path):
    time = pd.to_datetime(["2020-01-01", "2020-01-02"])
    columns = {"time": time, "list": [[1], [2]], "colour": [7.0, None], "a": [1, 2], "y": [1, 0], "z": [True, False]}
    data = read(save_table(tmp_path, columns), schema=MODEL)
    np.testing.assert_array_equal(data.X, [[1, 1], [2, np.nan]])
    assert data.Y.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("index", ["__index_level_0__", "patient"])
def test_the_index_of_a_pandas_table_is_no_feature(tmp_path, index):
    frame = pd.DataFrame({"a": [1.0, 2, 3, 4], "y": [0, 1, 1, 0]}).iloc[[2, 0, 3]]
    path = tmp_path / "toy.parquet"
    (frame if index[0] == "_" else frame.rename_axis(index)).to_parquet(path)
    assert index in pq.read_table(path).column_names
    with pytest.warns(UserWarning, match=f"column '{index}' is the index of a pandas table and was dropped"):
        data = read(path, ["y"])
    assert data.feature_names == ("a",) and data.X.tolist() == [[3], [1], [4]]


def test_a_default_index_of_pandas_takes_no_column_and_gives_no_warning(tmp_path):
    pd.DataFrame({"a": [1.0, 2], "y": [0, 1]}).to_parquet(tmp_path / "toy.parquet")
    assert read(tmp_path / "toy.parquet", ["y"]).feature_names == ("a",)


def test_labels_of_a_csv_file_may_be_words(tmp_path):
    data = read(save(tmp_path, "a,p,q,r\n1,True,yes,1.0\n2,false,NO,0\n"), ["p", "q", "r"])
    assert data.Y.tolist() == [[1, 1, 1], [0, 0, 0]]


def test_an_identifier_is_a_text_column_with_another_value_in_each_of_more_than_20_rows(tmp_path):
    def text(n_rows):
        return "id,a,y\n" + "".join(f"row{row},{row / 2},{row % 2}\n" for row in range(n_rows))

    assert read(save(tmp_path, text(20)), ["y"]).feature_names == ("id", "a")
    with pytest.warns(UserWarning, match="column 'id' has another value in every row"):
        data = read(save(tmp_path, text(21)), ["y"])
    assert data.feature_names == ("a",) and data.categories == {}
    assert data.X[:, 0].tolist() == [row / 2 for row in range(21)]


def test_the_line_counts_line_breaks_inside_quotes(tmp_path):
    text = 'a,b,y\n"two\nlines",1,0\n"three\r\nlines\nhere",x,1\nlast,3,1\nz,4,1\n'
    with pytest.raises(DataError, match=r"toy.csv, line 4: column 'b' must be a number; found 'x'"):
        read(save(tmp_path, text), ["y"])


FAULTS = {
    "typo": ("a,y\n1,0\n2,1\n1.2x,1\n", "line 4: column 'a' must be a number; found '1.2x'"),
    "infinite": ("a,y\n1,0\ninf,1\n", "line 3: column 'a' must be finite; found 'inf'"),
    "decimal comma": ("a;y\n1,5;0\n2,5;1\n", "line 2: column 'a' must have decimal points, not commas; found '1,5'"),
    "cut row": ("a,b,y\n1,2,0\n1,2\n", "line 3: found 2 cells where the header names 3 columns"),
    "long row": ("a,y\n1,0\n1,0,1\n", "line 3: found 3 cells where the header names 2 columns"),
    "open quote": ('a,y\n1,0\n"2,1\n', "line 3: can't be split into cells .* is a quote not closed"),
    "text after quote": ('a,y\n"1"x,0\n', "line 2: can't be split into cells"),
    "same name": ("a,a,y\n1,2,0\n", "line 1: two columns are called 'a'"),
    "no name": (",a,y\n0,1,0\n", "line 1: column 1 has no name"),
    "no header": ("1.5,2,0\n1,2,1\n", "line 1: the first line must hold the names of the columns"),
    "header only": ("a,y\n", "has no rows"),
    "label 2": ("a,y\n1,0\n1,2\n", "line 3: column 'y' must be 0 or 1; found '2'"),
    "missing label": ("a,y\n1,0\n1,\n", "line 3: column 'y' has no value; a label must be 0 or 1"),
    "no such label": ("a,z\n1,0\n", "has no column 'y', which the list of labels names as a label; it has 'a', 'z'."),
    "no such label, but one like it": ("a,yy\n1,0\n", "names as a label; did you mean 'yy'?"),
    "decimal commas": ("a;y\n1,5E-05;0\n2,5;1\n", "line 2: column 'a' must have decimal points, not commas"),
    "thousands": ("a;y\n3,5;0\n1.234,5;1\n", "line 2: column 'a' must have decimal points, not commas; found '3,5'"),
    "thousands only": ("a;y\n1.234.567;0\n2.345.678;1\n", "line 2: column 'a' must be plain numbers such as 1234.5"),
    "percent": ("a,y\n10%,0\n20 %,1\n", "line 2: column 'a' must be plain numbers such as 1234.5; found '10%'"),
    "money": ("a,y\nNA,0\n$5,1\n-$7.50,1\n", "line 3: column 'a' must be plain numbers .* found '\\$5'"),
    "comma and NA": ("a;y\nNA;0\n1,5;1\n", "line 3: column 'a' must have decimal points, not commas; found '1,5'"),
    "typo among NA": ("a,y\nNA,0\n?,1\n1,0\n2,0\n1.2x,1\n", "line 6: column 'a' must be a number; found '1.2x'"),
    "latin-1": (b"a,y\n1,0\n\xe9,0\n", "line 3: byte 0xe9 is not UTF-8; convert"),
    "NUL": (b"a,y\n1\x00,0\n", "line 2: a NUL byte is no text"),
    "blank": ("\n\n", "has no rows"),
}


@pytest.mark.parametrize("text, message", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_a_csv_file_is_one_sentence_with_file_and_line(tmp_path, text, message):
    data_files.assert_refused(save(tmp_path, text), ["y"], message)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_without_named_labels_are_an_error_that_says_how(tmp_path, suffix):
    path = save_frame(tmp_path, suffix, {"a": [1.0], "y": [1]})
    with pytest.raises(DataError, match=rf"toy.{suffix}: nothing says which columns .*; .*--labels, or labels= in"):
        read(path)
    assert read(path, ()).X.tolist() == [[1, 1]]


def test_parquet_columns_of_pandas_are_numbers_codes_and_labels(tmp_path):
    columns = {
        **{"i": [1, 2, 3], "f": [0.5, None, -1.5], "b": [True, False, True], "s": ["red", None, "blue"]},
        **{"c": pd.Categorical(["x", "z", None], categories=["z", "y", "x"]), "n": [None, None, None]},
        **{"y": [0, 1, 1], "z": [True, False, True], "w": ["no", "yes", "no"]},
    }
    data = read(save_frame(tmp_path, "parquet", columns), ["z", "y", "w"])
    nan = np.nan
    np.testing.assert_array_equal(data.X, [[1, 0.5, 1, 0, 2, nan], [2, nan, 0, nan, 0, nan], [3, -1.5, 1, 1, nan, nan]])
    assert data.categories == {"s": ("red", "blue"), "c": ("z", "y", "x")}
    assert data.Y.tolist() == [[1, 0, 0], [0, 1, 1], [1, 1, 0]]


PARQUET_FAULTS = {
    "label 2": ({"a": [1.0, 2.0], "y": [1, 2]}, "row 2, column 'y' must be 0 or 1; found '2.0'"),
    "missing label": ({"a": [1.0, 2.0], "y": [1, None]}, "row 2, column 'y' has no value"),
    "infinite": ({"a": [1.0, np.inf], "y": [1, 0]}, "row 2, column 'a' must be finite"),
    "list": ({"a": [[1.0], [2.0]], "y": [1, 0]}, "column 'a' has the type list"),
    "duration": ({"a": pd.to_timedelta(["1 day"]), "y": [1]}, "column 'a' has the type duration"),
    "no rows": ({"a": pa.array([], pa.float64()), "y": pa.array([], pa.int8())}, "has no rows"),
    "no such label": ({"a": [1.0]}, "has no column 'y', which the list of labels names"),
    "same name": (pa.table([[1], [2], [1]], names=["a", "a", "y"]), "two columns are called 'a'"),
}


@pytest.mark.parametrize("columns, message", PARQUET_FAULTS.values(), ids=PARQUET_FAULTS)
def test_a_fault_of_a_parquet_file_is_one_sentence_with_the_row(tmp_path, columns, message):
    data_files.assert_refused(save_table(tmp_path, columns), ["y"], message)


@pytest.mark.parametrize("cut", [8, 40, -1, -9])
def test_a_truncated_parquet_file_is_an_error(tmp_path, cut):
    path = save_table(tmp_path, {"a": [1.0, 2.0], "y": [1, 0]})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"toy.parquet: is not a readable Parquet file"):
        read(path, ["y"])


def test_csv_needs_no_pyarrow_and_parquet_says_how_to_install_it(tmp_path, monkeypatch):
    path = save_table(tmp_path, {"a": [1.0], "y": [1]})
    for module in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, module, None)  # an import of None is an ImportError
    assert read(save(tmp_path, "a,y\n1,1\n"), ["y"]).Y.tolist() == [[1]]
    with pytest.raises(DataError, match="need pyarrow, which is not installed; run: pip install pyarrow"):
        read(path, ["y"])


def test_a_label_column_of_a_parquet_file_without_any_value_is_named(tmp_path):
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": pa.nulls(2)}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet.*row 1, column 'y'"):
        read(tmp_path / "a.parquet", ["y"])


def test_parquet_metadata_whose_column_is_called_by_a_number_are_refused():
    path = Path(__file__).parent / "fuzz" / "corpus" / "readers" / "path-is-a-number.parquet"
    with pytest.raises(DataError, match="the metadata at its end are damaged"):
        read(path, ["y", "z"])


def test_only_columns_whose_values_repeat_are_written_as_dictionaries(tmp_path):
    rng, n_rows = np.random.RandomState(0), 5000
    X = np.column_stack([rng.normal(size=n_rows), rng.randint(9, size=n_rows), np.full(n_rows, np.nan)])
    data = MultilabelData(
        X, rng.randint(2, size=(n_rows, 1)).astype(np.int8), ("measured", "few", "none"), ("y",), "toy"
    )
    write(data, tmp_path / "toy.parquet")
    group = pq.read_metadata(tmp_path / "toy.parquet").row_group(0)
    chunks = [group.column(column) for column in range(4)]
    assert {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page} == {"few", "none", "y"}
    np.testing.assert_array_equal(read(tmp_path / "toy.parquet", ["y"]).X, X)
