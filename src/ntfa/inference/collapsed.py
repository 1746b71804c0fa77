"""The collapsed likelihood: weights integrated out exactly.

Given factors, frames and weights are jointly Gaussian. With S = diag(sd) and M = I + S G S / s2,

    log p(cell) = -1/2 [ n V log(2 pi s2) + n log|M| - tr(M^-1 S R S) / s2^2
                         + (sum|y|^2 - 2 mu . sum y F^T + n mu G mu^T) / s2 ]
    R = sum_t r_t^T r_t,   r_t = y_t F^T - mu G

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

from ntfa.inference.cells import Cells, CellStatistics
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


def cell_log_likelihood(statistics: CellStatistics, prior: WeightPrior, noise_sd: Tensor) -> Tensor:
    """Log density of each cell's frames given the factors, weights integrated out, [C]."""
    n, gram = statistics.count, statistics.gram
    noise = noise_sd.square()
    expected = _times_gram(prior.mean, gram)
    misfit = statistics.energy - 2 * (prior.mean * statistics.total).sum(-1) + n * (prior.mean * expected).sum(-1)
    constant = n * statistics.n_voxels * (LOG_2PI + noise.log()) + misfit / noise
    if prior.effect_sd is None:
        weighed = _shrunk(gram, prior.sd, _residual_scatter(statistics, expected), n, noise)
    else:
        average = statistics.total / n.unsqueeze(-1)
        contrasts = statistics.scatter - n[:, None, None] * _outer(average)
        residual = average - expected
        spread = torch.sqrt(prior.sd.square() + n.unsqueeze(-1) * prior.effect_sd.square())
        weighed = _shrunk(gram, prior.sd, contrasts, n - 1, noise)
        weighed = weighed + _shrunk(gram, spread, n[:, None, None] * _outer(residual), torch.ones_like(n), noise)
    return -0.5 * (constant + weighed)


def weight_posterior(
    projected: Tensor, gram: Tensor, cells: Cells, prior: WeightPrior, noise_sd: Tensor
) -> WeightPosterior:
    """Exact posterior of the weights given the factors.

    E[W_t] = mu + r_t A^-1 / s2 and Cov[W_t] = A^-1, with A = G / s2 + D^-1; under a prior with an effect, the cell's
    average and the frames' deviations from it are shrunk separately.

    Parameters
    ----------
    projected : [n_frames, K]
    gram : [B, K, K]
    """
    noise = noise_sd.square()
    gram = gram[cells.block]
    n = cells.count[:, None, None]
    average = cells.total(projected) / cells.count.unsqueeze(-1)
    deviation = projected - average[cells.of_frame]
    within = _posterior_covariance(gram, prior.sd, noise)
    between = within
    if prior.effect_sd is not None:
        effect = cells.count.unsqueeze(-1) * prior.effect_sd.square()
        between = _posterior_covariance(gram, torch.sqrt(prior.sd.square() + effect), noise)
    residual = average - _times_gram(prior.mean, gram)
    level = prior.mean + _times_gram(residual, between) / noise
    mean = level[cells.of_frame] + cells.times(deviation, within) / noise
    return WeightPosterior(mean, within + (between - within) / n, between / n)


def _posterior_covariance(gram: Tensor, sd: Tensor, noise: Tensor) -> Tensor:
    """Return A^-1 = S M^-1 S."""
    return _scaled(torch.cholesky_inverse(torch.linalg.cholesky(_shrinkage(gram, sd, noise))), sd)


def _residual_scatter(statistics: CellStatistics, expected: Tensor) -> Tensor:
    """Return R = sum_t r_t^T r_t from the sums over frames."""
    n = statistics.count[:, None, None]
    cross = statistics.total.unsqueeze(-1) * expected.unsqueeze(-2)
    return statistics.scatter - cross - cross.mT + n * _outer(expected)


def _shrunk(gram: Tensor, sd: Tensor, scatter: Tensor, count: Tensor, noise: Tensor) -> Tensor:
    """Return n log|M| - tr(M^-1 S R S) / s2^2."""
    shrunk: Tensor = _LogDetMinusTrace.apply(_shrinkage(gram, sd, noise), _scaled(scatter, sd) / noise.square(), count)
    return shrunk


def _shrinkage(gram: Tensor, sd: Tensor, noise: Tensor) -> Tensor:
    """Return M = I + S G S / s2."""
    return torch.eye(sd.shape[-1], dtype=sd.dtype, device=sd.device) + _scaled(gram, sd) / noise


def _scaled(matrix: Tensor, sd: Tensor) -> Tensor:
    return sd.unsqueeze(-1) * matrix * sd.unsqueeze(-2)


def _times_gram(row: Tensor, gram: Tensor) -> Tensor:
    return (row.unsqueeze(-2) @ gram).squeeze(-2)


def _outer(row: Tensor) -> Tensor:
    return row.unsqueeze(-1) * row.unsqueeze(-2)


class _LogDetMinusTrace(torch.autograd.Function):
    """count log|M| - tr(M^-1 Q), with its gradient in closed form: one Cholesky serves value and gradient."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, scatter: Tensor, count: Tensor) -> Tensor:
        cholesky = torch.linalg.cholesky(matrix)
        inverse = torch.cholesky_inverse(cholesky)
        ctx.save_for_backward(inverse, scatter, count)
        log_det = 2 * cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return count * log_det - (inverse * scatter).sum((-2, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        inverse, scatter, count = ctx.saved_tensors
        outer = gradients[0][:, None, None]
        grad_matrix = outer * (count[:, None, None] * inverse + inverse @ scatter @ inverse)
        return grad_matrix, -outer * inverse, None
