"""Embeddings of any number of dimensions as points and covariances in the plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.patches import Ellipse
from numpy.typing import NDArray

from ntfa.errors import ModelError
from ntfa.uncertainty.moments import moments

Floats = NDArray[np.float64]

# Share of the posterior that each contour holds.
SHARES = (0.5, 0.95)


@dataclass(frozen=True)
class Flat:
    """Embeddings in the plane.

    means : [n, 2]
    covariances : [n, 2, 2], or None for point estimates
    names : names of the two directions
    """

    means: Floats
    covariances: Floats | None
    names: tuple[str, str]


def flatten(embeddings: pd.DataFrame, dimensions: Sequence[int] | None) -> Flat:
    """Show two dimensions: those asked for, the only two there are, or the two principal directions of the means."""
    means, covariances = moments(embeddings)
    n_dimensions = means.shape[1]
    if dimensions is not None or n_dimensions == 2:
        first, second = _checked(dimensions or (1, 2), n_dimensions)
        return _turned(
            means, covariances, np.eye(n_dimensions)[:, [first - 1, second - 1]], (f"z{first}", f"z{second}")
        )
    found = principal_directions(means)
    return flatten(embeddings, (1, 2)) if found is None else _turned(means, covariances, *found)


def flatten_ranked(embeddings: pd.DataFrame) -> Flat:
    """Show one dimension against its rank, which is certain."""
    means, covariances = moments(embeddings)
    ranks = pd.Series(means[:, 0]).rank(method="first").to_numpy(dtype=np.float64)
    spread = None
    if covariances is not None:
        spread = np.zeros((len(means), 2, 2))
        spread[:, 0, 0] = covariances[:, 0, 0]
    return Flat(np.column_stack([means[:, 0], ranks]), spread, ("z1", "rank"))


def principal_directions(means: Floats) -> tuple[Floats, tuple[str, str]] | None:
    """Two principal directions [D, 2] of means [n, D], named with their share; None if all means are the same."""
    centred = means - means.mean(0)
    total = float((centred**2).sum())
    if total == 0:
        return None
    _, values, directions = np.linalg.svd(centred)
    shares = [*(values**2 / total), 0.0][:2]
    names = tuple(f"direction {i + 1} ({share:.0%} of variance)" for i, share in enumerate(shares))
    return _signed(directions[:2].T), (names[0], names[1])


def ellipses(mean: Floats, covariance: Floats, shares: Sequence[float] = SHARES) -> list[Ellipse]:
    """Ellipses that hold the given shares of a two-dimensional normal, largest last."""
    if covariance[0, 1] == 0:
        sds, angle = np.sqrt(np.diag(covariance)), 0.0
    else:
        variances, axes = np.linalg.eigh(covariance)
        sds, angle = np.sqrt(variances.clip(min=0)), float(np.degrees(np.arctan2(axes[1, 0], axes[0, 0])))
    # A share q of a two-dimensional normal lies within sqrt(-2 log(1 - q)) standard deviations.
    diameters = [2 * np.sqrt(-2 * np.log(1 - share)) for share in shares]
    centre = (float(mean[0]), float(mean[1]))
    return [Ellipse(centre, float(d * sds[0]), float(d * sds[1]), angle=angle) for d in diameters]


def _checked(dimensions: Sequence[int], n_dimensions: int) -> tuple[int, int]:
    if len(dimensions) != 2:
        raise ModelError(f"dimensions={tuple(dimensions)}: name two, for example (1, 2)")
    for dimension in dimensions:
        if not 1 <= dimension <= n_dimensions:
            raise ModelError(
                f"dimensions={tuple(dimensions)}: the embeddings have no dimension {dimension}, only {n_dimensions}"
            )
    return int(dimensions[0]), int(dimensions[1])


def _turned(means: Floats, covariances: Floats | None, directions: Floats, names: tuple[str, str]) -> Flat:
    turned = None if covariances is None else directions.T @ covariances @ directions
    return Flat(means @ directions, turned, names)


def _signed(directions: Floats) -> Floats:
    """Settle the signs of directions [D, 2], which are arbitrary: the largest entry is positive."""
    largest = np.take_along_axis(directions, np.abs(directions).argmax(0)[None], 0)
    signed: Floats = directions * np.sign(largest)
    return signed
