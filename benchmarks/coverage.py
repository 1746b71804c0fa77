"""A fifth of the voxels missing in half of the people: against the complete study, and against dropping these voxels.

    python benchmarks/coverage.py [--studies 5] [--share 0.2]

Simulated studies of the paper's kind (9 participants, 8 stimuli, noise of unit sd), for networks and for individual
loadings, and twins of the task battery's maps (24 participants, 29 conditions, 800 voxels) for individual loadings. The
voxels are those furthest to one side; one pair of each participant's is held out. Printed are means over studies:

    centres    mean distance of factors from the true ones, mm (of the paper's kind of study, where these are known)
    error      squared error of predicted mean images of held-out pairs over that of predicting zero, against the truth:
               at voxels that everybody has, and at the others in people who have them and in people who lack them
    seconds    processor time of a fit, relative to that of the complete study
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import bare  # noqa: F401
import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from ntfa import NTFA, Study, simulate

KINDS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "networks": ("synthetic", 3000, {"n_factors": 3, "response": "network", "embedding_dim": 2}),
    "individual loadings": ("synthetic", 3000, {"n_factors": 3, "response": "loadings"}),
    "task battery": ("mdtb", 800, {"n_factors": 30, "response": "loadings"}),
}
VARIANTS = ("complete", "missing", "dropped")


def ellipsoid(n_voxels: int) -> np.ndarray:
    """Voxels of about the brain's size and shape, [about n_voxels, 3] in mm."""
    axes = np.array([70.0, 85.0, 60.0])
    spacing = (4 / 3 * np.pi * axes.prod() / n_voxels) ** (1 / 3)
    grid = np.stack(np.meshgrid(*[np.arange(-90, 90, spacing)] * 3, indexing="ij"), -1).reshape(-1, 3)
    return grid[((grid / axes) ** 2).sum(1) < 1]


def lacking(study: Study, voxels: np.ndarray, min_coverage: float) -> Study:
    """Take voxels from every other participant."""
    frames = {label: np.array(study.frames[label]) for label in study.participants}
    for label in study.participants[1::2]:
        frames[label][:, voxels] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Study.from_arrays(frames, study.trials, study.coordinates, study.mask_img, min_coverage=min_coverage)


def centres(model: NTFA, truth: Any) -> float:
    """Mean distance of the factors' mean centres from the true ones, mm."""
    found = model.factors_.groupby("factor")[["x", "y", "z"]].mean().to_numpy()
    apart = np.linalg.norm(np.asarray(truth.centers)[:, None] - found, axis=2)
    return float(apart[linear_sum_assignment(apart)].mean())


def one(kind: str, seed: int, share: float) -> list[dict[str, Any]]:
    """Fit all variants of one study."""
    name, n_voxels, settings = KINDS[kind]
    simulated = simulate(name, random_state=seed, coordinates=ellipsoid(n_voxels))
    study = simulated.study
    train, test = study.split("diagonal")
    voxels = study.coordinates[:, 0] > np.quantile(study.coordinates[:, 0], 1 - share)
    pairs = test.trials[["participant", "stimulus"]].drop_duplicates()
    truth = np.stack([simulated.truth.mean_image(*pair) for pair in pairs.itertuples(index=False)])
    lacks = pairs["participant"].isin(study.participants[1::2]).to_numpy()
    rows = []
    for variant in VARIANTS:
        own = train if variant == "complete" else lacking(train, voxels, 0.4 if variant == "missing" else 1.0)
        began = time.process_time()
        model = NTFA(random_state=seed, uncertainty="mean-field", **settings).fit(own)
        seconds = time.process_time() - began
        images = np.zeros_like(truth)
        images[:, ~voxels if variant == "dropped" else slice(None)] = model.predict(pairs)

        def error(people: np.ndarray, where: np.ndarray, images: np.ndarray = images) -> float:
            part = np.ix_(people, where)
            return float(((images[part] - truth[part]) ** 2).sum() / (truth[part] ** 2).sum())

        rows.append(
            {
                "kind": kind,
                "variant": variant,
                "centres": centres(model, simulated.truth) if name == "synthetic" else np.nan,
                "error, shared": error(np.ones(len(pairs), dtype=bool), ~voxels),
                "error, who has": error(~lacks, voxels),
                "error, who lacks": error(lacks, voxels),
                "seconds": seconds,
            }
        )
    for row in rows[::-1]:
        row["seconds"] /= rows[0]["seconds"]
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.2)
    args = parser.parse_args()
    rows = [row for kind in KINDS for seed in range(args.studies) for row in one(kind, seed, args.share)]
    table = pd.DataFrame(rows).groupby(["kind", "variant"], sort=False)
    shown = table.mean().round(3)
    shown["error, shared, sd"] = table["error, shared"].std().round(3)
    print(shown.to_string())


if __name__ == "__main__":
    main()
