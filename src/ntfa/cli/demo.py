"""`ntfa demo`: the whole way from a simulated study to a report, with the truth to compare with."""

from __future__ import annotations

import argparse
from functools import cache
from itertools import chain, count
from pathlib import Path

import numpy as np
import pandas as pd

from ntfa.analyses.groups import FoundGroups, find_groups
from ntfa.cli.results import fit_to_folder, fitting_to
from ntfa.estimators import NTFA
from ntfa.estimators.saving import CONFIG_FILE
from ntfa.files.folders import refuse_existing
from ntfa.progress import stage
from ntfa.simulation import Truth, simulate
from ntfa.study import Study

DEFAULT = "ntfa-demo"


def run(args: argparse.Namespace) -> None:
    """Simulate, hold out, fit, report, and say what was found."""
    args.resume = False
    args.out = args.out or str(free_folder(Path(DEFAULT)))
    with fitting_to(Path(args.out)):
        _run(args)


def free_folder(wanted: Path) -> Path:
    """Return a folder that is not there yet: the one wanted, or with a number after its name."""
    numbered = (wanted.with_name(f"{wanted.name}-{i}") for i in count(2))
    return next(folder for folder in chain([wanted], numbered) if not folder.exists())


def _run(args: argparse.Namespace) -> None:
    refuse_existing(Path(args.out), args.overwrite, CONFIG_FILE)
    print("Simulating a study: 3 groups of participants, 2 categories of stimuli, 3 brain regions.")
    with stage("Simulating"):
        simulation = simulate("synthetic", random_state=args.seed)
    train, test = simulation.study.split("diagonal")
    print(f"{simulation.study}\nHolding out {test.n_trials} participant-stimulus pairs; fitting NTFA to the rest.")
    model = NTFA(n_factors=3, random_state=args.seed, verbose=0 if args.quiet else 1)
    said = cache(lambda: findings(model, simulation.truth, test))
    fit_to_folder(model, train, args, said, held_out=test, study_name="demo (simulated)")
    print(*said(), sep="\n")
    out = Path(args.out)
    print(f"Report: {out / 'report.html'}   Embeddings: {out / 'embeddings.png'}")
    print("Open the report in a browser. Your own data: ntfa bids --help")


def findings(model: NTFA, truth: Truth, test: Study) -> list[str]:
    """Say in plain words how the fit compares with what was simulated."""
    return [
        "The study is simulated, so results can be compared with the ground truth.",
        _groups("participants", find_groups(model.participants_), truth.participant_groups),
        _groups("stimuli", find_groups(model.stimuli_), truth.stimulus_categories),
        _factors(model, truth),
        _predictions(model, truth, test),
    ]


def _groups(kind: str, found: FoundGroups, truth: pd.Series) -> str:
    """Say what was found from the embeddings alone, how sure that is, and how it compares with the truth."""
    if found.n_clusters == 1:
        return f"By their embeddings alone the {kind} are all alike, but {truth.nunique()} groups were simulated."
    conclusion = "so these are groups" if found.n_groups > 1 else f"so {len(truth)} points are no proof of groups"
    agreement = found.agreement(truth)
    same = "exactly" if agreement == 1 else "not quite"
    return (
        f"By their embeddings alone the {kind} fall into {found.n_clusters} clusters (Ward's method, mean silhouette "
        f"{found.silhouette:.2f}); {found.p_value:.1%} of clouds without groups look as clustered, {conclusion}. "
        f"The clusters are {same} the {truth.nunique()} groups simulated (adjusted Rand index {agreement:.2f})."
    )


def _factors(model: NTFA, truth: Truth) -> str:
    mean = model.factors_.groupby("factor")[["x", "y", "z"]].mean().to_numpy()
    distance = np.linalg.norm(mean[:, None] - truth.centers[None], axis=-1).min(1)
    places = "; ".join(f"({x:.0f}, {y:.0f}, {z:.0f})" for x, y, z in mean)
    return f"The factors are centred at {places} mm, at most {distance.max():.1f} mm from the true centres."


def _predictions(model: NTFA, truth: Truth, test: Study) -> str:
    trials = test.trials
    observed = test.mean_images()
    pairs = zip(trials["participant"], trials["stimulus"], strict=True)
    true = np.stack([truth.mean_image(participant, stimulus) for participant, stimulus in pairs])
    error = {
        "NTFA": np.mean((observed - model.predict(trials)) ** 2),
        "the true mean image": np.mean((observed - true) ** 2),
        "zero": np.mean(observed**2),
    }
    shown = ", ".join(f"{value:.5f} for {name}" for name, value in error.items())
    return f"Mean squared error of the predicted images of the {len(trials)} held-out pairs: {shown}."
