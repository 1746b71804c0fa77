"""What a fitted model says of trials: weights given frames, mean images given participant and stimulus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ntfa.fitting.arrange import Arranged
from ntfa.inference.bounds import Draw
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPosterior, weight_posterior
from ntfa.inference.frames import Units
from ntfa.inference.projection import exponent_coefficients, factor_chunk, voxel_terms
from ntfa.models.module import TopographicModule
from ntfa.models.spread import WeightSpread
from ntfa.uncertainty.information import VOXELS_AT_ONCE, tangents


@dataclass(frozen=True)
class FactorSpread:
    """Factors of one participant: centres [K, 3], log-widths [K], and their sds."""

    centers: Tensor
    log_widths: Tensor
    centers_sd: Tensor
    log_widths_sd: Tensor


@torch.no_grad()
def trial_weights(module: TopographicModule, arranged: Arranged) -> tuple[Tensor, Tensor]:
    """Mean and sd of the posterior of the weights, averaged over the frames of each trial, [N, K]."""
    posterior, cell = _posterior(module, arranged), arranged.frames.cells.of_frame
    mean = torch.stack([posterior.mean[rows].mean(0) for rows in arranged.trial_frames])
    count = arranged.frames.cells.count
    variances = []
    for rows in arranged.trial_frames:
        c = cell[rows[0]]
        within, whole = _variance(posterior.covariance[c]), _variance(posterior.covariance_of_average[c])
        variances.append(_variance_of_some(within, whole, float(count[c]), len(rows)))
    return mean, torch.stack(variances).clamp(min=0).sqrt()


@torch.no_grad()
def frame_weights(module: TopographicModule, arranged: Arranged) -> tuple[Tensor, Tensor]:
    """Mean and sd of the posterior of the weights of every frame, trial after trial, [n_frames, K]."""
    posterior, order = _posterior(module, arranged), torch.cat(arranged.trial_frames)
    variance = _variance(posterior.covariance)[arranged.frames.cells.of_frame[order]]
    return posterior.mean[order], variance.clamp(min=0).sqrt()


@torch.no_grad()
def expected_of_pairs(module: TopographicModule, participants: Tensor, stimuli: Tensor, own_factors: bool) -> Draw:
    """Expected factors and weights of pairs [n]; `own_factors`: participants have factors of their own."""
    owner = participants if own_factors else torch.full_like(participants, -1)
    pairs = Cells(participants, stimuli, torch.arange(len(owner), device=owner.device), (), owner)
    return module.expected(pairs)


@torch.no_grad()
def mean_images(
    module: TopographicModule,
    participants: Tensor,
    stimuli: Tensor,
    own_factors: bool,
    coordinates: Tensor,
    units: Units,
) -> np.ndarray:
    """Posterior-predictive mean images of pairs, [n, V]; `own_factors`: participants have factors of their own."""
    device = module.centers.mean.device
    expected = expected_of_pairs(module, participants.to(device), stimuli.to(device), own_factors)
    terms = voxel_terms(units.standardise(coordinates.to(device)))
    images = np.empty((len(participants), terms.shape[1]), dtype=np.float32)
    for i, weights in enumerate(expected.weights.mean * units.intensity):
        own = i if len(expected.centers) > 1 else 0
        coefficients = exponent_coefficients(expected.centers[own], expected.log_widths[own], terms.dtype)
        images[i] = (weights.to(terms.dtype) @ factor_chunk(coefficients, terms)).cpu().numpy()
    return images


@torch.no_grad()
def image_sd(weights: WeightSpread, factors: FactorSpread, coordinates: Tensor, noise_sd: Tensor | None) -> Tensor:
    """Standard deviation of an image W F at voxels [V, 3], to first order in the factors; all in standardised units."""
    parts = []
    squared = (weights.mean.square() + weights.covariance.diagonal()).repeat(4)
    spread = torch.cat([factors.centers_sd.T.flatten(), factors.log_widths_sd]).square() * squared
    for voxels in coordinates.split(VOXELS_AT_ONCE):
        shapes, slopes = tangents(factors.centers, factors.log_widths, voxels).split([len(weights.mean), len(spread)])
        parts.append((weights.covariance @ shapes * shapes).sum(0) + spread @ slopes.square())
    variance = torch.cat(parts)
    return torch.sqrt(variance if noise_sd is None else variance + noise_sd.square())


def _posterior(module: TopographicModule, arranged: Arranged) -> WeightPosterior:
    frames = arranged.frames
    expected = module.expected(frames.cells)
    projection = frames.project(expected.centers, expected.log_widths)
    return weight_posterior(projection, expected.weights, expected.noise_sd)


def _variance(covariance: Tensor) -> Tensor:
    return covariance.diagonal(dim1=-2, dim2=-1)


def _variance_of_some(within: Tensor, whole: Tensor, n: float, m: int) -> Tensor:
    """Variance of the average of m of a cell's n exchangeable frames.

    Of one frame it is `within`, of all n it is `whole`, which gives the covariance between two frames.
    """
    between = (n * whole - within) / (n - 1) if n > 1 else torch.zeros_like(within)
    return within / m + (m - 1) / m * between
