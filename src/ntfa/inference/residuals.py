"""What factors leave of the frames, and how much less they would explain without one of them.

Weights are those of ridge regression, whatever a model expects of them: W = P R^-1 in every block, with P = Y F^T and
R = F F^T + a ridge. Without factor k, the others taking over what they can, a block's factors would explain less by

    sum_t W_tk^2 / [R^-1]_kk = C_kk / [R^-1]_kk,    C = W^T W;    and then    R^-1 <- A R^-1 A^T,  C <- A C A^T

with A = I - R^-1 e_k e_k^T / [R^-1]_kk. What is left, Y - W F, is looked at in M mixtures of frames with random weights
N(0, 1 / M), whose inner products with any image have the energy, in expectation, that those of the frames have: all
frames count, not only the means of cells, and no residual frame is ever formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ntfa.inference.cells import Cells
from ntfa.inference.frames import Frames
from ntfa.inference.processes import Processes
from ntfa.inference.projection import exponent_coefficients, factor_chunk
from ntfa.inference.streaming import loaded

N_MIXTURES = 256
SMALLEST_VARIANCE = 1e-4


class Regression(NamedTuple):
    """Ridge regression of frames on factors.

    weights : [n_frames, K], of frames times the root of what they count
    inverse, scatter : [B, K, K], R^-1 and W^T W of every block
    """

    weights: Tensor
    inverse: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, frames: Frames, centers: Tensor, log_widths: Tensor) -> Regression:
        """Regress on factors [B, K, 3], [B, K], those of each block or one set for all."""
        projection = frames.project(centers, log_widths)
        gram = projection.gram
        ridge = 1e-3 * gram.diagonal(dim1=-2, dim2=-1).mean(-1)
        one = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        inverse = torch.linalg.inv(gram + ridge[:, None, None] * one)
        sizes = [block.n_frames for block in frames.blocks]
        weights = [own @ solved for own, solved in zip(projection.frames.split(sizes), inverse, strict=True)]
        scatter = torch.stack([own.mT @ own for own in weights])
        return cls(torch.cat(weights), inverse, scatter)


class Usefulness:
    """How much energy each factor explains in some blocks that the others could not, as one after another is given up.

    inverse, scatter : [B, K, K], of a `Regression`
    """

    def __init__(self, inverse: Tensor, scatter: Tensor) -> None:
        self.inverse, self.scatter = inverse, scatter

    def losses(self) -> Tensor:
        """What giving up a factor would lose in each block, [B, K]; nothing for those that were given up."""
        kept = self.inverse.diagonal(dim1=-2, dim2=-1)
        return self.scatter.diagonal(dim1=-2, dim2=-1) / kept.clamp(min=1e-30)

    def give_up(self, factor: int) -> None:
        """Let the others take over what they can of a factor."""
        along = self.inverse[:, :, factor] / self.inverse[:, factor, factor].unsqueeze(-1)
        self.inverse, self.scatter = (_without(matrix, factor, along) for matrix in (self.inverse, self.scatter))


def _without(matrix: Tensor, factor: int, along: Tensor) -> Tensor:
    """Return A M A^T with A = I - along e_k^T."""
    matrix = matrix - along.unsqueeze(-1) * matrix[:, factor].unsqueeze(-2)
    matrix = matrix - matrix[:, :, factor].unsqueeze(-1) * along.unsqueeze(-2)
    matrix[:, factor] = matrix[:, :, factor] = 0
    return matrix


def residual_mixtures(
    frames: Frames,
    weights: Tensor,
    centers: Tensor,
    log_widths: Tensor,
    first_frame: int,
    n_mixtures: int = N_MIXTURES,
) -> Iterator[Tensor]:
    """Mix what factors leave of each block's frames, [M, V] for one block after another.

    first_frame : the number of the first frame here among those of all processes, so that mixtures do not depend on how
        many processes there are
    """
    start = 0
    log_widths, height = frames.averaged(log_widths)
    for b, block in enumerate(loaded(frames.blocks, frames.energy.device)):
        stop = start + block.n_frames
        random = torch.Generator(device=frames.terms.device).manual_seed(first_frame + start)
        size = (n_mixtures, block.n_frames)
        mixing = torch.randn(size, generator=random, device=random.device).to(frames.terms) / n_mixtures**0.5
        own = b if len(centers) > 1 else 0
        factors = factor_chunk(exponent_coefficients(centers[own], log_widths[own], frames.terms.dtype), frames.terms)
        if height is not None:
            factors *= height[own].unsqueeze(-1).to(factors)
        if frames.unseen is not None:
            columns, unseen = frames.unseen.lacked_by(b), frames.unseen.terms[int(frames.unseen.pattern[b])][5]
            # Pooled columns may have been seen in part.
            factors[:, columns] *= 1 - (unseen if frames.weights is None else unseen / frames.weights[columns])
        expected = (mixing @ weights[start:stop].to(mixing)) @ factors
        if frames.cells.root is not None:
            mixing = mixing * frames.cells.root[start:stop].squeeze(-1).to(mixing)
        runs = [block.array[run] for run in block.runs]
        parts = zip(mixing.split([len(run) for run in runs], 1), runs, strict=True)
        yield sum(part @ run for part, run in parts) / frames.units.intensity - expected
        start = stop


class Moments(NamedTuple):
    """Of weights: mean over cells, sd of cells around it, and of frames around these; [B, K], or [1, K] of all."""

    mean: Tensor
    level_sd: Tensor
    sd: Tensor

    @classmethod
    def of(
        cls, cells: Cells, regression: Regression, noise_variance: Tensor, processes: Processes, by_block: bool
    ) -> Moments:
        """Estimate the moments of each block's weights, or of the weights of all blocks of all processes."""
        weights = regression.weights
        means = cells.weighted_total(weights) / cells.mass.unsqueeze(-1)
        around = (weights - cells.expected(means)).square()
        sampling = noise_variance * regression.inverse.diagonal(dim1=-2, dim2=-1)
        none = torch.zeros_like(sampling)

        def total(rows: Tensor, block: Tensor) -> Tensor:
            summed = none.index_add(0, block, rows)
            return summed if by_block else processes.total(summed.sum(0, keepdim=True))

        n_cells = total(torch.ones_like(means), cells.block)
        n_free = total((cells.count - 1).unsqueeze(-1).expand_as(means), cells.block)
        expected = total(((cells.count - 1).unsqueeze(-1) * sampling[cells.block]), cells.block)
        mean = total(means, cells.block) / n_cells
        level = (total(means.square(), cells.block) / n_cells - mean.square()).clamp(min=SMALLEST_VARIANCE)
        within = (total(around, cells.block[cells.of_frame]) - expected) / n_free.clamp(min=1)
        # Where no cell has two frames, the variance of cells is all that there is to go by.
        within = torch.where(n_free > 0, within, level).clamp(min=SMALLEST_VARIANCE)
        return cls(mean, level.sqrt(), within.sqrt())
