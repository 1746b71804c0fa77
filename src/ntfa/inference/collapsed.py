"""The collapsed likelihood: weights integrated out exactly.

Given factors, frames and weights are jointly Gaussian. With r_t = y_t F^T - mu G and M = I + S G S / s2, S = diag(sd),

    log p(cell) = -1/2 [ n V log(2 pi s2) + n log|M| - sum_t r_t S M^-1 S r_t^T / s2^2
                         + (sum|y|^2 - 2 mu . sum y F^T + n mu G mu^T) / s2 ]

which is the density of docs/model.md with A = S^-1 M S^-1: the eigenvalues of M never fall below one, so
coinciding factors or a vanishing sd cannot make it singular.

A prior with an *effect* (W_t = effect + N(0, sd^2), effect ~ N(mean, effect_sd^2), one effect a cell) splits into
n - 1 contrasts between frames, which know nothing of the effect, and the cell's mean, which does: the same formula
twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ntfa.inference.cells import Cells, Projection
from ntfa.inference.normal import LOG_2PI, Normal


class WeightPrior(NamedTuple):
    """Prior of a cell's weights: W_t ~ N(mean, sd^2) if there is no effect.

    mean, sd : [C, K]
    effect_sd : [C, K] or None
        With it, all frames of a cell share one deviation N(0, effect_sd^2) from the mean.
    """

    mean: Tensor
    sd: Tensor
    effect_sd: Tensor | None = None

    def log_prob(self, weights: Tensor, cells: Cells) -> Tensor:
        """Log density of the weights of all frames [n_frames, K], the effect integrated out."""
        if self.effect_sd is None:
            owner = cells.of_frame
            return Normal(self.mean[owner], self.sd[owner]).log_prob(weights)
        n = cells.count.unsqueeze(1)
        mean = cells.total(weights) / n
        contrasts = cells.total(weights.square()) - n * mean.square()
        spread = torch.sqrt(self.sd.square() / n + self.effect_sd.square())
        log_contrasts = contrasts / self.sd.square() + (n - 1) * (LOG_2PI + 2 * self.sd.log()) + n.log()
        return Normal(self.mean, spread).log_prob(mean) - 0.5 * log_contrasts.sum()


class WeightPosterior(NamedTuple):
    """Posterior of the weights: a mean for every frame, a covariance of a frame and of the cell's average."""

    mean: Tensor
    covariance: Tensor
    covariance_of_average: Tensor


def cell_log_likelihood(projection: Projection, prior: WeightPrior, noise_sd: Tensor) -> Tensor:
    """Log density of each cell's frames given the factors, weights integrated out, [C]."""
    cells, gram, n = projection.cells, projection.gram, projection.cells.count
    noise = noise_sd.square()
    total = cells.total(projection.frames)
    expected = times(prior.mean, gram[cells.block])
    misfit = projection.energy - 2 * (prior.mean * total).sum(-1) + n * (prior.mean * expected).sum(-1)
    constant = n * projection.n_voxels * (LOG_2PI + noise.log()) + misfit / noise
    if prior.effect_sd is None:
        residual = projection.frames - expected[cells.of_frame]
        return -0.5 * (constant + shrunk(gram, prior.sd, residual, cells, n, noise_sd))
    average = total / n.unsqueeze(-1)
    contrasts = projection.frames - average[cells.of_frame]
    within = shrunk(gram, prior.sd, contrasts, cells, n - 1, noise_sd)
    residual = (average - expected) * n.sqrt().unsqueeze(-1)
    spread = torch.sqrt(prior.sd.square() + n.unsqueeze(-1) * prior.effect_sd.square())
    between = shrunk(gram, spread, residual, cells.averaged, torch.ones_like(n), noise_sd)
    return -0.5 * (constant + within + between)


def weight_posterior(projection: Projection, prior: WeightPrior, noise_sd: Tensor) -> WeightPosterior:
    """Exact posterior of the weights given the factors.

    E[W_t] = mu + r_t A^-1 / s2 and Cov[W_t] = A^-1, with A = G / s2 + D^-1; under a prior with an effect, the cell's
    average and the frames' deviations from it are shrunk separately.
    """
    cells, noise = projection.cells, noise_sd.square()
    gram, n = projection.gram[cells.block], cells.count.unsqueeze(-1)
    average = cells.total(projection.frames) / n
    deviation = projection.frames - average[cells.of_frame]
    within = posterior_covariance(gram, prior.sd, noise)
    between = within
    if prior.effect_sd is not None:
        between = posterior_covariance(gram, torch.sqrt(prior.sd.square() + n * prior.effect_sd.square()), noise)
    level = prior.mean + times(average - times(prior.mean, gram), between) / noise
    mean = level[cells.of_frame] + cells.times(deviation, within) / noise
    n = n.unsqueeze(-1)
    return WeightPosterior(mean, within + (between - within) / n, between / n)


def posterior_covariance(gram: Tensor, sd: Tensor, noise: Tensor) -> Tensor:
    """Return A^-1 = S M^-1 S."""
    cholesky = torch.linalg.cholesky(_one_plus(gram, sd / noise.sqrt()))
    return sd.unsqueeze(-1) * torch.cholesky_inverse(cholesky) * sd.unsqueeze(-2)


def _one_plus(gram: Tensor, scale: Tensor) -> Tensor:
    """Return I + diag(scale) G diag(scale)."""
    matrix = gram * scale.unsqueeze(-1)
    matrix.mul_(scale.unsqueeze(-2)).diagonal(dim1=-2, dim2=-1).add_(1)
    return matrix


def times(row: Tensor, matrix: Tensor) -> Tensor:
    """Multiply each row by its matrix: [..., K], [..., K, L] -> [..., L]."""
    return (row.unsqueeze(-2) @ matrix).squeeze(-2)


def shrunk(gram: Tensor, sd: Tensor, residual: Tensor, cells: Cells, count: Tensor, noise_sd: Tensor) -> Tensor:
    """Return count log|M| - sum_t r_t S M^-1 S r_t^T / s2^2 of each cell."""
    scale = sd / noise_sd
    scaled: Tensor = residual * (scale / noise_sd)[cells.of_frame]
    value: Tensor = _Shrunk.apply(gram, scale, scaled, cells, count)
    return value


class _Shrunk(torch.autograd.Function):
    """count log|M| - sum_t v_t M^-1 v_t^T with M = I + diag(a) G diag(a), for each cell.

    The gradient is in closed form and shares the value's one Cholesky a cell: with u_t = v_t M^-1,
    dM = count M^-1 + sum_t u_t^T u_t and dv_t = -2 u_t.
    """

    @staticmethod
    def forward(ctx: Any, gram: Tensor, scale: Tensor, scaled: Tensor, cells: Cells, count: Tensor) -> Tensor:
        cholesky = torch.linalg.cholesky(_one_plus(gram[cells.block], scale))
        inverse = torch.cholesky_inverse(cholesky)
        solved = cells.times(scaled, inverse)
        ctx.save_for_backward(gram, scale, inverse, solved, count)
        ctx.cells = cells
        log_det = 2 * cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return count * log_det - cells.total((solved * scaled).sum(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        gram, scale, inverse, solved, count = ctx.saved_tensors
        cells, outer = ctx.cells, gradients[0]
        grad_matrix = cells.scatter(solved).add_(inverse * count[:, None, None]).mul_(outer[:, None, None])
        grad_scale = 2 * times(scale, grad_matrix * gram[cells.block])
        grad_matrix.mul_(scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2))
        grad_gram = torch.zeros_like(gram).index_add_(0, cells.block, grad_matrix)
        grad_scaled = solved * (-2 * outer[cells.of_frame]).unsqueeze(-1)
        return grad_gram, grad_scale, grad_scaled, None, None
