"""Averages of cells: all that frames say of a participant's own loadings, and of a stimulus' features.

A cell's n frames are n - 1 contrasts, which know nothing of either (`ntfa.inference.loadings`), and their average,
times sqrt(n). Projected onto factors that stay where they are, it is K numbers, however many voxels there are; so
newcomers are placed without another look at the frames. What earlier frames said of a participant's loadings is kept
as their posterior; the rows that would lead to it, r of them, can be had back from it and stand for those frames.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import unmix
from ntfa.inference.coverage import Groups
from ntfa.inference.frames import Projection
from ntfa.inference.loadings import IndividualWeights
from ntfa.inference.processes import ALONE, Processes


class Averages(NamedTuple):
    """Averages of cells, times the root of their number of frames.

    participant, stimulus : [C], places among those of the model
    n_frames : [C], of each cell, or what they count together
    projected : [C, K], y F^T
    """

    participant: Tensor
    stimulus: Tensor
    n_frames: Tensor
    projected: Tensor

    @classmethod
    def of(cls, projection: Projection, processes: Processes = ALONE) -> Averages:
        """Average the frames of all processes' cells."""
        cells = projection.cells
        projected = cells.weighted_total(projection.frames) / cells.mass.sqrt().unsqueeze(-1)
        parts = (cells.participant, cells.stimulus, cells.mass, projected)
        return cls(*(processes.gather(part) for part in parts))

    def joined(self, other: Averages) -> Averages:
        """Put two sets of averages one after the other."""
        return Averages(*(torch.cat(parts) for parts in zip(self, other, strict=True)))


class Rows(NamedTuple):
    """Rows that are averages, or stand for earlier frames, each with a design row of its own.

    owner : [N], whose they are
    design : [N, r], features times the root of the number of frames
    projected : [N, K]
    """

    owner: Tensor
    design: Tensor
    projected: Tensor

    def as_projection(self, gram: Tensor, n_owners: int) -> Projection:
        """Return the rows as cells of one frame each, for one Gram matrix [K, K], or one per owner [n_owners, K, K]."""
        device, n = self.owner.device, len(self.owner)
        rows = torch.arange(n, device=device).unsqueeze(1)
        cells = Cells(self.owner, torch.zeros_like(self.owner), self.owner, (rows,), torch.arange(n_owners).to(device))
        groups = None
        if gram.dim() == 3 and len(gram) > 1:
            groups = Groups(torch.arange(n_owners).to(device), n_owners, cells)
        energy = self.projected.new_zeros(n)
        return Projection(self.projected, gram.expand(n_owners, -1, -1), energy, cells, 0, groups)


def remembered_rows(
    loadings: Tensor, squared: Tensor, right: Tensor, gram: Tensor, prior: IndividualWeights, noise_sd: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows that say of one participant's loadings what the frames did that are gone: designs [r, r] and rows [r, K].

    Inverts `ntfa.inference.loadings.loadings_posterior`. Everything is in terms of scaled features, and rows are given
    as deviations from the group's response, times F^T.

    loadings : [r, K], posterior mean
    squared, right : [r] and [r, r], of the design
    """
    variance = prior.sd.square() + squared.unsqueeze(-1) * prior.loading_sd.square()
    scores = unmix(right.mT @ loadings, prior.mixing)
    kept = (squared > 0).to(squared).unsqueeze(-1)
    singular = squared.sqrt().unsqueeze(-1)
    # The posterior mean of a row's weights, of which the loadings' is a share.
    weights = kept * scores * variance / (prior.loading_sd.square() * singular.clamp(min=1e-150))
    in_basis = prior.mixing.mT @ gram @ prior.mixing
    residual = weights @ in_basis + weights * noise_sd.square() / variance
    rows = torch.linalg.solve_triangular(prior.mixing.mT, residual.mT, upper=True, unitriangular=True).mT
    return singular * right.mT, rows
