"""What a fit will need, from shapes alone: memory, parameters, operations, time."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from ntfa.errors import TooLargeError
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.settings import check_settings, check_size, resolve_device
from ntfa.fitting.arrange import Labels, is_on_disk
from ntfa.fitting.memory import available_memory
from ntfa.fitting.task import current_group, pooled_side
from ntfa.inference.collapsed import CELL_BYTES
from ntfa.inference.processes import divide
from ntfa.inference.projection import CHUNK_BYTES, SMALL_STUDY
from ntfa.inference.start import MOST_IMAGES, MOST_NODES
from ntfa.study import Study
from ntfa.uncertainty.information import VOXELS_AT_ONCE

logger = logging.getLogger("ntfa")

# How many arrays of a kind are held at once where a step holds most; benchmarks/estimates.py compares them with a fit.
STATES = 16
"""Of the size of all parameters: they, gradients, moments, copies to go back to, a checkpoint in the making."""
PER_FRAME = 8
"""Of frames x factors."""
PER_BLOCK = 5
"""Of blocks x factors x factors."""
PER_CELL = 20
"""Of cells x factors."""
SAMPLED_PER_CELL = 4
"""Of cells x factors x factors, if weights are sampled."""
BUFFERS = 50 << 20
"""Bytes that libraries take for themselves once they are used."""
TANGENTS, INFORMATION = 7, 25
"""Of tangents x voxels at once, and of tangents x tangents, while uncertainty is worked out."""
POOLED = 2.2
"""Of pooled frames: while they are made there are two copies, and boxes at the brain's edge are not full."""
WIDTHS = 8
"""Widths that a pursuit looks at."""


@dataclass(frozen=True)
class Estimate:
    """What a fit will need.

    n_data : values to fit, trial frames times voxels
    n_parameters : as the fitted model's `n_parameters_`
    frames_bytes : bytes of the trial frames; memory-mapped ones take memory only as long as nobody else needs it
    needed_bytes : bytes to be allocated on the device, the frames included only if they have to be copied to it
    memory_bytes : bytes in use at the peak, the frames included
    flops : floating-point operations per step
    seconds : seconds per step, if a speed was given

    With several processes, bytes and operations are those of the one with most frames; with the model's `memory`,
    frames that are on disk count as far as they are read at a time.
    """

    n_data: int
    n_parameters: int
    frames_bytes: int
    needed_bytes: int
    memory_bytes: int
    flops: float
    seconds: float | None


@dataclass(frozen=True)
class _Sizes:
    frames: int
    voxels: int
    factors: int
    blocks: int
    cells: int
    learned: int


def estimate(
    study: Study, model: TopographicModel, device: str | None = None, flops_per_second: float | None = None
) -> Estimate:
    """Estimate what fitting a model to a study needs; nothing is read but the table of trials, nothing allocated.

    Parameters
    ----------
    study : Study
    model : an estimator, fitted or not
        Its parameters count; those that make no sense are refused as `fit` would.
    device : {"auto", "cpu", "cuda"}, optional
        Instead of the model's own.
    flops_per_second : float, optional
        Speed of a product with frames, as measured on the device.
    """
    check_settings(model.get_params())
    check_size(study, model.n_factors)
    place = resolve_device(device or model.device)
    labels = model._labels(study)
    with torch.device("meta"):
        module = model._module(labels)
    learned = sum(parameter.numel() for parameter in module.parameters())
    if model.inference == "mean-field":
        learned += 2 * study.n_trial_frames * model.n_factors
    part = _largest_part(study)
    blocks, cells = (math.ceil(part * count) for count in (len(labels.owners), _n_cells(study, model, labels)))
    sizes = _Sizes(math.ceil(part * study.n_trial_frames), study.n_voxels, model.n_factors, blocks, cells, learned)
    on_disk = model.memory is not None and is_on_disk(study.frames[study.participants[0]])
    times = pooled_side(study, model.coarse, on_disk=on_disk)
    pooled = int(POOLED * 4 * sizes.frames * sizes.voxels / times**3) if times > 1 else 0
    at_once = 2 * int(_frames_of_each(study).max()) if on_disk else sizes.frames
    frames = 4 * at_once * sizes.voxels
    gathered = frames if place.type == "cpu" and frames <= SMALL_STUDY and not on_disk else 0
    allocated = _bytes(sizes, model, place) + pooled + gathered
    flops = _flops(sizes, model.n_particles)
    return Estimate(
        n_data=study.n_trial_frames * sizes.voxels,
        n_parameters=int(model._n_parameters(module, study)),
        frames_bytes=4 * study.n_trial_frames * sizes.voxels,
        needed_bytes=allocated + (0 if place.type == "cpu" and not on_disk else frames),
        memory_bytes=allocated + frames,
        flops=flops,
        seconds=None if flops_per_second is None else flops / flops_per_second,
    )


def _frames_of_each(study: Study) -> pd.Series:
    lengths = study.trials["stop"] - study.trials["start"]
    return lengths.groupby(study.trials["participant"]).sum()[list(study.participants)]


def _largest_part(study: Study) -> float:
    """Share of the frames that the process with most of them has, participants being divided."""
    n_processes, frames = current_group().size, _frames_of_each(study).to_numpy(dtype=float)
    if n_processes > len(frames):
        return 1.0
    return float(max(frames[own].sum() for own in divide(list(frames), n_processes)) / frames.sum())


def _n_cells(study: Study, model: TopographicModel, labels: Labels) -> int:
    own, trials = model._layout.own_weights, study.trials
    if own == "trial":
        return len(trials)
    if labels.design is None:
        return len(trials[["participant", "stimulus"]].drop_duplicates())
    participants = np.unique(trials["participant"].to_numpy(dtype=str), return_inverse=True)[1]
    return len(np.unique(np.column_stack([participants, labels.design.rows(trials)]), axis=0))


def _bytes(sizes: _Sizes, model: TopographicModel, device: torch.device) -> int:
    """Bytes to be allocated besides the frames: the most that start and steps need."""
    square, number = sizes.factors**2, 8
    pooled = 4 * min(MOST_NODES, 4 * sizes.voxels) * (2 * sizes.cells + 3 * WIDTHS * MOST_IMAGES)
    start = (pooled if model.init == "pursuit" else 0) + number * 4 * sizes.frames * sizes.factors
    draws = PER_FRAME * sizes.frames * sizes.factors + PER_BLOCK * sizes.blocks * square
    draws += PER_CELL * sizes.cells * sizes.factors
    if model.inference == "mean-field":
        draws += SAMPLED_PER_CELL * sizes.cells * square
    step = number * (model.n_particles * draws + STATES * sizes.learned)
    work = min(CELL_BYTES[device.type], 3 * number * sizes.cells * square) + 2 * CHUNK_BYTES[device.type]
    work += (model.n_particles - 1) * CHUNK_BYTES[device.type] // 2 + number * 10 * sizes.voxels + BUFFERS
    return int(max(start, step, number * _of_uncertainty(sizes, model)) + work)


def _of_uncertainty(sizes: _Sizes, model: TopographicModel) -> int:
    """Count the numbers held while NTFA works out its uncertainty, where it does: of tangents, and of information."""
    if getattr(model, "uncertainty", "mean-field") == "mean-field":
        return 0
    side = 5 * sizes.factors
    return TANGENTS * side * min(sizes.voxels, VOXELS_AT_ONCE) + INFORMATION * side**2


def _flops(sizes: _Sizes, n_particles: int) -> float:
    """Operations of a step: products with the frames and of factors with each other, and Cholesky factors of cells."""
    products = 4.0 * sizes.frames * sizes.voxels * sizes.factors
    factors = sizes.blocks * sizes.voxels * (4.0 * sizes.factors**2 + 40.0 * sizes.factors)
    return n_particles * (products + factors + 5.0 * sizes.cells * sizes.factors**3)


def require_memory(study: Study, model: TopographicModel) -> None:
    """Refuse a fit that cannot fit into memory; warn of one whose frames have to be read from disk in every step."""
    device = resolve_device(model.device)
    needs, there = estimate(study, model), available_memory(device)
    if there is None:
        return
    if needs.needed_bytes > there:
        where, leave = "machine", ""
        if device.type == "cuda":
            where, leave = "GPU", ", --memory to leave frames on disk" if model.memory is None else ""
        raise TooLargeError(
            f"the fit would need about {_words(needs.needed_bytes)} of memory, and {_words(there)} are available on "
            f"this {where}; use fewer factors or voxels, collapsed inference or factors by participant{leave}, or try "
            "anyway with --force"
        )
    if device.type == "cpu" and needs.memory_bytes > there:
        text = (
            "the study's frames (%s) do not fit into memory (%s available): every step will read them from disk; "
            "--memory reads them block by block, which is faster"
        )
        logger.warning(text, _words(needs.frames_bytes), _words(there))


def _words(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.3g} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.3g} MB"
