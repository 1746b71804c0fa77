"""What `ntfa fit --dry-run` says: how large a fit is, what it needs, and about how long it takes here."""

from __future__ import annotations

import time

import torch

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.estimates import estimate
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


def plan(study: Study, model: TopographicModel) -> list[str]:
    """Describe a fit that is not started, in sentences."""
    device = resolve_device(model.device)
    speed = measured_speed(device)
    needs = estimate(study, model, flops_per_second=speed)
    there = available_memory(device)
    free = "" if there is None else f"; {_size(there)} available"
    memory = needs.memory_bytes if model.memory is None else min(needs.memory_bytes, as_bytes(model.memory) or 0)
    return [
        f"{study!r}: {_size(needs.frames_bytes)} of trial frames.",
        f"{type(model).__name__} with {model.n_factors} factors has {needs.n_parameters:,} parameters.",
        f"Memory on {device.type}: about {_size(memory)} at the peak, frames included{free}.",
        _time(study, model, needs.seconds or 0.0, speed),
        "Dry run: nothing was fitted.",
    ]


def _time(study: Study, model: TopographicModel, seconds: float, speed: float) -> str:
    step = OVERHEAD * seconds + SMALL_OPERATIONS
    times = pooled_side(study, model.coarse, on_disk=model.memory is not None)
    if times > 1 and model.schedule == "one-cycle":
        total = USUAL_STEPS * (OVERHEAD * seconds / times**3 + SMALL_OPERATIONS) + CoarseToFine.fine * step
        how = f"{USUAL_STEPS} with voxels pooled {times} to a side and {CoarseToFine.fine} with all of them"
    else:
        total, how = step * USUAL_STEPS, str(USUAL_STEPS)
    total *= model.n_restarts
    twice = getattr(model, "uncertainty", None) == "calibrated"
    also = ", and about as long again to calibrate the uncertainty" if twice else ""
    return (
        f"Time: about {_duration(step)} per step at the {speed / 1e9:,.0f} GFLOP/s measured here; with a typical "
        f"number of steps, {how}, about {_duration(total)}{also}."
    )


def measured_speed(device: torch.device) -> float:
    """Operations a second of a product of frames with factors, on this machine now."""
    frames, factors = torch.rand(1000, 4096, device=device), torch.rand(100, 4096, device=device)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        float((frames @ factors.T)[0, 0])
        best = min(best, time.perf_counter() - started)
    return 2 * 1000 * 4096 * 100 / best


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.3g} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.3g} MB"


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.2g} s" if seconds >= 0.1 else f"{1000 * seconds:.2g} ms"
