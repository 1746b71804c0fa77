"""Pool neighbouring voxels: a coarse copy of the frames whose likelihood is nearly that of the fine ones.

A column has the weighted mean of a box's voxels and weighs as much as they do together (their number, where each weighs
one): w = sum_v w_v. Of factors that are averaged over the box, too, projections and Gram matrices are

    P = sum_boxes w ymean fmean,        G = sum_boxes w fmean_i fmean_j,        fmean = sum_v w_v F(g_v) / w

and weights have the posterior that box means give them. An average of a Gaussian over boxes is nearly a wider, lower
Gaussian at the boxes' middles: its squared width w^2 grows by twice the variance b of voxels' places within boxes, per
axis, and its height becomes (w^2 / (w^2 + 2b))^1.5. Of a box that a participant has in part, the weight of what is
unseen is taken out of G. |Y|^2 and the number of voxels stay those of the fine frames: the bound of pooled frames is an
estimate of the fine bound, too low by what factors explain within boxes, and not that of another study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ntfa.inference.coverage import Unseen
from ntfa.inference.frames import Frames
from ntfa.inference.projection import FrameBlock, place_blocks, voxel_terms
from ntfa.inference.streaming import loaded

PIECE_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}


@dataclass(frozen=True)
class Boxes:
    """Boxes of voxels: `members` [J, most] are the voxels of each, V where there are fewer; `count` [J]."""

    members: Tensor
    count: Tensor

    @classmethod
    def around(cls, coordinates: Tensor, side: float) -> Boxes:
        """Cut the space of voxels [V, 3] into boxes of a side."""
        low = coordinates.amin(0)
        place = ((coordinates - low) / side + 1e-6).floor().long()
        # One number for each box, in the order of its place: rows are slow to sort.
        n_y, n_z = (place.amax(0)[1:] + 1).tolist()
        _, box = torch.unique((place[:, 0] * n_y + place[:, 1]) * n_z + place[:, 2], return_inverse=True)
        count = torch.bincount(box)
        order = torch.argsort(box, stable=True)
        number = torch.arange(len(order), device=order.device) - (torch.cumsum(count, 0) - count)[box[order]]
        members = torch.full((len(count), int(count.max())), len(box), device=box.device)
        members[box[order], number] = order
        return cls(members, count)

    def total(self, values: Tensor) -> Tensor:
        """Sum values [n, V] over the voxels of each box, [n, J], in an order that never changes."""
        padded = torch.cat([values, values.new_zeros(len(values), 1)], 1)
        total = padded.index_select(1, self.members[:, 0])
        for own in self.members.T[1:]:
            total += padded.index_select(1, own)
        return total


def pieces(rows: Tensor, n_voxels: int, device: torch.device) -> Sequence[Tensor]:
    """Cut rows of frames into pieces that are pooled at a time: what a processor's cache holds is pooled faster."""
    return rows.split(max(1, PIECE_BYTES[device.type] // (4 * n_voxels)))


def pool(frames: Frames, side: float) -> Frames:
    """Return the frames with voxels pooled in boxes of a side, in standardised units."""
    boxes = Boxes.around(frames.coordinates, side)
    own = torch.ones_like(frames.coordinates[:, 0]) if frames.weights is None else frames.weights.double()
    weights = boxes.total(own.unsqueeze(0)).squeeze(0)
    coordinates = boxes.total(frames.coordinates.T * own).T / weights.unsqueeze(1)
    within = own @ frames.coordinates.square() - weights @ coordinates.square()
    blocks = [
        FrameBlock(_pool_block(block, boxes, frames.weights, weights), [slice(0, block.n_frames)])
        for block in loaded(frames.blocks, frames.energy.device)
    ]
    return replace(
        frames,
        blocks=place_blocks(blocks, weights.device),
        coordinates=coordinates,
        terms=voxel_terms(coordinates, frames.terms.dtype, weights),
        scales=None,
        pooled=boxes.count,
        blur=2 * float((within / weights.sum()).mean()),
        unseen=None if frames.unseen is None else _unseen_boxes(frames.unseen, boxes, own, coordinates),
    )


def _unseen_boxes(unseen: Unseen, boxes: Boxes, own: Tensor, coordinates: Tensor) -> Unseen:
    """Return boxes of which blocks lack voxels, with the weight that these have together.

    Values of a box are sums over the voxels that a block has, divided by the weight of all, so that Y W F^T is right.
    """
    columns, terms = [], []
    for lacked, at in zip(unseen.columns, unseen.terms, strict=True):
        weights = torch.zeros_like(own)
        weights[lacked] = own[lacked]
        weights = boxes.total(weights.unsqueeze(0)).squeeze(0)
        columns.append(torch.nonzero(weights).squeeze(-1))
        terms.append(voxel_terms(coordinates[columns[-1]], at.dtype, weights[columns[-1]]))
    return unseen.with_columns(columns, terms)


def _pool_block(block: FrameBlock, boxes: Boxes, own: Tensor | None, weights: Tensor) -> Tensor:
    """Weighted means of the boxes, `own` being the weights of their voxels, and `weights` the sums of these."""
    array = block.array
    pooled = array.new_empty(block.n_frames, len(boxes.count))
    scale = weights.reciprocal().to(array.dtype)
    start = 0
    for rows in pieces(block.rows, array.shape[1], array.device):
        values = array.index_select(0, rows)
        pooled[start : start + len(rows)] = boxes.total(values if own is None else values * own) * scale
        start += len(rows)
    return pooled
