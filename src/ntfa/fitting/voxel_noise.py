"""How noisy each voxel is, by its frames alone: before a fit, and without one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from ntfa.errors import ModelError
from ntfa.inference.processes import ALONE, Processes
from ntfa.study import Study

SMALLEST = 0.1
"""In units of the median: a voxel that hardly varies is not to decide everything."""


Counts = Mapping[str, NDArray[np.float64]]


def noise_scales(
    study: Study, device: torch.device, processes: Processes = ALONE, counts: Counts | None = None
) -> np.ndarray:
    """Noise sd of each voxel in units of their geometric mean, [V].

    Of frames around the mean of their participant and stimulus; or, where no two frames have both in common, around the
    mean of their participant. What weights vary by from frame to frame is part of it. `counts` says how much each frame
    of a participant counts, if not one.
    """
    for kinds in (["participant", "stimulus"], ["participant"]):
        found = torch.from_numpy(_variation(study, kinds, counts)).to(device)
        squares, freedom = processes.total(found).cpu().numpy()
        if freedom.any() and squares.any():
            return scales_of(np.sqrt(squares / np.maximum(freedom, 1)))
    raise ModelError("noise='voxel' needs participants with more than one frame, that differ; use noise='same'")


def scales_of(sds: np.ndarray) -> np.ndarray:
    """Sds in units of their geometric mean, none below a tenth of the median of those above 0."""
    logarithms = np.log(np.maximum(sds, SMALLEST * np.median(sds[sds > 0])))
    return np.asarray(np.exp(logarithms - logarithms.mean()))


def _variation(study: Study, kinds: list[str], counts: Counts | None) -> np.ndarray:
    """Sums of squares around the means of frames that have these labels in common, and degrees of freedom: [2, V].

    At a voxel, of those who have it.
    """
    squares, freedom = np.zeros((2, study.n_voxels))
    for labels, trials in study.trials.groupby(kinds):
        rows = np.concatenate([np.arange(*span) for span in trials[["start", "stop"]].to_numpy()])
        own = study.frames[str(labels[0])][rows]
        if counts is None:
            squares += own.var(0, dtype=np.float64) * len(own)
        else:
            weights = counts[str(labels[0])][rows]
            squares += weights @ (own - np.average(own, 0, weights)) ** 2
        freedom += (len(own) - 1) * study.coverage.get(str(labels[0]), 1)
    return np.stack([squares, freedom])
