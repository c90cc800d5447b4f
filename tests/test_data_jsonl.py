"""JSON lines: what is read is what Python's json and pandas read; hostile files are one sentence, and cheap."""

import gzip
import io
import json
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlrh.data import DataError, read, write


class Named(io.BytesIO):
    name = "toy.jsonl"


def content_of(*records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def read_lines(*records, labels=("y",), **options):
    return read(Named(content_of(*records)), labels, **options)


def test_keys_are_columns_and_a_key_that_a_line_lacks_is_missing():
    lines = b'\xef\xbb\xbf{"a": 1, "c": "x", "y": 0}\r\n\n {"y": true, "a": -2.5e-3, "b": null} \n'
    lines += b'{"c": "z", "b": 7, "y": "no"}'
    data = read(Named(lines), ["y"])
    frame = pd.DataFrame([json.loads(line) for line in lines.decode("utf-8-sig").splitlines() if line])
    np.testing.assert_array_equal(data.X[:, [0, 2]], frame[["a", "b"]].to_numpy(float))
    assert data.feature_names == ("a", "c", "b") and data.categories == {"c": ("x", "z")}
    np.testing.assert_array_equal(data.X[:, 1], [0, np.nan, 1])
    assert data.Y.tolist() == [[0], [1], [0]]


def test_strings_that_spell_numbers_stay_words():
    data = read_lines({"zip": "01067", "y": 0}, {"zip": "1067", "y": 1})
    assert data.categories == {"zip": ("01067", "1067")}


def test_truth_values_are_numbers_and_nan_is_missing():
    data = read(Named(b'{"a": true, "y": 0}\n{"a": NaN, "y": 1}\n{"a": false, "y": 1}\n'), ["y"])
    np.testing.assert_array_equal(data.X, [[1], [np.nan], [0]])


def test_a_list_of_names_is_a_label_set():
    with pytest.warns(UserWarning, match="column 'tags' holds label sets, as lists: 2 labels"):
        data = read_lines({"a": 1, "tags": ["x", "y"]}, {"a": 2, "tags": []}, {"a": 3}, labels=["tags"])
    assert data.label_names == ("x", "y") and data.Y.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert read_lines({"a": 1, "tags": "x;y"}, labels=["tags"], separator=";").Y.tolist() == [[1, 1]]


@pytest.mark.parametrize("start", [b"", b"\n ", b"\xef\xbb\xbf"])
def test_the_format_is_known_by_its_first_character(start):
    data = read(io.BytesIO(start + content_of({"a": 1, "y": 0}, {"a": 2, "y": 1})), ["y"])
    assert data.X.tolist() == [[1], [2]]


def test_a_compressed_file_comes_back_bit_for_bit(tmp_path):
    data = read_lines({"a": 0.1, "b": 1e-300, "w": "é;\n", "y": 0}, {"a": 1 / 3, "b": None, "w": "z", "y": 1})
    write(data, tmp_path / "toy.jsonl.gz")
    again = read(tmp_path / "toy.jsonl.gz", ["y"])
    np.testing.assert_array_equal(again.X, data.X)
    assert again.categories == data.categories and again.schema == data.schema


FAULTS = {
    "no object": (b'{"a": 1, "y": 0}\n[1]\n', r"line 2: must be a JSON object such as .*; found a list"),
    "no JSON": (b'{"a": 1, "y": 0}\n{"a": }\n', r"line 2: is not JSON \(Expecting value, character 7\)"),
    "key twice": (b'{"a": 1, "y": 0, "a": 2}\n', "line 1: the key 'a' stands twice"),
    "mixed": (
        b'{"a": 1, "y": 0}\n{"a": "x", "y": 1}\n{"a": 2, "y": 1}\n',
        "line 2: .*numbers or words, not both; found 'x'",
    ),
    "infinite": (b'{"a": -Infinity, "y": 0}\n', "line 1: column 'a' must be finite; found '-inf'"),
    "too large": (b'{"a": 1' + b"0" * 400 + b', "y": 0}\n', "line 1: column 'a' must be finite"),
    "digits": (b'{"a": ' + b"9" * 5000 + b', "y": 0}\n', "line 1: holds a number of too many digits"),
    "nested": (b'{"a": {"b": 1}, "y": 0}\n', "line 1: column 'a' must be a number or a text; found an object"),
    "list": (b'{"a": [1], "y": 0}\n', "line 1: column 'a' must be a number or a text; found a list"),
    "label 2": (b'{"a": 1, "y": 2}\n', "line 1: column 'y' must be 0 or 1; found '2'"),
    "no label": (b'{"a": 1, "y": 1}\n{"a": 1}\n', "line 2: column 'y' has no value"),
    "no such label": (b'{"a": 1}\n', "has no column 'y', which the list of labels names"),
    "blank": (b"\n\n", "has no rows"),
    "no name": (b'{"": 1, "y": 1}\n', "column 1 has no name"),
    "label not text": (b'{"a": 1, "y": ["b", 1]}\n', "line 1: column 'y' must be a list of names"),
    "latin-1": (b'{"a": "\xe9", "y": 1}\n', "line 1: byte 0xe9 is not UTF-8"),
    "deep": (b'{"a": ' + b"[" * 200_000 + b"\n", "line 1: is nested too deeply|line 1: is not JSON"),
}


@pytest.mark.parametrize("content, message", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_sentence_with_file_and_line(content, message):
    with pytest.raises(DataError, match=message) as caught:
        read(Named(content), ["y"], format="jsonl")
    assert str(caught.value).startswith("toy.jsonl") and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_whole_json_file_is_told_to_be_split():
    with pytest.raises(DataError, match="found a list; write each of its objects on a line of its own"):
        read(Named(b'[{"a": 1, "y": 0}]'), ["y"], format="jsonl")


def test_a_table_of_another_key_in_each_line_is_refused_before_it_fills_memory():
    lines = "".join(f'{{"k{number}": 1, "y": 0}}\n' for number in range(30_000))
    packed = gzip.compress(lines.encode(), mtime=0)
    start = time.process_time()
    with pytest.raises(DataError, match=r"30000 rows of 30001 columns would take .* of memory.* MLRH_MAX_BYTES"):
        read(Named(packed), ["y"])
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "line", ["[" * 10**6, '{"a":' * 200_000, '{"a": "' + "x" * 10**6, '{"a": [' + "1," * 500_000, "{}\n" * 10**5 + "x"]
)
def test_a_million_characters_of_nonsense_take_seconds_not_hours(line):
    start = time.process_time()
    with pytest.raises(DataError):
        read(Named(line.encode()), ["y"], format="jsonl")
    assert time.process_time() - start < 5


SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab é\n;1", max_size=3)
JSON = SCALAR | st.lists(SCALAR, max_size=2) | st.dictionaries(st.sampled_from("pq"), SCALAR, max_size=1)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.dictionaries(st.sampled_from("aby"), JSON, max_size=3), max_size=4),
    st.sampled_from([(), ("y",), ("y", "b")]),
)
def test_any_objects_are_an_error_or_the_numbers_that_they_hold(records, labels):
    try:
        data = read(Named(content_of(*records) or b"\n"), labels, format="jsonl")
    except DataError as error:
        assert str(error).startswith("toy.jsonl")
        return
    except UserWarning:  # what is told of columns
        return
    assert data.X.shape == (len(records), len(data.feature_names)) and len(data.Y) == len(records)
    for column, name in enumerate(data.feature_names):
        if name not in data.categories and name not in data.texts and name not in data.dates:
            expected = [np.nan if record.get(name) is None else float(record[name]) for record in records]
            np.testing.assert_array_equal(data.X[:, column], expected)
