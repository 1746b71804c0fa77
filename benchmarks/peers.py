"""TFA, HTFA and NTFA beside BrainIAK 0.12's TFA and HTFA: time, memory, and how near they come to a known truth.

    python benchmarks/peers.py [--peer-env DIR] [--limit 1800] [--cases few many large] [--noise 0.25] [--quick]

BrainIAK gets an environment of its own, made on first use (build/brainiak unless --peer-env names another). Every fit
is a process of its own with one thread, ended at the limit of CPU seconds. Both sides read the same simulated frames.

    wall, CPU          seconds of the fit alone, after imports and reading
    process CPU        seconds of the whole process, imports and reading included
    RSS                largest resident memory of the process, libraries included, in MB
    R2                 1 - |signal - estimate|^2 / |signal|^2; the signal is what was simulated, before noise was added
    median, 90%, max   distance of every participant's factors from their true places, matched one to one, in mm

Studies have the design of `ntfa simulate --like haxby` without its rest: participants' centres lie a few mm around a
template's, radii are 10 to 16 mm. With K = 3 radii are doubled, so that so few factors still cover much of the brain.
Our models have their defaults, but for HTFA's factors for every participant, which is what BrainIAK calls HTFA, and for
NTFA's calibration of its uncertainty, which BrainIAK has nothing to compare with. BrainIAK's settings are in
`peers_brainiak.py`. The Cramer-Rao bound is the root-mean-square error that no unbiased estimate from
the participant's own frames falls below. TFA treats participants one by one, so one participant is compared with one.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal as signals
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

if TYPE_CHECKING:
    from ntfa import Study
    from ntfa.simulation import Simulator

Row = dict[str, Any]

PEER = ("brainiak==0.12", "numpy<2.4", "openmpi")
PEER_SCRIPT = Path(__file__).with_name("peers_brainiak.py")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
RUNS = (("BrainIAK", "TFA"), ("ntfa", "TFA"), ("BrainIAK", "HTFA"), ("ntfa", "HTFA"), ("ntfa", "NTFA"))


@dataclass(frozen=True)
class Case:
    """A simulated study; every participant sees 8 stimuli in every run."""

    participants: int
    runs: int
    length: int
    voxels: int
    factors: int
    widen: float = 1.0

    @property
    def name(self) -> str:
        """The size in words."""
        frames = 8 * self.runs * self.length
        return f"{self.participants} x {frames} frames x {self.voxels:,} voxels, K = {self.factors}"


CASES = {
    "few": Case(participants=9, runs=1, length=20, voxels=5_000, factors=3, widen=2.0),
    "many": Case(participants=9, runs=1, length=20, voxels=5_000, factors=50),
    "large": Case(participants=6, runs=5, length=12, voxels=20_000, factors=50),
}
QUICK = {"quick": Case(participants=2, runs=1, length=5, voxels=300, factors=2, widen=2.0)}


# Data ----------------------------------------------------------------------------------------------------------------


def simulate_case(case: Case, noise: float, path: Path) -> np.ndarray:
    """Write frames, design and truth to a file that both sides can read; return the signal, [P, T, V]."""
    from ntfa.simulation import Simulator

    drawn = Simulator.create(
        "haxby",
        random_state=0,
        noise=noise,
        n_participants=case.participants,
        n_stimuli=8,
        n_frames=case.length,
        n_runs=case.runs,
        n_voxels=case.voxels,
        n_factors=case.factors,
    )
    truth = replace(drawn.truth, participant_log_widths=drawn.truth.participant_log_widths + 2 * np.log(case.widen))
    by_participant = dict(list(drawn.trials.groupby("participant")))
    own = [by_participant[name] for name in truth.participants]
    noisy, clean = (_trial_frames(replace(drawn, truth=replace(truth, noise=sd)), own) for sd in (noise, 0.0))
    np.savez(
        path,
        frames=noisy,
        coordinates=truth.coordinates,
        stimuli=np.stack([trials["stimulus"].to_numpy(dtype=str) for trials in own]),
        n_factors=case.factors,
        centers=truth.participant_centers,
        widths=np.exp(truth.participant_log_widths / 2),
        noise=noise,
    )
    return clean


def _trial_frames(simulator: Simulator, own: list[pd.DataFrame]) -> np.ndarray:
    """Every participant's trials one after another, [P, T, V]."""
    found = []
    for name, trials in zip(simulator.participants, own, strict=True):
        frames = simulator.frames(name)
        spans = zip(trials["start"], trials["stop"], strict=True)
        found.append(np.concatenate([frames[start:stop] for start, stop in spans]))
    return np.stack(found)


# One fit in a process of its own -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """CPU seconds, largest resident memory (MB) and last words of a process; `ended` is done, limit or failed."""

    cpu: float
    peak: float
    ended: str
    said: str


def run_limited(command: list[str], limit: int) -> Usage:
    """Run a command with one thread; the system ends it when it has taken `limit` seconds of CPU time."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            ["/bin/sh", "-c", f'ulimit -S -t {limit}; exec "$@"', "sh", *command],
            env={**os.environ, **ONE_THREAD},
            stdout=log,
            stderr=log,
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        ended = {0: "done", -signals.SIGXCPU: "limit"}.get(child.returncode, "failed")
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    if ended == "failed":
        print(said[-2000:], file=sys.stderr)
    return Usage(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, ended, said.rpartition("\n")[2])


def peer_python(folder: Path) -> str:
    """Return the interpreter of BrainIAK's environment, which is made if it is not there."""
    python = folder / "bin" / "python"
    there = [str(python), "-c", "import brainiak.factoranalysis.htfa"]
    if not python.exists() or subprocess.run(there, capture_output=True).returncode:
        print(f"making an environment for BrainIAK in {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEER], check=True)
    return str(python)


def fit_ours(kind: str, data: str, out: str) -> None:
    """Fit one of our models to a data file; write what was found and how long it took."""
    import torch

    import ntfa

    torch.set_num_threads(1)
    with np.load(data) as kept:
        frames, stimuli, coordinates = (kept[name] for name in ("frames", "stimuli", "coordinates"))
        n_factors = int(kept["n_factors"])
    if kind == "TFA":
        frames, stimuli = frames[:1], stimuli[:1]
    study = study_of(frames, stimuli, coordinates)
    kinds = {"TFA": ntfa.TFA, "HTFA": ntfa.HTFA, "NTFA": ntfa.NTFA}
    more = {"HTFA": {"block": "participant"}, "NTFA": {"uncertainty": "mean-field"}}.get(kind, {})
    tiny = study_of(frames[:, :, ::50], stimuli, coordinates[::50])
    kinds[kind](n_factors=2, max_epochs=2, device="cpu", random_state=0, **more).fit(tiny)  # loads every library
    wall, cpu = time.perf_counter(), time.process_time()
    model = kinds[kind](n_factors=n_factors, device="cpu", random_state=0, **more).fit(study)
    weights = model.transform(study, by="frame", condition_on_stimulus=True).to_numpy()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    table = model.factors_.sort_values(["participant", "factor"], kind="stable")
    np.savez(
        out,
        centers=table[["x", "y", "z"]].to_numpy().reshape(len(frames), n_factors, 3),
        widths=table["width"].to_numpy().reshape(len(frames), n_factors),
        weights=weights.reshape(len(frames), -1, n_factors),
        wall=wall,
        cpu=cpu,
    )


def study_of(frames: np.ndarray, stimuli: np.ndarray, coordinates: np.ndarray) -> Study:
    """Make a study of frames [P, T, V] in which trials of equal length follow one another, of stimuli [P, trials]."""
    from ntfa import Study

    names = [f"sub-{p + 1:02d}" for p in range(len(frames))]
    length = frames.shape[1] // stimuli.shape[1]
    trials = pd.DataFrame(
        [
            (name, stimulus, i * length, (i + 1) * length)
            for name, shown in zip(names, stimuli, strict=True)
            for i, stimulus in enumerate(shown)
        ],
        columns=["participant", "stimulus", "start", "stop"],
    )
    return Study.from_arrays(dict(zip(names, frames, strict=True)), trials, coordinates)


# Assessment ----------------------------------------------------------------------------------------------------------


def center_errors(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Distances [P, K] of centres [P, K, 3] from the true ones, each matched to one so that their sum is least."""
    errors = []
    for ours, theirs in zip(found, true, strict=True):
        distances = np.linalg.norm(ours[:, None] - theirs[None], axis=-1)
        errors.append(distances[linear_sum_assignment(distances)])
    return np.stack(errors)


def explained(found: dict[str, np.ndarray], signal: np.ndarray, coordinates: np.ndarray) -> float:
    """Share of the signal's sum of squares that weights times factors explain."""
    missed = total = 0.0
    for centers, widths, weights, true in zip(
        found["centers"], found["widths"], found["weights"], signal, strict=False
    ):
        squared = ((coordinates[None] - centers[:, None]) ** 2).sum(-1)
        estimate = weights @ np.exp(-squared / widths[:, None] ** 2)
        missed += float(((true - estimate) ** 2).sum())
        total += float((true.astype(np.float64) ** 2).sum())
    return 1 - missed / total


def attainable(centers: np.ndarray, widths: np.ndarray, signal: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
    """Cramer-Rao bound: the least root-mean-square error of each centre [K] in one participant, for noise of sd 1.

    Weights are free in every frame, so whatever factors [K, V] can express themselves says nothing of where they are;
    what is left of their derivatives by place and log-width does, weighted by the products of the weights.
    """
    offsets = coordinates[None] - centers[:, None]
    scaled = offsets / widths[:, None, None] ** 2
    distances = (scaled * offsets).sum(-1)
    factors = np.exp(-distances)
    moves = np.concatenate([2 * scaled.transpose(0, 2, 1), distances[:, None]], axis=1) * factors[:, None]
    moves = moves.reshape(-1, len(coordinates))
    weights = np.linalg.lstsq(factors.T, signal.T.astype(np.float64), rcond=None)[0]
    basis = np.linalg.qr(factors.T)[0]
    moves -= (moves @ basis) @ basis.T
    information = (moves @ moves.T) * np.kron(weights @ weights.T, np.ones((4, 4)))
    variances = np.linalg.inv(information).diagonal().reshape(-1, 4)
    return np.sqrt(variances[:, :3].sum(1))


def attainable_row(data: Path, signal: np.ndarray) -> Row:
    """Say how near the truth one can come; a row of the table."""
    with np.load(data) as kept:
        truth = zip(kept["centers"], kept["widths"], signal, strict=True)
        errors = kept["noise"] * np.stack([attainable(*own, kept["coordinates"]) for own in truth])
    return {"package": "Cramer-Rao", "model": "bound", "ended": "done", **in_short(errors)}


def in_short(errors: np.ndarray) -> Row:
    """Median, 90th percentile and largest of errors."""
    return {"median": float(np.median(errors)), "90%": float(np.quantile(errors, 0.9)), "max": float(errors.max())}


def one_run(command: list[str], data: Path, signal: np.ndarray, limit: int) -> Row:
    """Run a fit and compare what it found with the truth; a row of the table."""
    out = data.with_name("found.npz")
    out.unlink(missing_ok=True)
    usage = run_limited([*command, str(data), str(out)], limit)
    row: Row = {"ended": usage.ended, "process CPU": usage.cpu, "RSS": usage.peak}
    if usage.ended != "done":
        return row | {"said": usage.said}
    with np.load(data) as kept, np.load(out) as result:
        found = dict(result.items())
        errors = center_errors(found["centers"], kept["centers"][: len(found["centers"])])
        row["R2"] = explained(found, signal, kept["coordinates"])
    row |= {"wall": float(found["wall"]), "CPU": float(found["cpu"])}
    return row | in_short(errors)


# The table -----------------------------------------------------------------------------------------------------------


def cell(row: Row, column: str, form: str) -> str:
    """One figure; a fit that did not end has no more than what it had taken by then."""
    if column in row:
        return format(row[column], form)
    if row["ended"] == "limit" and column == "CPU":
        return f"> {row['process CPU']:.0f}"
    return "-"


COLUMNS = {"wall": ".1f", "CPU": ".1f", "process CPU": ".1f", "RSS": ".0f", "R2": ".3f", "median": ".2f"}
COLUMNS |= {"90%": ".2f", "max": ".1f"}


def table(rows: list[Row]) -> str:
    """Format rows as a Markdown table."""
    lines = ["| " + " | ".join(["study", "fit", *COLUMNS]) + " |", "|" + "---|" * (2 + len(COLUMNS))]
    for row in rows:
        figures = [cell(row, column, form) for column, form in COLUMNS.items()]
        lines.append("| " + " | ".join([str(row["study"]), f"{row['package']} {row['model']}", *figures]) + " |")
    return "\n".join(lines)


def ratios(rows: list[Row]) -> list[str]:
    """Say how many times less CPU time our fits took than BrainIAK's of the same name."""
    theirs = {(row["study"], row["model"]): row for row in rows if row["package"] == "BrainIAK"}
    said = []
    for row in rows:
        peer = theirs.get((row["study"], row["model"]))
        if row["package"] == "ntfa" and peer is not None and "CPU" in row and peer["ended"] != "failed":
            sign, taken = ("", peer["CPU"]) if "CPU" in peer else ("more than ", peer["process CPU"])
            said.append(f"{row['study']}, {row['model']}: {sign}{taken / row['CPU']:.3g}x less CPU time")
    return said


def unfinished(rows: list[Row]) -> list[str]:
    """Say how far the fits had come that were ended or failed."""
    return [
        f"{row['study']}, {row['package']} {row['model']}: {row['ended']} at {row['process CPU']:.0f} CPU s, "
        f"having said {row['said'] or 'nothing'!r}"
        for row in rows
        if row["ended"] != "done"
    ]


def machine(commands: dict[str, list[str]]) -> str:
    """Name the processor and the versions of what is compared."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    processor = models[0].partition(":")[2].strip() if models else platform.machine()
    said = [f"{os.cpu_count()} cores of {processor}, Python {platform.python_version()}, one thread a fit"]
    for package, (python, *_) in commands.items():
        names = ("torch", "numpy") if package == "ntfa" else ("brainiak", "numpy", "scipy")
        asked = f"from importlib.metadata import version as v; print(*[n + ' ' + v(n) for n in {names}], sep=', ')"
        said.append(subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip())
    return "; ".join(said)


def main() -> None:
    """Fit everything to everything and print a table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--peer-env", type=Path, default=Path("build/brainiak"), help="made if it is not there")
    options.add_argument("--limit", type=int, default=1800, help="CPU seconds a fit may take")
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--packages", nargs="+", choices=("BrainIAK", "ntfa"), default=["BrainIAK", "ntfa"])
    options.add_argument("--models", nargs="+", choices=("TFA", "HTFA", "NTFA"), default=["TFA", "HTFA", "NTFA"])
    options.add_argument("--noise", type=float, default=0.25, help="standard deviation of the noise")
    options.add_argument("--quick", action="store_true", help="a tiny study: shows that it runs, says nothing of speed")
    options.add_argument("--fit", nargs=3, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.fit:
        fit_ours(*args.fit)
        return
    commands = {"ntfa": [sys.executable, __file__, "--fit"]}
    if "BrainIAK" in args.packages:
        commands["BrainIAK"] = [peer_python(args.peer_env), str(PEER_SCRIPT)]
    print(machine(commands))
    rows: list[Row] = []
    for case in (QUICK if args.quick else {name: CASES[name] for name in args.cases}).values():
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data.npz"
            signal = simulate_case(case, args.noise, data)
            rows.append({"study": case.name, **attainable_row(data, signal)})
            for package, model in RUNS:
                if package not in args.packages or model not in args.models:
                    continue
                row = one_run([*commands[package], model], data, signal, args.limit)
                rows.append({"study": case.name, "package": package, "model": model, **row})
                print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows), *ratios(rows), *unfinished(rows), sep="\n")


if __name__ == "__main__":
    main()
