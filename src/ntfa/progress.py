"""What is being done, and for how long: a line that moves on a terminal, a line of the log now and then elsewhere.

Shown where the log of the package is: commands show it unless told to be quiet, and other programs if they ask for it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logger = logging.getLogger("ntfa")

NOTICED_S = 2.0
"""Seconds after which whoever waits wants to know what for."""
BETWEEN_LINES_S = 30.0
TICK_S = 0.2
CLEAR = "\r\x1b[K"

_busy: ContextVar[bool] = ContextVar("busy", default=False)


@contextmanager
def stage(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show what is being done until it is done; one that takes less than two seconds leaves nothing behind.

    Parameters
    ----------
    what : str
        What is being done, as in "Reading images".
    total : int, optional
        Number of parts; calling what the stage yields says that one more is done, and time left is then shown.

    Notes
    -----
    A stage inside a stage is part of it, and not shown.
    """
    if _busy.get() or not logger.isEnabledFor(logging.INFO):
        yield lambda: None
        return
    token = _busy.set(True)
    ticker = _Ticker(what, total)
    try:
        with ticker:
            yield ticker.advance
    finally:
        _busy.reset(token)


class _Ticker:
    """Says how a stage stands, from a thread of its own, until told that it is over."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total, self.done = what, total, 0
        self.started = self.last_line = time.monotonic()
        self.on_terminal = sys.stderr.isatty()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> _Ticker:
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.over.set()
        self.thread.join()
        took = time.monotonic() - self.started
        if self.on_terminal and took > TICK_S:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()
        if kind is None and took >= NOTICED_S:
            logger.info("%s: done in %s", self.what, duration(took))

    def advance(self) -> None:
        """Note that one more part is done."""
        self.done += 1

    def _tick(self) -> None:
        while not self.over.wait(TICK_S):
            now = time.monotonic()
            if self.on_terminal:
                # The cursor goes back to the start of the line, so that a line of the log takes its place.
                sys.stderr.write(f"{CLEAR}{self.as_text(now)}\r")
                sys.stderr.flush()
            elif now - self.last_line > BETWEEN_LINES_S:
                logger.info("%s", self.as_text(now))
                self.last_line = now

    def as_text(self, now: float) -> str:
        """Say what is being done, how far that is, for how long it has been, and how long it will be."""
        passed = now - self.started
        if self.total is None:
            return f"{self.what} ({duration(passed)})"
        left = f", about {duration(passed / self.done * (self.total - self.done))} left" if self.done else ""
        return f"{self.what}: {self.done} of {self.total} ({duration(passed)}{left})"


def duration(seconds: float) -> str:
    """Write a time as people say it: 12 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
