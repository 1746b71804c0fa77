"""Output folders that appear complete or not at all, one process at a time, whatever happens to that process.

Beside a folder `out` there may be, hidden, while it is written:

    .out.partial-xxxxxxxx     the new folder, until it is complete
    .out.old-xxxxxxxx         the folder that was there, for the moment of exchange where there is no atomic one
    .out.discarded-xxxxxxxx   something on its way out
    .out.lock                 who is writing

A process that is killed leaves some of them; the next one to take the lock removes them, or puts the old folder back.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import shutil
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from filelock import BaseFileLock, FileLock, Timeout

from ntfa.errors import NTFAError, OutputError

logger = logging.getLogger("ntfa")

AT_WORKING_FOLDER, EXCHANGE = -100, 2
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
NO_FLUSH = (errno.EINVAL, errno.EBADF, errno.EACCES, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def write_folder(folder: Path, overwrite: bool, mark: str, needed: int = 0) -> Iterator[Path]:
    """Yield a new folder to write into; it takes its place at `folder` when the block ends without an error.

    `mark` names a file or folder that such folders have: one without it is somebody else's, and is never replaced.
    `needed` is how many bytes are going to be written, as far as that is known.
    """
    refuse_existing(folder, overwrite, mark)
    require_room(folder, needed)
    partial = sibling(folder, "partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        publish(partial, folder, overwrite, mark)
    except OSError as error:
        if isinstance(error, NTFAError):
            raise
        raise not_written(folder, error, needed, partial) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def not_written(path: Path, error: OSError, needed: int = 0, partial: Path | None = None) -> OutputError:
    """Say what could not be written and why, how much room it takes, and that nothing is lost by it.

    `partial` is where the files of the folder `path` were being written; if the error names one, so does the message.
    """
    full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    file = Path(error.filename) if isinstance(error.filename, str) else None
    written = _newest_first(partial) if full and partial else []
    if file is None and written:
        # Of a write that fails the system does not say which file it was to: the one that was written to last.
        file = written[0]
    shown = path / file.relative_to(partial) if file and partial and file.is_relative_to(partial) else path
    room = ""
    if full and needed:
        room = f", which takes {in_words(needed)} ({in_words(free_at(path))} are free),"
    elif written:
        so_far = sum(one.stat().st_size for one in written)
        room = f", of results that take more than {in_words(so_far)},"
    advice = "make room, and run it again" if full else "run it again"
    why = error.strerror or str(error)
    return OutputError(f"{shown}{room} could not be written ({why}); what was there before is untouched: {advice}")


def _newest_first(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def require_room(path: Path, needed: int) -> None:
    """Refuse to begin what the disk has no room for; a quota may still be in the way."""
    if needed > (free := free_at(path)):
        raise OutputError(
            f"{path} takes {in_words(needed)}, but only {in_words(free)} are free on its disk; make room, or choose "
            "another place"
        )


def free_at(path: Path) -> int:
    """Bytes that are free where a file or folder is or is going to be; without end, where nobody can tell."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return sys.maxsize


def in_words(n_bytes: int) -> str:
    """A size as people write it."""
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{max(n_bytes, 1e5) / 1e6:,.1f} MB"


def refuse_existing(folder: Path, overwrite: bool, mark: str) -> None:
    """Raise `OutputError` if nothing can be written at `folder`, or something is there that may not be replaced."""
    _make_parent(folder)
    if os.path.lexists(folder) and not overwrite:
        raise OutputError(f"{folder} exists already; choose another place, or say overwrite to replace it")
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise OutputError(f"{folder} is not a folder; it will not be replaced")
    if os.path.lexists(folder) and any(folder.iterdir()) and not (folder / mark).exists():
        raise OutputError(f"{folder} holds something else (it has no {mark}); it will not be replaced")


def _make_parent(folder: Path) -> None:
    if not folder.absolute().name:
        raise OutputError(f"{folder} cannot be an output folder")
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be made: {error}") from error


def publish(partial: Path, folder: Path, overwrite: bool, mark: str) -> None:
    """Put a finished folder in its place, at one moment; an old one there is removed only after that."""
    # Checked again: something may have appeared there in the hours of a fit.
    refuse_existing(folder, overwrite, mark)
    # Contents first and the rename last, or a power cut could leave a folder in place whose files are empty.
    for path, _, files in os.walk(partial):
        for name in files:
            flush(Path(path) / name)
        flush(Path(path))
    if not os.path.lexists(folder):
        os.replace(partial, folder)
    elif not exchange(partial, folder):
        _replace_in_two_moves(partial, folder)
    flush(folder.absolute().parent)
    discard(partial)


def _replace_in_two_moves(partial: Path, folder: Path) -> None:
    old = sibling(folder, "old")
    os.replace(folder, old)
    try:
        os.replace(partial, folder)
    except BaseException:
        # Also for an interrupt between the two moves: whatever happens, one of the folders is in place.
        os.replace(old, folder)
        raise
    discard(old)


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders at one moment; False where the system or the file system cannot."""
    # Python has no such call: os.replace refuses a folder that is not empty.
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(rename(AT_WORKING_FOLDER, os.fsencode(one), AT_WORKING_FOLDER, os.fsencode(other), EXCHANGE) == 0)


def flush(path: Path) -> None:
    """Wait until a file or folder is on disk and would outlive a power cut, where the file system can say so."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        # What may not be read cannot be flushed either; that is no reason to fail.
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FLUSH:
            raise
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    # In the same folder, because renaming is atomic within one file system only.
    partial = sibling(path, "partial")
    write_through(partial, content)
    os.replace(partial, path)
    flush(path.absolute().parent)


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array as `numpy.save` does, which does not notice that a disk is full while it closes a file."""
    try:
        with path.open("wb") as file:
            # Not being a file, the wrapper is written to through Python, and that raises whatever goes wrong.
            np.save(_Wrapped(file), array, allow_pickle=False)
    except OSError as error:
        # Of a write that fails the system does not say which file it was to.
        error.filename = error.filename or str(path)
        raise


class _Wrapped:
    def __init__(self, file: BinaryIO) -> None:
        self.write = file.write


def write_through(path: Path, content: bytes) -> None:
    """Write a file onto the disk; leave nothing if that fails."""
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def discard(folder: Path) -> None:
    """Remove a folder that nobody may take for a whole one while it is being removed."""
    # Renamed first: removing takes time, and a process killed in between must not leave half a folder under its name.
    going = sibling(folder, "discarded")
    with suppress(OSError):
        os.replace(folder, going)
    shutil.rmtree(going, ignore_errors=True)


def sibling(folder: Path, kind: str) -> Path:
    """Return a hidden name beside a folder that nothing else has."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.{kind}-{uuid.uuid4().hex[:8]}")


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Let one process at a time write to a folder, and clean up after one that was killed.

    The second to come gets an `OutputError` that names the first. The lock is the kernel's: it ends with the process,
    whatever that dies of.
    """
    _make_parent(folder)
    absolute = folder.absolute()
    path = absolute.with_name(f".{absolute.name}.lock")
    lock, owner = FileLock(path, timeout=0), f"process {os.getpid()} on {socket.gethostname()}"
    _acquire(lock, path, folder)
    with suppress(OSError):
        path.write_text(owner, encoding="utf-8")
    try:
        # Only now: without the lock, what lies there may be another process's work in progress.
        tidy(folder)
        yield
    finally:
        # The file at this place may be another's by now, if somebody removed ours.
        with suppress(OSError, ValueError):
            if path.read_text(encoding="utf-8") == owner:
                path.unlink()
        lock.release()


def _acquire(lock: BaseFileLock, path: Path, folder: Path) -> None:
    try:
        lock.acquire()
    except Timeout as error:
        holder = path.read_text(encoding="utf-8", errors="replace")[:1000] if path.is_file() else ""
        holder = holder or "another process"
        raise OutputError(f"{folder} is being written by {holder}; wait for it, or choose another place") from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise OutputError(f"{folder} cannot be written to: {error}") from error
        logger.warning("%s: this file system has no locks (%s); run one command at a time there", folder, error)


def tidy(folder: Path) -> None:
    """Remove what killed processes left beside a folder; put back an old one that had to make room for nothing."""
    left = leftovers(folder.absolute().parent, re.escape(folder.absolute().name))
    for path in left:
        # The process died between the two moves of an exchange: the old folder is the only whole one.
        if ".old-" in path.name and not os.path.lexists(folder):
            os.replace(path, folder)
    for path in left:
        _remove(path)


def tidy_inside(folder: Path) -> None:
    """Remove what killed processes left anywhere in a folder that only this process writes to."""
    for path, _, _ in os.walk(folder):
        for left in leftovers(Path(path), ".+"):
            _remove(left)


def leftovers(parent: Path, name: str) -> list[Path]:
    """Find hidden leftovers of what is called `name`, a regular expression, in a folder."""
    pattern = re.compile(rf"\.{name}\.(partial|old|discarded)-[0-9a-f]{{8}}")
    return sorted(path for path in parent.iterdir() if pattern.fullmatch(path.name))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
