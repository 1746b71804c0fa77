"""Project frames onto factors that everybody shares: as `ntfa.inference.projection`, with one set of factors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
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
from ntfa.inference.threads import FEW_DATA

A_HANDFUL = 16
COLUMNS_OF_THREADS = 1024
"""Columns at a time, at most, where there may be more than one thread."""


def project_shared(
    centers: Tensor, log_widths: Tensor, pieces: Sequence[FrameBlock], terms: Tensor
) -> tuple[Tensor, Tensor]:
    """Project all frames onto one set of factors.

    Factors are formed once, not once per block: where participants have few frames each, forming them costs more than
    the products.

    Parameters
    ----------
    centers : [K, 3]
    log_widths : [K]
    pieces : frames, one after another, from `frame_pieces`
    terms : [5, V] or [6, V], from `voxel_terms`, in the precision of the frames

    Returns
    -------
    projected : [n_frames, K]
    gram : [K, K]
    """
    projected, gram = _ProjectShared.apply(centers, log_widths, pieces, terms)
    return projected, gram


def frame_pieces(blocks: Sequence[FrameBlock]) -> Sequence[FrameBlock]:
    """Return the frames of all blocks, in order, in as many pieces as products of them are fast."""
    if blocks[0].stack is not None:
        return [_piece(block.stack.flatten(0, 1)) for block in blocks if block.place == 0 and block.stack is not None]
    by_run = [run for block in blocks for run in block.by_run]
    n_columns, size = by_run[0].shape[1], by_run[0].element_size()
    if sum(run.shape[0] for run in by_run) * n_columns * size > SMALL_STUDY:
        return blocks
    # A small study is worth the copy: people have very few frames, or very many, for one product of each.
    rows = max(1, 3 * CHUNK_BYTES["cpu"] // (4 * n_columns * size))
    return [_piece(frames) for frames in torch.cat(by_run).split(rows)]


def _piece(frames: Tensor) -> FrameBlock:
    return FrameBlock(frames, [slice(0, len(frames))])


def _factors_by_frames(factors: Tensor, frames: Tensor) -> Tensor:
    """Return F Y^T. Processors take up to three times as long for Y F^T, but where frames are a handful."""
    return factors @ frames.T if len(frames) > A_HANDFUL else (frames @ factors.T).T


class _ProjectShared(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, centers: Tensor, log_widths: Tensor, pieces: Sequence[FrameBlock], terms: Tensor
    ) -> tuple[Tensor, Tensor]:
        terms = fill_up(terms, pieces[0].filled_up.shape[1])
        ctx.save_for_backward(centers, log_widths, terms)
        ctx.pieces, ctx.factors = pieces, None
        coefficients = exponent_coefficients(centers, log_widths, terms.dtype)
        projected = centers.new_zeros(len(centers), sum(piece.n_frames for piece in pieces))
        gram = centers.new_zeros(len(centers), len(centers))
        for voxels in _column_chunks(terms, len(centers), pieces):
            factors = factor_chunk(coefficients, terms[:, voxels])
            weighted = weighted_factors(factors, terms[:, voxels])
            with tensor_cores(factors.device):
                for rows, frames in _read(pieces, voxels, len(centers)):
                    projected[:, rows] += _factors_by_frames(weighted, frames)
                gram += weighted @ factors.T
            ctx.factors = factors if factors.shape[1] == terms.shape[1] else None
        return projected.T.contiguous(), gram

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_projected, grad_gram = gradients
        centers, log_widths, terms = ctx.saved_tensors
        coefficients = None if ctx.factors is not None else exponent_coefficients(centers, log_widths, terms.dtype)
        frame_gradient = grad_projected.to(terms.dtype)
        gram_gradient = (grad_gram + grad_gram.T).to(terms.dtype)
        moments = centers.new_zeros(len(centers), 5)
        # Backwards through the frames, of which a processor's cache still holds the last.
        for voxels in reversed(_column_chunks(terms, len(centers), ctx.pieces)):
            factors = ctx.factors if coefficients is None else factor_chunk(coefficients, terms[:, voxels])
            with tensor_cores(factors.device):
                slopes = gram_gradient @ factors
                for rows, frames in _read(ctx.pieces, voxels, len(centers), backwards=True):
                    slopes.addmm_(frame_gradient[rows].T, frames)
            slopes.mul_(factors)
            if len(terms) == 6:
                slopes.mul_(terms[5, voxels])
            moments += slopes @ terms[:5, voxels].T
        return *chain_rule(moments, centers, log_widths), None, None


def _read(
    pieces: Sequence[FrameBlock], voxels: slice, n_factors: int, backwards: bool = False
) -> Iterator[tuple[slice, Tensor]]:
    """Go through the frames at some columns, with the rows that they are among all frames."""
    stops = list(accumulate(piece.n_frames for piece in pieces))
    in_order = [*zip(pieces, stops, strict=True)]
    for piece, stop in reversed(in_order) if backwards else in_order:
        start = stop - piece.n_frames
        for frames in piece.read(voxels, n_factors):
            yield slice(start, start + len(frames)), frames
            start += len(frames)


def _column_chunks(terms: Tensor, n_factors: int, pieces: Sequence[FrameBlock]) -> list[slice]:
    """Cut the columns into chunks that fit into a processor's cache with a piece's frames, or into some GPU memory.

    Sums over few columns are not divided among threads, so that results do not depend on how many there are.
    """
    n_columns, on_cpu = terms.shape[1], terms.device.type == "cpu"
    rows = 2 * n_factors + (max(piece.n_frames for piece in pieces) if on_cpu else 0)
    size = max(512, CHUNK_BYTES[terms.device.type] // (rows * terms.element_size()))
    if on_cpu and n_columns * sum(piece.n_frames for piece in pieces) >= FEW_DATA:
        size = min(size, COLUMNS_OF_THREADS)
    size = -(-n_columns // -(-n_columns // size) // ALIGNED) * ALIGNED
    return [slice(low, min(low + size, n_columns)) for low in range(0, n_columns, size)]
