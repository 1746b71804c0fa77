"""Volumes seen through a glass brain, or cut at a place, as nilearn draws them, which takes ten times as long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.path import Path
from numpy.typing import NDArray

from ntfa.plots.brains import VIEWS
from ntfa.study import mni152
from ntfa.study.volumes import straight, unmask

# Outside the mask an image is zero, which is not to be drawn.
NOTHING = 1e-9
# How much lighter than itself a background is drawn.
DIMMED = 0.6
SEEN_ALONG = "xyz"
Bounds = tuple[float, float, float, float]
Scale = tuple[float, float]


@dataclass(frozen=True)
class Volume:
    """Cells along x, y and z, masked where there is nothing to see, and their places.

    low, step : middle of the first cell, and the distance of neighbours, in mm
    """

    values: np.ma.MaskedArray[Any, Any]
    low: NDArray[np.float64]
    step: NDArray[np.float64]

    @classmethod
    def of(cls, image: Any, threshold: float, resample: str = "continuous") -> Volume:
        """Take an image whose values are beyond a threshold where there is anything."""
        values, affine = straight(image, resample)
        return cls.at(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0), affine, threshold)

    @classmethod
    def at(cls, values: Any, affine: Any, threshold: float) -> Volume:
        """Take cells whose axes run along x, y and z."""
        hidden = np.abs(values) <= threshold
        return cls(np.ma.masked_array(values, hidden), np.array(affine[:3, 3]), np.diag(affine)[:3].copy())

    @property
    def high(self) -> NDArray[np.float64]:
        """Middle of the last cell, mm."""
        return self.low + self.step * (np.array(self.values.shape) - 1)

    def edges(self, across: int, up: int) -> Bounds:
        """Left, right, bottom and top of the whole volume in a view."""
        return self.low[across], self.high[across], self.low[up], self.high[up]

    def tight(self, across: int, up: int) -> Bounds:
        """Left, right, bottom and top of what there is to see; of the whole volume if there is nothing."""
        seen = ~np.ma.getmaskarray(self.values)
        bounds: list[float] = []
        for axis in (across, up):
            where = np.flatnonzero(seen.any(tuple({0, 1, 2} - {axis})))
            first, last = (where[0], where[-1] + 1) if len(where) else (0, seen.shape[axis])
            share = (self.high[axis] - self.low[axis]) / seen.shape[axis]
            bounds += [self.low[axis] + first * share, self.low[axis] + last * share]
        left, right, bottom, top = bounds
        return left, right, bottom, top

    def strongest(self, axis: int) -> np.ma.MaskedArray[Any, Any]:
        """Strongest value along an axis, [across, up]."""
        values = self.values.filled(0)
        place = np.abs(values).argmax(axis, keepdims=True)
        found = np.take_along_axis(values, place, axis).squeeze(axis)
        return np.ma.masked_array(found, np.ma.getmaskarray(self.values).all(axis))

    def cut(self, axis: int, place: float) -> np.ma.MaskedArray[Any, Any] | None:
        """Cells of the slice nearest to a place on an axis, [across, up]; None beside the volume."""
        cell = int(np.round((place - self.low[axis]) / self.step[axis]))
        return self.values.take(cell, axis) if 0 <= cell < self.values.shape[axis] else None


def draw_glass(
    figure: Figure,
    place: Sequence[float],
    values: Any = None,
    mask_img: Any = None,
    *,
    scale: Scale = (0.0, 1.0),
    cmap: Colormap | None = None,
    threshold: float = NOTHING,
    alpha: float = 0.7,
) -> list[Axes]:
    """Draw a glass brain in a part of a figure: sagittal, coronal and axial Axes, in mm.

    Parameters
    ----------
    values : array of shape (V,), optional
        Of the voxels of `mask_img`, seen through the brain; those within `threshold` of zero are not drawn.
    alpha : float
        How opaque the lines are.
    """
    volume = None if values is None else Volume.of(unmask(_filled(values), mask_img), threshold)
    bounds = {axis: mni152.outline(axis).bounds for axis in SEEN_ALONG}
    if volume is not None:
        bounds = {axis: _union(own, volume.tight(*_plane(axis))) for axis, own in bounds.items()}
    views = _views(figure, place, bounds)
    for axis, ax in views.items():
        ax.add_collection(_lines(ax, axis, alpha), autolim=False)
        if volume is not None:
            seen = _within(volume.strongest(SEEN_ALONG.index(axis)), scale, threshold)
            _show(ax, seen, volume.edges(*_plane(axis)), cmap, scale)
        _finish(ax, axis, bounds[axis])
    return list(views.values())


def draw_slices(
    figure: Figure,
    place: Sequence[float],
    values: Any,
    mask_img: Any,
    cuts: Sequence[float],
    *,
    is_mni: bool,
    scale: Scale,
    cmap: Colormap,
    threshold: float = NOTHING,
) -> list[Axes]:
    """Cut values [V] of a mask at x, y and z (mm), on the template if they are in MNI space, else on the mask."""
    volume, ground = Volume.of(unmask(_filled(values), mask_img), threshold), _ground(mask_img, is_mni)
    planes = {axis: _plane(axis) for axis in SEEN_ALONG}
    around = ground.edges if is_mni else ground.tight
    bounds = {axis: _union(around(*plane), volume.tight(*plane)) for axis, plane in planes.items()}
    views = _views(figure, place, bounds)
    lightest = float(ground.values.max())
    dimmed = (lightest * ((2 - DIMMED) / 4 - (1 + DIMMED) / 2), lightest)
    for axis, ax in views.items():
        i = SEEN_ALONG.index(axis)
        for layer, colours, own in ((ground, "gray", dimmed), (volume, cmap, scale)):
            cells = layer.cut(i, cuts[i])
            if cells is not None:
                shown = _within(cells, scale, threshold) if layer is volume else cells
                _show(ax, shown, layer.edges(*planes[axis]), colours, own)
        _finish(ax, axis, bounds[axis])
        ax.text(0, 0, f"{axis}={int(cuts[i])}", transform=ax.transAxes, va="bottom", **_label())
    return list(views.values())


def _filled(values: Any) -> NDArray[np.float32]:
    # A voxel that is exactly zero would be taken to lie outside the mask.
    return np.where(np.abs(values) < NOTHING, 2 * NOTHING, values).astype(np.float32)


def _ground(mask_img: Any, is_mni: bool) -> Volume:
    if is_mni:
        return Volume.at(mni152.shades(2), mni152.affine(2), NOTHING)
    from nibabel import Nifti1Image

    inside = (np.asarray(mask_img.dataobj) > 0).astype(np.float32)
    return Volume.of(Nifti1Image(inside, mask_img.affine), NOTHING, "nearest")


def _within(values: np.ma.MaskedArray[Any, Any], scale: Scale, threshold: float) -> np.ma.MaskedArray[Any, Any]:
    """Leave out what is below a scale that does not go below zero."""
    return np.ma.masked_less(values, scale[0]) if scale[0] >= -threshold else values


def _plane(axis: str) -> tuple[int, int]:
    across, up, _ = VIEWS[SEEN_ALONG.index(axis)]
    return SEEN_ALONG.index(across), SEEN_ALONG.index(up)


def _union(one: Bounds, other: Bounds) -> Bounds:
    return min(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), max(one[3], other[3])


def _views(figure: Figure, place: Sequence[float], bounds: Mapping[str, Bounds]) -> dict[str, Axes]:
    """Three Axes beside each other, all on one scale."""
    left, bottom, width, height = place
    spans = {axis: own[1] - own[0] for axis, own in bounds.items()}
    total, views = sum(spans.values()), {}
    for axis, span in spans.items():
        share = width * span / total
        views[axis] = figure.add_axes((left, bottom, share, height), aspect="equal")
        views[axis].axis("off")
        left += share
    return views


def _lines(ax: Axes, axis: str, alpha: float) -> PathCollection:
    strokes = mni152.outline(axis).strokes
    return PathCollection(
        [Path(own.vertices, own.codes) for own in strokes],
        facecolors="none",
        edgecolors=[own.colour for own in strokes],
        linewidths=[own.width for own in strokes],
        capstyle="butt",
        joinstyle="round",
        alpha=alpha,
        transform=ax.transData,
    )


def _show(ax: Axes, values: Any, edges: Bounds, cmap: Any, scale: Scale) -> None:
    low, high = scale
    ax.imshow(values.T, origin="lower", extent=edges, cmap=cmap, vmin=low, vmax=high, interpolation="nearest")


def _finish(ax: Axes, axis: str, bounds: Bounds) -> None:
    ax.axis(bounds)
    if axis == "x":
        return
    for place, side in ((0.1, "L"), (0.9, "R")):
        ax.text(place, 0.95, side, transform=ax.transAxes, va="top", **_label("left" if side == "L" else "right"))


def _label(side: str = "left") -> dict[str, Any]:
    return {"ha": side, "size": 12, "color": "k", "bbox": {"boxstyle": "square,pad=0", "ec": "w", "fc": "w"}}
