"""Step sizes and stopping, as pure functions of the bounds seen so far: nothing to checkpoint but the history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

SETTLED = 1e-5
"""Gain of the bound from window to window, in nats per observation, that a fit which started near its end leaves."""


@dataclass(frozen=True)
class Pace:
    """What to do next: a factor on the learning rates, whether pooled frames will do, or a reason to stop.

    relocate : whether to look before the next step for factors that do nothing, and move them
    refit_noise : whether to estimate the noise anew before the next step
    """

    factor: float
    stop: str | None = None
    coarse: bool = False
    relocate: bool = False
    refit_noise: bool = False


class Relocation(NamedTuple):
    """After `step` steps the fit looked for factors that do nothing, and moved so many.

    gain : by how much that raised the bound at once, in nats per observation
    """

    step: int
    n_moved: int = 0
    gain: float = 0.0


class Schedule(Protocol):
    """Learning rates of variational and network parameters, and how they change.

    The nearer the sd of a factor's posterior is to its best, the less of its gradient is more than the noise of draws,
    by which Adam scales its steps; at the rate of means, it is 1.2 to 1.6 times its best when all else has arrived.
    """

    @property
    def variational_rate(self) -> float:
        """Largest learning rate of all but networks and sds of factors."""
        ...

    @property
    def spread_rate(self) -> float:
        """Largest learning rate of the sds of factors' posteriors."""
        ...

    @property
    def network_rate(self) -> float:
        """Largest learning rate of networks."""
        ...

    def pace(self, bounds: Sequence[float], relocations: Sequence[Relocation] = ()) -> Pace:
        """Say how to go on after these bounds (nats per observation, one per step) and relocations."""
        ...


@dataclass(frozen=True)
class OneCycle:
    """Up, along, down: warm up, hold until the bound stops rising, cool down to nothing.

    Held back to `max_epochs` in all: if the bound still rises then, cooling starts in time to end there. Factors that
    do nothing are looked for as soon as that shows, again a little after some were found, and when the bound has
    stopped rising; if some are moved then, the bound may rise again. Moves that raise it by no more than what counts as
    not rising have the time of cooling to settle.
    """

    max_epochs: int
    variational_rate: float = 0.05
    spread_rate: float = 0.2
    network_rate: float = 0.01
    warm_up: int = 10
    window: int = 20
    tolerance: float = 2e-6
    cool_down: int = 60
    first_look: int = 40
    look_again: int = 30
    most_looks: int = 8

    def pace(self, bounds: Sequence[float], relocations: Sequence[Relocation] = ()) -> Pace:
        """Say how to go on after these bounds and relocations."""
        step = len(bounds)
        turn, end = self.turn_and_end(bounds, relocations)
        if step >= end:
            return Pace(0.0, "converged" if end < self.max_epochs else "max_epochs")
        if self._may_look(step, turn, relocations):
            return Pace(1.0, relocate=True)
        if step >= turn:
            return Pace(downhill(int(step - turn), int(end - turn)))
        return Pace(min(1.0, (step + 1) / self.warm_up))

    def turn_and_end(self, bounds: Sequence[float], relocations: Sequence[Relocation] = ()) -> tuple[float, float]:
        """Steps at which cooling starts and ends, by what is known after these bounds."""
        cooling = min(self.cool_down, self.max_epochs // 2)
        latest = self.max_epochs - cooling
        moved = max((one.step for one in relocations if self._counts(one)), default=0)
        turn = min(moved + self._plateau(bounds[moved:latest]), latest)
        return turn, turn + cooling

    def _counts(self, relocation: Relocation) -> bool:
        """Whether the bound may rise for having moved factors."""
        return relocation.n_moved > 0 and relocation.gain >= self.tolerance

    def _may_look(self, step: int, turn: float, relocations: Sequence[Relocation]) -> bool:
        """Whether to look for factors that do nothing before the next step."""
        latest = self.max_epochs - min(self.cool_down, self.max_epochs // 2)
        # What is moved shortly before the end has no time to arrive.
        if len(relocations) >= self.most_looks or step + self.warm_up + 2 * self.window > latest:
            return False
        if any(one.step == step for one in relocations):
            return False
        again = [one.step + self.look_again for one in relocations if self._counts(one)]
        return step in (self.first_look, turn, *again)

    def _plateau(self, bounds: Sequence[float]) -> float:
        """First step at which a window of bounds was no better than the window before it."""
        width = self.window
        if len(bounds) < self.warm_up + 2 * width:
            return math.inf
        sums = np.concatenate([[0.0], np.cumsum(np.asarray(bounds) - bounds[0])])
        means = (sums[width:] - sums[:-width]) / width
        gains = means[width:] - means[:-width]
        flat = np.flatnonzero(gains[self.warm_up :] < self.tolerance)
        return float(flat[0] + self.warm_up + 2 * width) if len(flat) else math.inf


def downhill(step: int, n_steps: int) -> float:
    """Half a cosine from one to nothing, in so many steps."""
    return 0.5 * (1 + math.cos(math.pi * (step + 1) / (n_steps + 1)))


@dataclass(frozen=True)
class CoarseToFine:
    """One cycle on pooled frames, then a short way down on the frames as they are.

    The last leg starts at a part of the full rates: what pooling got wrong is small, apart from the noise, which what
    factors explain within boxes counts for there.
    """

    max_epochs: int
    fine: int = 30
    fine_factor: float = 0.1
    variational_rate: float = OneCycle.variational_rate
    spread_rate: float = OneCycle.spread_rate
    network_rate: float = OneCycle.network_rate
    tolerance: float = OneCycle.tolerance

    def pace(self, bounds: Sequence[float], relocations: Sequence[Relocation] = ()) -> Pace:
        """Say how to go on after these bounds and relocations."""
        fine = min(self.fine, self.max_epochs // 2)
        coarse = OneCycle(self.max_epochs - fine, tolerance=self.tolerance)
        end = coarse.turn_and_end(bounds, relocations)[1]
        step = len(bounds)
        if step < end:
            return replace(coarse.pace(bounds, relocations), coarse=True)
        if step < end + fine:
            return Pace(self.fine_factor * downhill(int(step - end), fine), refit_noise=step == end)
        return Pace(0.0, "converged" if end < coarse.max_epochs else "max_epochs")


@dataclass(frozen=True)
class PaperSchedule:
    """Adam at constant rates, halved after 100 epochs without progress (Sennesh et al. 2020)."""

    max_epochs: int
    variational_rate: float = 0.01
    spread_rate: float = 0.01
    network_rate: float = 0.0001
    patience: int = 100
    smallest_factor: float = 1 / 64

    def pace(self, bounds: Sequence[float], relocations: Sequence[Relocation] = ()) -> Pace:
        """Say how to go on after these bounds."""
        factor, best, waited = 1.0, -math.inf, 0
        for bound in bounds:
            best, waited = (bound, 0) if bound > best else (best, waited + 1)
            if waited > self.patience:
                factor, waited = factor / 2, 0
        if factor < self.smallest_factor:
            return Pace(0.0, "converged")
        return Pace(factor, "max_epochs" if len(bounds) >= self.max_epochs else None)


def settling(schedule: Schedule) -> Schedule:
    """Return the schedule of a fit that starts near its end: it stops sooner where there is little left to gain."""
    if isinstance(schedule, OneCycle):
        # A short way down leaves sds that learn fast too small, where owners have few frames.
        spread_rate = schedule.variational_rate
        return replace(schedule, window=10, tolerance=SETTLED, cool_down=20, spread_rate=spread_rate)
    return replace(schedule, tolerance=SETTLED) if isinstance(schedule, CoarseToFine) else schedule


SCHEDULES = {"one-cycle": OneCycle, "paper": PaperSchedule}
