"""Measure how hard real studies are: the numbers that `simulate("woo")` and `simulate("mdtb")` hold.

    python benchmarks/measure_presets.py DATA_DIR [--simulated]

DATA_DIR holds `woo2014_pain_rejection` (Woo et al. 2014: single-trial maps) and `mdtb_cerebellum` (King et al. 2019:
maps of conditions in two halves of the runs). Prints, for each, the settings that `simulate` takes, and how well
closed-form predictors do on held-out pairs; with --simulated, the same measured off the simulated study beside them.
Two settings were chosen so that these two columns agree: `category_share`, which `category_likeness` depends on, and
MDTB's `individual_decay`, which comes out 0.015 too high, as errors in the group's components count as people's own.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
from nibabel.affines import apply_affine
from scipy.optimize import minimize_scalar, nnls

from ntfa import Study, simulate
from ntfa.simulation.fields import correlation
from ntfa.simulation.presets import PRESETS

N_SEEDS, FARTHEST_MM = 600, 100.0
FWHMS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 25, 30, 35, 40, 50, 60, 80, 100, 150, 250)
PARTS = {"response_fwhm": 2, "individual_fwhm": 3, "noise_fwhm": 3}
COMPONENTS, RIDGES = (1, 2, 3, 5, 8), (0.3, 1, 3, 10, 30)


@dataclass(frozen=True, eq=False)
class Maps:
    """Maps of every participant, stimulus (in the order shown) and repetition [P x S x N x V], and where voxels are."""

    values: np.ndarray
    coordinates: np.ndarray
    stimuli: list[str]
    categories: list[str]
    centred: bool

    @property
    def held_out(self) -> np.ndarray:
        """The pairs [P x S] to predict: a few stimuli of each participant."""
        n_participants, n_stimuli = self.values.shape[:2]
        order = np.argsort(np.argsort(self.stimuli))
        people = np.arange(n_participants)
        if n_stimuli <= n_participants:
            return people[:, None] % n_stimuli == order
        return order % n_participants == people[:, None]


# --- what was recorded


def load_woo(folder: Path) -> Maps:
    """Single-trial maps of 59 people."""
    mask = nibabel.load(next(folder.glob("*mask.nii.gz")))
    inside = np.asarray(mask.dataobj) > 0
    stimuli, categories = (list(part) for part in zip(*PRESETS["woo"].categories.items(), strict=True))
    people = []
    for path in sorted(folder.glob("sub-*/func/*_bold.nii.gz")):
        maps = nibabel.load(path).get_fdata(dtype=np.float32)[inside].T
        events = pd.read_csv(next(path.parent.glob("*_events.tsv")), sep="\t")
        people.append([maps[events["trial_type"] == name] for name in stimuli])
    coordinates = apply_affine(mask.affine, np.argwhere(inside))
    return Maps(np.array(people), coordinates, stimuli, categories, centred=False)


def load_mdtb(folder: Path) -> Maps:
    """Maps of 29 conditions in two halves of the runs, of 16 people."""
    info = pd.read_csv(folder / "info-CondHalf.tsv", sep="\t")
    info = info[info["half"] == 1]
    stimuli, tasks = info["cond_name"].tolist(), info["task_name"].tolist()
    images = [nibabel.load(path) for path in sorted(folder.glob("sub-*.dscalar.nii"))]
    axis = images[0].header.get_axis(1)
    values = np.array([image.get_fdata(dtype=np.float32) for image in images])
    values = values.reshape(len(images), 2, len(stimuli), -1).transpose(0, 2, 1, 3)
    return Maps(values, apply_affine(axis.affine, axis.voxel), stimuli, tasks, centred=True)


def from_study(study: Study, like: Maps) -> Maps:
    """The maps of a simulated study, in the form of those of the real one."""
    people = []
    for participant in study.participants:
        trials = study.trials[study.trials["participant"] == participant]
        rows = [trials.loc[trials["stimulus"] == stimulus, "start"] for stimulus in like.stimuli]
        people.append([study.frames[participant][own] for own in rows])
    return replace(like, values=np.array(people), coordinates=study.coordinates)


def usable(maps: Maps) -> Maps:
    """Voxels that are finite and vary in every participant's training and test maps; conditions' mean taken out.

    As published, maps of a half of MDTB sum to zero over conditions, so each training map holds a part of the held-out
    ones. The mean of the training conditions is taken out instead.
    """
    test = maps.held_out
    keep = np.isfinite(maps.values).all(axis=(0, 1, 2))
    for own, out in zip(maps.values, test, strict=True):
        for part in (own[out], own[~out]):
            keep &= part.reshape(-1, part.shape[-1]).std(axis=0) > 0
    values = maps.values[..., keep].astype(np.float64)
    if maps.centred:
        for own, out in zip(values, test, strict=True):
            own -= own[~out].mean(axis=0)
    return replace(maps, values=values, coordinates=maps.coordinates[keep])


def scaled(maps: Maps) -> Maps:
    """Participants, and where repetitions are single trials voxels, divided by their root mean square in training."""
    values, test = maps.values.copy(), maps.held_out
    for _ in range(3):
        for own, out in zip(values, test, strict=True):
            own /= np.sqrt((own[~out] ** 2).mean())
        if not maps.centred:
            values /= np.sqrt(
                np.mean([(own[~out] ** 2).mean((0, 1)) for own, out in zip(values, test, strict=True)], 0)
            )
    return replace(maps, values=values)


# --- what is in it


def covariances(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Covariance between stimuli [S x S] of the group's responses, and of people's own.

    The group's are products of different people's maps, and people's own those of different repetitions less the
    group's: noise is in neither.
    """
    n_people, n_stimuli, n, n_voxels = values.shape
    means = values.mean(axis=2)
    flat = means.reshape(n_people * n_stimuli, n_voxels)
    products = (flat @ flat.T / n_voxels).reshape(n_people, n_stimuli, n_people, n_stimuli)
    own = np.einsum("psqt->st", products * np.eye(n_people)[:, None, :, None])
    group = (products.sum(axis=(0, 2)) - own) / (n_people * (n_people - 1))
    same = sum(np.einsum("psv,ptv->st", values[:, :, i], values[:, :, i], optimize=True) for i in range(n))
    repeated = (n * own - same / n_voxels / n) / (n - 1) / n_people
    return group, repeated - group


def shares(values: np.ndarray) -> dict[str, float]:
    """Shares of the mean square of all maps."""
    group, individual = covariances(values)
    total = (values**2).mean()
    return {
        "mean_share": group.mean() / total,
        "stimulus_share": (np.trace(group) / len(group) - group.mean()) / total,
        "individual_mean_share": individual.mean() / total,
        "individual_share": (np.trace(individual) / len(group) - individual.mean()) / total,
        "noise": values.var(axis=2, ddof=1).mean() / total,
    }


def decays(values: np.ndarray) -> dict[str, float]:
    """How fast the shares of the group's principal components decay, in the group's and in people's own responses."""
    group, individual = covariances(values)
    contrasts = np.linalg.svd(np.eye(len(group)) - 1 / len(group))[0][:, :-1]
    power, directions = np.linalg.eigh(contrasts.T @ group @ contrasts)
    leading = contrasts @ directions[:, ::-1]
    return {
        "feature_decay": decay_of(power[::-1]),
        "individual_decay": decay_of(np.diag(leading.T @ individual @ leading)),
    }


def decay_of(power: np.ndarray) -> float:
    """The ratio of the geometric series whose running sums come nearest to those of these shares."""
    rank = np.arange(len(power))
    found = np.cumsum(power.clip(min=0)) / power.clip(min=0).sum()

    def error(ratio: float) -> float:
        return ((np.cumsum(ratio**rank) / (ratio**rank).sum() - found) ** 2).sum()

    return float(minimize_scalar(error, bounds=(0.01, 1.0), method="bounded").x)


def category_likeness(values: np.ndarray, categories: list[str]) -> float:
    """Covariance of the group's responses to two stimuli of one category over their variance, both less others'."""
    group, _ = covariances(values)
    alike = np.equal.outer(categories, categories)
    same = alike & ~np.eye(len(group), dtype=bool)
    other = group[~alike].mean()
    return float((group[same].mean() - other) / (np.diag(group)[same.any(axis=0)].mean() - other))


def correlations(maps: Maps) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Distances (mm), and correlations of voxels so far apart in the group's responses, people's own, and noise."""
    values, coordinates = maps.values.astype(np.float32), maps.coordinates
    n_people, _, n, n_voxels = values.shape
    seeds = np.random.default_rng(0).choice(n_voxels, min(N_SEEDS, n_voxels), replace=False)

    def products(images: np.ndarray) -> np.ndarray:
        flat = images.reshape(-1, n_voxels)
        return flat[:, seeds].T @ flat

    noise = values - values.mean(axis=2, keepdims=True)
    means = values.mean(axis=2)
    between = products(means.sum(axis=0)) / (n_people * (n_people - 1)) - products(means) / (n_people * (n_people - 1))
    repeated = (n * products(means) - products(values) / n) / (n - 1) / n_people
    fields = {"response_fwhm": between, "individual_fwhm": repeated - between, "noise_fwhm": products(noise)}
    apart = np.sqrt(((coordinates[seeds, None] - coordinates) ** 2).sum(axis=2))
    step = apart[apart > 0].min()
    bins = np.round(apart / step).astype(int)
    kept = [b for b in range(int(FARTHEST_MM / step)) if (bins == b).any()]
    distance = np.array([apart[bins == b].mean() for b in kept])
    found = {name: np.array([field[bins == b].mean() for b in kept]) for name, field in fields.items()}
    return distance, {name: curve / curve[0] for name, curve in found.items()}


def fit_smoothness(distance: np.ndarray, curve: np.ndarray, n_parts: int) -> dict[float, float]:
    """The FWHMs and shares of a field of a few parts whose correlations come nearest to these."""
    columns = {fwhm: correlation({fwhm: 1.0}, distance) for fwhm in FWHMS}
    # Shares are to sum to 1, so the correlation at distance 0 counts for many.
    weight = np.where(distance == 0, 100.0, 1.0)
    fits = []
    for widths in combinations(FWHMS, n_parts):
        found, error = nnls(np.stack([columns[fwhm] for fwhm in widths], axis=1) * weight[:, None], curve * weight)
        fits.append((error, widths, found / found.sum()))
    _, widths, found = min(fits, key=lambda fit: fit[0])
    return {fwhm: round(float(share), 2) for fwhm, share in zip(widths, found, strict=True) if share >= 0.005}


def noise_spread(values: np.ndarray) -> float:
    """Standard deviation over people of the log of their noise level, before anything is scaled."""
    return float(np.log(values.var(axis=2, ddof=1).mean(axis=(1, 2))).std(ddof=1) / 2)


def noise_ar1(maps: Maps) -> float:
    """Correlation of noise in neighbours of one category and repetition, less that of different categories.

    Conditions of one task were shown in the same runs; the mean over all conditions, which was taken out of MDTB, makes
    all others correlate a little.
    """
    noise = maps.values - maps.values.mean(axis=2, keepdims=True)
    covariance = np.einsum("psiv,ptiv->st", noise, noise, optimize=True)
    found = covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    alike = np.equal.outer(maps.categories, maps.categories)
    near, far = np.diag(found, 1)[np.diag(alike, 1)].mean(), found[~alike].mean()
    return float((near - far) / (1 - far))


# --- what can be predicted


def predictors(maps: Maps) -> dict[str, tuple[float, float]]:
    """Squared error of held-out maps over that of predicting zero, and correlation, of closed-form predictors."""
    values, test = maps.values, maps.held_out
    cells = np.where(test[..., None], np.nan, values.mean(axis=2))
    group = np.nanmean(cells, axis=0)
    pairs = np.argwhere(test)
    truth = values[test]
    zero = (truth**2).mean()

    def score(images: np.ndarray) -> tuple[float, float]:
        wrong, found = truth - images[:, None], truth - truth.mean(axis=-1, keepdims=True)
        image = images - images.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(image, axis=1)[:, None]
        return (wrong**2).mean() / zero, float(((found * image[:, None]).sum(axis=-1) / (norms + 1e-20)).mean())

    individual = [
        score(individual_loadings(cells, group, pairs, c, ridge))
        for c in COMPONENTS
        if c < len(group)
        for ridge in RIDGES
    ]
    return {
        "mean image": score(np.repeat(group.mean(axis=0)[None], len(pairs), axis=0)),
        "stimulus' mean image": score(group[pairs[:, 1]]),
        "individual loadings": min(individual),
        "noise floor": (values.var(axis=2, ddof=1)[test].mean() / zero, np.nan),
    }


def individual_loadings(
    cells: np.ndarray, group: np.ndarray, pairs: np.ndarray, n_components: int, ridge: float
) -> np.ndarray:
    """Images of these pairs: principal components of stimuli times loadings of each participant's own."""
    u, s, _ = np.linalg.svd(group - group.mean(axis=0), full_matrices=False)
    scores = u[:, :n_components] * s[:n_components]
    scores = np.column_stack([np.full(len(group), np.sqrt((scores**2).mean())), scores])
    loadings = np.linalg.lstsq(scores, group, rcond=None)[0]
    images = np.empty((len(pairs), group.shape[1]))
    for i, (p, s_out) in enumerate(pairs):
        seen = ~np.isnan(cells[p, :, 0])
        x = scores[seen]
        gram = x.T @ x
        penalty = ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
        own = np.linalg.solve(gram + penalty, x.T @ (cells[p, seen] - x @ loadings))
        images[i] = scores[s_out] @ (loadings + own)
    return images


# --- all of it


def measure(maps: Maps) -> dict[str, object]:
    """Everything that is measured, by name."""
    raw = usable(maps)
    ready = scaled(raw)
    distance, curves = correlations(ready)
    return {
        **{name: round(float(value), 4) for name, value in shares(ready.values).items()},
        **{name: round(value, 3) for name, value in decays(ready.values).items()},
        "category_likeness": round(category_likeness(ready.values, ready.categories), 3),
        **{name: fit_smoothness(distance, curve, PARTS[name]) for name, curve in curves.items()},
        "noise_ar1": round(noise_ar1(ready), 3),
        "noise_spread": round(noise_spread(raw.values), 3),
        **{name: "err {:.3f}, corr {:.3f}".format(*found) for name, found in predictors(ready).items()},
    }


def main() -> None:
    """Measure both studies."""
    warnings.simplefilter("ignore", RuntimeWarning)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--simulated", action="store_true")
    args = parser.parse_args()
    folders = {"woo": (load_woo, "woo2014_pain_rejection"), "mdtb": (load_mdtb, "mdtb_cerebellum")}
    for name in PRESETS:
        load, folder = folders[name]
        real = load(args.data / folder)
        table = {"real": measure(real)}
        if args.simulated:
            table["simulated"] = measure(from_study(simulate(name).study, real))
        print(f"\n{name}: {real.values.shape}", pd.DataFrame(table).to_string(max_colwidth=60), sep="\n")


if __name__ == "__main__":
    main()
