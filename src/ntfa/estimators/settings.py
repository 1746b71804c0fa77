"""Checks of an estimator's settings, by themselves and against the study."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ntfa.errors import ModelError
from ntfa.fitting.arrange import require_finite_trials
from ntfa.fitting.schedules import SCHEDULES
from ntfa.fitting.task import Task, current_processes, own_participants
from ntfa.inference.start import STARTS
from ntfa.seeds import check_random_state, is_whole
from ntfa.study import Study
from ntfa.study.design import limit_of_single_runs, limits_of
from ntfa.study.folder import MappedFrames
from ntfa.study.plausible import in_raw_units, refuse_frames_far_off, warn_of_raw_units

logger = logging.getLogger("ntfa")

COUNTS = ("n_particles", "max_epochs", "n_restarts")
CHOICES = {
    "inference": ("collapsed", "mean-field"),
    "init": tuple(STARTS),
    "schedule": tuple(SCHEDULES),
    "device": ("auto", "cpu", "cuda"),
    "block": ("participant", "trial"),
    "noise": ("same", "voxel"),
    "frames": ("robust", "equal"),
    "coarse": ("auto", "always", "never"),
    "response": ("auto", "loadings", "network"),
    "uncertainty": ("calibrated", "laplace", "mean-field"),
}
UNLABELLED = "any stimulus"
"""Stimulus of all trials where what was shown is left out on purpose."""


def check_settings(params: Mapping[str, Any]) -> None:
    """Refuse settings that mean nothing, naming parameter and value."""
    for name, value in params.items():
        if name in CHOICES and value not in CHOICES[name]:
            raise ModelError(f"{name}={value!r}: choose one of {', '.join(map(repr, CHOICES[name]))}")
        if name in COUNTS:
            check_count(name, value)
        if name == "n_factors" and not (value == "auto" and "response" in params):
            check_count(name, value)
        if name == "embedding_dim":
            _check_dimensions(value)
        if name == "design":
            _check_design(value)
        if name == "memory":
            as_bytes(value)
        if name == "random_state":
            check_random_state(value)

    if params.get("response") == "loadings" and (params["inference"] != "collapsed" or params["n_particles"] > 1):
        raise ModelError(
            f"response='loadings' integrates loadings and weights out: inference={params['inference']!r} with "
            f"n_particles={params['n_particles']} goes with response='network'"
        )


def _check_dimensions(value: Any) -> None:
    """Refuse what is neither "auto", a whole number, nor two of them."""
    for one in value if isinstance(value, tuple | list) else () if value == "auto" else (value,):
        check_count("embedding_dim", one)
    if isinstance(value, tuple | list) and len(value) != 2:
        raise ModelError(f"embedding_dim={value!r}: must be 'auto', a number, or (of participants, of stimuli)")


def check_count(name: str, value: Any) -> None:
    """Refuse what is not a whole number, at least 1."""
    if not is_whole(value) or value < 1:
        raise ModelError(f"{name}={value!r}: must be a whole number, at least 1")


def as_bytes(memory: Any) -> int | None:
    """Turn a limit such as "2GB", "1.5 GiB" or a number of bytes into bytes; None is no limit."""
    if memory is None:
        return None
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(I?)B?\s*", str(memory).upper())
    size = 0.0 if found is None else float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2] or " ")
    if size < 1:
        raise ModelError(f"memory={memory!r}: must be None, a number of bytes, or such as '2GB' or '1.5GiB'")
    return int(size)


def _check_design(design: Any) -> None:
    """Refuse what is neither a column's name nor a list of different ones."""
    names = [design] if isinstance(design, str) else design
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ModelError(f"design={design!r}: must be a column of the trials, or a list of columns")
    if len(set(names)) < len(names):
        raise ModelError(f"design={design!r}: names a column twice")


def check_size(study: Study, n_factors: int | str) -> None:
    """Refuse more factors than voxels."""
    if n_factors != "auto" and int(n_factors) > study.n_voxels:
        raise ModelError(f"n_factors={n_factors} is more than the study's {study.n_voxels} voxels")


def look_at_frames_on_disk(study: Study) -> None:
    """Refuse values of frames that lie in files, or warn of them, where they make no sense.

    Nobody has looked at them since they were written, perhaps not by this package; frames in memory have been checked.
    """
    if not isinstance(study.frames, MappedFrames):
        return
    raw = []
    for participant in own_participants(study, current_processes()):
        own = study.select(participants=participant)
        require_finite_trials(own)
        frames = study.frames[participant]
        rows = [np.arange(start, stop) for start, stop in zip(own.trials["start"], own.trials["stop"], strict=True)]
        refuse_frames_far_off(participant, frames, np.concatenate(rows))
        raw += [participant] if in_raw_units(frames) else []
    warn_of_raw_units(raw)


def warn_of_design(study: Study) -> None:
    """Say what a study's design cannot teach."""
    for limit in limits_of(study.trials):
        named_on_purpose = limit.kind == "one stimulus" and study.stimuli == [UNLABELLED]
        if not named_on_purpose and limit.kind != "single runs":
            logger.warning("%s", limit.sentence)


def warn_of_single_runs(study: Study) -> None:
    """Say whose differences from others cannot be told from those between runs: who has one run, of unknown rest."""
    limit = limit_of_single_runs(study.trials)
    if limit is not None:
        logger.info("NTFA: %s", limit.cannot)


def resolve_device(device: str) -> torch.device:
    """Turn a setting into a device that is there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("device='cuda', but PyTorch finds no CUDA device here; use 'cpu' or 'auto'")
    return torch.device(device)


def fit_identity(model: Any, seed: int, task: Task) -> dict[str, Any]:
    """Say what is being fitted to what, for a checkpoint to be recognised by; how many processes do it is left open."""
    others = ("device", "verbose", "random_state")
    settings = {name: plain(value) for name, value in model.get_params().items() if name not in others}
    frames, processes = task.frames, task.sharing.processes
    layout = hashlib.sha256(repr((task.labels, int(task.cells.count.sum()))).encode())
    layout.update(frames.coordinates.cpu().numpy().tobytes())
    if task.cells.design is not None:
        layout.update(task.cells.design.cpu().numpy().tobytes())
    energy = f"{float(processes.total(frames.energy.sum())) * frames.units.intensity**2:.6e}"
    return {
        "model": type(model).__name__,
        "seed": seed,
        "layout": layout.hexdigest(),
        "energy": energy,
        "settings": settings,
    }


def plain(value: Any) -> Any:
    """Turn a parameter into what JSON knows; a source of random numbers is None, the seed it gave being recorded."""
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    return int(value) if is_whole(value) else value
