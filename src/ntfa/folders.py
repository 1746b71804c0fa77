"""Output folders that appear complete or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ntfa.errors import OutputError


@contextmanager
def write_folder(folder: Path, overwrite: bool, mark: str) -> Iterator[Path]:
    """Yield a new folder to write into; it takes its place at `folder` when the block ends without an error.

    `mark` names a file or folder that such folders have: one without it is somebody else's, and is never replaced.
    """
    refuse_existing(folder, overwrite, mark)
    partial = sibling(folder, "partial")
    partial.mkdir(parents=True)
    try:
        yield partial
        publish(partial, folder, overwrite, mark)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_existing(folder: Path, overwrite: bool, mark: str) -> None:
    """Raise `OutputError` if nothing can be written at `folder`, or something is there that may not be replaced."""
    if not folder.absolute().name:
        raise OutputError(f"{folder} cannot be an output folder")
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be made: {error}") from error
    if os.path.lexists(folder) and not overwrite:
        raise OutputError(f"{folder} exists already; choose another place, or say overwrite to replace it")
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise OutputError(f"{folder} is not a folder; it will not be replaced")
    if os.path.lexists(folder) and any(folder.iterdir()) and not (folder / mark).exists():
        raise OutputError(f"{folder} holds something else (it has no {mark}); it will not be replaced")


def publish(partial: Path, folder: Path, overwrite: bool, mark: str) -> None:
    """Put a finished folder in its place; an old one there is removed only after that."""
    refuse_existing(folder, overwrite, mark)
    if not os.path.lexists(folder):
        os.replace(partial, folder)
        return
    old = sibling(folder, "old")
    os.replace(folder, old)
    try:
        os.replace(partial, folder)
    except BaseException:
        os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def sibling(folder: Path, kind: str) -> Path:
    """Return a hidden name beside a folder that nothing else has."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.{kind}-{uuid.uuid4().hex[:8]}")
