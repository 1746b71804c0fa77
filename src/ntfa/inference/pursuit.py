"""Matching pursuit on a lattice: the blob that explains most of some images, taken out of them, and the next one.

The inner product of a blob with an image is a Gaussian smoothing of the image, separable on a lattice, so all places
and a few widths are scored at once by three small matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

MOST_NODES = 20_000
LARGEST_WIDENING = 0.5
"""Most that derivatives can say about a blob's log-width; candidates are 0.94 apart."""


class Blob(NamedTuple):
    """A blob that pursuit took: where it lies, how wide it is, and the energy that it explains of the images."""

    center: Tensor
    log_width: float
    energy: float


@dataclass(frozen=True)
class Lattice:
    """A regular grid into which columns of the frames are pooled; `count` voxels lie at each node.

    node, voxels : [V]
        Node of each column, and how many voxels it is the mean of. How noisy these are does not count here: pursuit
        would find blobs in single voxels that have little noise.
    """

    axes: tuple[Tensor, Tensor, Tensor]
    node: Tensor
    voxels: Tensor
    count: Tensor
    spacing: float

    @classmethod
    def around(cls, coordinates: Tensor, most_nodes: int, voxels: Tensor | None = None) -> Lattice:
        """Lay the finest grid over the columns that is no finer than they are and has at most so many nodes.

        voxels : how many each column stands for, one if not given
        """
        low, high = coordinates.amin(0), coordinates.amax(0)
        spacing = spacing_of(coordinates.cpu().numpy())
        extent = (high - low).clamp(min=spacing)
        spacing = max(spacing, float((extent.prod() / most_nodes) ** (1 / 3)))
        index = ((coordinates - low) / spacing).round().long()
        shape = [int(n) for n in index.amax(0) + 1]
        axes = tuple(low[i] + spacing * torch.arange(n, device=low.device) for i, n in enumerate(shape))
        node = (index[:, 0] * shape[1] + index[:, 1]) * shape[2] + index[:, 2]
        voxels = torch.ones_like(coordinates[:, 0]) if voxels is None else voxels.to(coordinates)
        count = torch.zeros(shape, dtype=torch.float64).flatten().index_add(0, node.cpu(), voxels.cpu().double())
        count = count.reshape(shape).to(coordinates.device, torch.float32)
        return cls(axes, node, voxels.to(torch.float32), count, spacing)  # type: ignore[arg-type]

    def pool(self, images: Tensor) -> Tensor:
        """Sum columns into nodes: [R, V] -> [X, Y, Z, R]."""
        by_column = (images * self.voxels).T.contiguous()
        total = self.count.new_zeros(self.count.numel(), len(images)).index_add(0, self.node, by_column)
        return total.unflatten(0, self.count.shape)

    def kernels(self, width: float) -> list[Tensor]:
        """One matrix exp(-(a - b)^2 / width) for each axis."""
        return [torch.exp(-(axis[:, None] - axis).square() / width).to(torch.float32) for axis in self.axes]

    def smooth(self, images: Tensor, kernels: list[Tensor]) -> Tensor:
        """Correlate images [X, Y, Z, R] with the blob at every node."""
        along_x = kernels[0] @ images.flatten(1)
        along_y = kernels[1] @ along_x.unflatten(1, (images.shape[1], -1))
        return kernels[2] @ along_y.unflatten(2, images.shape[2:])

    def tangent(self, node: list[int], width: float) -> Tensor:
        """Evaluate the blob at a node, and its derivatives by place and width up to scale, [X, Y, Z, 5]."""
        x, y, z = (kernel[i] for kernel, i in zip(self.kernels(width), node, strict=True))
        blob = x[:, None, None] * y[:, None] * z
        offsets = [((axis - axis[i]) / width**0.5).to(blob.dtype) for axis, i in zip(self.axes, node, strict=True)]
        along = (offsets[0][:, None, None], offsets[1][:, None], offsets[2])
        squared = along[0] ** 2 + along[1] ** 2 + along[2] ** 2
        return torch.stack([blob, *(blob * offset for offset in along), blob * squared], -1)

    def position(self, node: list[int]) -> Tensor:
        """Return where a node lies."""
        return torch.stack([axis[i] for axis, i in zip(self.axes, node, strict=True)])


@dataclass(frozen=True)
class Candidates:
    """Blobs that pursuit may take: at every node of a lattice, of a few widths (e-fold radius squared).

    kernels : of each width, one matrix for each axis
    norms : [W, X, Y, Z], |f|^2 over voxels
    """

    lattice: Lattice
    widths: list[float]
    kernels: list[list[Tensor]]
    norms: Tensor

    @classmethod
    def on(cls, lattice: Lattice, reach: float | None = None) -> Candidates:
        """Take widths up to a third of the brain, or of a `reach`."""
        widths, count = _candidate_widths(lattice, reach), lattice.count.unsqueeze(-1)
        norms = [lattice.smooth(count, lattice.kernels(width / 2)).squeeze(-1) for width in widths]
        return cls(lattice, widths, [lattice.kernels(width) for width in widths], torch.stack(norms))

    @cached_property
    def ineligible(self) -> Tensor:
        """Blobs that lie off the brain, or half outside, [W, X, Y, Z]."""
        inside = self.norms > 0.25 * self.norms.amax((1, 2, 3), keepdim=True)
        return ~(inside & (self.lattice.count > 0))

    def overlaps(self, images: Tensor) -> list[Tensor]:
        """Inner products of images [X, Y, Z, ...] with the blobs of each width."""
        return [self.lattice.smooth(images.flatten(3), kernel).view_as(images) for kernel in self.kernels]

    def explained(self, overlaps: list[Tensor]) -> Tensor:
        """Energy that each blob explains, [W, X, Y, Z, ...], of the images whose numbers are the last axis."""
        energy = torch.stack([overlap.square().sum(-1) for overlap in overlaps])
        shape = [*self.norms.shape, *[1] * (energy.dim() - self.norms.dim())]
        return (energy / self.norms.clamp(min=1e-12).view(shape)).masked_fill(self.ineligible.view(shape), -1)


class Pursuit:
    """Matching pursuit on images [X, Y, Z, R], sums over a lattice's nodes, which are taken apart in doing so.

    What is taken out of the images is the blob and its derivatives by place and width: participants whose blob lies a
    little elsewhere leave no remainder that would be taken for another one.
    """

    def __init__(self, candidates: Candidates, images: Tensor, overlaps: list[Tensor] | None = None) -> None:
        self.candidates, self.lattice, self.images = candidates, candidates.lattice, images
        self.overlaps = candidates.overlaps(images) if overlaps is None else overlaps
        self.taken: list[int] = []

    def best(self) -> tuple[int, float]:
        """Return the place, among all nodes and widths, of the blob that explains most, and how much that is."""
        explained = self.candidates.explained(self.overlaps).flatten()
        explained[self.taken] = -1
        place = int(explained.argmax())
        return place, float(explained[place])

    def take(self, between_nodes: bool = False) -> Blob:
        """Take the blob that explains most out of the images.

        between_nodes : whether its derivatives are to say where it lies between the nodes, and between the widths
        """
        place, energy = self.best()
        self.taken.append(place)
        w, *node = (int(i) for i in np.unravel_index(place, self.candidates.norms.shape))
        found = self._take_out(self.lattice.tangent(node, self.candidates.widths[w]))
        blob = Blob(self.lattice.position(node), float(np.log(self.candidates.widths[w])), energy)
        return self._between_nodes(blob, found) if between_nodes else blob

    def _between_nodes(self, blob: Blob, found: Tensor) -> Blob:
        """Move a blob to where a [5, R] times it and its derivatives, as taken out of the images, say that it is.

        f(x - d) with log-width w + e is about f + (2 d / width^0.5) f_x + e f_w, where f_x = x f / width^0.5 and f_w =
        x^2 f / width are taken out with it: a_x = 2 d / width^0.5 a_0, and a_w = e a_0, by least squares over images.
        """
        shift = found[1:] @ found[0] / found[0].square().sum().clamp(min=1e-30)
        width, spacing = float(np.exp(blob.log_width)), self.lattice.spacing
        step = (width**0.5 / 2 * shift[:3]).clamp(-spacing, spacing)
        wider = min(max(float(shift[3]), -LARGEST_WIDENING), LARGEST_WIDENING)
        return Blob(blob.center + step.to(blob.center), blob.log_width + wider, blob.energy)

    def _take_out(self, tangent: Tensor) -> Tensor:
        """Take a blob and its derivatives, [X, Y, Z, 5], out of the images; return how much of each, [5, R]."""
        weighted = tangent * self.lattice.count.unsqueeze(-1)
        columns, images = tangent.flatten(0, 2), self.images.flatten(0, 2)
        gram = columns.T @ weighted.flatten(0, 2)
        ridge = 1e-4 * gram[0, 0] * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        found = torch.linalg.solve(gram + ridge, columns.T @ images)
        self.images -= weighted @ found
        for overlap, kernel in zip(self.overlaps, self.candidates.kernels, strict=True):
            overlap -= self.lattice.smooth(weighted, kernel) @ found
        return found


def _candidate_widths(lattice: Lattice, reach: float | None) -> list[float]:
    """Widths (e-fold radius squared) from a voxel or two up to a third of the brain, a factor 1.6 in radius apart."""
    extent = reach or max(lattice.spacing, *(float(axis[-1] - axis[0]) for axis in lattice.axes))
    smallest = min(1.5 * lattice.spacing, extent / 3)
    n = 1 + int(np.floor(np.log(max(extent / 3, smallest) / smallest) / np.log(1.6)))
    return [float((smallest * 1.6**i) ** 2) for i in range(n)]


def spacing_of(positions: np.ndarray) -> float:
    """Median distance from a voxel to its nearest neighbour."""
    from scipy.spatial import cKDTree

    if len(positions) < 2:
        return 1.0
    sample = positions[:: max(1, len(positions) // 2000)]
    distances, _ = cKDTree(positions).query(sample, k=2)
    return float(np.median(distances[:, 1]))
