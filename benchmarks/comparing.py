"""How long `ntfa compare` takes of a small simulated twin, over NTFA's fit of the same study in the same run.

    python benchmarks/comparing.py [--n-factors 10 100] [--n-jobs 2]

The twin of Haxby's study: 6 participants x 8 stimuli x 4 runs of 12 frames, 2,000 voxels, as many factors as are
fitted. Everything is run: models, halves, classification, figures. CPU seconds are of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import torch

from ntfa import NTFA, simulate
from ntfa.comparison import PARTS, Settings, compare
from ntfa.study import Study


def twin(n_factors: int) -> Study:
    """Simulate the study."""
    sizes = {"n_participants": 6, "n_stimuli": 8, "n_runs": 4, "n_voxels": 2000}
    return simulate("haxby", random_state=0, n_factors=n_factors, **sizes).study


def seconds() -> tuple[float, float]:
    """Wall time, and CPU time of this process and of those that it started and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    """Print a line for each number of factors."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--n-factors", type=int, nargs="+", default=[10, 100])
    options.add_argument("--n-jobs", type=int, default=2)
    args = options.parse_args()
    for n_factors in args.n_factors:
        study = twin(n_factors)
        began = seconds()
        NTFA(n_factors, random_state=0, device="cpu").fit(study)
        fitted = seconds()
        settings = Settings(n_factors=n_factors, device="cpu", n_jobs=args.n_jobs, quiet=True)
        folder = compare(study, Path(tempfile.mkdtemp(prefix="ntfa-comparing-")) / "out", settings)
        end_processes()
        done = seconds()
        fit, whole = ([b - a for a, b in zip(*both, strict=True)] for both in ((began, fitted), (fitted, done)))
        parts = {part: json.loads((folder / part / "part.json").read_text())["seconds"] for part in PARTS}
        shown = ", ".join(f"{part} {taken:.0f}" for part, taken in parts.items())
        print(
            f"K = {n_factors}: {whole[1] / fit[1]:.1f} x the CPU time of a fit ({whole[1]:.0f} s over {fit[1]:.1f} s); "
            f"{whole[0]:.0f} s by the clock, {args.n_jobs} processes, {os.cpu_count()} cores; of its parts {shown}",
            flush=True,
        )


def end_processes() -> None:
    """End those that joblib keeps: only then is their time known."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
