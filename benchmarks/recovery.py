"""Does a fit recover what was simulated? Many seeds of the synthetic study, a row each.

    python benchmarks/recovery.py [--seeds 20] [--threads 1]

For each seed the diagonal participant-stimulus pairs are held out and NTFA, HTFA and, with the paper's own settings
(mean-field, K-means, its learning rates, 1000 epochs), NTFA again are fitted to the others.

    groups, tasks    adjusted Rand index of K-means on the embeddings against the truth (1: separated exactly)
    centres          largest distance of a factor, averaged over participants, from its true place, in mm
    error            mean squared error of predicted held-out trial-mean images over that of the true mean images
    seconds          wall time of the fit, start included
    NTFA - HTFA      difference in held-out log predictive, nats; two estimators
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pandas as pd
import torch

from ntfa import HTFA, NTFA, Study, simulate
from ntfa.analyses.separation import separation
from ntfa.estimators.base import TopographicModel
from ntfa.simulation import Truth

PAPER = {"inference": "mean-field", "init": "kmeans", "schedule": "paper", "max_epochs": 1000}


def fitted(model: TopographicModel, study: Study) -> tuple[TopographicModel, float]:
    """Fit, and say how long it took."""
    started = time.perf_counter()
    return model.fit(study), time.perf_counter() - started


def recovered(model: NTFA, truth: Truth, test: Study, took: float) -> dict[str, float]:
    """Compare a fit with the truth."""
    centers = model.factors_.groupby("factor")[["x", "y", "z"]].mean().to_numpy()
    distances = np.linalg.norm(centers[:, None] - truth.centers[None], axis=-1)
    trials, observed = test.trials, test.mean_images()
    pairs = zip(trials["participant"], trials["stimulus"], strict=True)
    oracle = np.stack([truth.mean_image(*pair) for pair in pairs])
    return {
        "groups": separation(model.participants_, truth.participant_groups).agreement,
        "tasks": separation(model.stimuli_, truth.stimulus_categories).agreement,
        "centres": float(distances.min(0).max()),
        "error": float(np.mean((observed - model.predict(trials)) ** 2) / np.mean((observed - oracle) ** 2)),
        "zero": float(np.mean(observed**2) / np.mean((observed - oracle) ** 2)),
        "seconds": took,
        "steps": len(model.history_),
        "bound": model.history_["bound"].iloc[-5:].mean() / model.n_data_,
    }


def one_seed(seed: int, with_paper: bool) -> tuple[dict[str, float], dict[str, float] | None]:
    """Fit everything to one simulated study."""
    simulation = simulate("synthetic", random_state=seed)
    train, test = simulation.study.split("diagonal")
    ntfa, took = fitted(NTFA(n_factors=3, random_state=seed, uncertainty="mean-field"), train)
    htfa, _ = fitted(HTFA(n_factors=3, block="trial", random_state=seed), train)
    row = recovered(ntfa, simulation.truth, test, took)
    for estimator in ("collapsed", "paper"):
        row[f"NTFA - HTFA ({estimator})"] = ntfa.score(test, estimator) - htfa.score(test, estimator)
    row["parameters NTFA"], row["parameters HTFA"] = ntfa.n_parameters_, htfa.n_parameters_
    if not with_paper:
        return row, None
    paper, took = fitted(NTFA(n_factors=3, random_state=seed, uncertainty="mean-field", **PAPER), train)
    missed = recovered(paper, simulation.truth, test, took)
    missed["score - ours"] = paper.score(test) - ntfa.score(test)
    return row, missed


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--paper-seeds", type=int, default=5, help="seeds to fit with the paper's settings too")
    options.add_argument("--threads", type=int, default=1)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    NTFA(n_factors=3, max_epochs=2).fit(simulate("synthetic", n_voxels=100).study)  # loads every library
    rows = {seed: one_seed(seed, seed < args.paper_seeds) for seed in range(args.seeds)}
    ours = pd.DataFrame({seed: row for seed, (row, _) in rows.items()}).T
    paper = pd.DataFrame({seed: row for seed, (_, row) in rows.items() if row is not None}).T
    show = {"float_format": "{:.3f}".format}
    print(f"collapsed NTFA, {args.threads} thread(s)\n{ours.to_string(**show)}\n")
    if len(paper):
        print(f"NTFA with the paper's settings\n{paper.to_string(**show)}\n")
    both = ((ours["groups"] == 1) & (ours["tasks"] == 1)).sum()
    wins = [(ours[f"NTFA - HTFA ({estimator})"] > 0).sum() for estimator in ("collapsed", "paper")]
    print(f"all groups and tasks separated: {both} of {len(ours)} seeds")
    print(f"centres: at most {ours['centres'].max():.2f} mm from the truth")
    print(f"error over the oracle's: mean {ours['error'].mean():.4f}, worst {ours['error'].max():.4f}")
    print(f"NTFA above HTFA: {wins[0]} (collapsed) and {wins[1]} (paper) of {len(ours)} seeds, with fewer parameters")
    print(f"seconds to convergence: median {ours['seconds'].median():.2f}, worst {ours['seconds'].max():.2f}")


if __name__ == "__main__":
    main()
