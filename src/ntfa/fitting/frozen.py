"""Training some rows of a model's posteriors while all else stays as it is to the bit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ntfa.fitting.schedules import OneCycle
from ntfa.fitting.training import Trainer
from ntfa.inference.bounds import CollapsedLikelihood
from ntfa.inference.frames import Frames
from ntfa.inference.normal import NormalPosterior, RandomSource
from ntfa.models.ntfa import NeuralFactors

MOST_STEPS = 400


def train_rows(module: NeuralFactors, frames: Frames, rows: Mapping[str, Tensor], seed: int = 0) -> None:
    """Fit the posteriors' rows that are named, weights integrated out, everything else being known.

    rows : which rows of each posterior, by name; those that are not named stay, and so do networks and noise
    """
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    handles = []
    for name, own in rows.items():
        posterior = module.get_submodule(name)
        assert isinstance(posterior, NormalPosterior)
        for parameter in posterior.parameters():
            kept = torch.zeros_like(parameter)
            kept[own] = 1
            parameter.requires_grad_(True)
            # Adam moves nothing whose gradients were always zero.
            handles.append(parameter.register_hook(kept.mul))
    try:
        # Factors of the fit are known, and moving them would move what stays.
        schedule = OneCycle(MOST_STEPS, most_looks=0)
        Trainer(module, CollapsedLikelihood(frames), schedule, RandomSource(seed), frames).run()
    finally:
        for handle in handles:
            handle.remove()
        for parameter in module.parameters():
            parameter.requires_grad_(True)
