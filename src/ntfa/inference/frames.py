"""The frames of a study, laid out in blocks and cells, and what inference needs of them: projections onto factors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ntfa.inference.cells import Cells
from ntfa.inference.coverage import Groups, Unseen
from ntfa.inference.projection import FrameBlock, no_frames, project, voxel_terms
from ntfa.inference.shared_projection import frame_pieces, project_shared
from ntfa.inference.streaming import is_stored, loaded

LEAST_SHARE = 0.5
"""Share of a squared width, at least, that is a factor's own and not what averaging adds to it."""


@dataclass(frozen=True)
class Units:
    """Standardised units that inference works in: where zero is, how long one is, how bright one is."""

    origin: tuple[float, float, float]
    length: float
    intensity: float

    def standardise(self, millimetres: Tensor) -> Tensor:
        """Turn positions in mm into standardised ones."""
        return (millimetres - millimetres.new_tensor(self.origin)) / self.length

    def millimetres(self, positions: Tensor) -> Tensor:
        """Invert `standardise`."""
        return positions * self.length + positions.new_tensor(self.origin)


@dataclass(frozen=True)
class Projection:
    """All that a likelihood needs to know of the frames, in standardised units, float64.

    frames : [n_frames, K]
        y F^T of every frame, times sqrt(lambda_t) where frames count differently.
    gram : [B, K, K]
        F F^T of every block; all the same where blocks share factors.
    energy : [C]
        Sum of |y|^2, or lambda_t |y|^2, over each cell.
    n_voxels : number of voxels; of each cell, [C], where blocks lack some
    groups : blocks by what they lack, where they share factors; None if all have one Gram matrix, or each its own

    Where voxels have noise of their own, sums over voxels are weighted by the inverse of its variance.
    """

    frames: Tensor
    gram: Tensor
    energy: Tensor
    cells: Cells
    n_voxels: int | Tensor
    groups: Groups | None = None

    @property
    def distinct_gram(self) -> Tensor:
        """Gram matrix of each group of blocks that share factors; one if all have the same."""
        return self.gram[:1] if self.groups is None else self.gram[self.groups.first]

    def expected(self, mean: Tensor) -> Tensor:
        """Return w F F^T for weights of every cell, of factors that all share: [C, K] -> [C, K]."""
        return mean @ self.gram[0] if self.groups is None else self.cells.times_block(mean, self.gram)


@dataclass(frozen=True)
class Frames:
    """The frames of a study, arranged in blocks and cells.

    coordinates : [V, 3]
        Where the columns of the blocks' arrays lie, in standardised units.
    terms : [5, V] or [6, V]
        `voxel_terms` of the coordinates.
    energy : [n_frames]
        |y|^2 of every frame, of y / scales if there are any.
    scales : [V] or None
        Noise sd of each voxel in units of their geometric mean, if not the same; not of pooled columns. Because it is
        the geometric mean, a density needs no term for it.
    pooled : [V] or None
        How many voxels each column stands for, if not one each; see `ntfa.fitting.pooling`.
    blur : float or None
        By how much squared widths of factors grow that are averaged over the voxels of a column, if these are many.
    reach : float or None
        What to take for the extent of the brain where its structures have been put apart, in standardised units.
    unseen : Unseen or None
        Which columns blocks lack, frames being zero there; None if all blocks have all.
    """

    blocks: Sequence[FrameBlock]
    cells: Cells
    coordinates: Tensor
    units: Units
    terms: Tensor
    energy: Tensor
    scales: Tensor | None = None
    pooled: Tensor | None = None
    blur: float | None = None
    reach: float | None = None
    unseen: Unseen | None = None

    @classmethod
    def arrange(
        cls,
        blocks: Sequence[FrameBlock],
        cells: Cells,
        coordinates: Tensor,
        units: Units,
        scales: Tensor | None = None,
        lacked: tuple[Tensor, Sequence[Tensor]] | None = None,
    ) -> Frames:
        """Prepare what every step needs.

        coordinates : in mm, float64
        lacked : pattern of each block [B], and the columns that blocks of each pattern lack; None if there are none
        """
        device = cells.block.device
        positions = units.standardise(coordinates).to(device)
        scales = None if scales is None else scales.to(device, torch.float64)
        weights = None if scales is None else scales**-2
        energy = torch.cat([_energy(block, weights) for block in loaded(blocks, device)]) / units.intensity**2
        terms = voxel_terms(positions, blocks[0].array.dtype, weights)
        unseen = None if lacked is None else Unseen.of(*lacked, terms, scales)
        return cls(blocks, cells, positions, units, terms, energy, scales, unseen=unseen)

    def with_intensity(self, intensity: float) -> Frames:
        """Return the same frames, `intensity` being one."""
        energy = self.energy * (self.units.intensity / intensity) ** 2
        return replace(self, units=replace(self.units, intensity=intensity), energy=energy)

    @property
    def weights(self) -> Tensor | None:
        """How much each column counts, [V]; None if all count one."""
        return self.terms[5] if len(self.terms) == 6 else None

    @cached_property
    def n_voxels(self) -> int:
        """Number of voxels, whether each has a column of its own or not."""
        return self.terms.shape[1] if self.pooled is None else int(self.pooled.sum())

    @cached_property
    def cell_voxels(self) -> int | Tensor:
        """Number of voxels that frames have, of each cell [C] where blocks lack some."""
        return self.n_voxels if self.unseen is None else self.unseen.n_voxels[self.cells.block]

    @cached_property
    def groups(self) -> Groups | None:
        """Blocks by what they lack; None if they lack nothing."""
        return None if self.unseen is None else Groups(self.unseen.pattern, len(self.unseen.columns), self.cells)

    @cached_property
    def n_data(self) -> int:
        """Number of observed values, frames times the voxels that they have."""
        return int((self.cells.count * self.cell_voxels).sum())

    @cached_property
    def cell_energy(self) -> Tensor:
        """Sum of |y|^2 over each cell's frames, each as much as it counts, [C]."""
        return self.cells.total(self.energy if self.cells.trust is None else self.energy * self.cells.trust)

    @cached_property
    def log_units(self) -> Tensor:
        """What the log density of each cell gains by going back to the units of the data, [C]."""
        to_data = -self.cells.count * self.cell_voxels * math.log(self.units.intensity)
        if self.unseen is not None:
            # The scales' logarithms add up to nothing over all voxels, but not over those that a block has.
            to_data = to_data + self.cells.count * self.unseen.log_scales[self.cells.block]
        if self.cells.trust is None:
            return to_data
        return to_data + 0.5 * self.cell_voxels * self.cells.total(self.cells.trust.log())

    def project(self, centers: Tensor, log_widths: Tensor) -> Projection:
        """Project the frames onto factors [B, K, 3], [B, K], those of each block onto its own; or all onto one set.

        Frames on disk are gone by the time gradients are taken, so these are refused here; `by_block` is open to them.
        """
        log_widths, height = self.averaged(log_widths)
        if is_stored(self.blocks):
            if torch.is_grad_enabled() and (centers.requires_grad or log_widths.requires_grad):
                raise RuntimeError("frames on disk have gradients block by block only: see by_block")
            projected, gram = self._project_stored(centers, log_widths)
        elif len(centers) == 1 and len(self.blocks) > 1:
            projected, one = project_shared(centers[0], log_widths[0], self.pieces, self.terms)
            gram = one.expand(len(self.blocks), -1, -1)
        else:
            projected, gram = project(centers.contiguous(), log_widths.contiguous(), self.blocks, self.terms)
        scaled = projected / self.units.intensity
        if self.cells.root is not None:
            scaled = scaled * self.cells.root
        groups = None
        if self.unseen is not None:
            gram = self.unseen.seen_gram(gram if len(centers) > 1 else gram[:1], centers, log_widths)
            if len(centers) == 1:
                groups, gram = self.groups, gram[self.unseen.pattern]
        if height is not None:
            scaled = scaled * (height if len(centers) == 1 else self.cells.spread(height[self.cells.block]))
            gram = gram * height.unsqueeze(-1) * height.unsqueeze(-2)
        return Projection(scaled, gram, self.cell_energy, self.cells, self.cell_voxels, groups)

    def averaged(self, log_widths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return log-widths and heights of factors that are averaged over the voxels that columns stand for.

        Their integrals stay what they are. Heights are None where columns are voxels.
        """
        if self.blur is None:
            return log_widths, None
        wider = torch.log(log_widths.exp() + self.blur)
        return wider, torch.exp(1.5 * (log_widths - wider))

    def of_voxels(self, log_width: float) -> float:
        """Invert `averaged`: the log-width of a factor of which an average over the voxels of columns is this wide."""
        width = math.exp(log_width)
        return math.log(max(width - (self.blur or 0.0), LEAST_SHARE * width))

    @torch.no_grad()
    def whole_gram(self, centers: Tensor, log_widths: Tensor) -> Tensor:
        """F F^T over all voxels, whoever has them, of factors [K, 3] and [K]."""
        log_widths, height = self.averaged(log_widths)
        gram = project(centers.unsqueeze(0), log_widths.unsqueeze(0), [no_frames(self.terms)], self.terms)[1][0]
        return gram if height is None else gram * height.unsqueeze(-1) * height

    @torch.no_grad()
    def _project_stored(self, centers: Tensor, log_widths: Tensor) -> tuple[Tensor, Tensor]:
        whose = [b if len(centers) > 1 else 0 for b in range(len(self.blocks))]
        parts = [
            project(centers[b : b + 1].contiguous(), log_widths[b : b + 1].contiguous(), [block], self.terms)
            for b, block in zip(whose, loaded(self.blocks, self.energy.device), strict=True)
        ]
        return torch.cat([projected for projected, _ in parts]), torch.cat([gram for _, gram in parts])

    @cached_property
    def pieces(self) -> Sequence[FrameBlock]:
        """All frames in pieces, for projections onto one set of factors."""
        return frame_pieces(self.blocks)

    def by_block(self) -> Iterator[tuple[Tensor, Frames]]:
        """Go through the blocks, each with its frames in memory: its cells' places, and the block as frames alone."""
        parts = zip(self.layout_of_blocks, loaded(self.blocks, self.energy.device), strict=True)
        for b, ((cells, own, rows), block) in enumerate(parts):
            unseen = None if self.unseen is None else self.unseen.of_block(b)
            yield cells, replace(self, blocks=[block], cells=own, energy=self.energy[rows], unseen=unseen)

    @cached_property
    def layout_of_blocks(self) -> list[tuple[Tensor, Cells, slice]]:
        """Of each block: its cells' places, the cells as those of a study of its own, and its rows."""
        found, start = [], 0
        for b, block in enumerate(self.blocks):
            stop = start + block.n_frames
            places = torch.nonzero(self.cells.block == b).squeeze(-1)
            found.append((places, self.cells.of_block(b, start), slice(start, stop)))
            start = stop
        return found


def _energy(block: FrameBlock, weights: Tensor | None) -> Tensor:
    """Return |y|^2 of every frame, weighted if there are weights, in float64, a few frames at a time."""
    energy = block.array.new_empty(block.n_frames, dtype=torch.float64)
    room = block.array.new_empty(min(16, block.n_frames), block.array.shape[1], dtype=torch.float64)
    start = 0
    # In one place: fresh temporaries between results that stay would leave memory in pieces that nothing fits into.
    for rows in block.rows.split(16):
        squares = room[: len(rows)].copy_(block.array[rows]).square_()
        energy[start : start + len(rows)] = squares.sum(1) if weights is None else squares @ weights
        start += len(rows)
    return energy
