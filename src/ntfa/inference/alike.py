"""Cells whose weights vary alike, taken together: a matrix that is the same for all of them is inverted once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ntfa.inference.cells import Cells


@dataclass(frozen=True)
class Alike:
    """Groups of cells that share factors and the spread of their weights, Q of them.

    cells : the groups, each as one cell
    first : [Q], a cell of each group
    of_cell : [C], the group of each cell
    """

    cells: Cells
    first: Tensor
    of_cell: Tensor

    @classmethod
    def of(cls, cells: Cells, group: Tensor) -> Alike:
        """Take cells together, given the group of each, [C] from 0 to Q - 1."""
        size, order = torch.bincount(group[cells.of_frame]).sort(stable=True)
        of_cell = torch.argsort(order)[group]
        rows = torch.argsort(of_cell[cells.of_frame], stable=True)
        shapes = [(len(same), int(same[0])) for same in size.split(_runs(size))]
        parts = rows.split([n_groups * length for n_groups, length in shapes])
        frames = tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        n_cells = torch.bincount(of_cell)
        first = torch.argsort(of_cell, stable=True)[torch.cumsum(n_cells, 0) - n_cells]
        groups = replace(
            cells,
            participant=cells.participant[first],
            stimulus=cells.stimulus[first],
            block=cells.block[first],
            frames=frames,
            design=None,
        )
        return cls(groups, first, of_cell)

    @property
    def are_single(self) -> bool:
        """Whether no two cells are alike."""
        return len(self.first) == len(self.of_cell)

    def total(self, per_cell: Tensor) -> Tensor:
        """Sum over the cells of each group: [C] -> [Q]."""
        return per_cell.new_zeros(len(self.first)).index_add(0, self.of_cell, per_cell)


def _runs(values: Tensor) -> list[int]:
    """How often each value comes, of values in order."""
    found: list[int] = torch.unique_consecutive(values, return_counts=True)[1].tolist()
    return found
