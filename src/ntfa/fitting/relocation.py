"""Factors that do nothing are put where much is left to explain, in the middle of a fit.

Pursuit, which fits start from, sees the mean images of cells. A factor whose weights change from frame to frame, but
hardly from stimulus to stimulus, is not in these; one that is taken instead ends switched off, or shares what another
explains. So a fit stops now and then to look at what its factors leave of all frames, and exchanges the factor that
would be missed least for the blob that explains most of what is left, and so on, as long as the blob explains much
more. That takes about as long as a few steps. Moves are kept if the bound is higher with them at once; if it is not,
half of them are tried, those that promise most, and then half of these. Then factors of one person that have strayed
far from where everybody else's are go back there, one by one, if that raises the bound.

A fit that has nothing to gain takes the steps that it would have taken: looking draws nothing from its random numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ntfa.inference.bounds import SampledLikelihood
from ntfa.inference.cells import Frames
from ntfa.inference.normal import RandomSource
from ntfa.inference.processes import ALONE, Processes
from ntfa.inference.residuals import Moments, Regression, Usefulness, residual_mixtures
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
AT_A_TIME = 5
"""One of so many factors is moved at a time at most."""
STRAY_SPREADS = 4.0
"""How many times as far as others' a stray is, at least, from the middle of all owners' factors, and over a radius."""
MOST_STRAYS = 16
"""How many strays are tried at a time, at most."""
FEWEST_OWNERS = 4
"""Owners there must be to tell which of them has a stray."""


@dataclass(frozen=True)
class Exchange:
    """A factor of a block, or of all if `block` is None, and the blob to have instead of it; `promise` is in nats."""

    factor: int
    blob: Blob
    promise: float
    block: int | None = None


@dataclass(frozen=True)
class Stray:
    """A factor of one owner, by its row of all processes', that is `apart` from the middle of all owners' factors."""

    owner: int
    factor: int
    center: Tensor
    log_width: Tensor
    apart: float


@torch.no_grad()
def relocate(trainer: Trainer) -> int:
    """Move factors of a fit to where they explain more, if that raises the bound; return how many were moved."""
    model = trainer.model
    if not isinstance(model, TopographicModule) or not can_relocate(trainer, model):
        return 0
    n_moved, exchanges = 0, find_exchanges(trainer, model)
    if trainer.processes.any(bool(exchanges)):
        moves = _moves(trainer, model, exchanges)
        n_moved = keep_if_better(trainer, model, len(exchanges), lambda n: model.move(moves.first(n)))
        _forget_moments(trainer, model, moves.first(n_moved))
    for stray in find_strays(trainer, model):
        n_moved += keep_if_better(trainer, model, 1, partial(_return, trainer, model, stray))
    # Processes that have moved nothing of their own follow the schedule of those that have.
    return n_moved or int(trainer.processes.any(n_moved > 0))


def keep_if_better(trainer: Trainer, model: TopographicModule, n_moves: int, move: Callable[[int], None]) -> int:
    """Make the first few moves, as many as there are or half, or a quarter; keep them if the bound is higher then.

    move : makes the first so many
    """
    parameters = [*model.parameters()]
    kept, before = [parameter.clone() for parameter in parameters], _bound(trainer)
    # Where blocks move factors of their own, all processes try as often as the one that has most to try.
    while trainer.processes.any(n_moves > 0):
        move(n_moves)
        gain = _bound(trainer) - before
        logger.debug("step %d: %d factors moved, bound higher by %.1f", len(trainer.history.bounds), n_moves, gain)
        if gain > 0:
            return n_moves
        # In place, because a recorded step refers to where parameters lie.
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
        n_moves //= 2
    return 0


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
    frames, processes = trainer.likelihood.frames, trainer.processes
    centers, log_widths = (frames.cells.of_owner(part.mean) for part in (model.centers, model.log_widths))
    regression = Regression.of(frames, centers, log_widths)
    share = trainer.sharing.shares.get("likelihood")
    mixtures = residual_mixtures(frames, regression.weights, centers, log_widths, share.start if share else 0)
    search = _Search(frames, float(model.noise_sd) ** 2)
    if model.owners_share_factors:
        n_frames = int(processes.total(frames.energy.new_tensor(len(frames.energy))))
        left = next(mixtures)
        for of_block in mixtures:
            left += of_block
        left = processes.total(left)
        return search.exchanges(left, Usefulness(regression.inverse, regression.scatter), n_frames, processes)
    found = []
    for b, left in enumerate(mixtures):
        own = Usefulness(regression.inverse[b : b + 1], regression.scatter[b : b + 1])
        some = search.exchanges(left, own, frames.blocks[b].n_frames, ALONE)
        found += [replace(one, block=b) for one in some]
    return sorted(found, key=lambda one: -one.promise)


class _Search:
    """Looks for blobs in what factors leave of frames."""

    def __init__(self, frames: Frames, noise_variance: float) -> None:
        self.frames, self.noise_variance = frames, noise_variance
        self.lattice, self.reach = Lattice.around(frames.coordinates, MOST_NODES, frames.pooled), frames.reach

    def exchanges(self, left: Tensor, usefulness: Usefulness, n_frames: int, processes: Processes) -> list[Exchange]:
        """Give up the factor that would be missed least for the best blob, as long as that promises enough.

        left : mixtures [M, V] of what is left of so many frames
        """
        pursuit = Pursuit(self.lattice, torch.stack([self.lattice.pool(image) for image in left]), self.reach)
        least = n_frames * (LEAST_PER_FRAME + LEAST_PER_VALUE * self.frames.n_voxels)
        found: list[Exchange] = []
        for _ in range(max(1, usefulness.inverse.shape[-1] // AT_A_TIME)):
            losses = processes.total(usefulness.losses().sum(0))
            losses[[one.factor for one in found]] = torch.inf
            factor, blob = int(losses.argmin()), pursuit.take()
            # Noise alone has the energy of its variance in every frame.
            gain, loss = (
                (energy / self.noise_variance - n_frames) / 2 for energy in (blob.energy, float(losses[factor]))
            )
            if gain < max(TIMES_BETTER * loss, least):
                break
            usefulness.give_up(factor)
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


def find_strays(trainer: Trainer, model: TopographicModule) -> list[Stray]:
    """Find factors of one owner that are far from where those of the others are, of all processes, farthest first."""
    centers, log_widths = (trainer.processes.gather(part.mean) for part in (model.centers, model.log_widths))
    if not model.owners_share_factors or len(centers) < FEWEST_OWNERS:
        return []
    center, log_width = centers.median(0).values, log_widths.median(0).values
    apart = (centers - center).norm(dim=-1)
    far = (apart > STRAY_SPREADS * apart.median(0).values) & (apart > torch.exp(log_width / 2))
    found = [
        Stray(owner, factor, center[factor], log_width[factor], float(apart[owner, factor]))
        for owner, factor in far.nonzero().tolist()
    ]
    return sorted(found, key=lambda one: -one.apart)[:MOST_STRAYS]


def _return(trainer: Trainer, model: TopographicModule, stray: Stray, _n_moves: int) -> None:
    """Put a stray where the others' factors are, if its owner is this process's."""
    share = trainer.sharing.shares.get("owner")
    own = stray.owner - (share.start if share else 0)
    if 0 <= own < len(model.centers.mean):
        model.centers.mean[own, stray.factor] = stray.center
        model.log_widths.mean[own, stray.factor] = stray.log_width


def _forget_moments(trainer: Trainer, model: TopographicModule, moves: Moves) -> None:
    """Let the optimiser begin anew with what was moved: without momentum, in steps as large as other factors'."""
    for name, parameter in model.named_parameters():
        for kind, tensor in trainer.optimizer.state.get(parameter, {}).items():
            rows = model.by_factor(name, tensor) if tensor.shape == parameter.shape else None
            if rows is not None and kind == "exp_avg":
                moves.clear(rows)
            elif rows is not None:
                moves.make_typical(rows)
