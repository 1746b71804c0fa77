"""Cells' values to where they are needed, with gradients that are gathered in turn.

The gradient of an indexing adds up what came from the same place one by one: where tens of thousands of frames are of
one cell, a GPU takes longer for that than for all else in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def to_frames(per_cell: Tensor, of_frame: Tensor, frames: Sequence[Tensor]) -> Tensor:
    """Values of cells to their frames, [C, ...] -> [n_frames, ...].

    of_frame : [n_frames], the cell of each
    frames : rows of the cells, as `Cells` has them, which gradients are summed over
    """
    found: Tensor = _ToFrames.apply(per_cell, of_frame, frames)
    return found


def to_blocks(per_cell: Tensor, members: Tensor, place: Tensor) -> Tensor:
    """Values of cells to the blocks that they are of, [C, ...] -> [B, most cells of a block, ...], padded with zeros.

    members : [B, most], the cells of each block, C where there are fewer
    place : [C], where each cell is among these
    """
    found: Tensor = _ToBlocks.apply(per_cell, members, place)
    return found


class _ToFrames(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, per_cell: Tensor, of_frame: Tensor, frames: Sequence[Tensor]) -> Tensor:
        ctx.frames = frames
        return per_cell[of_frame]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return torch.cat([gradients[0][rows].sum(1) for rows in ctx.frames]), None, None


class _ToBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, per_cell: Tensor, members: Tensor, place: Tensor) -> Tensor:
        ctx.place = place
        return torch.cat([per_cell, per_cell.new_zeros(1, *per_cell.shape[1:])])[members]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].flatten(0, 1)[ctx.place], None, None
