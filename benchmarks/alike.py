"""Identical people, or identical stimuli, through the whole path: runs, rest, z-scoring, fit, calibrated differences.

    python benchmarks/alike.py [--studies 12] [--n-factors 3,20,90] [--alike participants|stimuli] [--response auto]
        [--oracle]

Simulated experiments with three true factors, 9 people and 8 stimuli, whose scanner has smooth and autocorrelated
noise, a drift, and a baseline that is known from the rest frames of each run alone; every run is z-scored against
those. Either all people are identical or all stimuli are. Counted is how often two that are identical are said to
differ (at 95%: 0.05 is right; at 99%: 0.01), and how often two that differ are. About 5 s per study and K.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import bare  # noqa: F401
import numpy as np
import pandas as pd
import torch
from scipy.stats import chi2

from ntfa import NTFA, Study, differences
from ntfa.study.cutting import Preparation, standardise
from ntfa.study.rest import with_rest

N_PARTICIPANTS, N_STIMULI, N_TRUE, N_FRAMES = 9, 8, 3, 4
SMOOTH, MM_OF_NOISE, AUTOCORRELATION = 0.5, 12.0, 0.4


@dataclass(frozen=True)
class Design:
    """Runs per person, rest frames per run, how often a stimulus is shown in a run, drift, and what to z-score by."""

    n_runs: int
    n_rest: int
    n_shown: int = 1
    drift: float = 0.0
    standardize: str = "rest"


DESIGNS = {
    "one run, 12 rest frames": Design(1, 12, 2),
    "one run, 40 rest frames": Design(1, 40, 2),
    "two runs, 20 rest frames each": Design(2, 20),
    "four runs, 20 rest frames each": Design(4, 20),
    "four runs with drift": Design(4, 20, drift=0.3),
    "two runs, z-scored over the run": Design(2, 20, standardize="run"),
}


def make_study(design: Design, alike: str, seed: int) -> Study:
    """Simulate an experiment and prepare it as `ntfa bids` does."""
    return make_experiment(design, alike, seed)[0]


def make_experiment(design: Design, alike: str, seed: int) -> tuple[Study, np.ndarray]:
    """Simulate and prepare an experiment; return its true factors too."""
    rng = np.random.default_rng([seed, 11])
    coordinates = _ball()
    sources = coordinates[rng.choice(len(coordinates), 300)]
    smooth = _blobs(coordinates, sources, np.full(300, MM_OF_NOISE))
    smooth *= SMOOTH / np.sqrt((smooth**2).sum(0).mean())
    centers = 0.7 * coordinates[rng.choice(len(coordinates), N_TRUE, replace=False)]
    factors = _blobs(coordinates, centers, rng.uniform(12, 18, N_TRUE))
    responses = _responses(rng, alike)
    how = Preparation(standardize=design.standardize, min_rest_frames=2)
    frames, tables = {}, []
    for p in range(N_PARTICIPANTS):
        who, parts, rows, rest = f"sub-{p + 1:02d}", [], [], None
        for run in range(design.n_runs):
            shown = _order(design, rng)
            mean = np.where(shown[:, None] < 0, 0.0, responses[p, shown])
            weights = mean + 0.3 * rng.normal(size=mean.shape)
            recorded = 1000 + 10 * (weights @ factors + _noise(len(shown), smooth, design.drift, rng))
            scored = standardise(recorded.astype(np.float32), np.flatnonzero(shown < 0), how, who)
            start = sum(map(len, parts))
            parts.append(scored[shown >= 0])
            rest = scored[shown < 0]
            rows += [(who, f"s{s}", f"run-{run + 1}", *span) for s, span in _trials(shown[shown >= 0], start)]
        table = pd.DataFrame(rows, columns=["participant", "stimulus", "run", "start", "stop"])
        frames[who] = np.concatenate(parts)
        if design.n_runs == 1 and design.standardize == "rest" and rest is not None:
            frames[who], table = with_rest(frames[who], table, rest)
        tables.append(table)
    return Study.from_arrays(frames, pd.concat(tables, ignore_index=True), coordinates), factors


def oracle(design: Design, alike: str, n_studies: int) -> float:
    """Share of pairs that differ at 95% to one who knows the true factors and the covariance of the noise.

    Weights of the true factors are averaged over all frames of a person, or of a stimulus; the covariance of
    differences between such averages comes from studies in which all of these are identical.
    """
    differ = "stimuli" if alike == "participants" else "participants"
    kind = differ.removesuffix("s").replace("stimuli", "stimulus")
    null = np.concatenate([_apart(design, differ, kind, 1000 + seed) for seed in range(n_studies)])
    precision = np.linalg.inv(null.T @ null / len(null))
    apart = np.concatenate([_apart(design, alike, kind, seed) for seed in range(n_studies)])
    squared = np.einsum("ni,ij,nj->n", apart, precision, apart)
    return float((squared > chi2.ppf(0.95, N_TRUE)).mean())


def _apart(design: Design, alike: str, kind: str, seed: int) -> np.ndarray:
    """Differences of mean weights of the true factors between all pairs of people or stimuli, [pairs, K]."""
    study, factors = make_experiment(design, alike, seed)
    images = study.mean_images().astype(np.float64)
    weights = np.linalg.lstsq(factors.T, images.T, rcond=None)[0].T
    means = pd.DataFrame(weights).groupby(study.trials[kind].to_numpy()).mean().to_numpy()
    first, second = np.triu_indices(len(means), 1)
    return means[first] - means[second]


def _ball(n_side: int = 11, step: float = 8.0) -> np.ndarray:
    axis = (np.arange(n_side) - n_side // 2) * step
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    return grid[(grid**2).sum(1) <= (n_side / 2 * step) ** 2]


def _blobs(coordinates: np.ndarray, centers: np.ndarray, widths: np.ndarray) -> np.ndarray:
    return np.exp(-((coordinates - centers[:, None]) ** 2).sum(-1) / widths[:, None] ** 2)


def _responses(rng: np.random.Generator, alike: str) -> np.ndarray:
    """Mean weights of every person and stimulus, [P, S, K]: main effects, and an interaction half as large."""
    people, stimuli = rng.normal(size=(N_PARTICIPANTS, 1, N_TRUE)), rng.normal(size=(1, N_STIMULI, N_TRUE))
    both = 0.5 * rng.normal(size=(N_PARTICIPANTS, N_STIMULI, N_TRUE))
    mean = 0.5 * rng.normal(size=N_TRUE)
    differ = {"participants": stimuli, "stimuli": people, "none": people + stimuli + both}[alike]
    return np.broadcast_to(mean + differ, both.shape)


def _order(design: Design, rng: np.random.Generator) -> np.ndarray:
    """What is shown in each frame of a run, -1 for rest, which lies between blocks."""
    order = np.concatenate([rng.permutation(N_STIMULI) for _ in range(design.n_shown)])
    rest = np.diff(np.round(np.linspace(0, design.n_rest, len(order) + 2)).astype(int))
    blocks = [np.r_[np.full(r, -1), np.full(N_FRAMES, s)] for r, s in zip(rest, order, strict=False)]
    return np.concatenate([*blocks, np.full(rest[-1], -1)])


def _trials(shown: np.ndarray, start: int) -> Iterator[tuple[int, tuple[int, int]]]:
    for i in range(0, len(shown), N_FRAMES):
        yield int(shown[i]), (start + i, start + i + N_FRAMES)


def _noise(n: int, smooth: np.ndarray, drift: float, rng: np.random.Generator) -> np.ndarray:
    noise = rng.normal(size=(n, smooth.shape[1])) + rng.normal(size=(n, len(smooth))) @ smooth
    for t in range(1, n):
        noise[t] = AUTOCORRELATION * noise[t - 1] + np.sqrt(1 - AUTOCORRELATION**2) * noise[t]
    time = np.linspace(-1, 1, n)[:, None]
    maps = rng.normal(size=(2, len(smooth))) @ smooth / SMOOTH
    return noise + drift * (time * maps[0] + np.cos(np.pi * time) * maps[1])


def count(job: tuple[str, str, int, int, str]) -> dict[str, object]:
    """Fit one study and count the pairs that differ."""
    name, alike, n_factors, seed, response = job
    torch.set_num_threads(1)
    model = NTFA(n_factors, random_state=seed, response=response).fit(make_study(DESIGNS[name], alike, seed))
    found: dict[str, object] = {"design": name, "K": n_factors, "networks": model.response_ == "network"}
    for kind in ("participants", "stimuli"):
        p = differences(getattr(model, f"{kind}_"))["p"]
        found |= {f"{kind} 95%": (p < 0.05).mean(), f"{kind} 99%": (p < 0.01).mean()}
    return found


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=12)
    parser.add_argument("--n-factors", default="3,20,90")
    parser.add_argument("--alike", choices=("participants", "stimuli"), default="participants")
    parser.add_argument("--response", default="auto")
    parser.add_argument("--designs", nargs="+", default=list(DESIGNS), choices=list(DESIGNS))
    parser.add_argument("--oracle", action="store_true", help="also say what could be found at best")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    jobs = [
        (name, options.alike, int(k), seed, options.response)
        for name in options.designs
        for k in options.n_factors.split(",")
        for seed in range(options.studies)
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        table = pd.DataFrame(pool.map(count, jobs))
    print(f"all {options.alike} alike, {options.studies} studies each: share of pairs that differ")
    if options.oracle:
        for name in options.designs:
            known = oracle(DESIGNS[name], options.alike, options.studies)
            print(f"{name}: of those that differ, {known:.3f} of the pairs do to one who knows factors and noise")
    print(table.groupby(["design", "K"], sort=False).mean(numeric_only=False).astype(float).round(3).to_string())


if __name__ == "__main__":
    main()
