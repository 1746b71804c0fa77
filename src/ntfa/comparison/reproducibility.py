"""What comes out again: distances between halves of the data, errors against the noise floor, identification."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from ntfa.analyses.reproducibility import (
    Ratio,
    distance_agreement,
    error_over_zero,
    noise_floor,
    summarise_halvings,
    summarise_identification,
)
from ntfa.comparison.figures import save_figure
from ntfa.comparison.fits import Fits
from ntfa.comparison.halves import HALVINGS, Halving, halves_of, look_at_half
from ntfa.comparison.identification import identification
from ntfa.comparison.image_baselines import TELLING
from ntfa.comparison.notes import NotPossible
from ntfa.errors import StudyError
from ntfa.plots import plot_intervals
from ntfa.simulation import Truth

logger = logging.getLogger("ntfa")

FLOOR = "noise floor"
BY = ["distances", "halves"]


def reproducibility(fits: Fits, folder: Path, truth: Truth | None) -> None:
    """Write tables of distances, errors and identification, of what is left out and why, and two figures."""
    left_out = _write_distances(fits, folder) | _write_predictions(fits, folder)
    if not any(folder.glob("*.tsv")):
        raise NotPossible("; ".join(f"{what}: {reason}" for what, reason in left_out.items()))
    table = pd.DataFrame({"what": list(left_out), "reason": list(left_out.values())})
    table.to_csv(folder / "left_out.tsv", sep="\t", index=False)


def _write_distances(fits: Fits, folder: Path) -> dict[str, str]:
    """Compare distances between halves; return what is not possible, and why."""
    rows: list[dict[str, Any]] = []
    left_out = {}
    for way in HALVINGS:
        try:
            rows += _halvings(fits, way)
        except StudyError as error:
            logger.warning("distances between %s left out: %s", way.question, error)
            left_out[f"Distances between {way.question}"] = str(error)
    if rows:
        table = pd.DataFrame(rows)
        summary = summarise_halvings(table, BY)
        table.to_csv(folder / "halvings.tsv", sep="\t", index=False)
        summary.to_csv(folder / "distances.tsv", sep="\t", index=False)
        if len(summary):
            shown = summary.assign(question=summary["distances"] + ", halves of the " + summary["halves"])
            ylabel = "rank correlation of distances"
            drawn = plot_intervals(shown, "correlation", by="question", ends=("low", "high"), line=0, ylabel=ylabel)
            save_figure(drawn, folder / "distances")
    return left_out


def _halvings(fits: Fits, way: Halving) -> list[dict[str, Any]]:
    """Agreement of every method's distances, halving by halving."""
    found = iter([look_at_half(fits, half) for half in halves_of(fits, way)])
    rows = []
    for number, (one, other) in enumerate(zip(found, found, strict=True), 1):
        named = {"distances": {"participant": "participants", "stimulus": "stimuli"}[way.kind], "halves": way.what}
        for method in one:
            if method in other:
                agreement = distance_agreement(one[method], other[method])
                rows.append({**named, "halving": number, "method": method, "correlation": agreement})
    return rows


def _write_predictions(fits: Fits, folder: Path) -> dict[str, str]:
    """Compare predictions of held-out pairs with these and with the noise floor; return what is not possible."""
    try:
        train, test = fits.split
    except NotPossible as reason:
        return {"Predictions of held-out pairs": str(reason)}
    models = {"NTFA": fits.on_train("ntfa")} | {
        name: model for name, model in fits.image_baselines.items() if name in TELLING
    }
    observed, who = test.mean_images(), test.trials["participant"].tolist()
    ratios = {name: error_over_zero(observed, model.predict(test.trials), who) for name, model in models.items()}
    floor = noise_floor(observed, who, test.trials["stimulus"].tolist())
    _error_table(ratios, floor).to_csv(folder / "errors.tsv", sep="\t", index=False)
    cells = identification(models, train, test)
    summary = summarise_identification(cells)
    cells.to_csv(folder / "cells.tsv", sep="\t", index=False)
    summary.to_csv(folder / "identification.tsv", sep="\t", index=False)
    ylabel = "share of others that are less near"
    save_figure(plot_intervals(summary, "nearer", by="among", line=0.5, ylabel=ylabel), folder / "identification")
    if floor is None:
        return {"The noise floor": "no participant has two held-out trials of one stimulus"}
    return {}


def _error_table(ratios: dict[str, Ratio], floor: Ratio | None) -> pd.DataFrame:
    """Errors over zero's, and the share of what could be predicted that was."""
    known = ratios | ({FLOOR: floor} if floor is not None else {})
    table = pd.DataFrame([{"method": name, **asdict(ratio)} for name, ratio in known.items()])
    table = table.rename(columns={"value": "error", "n": "n_participants"})
    least = floor.value if floor is not None else float("nan")
    table["share_reached"] = (1 - table["error"]) / (1 - least) if least < 1 else float("nan")
    return table
