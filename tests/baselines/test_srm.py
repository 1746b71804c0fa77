"""The shared response model against BrainIAK's, brute-force densities, and planted responses."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import naming
from scipy.linalg import block_diag, subspace_angles
from scipy.stats import multivariate_normal

from ntfa import Study, simulate
from ntfa.analyses.separation import separation
from ntfa.baselines import SRM
from ntfa.baselines.principal import principal_components
from ntfa.baselines.shared import stimulus_blocks
from ntfa.baselines.srm_solver import (
    Parameters,
    Reduced,
    expect,
    fit_deterministic,
    fit_probabilistic,
    random_bases,
    reduce_frames,
    spectral_bases,
    start_in_units,
)
from ntfa.errors import ModelError

DATA = Path(__file__).parent / "data"
METHODS = ["probabilistic", "deterministic"]
VOXELS = (60, 60, 50, 70)


def brainiak_problem() -> list[np.ndarray]:
    """Four participants' centred frames, [V, 40]."""
    rng = np.random.default_rng(20260)
    shared = rng.normal(size=(5, 40)) * np.array([[4.0], [3.0], [2.5], [2.0], [1.5]])
    data = []
    for n_voxels in VOXELS:
        basis = np.linalg.qr(rng.normal(size=(n_voxels, 5)))[0]
        data.append(basis @ shared + 0.5 * rng.normal(size=(n_voxels, 40)))
    return [frames - frames.mean(1, keepdims=True) for frames in data]


def frozen(name: str) -> np.ndarray:
    return np.loadtxt(DATA / f"brainiak_{name}.tsv", delimiter="\t")


def brainiak_start() -> tuple[list[Reduced], list[np.ndarray]]:
    """The problem in its span, and the bases BrainIAK starts from, as the span sees them."""
    frames = brainiak_problem()
    data = [reduce_frames(one.T) for one in frames]
    bases = np.split(frozen("start"), np.cumsum(VOXELS)[:-1])
    return data, [(one @ r.to_span).T @ basis for one, r, basis in zip(frames, data, bases, strict=True)]


def planted(n_participants: int = 4, n_voxels: int = 80, noise: float = 0.3, seed: int = 0) -> tuple[list, np.ndarray]:
    """Frames [60, V] of participants who share a response [60, 4]."""
    rng = np.random.default_rng(seed)
    response = rng.normal(size=(60, 4)) * [4, 3, 2, 1.5]
    response -= response.mean(0)
    bases = [np.linalg.qr(rng.normal(size=(n_voxels, 4)))[0] for _ in range(n_participants)]
    frames = [response @ w.T + noise * rng.normal(size=(60, n_voxels)) + rng.normal(size=n_voxels) for w in bases]
    return frames, response


# --- as BrainIAK has it; it adds 0.001 to the diagonal before each decomposition, hence the tolerance


def test_five_steps_are_brainiaks() -> None:
    data, bases = brainiak_start()
    found = fit_probabilistic(data, Parameters(bases, np.eye(5), np.ones(4)), 5)
    np.testing.assert_allclose(found.response.T, frozen("srm_5_response"), atol=2e-4)
    np.testing.assert_allclose(found.noise, frozen("srm_5_noise"), rtol=1e-5)


def test_five_deterministic_steps_are_brainiaks() -> None:
    data, bases = brainiak_start()
    found = fit_deterministic(data, bases, 5)
    np.testing.assert_allclose(found.response.T, frozen("detsrm_5_response"), atol=2e-4)


@pytest.mark.parametrize("init", ["spectral", "random"])
def test_from_any_start_the_subspace_is_brainiaks(init: str) -> None:
    data, _ = brainiak_start()
    start = spectral_bases(data, 5) if init == "spectral" else random_bases(data, 5, 0)
    found = fit_probabilistic(data, start_in_units(data, start), 50)
    assert np.degrees(subspace_angles(found.response.T, frozen("srm_50_response"))).max() < 0.01
    found = fit_deterministic(data, start, 50)
    assert np.degrees(subspace_angles(found.response.T, frozen("detsrm_50_response"))).max() < 0.01


# --- the steps


def test_reduced_frames_lie_in_an_orthonormal_span() -> None:
    frames = planted()[0][0]
    frames = frames - frames.mean(0)
    reduced = reduce_frames(frames)
    span = frames.T @ reduced.to_span
    assert reduced.coordinates.shape == (59, 60)
    np.testing.assert_allclose(span.T @ span, np.eye(59), atol=1e-8)
    np.testing.assert_allclose(span @ reduced.coordinates, frames.T, atol=1e-10)


def test_likelihood_and_posterior_are_those_of_the_joint_normal() -> None:
    rng = np.random.default_rng(2)
    frames = [rng.normal(size=(7, n)) for n in (8, 9)]
    data = [reduce_frames(one) for one in frames]
    bases = random_bases(data, 2, 3)
    covariance, noise = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([0.3, 0.8])
    got = expect(data, Parameters(bases, covariance, noise))

    stacked = np.concatenate([one.T @ r.to_span @ w for one, r, w in zip(frames, data, bases, strict=True)])
    y = np.concatenate(frames, axis=1)
    marginal = stacked @ covariance @ stacked.T + block_diag(noise[0] * np.eye(8), noise[1] * np.eye(9))
    assert got.log_likelihood == pytest.approx(multivariate_normal(np.zeros(17), marginal).logpdf(y).sum())
    gain = covariance @ stacked.T @ np.linalg.inv(marginal)
    np.testing.assert_allclose(got.mean, gain @ y.T, atol=1e-10)
    np.testing.assert_allclose(got.covariance, covariance - gain @ stacked @ covariance, atol=1e-10)


@pytest.mark.parametrize("init", ["spectral", "random"])
@pytest.mark.parametrize("method", METHODS)
def test_every_iteration_climbs(from_matrices: Callable[..., Study], method: str, init: str) -> None:
    study = from_matrices(planted(noise=2.0)[0], 6)
    history = SRM(5, n_iter=60, method=method, init=init, random_state=0).fit(study).history_
    assert history["step"].tolist() == list(range(1, 61))
    values = history["log_likelihood"] if method == "probabilistic" else -history["objective"]
    assert (values.diff().dropna() > -1e-10 * abs(values.iloc[0])).all()
    assert values.iloc[-1] > values.iloc[0]


def test_the_objective_is_what_is_left(from_matrices: Callable[..., Study]) -> None:
    frames = [one.astype(np.float32).astype(float) for one in planted()[0]]
    model = SRM(4, method="deterministic").fit(from_matrices(frames, 6))
    response = model.shared_response_.to_numpy()
    left = [((f - f.mean(0) - response @ w.T) ** 2).sum() for f, w in zip(frames, model.bases_.values(), strict=True)]
    assert model.history_["objective"].iloc[-1] == pytest.approx(sum(left))
    np.testing.assert_allclose(model.noise_, np.sqrt(np.array(left) / frames[0].size))


def test_data_without_noise_fit_exactly() -> None:
    frames, response = planted(noise=0.0)
    data = [reduce_frames(one - one.mean(0)) for one in frames]
    found = fit_probabilistic(data, start_in_units(data, spectral_bases(data, 4)), 20)
    assert np.isfinite(found.history).all()
    assert subspace_angles(found.response.T, response).max() < 1e-5


def test_no_participant_rules_the_start_by_their_units() -> None:
    frames = [one - one.mean(0) for one in planted()[0]]
    one = [reduce_frames(f) for f in frames]
    other = [reduce_frames(1000 * frames[0]), *one[1:]]
    for a, b in zip(spectral_bases(one, 4), spectral_bases(other, 4), strict=True):
        np.testing.assert_allclose(np.abs(a.T @ b), np.eye(4), atol=1e-6)


# --- the estimator


@pytest.mark.parametrize("method", METHODS)
def test_a_planted_response_is_found(from_matrices: Callable[..., Study], method: str) -> None:
    frames, response = planted()
    model = SRM(4, method=method).fit(from_matrices(frames, 6))
    found = model.shared_response_.to_numpy()
    assert np.degrees(subspace_angles(found, response)).max() < 10
    rotation = np.linalg.lstsq(found, response, rcond=None)[0]
    assert 1 - ((found @ rotation - response) ** 2).sum() / (response**2).sum() > 0.99
    np.testing.assert_allclose(model.noise_, 0.3, rtol=0.1)
    for basis in model.bases_.values():
        np.testing.assert_allclose(basis.T @ basis, np.eye(4), atol=1e-9)


def test_bases_are_orthonormal_where_frames_barely_span_them(from_matrices: Callable[..., Study]) -> None:
    rng = np.random.default_rng(6)
    left, right = np.linalg.qr(rng.normal(size=(12, 8)))[0], np.linalg.qr(rng.normal(size=(20, 8)))[0]
    faint = left * np.logspace(0, -5, 8) @ right.T
    for basis in SRM(7).fit(from_matrices([faint, rng.normal(size=(12, 20))], 3)).bases_.values():
        np.testing.assert_allclose(basis.T @ basis, np.eye(7), atol=1e-10)


def test_a_rotation_of_the_features_changes_no_score_but_its_sign(from_matrices: Callable[..., Study]) -> None:
    model = SRM(4).fit(from_matrices(planted(n_participants=6)[0], 6))
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(4, 4)))[0]
    turned = principal_components([basis @ rotation for basis in model.bases_.values()], 2).scores
    np.testing.assert_allclose(np.abs(turned), model.participants_.abs(), atol=1e-9)
    blocks = stimulus_blocks(model.shared_response_ @ rotation)
    turned = principal_components(list(blocks.values()), 2).scores
    np.testing.assert_allclose(np.abs(turned), model.stimuli_.abs(), atol=1e-9)


def test_frames_project_onto_the_bases(from_matrices: Callable[..., Study]) -> None:
    frames, _ = planted(noise=0.05)
    study = from_matrices(frames, 6)
    model = SRM(4, method="deterministic").fit(study)
    by_stimulus = model.transform(study).groupby(study.trials["stimulus"]).mean()
    expected = model.shared_response_.groupby(level="stimulus").mean()
    pd.testing.assert_frame_equal(by_stimulus, expected, atol=1e-4)


def test_stimulus_blocks_average_repetitions_and_have_one_length() -> None:
    places = [("x", 1, 3), ("x", 2, 2), ("y", 1, 4)]
    index = pd.MultiIndex.from_tuples(
        [(s, r, f) for s, r, n in places for f in range(n)], names=["stimulus", "repetition", "frame"]
    )
    response = pd.DataFrame({1: [1.0, 2.0, 9.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]}, index=index)
    blocks = stimulus_blocks(response)
    assert {stimulus: block[:, 0].tolist() for stimulus, block in blocks.items()} == {"x": [2.0, 3.0], "y": [5.0, 6.0]}


@pytest.mark.parametrize("method", METHODS)
def test_parameters_are_counted_as_documented(study: Study, method: str) -> None:
    model = SRM(3, method=method).fit(study)
    n_participants, n_voxels = len(study.participants), study.n_voxels
    others = n_participants + 6 if method == "probabilistic" else model.shared_response_.size
    assert model.n_parameters_ == n_participants * n_voxels * (1 + 3) + others


@pytest.mark.parametrize("method", METHODS)
def test_groups_and_tasks_of_the_synthetic_study_come_apart(method: str) -> None:
    sim = simulate("synthetic", random_state=0)
    model = SRM(3, method=method).fit(sim.study)
    assert separation(model.stimuli_, sim.truth.stimulus_categories).agreement == 1
    assert separation(model.participants_, sim.truth.participant_groups).agreement == 1


def test_a_random_start_depends_on_its_seed_alone(study: Study) -> None:
    def fit(seed: int | None) -> SRM:
        return SRM(3, init="random", n_iter=3, random_state=seed).fit(study)

    pd.testing.assert_frame_equal(fit(1).participants_, fit(1).participants_, check_exact=True)
    assert not fit(1).history_.equals(fit(2).history_)
    drawn = fit(None)
    pd.testing.assert_frame_equal(fit(drawn.seed_).history_, drawn.history_, check_exact=True)


def test_choices_are_named() -> None:
    with pytest.raises(ModelError, match=naming("method='exact'", "'deterministic'")):
        SRM(method="exact").fit(None)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=naming("init='kmeans'", "'spectral'")):
        SRM(init="kmeans").fit(None)  # type: ignore[arg-type]


def test_too_many_features_for_the_span_are_refused(from_matrices: Callable[..., Study]) -> None:
    rng = np.random.default_rng(0)
    flat = rng.integers(-9, 10, (12, 2)) @ rng.integers(-9, 10, (2, 20))
    with pytest.raises(ModelError, match=naming("n_features=3", "p1", 12, 2)):
        SRM(3).fit(from_matrices([rng.normal(size=(12, 20)), flat], 3))
