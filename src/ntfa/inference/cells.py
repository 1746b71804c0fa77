"""How the frames of a study are laid out for inference.

A *block* is a set of frames that share factors (all of a participant's, or one trial's). A *cell* is a set of frames
of one block that share the prior of their weights (all frames of one participant and stimulus, or one trial's).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ntfa.inference.alike import Alike
from ntfa.inference.coverage import Groups, Unseen
from ntfa.inference.gathering import to_blocks, to_frames
from ntfa.inference.projection import FrameBlock, no_frames, project, voxel_terms
from ntfa.inference.shared_projection import frame_pieces, project_shared
from ntfa.inference.streaming import is_stored, loaded


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
class Cells:
    """Cells in order of their number of frames.

    participant, stimulus, block : [C]
        What each cell belongs to.
    frames : one [C_n, n] for every distinct number of frames n
        Rows of the projected frames, cells in order.
    owner : [B]
        Which of the model's sets of factors a block's frames belong to, or -1 where the model has none for it yet.
    design : [C, J] or None
        Design row of each cell, for models whose weights depend on one.
    trust : [n_frames] or None
        How much each frame counts, lambda_t: what deviates from its mean has a variance 1 / lambda_t times as large as
        in other frames. One each, if None. With the frames times sqrt(lambda_t), all have one variance again, and
        their mean is sqrt(lambda_t) mu; so a cell's rows are still its average and contrasts that know nothing of it.
    """

    participant: Tensor
    stimulus: Tensor
    block: Tensor
    frames: tuple[Tensor, ...]
    owner: Tensor
    design: Tensor | None = None
    trust: Tensor | None = None

    @cached_property
    def count(self) -> Tensor:
        """Number of frames of each cell, [C] in float64."""
        counts = [torch.full((len(rows),), rows.shape[1]) for rows in self.frames]
        return torch.cat(counts).to(self.block.device, torch.float64)

    @cached_property
    def mass(self) -> Tensor:
        """How many frames each cell's average is worth, [C]: their number, or what they count together."""
        return self.count if self.trust is None else self.total(self.trust)

    @cached_property
    def root(self) -> Tensor | None:
        """What frames are multiplied by, sqrt(lambda_t) as [n_frames, 1]; None if by one."""
        return None if self.trust is None else self.trust.sqrt().unsqueeze(-1)

    @cached_property
    def of_frame(self) -> Tensor:
        """The cell that each frame belongs to, [n_frames]."""
        owner = torch.empty(int(self.count.sum()), dtype=torch.long, device=self.block.device)
        start = 0
        for rows in self.frames:
            owner[rows] = torch.arange(start, start + len(rows), device=rows.device).unsqueeze(1)
            start += len(rows)
        return owner

    @cached_property
    def derived(self) -> dict[Hashable, Any]:
        """What others work out of the cells alone, by a name that they give it: every step asks for the same again."""
        return {}

    def of_owner(self, values: Tensor) -> Tensor:
        """Return the row of each block's owner: [number of owners, ...] -> [B, ...]; one row for all stays one."""
        if len(values) == 1:
            return values
        return values if self._owns_one_block_each and len(values) == len(self.owner) else values[self.owner]

    @cached_property
    def _owns_one_block_each(self) -> bool:
        return torch.equal(self.owner, torch.arange(len(self.owner), device=self.owner.device))

    @cached_property
    def averaged(self) -> Cells:
        """The same cells as if each were one frame, in the order of cells."""
        rows = torch.arange(len(self.block), device=self.block.device).unsqueeze(1)
        return replace(self, frames=(rows,), trust=None)

    @property
    def have_one_frame(self) -> bool:
        """Whether all cells are single frames, and so have no contrasts."""
        return all(rows.shape[1] == 1 for rows in self.frames)

    @cached_property
    def alike(self) -> Alike:
        """Cells of one block taken together."""
        return Alike.of(self, torch.unique(self.block, return_inverse=True)[1])

    @cached_property
    def averaged_alike(self) -> Alike:
        """Averages of cells taken together where they are of one block and worth as many frames."""
        kinds = torch.stack([self.block.double(), self.mass])
        return Alike.of(self.averaged, torch.unique(kinds, dim=1, return_inverse=True)[1])

    def of_block(self, block: int, first_row: int) -> Cells:
        """Return the cells of one block, whose frames start at a row, as those of a study of its own."""
        own = self.block == block
        parts = own.split([len(rows) for rows in self.frames])
        rows_of_block = slice(first_row, first_row + int(self.count[own].sum()))
        return Cells(
            self.participant[own],
            self.stimulus[own],
            torch.zeros_like(self.block[own]),
            tuple(rows[mine] - first_row for rows, mine in zip(self.frames, parts, strict=True) if bool(mine.any())),
            self.owner[block : block + 1],
            None if self.design is None else self.design[own],
            None if self.trust is None else self.trust[rows_of_block],
        )

    def total(self, per_frame: Tensor) -> Tensor:
        """Sum over the frames of each cell: [n_frames, ...] -> [C, ...]."""
        return torch.cat([per_frame[rows].sum(1) for rows in self.frames])

    def weighted_total(self, scaled: Tensor) -> Tensor:
        """Sum what frames times sqrt(lambda_t) say of each cell: [n_frames, K] -> [C, K]."""
        return self.total(scaled if self.root is None else scaled * self.root)

    def expected(self, per_cell: Tensor) -> Tensor:
        """Return what frames times sqrt(lambda_t) are where their cell is: [C, K] -> [n_frames, K]."""
        spread = self.spread(per_cell)
        return spread if self.root is None else spread * self.root

    def spread(self, per_cell: Tensor) -> Tensor:
        """Return each frame's cell's value: [C, ...] -> [n_frames, ...]."""
        if len(per_cell) == 1:
            return per_cell.expand(len(self.of_frame), *per_cell.shape[1:])
        return to_frames(per_cell, self.of_frame, self.frames)

    def scatter(self, per_frame: Tensor) -> Tensor:
        """Sum the outer products of frames with themselves: [n_frames, K] -> [C, K, K]."""
        gathered = [per_frame[rows] for rows in self.frames]
        return torch.cat([frames.mT @ frames for frames in gathered])

    def times(self, per_frame: Tensor, per_cell: Tensor) -> Tensor:
        """Multiply each frame by its cell's matrix: [n_frames, K], [C, K, K] -> [n_frames, K]."""
        product = torch.empty_like(per_frame)
        start = 0
        for rows in self.frames:
            product[rows] = per_frame[rows] @ per_cell[start : start + len(rows)]
            start += len(rows)
        return product

    def portions(self, most: int) -> Iterator[tuple[slice, Tensor]]:
        """Go through the cells, at most so many of one length at a time: their places, and rows of their frames."""
        start = 0
        for same_length in self.frames:
            for rows in same_length.split(most):
                yield slice(start, start + len(rows)), rows
                start += len(rows)

    @cached_property
    def _by_block(self) -> tuple[Tensor, Tensor]:
        """Cells of every block [B, most cells of a block], C where there are fewer; and each cell's place there."""
        order = torch.argsort(self.block, stable=True)
        count = torch.bincount(self.block, minlength=len(self.owner))
        first = torch.cumsum(count, 0) - count
        block = self.block[order]
        number = torch.arange(len(order), device=order.device) - first[block]
        most = int(count.max())
        members = torch.full((len(count), most), len(order), device=order.device)
        members[block, number] = order
        place = torch.empty_like(order)
        place[order] = block * most + number
        return members, place

    def times_block(self, per_cell: Tensor, per_block: Tensor) -> Tensor:
        """Multiply each cell's row by its block's matrix: [C, K], [B, K, K] -> [C, K]."""
        return (self.by_block(per_cell) @ per_block).flatten(0, 1)[self._by_block[1]]

    def by_block(self, per_cell: Tensor) -> Tensor:
        """Gather the cells of every block, padded with zeros: [C, ...] -> [B, most cells of a block, ...]."""
        return to_blocks(per_cell, *self._by_block)

    def blocks_total(self, per_cell: Tensor) -> Tensor:
        """Sum over the cells of each block: [C] -> [B]."""
        return per_cell.new_zeros(len(self.owner)).index_add(0, self.block, per_cell)


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
