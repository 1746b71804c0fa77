"""What to write where a part cannot be done on a study."""

from __future__ import annotations

import logging
from pathlib import Path

from ntfa.errors import StudyError

logger = logging.getLogger("ntfa")

NOTE = "not_possible.txt"


class NotPossible(StudyError):
    """A part asks for something that this study does not have; other parts may still be done."""


def write_note(folder: Path, part: str, reason: NotPossible) -> None:
    """Write why a part cannot be done, and warn of it."""
    logger.warning("%s is not possible: %s", part, reason)
    (folder / NOTE).write_text(f"{reason}\n", encoding="utf-8")
