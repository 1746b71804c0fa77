"""Where a difference is largest among the voxels that differ: peaks that lie some way apart.

By the difference, not by z: within one factor z is nearly the same everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ntfa.study.atlas import Atlas

APART_MM = 16.0
MOST_PEAKS = 10


def find_peaks(
    coordinates: Any,
    difference: Any,
    z: Any,
    significant: Any,
    atlas: Atlas | None = None,
    apart: float = APART_MM,
    most: int = MOST_PEAKS,
) -> pd.DataFrame:
    """Find the significant voxels that differ most, each further than `apart` mm from larger ones of the same sign.

    Returns `x, y, z` (mm), `difference`, `z_value`, `n_voxels`, how many significant voxels of that sign are nearest
    to this peak, and `region` if there is an atlas; positive ones first, the largest first.
    """
    coordinates, values = np.asarray(coordinates, dtype=np.float64), np.asarray(difference, dtype=np.float64)
    parts = []
    for sign in (1, -1):
        own = np.flatnonzero(np.asarray(significant) & (sign * values > 0))
        peaks = _apart(coordinates[own], sign * values[own], apart, most)
        nearest = _nearest(coordinates[own], coordinates[own[peaks]])
        table = pd.DataFrame(coordinates[own[peaks]], columns=["x", "y", "z"])
        table["difference"], table["z_value"] = values[own[peaks]], np.asarray(z)[own[peaks]]
        parts.append(table.assign(n_voxels=np.bincount(nearest, minlength=len(peaks))))
    table = pd.concat(parts, ignore_index=True)
    if atlas is not None:
        table["region"] = atlas.names(table[["x", "y", "z"]].to_numpy()) if len(table) else []
    return table


def _apart(places: Any, heights: Any, apart: float, most: int) -> list[int]:
    """Take the highest, then the highest that is far enough from all taken, and so on."""
    taken: list[int] = []
    left = np.ones(len(places), dtype=bool)
    while left.any() and len(taken) < most:
        best = int(np.flatnonzero(left)[np.argmax(heights[left])])
        taken.append(best)
        left &= np.linalg.norm(places - places[best], axis=1) > apart
    return taken


def _nearest(places: Any, peaks: Any) -> Any:
    from scipy.spatial import cKDTree

    return cKDTree(peaks).query(places)[1] if len(peaks) else np.zeros(0, dtype=np.int64)
