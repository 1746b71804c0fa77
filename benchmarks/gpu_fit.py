"""`NTFA().fit` on one GPU, all included: frames in the machine's memory at first, choice of the response, calibration.

    PYTHONPATH=src python benchmarks/gpu_fit.py [--n-factors 100 700] [--response auto] [--profile FOLDER] [--quick]

ThreatVids' size (21 participants x 82 trials of 37 stimuli x 20 frames x 81,638 voxels, 11 GB), simulated as in
`gpu.py`. Printed beside the seconds is how many times the two products of one step they are. Needs no imaging library.
With --quick a study of a few MB, on whatever device there is, to see that everything runs.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
import timeit
from contextlib import nullcontext
from pathlib import Path

import bare  # noqa: F401
import pandas as pd
import torch
from generated import Size, simulate
from gpu import THREATVIDS, milliseconds

from ntfa import NTFA, Study

SMALL = Size(3, 4, 8, 5, 2000, 5)


def in_memory(size: Size, device: str = "cuda") -> tuple[Study, float]:
    """Simulate a study, in the machine's memory; and how long the products of a step take, in seconds."""
    data = simulate(size, device)
    names = [f"sub-{p:02d}" for p in range(size.participants)]
    blocks, positions = data.frames.blocks, data.frames.units.millimetres(data.frames.coordinates)
    factors = torch.rand(size.factors, size.voxels, device=device)

    def products() -> None:
        for block in blocks:
            weights = block.array @ factors.T
            weights.T @ block.array

    took = milliseconds(products) / 1000 if device == "cuda" else timeit.timeit(products, number=5) / 5
    frames = {name: block.array.cpu().numpy() for name, block in zip(names, blocks, strict=True)}
    rows = [
        (name, f"s{i % size.stimuli:02d}", i * size.frames, (i + 1) * size.frames)
        for name in names
        for i in range(size.trials)
    ]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    return Study.from_arrays(frames, trials, positions.cpu().numpy()), took


def main() -> None:
    """Print a line for each number of factors."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--n-factors", type=int, nargs="+", default=[100, 700])
    options.add_argument("--response", default="auto")
    options.add_argument("--profile", type=Path, help="folder for a profile of each fit")
    options.add_argument("--quick", action="store_true")
    args = options.parse_args()
    device = "cuda" if not args.quick or torch.cuda.is_available() else "cpu"
    small, products = in_memory(SMALL, device)
    NTFA(3, random_state=0, device=device).fit(small)  # loads every library
    study = small
    if not args.quick:
        study, products = in_memory(THREATVIDS)
        torch.cuda.empty_cache()
    for n_factors in args.n_factors:
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        profile = cProfile.Profile() if args.profile else None
        began = time.perf_counter()
        with profile or nullcontext():
            model = NTFA(n_factors, random_state=0, device=device, response=args.response, verbose=1).fit(study)
        took = time.perf_counter() - began
        steps, fitting = len(model.history_), model.history_["seconds"].iloc[-1]
        print(
            f"K = {n_factors}: {took:.1f} s, {took / products:.0f} x the two products; {steps} steps {fitting:.1f} s; "
            f"peak {torch.cuda.max_memory_allocated() / 2**30 if device == 'cuda' else 0:.1f} GiB",
            flush=True,
        )
        if profile:
            with open(args.profile / f"profile-{n_factors}.txt", "w", encoding="utf-8") as out:
                pstats.Stats(profile, stream=out).sort_stats("cumtime").print_stats(120)


if __name__ == "__main__":
    main()
