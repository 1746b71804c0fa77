"""`ntfa demo`: the whole way from a simulated study to a report, with the truth to compare with."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ntfa.analyses.separation import Separation, separation
from ntfa.cli.results import fit_to_folder, fitting_to
from ntfa.estimators import NTFA
from ntfa.estimators.saving import MARK
from ntfa.files.folders import refuse_existing
from ntfa.simulation import Truth, simulate
from ntfa.study import Study


def run(args: argparse.Namespace) -> None:
    """Simulate, hold out, fit, report, and say what was found."""
    args.resume = False
    with fitting_to(Path(args.out)):
        _run(args)


def _run(args: argparse.Namespace) -> None:
    refuse_existing(Path(args.out), args.overwrite, MARK)
    print("Simulating a study: 3 groups of participants, 2 categories of stimuli, 3 brain regions.")
    simulation = simulate("synthetic", random_state=args.seed)
    train, test = simulation.study.split("diagonal")
    print(f"{simulation.study}\nHolding out {test.n_trials} participant-stimulus pairs; fitting NTFA to the rest.")
    model = NTFA(n_factors=3, random_state=args.seed, verbose=0 if args.quiet else 1)
    fit_to_folder(model, train, args, lambda: findings(model, simulation.truth, test), held_out=test)
    print(*findings(model, simulation.truth, test), sep="\n")
    out = Path(args.out)
    print(f"Report: {out / 'report.html'}   Embeddings: {out / 'embeddings.png'}")


def findings(model: NTFA, truth: Truth, test: Study) -> list[str]:
    """Say in plain words how the fit compares with what was simulated."""
    return [
        "The study is simulated, so results can be compared with the ground truth.",
        _groups("participants", separation(model.participants_, truth.participant_groups)),
        _groups("stimuli", separation(model.stimuli_, truth.stimulus_categories)),
        _factors(model, truth),
        _predictions(model, truth, test),
    ]


def _groups(kind: str, found: Separation) -> str:
    exactly = "exactly as simulated" if found.agreement == 1 else "not all as simulated"
    return f"The {kind} fall into {found.n_groups} groups, {exactly} (adjusted Rand index {found.agreement:.2f})."


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
