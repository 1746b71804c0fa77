"""Peak memory of a fit over what it must hold: the study, and four times one participant's factors.

    python benchmarks/memory.py

The study is written to disk, and read and fitted in a process of its own, whose peak resident memory is read after it
has imported everything and opened the study, and again after the fit. Memory-mapped frames count as they are read.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from step import noise_study

from ntfa import NTFA, Study

PARTICIPANTS, STIMULI, REPEATS, LENGTH, VOXELS, FACTORS = 6, 8, 4, 12, 32_233, 100


def peak_bytes() -> int:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fit(folder: str) -> None:
    """Fit in this process and print peaks before and after."""
    study = Study.open(folder)
    # Loads every library before memory is measured.
    NTFA(n_factors=2, max_epochs=2, device="cpu", random_state=0, uncertainty="mean-field").fit(
        noise_study(2, 2, 1, 3, 50)
    )
    before = peak_bytes()
    NTFA(n_factors=FACTORS, max_epochs=6, device="cpu", random_state=0, uncertainty="mean-field").fit(study)
    print(before, peak_bytes())


def main() -> None:
    """Print the ratio."""
    if len(sys.argv) > 1:
        fit(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as parent:
        folder = str(Path(parent) / "study")
        study = noise_study(PARTICIPANTS, STIMULI, REPEATS, LENGTH, VOXELS)
        size = sum(frames.nbytes for frames in study.frames.values())
        study.save(folder)
        del study
        command = [sys.executable, __file__, folder]
        before, after = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    factors = 4 * FACTORS * VOXELS * 4
    used = after - before
    print(f"study {size / 1e6:.0f} MB, four times one participant's factors {factors / 1e6:.0f} MB")
    print(f"peak of the fit above libraries {used / 1e6:.0f} MB = {used / (size + factors):.2f}x their sum")
    print(f"allowed: 1.5 x study + factors = {(1.5 * size + factors) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
