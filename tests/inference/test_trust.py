"""Frames that count differently: every density and posterior against the normal with noise of 1 / lambda_t."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import test_coverage
import test_detail
import test_loadings
import test_misfit
import test_regression
import torch
from helpers import MODULES, blobs, cell_rows, frames_of_cells, make_frames, radial_basis
from scipy.stats import multivariate_normal
from test_collapsed import random_factors, random_prior
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from ntfa.fitting.pooling import pool
from ntfa.inference import loadings
from ntfa.inference.averages import Averages
from ntfa.inference.bounds import CollapsedLikelihood, Draw, SampledLikelihood, sampled_log_likelihood
from ntfa.inference.collapsed import WeightPrior, cell_log_likelihood, log_likelihood, weight_posterior
from ntfa.inference.detail import find_detail
from ntfa.inference.frames import Frames, Units
from ntfa.inference.loadings import IndividualWeights, loadings_covariance, loadings_posterior
from ntfa.inference.normal import RandomSource
from ntfa.inference.regression import TurnedDesign, design_log_likelihood, loading_posterior
from ntfa.inference.start import find_start
from ntfa.inference.streaming import StoredBlock

DESIGN, V, K = [[3, 1], [2, 3, 4], [1]], 11, 3
UNITS = Units((0.2, 0.1, 0.0), 1.1, 1.7)
NOISE_SD = torch.tensor(0.7, dtype=torch.float64)
WITH_OR_WITHOUT_EFFECT = pytest.mark.parametrize("effect", [False, True], ids=["frames alone", "with effect"])


def trusting(frames: Frames, seed: int = 0) -> Frames:
    """The same frames, trusted from a hundredth to thrice as much; the first frame of each cell as much."""
    trust = torch.from_numpy(np.random.default_rng(seed).uniform(np.log(0.01), np.log(3), len(frames.energy))).exp()
    for rows in cell_rows(frames.cells):
        trust[rows[0]] = 1
    return replace(frames, cells=replace(frames.cells, trust=trust))


def trust_of(frames: Frames, rows: object) -> np.ndarray:
    assert frames.cells.trust is not None
    return frames.cells.trust.numpy()[rows]


def weight_moments(prior: WeightPrior, c: int, trust: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the weights of all frames of a cell, frame after frame."""
    n = len(trust)
    mixing = np.eye(K) if prior.mixing is None else prior.mixing.numpy()
    covariance = np.kron(np.diag(1 / trust), mixing @ np.diag(prior.sd[c].numpy() ** 2) @ mixing.T)
    if prior.effect_sd is not None:
        covariance += np.kron(np.ones((n, n)), mixing @ np.diag(prior.effect_sd[c].numpy() ** 2) @ mixing.T)
    return np.tile(prior.mean[c].numpy(), n), covariance


def joint(frames: Frames, factors: tuple[Tensor, Tensor], prior: WeightPrior, c: int) -> tuple[np.ndarray, ...]:
    """Frames of a cell, [n V] in standardised units; mean and covariance of their weights; what turns these into them.

    The last is the covariance of noise.
    """
    rows, b = cell_rows(frames.cells)[c], int(frames.cells.block[c])
    trust = trust_of(frames, rows)
    wide = np.kron(np.eye(len(rows)), blobs(frames.coordinates, factors[0][b], factors[1][b]))
    noise = np.kron(np.diag(1 / trust), float(NOISE_SD) ** 2 * np.eye(V))
    return frames_of_cells(frames)[c].ravel() / frames.units.intensity, *weight_moments(prior, c, trust), wide, noise


@pytest.fixture
def frames() -> Frames:
    return trusting(make_frames(DESIGN, V, units=UNITS))


def prior_of(effect: bool, mixed: bool = False) -> WeightPrior:
    mixing = torch.eye(K).double() + torch.tril(torch.randn(K, K, generator=torch.Generator().manual_seed(8)), -1)
    return random_prior(6, effect)._replace(mixing=mixing if mixed else None)


@WITH_OR_WITHOUT_EFFECT
@pytest.mark.parametrize("mixed", [False, True])
def test_density_is_the_dense_normal(frames: Frames, effect: bool, mixed: bool) -> None:
    factors, prior = random_factors(3), prior_of(effect, mixed)
    found = cell_log_likelihood(frames.project(*factors), prior, NOISE_SD) + frames.log_units
    for c, value in enumerate(found.tolist()):
        y, mean, covariance, wide, noise = joint(frames, factors, prior, c)
        in_data = frames.units.intensity
        expected = multivariate_normal(in_data * mean @ wide, in_data**2 * (wide.T @ covariance @ wide + noise))
        assert value == pytest.approx(expected.logpdf(in_data * y), rel=1e-10)


@WITH_OR_WITHOUT_EFFECT
def test_gradient_is_finite_differences(frames: Frames, effect: bool) -> None:
    def value(centers: Tensor, log_widths: Tensor, noise_sd: Tensor, *prior: Tensor) -> Tensor:
        return log_likelihood(frames.project(centers, log_widths), WeightPrior(*prior), noise_sd)

    leaves = [*random_factors(3), NOISE_SD.clone(), *(part for part in prior_of(effect) if isinstance(part, Tensor))]
    assert torch.autograd.gradcheck(value, [leaf.requires_grad_() for leaf in leaves])


@WITH_OR_WITHOUT_EFFECT
@pytest.mark.parametrize("mixed", [False, True])
def test_posterior_of_weights_is_gaussian_conditioning(frames: Frames, effect: bool, mixed: bool) -> None:
    factors, prior = random_factors(3), prior_of(effect, mixed)
    posterior = weight_posterior(frames.project(*factors), prior, NOISE_SD)
    for c, rows in enumerate(cell_rows(frames.cells)):
        y, mean, covariance, wide, noise = joint(frames, factors, prior, c)
        gain = np.linalg.solve(wide.T @ covariance @ wide + noise, wide.T @ covariance)
        conditional = covariance - covariance @ wide @ gain
        np.testing.assert_allclose(posterior.mean[rows].ravel(), mean + (y - mean @ wide) @ gain, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(posterior.covariance[c], conditional[:K, :K], rtol=1e-8, atol=1e-9)
        trust = trust_of(frames, rows)
        averaging = np.kron(trust / trust.sum(), np.eye(K))
        found = posterior.covariance_of_average[c]
        np.testing.assert_allclose(found, averaging @ conditional @ averaging.T, rtol=1e-8, atol=1e-9)


@WITH_OR_WITHOUT_EFFECT
@pytest.mark.parametrize("mixed", [False, True])
def test_density_of_weights_is_the_dense_normal(frames: Frames, effect: bool, mixed: bool) -> None:
    prior, expected = prior_of(effect, mixed), 0.0
    weights = torch.randn(14, K, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for c, rows in enumerate(cell_rows(frames.cells)):
        normal = multivariate_normal(*weight_moments(prior, c, trust_of(frames, rows)))
        expected += normal.logpdf(weights[rows].numpy().ravel())
    assert prior.log_prob(weights, frames.cells).item() == pytest.approx(expected, rel=1e-10)


def test_density_given_weights_is_that_of_the_residual_image(frames: Frames) -> None:
    centers, log_widths = random_factors(3)
    weights = torch.randn(14, K, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    draw = Draw([], centers, log_widths, prior_of(effect=False), NOISE_SD)
    found = sampled_log_likelihood(frames, draw, weights) + frames.log_units
    for c, rows in enumerate(cell_rows(frames.cells)):
        b, sd = int(frames.cells.block[c]), float(NOISE_SD) / np.sqrt(trust_of(frames, rows))[:, None]
        image = weights[rows] @ blobs(frames.coordinates, centers[b], log_widths[b])
        y = torch.from_numpy(frames_of_cells(frames)[c])
        normal = Normal(1.7 * image, torch.from_numpy(1.7 * sd))
        assert float(found[c]) == pytest.approx(float(normal.log_prob(y).sum()), rel=1e-10)


@WITH_OR_WITHOUT_EFFECT
def test_density_over_what_each_participant_has(effect: bool) -> None:
    lacked = [[0, 3, 8], [], [0, 3, 8]]
    frames = trusting(test_coverage.lacking(make_frames(DESIGN, V, units=UNITS), lacked))
    factors, prior = random_factors(3), prior_of(effect)
    found = cell_log_likelihood(frames.project(*factors), prior, NOISE_SD) + frames.log_units
    for c, value in enumerate(found.tolist()):
        y, mean, covariance, wide, noise = joint(frames, factors, prior, c)
        seen = np.tile(~np.isin(np.arange(V), lacked[int(frames.cells.block[c])]), len(y) // V)
        total = 1.7**2 * (wide.T @ covariance @ wide + noise)[np.ix_(seen, seen)]
        expected = multivariate_normal(1.7 * (mean @ wide)[seen], total).logpdf(1.7 * y[seen])
        assert value == pytest.approx(expected, rel=1e-10)


# Individual loadings -------------------------------------------------------------------------------------------------


@pytest.fixture
def of_loadings() -> Frames:
    return trusting(make_frames([[1, 2, 3, 2], [2, 2, 1]], n_voxels=12, seed=3))


def dense_loadings(frames: Frames, given: dict[str, Tensor], participant: int) -> tuple[Tensor, ...]:
    """As `test_loadings.dense`, where what is not the participant's or the group's has variance 1 / lambda."""
    y, mean, covariance, features = test_loadings.dense(frames, given, participant)
    factors = radial_basis(frames.coordinates, given["centers"][0], given["log_widths"][0])
    loaded = given["mixing"].mT @ factors
    shared = torch.kron(features @ features.T, loaded.mT @ torch.diag(given["loading_sd"] ** 2) @ loaded)
    own = frames.cells.block[frames.cells.of_frame] == participant
    assert frames.cells.trust is not None
    scale = frames.cells.trust[own].rsqrt().repeat_interleave(len(y) // len(features))
    return y, mean, scale.unsqueeze(1) * (covariance - shared) * scale + shared, features


def test_density_with_individual_loadings_is_the_dense_normal(of_loadings: Frames) -> None:
    frames, given = of_loadings, test_loadings.variables(of_loadings)
    prior = IndividualWeights(*(given[name] for name in IndividualWeights._fields))
    projection = frames.project(given["centers"], given["log_widths"])
    each = loadings.block_log_likelihoods(projection, prior, given["noise_sd"])
    each += frames.cells.blocks_total(frames.log_units)
    for participant, found in enumerate(each.tolist()):
        y, mean, covariance, _ = dense_loadings(frames, given, participant)
        assert found == pytest.approx(float(MultivariateNormal(mean, covariance).log_prob(y)), rel=1e-6)
    together = test_loadings.value(frames, given) + frames.log_units.sum()
    assert float(together) == pytest.approx(float(each.sum()), rel=1e-9)


@pytest.mark.parametrize("name", test_loadings.NAMES)
def test_gradients_with_individual_loadings_are_finite_differences(of_loadings: Frames, name: str) -> None:
    test_loadings.test_gradients_are_finite_differences(of_loadings, name)


def test_posterior_of_loadings_is_that_of_the_joint_normal(of_loadings: Frames) -> None:
    frames, given = of_loadings, test_loadings.variables(of_loadings)
    prior = IndividualWeights(*(given[name] for name in IndividualWeights._fields))
    projection = frames.project(given["centers"], given["log_widths"])
    found = loadings_posterior(projection, prior, given["noise_sd"])
    factors = radial_basis(frames.coordinates, given["centers"][0], given["log_widths"][0])
    spread, n = torch.diag(given["loading_sd"] ** 2), prior.features.shape[1]
    for participant in (0, 1):
        y, mean, covariance, features = dense_loadings(frames, given, participant)
        across = torch.kron(features.T.contiguous(), spread @ given["mixing"].T @ factors)
        expected = (across @ torch.linalg.solve(covariance, y - mean)).reshape(n, K) @ given["mixing"].T
        torch.testing.assert_close(found.mean[participant], expected, atol=1e-8, rtol=1e-6)
        conditional = torch.kron(torch.eye(n).double(), spread) - across @ torch.linalg.solve(covariance, across.T)
        squared, right = found.rotation.squared[participant], found.rotation.right[participant]
        rotated = loadings_covariance(projection.gram[0], prior, squared, given["noise_sd"])
        back = torch.einsum("aj,jkl,bj->akbl", right, rotated, right).reshape(n * K, n * K)
        torch.testing.assert_close(back, conditional, atol=1e-8, rtol=1e-6)


def of_noise_by_trust(frames: Frames) -> Frames:
    """Give frames of unit noise the noise that their trust says."""
    start = 0
    frames = trusting(frames)
    for block in frames.blocks:
        block.array[block.rows] /= torch.from_numpy(trust_of(frames, slice(start, start + block.n_frames)) ** 0.5)[
            :, None
        ]
        start += block.n_frames
    return Frames.arrange(frames.blocks, frames.cells, frames.coordinates, frames.units)


def test_maps_of_detail_are_the_posterior_means_of_the_mixed_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_detail, "make_frames", lambda *args, **more: of_noise_by_trust(make_frames(*args, **more)))
    frames, truth = test_detail.simulated(own_sd=0.4, group_sd=0.3)
    features, sizes = truth["features"], torch.full((2,), 1e-3, dtype=torch.float64)
    factors = torch.tensor([[0.0, 0, 0], [1, 1, 1]]).double(), torch.zeros(2).double()
    mean = torch.zeros(len(frames.cells.stimulus), 2).double()
    prior = IndividualWeights(mean, features[frames.cells.stimulus], sizes, sizes, torch.eye(2).double())
    explained = loadings_posterior(frames.project(*(part[None] for part in factors)), prior, NOISE_SD)
    detail = find_detail(frames, explained, factors, NOISE_SD, test_detail.N_PARTICIPANTS)
    group_variance, own_variance, noise = detail.variances.tolist()
    assert noise == pytest.approx(1, rel=0.05)
    rows, everything = cell_rows(frames.cells), frames_of_cells(frames)
    images, designs = [], []
    for b in range(test_detail.N_PARTICIPANTS):
        own = torch.nonzero(frames.cells.block == b).squeeze(-1).tolist()
        trusts = [trust_of(frames, rows[c]) for c in own]
        images += [trust @ everything[c] / trust.sum() ** 0.5 for trust, c in zip(trusts, own, strict=True)]
        size = torch.tensor([trust.sum() ** 0.5 for trust in trusts]).unsqueeze(1)
        designs.append(size * features[frames.cells.stimulus[own]])
    designed = torch.cat(designs)
    covariance = noise * torch.eye(len(designed)).double() + group_variance * designed @ designed.T
    covariance += own_variance * torch.block_diag(*(design @ design.T for design in designs))
    expected = group_variance * designed.T @ torch.linalg.solve(covariance, torch.from_numpy(np.stack(images)))
    # Factors explain next to nothing.
    torch.testing.assert_close(detail.group.double(), expected, rtol=1e-3, atol=1e-4)


def test_misfit_of_features_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Deviations of weights, too, are larger in frames that are trusted less: here they are left as they are.
    monkeypatch.setattr(test_misfit, "SD", 0.01)
    monkeypatch.setattr(test_misfit, "make_frames", lambda *args, **more: of_noise_by_trust(make_frames(*args, **more)))
    mean = torch.stack([test_misfit.found(0.5, 0.5, seed) for seed in range(8)]).mean(0).tolist()
    assert mean == pytest.approx([0.25, 0.25], rel=0.3)


# Designs, starts, and frames that lie elsewhere ----------------------------------------------------------------------


@pytest.mark.parametrize("design", test_regression.DESIGNS)
def test_regression_on_a_design_is_the_dense_normal(design: str) -> None:
    frames = trusting(test_regression.with_design(test_regression.DESIGNS[design]))
    factors = random_factors(3, test_regression.N_FACTORS)
    given = test_regression.Normal(
        test_regression.random(3, test_regression.N_FACTORS, seed=4), torch.tensor([0.4, 1.2], dtype=torch.float64)
    )
    projection, turned = frames.project(*factors), TurnedDesign.of(frames.cells)
    posterior = loading_posterior(projection, turned, given, NOISE_SD)
    mean, covariance = test_regression.prior_moments(given)
    total = 0.0
    for b, (y, matrix) in enumerate(test_regression.blocks(frames, *factors)):
        own = [rows for c, rows in enumerate(cell_rows(frames.cells)) if frames.cells.block[c] == b]
        variance = float(NOISE_SD) ** 2 / np.repeat(trust_of(frames, np.concatenate(own)), test_regression.N_VOXELS)
        whole = matrix.T @ covariance @ matrix + np.diag(variance)
        total += multivariate_normal(mean @ matrix, whole).logpdf(y)
        gain = covariance @ matrix @ np.linalg.inv(whole)
        np.testing.assert_allclose(posterior.mean[b].ravel(), mean + gain @ (y - mean @ matrix), rtol=1e-8, atol=1e-9)
        sd = np.sqrt(np.diag(covariance - gain @ matrix.T @ covariance))
        np.testing.assert_allclose(posterior.sd[b].ravel(), sd, rtol=1e-8, atol=1e-9)
    found = design_log_likelihood(projection, turned, given, NOISE_SD) + frames.log_units.sum()
    assert float(found) == pytest.approx(total, rel=1e-10)


def test_start_is_weighted_least_squares() -> None:
    frames = trusting(make_frames([[30, 40], [40, 25]], 40, units=UNITS))
    start = find_start(frames, 3, "pursuit", seed=0)
    images = blobs(frames.coordinates, start.centers, start.log_widths)
    gram = images @ images.T
    solve = np.linalg.inv(gram + 1e-3 * gram.diagonal().mean() * np.eye(3)) @ images
    misfit = 0.0
    for c, (rows, y) in enumerate(zip(cell_rows(frames.cells), frames_of_cells(frames), strict=True)):
        trust, y = trust_of(frames, rows), y / 1.7
        weights = y @ solve.T
        np.testing.assert_allclose(start.weights[rows], weights, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(start.cell_weights[c], trust @ weights / trust.sum(), rtol=1e-8, atol=1e-9)
        misfit += float((trust[:, None] * (y - weights @ images) ** 2).sum())
    assert start.noise_sd == pytest.approx(np.sqrt(misfit / frames.n_data), rel=1e-8)


def test_averages_are_weighted(frames: Frames) -> None:
    centers, log_widths = random_factors(1)
    averages = Averages.of(frames.project(centers, log_widths))
    images = blobs(frames.coordinates, centers[0], log_widths[0])
    for c, (rows, y) in enumerate(zip(cell_rows(frames.cells), frames_of_cells(frames), strict=True)):
        trust = trust_of(frames, rows)
        expected = trust @ y @ images.T / 1.7 / trust.sum() ** 0.5
        np.testing.assert_allclose(averages.projected[c], expected, rtol=1e-9)
        assert float(averages.n_frames[c]) == pytest.approx(trust.sum())


def sampled(frames: Frames) -> SampledLikelihood:
    weights = np.random.default_rng(1).normal(size=(len(frames.energy), 2))
    return SampledLikelihood(frames, torch.from_numpy(weights), sd=0.1)


@pytest.mark.parametrize("likelihood", [CollapsedLikelihood, sampled], ids=["collapsed", "sampled"])
@pytest.mark.parametrize("kind", MODULES)
def test_frames_on_disk_and_boxes_of_one_voxel_change_nothing(kind: str, likelihood, tmp_path) -> None:
    grid = np.stack(np.meshgrid(*[np.arange(4.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    frames = trusting(make_frames([[3, 4], [4, 2], [2, 5]], len(grid), dtype=torch.float32, coordinates=grid))
    blocks = []
    for i, block in enumerate(frames.blocks):
        np.save(tmp_path / f"{i}.npy", block.array.numpy())
        blocks.append(StoredBlock.of(np.load(tmp_path / f"{i}.npy", mmap_mode="r"), block.runs))
    on_disk = Frames.arrange(blocks, frames.cells, torch.from_numpy(grid), frames.units)
    found = []
    for own in (frames, on_disk, pool(frames, side=1.0)):
        torch.manual_seed(0)
        module, treated = MODULES[kind]().double(), likelihood(own)
        draw = module.draw(own.cells, RandomSource(0))
        value, latents = treated(draw, RandomSource(0))
        (value + sum(latent.log_ratio() for latent in latents)).backward()
        found.append((float(value.detach()), [p.grad for p in (*module.parameters(), *treated.parameters())]))
    for value, gradients in found[1:]:
        assert value == pytest.approx(found[0][0], rel=1e-5)
        pairs = [pair for pair in zip(gradients, found[0][1], strict=True) if pair[1] is not None]
        for ours, expected in pairs:
            torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()) + 1e-9)


@WITH_OR_WITHOUT_EFFECT
def test_frames_that_count_one_are_frames(effect: bool) -> None:
    plain = make_frames(DESIGN, V, units=UNITS)
    ones = replace(plain, cells=replace(plain.cells, trust=torch.ones(len(plain.energy), dtype=torch.float64)))
    found = [
        cell_log_likelihood(frames.project(*random_factors(3)), prior_of(effect), NOISE_SD) + frames.log_units
        for frames in (plain, ones)
    ]
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)
