"""Are NTFA's statements about uncertainty right? Simulated studies in which the truth is known.

    python benchmarks/calibration.py --studies 50 --out calibration.jsonl     # about 3 s for each of 6 x 50
    python benchmarks/calibration.py --read calibration.jsonl                 # tables of an earlier run

In every study participants come in pairs, and so do stimuli. Of most pairs of participants, and of all of stimuli, both
are identical in truth: same embedding, same factors, only noise differs. Counted is how often they are said to differ
at a level of 95%; how often others are, by their true distance; and how often 95% intervals hold the truth.
Needs numpy, scipy, pandas and torch only.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import bare  # noqa: F401
import numpy as np
import pandas as pd
import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import betaincinv

from ntfa import NTFA, Study
from ntfa.fitting.arrange import arrange
from ntfa.simulation.design import make_design
from ntfa.simulation.simulator import Simulator
from ntfa.simulation.truth import Truth, labelled
from ntfa.uncertainty.curvature import laplace
from ntfa.uncertainty.differences import difference_matrix

WAYS = ("mean-field", "laplace", "calibrated")
N_FACTORS, N_RUNS, N_FRAMES = 5, 4, 4
DISTANCES = (0.0, 0.0, 0.0, 0.0, 0.3, 0.6)
BINS = (0.0, 0.2, 0.4, 0.8, 1.2, 2.0, 10.0)
SPREAD_OF_SMOOTH_NOISE = 12.0


@dataclass(frozen=True)
class Scenario:
    """What studies are like.

    signal : size of the mean weights, whose frame-to-frame sd is 0.3; a voxel's noise has sd 1
    alike : whether all participants are identical
    trial_sd : sd of what the weights of a trial's frames have in common, which the model does not know of
    smooth : sd of a part of the noise that neighbouring voxels share, which the model does not know of
    """

    signal: float = 1.0
    n_participants: int = 12
    n_stimuli: int = 6
    alike: bool = False
    trial_sd: float = 0.0
    smooth: float = 0.0


SCENARIOS = {
    "as modelled": Scenario(),
    "weak signal": Scenario(signal=0.3),
    "all participants alike": Scenario(alike=True),
    "few": Scenario(n_participants=8, n_stimuli=4),
    "trial effects": Scenario(trial_sd=0.3),
    "smooth noise": Scenario(smooth=0.5),
}


# A study -------------------------------------------------------------------------------------------------------------


def make_study(scenario: Scenario, seed: int) -> tuple[Study, Truth]:
    """Draw embeddings in pairs, factors and weights as smooth functions of them, and frames."""
    rng = np.random.default_rng([seed, 7])
    coordinates = _ball()
    z_p, z_s = _pairs_of_participants(rng, scenario), rng.normal(size=(scenario.n_stimuli // 2, 2)).repeat(2, axis=0)
    centers = _scattered(rng, N_FACTORS)
    log_widths = np.log(rng.uniform(12, 18, N_FACTORS) ** 2)
    shifts = 10 * np.tanh(z_p @ rng.normal(size=(2, 3 * N_FACTORS)) * 0.2).reshape(len(z_p), N_FACTORS, 3)
    participants = [f"sub-{i + 1:02d}" for i in range(len(z_p))]
    stimuli = [f"stim-{i + 1:02d}" for i in range(len(z_s))]
    cells = pd.MultiIndex.from_product([participants, stimuli], names=["participant", "stimulus"])
    groups = pd.Series([str(i // 2) for i in range(len(z_p))], index=participants)
    categories = pd.Series([str(i // 2) for i in range(len(z_s))], index=stimuli)
    truth = Truth(
        coordinates=coordinates,
        participant_groups=groups,
        stimulus_categories=categories,
        participant_embeddings=labelled(participants, list(z_p), "participant"),
        stimulus_embeddings=labelled(stimuli, list(z_s), "stimulus"),
        centers=centers,
        log_widths=log_widths,
        participant_centers=centers + shifts,
        participant_log_widths=log_widths + 0.1 * z_p @ rng.normal(size=(2, N_FACTORS)),
        weights_mean=pd.DataFrame(scenario.signal * _responses(rng, z_p, z_s), index=cells),
        weights_sd=np.full(N_FACTORS, 0.3),
        noise=1.0,
    )
    orders = {who: [list(rng.permutation(stimuli)) for _ in range(N_RUNS)] for who in participants}
    design = make_design(orders, N_FRAMES, lambda n_blocks: 0, groups, categories)
    study = Simulator("synthetic", seed, truth, design.trials, design.run_frames).run().study
    return _with_misfit(study, truth, scenario, rng), truth


def _ball(n_side: int = 11, step: float = 8.0) -> np.ndarray:
    axis = (np.arange(n_side) - n_side // 2) * step
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    return grid[(grid**2).sum(1) <= (n_side / 2 * step) ** 2]


def _scattered(rng: np.random.Generator, count: int, apart: float = 24.0, within: float = 36.0) -> np.ndarray:
    while True:
        places = rng.uniform(-within, within, (count, 3))
        distances = np.linalg.norm(places[:, None] - places, axis=-1) + 1e9 * np.eye(count)
        if distances.min() > apart and np.linalg.norm(places, axis=1).max() < within:
            return places


def _pairs_of_participants(rng: np.random.Generator, scenario: Scenario) -> np.ndarray:
    n_pairs = scenario.n_participants // 2
    middle, angle = rng.normal(size=(n_pairs, 2)), rng.uniform(0, 2 * np.pi, n_pairs)
    half = np.stack([np.cos(angle), np.sin(angle)], 1) * np.resize(DISTANCES, n_pairs)[:, None] / 2
    if scenario.alike:
        middle, half = 0 * middle, 0 * half
    return np.stack([middle + half, middle - half], 1).reshape(-1, 2)


def _responses(rng: np.random.Generator, z_p: np.ndarray, z_s: np.ndarray, n_hidden: int = 16) -> np.ndarray:
    """Mean weights of every cell [P S, K]: a random network of both embeddings."""
    pairs = np.concatenate([np.repeat(z_p, len(z_s), 0), np.tile(z_s, (len(z_p), 1))], 1)
    hidden = np.tanh(pairs @ rng.normal(size=(4, n_hidden)) * 0.8 + 0.5 * rng.normal(size=n_hidden))
    return 0.5 * rng.normal(size=N_FACTORS) + 1.2 * hidden @ rng.normal(size=(n_hidden, N_FACTORS)) / n_hidden**0.5


def _with_misfit(study: Study, truth: Truth, scenario: Scenario, rng: np.random.Generator) -> Study:
    if not scenario.trial_sd and not scenario.smooth:
        return study
    sources = truth.coordinates[rng.choice(len(truth.coordinates), 300)]
    squared = ((truth.coordinates - sources[:, None]) ** 2).sum(-1)
    blobs = np.exp(-squared / SPREAD_OF_SMOOTH_NOISE**2)
    blobs *= scenario.smooth / np.sqrt((blobs**2).sum(0).mean())
    frames = {}
    for who, array in study.frames.items():
        smooth = rng.normal(size=(len(array), len(blobs))) @ blobs if scenario.smooth else 0.0
        frames[who] = array + smooth
        for trial in study.trials[study.trials["participant"] == who].itertuples():
            level = scenario.trial_sd * rng.normal(size=N_FACTORS)
            frames[who][trial.start : trial.stop] += level @ truth.factors(who)
    return Study.from_arrays(frames, study.trials, study.coordinates)


# What a fit says of it -----------------------------------------------------------------------------------------------


def examine(name: str, seed: int) -> dict[str, Any]:
    """Simulate, fit and compare: counts, by way of finding the uncertainty."""
    torch.set_num_threads(1)
    study, truth = make_study(SCENARIOS[name], seed)
    unseen = unseen_trials(study)
    train, test = study.split((study.trials["run"] == N_RUNS) | unseen)
    started = time.perf_counter()
    model = NTFA(N_FACTORS, response="network", device="cpu", random_state=seed).fit(train)
    seconds = time.perf_counter() - started
    found: dict[str, Any] = {"scenario": name, "seed": seed, "seconds": seconds}
    found["seconds_first_fit"] = float(model.history_["seconds"].iloc[-1])
    found["calibration"] = model.calibration_.to_dict("index")
    module, kept = model._fitted.module, {}
    for key, tensor in module.uncertainty.state_dict().items():
        kept[key] = tensor.clone()
    for way in WAYS:
        _set_way(model, train, way, kept)
        found[way] = {
            "participants": differences(model.participants_, truth.participant_embeddings),
            "stimuli": differences(model.stimuli_, truth.stimulus_embeddings),
            "intervals": intervals(model, truth, test, unseen),
        }
    return found


def unseen_trials(study: Study) -> pd.Series:
    """Trials of one stimulus of every participant, which no training trial shows."""
    participant = study.trials["participant"].map({who: i for i, who in enumerate(study.participants)})
    stimulus = study.trials["stimulus"].map({what: i for i, what in enumerate(study.stimuli)})
    return participant % len(study.stimuli) == stimulus


def _set_way(model: NTFA, train: Study, way: str, calibrated: dict[str, torch.Tensor]) -> None:
    """Hang the uncertainty found in one way on a fit whose means are the same in all."""
    fitted = model._fitted
    own = fitted.module.uncertainty
    own.load_state_dict(calibrated if way == "calibrated" else {k: torch.zeros_like(v) for k, v in calibrated.items()})
    if way == "laplace":
        frames = arrange(train, fitted.layout, fitted.labels, torch.device("cpu"), fitted.units).frames
        own.remember(laplace(fitted.module, frames.cells, frames.coordinates, frames.weights))
    model._set_fitted_attributes(fitted)


def differences(table: pd.DataFrame, truth: pd.DataFrame) -> list[tuple[float, float]]:
    """(true distance, level) of all pairs."""
    levels = difference_matrix(table).to_numpy()
    z = truth.loc[table.index].to_numpy()
    one, other = np.triu_indices(len(z), 1)
    return list(zip(np.linalg.norm(z[one] - z[other], axis=1).tolist(), levels[one, other].tolist(), strict=True))


def intervals(model: NTFA, truth: Truth, test: Study, unseen: pd.Series) -> dict[str, tuple[int, int]]:
    """(held, all) of 95% intervals."""
    matched = match_factors(model, truth)
    counts: dict[str, tuple[int, int]] = {"centres": _centres(model, truth, matched)}
    is_unseen = unseen.loc[test.trials.index].to_numpy()
    for which, rows in (("seen", ~is_unseen), ("unseen", is_unseen)):
        pairs = test.trials[["participant", "stimulus"]][rows].drop_duplicates()
        mean, sd = model.predict_weights(pairs, return_sd=True)
        own, true = list(matched), truth.weights_mean.loc[mean.index].to_numpy()[:, list(matched.values())]
        inside = np.abs(mean.to_numpy()[:, own] - true) <= 1.96 * sd.to_numpy()[:, own]
        counts[f"weights, {which}"] = (int(inside.sum()), inside.size)
        trials = test.trials[rows]
        images, sds = model.predict(trials, return_sd=True, n_frames=N_FRAMES)
        inside = np.abs(test.mean_images()[rows] - images) <= 1.96 * sds
        counts[f"voxels, {which}"] = (int(inside.sum()), inside.size)
    return counts


def match_factors(model: NTFA, truth: Truth, nearest: float = 10.0) -> dict[int, int]:
    """Which true factor each fitted one is, by places averaged over participants; far ones are left out."""
    fitted = model.factors_.groupby("factor")[["x", "y", "z"]].mean().to_numpy()
    distances = np.linalg.norm(fitted[:, None] - truth.participant_centers.mean(0), axis=-1)
    rows, columns = linear_sum_assignment(distances)
    return {int(i): int(j) for i, j in zip(rows, columns, strict=True) if distances[i, j] < nearest}


def _centres(model: NTFA, truth: Truth, matched: dict[int, int]) -> tuple[int, int]:
    inside = []
    for p, who in enumerate(truth.participants):
        own = model.factors_[model.factors_["participant"] == who].reset_index(drop=True)
        for i, j in matched.items():
            error = own.loc[i, ["x", "y", "z"]].to_numpy(dtype=float) - truth.participant_centers[p, j]
            inside += (np.abs(error) <= 1.96 * own.loc[i, ["x_sd", "y_sd", "z_sd"]].to_numpy(dtype=float)).tolist()
    return int(sum(inside)), len(inside)


# Tables --------------------------------------------------------------------------------------------------------------


def false_positives(found: list[dict[str, Any]], level: float = 0.95) -> pd.DataFrame:
    """How often identical ones are said to differ, with a 95% interval (Jeffreys')."""
    rows = []
    for name in dict.fromkeys(one["scenario"] for one in found):
        of_name = [one for one in found if one["scenario"] == name]
        for kind in ("participants", "stimuli"):
            row = {"scenario": name, "studies": len(of_name), "of": kind}
            for way in WAYS:
                same = [x for one in of_name for distance, x in one[way][kind] if distance < 1e-9]
                row["pairs"] = len(same)
                row[way] = share(sum(x >= level for x in same), len(same))
            rows.append(row)
    return pd.DataFrame(rows)


def power(found: list[dict[str, Any]], level: float = 0.95) -> pd.DataFrame:
    """How often others are said to differ, calibrated, by true distance."""
    rows = []
    for name in dict.fromkeys(one["scenario"] for one in found):
        of_name = [one for one in found if one["scenario"] == name]
        for kind in ("participants", "stimuli"):
            pairs = np.array([pair for one in of_name for pair in one["calibrated"][kind]])
            row = {"scenario": name, "of": kind}
            for low, high in pairwise(BINS):
                own = pairs[(pairs[:, 0] > max(low, 1e-9)) & (pairs[:, 0] <= high)]
                row[f"{low}-{high}"] = f"{(own[:, 1] >= level).mean():.2f} ({len(own)})" if len(own) else ""
            rows.append(row)
    return pd.DataFrame(rows)


def coverage(found: list[dict[str, Any]]) -> pd.DataFrame:
    """How often 95% intervals hold the truth."""
    rows = []
    for name in dict.fromkeys(one["scenario"] for one in found):
        of_name = [one for one in found if one["scenario"] == name]
        for way in WAYS:
            row = {"scenario": name, "uncertainty": way}
            for kind in of_name[0][way]["intervals"]:
                held, total = np.sum([one[way]["intervals"][kind] for one in of_name], axis=0)
                row[kind] = f"{held / max(total, 1):.3f}"
            rows.append(row)
    return pd.DataFrame(rows)


def share(count: int, total: int) -> str:
    """Write a share with its 95% interval (Jeffreys')."""
    if not total:
        return ""
    low = betaincinv(count + 0.5, total - count + 0.5, 0.025) if count else 0.0
    high = betaincinv(count + 0.5, total - count + 0.5, 0.975) if count < total else 1.0
    return f"{count / total:.3f} ({low:.3f}-{high:.3f})"


def show(table: pd.DataFrame) -> None:
    """Print a table as Markdown."""
    print("| " + " | ".join(map(str, table.columns)) + " |")
    print("|" + "---|" * len(table.columns))
    for row in table.itertuples(index=False):
        print("| " + " | ".join(map(str, row)) + " |")
    print(flush=True)


def main() -> None:
    """Run, or read an earlier run, and print tables."""
    found = run_or_read(__doc__ or "", list(SCENARIOS), examine)
    seconds = [one["seconds"] for one in found]
    first = [one["seconds_first_fit"] for one in found]
    print(f"{len(found)} studies; a fit takes {np.mean(first):.1f} s, with its uncertainty {np.mean(seconds):.1f} s\n")
    for table in (false_positives(found), power(found), coverage(found)):
        show(table)


def run_or_read(
    description: str, scenarios: list[str], examine_one: Callable[[str, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Do what the command line asks for: examine studies, or read what was found in some before."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=10, help="studies of each scenario")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--scenarios", nargs="+", default=scenarios, choices=scenarios)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for what was found, a line of JSON a study")
    parser.add_argument("--read", type=Path, nargs="+", help="files of earlier runs")
    args = parser.parse_args()
    return [json.loads(line) for path in args.read for line in path.open()] if args.read else _run(args, examine_one)


def _run(args: argparse.Namespace, examine_one: Callable[[str, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Examine all studies, seeds first so that an interrupted run has some of everything."""
    tasks = [(name, seed) for seed in range(args.first_seed, args.first_seed + args.studies) for name in args.scenarios]
    found = []
    with ProcessPoolExecutor(args.n_jobs) as pool, (args.out or Path(os.devnull)).open("w") as out:
        for one in pool.map(examine_one, *zip(*tasks, strict=True)):
            found.append(one)
            out.write(json.dumps(one) + "\n")
            out.flush()
    return found


if __name__ == "__main__":
    main()
