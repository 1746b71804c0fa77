"""Pairs never seen together, and distances that come out again, on real maps that are not part of the project.

    python benchmarks/unseen.py DATA_DIR [--n-factors 100] [--halvings 10] [--ablations] [--prepare OUT]
    python benchmarks/unseen.py --studies woo-like mdtb-like --n-factors 40 --ablations    # simulated, as hard as real

DATA_DIR holds `woo2014_pain_rejection` (59 people, 4 conditions, 8 maps each) and `mdtb_cerebellum` (16 people, 29
conditions, 2 maps each), or the arrays that `--prepare` wrote, for machines that cannot read images. People are
scaled by the root mean square of their training maps (Woo also voxels); MDTB's maps sum to zero over the conditions of
each half, so the mean of the training conditions is taken out instead. Held out: one condition in four (Woo), two of 29
(MDTB). Everything is fitted and chosen on training maps alone. `err`: squared error of predicted images over that of
predicting zero; `corr`: mean spatial correlation; `nats`: log predictive density per value; `coverage`: of intervals at
95%.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bare  # noqa: F401
import numpy as np
import pandas as pd
import torch
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from ntfa import NTFA, Study, simulate
from ntfa.models.loadings import LoadingFactors

STUDIES = ("woo", "mdtb")
SIMULATED = {"woo-like": {"n_voxels": 2000}, "mdtb-like": {"n_voxels": 1500}}


@dataclass
class Maps:
    """Maps [n, V] of one frame each, who was shown what, which are held out, and which half of the runs they are of."""

    values: np.ndarray
    who: np.ndarray
    what: np.ndarray
    test: np.ndarray
    half: np.ndarray
    coordinates: np.ndarray

    def study(self, rows: np.ndarray) -> Study:
        """Return some of the maps as a study."""
        frames, trials = {}, []
        for participant in np.unique(self.who[rows]):
            own = np.flatnonzero((self.who == participant) & rows)
            label = f"sub-{participant:02d}"
            frames[label] = np.ascontiguousarray(self.values[own], dtype=np.float32)
            trials += [(label, f"condition-{self.what[i]:02d}", j, j + 1) for j, i in enumerate(own)]
        columns = ["participant", "stimulus", "start", "stop"]
        return Study(self.coordinates, pd.DataFrame(trials, columns=columns), frames)

    def pairs(self, rows: np.ndarray) -> list[tuple[str, str]]:
        """Participant and condition of some maps."""
        return [(f"sub-{p:02d}", f"condition-{s:02d}") for p, s in zip(self.who[rows], self.what[rows], strict=True)]


def simulated(name: str) -> Maps:
    """Simulate a study that is as hard as a real one, with as many voxels as a laptop takes in minutes."""
    study = simulate(name.removesuffix("-like"), random_state=0, **SIMULATED[name]).study
    values = study.mean_images().astype(np.float64)
    who, what = (np.unique(study.trials[kind], return_inverse=True)[1] for kind in ("participant", "stimulus"))
    repetition = study.trials.groupby(["participant", "stimulus"]).cumcount().to_numpy()
    return _with_test(Maps(values, who, what, who < 0, repetition % 2, study.coordinates), centred=name == "mdtb-like")


def read(name: str, data: Path | None) -> Maps:
    """Read maps, from images or as they were prepared; or simulate them."""
    if name in SIMULATED:
        return simulated(name)
    if data is None:
        raise SystemExit(f"{name} has to be read from a folder: name it, or ask for --studies {' '.join(SIMULATED)}")
    prepared = data / f"{name}.npz"
    if prepared.exists():
        found = np.load(prepared)
        return Maps(**{key: found[key].astype(np.float32 if key == "values" else found[key].dtype) for key in found})
    values, who, what, coordinates = _woo(data) if name == "woo" else _mdtb(data)
    n_people, n_conditions = who.max() + 1, what.max() + 1
    half = np.arange(len(who)) % 2 if name == "woo" else np.tile(np.repeat([0, 1], n_conditions), n_people)
    return _with_test(Maps(values, who, what, who < 0, half, coordinates), centred=name == "mdtb")


def _with_test(maps: Maps, centred: bool) -> Maps:
    """Choose what is held out, drop voxels that do not vary, and scale by what is left."""
    values, who, what = maps.values, maps.who, maps.what
    n_people, n_conditions = who.max() + 1, what.max() + 1
    test = who % n_conditions == what if n_conditions <= n_people else what % n_people == who
    kept = np.isfinite(values).all(0)
    for participant in range(n_people):
        for part in (test, ~test):
            kept &= values[(who == participant) & part].std(0) > 0
    maps = Maps(values[:, kept], who, what, test, maps.half, maps.coordinates[kept])
    if centred:
        _centre_by_training(maps)
    _scale_by_training(maps, voxels=not centred)
    return maps


def _woo(data: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    import nibabel as nib

    folder = data / "woo2014_pain_rejection"
    mask = nib.load(next(folder.glob("*mask.nii.gz")))
    inside = mask.get_fdata() > 0
    values, who, what = [], [], []
    for participant, path in enumerate(sorted(folder.glob("sub-*"))):
        own = nib.load(next(path.glob("func/*_bold.nii.gz"))).get_fdata()[inside].T
        values.append(own)
        who += [participant] * len(own)
        what += pd.read_csv(next(path.glob("func/*_events.tsv")), sep="\t")["trial_type"].tolist()
    coordinates = nib.affines.apply_affine(mask.affine, np.argwhere(inside))
    return np.concatenate(values), np.array(who), np.unique(what, return_inverse=True)[1], coordinates


def _mdtb(data: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    import nibabel as nib

    folder = data / "mdtb_cerebellum"
    conditions = pd.read_csv(folder / "info-CondHalf.tsv", sep="\t")["cond_name"]
    paths = sorted(folder.glob("sub-*.dscalar.nii"))
    axis = nib.load(paths[0]).header.get_axis(1)
    values = np.concatenate([nib.load(path).get_fdata() for path in paths])
    who = np.repeat(np.arange(len(paths)), len(conditions))
    what = np.tile(np.unique(conditions, return_inverse=True)[1], len(paths))
    return values, who, what, nib.affines.apply_affine(axis.affine, axis.voxel)


def _centre_by_training(maps: Maps) -> None:
    for participant in np.unique(maps.who):
        for half in (0, 1):
            own = (maps.who == participant) & (maps.half == half)
            maps.values[own] -= maps.values[own & ~maps.test].mean(0)


def _scale_by_training(maps: Maps, voxels: bool) -> None:
    people = np.unique(maps.who)
    for _ in range(3):
        for participant in people:
            own = maps.who == participant
            maps.values[own] /= np.sqrt((maps.values[own & ~maps.test] ** 2).mean())
        if voxels:
            squares = [(maps.values[(maps.who == p) & ~maps.test] ** 2).mean(0) for p in people]
            maps.values /= np.sqrt(np.mean(squares, 0))


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Mean spatial correlation of images."""
    one, other = one - one.mean(1, keepdims=True), other - other.mean(1, keepdims=True)
    size = np.sqrt((one**2).sum(1) * (other**2).sum(1))
    return float(((one * other).sum(1) / np.maximum(size, 1e-20)).mean())


def unseen_pairs(maps: Maps, title: str, detail: bool = True, **settings: Any) -> None:
    """Fit the training maps and predict the others."""
    began = time.perf_counter()
    model = NTFA(random_state=0, **{"uncertainty": "mean-field", **settings}).fit(maps.study(~maps.test))
    seconds = time.perf_counter() - began
    module = model._fitted.module
    if not detail and isinstance(module, LoadingFactors):
        module.detail_group = module.detail_own = None
        module.detail_variances.zero_()
    recorded = maps.values[maps.test]
    images, sds = model.predict(maps.pairs(maps.test), return_sd=True, n_frames=1)
    held_out = maps.study(maps.test)
    nats = model.score(held_out, n_samples=9) / held_out.n_data
    error = ((recorded - images) ** 2).mean() / (recorded**2).mean()
    covered = (np.abs(recorded - images) < 1.96 * sds).mean()
    dims = f"D = {len(_points(model.participants_)[0])}, {len(_points(model.stimuli_)[0])}"
    print(
        f"  {title}: {model.response_}, {dims}, err {error:.4f}, corr {correlation(recorded, images):.4f}, "
        f"nats {nats:.4f}, coverage {covered:.3f}, {len(model.history_)} steps, {seconds:.0f} s",
        flush=True,
    )


@contextmanager
def without(ingredient: str) -> Iterator[None]:
    """Take an ingredient of individual loadings away."""
    eye = property(lambda module: torch.eye(len(module.lower), dtype=module.lower.dtype, device=module.lower.device))
    none = property(lambda module: torch.full_like(module.raw_loading_sd, 1e-4))
    change = {"full covariance": ("mixing", eye), "individual loadings": ("loading_sd", none)}[ingredient]
    with patch.object(LoadingFactors, *change):
        yield


def ablations(maps: Maps, settings: dict[str, Any]) -> None:
    """Take each ingredient away in turn."""
    loadings = settings | {"response": "loadings"}
    unseen_pairs(maps, "without detail", detail=False, **loadings)
    for ingredient in ("full covariance", "individual loadings"):
        with without(ingredient):
            unseen_pairs(maps, f"without {ingredient}", **loadings)
    with without("individual loadings"):
        unseen_pairs(maps, "without individual loadings and detail", detail=False, **loadings)
    unseen_pairs(maps, "with D = 2", **loadings | {"embedding_dim": (2, min(2, int(maps.what.max())))})
    unseen_pairs(maps, "the paper's networks", **settings | {"response": "network"})


def reproducibility(maps: Maps, n_halvings: int, settings: dict[str, Any]) -> None:
    """Distances between stimuli in halves of the people, and between people in halves of the runs."""
    found = []
    people = np.unique(maps.who)
    for i in range(n_halvings):
        order = np.random.default_rng(i).permutation(len(people))
        halves = [np.isin(maps.who, order[: len(people) // 2]), np.isin(maps.who, order[len(people) // 2 :])]
        points = [_points(_fit(maps, rows, settings).stimuli_) for rows in halves]
        images = [
            np.stack([maps.values[rows & (maps.what == s)].mean(0) for s in np.unique(maps.what)]) for rows in halves
        ]
        found.append([spearmanr(*map(pdist, pair))[0] for pair in (points, images)])
    print("  distances between stimuli, halves of the people: NTFA {:.3f}, images {:.3f}".format(*np.mean(found, 0)))
    scaled = Maps(maps.values.copy(), maps.who, maps.what, maps.test, maps.half, maps.coordinates)
    for participant in people:
        for half in (0, 1):
            own = (maps.who == participant) & (maps.half == half)
            scaled.values[own] /= np.sqrt((scaled.values[own] ** 2).mean())
    fits = [_fit(scaled, scaled.half == half, settings) for half in (0, 1)]
    distances = [pdist(_points(fit.participants_)) for fit in fits]
    pairs = [(f"sub-{p:02d}", f"condition-{s:02d}") for p in people for s in np.unique(maps.what)]
    responses = [fit.predict(pairs).reshape(len(people), -1) for fit in fits]
    one, other = (own - own.mean(0) for own in responses)
    nearest = np.corrcoef(one, other)[: len(people), len(people) :].argmax(1)
    themselves = (nearest == np.arange(len(people))).sum()
    print(f"  distances between people, halves of the runs: NTFA {spearmanr(*distances)[0]:.3f}")
    print(
        f"  nearest person in the other half, by predicted maps less the group's: "
        f"themselves {themselves} of {len(people)}"
    )


def _fit(maps: Maps, rows: np.ndarray, settings: dict[str, Any]) -> NTFA:
    return NTFA(random_state=0, uncertainty="mean-field", **settings).fit(maps.study(rows))


def _points(table: pd.DataFrame) -> np.ndarray:
    return table[[name for name in table if name[0] == "z" and name[1:].isdigit()]].sort_index().to_numpy()


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=(*STUDIES, *SIMULATED))
    parser.add_argument("--n-factors", type=int, default=100)
    parser.add_argument("--halvings", type=int, default=0)
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--prepare", type=Path)
    options = parser.parse_args()
    for name in options.studies:
        maps = read(name, options.data)
        if options.prepare is not None:
            half_precision = {key: value for key, value in vars(maps).items() if key != "values"}
            np.savez_compressed(options.prepare / name, values=maps.values.astype(np.float16), **half_precision)
            continue
        settings = {"n_factors": options.n_factors}
        print(name, f"K = {options.n_factors}")
        unseen_pairs(maps, "NTFA", **settings)
        if options.ablations:
            ablations(maps, settings)
        if options.halvings and "mdtb" in name:
            reproducibility(maps, options.halvings, settings)


if __name__ == "__main__":
    main()
