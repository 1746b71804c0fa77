"""The same person as two, the same condition as two, on real maps that are not part of the project: do they differ?

    python benchmarks/same.py DATA_DIR [--n-factors 30] [--relabellings 3]

DATA_DIR as for `benchmarks/unseen.py`. Woo: odd and even maps of each person and condition become two people. MDTB:
the maps of either half of the runs become two conditions. Two that are the same should differ, at a level of 95%, in
one case of twenty; beside it, how often two that are not the same do. And conditions relabelled at random, among the
maps of each person and half: none of them differs from another.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import unseen

from ntfa import NTFA, Study, differences


def split(maps: unseen.Maps, kind: str) -> Study:
    """Make two participants, or two stimuli, of each: one for either half of its maps."""
    study = maps.study(np.ones(len(maps.who), dtype=bool))
    # `Maps.study` goes through people, and through the maps of each in their order.
    order = np.concatenate([np.flatnonzero(maps.who == who) for who in np.unique(maps.who)])
    half = maps.half[order]
    if kind == "participant":
        half = study.trials.groupby(["participant", "stimulus"]).cumcount().to_numpy() % 2
    whole = study.trials[kind]
    trials = study.trials.assign(**{kind: [f"{label}/{h}" for label, h in zip(whole, half, strict=True)]})
    frames = {who: study.frames[who.split("/")[0]] for who in trials["participant"].unique()}
    return Study(study.coordinates, trials, frames)


def relabelled(maps: unseen.Maps, seed: int) -> Study:
    """Give the maps of each person and half the conditions of each other, at random."""
    rng, what = np.random.default_rng(seed), maps.what.copy()
    for who in np.unique(maps.who):
        for half in np.unique(maps.half):
            own = np.flatnonzero((maps.who == who) & (maps.half == half))
            what[own] = rng.permutation(what[own])
    return replace(maps, what=what).study(np.ones(len(what), dtype=bool))


def report(name: str, table: pd.DataFrame) -> None:
    """Print how often two of the same, and others, differ."""
    found = differences(table)
    same = found["a"].str.split("/").str[0] == found["b"].str.split("/").str[0]
    for title, rows in (("the same", found[same]), ("others", found[~same])):
        shares = [f"{(rows['p'] < alpha).mean():.3f} at {1 - alpha:.0%}" for alpha in (0.05, 0.01)]
        print(f"{name}, {title}: {len(rows)} pairs, {', '.join(shares)} differ", flush=True)


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--n-factors", type=int, default=30)
    parser.add_argument("--relabellings", type=int, default=3)
    options = parser.parse_args()
    for name, kind in (("woo", "participant"), ("mdtb", "stimulus")):
        study = split(unseen.read(name, options.data), kind)
        model = NTFA(options.n_factors, random_state=0).fit(study)
        report(f"{name} ({model.response_})", model.participants_ if kind == "participant" else model.stimuli_)
    for name in unseen.STUDIES:
        maps = unseen.read(name, options.data)
        for seed in range(options.relabellings):
            model = NTFA(options.n_factors, random_state=0).fit(relabelled(maps, seed))
            p = differences(model.stimuli_)["p"]
            print(f"{name}, relabelled ({model.response_}): {len(p)} pairs, {(p < 0.05).mean():.3f} at 95%", flush=True)


if __name__ == "__main__":
    main()
