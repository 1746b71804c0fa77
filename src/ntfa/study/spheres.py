"""Where factors live in a study of cortex: on the spheres of both hemispheres, laid out beside the volume.

A vertex in direction u of its hemisphere's sphere, and a factor's centre in direction e at distance r from the sphere's
centre c, lie at

    g = c + R u,     x = c + r e,     |g - x|^2 = (R - r)^2 + (r / R) d^2,     d^2 = 2 R^2 (1 - u . e)

with d the chord over a great circle; so that exp(-|g - x|^2 / w^2), the radial basis that all models share, is a
function of the distance over the sphere, smooth in x, with the width w sqrt(R / r). R is such that the sphere has the
area of the midthickness surface: distances are about mm of cortex. Spheres and volume lie so far apart that no factor
reaches two of them. Inference knows nothing of this but positions; here they are made, and places are mapped back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntfa.study.checks import FloatArray
from ntfa.study.surfaces import HEMISPHERES, Surface

GAP_MM = 200.0
"""Between each sphere and the volume: several times the largest width that a fit starts with, so that nothing draws a
factor that covers a hemisphere on to the next structure."""
VOLUME = "volume"
CORTEX = {side: f"{side} cortex" for side in HEMISPHERES}
INSIDE = -1e-6


class Places(NamedTuple):
    """Centres in mm [n, 3], widths [n], which structure each is in [n], and how mm change with positions [n, 3, 3]."""

    centers: FloatArray
    widths: FloatArray
    structures: NDArray[Any]
    slopes: FloatArray


@dataclass(frozen=True, eq=False)
class Spheres:
    """The spheres of hemispheres, their centres, and the box [2, 3] of the volume between them, if there is one."""

    surfaces: Mapping[str, Surface]
    centers: Mapping[str, FloatArray]
    box: FloatArray | None

    @classmethod
    def around(cls, surfaces: Mapping[str, Surface], voxels: FloatArray) -> Spheres:
        """Lay spheres out left and right of voxels [V, 3], of which there may be none."""
        low, high = (voxels.min(0), voxels.max(0)) if len(voxels) else (np.zeros(3), np.zeros(3))
        middle, gap = (low + high) / 2, GAP_MM
        centers = {}
        for side, surface in surfaces.items():
            edge, sign = (low[0], -1) if side == "left" else (high[0], 1)
            centers[side] = np.array([edge + sign * (gap + surface.radius), middle[1], middle[2]])
        return cls(surfaces, centers, np.stack([low, high]) if len(voxels) else None)

    def positions(self, side: str, vertices: Any = slice(None)) -> FloatArray:
        """Return where vertices of a hemisphere lie, [n, 3]."""
        surface = self.surfaces[side]
        return np.asarray(self.centers[side] + surface.radius * surface.directions[vertices])

    def places(self, positions: FloatArray, widths: FloatArray) -> Places:
        """Map centres and widths of factors back to mm: centres to the midthickness surface of the nearest sphere."""
        positions = np.asarray(positions, dtype=np.float64)
        side_of = self._nearest(positions)
        found = Places(
            positions.copy(), np.array(widths, dtype=np.float64), side_of, np.tile(np.eye(3), (len(side_of), 1, 1))
        )
        for side in self.surfaces:
            for i in np.flatnonzero(side_of == CORTEX[side]).tolist():
                self._place(side, i, positions[i] - self.centers[side], found)
        return found

    def _nearest(self, positions: FloatArray) -> NDArray[Any]:
        """Say which structure each centre is in or nearest to."""
        names = [CORTEX[side] for side in self.surfaces]
        away = [
            np.linalg.norm(positions - self.centers[side], axis=1) - surface.radius
            for side, surface in self.surfaces.items()
        ]
        if self.box is not None:
            names.append(VOLUME)
            away.append(
                np.linalg.norm(np.maximum(np.maximum(self.box[0] - positions, positions - self.box[1]), 0), axis=1)
            )
        return np.array(names, dtype=object)[np.argmin(np.maximum(away, 0), axis=0)]

    def _place(self, side: str, i: int, away: FloatArray, found: Places) -> None:
        surface, length = self.surfaces[side], max(float(np.linalg.norm(away)), 1e-9)
        corners, shares = self._grids[side].corners(away / length)
        found.centers[i] = shares @ surface.midthickness[corners]
        found.widths[i] *= np.sqrt(surface.radius / length)
        # On a triangle mm are linear in the position on the sphere.
        on_sphere, on_cortex = (
            np.diff(points[corners], axis=0).T for points in (surface.radius * surface.directions, surface.midthickness)
        )
        found.slopes[i] = on_cortex @ np.linalg.pinv(on_sphere) * surface.radius / length

    @cached_property
    def _grids(self) -> dict[str, Triangles]:
        return {side: Triangles(surface) for side, surface in self.surfaces.items()}


class Triangles:
    """Finds the triangle of a sphere that a direction goes through."""

    def __init__(self, surface: Surface) -> None:
        from scipy.spatial import cKDTree

        self.surface = surface
        self.tree = cKDTree(surface.directions)
        order = np.argsort(surface.faces.ravel(), kind="stable")
        self.faces = order // 3
        self.first = np.searchsorted(surface.faces.ravel()[order], np.arange(surface.n_vertices + 1))

    def corners(self, direction: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
        """Return the corners of a triangle and the shares that each has in the place where a direction goes through."""
        _, nearest = self.tree.query(direction, k=min(6, self.surface.n_vertices))
        for vertex in np.atleast_1d(nearest):
            for face in self.faces[self.first[vertex] : self.first[vertex + 1]]:
                corners = self.surface.faces[face]
                shares = np.linalg.lstsq(self.surface.directions[corners].T, direction, rcond=None)[0]
                if shares.min() >= INSIDE and shares.sum() > 0:
                    return corners, shares / shares.sum()
        # Between triangles of a mesh with a hole: at the vertex itself.
        vertex = int(np.atleast_1d(nearest)[0])
        at = self.surface.faces[self.faces[self.first[vertex]]] if self.first[vertex] < self.first[vertex + 1] else None
        corners = np.repeat(vertex, 3) if at is None else at
        return corners, (corners == vertex) / (corners == vertex).sum()


def great_circle(one: FloatArray, other: FloatArray, radius: float) -> FloatArray:
    """Return distances over a sphere between directions [..., 3], in the units of its radius."""
    chord = np.linalg.norm(one - other, axis=-1)
    return np.asarray(2 * radius * np.arcsin(np.clip(chord / 2, 0, 1)))
