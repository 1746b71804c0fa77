"""Do groups differ in how far their points spread, wherever they lie? PERMDISP (Anderson 2006)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ntfa.analyses.permutations import BATCH, Design, Floats, Ints, indicators, share_as_large


@dataclass(frozen=True)
class Dispersion:
    """How groups differ in spread.

    statistic : F of an analysis of variance of the distances
    r2 : share of the distances' variance
    p : share of permutations with an F as large
    means : mean distance from the centre of each group
    """

    statistic: float
    r2: float
    p: float
    means: Floats


def dispersion_test(points: Floats, codes: Ints, orders: Ints) -> Dispersion:
    """Compare how far the points [n, D] of groups (codes 0, 1, ...) lie from their groups' centres.

    Parameters
    ----------
    orders : array
        Permutations [m, n], the first of which leaves everything in its place.
    """
    distances = centre_distances(points, codes)
    design = Design.of(indicators(codes))
    left = design.without_confounds(distances[:, None])[:, 0]
    explained = np.empty(len(orders))
    size = max(1, BATCH // len(codes))
    for start in range(0, len(orders), size):
        batch = slice(start, start + size)
        explained[batch] = ((left[orders[batch]] @ design.predictors) ** 2).sum(1)
    total, n_between = float((left**2).sum()), design.predictors.shape[1]
    share = float(explained[0]) / total if total > 0 else 0.0
    statistic = share / max(1 - share, np.finfo(float).tiny) * design.n_free / n_between
    means = np.array([distances[codes == code].mean() for code in np.unique(codes)])
    return Dispersion(statistic, share, share_as_large(explained), means)


def centre_distances(points: Floats, codes: Ints) -> Floats:
    """Distance of every point from the spatial median of its group, [n].

    The median of few points lies nearer to them than that of all would: distances are stretched by sqrt(n / (n - 1)).
    """
    distances = np.empty(len(points))
    for code in np.unique(codes):
        own = codes == code
        away = np.linalg.norm(points[own] - spatial_median(points[own]), axis=1)
        distances[own] = away * np.sqrt(own.sum() / max(own.sum() - 1, 1))
    return distances


def spatial_median(points: Floats, n_steps: int = 200) -> Floats:
    """Point with the smallest sum of distances from points [n, D], by Weiszfeld's steps from the mean."""
    median = points.mean(0)
    scale = float(np.abs(points - median).max())
    for _ in range(n_steps if scale > 0 else 0):
        away = np.maximum(np.linalg.norm(points - median, axis=1), 1e-9 * scale)
        after = (points / away[:, None]).sum(0) / (1 / away).sum()
        if np.abs(after - median).max() <= 1e-9 * scale:
            break
        median = after
    return np.asarray(median)
