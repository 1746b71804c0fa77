"""Columns that blocks lack: what nobody measured is in no sum over voxels.

Frames are zero in columns that their block lacks, so that Y F^T and |Y|^2 are those of the columns it has. What is not
is the factors' Gram matrix, and the number of voxels. With m the columns that block b lacks,

    F_b F_b^T = F F^T - F_m F_m^T,      F W F^T - F_m W_m F_m^T where columns have weights

so who lacks nothing costs nothing, and blocks that lack the same columns and share their factors share the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ntfa.inference.processes import ALONE, Processes
from ntfa.inference.projection import (
    CHUNK_BYTES,
    chain_rule,
    exponent_coefficients,
    factor_chunk,
    tensor_cores,
)

if TYPE_CHECKING:
    from ntfa.inference.cells import Cells
    from ntfa.inference.frames import Frames

SMALLEST_CHUNK = 512
VOXELS_AT_ONCE = 4096


class Portion(NamedTuple):
    """Sets of factors whose unseen columns are worked on together.

    owners : [p], places of the sets
    terms : [p, 6, m] or, where all of them lack the same columns, [1, 6, m]; `voxel_terms` with the weight that is
        unseen, none in columns that fill up
    """

    owners: Tensor
    terms: Tensor

    def pieces(self, n_factors: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Cut into owners and columns whose factors fit into a processor's cache, or into little of a GPU's memory."""
        most = CHUNK_BYTES[self.terms.device.type] // (2 * n_factors * self.terms.element_size())
        width = self.terms.shape[2]
        at_once = max(1, most // max(1, width))
        for start in range(0, len(self.owners), at_once):
            own = slice(start, start + at_once)
            terms = self.terms if len(self.terms) == 1 else self.terms[own]
            for columns in terms.split(max(SMALLEST_CHUNK, most), 2):
                yield self.owners[own], columns


@dataclass(frozen=True)
class Unseen:
    """Which columns every block lacks.

    pattern : [B]
        Blocks with the same number lack the same columns.
    columns, terms : one [m] and one [6, m] per pattern
        The columns that are lacked, and their `voxel_terms` with the weight that is unseen.
    n_voxels : [B]
        How many voxels each block has.
    log_scales : [B]
        Sum over the voxels that each block lacks of the logarithm of their noise's scale.
    """

    pattern: Tensor
    columns: tuple[Tensor, ...]
    terms: tuple[Tensor, ...]
    n_voxels: Tensor
    log_scales: Tensor

    @classmethod
    def of(cls, pattern: Tensor, columns: Sequence[Tensor], terms: Tensor, scales: Tensor | None) -> Unseen:
        """Say what blocks lack, given `voxel_terms` of all columns and the voxels' noise scales."""
        found = tuple(own.to(terms.device) for own in columns)
        pattern = pattern.to(terms.device)
        weights = terms[5] if len(terms) == 6 else torch.ones_like(terms[0])
        n_lacked = torch.tensor([len(own) for own in found], dtype=torch.float64, device=terms.device)
        logs = torch.zeros_like(n_lacked)
        if scales is not None:
            logs = torch.stack([scales[own].log().sum() for own in found])
        of_patterns = tuple(torch.cat([terms[:5, own], weights[own].unsqueeze(0)]) for own in found)
        return cls(pattern, found, of_patterns, (terms.shape[1] - n_lacked)[pattern], logs[pattern])

    def of_block(self, block: int) -> Unseen:
        """Return what one block lacks, as of a study of its own."""
        q = int(self.pattern[block])
        one = slice(block, block + 1)
        none = torch.zeros_like(self.pattern[one])
        return Unseen(none, (self.columns[q],), (self.terms[q],), self.n_voxels[one], self.log_scales[one])

    def with_columns(self, columns: Sequence[Tensor], terms: Sequence[Tensor]) -> Unseen:
        """Return what the same blocks lack in other columns, which stand for the same voxels."""
        return replace(self, columns=tuple(columns), terms=tuple(terms))

    def lacked_by(self, block: int) -> Tensor:
        """Return the columns that a block lacks, [m]."""
        return self.columns[int(self.pattern[block])]

    def lacked(self, n_columns: int) -> Tensor:
        """Return which block lacks which of so many columns, [B, V] of booleans."""
        table = torch.zeros(len(self.columns), n_columns, dtype=torch.bool, device=self.pattern.device)
        for row, own in zip(table, self.columns, strict=True):
            row[own] = True
        return table[self.pattern]

    def seen_gram(self, gram: Tensor, centers: Tensor, log_widths: Tensor) -> Tensor:
        """Take what is unseen out of Gram matrices.

        gram : [B, K, K], of all columns; or [1, K, K], with centres [1, K, 3] and log-widths, of factors that all share

        Returns
        -------
        [B, K, K], or [number of patterns, K, K]
        """
        shared = len(centers) == 1
        portions = self._by_pattern if shared else self._by_block
        n = len(self.columns) if shared else len(self.pattern)
        factors = centers.expand(n, -1, -1), log_widths.expand(n, -1)
        unseen: Tensor = _UnseenGram.apply(*factors, portions)
        return gram - unseen

    @cached_property
    def _by_pattern(self) -> list[Portion]:
        return self._portions([torch.tensor([q], device=self.pattern.device) for q in range(len(self.columns))])

    @cached_property
    def _by_block(self) -> list[Portion]:
        return self._portions([torch.nonzero(self.pattern == q).squeeze(-1) for q in range(len(self.columns))])

    def _portions(self, owners: Sequence[Tensor]) -> list[Portion]:
        """Put patterns with one owner each and about as many columns together, filled up to the same length."""
        widths = [own.shape[1] for own in self.terms]
        portions, waiting = [], list[int]()
        for q in sorted(range(len(widths)), key=lambda q: widths[q]):
            if not widths[q] or not len(owners[q]):
                continue
            if len(owners[q]) > 1:
                portions.append(Portion(owners[q], self.terms[q].unsqueeze(0)))
                continue
            if waiting and 2 * widths[waiting[0]] < widths[q]:
                portions.append(self._together(waiting, owners))
                waiting = []
            waiting.append(q)
        return [*portions, self._together(waiting, owners)] if waiting else portions

    def _together(self, patterns: Sequence[int], owners: Sequence[Tensor]) -> Portion:
        widest = max(self.terms[q].shape[1] for q in patterns)
        filled = [torch.nn.functional.pad(self.terms[q], (0, widest - self.terms[q].shape[1])) for q in patterns]
        return Portion(torch.cat([owners[q] for q in patterns]), torch.stack(filled))


class _UnseenGram(torch.autograd.Function):
    """F_m W_m F_m^T of every set of factors, formed again for the gradient as in `ntfa.inference.projection`."""

    @staticmethod
    def forward(ctx: Any, centers: Tensor, log_widths: Tensor, portions: Sequence[Portion]) -> Tensor:
        ctx.save_for_backward(centers, log_widths)
        ctx.portions = portions
        n_factors = centers.shape[1]
        gram = centers.new_zeros(len(centers), n_factors, n_factors)
        coefficients = exponent_coefficients(centers, log_widths, _dtype_of(portions))
        for portion in portions:
            for own, terms in portion.pieces(n_factors):
                factors = factor_chunk(coefficients[own], terms)
                with tensor_cores(factors.device):
                    gram.index_add_(0, own, ((factors * terms[:, 5:]) @ factors.mT).to(gram))
        return gram

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        centers, log_widths = ctx.saved_tensors
        n_factors = centers.shape[1]
        moments = centers.new_zeros(*centers.shape[:2], 5)
        coefficients = exponent_coefficients(centers, log_widths, _dtype_of(ctx.portions))
        gram_gradient = (gradients[0] + gradients[0].mT).to(coefficients)
        for portion in ctx.portions:
            for own, terms in portion.pieces(n_factors):
                factors = factor_chunk(coefficients[own], terms)
                with tensor_cores(factors.device):
                    slopes = gram_gradient[own] @ factors
                slopes.mul_(factors).mul_(terms[:, 5:])
                moments.index_add_(0, own, (slopes @ terms[:, :5].mT).to(moments))
        return *chain_rule(moments, centers, log_widths), None


def _dtype_of(portions: Sequence[Portion]) -> torch.dtype:
    return portions[0].terms.dtype if portions else torch.float32


@dataclass(frozen=True)
class Groups:
    """Blocks by what they lack, for factors that all share: those of one group have one Gram matrix.

    of_block : [B]
    n : number of groups
    """

    of_block: Tensor
    n: int
    cells: Cells

    @cached_property
    def first(self) -> Tensor:
        """A block of each group, [n]."""
        order = torch.arange(len(self.of_block), device=self.of_block.device).flip(0)
        return order.new_zeros(self.n).index_copy(0, self.of_block[order], order)

    @cached_property
    def of_frame(self) -> Tensor:
        """Group of each frame."""
        return self.of_block[self.cells.block][self.cells.of_frame]

    def rows(self, n_each: int) -> tuple[Tensor, ...]:
        """Places of each group's rows, one [1, n_q] per group, among all frames and then `n_each` rows per block."""
        if n_each not in self._rows:
            group = torch.cat([self.of_frame, self.of_block.repeat_interleave(n_each)])
            self._rows[n_each] = tuple(torch.nonzero(group == q).mT for q in range(self.n))
        return self._rows[n_each]

    @cached_property
    def _rows(self) -> dict[int, tuple[Tensor, ...]]:
        # Kept, because finding them makes a GPU wait, which a step that is recorded must not.
        return {}

    def total(self, per_block: Tensor) -> Tensor:
        """Sum over the blocks of each group, [B] -> [n]."""
        return per_block.new_zeros(self.n).index_add(0, self.of_block, per_block)


def lacked_by_all(frames: Frames, processes: Processes = ALONE) -> Tensor | None:
    """Which block of any process lacks which voxel, [B, V]; None if none lacks one."""
    incomplete = torch.tensor(float(frames.unseen is not None), device=frames.energy.device)
    if not float(processes.total(incomplete)):
        return None
    lacked = torch.zeros(len(frames.blocks), frames.n_voxels, dtype=torch.bool, device=frames.energy.device)
    if frames.unseen is not None:
        lacked = frames.unseen.lacked(frames.n_voxels)
    return processes.gather(lacked.to(torch.uint8)).bool()


@dataclass(frozen=True)
class VoxelGroups:
    """Voxels by which blocks, of all processes, have them.

    of_voxel : [V]
    count : [G], voxels of each group
    seen : [G, B], one where a block of this process has a group's voxels, zero elsewhere
    """

    of_voxel: Tensor
    count: Tensor
    seen: Tensor

    @classmethod
    def of(cls, frames: Frames, processes: Processes) -> VoxelGroups | None:
        """Group the voxels; None if no block of any process lacks one."""
        everywhere = lacked_by_all(frames, processes)
        if everywhere is None:
            return None
        n_voxels = frames.n_voxels
        own = torch.ones(len(frames.blocks), n_voxels, dtype=torch.bool, device=everywhere.device)
        seen = own if frames.unseen is None else ~frames.unseen.lacked(n_voxels)
        # A random number for each block: sums of them are the same for the same blocks, and else hardly ever.
        drawn = torch.randint(2**62, (len(everywhere),), generator=torch.Generator().manual_seed(0))
        key = torch.zeros(n_voxels, dtype=torch.long, device=everywhere.device)
        for row, number in zip(everywhere, drawn.tolist(), strict=True):
            key += row.long() * number
        _, group, count = torch.unique(key, return_inverse=True, return_counts=True)
        member = torch.empty(len(count), dtype=torch.long, device=group.device)
        member[group] = torch.arange(n_voxels, device=group.device)
        return cls(group, count.double(), seen[:, member].mT.double())

    def pieces(self, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through the columns of [r, V], a few at a time, with the group of each."""
        return zip(values.split(VOXELS_AT_ONCE, 1), self.of_voxel.split(VOXELS_AT_ONCE), strict=True)
