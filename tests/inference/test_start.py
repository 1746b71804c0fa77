import math

import numpy as np
import pytest
import torch
from helpers import blobs, make_frames

from ntfa.inference.frames import Frames, Units
from ntfa.inference.start import STARTS, Start, find_start

VOXEL, NOISE, WEIGHTS_SD = 8.0, 0.3, 0.5
CENTERS = torch.tensor([[-24.0, 16.0, 0.0], [20.0, -8.0, 12.0], [4.0, 28.0, -20.0]], dtype=torch.float64)
LOG_WIDTHS = 2 * torch.log(torch.tensor([12.0, 16.0, 14.0], dtype=torch.float64))
LEVELS = np.array([[3.0, -1.0, 0.5], [0.5, 2.5, -2.0], [-2.0, 1.0, 2.0], [1.0, 0.0, 3.0]])


def grid() -> np.ndarray:
    axis = np.arange(-44, 45, VOXEL)
    points = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    return points[(points**2).sum(1) < 48**2]


def irregular() -> np.ndarray:
    points = np.random.default_rng(1).uniform(-48, 48, size=(2000, 3))
    return points[(points**2).sum(1) < 48**2]


def planted(coordinates: np.ndarray, dtype: torch.dtype = torch.float32, weights_sd: float = WEIGHTS_SD) -> Frames:
    """Two participants, four cells of unequal length, three blobs, weights that vary by frame.

    Rows that are in no trial hold a glare in a corner, hundreds of times as strong.
    """
    units = Units(tuple(coordinates.mean(0)), float(np.sqrt(coordinates.var(0).mean())), intensity=2.0)
    frames = make_frames([[30, 40], [40, 25]], len(coordinates), seed=2, units=units, coordinates=coordinates)
    factors = blobs(torch.from_numpy(coordinates), CENTERS, LOG_WIDTHS)
    rng = np.random.default_rng(3)
    cell = frames.cells.of_frame.numpy()
    weights = LEVELS[cell] + weights_sd * rng.normal(size=(len(cell), 3))
    start = 0
    for block in frames.blocks:
        images = torch.from_numpy(weights[start : start + block.n_frames] @ factors)
        noise = NOISE * block.array[block.rows]
        block.array[:] = torch.from_numpy(1000 * np.exp(-((coordinates - coordinates[0]) ** 2).sum(1) / 200))
        block.array[block.rows] = images + noise
        start += block.n_frames
    blocks = [type(block)(block.array.to(dtype), block.runs) for block in frames.blocks]
    return Frames.arrange(blocks, frames.cells, torch.from_numpy(coordinates), units)


def distances_to_planted(frames: Frames, start: Start) -> np.ndarray:
    """How far the nearest found centre lies from each planted one, mm."""
    found = frames.units.millimetres(start.centers)
    return torch.cdist(CENTERS, found).amin(1).numpy()


@pytest.mark.parametrize("layout", [grid, irregular])
def test_pursuit_finds_planted_blobs_within_about_a_voxel(layout):
    frames = planted(layout())
    start = find_start(frames, 3, "pursuit", seed=0)
    assert start.from_data
    assert distances_to_planted(frames, start).max() < VOXEL
    widths = frames.units.length * torch.exp(start.log_widths / 2)
    nearest = torch.cdist(CENTERS, frames.units.millimetres(start.centers)).argmin(1)
    ratio = widths[nearest] / torch.exp(LOG_WIDTHS / 2)
    assert bool(((ratio > 1 / 1.6) & (ratio < 1.6)).all())


def test_pursuit_starts_far_closer_than_kmeans():
    frames = planted(grid())
    found, guessed = (distances_to_planted(frames, find_start(frames, 3, method, 0)) for method in STARTS)
    assert found.mean() < guessed.mean() / 2


def test_pursuit_takes_the_strongest_blob_first_and_none_twice():
    frames = planted(grid())
    one, three, many = (find_start(frames, n_factors, "pursuit", seed=0) for n_factors in (1, 3, 60))
    assert torch.equal(one.centers, many.centers[:1])
    assert torch.equal(three.centers, many.centers[:3])
    assert one.noise_sd > three.noise_sd > many.noise_sd
    atoms = torch.cat([many.centers, many.log_widths[:, None]], 1)
    assert len(torch.unique(atoms, dim=0)) == 60


def test_pursuit_works_on_a_plane_and_on_a_line():
    axis = np.arange(-40, 41, VOXEL)
    plane = np.stack(np.meshgrid(axis, axis, [0.0], indexing="ij"), -1).reshape(-1, 3)
    for coordinates in (plane, plane[plane[:, 1] == 0]):
        start = find_start(planted(coordinates), 3, "pursuit", seed=0)
        assert bool(torch.isfinite(start.centers).all() & torch.isfinite(start.log_widths).all())


@pytest.mark.parametrize("method", STARTS)
def test_weights_are_ridge_regression_of_the_frames_on_the_factors(method):
    frames = planted(grid(), torch.float64)
    start = find_start(frames, 3, method, seed=0)
    factors = blobs(frames.coordinates, start.centers, start.log_widths)
    data = np.concatenate([block.array[run].numpy() for block in frames.blocks for run in block.runs]) / 2.0
    penalty = 1e-3 * (factors**2).sum(1).mean()
    design = np.vstack([factors.T, math.sqrt(penalty) * np.eye(3)])
    target = np.vstack([data.T, np.zeros((3, len(data)))])
    expected = np.linalg.lstsq(design, target, rcond=None)[0].T
    np.testing.assert_allclose(start.weights.numpy(), expected, rtol=1e-6, atol=1e-8)
    for c, rows in enumerate(row for group in frames.cells.frames for row in group):
        np.testing.assert_allclose(start.cell_weights[c].numpy(), expected[rows].mean(0), rtol=1e-6, atol=1e-8)
    residual = data - expected @ factors
    assert start.noise_sd == pytest.approx(math.sqrt((residual**2).mean()), rel=1e-6)


def test_moments_are_near_the_truth_once_the_factors_are(monkeypatch):
    frames = planted(grid())
    truth = frames.units.standardise(CENTERS), LOG_WIDTHS - 2 * math.log(frames.units.length)
    monkeypatch.setitem(STARTS, "truth", lambda *args: truth)
    start = find_start(frames, 3, "truth", seed=0)
    intensity = frames.units.intensity
    assert start.noise_sd * intensity == pytest.approx(NOISE, rel=0.01)
    np.testing.assert_allclose(start.weights_sd.numpy() * intensity, WEIGHTS_SD, rtol=0.2)
    np.testing.assert_allclose(start.cell_weights.numpy() * intensity, LEVELS, atol=4 * WEIGHTS_SD / math.sqrt(25))


def test_noise_found_by_pursuit_is_near_the_truth():
    frames = planted(grid())
    start = find_start(frames, 3, "pursuit", seed=0)
    assert NOISE < start.noise_sd * frames.units.intensity < 1.5 * NOISE


def test_weights_that_do_not_vary_have_a_small_positive_sd():
    start = find_start(planted(grid(), weights_sd=0.0), 3, "pursuit", seed=0)
    assert bool((start.weights_sd > 0).all() & (start.weights_sd < 0.05).all())


def test_kmeans_centres_are_the_means_of_their_voxels():
    coordinates = grid()
    frames = planted(coordinates)
    start = find_start(frames, 5, "kmeans", seed=0)
    assert not start.from_data
    positions = frames.coordinates
    squared = torch.cdist(positions, start.centers).square()
    label = squared.argmin(1)
    for k in range(5):
        own = label == k
        torch.testing.assert_close(start.centers[k], positions[own].mean(0), rtol=0, atol=0.02)
        assert math.exp(start.log_widths[k]) == pytest.approx(float(squared[own, k].mean()), rel=0.05)


def test_kmeans_with_a_factor_for_every_voxel_gives_no_width_of_zero():
    axis = np.arange(3) * VOXEL
    coordinates = np.stack(np.meshgrid(axis, axis, axis[:2], indexing="ij"), -1).reshape(-1, 3)
    frames = planted(coordinates)
    start = find_start(frames, len(coordinates), "kmeans", seed=0)
    widths = frames.units.length * torch.exp(start.log_widths / 2)
    torch.testing.assert_close(widths, torch.full_like(widths, VOXEL / 2))


@pytest.mark.parametrize("method", STARTS)
def test_a_factor_for_every_voxel_is_no_crash(method):
    coordinates = np.array([[0.0, 0, 0], [8, 0, 0], [0, 8, 0], [8, 8, 0]])
    start = find_start(planted(coordinates), 4, method, seed=0)
    for part in (start.centers, start.log_widths, start.weights, start.weights_sd):
        assert bool(torch.isfinite(part).all())
    assert start.noise_sd > 0


@pytest.mark.parametrize("method", STARTS)
def test_same_seed_same_start(method):
    frames = planted(grid())
    first, second = (find_start(frames, 4, method, seed=7) for _ in range(2))
    for name in ("centers", "log_widths", "weights", "cell_weights", "weights_sd"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert first.centers.dtype == torch.float64


@pytest.mark.parametrize("method", STARTS)
def test_start_does_not_depend_on_the_brightness_of_the_data(method):
    frames = planted(grid(), torch.float64)
    plain = find_start(frames, 3, method, seed=0)
    brighter = find_start(frames.with_intensity(200.0), 3, method, seed=0)
    torch.testing.assert_close(brighter.centers, plain.centers)
    torch.testing.assert_close(brighter.weights * 100, plain.weights)
