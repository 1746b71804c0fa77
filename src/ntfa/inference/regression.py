"""Weights that a design predicts: W = C B, with the loadings B of a block integrated out exactly, or sampled.

Frames of a cell share a design row c, so the rows of C are sqrt(n_c) c, one per cell, and frames enter through
p_c = sum_t y_t F^T / sqrt(n_c). With C = U S V^T, the loadings turned by V^T are independent again, because their
prior N(Bbar, d_k^2) has the same spread in every direction: turned row j has mean m_j = S_j (V^T Bbar)_j and
sd S_j d, and

    log p(block) = -1/2 [ n V log(2 pi s2) + (sum|y|^2 - 2 sum_j m_j . P_j + sum_j m_j G m_j^T) / s2
                          + sum_j ( log|M_j| - r_j S_j d M_j^-1 d S_j r_j^T / s2^2 ) ]

with P = U^T p, r_j = P_j - m_j G and M_j = I + S_j^2 d G d / s2: that of `collapsed`, every turned row being a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ntfa.inference.bounds import Draw, LatentLike, sampled_log_likelihood
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import posterior_covariance, shrunk, times
from ntfa.inference.frames import Frames, Projection
from ntfa.inference.normal import LOG_2PI, Normal, NormalPosterior, RandomSource


@dataclass(frozen=True)
class TurnedDesign:
    """The design of every block, turned so that its rows are orthogonal; R of them in all.

    rows : one row per cell; `block` says whose it is
    scale [R], right [R, J] : S and V^T
    left [B, most rows, most cells], members [B, most cells], kept [R] : U^T padded with zeros, where each block's cells
        are, and which of the padded rows there are
    """

    rows: Cells
    scale: Tensor
    right: Tensor
    left: Tensor
    members: Tensor
    kept: Tensor

    @classmethod
    def of(cls, cells: Cells) -> TurnedDesign:
        """Decompose the designs of all blocks, [C, J] in `cells.design`."""
        weighted = design_of(cells) * cells.mass.sqrt().unsqueeze(-1)
        members = [torch.nonzero(cells.block == b).squeeze(-1) for b in range(len(cells.owner))]
        parts = [_turned(weighted[own]) for own in members]
        most_cells, most_rows = max(len(own) for own in members), max(len(part[1]) for part in parts)
        left = weighted.new_zeros(len(members), most_rows, most_cells)
        index = torch.full((len(members), most_cells), len(weighted), device=weighted.device)
        for b, (own, (u, scale, _)) in enumerate(zip(members, parts, strict=True)):
            left[b, : len(scale), : len(own)] = u.T
            index[b, : len(own)] = own
        block = torch.cat([torch.full((len(part[1]),), b) for b, part in enumerate(parts)]).to(cells.block)
        number = torch.cat([torch.arange(len(part[1])) for part in parts]).to(cells.block)
        rows = Cells(cells.owner[block], block, block, (torch.arange(len(block)).to(block).unsqueeze(1),), cells.owner)
        scale, right = torch.cat([part[1] for part in parts]), torch.cat([part[2] for part in parts])
        return cls(rows, scale, right, left, index, block * most_rows + number)

    def turn(self, per_cell: Tensor) -> Tensor:
        """Multiply by U^T, every block by its own: [C, K] -> [R, K]."""
        padded = torch.cat([per_cell, per_cell.new_zeros(1, per_cell.shape[1])])[self.members]
        return (self.left @ padded).flatten(0, 1)[self.kept]

    def prior(self, loadings: Normal) -> Normal:
        """Mean and sd of the turned rows' weights [R, K], given those of the loadings, [J, K] and [K]."""
        scale = self.scale.unsqueeze(-1)
        return Normal(scale * (self.right @ loadings.mean), scale * loadings.sd)


def design_of(cells: Cells) -> Tensor:
    """Design row of each cell, [C, J]."""
    if cells.design is None:
        raise ValueError("these cells have no design")
    return cells.design


def _turned(design: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, S and V^T of one block's design, without what its rows do not span."""
    u, scale, right = torch.linalg.svd(design, full_matrices=False)
    spanned = scale > scale.amax() * max(design.shape) * torch.finfo(design.dtype).eps
    return u[:, spanned], scale[spanned], right[spanned]


def design_log_likelihood(projection: Projection, turned: TurnedDesign, loadings: Normal, noise_sd: Tensor) -> Tensor:
    """Log density of all frames given the factors, loadings integrated out: a scalar."""
    cells, rows, gram, noise = projection.cells, turned.rows, projection.gram, noise_sd.square()
    prior, projected = turned.prior(loadings), _turned_frames(projection, turned)
    expected = rows.times_block(prior.mean, gram)
    misfit = (prior.mean * (expected - 2 * projected)).sum(-1)
    spread = shrunk(gram, projected - expected, prior.sd, rows, torch.ones_like(turned.scale), noise_sd)
    constant = cells.count * projection.n_voxels * (LOG_2PI + noise.log()) + projection.energy / noise
    return -0.5 * (constant.sum() + misfit.sum() / noise + spread.total)


def loading_posterior(projection: Projection, turned: TurnedDesign, loadings: Normal, noise_sd: Tensor) -> Normal:
    """Exact posterior of every block's loadings given the factors: means and sds, [B, J, K].

    What a block's design does not span stays as the prior has it.
    """
    rows, noise, prior = turned.rows, noise_sd.square(), turned.prior(loadings)
    projected = _turned_frames(projection, turned)
    means, variances = [], []
    for b, gram in enumerate(projection.gram):
        own = torch.nonzero(rows.block == b).squeeze(-1)
        scale, right = turned.scale[own].unsqueeze(-1), turned.right[own]
        covariance = posterior_covariance(gram, prior.sd[own], noise)
        shift = times(projected[own] - prior.mean[own] @ gram, covariance) / noise / scale
        variance = covariance.diagonal(dim1=-2, dim2=-1) / scale.square()
        means.append(loadings.mean + right.T @ shift)
        variances.append(right.square().T @ (variance - loadings.sd.square()) + loadings.sd.square())
    return Normal(torch.stack(means), torch.stack(variances).clamp(min=0).sqrt())


def _turned_frames(projection: Projection, turned: TurnedDesign) -> Tensor:
    cells = projection.cells
    return turned.turn(cells.weighted_total(projection.frames) / cells.mass.sqrt().unsqueeze(-1))


def ridge_loadings(cells: Cells, weights: Tensor) -> Tensor:
    """Regress the weights [C, K] of all cells on their design, [J, K]."""
    return _ridge(design_of(cells), cells.mass, weights)


def ridge_block_loadings(cells: Cells, weights: Tensor) -> Tensor:
    """Regress the weights [C, K] of each block's cells on their design, shrunk to all blocks' loadings, [B, J, K]."""
    shared, design = ridge_loadings(cells, weights), design_of(cells)
    residual = weights - design @ shared
    own = [cells.block == b for b in range(len(cells.owner))]
    return torch.stack([shared + _ridge(design[mine], cells.mass[mine], residual[mine]) for mine in own])


def _ridge(design: Tensor, count: Tensor, weights: Tensor) -> Tensor:
    """Least squares, every frame an observation, and for each regressor one more: a loading of zero."""
    weighted = design * count.unsqueeze(-1)
    gram = weighted.T @ design
    return torch.linalg.solve(gram + torch.eye(len(gram)).to(gram), weighted.T @ weights)


class CollapsedLoadings(nn.Module):
    """Loadings integrated out exactly."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self.frames, self.turned = frames, TurnedDesign.of(frames.cells)

    def forward(self, draw: Draw, noise: RandomSource) -> tuple[Tensor, Sequence[LatentLike]]:
        """Return log p(frames | draw)."""
        frames = self.frames
        projection = frames.project(draw.centers, draw.log_widths)
        total = design_log_likelihood(projection, self.turned, _loadings(draw), draw.noise_sd)
        return total + frames.log_units.sum(), ()


class SampledLoadings(nn.Module):
    """Loadings sampled from a fully factorised posterior of their own, [B, J, K]."""

    def __init__(self, frames: Frames, loadings: Tensor, sd: float) -> None:
        super().__init__()
        self.frames = frames
        self.loadings = NormalPosterior(loadings, sd)

    def forward(self, draw: Draw, noise: RandomSource) -> tuple[Tensor, Sequence[LatentLike]]:
        """Draw the loadings and return log p(frames | loadings, draw)."""
        frames, cells = self.frames, self.frames.cells
        latent = self.loadings.draw("weights", _loadings(draw), noise)
        weights = times(design_of(cells), latent.value[cells.block])
        per_cell = sampled_log_likelihood(frames, draw, weights[cells.of_frame])
        return (per_cell + frames.log_units).sum(), (latent,)


def _loadings(draw: Draw) -> Normal:
    if draw.loadings is None:
        raise ValueError("this draw has no loadings")
    return draw.loadings
