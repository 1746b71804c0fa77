"""Checks of an estimator's settings, by themselves and against the study."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch

from ntfa.errors import ModelError
from ntfa.fitting.schedules import SCHEDULES
from ntfa.fitting.task import Task
from ntfa.inference.start import STARTS
from ntfa.study import Study

logger = logging.getLogger("ntfa")

COUNTS = ("n_factors", "embedding_dim", "n_particles", "max_epochs", "n_restarts")
CHOICES = {
    "inference": ("collapsed", "mean-field"),
    "init": tuple(STARTS),
    "schedule": tuple(SCHEDULES),
    "device": ("auto", "cpu", "cuda"),
    "block": ("participant", "trial"),
    "noise": ("same", "voxel"),
    "coarse": ("auto", "always", "never"),
    "uncertainty": ("calibrated", "laplace", "mean-field"),
}
LARGEST_SEED = 2**32 - 1
UNLABELLED = "any stimulus"
"""Stimulus of all trials where what was shown is left out on purpose."""


def check_settings(params: Mapping[str, Any]) -> None:
    """Refuse settings that mean nothing, naming parameter and value."""
    for name, value in params.items():
        if name in CHOICES and value not in CHOICES[name]:
            raise ModelError(f"{name}={value!r}: choose one of {', '.join(map(repr, CHOICES[name]))}")
        if name in COUNTS:
            check_count(name, value)
        if name == "design":
            _check_design(value)
        if name == "memory":
            as_bytes(value)
    seed = params["random_state"]
    if seed is not None and (not _is_whole(seed) or not 0 <= seed <= LARGEST_SEED):
        raise ModelError(f"random_state={seed!r}: must be None or a whole number from 0 to {LARGEST_SEED}")


def check_count(name: str, value: Any) -> None:
    """Refuse what is not a whole number, at least 1."""
    if not _is_whole(value) or value < 1:
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


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_size(study: Study, n_factors: int) -> None:
    """Refuse more factors than voxels; say what a study of one participant or stimulus cannot teach."""
    if n_factors > study.n_voxels:
        raise ModelError(f"n_factors={n_factors} is more than the study's {study.n_voxels} voxels")
    for kind, labels in (("participant", study.participants), ("stimulus", study.stimuli)):
        if len(labels) == 1 and labels != [UNLABELLED]:
            text = "the study has one %s only (%s): how one %s differs from another cannot be learned"
            logger.warning(text, kind, labels[0], kind)


def resolve_device(device: str) -> torch.device:
    """Turn a setting into a device that is there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("device='cuda', but PyTorch finds no CUDA device here; use 'cpu' or 'auto'")
    return torch.device(device)


def fit_identity(model: str, params: Mapping[str, Any], seed: int, task: Task) -> dict[str, Any]:
    """Say what is being fitted to what, for a checkpoint to be recognised by; how many processes do it is left open."""
    others = ("device", "verbose", "random_state")
    settings = {name: plain(value) for name, value in params.items() if name not in others}
    frames, group = task.frames, task.sharing.group
    layout = hashlib.sha256(repr((task.labels, int(task.cells.count.sum()))).encode())
    layout.update(frames.coordinates.cpu().numpy().tobytes())
    if task.cells.design is not None:
        layout.update(task.cells.design.cpu().numpy().tobytes())
    energy = f"{float(group.total(frames.energy.sum())) * frames.units.intensity**2:.6e}"
    return {"model": model, "seed": seed, "layout": layout.hexdigest(), "energy": energy, "settings": settings}


def plain(value: Any) -> Any:
    """Turn numpy's whole numbers into Python's, which JSON knows."""
    return int(value) if _is_whole(value) else value
