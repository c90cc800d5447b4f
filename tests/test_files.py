"""Files are replaced as a whole or not at all, whoever writes them."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from samples import one_sentence

from mlrh._files import replacing
from mlrh.cli._output import write_predictions
from mlrh.data import DataError, MultilabelData, write
from mlrh.experiments._report import Report, write_report
from mlrh.persistence import ModelFileError, save
from mlrh.web._store import Store

NO_SPACE = OSError(28, "No space left on device")
posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and pipes of POSIX")


def replace_one(path, number):
    with replacing(path) as (file,):
        file.write(f"content {number}".encode())


def write_data(path, number):
    write(MultilabelData(np.full((2, 1), number), np.eye(2, dtype=np.int8), ("x",), ("a", "b"), "toy"), path)


def write_sets(path, number):
    chunks = [[{"row": 1, "labels": ["a"], "probability": number / 4}]]
    write_predictions(chunks, ["row", "labels", "probability"], str(path), path.suffix[1:])


def decide(path, number):
    Store(path, ["a"], ["x" * 10, "y" * 10]).keep(number, np.ones(1))


WRITERS = {  # the name of a file, and what writes content 1 or 2 to it
    "any": ("file", replace_one),
    "model": ("model.mlrh", lambda path, number: save([number], path)),
    **{suffix: (f"data.{suffix}", write_data) for suffix in ("arff", "csv", "csv.gz", "svm", "parquet")},
    **{f"predictions as {suffix}": (f"sets.{suffix}", write_sets) for suffix in ("csv", "jsonl", "parquet")},
    "decisions": ("c.csv", decide),
    "packed decisions": ("c.csv.gz", decide),
    "report": ("report.html", lambda path, number: write_report(Report(f"{number}", (), ()), path.parent)),
}
every_writer = pytest.mark.parametrize("writer", WRITERS)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@every_writer
@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), NO_SPACE], ids=repr)
def test_a_write_that_is_cut_off_leaves_the_old_file_and_nothing_else(writer, moment, error, tmp_path, monkeypatch):
    name, write_to = WRITERS[writer]
    write_to(tmp_path / name, 1)
    before = contents(tmp_path)

    def fail(*_):
        raise error

    monkeypatch.setattr(os, moment, fail)
    expected = (ModelFileError, DataError, OSError) if error is NO_SPACE else type(error)
    with pytest.raises(expected, match="No space left on device" if error is NO_SPACE else None):
        write_to(tmp_path / name, 2)
    assert contents(tmp_path) == before


@posix
@every_writer
def test_a_link_stays_a_link_and_the_file_behind_it_keeps_its_mode(writer, tmp_path):
    name, write_to = WRITERS[writer]
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / name
    write_to(real, 1)
    before = real.read_bytes()
    real.chmod(0o640)
    (tmp_path / name).symlink_to(real)
    write_to(tmp_path / name, 2)
    assert (tmp_path / name).is_symlink() and real.read_bytes() != before
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


@posix
@every_writer
def test_a_private_file_stays_private_and_its_owner_s(writer, tmp_path, monkeypatch):
    name, write_to = WRITERS[writer]
    write_to(tmp_path / name, 1)
    (tmp_path / name).chmod(0o600)
    given, before = [], (tmp_path / name).stat()
    theirs = os.stat_result((*before[:4], before.st_uid + 1, before.st_gid + 1, *before[6:]))
    stat_of = Path.stat
    # Somebody else's file, which only the superuser could make; whoever runs this may not give files away either.
    monkeypatch.setattr(Path, "stat", lambda path, **k: theirs if path.name == name else stat_of(path, **k))
    monkeypatch.setattr(os, "chown", lambda file, *owner: given.append(owner))
    write_to(tmp_path / name, 2)
    monkeypatch.undo()
    assert (before.st_uid + 1, -1) in given and (-1, before.st_gid + 1) in given
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@posix
@pytest.mark.skipif(os.name == "posix" and os.geteuid() != 0, reason="only the superuser may give files away")
def test_the_superuser_keeps_the_owner_and_the_group_of_a_file(tmp_path):
    replace_one(tmp_path / "f", 1)
    os.chown(tmp_path / "f", 12345, 23456)
    (tmp_path / "f").chmod(0o640)
    replace_one(tmp_path / "f", 2)
    found = (tmp_path / "f").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 23456, 0o640)


@posix
def test_a_file_that_can_not_be_given_away_is_written_all_the_same(tmp_path, monkeypatch):
    replace_one(tmp_path / "f", 1)
    monkeypatch.setattr(os, "fstat", lambda number: os.stat_result((0,) * 4 + (98765, 98765) + (0,) * 4))

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    replace_one(tmp_path / "f", 2)
    assert contents(tmp_path) == {"f": b"content 2"}


@posix
@every_writer
def test_a_new_file_has_the_mode_of_any_other_new_file(writer, tmp_path):
    name, write_to = WRITERS[writer]
    (tmp_path / "other").touch()
    write_to(tmp_path / name, 1)
    assert (tmp_path / name).stat().st_mode == (tmp_path / "other").stat().st_mode


def make_loop(path):
    path.symlink_to(path)


REFUSED = {
    "folder": ("f", lambda path: path.mkdir(), "it is a folder"),
    "pipe": ("f", os.mkfifo, "it is not a regular file"),
    "link to itself": ("f", make_loop, "it is not a regular file"),
    "no folder": ("no/f", None, "No such file or directory"),
    "in a file": ("f/f", lambda path: path.parent.touch(), "Not a directory"),
    "NUL": ("f\0", None, "null byte"),
}


@posix
@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_replaced_is_refused_by_name_and_stays_as_it_was(case, tmp_path):
    name, make, words = REFUSED[case]
    path = tmp_path / name
    if make is not None:
        make(path)
    before = [(found.name, found.lstat()[:3]) for found in tmp_path.iterdir()]
    with pytest.raises(OSError, match=words) as error, replacing(path):
        pytest.fail("the block must not be reached")
    assert error.value.filename == str(path)
    assert [(found.name, found.lstat()[:3]) for found in tmp_path.iterdir()] == before
    with pytest.raises(ModelFileError, match=words) as error:
        save(1, path)
    assert one_sentence(error)


def test_an_error_in_the_block_changes_nothing_and_passes_as_it_is(tmp_path):
    error = LookupError("not found")
    with pytest.raises(LookupError) as caught, replacing(tmp_path / "a", tmp_path / "b") as files:
        files[0].write(b"half")
        raise error
    assert caught.value is error
    assert contents(tmp_path) == {}


def test_all_files_are_complete_and_synced_before_the_first_is_renamed_and_folders_after_the_last(
    tmp_path, monkeypatch
):
    events, sync, rename = [], os.fsync, os.replace

    def watched_sync(number):
        events.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else os.fstat(number).st_size)
        sync(number)

    def watched_rename(draft, path):
        events.append(path.name)
        rename(draft, path)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_rename)
    with replacing(tmp_path / "a", tmp_path / "b") as (one, two):
        one.write(b"1")
        two.write(b"22")
    assert events == [1, 2, "a", "b", "folder"]
    assert contents(tmp_path) == {"a": b"1", "b": b"22"}


def test_a_folder_that_can_not_be_synced_does_not_matter(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "open", refuse)
    replace_one(tmp_path / "f", 1)
    assert contents(tmp_path) == {"f": b"content 1"}
