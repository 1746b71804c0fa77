"""People, and stimuli, left out of a study and added: where they come to lie, and how well they are predicted.

    python benchmarks/adding.py [--studies 12] [--n-jobs 16] [--kinds woo-like mdtb-like synthetic] [--data DATA_DIR]
    python benchmarks/adding.py --newcomers 1000 [--device cuda]                   how long a thousand newcomers take

Four people (or four stimuli) and a few of their pairs are left out; a model is fitted without them, they are added, and
another model is fitted with them in. Places of the first are brought into the space of the second by who is in both
fits: shifted, turned and scaled by one factor, all by least squares. Counted are

    same      places when added that lie in the 95% ellipse of the place when fitted in, from the same trials; beside
              it the same of those who were in both fits, and so were never added
    own       places when fitted in that lie in the 95% ellipse of the place when added
    apart     places when added by half of the runs whose difference from the place when fitted in by the other half
              lies in the 95% ellipse of both covariances: 0.95 is right
    shift     root mean square distance from added to fitted in, over the spread of those who were never left out
    outside   share of those added that are said to be outside of what the model has seen, wrongly
    error     squared error of predictions of unseen pairs, over that of predicting zero, less that when fitted in

DATA_DIR holds `mdtb_cerebellum`, or `mdtb.npz` as `benchmarks/unseen.py --prepare` writes it: four groups of four
people are left out in turn.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import bare  # noqa: F401
import numpy as np
import pandas as pd
import torch
from scipy.stats import chi2
from unseen import read

from ntfa import NTFA, Study, simulate
from ntfa.uncertainty.moments import moments
from ntfa.uncertainty.newcomers import aligned

N_OUT = 4
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "woo-like": ("woo", {"n_voxels": 1000, "n_participants": 30}, {"n_factors": 20, "response": "loadings"}),
    "mdtb-like": ("mdtb", {"n_voxels": 1000}, {"n_factors": 30, "response": "loadings"}),
    "synthetic": (
        "synthetic",
        {"n_participants": 18, "n_stimuli": 12, "n_frames": 10, "n_voxels": 800, "n_runs": 2},
        {"n_factors": 3, "response": "network", "embedding_dim": 2},
    ),
}


def study_of(kind: str, seed: int, data: Path | None) -> tuple[Study, dict[str, Any]]:
    """Make or read a study, with a column of runs, and the settings that suit it."""
    if kind != "mdtb":
        name, sizes, settings = KINDS[kind]
        study = simulate(name, random_state=seed, **sizes).study
        if "run" not in study.trials:
            repetition = study.trials.groupby(["participant", "stimulus"]).cumcount()
            study = Study(study.coordinates, study.trials.assign(run=repetition % 2), study.frames)
        return study, settings
    maps = read("mdtb", data)
    study = maps.study(np.ones(len(maps.who), dtype=bool))
    half = study.trials.groupby(["participant", "stimulus"]).cumcount()
    return Study(study.coordinates, study.trials.assign(run=half), study.frames), {
        "n_factors": 60,
        "response": "loadings",
    }


def left_out(study: Study, of: str, seed: int, in_turn: bool) -> list[str]:
    """Choose whom to leave out: at random, or the next four."""
    labels = study.participants if of == "participant" else study.stimuli
    if in_turn:
        return [label for i, label in enumerate(labels) if i % (len(labels) // N_OUT) == seed % (len(labels) // N_OUT)]
    return sorted(np.random.default_rng(seed).choice(labels, N_OUT, replace=False).tolist())


def compare(job: tuple[str, str, int, Path | None]) -> dict[str, Any]:
    """Leave out, add, fit in, and compare."""
    kind, of, seed, data = job
    torch.set_num_threads(1)
    study, settings = study_of(kind, seed, data)
    out = left_out(study, of, seed, in_turn=kind == "mdtb")
    is_out = study.trials[of].isin(out)
    unseen = _unseen_pairs(study, of, out)
    train = study.select(trials=~unseen)
    reference = NTFA(random_state=0, **settings).fit(train.select(trials=~train.trials[of].isin(out)))
    choice = reference._choice
    same_size = settings | {"embedding_dim": (choice.participant_dim, choice.stimulus_dim)}
    model = NTFA(random_state=0, **same_size).fit(train)
    started = time.perf_counter()
    added = reference.add(train.select(trials=train.trials[of].isin(out)))
    seconds = time.perf_counter() - started
    found = {"kind": kind, "of": of, "seconds": seconds, **_places(added, model, of, out)}
    found["outside"] = added.newcomers_["outside"].mean()
    pairs = study.trials[unseen & is_out][["participant", "stimulus"]].drop_duplicates()
    found["error"] = _error(added, study, pairs) - _error(model, study, pairs)
    found["error fitted in"] = _error(model, study, pairs)
    return found | _by_halves(reference, same_size, train, of, out)


def _unseen_pairs(study: Study, of: str, out: list[str]) -> pd.Series:
    """One pair in four of those left out is never seen; and of the others as many as the diagonal has."""
    other = "stimulus" if of == "participant" else "participant"
    number = {label: i for i, label in enumerate(sorted(study.trials[other].unique()))}
    place = {label: i for i, label in enumerate(sorted(study.trials[of].unique()))}
    turn = study.trials[other].map(number) + study.trials[of].map(place)
    return turn % 4 == 0


def _table(model: NTFA, of: str) -> pd.DataFrame:
    return model.participants_ if of == "participant" else model.stimuli_


def _places(added: NTFA, model: NTFA, of: str, out: list[str]) -> dict[str, float]:
    ours, theirs = _table(added, of), _table(model, of)
    both = [label for label in ours.index if label not in out]
    (one, _), (other, _) = moments(ours.loc[both]), moments(theirs.loc[both])
    goal, covariances = moments(theirs.loc[out])
    apart = aligned(one, other, moments(ours.loc[out])[0]) - goal
    still = aligned(one, other, one) - other
    spread = np.sqrt((other - other.mean(0)).var(0).sum())
    own_covariances = moments(ours.loc[out])[1]
    turn = aligned(one, other, np.eye(one.shape[1])) - aligned(one, other, np.zeros((1, one.shape[1])))
    return {
        "same": _inside(apart, covariances),
        "same, others": _inside(still, moments(theirs.loc[both])[1]),
        "own": _inside(apart, np.einsum("di,ndf,fj->nij", turn, own_covariances, turn)),
        "shift": np.sqrt((apart**2).sum(1).mean()) / spread,
        "of others": np.sqrt((still**2).sum(1).mean()) / spread,
    }


def _by_halves(reference: NTFA, settings: dict[str, Any], train: Study, of: str, out: list[str]) -> dict[str, float]:
    """Compare newcomers by one half of their runs with a fit in which they have the other half."""
    is_out, late = train.trials[of].isin(out), train.trials["run"].map(_halves_of_runs(train)) == 1
    added = reference.add(train.select(trials=is_out & ~late))
    model = NTFA(random_state=0, **settings).fit(train.select(trials=~is_out | late))
    ours, theirs = _table(added, of), _table(model, of)
    both = [label for label in ours.index if label not in out]
    one, other = moments(ours.loc[both])[0], moments(theirs.loc[both])[0]
    place, own = moments(ours.loc[out])
    goal, covariances = moments(theirs.loc[out])
    turn = aligned(one, other, np.eye(one.shape[1])) - aligned(one, other, np.zeros((1, one.shape[1])))
    both_covariances = covariances + np.einsum("di,ndf,fj->nij", turn, own, turn)
    return {"apart": _inside(aligned(one, other, place) - goal, both_covariances)}


def _halves_of_runs(study: Study) -> dict[Any, int]:
    return {run: i % 2 for i, run in enumerate(sorted(study.trials["run"].unique()))}


def _inside(apart: np.ndarray, covariances: np.ndarray) -> float:
    squared = (apart * np.linalg.solve(covariances, apart[..., None])[..., 0]).sum(-1)
    return float((squared < chi2.ppf(0.95, apart.shape[1])).mean())


def _error(model: NTFA, study: Study, pairs: pd.DataFrame) -> float:
    """Squared error of predicted mean images over that of zero."""
    predicted = model.predict(pairs)
    errors, zero = 0.0, 0.0
    for image, (participant, stimulus) in zip(predicted, pairs.itertuples(index=False), strict=True):
        own = study.trials[(study.trials["participant"] == participant) & (study.trials["stimulus"] == stimulus)]
        rows = np.concatenate([np.arange(a, b) for a, b in own[["start", "stop"]].to_numpy()])
        mean = study.frames[participant][rows].mean(0)
        errors, zero = errors + ((mean - image) ** 2).sum(), zero + (mean**2).sum()
    return errors / zero


def time_newcomers(n_newcomers: int, device: str) -> None:
    """Add many newcomers at once, to a model of each kind."""
    for kind, sizes in (
        ("mdtb-like", {"n_participants": 16, "n_stimuli": 29, "n_voxels": 5000}),
        ("synthetic", {"n_participants": 18, "n_stimuli": 12, "n_frames": 10, "n_voxels": 5000}),
    ):
        name, _, settings = KINDS[kind]
        settings = settings | {"device": device, "random_state": 0} | ({"n_factors": 100} if name == "mdtb" else {})
        study = simulate(name, random_state=0, **sizes).study
        model = NTFA(**settings, max_epochs=300).fit(study)
        rng = np.random.default_rng(0)
        frames, tables = {}, []
        for i in range(n_newcomers):
            source = study.participants[i % len(study.participants)]
            own, label = study.frames[source], f"new-{i:05d}"
            frames[label] = (own + rng.normal(size=own.shape) * 0.1).astype(np.float32)
            tables.append(study.trials[study.trials["participant"] == source].assign(participant=label))
        many = Study(study.coordinates, pd.concat(tables, ignore_index=True), frames)
        started = time.perf_counter()
        added = model.add(many)
        if added.participants_.isna().to_numpy().any():
            raise SystemExit("a place is missing")
        print(
            f"{kind} ({model.response_}, {device}): {n_newcomers} newcomers, {many.n_data:,} values, "
            f"K = {settings['n_factors']}: {time.perf_counter() - started:.1f} s"
        )


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=12)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=[*KINDS, "mdtb"])
    parser.add_argument("--of", nargs="+", default=["participant", "stimulus"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--n-jobs", type=int, default=os.cpu_count())
    parser.add_argument("--newcomers", type=int, default=0, help="time adding so many instead")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.newcomers:
        time_newcomers(options.newcomers, options.device)
        return
    kinds = [*options.kinds, *(["mdtb"] if options.data is not None and "mdtb" not in options.kinds else [])]
    jobs = [
        (kind, of, seed, options.data)
        for kind in kinds
        for of in options.of
        for seed in range(min(options.studies, 4) if kind == "mdtb" else options.studies)
        if not (kind == "woo-like" and of == "stimulus")
    ]
    with ProcessPoolExecutor(options.n_jobs) as pool:
        table = pd.DataFrame(pool.map(compare, jobs))
    shown = table.groupby(["kind", "of"], sort=False).agg("mean")
    shown.insert(0, "added", N_OUT * table.groupby(["kind", "of"], sort=False).size())
    print(shown.round(3).to_string())


if __name__ == "__main__":
    main()
