"""How the time of a training step grows with frames, voxels, participants and factors.

    python benchmarks/growth.py [--repeats 7] [--out build/growth.png]

One thing grows at a time, from sizes at which the products of frames and factors are most of a step. All sizes of one
kind take turns, in a new random order every round, so that whatever else the machine does falls on all of them. The
median CPU time over rounds, on one thread, is taken, and the slope of the line through log time against log size: 1 is
linear growth. In factors it should lie between 1 (products) and 3 (the algebra of a cell).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np
import torch
from step import step_and_floor

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STIMULI = 8


@dataclass(frozen=True)
class Size:
    """What a step works on; `frames` are those of one participant."""

    participants: int = 4
    frames: int = 960
    voxels: int = 10_000
    factors: int = 50

    @property
    def design(self) -> tuple[int, ...]:
        """The size as `step.py` has it: participants, stimuli, repeats, frames a trial, voxels, factors."""
        return self.participants, STIMULI, 1, self.frames // STIMULI, self.voxels, self.factors


GROWING: dict[str, tuple[int, ...]] = {
    "frames": (960, 1920, 3840, 7680),
    "voxels": (10_000, 20_000, 40_000, 80_000),
    "participants": (2, 4, 8, 16),
    "factors": (75, 150, 300, 600),
}
SMALL = Size(participants=2, frames=80, voxels=500, factors=5)
SMALL_GROWING: dict[str, tuple[int, ...]] = {
    "frames": (80, 160),
    "voxels": (500, 1000),
    "participants": (2, 4),
    "factors": (5, 10),
}


def slope(sizes: np.ndarray, times: np.ndarray) -> float:
    """Slope of the least-squares line through log time against log size."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def measure(base: Size, grows: str, values: tuple[int, ...], repeats: int) -> np.ndarray:
    """Median milliseconds of a step, and of its two products, for each value, [values, 2]."""
    works = [step_and_floor(replace(base, **{grows: value}).design, "collapsed") for value in values]
    for step, floors in works:
        for work in (step, *floors):
            work()
    rounds: list[list[tuple[float, float]]] = [[] for _ in values]
    rng = np.random.default_rng(0)
    for _ in range(repeats):
        for i in rng.permutation(len(values)):
            step, floors = works[i]
            rounds[i].append((seconds(step), min(seconds(floor) for floor in floors)))
    return np.array([[1000 * statistics.median(column) for column in zip(*taken, strict=True)] for taken in rounds])


def draw(measured: dict[str, tuple[tuple[int, ...], np.ndarray]], path: Path) -> None:
    """Draw a panel for each thing that grows, on logarithmic axes, with the line of slope 1 through the first point."""
    figure, axes = plt.subplots(1, len(measured), figsize=(3 * len(measured), 3.2), sharey=True, layout="constrained")
    for axis, (grows, (values, times)) in zip(axes, measured.items(), strict=True):
        sizes = np.array(values, dtype=float)
        axis.loglog(sizes, times[:, 0], "o-", color="#1b6ca8", label="step")
        axis.loglog(sizes, times[:, 1], "s-", color="#b0b0b0", label="its two products")
        axis.loglog(sizes, times[0, 0] * sizes / sizes[0], ":", color="black", label="slope 1")
        axis.set_title(f"slope {slope(sizes, times[:, 0]):.2f}")
        axis.set_xlabel({"frames": "frames a participant"}.get(grows, grows))
        axis.set_xticks(sizes, [f"{value:,}" for value in values])
        axis.minorticks_off()
    axes[0].set_ylabel("CPU milliseconds")
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print a table and draw a picture."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--out", type=Path, default=Path("build/growth.png"), help="where the picture goes")
    options.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, says nothing of growth")
    args = options.parse_args()
    torch.set_num_threads(1)
    base, growing = (SMALL, SMALL_GROWING) if args.quick else (Size(), GROWING)
    print(f"a collapsed step from {base}, one thread; milliseconds, products in brackets")
    measured = {}
    for grows, values in growing.items():
        times = measure(base, grows, values, args.repeats)
        measured[grows] = values, times
        row = "  ".join(
            f"{value:,}: {step:.0f} ({floor:.0f})" for value, (step, floor) in zip(values, times, strict=True)
        )
        sizes = np.array(values)
        print(f"  {grows}: slope {slope(sizes, times[:, 0]):.2f} (products {slope(sizes, times[:, 1]):.2f})   {row}")
    draw(measured, args.out)
    print(f"picture: {args.out}")


if __name__ == "__main__":
    main()
