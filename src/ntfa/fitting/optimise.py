"""One optimisation from its start to its end: initial factors, a trainer, its checkpoint, its progress."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ntfa.fitting.checkpoint import Checkpoint
from ntfa.fitting.progress import Progress
from ntfa.fitting.schedules import SCHEDULES, CoarseToFine, OneCycle, settling
from ntfa.fitting.sharing import Sharing
from ntfa.fitting.task import Task
from ntfa.fitting.training import History, Trainer
from ntfa.inference.bounds import Likelihood, SampledLikelihood
from ntfa.inference.frames import Frames
from ntfa.inference.normal import RandomSource
from ntfa.inference.start import Start, find_start
from ntfa.models.module import TopographicModule
from ntfa.progress import stage

logger = logging.getLogger("ntfa")

BOUNDS_TO_JUDGE_BY = 10


@dataclass(frozen=True)
class Recipe:
    """What an estimator asks of its optimisation.

    name : of the model, for whoever watches
    make_module : makes an untrained module with the rows of all participants
    make_likelihood : chooses how weights are treated, given frames and start
    n_factors, init, schedule, max_epochs, n_particles, n_restarts, verbose : as the estimator's
    kept_factors : centres [K, 3] and log-widths [K] of factors that are known, and stay where they are
    approach : brings a module that stands at its start near its end, from where it only has to settle
    """

    name: str
    make_module: Callable[[], TopographicModule]
    make_likelihood: Callable[[Frames, Start], Likelihood]
    seed: int
    n_factors: int
    init: str
    schedule: str
    max_epochs: int
    n_particles: int
    n_restarts: int
    verbose: int
    kept_factors: tuple[Tensor, Tensor] | None = None
    approach: Callable[[TopographicModule], None] | None = None


@dataclass(frozen=True)
class Checkpoints:
    """A folder with a checkpoint of every restart, and what they are checkpoints of."""

    folder: Path
    identity: dict[str, Any]

    def of_restart(self, restart: int) -> Checkpoint:
        """Return the checkpoint of a restart, written or not."""
        return Checkpoint(self.folder / f"restart-{restart}.safetensors", self.identity)


@dataclass(frozen=True)
class Optimised:
    """A trained module with the rows of all participants, and how it came about.

    n_pooled : columns that voxels were pooled into for the first steps; None if they were not
    """

    module: TopographicModule
    history: History
    n_pooled: int | None = None

    @property
    def final_bound(self) -> float:
        """Mean of the last bounds, each of which is noisy."""
        last = [bound.value for bound in self.history.bounds[-BOUNDS_TO_JUDGE_BY:]]
        return sum(last) / len(last)


def optimise_all(task: Task, recipe: Recipe, checkpoints: Checkpoints | None) -> list[Optimised]:
    """Optimise from every start; those that their checkpoints say are done take no further step."""
    where, blocks, cells = task.frames.energy.device, task.frames.blocks, task.frames.cells
    text = "%s on %s: %d sets of factors, %d cells, %s values"
    logger.debug(text, recipe.name, where, len(blocks), len(cells.block), f"{task.frames.n_data:,}")
    kept = [None if checkpoints is None else checkpoints.of_restart(restart) for restart in range(recipe.n_restarts)]
    return [optimise(task, recipe, restart, checkpoint) for restart, checkpoint in enumerate(kept)]


def optimise(task: Task, recipe: Recipe, restart: int, checkpoint: Checkpoint | None) -> Optimised:
    """Optimise from one start, or go on from its checkpoint."""
    frames = task.frames if task.coarse is None else task.coarse
    known = recipe.kept_factors
    with stage(f"{recipe.name}: finding initial factors"):
        start = find_start(frames, recipe.n_factors, recipe.init, recipe.seed, restart, task.sharing.processes, known)
    coarse = task.coarse_for(start)
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed + restart)
        whole = recipe.make_module().double()
    module = whole.to(frames.energy.device)
    module.start_at(task.gathered(start), task.cells)
    if recipe.approach is not None:
        recipe.approach(module)
    module.factors_are_kept = known is not None
    if task.sharing.processes.size > 1:
        module = copy.deepcopy(whole)
        task.sharing.take(module)
    trainer = make_trainer(recipe, module, task.frames, start, restart, coarse, task.sharing)
    name = recipe.name if recipe.n_restarts == 1 else f"{recipe.name} {restart + 1}/{recipe.n_restarts}"
    _run(trainer, checkpoint, Progress(name, recipe.max_epochs, recipe.verbose))
    if module is not whole:
        state = {name: task.sharing.gather(name, tensor) for name, tensor in module.state_dict().items()}
        whole.load_state_dict(state)
    return Optimised(whole, trainer.history, None if coarse is None else len(coarse.coordinates))


def make_trainer(
    recipe: Recipe,
    module: TopographicModule,
    frames: Frames,
    start: Start,
    restart: int = 0,
    coarse: Frames | None = None,
    sharing: Sharing | None = None,
) -> Trainer:
    """Make the trainer of a module that stands at its start."""
    kind = CoarseToFine if coarse is not None and recipe.schedule == "one-cycle" else SCHEDULES[recipe.schedule]
    schedule = kind(recipe.max_epochs)
    if module.plateau is not None and isinstance(schedule, OneCycle | CoarseToFine):
        schedule = replace(schedule, tolerance=module.plateau)
    if recipe.approach is not None:
        schedule = settling(schedule)
    likelihood = recipe.make_likelihood(frames, start)
    if sharing is not None and isinstance(likelihood, SampledLikelihood):
        likelihood.weights.share = sharing.shares.get("likelihood")
    noise = RandomSource(recipe.seed + restart)
    return Trainer(module, likelihood, schedule, noise, frames, recipe.n_particles, coarse, sharing)


def _run(trainer: Trainer, checkpoint: Checkpoint | None, progress: Progress) -> None:
    """Train to the end, from the checkpoint if there is one."""

    def after_step(trainer: Trainer) -> None:
        progress.after_step(trainer)
        if checkpoint is not None:
            checkpoint.after_step(trainer)

    try:
        if checkpoint is not None:
            checkpoint.restore(trainer)
        with checkpoint.heeding_signals() if checkpoint is not None else nullcontext():
            trainer.run(after_step)
        if checkpoint is not None:
            checkpoint.finish(trainer)
    finally:
        progress.close(trainer)
