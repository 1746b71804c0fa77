"""Brains to draw on: a glass brain where voxels are in MNI space, their own three projections elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ntfa.estimators.base import TopographicModel
from ntfa.study import Study, mni152
from ntfa.study.greyordinates import Greyordinates

# Axis across, axis up, name; in the order of nilearn's x, y and z views.
VIEWS = (("y", "z", "sagittal"), ("x", "z", "coronal"), ("x", "y", "axial"))
SHARE_IN_TEMPLATE = 0.8
TEMPLATE_MM = 4
PADDING = 6


@dataclass(frozen=True)
class Space:
    """Where voxels are: their positions in mm, and the mask, or the surfaces, they come from if there is one."""

    coordinates: NDArray[np.floating]
    mask_img: Any = None

    @property
    def greyordinates(self) -> Greyordinates | None:
        """Vertices and voxels, of a study with cortical surfaces."""
        return self.mask_img if isinstance(self.mask_img, Greyordinates) else None

    @property
    def is_mni(self) -> bool:
        """Whether the study has images and its voxels lie where the MNI152 template has brain."""
        if self.mask_img is None or self.greyordinates is not None:
            return False
        voxel_size = float(np.linalg.norm(self.mask_img.affine[:3, :3], axis=0).max())
        return in_template(self.coordinates, voxel_size)


def space_of(source: Study | TopographicModel) -> Space:
    """Return where the voxels of a study or of a fitted model are."""
    if isinstance(source, Study):
        return Space(source.coordinates, source.mask_img)
    return Space(source.coordinates_, source.mask_img_)


def in_template(coordinates: Any, voxel_size: float = 0.0) -> bool:
    """Whether nearly all voxels of a size (mm) hold some of the MNI152 template's brain."""
    from scipy.ndimage import map_coordinates

    outside, to_cells = _template()
    cells = np.asarray(coordinates) @ to_cells[:3, :3].T + to_cells[:3, 3]
    distance = map_coordinates(outside, cells.T, order=1, mode="constant", cval=np.inf)
    # Half a voxel's diagonal is 0.87 of its side.
    return bool((distance <= 0.87 * voxel_size).mean() >= SHARE_IN_TEMPLATE)


@lru_cache(maxsize=1)
def _template() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distance (mm) of every cell of a grid from the template's brain, and the affine from mm to cells."""
    from scipy.ndimage import distance_transform_edt

    outside = np.pad(~mni152.brain(TEMPLATE_MM), PADDING, constant_values=True)
    to_cells = np.linalg.inv(mni152.affine(TEMPLATE_MM))
    to_cells[:3, 3] += PADDING
    distances: NDArray[np.float64] = distance_transform_edt(outside) * TEMPLATE_MM
    return distances, to_cells.astype(np.float64)


def shadow_axes(axes: Sequence[Axes], coordinates: Any, views: Any = VIEWS) -> Sequence[Axes]:
    """Prepare Axes in mm, one for each view, each with the voxels' shadow."""
    coordinates = np.asarray(coordinates)
    for ax, (across, up, name) in zip(axes, views, strict=True):
        shadow = np.unique(coordinates[:, ["xyz".index(across), "xyz".index(up)]], axis=0)
        ax.plot(*shadow.T, "s", color="0.9", ms=3, zorder=0, rasterized=len(shadow) > 500)
        ax.set(xlabel=f"{across} (mm)", ylabel=f"{up} (mm)", title=name)
        ax.set_aspect("equal")
    return axes


def new_figure(figure: Figure | None, figsize: tuple[float, float]) -> Figure:
    """Return the figure given, or a new one; without automatic layout, which nilearn's Axes do not follow."""
    return figure if figure is not None else plt.figure(figsize=figsize)


def add_scale(figure: Figure, rectangle: Sequence[float], mappable: Any, label: str) -> Axes:
    """Add a colour scale in a part of a figure."""
    ax = figure.add_axes(tuple(rectangle))  # type: ignore[arg-type]
    bar = figure.colorbar(mappable, cax=ax)
    bar.set_label(label, parse_math=False, fontsize=8)
    ax.tick_params(labelsize=8)
    return ax
