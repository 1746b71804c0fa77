"""Random images that are smooth in space, and frames of them that are smooth in time too.

A smooth image is white noise on a lattice, spread over the voxels by a Gaussian kernel of standard deviation ``s``
(FWHM ``2.355 s``) and scaled to variance 1 in each voxel. Two voxels ``d`` apart then correlate by
``exp(-d^2 / (4 s^2))``. Voxels may lie anywhere, and no edge is smoother than the middle.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.sparse import csr_matrix
from scipy.spatial import KDTree

from ntfa.errors import StudyError
from ntfa.simulation.brain import FloatArray, IntArray
from ntfa.study.checks import FrameArray, row_chunks

FWHM_PER_SD = math.sqrt(8 * math.log(2))
# In units of the kernel's sd. Correlations are then off by 0.002 at most.
LATTICE_SPACING, KERNEL_RADIUS = 1.0, 3.5
# Neighbours that correlate less than this are taken as independent.
LEAST_CORRELATION = 1e-3
LEAST_FWHM, LARGEST_FWHM = 0.5, 1000.0

Smoothness = Mapping[float, float]


def check_smoothness(name: str, fwhm: float | Smoothness, white: bool = True) -> dict[float, float]:
    """FWHM in mm and its share of the variance for each part of a field; a number is a field of one part.

    A width of 0, which is white noise, is refused unless `white`.
    """
    given = fwhm if isinstance(fwhm, Mapping) else {fwhm: 1.0}
    try:
        parts = {float(width): float(share) for width, share in given.items()}
    except (TypeError, ValueError):
        parts = {math.nan: 1.0}
    if not all((width == 0 and white) or LEAST_FWHM <= width <= LARGEST_FWHM for width in parts):
        bounds = f"{'0, or ' if white else ''}from {LEAST_FWHM:g} to {LARGEST_FWHM:g} mm"
        raise StudyError(f"{name} must be {bounds}, or several such widths and their shares, not {fwhm!r}")
    if not all(share > 0 for share in parts.values()) or not math.isclose(sum(parts.values()), 1, abs_tol=1e-6):
        raise StudyError(f"The shares in {name} must be above 0 and sum to 1, not {list(parts.values())}")
    return parts


def correlation(parts: Smoothness, distance: FloatArray) -> FloatArray:
    """Correlation of two voxels at these distances (mm) from each other."""
    found = np.zeros_like(distance, dtype=np.float64)
    for fwhm, share in parts.items():
        sd = fwhm / FWHM_PER_SD
        found += share * (np.exp(-(distance**2) / (4 * sd**2)) if sd > 0 else distance == 0)
    return found


@dataclass(frozen=True, eq=False)
class SmoothField:
    """Draws images of mean 0 and variance 1 that are as smooth as asked for.

    Attributes
    ----------
    n_voxels : int
    kernels : list of (csr_matrix of shape (V, L) or None)
        How lattice points act on voxels, for each part of the field; None for white noise.
    amplitudes : list of float
        Standard deviation of each part.
    """

    n_voxels: int
    kernels: list[csr_matrix | None]
    amplitudes: list[float]

    @classmethod
    def of(cls, parts: Smoothness, coordinates: FloatArray) -> "SmoothField":
        """Prepare fields over these voxels (mm)."""
        kernels = [_kernel(coordinates, fwhm / FWHM_PER_SD) for fwhm in parts]
        return cls(len(coordinates), kernels, [math.sqrt(share) for share in parts.values()])

    def draw(self, count: int, rng: np.random.Generator) -> FrameArray:
        """Draw `count` independent images [count x V]."""
        images = np.zeros((count, self.n_voxels), dtype=np.float32)
        # Each part has random numbers of its own, so that the size of chunks makes no difference.
        streams = rng.spawn(len(self.kernels))
        for kernel, amplitude, own in zip(self.kernels, self.amplitudes, streams, strict=True):
            n_points = self.n_voxels if kernel is None else kernel.shape[1]
            for rows in row_chunks(count, max(n_points, self.n_voxels)):
                white = own.standard_normal((rows.stop - rows.start, n_points), dtype=np.float32)
                images[rows] += np.float32(amplitude) * (white if kernel is None else (kernel @ white.T).T)
        return images

    def draw_frames(self, stretches: Sequence[int], ar1: float, rng: np.random.Generator) -> FrameArray:
        """Draw stretches of so many frames: each correlates by `ar1` with the frame before it, stretches not at all."""
        frames = self.draw(sum(stretches), rng)
        firsts = set(np.cumsum([0, *stretches]).tolist())
        fresh = np.float32(math.sqrt(1 - ar1**2))
        for t in range(len(frames)):
            if t not in firsts:
                frames[t] *= fresh
                frames[t] += np.float32(ar1) * frames[t - 1]
        return frames


def _kernel(coordinates: FloatArray, sd: float) -> csr_matrix | None:
    """Weights [V x L] of lattice points within reach of each voxel, of unit length for every voxel."""
    if len(coordinates) == 1 or math.exp(-((_closest(coordinates) / max(2 * sd, 1e-9)) ** 2)) < LEAST_CORRELATION:
        return None
    scaled = (coordinates - coordinates.min(axis=0)) / (LATTICE_SPACING * sd)
    reach = math.ceil(KERNEL_RADIUS / LATTICE_SPACING)
    steps = np.array(list(product(range(-reach, reach + 1), repeat=3)))
    # A voxel is at most half a diagonal away from the lattice point that steps are counted from.
    steps = steps[np.linalg.norm(steps, axis=1) <= KERNEL_RADIUS / LATTICE_SPACING + math.sqrt(3) / 2]
    extent = np.round(scaled.max(axis=0)).astype(np.int64) + 2 * reach + 1
    found = [_within_reach(scaled[rows], steps, reach, extent) for rows in row_chunks(len(scaled), 4 * len(steps))]
    points, weights, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    # Only the points that some voxel needs are kept.
    used, columns = np.unique(points.astype(np.int64), return_inverse=True)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return csr_matrix((weights, columns, starts), shape=(len(scaled), len(used)))


def _within_reach(
    scaled: FloatArray, steps: IntArray, reach: int, extent: IntArray
) -> tuple[IntArray, FrameArray, IntArray]:
    """Lattice points near some voxels, as running numbers, their weights, and how many each voxel has."""
    nearest = np.round(scaled).astype(np.int64)
    apart = scaled[:, None] - (nearest[:, None] + steps)
    squared = LATTICE_SPACING**2 * (apart**2).sum(axis=2)
    near = squared <= KERNEL_RADIUS**2
    numbers = np.ravel_multi_index(tuple((nearest[:, None] + steps + reach).transpose(2, 0, 1)), tuple(extent))
    kernel = np.where(near, np.exp(-squared / 2), 0)
    kernel /= np.sqrt((kernel**2).sum(axis=1, keepdims=True))
    return numbers[near], kernel[near].astype(np.float32), near.sum(axis=1)


def _closest(coordinates: FloatArray) -> float:
    """Distance of the two voxels that are closest to each other."""
    distances, _ = KDTree(coordinates).query(coordinates, k=2)
    return float(distances[:, 1].min())
