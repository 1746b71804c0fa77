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

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ntfa.inference.alike import Alike
from ntfa.inference.cells import Cells
from ntfa.inference.frames import Projection
from ntfa.inference.normal import LOG_2PI, Normal

# What the K x K matrices of the cells in work may take.
CELL_BYTES = {"cpu": 64 << 20, "cuda": 3 << 30}
SMALL_MATRIX = 96
# Keeps 0 / 0 from being NaN where the weights' sd is zero. Near zero the gradient by it loses digits, but no model's sd
# falls below ntfa.inference.normal.SMALLEST_SD, where eight are left.
TINY = 1e-30


class WeightPrior(NamedTuple):
    """Prior of a cell's weights: W_t ~ N(mean, sd^2) if there is no effect.

    mean, sd : [C, K]
    effect_sd : [C, K] or None
        With it, all frames of a cell share one deviation N(0, effect_sd^2) from the mean.
    mixing : [K, K] or None
        Unit lower triangular L: deviations from the mean are then u L^T, sd and effect_sd being those of u. So weights
        have the full covariance L diag(sd^2) L^T.
    is_of_block : whether sd and effect_sd are the same function of the parameters in all cells of a block
    """

    mean: Tensor
    sd: Tensor
    effect_sd: Tensor | None = None
    mixing: Tensor | None = None
    is_of_block: bool = False

    def log_prob(self, weights: Tensor, cells: Cells) -> Tensor:
        """Log density of the weights of all frames [n_frames, K], the effect integrated out."""
        if self.mixing is not None:
            # |L| = 1, so that a density of u is one of W.
            return self.unmixed().log_prob(unmix(weights, self.mixing), cells)
        to_scaled = weights.new_zeros(())
        if cells.root is not None:
            weights, to_scaled = weights * cells.root, weights.shape[1] * cells.root.log().sum()
        if self.effect_sd is None:
            return Normal(cells.expected(self.mean), self.sd[cells.of_frame]).log_prob(weights) + to_scaled
        n, mass = cells.count.unsqueeze(1), cells.mass.unsqueeze(1)
        mean = cells.weighted_total(weights) / mass
        contrasts = cells.total(weights.square()) - mass * mean.square()
        spread = torch.sqrt(self.sd.square() / mass + self.effect_sd.square())
        log_contrasts = contrasts / self.sd.square() + (n - 1) * (LOG_2PI + 2 * self.sd.log()) + mass.log()
        return Normal(self.mean, spread).log_prob(mean) - 0.5 * log_contrasts.sum() + to_scaled

    def unmixed(self) -> WeightPrior:
        """Return the prior of u, with W = u L^T."""
        assert self.mixing is not None
        return WeightPrior(unmix(self.mean, self.mixing), self.sd, self.effect_sd)


def unmix(weights: Tensor, mixing: Tensor) -> Tensor:
    """Return u with u L^T = weights, row by row."""
    return torch.linalg.solve_triangular(mixing, weights.mT, upper=False, unitriangular=True).mT


def mixture_sd(possible: list[WeightPrior], mean: Tensor) -> Tensor:
    """Sd, in the basis L, of an effect that is one of several at random."""
    variance = torch.zeros_like(mean)
    for prior in possible:
        assert prior.effect_sd is not None
        assert prior.mixing is not None
        apart = unmix(prior.mean - mean, prior.mixing)
        variance += (prior.effect_sd.square() + apart.square()) / len(possible)
    return variance.sqrt()


class WeightPosterior(NamedTuple):
    """Posterior of the weights: a mean for every frame, a covariance of a frame and of the cell's average."""

    mean: Tensor
    covariance: Tensor
    covariance_of_average: Tensor


def log_likelihood(projection: Projection, prior: WeightPrior, noise_sd: Tensor) -> Tensor:
    """Log density of all frames given the factors, weights integrated out: a scalar, open to gradients."""
    constant, parts = _parts(projection, prior, noise_sd)
    return -0.5 * (constant.sum() + sum(part.total for part in parts))


def cell_log_likelihood(projection: Projection, prior: WeightPrior, noise_sd: Tensor) -> Tensor:
    """Log density of each cell's frames given the factors, weights integrated out, [C]; closed to gradients."""
    constant, parts = _parts(projection, prior, noise_sd)
    return -0.5 * (constant.detach() + sum(part.per_cell() for part in parts))


class _Part(NamedTuple):
    """Part of minus twice the log density: of all cells, open to gradients, and of each, closed to them."""

    total: Tensor
    per_cell: Callable[[], Tensor]


def _parts(projection: Projection, prior: WeightPrior, noise_sd: Tensor) -> tuple[Tensor, list[_Part]]:
    """Return what minus twice the log density of each cell is the sum of."""
    cells, gram, n = projection.cells, projection.gram, projection.cells.count
    noise = noise_sd.square()
    total, mass = cells.weighted_total(projection.frames), cells.mass.unsqueeze(-1)
    expected = cells.times_block(prior.mean, gram)
    misfit = projection.energy - 2 * (prior.mean * total).sum(-1) + cells.mass * (prior.mean * expected).sum(-1)
    constant = n * projection.n_voxels * (LOG_2PI + noise.log()) + misfit / noise
    alike = cells.alike if prior.is_of_block else None
    if prior.effect_sd is None:
        residual = projection.frames - cells.expected(expected)
        return constant, [_part(*_mixed(gram, residual, prior.mixing), prior.sd, cells, n, noise_sd, alike)]
    average = total / mass
    residual = (average - expected) * mass.sqrt()
    spread = torch.sqrt(prior.sd.square() + mass * prior.effect_sd.square())
    of_average = _mixed(gram, residual, prior.mixing)
    averages = cells.averaged_alike if prior.is_of_block else None
    between = _part(*of_average, spread, cells.averaged, torch.ones_like(n), noise_sd, averages)
    if cells.have_one_frame:
        return constant, [between]
    contrasts = _mixed(gram, projection.frames - cells.expected(average), prior.mixing)
    return constant, [_part(*contrasts, prior.sd, cells, n - 1, noise_sd, alike), between]


def _part(
    gram: Tensor, residual: Tensor, sd: Tensor, cells: Cells, count: Tensor, noise_sd: Tensor, alike: Alike | None
) -> _Part:
    """Return what `shrunk` does; where cells are alike M is inverted once for all of them."""
    if alike is None or alike.are_single:
        own = shrunk(gram, residual, sd, cells, count, noise_sd)
        return _Part(own.total, lambda: own.per_cell)
    in_group = alike.total(count)
    of_groups = shrunk(gram, residual, sd[alike.first], alike.cells, in_group, noise_sd)

    def per_cell() -> Tensor:
        taken_off = (of_groups.solved * residual * (sd / noise_sd.square())[cells.of_frame]).sum(-1).detach()
        log_det = (of_groups.per_cell + alike.cells.total(taken_off)) / in_group.clamp(min=1)
        return count * log_det[alike.of_cell] - cells.total(taken_off)

    return _Part(of_groups.total, per_cell)


def _mixed(gram: Tensor, residual: Tensor, mixing: Tensor | None) -> tuple[Tensor, Tensor]:
    """Project onto L^T F, whose weights are u, instead of F.

    Residuals, not means: where factors overlap L^-1 of a mean may be large, and its energy nothing but rounding.
    """
    return (gram, residual) if mixing is None else (mixing.mT @ gram @ mixing, residual @ mixing)


def weight_posterior(projection: Projection, prior: WeightPrior, noise_sd: Tensor) -> WeightPosterior:
    """Exact posterior of the weights given the factors.

    E[W_t] = mu + r_t A^-1 / s2 and Cov[W_t] = A^-1, with A = G / s2 + D^-1; under a prior with an effect, the cell's
    average and the frames' deviations from it are shrunk separately. Covariances are those of frames that count one.
    """
    cells, noise = projection.cells, noise_sd.square()
    gram, mass = projection.gram[cells.block], cells.mass.unsqueeze(-1)
    average = cells.weighted_total(projection.frames) / mass
    deviation = projection.frames - cells.expected(average)
    within = _covariance(projection.gram, cells, prior.sd, prior.mixing, noise)
    between = within
    if prior.effect_sd is not None:
        spread = torch.sqrt(prior.sd.square() + mass * prior.effect_sd.square())
        between = _covariance(projection.gram, cells, spread, prior.mixing, noise)
    level = prior.mean + times(average - times(prior.mean, gram), between) / noise
    own = cells.times(deviation, within) / noise
    mean = level[cells.of_frame] + (own if cells.root is None else own / cells.root)
    mass = mass.unsqueeze(-1)
    return WeightPosterior(mean, within + (between - within) / mass, between / mass)


def _covariance(gram: Tensor, cells: Cells, sd: Tensor, mixing: Tensor | None, noise: Tensor) -> Tensor:
    """Return A^-1 of every cell, or L A^-1 L^T with A of the factors L^T F, given sds [C, K]."""
    if mixing is None:
        return posterior_covariance(gram[cells.block], sd, noise)
    return mixing @ posterior_covariance((mixing.mT @ gram @ mixing)[cells.block], sd, noise) @ mixing.mT


def posterior_covariance(gram: Tensor, sd: Tensor, noise: Tensor) -> Tensor:
    """Return A^-1 = S M^-1 S."""
    scale = sd / noise.sqrt()
    cholesky = torch.linalg.cholesky(_one_plus(gram * scale.unsqueeze(-1), scale))
    return sd.unsqueeze(-1) * torch.cholesky_inverse(cholesky) * sd.unsqueeze(-2)


def _one_plus(scaled: Tensor, scale: Tensor) -> Tensor:
    """Return I + X diag(scale), in the place of X = diag(scale) G."""
    scaled.mul_(scale.unsqueeze(-2)).diagonal(dim1=-2, dim2=-1).add_(1)
    return scaled


def times(row: Tensor, matrix: Tensor) -> Tensor:
    """Multiply each row by its matrix: [..., K], [..., K, L] -> [..., L]."""
    return (row.unsqueeze(-2) @ matrix).squeeze(-2)


class Shrunk(NamedTuple):
    """count log|M| - sum_t r_t S M^-1 S r_t^T / s2^2: of all cells, open to gradients, and of each, closed to them.

    solved : [n_rows, K]
        u_t = r_t S M^-1 / s2: the posterior mean of a row's deviation from its mean is S times it. Closed to gradients.
    freedom : [C, K]
        1 - diag M^-1 of each cell: how much of the prior's variance the rows take away. Closed to gradients.
    """

    total: Tensor
    per_cell: Tensor
    solved: Tensor
    freedom: Tensor


def shrunk(gram: Tensor, residual: Tensor, sd: Tensor, cells: Cells, count: Tensor, noise_sd: Tensor) -> Shrunk:
    """Return what the weights' freedom takes off the misfit, less what it costs; see the formula on top."""
    scale = sd / noise_sd
    scaled = residual * cells.spread(scale / noise_sd)
    return Shrunk(*_Shrunk.apply(gram, scale, scaled, cells, count))


class _Shrunk(torch.autograd.Function):
    """count log|M| - sum_t v_t M^-1 v_t^T with M = I + diag(a) G diag(a), summed over cells.

    The gradient of a sum is in closed form and needs each cell's inverse for a moment only: with u_t = v_t M^-1,

        dM = count M^-1 + sum_t u_t^T u_t,    dv_t = -2 u_t,    dG = a dM a,
        da = 2 (count (1 - diag M^-1) + sum_t u_t (v_t - u_t)) / a,  because a G a = M - I

    So it is formed with the value, some cells at a time, and of cells x K x K numbers only a few are ever held.
    """

    @staticmethod
    def forward(
        ctx: Any, gram: Tensor, scale: Tensor, scaled: Tensor, cells: Cells, count: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wanted = any(ctx.needs_input_grad)
        per_cell, solved, freedom = torch.empty_like(count), torch.empty_like(scaled), torch.empty_like(scale)
        grad_gram, grad_scale = torch.zeros_like(gram if wanted else count), torch.empty_like(scale)
        most = max(1, CELL_BYTES[gram.device.type] // (3 * gram.element_size() * gram.shape[-1] ** 2))
        for own, rows in cells.portions(most):
            a, n, block = scale[own], count[own], cells.block[own]
            inverse, log_det = _inverse_and_log_det(_one_plus(gram[block].mul_(a.unsqueeze(-1)), a))
            v = scaled[rows]
            u = v @ inverse
            per_cell[own] = n * log_det - (u * v).sum((-2, -1))
            solved[rows] = u
            freedom[own] = 1 - inverse.diagonal(dim1=-2, dim2=-1)
            if wanted:
                n = n.unsqueeze(-1)
                slope = n * freedom[own] + (u * (v - u)).sum(-2)
                grad_scale[own] = 2 * slope / a.clamp(min=TINY)
                spread = u * a.unsqueeze(-2)
                inverse.mul_((n * a).unsqueeze(-1)).mul_(a.unsqueeze(-2)).baddbmm_(spread.mT, spread)
                grad_gram.index_add_(0, block, inverse)
        ctx.save_for_backward(grad_gram, grad_scale, solved)
        ctx.mark_non_differentiable(per_cell, solved, freedom)
        return per_cell.sum(), per_cell, solved, freedom

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        grad_gram, grad_scale, solved = ctx.saved_tensors
        outer = gradients[0]
        return outer * grad_gram, outer * grad_scale, (-2 * outer) * solved, None, None


def _inverse_and_log_det(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """M^-1, on a GPU in the place of M, and log|M| of positive definite matrices [C, K, K].

    Where rounding made a matrix indefinite, log|M| is NaN, which the bound shows; asking for each would stall a GPU.
    """
    if matrix.device.type == "cpu":
        cholesky, log_det = _cholesky(matrix)
        return torch.cholesky_inverse(cholesky), log_det
    log_det = _to_root(matrix)
    return _square(matrix), log_det


def _cholesky(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Lower triangular L with M = L L^T, and log|M|."""
    cholesky, failed = torch.linalg.cholesky_ex(matrix)
    log_det = 2 * cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return cholesky, log_det.where(failed == 0, torch.nan)


def _to_root(matrix: Tensor) -> Tensor:
    """Put R = L^-1, with M = L L^T, in the place of positive definite matrices [C, K, K]; return log|M|.

    By halves, because on a GPU products are many times faster than substitution: with M = [A B^T; B D], R_A the root of
    A and W = B R_A^T,  D - W W^T has the root R_D, and the lower left of R is -R_D W R_A.
    """
    size = matrix.shape[-1]
    if size <= SMALL_MATRIX:
        cholesky, log_det = _cholesky(matrix)
        one = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
        matrix.copy_(torch.linalg.solve_triangular(cholesky, one.expand_as(matrix), upper=False))
        return log_det
    a, b, d = _halves(matrix)
    log_det = _to_root(a)
    w = b @ a.mT
    d.baddbmm_(w, w.mT, alpha=-1)
    log_det += _to_root(d)
    b.baddbmm_(d, w @ a, beta=0, alpha=-1)
    matrix[:, : a.shape[-1], a.shape[-1] :] = 0
    return log_det


def _square(root: Tensor) -> Tensor:
    """Put R^T R in the place of lower triangular matrices [C, K, K], by halves."""
    if root.shape[-1] <= SMALL_MATRIX:
        return root.copy_(root.mT @ root)
    a, b, d = _halves(root)
    _square(a).baddbmm_(b.mT, b)
    b.copy_(d.mT @ b)
    _square(d)
    root[:, : a.shape[-1], a.shape[-1] :] = b.mT
    return root


def _halves(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Upper left, lower left and lower right of matrices."""
    half = matrix.shape[-1] // 2
    return matrix[:, :half, :half], matrix[:, half:, :half], matrix[:, half:, half:]
