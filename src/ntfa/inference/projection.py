"""Project frames onto factors: P = Y F^T and G = F F^T, the only two places where voxels appear.

Both the collapsed and the sampled likelihood depend on the frames Y through P, G and the constant |Y|^2 alone.
Factors are formed voxel chunk by voxel chunk, used while they are in cache, and formed again for the gradient:

    forward    P += Y_c F~_c^T,  G += F~_c F_c^T,  F~ = F, or F W where voxels have weights W = diag(w)
    backward   H = F~_c * (dP^T Y_c + (dG + dG^T) F_c)                              [K, chunk]
               d centre = 2 e^-rho (H g - x sum H),     d rho = e^-rho sum_v H |g - x|^2

so neither a frames x voxels residual nor a large factors x voxels matrix is ever held: factors are kept for the
gradient only if all of them fit into one chunk. A weight says how much a column counts: how many voxels it stands for,
and how little noise they have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ntfa.inference.upload import Upload

CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 512 << 20}
TF32 = True
SMALL_BLOCK = 256 << 20
SMALL_STUDY = 128 << 20
ALIGNED = 32
"""On a GPU rows of frames have a multiple of so many columns: its fastest products need rows that start evenly."""
LOG_2 = math.log(2)
FAR_AWAY = 1e12
"""Squared distance of columns that are there to fill up rows: frames are zero there, and so are factors."""


@dataclass(frozen=True)
class FrameBlock:
    """Frames that share one set of factors: some rows of one participant's array, in runs of consecutive rows.

    stack, place : where `array` is stack[place, :, :V] of an array that holds the frames of m blocks, [m, n, columns];
        columns after the voxels are zero
    """

    array: Tensor
    runs: Sequence[slice]
    stack: Tensor | None = None
    place: int = 0

    @cached_property
    def n_frames(self) -> int:
        """Number of frames in the block."""
        return sum(run.stop - run.start for run in self.runs)

    @cached_property
    def rows(self) -> Tensor:
        """Row of the array that each frame is."""
        rows = [torch.arange(run.start, run.stop) for run in self.runs]
        return torch.cat(rows).to(self.array.device)

    def in_one_run(self) -> FrameBlock:
        """Return the frames as consecutive rows."""
        return self if len(self.runs) == 1 else FrameBlock(self.array[self.rows], [slice(0, self.n_frames)])

    @property
    def filled_up(self) -> Tensor:
        """The array with the columns that fill up its rows."""
        return self.array if self.stack is None else self.stack[self.place]

    def read(self, voxels: slice, n_factors: int) -> list[Tensor]:
        """Read the frames at some columns, in pieces [n, chunk] one after another.

        A product wants its frames in one piece, but gathering them costs a copy. With more factors than frames in a run
        the copy is the lesser cost; with fewer, it is cheaper to take run by run, as it lies in memory.
        """
        if len(self.runs) > 1 and n_factors * len(self.runs) > self.n_frames:
            return [self.filled_up[:, voxels].index_select(0, self.rows)]
        is_all = voxels.stop - voxels.start == self.filled_up.shape[1]
        return self.by_run if is_all else [frames[:, voxels] for frames in self.by_run]

    @cached_property
    def by_run(self) -> list[Tensor]:
        """The frames of each run, as they lie in memory."""
        return [self.filled_up[run] for run in self.runs]


def place_blocks(blocks: Sequence[FrameBlock], device: torch.device) -> Sequence[FrameBlock]:
    """Put blocks on a device; on a GPU without rows that are in no block, and small ones of one length stacked.

    One product of many stacked blocks keeps a GPU busy that would wait for the launches of many small ones. A processor
    has blocks where they lie in memory, but for those of small studies, whose runs are put together: there, calling for
    many short products takes longer than doing them.
    """
    if device.type == "cpu":
        n_bytes = sum(block.n_frames * block.array.shape[1] * block.array.element_size() for block in blocks)
        return [block.in_one_run() for block in blocks] if n_bytes <= SMALL_STUDY else blocks
    placed: list[FrameBlock] = []
    for n_frames, same in groupby(blocks, key=lambda block: block.n_frames):
        own = list(same)
        array = own[0].array
        is_small = n_frames * array.shape[1] * array.element_size() < SMALL_BLOCK
        for some in [own] if is_small else [[block] for block in own]:
            placed += stacked(some, device)
    return placed


def stacked(blocks: Sequence[FrameBlock], device: torch.device) -> list[FrameBlock]:
    """Copy blocks of one length into a stack."""
    array, n_frames = blocks[0].array, blocks[0].n_frames
    copies = unstack(empty_stack(len(blocks), n_frames, array.shape[1], array.dtype, device), array.shape[1])
    from_memory = device.type == "cuda" and array.device.type == "cpu"
    copy_rows = Upload(array.shape[1], array.dtype) if from_memory else Tensor.copy_
    for block, copy in zip(blocks, copies, strict=True):
        start = 0
        for run in block.runs:
            stop = start + run.stop - run.start
            copy_rows(copy.array[start:stop], block.array[run])
            start = stop
    return copies


def empty_stack(n_blocks: int, n_frames: int, n_voxels: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make room for the frames of some blocks, [m, n, V or more], rows filled up with zeros."""
    stack = torch.empty(n_blocks, n_frames, -(-n_voxels // ALIGNED) * ALIGNED, dtype=dtype, device=device)
    stack[..., n_voxels:] = 0
    return stack


def unstack(stack: Tensor, n_voxels: int) -> list[FrameBlock]:
    """Return a stack's blocks."""
    runs = [slice(0, stack.shape[1])]
    return [FrameBlock(own[:, :n_voxels], runs, stack, place) for place, own in enumerate(stack)]


def voxel_terms(coordinates: Tensor, dtype: torch.dtype = torch.float32, weights: Tensor | None = None) -> Tensor:
    """Return what a factor needs of each voxel: (g, |g|^2, 1) as [5, V], and the voxels' weights as a sixth."""
    squared = coordinates.square().sum(1, keepdim=True)
    terms = [coordinates, squared, torch.ones_like(squared)]
    if weights is not None:
        terms.append(weights.unsqueeze(1).to(squared))
    return torch.cat(terms, 1).T.contiguous().to(dtype)


def no_frames(terms: Tensor) -> FrameBlock:
    """Return a block without frames, for Gram matrices alone."""
    return FrameBlock(terms[:1, :][:0], [slice(0, 0)])


def project(centers: Tensor, log_widths: Tensor, blocks: Sequence[FrameBlock], terms: Tensor) -> tuple[Tensor, Tensor]:
    """Project every block's frames onto that block's factors.

    Parameters
    ----------
    centers : [B, K, 3]
    log_widths : [B, K]
    blocks : B blocks of frames
    terms : [5, V] or [6, V], from `voxel_terms`, in the precision of the frames

    Returns
    -------
    projected : [n_frames, K]
        Y F^T, blocks one after another, accumulated in float64; Y W F^T with weights.
    gram : [B, K, K]
        F F^T of every block; F W F^T with weights.
    """
    projected, gram = _Project.apply(centers, log_widths, blocks, terms)
    return projected, gram


def exponent_coefficients(centers: Tensor, log_widths: Tensor, dtype: torch.dtype) -> Tensor:
    """Return c with 2^(c . (g, |g|^2, 1)) = exp(-|g - x|^2 exp(-rho)), as [..., K, 5]."""
    precision = torch.exp(-log_widths).unsqueeze(-1) / LOG_2
    squared = centers.square().sum(-1, keepdim=True)
    return (torch.cat([2 * centers, -torch.ones_like(squared), -squared], -1) * precision).to(dtype)


def factor_chunk(coefficients: Tensor, terms: Tensor) -> Tensor:
    """Form factors at a chunk of voxels, [..., K, chunk].

    Rounding may not lift a factor above one; and none falls below 2^-58, far under the resolution of float32, because
    processors are several times slower with the denormal numbers that products of two would come to. Powers of two
    take less than half of the time of powers of e.
    """
    return (coefficients @ terms[..., :5, :]).clamp_(-58.0, 0.0).exp2_()


def fill_up(terms: Tensor, n_columns: int) -> Tensor:
    """Add voxels that no factor reaches."""
    missing = n_columns - terms.shape[1]
    if not missing:
        return terms
    nowhere = terms.new_zeros(len(terms), missing)
    nowhere[3] = FAR_AWAY
    return torch.cat([terms, nowhere], 1)


def weighted_factors(factors: Tensor, terms: Tensor) -> Tensor:
    """Multiply factors by the voxels' weights, if there are any."""
    return factors if len(terms) == 5 else factors * terms[5]


def tensor_cores(device: torch.device) -> AbstractContextManager[None]:
    """Let a GPU round the factors of large products to TF32, as its fast units do; sums are still float32's.

    Exponents and moments stay in float32: exp would magnify what their rounding loses.
    """
    return nullcontext() if device.type == "cpu" else _rounding_to_tf32()


@contextmanager
def _rounding_to_tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = TF32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@dataclass(frozen=True)
class _Portion:
    """Blocks whose factors are formed together, and the rows of their frames."""

    blocks: Sequence[FrameBlock]
    own: slice
    rows: slice

    @cached_property
    def stack(self) -> Tensor | None:
        """Frames of several blocks, [m, n, V or more], where they are stacked."""
        first = self.blocks[0]
        several = len(self.blocks) > 1 and first.stack is not None
        return first.stack[first.place : first.place + len(self.blocks)] if several else None  # type: ignore[index]

    def project(self, weighted: Tensor, voxels: slice) -> Tensor:
        """Return Y F~^T of all frames [n, K], of factors [m, K, chunk]."""
        if self.stack is not None:
            return (self.stack[..., voxels] @ weighted.mT).flatten(0, 1)
        n_factors = weighted.shape[1]
        pieces = [
            factors @ frames.T
            for factors, block in zip(weighted, self.blocks, strict=True)
            for frames in block.read(voxels, n_factors)
        ]
        return (torch.cat(pieces, 1) if len(pieces) > 1 else pieces[0]).T

    def add_pulled(self, slopes: Tensor, pulled: Tensor, voxels: slice) -> None:
        """Add dP^T Y of every block to slopes [m, K, chunk]; `pulled` is dP^T of all frames, [K, n]."""
        if self.stack is not None:
            slopes.baddbmm_(pulled.unflatten(1, self.stack.shape[:2]).transpose(0, 1), self.stack[..., voxels])
            return
        of_blocks = pulled.split([block.n_frames for block in self.blocks], 1)
        for slope, own, block in reversed([*zip(slopes, of_blocks, self.blocks, strict=True)]):
            pieces = block.read(voxels, slopes.shape[1])
            for part, frames in zip(own.split([frames.shape[0] for frames in pieces], 1), pieces, strict=True):
                slope.addmm_(part, frames)


def _portions(blocks: Sequence[FrameBlock], n_columns: int, n_factors: int) -> Iterator[_Portion]:
    """Go through the blocks, as many together as their factors have room; on a GPU, as are stacked."""
    on_cpu = blocks[0].array.device.type == "cpu"
    most = max(1, CHUNK_BYTES[blocks[0].array.device.type] // (8 * n_factors * n_columns))
    first = start = 0
    while first < len(blocks):
        block, last = blocks[first], min(first + most, len(blocks))
        if block.stack is not None:
            last = min(last, first + len(block.stack) - block.place)
        elif not on_cpu:
            last = first + 1
        some = blocks[first:last]
        stop = start + sum(own.n_frames for own in some)
        yield _Portion(some, slice(first, last), slice(start, stop))
        first, start = last, stop


def _chunks(block: FrameBlock, n_factors: int, n_together: int = 1) -> Iterator[slice]:
    """Cut the columns into chunks that can be worked on in a processor's cache, or in little of a GPU's memory."""
    array = block.filled_up
    n_columns = array.shape[1]
    gathered = block.n_frames if array.device.type == "cpu" or len(block.runs) > 1 else 0
    bytes_per_voxel = (gathered + 2 * n_factors * n_together) * array.element_size()
    size = min(n_columns, max(512, CHUNK_BYTES[array.device.type] // bytes_per_voxel))
    n_chunks = -(-n_columns // size)
    size = -(-n_columns // n_chunks // ALIGNED) * ALIGNED
    return (slice(lo, min(lo + size, n_columns)) for lo in range(0, n_columns, size))


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, centers: Tensor, log_widths: Tensor, blocks: Sequence[FrameBlock], terms: Tensor
    ) -> tuple[Tensor, Tensor]:
        terms = fill_up(terms, blocks[0].filled_up.shape[1])
        ctx.save_for_backward(centers, log_widths, terms)
        ctx.blocks = blocks
        coefficients = exponent_coefficients(centers, log_widths, terms.dtype)
        n_factors = centers.shape[1]
        projected = centers.new_zeros(sum(block.n_frames for block in blocks), n_factors)
        gram = centers.new_zeros(len(blocks), n_factors, n_factors)
        for portion in _portions(blocks, terms.shape[1], n_factors):
            for voxels in _chunks(portion.blocks[0], n_factors, len(portion.blocks)):
                factors = factor_chunk(coefficients[portion.own], terms[:, voxels])
                weighted = weighted_factors(factors, terms[:, voxels])
                with tensor_cores(factors.device):
                    projected[portion.rows] += portion.project(weighted, voxels)
                    gram[portion.own] += weighted @ factors.mT
        ctx.factors = factors if factors.shape[0] * factors.shape[2] == len(blocks) * terms.shape[1] else None
        return projected, gram

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_projected, grad_gram = gradients
        centers, log_widths, terms = ctx.saved_tensors
        coefficients = None if ctx.factors is not None else exponent_coefficients(centers, log_widths, terms.dtype)
        frame_gradient = grad_projected.to(terms.dtype)
        gram_gradient = (grad_gram + grad_gram.mT).to(terms.dtype)
        n_factors = centers.shape[1]
        moments = centers.new_zeros(*centers.shape[:2], 5)
        # Backwards through the frames, of which a processor's cache still holds the last.
        for portion in reversed([*_portions(ctx.blocks, terms.shape[1], n_factors)]):
            pulled = frame_gradient[portion.rows].T.contiguous()
            for voxels in reversed([*_chunks(portion.blocks[0], n_factors, len(portion.blocks))]):
                factors = ctx.factors
                if coefficients is not None:
                    factors = factor_chunk(coefficients[portion.own], terms[:, voxels])
                with tensor_cores(factors.device):
                    slopes = gram_gradient[portion.own] @ factors
                    portion.add_pulled(slopes, pulled, voxels)
                slopes.mul_(factors)
                if len(terms) == 6:
                    slopes.mul_(terms[5, voxels])
                moments[portion.own] += slopes @ terms[:5, voxels].T
        return *chain_rule(moments, centers, log_widths), None, None


def chain_rule(moments: Tensor, centers: Tensor, log_widths: Tensor) -> tuple[Tensor, Tensor]:
    """Turn sums of H (g, |g|^2, 1) over voxels into gradients of centres and log-widths."""
    first, second, total = moments[..., :3], moments[..., 3], moments[..., 4]
    precision = torch.exp(-log_widths)
    grad_centers = 2 * precision.unsqueeze(-1) * (first - centers * total.unsqueeze(-1))
    squared_distance = second - 2 * (centers * first).sum(-1) + centers.square().sum(-1) * total
    return grad_centers, precision * squared_distance
