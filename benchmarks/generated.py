"""Studies drawn like NTFA's generative story, straight into the memory of a device: torch and numpy alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior, cell_log_likelihood
from ntfa.inference.frames import Frames, Units
from ntfa.inference.projection import SMALL_BLOCK, empty_stack, unstack

WEIGHTS_SD, NOISE_SD, SHIFT_MM = 0.3, 1.0, 2.0
BOX_MM = 7.5


@dataclass(frozen=True)
class Size:
    """How large a simulated study is."""

    participants: int
    stimuli: int
    trials: int
    frames: int
    voxels: int
    factors: int


@dataclass(frozen=True)
class Simulated:
    """Frames in GPU memory and what they were made from."""

    size: Size
    frames: Frames
    centers: Tensor
    log_widths: Tensor
    weights: WeightPrior

    def truth(self) -> float:
        """Log density per observation under the generating factors and priors, weights integrated out."""
        units = self.frames.units
        projection = self.frames.project(units.standardise(self.centers), self.log_widths - 2 * math.log(units.length))
        prior = WeightPrior(self.weights.mean / units.intensity, self.weights.sd / units.intensity)
        noise_sd = self.weights.mean.new_tensor(NOISE_SD / units.intensity)
        per_cell = cell_log_likelihood(projection, prior, noise_sd)
        return float((per_cell + self.frames.log_units).sum()) / self.frames.n_data


def simulate(size: Size, device: str, seed: int = 0) -> Simulated:
    """Draw a study like NTFA's generative story, a participant at a time."""
    random = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=device, dtype=torch.float64)

    positions = ellipsoid(size.voxels, device)
    chosen = torch.randint(size.voxels, (size.factors,), generator=random, device=device)
    width = 8 + 8 * torch.rand(size.factors, generator=random, device=device, dtype=torch.float64)
    loadings, z_stimulus = 0.5 * normal(4, size.factors), normal(size.stimuli, 2)
    stimulus = torch.arange(size.trials, device=device) % size.stimuli
    n_frames = size.trials * size.frames
    stack = empty_stack(size.participants, n_frames, size.voxels, torch.float32, torch.device(device))
    blocks = unstack(stack, size.voxels)
    centers, log_widths, means = [], [], []
    for own in (block.array for block in blocks):
        centers.append(positions[chosen] + SHIFT_MM * normal(size.factors, 3))
        log_widths.append(2 * torch.log(width) + 0.1 * normal(size.factors))
        means.append(torch.tanh(torch.cat([normal(2).expand(size.stimuli, 2), z_stimulus], 1)) @ loadings)
        squared = torch.cdist(centers[-1], positions).square_()
        factors = torch.exp(-squared * torch.exp(-log_widths[-1]).unsqueeze(1)).float()
        weights = means[-1][stimulus].repeat_interleave(size.frames, 0)
        own.normal_(0, NOISE_SD, generator=random)
        own.addmm_((weights + WEIGHTS_SD * normal(n_frames, size.factors)).float(), factors)
    cells = cells_of(size, device)
    x, y, z = positions.mean(0).tolist()
    units = Units((x, y, z), float(positions.var(0).mean().sqrt()), 1.0)
    if stack[0].nbytes >= SMALL_BLOCK:
        blocks = [block for own in stack for block in unstack(own.unsqueeze(0), size.voxels)]
    frames = Frames.arrange(blocks, cells, positions, units)
    mean = torch.stack(means)[cells.participant, cells.stimulus]
    prior = WeightPrior(mean, torch.full_like(mean, WEIGHTS_SD))
    frames = frames.with_intensity(float(frames.energy.mean() / size.voxels) ** 0.5)
    return Simulated(size, frames, torch.stack(centers), torch.stack(log_widths), prior)


def ellipsoid(n_voxels: int, device: str) -> Tensor:
    """Return places of voxels of 2.5 mm in an ellipsoid of a brain's proportions, in mm."""
    axes = [2.5 * torch.arange(-n, n + 1, device=device, dtype=torch.float64) for n in (30, 38, 28)]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    return grid[(grid / grid.new_tensor([68, 86, 62])).square().sum(1).argsort()[:n_voxels]]


def cells_of(size: Size, device: str) -> Cells:
    """Lay out one cell a participant and stimulus, those of few trials first."""
    n, t = size.trials, size.frames
    rows = {
        s: torch.cat([torch.arange(i * t, (i + 1) * t) for i in range(s, n, size.stimuli)]) for s in range(size.stimuli)
    }
    lengths = sorted({len(own) for own in rows.values()})
    pairs = [[(p, s) for p in range(size.participants) for s in rows if len(rows[s]) == length] for length in lengths]
    groups = tuple(torch.stack([p * n * t + rows[s] for p, s in own]).to(device) for own in pairs)
    participant = torch.tensor([p for own in pairs for p, _ in own], device=device)
    stimulus = torch.tensor([s for own in pairs for _, s in own], device=device)
    return Cells(participant, stimulus, participant, groups, torch.arange(size.participants, device=device))
