"""True factors that a fit misses for good: how many, how far off, and what not missing them costs.

    python benchmarks/missed.py [--seeds 20] [--first-seed 0] [--cases many large] [--models TFA HTFA NTFA] [--jobs 1]

The studies of `benchmarks/peers.py` with 50 factors, one per seed. Every model is fitted as it is, without moving
factors during the fit, and from the true factors (their mean over participants). NTFA has networks here, since people
have factors in places of their own; TFA is fitted to the first participant.

    missed             true factors that are more than 5 mm off, matched one to one, in whom there are most
    largest            largest distance, over all participants and seeds, in mm
    under the truth's  bound of the fit from the truth less that of the fit, in nats: median and largest over seeds
    time               CPU time (on a GPU seconds) over that of the fit that moves nothing: median over seeds

Voxels are those of the MNI152 brain; where nilearn is missing, `--coordinates FOLDER` reads them from the files that
`--save-coordinates FOLDER` has written elsewhere.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bare  # noqa: F401
import numpy as np
import torch
from peers import CASES, QUICK, Case, center_errors, study_of

import ntfa
from ntfa.fitting.schedules import Relocation
from ntfa.inference import start
from ntfa.inference.frames import Frames
from ntfa.simulation import Simulator

FAR_MM = 5.0
NOISE = 0.25
ALL_CASES = {name: CASES[name] for name in ("many", "large")} | QUICK
SETTINGS: dict[str, dict[str, Any]] = {
    "TFA": {},
    "HTFA": {},
    "NTFA": {"response": "network", "uncertainty": "mean-field"},
}
WAYS = ("as it is", "nothing moved", "from the truth")
Row = dict[str, Any]


def simulated(case: Case, seed: int, coordinates: np.ndarray | None) -> Simulator:
    """Draw a study as `peers.py` does."""
    sizes = {"n_participants": case.participants, "n_stimuli": 8, "n_frames": case.length, "n_factors": case.factors}
    voxels: dict[str, Any] = {"n_voxels": case.voxels} if coordinates is None else {"coordinates": coordinates}
    return Simulator.create("haxby", random_state=seed, noise=NOISE, n_runs=case.runs, **sizes, **voxels)


def task_frames(drawn: Simulator) -> tuple[np.ndarray, np.ndarray]:
    """Every participant's trials one after another, [P, T, V], and their stimuli."""
    frames, stimuli = [], []
    for name in drawn.participants:
        own = drawn.trials[drawn.trials["participant"] == name]
        everything = drawn.frames(name)
        spans = zip(own["start"], own["stop"], strict=True)
        frames.append(np.concatenate([everything[begin:end] for begin, end in spans]))
        stimuli.append(own["stimulus"].to_numpy(dtype=str))
    return np.stack(frames), np.stack(stimuli)


@contextmanager
def starting_at(centers: np.ndarray, widths: np.ndarray) -> Iterator[None]:
    """Let fits start at factors [K, 3] and [K] in mm."""

    def factors(frames: Frames, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        places = frames.units.standardise(torch.from_numpy(centers))
        log_widths = 2 * torch.log(torch.from_numpy(widths) / frames.units.length)
        return places.to(frames.energy), log_widths.to(frames.energy)

    with patch.dict(start.STARTS, pursuit=factors):
        yield


def fitted(model: str, study: ntfa.Study, n_factors: int, device: str) -> tuple[np.ndarray, float, float, int]:
    """Fit; return centres [P, K, 3], the bound, how long it took, and in how many steps."""
    clock: Callable[[], float] = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    found = getattr(ntfa, model)(n_factors=n_factors, device=device, random_state=0, **SETTINGS[model]).fit(study)
    took = clock() - began
    table = found.factors_.sort_values(["participant", "factor"], kind="stable")
    centers = table[["x", "y", "z"]].to_numpy().reshape(-1, n_factors, 3)
    return centers, float(found.history_["bound"].iloc[-10:].mean()), took, len(found.history_)


def changed(way: str, centers: np.ndarray, widths: np.ndarray) -> AbstractContextManager[Any]:
    """Let fits be made in a way."""
    if way == "nothing moved":
        return patch("ntfa.fitting.training.relocate", lambda *_, **__: Relocation(0))
    return starting_at(centers, widths) if way == "from the truth" else nullcontext()


def measure(job: tuple[str, int, list[str], list[str], str, Path | None]) -> list[Row]:
    """Fit every model to a study in some ways."""
    name, seed, models, ways, device, folder = job
    torch.set_num_threads(1)
    case = ALL_CASES[name]
    drawn = simulated(case, seed, None if folder is None else np.load(folder / f"{case.voxels}.npy"))
    frames, stimuli = task_frames(drawn)
    truth = drawn.truth
    rows: list[Row] = []
    tiny = study_of(frames[:2, :, ::50], stimuli[:2], truth.coordinates[::50])
    fitted("HTFA", tiny, 2, device)  # loads every library
    for model in models:
        n = 1 if model == "TFA" else len(frames)
        study = study_of(frames[:n], stimuli[:n], truth.coordinates)
        centers, widths = truth.participant_centers[:n], np.exp(truth.participant_log_widths[:n] / 2)
        for way in ways:
            with changed(way, centers.mean(0), widths.mean(0)):
                found, bound, took, n_steps = fitted(model, study, case.factors, device)
            errors = center_errors(found, centers)
            missed = int((errors > FAR_MM).sum(1).max())
            rows.append({"case": name, "seed": seed, "model": model, "way": way, "missed": missed})
            rows[-1] |= {"largest": float(errors.max()), "bound": bound, "time": took, "steps": n_steps}
    return rows


def summary(rows: list[Row]) -> list[str]:
    """Say of every size, model and way of fitting how it went."""
    lines = ["| study | model | fit | seeds with none missed | missed | largest mm | under the truth's | time |"]
    lines.append("|" + "---|" * 8)
    groups = dict.fromkeys((row["case"], row["model"], row["way"]) for row in rows)
    for case, model, way in groups:
        by_way = {
            kind: [row for row in rows if (row["case"], row["model"], row["way"]) == (case, model, kind)]
            for kind in (way, "from the truth", "nothing moved")
        }
        own = by_way[way]
        short = [best["bound"] - row["bound"] for row, best in zip(own, by_way["from the truth"], strict=False)]
        ratio = [row["time"] / plain["time"] for row, plain in zip(own, by_way["nothing moved"], strict=False)]
        figures = [
            f"{sum(row['largest'] <= FAR_MM for row in own)} of {len(own)}",
            f"{sum(row['missed'] for row in own)}",
            f"{max(row['largest'] for row in own):.1f}",
            f"{np.median(short):.0f}, {max(short):.0f}" if short else "-",
            f"{np.median(ratio):.2f}" if ratio else "-",
        ]
        lines.append("| " + " | ".join([ALL_CASES[case].name, model, way, *figures]) + " |")
    return lines


def main() -> None:
    """Fit all, and print a table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=20, help="how many studies of each size")
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--cases", nargs="+", choices=ALL_CASES, default=["many", "large"])
    options.add_argument("--models", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    options.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--jobs", type=int, default=1, help="studies at a time")
    options.add_argument("--coordinates", type=Path, help="folder with voxels, where nilearn is missing")
    options.add_argument("--save-coordinates", type=Path, help="write such a folder, and nothing else")
    args = options.parse_args()
    if args.save_coordinates:
        args.save_coordinates.mkdir(parents=True, exist_ok=True)
        for name in args.cases:
            voxels = simulated(ALL_CASES[name], 0, None).truth.coordinates
            np.save(args.save_coordinates / f"{ALL_CASES[name].voxels}.npy", voxels)
        return
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    jobs = [
        (name, seed, args.models, args.ways, args.device, args.coordinates) for name in args.cases for seed in seeds
    ]
    rows: list[Row] = []
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for found in pool.map(measure, jobs):
            rows += found
            for row in found:
                figures = f"missed {row['missed']}, largest {row['largest']:.1f} mm, bound {row['bound']:.1f}"
                took = f"{row['steps']} steps, {row['time']:.1f} s"
                print(f"{row['case']} {row['seed']} {row['model']} {row['way']}: {figures}, {took}", flush=True)
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
