"""A fit that diverges goes back to an earlier state, and continues with smaller learning rates.

What is kept to go back to is part of the history, and so of a checkpoint: a fit that is interrupted and resumed goes
back to the same place as one that was not.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ntfa.errors import DivergedError
from ntfa.inference.bounds import Bound

if TYPE_CHECKING:
    from ntfa.fitting.training import Trainer

logger = logging.getLogger("ntfa")

EVERY = 10
"""Steps between states to go back to."""
SMALLER = 0.3
"""Factor of the learning rates after going back."""
MOST = 5
"""How often a fit may go back."""
WHILE_AGO = 20
"""Steps within which a bound has to diverge to be noticed."""
FAR = 10
"""A bound is far below what it was if it is so many times lower than it used to vary."""
LEAST_SPREAD = 0.3
"""A bound is taken to vary by at least so much, in nats per observation."""


class Good(NamedTuple):
    """A state to go back to: steps taken until then, and a copy of everything that the next one depends on."""

    step: int
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class BackOff:
    """At `step` the bound diverged; the fit resumed from `back_to`, learning rates multiplied by `factor`."""

    step: int
    back_to: int
    factor: float


def problem_with(bound: float, before: Sequence[float]) -> str | None:
    """Say what is wrong with a bound after the bounds before it (nats per observation), or None if nothing is.

    It has diverged if it is not a number, or far below the best that was reached a while ago; how far is measured by
    how far that best was above the middle of the bounds until then.
    """
    if not math.isfinite(bound):
        return f"the bound became {bound} at step {len(before) + 1}"
    # Bounds are noisy: compared with the very last ones, an unlucky draw would look like divergence.
    past = before[: len(before) - WHILE_AGO]
    if len(before) < WHILE_AGO + EVERY:
        return None
    best = max(past)
    if best - bound > FAR * max(best - median(past), LEAST_SPREAD):
        return f"the bound fell from {best:.5g} to {bound:.5g} nats per observation by step {len(before) + 1}"
    return None


class Guard:
    """Takes the steps of a trainer, and takes it back to an earlier state when the bound diverges."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def step(self, factor: float, refit_noise: bool = False) -> Bound | None:
        """Take a step, learning rates scaled by `factor`; None if the trainer had to go back.

        refit_noise : whether to estimate the noise anew first
        """
        history, bounds = self.trainer.history, self.bounds()
        # Copied before the step, because the optimiser changes parameters in place.
        kept = self._copy() if len(bounds) % EVERY == 0 else None
        try:
            if refit_noise:
                self.trainer.refit_noise()
            bound = self.trainer.step(factor * SMALLER ** len(history.back_offs))
            problem = problem_with(bound.value / self.trainer.n_data, bounds)
        except torch.linalg.LinAlgError as error:
            problem = f"a matrix could not be inverted at step {len(bounds) + 1} ({error})"
        if problem is not None:
            self._go_back(problem, history.good or kept or Good(len(bounds), {}))
            return None
        # The bound is that of the state before the step, so only now is that state known to be well.
        if kept is not None and not _falling(bound.value / self.trainer.n_data, bounds):
            history.good = kept
        return bound

    def bounds(self) -> list[float]:
        """Return the bounds so far, in nats per observation."""
        return [bound.value / self.trainer.n_data for bound in self.trainer.history.bounds]

    def _copy(self) -> Good:
        tensors = {name: tensor.detach().clone() for name, tensor in self.trainer.tensors().items()}
        return Good(len(self.trainer.history.bounds), tensors)

    def _go_back(self, problem: str, good: Good) -> None:
        trainer, history = self.trainer, self.trainer.history
        tries = len(history.back_offs)
        if tries >= MOST or not good.tensors:
            raise DivergedError(_explanation(problem, tries))
        factor = SMALLER ** (tries + 1)
        logger.warning("%s; resuming from step %d with learning rates multiplied by %.2g", problem, good.step, factor)
        history.back_offs.append(BackOff(len(history.bounds) + 1, good.step, factor))
        del history.bounds[good.step :], history.seconds[good.step :]
        history.relocations = [one for one in history.relocations if one.step <= good.step]
        # At the very start Adam has no moments yet, and restoring nothing would leave those of the step that failed.
        trainer.optimizer.state.clear()
        trainer.restore(good.tensors, history)
        # The same draws might do the same again.
        torch.randn(tries + 1, generator=trainer.noise.generator)


def _falling(bound: float, before: Sequence[float]) -> bool:
    """Whether a bound is below all of the last ones, as it would be when it begins to diverge."""
    return len(before) >= WHILE_AGO and bound < min(before[-WHILE_AGO:])


def _explanation(problem: str, tries: int) -> str:
    also = f", even after {tries} restarts with smaller learning rates" if tries else ""
    return (
        f"{problem}{also}; the fit was stopped. Check the data for extreme values: a voxel that hardly varies during "
        "rest gets huge z-scores; exclude it, or z-score by the whole run. If the values are plausible, try fewer "
        "factors or the paper's schedule"
    )
