"""Peak memory of a fit against what was estimated from shapes alone.

    python benchmarks/estimates.py

Every fit runs in a process of its own, whose resident memory is read after it has imported everything and opened the
study, and at its peak during the fit. Estimates are to be within a factor of two. Linux only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from step import noise_study

from ntfa import HTFA, NTFA, TFA, TLSA, Study
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.estimates import estimate

KINDS: dict[str, type[TopographicModel]] = {"NTFA": NTFA, "HTFA": HTFA, "TFA": TFA, "TLSA": TLSA}
# participants, stimuli, repeats, frames a trial, voxels; model, factors, further settings
CASES: dict[str, tuple[tuple[int, ...], str, int, dict[str, Any]]] = {
    "NTFA, many voxels": ((6, 8, 2, 12, 32_233), "NTFA", 100, {}),
    "NTFA, many factors": ((6, 8, 2, 6, 3_000), "NTFA", 400, {}),
    "NTFA, many frames": ((4, 10, 10, 40, 400), "NTFA", 100, {}),
    "NTFA, mean-field": ((4, 10, 10, 40, 400), "NTFA", 100, {"inference": "mean-field"}),
    "NTFA, 4 particles": ((4, 10, 10, 20, 400), "NTFA", 100, {"n_particles": 4}),
    "HTFA, many trials": ((4, 10, 20, 2, 400), "HTFA", 100, {}),
    "TFA, many trials": ((4, 10, 20, 2, 400), "TFA", 60, {"block": "trial"}),
    "TLSA": ((6, 40, 2, 6, 400), "TLSA", 150, {}),
}


def fit(folder: str, name: str) -> None:
    """Fit in this process and print peaks before and after."""
    study = Study.open(folder)
    # Loads every library before memory is measured.
    NTFA(n_factors=2, max_epochs=2, device="cpu", random_state=0, uncertainty="mean-field").fit(
        noise_study(2, 2, 1, 3, 50)
    )
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmHWM")
    make(name, max_epochs=4, random_state=0).fit(study, checkpoint=f"{folder}-checkpoint")
    print(before, status("VmHWM"))


def status(name: str) -> int:
    """Return a number of bytes from what the kernel says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def make(name: str, **settings: Any) -> TopographicModel:
    """Make the model of a case."""
    _, kind, n_factors, special = CASES[name]
    return KINDS[kind](n_factors=n_factors, device="cpu", **special, **settings)


def main() -> None:
    """Print a table."""
    if len(sys.argv) > 2:
        fit(*sys.argv[1:])
        return
    print("| fit | estimated | measured | ratio |\n|---|---|---|---|")
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as parent:
            folder = str(Path(parent) / "study")
            study = noise_study(*CASES[name][0])
            study.save(folder)
            estimated = estimate(study, make(name)).memory_bytes
            command = [sys.executable, __file__, folder, name]
            run = subprocess.run(command, check=True, capture_output=True, text=True)
        before, after = map(int, run.stdout.split())
        measured = after - before
        print(
            f"| {name} | {estimated / 1e6:.0f} MB | {measured / 1e6:.0f} MB | {estimated / measured:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
