"""Real files through the command line: what a researcher would type, on data that is not part of the project.

    python benchmarks/real.py DATA_DIR [OUT]

DATA_DIR holds `woo2014_pain_rejection` (59 participants, single-trial maps), `haxby2001_sub1_25mm` (one participant,
time series) and `designs_only` (events of OpenNeuro ds000105 and ds000171). Results and pictures are left in OUT.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from ntfa import HTFA, NTFA, Study
from ntfa.cli import main as ntfa
from ntfa.study.cutting import Preparation, cut
from ntfa.study.events import read_events


def pain_and_rejection(data: Path, out: Path) -> None:
    """Single-trial maps: no rest and no delay; every voxel z-scored over a participant's maps."""
    source = data / "woo2014_pain_rejection"
    mask = source / "space-MNI_res-6mm_desc-brain_mask.nii.gz"
    command = ["bids", str(source), str(out), "group", "--mask", str(mask), "--delay", "0", "--standardize", "run"]
    run([*command, "--n-factors", "20", "--overwrite"])
    model = NTFA.load(out / "ntfa")
    print(model.stimuli_.round(2).to_string())
    held_out(Study.open(out / "study"))


def held_out(study: Study) -> None:
    """Hold out the diagonal and compare NTFA and HTFA on it."""
    train, test = study.split("diagonal")
    observed = test.mean_images()
    for model in (NTFA(n_factors=20, random_state=0), HTFA(n_factors=20, block="participant", random_state=0)):
        model.fit(train)
        predicted = model.predict(test.trials)
        correlation = np.mean([np.corrcoef(*pair)[0, 1] for pair in zip(observed, predicted, strict=True)])
        error = np.mean((observed - predicted) ** 2) / np.mean(observed**2)
        score = model.score(test, n_samples=36) / test.n_data
        name = type(model).__name__
        print(f"{name}: {score:.5f} nats a datum, correlation {correlation:.3f}, error over zero's {error:.3f}")


def objects(data: Path, out: Path) -> None:
    """A time series with true onsets: z-scored against rest, 3 s delay."""
    source = data / "haxby2001_sub1_25mm"
    mask = source / "sub-1" / "sub-1_desc-brain_mask.nii.gz"
    run(["bids", str(source), str(out), "group", "--mask", str(mask), "--n-factors", "8", "--overwrite"])
    print(NTFA.load(out / "ntfa").stimuli_.round(2).to_string())


def designs(data: Path) -> None:
    """Parse and cut every events file of two OpenNeuro datasets."""
    settings = {
        "ds000105": (2.5, 121, Preparation(merge_gap=2.0)),
        "ds000171": (3.0, 105, Preparation(rest=("tones",), ignore=("response",))),
    }
    for name, (t_r, n_frames, how) in settings.items():
        rows = []
        for path in sorted((data / "designs_only" / name).rglob("*_events.tsv")):
            found = cut(read_events(path, str(path)), np.arange(n_frames) * t_r, how, str(path))
            rows.append({"trials": len(found.trials), "rest": len(found.rest), **found.counts})
        table = pd.DataFrame(rows)
        print(f"{name}: {len(table)} runs, a run has", table.mean().round(2).to_dict())


def run(command: list[str]) -> None:
    """Run a command, timed, and stop if it fails."""
    print("\n$ ntfa", *command)
    started = time.perf_counter()
    if ntfa([*command, "--quiet"]) != 0:
        raise SystemExit(1)
    print(f"({time.perf_counter() - started:.0f} s)")


def main() -> None:
    """Run everything."""
    warnings.simplefilter("once")
    data = Path(sys.argv[1])
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="ntfa-real-"))
    designs(data)
    objects(data, out / "objects")
    pain_and_rejection(data, out / "pain_rejection")
    print(f"\nReports are in {out}")


if __name__ == "__main__":
    main()
