"""What a researcher waits for: a fit from the command to its report, fits with many factors, and a busy machine.

    python benchmarks/waiting.py [maps] [busy] [large] [--study FOLDER] [--threads 2]

    maps    `ntfa fit` of 59 people's 32 maps of 8,209 voxels, K = 30, choice of the response, calibration and report
            included, in a process of its own: seconds by the clock, over the two products Y F^T and M^T Y of one step.
            The study is simulated like Woo et al. (2014), or the saved study --study
    busy    40 steps of that fit, alone and beside one and two other busy processes per core, over the same steps
            with one thread; both by the clock
    large   fits to 6 people x 480 frames x 20,000 voxels, K = 50, with one thread: CPU seconds, over the two products

Products take one thread, and the faster of two ways round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import ntfa
from ntfa import Study

LARGE: dict[str, tuple[str, dict[str, object]]] = {
    "HTFA": ("HTFA", {}),
    "NTFA": ("NTFA", {}),
    "NTFA, networks, not calibrated": ("NTFA", {"response": "network", "uncertainty": "mean-field"}),
}
STEPS = """
import sys, torch, ntfa
torch.set_num_threads(int(sys.argv[1]))
model = ntfa.NTFA(30, random_state=0, response="loadings", uncertainty="mean-field", max_epochs=40)
print(model.fit(ntfa.Study.open(sys.argv[2])).history_["seconds"].iloc[-1])
"""


def products(study: Study, n_factors: int) -> float:
    """Seconds that the two products of a step take, with one thread: median of five, the faster of two ways round."""
    data = [torch.from_numpy(np.array(study.frames[name], dtype=np.float32)) for name in study.participants]
    factors, weights = torch.rand(n_factors, study.n_voxels), [torch.randn(n_factors, len(y)) for y in data]

    def rows() -> None:
        for y, m in zip(data, weights, strict=True):
            y @ factors.T
            m @ y

    def columns() -> None:
        for y, m in zip(data, weights, strict=True):
            factors @ y.T
            m @ y

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    taken = [min(seconds(way) for way in (rows, columns)) for _ in range(6)]
    torch.set_num_threads(before)
    return float(np.median(taken[1:]))


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one call."""
    started = clock()
    work()
    return clock() - started


def maps(folder: Path, threads: int) -> None:
    """Time the command."""
    floor = products(Study.open(folder), 30)
    out = Path(tempfile.mkdtemp()) / "results"
    command = [sys.executable, "-m", "ntfa", "fit", str(folder), str(out), "--n-factors", "30", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    took = seconds(lambda: subprocess.run(command, env=environment, check=True))
    history = pd.read_csv(out / "history.tsv", sep="\t")
    print(
        f"ntfa fit of {Study.open(folder)}, K = 30, {threads} threads: {took:.1f} s, {took / floor:.0f} x the two "
        f"products; {len(history)} steps {history['seconds'].iloc[-1]:.1f} s",
        flush=True,
    )


def busy(folder: Path, threads: int) -> None:
    """Time steps with one thread and with more, alone and beside other work, waiting as libraries do and briefly."""
    for name, others in (("nothing", 0), ("one busy process per core", 1), ("two busy processes per core", 2)):
        with busy_processes(others * (os.cpu_count() or 1)):
            one = steps(folder, 1, {})
            usual, brief = (steps(folder, threads, own) for own in ({}, {"GOMP_SPINCOUNT": "1000"}))
        print(
            f"beside {name}: {threads} threads take {usual / one:.2f} x the time of one that wait as usual, "
            f"{brief / one:.2f} x that wait briefly, as ntfa's do ({usual:.1f} and {brief:.1f} over {one:.1f} s)",
            flush=True,
        )


@contextmanager
def busy_processes(n_processes: int) -> Iterator[None]:
    """Keep cores busy for a while."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def steps(folder: Path, threads: int, more: dict[str, str]) -> float:
    """Seconds of 40 steps, in a process of its own."""
    command = [sys.executable, "-c", STEPS, str(threads), str(folder)]
    said = subprocess.run(command, env={**os.environ, **more}, check=True, capture_output=True, text=True).stdout
    return float(said)


def large() -> None:
    """Time fits to a study of `peers.py`."""
    from missed import simulated, task_frames
    from peers import CASES, study_of

    drawn = simulated(CASES["large"], 0, None)
    study = study_of(*task_frames(drawn), drawn.truth.coordinates)
    floor = products(study, CASES["large"].factors)
    for name, (model, settings) in LARGE.items():
        fit = getattr(ntfa, model)(CASES["large"].factors, random_state=0, device="cpu", **settings).fit
        took = seconds(lambda fit=fit: fit(study), time.process_time)
        print(f"{name}, {CASES['large'].name}: {took:.1f} CPU s, {took / floor:.0f} x the two products", flush=True)


def main() -> None:
    """Print a line for each."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", nargs="*", metavar="maps|busy|large", default=["maps", "busy", "large"])
    options.add_argument("--study", type=Path, help="folder of a saved study, for maps and busy")
    options.add_argument("--threads", type=int, default=2)
    args = options.parse_args()
    folder = args.study
    if folder is None and {"maps", "busy"} & {*args.what}:
        folder = Path(tempfile.mkdtemp()) / "study"
        ntfa.simulate("woo", random_state=0).study.save(folder)
    if "maps" in args.what:
        maps(folder, args.threads)
    if "busy" in args.what:
        busy(folder, args.threads)
    if "large" in args.what:
        torch.set_num_threads(1)
        large()


if __name__ == "__main__":
    main()
