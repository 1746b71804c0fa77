"""The brain as the page draws it: outlines of its three projections, and voxels gathered into cubes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntfa.plots.brains import VIEWS
from ntfa.plots.style import DIVERGING

Floats = NDArray[np.float64]

# Cells along the longest side of the brain: enough for a picture some 250 pixels wide.
MAP_CELLS = 44
# Corners of the discs that an outline goes around.
CORNERS = 12
SAMPLED_VOXELS = 2000
# Left and right of a view, as shares of its width, well inside it.
ENDS = ((0.06, "L"), (0.94, "R"))


@dataclass(frozen=True)
class Outline:
    """The shadow of the voxels in one view, in mm: its box (left, bottom, right, top) and an SVG path."""

    name: str
    across: int
    up: int
    box: tuple[float, float, float, float]
    path: str


def outlines(coordinates: Any) -> list[Outline]:
    """Outline the voxels' shadows from the left, from behind and from above: their convex hulls, rounded."""
    coordinates = np.asarray(coordinates, dtype=np.float64)
    reach = max(_spacing(coordinates), 0.03 * float(np.ptp(coordinates, axis=0).max()))
    return [_outline(coordinates, view, reach) for view in VIEWS]


def _spacing(coordinates: Floats) -> float:
    """Median distance of voxels from their nearest neighbour, mm."""
    from scipy.spatial import cKDTree

    if len(coordinates) < 2:
        return 1.0
    some = coordinates[:: max(1, len(coordinates) // SAMPLED_VOXELS)]
    distances, _ = cKDTree(coordinates).query(some, k=2)
    return float(np.median(distances[:, 1])) or 1.0


def _outline(coordinates: Floats, view: tuple[str, str, str], reach: float) -> Outline:
    """Follow the edge of the voxels seen as discs of radius `reach`."""
    from scipy.spatial import ConvexHull

    across, up = ("xyz".index(axis) for axis in view[:2])
    angles = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    flat = np.unique(coordinates[:, [across, up]], axis=0)
    discs = (flat[:, None] + reach * np.column_stack([np.cos(angles), np.sin(angles)])).reshape(-1, 2)
    edge = discs[ConvexHull(discs).vertices]
    # Up is up in the brain and down in an SVG.
    path = "M" + "L".join(f"{x:.1f} {-y:.1f}" for x, y in edge) + "Z"
    left, bottom, right, top = np.round([*(edge.min(0) - reach), *(edge.max(0) + reach)], 1).tolist()
    return Outline(view[2], across, up, (left, bottom, right, top), path)


@dataclass(frozen=True)
class Grid:
    """Voxels gathered into cubes, for small pictures.

    places : [C, 3]
        Mean position of the voxels of each cube that has any, mm.
    cells : [C, 3]
        Which cube of the box that is.
    owner : [V]
        Which of the C cubes each voxel is in.
    origin, size : middle of the first cube of the box, and the side of a cube, mm
    """

    places: Floats
    cells: NDArray[np.int64]
    owner: NDArray[np.int64]
    origin: Floats
    size: float

    @classmethod
    def of(cls, coordinates: Any, n_cells: int = MAP_CELLS) -> Grid:
        """Gather voxels into cubes of an `n_cells`th of the brain's length, or of their spacing if that is more."""
        coordinates = np.asarray(coordinates, dtype=np.float64)
        extent = float(np.ptp(coordinates, axis=0).max()) or 1.0
        size = max(extent / n_cells, _spacing(coordinates))
        keys = np.rint((coordinates - coordinates.min(0)) / size).astype(np.int64)
        cells, owner = np.unique(keys, axis=0, return_inverse=True)
        owner = owner.ravel()
        counts = np.bincount(owner)
        sums = np.stack([np.bincount(owner, weights=axis) for axis in coordinates.T], axis=1)
        return cls(sums / counts[:, None], cells, owner, coordinates.min(0), size)

    @property
    def n(self) -> int:
        """Number of cubes that have voxels."""
        return len(self.cells)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of cubes in each direction."""
        return tuple((self.cells.max(0) + 1).tolist())

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Cubes in the order in which they lie in the box, the last direction first."""
        return np.argsort(np.ravel_multi_index(tuple(self.cells.T), self.shape), kind="stable")

    def pooled(self, values: Floats) -> Floats:
        """Average values of voxels [V] over the voxels of each cube, [C]."""
        return np.bincount(self.owner, weights=values, minlength=self.n) / np.bincount(self.owner, minlength=self.n)

    def projections(self, values: Floats) -> Floats:
        """Show the strongest value behind each place from three sides, side by side; NaN where there is no brain."""
        volume = np.full(self.shape, np.nan)
        volume[tuple(self.cells.T)] = values
        views = [_strongest(volume, axis).T[::-1] for axis in range(3)]
        height = max(len(view) for view in views)
        return np.hstack([_framed(view, height) for view in views])

    @property
    def sides(self) -> list[tuple[float, str]]:
        """Where left and right are in `projections`, in per cent of its width: of the views from behind and above."""
        across, along = self.shape[0] + 2, self.shape[1] + 2
        ends = [(view + share * across, side) for view in (along, along + across) for share, side in ENDS]
        return [(round(100 * place / (along + 2 * across), 1), side) for place, side in ends]


def _strongest(volume: Floats, axis: int) -> Floats:
    strength = np.where(np.isnan(volume), -1.0, np.abs(volume))
    return np.take_along_axis(volume, strength.argmax(axis, keepdims=True), axis).squeeze(axis)


def _framed(view: Floats, height: int) -> Floats:
    above = (height - len(view)) // 2
    return np.pad(view, ((above, height - len(view) - above), (1, 1)), constant_values=np.nan)


def png(image: Floats, limit: float) -> bytes:
    """Paint an image [h, w] red above and blue below zero, transparent where it is NaN."""
    from matplotlib.image import imsave

    colours = DIVERGING.with_extremes(bad=(1, 1, 1, 0))
    buffer = io.BytesIO()
    imsave(buffer, colours(np.ma.masked_invalid((np.clip(image / limit, -1, 1) + 1) / 2)), format="png")
    return buffer.getvalue()
