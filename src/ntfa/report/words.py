"""A fit in plain words: what came out of it, and what deserves a look."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.saving import summary
from ntfa.study.greyordinates import Greyordinates
from ntfa.uncertainty.differences import LEVEL, Spread, spread

TABLES = {"participants": "participants_", "stimuli": "stimuli_"}
# Means whose spread is this many times their uncertainty, this share of pairs differing, are called clearly separated.
CLEAR_RATIO, CLEAR_SHARE, FEW = 2.0, 0.5, 0.05


def fit_in_words(model: TopographicModel) -> list[str]:
    """Say what was fitted, to what, and whether it converged."""
    numbers = summary(model)
    ended = "converged" if numbers["converged"] else "reached the maximum number of steps before converging,"
    return [
        f"{numbers['model']} with {numbers['n_factors']} factors was fitted to {numbers['n_trials']:,} trials of "
        f"{numbers['n_participants']:,} participants and {numbers['n_stimuli']:,} stimuli, "
        f"{numbers['n_voxels']:,} voxels.",
        f"The fit {ended} after {numbers['n_steps']:,} steps and {numbers['seconds']:.1f} s, at a bound of "
        f"{numbers['bound_per_datum']:.5f} nats per observation; the noise has a standard deviation of "
        f"{numbers['noise_sd']:.4g}.",
        *surfaces_in_words(model),
        *_choice_in_words(numbers),
        *_number_in_words(model),
    ]


def surfaces_in_words(model: TopographicModel) -> list[str]:
    """Say where vertices of cortex have their places from, and what distance is; nothing of a volume."""
    space = model.mask_img_
    if not isinstance(space, Greyordinates) or not space.n_vertices:
        return []
    n_voxels = len(space) - space.n_vertices
    rest = f", and the other {n_voxels:,} are voxels, with factors of their own in the volume" if n_voxels else ""
    distance = (
        "Factors of cortex are round over the sphere of their hemisphere (great circle), scaled to the area of the "
        "cortex, and so do not reach across a sulcus"
        if space.is_on_sphere
        else "Distances are straight lines, also across a sulcus"
        + ("" if space.surfaces.have_spheres else ", because no sphere was named")
    )
    return [
        f"Of these, {space.n_vertices:,} are vertices of the cortical surface, with places in mm from "
        f"{space.surfaces.source}{rest}. {distance}."
    ]


def _choice_in_words(numbers: dict[str, Any]) -> list[str]:
    """Say which response model was taken, and why; nothing of models that have one only."""
    if "response" not in numbers:
        return []
    of_participants, of_stimuli = numbers["embedding_dim"]
    meaning = {
        "loadings": "Participants differ in their loadings, on factors in the same places for all",
        "network": "Participants differ in places and weights of factors, by the networks of the paper",
    }[numbers["response"]]
    why = f": {numbers['reason']}" if numbers["reason"] else ""
    return [
        f"{meaning}{why}. Embeddings have {of_participants} dimensions for participants and {of_stimuli} for stimuli."
    ]


def _number_in_words(model: TopographicModel) -> list[str]:
    """Say why there are so many factors, where the data chose."""
    sizing = model._choice.sizing if isinstance(model, NTFA) else {}
    return [f"{model._fitted.n_factors} factors are {sizing['reason']}."] if sizing else []


def certainty_in_words(model: TopographicModel) -> list[str]:
    """Say how the uncertainty of embeddings was estimated; nothing without embeddings."""
    return _how_certain(model) if isinstance(model, NTFA) else []


def _how_certain(model: NTFA) -> list[str]:
    """Say how the uncertainty was estimated, and how reliable differences are."""
    if model.fitted_params.get("uncertainty") != "calibrated":
        return [
            "These uncertainties were not calibrated and are too small, often by a factor of several: identical "
            'participants would seem to differ. Fit with uncertainty="calibrated" before drawing conclusions from them.'
        ]
    known = [str(kind) for kind in model.calibration_.dropna().index]
    sentences = []
    if known:
        sentences.append(
            f"Uncertainties were calibrated by split halves: identical {' or '.join(known)} would be found to differ "
            "in about 5% of cases."
        )
    for kind in (str(kind) for kind in TABLES if kind not in known):
        sentences.append(
            f"Too few {kind} had enough trials to be split into halves, so the uncertainty of {kind} is not calibrated "
            "and too small."
        )
    return sentences


def not_calibrated(kind: str) -> str:
    """Say what that means, in a sentence."""
    return f"The uncertainty of {kind} was not calibrated and is too small: identical {kind} would seem to differ."


def separation_of(kind: str, table: pd.DataFrame) -> str:
    """Say whether embeddings of one kind differ by more than their uncertainty."""
    if len(table) < 2:
        return f"With only one of the {kind}, nothing can be concluded about differences between {kind}."
    found = spread(table)
    return (
        f"{_verdict(kind, found)}: {found.n_apart_adjusted:,} of {found.n_pairs:,} pairs "
        f"({share_adjusted(found):.0%}) differ at a false discovery rate of {1 - LEVEL:.0%} ({found.n_apart:,} with "
        f"p <= {1 - LEVEL:.2f} each by itself), and the spread of their means is {found.ratio:.1f} times their mean "
        "posterior standard deviation."
    )


def clearly_separated(found: Spread) -> bool:
    """Whether most pairs differ, and the spread of means is well above their uncertainty."""
    return share_adjusted(found) >= CLEAR_SHARE and found.ratio >= CLEAR_RATIO


def share_adjusted(found: Spread) -> float:
    """Share of pairs that differ after adjusting for their number; 0 if there is no pair."""
    return found.n_apart_adjusted / found.n_pairs if found.n_pairs else 0.0


def _verdict(kind: str, found: Spread) -> str:
    if clearly_separated(found):
        return f"The {kind} are clearly separated"
    if share_adjusted(found) < FEW:
        return f"The {kind} are not separated beyond their uncertainty"
    return f"Some of the {kind} are separated"


def what_to_look_at(model: TopographicModel, *, with_quality: bool) -> list[str]:
    """Say what deserves a look next, in order."""
    advice = []
    if not model.converged_:
        advice.append(
            "The fit had not converged: see the curve under Convergence, and increase --max-epochs before "
            "interpreting the results."
        )
    if hasattr(model, "participants_"):
        advice.append(
            "Colour the embeddings by each known label (group, category, scanner, site): if a nuisance label explains "
            "the picture, be careful with conclusions."
        )
    advice.append("Check that factors lie inside the brain, and that few lie at its edge, where motion artefacts are.")
    if with_quality:
        advice.append("Check under Data quality whether participants who are outliers lost many frames.")
    return advice
