"""Uncertainty that holds: the fit's own, brought to what halves of the same participant or stimulus show.

A model that is fitted to few participants learns some of their noise, and real data are not as the model says; either
makes a posterior too sure of itself. Halves of one participant are identical in truth. Let a and b be the embeddings of
both halves in a fit to halves, z those of the fit itself, n of them, and C, C_a, C_b what the fits themselves say:

1.  T = mean (a - b)^T (C_a + C_b)^-1 (a - b) / D is how much too small C is, at least as far as it has the right shape;
    (z_1 - z_2)^T (T C_1 + T C_2)^-1 (z_1 - z_2) / D follows an F distribution with D and n D degrees of freedom.

2.  That misses some of what networks make of noise: where participants do not differ at all, the noise is spread out to
    unit variance, in a fit to 2 n halves less than in one to n participants. But that it is noise shows in both:

        N = mean (a - b)(a - b)^T / 4          noise of the mean of both halves
        M = covariance of (a + b) / 2          all of its variance: what is reproducible, and N
        R = M^-1/2 N M^-1/2                    the share of noise; eigenvalues above one count as one
        S = cov(z)^1/2 R cov(z)^1/2            noise of z, after turning a and b onto z

    C is stretched such that its mean is S, and Hotelling's T^2 with n degrees of freedom is the distribution of
    (z_1 - z_2)^T (S_1 + S_2)^-1 (z_1 - z_2).

Of both the larger is taken in every direction, multiplied such that its 95% ellipses are right if it is read as the
covariance of a normal distribution: each by the factor of its own distribution for networks; for individual loadings,
which overfit far less, both by that of the first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ntfa.models import spread
from ntfa.models.loadings import LoadingFactors
from ntfa.models.ntfa import NeuralFactors
from ntfa.uncertainty.halves import Halves, Places

logger = logging.getLogger("ntfa")

LEVEL = 0.95
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SplitHalf:
    """What halves say of embeddings.

    covariance : [D, D], of an embedding around what it would be if there were no noise
    reliability : share of the variance between embeddings that is not noise, from 0 to 1
    n_halved : how many there were
    """

    covariance: Floats
    reliability: float
    n_halved: int


@dataclass(frozen=True)
class Embedded:
    """Embeddings: means [n, D] and covariances [n, D, D]."""

    mean: Floats
    covariance: Floats


def overconfidence(apart: Floats, covariance: Floats) -> float:
    """How many times too small the covariances [n, D, D] of differences [n, D] are that should be zero."""
    scaled = np.linalg.solve(covariance, apart[..., None])[..., 0]
    return float((apart * scaled).sum(-1).mean() / apart.shape[1])


def embedding_noise(whole: Floats, one: Floats, other: Floats) -> SplitHalf:
    """Estimate the noise of embeddings [n, D], given those of their halves in another fit, turned or not."""
    n = len(whole)
    apart, middle = one - other, (one + other) / 2
    unlimited, total = apart.T @ apart / (4 * n), np.cov(middle.T, ddof=1).reshape(len(apart.T), -1)
    turned = whole @ _rotation(whole, middle)
    variance = np.cov(turned.T, ddof=1).reshape(total.shape)
    root = _power(total, -0.5)
    share, axes = np.linalg.eigh(root @ unlimited @ root)
    noise = _power(total, 0.5) @ (axes * np.minimum(share, 1)) @ axes.T @ _power(total, 0.5)
    stretch = _stretch(total, variance)
    noise = stretch @ noise @ stretch.T
    back = _rotation(whole, middle)
    # By all of the noise, also where there is more of it than can be: if nothing is reproducible, that is what shows.
    reliability = 1 - np.trace(stretch @ unlimited @ stretch.T) / max(np.trace(variance), np.finfo(float).tiny)
    return SplitHalf(back @ noise @ back.T, float(np.clip(reliability, 0, 1)), n)


def shaped_like(covariances: Floats, mean: Floats) -> Floats:
    """Stretch covariances [n, D, D], all alike, such that their mean is the given one."""
    stretch = _stretch(covariances.mean(0), mean)
    return np.asarray(stretch @ covariances @ stretch.T)


def hotelling_factor(n: int, n_dim: int, level: float = LEVEL) -> float:
    """How much larger a normal's covariance must be to hold what Hotelling's T^2 with n degrees of freedom holds."""
    from scipy.special import chdtri, fdtri

    free = n - n_dim + 1
    return float(n * n_dim / free * fdtri(n_dim, free, level) / chdtri(n_dim, 1 - level))


def degrees_of_freedom(n: int, n_dim: int, overfits: bool) -> int:
    """Degrees of freedom, besides D, of the F distribution that differences of calibrated embeddings have."""
    return n - n_dim + 1 if overfits else n * n_dim


def f_factor(n: int, n_dim: int, level: float = LEVEL) -> float:
    """How much larger a normal's covariance must be if its scale was estimated from n differences."""
    from scipy.special import chdtri, fdtri

    return float(n_dim * fdtri(n_dim, n * n_dim, level) / chdtri(n_dim, 1 - level))


def larger(one: Floats, other: Floats) -> Floats:
    """Return the smallest covariance, in the metric of the first, that is at least as large as both everywhere."""
    root, inverse = _power(one, 0.5), _power(one, -0.5)
    values, axes = np.linalg.eigh(inverse @ other @ inverse)
    return np.asarray(root @ (axes * np.maximum(values, 1)) @ axes.T @ root)


def interval_factor(apart: Tensor, variance: Tensor, level: float = LEVEL) -> float:
    """By how much to multiply sds so that `level` of differences with these variances lie within their interval."""
    from scipy.special import ndtri

    scaled = (apart.abs() / variance.sqrt()).flatten().cpu().numpy()
    return max(1.0, float(np.quantile(scaled, level) / ndtri(0.5 + level / 2)))


def calibrate(module: nn.Module, halved: nn.Module, halves: Halves) -> None:
    """Bring what a module says of its uncertainty to what a fit to halves shows, and remember how much that changed."""
    if isinstance(module, LoadingFactors) and isinstance(halved, LoadingFactors):
        found = module.embeddings
        covariances, found.summary[:] = _calibrated_sides(module.embedded(), halved.embedded(), halves, overfits=False)
        found.participant_covariances, found.stimulus_covariances = covariances
        return
    assert isinstance(module, NeuralFactors)
    assert isinstance(halved, NeuralFactors)
    known, before = halved.uncertainty, module.uncertainty.recalled()
    covariances, module.uncertainty.summary[:] = _calibrated_sides(module.embedded(), halved.embedded(), halves)
    factor = centers_factor(known.centers_sd, halved.centers.mean.detach(), halves.participants)
    after = replace(
        before,
        participants=covariances[0],
        stimuli=covariances[1],
        centers_sd=before.centers_sd * factor,
        log_widths_sd=before.log_widths_sd * factor,
    )
    module.uncertainty.remember(after)


def _calibrated_sides(
    own: Sequence[spread.Embedded], halved: Sequence[spread.Embedded], halves: Halves, overfits: bool = True
) -> tuple[list[Tensor], Tensor]:
    """Calibrated covariances of participants and of stimuli, and a summary [2, 3] of what halves showed of them."""
    covariances, summary = [], torch.zeros(2, 3).to(own[0].mean)
    for row, (whole, half, where) in enumerate(zip(own, halved, (halves.participants, halves.stimuli), strict=True)):
        if len(where) <= whole.mean.shape[1]:
            text = "the uncertainty of %s could not be calibrated: only %d of them could be halved"
            logger.warning(text, ("participants", "stimuli")[row], len(where))
        before = _embedded(whole)
        after, seen = calibrated_covariances(before, _embedded(half), where, overfits)
        covariances.append(torch.from_numpy(after).to(whole.covariances))
        if seen is not None:
            ratios = np.linalg.solve(before.covariance, after).trace(axis1=1, axis2=2) / after.shape[-1]
            summary[row] = torch.tensor([seen.reliability, float(ratios.mean()), seen.n_halved])
    return covariances, summary


def calibrated_covariances(
    own: Embedded, halves: Embedded, where: Places, overfits: bool = True
) -> tuple[Floats, SplitHalf | None]:
    """Bring covariances of embeddings to what their halves show, if these are enough."""
    n, n_dim = len(where), own.mean.shape[1]
    if n <= n_dim:
        return own.covariance, None
    whole, one, other = where.T
    seen = embedding_noise(own.mean[whole], halves.mean[one], halves.mean[other])
    reproducible = shaped_like(own.covariance, seen.covariance)
    reproducible = reproducible * (hotelling_factor(n, n_dim) if overfits else f_factor(n, n_dim))
    ratio = overconfidence(halves.mean[one] - halves.mean[other], halves.covariance[one] + halves.covariance[other])
    scaled = own.covariance * max(1.0, ratio) * f_factor(n, n_dim)
    return np.stack([larger(*both) for both in zip(reproducible, scaled, strict=True)]), seen


def _embedded(found: spread.Embedded) -> Embedded:
    return Embedded(found.mean.cpu().double().numpy(), found.covariances.cpu().double().numpy())


def centers_factor(centers_sd: Tensor, centers: Tensor, where: Places) -> float:
    """By how much to multiply the sds of centres, given those of halves [2 P, K, 3]."""
    if not len(where):
        return 1.0
    one, other = torch.from_numpy(where[:, 1]), torch.from_numpy(where[:, 2])
    variance = centers_sd[one].square() + centers_sd[other].square()
    return interval_factor(centers[one] - centers[other], variance)


def _rotation(onto: Floats, turned: Floats) -> Floats:
    """Return the rotation or reflection Q for which onto @ Q is nearest to `turned`, both centred."""
    left, _, right = np.linalg.svd((onto - onto.mean(0)).T @ (turned - turned.mean(0)))
    return np.asarray(left @ right)


def _stretch(one: Floats, other: Floats) -> Floats:
    """Return the symmetric L with L one L = other."""
    root, inverse = _power(one, 0.5), _power(one, -0.5)
    return np.asarray(inverse @ _power(root @ other @ root, 0.5) @ inverse)


def _power(matrix: Floats, exponent: float) -> Floats:
    """Power of a symmetric matrix without negative eigenvalues."""
    values, axes = np.linalg.eigh((matrix + matrix.T) / 2)
    floor = max(float(values[-1]), np.finfo(float).tiny) * 1e-12
    return np.asarray((axes * np.maximum(values, floor) ** exponent) @ axes.T)
