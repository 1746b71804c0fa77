"""A fit in plain words: what came out of it, and what deserves a look."""

from __future__ import annotations

import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.saving import summary
from ntfa.uncertainty.differences import LEVEL, Spread, spread

TABLES = {"participants": "participants_", "stimuli": "stimuli_"}
# A spread of the means this many times their uncertainty, and this share of pairs apart, is called clear.
CLEAR_RATIO, CLEAR_SHARE, FEW = 2.0, 0.5, 0.05


def in_words(model: TopographicModel) -> list[str]:
    """Say what was fitted, to what, and whether it converged."""
    numbers = summary(model)
    ended = "converged" if numbers["converged"] else "stopped at the most steps allowed, before it converged,"
    return [
        f"{numbers['model']} with {numbers['n_factors']} factors was fitted to {numbers['n_trials']:,} trials of "
        f"{numbers['n_participants']:,} participants and {numbers['n_stimuli']:,} stimuli, "
        f"{numbers['n_voxels']:,} voxels.",
        f"The fit {ended} after {numbers['n_steps']:,} steps and {numbers['seconds']:.1f} s, at a bound of "
        f"{numbers['bound_per_datum']:.5f} nats per observation; the noise has a standard deviation of "
        f"{numbers['noise_sd']:.4g}.",
    ]


def separation_in_words(model: TopographicModel) -> list[str]:
    """Say whether participants and stimuli lie further apart than they are uncertain; nothing without embeddings."""
    tables = {kind: getattr(model, attribute, None) for kind, attribute in TABLES.items()}
    sentences = [_separation(kind, table) for kind, table in tables.items() if table is not None]
    return sentences + (_how_certain(model) if isinstance(model, NTFA) else [])


def _how_certain(model: NTFA) -> list[str]:
    """Say where the uncertainty is from, and how much of what separates is noise."""
    if model.fitted_params.get("uncertainty") != "calibrated":
        return [
            "These uncertainties are the fit's own, which are too small, often several times: identical participants "
            'would seem to differ. Fit with uncertainty="calibrated" before drawing conclusions from them.'
        ]
    known = model.calibration_.dropna()
    said = [
        f"{share:.0%} of the variance between {kind} is more than noise, by halves of the trials of each"
        for kind, share in known["reliability"].items()
    ]
    doubtful = [str(kind) for kind in TABLES if kind not in known.index]
    sentences = [f"{'; '.join(said)}: two that are identical would differ in about 5% of cases."] if said else []
    for kind in doubtful:
        sentences.append(
            f"There were too few {kind} with trials enough to be halved, so that their uncertainty is the fit's own, "
            "which is too small."
        )
    return sentences


def _separation(kind: str, table: pd.DataFrame) -> str:
    if len(table) < 2:
        return f"There is only one of the {kind}, so nothing can be said of how {kind} differ."
    found = spread(table)
    return (
        f"{_verdict(kind, found)}: {found.n_apart:,} of {found.n_pairs:,} pairs ({found.share_apart:.0%}) differ at a "
        f"credible level of {LEVEL:.0%}, and the spread of their means is {found.ratio:.1f} times their mean posterior "
        "standard deviation."
    )


def _verdict(kind: str, found: Spread) -> str:
    if found.share_apart >= CLEAR_SHARE and found.ratio >= CLEAR_RATIO:
        return f"The {kind} separate clearly more than their uncertainty"
    if found.share_apart < FEW:
        return f"The {kind} do not separate more than their uncertainty"
    return f"Some of the {kind} separate more than their uncertainty"


def what_to_look_at(model: TopographicModel, *, with_quality: bool) -> list[str]:
    """Say what deserves a look next, in order."""
    advice = []
    if not model.converged_:
        advice.append(
            "The fit had not converged: see the curve under Convergence, and fit with more --max-epochs before "
            "reading much into the rest."
        )
    if hasattr(model, "participants_"):
        advice.append(
            "Colour the embeddings by each label you know (group, category, scanner, site): a label of no interest "
            "that explains the picture is a warning."
        )
    advice.append("Check that factors lie in the brain and that few sit at its edge, where motion shows.")
    if with_quality:
        advice.append("See under Data quality whether a participant who stands apart also lost many frames.")
    return advice
