"""Responses with an individual part: every participant's own loadings integrated out exactly.

Stimulus s has features h_s [r], participant p loadings that deviate from everybody's by E_p [r, K], and a frame

    W_t = mu_t + h_s^T E_p + u_t L^T,    u_t ~ N(0, diag sd^2),    E_p[d] = e_d L^T,  e_d ~ N(0, diag tau^2)

with mu_t the group's response. Frames of a cell share mu and h, so the cell's n frames are n - 1 contrasts, which know
nothing of E_p, and their average, times sqrt(n). The averages of a participant's cells have the design X with rows
sqrt(n_c) h_c (n_c being what its frames count together, where they count differently). Let X = Q S V^T. The rotated
averages Q^T Y are independent, the j-th with weights of variance
sd^2 + S_j^2 tau^2 (in the basis L); what is orthogonal to Q has variance sd^2, as the contrasts have. So the density is
that of `ntfa.inference.collapsed` twice, with F replaced by L^T F: Y F^T by Y F^T L, F F^T by L^T F F^T L.

The features are learned, so a gradient by X is needed. Through the singular vectors it would not be finite where two
singular values agree. But the density depends on X through X X^T alone, and with alpha_t = Cov^-1 residual_t, projected
onto the factors,

    d log p / d X = (alpha diag(tau^2) alpha^T - Q diag(c) Q^T) X,    c_j = sum_k tau_k^2 [Cov_j^-1]_kk

which is finite always. It is added by hand, Q and S being constants otherwise.

Participants who lack voxels have Gram matrices of their own (`ntfa.inference.coverage`), and a rotation mixes rows of
one participant only; so nothing changes but that rows of each group of participants have that group's matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ntfa.inference import jacobi
from ntfa.inference.bounds import BlockByBlock, Draw, LatentLike
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import posterior_covariance, shrunk
from ntfa.inference.frames import Frames, Projection
from ntfa.inference.normal import LOG_2PI, RandomSource
from ntfa.inference.streaming import is_stored

SMALLEST_RATIO = 1e-9
"""Squared singular values below this share of the largest count as zero."""


class IndividualWeights(NamedTuple):
    """Prior of the weights of frames whose participants have loadings of their own.

    mean : [C, K], the group's response in each cell
    features : [C, r], of each cell's stimulus, scaled by how much loadings vary between participants
    sd : [K], of frames around their mean, in the basis `mixing`
    loading_sd : [K], tau
    mixing : [K, K], L, unit lower triangular
    """

    mean: Tensor
    features: Tensor
    sd: Tensor
    loading_sd: Tensor
    mixing: Tensor


class Rotation(NamedTuple):
    """Singular value decomposition of the designs of all participants (blocks), padded with zeros.

    left [B, m, r], squared [B, r], right [B, r, r] : Q, S^2 and V; S^2 is zero where the design lacks rank
    kept : [B, r], 1 where there is such a direction, 0 elsewhere
    """

    left: Tensor
    squared: Tensor
    right: Tensor
    kept: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, design: Tensor) -> Rotation:
        """Decompose designs [B, m, r]."""
        values, right = _eigh(design.mT @ design)
        kept = (values > SMALLEST_RATIO * values.amax(1, keepdim=True).clamp(min=1e-30)).to(values)
        scale = kept * values.clamp(min=1e-300).rsqrt()
        return cls((design @ right) * scale.unsqueeze(1), kept * values, right, kept)


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, on a GPU by what can be part of a recorded step."""
    by_rotations = matrix.is_cuda and matrix.shape[-1] <= jacobi.MOST_ROWS
    values, vectors = jacobi.eigh(matrix) if by_rotations else torch.linalg.eigh(matrix)
    return values, vectors


class LoadingsPosterior(NamedTuple):
    """What the frames say of the participants' own loadings.

    mean : [B, r, K], E_p for features that are not scaled
    rotation : the designs, which the covariances depend on
    weights : [B, m, K], expected weights of each cell's average, times sqrt(n)
    contrast_gain : energy that the expected weights take out of the contrasts within cells
    n_rest, freedom : [B], number of each participant's rows that no feature reaches, and how many weights each of these
        determines
    """

    mean: Tensor
    rotation: Rotation
    weights: Tensor
    contrast_gain: Tensor
    n_rest: Tensor
    freedom: Tensor


class LoadingsLikelihood(nn.Module):
    """Weights and individual loadings integrated out exactly."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self.frames = frames
        self._kept: tuple[Frames, tuple[Tensor, Tensor], Projection] | None = None

    def forward(self, draw: Draw, noise: RandomSource) -> tuple[Tensor, Sequence[LatentLike]]:
        """Return log p(frames | draw)."""
        frames, prior = self.frames, draw.individual
        assert prior is not None
        variables = (draw.centers, draw.log_widths, draw.noise_sd, *prior)
        if not draw.centers.requires_grad:
            value = log_likelihood(self._projected_once(draw), prior, draw.noise_sd)
        elif is_stored(frames.blocks):
            axes = ("all", "all", "all", "cell", "cell", "all", "all", "all")
            value = BlockByBlock.apply(frames, _evaluate, axes, *variables)
        else:
            value = _evaluate(frames, *variables)
        return value + frames.log_units.sum(), ()

    def _projected_once(self, draw: Draw) -> Projection:
        """Project onto factors that stay where they are: no step after the first needs the frames again."""
        factors = draw.centers, draw.log_widths
        if self._kept is None or self._kept[0] is not self.frames or not all(map(_same, self._kept[1], factors)):
            self._kept = self.frames, factors, self.frames.project(*factors)
        return self._kept[2]


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share their memory; by address, since values on a GPU are slow to compare."""
    return one.data_ptr() == other.data_ptr() and one._version == other._version


def _evaluate(frames: Frames, centers: Tensor, log_widths: Tensor, noise_sd: Tensor, *prior: Tensor) -> Tensor:
    return log_likelihood(frames.project(centers, log_widths), IndividualWeights(*prior), noise_sd)


def log_likelihood(projection: Projection, prior: IndividualWeights, noise_sd: Tensor) -> Tensor:
    """Log density of all frames given factors and features: a scalar, open to gradients."""
    cells, noise = projection.cells, noise_sd.square()
    misfit = _misfit(projection, prior)
    constant = (cells.count * projection.n_voxels * (LOG_2PI + noise.log()) + misfit / noise).sum()
    rows = _Rows.of(projection, prior, noise_sd)
    value = -0.5 * (constant + rows.rest.total + rows.rotated.total)
    slope = rows.design_gradient(prior)
    # Worth nothing, but with the gradient by the design that the constant Q and S leave out.
    return value + (slope * rows.design).sum() - (slope * rows.design.detach()).sum()


def _misfit(projection: Projection, prior: IndividualWeights) -> Tensor:
    """|y - mu F|^2 of each cell, [C]."""
    cells, expected = projection.cells, projection.expected(prior.mean)
    total = cells.weighted_total(projection.frames)
    return projection.energy + (prior.mean * (cells.mass.unsqueeze(-1) * expected - 2 * total)).sum(-1)


@torch.no_grad()
def block_log_likelihoods(projection: Projection, prior: IndividualWeights, noise_sd: Tensor) -> Tensor:
    """Log density of each participant's frames, [B]: `log_likelihood` by its parts."""
    cells, noise, n = projection.cells, noise_sd.square(), projection.cells.count
    misfit = _misfit(projection, prior)
    constant = cells.blocks_total(n * projection.n_voxels * (LOG_2PI + noise.log()) + misfit / noise)
    rows = _Rows.of(projection, prior, noise_sd)
    kept = rows.rotation.kept.sum(1)
    gained = (rows.rest.solved * rows.residual_rest * prior.sd / noise).sum(-1)
    of_groups = rows.rest.per_cell + rows.rest_cells.total(gained)
    log_det = rows.of_blocks(of_groups / rows.n_rest.clamp(min=1))
    by_contrast = constant.new_zeros(len(constant)).index_add(
        0, cells.block[cells.of_frame], gained[: rows.n_contrasts]
    )
    of_rest = gained[rows.n_contrasts :].unflatten(0, rows.design.shape[:2]).sum(1)
    rest = (cells.blocks_total(n) - kept) * log_det - by_contrast - of_rest
    rotated = rows.rotated.per_cell.unflatten(0, rows.rotation.kept.shape).sum(1)
    return -0.5 * (constant + rest + rotated)


@torch.no_grad()
def loadings_posterior(projection: Projection, prior: IndividualWeights, noise_sd: Tensor) -> LoadingsPosterior:
    """Exact posterior means of the participants' own loadings and of the weights of each cell's average."""
    rows = _Rows.of(projection, prior, noise_sd)
    deviation, rest = rows.weights(prior)
    singular = rows.rotation.squared.sqrt()
    inverse = rows.rotation.kept / singular.clamp(min=1e-150)
    share = prior.loading_sd.square() * rows.rotation.squared.unsqueeze(-1) / rows.rotated_sd.square()
    scores = share * deviation * inverse.unsqueeze(-1)
    mean = rows.rotation.right @ scores @ prior.mixing.mT
    group = projection.cells.by_block(prior.mean * projection.cells.mass.sqrt().unsqueeze(-1))
    weights = group + (rows.rotation.left @ deviation + rest) @ prior.mixing.mT
    n_rest = projection.cells.blocks_total(projection.cells.count) - rows.rotation.kept.sum(1)
    freedom = rows.of_blocks(rows.rest.freedom.sum(1)).expand(len(n_rest))
    return LoadingsPosterior(mean, rows.rotation, weights, rows.contrast_gain(prior), n_rest, freedom)


@torch.no_grad()
def loadings_covariance(gram: Tensor, prior: IndividualWeights, squared: Tensor, noise_sd: Tensor) -> Tensor:
    """Posterior covariance of rotated loadings (E_p V)_j in the basis L, [..., K, K], for squared singular values.

    Given its row of weights w_j = S_j e_j + u_j, e_j has a variance that no frame reduces; the rest shrinks with w_j's.
    """
    gram = prior.mixing.mT @ gram @ prior.mixing
    tau, sd = prior.loading_sd.square(), prior.sd.square()
    total = sd + squared.unsqueeze(-1) * tau
    of_row = posterior_covariance(gram.expand(*squared.shape, -1, -1).clone(), total.sqrt(), noise_sd.square())
    slope = squared.sqrt().unsqueeze(-1) * tau / total
    return torch.diag_embed(tau * sd / total) + slope.unsqueeze(-1) * of_row * slope.unsqueeze(-2)


class _Rows:
    """The frames of all participants as independent rows: rotated averages, and all that is orthogonal to them.

    gram : [Q, K, K] in the basis L, of each group of participants who have the same voxels
    rest_cells : the rows of the second kind, those of a group as one cell; n_rest [Q], how many there are
    """

    def __init__(
        self, design: Tensor, rotation: Rotation, rotated_sd: Tensor, parts: tuple[Tensor, Tensor], n_contrasts: int
    ) -> None:
        self.design, self.rotation, self.rotated_sd = design, rotation, rotated_sd
        self.residual_rotated, self.residual_rest = parts
        self.n_contrasts = n_contrasts

    @classmethod
    def of(cls, projection: Projection, prior: IndividualWeights, noise_sd: Tensor) -> _Rows:
        cells, mass = projection.cells, projection.cells.mass.unsqueeze(-1)
        average = cells.weighted_total(projection.frames) / mass
        contrasts = (projection.frames - cells.expected(average)) @ prior.mixing
        residual = (average - projection.expected(prior.mean)) * mass.sqrt() @ prior.mixing
        design = cells.by_block(prior.features * mass.sqrt())
        rotation, padded = Rotation.of(design), cells.by_block(residual)
        rotated = rotation.left.mT @ padded
        orthogonal = padded - rotation.left @ rotated
        spread = torch.sqrt(prior.sd.square() + rotation.squared.unsqueeze(-1) * prior.loading_sd.square())
        rows = cls(
            design, rotation, spread, (rotated, torch.cat([contrasts, orthogonal.flatten(0, 1)])), len(contrasts)
        )
        rows._shrink(prior, projection, noise_sd)
        return rows

    def _shrink(self, prior: IndividualWeights, projection: Projection, noise_sd: Tensor) -> None:
        """Evaluate what the freedom of the weights is worth in the rows of either kind."""
        self.gram = prior.mixing.mT @ projection.distinct_gram @ prior.mixing
        self.groups, cells, kept = projection.groups, projection.cells, self.rotation.kept
        layout = _layout(projection, self.design.shape[1], kept.shape[1])
        self.rest_cells = layout.rest
        if self.groups is None:
            self.n_rest = (cells.count.sum() - kept.sum()).unsqueeze(0)
        else:
            self.n_rest = self.groups.total(cells.blocks_total(cells.count) - kept.sum(1))
        sd = prior.sd.expand(len(layout.rest.block), -1)
        self.rest = shrunk(self.gram, self.residual_rest, sd, layout.rest, self.n_rest, noise_sd)
        spread, rotated = self.rotated_sd.flatten(0, 1), self.residual_rotated.flatten(0, 1)
        self.rotated = shrunk(self.gram, rotated, spread, layout.rotated, kept.flatten(), noise_sd)

    def of_blocks(self, per_group: Tensor) -> Tensor:
        """Return each participant's value, [Q] -> [B]; one for all stays one."""
        return per_group if self.groups is None else per_group[self.groups.of_block]

    @torch.no_grad()
    def weights(self, prior: IndividualWeights) -> tuple[Tensor, Tensor]:
        """Posterior means of u: of rotated rows [B, r, K], and of what is orthogonal to them, [B, m, K]."""
        rotated = self.rotated.solved.unflatten(0, self.rotation.kept.shape) * self.rotated_sd
        rest = self.rest.solved[self.n_contrasts :].unflatten(0, self.design.shape[:2]) * prior.sd
        return rotated, rest

    @torch.no_grad()
    def contrast_gain(self, prior: IndividualWeights) -> Tensor:
        """How much less energy contrasts have once their expected weights are taken out."""
        gain = self.n_rest.new_zeros(())
        for rows, gram in zip(self.rest_cells.frames, self.gram, strict=True):
            own = rows[0][rows[0] < self.n_contrasts]
            weights = self.rest.solved[own] * prior.sd
            gain += (weights * (2 * self.residual_rest[own] - weights @ gram)).sum()
        return gain

    @torch.no_grad()
    def design_gradient(self, prior: IndividualWeights) -> Tensor:
        """Return d log p / d X; see the formula on top."""
        tau = prior.loading_sd.square()
        rotated = self.rotated.solved.unflatten(0, self.rotation.kept.shape) / self.rotated_sd
        rest = self.rest.solved[self.n_contrasts :].unflatten(0, self.design.shape[:2]) / prior.sd
        alpha = self.rotation.left @ rotated + rest
        freedom = self.rotated.freedom.unflatten(0, self.rotation.kept.shape)
        cost = self.rotation.kept * (tau / self.rotated_sd.square() * freedom).sum(-1)
        along = self.rotation.left.mT @ self.design
        return alpha * tau @ (alpha.mT @ self.design) - self.rotation.left @ (cost.unsqueeze(-1) * along)


class _Layout(NamedTuple):
    """Rows as cells: those of a group that no feature reaches as one cell, rotated averages each as its own."""

    rest: Cells
    rotated: Cells


def _layout(projection: Projection, n_each: int, n_features: int) -> _Layout:
    """Say which rows there are: contrasts, and so many averages of every block; rotated, as many as features."""
    known, groups = projection.cells.derived, projection.groups
    name = ("rows", n_features, groups is None)
    # Kept, because every step would work out the same, and a step that is recorded may not copy numbers to a GPU.
    if name not in known:
        device, n_blocks = projection.frames.device, len(projection.cells.owner)
        rows: tuple[Tensor, ...] = (torch.arange(len(projection.frames) + n_blocks * n_each, device=device)[None],)
        of_block = torch.zeros(n_blocks, dtype=torch.long, device=device)
        if groups is not None:
            rows, of_block = groups.rows(n_each), groups.of_block
        each = torch.arange(n_blocks * n_features, device=device).unsqueeze(1)
        known[name] = _Layout(
            _rows_as_cells(rows, torch.arange(len(rows), device=device)),
            _rows_as_cells((each,), of_block.repeat_interleave(n_features)),
        )
    return known[name]


def _rows_as_cells(rows: tuple[Tensor, ...], group: Tensor) -> Cells:
    """Rows as cells, each with the Gram matrix of a group."""
    none = torch.zeros_like(group)
    return Cells(none, none, group, rows, none[:1])
