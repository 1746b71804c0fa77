"""How probable everybody's frames are under a fitted model, per observation: what newcomers are compared with."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ntfa.fitting.sharing import Sharing
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import cell_log_likelihood
from ntfa.inference.frames import Frames
from ntfa.inference.loadings import block_log_likelihoods
from ntfa.models.loadings import LoadingFactors
from ntfa.models.ntfa import NeuralFactors


@torch.no_grad()
def participant_densities(module: LoadingFactors | NeuralFactors, frames: Frames, sharing: Sharing) -> Tensor:
    """Log density of every participant's frames per observation, [P], in the units of the data.

    What is a participant's own is integrated out, with individual loadings all of it; places of a participant's own
    factors are as they were found.
    """
    cells = _with_all_places(frames.cells, sharing)
    if isinstance(module, LoadingFactors):
        projection = frames.project(module.centers.mean.detach(), module.log_widths.mean.detach())
        prior = module.weights_given(module.z_stimulus.mean.detach(), cells)
        found = block_log_likelihoods(projection, prior, module.noise_sd)
    else:
        expected = module.expected(cells)
        projection = frames.project(expected.centers, expected.log_widths)
        found = cells.blocks_total(cell_log_likelihood(projection, expected.weights, module.noise_sd))
    found = found + cells.blocks_total(frames.log_units)
    per_value = found / cells.blocks_total(cells.count * frames.cell_voxels)
    return sharing.processes.gather(per_value)


def _with_all_places(cells: Cells, sharing: Sharing) -> Cells:
    """Count participants among those of all processes."""
    first = sharing.shares["participant"].start if "participant" in sharing.shares else 0
    return cells if not first else replace(cells, participant=cells.participant + first, owner=cells.owner + first)
