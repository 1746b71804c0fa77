"""Small frames, small modules and factors by brute force, for the tests of what works with tensors."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntfa import TLSA, Study
from ntfa.inference.cells import Cells
from ntfa.inference.frames import Frames, Units
from ntfa.inference.projection import FrameBlock
from ntfa.models.htfa import TemplateFactors
from ntfa.models.ntfa import NeuralFactors
from ntfa.models.tfa import SeparateFactors

MODULES = {
    "ntfa": lambda: NeuralFactors(n_participants=3, n_stimuli=2, n_factors=2, embedding_dim=2),
    "htfa": lambda: TemplateFactors(n_blocks=3, n_factors=2),
    "tfa": lambda: SeparateFactors(n_blocks=3, n_factors=2),
}
RAW = Units((0.0, 0.0, 0.0), length=1.0, intensity=1.0)


def naming(*things: object) -> str:
    """Return a pattern for `match=` of a message that names all these, in whatever words and order."""

    def whole(thing: object) -> str:
        text = str(thing)
        before, after = (r"(?<!\w)" if text[0].isalnum() else ""), (r"(?!\w)" if text[-1].isalnum() else "")
        return f"(?=.*{before}{re.escape(text)}{after})"

    return "(?s)^" + "".join(whole(thing) for thing in things)


def assert_names(message: object, *things: object) -> None:
    """Assert that a message names all these, in whatever words and order."""
    for thing in things:
        assert re.search(naming(thing), str(message)), f"{thing} is not named in: {message}"


def weights_of(model: Any, study: Study, **options: Any) -> Any:
    """Weights of trials or frames; TLSA, which has none without, is told the stimuli."""
    return model.transform(study, condition_on_stimulus=isinstance(model, TLSA), **options)


def make_frames(
    design: Sequence[Sequence[int]],
    n_voxels: int,
    seed: int = 0,
    units: Units = RAW,
    dtype: torch.dtype = torch.float64,
    coordinates: np.ndarray | None = None,
) -> Frames:
    """Frames of noise: `design` holds the lengths of every block's cells.

    A block's cells are stimuli 0, 1, ... of participant b. Nothing is in a convenient order: a cell's frames lie
    scattered over its block, even blocks are one run of their array's rows, odd ones two with a gap between them.
    """
    rng = np.random.default_rng(seed)
    coordinates = rng.normal(size=(n_voxels, 3)) if coordinates is None else coordinates
    blocks, members, position = [], [], 0
    for b, lengths in enumerate(design):
        n = sum(lengths)
        array = torch.from_numpy(rng.normal(size=(n + 2, n_voxels))).to(dtype)
        blocks.append(FrameBlock(array, [slice(0, 1), slice(2, n + 1)] if b % 2 else [slice(1, n + 1)]))
        rows = np.split(position + rng.permutation(n), np.cumsum(lengths)[:-1])
        members += [(b, s, cell) for s, cell in enumerate(rows)]
        position += n
    members.sort(key=lambda cell: len(cell[2]))
    participant, stimulus = (torch.tensor([cell[i] for cell in members]) for i in (0, 1))
    groups = [[cell[2] for cell in members if len(cell[2]) == n] for n in sorted({len(cell[2]) for cell in members})]
    rows_by_length = tuple(torch.from_numpy(np.stack(group)) for group in groups)
    cells = Cells(participant, stimulus, participant, rows_by_length, torch.arange(len(design)))
    return Frames.arrange(blocks, cells, torch.from_numpy(coordinates), units)


def cell_rows(cells: Cells) -> list[np.ndarray]:
    """Rows of every cell, by plain iteration."""
    return [row.numpy() for group in cells.frames for row in group]


def frames_of_cells(frames: Frames) -> list[np.ndarray]:
    """Every cell's frames in the units of the data, float64, [n, V]."""
    stacked = np.concatenate([block.array[run].double().numpy() for block in frames.blocks for run in block.runs])
    return [stacked[rows] for rows in cell_rows(frames.cells)]


def blobs(coordinates: Tensor, centers: Tensor, log_widths: Tensor) -> np.ndarray:
    """Factors [K, V] by loops."""
    factors = np.empty((len(centers), len(coordinates)))
    for k, (center, log_width) in enumerate(zip(centers.tolist(), log_widths.tolist(), strict=True)):
        for v, voxel in enumerate(coordinates.tolist()):
            squared = sum((a - b) ** 2 for a, b in zip(voxel, center, strict=True))
            factors[k, v] = np.exp(-squared / np.exp(log_width))
    return factors


def radial_basis(coordinates: Tensor, centers: Tensor, log_widths: Tensor) -> Tensor:
    """Factors [..., K, V] at voxels [V, 3] by whole matrices, of centres [..., K, 3] and log-widths [..., K]."""
    squared = (coordinates - centers.unsqueeze(-2)).square().sum(-1)
    return torch.exp(-squared * torch.exp(-log_widths).unsqueeze(-1))
