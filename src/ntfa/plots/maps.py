"""Maps of voxels drawn on brains, several under one another on one colour scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure

from ntfa.errors import ModelError
from ntfa.plots.brains import VIEWS, Space, add_scale, new_figure
from ntfa.plots.style import shown
from ntfa.plots.surfaces import draw_surfaces, voxels_of
from ntfa.plots.volumes import NOTHING, draw_glass, draw_slices
from ntfa.study.greyordinates import Greyordinates

SEEN_FROM = ("glass", "slices")
# On a scale around zero, values under this share of its end are as good as white, and would only hide the brain.
FAINT = 0.05
ROW_INCHES = 2.6


def draw_maps(
    maps: Mapping[str, Any],
    space: Space,
    *,
    view: str,
    scale: tuple[float, float],
    cmap: Colormap,
    unit: str,
    title: str = "",
    figure: Figure | None = None,
) -> Figure:
    """Draw maps [V] under one another, each with its name, all on the same colour scale and at the same slices.

    On a glass brain or slices if the voxels come from a mask in MNI space, on slices over the mask if it is
    elsewhere, and as three projections if there is none. Vertices of cortex are drawn on inflated surfaces, and voxels
    beside them as a projection.
    """
    if view not in SEEN_FROM:
        raise ModelError(f"view={view!r}: choose 'glass' or 'slices'")
    top = 0.3 if title else 0.05
    figure = new_figure(figure, (8.5, ROW_INCHES * len(maps) + top))
    unit_height = 1 / (ROW_INCHES * len(maps) + top)
    if title:
        figure.text(0.01, 1 - 0.06 * unit_height, shown(title, 90), va="top", fontsize=11, parse_math=False)
    row = ROW_INCHES * unit_height
    in_volume = space.mask_img is not None and space.greyordinates is None
    cuts = _cut_coords(list(maps.values()), space) if view == "slices" and in_volume else None
    for i, (name, values) in enumerate(maps.items()):
        bottom = 1 - top * unit_height - (i + 1) * row
        figure.text(0.01, bottom + 0.97 * row, shown(name, 60), va="top", fontsize=9, parse_math=False)
        place = (0.01, bottom + 0.02 * row, 0.86, 0.84 * row)
        _draw_map(figure, place, np.asarray(values), space, view, scale, cmap, cuts)
    mappable = ScalarMappable(Normalize(*scale), cmap)
    add_scale(figure, (0.89, 0.5 - 0.35 * row, 0.015, 0.7 * row), mappable, unit)
    return figure


def _draw_map(
    figure: Figure, place: Any, values: Any, space: Space, view: str, scale: Any, cmap: Colormap, cuts: Any
) -> None:
    if space.greyordinates is not None:
        _draw_greyordinates(figure, place, values, space.greyordinates, scale, cmap)
        return
    if space.mask_img is None or (view == "glass" and not space.is_mni):
        _draw_projections(figure, place, values, space, scale, cmap)
        return
    options: dict[str, Any] = {"scale": scale, "cmap": cmap}
    options["threshold"] = max(FAINT * scale[1], NOTHING) if scale[0] < 0 else NOTHING
    if view == "glass":
        draw_glass(figure, place, values, space.mask_img, alpha=0.9, **options)
    else:
        draw_slices(figure, place, values, space.mask_img, cuts, is_mni=space.is_mni, **options)


def _draw_greyordinates(
    figure: Figure, place: Any, values: Any, space: Greyordinates, scale: Any, cmap: Colormap
) -> None:
    """Draw hemispheres, and voxels, if there are any, beside them as seen from the front and from above."""
    left, bottom, width, height = place
    voxels = voxels_of(space)
    if voxels.all():
        _draw_projections(figure, place, values, Space(space.coordinates), scale, cmap)
        return
    share = 0.72 if voxels.any() else 1.0
    faint = FAINT * scale[1] if scale[0] < 0 else 0.0
    draw_surfaces(figure, (left, bottom, share * width, height), values, space, scale, cmap, faint)
    if voxels.any():
        rest = (left + share * width, bottom, (1 - share) * width, height)
        _draw_projections(figure, rest, values[voxels], Space(space.coordinates[voxels]), scale, cmap, VIEWS[1:])


def _cut_coords(maps: list[Any], space: Space) -> tuple[float, ...]:
    """Return the voxel where the maps together are strongest, for all to be cut at."""
    strength = np.mean([np.abs(np.asarray(values)) for values in maps], axis=0)
    return tuple(float(c) for c in space.coordinates[int(np.argmax(strength))])


def _draw_projections(
    figure: Figure, place: Any, values: Any, space: Space, scale: Any, cmap: Colormap, views: Any = VIEWS
) -> None:
    """Draw in each view, at each place, the strongest value behind it."""
    left, bottom, width, height = place
    for i, (across, up, _) in enumerate(views):
        ax = figure.add_axes((left + i * width / len(views), bottom, 0.95 * width / len(views), height))
        flat = space.coordinates[:, ["xyz".index(across), "xyz".index(up)]]
        grid, extent = strongest_behind(flat, values, _cell_size(space.coordinates))
        ax.imshow(grid.T, origin="lower", extent=extent, cmap=cmap, vmin=scale[0], vmax=scale[1])
        ax.axis("off")


def strongest_behind(places: Any, values: Any, size: float) -> tuple[Any, tuple[float, float, float, float]]:
    """Sort values at places [V, 2] into square cells and keep the strongest of each; masked where there is none.

    Returns the grid and its edges: left, right, bottom, top.
    """
    cells = np.rint((places - places.min(0)) / size).astype(int)
    # Not `masked_all`: what happens to be in its memory, infinity say, makes matplotlib warn now and then.
    grid = np.ma.masked_array(np.zeros(cells.max(0) + 1), mask=True)
    order = np.argsort(np.abs(values), kind="stable")
    grid[tuple(cells[order].T)] = values[order]
    low = places.min(0) - size / 2
    high = low + size * np.array(grid.shape)
    return grid, (float(low[0]), float(high[0]), float(low[1]), float(high[1]))


def _cell_size(coordinates: Any) -> float:
    """Spacing of voxels on a grid, in mm; of voxels that are not on one, the side of the cube that each has."""
    steps = np.concatenate([np.diff(np.unique(np.round(axis, 3))) for axis in np.asarray(coordinates).T])
    if len(steps) == 0:
        return 1.0
    smallest = float(steps.min())
    if np.allclose(steps / smallest, np.rint(steps / smallest), atol=0.01) and len(steps) < len(coordinates):
        return smallest
    extent = np.ptp(coordinates, axis=0)
    return float(max(np.prod(extent[extent > 0]) / len(coordinates), 1e-9) ** (1 / max((extent > 0).sum(), 1)))
