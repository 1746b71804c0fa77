"""How the frames of a study are laid out for inference.

A *block* is a set of frames that share factors (all of a participant's, or one trial's). A *cell* is a set of frames
of one block that share the prior of their weights (all frames of one participant and stimulus, or one trial's).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ntfa.inference.projection import FrameBlock, project, voxel_terms


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
    """

    participant: Tensor
    stimulus: Tensor
    block: Tensor
    frames: tuple[Tensor, ...]
    owner: Tensor
    design: Tensor | None = None

    @cached_property
    def count(self) -> Tensor:
        """Number of frames of each cell, [C] in float64."""
        counts = [torch.full((len(rows),), rows.shape[1]) for rows in self.frames]
        return torch.cat(counts).to(self.block.device, torch.float64)

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
    def averaged(self) -> Cells:
        """The same cells as if each were one frame, in the order of cells."""
        return replace(self, frames=(torch.arange(len(self.block), device=self.block.device).unsqueeze(1),))

    def total(self, per_frame: Tensor) -> Tensor:
        """Sum over the frames of each cell: [n_frames, ...] -> [C, ...]."""
        return torch.cat([per_frame[rows].sum(1) for rows in self.frames])

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
        for group in self.frames:
            for rows in group.split(most):
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
        members, place = self._by_block
        padded = torch.cat([per_cell, per_cell.new_zeros(1, per_cell.shape[1])])[members]
        return (padded @ per_block).flatten(0, 1)[place]

    def blocks_total(self, per_cell: Tensor) -> Tensor:
        """Sum over the cells of each block: [C] -> [B]."""
        return per_cell.new_zeros(len(self.owner)).index_add(0, self.block, per_cell)


@dataclass(frozen=True)
class Projection:
    """All that a likelihood needs to know of the frames, in standardised units, float64.

    frames : [n_frames, K]
        y F^T of every frame.
    gram : [B, K, K]
        F F^T of every block.
    energy : [C]
        Sum of |y|^2 over each cell.
    """

    frames: Tensor
    gram: Tensor
    energy: Tensor
    cells: Cells
    n_voxels: int


@dataclass(frozen=True)
class Frames:
    """The frames of a study, arranged in blocks and cells. Arrays are referred to, never copied."""

    blocks: Sequence[FrameBlock]
    cells: Cells
    coordinates: Tensor
    units: Units
    terms: Tensor
    energy: Tensor

    @classmethod
    def arrange(cls, blocks: Sequence[FrameBlock], cells: Cells, coordinates: Tensor, units: Units) -> Frames:
        """Prepare what every step needs; `coordinates` are in mm, float64."""
        array = blocks[0].array
        positions = units.standardise(coordinates).to(array.device)
        energy = torch.cat([_energy(block) for block in blocks]) / units.intensity**2
        return cls(blocks, cells, positions, units, voxel_terms(positions, array.dtype), energy)

    def with_intensity(self, intensity: float) -> Frames:
        """Return the same frames, `intensity` being one."""
        energy = self.energy * (self.units.intensity / intensity) ** 2
        return replace(self, units=replace(self.units, intensity=intensity), energy=energy)

    @property
    def n_voxels(self) -> int:
        """Number of voxels."""
        return self.terms.shape[1]

    @property
    def n_data(self) -> int:
        """Number of observed values, frames times voxels."""
        return len(self.energy) * self.n_voxels

    @cached_property
    def cell_energy(self) -> Tensor:
        """Sum of |y|^2 over each cell's frames, [C]."""
        return self.cells.total(self.energy)

    def log_units(self, per_cell_count: Tensor) -> Tensor:
        """Return what a log density of so many frames gains by going back to the units of the data."""
        return -per_cell_count * self.n_voxels * math.log(self.units.intensity)

    def project(self, centers: Tensor, log_widths: Tensor) -> Projection:
        """Project the frames onto factors [B, K, 3], [B, K], those of each block onto its own."""
        projected, gram = project(centers.contiguous(), log_widths.contiguous(), self.blocks, self.terms)
        return Projection(projected / self.units.intensity, gram, self.cell_energy, self.cells, self.n_voxels)


def _energy(block: FrameBlock) -> Tensor:
    """Return |y|^2 of every frame in float64, a few frames at a time."""
    return torch.cat([block.array[part].double().square().sum(1) for part in block.rows.split(16)])
