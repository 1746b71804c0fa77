"""Smooth random images: their correlations are those asked for, in space and in time."""

from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from ntfa.errors import StudyError
from ntfa.simulation.brain import mni_brain
from ntfa.simulation.fields import SmoothField, check_smoothness, correlation

GRID = mni_brain(n_voxels=400)[1]
SCATTERED = np.random.default_rng(1).uniform(-40, 40, size=(300, 3))


def covariance(field: SmoothField) -> np.ndarray:
    """What the covariance of the field's images is, by its kernels."""
    total = np.zeros((field.n_voxels, field.n_voxels))
    for kernel, amplitude in zip(field.kernels, field.amplitudes, strict=True):
        total += amplitude**2 * (np.eye(field.n_voxels) if kernel is None else (kernel @ kernel.T).toarray())
    return total


@pytest.mark.parametrize("coordinates", [GRID, SCATTERED], ids=["grid", "scattered"])
@pytest.mark.parametrize("parts", [{9.0: 1.0}, {30.0: 1.0}, {250.0: 1.0}, {0.0: 0.3, 12.0: 0.5, 100.0: 0.2}])
def test_voxels_correlate_by_their_distance(coordinates: np.ndarray, parts: dict[float, float]) -> None:
    found = covariance(SmoothField.of(parts, coordinates))
    # exp(-d^2 / (4 s^2)), with s = FWHM / 2.3548, written out once more.
    distance = cdist(coordinates, coordinates)
    expected = sum(
        share * (np.exp(-1.3863 * (distance / fwhm) ** 2) if fwhm else np.eye(len(coordinates)))
        for fwhm, share in parts.items()
    )
    np.testing.assert_allclose(found, expected, atol=0.004)
    np.testing.assert_allclose(correlation(parts, distance), expected, atol=1e-4)
    np.testing.assert_allclose(np.diag(found), 1, atol=1e-5)


def test_drawn_images_have_that_covariance() -> None:
    coordinates, n_images = GRID[:60], 20_000
    field = SmoothField.of({0.0: 0.2, 40.0: 0.8}, coordinates)
    images = field.draw(n_images, np.random.default_rng(0)).astype(np.float64)
    assert field.draw(2, np.random.default_rng(0)).dtype == np.float32
    # The sampling sd of a covariance is at most sqrt(2 / n); the largest of 1,800 is within 4.5 of them.
    np.testing.assert_allclose(images.T @ images / n_images, covariance(field), atol=4.5 * np.sqrt(2 / n_images))
    assert np.abs(images.mean(axis=0)).max() < 4.5 / np.sqrt(n_images)


def test_what_is_narrower_than_the_grid_is_white() -> None:
    assert SmoothField.of({2.0: 1.0}, GRID).kernels == [None]
    assert SmoothField.of({50.0: 1.0}, GRID[:1]).draw(3, np.random.default_rng(0)).shape == (3, 1)


def test_frames_follow_an_autoregression_within_stretches() -> None:
    ar1, stretches = 0.6, [5, 1, 6]
    field = SmoothField.of({0.0: 1.0}, np.arange(60_000.0).reshape(-1, 3))
    frames = field.draw_frames(stretches, ar1, np.random.default_rng(0)).astype(np.float64)
    part = np.repeat(range(3), stretches)
    lag = np.abs(np.subtract.outer(range(12), range(12)))
    expected = np.where(np.equal.outer(part, part), ar1**lag, 0)
    np.testing.assert_allclose(frames @ frames.T / frames.shape[1], expected, atol=4.5 * np.sqrt(2 / 20_000))


def test_the_size_of_chunks_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    field = SmoothField.of({0.0: 0.5, 40.0: 0.5}, GRID)
    whole = field.draw(9, np.random.default_rng(3))
    monkeypatch.setattr("ntfa.study.checks.CHUNK_VALUES", 2 * 10**4)
    np.testing.assert_allclose(field.draw(9, np.random.default_rng(3)), whole, rtol=1e-5, atol=1e-6)


def test_a_number_is_a_field_of_one_part() -> None:
    assert check_smoothness("noise_fwhm", 8) == {8.0: 1.0}
    assert check_smoothness("noise_fwhm", {0: 0.25, 8: 0.75}) == {0.0: 0.25, 8.0: 0.75}


@pytest.mark.parametrize("fwhm", [-1, 2000, float("nan"), "wide", {}, {8: 0.5}, {8: 1.5, 20: -0.5}, {8: "x"}, 0.01])
def test_smoothness_that_cannot_be_is_named(fwhm: Any) -> None:
    with pytest.raises(StudyError, match="noise_fwhm"):
        check_smoothness("noise_fwhm", fwhm)


def test_blobs_cannot_be_white() -> None:
    with pytest.raises(StudyError, match="response_fwhm"):
        check_smoothness("response_fwhm", 0, white=False)
