import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import RAW, blobs, cell_rows, frames_of_cells, make_frames
from scipy.stats import multivariate_normal
from torch import Tensor

from ntfa.inference import collapsed
from ntfa.inference.bounds import CollapsedLikelihood, Draw
from ntfa.inference.collapsed import WeightPrior, cell_log_likelihood, log_likelihood, weight_posterior
from ntfa.inference.frames import Frames, Projection, Units
from ntfa.inference.normal import RandomSource

DESIGN = [[3, 1], [2, 3, 4], [1]]
N_VOXELS, N_FACTORS = 11, 3
WITH_OR_WITHOUT_EFFECT = pytest.mark.parametrize("effect", [False, True], ids=["frames alone", "with effect"])


def random_factors(n_blocks: int, n_factors: int = N_FACTORS, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(n_blocks, n_factors, 3, generator=generator, dtype=torch.float64)
    return centers, 0.3 * torch.randn(n_blocks, n_factors, generator=generator, dtype=torch.float64) + 0.5


def random_prior(n_cells: int, effect: bool, n_factors: int = N_FACTORS, seed: int = 2) -> WeightPrior:
    generator = torch.Generator().manual_seed(seed)
    mean, sd, effect_sd = (torch.randn(n_cells, n_factors, generator=generator, dtype=torch.float64) for _ in range(3))
    return WeightPrior(mean, 0.2 + sd.abs(), 0.1 + effect_sd.abs() if effect else None)


def weight_moments(prior: WeightPrior, c: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean [n K] and covariance [n K, n K] of the weights of all n frames of cell c, frame after frame."""
    covariance = np.kron(np.eye(n), np.diag(prior.sd[c].numpy() ** 2))
    if prior.effect_sd is not None:
        covariance += np.kron(np.ones((n, n)), np.diag(prior.effect_sd[c].numpy() ** 2))
    return np.tile(prior.mean[c].numpy(), n), covariance


def dense_log_likelihood(
    frames: Frames, centers: Tensor, log_widths: Tensor, prior: WeightPrior, noise_sd: float
) -> np.ndarray:
    """Log density of each cell's stacked frames [n V], in the units of the data, everything else in those of `frames`.

    y = W F + noise is linear in W, so y is normal with mean E[W] F and covariance F^T Cov[W] F + s^2 I.
    """
    intensity, values = frames.units.intensity, []
    for c, y in enumerate(frames_of_cells(frames)):
        b, n = int(frames.cells.block[c]), len(y)
        loadings = np.kron(np.eye(n), blobs(frames.coordinates, centers[b], log_widths[b]))
        mean, covariance = weight_moments(prior, c, n)
        total = loadings.T @ covariance @ loadings + noise_sd**2 * np.eye(y.size)
        values.append(multivariate_normal(mean @ loadings * intensity, total * intensity**2).logpdf(y.ravel()))
    return np.array(values)


@pytest.fixture
def frames() -> Frames:
    return make_frames(DESIGN, N_VOXELS)


def ours(frames: Frames, centers: Tensor, log_widths: Tensor, prior: WeightPrior, noise_sd: float) -> np.ndarray:
    projection = frames.project(centers, log_widths)
    return cell_log_likelihood(projection, prior, torch.tensor(noise_sd, dtype=torch.float64)).numpy()


@WITH_OR_WITHOUT_EFFECT
@pytest.mark.parametrize("noise_sd", [0.1, 1.3])
def test_equals_the_dense_normal(frames, effect, noise_sd):
    factors, prior = random_factors(3), random_prior(6, effect)
    expected = dense_log_likelihood(frames, *factors, prior, noise_sd)
    np.testing.assert_allclose(ours(frames, *factors, prior, noise_sd), expected, rtol=1e-10, atol=1e-8)


@WITH_OR_WITHOUT_EFFECT
def test_coinciding_factors(frames, effect):
    (centers, log_widths), prior = random_factors(3), random_prior(6, effect)
    centers[:, 1], log_widths[:, 1] = centers[:, 0], log_widths[:, 0]
    expected = dense_log_likelihood(frames, centers, log_widths, prior, 0.7)
    np.testing.assert_allclose(ours(frames, centers, log_widths, prior, 0.7), expected, rtol=1e-10, atol=1e-8)


@WITH_OR_WITHOUT_EFFECT
@pytest.mark.parametrize("sd", [1e-4, 1e-12, 0.0])
def test_vanishing_spread_leaves_the_noise_around_the_mean(frames, effect, sd):
    factors, prior = random_factors(3), random_prior(6, effect)
    tiny = torch.full_like(prior.sd, sd)
    prior = WeightPrior(prior.mean, tiny, tiny if effect else None)
    expected = dense_log_likelihood(frames, *factors, prior, 0.7)
    np.testing.assert_allclose(ours(frames, *factors, prior, 0.7), expected, rtol=1e-10, atol=1e-8)


def test_an_effect_of_no_spread_is_no_effect(frames):
    factors, prior = random_factors(3), random_prior(6, effect=False)
    nothing = prior._replace(effect_sd=torch.zeros_like(prior.sd))
    np.testing.assert_allclose(
        ours(frames, *factors, nothing, 0.7), ours(frames, *factors, prior, 0.7), rtol=1e-12, atol=1e-10
    )


@WITH_OR_WITHOUT_EFFECT
@pytest.mark.parametrize("n_bytes", [1, 10_000, 1 << 30])
def test_total_is_the_sum_of_cells_and_does_not_depend_on_how_many_are_in_work(frames, effect, n_bytes, monkeypatch):
    (centers, log_widths), prior = random_factors(3), random_prior(6, effect)
    leaves = [leaf.requires_grad_() for leaf in (centers, log_widths)]
    noise_sd = torch.tensor(0.7, dtype=torch.float64)
    whole = log_likelihood(frames.project(*leaves), prior, noise_sd)
    gradients = torch.autograd.grad(whole, leaves)
    monkeypatch.setitem(collapsed.CELL_BYTES, "cpu", n_bytes)
    total = log_likelihood(frames.project(*leaves), prior, noise_sd)
    per_cell = cell_log_likelihood(frames.project(*leaves), prior, noise_sd)
    assert not per_cell.requires_grad
    assert total.item() == pytest.approx(per_cell.sum().item(), rel=1e-13)
    assert total.item() == pytest.approx(whole.item(), rel=1e-13)
    for ours, expected in zip(torch.autograd.grad(total, leaves), gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)


def by_halves(matrix):
    """Invert as on a GPU: inverse and log-determinant."""
    inverse = matrix.clone()
    log_det = collapsed._to_root(inverse)
    return collapsed._square(inverse), log_det


@pytest.mark.parametrize("size", [1, 5, 96, 97, 150, 400])
def test_inverse_by_halves_is_that_of_lapack(size):
    generator = torch.Generator().manual_seed(size)
    root = torch.randn(3, size, 2 * size, generator=generator, dtype=torch.float64)
    matrix = torch.eye(size, dtype=torch.float64) + root @ root.mT
    inverse, log_det = by_halves(matrix)
    torch.testing.assert_close(inverse, torch.linalg.inv(matrix), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(log_det, torch.linalg.slogdet(matrix).logabsdet, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ratio", [1.0, 100.0, 3000.0])
def test_inverse_by_halves_is_as_good_as_cholesky_where_factors_overlap(ratio):
    """Wide factors, and weights that are free: errors may grow with the condition number, but not with its square."""
    generator = torch.Generator().manual_seed(0)
    voxels, centers = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (3000, 300))
    shapes = torch.exp(-torch.cdist(centers, voxels).square())
    matrix = (torch.eye(300, dtype=torch.float64) + ratio**2 * shapes @ shapes.T).unsqueeze(0)
    inverse, log_det = by_halves(matrix)
    expected, expected_log_det = collapsed._inverse_and_log_det(matrix)
    allowed = 10 * torch.finfo(torch.float64).eps * float(torch.linalg.cond(matrix))
    assert float((inverse - expected).norm() / expected.norm()) < allowed < 1e-3
    torch.testing.assert_close(log_det, expected_log_det, rtol=allowed, atol=0)


def test_indefinite_matrix_shows_as_nan_and_leaves_the_others_alone():
    matrix = torch.eye(200, dtype=torch.float64).repeat(2, 1, 1)
    matrix[1, 150, 150] = -1
    for inverse, log_det in (by_halves(matrix), collapsed._inverse_and_log_det(matrix)):
        assert torch.isfinite(log_det).tolist() == [True, False]
        torch.testing.assert_close(inverse[0], torch.eye(200, dtype=torch.float64))


@pytest.mark.parametrize("sd", [0.0, 1e-4, 1.0])
def test_gradient_by_a_small_sd_is_that_of_automatic_differentiation(frames, sd):
    (centers, log_widths), prior = random_factors(3), random_prior(6, effect=False)
    projection = frames.project(centers, log_widths)
    spread = torch.full_like(prior.sd, sd).requires_grad_()
    noise_sd = torch.tensor(0.5, dtype=torch.float64)
    (ours,) = torch.autograd.grad(log_likelihood(projection, WeightPrior(prior.mean, spread), noise_sd), spread)
    expected = torch.zeros_like(spread)
    cells, residual = (
        projection.cells,
        projection.frames
        - (prior.mean.unsqueeze(1) @ projection.gram[projection.cells.block]).squeeze(1)[projection.cells.of_frame],
    )
    for c in range(len(spread)):
        rows = residual[cells.of_frame == c]
        own = spread[c].detach().requires_grad_()
        scaled = torch.diag(own) / 0.5
        matrix = torch.eye(len(own), dtype=torch.float64) + scaled @ projection.gram[cells.block[c]] @ scaled
        v = rows @ scaled / 0.5
        value = -0.5 * (len(rows) * torch.logdet(matrix) - (v @ torch.linalg.inv(matrix) * v).sum())
        (expected[c],) = torch.autograd.grad(value, own)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()) + 1e-12)


@WITH_OR_WITHOUT_EFFECT
def test_extreme_cases_have_finite_gradients(frames, effect):
    (centers, log_widths), prior = random_factors(3), random_prior(6, effect)
    centers[:, 1], log_widths[:, 1] = centers[:, 0], log_widths[:, 0]
    parts = [part.clone() for part in prior if isinstance(part, Tensor)]
    parts[1][:] = 1e-4
    parts[1][0] = 1e4
    leaves = [leaf.requires_grad_() for leaf in (centers, log_widths, torch.tensor(1e-3, dtype=torch.float64), *parts)]
    value = log_likelihood(frames.project(centers, log_widths), WeightPrior(*parts), leaves[2])
    assert bool(torch.isfinite(value))
    for gradient in torch.autograd.grad(value, leaves):
        assert bool(torch.isfinite(gradient).all())


@WITH_OR_WITHOUT_EFFECT
def test_single_precision_frames_cost_a_few_digits(effect):
    frames = make_frames(DESIGN, N_VOXELS, dtype=torch.float32)
    factors, prior = random_factors(3), random_prior(6, effect)
    expected = dense_log_likelihood(frames, *factors, prior, 0.7)
    np.testing.assert_allclose(ours(frames, *factors, prior, 0.7), expected, rtol=1e-5, atol=1e-5)


@WITH_OR_WITHOUT_EFFECT
def test_gradient_equals_finite_differences(frames, effect):
    generator = torch.Generator().manual_seed(4)
    root = torch.randn(3, N_FACTORS, 5, generator=generator, dtype=torch.float64)
    projected = torch.randn(14, N_FACTORS, generator=generator, dtype=torch.float64)
    energy = 30 + torch.rand(6, generator=generator, dtype=torch.float64)
    prior = random_prior(6, effect)
    noise_sd = torch.tensor(0.8, dtype=torch.float64)

    def likelihood(root, projected, energy, noise_sd, *prior):
        # A Gram matrix is symmetric: differentiate with respect to what it is the square of.
        projection = Projection(projected, root @ root.mT, energy, frames.cells, N_VOXELS)
        return log_likelihood(projection, WeightPrior(*prior), noise_sd)

    leaves = [root, projected, energy, noise_sd, *(part for part in prior if isinstance(part, Tensor))]
    assert torch.autograd.gradcheck(likelihood, [leaf.requires_grad_() for leaf in leaves])


@WITH_OR_WITHOUT_EFFECT
def test_gradient_of_the_whole_likelihood_equals_finite_differences(effect):
    frames = make_frames([[2, 1], [3]], N_VOXELS, units=Units((0.2, 0.1, 0.0), 1.1, 1.7))
    prior = random_prior(3, effect, n_factors=2)
    likelihood = CollapsedLikelihood(frames)

    def log_likelihood(centers, log_widths, noise_sd, *prior):
        return likelihood(Draw([], centers, log_widths, WeightPrior(*prior), noise_sd), RandomSource(0))[0]

    leaves = [*random_factors(2, n_factors=2), torch.tensor(0.8, dtype=torch.float64)]
    leaves += [part for part in prior if isinstance(part, Tensor)]
    assert torch.autograd.gradcheck(log_likelihood, [leaf.requires_grad_() for leaf in leaves])


@WITH_OR_WITHOUT_EFFECT
@pytest.mark.parametrize("noise_sd", [0.1, 1.3])
def test_weight_posterior_equals_gaussian_conditioning(frames, effect, noise_sd):
    (centers, log_widths), prior = random_factors(3), random_prior(6, effect)
    centers[0, 1], log_widths[0, 1] = centers[0, 0], log_widths[0, 0]
    noise = torch.tensor(noise_sd, dtype=torch.float64)
    posterior = weight_posterior(frames.project(centers, log_widths), prior, noise)
    for c, (rows, y) in enumerate(zip(cell_rows(frames.cells), frames_of_cells(frames), strict=True)):
        b, n = int(frames.cells.block[c]), len(rows)
        loadings = np.kron(np.eye(n), blobs(frames.coordinates, centers[b], log_widths[b]))
        mean, covariance = weight_moments(prior, c, n)
        gain = np.linalg.solve(loadings.T @ covariance @ loadings + noise_sd**2 * np.eye(y.size), loadings.T)
        expected = mean + covariance @ gain.T @ (y.ravel() - mean @ loadings)
        conditional = covariance - covariance @ gain.T @ loadings.T @ covariance
        np.testing.assert_allclose(posterior.mean[rows].numpy().ravel(), expected, rtol=1e-9, atol=1e-10)
        for t in range(n):
            own = slice(t * N_FACTORS, (t + 1) * N_FACTORS)
            np.testing.assert_allclose(posterior.covariance[c], conditional[own, own], rtol=1e-9, atol=1e-10)
        averaging = np.tile(np.eye(N_FACTORS), n) / n
        np.testing.assert_allclose(
            posterior.covariance_of_average[c], averaging @ conditional @ averaging.T, rtol=1e-9, atol=1e-10
        )


@WITH_OR_WITHOUT_EFFECT
def test_prior_density_of_weights_equals_the_dense_normal(frames, effect):
    cells, prior = frames.cells, random_prior(6, effect)
    weights = torch.randn(14, N_FACTORS, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = 0.0
    for c, rows in enumerate(cell_rows(cells)):
        expected += multivariate_normal(*weight_moments(prior, c, len(rows))).logpdf(weights[rows].numpy().ravel())
    assert prior.log_prob(weights, cells).item() == pytest.approx(expected, rel=1e-10, abs=1e-8)


@WITH_OR_WITHOUT_EFFECT
def test_gradient_of_the_prior_density_equals_finite_differences(frames, effect):
    leaves = [part for part in random_prior(6, effect) if isinstance(part, Tensor)]
    leaves.append(torch.randn(14, N_FACTORS, generator=torch.Generator().manual_seed(6), dtype=torch.float64))
    assert torch.autograd.gradcheck(
        lambda *parts: WeightPrior(*parts[:-1]).log_prob(parts[-1], frames.cells),
        [leaf.requires_grad_() for leaf in leaves],
    )


@WITH_OR_WITHOUT_EFFECT
@pytest.mark.parametrize("units", [Units((3.0, -2.0, 5.0), 1.0, 1.0), Units((1.0, 0.0, 9.0), 7.0, 0.02)])
def test_density_in_the_units_of_the_data_does_not_depend_on_the_units_of_inference(effect, units):
    raw = make_frames(DESIGN, N_VOXELS, units=RAW)
    frames = make_frames(DESIGN, N_VOXELS, units=units)
    centers, log_widths = random_factors(3)
    prior = random_prior(6, effect)
    scaled = WeightPrior(*(part / units.intensity for part in prior if isinstance(part, Tensor)))
    noise_sd = torch.tensor(0.7, dtype=torch.float64)
    plain = Draw([], centers, log_widths, prior, noise_sd)
    standardised = replace(
        plain,
        centers=units.standardise(centers),
        log_widths=log_widths - 2 * math.log(units.length),
        weights=scaled,
        noise_sd=noise_sd / units.intensity,
    )
    expected = dense_log_likelihood(raw, centers, log_widths, prior, 0.7).sum()
    for arranged, draw in ((raw, plain), (frames, standardised)):
        value, latents = CollapsedLikelihood(arranged)(draw, RandomSource(0))
        assert value.item() == pytest.approx(expected, rel=1e-9)
        assert len(latents) == 0


def test_mixed_weights_are_those_of_mixed_factors():
    """W = mean + u L^T has the covariance L diag(sd^2) L^T: against the dense normal, posterior included."""
    frames = make_frames([[2, 3], [1, 2]], n_voxels=9, seed=5)
    generator = torch.Generator().manual_seed(1)
    centers = 0.5 * torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    log_widths = 0.3 * torch.randn(2, 3, generator=generator, dtype=torch.float64)
    mixing = torch.eye(3, dtype=torch.float64) + torch.tril(
        torch.randn(3, 3, generator=generator, dtype=torch.float64), -1
    )
    mean, sd, effect_sd = (torch.rand(4, 3, generator=generator, dtype=torch.float64) + 0.2 for _ in range(3))
    noise_sd = torch.tensor(0.8, dtype=torch.float64)
    projection = frames.project(centers, log_widths)
    prior = WeightPrior(mean, sd, effect_sd, mixing)
    per_cell = cell_log_likelihood(projection, prior, noise_sd)
    posterior = weight_posterior(projection, prior, noise_sd)
    recorded = frames_of_cells(frames)
    for c, rows in enumerate(cell_rows(frames.cells)):
        block, n = int(frames.cells.block[c]), len(rows)
        factors = torch.from_numpy(blobs(frames.coordinates, centers[block], log_widths[block]))
        within = mixing @ torch.diag(sd[c] ** 2) @ mixing.T
        shared = mixing @ torch.diag(effect_sd[c] ** 2) @ mixing.T
        weights = torch.kron(torch.eye(n, dtype=torch.float64), within)
        weights += torch.kron(torch.ones(n, n, dtype=torch.float64), shared)
        wide = torch.kron(torch.eye(n, dtype=torch.float64), factors)
        covariance = wide.T @ weights @ wide + noise_sd**2 * torch.eye(n * 9, dtype=torch.float64)
        y = torch.from_numpy(recorded[c]).flatten()
        expected = (mean[c] @ factors).repeat(n)
        normal = torch.distributions.MultivariateNormal(expected, covariance)
        assert float(per_cell[c]) == pytest.approx(float(normal.log_prob(y)), rel=1e-6)
        found = mean[c].repeat(n) + weights @ wide @ torch.linalg.solve(covariance, y - expected)
        torch.testing.assert_close(posterior.mean[rows].flatten(), found, rtol=1e-5, atol=1e-6)
