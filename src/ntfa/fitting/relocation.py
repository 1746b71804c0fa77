"""Factors that do nothing are put where much is left to explain, in the middle of a fit.

Pursuit, which fits start from, sees the mean images of cells. A factor whose weights change from frame to frame, but
hardly from stimulus to stimulus, is not in these; one that is taken instead ends switched off, or shares what another
explains. So a fit stops now and then to look at what its factors leave of all frames, and exchanges the factor that
would be missed least for the blob that explains most of what is left, and so on, as long as the blob explains much
more. That takes about as long as a few steps. Moves are kept if the bound is higher with them at once; if it is not,
half of them are tried, those that promise most, and then half of these. Where none is moved for everybody, the same is
done person by person from the second look on, and whatever else may have gone astray in some people (`astray.py`).

A fit that has nothing to gain takes the steps that it would have taken: looking draws nothing from its random numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ntfa.fitting.astray import OwnChange, Place, by_factor, by_right, find_strays, find_swaps
from ntfa.inference.bounds import SampledLikelihood
from ntfa.inference.frames import Frames
from ntfa.inference.normal import RandomSource
from ntfa.inference.processes import ALONE, Processes
from ntfa.inference.residuals import N_MIXTURES, Moments, Regression, Usefulness, residual_mixtures
from ntfa.inference.start import MOST_NODES, Blob, Lattice, Pursuit
from ntfa.models.module import TopographicModule
from ntfa.models.moving import Moves

if TYPE_CHECKING:
    from ntfa.fitting.training import Trainer

logger = logging.getLogger("ntfa")

TIMES_BETTER = 2.0
"""How many times what it explains now a moved factor must promise to explain."""
LEAST_PER_FRAME = 0.3
"""Nats per frame that a factor must promise to explain: of all places in mere noise, the best seems to promise 0.2."""
LEAST_PER_VALUE = 1e-5
"""Nats per observation that it must promise besides."""
TIMES_BETTER_IN_ONE = 1.0
"""The same for a factor of one owner: one that lies on another seems to explain more than will be missed."""
AT_A_TIME = 5
"""One of so many factors is moved at a time at most."""
KEPT_MOMENT = 0.1
"""Share of what Adam knows of how large networks' gradients are that is kept after moves: they were larger before."""
FEW_MIXTURES = 64
"""How many mixtures of residual frames are looked at person by person."""


@dataclass(frozen=True)
class Exchange:
    """A factor of a block, or of all if `block` is None, and the blob to have instead of it; `promise` is in nats."""

    factor: int
    blob: Blob
    promise: float
    block: int | None = None


@torch.no_grad()
def relocate(trainer: Trainer, one_by_one: bool = True) -> int:
    """Move factors of a fit to where they explain more, if that raises the bound; return how many were moved.

    one_by_one : whether to look for what is astray in single owners, too, if nothing is moved for all
    """
    model = trainer.model
    if not isinstance(model, TopographicModule) or not can_relocate(trainer, model):
        return 0
    n_moved, exchanges = 0, find_exchanges(trainer, model)
    if trainer.processes.any(bool(exchanges)):
        moves = _moves(trainer, model, exchanges)
        trial = Trial(trainer, model)
        n_moved = trial.keep_if_better(len(exchanges), lambda n: model.move(moves.first(n)))
        _forget_moments(trainer, model, moves.first(n_moved))
    if one_by_one and model.owners_share_factors and not n_moved:
        n_moved = _change_single_owners(trainer, model)
    if n_moved:
        _let_networks_learn(trainer, model)
    # Processes that have moved nothing of their own follow the schedule of those that have.
    return n_moved or int(trainer.processes.any(n_moved > 0))


def _change_single_owners(trainer: Trainer, model: TopographicModule) -> int:
    """Move factors that are where they should be in most owners, but not in all; return how many were moved."""
    places = by_right(trainer, model, find_own_places(trainer, model))
    n_moved = _keep_those_better(trainer, model, by_factor(places))
    # What is exchanged stays where factors are, so the fit need not go on for it.
    _keep_those_better(trainer, model, find_swaps(trainer, model))
    return n_moved or _keep_those_better(trainer, model, by_factor(find_strays(trainer, model)))


class Trial:
    """Changes of a model, each of which is kept only if the bound is higher with it."""

    def __init__(self, trainer: Trainer, model: TopographicModule) -> None:
        self.trainer, self.parameters = trainer, [*model.parameters()]
        self.bound = _bound(trainer)

    def keep_if_better(self, n_moves: int, move: Callable[[int], None]) -> int:
        """Make the first few moves, as many as there are or half, or a quarter; keep them if the bound is higher then.

        move : makes the first so many
        """
        kept, history = [parameter.clone() for parameter in self.parameters], self.trainer.history
        # Where blocks move factors of their own, all processes try as often as the one that has most to try.
        while self.trainer.processes.any(n_moves > 0):
            move(n_moves)
            bound = _bound(self.trainer)
            text = "step %d: %d factors moved, bound higher by %.1f"
            logger.debug(text, len(history.bounds), n_moves, bound - self.bound)
            if bound > self.bound:
                self.bound = bound
                return n_moves
            # In place, because a recorded step refers to where parameters lie.
            for parameter, value in zip(self.parameters, kept, strict=True):
                parameter.copy_(value)
            n_moves //= 2
        return 0


def _keep_those_better(trainer: Trainer, model: TopographicModule, changes: Sequence[OwnChange]) -> int:
    """Change factors of single owners, one factor after another; keep what raises the bound."""
    if not changes:
        return 0
    n_kept, trial = 0, Trial(trainer, model)
    for change in changes:
        n = trial.keep_if_better(len(change), partial(change.make, trainer, model))
        change.forget(trainer, model, n)
        n_kept += n
    return n_kept


def can_relocate(trainer: Trainer, model: TopographicModule) -> bool:
    """Whether factors can be moved in a fit: not where they are to stay, or frames have weights that are drawn."""
    return (
        model.factors_can_move and not model.factors_are_kept and not isinstance(trainer.likelihood, SampledLikelihood)
    )


def _bound(trainer: Trainer) -> float:
    """Bound of the fit as it stands, with the same draws every time it is asked for at a step."""
    _, terms = trainer.objective(RandomSource(len(trainer.history.bounds)))
    return float(trainer.processes.total(terms.stacked())[0])


def find_exchanges(trainer: Trainer, model: TopographicModule) -> list[Exchange]:
    """Choose factors and what to have instead of them, what promises most first."""
    if not model.owners_share_factors:
        return find_by_block(trainer, model, N_MIXTURES, TIMES_BETTER)
    look, processes = _Look.of(trainer, model, N_MIXTURES), trainer.processes
    n_frames = int(processes.total(look.frames.energy.new_tensor(len(look.frames.energy))))
    left = next(look.mixtures)
    for of_block in look.mixtures:
        left += of_block
    usefulness = Usefulness(look.regression.inverse, look.regression.scatter)
    return look.search.exchanges(processes.total(left), usefulness, n_frames, processes)


def find_by_block(trainer: Trainer, model: TopographicModule, n_mixtures: int, times_better: float) -> list[Exchange]:
    """Choose factors of single blocks and what to have instead of them, what promises most first."""
    look = _Look.of(trainer, model, n_mixtures)
    inverse, scatter = look.regression.inverse, look.regression.scatter
    found = []
    for b, left in enumerate(look.mixtures):
        usefulness = Usefulness(inverse[b : b + 1], scatter[b : b + 1])
        some = look.search.exchanges(left, usefulness, look.frames.blocks[b].n_frames, ALONE, times_better)
        found += [replace(one, block=b) for one in some]
    return sorted(found, key=lambda one: -one.promise)


def find_own_places(trainer: Trainer, model: TopographicModule) -> list[Place]:
    """Find where factors of single owners, of all processes, would do something that do nothing there now."""
    cells, share = trainer.cells, trainer.sharing.shares.get("owner")
    first, rows = share.start if share else 0, []
    for one in find_by_block(trainer, model, FEW_MIXTURES, TIMES_BETTER_IN_ONE):
        assert one.block is not None
        owner = first + int(cells.owner[one.block])
        rows.append([owner, one.factor, *one.blob.center.tolist(), one.blob.log_width, one.promise])
    table = trainer.processes.gather(model.centers.mean.new_tensor(rows).reshape(-1, 7))
    return [Place(int(row[0]), int(row[1]), row[2:5], row[5], float(row[6])) for row in table]


@dataclass(frozen=True)
class _Look:
    """What factors leave of frames, as mixtures [M, V] of each block, and where to look in it."""

    frames: Frames
    regression: Regression
    mixtures: Iterator[Tensor]
    search: _Search

    @classmethod
    def of(cls, trainer: Trainer, model: TopographicModule, n_mixtures: int) -> _Look:
        frames = trainer.likelihood.frames
        centers, log_widths = (frames.cells.of_owner(part.mean) for part in (model.centers, model.log_widths))
        regression = Regression.of(frames, centers, log_widths)
        share = trainer.sharing.shares.get("likelihood")
        first_frame = share.start if share else 0
        mixtures = residual_mixtures(frames, regression.weights, centers, log_widths, first_frame, n_mixtures)
        return cls(frames, regression, mixtures, _Search(frames, float(model.noise_sd) ** 2))


class _Search:
    """Looks for blobs in what factors leave of frames."""

    def __init__(self, frames: Frames, noise_variance: float) -> None:
        self.frames, self.noise_variance = frames, noise_variance
        self.lattice, self.reach = Lattice.around(frames.coordinates, MOST_NODES, frames.pooled), frames.reach

    def exchanges(
        self,
        left: Tensor,
        usefulness: Usefulness,
        n_frames: int,
        processes: Processes,
        times_better: float = TIMES_BETTER,
    ) -> list[Exchange]:
        """Give up the factor that would be missed least for the best blob, as long as that promises enough.

        left : mixtures [M, V] of what is left of so many frames
        """
        pursuit = Pursuit(self.lattice, self.lattice.pool(left), self.reach)
        least = n_frames * (LEAST_PER_FRAME + LEAST_PER_VALUE * self.frames.n_voxels)
        found: list[Exchange] = []
        for _ in range(max(1, usefulness.inverse.shape[-1] // AT_A_TIME)):
            losses = processes.total(usefulness.losses().sum(0))
            losses[[one.factor for one in found]] = torch.inf
            factor, (_, explained) = int(losses.argmin()), pursuit.best()
            # Noise alone has the energy of its variance in every frame.
            gain, loss = (
                (energy / self.noise_variance - n_frames) / 2 for energy in (explained, float(losses[factor]))
            )
            if gain < max(times_better * loss, least):
                break
            usefulness.give_up(factor)
            blob = pursuit.take(between_nodes=True)
            blob = blob._replace(log_width=self.frames.of_voxels(blob.log_width))
            found.append(Exchange(factor, blob, gain - loss))
        return found


def _moves(trainer: Trainer, model: TopographicModule, exchanges: list[Exchange]) -> Moves:
    """Say what weights will be at the new places."""
    frames = trainer.likelihood.frames
    cells, device = frames.cells, frames.energy.device
    centers, log_widths = (cells.of_owner(part.mean).clone() for part in (model.centers, model.log_widths))
    factor = torch.tensor([one.factor for one in exchanges], dtype=torch.long, device=device)
    new_centers = centers.new_zeros(len(factor), 3)
    for row, one in zip(new_centers, exchanges, strict=True):
        row.copy_(one.blob.center)
    new_log_widths = centers.new_tensor([one.blob.log_width for one in exchanges])
    if model.owners_share_factors:
        block, owner = torch.zeros_like(factor), None
        centers[:, factor], log_widths[:, factor] = new_centers, new_log_widths
    else:
        block = torch.tensor([one.block for one in exchanges], dtype=torch.long, device=device)
        owner = cells.owner[block]
        centers[block, factor], log_widths[block, factor] = new_centers, new_log_widths
    regression = Regression.of(frames, centers, log_widths)
    by_block = not model.owners_share_factors
    moments = Moments.of(cells, regression, model.noise_sd.square(), trainer.processes, by_block)
    return Moves(factor, owner, new_centers, new_log_widths, *(part[block, factor] for part in moments))


def _let_networks_learn(trainer: Trainer, model: TopographicModule) -> None:
    """Let networks take larger steps: gradients were large while factors were missing, and Adam remembers that long."""
    for parameter in model.network_parameters():
        if parameter in trainer.optimizer.state:
            trainer.optimizer.state[parameter]["exp_avg_sq"] *= KEPT_MOMENT


def _forget_moments(trainer: Trainer, model: TopographicModule, moves: Moves) -> None:
    """Let the optimiser begin anew with what was moved: without momentum, in steps as large as other factors'."""
    for name, parameter in model.named_parameters():
        for kind, tensor in trainer.optimizer.state.get(parameter, {}).items():
            rows = model.by_factor(name, tensor) if tensor.shape == parameter.shape else None
            if rows is not None and kind == "exp_avg":
                moves.clear(rows)
            elif rows is not None:
                moves.make_typical(rows)
