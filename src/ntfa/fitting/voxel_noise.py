"""How noisy each voxel is, by its frames alone: before a fit, and without one."""

from __future__ import annotations

import numpy as np
import torch

from ntfa.errors import ModelError
from ntfa.inference.processes import ALONE, Processes
from ntfa.study import Study

SMALLEST = 0.1
"""In units of the median: a voxel that hardly varies is not to decide everything."""


def noise_scales(study: Study, device: torch.device, processes: Processes = ALONE) -> np.ndarray:
    """Noise sd of each voxel in units of their geometric mean, [V].

    Of frames around the mean of their participant and stimulus; or, where no two frames have both in common, around the
    mean of their participant. What weights vary by from frame to frame is part of it.
    """
    for kinds in (["participant", "stimulus"], ["participant"]):
        squares, freedom = processes.total(torch.from_numpy(_variation(study, kinds)).to(device)).cpu().numpy()
        if freedom.any() and squares.any():
            return scales_of(np.sqrt(squares / np.maximum(freedom, 1)))
    raise ModelError("noise='voxel' needs participants with more than one frame, that differ; use noise='same'")


def scales_of(sds: np.ndarray) -> np.ndarray:
    """Sds in units of their geometric mean, none below a tenth of the median of those above 0."""
    logarithms = np.log(np.maximum(sds, SMALLEST * np.median(sds[sds > 0])))
    return np.asarray(np.exp(logarithms - logarithms.mean()))


def _variation(study: Study, kinds: list[str]) -> np.ndarray:
    """Sums of squares around the means of frames that have these labels in common, and degrees of freedom: [2, V].

    At a voxel, of those who have it.
    """
    squares, freedom = np.zeros((2, study.n_voxels))
    for labels, trials in study.trials.groupby(kinds):
        array = study.frames[str(labels[0])]
        own = np.concatenate([array[start:stop] for start, stop in zip(trials["start"], trials["stop"], strict=True)])
        squares += own.var(0, dtype=np.float64) * len(own)
        freedom += (len(own) - 1) * study.coverage.get(str(labels[0]), 1)
    return np.stack([squares, freedom])
