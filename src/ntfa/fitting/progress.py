"""Progress of a fit: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

from ntfa.fitting.training import Trainer

SECONDS_BETWEEN_LINES = 20.0
# Most fits converge long before they have taken all steps.
BAR = "{desc}: {bar:20} step {n_fmt} of at most {total_fmt}, {elapsed} passed, at most {remaining} left, {postfix}"


class Progress:
    """Called after every step of a fit; shows nothing if `verbose` is 0."""

    def __init__(self, title: str, max_epochs: int, verbose: int) -> None:
        self.title, self.max_epochs = title, max_epochs
        self.verbose = verbose
        self.bar: tqdm | None = None
        if verbose and sys.stderr.isatty():
            self.bar = tqdm(total=max_epochs, desc=title, leave=False, bar_format=BAR)
        self.last_line = time.monotonic()

    def after_step(self, trainer: Trainer) -> None:
        """Show how far the fit is."""
        step = len(trainer.history.bounds)
        bound = trainer.history.bounds[-1].value / trainer.n_data
        if self.bar is not None:
            self.bar.set_postfix_str(f"bound {bound:.5f} nats per observation", refresh=False)
            self.bar.update(step - self.bar.n)
        elif self.verbose and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self._say(f"step {step} of at most {self.max_epochs}, bound {bound:.5f} nats per observation")
            self.last_line = time.monotonic()

    def close(self, trainer: Trainer) -> None:
        """Say how the fit ended."""
        if self.bar is not None:
            self.bar.close()
        history = trainer.history
        if self.verbose and history.bounds:
            ended = {"converged": "converged", "max_epochs": "stopped at max_epochs", None: "interrupted"}[
                history.stopped
            ]
            bound = history.bounds[-1].value / trainer.n_data
            took = f"{len(history.bounds)} steps and {history.seconds[-1]:.1f} s"
            self._say(f"{ended} after {took}, bound {bound:.5f} nats per observation")

    def _say(self, text: str) -> None:
        sys.stderr.write(f"{self.title}: {text}\n")
