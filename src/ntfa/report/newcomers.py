"""What a report says of participants and stimuli that were added to a fit."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.newcomers import count_in_words
from ntfa.report.page import Table
from ntfa.study.checks import some

MOST_ROWS = 60


@dataclass(frozen=True)
class ShownNewcomers:
    """Sentences, a table of who was added, and one of other sessions of known participants, if there are any."""

    sentences: list[str]
    table: Table
    retests: Table | None


def newcomers_of(model: TopographicModel) -> ShownNewcomers | None:
    """Return what is to be shown of who was added; None if nobody was."""
    table: pd.DataFrame | None = getattr(model, "newcomers_", None)
    if table is None:
        return None
    retests: pd.DataFrame = model.retests_
    shown = table.rename(columns={"session_of": "session of", "n_trials": "trials", "p_data": "p of data"})
    shown = shown.rename(columns={"p_place": "p of place", "density": "log density per observation"})
    shown = shown.assign(outside=["yes" if one else "no" for one in table["outside"]])
    shown = shown.assign(**{"session of": [first or "" for first in shown["session of"]]})
    as_table = None if retests.empty else Table.of(retests.rename(columns=_plain), MOST_ROWS)
    return ShownNewcomers(newcomers_in_words(table, retests), Table.of(shown, MOST_ROWS), as_table)


def _plain(column: str) -> str:
    return column.replace("_", " ")


def newcomers_in_words(table: pd.DataFrame, retests: pd.DataFrame) -> list[str]:
    """Say who was added, who is outside of what the model has seen, and whose sessions differ."""
    counts = [int((table["kind"] == kind).sum()) for kind in ("participant", "stimulus")]
    sentences = [
        f"{count_in_words(*counts)} {'was' if len(table) == 1 else 'were'} added to the fit. All that is shared, and "
        "everybody who was in the fit, stayed as fitted."
    ]
    outside = table["label"][table["outside"]].tolist()
    if outside:
        sentences.append(
            f"Outside of what the model has seen: {some(outside)}. Their data are much less, or more, probable than "
            "those of the fit, or their place is far from all others; do not rely on where they are placed."
        )
    elif table["p_data"].notna().any() or table["p_place"].notna().any():
        sentences.append("None of them is outside of what the model has seen.")
    if len(retests):
        apart = int((retests["p"] < 0.05).sum())
        sentences.append(
            f"Of {len(retests):,} other session{'s' if len(retests) > 1 else ''} of participants in the fit, {apart:,} "
            "differ from the first (p < 0.05)."
        )
    return sentences
