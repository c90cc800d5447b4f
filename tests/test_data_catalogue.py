"""Public sets are what the catalogue says, wherever their files come from; the network is a server on this machine."""

import csv
import gzip
import hashlib
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest
from scipy import sparse

from mlrh.data import _catalogue as catalogue
from mlrh.data._catalogue import CATALOGUE, Entry, checksums, is_here, load
from mlrh.data.containers import DataError

DATA = os.environ.get("MLRH_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="MLRH_DATA names no folder with the public sets")

ROWS = {"train": ["1.5,1,0", "2.5,0,1"], "test": ["-3,1,1"]}
XML = '<labels xmlns="http://mulan.sourceforge.net/labels"><label name="up"/><label name="down"/></labels>\n'


def arff(rows):
    head = ["@relation tiny", "@attribute x numeric", "@attribute up {0,1}", "@attribute down {0,1}", "@data"]
    return "\n".join([*head, *rows, ""])


FILES = {
    "tiny.arff": arff(ROWS["test"] + ROWS["train"]),
    "tiny-train.arff": arff(ROWS["train"]),
    "tiny-test.arff": arff(ROWS["test"]),
    "tiny.xml": XML,
}
PARTS = {"train": ("tiny-train.arff",), "test": ("tiny-test.arff",)}
TINY = {
    "tiny": Entry("tiny", 3, 1, 2, 4 / 3, 2, {**PARTS, "all": ("tiny.arff",)}, "tiny.xml", "upstream"),
    "halves": Entry("halves", 3, 1, 2, 4 / 3, 2, {**PARTS, "all": (*PARTS["train"], *PARTS["test"])}, "tiny.xml", "up"),
    "whole": Entry("whole", 3, 1, 2, 4 / 3, 2, {"all": ("tiny.arff",)}, "tiny.xml", "upstream"),
}


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The catalogue with three tiny sets only, an empty cache and no data folder; gives the cache's path."""
    monkeypatch.setattr(catalogue, "CATALOGUE", TINY)
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in FILES.items()}
    monkeypatch.setattr(catalogue, "checksums", lambda: hashes)
    monkeypatch.setattr(catalogue, "BASE_URL", "http://127.0.0.1:9/nothing-listens-here")
    monkeypatch.delenv("MLRH_DATA", raising=False)
    monkeypatch.setenv("MLRH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    """A data folder with the tiny set's files."""
    place = tmp_path / "data" / "tiny"
    place.mkdir(parents=True)
    for name, text in FILES.items():
        (place / name).write_bytes(text.encode())
    return place.parent


class Server:
    """Serves the tiny files on this machine and keeps the paths that were asked for."""

    def __init__(self):
        self.files, self.requests, self.cut = dict(FILES), [], False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                text = outer.files.get(self.path.rpartition("/")[2])
                if text is None:
                    self.send_error(404)
                    return
                body = text.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if outer.cut else body)

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/base"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self):
        self._http.shutdown()  # a second time it does nothing
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(tiny, monkeypatch):
    server = Server()
    monkeypatch.setattr(catalogue, "BASE_URL", server.url)
    yield server
    server.stop()


def files_under(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


@contextmanager
def refused(words):
    """A DataError of one sentence that matches the words."""
    with pytest.raises(DataError, match=words) as error:
        yield error
    text = str(error.value)
    assert "\n" not in text and text[-1] in ".?" and ". " not in text


@cache
def loaded(name, part="all"):
    return load(name, part)


def plain_rows(name, file):
    """Sizes of the label sets of a file's rows, read off its text, and whether these are sparse.

    Labels are the last columns of every set here.
    """
    found = next(p for p in Path(DATA, name).iterdir() if p.name in (file, f"{file}.gz"))
    text = (gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()).decode("latin-1")
    body = text[text.lower().index("@data") + len("@data") :]
    n_features = CATALOGUE[name].n_features
    sizes = []
    for line in filter(None, map(str.strip, body.splitlines())):
        if line.startswith("{"):
            entries = (item.split()[:2] for item in line.strip("{}").split(",") if item.strip())
            sizes.append(sum(value == "1" for column, value in entries if int(column) >= n_features))
        else:
            values = line.split(",")
            assert len(values) == n_features + CATALOGUE[name].n_labels
            sizes.append(sum(value.strip() == "1" for value in values[n_features:]))
    return np.array(sizes), line.startswith("{")


@needs_data
@pytest.mark.parametrize("name, part", [(name, part) for name, entry in CATALOGUE.items() for part in entry.files])
def test_a_loaded_set_has_the_numbers_of_its_entry_and_the_label_sets_of_its_files(name, part):
    entry, data = CATALOGUE[name], loaded(name, part)
    sizes, kinds = zip(*(plain_rows(name, file) for file in entry.files[part]), strict=True)
    sizes = np.concatenate(sizes)
    assert data.X.shape == (len(sizes), entry.n_features) and data.Y.shape == (len(sizes), entry.n_labels)
    assert np.array_equal(data.Y.sum(axis=1, dtype=int), sizes)
    assert data.X.dtype == np.float64 and data.Y.dtype == np.int8
    assert {sparse.issparse(data.X)} == set(kinds)
    if part == "all":
        assert data.name == name and len(sizes) == entry.n_samples
        assert (round(sizes.mean(), 3), sizes.max()) == (entry.cardinality, entry.max_labels)


@needs_data
@pytest.mark.parametrize("name", [name for name in CATALOGUE if "train" in CATALOGUE[name].files])
def test_the_parts_have_the_rows_of_the_whole(name):
    whole, train, test = (loaded(name, part) for part in ("all", "train", "test"))
    assert (train.name, test.name) == (f"{name} (train)", f"{name} (test)")
    assert train.schema == test.schema == whole.schema
    both = np.concatenate([train.Y, test.Y])
    assert np.array_equal(
        *(np.sort(np.packbits(Y, axis=1).view(f"V{-(-Y.shape[1] // 8)}").ravel()) for Y in (both, whole.Y))
    )
    sums = [np.asarray(data.X.sum(axis=0)).ravel() for data in (train, test, whole)]
    np.testing.assert_allclose(sums[0] + sums[1], sums[2], rtol=1e-9, atol=1e-9)


@needs_data
def test_paths_and_hashes_are_those_of_the_list_that_came_with_the_files():
    with open(Path(DATA, "UPSTREAM.tsv"), newline="") as file:
        upstream = {row["upstream_path"]: row["sha256_uncompressed"] for row in csv.DictReader(file, delimiter="\t")}
    ours = {}
    for entry in CATALOGUE.values():
        for file in {entry.xml, *(file for files in entry.files.values() for file in files)}:
            url = f"{catalogue.BASE_URL}/{entry.folder}/{file}"
            ours["data" + url.partition("/data")[2]] = checksums()[file]
    assert ours == upstream


def test_every_file_of_an_entry_has_a_hash_and_no_hash_is_left_over():
    files = {file for entry in CATALOGUE.values() for files in entry.files.values() for file in (*files, entry.xml)}
    assert files == set(checksums())
    assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in checksums().values())


@pytest.mark.parametrize("layout", ["own folder", "one folder"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_folder_may_have_folders_or_not_and_files_may_be_compressed_or_not(tiny, tmp_path, layout, compressed):
    place = tmp_path / "tiny" if layout == "own folder" else tmp_path
    place.mkdir(exist_ok=True)
    for name, text in FILES.items():
        content = gzip.compress(text.encode()) if compressed else text.encode()
        (place / (name + ".gz" * compressed)).write_bytes(content)
    data = load("tiny", data_dir=str(tmp_path))
    assert data.X.tolist() == [[-3.0], [1.5], [2.5]]
    assert data.Y.tolist() == [[1, 1], [1, 0], [0, 1]]
    assert data.label_names == ("up", "down")


@pytest.mark.parametrize("part, rows", [("train", [[1.5], [2.5]]), ("test", [[-3.0]])])
def test_parts_come_from_their_own_files(tiny, folder, part, rows):
    data = load("tiny", part, data_dir=folder)
    assert data.X.tolist() == rows and data.name == f"tiny ({part})"


def test_a_set_without_a_whole_file_is_put_together(tiny, folder):
    (folder / "tiny").rename(folder / "halves")
    whole = load("halves", data_dir=folder)
    assert whole.X.tolist() == [[1.5], [2.5], [-3.0]]
    assert whole.Y.tolist() == [[1, 0], [0, 1], [1, 1]]
    assert whole.name == "halves"


def test_the_environment_names_the_folder_unless_the_call_does(tiny, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("MLRH_DATA", str(folder))
    assert load("tiny").X.shape == (3, 1)
    empty = tmp_path / "empty"
    empty.mkdir()
    with refused(f"neither in the data folder {empty} nor in the cache"):
        load("tiny", data_dir=empty)
    monkeypatch.setenv("MLRH_DATA", "")
    with refused(r"tiny\.arff is not in the cache"):
        load("tiny")


@pytest.mark.parametrize("file, old, new", [("tiny-train.arff", "1.5", "1.6"), ("tiny.xml", "up", "UP")])
def test_a_changed_file_is_refused_by_name(tiny, folder, file, old, new):
    changed = folder / "tiny" / file
    changed.write_text(FILES[file].replace(old, new))
    with refused(rf"{changed} is not the public file .* SHA-256 differs"):
        load("tiny", "train", data_dir=folder)


def test_a_file_that_is_not_asked_for_may_be_changed(tiny, folder):
    (folder / "tiny" / "tiny-train.arff").write_text("")
    assert len(load("tiny", "test", data_dir=folder).Y) == 1


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"no gzip", lambda data: data[:20] + b"\xff" * 9]
)
def test_a_damaged_compressed_file_is_refused_by_name(tiny, folder, damage):
    (folder / "tiny" / "tiny.arff").unlink()
    damaged = folder / "tiny" / "tiny.arff.gz"
    damaged.write_bytes(damage(gzip.compress(FILES["tiny.arff"].encode())))
    with refused(r"tiny\.arff\.gz can't be read \("):
        load("tiny", data_dir=folder)


def test_a_folder_that_does_not_exist_is_one_sentence(tiny, folder, monkeypatch):
    for wrong in (folder / "missing", folder / "tiny" / "tiny.xml"):
        with refused(r"The data folder must be an existing folder; got '.*'"):
            load("tiny", data_dir=wrong)
    monkeypatch.setenv("MLRH_DATA", str(folder / "missing"))
    with refused("folder that MLRH_DATA names must be an existing folder"):
        is_here("tiny")


ENDS = {"Emotions": "did you mean 'emotions'?", "tmc2007": "did you mean 'tmc2007-500'?", "zzz": "delicious.", 7: "."}


@pytest.mark.parametrize("name, end", ENDS.items())
def test_an_unknown_name_is_one_sentence_with_all_names(name, end):
    with refused(f"There is no set {name!r} among emotions, scene, yeast, ") as error:
        load(name)
    assert str(error.value).endswith(end)


def test_a_part_that_is_none_is_one_sentence():
    with refused(r"part must be one of 'all', 'train', 'test'; got 'validation'\."):
        load("emotions", "validation")
    with refused("cal500 is published without a train and a test part"):
        load("cal500", "train")


def test_a_download_asks_for_the_upstream_paths_and_is_kept(server, tiny, monkeypatch):
    data = load("tiny", "train")
    assert data.Y.tolist() == [[1, 0], [0, 1]]
    assert server.requests == ["/base/upstream/tiny-train.arff", "/base/upstream/tiny.xml"]
    assert files_under(tiny) == ["tiny-train.arff", "tiny.xml"]
    load("tiny", "train")
    assert len(server.requests) == 2
    monkeypatch.setattr(catalogue, "BASE_URL", "http://127.0.0.1:9/nothing-listens-here")
    assert load("tiny", "train").Y.tolist() == data.Y.tolist()


def test_only_what_the_folder_lacks_is_downloaded(server, tiny, folder):
    (folder / "tiny" / "tiny.xml").unlink()
    load("tiny", data_dir=folder)
    assert server.requests == ["/base/upstream/tiny.xml"]


def test_a_damaged_file_in_the_cache_is_downloaded_again(server, tiny):
    load("tiny")
    (tiny / "tiny" / "tiny.arff").write_text("half a fi")
    assert load("tiny").X.shape == (3, 1)
    assert server.requests.count("/base/upstream/tiny.arff") == 2


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda s: s.files.update({"tiny.arff": "<html>Log in</html>"}), "is not the public file .*SHA-256"),
        (lambda s: setattr(s, "cut", True), ""),
        (lambda s: s.files.pop("tiny.arff"), r"could not be downloaded \(HTTP status 404\)"),
        (lambda s: s.stop(), "could not be downloaded .* or connect to the network"),
    ],
    ids=["other content", "broken off", "not there", "no network"],
)
def test_a_download_that_fails_is_one_sentence_with_the_way_out_and_not_kept(server, tiny, spoil, words):
    spoil(server)
    with refused(rf"http://.*/tiny\.arff .*{words}") as error:
        load("tiny")
    assert "--data-dir FOLDER" in str(error.value) and "MLRH_DATA=FOLDER" in str(error.value)
    assert files_under(tiny) == []


def test_a_download_that_is_interrupted_leaves_nothing_behind(server, tiny, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pooch.core, "hash_matches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load("tiny")
    assert files_under(tiny) == []


def test_a_cache_that_cannot_be_written_is_one_sentence(server, tiny):
    tiny.write_text("a file where the folder should be")
    with refused(r"The cache folder .* can't be used \(.*\); .* MLRH_CACHE=FOLDER"):
        load("tiny")


def test_a_download_says_nothing_where_nobody_watches(server, tiny, capfd):
    level = pooch.get_logger().level
    load("tiny")
    assert capfd.readouterr() == ("", "")
    assert pooch.get_logger().level == level


def test_the_cache_is_the_usual_folder_for_caches_unless_named(tiny, tmp_path, monkeypatch):
    monkeypatch.delenv("MLRH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "usual"))
    assert catalogue._in_cache("f", "set") == Path(pooch.os_cache("mlrh")) / "set" / "f"


def test_where_a_set_is_follows_its_files(server, tiny, folder):
    assert is_here("tiny") is None
    assert is_here("tiny", data_dir=folder) == "folder"
    load("tiny")
    assert is_here("tiny") == "cache" and is_here("tiny", "train") is None
    (folder / "tiny" / "tiny.xml").unlink()
    assert is_here("tiny", data_dir=folder) == "cache"
    assert is_here("tiny", "train", data_dir=folder) == "cache"
    assert server.requests == ["/base/upstream/tiny.arff", "/base/upstream/tiny.xml"]


def test_a_folder_is_read_without_pooch_and_its_lack_is_said_with_the_remedy(tiny, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert len(load("tiny", data_dir=folder).Y) == 3
    with pytest.raises(DataError, match="pip install pooch"):
        load("tiny")


def test_importing_the_catalogue_imports_no_downloader():
    program = "import sys, mlrh.data._catalogue; print({'pooch', 'requests', 'tqdm'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "set()"
