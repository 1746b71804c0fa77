from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import RAW, blobs, frames_of_cells, make_frames
from scipy.stats import multivariate_normal
from test_collapsed import random_factors
from torch import Tensor

from ntfa.inference.bounds import Draw, importance_weighted
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior, cell_log_likelihood
from ntfa.inference.frames import Frames, Units
from ntfa.inference.normal import Normal, RandomSource, unconstrained
from ntfa.inference.regression import (
    CollapsedLoadings,
    SampledLoadings,
    TurnedDesign,
    design_log_likelihood,
    loading_posterior,
    ridge_block_loadings,
    ridge_loadings,
)

LENGTHS = [[3, 1], [2, 3, 4], [1]]
N_VOXELS, N_FACTORS, N_REGRESSORS = 7, 2, 3
NOISE_SD = 0.7
NO_WEIGHTS = WeightPrior(torch.zeros(()), torch.zeros(()))


def random(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_design(rows: Tensor, units: Units = RAW) -> Frames:
    frames = make_frames(LENGTHS, N_VOXELS, units=units)
    return replace(frames, cells=replace(frames.cells, design=rows))


DESIGNS = {
    "numbers": random(6, N_REGRESSORS),
    "indicators": torch.eye(3, dtype=torch.float64)[make_frames(LENGTHS, N_VOXELS).cells.stimulus],
    "redundant": torch.cat([torch.ones(6, 1, dtype=torch.float64), random(6, 1), 2 * random(6, 1)], 1),
}


@pytest.fixture(params=DESIGNS.values(), ids=DESIGNS.keys())
def frames(request: pytest.FixtureRequest) -> Frames:
    return with_design(request.param)


@pytest.fixture
def loadings() -> Normal:
    return Normal(random(N_REGRESSORS, N_FACTORS, seed=4), torch.tensor([0.4, 1.2], dtype=torch.float64))


def blocks(frames: Frames, centers: Tensor, log_widths: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """Frames [n V] of every block, and the matrix [J K, n V] that turns its loadings into them."""
    cells, values = frames.cells, frames_of_cells(frames)
    found = []
    for b in range(len(frames.blocks)):
        own = [c for c in range(len(cells.block)) if cells.block[c] == b]
        design = np.concatenate([np.tile(cells.design[c], (len(values[c]), 1)) for c in own])
        factors = blobs(frames.coordinates, centers[b], log_widths[b])
        found.append((np.concatenate([values[c] for c in own]).ravel(), np.kron(design.T, factors)))
    return found


def prior_moments(loadings: Normal) -> tuple[np.ndarray, np.ndarray]:
    return loadings.mean.numpy().ravel(), np.diag(np.tile(loadings.sd.numpy() ** 2, N_REGRESSORS))


def dense(frames: Frames, factors: tuple[Tensor, Tensor], loadings: Normal) -> list[float]:
    """Log density of each block's frames in the units of the data, from the covariance of all of them together."""
    mean, covariance = prior_moments(loadings)
    unit = frames.units.intensity
    return [
        multivariate_normal(
            unit * mean @ matrix, unit**2 * (matrix.T @ covariance @ matrix + NOISE_SD**2 * np.eye(y.size))
        ).logpdf(y)
        for y, matrix in blocks(frames, *factors)
    ]


def noise_sd() -> Tensor:
    return torch.tensor(NOISE_SD, dtype=torch.float64)


def test_equals_the_dense_normal(frames, loadings):
    factors = random_factors(3, N_FACTORS)
    ours = design_log_likelihood(frames.project(*factors), TurnedDesign.of(frames.cells), loadings, noise_sd())
    assert float(ours) == pytest.approx(sum(dense(frames, factors, loadings)), rel=1e-10)


def test_likelihood_is_in_the_units_of_the_data(loadings):
    frames = with_design(DESIGNS["numbers"], Units((0.2, 0.1, 0.0), 1.1, 1.7))
    factors = random_factors(3, N_FACTORS)
    draw = Draw([], *factors, NO_WEIGHTS, noise_sd(), loadings)
    value, latents = CollapsedLoadings(frames)(draw, RandomSource(0))
    assert float(value) == pytest.approx(sum(dense(frames, factors, loadings)), rel=1e-10)
    assert len(latents) == 0


def test_indicators_equal_cells_with_an_effect(loadings):
    frames = with_design(DESIGNS["indicators"])
    projection = frames.project(*random_factors(3, N_FACTORS))
    mean = frames.cells.design @ loadings.mean
    prior = WeightPrior(mean, torch.zeros_like(mean), loadings.sd.expand_as(mean))
    per_cell = cell_log_likelihood(projection, prior, noise_sd())
    total = design_log_likelihood(projection, TurnedDesign.of(frames.cells), loadings, noise_sd())
    assert float(total) == pytest.approx(float(per_cell.sum()), rel=1e-12)


def test_gradient_equals_finite_differences(frames, loadings):
    likelihood = CollapsedLoadings(frames)

    def log_likelihood(centers, log_widths, noise_sd, mean, sd):
        return likelihood(Draw([], centers, log_widths, NO_WEIGHTS, noise_sd, Normal(mean, sd)), RandomSource(0))[0]

    leaves = [*random_factors(3, N_FACTORS), noise_sd(), *loadings]
    assert torch.autograd.gradcheck(log_likelihood, [leaf.requires_grad_() for leaf in leaves])


def test_posterior_equals_gaussian_conditioning(frames, loadings):
    factors = random_factors(3, N_FACTORS)
    posterior = loading_posterior(frames.project(*factors), TurnedDesign.of(frames.cells), loadings, noise_sd())
    mean, covariance = prior_moments(loadings)
    for b, (y, matrix) in enumerate(blocks(frames, *factors)):
        gain = covariance @ matrix @ np.linalg.inv(matrix.T @ covariance @ matrix + NOISE_SD**2 * np.eye(y.size))
        expected = mean + gain @ (y - mean @ matrix)
        variance = np.diag(covariance - gain @ matrix.T @ covariance)
        np.testing.assert_allclose(posterior.mean[b].ravel(), expected, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(posterior.sd[b].ravel(), np.sqrt(variance), rtol=1e-9, atol=1e-10)


def test_what_a_block_says_nothing_of_stays_as_the_prior_has_it(loadings):
    frames = with_design(DESIGNS["indicators"])
    projection = frames.project(*random_factors(3, N_FACTORS))
    posterior = loading_posterior(projection, TurnedDesign.of(frames.cells), loadings, noise_sd())
    seen = torch.zeros(3, N_REGRESSORS, dtype=torch.bool)
    seen[frames.cells.block, frames.cells.design.argmax(1)] = True
    assert 0 < (~seen).sum() < seen.numel()
    np.testing.assert_array_equal(posterior.mean[~seen], loadings.mean.expand(3, -1, -1)[~seen])
    np.testing.assert_allclose(posterior.sd[~seen], loadings.sd.expand_as(posterior.sd[~seen]), rtol=1e-12)
    assert (posterior.sd[seen] < loadings.sd).all()


def test_sampled_loadings_estimate_the_same_evidence(loadings):
    """With the exact posterior for q, which factorises if there is one loading, every importance weight is exact."""
    frames = with_design(DESIGNS["numbers"][:, :1])
    centers, log_widths = (part[:, :1] for part in random_factors(3, N_FACTORS))
    loadings = Normal(loadings.mean[:1, :1], loadings.sd[:1])
    draw = Draw([], centers, log_widths, NO_WEIGHTS, noise_sd(), loadings)
    exact, _ = CollapsedLoadings(frames)(draw, RandomSource(0))
    posterior = loading_posterior(
        frames.project(centers, log_widths), TurnedDesign.of(frames.cells), loadings, noise_sd()
    )
    sampled = SampledLoadings(frames, posterior.mean, sd=1.0)
    with torch.no_grad():
        sampled.loadings.raw_sd.copy_(unconstrained(posterior.sd))
    for seed in range(3):
        value, latents = sampled(draw, RandomSource(seed))
        bound = importance_weighted([latents], [value])[1].read()
        assert bound.value == pytest.approx(float(exact), rel=1e-10)


def with_pseudo_observations(design: Tensor, count: Tensor, weights: Tensor) -> np.ndarray:
    """Least squares on frames one by one and, for each regressor, a frame in which it alone is one and weights zero."""
    repeat = count.long()
    rows = torch.cat([design.repeat_interleave(repeat, 0), torch.eye(design.shape[1])])
    target = torch.cat([weights.repeat_interleave(repeat, 0), torch.zeros(design.shape[1], weights.shape[1])])
    return np.linalg.lstsq(rows.numpy(), target.numpy(), rcond=None)[0]


def test_regression_equals_least_squares(frames):
    cells, weights = frames.cells, random(6, N_FACTORS, seed=9)
    shared = with_pseudo_observations(cells.design, cells.count, weights)
    np.testing.assert_allclose(ridge_loadings(cells, weights), shared, atol=1e-10)
    residual = weights - cells.design @ torch.from_numpy(shared)
    for b, found in enumerate(ridge_block_loadings(cells, weights)):
        own = cells.block == b
        expected = shared + with_pseudo_observations(cells.design[own], cells.count[own], residual[own])
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_cells_without_a_design_are_refused():
    cells: Cells = make_frames(LENGTHS, N_VOXELS).cells
    with pytest.raises(ValueError, match="design"):
        TurnedDesign.of(cells)
