"""A study larger than memory: peak memory of `ntfa fit --memory`, and a step over what it cannot avoid.

    python benchmarks/streaming.py [--memory 2GB] [--participants 21] [--factors 100] [--folder DIR]

A study of noise of ThreatVids' size is written to DIR (11 GB) unless it is there. What cannot be avoided is the slower
of two: the two products with each participant's frames, and reading them from disk (or from the system's cache of it).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ntfa import NTFA, Study
from ntfa.estimators.choosing import choose
from ntfa.estimators.settings import as_bytes
from ntfa.fitting.optimise import make_trainer
from ntfa.fitting.task import prepare
from ntfa.inference.start import find_start
from ntfa.inference.streaming import loaded
from ntfa.study.folder import StudyWriter

N_STIMULI, N_TRIALS, N_FRAMES = 37, 82, 20


def write_study(folder: Path, n_participants: int, n_voxels: int) -> None:
    """Write frames of noise around a few blobs, a participant at a time."""
    rng = np.random.default_rng(0)
    side = int(np.ceil(n_voxels ** (1 / 3)))
    grid = np.stack(np.meshgrid(*[2.5 * np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)[:n_voxels]
    chosen = grid[rng.integers(n_voxels, size=20)]
    blobs = np.exp(-((grid[None] - chosen[:, None]) ** 2).sum(-1) / 12**2).astype(np.float32)
    rows = [
        (f"sub-{p:02d}", f"s{i % N_STIMULI:02d}", i * N_FRAMES, (i + 1) * N_FRAMES)
        for p in range(n_participants)
        for i in range(N_TRIALS)
    ]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    means = rng.normal(size=(N_STIMULI, len(blobs))).astype(np.float32)
    with StudyWriter(folder, grid, trials) as writer:
        for p in range(n_participants):
            weights = np.repeat(means[np.arange(N_TRIALS) % N_STIMULI], N_FRAMES, 0)
            frames = rng.standard_normal((N_TRIALS * N_FRAMES, n_voxels), dtype=np.float32)
            frames += weights @ blobs
            writer.add(f"sub-{p:02d}", frames)


def peak_of_a_fit(study: Path, memory: str, n_factors: int, n_epochs: int) -> tuple[float, float]:
    """Fit by the command in a process of its own; return its peak memory in GB and its seconds."""
    with tempfile.TemporaryDirectory() as out:
        options = [
            "--memory",
            memory,
            "--n-factors",
            n_factors,
            "--max-epochs",
            n_epochs,
            "--uncertainty",
            "mean-field",
        ]
        command = [sys.executable, "-m", "ntfa", "fit", study, Path(out) / "fit", *options, "-q"]
        started = time.perf_counter()
        process = subprocess.Popen([str(part) for part in command])
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"the fit failed with status {status}")
        return usage.ru_maxrss * 1024 / 1e9, time.perf_counter() - started


def step_and_floor(folder: Path, memory: str, n_factors: int, repeats: int) -> tuple[float, float, float]:
    """Median seconds of a streamed step, of the products, and of reading, of the same participants."""
    study = Study.open(folder)
    study = study.select(participants=study.participants[:4])
    model = NTFA(n_factors, memory=memory, response="network", embedding_dim=2, random_state=0, device="cpu")
    model._choice = choose(model, study)
    labels = model._labels(study)
    module = model._module(labels).double()
    task = prepare(
        study, model._layout, labels, torch.device("cpu"), module.sharded_parameters, memory=as_bytes(memory)
    )
    assert task.coarse is not None
    start = find_start(task.coarse, n_factors, "kmeans", 0)
    module.start_at(start, task.cells)
    trainer = make_trainer(model._recipe(labels, 0), module, task.frames, start, coarse=task.coarse)
    factors = torch.rand(n_factors, study.n_voxels)
    taken: dict[str, list[float]] = {"step": [], "products": [], "reading": []}
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        trainer.step(0.1)
        taken["step"].append(time.perf_counter() - begun)
        products = 0.0
        begun = time.perf_counter()
        for block in loaded(task.frames.blocks, torch.device("cpu")):
            pause = time.perf_counter()
            projected = factors @ block.array.T
            projected @ block.array
            products += time.perf_counter() - pause
        taken["reading"].append(time.perf_counter() - begun - products)
        taken["products"].append(products)
    step, products, reading = (statistics.median(times[1:]) for times in taken.values())
    return step, products, reading


def main() -> None:
    """Print what was measured."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--memory", default="2GB")
    options.add_argument("--participants", type=int, default=21)
    options.add_argument("--voxels", type=int, default=81_638)
    options.add_argument("--factors", type=int, default=100)
    options.add_argument("--epochs", type=int, default=6)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ntfa-streaming-study")
    args = options.parse_args()
    if not args.folder.exists():
        write_study(args.folder, args.participants, args.voxels)
    size = sum(path.stat().st_size for path in args.folder.rglob("*.npy")) / 1e9
    step, products, reading = step_and_floor(args.folder, args.memory, args.factors, args.repeats)
    print(
        f"K = {args.factors}, four participants: step {step:.2f} s, products {products:.2f} s, waiting for the disk "
        f"{reading:.2f} s: {max(products, reading) / step:.0%} of what products or disk allow",
        flush=True,
    )
    peak, seconds = peak_of_a_fit(args.folder, args.memory, args.factors, args.epochs)
    print(f"study {size:.1f} GB, --memory {args.memory}: peak {peak:.2f} GB, {args.epochs} steps in {seconds:.0f} s")


if __name__ == "__main__":
    main()
