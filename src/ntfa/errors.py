"""The errors this package raises on purpose: each says what is wrong, where, and what to do."""

from pathlib import Path


class NTFAError(Exception):
    """Base of every error raised on purpose by this package."""


class StudyError(NTFAError, ValueError):
    """A study, or what a study was to be made from, is not usable."""


class NotFittedError(NTFAError, AttributeError, ValueError):
    """A model was asked for results before it was fitted."""


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
        self.signal_number = signal_number
        left = "" if checkpoint is None else f" after step {step}; checkpoint written to {checkpoint}"
        super().__init__(f"stopped by signal {signal_number}{left}")


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: unwinds as Ctrl-C does, past everything that handles errors."""
