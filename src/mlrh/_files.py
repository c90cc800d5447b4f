"""Files that are replaced as a whole or not at all."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replacing(*paths) -> Iterator[list[IO[bytes]]]:
    """Binary files that take the places of the paths when the block ends well, and vanish when it doesn't.

    Each is written beside what it replaces and is on the disk before it is renamed: a crash leaves the old content or
    the new one, never half of it. No file is renamed before all are complete. A link stays a link, and the mode of an
    old file is kept. A folder or a special file (a named pipe, /dev/null) is not replaced but refused. An OSError has
    the path that can't be written as its `filename`, if it comes from here and not from the block.
    """
    with ExitStack() as cleanup:
        targets, files = [], []
        for path in paths:
            with _named(path):
                targets.append(_target(path))
                files.append(cleanup.enter_context(_draft_of(targets[-1])))
        yield files
        for path, file in zip(paths, files, strict=True):
            with _named(path):
                file.flush()
                os.fsync(file.fileno())
                file.close()
        for path, file, target in zip(paths, files, targets, strict=True):
            with _named(path):
                os.replace(file.name, target)
        for folder in {target.parent for target in targets}:
            _sync_folder(folder)


@contextmanager
def _named(path):
    """An OSError within the block gets the path; so does a name that no file can have, such as one with NUL."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from error


def _target(path):
    """What is to be replaced, once links are followed."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if target.is_symlink() or (target.exists() and not target.is_file()):  # still a link: one that leads to itself
        raise OSError(errno.EINVAL, "it is not a regular file")
    return target


@contextmanager
def _draft_of(target):
    """A new file in the target's folder, with the target's mode; removed at the end if it is still there."""
    draft = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        file = open(draft, "xb")  # noqa: SIM115  closed below, or before it is renamed
        try:
            if target.exists():
                shutil.copymode(target, draft)  # before anything is in it that others may not read
            yield file
        finally:
            with suppress(OSError):  # after a write that failed, closing tries it again
                file.close()
    finally:
        draft.unlink(missing_ok=True)


def _sync_folder(folder):
    # So that the new name survives a crash too. Windows and some network file systems can't do this.
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
