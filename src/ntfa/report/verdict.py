"""The verdict at the top of a report: what separates, how well unseen pairs are predicted, what is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.fitting.restarts import EMBEDDINGS, STABLE
from ntfa.report import words
from ntfa.report.design import Design
from ntfa.report.evidence import BASELINES, TOO_MANY, Evidence
from ntfa.report.frames import SpoiledFrames, frames_of
from ntfa.report.quality import Quality, quality_in_words
from ntfa.uncertainty.differences import spread

GOOD, MIXED, BAD, UNKNOWN = "good", "mixed", "bad", "unknown"
LOW_RELIABILITY = 0.3

CONFOUNDED = {
    "nested": (BAD, "people and stimuli confounded"),
    "sets apart": (MIXED, "sets cannot be compared"),
}
"""Limits of a design that a reader must know before anything is concluded; how bad they are, in a word or two."""


@dataclass(frozen=True)
class Finding:
    """One line of the verdict: what it is about, how it stands, a word or two, and a sentence."""

    about: str
    state: str
    word: str
    sentence: str


def verdict(
    model: TopographicModel, evidence: Evidence, quality: Quality | None, design: Design | None = None
) -> list[Finding]:
    """Say what a reader wants to know first, one finding per question."""
    found = [_separation(kind, getattr(model, attribute, None), model) for kind, attribute in words.TABLES.items()]
    size = _size(model._fitted.n_factors, evidence.supported)
    unseen, converged, data = _unseen(evidence.predictions), _fit(model), _data(quality, frames_of(model))
    return [one for one in (*_design(design), *found, size, unseen, converged, data) if one is not None]


def _design(design: Design | None) -> list[Finding]:
    """Say what limits all that follows: differences that this design cannot tell from others."""
    if design is None:
        return []
    return [
        Finding("Design", *CONFOUNDED[limit.kind], point)
        for limit, point in zip(design.limits, design.points, strict=True)
        if limit.kind in CONFOUNDED
    ]


def _size(n_factors: int, supported: int | None) -> Finding | None:
    """Say whether there are more factors than the data support; nothing where there are not."""
    if supported is None or n_factors <= TOO_MANY * supported:
        return None
    text = (
        f"There are {n_factors} factors, and the data support about {supported}: the fewest that predict images of "
        "left-out pairs as well as any number does. Conclusions may hang on this number; fit with --n-factors auto, "
        "and rely on what comes out both ways."
    )
    return Finding("Number of factors", MIXED, "more than the data support", text)


def _separation(kind: str, table: pd.DataFrame | None, model: TopographicModel) -> Finding | None:
    if table is None:
        return None
    sentence = words.separation_of(kind, table)
    if len(table) < 2:
        return Finding(kind.capitalize(), UNKNOWN, "only one", sentence)
    found, reliable = spread(table), _reliability(model, kind)
    if reliable is None:
        return Finding(kind.capitalize(), UNKNOWN, "not calibrated", f"{sentence} {words.not_calibrated(kind)}")
    sentence += f" {reliable:.0%} of the variance between {kind} is reliable, by split halves of the trials of each."
    if reliable < LOW_RELIABILITY:
        return Finding(kind.capitalize(), BAD, "unreliable", f"{sentence} Do not interpret their embeddings.")
    if words.clearly_separated(found):
        return Finding(kind.capitalize(), GOOD, "clearly separated", sentence)
    if words.share_adjusted(found) < words.FEW:
        return Finding(kind.capitalize(), BAD, "not separated", sentence)
    return Finding(kind.capitalize(), MIXED, "some separated", sentence)


def _reliability(model: TopographicModel, kind: str) -> float | None:
    """Share of the variance that is reliable; None where the uncertainty was not calibrated."""
    table = getattr(model, "calibration_", None)
    if model.fitted_params.get("uncertainty") != "calibrated" or table is None:
        return None
    known = table.dropna()
    return float(known.loc[kind, "reliability"]) if kind in known.index else None


def _unseen(table: pd.DataFrame | None) -> Finding | None:
    """Compare predictions of pairs that were held out with those of simple baselines."""
    if table is None or table.empty or not table["held_out"].all():
        text = (
            "No pairs were held out here, so how well unseen ones are predicted is not known. ntfa compare, or "
            "ntfa report --held-out, tells."
        )
        return Finding("Unseen pairs", UNKNOWN, "not measured", text)
    zero = table["mse_of_zero"].sum()
    own = table["mse"].sum() / zero
    known = {name: table[column].sum() / zero for column, name in BASELINES.items() if column in table}
    others = "; ".join(f"{error:.3f} for {name}" for name, error in known.items())
    best = min(known, key=lambda name: known[name]) if known else None
    text = (
        f"The squared error of the images predicted for {len(table):,} pairs held out from the fit is {own:.3f} of "
        f"that of predicting zero{f' ({others})' if others else ''}; their mean correlation with the recorded images "
        f"is {table['correlation'].mean():.2f}."
    )
    if own >= 1:
        # Baselines that fit noise are beaten by a model that predicts next to nothing: that is no success.
        return Finding("Unseen pairs", BAD, "no better than zero", text)
    if best is None:
        return Finding("Unseen pairs", GOOD, f"error {own:.2f}", text)
    text += f" {_better_for(table, best)}"
    word = "better than baselines" if own < known[best] else "no better than baselines"
    return Finding("Unseen pairs", GOOD if own < known[best] else BAD, word, text)


def _better_for(table: pd.DataFrame, best: str) -> str:
    column = next(column for column, name in BASELINES.items() if name == best)
    sums = table.groupby("participant")[["mse", column]].sum()
    better = int(np.sum(sums["mse"] < sums[column]))
    return f"It is smaller than the best of these in {better} of {len(sums)} participants."


def _fit(model: TopographicModel) -> Finding:
    if not model.converged_:
        text = "The fit was still improving when it stopped; increase --max-epochs before interpreting the results."
        return Finding("Fit", BAD, "not converged", text)
    restarts = getattr(model, "restarts_", None)
    compared = [name for name in EMBEDDINGS if restarts is not None and name in restarts]
    if restarts is not None and compared and restarts[compared].min().min() < STABLE:
        return Finding(
            "Fit", MIXED, "starts disagree", "Fits from other starts have other embeddings; see restarts.tsv."
        )
    return Finding("Fit", GOOD, "converged", "The bound stopped rising before the maximum number of steps.")


def _data(quality: Quality | None, frames: SpoiledFrames | None) -> Finding:
    of_frames = [] if frames is None or frames.runs is None else frames.sentences
    if quality is None:
        unknown = "What was kept and lost of every run is not recorded with the study."
        if frames is not None and frames.n_bad:
            return Finding("Data", MIXED, "many spoiled frames", " ".join([*of_frames, unknown]))
        return Finding("Data", UNKNOWN, "not known", " ".join([unknown, *of_frames]))
    bad = quality.n_problems + (0 if frames is None else frames.n_bad)
    sentence = " ".join([quality_in_words(quality), *of_frames])
    return Finding("Data", MIXED if bad else GOOD, f"{bad} to look at" if bad else "no problems", sentence)
