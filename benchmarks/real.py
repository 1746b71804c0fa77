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

from ntfa import NTFA, Study
from ntfa.analyses.decoding import classify_means, condition_means, summarise
from ntfa.cli import main as ntfa
from ntfa.comparison import Settings, compare
from ntfa.comparison.words import comparison_in_words
from ntfa.study.cutting import Preparation, cut
from ntfa.study.events import read_events


def pain_and_rejection(data: Path, out: Path) -> None:
    """Single-trial maps: no rest and no delay; scaled by training trials alone, then the whole comparison."""
    source = data / "woo2014_pain_rejection"
    mask = source / "space-MNI_res-6mm_desc-brain_mask.nii.gz"
    recorded = Study.from_bids(source, mask=mask, delay=0, standardize="none")
    yardstick(recorded)
    study = scaled_by_training(recorded)
    settings = Settings(n_factors=30, n_samples=36, htfa_block="participant", category="stimulus", across="both")
    print(*comparison_in_words(compare(study, out, settings, overwrite=True)), sep="\n")


def yardstick(study: Study) -> None:
    """A linear SVM on all voxels of condition means, leaving one participant out."""
    voxels = pd.DataFrame(study.mean_images(), index=study.trials.index)
    means = condition_means(voxels, study.trials, "stimulus")
    for categories in (None, ["heat", "rejection"], ["heat", "warmth"], ["rejection", "friend"]):
        found = summarise(classify_means(means, categories), [], measure="accuracy").iloc[0]
        interval = f"[{found['ci_low']:.3f}, {found['ci_high']:.3f}]"
        print(f"{categories or 'all four'}: accuracy {found['accuracy']:.3f} {interval}")


def scaled_by_training(study: Study) -> Study:
    """Divide every participant and every voxel by their root mean square over the training trials.

    Participants differ fourfold in scale, and voxels at the edge of the brain tenfold; test trials have no part in it.
    """
    trials = study.split("diagonal")[0].trials
    spans = {
        participant: np.concatenate([np.arange(a, b) for a, b in zip(own["start"], own["stop"], strict=True)])
        for participant, own in trials.groupby("participant")
    }
    frames = {participant: np.array(study.frames[participant], dtype=np.float64) for participant in study.participants}
    for _ in range(3):
        for participant, rows in spans.items():
            frames[participant] /= np.sqrt((frames[participant][rows] ** 2).mean())
        voxel = np.sqrt(np.mean([(frames[who][rows] ** 2).mean(0) for who, rows in spans.items()], axis=0))
        frames = {participant: array / voxel for participant, array in frames.items()}
    return Study.from_arrays(frames, study.trials, study.coordinates, study.mask_img)


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
