"""Warnings as lines of the log, without the line of code that gave them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger("ntfa")


@contextmanager
def warnings_in_words() -> Iterator[None]:
    """Show each of our warnings as a line of the log, once."""
    said: set[str] = set()

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            logger.warning("%s", message)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
