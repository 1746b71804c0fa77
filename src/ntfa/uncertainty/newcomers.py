"""How certain the places of newcomers are, and whether they are of a kind that the fit has seen.

C is what the model itself says of a newcomer's place, given all that is shared. Three things are missing from it:

1.  What halves showed of the reference, whose covariances C_p became V_p: L, symmetric, with L mean(C_p) L = mean(V_p).
2.  What halves of the newcomers show of themselves. With a and b the places of both halves, of D dimensions, and

        d_i = (a - b)^T (L (C_a + C_b) L)^-1 (a - b),        t = (q D + sum d_i) / (q D + n D)

    the covariances are t times too small, taken together; and one newcomer's t_i = (q D t + d_i) / (q D + D) times. The
    reference counts as q = 4 newcomers whose halves are as far apart as they should be. Nobody becomes more certain.
3.  How the reference's participants behave when they are left out and added. Axes are then found without them, aligned
    with those of the fit by everybody else, and they come to lie somewhere else; J is the mean square of the shifts,
    times what makes 95% ellipses right if a covariance was estimated from so few (`ntfa.uncertainty.calibration`).

A newcomer's covariance is t_i L C L + J; without J for another session of someone who was in the fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import sqrtm
from scipy.stats import f as f_distribution
from scipy.stats import t as student

from ntfa.models.embedding import principal_axes

Floats = NDArray[np.float64]

REFERENCE_COUNTS_AS = 4
MOST_LEFT_OUT = 100
LEVEL = 0.01
"""Of a newcomer's data, or place, among the reference's: rarer than this, it is outside."""


@dataclass(frozen=True)
class Pairs:
    """Halves of newcomers.

    where : [n], which newcomers could be halved
    apart : [n, D], one half's place less the other's
    covariance : [n, D, D], the sum of what the model says of both
    """

    where: NDArray[np.int64]
    apart: Floats
    covariance: Floats


def stretch_between(before: Floats, after: Floats) -> Floats:
    """Return the symmetric L with L mean(before) L = mean(after), of covariances [n, D, D] each."""
    root = np.real(sqrtm(before.mean(0)))
    inverse = np.linalg.inv(root)
    return np.asarray(inverse @ np.real(sqrtm(root @ after.mean(0) @ root)) @ inverse)


def own_factors(halves: Pairs, n_newcomers: int) -> Floats:
    """By how much covariances of newcomers are too small by their own halves, t_i [n], never less than one."""
    n_dim = halves.apart.shape[1]
    squared = (halves.apart * np.linalg.solve(halves.covariance, halves.apart[..., None])[..., 0]).sum(-1)
    prior = REFERENCE_COUNTS_AS * n_dim
    together = (prior + squared.sum()) / (prior + n_dim * len(squared))
    factors = np.full(n_newcomers, together)
    factors[halves.where] = (prior * together + squared) / (prior + n_dim)
    return np.maximum(factors, 1.0)


def calibrated(own: Floats, stretch: Floats, halves: Pairs) -> Floats:
    """Covariances t_i L C L of newcomers whose own are C [n, D, D]; those of halves are as the model gives them."""
    stretched = Pairs(halves.where, halves.apart, stretch @ halves.covariance @ stretch)
    return np.asarray(own_factors(stretched, len(own))[:, None, None] * (stretch @ own @ stretch))


def left_out_shift(points: Floats, shown: Floats) -> Floats:
    """Mean square J [D, D] by which participants move if left out and added.

    points : [P, q], what axes are found from
    shown : [P, D], where participants are in the fit
    """
    n, n_dim = shown.shape
    if n < n_dim + 3:
        return np.zeros((n_dim, n_dim))
    tried = np.unique(np.linspace(0, n - 1, min(n, MOST_LEFT_OUT)).round().astype(int))
    # In the space of the points themselves, which are fewer than their coordinates: P x P is all that matters.
    centred = points - points.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    reduced = torch.from_numpy(left * values)
    shifts = np.stack([_shift(reduced, shown, p) for p in tried])
    return np.asarray(shifts.T @ shifts / len(shifts))


def _shift(points: torch.Tensor, shown: Floats, who: int) -> Floats:
    others = np.delete(np.arange(len(shown)), who)
    kept = points[torch.from_numpy(others)]
    found = principal_axes(kept, torch.eye(points.shape[1]).to(points), shown.shape[1])
    place = ((points[who] - kept.mean(0)) @ found.axes).numpy()
    return aligned(found.scores.numpy(), shown[others], place) - shown[who]


def aligned(of_fit: Floats, onto: Floats, places: Floats) -> Floats:
    """Bring places from the space of one fit into that of another, by who is in both.

    Shift, turn (or reflect) and scale, one factor for all axes, such that `of_fit` [n, D] comes nearest to `onto`.
    """
    centre, goal = of_fit.mean(0), onto.mean(0)
    left, values, right = np.linalg.svd((of_fit - centre).T @ (onto - goal))
    scale = values.sum() / max(((of_fit - centre) ** 2).sum(), np.finfo(float).tiny)
    return np.asarray((places - centre) @ (left @ right) * scale + goal)


def rarity(densities: Floats, reference: Floats) -> Floats:
    """How rare such densities are among those of the reference: two-sided p of another draw from a normal."""
    n = len(reference)
    if n < 3:
        return np.full(len(densities), np.nan)
    spread = reference.std(ddof=1) * np.sqrt(1 + 1 / n)
    return np.asarray(2 * student.sf(np.abs(densities - reference.mean()) / max(spread, 1e-12), n - 1))


def place_rarity(places: Floats, covariances: Floats, reference: Floats) -> Floats:
    """How rare such places [n, D] are among those [P, D] of the reference: p by Hotelling's T^2.

    What is uncertain about a place counts in addition to the spread of the reference, which is as uncertain itself; so
    this errs on the side of saying nothing.
    """
    n, n_dim = reference.shape
    if n < n_dim + 3:
        return np.full(len(places), np.nan)
    apart = places - reference.mean(0)
    spread = np.cov(reference.T, ddof=1).reshape(n_dim, n_dim) + covariances
    squared = (apart * np.linalg.solve(spread, apart[..., None])[..., 0]).sum(-1)
    return np.asarray(f_distribution.sf(squared * n / (n + 1) * (n - n_dim) / (n_dim * (n - 1)), n_dim, n - n_dim))
