"""One GPU: steps over the products they cannot avoid, time to the truth, memory, K = 700, a cohort of 1,024.

    PYTHONPATH=src python benchmarks/gpu.py [threatvids] [many-factors] [cohort]

Needs torch and numpy alone. Frames are simulated in GPU memory: ThreatVids' size is 21 participants x 82 trials of 37
stimuli x 20 frames x 81,638 voxels (11 GB); the cohort is 1,024 participants x 10 stimuli x 30 frames x 50,000 voxels
(61 GB). The truth is the log density a datum of the frames under the generating factors and priors.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ntfa.inference.bounds import CollapsedLikelihood
from ntfa.inference.cells import Cells, Frames, Units
from ntfa.inference.collapsed import WeightPrior, cell_log_likelihood
from ntfa.inference.normal import Noise
from ntfa.inference.projection import SMALL_BLOCK, FrameBlock
from ntfa.inference.schedules import SCHEDULES
from ntfa.inference.start import find_start
from ntfa.inference.training import Trainer
from ntfa.models.ntfa import NeuralFactors

GIB = 2**30
WEIGHTS_SD, NOISE_SD, SHIFT_MM = 0.3, 1.0, 2.0


@dataclass(frozen=True)
class Size:
    """How large a simulated study is."""

    participants: int
    stimuli: int
    trials: int
    frames: int
    voxels: int
    factors: int


THREATVIDS = Size(21, 37, 82, 20, 81_638, 100)
COHORT = Size(1024, 10, 10, 30, 50_000, 100)


@dataclass(frozen=True)
class Simulated:
    """Frames in GPU memory and what they were made from."""

    size: Size
    frames: Frames
    centers: Tensor
    log_widths: Tensor
    weights: WeightPrior

    def truth(self) -> float:
        """Log density a datum under the generating factors and priors, weights integrated out."""
        units = self.frames.units
        projection = self.frames.project(units.standardise(self.centers), self.log_widths - 2 * math.log(units.length))
        prior = WeightPrior(self.weights.mean / units.intensity, self.weights.sd / units.intensity)
        noise_sd = self.weights.mean.new_tensor(NOISE_SD / units.intensity)
        per_cell = cell_log_likelihood(projection, prior, noise_sd)
        return float((per_cell + self.frames.log_units(self.frames.cells.count)).sum()) / self.frames.n_data


def simulate(size: Size, seed: int = 0) -> Simulated:
    """Draw a study like NTFA's generative story, a participant at a time."""
    random = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device="cuda", dtype=torch.float64)

    positions = ellipsoid(size.voxels)
    chosen = torch.randint(size.voxels, (size.factors,), generator=random, device="cuda")
    width = 8 + 8 * torch.rand(size.factors, generator=random, device="cuda", dtype=torch.float64)
    loadings, z_stimulus = 0.5 * normal(4, size.factors), normal(size.stimuli, 2)
    stimulus = torch.arange(size.trials, device="cuda") % size.stimuli
    n_frames = size.trials * size.frames
    stack = torch.empty(size.participants, n_frames, size.voxels, device="cuda")
    centers, log_widths, means = [], [], []
    for own in stack:
        centers.append(positions[chosen] + SHIFT_MM * normal(size.factors, 3))
        log_widths.append(2 * torch.log(width) + 0.1 * normal(size.factors))
        means.append(torch.tanh(torch.cat([normal(2).expand(size.stimuli, 2), z_stimulus], 1)) @ loadings)
        squared = torch.cdist(centers[-1], positions).square_()
        factors = torch.exp(-squared * torch.exp(-log_widths[-1]).unsqueeze(1)).float()
        weights = means[-1][stimulus].repeat_interleave(size.frames, 0)
        own.normal_(0, NOISE_SD, generator=random)
        own.addmm_((weights + WEIGHTS_SD * normal(n_frames, size.factors)).float(), factors)
    cells = cells_of(size)
    x, y, z = positions.mean(0).tolist()
    units = Units((x, y, z), float(positions.var(0).mean().sqrt()), 1.0)
    is_small = stack[0].nbytes < SMALL_BLOCK
    blocks = [FrameBlock(own, [slice(0, n_frames)], stack if is_small else None, p) for p, own in enumerate(stack)]
    frames = Frames.arrange(blocks, cells, positions, units)
    mean = torch.stack(means)[cells.participant, cells.stimulus]
    prior = WeightPrior(mean, torch.full_like(mean, WEIGHTS_SD))
    frames = frames.with_intensity(float(frames.energy.mean() / size.voxels) ** 0.5)
    return Simulated(size, frames, torch.stack(centers), torch.stack(log_widths), prior)


def ellipsoid(n_voxels: int) -> Tensor:
    """Return places of voxels of 2.5 mm in an ellipsoid of a brain's proportions, in mm."""
    axes = [2.5 * torch.arange(-n, n + 1, device="cuda", dtype=torch.float64) for n in (30, 38, 28)]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    return grid[(grid / grid.new_tensor([68, 86, 62])).square().sum(1).argsort()[:n_voxels]]


def cells_of(size: Size) -> Cells:
    """Lay out one cell a participant and stimulus, those of few trials first."""
    n, t = size.trials, size.frames
    rows = {
        s: torch.cat([torch.arange(i * t, (i + 1) * t) for i in range(s, n, size.stimuli)]) for s in range(size.stimuli)
    }
    lengths = sorted({len(own) for own in rows.values()})
    pairs = [[(p, s) for p in range(size.participants) for s in rows if len(rows[s]) == length] for length in lengths]
    groups = tuple(torch.stack([p * n * t + rows[s] for p, s in own]).cuda() for own in pairs)
    participant = torch.tensor([p for own in pairs for p, _ in own], device="cuda")
    stimulus = torch.tensor([s for own in pairs for _, s in own], device="cuda")
    return Cells(participant, stimulus, participant, groups, torch.arange(size.participants, device="cuda"))


def trainer_of(data: Simulated, n_factors: int) -> tuple[Trainer, float]:
    """Start a fit; return it, and how long the start took."""
    started = now()
    start = find_start(data.frames, n_factors, "pursuit", 0)
    torch.manual_seed(0)
    module = NeuralFactors(data.size.participants, data.size.stimuli, n_factors, 2).double().cuda()
    module.start_at(start, data.frames.cells)
    schedule = SCHEDULES["one-cycle"](1000)
    return Trainer(module, CollapsedLikelihood(data.frames), schedule, Noise(0), data.frames), now() - started


def now() -> float:
    """Return the time after all that the GPU was asked to do."""
    torch.cuda.synchronize()
    return time.perf_counter()


def milliseconds(work: Callable[[], object], repeats: int = 7) -> float:
    """Median time, after a first go."""
    work()
    times = []
    for _ in range(repeats):
        started = now()
        work()
        times.append(now() - started)
    return 1000 * sorted(times)[repeats // 2]


def step_over_products(data: Simulated, n_factors: int) -> None:
    """Time a step beside the two products with the frames, in TF32, of the same run."""
    study = torch.cuda.memory_allocated()
    trainer, took = trainer_of(data, n_factors)
    torch.cuda.reset_peak_memory_stats()
    step = milliseconds(lambda: trainer.step(0.1))
    peak = (torch.cuda.max_memory_allocated() - study) / GIB
    blocks = data.frames.blocks
    factors = torch.rand(n_factors, data.size.voxels, device="cuda")
    pulled = torch.rand(n_factors, blocks[0].n_frames, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    forward = milliseconds(lambda: [factors @ block.array.T for block in blocks])
    backward = milliseconds(lambda: [pulled @ block.array for block in blocks])
    torch.backends.cuda.matmul.allow_tf32 = False
    print(
        f"K = {n_factors}: step {step:.1f} ms, {step / (forward + backward):.2f} x the products "
        f"({forward:.1f} + {backward:.1f} ms); start {took:.2f} s; peak above the study {peak:.2f} GiB",
        flush=True,
    )


def fit_to_the_truth(data: Simulated, n_factors: int, short: float = 0.001) -> None:
    """Fit until converged; say when the bound was first within `short` nats a datum of the truth."""
    truth = data.truth()
    trainer, took = trainer_of(data, n_factors)
    history = trainer.run()
    gaps = [truth - bound.value / trainer.n_data for bound in history.bounds]
    arrived = next((i for i, gap in enumerate(gaps) if gap < short), None)
    when = (
        "never" if arrived is None else f"{took + history.seconds[arrived]:.2f} s, start included ({arrived + 1} steps)"
    )
    print(
        f"K = {n_factors}: within {short} nats a datum of the truth: {when}; {history.stopped} after {len(gaps)} "
        f"steps, {took + history.seconds[-1]:.1f} s, {gaps[-1]:.5f} short",
        flush=True,
    )


def main() -> None:
    """Run what is asked for."""
    wanted = sys.argv[1:] or ["threatvids", "many-factors", "cohort"]
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    if "threatvids" in wanted or "many-factors" in wanted:
        data = simulate(THREATVIDS)
        if "threatvids" in wanted:
            step_over_products(data, 100)
            fit_to_the_truth(data, 100)
        if "many-factors" in wanted:
            step_over_products(data, 700)
            fit_to_the_truth(data, 700)
        del data
    if "cohort" in wanted:
        torch.cuda.empty_cache()
        data = simulate(COHORT)
        step_over_products(data, 100)
        fit_to_the_truth(data, 100)


if __name__ == "__main__":
    main()
