"""What a fit will need, from shapes alone, good to a factor of two: memory, parameters, operations."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from ntfa.errors import TooLargeError
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.settings import check_settings, check_size, resolve_device
from ntfa.fitting.arrange import Labels, is_on_disk
from ntfa.fitting.memory import available_memory
from ntfa.fitting.task import current_processes, pooled_side
from ntfa.inference.processes import divide
from ntfa.study import Study

logger = logging.getLogger("ntfa")

# How many arrays of a kind are held at once where a step holds most; benchmarks/estimates.py compares them with fits.
STATES = 16
"""Of the size of all parameters: they, gradients, moments, copies to go back to, a checkpoint in the making."""
PER_FRAME, PER_BLOCK, PER_CELL, SAMPLED_PER_CELL = 8, 5, 20, 4
"""Of frames x factors, blocks x factors^2, cells x factors, and, if weights are sampled, cells x factors^2."""
TANGENTS = 40
"""Of (4 factors)^2, while the curvature at a fit is worked out."""
FIXED = {"cpu": 120 << 20, "cuda": 1 << 30}
"""Bytes that libraries, chunks of voxels and portions of cells take, however large the study."""
POOLED = 2.2
"""Of pooled frames: while they are made there are two copies, and boxes at the brain's edge are not full."""


@dataclass(frozen=True)
class Estimate:
    """What a fit will need.

    n_data : values to fit, trial frames times voxels
    n_parameters : as the fitted model's `n_parameters_`
    frames_bytes : bytes of the trial frames; memory-mapped ones take memory only as long as nobody else needs it
    needed_bytes : bytes to be allocated on the device, the frames included only if they have to be copied to it
    memory_bytes : bytes in use at the peak, the frames included (on a GPU with room for that, once more at first)
    flops : floating-point operations per step

    With several processes, bytes and operations are those of the one with most frames; with the model's `memory`,
    frames that are on disk count as far as they are read at a time.
    """

    n_data: int
    n_parameters: int
    frames_bytes: int
    needed_bytes: int
    memory_bytes: int
    flops: float


def estimate(study: Study, model: TopographicModel) -> Estimate:
    """Estimate what fitting a model to a study needs; nothing is read but the table of trials, nothing allocated.

    Settings that make no sense are refused as `fit` would.
    """
    check_settings(model.get_params())
    check_size(study, model.n_factors)
    device, labels = resolve_device(model.device), model._labels(study)
    module = model._shapes(labels)
    frames_of_each = _frames_of_each(study)
    share = _largest_share(frames_of_each)
    n_frames, n_voxels, n_factors = share * study.n_trial_frames, study.n_voxels, model._k
    n_blocks, n_cells = share * len(labels.owners), share * _n_cells(study, labels, model)
    on_disk = model.memory is not None and is_on_disk(study.frames[study.participants[0]])
    side = pooled_side(study, model.coarse, on_disk=on_disk)
    pooled = POOLED * 4 * n_frames * n_voxels / side**3 if side > 1 else 0.0
    frames = int(4 * n_voxels * (2 * max(frames_of_each) if on_disk else n_frames))
    numbers: float = STATES * sum(parameter.numel() for parameter in module.parameters())
    numbers += _numbers_of_step(model, n_frames, n_blocks, n_cells) + 10 * n_voxels
    if getattr(model, "uncertainty", "mean-field") != "mean-field":
        numbers += TANGENTS * (4 * n_factors) ** 2
    allocated = int(8 * numbers + pooled) + FIXED[device.type]
    products = 4.0 * n_frames * n_voxels * n_factors + 4.0 * n_blocks * n_voxels * n_factors**2
    return Estimate(
        n_data=study.n_data,
        n_parameters=int(model._n_parameters(module, study)),
        frames_bytes=4 * study.n_trial_frames * study.n_voxels,
        needed_bytes=allocated + (0 if device.type == "cpu" and not on_disk else frames),
        memory_bytes=allocated + frames,
        flops=model.n_particles * (products + 5.0 * n_cells * n_factors**3),
    )


def _numbers_of_step(model: TopographicModel, n_frames: float, n_blocks: float, n_cells: float) -> float:
    """Count the numbers that a step holds besides parameters."""
    n_factors, sampled = model._k, model.inference == "mean-field"
    numbers = PER_FRAME * n_frames * n_factors + PER_BLOCK * n_blocks * n_factors**2 + PER_CELL * n_cells * n_factors
    numbers += SAMPLED_PER_CELL * n_cells * n_factors**2 if sampled else 0
    return model.n_particles * numbers + (2 * STATES * n_frames * n_factors if sampled else 0)


def _frames_of_each(study: Study) -> list[float]:
    lengths = study.trials["stop"] - study.trials["start"]
    return lengths.groupby(study.trials["participant"]).sum()[list(study.participants)].astype(float).tolist()


def _largest_share(frames_of_each: list[float]) -> float:
    """Share of the frames that the process with most of them has, participants being divided."""
    n_processes = current_processes().size
    if n_processes > len(frames_of_each):
        return 1.0
    frames = np.array(frames_of_each)
    return float(max(frames[own].sum() for own in divide(frames_of_each, n_processes)) / frames.sum())


def _n_cells(study: Study, labels: Labels, model: TopographicModel) -> int:
    """Count the cells: trials, or pairs of participant and stimulus; at most as many with a design."""
    if model._layout.own_weights == "trial" or labels.design is not None:
        return study.n_trials
    return len(study.trials[["participant", "stimulus"]].drop_duplicates())


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
            f"the fit would need about {size_in_words(needs.needed_bytes)} of memory, and {size_in_words(there)} are "
            f"available on this {where}; use fewer factors or voxels, collapsed inference or factors by participant"
            f"{leave}, or try anyway with --force"
        )
    if device.type == "cpu" and needs.memory_bytes > there:
        text = (
            "the study's frames (%s) do not fit into memory (%s available): every step will read them from disk; "
            "--memory reads them block by block, which is faster"
        )
        logger.warning(text, size_in_words(needs.frames_bytes), size_in_words(there))


def size_in_words(n_bytes: float) -> str:
    """Say how many bytes in two digits."""
    unit, scale = ("GB", 1e9) if n_bytes >= 1e9 else ("MB", 1e6)
    return f"{float(f'{n_bytes / scale:.2g}'):g} {unit}"
