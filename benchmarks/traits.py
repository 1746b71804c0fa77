"""Do embeddings go with a column? False positives, power and intervals of `ntfa.test`, where the truth is known.

    python benchmarks/traits.py [--studies 2000] [--fits 200] [--n-jobs 16]

1.  Embeddings drawn at random, with noise: groups of unequal size and spread, confounded designs, heteroscedastic and
    skewed traits, families. How often the tests reject at 5% where there is nothing (0.05 is right), beside PERMANOVA
    as in textbooks; how often where there is something, beside the same test on embeddings without noise; how often
    the interval of R^2 covers that of embeddings without noise (0.95 is right). About 0.1 s per study and design.
2.  Through fits: simulated experiments, NTFA, calibration, test. About 5 s per study.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import bare  # noqa: F401
import numpy as np
import pandas as pd
import torch

import ntfa
from ntfa import NTFA, Study
from ntfa.analyses.permutations import Design, indicators, permuted_orders

N_PERMUTATIONS, NOISE = 499, 0.5
N_PEOPLE, N_STIMULI, N_FACTORS, N_FRAMES, N_SHOWN = 24, 6, 4, 4, 4


@dataclass(frozen=True)
class Sampled:
    """Embeddings without noise [n, D], and a table with `column`, `confound` and `family` where the design has them."""

    truth: np.ndarray
    table: pd.DataFrame


def groups(
    sizes: tuple[int, ...], sds: tuple[float, ...], dim: int = 2, one_axis: bool = False
) -> Callable[[np.random.Generator, float], Sampled]:
    """Groups with these sizes and spreads; the first one moves along the first axis by `effect` of its spread."""

    def draw(rng: np.random.Generator, effect: float) -> Sampled:
        codes = np.repeat(np.arange(len(sizes)), sizes)
        points = rng.normal(size=(len(codes), dim)) * np.array(sds)[codes][:, None]
        if one_axis:
            points[codes == 0, 1:] *= 0.1
        points[codes == 0, 0] += effect * np.sqrt(np.mean(np.square(sds)))
        return Sampled(points, pd.DataFrame({"column": [f"g{code}" for code in codes]}))

    return draw


def trait(kind: str, n: int = 30) -> Callable[[np.random.Generator, float], Sampled]:
    """Draw a number that moves points along the first axis, and what else is odd about it."""

    def draw(rng: np.random.Generator, effect: float) -> Sampled:
        motion, points = rng.normal(size=n), rng.normal(size=(n, 2))
        number = rng.normal(size=n)
        if kind == "skewed":
            number = np.exp(number)
        elif kind == "confounded":
            number = 0.8 * motion + 0.6 * number
            points += 1.5 * motion[:, None]
        elif kind == "spread grows":
            points *= np.exp(0.5 * number)[:, None]
        points[:, 0] += effect * number / number.std()
        return Sampled(points, pd.DataFrame({"column": number, "confound": motion}))

    return draw


def confounded_groups(rng: np.random.Generator, effect: float) -> Sampled:
    """Groups of 10 and 25 from two sites in unequal shares, the smaller one with three times the spread."""
    codes = np.repeat([0, 1], [10, 25])
    site = (rng.random(35) < np.where(codes == 0, 0.7, 0.3)).astype(int)
    points = rng.normal(size=(35, 2)) * np.where(codes == 0, 3, 1)[:, None] + 2 * site[:, None]
    points[codes == 0, 0] += 2 * effect
    return Sampled(points, pd.DataFrame({"column": [f"g{c}" for c in codes], "confound": [f"site{s}" for s in site]}))


def families(rng: np.random.Generator, effect: float) -> Sampled:
    """Ten families of four, who are alike in embedding and in the trait."""
    family = np.repeat(np.arange(10), 4)
    number = rng.normal(size=10)[family] + rng.normal(size=40)
    points = 1.5 * rng.normal(size=(10, 2))[family] + rng.normal(size=(40, 2))
    points[:, 0] += effect * number
    return Sampled(points, pd.DataFrame({"column": number, "family": [f"f{f}" for f in family]}))


DESIGNS: dict[str, Callable[[np.random.Generator, float], Sampled]] = {
    "12, 12": groups((12, 12), (1, 1)),
    "8, 32": groups((8, 32), (1, 1)),
    "8, 32; sd 3, 1": groups((8, 32), (3, 1)),
    "8, 32; sd 1, 3": groups((8, 32), (1, 3)),
    "5, 20; sd 3, 1; D = 4": groups((5, 20), (3, 1), 4),
    "3, 12; sd 3, 1": groups((3, 12), (3, 1)),
    "8, 32; sd 3, 1; D = 8": groups((8, 32), (3, 1), 8),
    "8, 32; other shape; D = 4": groups((8, 32), (3, 1), 4, one_axis=True),
    "8, 16, 32; sd 3, 2, 1": groups((8, 16, 32), (3, 2, 1), 3),
    "5, 10, 20; sd 3, 1, 1": groups((5, 10, 20), (3, 1, 1)),
    "10, 25; sd 3, 1; site": confounded_groups,
    "trait, n = 12": trait("plain", 12),
    "trait, n = 30": trait("plain"),
    "trait, skewed": trait("skewed"),
    "trait, confounded": trait("confounded"),
    "trait, spread grows": trait("spread grows"),
    "trait in families": families,
}


def test_once(job: tuple[str, float, int]) -> dict[str, object]:
    """Draw one study, and test it with noise and without."""
    name, effect, seed = job
    rng = np.random.default_rng([seed, 5])
    drawn = DESIGNS[name](rng, effect)
    n, dim = drawn.truth.shape
    labels = [f"sub-{i:03d}" for i in range(n)]
    columns = [f"z{i + 1}" for i in range(dim)]
    exact = pd.DataFrame(drawn.truth, labels, columns)
    # Halves of the data give the scale of the noise with some error, and widen it for that.
    freedom = n * dim
    seen = exact + NOISE * rng.normal(size=exact.shape)
    estimated = NOISE * np.sqrt(rng.chisquare(freedom) / freedom * widening(freedom, dim))
    seen[[f"{column}_sd" for column in columns]] = estimated
    seen.attrs["degrees_of_freedom"] = freedom
    ask = {
        "table": drawn.table.set_index(pd.Index(labels)),
        "confounds": [name for name in ("confound",) if name in drawn.table],
        "strata": "family" if "family" in drawn.table else None,
        "n_permutations": N_PERMUTATIONS,
        "n_draws": 199,
        "random_state": seed,
    }
    found = ntfa.test(seen, "column", **ask).table
    truly = ntfa.test(exact, "column", **ask).table
    tests = found.set_index("test")["p"][: 2 if "location" in set(found["test"]) else 3]
    row: dict[str, object] = {"design": name, "effect": effect, "location": found["p"][0] <= 0.05}
    row["dispersion, neighbours"] = tests.iloc[1] <= 0.05
    row["one end"] = tests.iloc[2] <= 0.05 if len(tests) > 2 else np.nan
    row |= {"location, no noise": truly["p"][0] <= 0.05, "textbook": textbook(seen[columns], drawn, seed) <= 0.05}
    true = truly["r2"][0]
    row |= {"covered": found["r2_low"][0] <= true <= found["r2_high"][0]}
    return row | {"R2 true": true, "R2": found["r2"][0], "R2 of means": found["r2_means"][0]}


def widening(freedom: int, dim: int) -> float:
    """By how much calibration multiplies variances."""
    from scipy.special import chdtri, fdtri

    return float(dim * fdtri(dim, freedom, 0.95) / chdtri(dim, 0.05))


def textbook(points: pd.DataFrame, drawn: Sampled, seed: int) -> float:
    """PERMANOVA or distance-based regression as textbooks have it: p of the pseudo-F, residuals permuted."""
    column = drawn.table["column"]
    is_groups = column.dtype.kind not in "fi"
    predictors = indicators(pd.factorize(column)[0]) if is_groups else column.to_numpy()[:, None]
    confounds = None
    if "confound" in drawn.table:
        known = drawn.table["confound"]
        confounds = (known if known.dtype.kind == "f" else (known == "site1").astype(float)).to_numpy()[:, None]
    design = Design.of(predictors, confounds)
    left = design.without_confounds(points.to_numpy())
    strata = pd.factorize(drawn.table["family"])[0] if "family" in drawn.table else None
    moved = left[permuted_orders(len(left), N_PERMUTATIONS, seed, strata)]
    explained = ((design.predictors.T @ moved) ** 2).sum((1, 2))
    ratios = explained / (design.residuals(moved) ** 2).sum((1, 2))
    return float((ratios >= ratios[0] - 1e-9 * ratios[0]).mean())


def make_study(effect: float, seed: int) -> tuple[Study, pd.DataFrame, pd.DataFrame]:
    """Simulate an experiment in which people differ along two axes, and patients by `effect` along the first."""
    rng = np.random.default_rng([seed, 9])
    axis = np.arange(-4, 5) * 10.0
    coordinates = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    coordinates = coordinates[(coordinates**2).sum(1) <= 45**2]
    centers = 0.7 * coordinates[rng.choice(len(coordinates), N_FACTORS, replace=False)]
    factors = np.exp(-((coordinates - centers[:, None]) ** 2).sum(-1) / 15**2)
    patients = np.repeat([False, True], [14, N_PEOPLE - 14])
    truth = rng.normal(size=(N_PEOPLE, 2))
    truth[patients, 0] += effect
    axes = rng.normal(size=(2, N_STIMULI, N_FACTORS))
    means = rng.normal(size=(N_STIMULI, N_FACTORS)) + 0.4 * np.einsum("pa,ask->psk", truth, axes)
    frames, rows = {}, []
    for p in range(N_PEOPLE):
        shown = np.repeat(np.concatenate([rng.permutation(N_STIMULI) for _ in range(N_SHOWN)]), N_FRAMES)
        weights = means[p, shown] + 0.5 * rng.normal(size=(len(shown), N_FACTORS))
        who = f"sub-{p + 1:02d}"
        frames[who] = (weights @ factors + rng.normal(size=(len(shown), len(coordinates)))).astype(np.float32)
        rows += [(who, f"s{shown[i]}", i, i + N_FRAMES) for i in range(0, len(shown), N_FRAMES)]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    exact = pd.DataFrame(truth, list(frames), ["z1", "z2"])
    table = pd.DataFrame({"column": np.where(patients, "patient", "control")}, index=list(frames))
    table["age"] = truth[:, 1] * (effect > 0) + rng.normal(size=N_PEOPLE)
    return Study.from_arrays(frames, trials, coordinates), exact, table


def fit_once(job: tuple[float, int]) -> list[dict[str, object]]:
    """Fit one study, and test the embeddings that come out."""
    effect, seed = job
    torch.set_num_threads(1)
    study, exact, table = make_study(effect, seed)
    model = NTFA(N_FACTORS, random_state=seed, device="cpu").fit(study)
    rows: list[dict[str, object]] = []
    for column in ("column", "age"):
        ask = {"table": table, "n_permutations": N_PERMUTATIONS, "n_draws": 199, "random_state": seed}
        found, truly = (ntfa.test(points, column, **ask).table for points in (model, exact))
        name = "groups of 14 and 10" if column == "column" else "trait, n = 24"
        row: dict[str, object] = {"through fits": name, "effect": effect, "location": found["p"][0] <= 0.05}
        row |= {"location, no noise": truly["p"][0] <= 0.05, "R2 true": truly["r2"][0], "R2": found["r2"][0]}
        rows.append(row | {"R2 of means": found["r2_means"][0], "D": sum(c[1:].isdigit() for c in model.participants_)})
    return rows


def jobs(studies: int) -> Iterator[tuple[str, float, int]]:
    """Every design without an effect, and with one."""
    for name in DESIGNS:
        for effect in (0.0, 0.8):
            yield from ((name, effect, seed) for seed in range(studies if not effect else studies // 4))


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--n-jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    with ProcessPoolExecutor(options.n_jobs) as pool:
        if options.studies:
            table = pd.DataFrame(pool.map(test_once, jobs(options.studies), chunksize=20))
            print(f"share of {options.studies} studies (a quarter of them with an effect) in which tests reject at 5%")
            print(table.groupby(["effect", "design"], sort=False).mean().astype(float).round(3).to_string(), flush=True)
        if options.fits:
            fits = pool.map(fit_once, [(effect, seed) for effect in (0.0, 1.2) for seed in range(options.fits)])
            table = pd.DataFrame([row for rows in fits for row in rows])
            print(f"the same in {options.fits} studies each through fits")
            print(table.groupby(["effect", "through fits"], sort=False).mean().astype(float).round(3).to_string())


if __name__ == "__main__":
    main()
