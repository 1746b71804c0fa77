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
def write_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a new folder to write into; it takes its place at `folder` when the block ends without an error."""
    refuse_existing(folder, overwrite)
    partial = sibling(folder, "partial")
    partial.mkdir(parents=True)
    try:
        yield partial
        publish(partial, folder, overwrite)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Raise `OutputError` if something is at `folder` and may not be replaced."""
    if os.path.lexists(folder) and not overwrite:
        raise OutputError(f"{folder} exists already; choose another place, or say overwrite to replace it")
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise OutputError(f"{folder} is not a folder; it will not be replaced")


def publish(partial: Path, folder: Path, overwrite: bool) -> None:
    """Put a finished folder in its place; an old one there is removed only after that."""
    refuse_existing(folder, overwrite)
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
