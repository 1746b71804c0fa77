"""The MNI152 brain as a grid of voxels of any size, and places spread over it."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study import mni152
from ntfa.study.checks import FloatArray

IntArray = NDArray[np.int64]
Box = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]

TEMPLATE_VOXEL_UM = 2000
LARGEST_VOXEL_UM = 200_000
BEST_OF = 20


def mni_brain(voxel_size: float = 8.0, n_voxels: int | None = None, box: Box | None = None) -> tuple[Any, FloatArray]:
    """Voxels of a regular grid that contain any brain of the MNI152 template.

    Parameters
    ----------
    voxel_size : float, default=8.0
        Spacing of the grid, in mm (2 or more); not used when `n_voxels` is given.
    n_voxels : int, optional
        Ask for this many voxels instead: the spacing is the widest that gives enough of them, and the
        surplus is cut from the bottom, like a field of view that ends above the lowest slices.
    box : Box, optional
        Lowest and highest x, y and z (mm) of the part of the brain to take; all of it if not given.

    Returns
    -------
    mask_img : Nifti1Image
    coordinates : array of shape (V, 3)
        Positions in mm, in the mask's C order.
    """
    if n_voxels is not None:
        voxel_size = _spacing(n_voxels, box)
    elif not TEMPLATE_VOXEL_UM <= voxel_size * 1000 <= LARGEST_VOXEL_UM:
        raise StudyError(f"voxel_size must be between 2 and 200 mm, not {voxel_size}")
    cells = _cells(voxel_size, box)
    if n_voxels is not None:
        kept = np.argsort(cells[:, 2], kind="stable")[len(cells) - n_voxels :]
        cells = cells[np.sort(kept)]
    return _mask(cells, voxel_size), cells.astype(np.float64) * voxel_size


@lru_cache(maxsize=4)
def _template(box: Box | None = None) -> FloatArray:
    """Positions (mm) of the brain's voxels in the template, at 2 mm."""
    if box is not None:
        positions, (low, high) = _template(), np.array(box).T
        return positions[((positions >= low) & (positions <= high)).all(axis=1)]
    to_mm = mni152.affine(2)
    return np.argwhere(mni152.brain(2)) @ to_mm[:3, :3].T + to_mm[:3, 3]


def _cells(voxel_size: float, box: Box | None = None) -> IntArray:
    """Grid indices (C order) of the cells with brain in them; cell 0, 0, 0 is centred on the origin."""
    cells = np.floor(_template(box) / voxel_size + 0.5).astype(np.int64)
    first = cells.min(axis=0)
    grid = np.zeros(cells.max(axis=0) - first + 1, dtype=bool)
    grid[tuple((cells - first).T)] = True
    return np.argwhere(grid) + first


@lru_cache(maxsize=64)
def _spacing(n_voxels: int, box: Box | None) -> float:
    """Widest spacing (mm, to the micrometre) at which bisection finds at least `n_voxels` cells."""
    if n_voxels > len(_template(box)):
        raise StudyError(f"The brain has {len(_template(box)):,} voxels at 2 mm, {n_voxels:,} are not to be had")
    enough, too_few = TEMPLATE_VOXEL_UM, LARGEST_VOXEL_UM
    while too_few - enough > 1:
        middle = (enough + too_few) // 2
        if len(_cells(middle / 1000, box)) >= n_voxels:
            enough = middle
        else:
            too_few = middle
    return enough / 1000


def _mask(cells: IntArray, voxel_size: float) -> Any:
    from nibabel import Nifti1Image

    first = cells.min(axis=0)
    data = np.zeros(cells.max(axis=0) - first + 1, dtype=np.uint8)
    data[tuple((cells - first).T)] = 1
    affine = np.diag([voxel_size, voxel_size, voxel_size, 1.0])
    affine[:3, 3] = first * voxel_size
    return Nifti1Image(data, affine)


def squared_distances(coordinates: FloatArray, place: FloatArray) -> FloatArray:
    """Squared distances (mm^2) of all voxels from one place."""
    return ((coordinates - place) ** 2).sum(axis=1)


def farthest_voxels(coordinates: FloatArray, seeds: FloatArray, count: int) -> FloatArray:
    """Voxels nearest to the seeds, then each time the voxel farthest from those taken so far."""
    chosen: list[int] = []
    nearest = np.full(len(coordinates), np.inf)
    while len(chosen) < count:
        seed = len(chosen) < len(seeds)
        voxel = int(squared_distances(coordinates, seeds[len(chosen)]).argmin() if seed else nearest.argmax())
        # Seeds that fall on one voxel, in a brain unlike the one they are meant for, count once.
        if seed and voxel in chosen:
            seeds = np.delete(seeds, len(chosen), axis=0)
            continue
        chosen.append(voxel)
        nearest = np.minimum(nearest, squared_distances(coordinates, coordinates[voxel]))
    return coordinates[chosen]


def scattered_voxels(coordinates: FloatArray, count: int, rng: np.random.Generator) -> FloatArray:
    """Voxels scattered through the whole volume, apart from each other: each the best of a few draws."""
    chosen = [int(rng.integers(len(coordinates)))]
    while len(chosen) < count:
        left = np.delete(np.arange(len(coordinates)), chosen)
        candidates = rng.choice(left, size=min(BEST_OF, len(left)), replace=False)
        apart = coordinates[candidates][:, None] - coordinates[chosen][None]
        chosen.append(int(candidates[(apart**2).sum(axis=2).min(axis=1).argmax()]))
    return coordinates[chosen]
