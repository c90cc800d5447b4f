"""Files that are replaced as a whole or not at all, and locks between processes that write to the same one."""

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replacing(*paths) -> Iterator[list[IO[bytes]]]:
    """Binary files that take the places of the paths when the block ends well, and vanish when it doesn't.

    Each is written beside what it replaces and is on the disk before it is renamed: a crash leaves the old content or
    the new one, never half of it. No file is renamed before all are complete. A link stays a link, and the mode of an
    old file is kept; so are its owner and group, as far as the system lets this user give files away. A folder or a
    special file (a named pipe, /dev/null) is not replaced but refused. An OSError has the path that can't be written as
    its `filename`, if it comes from here and not from the block.
    """
    with ExitStack() as cleanup:
        targets, files = [], []
        for path in paths:
            with naming(path):
                targets.append(_target(path))
                files.append(cleanup.enter_context(_draft_of(targets[-1])))
        yield files
        for path, file in zip(paths, files, strict=True):
            with naming(path):
                file.flush()
                os.fsync(file.fileno())
                file.close()
        for path, file, target in zip(paths, files, targets, strict=True):
            with naming(path):
                os.replace(file.name, target)
        for folder in {target.parent for target in targets}:
            sync_folder(folder)


@contextmanager
def naming(path) -> Iterator[None]:
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
                _hand_over(target, file)  # before anything is in it that others may not read
            yield file
        finally:
            with suppress(OSError):  # after a write that failed, closing tries it again
                file.close()
    finally:
        draft.unlink(missing_ok=True)


def _hand_over(target, file):
    """Give the draft the owner, group and mode of the target."""
    old = target.stat()
    if os.name == "posix":
        new = os.fstat(file.fileno())
        for owner in ((old.st_uid, -1), (-1, old.st_gid)):
            if owner not in ((new.st_uid, -1), (-1, new.st_gid)):
                with suppress(PermissionError):  # only the superuser may give files away
                    os.chown(file.fileno(), *owner)
    os.chmod(file.name, stat.S_IMODE(old.st_mode))  # last, since a change of owner takes bits of the mode away


def sync_folder(folder) -> None:
    """Return when the names in the folder are on the disk."""
    # So that the new name survives a crash too. Windows and some network file systems can't do this.
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


# Locks

POLL = 0.02  # seconds between two looks at a lock that another process has


def lock(path, seconds: float = 0.0) -> Callable[[], None]:
    """Take the lock of a path, which no file need have; returns the function that gives it back.

    Waits so long for a process that has it, and then is a BlockingIOError. The lock is a hidden file beside the path
    that lies there while the lock is held; a process that is killed gives it back.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows: there, two programs must not be given one file
        return lambda: None
    place = Path(path).with_name(f".{Path(path).name}.lock")
    end = time.monotonic() + seconds
    while True:
        number = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(number, place):
                return lambda: _unlock(number, place)
            os.close(number)  # whoever had it took the file away in between
        except BlockingIOError:
            os.close(number)
            if time.monotonic() >= end:
                raise
            time.sleep(POLL)
        except OSError:  # a network file system without locks
            os.close(number)
            return lambda: None


def _is_at(number, place):
    try:
        return os.path.samestat(os.fstat(number), os.stat(place))
    except FileNotFoundError:
        return False


def _unlock(number, place):
    place.unlink(missing_ok=True)  # while it is held, so that nobody else's is taken away
    os.close(number)
