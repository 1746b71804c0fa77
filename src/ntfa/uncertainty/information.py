"""How well frames determine factors and embeddings: expected Fisher information, weights integrated out.

A frame of a cell is N(mu F, Q^-1) with Q^-1 = s2 I + F^T diag(sd^2) F. Writing T for the factors F and their tangents
dF/dx, dF/dy, dF/dz, dF/drho (5 K images), every entry of the information about centres, log-widths, mu and log sd is a
product of entries of

    T Q T^T = (H - H_F A^-1 H_F^T / s2) / s2,    H = T T^T,    A = F F^T / s2 + diag(sd^-2)

so that voxels appear once, in H, whatever the number of frames and cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ntfa.inference.collapsed import posterior_covariance
from ntfa.inference.projection import exponent_coefficients, factor_chunk, voxel_terms

VOXELS_AT_ONCE = 8192


@dataclass(frozen=True)
class CellInformation:
    """Expected information of one cell's frames about what their distribution depends on, or of several, in a row.

    geometry : [4 K, 4 K], about the centres' x of all factors, then y, then z, then log-widths
    mean, log_sd : [K, K], about the weights' mean and the logarithm of their sd
    geometry_mean, geometry_log_sd : [4 K, K]
    """

    geometry: Tensor
    mean: Tensor
    log_sd: Tensor
    geometry_mean: Tensor
    geometry_log_sd: Tensor


def tangent_gram(center: Tensor, log_width: Tensor, coordinates: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return H = T T^T of one block's factors [K, 3], [K] at voxels [V, 3], as [5 K, 5 K]; T W T^T with weights [V]."""
    total = center.new_zeros(5 * len(center), 5 * len(center))
    weights = center.new_ones(len(coordinates)) if weights is None else weights.to(center)
    for voxels, own in zip(coordinates.to(center).split(VOXELS_AT_ONCE), weights.split(VOXELS_AT_ONCE), strict=True):
        images = tangents(center, log_width, voxels)
        total += images * own @ images.T
    return total


def factors_at(center: Tensor, log_width: Tensor, voxels: Tensor) -> Tensor:
    """One block's factors [K, 3], [K] at voxels [V, 3], as [K, V]."""
    terms = voxel_terms(voxels, voxels.dtype)
    return factor_chunk(exponent_coefficients(center, log_width, terms.dtype), terms)


def tangents(center: Tensor, log_width: Tensor, voxels: Tensor) -> Tensor:
    """Factors and their derivatives by x, y, z and log-width, [5 K, V]."""
    factors = factors_at(center, log_width, voxels)
    precision = torch.exp(-log_width)[:, None]
    offsets = voxels.T - center[..., None]
    by_place = (2 * precision[:, None] * offsets * factors[:, None]).transpose(0, 1)
    by_width = precision * offsets.square().sum(1) * factors
    return torch.cat([factors, *by_place, by_width])


def cell_information(
    gram: Tensor, mean: Tensor, sd: Tensor, noise_sd: Tensor, n_frames: float | Tensor
) -> CellInformation:
    """Information of n frames with weights N(mean, sd^2), given H of their factors.

    mean, sd : [K], or [C, K] for several cells, whose numbers of frames are [C, 1, 1]
    """
    k, noise = mean.shape[-1], noise_sd.square()
    shrink = posterior_covariance(gram[:k, :k], sd, noise)
    whitened = (gram - gram[:, :k] @ (shrink / noise) @ gram[:k]) / noise
    scale = torch.cat([torch.ones_like(mean), mean.tile(4)], -1)
    of_mean = n_frames * whitened * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    # A derivative of the covariance is sd^2 (a b^T + b a^T): b the factor, a its tangent, or b itself for log sd.
    variance, own = sd.square().tile(5), whitened[..., :k, :]
    twice, across = own[..., :k].tile(5, 5), own.tile(5, 1)
    of_spread = n_frames * variance.unsqueeze(-1) * variance.unsqueeze(-2) * (twice * whitened + across * across.mT)
    return CellInformation(
        geometry=of_mean[..., k:, k:] + of_spread[..., k:, k:],
        mean=of_mean[..., :k, :k],
        log_sd=of_spread[..., :k, :k],
        geometry_mean=of_mean[..., k:, :k],
        geometry_log_sd=of_spread[..., k:, :k],
    )
