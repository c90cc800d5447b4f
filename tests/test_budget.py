"""No file takes more memory than it may, whatever it holds, and the error says how to allow more."""

import gzip
import io
import os
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from samples import one_sentence

from mlrh._budget import max_bytes
from mlrh.data import DataError, read
from mlrh.data._arff import read_xml
from mlrh.data._pages import pages_of

MIB = 2**20


@pytest.fixture(autouse=True)
def no_limit_of_its_own(monkeypatch):
    monkeypatch.delenv("MLRH_MAX_BYTES", raising=False)


def test_the_variable_is_the_budget_and_a_quarter_of_the_available_memory_where_it_is_not_set(monkeypatch):
    assert 2**20 < max_bytes() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 4
    monkeypatch.setenv("MLRH_MAX_BYTES", " 12345 ")
    assert max_bytes() == 12345


@pytest.mark.parametrize("value", ["0", "-1", "1e9", "1GB", "9" * 19, "\u0661"])
def test_a_budget_that_is_no_number_of_bytes_is_refused_in_one_sentence(value, monkeypatch):
    monkeypatch.setenv("MLRH_MAX_BYTES", value)
    with pytest.raises(ValueError, match="MLRH_MAX_BYTES must be a whole number of bytes") as error:
        max_bytes()
    assert one_sentence(error)


# Small files that ask for much: each of these took between 1 and 11 GB before there was a budget


def packed(unit, size):
    """A gzip file of so many bytes, made without having them all in memory."""
    target = io.BytesIO()
    with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=6) as file:
        piece = unit * (MIB // len(unit))
        for _ in range(size // len(piece)):
            file.write(piece)
    return target.getvalue()


def table(columns, **options):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd", **options)
    return file.getvalue()


def attributes(n, values):
    return "".join(f"@attribute {place}{{{values}}}\n" for place in range(n))


HOSTILE = {
    "zeros.csv.gz": lambda: packed(b"0,", 36 * MIB),
    "blank.arff.gz": lambda: packed(b"\n", 40 * MIB),
    "blank lines.arff.gz": lambda: packed(b"\n", 30 * MIB),
    "cells.csv.gz": lambda: packed(b"1,1\n", 30 * MIB),
    "one row.svm.gz": lambda: packed(b"1:1 ", 30 * MIB),
    "pairs.svm.gz": lambda: packed(b" ".join(b"%d:1" % place for place in range(150)) + b"\n", 31 * MIB),
    "labels.svm": lambda: b"".join(b"%d 1:1\n" % label for label in range(45_000)),
    "labels.arff": lambda: f"@relation 'r: -C 10000'\n{attributes(10_001, '0,1')}@data\n".encode() + b"{}\n" * 200_000,
    "omitted.arff": lambda: f"@relation 'r: -C 2'\n{attributes(2000, '1,0')}@data\n".encode() + b"{}\n" * 60_000,
    "rows.parquet": lambda: table({"y": np.zeros(20_000_000, np.int8), "x": np.zeros(20_000_000)}),
    "strings.parquet": lambda: table(
        {"y": np.zeros(2000, np.int8), "x": pa.array([f"{'a' * 20_000}{row}" for row in range(2000)])},
        use_dictionary=False,
        column_encoding={"y": "PLAIN", "x": "DELTA_BYTE_ARRAY"},
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_small_file_that_asks_for_much_memory_is_refused_in_seconds_by_a_sentence(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(HOSTILE[name]())
    assert path.stat().st_size < MIB
    labels = None if name.split(".")[1] in ("arff", "svm") else ["y"]
    start = time.process_time()
    with pytest.raises(DataError) as error:
        read(path, labels)
    assert time.process_time() - start < 10
    assert one_sentence(error) and str(error.value).startswith(f"{path}: ")
    assert "MLRH_MAX_BYTES to " in str(error.value) or "DELTA_BYTE_ARRAY" in str(error.value)


def test_a_refusal_takes_no_memory_worth_the_name(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(packed(b"\0", 100 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"its 101,\d{3} bytes unpack to more than 32\.0 MiB"):
            read(path, ["y"])
        assert tracemalloc.get_traced_memory()[1] < 50 * MIB
    finally:
        tracemalloc.stop()


# In a process of its own, whose peak is that of this file. A pool that counts for a while must outlive all it gave.
ONCE = """
import sys
import pyarrow
from mlrh.data import read
data = read(sys.argv[1], ["y"])
assert data.categories == {"x": ("a" * 100_000,)} and not data.X.any()
print(pyarrow.default_memory_pool().max_memory())
"""


def test_a_string_that_all_rows_share_is_read_once(tmp_path):
    zeros = np.zeros(5000, np.int32)
    shared = pa.DictionaryArray.from_arrays(pa.array(zeros), pa.array(["a" * 100_000]))
    # Without the schema of Arrow the column is one of plain strings.
    (tmp_path / "shared.parquet").write_bytes(table({"y": zeros, "x": shared}, store_schema=False))
    command = [sys.executable, "-c", ONCE, str(tmp_path / "shared.parquet")]
    peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 100_000 <= peak < 10 * MIB  # 500 MB as strings of their own


def test_a_budget_that_is_set_allows_what_the_default_refuses_and_refuses_what_it_allows(tmp_path, monkeypatch):
    path = tmp_path / "toy.csv.gz"
    n_rows = 33 * MIB // 1003
    path.write_bytes(gzip.compress(b"y,x\n" + (b"1," + b" " * 999 + b"2\n") * n_rows))
    with pytest.raises(DataError, match="set MLRH_MAX_BYTES to 34"):
        read(path, ["y"])
    monkeypatch.setenv("MLRH_MAX_BYTES", str(2**30))
    assert len(read(path, ["y"]).Y) == n_rows
    monkeypatch.setenv("MLRH_MAX_BYTES", "1000")
    words = f"holds .*, and the limit for this file is 1,000 bytes; .* to {path.stat().st_size} or more"
    with pytest.raises(DataError, match=words):
        read(path, ["y"])
    with pytest.raises(DataError, match="stream: holds more than 1,000 bytes"):
        read(io.BytesIO(path.read_bytes()), ["y"])


def test_a_device_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setenv("MLRH_MAX_BYTES", str(10 * MIB))
    with pytest.raises(DataError, match=r"/dev/zero: holds more than 10\.0 MiB"):
        read("/dev/zero", ["y"])


def test_an_index_of_a_trillion_and_a_number_of_features_of_a_trillion_make_no_columns(tmp_path):
    path = tmp_path / "toy.svm"
    path.write_bytes(b"0 1099511627776:1\n")
    with pytest.raises(DataError, match="index 1099511627776 is too large"):
        read(path)
    with pytest.raises(DataError, match="the names of 2000000000000 features would take"):
        read(path, n_features=2 * 10**12)


def test_rows_that_are_cut_make_no_room_for_the_values_they_lack(tmp_path):
    path = tmp_path / "cut.arff"  # 100,000 rows of 20,000 values would be 15 GB
    path.write_bytes(b"@relation 'r: -C 2'\n" + attributes(20_000, "0,1").encode() + b"@data\n" + b"1\n" * 100_000)
    with pytest.raises(DataError, match="line 20003: has 1 values where 20000 attributes are declared"):
        read(path)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_the_pages_of_a_table_have_the_sizes_that_its_metadata_tell(version, dictionary):
    columns = {"a": np.arange(5000.0), "b": pa.array(["x", None, "yy", "x", "z"] * 1000), "c": [True] * 5000}
    options = {"use_dictionary": dictionary, "data_page_version": version, "row_group_size": 2000}
    content = table(columns, data_page_size=2000, **options)
    metadata = pq.read_metadata(io.BytesIO(content))
    chunks = [metadata.row_group(group).column(2) for group in range(3)]
    pages = list(pages_of(content, {"c"}))
    assert sum(page.n_values for page in pages) == sum(chunk.num_values for chunk in chunks) == 5000
    chunks = [metadata.row_group(group).column(column) for group in range(3) for column in range(3)]
    pages = list(pages_of(content, {"a", "b", "c"}))
    headers = sum(chunk.total_uncompressed_size for chunk in chunks) - sum(page.unpacked for page in pages)
    assert 10 * len(pages) < headers < 120 * len(pages) and len(pages) > 10


@pytest.mark.parametrize("place", [2, 4])  # in the header of the first page: bytes after and before unpacking
def test_a_struct_in_place_of_a_number_is_a_damaged_header(place):
    content = bytearray(table({"c": np.arange(4.0)}, use_dictionary=False))
    start = len(b"PAR1")
    assert content[start : start + 6 : 2] == b"\x15\x15\x15"  # three times: the next field, a whole number
    assert len(list(pages_of(bytes(content), {"c"}))) == 1
    content[start + place : start + place + 2] = b"\x1c\x00"  # an empty struct
    with pytest.raises(ValueError, match="header of a page is damaged"):
        list(pages_of(bytes(content), {"c"}))


def test_a_table_whose_metadata_lie_is_measured_by_its_pages(tmp_path, monkeypatch):
    n_rows = 4_000_000
    content = table({"y": np.zeros(n_rows, np.int64)}, use_dictionary=False, row_group_size=n_rows)
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    truth, lie = b"\x80\xa4\xe8\x03", b"\x94\x80\x80\x00"  # 4,000,000 and 10, as Thrift writes them in four bytes
    assert truth in content[start:]
    content = content[:start] + content[start:].replace(truth, lie)
    assert pq.read_metadata(io.BytesIO(content)).num_rows == 10
    (tmp_path / "lie.parquet").write_bytes(content)
    monkeypatch.setenv("MLRH_MAX_BYTES", str(20 * MIB))
    with pytest.raises(DataError, match=r"pages or more, with \d{6,7} values that unpack to \d{7,8} bytes, would take"):
        read(tmp_path / "lie.parquet", ["y"])


@pytest.mark.parametrize(
    "content",
    [
        b"<labels>" + b"<a>" * 170_000 + b"</a>" * 170_000 + b"</labels>",
        b"<labels><label " + b" ".join(b"a%d='1'" % place for place in range(90_000)) + b" name='y'/></labels>",
        b"<labels " + b" ".join(b"xmlns:a%d='%d'" % (place, place) for place in range(45_000)) + b"/>",
        b"<labels><label name='" + b"&lt;" * 250_000 + b"'/></labels>",
        b"<labels>" + b"".join(b"<label name='%d'/>" % place for place in range(45_000)) + b"</labels>",
    ],
    ids=["deep", "attributes", "namespaces", "escapes", "labels"],
)
def test_a_megabyte_of_xml_is_read_in_seconds_whatever_its_shape(content, tmp_path):
    (tmp_path / "labels.xml").write_bytes(content)
    start = time.process_time()
    read_xml(tmp_path / "labels.xml")
    assert time.process_time() - start < 10
