"""Which frames belong together.

A *block* is a set of frames that share factors (all of a participant's, or one trial's). A *cell* is a set of frames
of one block that share the prior of their weights (all frames of one participant and stimulus, or one trial's).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ntfa.inference.alike import Alike
from ntfa.inference.gathering import to_blocks, to_frames


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
