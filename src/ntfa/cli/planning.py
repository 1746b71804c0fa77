"""What `--dry-run` says of a fit: how large it is, and what it needs."""

from __future__ import annotations

import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.estimates import estimate, size_in_words
from ntfa.estimators.settings import as_bytes, resolve_device
from ntfa.fitting.memory import available_memory
from ntfa.study import Study
from ntfa.study.design import limits_of


def plan_fit(study: Study, model: TopographicModel) -> list[str]:
    """Describe a fit that is not started, in sentences."""
    device, needs = resolve_device(model.device), estimate(study, model)
    there = available_memory(device)
    free = "" if there is None else f"; {size_in_words(there)} available"
    memory = needs.memory_bytes if model.memory is None else min(needs.memory_bytes, as_bytes(model.memory) or 0)
    return [
        f"{study!r}: {size_in_words(needs.frames_bytes)} of trial frames.",
        f"{type(model).__name__} with {in_words(model)} has {needs.n_parameters:,} parameters.",
        f"Memory on {device.type}: about {size_in_words(memory)} at the peak, frames included{free}.",
        "Memory is good to a factor of two. Time is not estimated: a fit shows how far it is, and may be stopped and "
        "resumed. Dry run: nothing was fitted.",
        *notes_on_design(study.trials),
    ]


def notes_on_design(trials: pd.DataFrame) -> list[str]:
    """Say what the design of these trials cannot tell."""
    return [f"Note: {limit.sentence}" for limit in limits_of(trials) if limit.kind != "single runs"]


def in_words(model: TopographicModel) -> str:
    """Say how many factors a model has, or may have."""
    return f"up to {model._k} factors" if model.n_factors == "auto" else f"{model._k} factors"
