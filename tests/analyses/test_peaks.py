"""Peaks of a difference: the largest first, apart from one another, positive and negative."""

import numpy as np

from ntfa.analyses.peaks import find_peaks

GRID = np.stack(np.meshgrid(*[np.arange(12) * 4.0] * 3, indexing="ij"), -1).reshape(-1, 3)


def bump(center, height, width=8.0):
    return height * np.exp(-((GRID - center) ** 2).sum(1) / width**2)


def test_peaks_are_where_they_were_put():
    difference = bump([8, 8, 8], 3.0) + bump([36, 36, 36], 2.0) + bump([8, 36, 8], -1.0)
    table = find_peaks(GRID, difference, 10 * difference, np.abs(difference) > 0.5)
    assert table[["x", "y", "z"]].to_numpy().tolist() == [[8, 8, 8], [36, 36, 36], [8, 36, 8]]
    assert np.allclose(table["z_value"], 10 * table["difference"])
    assert table["n_voxels"].sum() == (np.abs(difference) > 0.5).sum()


def test_peaks_lie_apart():
    rng = np.random.default_rng(0)
    difference = rng.normal(size=len(GRID))
    places = find_peaks(GRID, difference, difference, difference > 0, apart=10, most=50)[["x", "y", "z"]].to_numpy()
    distances = np.linalg.norm(places[:, None] - places, axis=-1)
    assert distances[np.triu_indices(len(places), 1)].min() > 10


def test_no_voxel_no_peak():
    assert len(find_peaks(GRID, GRID[:, 0], GRID[:, 0], np.zeros(len(GRID), dtype=bool))) == 0
