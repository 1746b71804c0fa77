"""What `--dry-run` says of a fit: how large it is, what it needs, and about how long it takes here."""

from __future__ import annotations

import time

import torch

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.estimates import estimate, size_in_words
from ntfa.estimators.settings import as_bytes, resolve_device
from ntfa.fitting.memory import available_memory
from ntfa.fitting.schedules import CoarseToFine
from ntfa.fitting.task import pooled_side
from ntfa.study import Study

USUAL_STEPS = 300
"""Steps that a fit usually takes until its bound stops rising and it has cooled down."""
OVERHEAD = 1.5
"""A step over its products, where those are large."""
SMALL_OPERATIONS = 0.01
"""Seconds that the many small operations of a step take, however small the study."""


def plan_fit(study: Study, model: TopographicModel) -> list[str]:
    """Describe a fit that is not started, in sentences."""
    device, needs = resolve_device(model.device), estimate(study, model)
    there = available_memory(device)
    free = "" if there is None else f"; {size_in_words(there)} available"
    memory = needs.memory_bytes if model.memory is None else min(needs.memory_bytes, as_bytes(model.memory) or 0)
    side = pooled_side(study, model.coarse, on_disk=model.memory is not None) if model.schedule == "one-cycle" else 1
    twice = getattr(model, "uncertainty", None) == "calibrated"
    also = ", and as long again to calibrate its uncertainty" if twice else ""
    return [
        f"{study!r}: {size_in_words(needs.frames_bytes)} of trial frames.",
        f"{type(model).__name__} with {model.n_factors} factors has {needs.n_parameters:,} parameters.",
        f"Memory on {device.type}: about {size_in_words(memory)} at the peak, frames included{free}.",
        f"Time: {time_in_words(needs.flops, device, side, model.n_restarts)}{also}.",
        "Both estimates are good to a factor of two. Dry run: nothing was fitted.",
    ]


def time_in_words(flops: float, device: torch.device, side: int = 1, n_restarts: int = 1) -> str:
    """Say how long steps of so many operations take here, with voxels pooled so many to a side at first."""
    products = OVERHEAD * flops / measured_speed(device)
    total, how = USUAL_STEPS * (products / side**3 + SMALL_OPERATIONS), f"{USUAL_STEPS} steps"
    if side > 1:
        total += CoarseToFine.fine * (products + SMALL_OPERATIONS)
        how += f" with voxels pooled {side} to a side and {CoarseToFine.fine} with all of them"
    return f"about {_duration(n_restarts * total)} for the usual {how} on this {device.type}"


def measured_speed(device: torch.device) -> float:
    """Operations per second of a product of frames with factors, on this machine now."""
    frames, factors = torch.rand(1000, 4096, device=device), torch.rand(100, 4096, device=device)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        float((frames @ factors.T)[0, 0])
        best = min(best, time.perf_counter() - started)
    return 2 * 1000 * 4096 * 100 / best


def _duration(seconds: float) -> str:
    unit, length = ("h", 3600) if seconds >= 7200 else ("min", 60) if seconds >= 120 else ("s", 1)
    return f"{float(f'{max(seconds / length, 1):.1g}'):g} {unit}"
