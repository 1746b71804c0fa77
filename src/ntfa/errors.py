"""The errors this package raises on purpose: each says what is wrong, where, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sklearn.exceptions import NotFittedError as _NotFittedError


class NTFAError(Exception):
    """Base of every error raised on purpose by this package."""


class StudyError(NTFAError, ValueError):
    """A study, or what a study was to be made from, is not usable."""


class ModelError(NTFAError, ValueError):
    """A model's settings, or a folder that should hold a model, are not usable."""


class DivergedError(ModelError):
    """A fit ran away, also with smaller steps."""


class TooLargeError(NTFAError, MemoryError):
    """What was asked for needs more memory than there is."""


class OutputError(NTFAError, OSError):
    """An output folder cannot be written, usually because something is already there."""


class Interrupted(NTFAError):
    """A signal stopped a command; a fit has left a checkpoint to resume from."""

    def __init__(self, signal_number: int, checkpoint: Path | None = None, step: int = 0) -> None:
        self.signal_number, self._said = signal_number, (signal_number, checkpoint, step)
        left = "" if checkpoint is None else f" after step {step}; checkpoint written to {checkpoint}"
        super().__init__(f"stopped by signal {signal_number}{left}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Of an exception that comes from another process, only its text would be left.
        return type(self), self._said


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: unwinds as Ctrl-C does, past everything that handles errors."""


if TYPE_CHECKING:

    class NotFittedError(NTFAError, _NotFittedError):
        """A model was asked for results before it was fitted."""


def __getattr__(name: str) -> Any:
    # scikit-learn takes a second to import, which `ntfa --help` and the numerical core must not wait for; a class
    # derived from its error is therefore made when it is first asked for.
    if name != "NotFittedError":
        raise AttributeError(f"module 'ntfa.errors' has no attribute {name!r}")
    from sklearn.exceptions import NotFittedError as base

    text = "A model was asked for results before it was fitted; also scikit-learn's error of that name."
    made = type(name, (NTFAError, base), {"__doc__": text, "__module__": __name__})
    return globals().setdefault(name, made)


def __dir__() -> list[str]:
    return sorted({*globals(), "NotFittedError"})
