"""What does NTFA find where the data are not as it takes them to be? Simulated studies with one trouble each.

    python benchmarks/robustness.py --studies 20 --n-jobs 16 --out robustness.jsonl   # some 20 s a fit, 19 x 20 of them
    python benchmarks/robustness.py --read robustness.jsonl                           # tables of an earlier run

The studies are those of calibration.py ("as modelled"), with a frame of rest before and after every trial. Trouble is
added to the same truth, the same weights and, where it can be, the same noise: rows differ by the trouble alone.
Rows with a remedy have the same trouble, and what can be done about it. Needs numpy, scipy, pandas and torch only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import calibration
import numpy as np
import pandas as pd
import torch
from calibration import N_FRAMES, N_RUNS, differences, intervals, match_factors, run_or_read, share, show, unseen_trials
from scipy.signal import lfilter
from scipy.spatial.distance import pdist

from ntfa import NTFA, Study
from ntfa.simulation.truth import Truth

STRIDE = N_FRAMES + 2
FEW = "sub-01"
"""The participant who loses trials where one does; its twin, sub-02, keeps its own."""
N_SLOW = 2
"""Cosines that a high-pass filter takes out of a run, the fastest with one period: none slower would hold the drift."""
AUTOCORRELATION = 0.5


@dataclass(frozen=True)
class Scenario:
    """What is wrong with a study, and what is done about it.

    noise : "normal"; "t" with 3 degrees of freedom; "autocorrelated" from frame to frame of a run; "by voxel", of
        log-normal sds; all with the same variance over all voxels, 1
    drift : sd of a line and a cosine of each run and voxel
    spikes : share of frames to which a participant's pattern of movement is added, five times as large as the noise
    misplaced, mislabelled : share of the trials that start a frame early or late; of training trials with a wrong label
    few : whether one participant is left with a tenth of its training trials
    remedy : "high-pass" or "scrub", before the fit; `settings` of the fit
    """

    noise: str = "normal"
    drift: float = 0.0
    spikes: float = 0.0
    misplaced: float = 0.0
    mislabelled: float = 0.0
    few: bool = False
    remedy: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


SCENARIOS = {
    "clean": Scenario(),
    "clean, frames='equal'": Scenario(settings={"frames": "equal"}),
    "heavy tails": Scenario(noise="t"),
    "heavy tails, frames='equal'": Scenario(noise="t", settings={"frames": "equal"}),
    "autocorrelated noise": Scenario(noise="autocorrelated"),
    "noise by voxel": Scenario(noise="by voxel"),
    "noise by voxel, noise='voxel'": Scenario(noise="by voxel", settings={"noise": "voxel"}),
    "clean, noise='voxel'": Scenario(settings={"noise": "voxel"}),
    "drift": Scenario(drift=0.5),
    "drift, high-pass": Scenario(drift=0.5, remedy="high-pass"),
    "large drift": Scenario(drift=1.5),
    "large drift, high-pass": Scenario(drift=1.5, remedy="high-pass"),
    "spikes": Scenario(spikes=0.03),
    "spikes, frames='equal'": Scenario(spikes=0.03, settings={"frames": "equal"}),
    "spikes, scrubbed": Scenario(spikes=0.03, remedy="scrub"),
    "many spikes": Scenario(spikes=0.1),
    "onsets off by a frame": Scenario(misplaced=0.5),
    "wrong labels": Scenario(mislabelled=0.1),
    "one with few trials": Scenario(few=True),
}


# A study with trouble ------------------------------------------------------------------------------------------------


def make_study(scenario: Scenario, seed: int) -> tuple[Study, Study, Truth]:
    """Draw a study as in calibration.py, record it again with trouble, and split it for training and testing."""
    plain, truth = calibration.make_study(calibration.Scenario(), seed)
    trials = _spaced(plain.trials)
    frames, spoiled = {}, {}
    for p, who in enumerate(truth.participants):
        own = trials[trials["participant"] == who]
        rngs = [np.random.default_rng([seed, purpose, p]) for purpose in range(4)]
        signal = _signal(own, truth, rngs[0])
        frames[who] = signal + _noise(scenario, seed, rngs[1], *signal.shape) + _drift(scenario, rngs[2], *signal.shape)
        spoiled[who] = rngs[3].random(len(signal)) < scenario.spikes
        frames[who] += _movement(truth.coordinates, spoiled[who], rngs[3])
    rng = np.random.default_rng([seed, 5])
    trials["unseen"] = unseen_trials(plain)
    trials = _misplaced(trials, scenario.misplaced, rng)
    if scenario.remedy == "high-pass":
        frames = {who: _without_slow(array) for who, array in frames.items()}
    if scenario.remedy == "scrub":
        frames, trials = _scrubbed(frames, trials, spoiled)
    study = Study.from_arrays(
        {who: array.astype(np.float32) for who, array in frames.items()}, trials, plain.coordinates
    )
    train, test = study.split((study.trials["run"] == N_RUNS) | study.trials["unseen"])
    return _mislabelled(_fewer(train, scenario), scenario.mislabelled, rng), test, truth


def _spaced(trials: pd.DataFrame) -> pd.DataFrame:
    """Put a frame of rest before and after every trial."""
    place = trials["start"] // N_FRAMES * STRIDE + 1
    return trials.assign(start=place, stop=place + N_FRAMES)


def _signal(own: pd.DataFrame, truth: Truth, rng: np.random.Generator) -> np.ndarray:
    """Weights times factors of all frames of a participant; weights of rest are zero."""
    mean = np.zeros((len(own) * STRIDE, len(truth.centers)))
    for trial in own.itertuples():
        mean[trial.start : trial.stop] = truth.weights_mean.loc[(trial.participant, trial.stimulus)]
    weights = mean + (mean != 0) * truth.weights_sd * rng.normal(size=mean.shape)
    return weights @ truth.factors(own["participant"].iloc[0]).astype(np.float64)


def _noise(scenario: Scenario, seed: int, rng: np.random.Generator, n_frames: int, n_voxels: int) -> np.ndarray:
    noise = rng.normal(size=(n_frames, n_voxels))
    if scenario.noise == "t":
        return noise / np.sqrt(rng.chisquare(3, size=noise.shape))
    if scenario.noise == "autocorrelated":
        runs = noise.reshape(N_RUNS, -1, n_voxels)
        runs[:, 1:] *= np.sqrt(1 - AUTOCORRELATION**2)
        return lfilter([1.0], [1.0, -AUTOCORRELATION], runs, axis=1).reshape(noise.shape)
    if scenario.noise == "by voxel":
        sds = np.random.default_rng([seed, 6]).lognormal(0, 0.5, n_voxels)
        noise *= sds / np.sqrt((sds**2).mean())
    return noise


def _drift(scenario: Scenario, rng: np.random.Generator, n_frames: int, n_voxels: int) -> np.ndarray:
    """A line and a cosine of one period in each run, of other sizes in every voxel."""
    time = np.linspace(-1, 1, n_frames // N_RUNS)
    shapes = np.stack([time * np.sqrt(3), np.cos(np.pi * time) * np.sqrt(2)], 1)
    sizes = rng.normal(size=(N_RUNS, 2, n_voxels)) * scenario.drift / np.sqrt(2)
    return (shapes @ sizes).reshape(n_frames, n_voxels)


def _movement(coordinates: np.ndarray, spoiled: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A pattern over the whole brain, brighter to one side, in the frames that are spoiled."""
    pattern = coordinates @ rng.normal(size=3) / coordinates.std() + rng.normal()
    pattern *= 5 / np.sqrt((pattern**2).mean())
    return np.outer(spoiled * rng.choice([-1.0, 1.0], len(spoiled)), pattern)


def _misplaced(trials: pd.DataFrame, part: float, rng: np.random.Generator) -> pd.DataFrame:
    shift = (rng.random(len(trials)) < part) * rng.choice([-1, 1], len(trials))
    return trials.assign(start=trials["start"] + shift, stop=trials["stop"] + shift)


def _without_slow(array: np.ndarray) -> np.ndarray:
    """Take a line and slow cosines out of every run, and its mean with them back in."""
    runs = array.reshape(N_RUNS, -1, array.shape[1])
    time = (np.arange(runs.shape[1]) + 0.5) / runs.shape[1]
    slow = np.stack([np.ones_like(time), time, *(np.cos(np.pi * k * time) for k in range(1, N_SLOW + 1))], 1)
    fitted = slow @ (np.linalg.pinv(slow) @ runs)
    return (runs - fitted + runs.mean(1, keepdims=True)).reshape(array.shape)


def _scrubbed(
    frames: dict[str, np.ndarray], trials: pd.DataFrame, spoiled: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    """Leave out the spoiled frames, and trials of which none are left."""
    before = {who: np.concatenate([[0], np.cumsum(~bad)]) for who, bad in spoiled.items()}
    moved = trials.assign(
        **{
            end: [before[who][at] for who, at in zip(trials["participant"], trials[end], strict=True)]
            for end in ("start", "stop")
        }
    )
    return {who: array[~spoiled[who]] for who, array in frames.items()}, moved[moved["stop"] > moved["start"]]


def _fewer(train: Study, scenario: Scenario) -> Study:
    """Leave the chosen participant a tenth of its trials, the first ones."""
    if not scenario.few:
        return train
    own = np.flatnonzero(train.trials["participant"] == FEW)
    dropped = np.isin(np.arange(train.n_trials), own[max(1, round(len(own) / 10)) :])
    return train.split(dropped)[0]


def _mislabelled(train: Study, part: float, rng: np.random.Generator) -> Study:
    wrong = rng.choice(train.n_trials, round(part * train.n_trials), replace=False)
    labels = train.trials["stimulus"].to_numpy(dtype=object).copy()
    for i in wrong:
        labels[i] = rng.choice([label for label in train.stimuli if label != labels[i]])
    return Study.from_arrays(train.frames, train.trials.assign(stimulus=labels), train.coordinates)


# What a fit says of it -----------------------------------------------------------------------------------------------


def examine(name: str, seed: int) -> dict[str, Any]:
    """Simulate, fit and compare with the truth."""
    torch.set_num_threads(1)
    scenario = SCENARIOS[name]
    train, test, truth = make_study(scenario, seed)
    started = time.perf_counter()
    model = NTFA(calibration.N_FACTORS, device="cpu", random_state=seed, **scenario.settings).fit(train)
    errors = center_errors(model, truth)
    pairs = test.trials[["participant", "stimulus", "unseen"]].drop_duplicates(["participant", "stimulus"])
    return {
        "scenario": name,
        "seed": seed,
        "seconds": time.perf_counter() - started,
        "spoiled": float((model.frames_["weight"] < 1).mean()) if hasattr(model, "frames_") else None,
        "networks": model.response_ == "network",
        "factors_found": len(match_factors(model, truth)),
        "center_error": float(errors.median()),
        "center_error_few": float(errors.get(FEW, pd.Series(dtype=float)).median()),
        "distances": {
            "participants": _agreement(model.participants_, truth.participant_embeddings),
            "stimuli": _agreement(model.stimuli_, truth.stimulus_embeddings),
        },
        "levels": {
            "participants": differences(model.participants_, truth.participant_embeddings),
            "stimuli": differences(model.stimuli_, truth.stimulus_embeddings),
        },
        "intervals": intervals(model, truth, test, test.trials["unseen"]),
        "misfit": {
            "seen": _misfit(model, truth, pairs[~pairs["unseen"]]),
            "unseen": _misfit(model, truth, pairs[pairs["unseen"]]),
            "few": _misfit(model, truth, pairs[pairs["participant"] == FEW]),
            "average": _misfit_of_average(train, truth, pairs[~pairs["unseen"]]),
        },
    }


def center_errors(model: NTFA, truth: Truth) -> pd.Series:
    """How far the centres of factors that were found lie from the true ones, in mm, by participant and factor."""
    matched = match_factors(model, truth)
    table = model.factors_.set_index("participant")
    errors = {}
    for p, who in enumerate(truth.participants):
        own = table.loc[who, ["x", "y", "z"]].to_numpy(dtype=float)
        for i, j in matched.items():
            errors[who, j] = float(np.linalg.norm(own[i] - truth.participant_centers[p, j]))
    return pd.Series(errors)


def _agreement(table: pd.DataFrame, truth: pd.DataFrame) -> float:
    """Correlation of the distances between embeddings with the true ones."""
    # As many dimensions as were chosen, which with individual loadings need not be those of the truth.
    own = pdist(table[[name for name in table if name[0] == "z" and name[1:].isdigit()]].to_numpy())
    return float(np.corrcoef(own, pdist(truth.loc[table.index].to_numpy()))[0, 1])


def _misfit(model: NTFA, truth: Truth, pairs: pd.DataFrame) -> float:
    """Squared error of predicted mean images, 1 being that of predicting zero."""
    true = np.stack([truth.mean_image(pair.participant, pair.stimulus) for pair in pairs.itertuples()])
    return float(((model.predict(pairs) - true) ** 2).sum() / (true**2).sum())


def _misfit_of_average(train: Study, truth: Truth, pairs: pd.DataFrame) -> float:
    """As `_misfit`, of the average of a pair's training trials as they are labelled; zero where there is none."""
    keys = pd.MultiIndex.from_frame(train.trials[["participant", "stimulus"]])
    averages = pd.DataFrame(train.mean_images(), index=keys).groupby(level=[0, 1]).mean()
    wanted = pd.MultiIndex.from_frame(pairs[["participant", "stimulus"]])
    true = np.stack([truth.mean_image(*pair) for pair in wanted])
    return float(((averages.reindex(wanted).fillna(0.0).to_numpy() - true) ** 2).sum() / (true**2).sum())


# Tables --------------------------------------------------------------------------------------------------------------


def recovery(found: list[dict[str, Any]]) -> pd.DataFrame:
    """What was recovered, means over studies."""
    rows = []
    for name, own in _by_scenario(found):
        rows.append(
            {
                "scenario": name,
                "studies": len(own),
                "spoiled": "" if own[0]["spoiled"] is None else f"{np.mean([one['spoiled'] for one in own]):.1%}",
                "networks": str(sum(one["networks"] for one in own)),
                "factors found": f"{np.mean([one['factors_found'] for one in own]):.2f}",
                "centres, mm": f"{np.nanmean([one['center_error'] for one in own]):.2f}",
                "participants' distances": f"{np.mean([one['distances']['participants'] for one in own]):.3f}",
                "stimuli's distances": f"{np.mean([one['distances']['stimuli'] for one in own]):.3f}",
                "error, seen": _mean_misfit(own, "seen"),
                "error, unseen": _mean_misfit(own, "unseen"),
                "error of averages, seen": _mean_misfit(own, "average"),
            }
        )
    return pd.DataFrame(rows)


def trust(found: list[dict[str, Any]], level: float = 0.95) -> pd.DataFrame:
    """Whether what is said of uncertainty holds: identical ones that differ, different ones that do, intervals."""
    rows = []
    for name, own in _by_scenario(found):
        row: dict[str, Any] = {"scenario": name}
        for kind in ("participants", "stimuli"):
            pairs = np.array([pair for one in own for pair in one["levels"][kind]])
            same = pairs[pairs[:, 0] < 1e-9, 1] >= level
            apart = pairs[(pairs[:, 0] > 0.8) & (pairs[:, 0] <= 1.2), 1] >= level
            row[f"identical {kind} differ"] = share(int(same.sum()), len(same))
            row[f"{kind} 0.8-1.2 apart differ"] = f"{apart.mean():.2f} ({len(apart)})" if len(apart) else ""
        for kind in ("centres", "weights, seen", "weights, unseen"):
            held, total = np.sum([one["intervals"][kind] for one in own], axis=0)
            row[kind] = f"{held / max(total, 1):.3f}"
        rows.append(row)
    return pd.DataFrame(rows)


def of_the_few(found: list[dict[str, Any]]) -> pd.DataFrame:
    """How one participant fares, who has a tenth of the trials in one of the scenarios."""
    rows = []
    for name, own in _by_scenario(found):
        if name in ("clean", "one with few trials"):
            first = [one["levels"]["participants"][0][1] for one in own]
            row = {"scenario": name, "centres, mm": f"{np.nanmean([one['center_error_few'] for one in own]):.2f}"}
            row["error of held-out pairs"] = _mean_misfit(own, "few")
            row["differs from its twin"] = share(sum(x >= 0.95 for x in first), len(first))
            rows.append(row)
    return pd.DataFrame(rows)


def _by_scenario(found: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    by_name = {name: [one for one in found if one["scenario"] == name] for name in SCENARIOS}
    return [(name, own) for name, own in by_name.items() if own]


def _mean_misfit(own: list[dict[str, Any]], kind: str) -> str:
    return f"{np.mean([one['misfit'][kind] for one in own]):.3f}"


def main() -> None:
    """Run, or read an earlier run, and print tables."""
    found = run_or_read(__doc__ or "", list(SCENARIOS), examine)
    print(f"{len(found)} fits, {np.mean([one['seconds'] for one in found]):.1f} s each\n")
    for table in (recovery(found), trust(found), of_the_few(found)):
        show(table)


if __name__ == "__main__":
    main()
