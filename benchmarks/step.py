"""Time of one collapsed training step over the time of the two matrix products it cannot avoid.

    python benchmarks/step.py [--threads N] [--response network] [--inference mean-field]

The floor is Y F^T and M^T Y for every participant, on frames that lie contiguously in memory, each product done the
faster of two ways: whole, or in the voxel chunks that the step itself uses. Both sides run in turn, and the median of
their ratio is shown. A step also forms the factors, twice, and does the K x K algebra, the networks and Adam.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch

from ntfa import NTFA, Study
from ntfa.estimators.choosing import choose
from ntfa.fitting.arrange import arrange, labels_of
from ntfa.fitting.optimise import make_trainer
from ntfa.inference.start import find_start

SIZES = {
    # participants, stimuli, trials a stimulus, frames a trial, voxels, factors
    "synthetic (9 x 160 frames x 4,839 voxels, K = 3)": (9, 8, 1, 20, 4_839, 3),
    "maps (59 x 32 frames x 8,188 voxels, K = 30)": (59, 4, 8, 1, 8_188, 30),
    "haxby-like (6 x 384 frames x 32,233 voxels, K = 100)": (6, 8, 4, 12, 32_233, 100),
}


def noise_study(participants: int, stimuli: int, repeats: int, length: int, voxels: int) -> Study:
    """Frames of pure noise with rest between trials: what a step costs does not depend on what the frames hold."""
    rng = np.random.default_rng(0)
    side = int(np.ceil(voxels ** (1 / 3)))
    grid = np.stack(np.meshgrid(*[np.arange(side) * 3.0] * 3, indexing="ij"), -1).reshape(-1, 3)[:voxels]
    rows, frames = [], {}
    for p in range(participants):
        n_trials = stimuli * repeats
        frames[f"sub-{p:02d}"] = rng.standard_normal((n_trials * (length + 4), voxels), dtype=np.float32)
        rows += [
            (f"sub-{p:02d}", f"s{i % stimuli}", i * (length + 4), i * (length + 4) + length) for i in range(n_trials)
        ]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    return Study.from_arrays(frames, trials, grid)


def step_and_floor(
    size: tuple[int, ...], settings: dict[str, str]
) -> tuple[Callable[[], object], list[Callable[[], object]]]:
    """Return a training step, and two ways to do the products."""
    *design, n_factors = size
    study = noise_study(*design)
    model = NTFA(n_factors=n_factors, embedding_dim=2, random_state=0, device="cpu", **settings)
    model._choice = choose(model, study)
    labels = labels_of(study, model._layout)
    frames = arrange(study, model._layout, labels, torch.device("cpu")).frames
    start = find_start(frames, n_factors, "kmeans", 0)
    module = model._module(labels).double()
    module.start_at(start, frames.cells)
    trainer = make_trainer(model._recipe(labels, 0), module, frames, start)
    data = [block.array[block.rows] for block in frames.blocks]
    factors = [torch.rand(n_factors, frames.n_voxels) for _ in data]
    gradients = [torch.randn(len(y), n_factors) for y in data]

    def whole() -> None:
        for y, f, m in zip(data, factors, gradients, strict=True):
            y @ f.T
            m.T @ y

    def chunked(size: int = 2048) -> None:
        for y, f, m in zip(data, factors, gradients, strict=True):
            for lo in range(0, y.shape[1], size):
                y[:, lo : lo + size] @ f[:, lo : lo + size].T
                m.T @ y[:, lo : lo + size]

    return lambda: trainer.step(0.1), [whole, chunked]


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Print a table of ratios."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--repeats", type=int, default=15)
    options.add_argument("--inference", default="collapsed", choices=("collapsed", "mean-field"))
    options.add_argument("--response", default="loadings", choices=("loadings", "network"))
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    settings = {"inference": args.inference, "response": "network" if args.inference != "collapsed" else args.response}
    print(f"{' '.join(settings.values())} step / two products, {args.threads} thread(s), float32")
    for name, size in SIZES.items():
        step, floors = step_and_floor(size, settings)
        for work in (step, *floors):
            work()
        rounds = [(seconds(step), min(seconds(floor) for floor in floors)) for _ in range(args.repeats)]
        ratio = statistics.median(taken / floor for taken, floor in rounds)
        milliseconds = [1000 * statistics.median(column) for column in zip(*rounds, strict=True)]
        print(f"  {name}: {ratio:.2f}x   ({milliseconds[0]:.1f} ms over {milliseconds[1]:.1f} ms)")


if __name__ == "__main__":
    main()
