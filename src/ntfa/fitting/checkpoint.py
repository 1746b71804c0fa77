"""Checkpoints of a fit in progress: safetensors files with a checksum, two generations of them.

A new checkpoint is written beside the current one, onto the disk, and then takes its place, while the current one
becomes the previous. At any moment one of the two is whole; if the disk spoils the current one, the previous is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ntfa.errors import Interrupted, ModelError
from ntfa.files.folders import flush, not_written, write_through
from ntfa.fitting.divergence import BackOff, Good
from ntfa.fitting.schedules import Relocation
from ntfa.fitting.training import History, Trainer
from ntfa.inference.bounds import Bound

logger = logging.getLogger("ntfa")

SECONDS_BETWEEN = 30.0
ANEW = "start again (without --resume, or by deleting that file)"
_PARTS = [part.name for part in fields(Bound)]
_NO_CHECKSUM = b"0" * 64
_CHECKSUM = re.compile(rb'"checksum":"([0-9a-f]{64})"')


class Checkpoint:
    """Writes the state of a fit to `path` now and then, and when the process is told to stop.

    `identity` says what is being fitted to what; a checkpoint of anything else is refused.
    """

    def __init__(self, path: Path, identity: dict[str, object]) -> None:
        self.path = path
        self.previous = path.with_suffix(f".previous{path.suffix}")
        self.identity = json.dumps(identity, sort_keys=True)
        self.written = time.monotonic()
        self.signals: list[int] = []
        self.failing = False

    def after_step(self, trainer: Trainer) -> None:
        """Write if it is time to; write and raise `Interrupted` if a signal said stop."""
        # Clocks and signals differ between processes, but all must write, or none: gathering tensors takes all of them.
        is_due = time.monotonic() - self.written > SECONDS_BETWEEN
        if not trainer.processes.any(is_due or bool(self.signals)):
            return
        if trainer.processes.any(bool(self.signals)):
            self._stop(trainer)
        self._try_to_write(trainer)

    def finish(self, trainer: Trainer) -> None:
        """Write the end of the fit; raise `Interrupted` if a signal came with the last step."""
        if trainer.processes.any(bool(self.signals)):
            self._stop(trainer)
        self._try_to_write(trainer)

    def _stop(self, trainer: Trainer) -> None:
        self.write(trainer)
        # Another process of the fit may have had the signal.
        number = self.signals[0] if self.signals else signal.SIGTERM
        raise Interrupted(number, self.path, len(trainer.history.bounds))

    def _try_to_write(self, trainer: Trainer) -> None:
        """Write; if that fails, say so and let the fit go on: by the next time there may be room again."""
        try:
            self.write(trainer)
        except OSError as error:
            if not self.failing:
                logger.warning("%s; the fit continues without it", error)
            self.failing, self.written = True, time.monotonic()
        else:
            if self.failing:
                logger.warning("%s: checkpoints can be written again", self.path)
            self.failing = False

    @contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end the fit after the step in hand; a second one of the same kind ends it at once."""
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous: dict[int, Any] = {}

        def note(number: int, frame: FrameType | None) -> None:
            # Only noted here: in the middle of a step there is no state that could be written.
            self.signals.append(number)
            signal.signal(number, previous[number])

        previous.update({number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)})
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def write(self, trainer: Trainer) -> None:
        """Replace the checkpoint by the present state; the one there becomes the previous one.

        Of the processes of a fit one writes, with the rows of all: a fit may be resumed by more or fewer of them.
        """
        history = trainer.history
        good = history.good and Good(history.good.step, trainer.gathered(history.good.tensors))
        tensors = trainer.gathered(trainer.tensors())
        self.written = time.monotonic()
        if not trainer.processes.is_first:
            return
        content = _sealed(*_as_file(tensors, replace(history, good=good), self.identity))
        following = self.path.with_suffix(f".next{self.path.suffix}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # The new file is on disk before the old one is renamed, so that a crash in between leaves two whole files.
            write_through(following, content)
            with suppress(FileNotFoundError):
                self.path.replace(self.previous)
            following.replace(self.path)
            # Renames are only certain to outlive a power cut once their folder has been flushed.
            flush(self.path.parent)
        except OSError as error:
            raise not_written(self.path, error) from error
        self.written = time.monotonic()

    def restore(self, trainer: Trainer) -> bool:
        """Take the trainer back to the checkpoint, or the previous one if that is damaged; False if there is none."""
        problems: list[ModelError] = []
        for path in (self.path, self.previous):
            if not path.exists():
                continue
            try:
                tensors, metadata = _opened(path)
            except ModelError as problem:
                problems.append(problem)
                continue
            # A whole checkpoint of another fit is an error: the previous one would be of that fit too.
            self._require_own(path, metadata)
            _restore(trainer, tensors, metadata, path)
            if problems:
                step = len(trainer.history.bounds)
                logger.warning("%s: damaged; resuming from the previous checkpoint, step %d", self.path, step)
            return True
        if problems:
            raise problems[0]
        return False

    def _require_own(self, path: Path, metadata: dict[str, str]) -> None:
        if metadata.get("identity") != self.identity:
            raise ModelError(
                f"{path}: this checkpoint belongs to another fit (other settings, seed or study); "
                f"use the settings it was started with, or {ANEW}"
            )


def _as_file(tensors: dict[str, Tensor], history: History, identity: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata of a checkpoint."""
    rows = [[second, *asdict(bound).values()] for second, bound in zip(history.seconds, history.bounds, strict=True)]
    good = history.good or Good(0, {})
    everything = tensors | {f"good.{name}": tensor for name, tensor in good.tensors.items()}
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in everything.items()}
    kept["history"] = torch.tensor(rows, dtype=torch.float64).reshape(-1, 1 + len(_PARTS))
    back_offs = json.dumps([astuple(one) for one in history.back_offs])
    return kept, {
        "identity": identity,
        "stopped": history.stopped or "",
        "good_step": str(good.step),
        "back_offs": back_offs,
        "relocations": json.dumps(history.relocations),
    }


def _restore(trainer: Trainer, tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    try:
        rows = tensors.pop("history").tolist()
        good = {name: tensors.pop(name) for name in list(tensors) if name.startswith("good.")}
        history = History([row[0] for row in rows], [Bound(*row[1:]) for row in rows], metadata["stopped"] or None)
        history.back_offs = [BackOff(*one) for one in json.loads(metadata["back_offs"])]
        history.relocations = [Relocation(*one) for one in json.loads(metadata.get("relocations", "[]"))]
        if good:
            state = {name.removeprefix("good."): tensor for name, tensor in good.items()}
            history.good = Good(int(metadata["good_step"]), trainer.own(state))
        trainer.restore(trainer.own(tensors), history)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{path}: the checkpoint is incomplete ({error}); {ANEW}") from error


def _sealed(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return a safetensors file whose metadata holds the checksum of the file, taken with zeros in its place."""
    # safetensors has no checksum of its own, and one in a second file could be exchanged separately from this one.
    content = save(tensors, metadata | {"checksum": _NO_CHECKSUM.decode()})
    digest = hashlib.sha256(content).hexdigest().encode()
    return content.replace(b'"checksum":"' + _NO_CHECKSUM, b'"checksum":"' + digest, 1)


def _opened(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata of a file that `_sealed` made; refuse one in which any byte has changed."""
    try:
        if not path.is_file():
            raise ValueError("it is a folder, a pipe or a device, and no file")
        content = path.read_bytes()
        seal = _CHECKSUM.search(content)
        blank = content[: seal.start(1)] + _NO_CHECKSUM + content[seal.end(1) :] if seal else b""
        if seal is None or hashlib.sha256(blank).hexdigest().encode() != seal[1]:
            raise ValueError("its checksum is wrong")
        # `load` drops the metadata; they are in the header, whose length the first eight bytes give.
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return load(content), header["__metadata__"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read as a checkpoint ({error}); {ANEW}") from error
