"""Maps and factors of cortex on inflated surfaces, each hemisphere from outside and from the midline.

Triangles are drawn from the farthest to the nearest, as pixels also where the figure is vectors: a hemisphere has tens
of thousands. Where the template that comes with nilearn is used, its inflated surfaces are; where surfaces were named
without inflated ones, the midthickness surface is smoothed until it is round enough to look into sulci.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, Normalize, to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ntfa.study.checks import FloatArray
from ntfa.study.greyordinates import Greyordinates
from ntfa.study.spheres import CORTEX
from ntfa.study.surfaces import Surface

# Where a viewer stands for each picture of a hemisphere: to the left (-1) or to the right of it.
VIEWS: Sequence[tuple[str, int, str]] = (
    ("left", -1, "left, outside"),
    ("left", 1, "left, midline"),
    ("right", -1, "right, midline"),
    ("right", 1, "right, outside"),
)
GYRUS, SULCUS, NOWHERE = 0.82, 0.62, 0.93
INFLATE_STEPS = 300
# Share of a factor's peak to which it is painted: its width is where it has fallen to 1/e.
EDGE = float(np.exp(-1))


class Shape(NamedTuple):
    """A hemisphere to draw: vertices [n, 3], triangles [m, 3], shade of each vertex [n]."""

    points: FloatArray
    faces: NDArray[np.int64]
    shade: FloatArray


@lru_cache(maxsize=8)
def shape_of(surface: Surface) -> Shape:
    """Return the inflated surface, sulci darker than gyri."""
    points = surface.inflated if surface.inflated is not None else _inflated(surface)
    return Shape(points, surface.faces, np.where(_bend(surface) > 0, SULCUS, GYRUS))


def _neighbours(surface: Surface) -> Any:
    """Matrix [n, n] that averages over neighbouring vertices."""
    from scipy.sparse import coo_matrix, diags

    edges = np.concatenate([surface.faces[:, [i, (i + 1) % 3]] for i in range(3)])
    edges = np.concatenate([edges, edges[:, ::-1]])
    matrix = coo_matrix((np.ones(len(edges)), tuple(edges.T)), shape=(surface.n_vertices,) * 2).tocsr()
    matrix.data[:] = 1
    return diags(1 / np.maximum(np.asarray(matrix.sum(1)).ravel(), 1)) @ matrix


def _bend(surface: Surface) -> FloatArray:
    """How far each vertex lies below its surroundings, smoothed: above 0 in a sulcus."""
    average, points = _neighbours(surface), surface.midthickness
    smooth = points
    for _ in range(10):
        smooth = average @ smooth
    a, b, c = (points[corner] for corner in surface.faces.T)
    normals, of_faces = np.zeros_like(points), np.cross(b - a, c - a)
    for corner in surface.faces.T:
        np.add.at(normals, corner, of_faces)
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    bend = ((smooth - points) * normals).sum(1)
    # Triangles may be listed the other way round: most of a brain's outside is convex.
    outwards = ((points - points.mean(0)) * normals).sum(1).mean() > 0
    return np.asarray(average @ (bend if outwards else -bend))


def _inflated(surface: Surface) -> FloatArray:
    average, points = _neighbours(surface), surface.midthickness
    for _ in range(INFLATE_STEPS):
        points = 0.5 * points + 0.5 * (average @ points)
    middle = points.mean(0)
    grow = np.linalg.norm(surface.midthickness - surface.midthickness.mean(0), axis=1).mean()
    return np.asarray(middle + (points - middle) * grow / np.linalg.norm(points - middle, axis=1).mean())


def draw_surfaces(
    figure: Figure,
    place: Sequence[float],
    values: Any,
    space: Greyordinates,
    scale: Any,
    cmap: Colormap,
    faint: float = 0,
) -> list[Axes]:
    """Draw one map [V] on the hemispheres that there are; values under `faint` in size show the surface."""
    norm = Normalize(*scale)
    colours = {}
    for side, own in space.on_vertices(np.asarray(values, dtype=np.float64)[None]).items():
        known = own[:, 0]
        shown = np.isfinite(known) & (np.abs(np.nan_to_num(known)) >= faint)
        rgb = np.asarray(cmap(norm(np.nan_to_num(known))))[:, :3]
        colours[side] = _over(space, side, rgb, shown.astype(np.float64), np.isfinite(known))
    return _draw(figure, place, space, colours)


def draw_factors(
    figure: Figure, place: Sequence[float], shapes: Any, colours: Sequence[Any], space: Greyordinates
) -> list[Axes]:
    """Paint factors [K, V] as far as they are above 1/e of their peak, narrow ones over wide ones."""
    shapes = np.asarray(shapes, dtype=np.float64)
    inside = shapes >= EDGE * np.maximum(shapes.max(1, keepdims=True), 1e-12)
    painted = {}
    for side, own in space.on_vertices(inside.astype(np.float64)).items():
        rgb, share = np.ones((len(own), 3)), np.zeros(len(own))
        for k in np.argsort(-inside.sum(1), kind="stable"):
            here = own[:, k] > 0
            rgb[here], share[here] = to_rgb(colours[k]), 0.8
        painted[side] = _over(space, side, rgb, share, np.isfinite(own[:, 0]))
    return _draw(figure, place, space, painted)


def _over(space: Greyordinates, side: str, rgb: FloatArray, share: FloatArray, known: Any) -> FloatArray:
    """Lay colours over the surface's own shades; vertices that are no part of the study are pale."""
    shade = np.where(known, shape_of(space.surfaces.by_side[side]).shade, NOWHERE)[:, None]
    # Sulci stay visible under the colour.
    return share[:, None] * rgb * (0.75 + 0.25 * shade) + (1 - share[:, None]) * shade


def _draw(figure: Figure, place: Sequence[float], space: Greyordinates, colours: dict[str, FloatArray]) -> list[Axes]:
    views = [view for view in VIEWS if view[0] in colours]
    left, bottom, width, height = place
    axes = []
    for i, (side, sign, _) in enumerate(views):
        ax = figure.add_axes((left + i * width / len(views), bottom, 0.97 * width / len(views), height))
        _draw_view(ax, shape_of(space.surfaces.by_side[side]), colours[side], sign)
        axes.append(ax)
    return axes


def _draw_view(ax: Axes, shape: Shape, colours: FloatArray, sign: int) -> None:
    """Draw a hemisphere seen from the left (-1) or from the right (1)."""
    flat = np.column_stack([sign * shape.points[:, 1], shape.points[:, 2]])
    corners = flat[shape.faces]
    depth = sign * shape.points[:, 0]
    one, other = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    facing = one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]
    # Whichever way triangles are listed, those on the near side are listed alike.
    near = np.sign(np.median(facing[depth[shape.faces].mean(1) > np.median(depth)])) * facing > 0
    order = np.flatnonzero(near)
    order = order[np.argsort(depth[shape.faces[order]].mean(1), kind="stable")]
    normals = np.cross(*(shape.points[shape.faces[order, i]] - shape.points[shape.faces[order, 0]] for i in (1, 2)))
    light = np.abs(normals[:, 0]) / np.maximum(np.linalg.norm(normals, axis=1), 1e-12)
    rgb = colours[shape.faces[order]].mean(1) * (0.65 + 0.35 * light[:, None])
    triangles: Any = corners[order]
    style: dict[str, Any] = {"facecolors": rgb.clip(0, 1), "edgecolors": "face", "linewidths": 0.1}
    ax.add_collection(PolyCollection(triangles, rasterized=True, **style))
    low, high = flat.min(0), flat.max(0)
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    ax.set_aspect("equal")
    ax.axis("off")


def structures_of(factors: pd.DataFrame, space: Greyordinates) -> pd.Series:
    """Name the structure that each of some factors `x, y, z, width`, at positions, is in."""
    return space.to_mm(factors)["structure"]


def number_factors(axes: Sequence[Axes], space: Greyordinates, factors: pd.DataFrame, structures: pd.Series) -> None:
    """Write the number of each factor where its centre is, in the view that it faces."""
    from scipy.spatial import cKDTree

    for ax, (side, sign, _) in zip(axes, [view for view in VIEWS if view[0] in space.columns], strict=True):
        surface, shape = space.surfaces.by_side[side], shape_of(space.surfaces.by_side[side])
        own = factors[(structures == CORTEX[side]).to_numpy()]
        if own.empty:
            continue
        vertices = cKDTree(surface.midthickness).query(own[["x", "y", "z"]].to_numpy())[1]
        middle = shape.points[:, 0].mean()
        for number, (x, y, z) in zip(own.index, shape.points[vertices], strict=True):
            if sign * (x - middle) > 0:
                ax.text(sign * y, z, str(number), ha="center", va="center", fontsize=7, weight="bold", parse_math=False)


def voxels_of(space: Greyordinates) -> NDArray[np.bool_]:
    """Which columns are voxels, [V]."""
    return np.asarray(space.axis.volume_mask)
