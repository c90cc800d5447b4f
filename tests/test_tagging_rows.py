"""What the page shows of a row: texts, links, images, numbers that stand out, and which labels it folds."""

import json
import os

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from mlrh.automatic import choose, mean_and_deviation
from mlrh.cli._inputs import read_with_cells
from mlrh.data import MultilabelData, Schema
from mlrh.spaces import CardinalitySpace
from mlrh.web._rows import LARGEST_IMAGE, LONGEST_TEXT, Cells, cells_of_rows, to_read
from mlrh.web._server import make_session
from mlrh.web._session import Features, Session
from mlrh.web._tagging import page_policy

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
HOSTILE = '<script>alert(1)</script>"&\u202e'


def kinds(cells, index=0):
    return {cell["name"]: cell["kind"] for cell in cells(index)}


def test_cells_are_told_apart_by_what_they_hold_and_empty_ones_are_left_out():
    columns = {
        "title": ["A song"],
        "page": ["https://example.org/a?b=1"],
        "photo": ["http://example.org/a.JPG?size=2#x"],
        "file": ["a/b.png"],
        "script": ["javascript:alert(1)"],
        "data": ["data:text/html,x"],
        "two": ["https://a.org https://b.org"],
        "odd": ["http://[bad"],
        "none": ["  "],
    }
    common = {"title": "text", "script": "text", "data": "text", "two": "text", "odd": "text", "page": "link"}
    assert kinds(Cells(columns)) == {**common, "photo": "link", "file": "text"}
    assert kinds(Cells(columns, list(columns))) == {**common, "photo": "image", "file": "text"}


def test_show_names_the_columns_and_their_order_and_refuses_others():
    columns = {"a": ["1"], "b": ["2"], "c": ["3"]}
    assert list(kinds(Cells(columns, ["c", "a"]))) == ["c", "a"]
    with pytest.raises(ValueError, match=r"There is no column 'd' to show; the file has a, b, c\. Correct --show\."):
        Cells(columns, ["d"])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "photos" / "deep" / "a.png").write_bytes(PNG)
    (tmp_path / "photos" / "inside.png").symlink_to("deep/a.png")
    (tmp_path / "photos" / "outside.png").symlink_to("../secret.png")
    (tmp_path / "photos" / "large.png").write_bytes(b"")
    os.truncate(tmp_path / "photos" / "large.png", LARGEST_IMAGE + 1)
    os.mkfifo(tmp_path / "photos" / "pipe.png")
    return tmp_path


@pytest.mark.parametrize("path", ["deep/a.png", "./deep/../deep/a.png", "inside.png", "{}/photos/deep/a.png"])
def test_an_image_in_the_folder_is_read_however_its_path_is_written(folder, path):
    cells = Cells({"photo": [path.format(folder)]}, images=folder / "photos")
    assert kinds(cells) == {"photo": "file"}
    assert cells.image(0, "photo") == ("image/png", PNG)


@pytest.mark.parametrize(
    "path, words",
    [
        ("../secret.png", "outside of the folder"),
        ("deep/../../secret.png", "outside of the folder"),
        ("{}/secret.png", "outside of the folder"),
        ("outside.png", "outside of the folder"),
        ("/etc/passwd", "no path of an image"),
        ("absent.png", "There is no image absent.png"),
        ("pipe.png", "There is no image pipe.png"),
        ("large.png", "more than 32 MiB"),
        ("https://example.org/a.png", "no path of an image"),
        ("a\0.png", "no path of an image"),
        ("x" * 300 + ".png", "can't be read|There is no image"),
        ("", "no path of an image"),
    ],
)
def test_no_file_is_read_outside_of_the_folder_and_none_that_is_no_image(folder, path, words):
    cells = Cells({"photo": [path.format(folder)], "text": ["deep/a.png"]}, ["photo"], folder / "photos")
    with pytest.raises(ValueError, match=words):
        cells.image(0, "photo")
    with pytest.raises(ValueError, match="no path of an image"):
        cells.image(0, "text")  # a column that isn't shown


def test_without_a_folder_no_path_is_an_image():
    cells = Cells({"photo": ["deep/a.png"]}, ["photo"])
    with pytest.raises(ValueError, match="no path of an image"):
        cells.image(0, "photo")
    with pytest.raises(ValueError, match="absent, is not there; correct --images"):
        Cells({}, images="absent")


def test_a_long_text_is_cut_and_the_rest_is_counted():
    (cell,) = Cells({"text": ["x" * (LONGEST_TEXT + 7)]})(0)
    assert (len(cell["text"]), cell["left_out"]) == (LONGEST_TEXT, 7)


@pytest.mark.parametrize("show, hosts", [(None, ""), (["photo"], " http: https:")])
def test_images_of_other_hosts_may_be_loaded_only_where_their_column_was_named(show, hosts):
    cells = Cells({"photo": ["https://example.org/a.png"]}, show)
    session = Session(CardinalitySpace(2, 0, 2).distribution(np.zeros((1, 2))), ["a", "b"], cells=cells)
    assert f"; img-src data: blob:{hosts};" in page_policy(session)


SCHEMA = Schema(("tempo", "mode"), ("happy", "sad"), {"mode": ("major", "minor")})
TABLE = {
    "title": ["First", "Second"],
    "tempo": ["90", ""],
    "mode": ["major", ""],
    "id": ["17", "18"],
    "happy": ["1", "0"],
    "sad": ["0", "1"],
}


def test_by_default_a_person_reads_texts_and_then_all_but_labels_and_numbers_of_the_model():
    assert list(to_read(TABLE, SCHEMA)) == ["title", "mode", "id"]
    assert list(to_read(TABLE, SCHEMA, ["tempo"])) == list(TABLE)
    tagged = Schema(("title", "day"), ("happy", "sad"), texts=("title",), dates=("day",), tags=("moods", ";"))
    assert list(to_read({"id": [], "title": [], "day": [], "moods": []}, tagged)) == [
        "title",
        "id",
        "day",
    ]  # texts first


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "jsonl", "arff"])
def test_cells_of_every_format_are_what_the_file_says(suffix, tmp_path):
    path, frame = tmp_path / f"rows.{suffix}", pd.DataFrame(TABLE)
    if suffix == "parquet":
        frame.assign(tempo=[90.0, None]).replace("", None).to_parquet(path)
    elif suffix == "jsonl":
        records = [{**row, "tempo": 90 if row["tempo"] else None} for row in frame.to_dict("records")]
        path.write_text("".join(json.dumps(row) + "\n" for row in records))
    elif suffix == "arff":
        declared = "@attribute tempo numeric\n@attribute mode {major,minor}\n"
        path.write_text(f"@relation r\n{declared}@data\n90,major\n?,?\n")
    else:
        frame.to_csv(path, index=False)
    data = read_with_cells(str(path), None, SCHEMA)
    shown = to_read(cells_of_rows(data), SCHEMA)
    expected = {"mode": ["major", ""]} if suffix == "arff" else {name: TABLE[name] for name in ("title", "mode", "id")}
    assert shown == expected


def test_words_of_a_data_set_are_shown_beside_the_columns_it_keeps():
    X, kept = np.array([[0.0, 1.0], [1.0, np.nan]]), {"id": np.array(["17", "18"], object)}
    about = {"categories": {"mode": ("major", "minor")}, "texts": {"title": ["Blue", "Red"]}, "kept": kept}
    data = MultilabelData(X, np.ones((2, 1), np.int8), ("title", "mode"), ("happy",), "songs", **about)
    assert cells_of_rows(data) == {"mode": ["minor", ""], "title": ["Blue", "Red"], "id": ["17", "18"]}


def test_a_model_shows_the_cells_of_a_frame_and_compares_numbers_with_its_training_rows():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(100, 10, 40), np.arange(40) % 2.0])
    Y = np.column_stack([X[:, 0] > 100, X[:, 1] == 1]).astype(np.int8)
    data = MultilabelData(X, Y, ("tempo", "mode"), ("happy", "sad"), "songs", {"mode": ("major", "minor")})
    model = choose(data, scores="linear", label_space="cardinality", n_folds=2)
    frame = pd.DataFrame({"tempo": [160.0, 99.0], "mode": ["major", "minor"], "title": [HOSTILE, None]})
    session, about = make_session(model, frame)
    first, second = session.row(1), session.row(2)
    assert [(cell["name"], cell["text"]) for cell in first["cells"]] == [("mode", "major"), ("title", HOSTILE)]
    assert [cell["name"] for cell in second["cells"]] == ["mode"]
    assert about["scale"] == "the training rows"
    tempo = next(feature for feature in first["features"] if feature["name"] == "tempo")
    assert tempo["deviation"] == pytest.approx((160 - X[:, 0].mean()) / X[:, 0].std(), rel=1e-12)
    assert (tempo["words"], tempo["stands_out"]) == ("far above the mean", True)
    model.settings["feature_scale"] = [["x"]]  # a file that somebody made
    assert make_session(model, frame)[1]["scale"] == "these rows"


def test_a_column_without_values_and_one_of_huge_numbers_have_a_scale_without_a_warning():
    X = np.array([[np.nan, 1e300, 1.0], [np.nan, -1e300, 3.0]])
    for form in (np.asarray, sparse.csr_array):
        mean, deviation = mean_and_deviation(form(X))
        assert (mean[0], deviation[0], mean[2], deviation[2]) == (0.0, 0.0, 2.0, 1.0)


@pytest.mark.parametrize(
    "value, words, stands_out",
    [(3.5, "far above the mean", True), (-2.5, "well below the mean", True), (1.9, "near the mean", False)],
)
def test_a_number_is_compared_with_the_mean_in_words(value, words, stands_out):
    (feature,) = Features(np.array([[value]]), ["x"], scale=([0.0], [1.0]))(0)
    assert (feature["words"], feature["stands_out"]) == (words, stands_out)


def test_a_number_that_all_training_rows_share_stands_out_where_it_differs():
    same, other = (Features(np.array([[value]]), ["x"], scale=([2.0], [0.0]))(0)[0] for value in (2.0, 3.0))
    assert (same["words"], same["stands_out"]) == ("the same in all rows", False)
    assert (other["words"], other["stands_out"]) == ("another value than all training rows have", True)


def test_labels_near_zero_are_folded_unless_they_are_decided_or_become_probable():
    scores = np.array([[3.0, 2.0, -1.0, -9.0, -9.5, -10.0]])
    session = Session(CardinalitySpace(6, 1, 6).distribution(scores), list("abcdef"))
    assert session.row(1)["brief"] == [0, 1, 2]
    assert session.decide(1, "e", 1)["brief"] == [0, 1, 2, 4]
    assert session.decide(1, "a", 0)["brief"] == [0, 1, 2, 4]  # what a decision rules out keeps its line
    alone = Session(CardinalitySpace(6, 0, 6).distribution(np.full((1, 6), -20.0)), list("abcdef"))
    assert alone.row(1)["brief"] == [0, 1, 2]
