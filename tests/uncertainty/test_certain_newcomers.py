"""What newcomers' ellipses and rarity rest on, against simulation and against what other libraries give."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import procrustes
from scipy.stats import kstest, special_ortho_group

from ntfa.uncertainty.newcomers import (
    Pairs,
    aligned,
    calibrated,
    left_out_shift,
    own_factors,
    place_rarity,
    rarity,
    stretch_between,
)

RNG = np.random.default_rng(0)


def spd(n: int, n_dim: int) -> np.ndarray:
    roots = RNG.normal(size=(n, n_dim, n_dim))
    return roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(n_dim)


def test_a_stretch_turns_mean_into_mean() -> None:
    before, after = spd(5, 3), spd(7, 3)
    stretch = stretch_between(before, after)
    np.testing.assert_allclose(stretch @ before.mean(0) @ stretch, after.mean(0), rtol=1e-8)
    np.testing.assert_allclose(stretch, stretch.T, rtol=1e-8)


def halves(scale: float, n: int = 4000, n_dim: int = 2) -> Pairs:
    covariance = spd(n, n_dim)
    apart = np.einsum("nij,nj->ni", np.linalg.cholesky(covariance), RNG.normal(size=(n, n_dim)))
    return Pairs(np.arange(n), np.sqrt(scale) * apart, covariance)


def test_halves_as_far_apart_as_they_should_be_change_little() -> None:
    assert own_factors(halves(1.0), 4000).mean() == pytest.approx(1.08, abs=0.05)


def test_covariances_that_are_too_small_are_raised_by_as_much() -> None:
    factors = own_factors(halves(5.0), 4001)
    # The last one could not be halved, and gets what all others show together.
    assert factors[-1] == pytest.approx(5, rel=0.05)
    assert factors[:-1].mean() == pytest.approx(5, rel=0.05)


def test_one_newcomer_whose_halves_are_far_apart_is_less_certain_and_nobody_more() -> None:
    apart = np.array([[20.0, 0.0], [0.1, 0.0], [0.0, 0.1]])
    factors = own_factors(Pairs(np.arange(3), apart, np.tile(np.eye(2), (3, 1, 1))), 3)
    assert factors[0] > 2 * factors[1] > 2
    assert (own_factors(Pairs(np.arange(3), 0 * apart, np.tile(np.eye(2), (3, 1, 1))), 3) == 1).all()


def test_without_halves_the_reference_decides() -> None:
    own, stretch = spd(2, 2), 3 * np.eye(2)
    none = Pairs(np.empty(0, dtype=np.int64), np.empty((0, 2)), np.empty((0, 2, 2)))
    np.testing.assert_allclose(calibrated(own, stretch, none), 9 * own)


def test_spaces_are_aligned_by_shift_turn_and_scale() -> None:
    points, turn = RNG.normal(size=(9, 3)), special_ortho_group.rvs(3, random_state=0)
    moved = 2.5 * points @ turn + [1, 2, 3]
    np.testing.assert_allclose(aligned(points, moved, points), moved, rtol=1e-9)
    # Where spaces differ, as scipy does it, up to the scale that it gives its result.
    noisy = moved + 0.3 * RNG.normal(size=moved.shape)
    goal, other, _ = procrustes(noisy, points)
    size = np.linalg.norm(noisy - noisy.mean(0))
    np.testing.assert_allclose(aligned(points, noisy, points), other * size + noisy.mean(0), rtol=1e-8)
    np.testing.assert_allclose(goal * size, noisy - noisy.mean(0), rtol=1e-8)


def principal_scores(points: np.ndarray, of: np.ndarray, n_dim: int) -> np.ndarray:
    centre = points.mean(0)
    _, values, axes = np.linalg.svd(points - centre, full_matrices=False)
    return (of - centre) @ axes[:n_dim].T / (values[0] / np.sqrt(len(points)))


def test_the_shift_of_who_is_left_out_is_that_of_principal_components_without_them() -> None:
    points = RNG.normal(size=(8, 5)) * [3, 2, 0.5, 0.5, 0.5]
    shown = principal_scores(points, points, 2)
    shifts = []
    for who in range(8):
        others = np.delete(np.arange(8), who)
        scores = principal_scores(points[others], points, 2)
        shifts.append(aligned(scores[others], shown[others], scores[who]) - shown[who])
    expected = np.mean([np.outer(shift, shift) for shift in shifts], 0)
    np.testing.assert_allclose(left_out_shift(points, shown), expected, rtol=1e-6)


def test_people_who_differ_in_two_ways_only_hardly_move() -> None:
    points = RNG.normal(size=(40, 2)) @ RNG.normal(size=(2, 6))
    assert np.trace(left_out_shift(points, principal_scores(points, points, 2))) < 0.01


def test_densities_of_the_same_kind_are_rare_as_often_as_they_should_be() -> None:
    found = [rarity(RNG.normal(size=1), RNG.normal(size=12))[0] for _ in range(3000)]
    assert kstest(found, "uniform").pvalue > 0.001
    assert rarity(np.array([30.0, -30.0]), RNG.normal(size=12)).max() < 1e-6
    assert np.isnan(rarity(np.array([0.0]), np.array([0.0, 1.0]))).all()


def test_places_of_the_same_kind_are_rare_as_often_as_they_should_be() -> None:
    known = np.zeros((1, 3, 3))
    found = [place_rarity(RNG.normal(size=(1, 3)), known, RNG.normal(size=(14, 3)))[0] for _ in range(3000)]
    assert kstest(found, "uniform").pvalue > 0.001
    far, near = (place_rarity(np.full((1, 3), 6.0), own, RNG.normal(size=(14, 3)))[0] for own in (known, known + 1e4))
    assert far < 0.01 < near
