"""Topographic factors: Gaussian blobs in the brain.

A factor has a centre x (mm) and a log-width rho (log mm^2), and reaches voxel g with strength

    F[k, v] = exp(-|g_v - x_k|^2 / exp(rho_k)).

The width is not a full width at half maximum: at distance exp(rho / 2) the factor has fallen to 1/e.
"""

from __future__ import annotations

import torch
from torch import Tensor


def radial_basis(coordinates: Tensor, centers: Tensor, log_widths: Tensor) -> Tensor:
    """Evaluate factors at voxels.

    Written with `exp(-rho)` rather than a division or a logarithm of the distance, so that value and gradient
    are finite everywhere, a centre that sits exactly on a voxel included.

    Parameters
    ----------
    coordinates : [V, 3]
    centers : [..., K, 3]
    log_widths : [..., K]

    Returns
    -------
    [..., K, V], between 0 and 1.
    """
    offsets = coordinates - centers.unsqueeze(-2)
    return torch.exp(-offsets.square().sum(-1) * torch.exp(-log_widths).unsqueeze(-1))
