"""Project frames onto factors: P = Y F^T and G = F F^T, the only two places where voxels appear.

Both the collapsed and the sampled likelihood depend on the frames Y through P, G and the constant |Y|^2 alone.
Factors are formed voxel chunk by voxel chunk, used while they are in cache, and formed again for the gradient:

    forward    P += Y_c F~_c^T,  G += F~_c F_c^T,  F~ = F, or F W where voxels have weights W = diag(w)
    backward   H = F~_c * (dP^T Y_c + (dG + dG^T) F_c)                              [K, chunk]
               d centre = 2 e^-rho (H g - x sum H),     d rho = e^-rho sum_v H |g - x|^2

so neither a frames x voxels residual nor a factors x voxels matrix is ever held. A weight says how much a column
counts: how many voxels it stands for, and how little noise they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 512 << 20}
TF32 = True
SMALL_BLOCK = 256 << 20


@dataclass(frozen=True)
class FrameBlock:
    """Frames that share one set of factors: some rows of one participant's array, in runs of consecutive rows.

    stack, place : where `array` is stack[place] of an array [m, n, V] that holds the frames of m blocks
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

    def read(self, voxels: slice, n_factors: int) -> list[Tensor]:
        """Read the frames at some voxels, in pieces [n, chunk] one after another.

        A product wants its frames in one piece, but gathering them costs a copy. With more factors than frames in a run
        the copy is the lesser cost; with fewer, it is cheaper to take run by run, as it lies in memory.
        """
        if len(self.runs) > 1 and n_factors * len(self.runs) > self.n_frames:
            return [self.array[:, voxels].index_select(0, self.rows)]
        return [self.array[run, voxels] for run in self.runs]


def place_blocks(blocks: Sequence[FrameBlock], device: torch.device) -> Sequence[FrameBlock]:
    """Put blocks on a device; on a GPU without rows that are in no block, and small ones of one length stacked.

    One product of many stacked blocks keeps a GPU busy that would wait for the launches of many small ones.
    """
    if device.type == "cpu":
        return blocks
    placed: list[FrameBlock] = []
    for n_frames, same in groupby(blocks, key=lambda block: block.n_frames):
        own = list(same)
        array = own[0].array
        is_small = n_frames * array.shape[1] * array.element_size() < SMALL_BLOCK
        for some in [own] if is_small else [[block] for block in own]:
            stack = array.new_empty(len(some), n_frames, array.shape[1], device=device)
            for place, block in enumerate(some):
                torch.cat([block.array[run].to(device) for run in block.runs], out=stack[place])
                placed.append(FrameBlock(stack[place], [slice(0, n_frames)], stack if is_small else None, place))
    return placed


def voxel_terms(coordinates: Tensor, dtype: torch.dtype = torch.float32, weights: Tensor | None = None) -> Tensor:
    """Return what a factor needs of each voxel: (g, |g|^2, 1) as [5, V], and the voxels' weights as a sixth."""
    squared = coordinates.square().sum(1, keepdim=True)
    terms = [coordinates, squared, torch.ones_like(squared)]
    if weights is not None:
        terms.append(weights.unsqueeze(1).to(squared))
    return torch.cat(terms, 1).T.contiguous().to(dtype)


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
    """Return c with c . (g, |g|^2, 1) = -|g - x|^2 exp(-rho), as [..., K, 5]."""
    precision = torch.exp(-log_widths).unsqueeze(-1)
    squared = centers.square().sum(-1, keepdim=True)
    return (torch.cat([2 * centers, -torch.ones_like(squared), -squared], -1) * precision).to(dtype)


def factor_chunk(coefficients: Tensor, terms: Tensor) -> Tensor:
    """Form factors at a chunk of voxels, [K, chunk].

    Rounding may not lift a factor above one; and none falls below e^-60, far under the resolution of float32, because
    processors are several times slower with the denormal numbers that would come next.
    """
    return (coefficients @ terms[:5]).clamp_(-60.0, 0.0).exp_()


def _weighted(factors: Tensor, terms: Tensor) -> Tensor:
    """Multiply factors by the voxels' weights, if there are any."""
    return factors if len(terms) == 5 else factors * terms[5]


@contextmanager
def _tensor_cores(device: torch.device) -> Iterator[None]:
    """Let a GPU round the factors of large products to TF32, as its fast units do; sums are still float32's.

    Exponents and moments stay in float32: exp would magnify what their rounding loses.
    """
    if device.type == "cpu":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = TF32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _together(
    blocks: Sequence[FrameBlock], n_voxels: int, n_factors: int
) -> Iterator[tuple[range, slice, Tensor | None]]:
    """Go through the blocks: which are taken together, rows of their frames, and their frames [m, n, V] if stacked."""
    first = start = 0
    most = max(1, CHUNK_BYTES[blocks[0].array.device.type] // (8 * n_factors * n_voxels))
    while first < len(blocks):
        block, last = blocks[first], first + 1
        if block.stack is not None:
            last = min(first + most, first + len(block.stack) - block.place)
        stack = None if block.stack is None else block.stack[block.place : block.place + last - first]
        stop = start + block.n_frames * (last - first)
        yield range(first, last), slice(start, stop), stack
        first, start = last, stop


def _chunks(block: FrameBlock, n_factors: int, n_together: int = 1) -> Iterator[slice]:
    array = block.array
    n_voxels = array.shape[1]
    gathered = block.n_frames if array.device.type == "cpu" or len(block.runs) > 1 else 0
    bytes_per_voxel = (gathered + 2 * n_factors * n_together) * array.element_size()
    size = min(n_voxels, max(512, CHUNK_BYTES[array.device.type] // bytes_per_voxel))
    n_chunks = -(-n_voxels // size)
    size = -(-n_voxels // n_chunks)
    return (slice(lo, min(lo + size, n_voxels)) for lo in range(0, n_voxels, size))


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, centers: Tensor, log_widths: Tensor, blocks: Sequence[FrameBlock], terms: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(centers, log_widths, terms)
        ctx.blocks = blocks
        coefficients = exponent_coefficients(centers, log_widths, terms.dtype)
        n_factors = centers.shape[1]
        projected = centers.new_zeros(sum(block.n_frames for block in blocks), n_factors)
        gram = centers.new_zeros(len(blocks), n_factors, n_factors)
        for together, rows, stack in _together(blocks, terms.shape[1], n_factors):
            own = slice(together.start, together.stop) if stack is not None else together.start
            for voxels in _chunks(blocks[together.start], n_factors, len(together)):
                factors = factor_chunk(coefficients[own], terms[:, voxels])
                weighted = _weighted(factors, terms[:, voxels])
                with _tensor_cores(factors.device):
                    if stack is None:
                        pieces = [weighted @ frames.T for frames in blocks[together.start].read(voxels, n_factors)]
                    else:
                        pieces = [weighted @ stack[..., voxels].mT]
                    own_gram = weighted @ factors.mT
                product = torch.cat(pieces, 1) if len(pieces) > 1 else pieces[0]
                projected[rows] += product.mT.reshape(-1, n_factors)
                gram[own] += own_gram
        return projected, gram

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_projected, grad_gram = gradients
        centers, log_widths, terms = ctx.saved_tensors
        coefficients = exponent_coefficients(centers, log_widths, terms.dtype)
        frame_gradient = grad_projected.to(terms.dtype)
        gram_gradient = (grad_gram + grad_gram.mT).to(terms.dtype)
        n_factors = centers.shape[1]
        moments = centers.new_zeros(*centers.shape[:2], 5)
        for together, rows, stack in _together(ctx.blocks, terms.shape[1], n_factors):
            own = slice(together.start, together.stop) if stack is not None else together.start
            pulled = frame_gradient[rows]
            pulled = pulled.T if stack is None else pulled.unflatten(0, stack.shape[:2]).mT
            for voxels in _chunks(ctx.blocks[together.start], n_factors, len(together)):
                factors = factor_chunk(coefficients[own], terms[:, voxels])
                with _tensor_cores(factors.device):
                    slope = gram_gradient[own] @ factors
                    if stack is None:
                        pieces = ctx.blocks[together.start].read(voxels, n_factors)
                        parts = pulled.split([len(frames) for frames in pieces], 1)
                        for part, frames in zip(parts, pieces, strict=True):
                            slope.addmm_(part, frames)
                    else:
                        slope.baddbmm_(pulled, stack[..., voxels])
                slope.mul_(factors)
                if len(terms) == 6:
                    slope.mul_(terms[5, voxels])
                moments[own] += slope @ terms[:5, voxels].T
        return *_chain_rule(moments, centers, log_widths), None, None


def _chain_rule(moments: Tensor, centers: Tensor, log_widths: Tensor) -> tuple[Tensor, Tensor]:
    """Turn sums of H (g, |g|^2, 1) over voxels into gradients of centres and log-widths."""
    first, second, total = moments[..., :3], moments[..., 3], moments[..., 4]
    precision = torch.exp(-log_widths)
    grad_centers = 2 * precision.unsqueeze(-1) * (first - centers * total.unsqueeze(-1))
    squared_distance = second - 2 * (centers * first).sum(-1) + centers.square().sum(-1) * total
    return grad_centers, precision * squared_distance
