"""Does it interact? The report's section on what person and stimulus do not add up to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ntfa.analyses.interaction import interaction
from ntfa.analyses.intervals import mean_interval
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.ntfa import NTFA
from ntfa.report.page import Table

N_DRAWS, MOST_PAIRS = 20, 8


@dataclass(frozen=True)
class InteractionShown:
    """What the page shows: sentences, shares, and the pairs of whose interaction most is known."""

    sentences: list[str]
    shares: Table
    pairs: Table


def interaction_of(model: TopographicModel, predictions: pd.DataFrame | None) -> InteractionShown | None:
    """Work it out for the page; None for other models, and for one person or one stimulus."""
    if not isinstance(model, NTFA) or len(model.participants_) < 2 or len(model.stimuli_) < 2:
        return None
    found = interaction(model, n_draws=N_DRAWS)
    shares = found.shares.copy()
    for column in ("share", "ci_low", "ci_high"):
        shares[column] = shares[column].map("{:.1%}".format)
    pairs = found.pairs.head(MOST_PAIRS).copy()
    for column in ("size", "sd", "ratio"):
        pairs[column] = pairs[column].map("{:.3g}".format)
    return InteractionShown(
        [*found.sentences(), *held_out_in_words(predictions)],
        Table.of(shares.rename(columns={"ci_low": "from", "ci_high": "to"}), numbers=("share", "from", "to")),
        Table.of(pairs, numbers=("size", "sd", "ratio")),
    )


def held_out_in_words(predictions: pd.DataFrame | None) -> list[str]:
    """Compare errors of held-out pairs with those of additive images, where both are known."""
    if predictions is None or "mse_of_additive" not in predictions or not predictions["held_out"].all():
        return []
    known = predictions.dropna(subset=["mse", "mse_of_additive", "mse_of_zero"])
    if known.empty:
        return []
    sums = known.groupby("participant")[["mse", "mse_of_additive", "mse_of_zero"]].sum()
    gain = (sums["mse_of_additive"] - sums["mse"]) / sums["mse_of_zero"]
    row = mean_interval(gain, "gain")
    interval = f" ({row['ci_low']:.3f} to {row['ci_high']:.3f})" if np.isfinite(row["ci_low"]) else ""
    return [
        f"Against additive images of what was recorded, predictions of held-out pairs gained {row['gain']:.3f}"
        f"{interval} of the squared signal, and were better in {int((gain > 0).sum())} of {len(gain)} people."
    ]
