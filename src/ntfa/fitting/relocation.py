"""Factors that do nothing are put where much is left to explain, in the middle of a fit.

Pursuit, which fits start from, sees the mean images of cells. A factor whose weights change from frame to frame, but
hardly from stimulus to stimulus, is not in these; one that is taken instead ends switched off, or shares what another
explains. So a fit stops now and then to look at what its factors leave of all frames, and exchanges the factor that
would be missed least for the blob that explains most of what is left, and so on, as long as the blob explains much
more. That takes about as long as a few steps. Moves are kept if the bound is higher with them at once; if it is not,
half of them are tried, those that promise most, and then half of these. Where none is moved for everybody, the same is
done person by person from the second look on, and whatever else may have gone astray in some people (`astray.py`): what
each person adds to the bound says whose changes are worth having, so that all people can be tried at once.

A fit that has nothing to gain takes the steps that it would have taken: looking draws nothing from its random numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ntfa.fitting.astray import (
    Place,
    by_right,
    find_strays,
    find_swaps,
    forget_changed,
    in_turns,
    make_changes,
)
from ntfa.fitting.schedules import Relocation
from ntfa.inference.bounds import SampledLikelihood
from ntfa.inference.collapsed import cell_log_likelihood
from ntfa.inference.frames import Frames
from ntfa.inference.normal import RandomSource
from ntfa.inference.processes import ALONE, Processes
from ntfa.inference.pursuit import MOST_NODES, Blob, Candidates, Lattice, Pursuit
from ntfa.inference.residuals import N_MIXTURES, Moments, Regression, Usefulness, residual_mixtures
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
AT_ONCE_BYTES = {"cpu": 0, "cuda": 256 << 20}
"""How much is smoothed at a time, beyond one block: a processor has blocks in its cache, a GPU waits to be asked."""
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
def relocate(trainer: Trainer, one_by_one: bool = True) -> Relocation:
    """Move factors of a fit to where they explain more, if that raises the bound; say what came of it.

    one_by_one : whether to look for what is astray in single owners, too, if nothing is moved for all
    """
    model, nothing = trainer.model, Relocation(len(trainer.history.bounds))
    if not isinstance(model, TopographicModule) or not can_relocate(trainer, model):
        return nothing
    exchanges = find_exchanges(trainer, model)
    keep = _keep_if_better if model.owners_share_factors else _keep_if_better_for_owner
    n_moved, gain = keep(trainer, model, _moves(trainer, model, exchanges)) if exchanges else (0, 0.0)
    if not model.owners_share_factors:
        # Each process has looked at its own owners' frames, and moved what is theirs alone.
        n_moved, gain = trainer.processes.total(model.centers.mean.new_tensor([n_moved, gain])).tolist()
    found = nothing._replace(n_moved=int(n_moved), gain=gain / trainer.n_data)
    if one_by_one and model.owners_share_factors and not found.n_moved:
        found = _change_single_owners(trainer, model)
    if found.n_moved:
        _let_networks_learn(trainer, model)
    return found


def _keep_if_better(trainer: Trainer, model: TopographicModule, moves: Moves) -> tuple[int, float]:
    """Make moves of factors that all owners share; return how many were kept, and what they gained in nats."""
    trial = Trial(trainer, model)
    n_moved = trial.keep_if_better(len(moves.factor), lambda n: model.move(moves.some(slice(n))))
    _forget_moments(trainer, model, moves.some(slice(n_moved)))
    return n_moved, trial.gain


def _keep_if_better_for_owner(trainer: Trainer, model: TopographicModule, moves: Moves) -> tuple[int, float]:
    """Make moves of owners that share nothing, all of an owner's, or half, or a quarter, as its own bound says."""
    assert moves.owner is not None
    owner, parameters = moves.owner, [*model.parameters()]
    copies, before = [parameter.clone() for parameter in parameters], _bounds_of_owners(trainer, model)
    same = owner.unsqueeze(1) == owner
    # What promises most is first of all, and so of its owner's.
    rank = same.tril(-1).sum(1)
    n_kept = torch.bincount(owner, minlength=len(before))
    while True:
        kept = moves.some(rank < n_kept[owner])
        model.move(kept)
        gains = _bounds_of_owners(trainer, model) - before
        worse = (gains <= 0) & (n_kept > 0)
        if not bool(worse.any()):
            break
        n_kept[worse] //= 2
        put_back(parameters, copies)
    _forget_moments(trainer, model, kept)
    return int(n_kept.sum()), float(gains.sum())


def _change_single_owners(trainer: Trainer, model: TopographicModule) -> Relocation:
    """Move factors that are where they should be in most owners, but not in all; say what came of it."""
    found = _keep_those_better(trainer, model, by_right(trainer, model, find_own_places(trainer, model)))
    # What is exchanged stays where factors are, so the fit need not go on for it.
    _keep_those_better(trainer, model, find_swaps(trainer, model))
    return found if found.n_moved else _keep_those_better(trainer, model, find_strays(trainer, model))


class Trial:
    """Changes of a model, each of which is kept only if the bound is higher with it."""

    def __init__(self, trainer: Trainer, model: TopographicModule) -> None:
        self.trainer, self.parameters = trainer, [*model.parameters()]
        self.bound = self.first_bound = _bound(trainer)

    @property
    def gain(self) -> float:
        """By how much the changes that were kept have raised the bound, in nats."""
        return self.bound - self.first_bound

    def keep_if_better(self, n_moves: int, move: Callable[[int], None]) -> int:
        """Make the first few moves, as many as there are or half, or a quarter; keep them if the bound is higher then.

        move : makes the first so many
        """
        copies = [parameter.clone() for parameter in self.parameters]
        while n_moves > 0:
            move(n_moves)
            bound = _bound(self.trainer)
            text = "step %d: %d factors moved, bound higher by %.1f"
            logger.debug(text, len(self.trainer.history.bounds), n_moves, bound - self.bound)
            if bound > self.bound:
                self.bound = bound
                return n_moves
            put_back(self.parameters, copies)
            n_moves //= 2
        return 0


def put_back(parameters: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
    """Let parameters be what they were, in place, because a recorded step refers to where they lie."""
    for parameter, value in zip(parameters, copies, strict=True):
        parameter.copy_(value)


def _keep_those_better(trainer: Trainer, model: TopographicModule, changes: Sequence[Place]) -> Relocation:
    """Make changes of single owners, one of each at a time; keep those that raise what the owner adds to the bound."""
    step, n_kept = len(trainer.history.bounds), 0
    if not changes:
        return Relocation(step)
    trial = Trial(trainer, model)
    before = trainer.processes.gather(_bounds_of_owners(trainer, model))
    for together in in_turns(changes):
        copies = [parameter.clone() for parameter in trial.parameters]
        make_changes(trainer, model, together, len(together))
        after = trainer.processes.gather(_bounds_of_owners(trainer, model))
        gains = (after - before)[[change.owner for change in together]].tolist()
        put_back(trial.parameters, copies)
        ordered = sorted(zip(gains, together, strict=True), key=lambda one: -one[0])
        better = [change for gain, change in ordered if gain > 0]
        n = trial.keep_if_better(len(better), partial(make_changes, trainer, model, better))
        if n:
            forget_changed(trainer, model, better[:n])
            before = trainer.processes.gather(_bounds_of_owners(trainer, model))
        n_kept += n
    return Relocation(step, n_kept, trial.gain / trainer.n_data)


def _bounds_of_owners(trainer: Trainer, model: TopographicModule) -> Tensor:
    """What each owner of this process adds to the bound as it stands, the draws being those of `_bound`."""
    draw = model.draw(trainer.cells, RandomSource(len(trainer.history.bounds)))
    frames = trainer.likelihood.frames
    projection = frames.project(draw.centers, draw.log_widths)
    of_cells = cell_log_likelihood(projection, draw.weights, draw.noise_sd)
    added = of_cells.new_zeros(len(model.centers.mean)).index_add(0, frames.cells.owner[frames.cells.block], of_cells)
    for latent in draw.latents:
        if latent.posterior.mean is model.centers.mean or latent.posterior.mean is model.log_widths.mean:
            added -= latent.posterior.kl_of_rows(latent.prior)
    return added


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
    return look.search.exchanges(look.search.pursue(processes.total(left)), usefulness, n_frames, processes)


def find_by_block(trainer: Trainer, model: TopographicModule, n_mixtures: int, times_better: float) -> list[Exchange]:
    """Choose factors of single blocks and what to have instead of them, what promises most first."""
    look = _Look.of(trainer, model, n_mixtures)
    search, inverse, scatter = look.search, look.regression.inverse, look.regression.scatter
    found = []
    for b, (pursuit, explained) in enumerate(search.by_block(look.mixtures)):
        n_frames = look.frames.blocks[b].n_frames
        if search.may_gain(explained, n_frames):
            usefulness = Usefulness(inverse[b : b + 1], scatter[b : b + 1])
            some = search.exchanges(pursuit, usefulness, n_frames, ALONE, times_better)
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
        self.candidates = Candidates.on(Lattice.around(frames.coordinates, MOST_NODES, frames.pooled), frames.reach)

    def pursue(self, left: Tensor) -> Pursuit:
        """Pursue blobs in mixtures [M, V] of what is left of frames."""
        return Pursuit(self.candidates, self.candidates.lattice.pool(left))

    def by_block(self, mixtures: Iterator[Tensor]) -> Iterator[tuple[Pursuit, float]]:
        """Pursue blobs in mixtures of each block, and say how much energy the best explains; a few blocks at a time."""
        lattice, n_widths = self.candidates.lattice, len(self.candidates.widths)
        while some := [*islice(mixtures, 1)]:
            size = 4 * n_widths * lattice.count.numel() * len(some[0])
            some += islice(mixtures, AT_ONCE_BYTES[some[0].device.type] // size)
            images = lattice.pool(torch.cat(some)).unflatten(3, (len(some), -1))
            overlaps = self.candidates.overlaps(images)
            best = self.candidates.explained(overlaps).flatten(0, 3).amax(0).tolist()
            for i, explained in enumerate(best):
                own = [overlap[..., i, :] for overlap in overlaps]
                yield Pursuit(self.candidates, images[..., i, :], own), explained

    def may_gain(self, explained: float, n_frames: int) -> bool:
        """Whether a blob that explains so much energy of frames explains more than noise can feign."""
        return self._gain(explained, n_frames) >= self._least(n_frames)

    def _gain(self, energy: float, n_frames: int) -> float:
        """What explaining so much energy is worth: noise alone has the energy of its variance in every frame."""
        return (energy / self.noise_variance - n_frames) / 2

    def _least(self, n_frames: int) -> float:
        return n_frames * (LEAST_PER_FRAME + LEAST_PER_VALUE * self.frames.n_voxels)

    def exchanges(
        self,
        pursuit: Pursuit,
        usefulness: Usefulness,
        n_frames: int,
        processes: Processes,
        times_better: float = TIMES_BETTER,
    ) -> list[Exchange]:
        """Give up the factor that would be missed least for the best blob, as long as that promises enough."""
        least = self._least(n_frames)
        found: list[Exchange] = []
        for _ in range(max(1, usefulness.inverse.shape[-1] // AT_A_TIME)):
            losses = processes.total(usefulness.losses().sum(0))
            losses[[one.factor for one in found]] = torch.inf
            factor, (_, explained) = int(losses.argmin()), pursuit.best()
            gain, loss = (self._gain(energy, n_frames) for energy in (explained, float(losses[factor])))
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
