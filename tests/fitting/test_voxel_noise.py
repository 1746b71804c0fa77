"""Noise of its own for every voxel: against full covariances, and against one noise for all where they differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import naming
from safetensors.torch import load_file, save_file
from scipy import stats

from ntfa import NTFA, Study
from ntfa.errors import ModelError
from ntfa.estimators.saving import versions
from ntfa.fitting.pooling import pool
from ntfa.fitting.voxel_noise import noise_scales, scales_of
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior, cell_log_likelihood, log_likelihood, weight_posterior
from ntfa.inference.frames import Frames, Units
from ntfa.inference.projection import FrameBlock
from ntfa.report.methods import Facts, noise_sentence
from ntfa.uncertainty.information import cell_information, tangent_gram, tangents

CPU = torch.device("cpu")
GRID = np.stack(np.meshgrid(*[np.arange(6.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
CENTERS = torch.tensor([[[1.0, 2.0, 2.5], [4.0, 3.0, 2.0]]], dtype=torch.float64)
LOG_WIDTHS = torch.tensor([[1.0, 1.6]], dtype=torch.float64)


def make_frames(n_frames: int = 3, intensity: float = 1.0, coordinates: np.ndarray = GRID) -> Frames:
    """One cell of noise, with noise sds that differ between voxels."""
    rng = np.random.default_rng(0)
    scales = scales_of(rng.lognormal(0, 0.7, len(coordinates)))
    array = torch.from_numpy(rng.normal(size=(n_frames, len(coordinates))) * scales)
    zero = torch.zeros(1, dtype=torch.long)
    cells = Cells(zero, zero, zero, (torch.arange(n_frames).unsqueeze(0),), zero)
    units = Units((0.0, 0.0, 0.0), 1.0, intensity)
    block = FrameBlock(array, [slice(0, n_frames)])
    return Frames.arrange([block], cells, torch.from_numpy(coordinates), units, torch.from_numpy(scales))


def factors_of(frames: Frames) -> np.ndarray:
    squared = ((frames.coordinates.numpy() - CENTERS[0].numpy()[:, None]) ** 2).sum(-1)
    return np.exp(-squared / np.exp(LOG_WIDTHS[0].numpy())[:, None])


PRIOR = WeightPrior(torch.tensor([[0.8, -0.4]], dtype=torch.float64), torch.tensor([[0.5, 1.2]], dtype=torch.float64))


# --- the algebra


@pytest.mark.parametrize("intensity", [1.0, 2.5])
def test_likelihood_is_that_of_a_normal_with_unequal_noise(intensity: float) -> None:
    frames, noise = make_frames(intensity=intensity), torch.tensor(0.7, dtype=torch.float64)
    assert frames.scales is not None
    found = cell_log_likelihood(frames.project(CENTERS, LOG_WIDTHS), PRIOR, noise)
    shapes, sd = factors_of(frames), PRIOR.sd[0].numpy()
    covariance = shapes.T @ np.diag(sd**2) @ shapes + np.diag((0.7 * frames.scales.numpy()) ** 2)
    normal = stats.multivariate_normal(intensity * (PRIOR.mean[0].numpy() @ shapes), intensity**2 * covariance)
    expected = normal.logpdf(frames.blocks[0].array.numpy()).sum()
    assert float(found + frames.log_units) == pytest.approx(expected, rel=1e-9)


def test_weights_are_those_of_weighted_least_squares_with_a_prior() -> None:
    frames, noise = make_frames(), torch.tensor(0.7, dtype=torch.float64)
    assert frames.scales is not None
    found = weight_posterior(frames.project(CENTERS, LOG_WIDTHS), PRIOR, noise)
    shapes, precision = factors_of(frames), (0.7 * frames.scales.numpy()) ** -2
    prior_precision = np.diag(PRIOR.sd[0].numpy() ** -2)
    covariance = np.linalg.inv(shapes * precision @ shapes.T + prior_precision)
    linear = frames.blocks[0].array.numpy() * precision @ shapes.T + PRIOR.mean[0].numpy() @ prior_precision
    np.testing.assert_allclose(found.mean.numpy(), linear @ covariance, rtol=1e-8)


def test_gradients_of_a_weighted_projection_are_those_of_its_value() -> None:
    frames = make_frames()

    def value(centers: torch.Tensor, log_widths: torch.Tensor) -> torch.Tensor:
        return log_likelihood(frames.project(centers, log_widths), PRIOR, torch.tensor(0.7, dtype=torch.float64))

    assert torch.autograd.gradcheck(value, (CENTERS.clone().requires_grad_(), LOG_WIDTHS.clone().requires_grad_()))


def test_pooled_voxels_count_by_their_noise() -> None:
    """Exactly, where a box's voxels lie at one place."""
    thrice = np.concatenate([GRID, GRID, GRID])
    frames = make_frames(coordinates=thrice)
    pooled = pool(frames, 1.0)
    assert len(pooled.coordinates) == len(GRID)
    fine, coarse = (one.project(CENTERS, LOG_WIDTHS) for one in (frames, pooled))
    torch.testing.assert_close(fine.frames, coarse.frames)
    torch.testing.assert_close(fine.gram, coarse.gram)
    torch.testing.assert_close(fine.energy, coarse.energy)
    assert (fine.n_voxels, fine.n_voxels) == (len(thrice), coarse.n_voxels)


def test_pooling_neighbours_of_different_noise_is_accurate_where_factors_are_wide() -> None:
    frames = make_frames()
    wide = LOG_WIDTHS + np.log(40)
    fine, coarse = (one.project(CENTERS, wide) for one in (frames, pool(frames, 2.0)))
    assert float((fine.gram - coarse.gram).norm() / fine.gram.norm()) < 0.03


def test_information_is_that_of_frames_divided_by_their_noise() -> None:
    frames = make_frames()
    assert frames.scales is not None
    center, log_width = CENTERS[0], LOG_WIDTHS[0]
    gram = tangent_gram(center, log_width, frames.coordinates, frames.weights)
    images = tangents(center, log_width, frames.coordinates) / frames.scales
    torch.testing.assert_close(gram, images @ images.T)
    noise = torch.tensor(0.7, dtype=torch.float64)
    mean = cell_information(gram, PRIOR.mean[0], PRIOR.sd[0], noise, 1.0).mean
    shapes = torch.from_numpy(factors_of(frames))
    covariance = shapes.T @ torch.diag(PRIOR.sd[0] ** 2) @ shapes + torch.diag((noise * frames.scales) ** 2)
    torch.testing.assert_close(mean, shapes @ torch.linalg.inv(covariance) @ shapes.T)


# --- what voxels' noise is taken to be


def noisy_study(seed: int = 4, n_frames: int = 4, repeats: int = 3) -> tuple[Study, np.ndarray, np.ndarray]:
    """Four participants, three stimuli, one blob, and noise that is up to many times larger in some voxels."""
    sds = np.random.default_rng(0).lognormal(0, 0.8, len(GRID))
    rng = np.random.default_rng([seed, 1])
    center = np.array([2.0, 3.0, 2.5])
    blob = np.exp(-((GRID - center) ** 2).sum(1) / 4)
    rows, frames = [], {}
    for p in range(4):
        array = []
        for t in range(3 * repeats):
            rows.append({"participant": f"p{p}", "stimulus": f"s{t % 3}", "start": t * n_frames})
            array.append((t % 3 - 1) * 0.7 * blob + sds * rng.normal(size=(n_frames, len(GRID))))
        frames[f"p{p}"] = np.concatenate(array).astype(np.float32)
    trials = pd.DataFrame(rows)
    trials["stop"] = trials["start"] + n_frames
    return Study.from_arrays(frames, trials, GRID), sds, center


def test_scales_are_the_voxels_noise_in_units_of_their_geometric_mean() -> None:
    study, sds, _ = noisy_study(n_frames=40)
    found = noise_scales(study, CPU)
    assert np.log(found).mean() == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(found, sds / np.exp(np.log(sds).mean()), rtol=0.1)


def test_a_voxel_that_hardly_varies_does_not_decide_everything() -> None:
    found = scales_of(np.array([0.0, 1e-9, 1.0, 1.0, 1.0]))
    np.testing.assert_allclose(found / found[-1], [0.1, 0.1, 1, 1, 1])


def test_single_frames_are_compared_with_their_participants() -> None:
    study, sds, _ = noisy_study(n_frames=1, repeats=1)
    assert np.corrcoef(np.log(noise_scales(study, CPU)), np.log(sds))[0, 1] > 0.6
    alone = Study(study.coordinates, study.trials.groupby("participant").head(1), study.frames)
    with pytest.raises(ModelError, match=naming("noise='same'")):
        noise_scales(alone, CPU)


# --- fits


def fit(study: Study, noise: str, **settings: Any) -> NTFA:
    settings = {"noise": noise, "uncertainty": "laplace", "max_epochs": 60, "random_state": 0, **settings}
    return NTFA(1, device="cpu", **settings).fit(study)


@pytest.fixture(scope="module")
def models() -> dict[str, NTFA]:
    study, _, _ = noisy_study()
    return {noise: fit(study, noise) for noise in ("same", "voxel")}


def test_noise_by_voxel_is_estimated_and_helps(models: dict[str, NTFA]) -> None:
    _, sds, center = noisy_study()
    held_out, _, _ = noisy_study(seed=1)
    same, voxel = models["same"], models["voxel"]
    errors = [
        np.linalg.norm(m.factors_[["x", "y", "z"]].to_numpy(float) - center, axis=1).mean() for m in (same, voxel)
    ]
    assert errors[1] < 0.6 * errors[0]
    assert voxel.score(held_out) > same.score(held_out) + 1000
    np.testing.assert_allclose(voxel.voxel_noise_, sds, rtol=0.5)
    np.testing.assert_array_equal(same.voxel_noise_, np.full(len(GRID), same.noise_))


def test_predicted_sds_have_each_voxels_noise(models: dict[str, NTFA]) -> None:
    model = models["voxel"]
    _, plain = model.predict([("p0", "s0")], return_sd=True)
    _, sds = model.predict([("p0", "s0")], return_sd=True, n_frames=4)
    far = np.linalg.norm(GRID - [2.0, 3.0, 2.5], axis=1) > 4
    np.testing.assert_allclose(sds[0, far], model.voxel_noise_[far] / 2, rtol=0.05)
    assert (plain < sds).all()


def test_a_saved_model_keeps_its_voxels_noise(models: dict[str, NTFA], tmp_path: Path) -> None:
    study, _, _ = noisy_study()
    models["voxel"].save(tmp_path / "model")
    loaded = NTFA.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.voxel_noise_, models["voxel"].voxel_noise_)
    assert loaded.score(study, n_samples=4) == models["voxel"].score(study, n_samples=4)
    pd.testing.assert_frame_equal(loaded.transform(study), models["voxel"].transform(study))


def test_models_of_earlier_versions_have_one_noise(models: dict[str, NTFA], tmp_path: Path) -> None:
    models["same"].save(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    assert '    "noise": "same",\n' in config.read_text()
    config.write_text(config.read_text().replace('    "noise": "same",\n', ""))
    assert NTFA.load(tmp_path / "model", device="cpu")._fitted.noise_scales is None


@pytest.mark.parametrize("problem", ["missing", "short", "negative", "not 1 on average", "not asked for"])
def test_noise_that_makes_no_sense_is_refused(models: dict[str, NTFA], tmp_path: Path, problem: str) -> None:
    models["same" if problem == "not asked for" else "voxel"].save(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    scales = tensors.pop("noise_scales", torch.ones(len(GRID), dtype=torch.float64))
    broken = {"short": scales[1:], "negative": -scales, "not 1 on average": 2 * scales, "not asked for": scales}
    save_file(tensors | ({} if problem == "missing" else {"noise_scales": broken[problem].contiguous()}), path)
    with pytest.raises(ModelError, match="noise_scales"):
        NTFA.load(tmp_path / "model", device="cpu")


def test_frames_on_disk_are_scored_as_those_in_memory(models: dict[str, NTFA], tmp_path: Path) -> None:
    study, _, _ = noisy_study()
    study.save(tmp_path / "study")
    models["voxel"].save(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    assert '"memory": null' in config.read_text()
    config.write_text(config.read_text().replace('"memory": null', '"memory": "4GB"'))
    streaming = NTFA.load(tmp_path / "model", device="cpu")
    expected = models["voxel"].score(study, n_samples=4)
    assert streaming.score(Study.open(tmp_path / "study"), n_samples=4) == pytest.approx(expected, rel=1e-6)


def test_a_coarse_start_comes_to_the_same(models: dict[str, NTFA]) -> None:
    study, _, center = noisy_study()
    coarse = fit(study, "voxel", coarse="always")
    errors = np.linalg.norm(coarse.factors_[["x", "y", "z"]].to_numpy(float) - center, axis=1)
    assert errors.mean() < 1.0
    assert coarse.noise_ == pytest.approx(models["voxel"].noise_, rel=0.05)


def test_noise_must_be_one_of_two() -> None:
    with pytest.raises(ModelError, match="noise='loud'"):
        fit(noisy_study()[0], "loud")


def test_the_methods_paragraph_says_whose_noise_it_is(models: dict[str, NTFA]) -> None:
    said = {name: noise_sentence(Facts.of(models[name], versions())) for name in ("same", "voxel")}
    assert "all voxels" in said["same"]
    assert "each voxel" in said["voxel"]
