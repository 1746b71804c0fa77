"""What a newcomer waits for: the start of Python up to the first step of a fit, and all of `ntfa demo`.

    python benchmarks/starting.py [start] [demo] [--rounds 5] [--threads 1] [--quick]

    start   `ntfa fit` of a tiny study up to its first step, over the import of numpy, pandas and torch alone
    demo    `ntfa demo --quiet`, over its call of `fit`: choice of the response model, fit, and fit to halves

CPU seconds (user + sys) and seconds by the clock, from the start of the interpreter, in processes that take
turns; medians of the rounds. With --quick one round, and of the demo a study of a few voxels: shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ntfa import simulate

FLOOR = """
import numpy, pandas, torch
"""
# As `ntfa fit` imports what it needs, and then up to where a step begins.
FIRST_STEP = """
import sys
from ntfa import cli
from ntfa.cli.starting import importing
with importing(own_process=True):
    import ntfa.cli.fit
from ntfa.fitting.training import Trainer
class Begun(Exception): pass
def begin(trainer, factor): raise Begun
Trainer.step = begin
try:
    cli.main(["fit", *sys.argv[1:], "--quiet"])
except Begun:
    pass
"""
DEMO = """
import sys, time
from ntfa import cli
from ntfa.cli.starting import importing
with importing(own_process=True):
    import ntfa.cli.demo as demo
if sys.argv[2] == "quick":
    whole = demo.simulate
    demo.simulate = lambda name, random_state: whole(name, n_voxels=300, n_frames=3, random_state=random_state)
fit, inside = demo.NTFA.fit, {}
def timed(model, *args, **options):
    began = "cpu" not in inside and (time.process_time(), time.time())
    inside.setdefault("cpu", None)
    try:
        return fit(model, *args, **options)
    finally:
        if began:
            inside.update(cpu=time.process_time() - began[0], wall=time.time() - began[1])
demo.NTFA.fit = timed
sys.stdout = sys.stderr
assert cli.main(["demo", sys.argv[1], "--quiet"]) == 0
sys.stdout = sys.__stdout__
"""
SAY = """
import json as _json, time as _time
print(_json.dumps({"cpu": _time.process_time(), "now": _time.time(), "inside": globals().get("inside")}))
"""


@dataclass(frozen=True)
class Taken:
    """Seconds of a processor, and by the clock."""

    cpu: float
    wall: float

    def over(self, other: Taken) -> str:
        """Both as ratios, with the seconds that they are of."""
        return (
            f"{self.cpu / other.cpu:.2f} x in CPU time ({self.cpu:.2f} over {other.cpu:.2f} s), "
            f"{self.wall / other.wall:.2f} x by the clock ({self.wall:.2f} over {other.wall:.2f} s)"
        )


def run(script: str, *arguments: str, threads: int = 1) -> tuple[Taken, Taken | None]:
    """Run a script in a process of its own: what it took until its end, and what the script timed inside if it did."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MPLBACKEND": "Agg"}
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", script + SAY, *arguments], env=environment, check=True, capture_output=True, text=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    inside = None if said["inside"] is None else Taken(**said["inside"])
    return Taken(said["cpu"], said["now"] - began), inside


def median(rounds: list[Taken]) -> Taken:
    """Medians of the rounds, each by itself."""
    return Taken(*(float(np.median([getattr(one, name) for one in rounds])) for name in ("cpu", "wall")))


def start(folder: Path, rounds: int, threads: int) -> str:
    """Time the way to the first step of a fit of a tiny study."""
    study = simulate("synthetic", n_participants=4, n_stimuli=4, n_frames=3, n_voxels=200, random_state=0).study
    study.save(folder / "study")
    taken = [
        (
            run(FIRST_STEP, str(folder / "study"), str(folder / "out"), "--n-factors", "2", threads=threads)[0],
            run(FLOOR, threads=threads)[0],
        )
        for _ in range(rounds)
    ]
    first, floor = (median([one[i] for one in taken]) for i in (0, 1))
    return f"first step of a fit over import numpy, pandas, torch: {first.over(floor)}"


def demo(folder: Path, rounds: int, threads: int, quick: bool = False) -> str:
    """Time the demo and the fits in it."""
    taken = [
        run(DEMO, str(folder / f"demo-{i}"), "quick" if quick else "whole", threads=threads) for i in range(rounds)
    ]
    whole = median([one for one, _ in taken])
    fits = median([inside for _, inside in taken if inside is not None])
    return f"ntfa demo over its fits: {whole.over(fits)}"


def main() -> None:
    """Print a line for each."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", nargs="*", metavar="start|demo", default=["start", "demo"])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--quick", action="store_true", help="one round, of small studies: says nothing of speed")
    args = options.parse_args()
    rounds = 1 if args.quick else args.rounds
    with tempfile.TemporaryDirectory() as name:
        if "start" in args.what:
            print(start(Path(name), rounds, args.threads), flush=True)
        if "demo" in args.what:
            print(demo(Path(name), rounds, args.threads, args.quick), flush=True)


if __name__ == "__main__":
    main()
