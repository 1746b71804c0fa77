"""Project frames onto factors that everybody shares: as `ntfa.inference.projection`, with one set of factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ntfa.inference.projection import (
    ALIGNED,
    CHUNK_BYTES,
    SMALL_STUDY,
    FrameBlock,
    chain_rule,
    exponent_coefficients,
    factor_chunk,
    fill_up,
    tensor_cores,
    weighted_factors,
)

A_HANDFUL = 16


def project_shared(
    centers: Tensor, log_widths: Tensor, pieces: Sequence[Tensor], terms: Tensor
) -> tuple[Tensor, Tensor]:
    """Project all frames onto one set of factors.

    Factors are formed once, not once per block: where participants have few frames each, forming them costs more than
    the products.

    Parameters
    ----------
    centers : [K, 3]
    log_widths : [K]
    pieces : arrays of frames, one after another, from `frame_pieces`
    terms : [5, V] or [6, V], from `voxel_terms`, in the precision of the frames

    Returns
    -------
    projected : [n_frames, K]
    gram : [K, K]
    """
    projected, gram = _ProjectShared.apply(centers, log_widths, pieces, terms)
    return projected, gram


def frame_pieces(blocks: Sequence[FrameBlock]) -> list[Tensor]:
    """Return the frames of all blocks, in order, in as few arrays as there can be without copying a large study."""
    if blocks[0].stack is not None:
        return [block.stack.flatten(0, 1) for block in blocks if block.place == 0 and block.stack is not None]
    by_run = [run for block in blocks for run in block.by_run]
    n_bytes = sum(run.numel() * run.element_size() for run in by_run)
    # One product of all frames instead of one per participant; a small study is worth the copy.
    return [torch.cat(by_run)] if n_bytes <= SMALL_STUDY and len(by_run) > 1 else by_run


def _factors_by_frames(factors: Tensor, frames: Tensor) -> Tensor:
    """Return F Y^T. Processors take up to three times as long for Y F^T, but where frames are a handful."""
    return factors @ frames.T if len(frames) > A_HANDFUL else (frames @ factors.T).T


class _ProjectShared(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, centers: Tensor, log_widths: Tensor, pieces: Sequence[Tensor], terms: Tensor
    ) -> tuple[Tensor, Tensor]:
        terms = fill_up(terms, pieces[0].shape[1])
        ctx.save_for_backward(centers, log_widths, terms)
        ctx.pieces, ctx.factors = pieces, None
        coefficients = exponent_coefficients(centers, log_widths, terms.dtype)
        projected_rows = sum(len(piece) for piece in pieces)
        projected = centers.new_zeros(len(centers), projected_rows)
        gram = centers.new_zeros(len(centers), len(centers))
        for voxels in _column_chunks(terms, len(centers), projected_rows):
            factors = factor_chunk(coefficients, terms[:, voxels])
            weighted = weighted_factors(factors, terms[:, voxels])
            with tensor_cores(factors.device):
                start = 0
                for piece in pieces:
                    projected[:, start : start + len(piece)] += _factors_by_frames(weighted, piece[:, voxels])
                    start += len(piece)
                gram += weighted @ factors.T
            ctx.factors = factors if factors.shape[1] == terms.shape[1] else None
        return projected.T.contiguous(), gram

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_projected, grad_gram = gradients
        centers, log_widths, terms = ctx.saved_tensors
        coefficients = exponent_coefficients(centers, log_widths, terms.dtype)
        frame_gradient = grad_projected.to(terms.dtype)
        gram_gradient = (grad_gram + grad_gram.T).to(terms.dtype)
        moments, projected_rows = centers.new_zeros(len(centers), 5), len(frame_gradient)
        for voxels in _column_chunks(terms, len(centers), projected_rows):
            factors = factor_chunk(coefficients, terms[:, voxels]) if ctx.factors is None else ctx.factors
            with tensor_cores(factors.device):
                slopes = gram_gradient @ factors
                start = 0
                for piece in ctx.pieces:
                    slopes.addmm_(frame_gradient[start : start + len(piece)].T, piece[:, voxels])
                    start += len(piece)
            slopes.mul_(factors)
            if len(terms) == 6:
                slopes.mul_(terms[5, voxels])
            moments += slopes @ terms[:5, voxels].T
        return *chain_rule(moments, centers, log_widths), None, None


def _column_chunks(terms: Tensor, n_factors: int, n_frames: int) -> list[slice]:
    """Cut the columns into chunks that fit into a processor's cache with their frames, or into some GPU memory.

    Sums over few columns are not divided among threads, so that results do not depend on how many there are.
    """
    n_columns = terms.shape[1]
    rows = 2 * n_factors + (n_frames if terms.device.type == "cpu" else 0)
    size = max(512, CHUNK_BYTES[terms.device.type] // (rows * terms.element_size()))
    size = -(-n_columns // -(-n_columns // size) // ALIGNED) * ALIGNED
    return [slice(low, min(low + size, n_columns)) for low in range(0, n_columns, size)]
