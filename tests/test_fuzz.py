"""Some hundred cases of every fuzzer, and that fuzzers find what they look for; `make fuzz` runs them for longer."""

import gzip
import os
import sys
import time
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from fuzz import CORPUS, fuzzers, model_files, readers, requests
from fuzz._limits import Worker

from mlrh.data import DataError, MultilabelData

if sys.platform != "linux":
    pytest.skip("the limits of time and memory are Linux's", allow_module_level=True)

SEED = 0
# So many, not so many seconds: a faster machine would try cases here that nobody has looked at.
CASES = {"model_files": 1500, "readers": 10_000, "requests": 10_000, "spaces": 1500}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(fuzzers()))
def test_no_case_is_a_fault(name):
    assert fuzzers()[name](np.inf, SEED, CASES[name]) >= CASES[name]


@pytest.mark.parametrize("name", ("chosen", "columns", "kernel", "powerset"))
def test_a_model_file_that_was_a_fault_is_none_any_more(name, tmp_path):
    content = gzip.decompress((CORPUS / "model_files" / f"{name}.mlrh.gz").read_bytes())
    assert model_files.fault_of(tmp_path, model_files.Case(name, content)) is None


def test_a_model_file_that_is_refused_for_want_of_memory_is_a_fault(tmp_path, monkeypatch):
    def out_of_memory(*arguments):
        raise MemoryError

    case = model_files.Case("linear", model_files.file_of("linear"))
    assert model_files.fault_of(tmp_path, case) is None
    monkeypatch.setattr("mlrh.persistence.read_json", out_of_memory)
    assert "memory" in model_files.fault_of(tmp_path, case)


def test_a_data_file_that_arrow_has_no_memory_for_is_a_fault(tmp_path, monkeypatch):
    def out_of_memory(*arguments, **options):
        raise DataError("no memory") from MemoryError()

    case = readers.kept()[0]
    assert readers.fault_of(str(tmp_path), case) is None
    monkeypatch.setattr(readers, "read", out_of_memory)
    assert "memory" in readers.fault_of(str(tmp_path), case)


@pytest.mark.parametrize(
    "function, case, words",
    [
        (int, "x", "ValueError: invalid literal"),
        (time.sleep, 60, "took longer than 0.5 s"),
        (bytearray, 2**31, "MemoryError"),
        (os._exit, 3, "ended its process with exit code 3"),
        (os.strerror, 2, "No such file or directory"),
    ],
)
def test_a_worker_says_what_is_wrong_with_a_case(function, case, words):
    with Worker(function, [], seconds=0.5, memory=2**30) as worker:
        assert words in worker.fault(case)


def test_a_worker_goes_on_after_an_exception():
    with Worker({0: None, 1: "one"}.get, [], seconds=10, memory=2**30) as worker:
        assert "TypeError" in worker.fault([])
        assert (worker.fault(0), worker.fault(1)) == (None, "one")


DATA = MultilabelData(
    np.array([[1.0, 0.0], [np.nan, 1.0]]), np.array([[0], [1]], np.int8), ("a", "b"), ("y",), "d", {"b": ("u", "v")}
)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"X": np.array([[1.0, 0.0], [np.inf, 1.0]])}, "X holds finite numbers"),
        ({"X": np.array([[1.0, 0.0], [1.0, 2.0]])}, "a nominal value has a name"),
        ({"X": np.ones((3, 2))}, "X and Y have as many rows"),
        ({"Y": np.array([[0], [2]], np.int8)}, "Y holds 0 and 1"),
        ({"feature_names": ("b", "b")}, "each feature has a name of its own"),
    ],
)
def test_a_data_set_that_contradicts_itself_is_a_fault(changes, words):
    assert readers.fault_of_data(DATA) is None
    wrong = replace(DATA)
    for name, value in changes.items():
        object.__setattr__(wrong, name, value)  # the class itself refuses some of them
    assert words in readers.fault_of_data(wrong)


@pytest.mark.parametrize("sentence", ["", "no file", "/f/case.csv: two\nlines", "/f/case.csv: " + "long" * 200])
def test_an_error_that_is_not_one_sentence_about_the_file_is_a_fault(sentence):
    assert readers.fault_of_sentence("/f/case.csv, line 2: is wrong.", "/f") is None
    assert readers.fault_of_sentence(sentence, "/f") is not None


@pytest.mark.parametrize(
    "answer", [b'{"error": "x"}', b"HTTP/1.0 200 OK\r\nA: b", b"HTTP/1.0 200 OK\r\nA b\r\n\r\n", b"HTTP/1.0 x\r\n\r\n"]
)
def test_an_answer_without_status_line_and_headers_is_none(answer):
    assert requests.parts_of(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab") == (200, {"content-length": "2"}, b"ab")
    assert requests.parts_of(answer) is None


def test_a_seed_gives_the_same_case_again():
    corpus = readers.kept()
    for seed in range(200):
        assert readers.drawn(Random(seed), corpus) == readers.drawn(Random(seed), corpus)
