"""One GPU: steps over the products they cannot avoid, time to the truth, memory, K = 700, a cohort of 1,024.

    PYTHONPATH=src python benchmarks/gpu.py [threatvids] [many-factors] [cohort]

Needs no imaging library. Frames are simulated in GPU memory: ThreatVids' size is 21 participants x 82 trials of 37
stimuli x 20 frames x 81,638 voxels (11 GB); the cohort is 1,024 participants x 10 stimuli x 30 frames x 50,000 voxels
(61 GB). The truth is the log density per observation of the frames under the generating factors and priors.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from generated import Simulated, Size, simulate

from ntfa.fitting.pooling import pool
from ntfa.fitting.schedules import CoarseToFine, OneCycle
from ntfa.fitting.training import Trainer
from ntfa.inference.bounds import CollapsedLikelihood
from ntfa.inference.normal import RandomSource
from ntfa.inference.start import find_start
from ntfa.models.ntfa import NeuralFactors

GIB = 2**30
BOX_MM = 5.0
THREATVIDS = Size(21, 37, 82, 20, 81_638, 100)
COHORT = Size(1024, 10, 10, 30, 50_000, 100)


def trainer_of(data: Simulated, n_factors: int, coarse: bool = False) -> tuple[Trainer, float]:
    """Start a fit; return it, and how long the start took, pooling included."""
    started = now()
    frames = data.frames
    pooled = pool(frames, BOX_MM / frames.units.length) if coarse else None
    start = find_start(pooled or frames, n_factors, "pursuit", 0)
    torch.manual_seed(0)
    module = NeuralFactors(data.size.participants, data.size.stimuli, n_factors, 2).double().cuda()
    module.start_at(start, frames.cells)
    schedule = CoarseToFine(1000) if coarse else OneCycle(1000)
    trainer = Trainer(module, CollapsedLikelihood(frames), schedule, RandomSource(0), frames, coarse=pooled)
    return trainer, now() - started


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
    arrays = [block.filled_up for block in data.frames.blocks]
    factors = torch.rand(n_factors, arrays[0].shape[1], device="cuda")
    pulled = torch.rand(n_factors, len(arrays[0]), device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    forward = milliseconds(lambda: [factors @ frames.T for frames in arrays])
    backward = milliseconds(lambda: [pulled @ frames for frames in arrays])
    own, narrow = data.frames.blocks[0].array.contiguous(), factors[:, : data.size.voxels].contiguous()
    uneven = len(arrays) * milliseconds(lambda: (narrow @ own.T, pulled @ own))
    torch.backends.cuda.matmul.allow_tf32 = False
    print(
        f"K = {n_factors}: step {step:.1f} ms, {step / (forward + backward):.2f} x the products "
        f"({forward:.1f} + {backward:.1f} ms; {uneven:.1f} ms on rows that are not filled up); start {took:.2f} s; "
        f"peak above the study {peak:.2f} GiB",
        flush=True,
    )


def fit_to_the_truth(data: Simulated, n_factors: int, coarse: bool, short: float = 0.001) -> None:
    """Fit until converged; say when the bound was first within `short` nats per observation of the truth.

    Bounds of pooled frames are estimates that are lower by some thousandths, so that they hardly count here.
    """
    truth = data.truth()
    trainer, took = trainer_of(data, n_factors, coarse)
    history = trainer.run()
    gaps = [truth - bound.value / trainer.n_data for bound in history.bounds]
    arrived = next((i for i, gap in enumerate(gaps) if gap < short), None)
    when = (
        "never" if arrived is None else f"{took + history.seconds[arrived]:.2f} s, start included ({arrived + 1} steps)"
    )
    how = "coarse to fine" if coarse else "all fine"
    print(
        f"K = {n_factors}, {how}: within {short} nats per observation of the truth: {when}; {history.stopped} after "
        f"{len(gaps)} steps, {took + history.seconds[-1]:.1f} s, {gaps[-1]:.5f} short",
        flush=True,
    )


def main() -> None:
    """Run what is asked for."""
    wanted = sys.argv[1:] or ["threatvids", "many-factors", "cohort"]
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    if "threatvids" in wanted or "many-factors" in wanted:
        data = simulate(THREATVIDS, "cuda")
        if "threatvids" in wanted:
            step_over_products(data, 100)
            fit_to_the_truth(data, 100, coarse=False)
            fit_to_the_truth(data, 100, coarse=True)
        if "many-factors" in wanted:
            step_over_products(data, 700)
            fit_to_the_truth(data, 700, coarse=True)
        del data
    if "cohort" in wanted:
        torch.cuda.empty_cache()
        data = simulate(COHORT, "cuda")
        step_over_products(data, 100)
        fit_to_the_truth(data, 100, coarse=True)


if __name__ == "__main__":
    main()
