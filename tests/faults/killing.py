"""Run commands in processes of their own that can be killed, for tests and benchmarks of faults."""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.numpy import load_file

TABLES = ("embeddings_participants.tsv", "embeddings_stimuli.tsv", "factors.tsv")
# A server that has imported everything forks a process for each command: seconds are saved, and no thread is forked.
CONTEXT = multiprocessing.get_context("forkserver")
# The optimiser and readers of images import these when they are first used, which takes longer than a small fit.
LATE = ("torch._dynamo", "torch.distributed.nn", "sklearn.cluster", "nilearn.image", "nilearn.masking", "scipy.signal")
COMMANDS = ("ntfa.cli.fit", "ntfa.cli.bids", "ntfa.cli.compare", "ntfa.cli.simulate", "ntfa.report")
CONTEXT.set_forkserver_preload([*COMMANDS, *LATE, "bids"])


@dataclass
class Command:
    """`ntfa ARGUMENTS` in a process of its own.

    every : seconds between checkpoints
    pictures : whether to write reports, which take longer than small fits
    largest_file : bytes that no file may exceed, as if the disk were full
    die_at, die_with : kill itself when this function, "module:name", is called for the n-th time
    """

    arguments: list[Any]
    log: Path
    every: float = 0.0
    pictures: bool = False
    largest_file: int | None = None
    die_at: tuple[str, int] | None = None
    die_with: int = signal.SIGKILL
    process: Any = field(default=None, repr=False)

    def start(self) -> Command:
        """Begin, and do not wait."""
        settings = (self.every, self.pictures, self.largest_file, self.die_at, self.die_with)
        self.process = CONTEXT.Process(target=_run, args=([*map(str, self.arguments)], str(self.log), *settings))
        self.process.start()
        return self

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end and return its exit code, minus the signal's number if it was killed; None if it goes on."""
        self.process.join(seconds)
        return self.process.exitcode

    def run(self) -> int | None:
        """Begin, wait for the end, return the exit code."""
        return self.start().wait(120)

    def wait_until_stopped(self, seconds: float = 60) -> None:
        """Wait until it has stopped itself, as `die_with=SIGSTOP` asks it to."""
        deadline = time.monotonic() + seconds
        # The state is the first letter after the name, which is in brackets.
        while Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline, "it did not stop"
            time.sleep(0.02)

    def send(self, number: int) -> None:
        """Send it a signal."""
        if self.process.is_alive():
            os.kill(self.process.pid, number)

    @property
    def said(self) -> str:
        """All it has written to the terminal."""
        return self.log.read_text(encoding="utf-8")


def _run(
    arguments: list[str],
    log: str,
    every: float,
    pictures: bool,
    largest_file: int | None,
    die_at: tuple[str, int] | None,
    die_with: int,
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
    os.dup2(2, 1)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    logging.getLogger().handlers.clear()
    code = 70
    try:
        _prepare(every, pictures, die_at, die_with)
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        from ntfa.cli import main

        code = main(arguments)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _prepare(every: float, pictures: bool, die_at: tuple[str, int] | None, die_with: int) -> None:
    import torch

    import ntfa.fitting.checkpoint
    import ntfa.report.build

    torch.set_num_threads(1)
    ntfa.fitting.checkpoint.SECONDS_BETWEEN = every
    if not pictures:
        ntfa.report.build.write_report = lambda model, study, path, *rest, **more: path.write_text("<h1>")
    if die_at is not None:
        _die_at(*die_at, die_with)


def _die_at(place: str, call: int, number: int) -> None:
    """Replace a function by one that sends a signal to this process when it is called for the n-th time."""
    from importlib import import_module

    module_name, _, path = place.partition(":")
    owner: Any = import_module(module_name)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), [0]

    def replaced(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    setattr(owner, name, replaced)


def state(out: Path) -> dict[str, Any]:
    """All that a result is, to the bit, times apart."""
    content: dict[str, Any] = {name: (out / name).read_bytes() for name in TABLES}
    history = pd.read_csv(out / "history.tsv", sep="\t").drop(columns="seconds")
    content["history"] = history.to_csv()
    tensors = load_file(out / "model.safetensors")
    return content | {f"model.{name}": (array.shape, array.tobytes()) for name, array in sorted(tensors.items())}


def appears(path: Path, seconds: float = 60) -> None:
    """Wait for a file."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def names(folder: Path) -> list[str]:
    """Names of everything in a folder."""
    return sorted(path.name for path in folder.iterdir())
