"""Checkpoints of a fit in progress: one safetensors file, replaced atomically."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ntfa.errors import Interrupted, ModelError
from ntfa.inference.bounds import Bound
from ntfa.inference.training import History, Trainer

SECONDS_BETWEEN = 30.0
ANEW = "start anew (without --resume, or by deleting that file)"
_PARTS = [part.name for part in fields(Bound)]


class Checkpoint:
    """Writes the state of a fit to `path` now and then, and when the process is told to stop.

    `identity` says what is being fitted to what; a checkpoint of anything else is refused.
    """

    def __init__(self, path: Path, identity: dict[str, object]) -> None:
        self.path = path
        self.identity = json.dumps(identity, sort_keys=True)
        self.written = time.monotonic()
        self.signals: list[int] = []

    def after_step(self, trainer: Trainer) -> None:
        """Write if it is time to; write and raise `Interrupted` if a signal said stop."""
        if self.signals or time.monotonic() - self.written > SECONDS_BETWEEN:
            self.write(trainer)
        if self.signals:
            raise Interrupted(self.signals[0], self.path, len(trainer.history.bounds))

    def finish(self, trainer: Trainer) -> None:
        """Write the end of the fit; raise `Interrupted` if a signal came with the last step."""
        self.write(trainer)
        if self.signals:
            raise Interrupted(self.signals[0], self.path, len(trainer.history.bounds))

    @contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end the fit after the step in hand; a second one of the same kind ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous: dict[int, Any] = {}

        def note(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)
            signal.signal(number, previous[number])

        previous.update({number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)})
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def write(self, trainer: Trainer) -> None:
        """Replace the checkpoint by the present state."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        history = trainer.history
        bounds = [
            [second, *asdict(bound).values()] for second, bound in zip(history.seconds, history.bounds, strict=True)
        ]
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in trainer.tensors().items()}
        tensors["history"] = torch.tensor(bounds, dtype=torch.float64).reshape(-1, 1 + len(_PARTS))
        partial = self.path.with_suffix(".partial")
        save_file(tensors, partial, {"identity": self.identity, "stopped": history.stopped or ""})
        os.replace(partial, self.path)
        self.written = time.monotonic()

    def restore(self, trainer: Trainer) -> bool:
        """Take the trainer back to the checkpoint; False if there is none."""
        if not self.path.exists():
            return False
        try:
            with safe_open(self.path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self.path}: cannot be read as a checkpoint ({error}); {ANEW}") from error
        if metadata.get("identity") != self.identity:
            raise ModelError(
                f"{self.path}: this checkpoint belongs to another fit (other settings, seed or study); "
                f"use the settings it was started with, or {ANEW}"
            )
        try:
            rows = tensors.pop("history").tolist()
            bounds = [Bound(*row[1:]) for row in rows]
            trainer.restore(tensors, History([row[0] for row in rows], bounds, metadata.get("stopped") or None))
        except (KeyError, TypeError, RuntimeError) as error:
            raise ModelError(f"{self.path}: the checkpoint is incomplete ({error}); {ANEW}") from error
        return True
