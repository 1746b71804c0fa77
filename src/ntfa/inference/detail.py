"""What factors leave of a response: maps of detail, voxel by voxel, in closed form after a fit.

K blobs cannot follow fine detail that is the same whenever a person sees a stimulus. Given the features h_s of the
stimuli and what the factors explain, the rest of a cell's average, times sqrt(n), is taken as

    residual_pc = x_c^T (C + D_p) + noise,    C_dv ~ N(0, kappa_0^2),   D_pdv ~ N(0, kappa_1^2),   noise ~ N(0, s2)

with x_c = sqrt(n_c) h_c the design of `ntfa.inference.loadings`, and the same at every voxel. Rotated by the design's
left singular vectors, rows of D_p are independent, and the marginal likelihood needs a few sums over voxels for every
(kappa_0, kappa_1), of which the best is taken. C is everybody's, D_p is a person's own. At a voxel that some people
lack, C is known from the others; sums over voxels go by groups of voxels that the same people have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ntfa.inference.coverage import VoxelGroups
from ntfa.inference.frames import Frames
from ntfa.inference.loadings import LoadingsPosterior, Rotation
from ntfa.inference.processes import ALONE, Processes
from ntfa.inference.projection import exponent_coefficients, factor_chunk
from ntfa.inference.streaming import loaded

OWN_VARIANCES = tuple(1 / x for x in (3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 500, 2000))
"""kappa_1^2 tried, in units of s2."""
SMALLER_VARIANCES = (OWN_VARIANCES[-1], 1 / 8000, 1 / 32000, 0.0)
"""Tried where the smallest of these is best: maps are made with it, but what they are wrong by is less than it says."""
GROUP_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)
"""kappa_0^2 tried, in units of kappa_1^2."""
MOST_VALUES = 200_000_000
"""Numbers that the participants' own maps may have together; beyond, there are none but the group's."""


class Detail(NamedTuple):
    """Maps of detail, in standardised intensity.

    group : [r, V], C
    own : [P, r, V], D_p, or None
    variances : [3], kappa_0^2, kappa_1^2 and s2
    likely : kappa_1^2, also below what maps are made with
    """

    group: Tensor
    own: Tensor | None
    variances: Tensor
    likely: Tensor


class _Residuals(NamedTuple):
    """What factors leave of a participant's averages, in units of the voxels' noise.

    rotated : [r, V]
    energy, orthogonal : sums of squares of the averages as they are, and of what neither factors nor features explain
    """

    rotated: Tensor
    energy: Tensor
    orthogonal: Tensor


@torch.no_grad()
def find_detail(
    frames: Frames,
    explained: LoadingsPosterior,
    factors: tuple[Tensor, Tensor],
    noise_sd: Tensor,
    n_participants: int,
    processes: Processes = ALONE,
) -> Detail:
    """Estimate maps of detail from the frames of this process's participants.

    factors : centres [K, 3] and log-widths [K]
    """
    residuals = list(_residuals(frames, explained, factors))
    noise = _noise_variance(frames, explained, residuals, noise_sd.square(), processes)
    n_factors = explained.weights.shape[-1]
    seen = _Seen(frames, VoxelGroups.of(frames, processes), n_factors)
    rows = torch.stack([residual.rotated for residual in residuals])
    own, share = _variances(rows, explained.rotation, noise, seen, processes)
    likely = own
    if float(own) <= float(noise) * OWN_VARIANCES[-1]:
        likely, _ = _variances(rows, explained.rotation, noise, seen, processes, SMALLER_VARIANCES)
    shared = _group_maps(rows, explained.rotation, noise, own, share, seen, processes)
    maps = None
    if n_participants * shared.numel() <= MOST_VALUES:
        maps = processes.gather(_own_maps(frames, rows, explained.rotation, noise, own, shared) * _scales(frames))
    return Detail(shared * _scales(frames), maps, torch.stack([share * own, own, noise]), likely)


class _Seen:
    """How many numbers there are once factors have had their part.

    of_blocks [B], of_groups [G] : voxels less factors, of each participant and of each group of voxels
    """

    def __init__(self, frames: Frames, groups: VoxelGroups | None, n_factors: int) -> None:
        self.groups, n_voxels = groups, frames.n_voxels
        self.of_blocks: Tensor | int = n_voxels - n_factors
        self.of_groups = frames.energy.new_tensor([n_voxels - n_factors])
        if frames.unseen is not None:
            self.of_blocks = (frames.unseen.n_voxels - n_factors).unsqueeze(-1)
        if groups is not None:
            self.of_groups = groups.count * (1 - n_factors / n_voxels)


@torch.no_grad()
def own_detail(
    frames: Frames, explained: LoadingsPosterior, factors: tuple[Tensor, Tensor], group: Tensor, variances: Tensor
) -> Tensor:
    """Maps D_p [P, r, V] of participants who were not there when the group's C and all variances were found."""
    _, own, noise = variances
    shared = (group / _scales(frames)).to(frames.terms)
    rows = torch.stack([residual.rotated for residual in _residuals(frames, explained, factors)])
    return _own_maps(frames, rows, explained.rotation, noise, own, shared) * _scales(frames)


def _scales(frames: Frames) -> Tensor | float:
    return 1.0 if frames.scales is None else frames.scales.to(frames.terms)


def _residuals(frames: Frames, explained: LoadingsPosterior, factors: tuple[Tensor, Tensor]) -> Iterator[_Residuals]:
    """Go through the blocks, which may be on disk, once."""
    images = factor_chunk(exponent_coefficients(*factors, frames.terms.dtype), frames.terms)
    blocks = zip(frames.layout_of_blocks, loaded(frames.blocks, frames.energy.device), strict=True)
    for b, ((_, cells, _), block) in enumerate(blocks):
        array = block.array[block.rows].to(images)
        counted = array if cells.trust is None else array * cells.trust.unsqueeze(-1).to(array)
        totals = array.new_zeros(len(cells.count), array.shape[1]).index_add(0, cells.of_frame, counted)
        averages = totals / (cells.mass.sqrt().to(array) * frames.units.intensity).unsqueeze(-1)
        order = slice(len(averages))
        left = explained.rotation.left[b, order].to(images)
        residual = (averages - explained.weights[b, order].to(images) @ images) / _scales(frames)
        if frames.unseen is not None:
            residual[:, frames.unseen.lacked_by(b)] = 0
        rotated = left.mT @ residual
        orthogonal = (residual - left @ rotated).double().square().sum()
        yield _Residuals(rotated, (averages / _scales(frames)).double().square().sum(), orthogonal)


def _noise_variance(
    frames: Frames, explained: LoadingsPosterior, residuals: Sequence[_Residuals], noise: Tensor, processes: Processes
) -> Tensor:
    """s2 by the rows that no feature reaches: contrasts within cells, and what is orthogonal to the design."""
    contrasts = frames.cell_energy.sum() - sum(residual.energy for residual in residuals) - explained.contrast_gain
    orthogonal = sum((residual.orthogonal for residual in residuals), torch.zeros_like(noise))
    n_voxels = frames.n_voxels if frames.unseen is None else frames.unseen.n_voxels
    counts = ((explained.n_rest * n_voxels).sum(), (explained.n_rest * explained.freedom).sum())
    left = processes.total(torch.stack([contrasts + orthogonal, *counts]))
    if not float(left[1]) > 0:
        return noise
    return left[0] / left[1] + noise * left[2] / left[1]


def _variances(
    rows: Tensor,
    rotation: Rotation,
    noise: Tensor,
    seen: _Seen,
    processes: Processes,
    ratios: Sequence[float] = OWN_VARIANCES,
) -> tuple[Tensor, Tensor]:
    """Choose kappa_1^2, and kappa_0^2 in units of it, by marginal likelihood."""
    energy = torch.stack([row.double().square().sum(-1) for row in rows])
    best, found = -torch.inf, (noise * 0, noise * 0)
    for own in (noise * ratio for ratio in ratios):
        precision = 1 / (noise + own * rotation.squared)
        sums = _information(rows, rotation, precision, seen.groups)
        log_dets = rotation.kept * precision.log() * seen.of_blocks
        fit = torch.stack([(precision * energy).sum(), -log_dets.sum()])
        information, cross, totals = (processes.total(part) for part in (*sums, fit))
        misfit, log_det = totals
        gained = _outer(cross.double(), seen.groups)
        for share in GROUP_SHARES:
            value = -0.5 * (misfit + log_det - _gain(information, gained, share * own, seen.of_groups))
            if float(value) > best:
                best, found = float(value), (own, torch.full_like(own, share))
    return found


def _outer(cross: Tensor, groups: VoxelGroups | None) -> Tensor:
    """Sum of c c^T over the voxels of each group, [G, r, r], for columns c of [r, V]."""
    if groups is None:
        return (cross @ cross.mT).unsqueeze(0)
    total = cross.new_zeros(len(groups.count), len(cross) ** 2)
    for columns, group in groups.pieces(cross):
        total.index_add_(0, group, (columns.mT.unsqueeze(2) * columns.mT.unsqueeze(1)).flatten(1))
    return total.unflatten(1, (len(cross), len(cross)))


def _gain(information: Tensor, gained: Tensor, variance: Tensor, n_free: Tensor) -> Tensor:
    """What maps of the group's with some variance take off minus twice the log likelihood."""
    if not float(variance) > 0:
        return torch.zeros_like(variance)
    r = information.shape[-1]
    one = torch.eye(r, dtype=information.dtype, device=information.device)
    total = information + one / variance
    log_det = torch.logdet(total) + r * variance.log()
    return torch.linalg.solve(total, gained).diagonal(dim1=-2, dim2=-1).sum() - (n_free * log_det).sum()


def _information(
    rows: Tensor, rotation: Rotation, precision: Tensor, groups: VoxelGroups | None
) -> tuple[Tensor, Tensor]:
    """X^T Cov^-1 X of each group of voxels [G, r, r] and X^T Cov^-1 residual [r, V], summed over participants."""
    right, squared = rotation.right, rotation.squared * precision
    if groups is None:
        information = torch.einsum("prj,pj,psj->rs", right, squared, right).unsqueeze(0)
    else:
        information = torch.einsum("gp,prs->grs", groups.seen, right * squared.unsqueeze(1) @ right.mT)
    scores = (right * (rotation.kept * rotation.squared.sqrt() * precision).unsqueeze(1)).to(rows)
    return information, torch.einsum("prj,pjv->rv", scores, rows)


def _group_maps(
    rows: Tensor, rotation: Rotation, noise: Tensor, own: Tensor, share: Tensor, seen: _Seen, processes: Processes
) -> Tensor:
    """Posterior mean of C, [r, V]."""
    precision = 1 / (noise + own * rotation.squared)
    information, cross = map(processes.total, _information(rows, rotation, precision, seen.groups))
    if not float(share) > 0:
        return torch.zeros_like(cross)
    one = torch.eye(information.shape[-1], dtype=information.dtype, device=information.device)
    covariance = torch.linalg.inv(information + one / (share * own)).to(cross)
    if seen.groups is None:
        return covariance[0] @ cross
    parts = [torch.einsum("vrs,sv->rv", covariance[group], own) for own, group in seen.groups.pieces(cross)]
    return torch.cat(parts, 1)


def _own_maps(frames: Frames, rows: Tensor, rotation: Rotation, noise: Tensor, own: Tensor, shared: Tensor) -> Tensor:
    """Posterior means of D_p, [P, r, V], given C; zero at voxels that p lacks."""
    singular = rotation.squared.sqrt()
    of_group = (singular.unsqueeze(-1) * rotation.right.mT).to(rows) @ shared
    shrink = (rotation.kept * singular * own / (noise + own * rotation.squared)).to(rows)
    left = shrink.unsqueeze(-1) * (rows - of_group)
    if frames.unseen is not None:
        for b, of_participant in enumerate(left):
            of_participant[:, frames.unseen.lacked_by(b)] = 0
    return rotation.right.to(rows) @ left
