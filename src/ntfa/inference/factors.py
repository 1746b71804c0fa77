"""The radial basis that all models share, for arrays in mm.

    F(v) = exp(-|g_v - x|^2 / w^2)        g_v the voxel's position, x the factor's centre, w its width

Fits form factors as `ntfa.inference.projection` does, a chunk of voxels at a time and with gradients; whatever is said
of a model after its fit, and what is simulated, is made of these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def radial_basis(coordinates: Any, centers: Any, widths: Any, dtype: Any = np.float64) -> NDArray[Any]:
    """Return factors at voxels [V, 3] from their centres [K, 3] and widths [K], all in mm: [K, V]."""
    factors = np.empty((len(centers), len(coordinates)), dtype)
    # One factor at a time: the differences of all voxels from all centres would take three times as much memory.
    for factor, center, width in zip(factors, centers, widths, strict=True):
        factor[:] = np.exp(-((coordinates - center) ** 2).sum(1) / width**2)
    return factors


class LatestBasis:
    """`radial_basis` that keeps its latest factors: people who have the same ones are asked for one after the other."""

    def __init__(self) -> None:
        self._latest: tuple[tuple[Any, ...], NDArray[Any]] | None = None

    def __call__(self, coordinates: Any, centers: Any, widths: Any) -> NDArray[Any]:
        """Return factors at voxels, [K, V], which are not to be written to."""
        of = (coordinates, centers, widths)
        if self._latest is None or not all(map(np.array_equal, self._latest[0], of)):
            factors = radial_basis(*of)
            factors.flags.writeable = False
            self._latest = (of, factors)
        return self._latest[1]
