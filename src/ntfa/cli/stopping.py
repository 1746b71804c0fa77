"""Let a command that is told to stop clean up first, and end with 128 + signal."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ntfa.errors import Interrupted, Terminated
from ntfa.files.folders import only_writer

SOON = 0.02


@contextmanager
def writing_alone(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder, until done or told to stop."""
    with stopping_cleanly(), only_writer(folder):
        yield


@contextmanager
def stopping_cleanly() -> Iterator[None]:
    """Turn SIGTERM and SIGINT into `Interrupted`, after everything in the block has been unwound."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with _insisting():
            yield
    except Terminated as stop:
        raise Interrupted(signal.SIGTERM) from stop
    except KeyboardInterrupt as stop:
        raise Interrupted(signal.SIGINT) from stop
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def _insisting() -> Iterator[None]:
    """Raise again what was raised while Python cleaned up an object: there, exceptions are shown and forgotten."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    forgotten: list[BaseException] = []
    show, before = sys.unraisablehook, signal.getsignal(signal.SIGALRM)

    def hook(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            show(unraisable)
            return
        forgotten.append(unraisable.exc_value)
        signal.setitimer(signal.ITIMER_REAL, SOON)

    def again(number: int, frame: FrameType | None) -> None:
        raise type(forgotten[-1])

    sys.unraisablehook = hook
    signal.signal(signal.SIGALRM, again)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = show
