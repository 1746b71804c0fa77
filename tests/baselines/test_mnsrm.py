"""The matrix-normal shared response model against dense densities, and planted parameters."""

import logging
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import naming
from scipy.linalg import subspace_angles
from scipy.stats import matrix_normal

from ntfa import Study, simulate
from ntfa.analyses.separation import separation
from ntfa.baselines import MNSRM
from ntfa.baselines.aligned import align
from ntfa.baselines.mnsrm_solver import climb, start_matrix_normal
from ntfa.baselines.temporal import Temporal, Whitening, fit_temporal
from ntfa.errors import ModelError, StudyError

STARTS = np.isin(np.arange(9), [0, 4, 5])


def correlation(starts: np.ndarray, phi: float) -> np.ndarray:
    """R, entry by entry."""
    trial, t = np.cumsum(starts), np.arange(len(starts))
    return np.where(trial[:, None] == trial, phi ** np.abs(t[:, None] - t), 0.0)


def omega(temporal: Temporal) -> np.ndarray:
    """S S^T + noise R, dense."""
    whitening = temporal.whitening
    return temporal.response @ temporal.response.T + temporal.noise * correlation(
        whitening.starts, whitening.correlation
    )


def some_temporal(phi: float = 0.4, seed: int = 0) -> Temporal:
    axes = np.linalg.qr(np.random.default_rng(seed).normal(size=(9, 2)))[0]
    return Temporal(Whitening(STARTS, phi), axes, np.array([3.0, 2.0]), 0.5)


def planted(
    n_participants: int = 5, n_voxels: int = 150, phi: float = 0.4, seed: int = 0
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Frames [48, V] drawn from the model (6 stimuli of 8 frames), S [48, 3], scales and variances."""
    rng = np.random.default_rng(seed)
    response = rng.normal(size=(48, 3)) * [2.0, 1.5, 1.0]
    response -= response.mean(0)
    scales, variances = np.exp(rng.normal(0, 0.4, n_participants)), np.exp(rng.normal(0, 0.5, n_voxels))
    scales, variances = scales / np.exp(np.log(scales).mean()), variances / np.exp(np.log(variances).mean())
    time = np.linalg.cholesky(correlation(np.arange(48) % 8 == 0, phi))
    frames = []
    for scale in scales:
        maps, noise = rng.normal(size=(3, n_voxels)), time @ rng.normal(size=(48, n_voxels))
        frames.append((response @ maps + noise) * np.sqrt(scale * variances) + rng.normal(size=n_voxels))
    return frames, response, scales, variances


# --- time


@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.7])
def test_whitening_is_that_of_the_dense_correlation(phi: float) -> None:
    whitening, dense = Whitening(STARTS, phi), correlation(STARTS, phi)
    inverse = whitening.apply(np.eye(9))
    np.testing.assert_allclose(inverse @ dense @ inverse.T, np.eye(9), atol=1e-12)
    np.testing.assert_allclose(whitening.apply_transposed(np.eye(9)), inverse.T, atol=1e-12)
    np.testing.assert_allclose(whitening.undo(inverse), np.eye(9), atol=1e-12)
    assert whitening.log_det == pytest.approx(np.linalg.slogdet(dense)[1])


def test_the_temporal_covariance_is_that_of_its_dense_form() -> None:
    temporal = some_temporal()
    dense, columns = omega(temporal), np.random.default_rng(1).normal(size=(9, 4))
    assert temporal.log_det == pytest.approx(np.linalg.slogdet(dense)[1])
    np.testing.assert_allclose(temporal.solve(columns), np.linalg.solve(dense, columns), atol=1e-12)
    np.testing.assert_allclose(temporal.distances(columns), np.diag(columns.T @ np.linalg.solve(dense, columns)))
    np.testing.assert_allclose(omega(temporal.scaled(3.0)), 3 * dense)
    np.testing.assert_allclose(omega(Temporal.white(STARTS, 2)), np.eye(9))


def test_the_best_temporal_covariance_has_no_better_neighbour() -> None:
    moments = omega(some_temporal()) + 0.02 * np.diag(np.arange(9))
    found = fit_temporal(moments, Temporal.white(STARTS, 2))

    def deviance(dense: np.ndarray) -> float:
        return float(np.linalg.slogdet(dense)[1] + np.trace(np.linalg.solve(dense, moments)))

    best, rng = deviance(omega(found)), np.random.default_rng(2)
    for _ in range(50):
        response = found.response + 0.05 * rng.normal(size=(9, 2))
        noise, phi = found.noise * np.exp(0.05 * rng.normal()), found.whitening.correlation + 0.05 * rng.normal()
        assert deviance(response @ response.T + noise * correlation(STARTS, phi)) > best


def test_a_temporal_covariance_is_found_from_its_own_moments() -> None:
    truth = some_temporal(phi=0.6)
    found = fit_temporal(omega(truth), Temporal.white(STARTS, 2))
    assert found.whitening.correlation == pytest.approx(0.6, abs=0.01)
    assert found.noise == pytest.approx(0.5, rel=0.02)
    np.testing.assert_allclose(omega(found), omega(truth), atol=0.05)


def test_a_correlation_that_is_best_already_stays() -> None:
    moments = omega(some_temporal(phi=0.3))
    once = fit_temporal(moments, Temporal.white(STARTS, 2))
    exact = replace(once, whitening=Whitening(STARTS, 0.3))
    assert fit_temporal(moments, exact).whitening.correlation == 0.3


def test_trials_of_one_frame_leave_no_correlation_to_find() -> None:
    starts = np.ones(9, dtype=bool)
    found = fit_temporal(omega(some_temporal()), Temporal.white(starts, 2))
    assert found.whitening.correlation == 0


# --- the likelihood


def test_the_likelihood_is_scipys_matrix_normal(from_matrices: Callable[..., Study]) -> None:
    rng = np.random.default_rng(3)
    frames = [rng.normal(size=(12, 5)).astype(np.float32).astype(float) for _ in range(3)]
    model = MNSRM(2, n_iter=3, tol=0).fit(from_matrices(frames, 3))
    response = model.shared_response_.to_numpy()
    starts = np.arange(12) % 4 == 0
    time = response @ response.T + model.noise_**2 * correlation(starts, model.autocorrelation_)
    expected = sum(
        matrix_normal(
            np.tile(model.means_[who], (12, 1)), time, model.scales_[who] * np.diag(model.voxel_variances_)
        ).logpdf(one)
        for who, one in zip(model.scales_.index, frames, strict=True)
    )
    assert model.history_["log_likelihood"].iloc[-1] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("n_features", [1, 3, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_iteration_climbs(from_matrices: Callable[..., Study], seed: int, n_features: int) -> None:
    study = from_matrices(planted(n_participants=3, n_voxels=20, phi=0.7, seed=seed)[0], 6)
    values = MNSRM(n_features, n_iter=60, tol=0).fit(study).history_["log_likelihood"]
    assert len(values) > 5
    assert (values.diff().dropna() > -1e-11 * values.abs().max()).all()
    assert values.iloc[-1] > values.iloc[0] + 1


def test_the_end_is_a_summit(from_matrices: Callable[..., Study]) -> None:
    frames = planted(n_participants=3, n_voxels=20)[0]
    aligned = align(from_matrices(frames, 6))
    at = start_matrix_normal(aligned, 3)
    for _ in range(200):
        at, best = climb(aligned, at)
    data = [matrix for _, _, matrix in aligned.centred()]

    def value(offsets: list, time: np.ndarray, scales: np.ndarray, variances: np.ndarray) -> float:
        parts = zip(data, offsets, scales, strict=True)
        return sum(matrix_normal(np.tile(b, (48, 1)), time, s * np.diag(variances)).logpdf(y) for y, b, s in parts)

    offsets, time, rng = [at.offset @ y for y in data], omega(at.temporal), np.random.default_rng(4)
    assert value(offsets, time, at.scales, at.variances) == pytest.approx(best, rel=1e-10)
    noise = at.temporal.noise * correlation(aligned.starts, at.temporal.whitening.correlation)
    moves = [rng.normal(size=size) for size in ((3, 20), 3, 20, (48, 3))]
    # Small steps there and back again: a slope would show in one of them.
    for step in (1e-3, -1e-3, 0.1, -0.1):
        moved, scale, variance, response = (step * move for move in moves)
        assert value([b + m for b, m in zip(offsets, moved, strict=True)], time, at.scales, at.variances) < best
        assert value(offsets, time, at.scales * np.exp(scale), at.variances) < best
        assert value(offsets, time, at.scales, at.variances * np.exp(variance)) < best
        response = at.temporal.response + response
        assert value(offsets, response @ response.T + noise, at.scales, at.variances) < best


# --- the estimator


def test_planted_parameters_are_found(from_matrices: Callable[..., Study]) -> None:
    frames, response, scales, variances = planted()
    model = MNSRM(3).fit(from_matrices(frames, 6))
    found = model.shared_response_.to_numpy()
    assert np.degrees(subspace_angles(found, response)).max() < 10
    np.testing.assert_allclose(found @ found.T, response @ response.T, atol=0.15 * (response**2).sum(1).max())
    assert model.autocorrelation_ == pytest.approx(0.4, abs=0.04)
    assert model.noise_ == pytest.approx(1, rel=0.05)
    np.testing.assert_allclose(model.scales_, scales, rtol=0.1)
    assert np.corrcoef(np.log(model.voxel_variances_), np.log(variances))[0, 1] > 0.95
    assert np.log(model.voxel_variances_).mean() == pytest.approx(0, abs=1e-12)
    assert np.log(model.scales_).mean() == pytest.approx(0, abs=1e-12)


def test_bases_are_the_posterior_mean(from_matrices: Callable[..., Study]) -> None:
    frames = [one.astype(np.float32).astype(float) for one in planted(n_voxels=10)[0]]
    model = MNSRM(2, n_iter=4, tol=0).fit(from_matrices(frames, 6))
    response = model.shared_response_.to_numpy()
    noise = model.noise_**2 * correlation(np.arange(48) % 8 == 0, model.autocorrelation_)
    precision = np.eye(2) + response.T @ np.linalg.solve(noise, response)
    for who, one in zip(model.bases_, frames, strict=True):
        expected = np.linalg.solve(precision, response.T @ np.linalg.solve(noise, one - model.means_[who]))
        np.testing.assert_allclose(model.bases_[who], expected.T, atol=1e-8)


def test_frames_project_near_the_shared_response(from_matrices: Callable[..., Study]) -> None:
    study = from_matrices(planted(n_voxels=400)[0], 6)
    model = MNSRM(3).fit(study)
    scores = model.transform(study).groupby(study.trials["stimulus"]).mean()
    expected = model.shared_response_.groupby(level="stimulus").mean()
    assert np.corrcoef(scores.to_numpy().ravel(), expected.to_numpy().ravel())[0, 1] > 0.98


def test_projection_weighs_voxels_by_their_precision(from_matrices: Callable[..., Study]) -> None:
    study = from_matrices(planted(n_voxels=30)[0], 6)
    model = MNSRM(3).fit(study)
    who = study.participants[0]
    root = np.sqrt(model.voxel_variances_)[:, None]
    trial = study.trials.query("participant == @who").iloc[0]
    frames = study.frames[who][trial["start"] : trial["stop"]] - model.means_[who]
    expected = np.linalg.lstsq(model.bases_[who] / root, (frames / root.T).T, rcond=None)[0].T
    got = model.transform(study, by="frame").loc[trial.name]
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_groups_and_tasks_of_the_synthetic_study_come_apart() -> None:
    sim = simulate("synthetic", random_state=0)
    model = MNSRM(3).fit(sim.study)
    assert separation(model.stimuli_, sim.truth.stimulus_categories).agreement == 1
    assert separation(model.participants_, sim.truth.participant_groups).agreement == 1


def test_memory_is_linear_in_voxels(make_study: Callable[..., Study]) -> None:
    rng = np.random.default_rng(0)
    n_voxels = 20_000
    design = {who: [("x", 4), ("y", 4)] for who in "ab"}
    study = make_study(design, lambda who, stimulus, repetition, n: rng.normal(size=(n, n_voxels)))
    tracemalloc.start()
    MNSRM(2, n_iter=2, tol=0).fit(study)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 8 * n_voxels


def test_a_fit_cut_short_says_so(from_matrices: Callable[..., Study], caplog: pytest.LogCaptureFixture) -> None:
    study = from_matrices(planted(n_voxels=20)[0], 6)
    with caplog.at_level(logging.WARNING, logger="ntfa"):
        settled = MNSRM(3).fit(study)
        assert settled.converged_
        assert not caplog.records
        short = MNSRM(3, n_iter=2, tol=0).fit(study)
    assert not short.converged_
    assert len(short.history_) == 2
    assert "n_iter=2" in caplog.text


def test_nothing_is_drawn(study: Study) -> None:
    one, other = MNSRM(3, random_state=0).fit(study), MNSRM(3).fit(study)
    pd.testing.assert_frame_equal(one.participants_, other.participants_, check_exact=True)


def test_parameters_are_counted_as_documented(study: Study) -> None:
    model = MNSRM(3).fit(study)
    n_participants, n_voxels = len(study.participants), study.n_voxels
    response = model.shared_response_.size
    assert model.n_parameters_ == n_participants * n_voxels + n_voxels + n_participants + response + 2


def test_what_cannot_be_fitted_is_refused(from_matrices: Callable[..., Study]) -> None:
    frames = planted(n_voxels=6)[0]
    study = from_matrices([one[:8] for one in frames], 2)
    with pytest.raises(ModelError, match=naming("n_features=7", 8, 6)):
        MNSRM(7).fit(study)
    with pytest.raises(ModelError, match=naming("tol=-1")):
        MNSRM(2, tol=-1).fit(study)
    constant = {who: array.copy() for who, array in study.frames.items()}
    for array in constant.values():
        array[:, 4] = 7
    with pytest.raises(StudyError, match=naming("voxel 4")):
        MNSRM(2).fit(Study(study.coordinates, study.trials, constant))
