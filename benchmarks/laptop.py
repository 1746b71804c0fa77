"""Haxby's size on two CPU cores: seconds until a fit has converged, coarse to fine and with all voxels in all steps.

    PYTHONPATH=src python benchmarks/laptop.py [--threads 2] [--reference-threads 2]

6 participants x 96 trials of 8 stimuli x 12 frames x 32,233 voxels of 2.5 mm, K = 100. Both ends are compared by the
same draws on all voxels, 20 of them. Needs no imaging library.
"""

from __future__ import annotations

import argparse
import time

import torch
from generated import Simulated, Size, simulate

from ntfa.fitting.pooling import pool
from ntfa.fitting.schedules import CoarseToFine, OneCycle
from ntfa.fitting.training import Trainer
from ntfa.inference.bounds import CollapsedLikelihood
from ntfa.inference.normal import RandomSource
from ntfa.inference.start import find_start
from ntfa.models.ntfa import NeuralFactors

HAXBY = Size(6, 8, 96, 12, 32_233, 100)
BOX_MM = 5.0


def fit(data: Simulated, coarse: bool) -> tuple[float, float, str]:
    """Fit until converged; return seconds, the bound on all voxels in nats per observation, and a description."""
    started = time.perf_counter()
    frames = data.frames
    pooled = pool(frames, BOX_MM / frames.units.length) if coarse else None
    start = find_start(pooled or frames, data.size.factors, "pursuit", 0)
    torch.manual_seed(0)
    module = NeuralFactors(data.size.participants, data.size.stimuli, data.size.factors, 2).double()
    module.start_at(start, frames.cells)
    schedule = CoarseToFine(1000) if coarse else OneCycle(1000)
    trainer = Trainer(module, CollapsedLikelihood(frames), schedule, RandomSource(0), frames, coarse=pooled)
    history = trainer.run()
    took = time.perf_counter() - started
    trainer.look_at(frames)
    noise = RandomSource(1)
    with torch.no_grad():
        values = [float(trainer.objective(noise)[0]) for _ in range(20)]
    return took, sum(values) / len(values) / trainer.n_data, f"{history.stopped}, {len(history.bounds)} steps"


def main() -> None:
    """Print both."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--reference-threads", type=int, default=2)
    args = options.parse_args()
    data = simulate(HAXBY, "cpu")
    print(f"truth {data.truth():.6f} nats per observation", flush=True)
    for coarse, threads in ((True, args.threads), (False, args.reference_threads)):
        torch.set_num_threads(threads)
        seconds, bound, how = fit(data, coarse)
        name = "coarse to fine" if coarse else "all voxels in all steps"
        print(f"{name}, {threads} threads: {seconds:.0f} s, {bound:.6f} nats per observation ({how})", flush=True)


if __name__ == "__main__":
    main()
