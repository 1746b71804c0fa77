"""Statistics of every pair of participants or of stimuli: what the page shows of two that are compared, and a table.

A statistic that is added to `pair_statistics` appears on the page and in the table; nothing else need change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.uncertainty.differences import adjusted, difference_matrix, differences
from ntfa.uncertainty.moments import moments

Floats = NDArray[np.float64]

STATISTICS = ("p", "p_adjusted", "effect", "effect_low", "effect_high")
P_NAME = "p-value, were they alike"
ADJUSTED_NAME = "adjusted for the number of pairs"
EFFECT_NAME = "Effect size, in units of noise"
# Intervals of effect sizes take a search each: seconds for so many labels, minutes for more.
MOST_WITH_EFFECTS = 150


@dataclass(frozen=True)
class PairStatistic:
    """One number for every pair.

    key : its column in the table
    name : what the page calls it
    format : how the page writes it: "p" as a p-value, "number" as it is
    values : [n, n], symmetric
    low, high : [n, n], ends of an interval, if there is one
    """

    key: str
    name: str
    format: str
    values: Floats
    low: Floats | None = None
    high: Floats | None = None

    def as_page_data(self) -> dict[str, Any]:
        """Return each label's values with those before it."""
        ends = {"low": self.low, "high": self.high}
        rows = {name: None if end is None else _lower(end) for name, end in ends.items()}
        return {"key": self.key, "name": self.name, "format": self.format, "rows": _lower(self.values), **rows}


def pair_statistics(embeddings: pd.DataFrame) -> list[PairStatistic]:
    """Work out what is known of every pair; nothing for point estimates, which have no uncertainty."""
    _, covariances = moments(embeddings)
    if covariances is None or len(embeddings) < 2:
        return []
    if len(embeddings) > MOST_WITH_EFFECTS:
        return _without_effects(embeddings)
    table = differences(embeddings)
    place = {label: i for i, label in enumerate(embeddings.index)}
    where = table["a"].map(place).to_numpy(), table["b"].map(place).to_numpy()
    square = {column: _square(table[column].to_numpy(), where, len(place)) for column in STATISTICS}
    return [
        PairStatistic("p", P_NAME, "p", square["p"]),
        PairStatistic("p_adjusted", ADJUSTED_NAME, "p", square["p_adjusted"]),
        PairStatistic("effect", EFFECT_NAME, "number", square["effect"], square["effect_low"], square["effect_high"]),
    ]


def _without_effects(embeddings: pd.DataFrame) -> list[PairStatistic]:
    """Work out p-values alone, which take no search."""
    p = 1 - difference_matrix(embeddings).to_numpy()
    upper = np.triu_indices(len(p), 1)
    corrected = _square(adjusted(p[upper]), upper, len(p))
    return [PairStatistic("p", P_NAME, "p", p), PairStatistic("p_adjusted", ADJUSTED_NAME, "p", corrected)]


def _square(values: Floats, where: tuple[Any, Any], size: int) -> Floats:
    """Put values of pairs into a symmetric matrix [n, n], with ones on its diagonal, which nobody reads."""
    square = np.ones((size, size))
    square[where], square[where[::-1]] = values, values
    return square


def pair_table(embeddings: pd.DataFrame) -> pd.DataFrame:
    """Put distance and statistics of every pair into a table, one row per pair."""
    means, _ = moments(embeddings)
    first, second = np.triu_indices(len(embeddings), 1)
    columns: dict[str, Any] = {
        "first": embeddings.index[first],
        "second": embeddings.index[second],
        "distance": np.linalg.norm(means[first] - means[second], axis=1),
    }
    for one in pair_statistics(embeddings):
        columns[one.key] = one.values[first, second]
        for end, values in (("low", one.low), ("high", one.high)):
            if values is not None:
                columns[f"{one.key}_{end}"] = values[first, second]
    return pd.DataFrame(columns)


def _lower(values: Floats) -> list[list[float]]:
    # Four digits of each: a p-value of one in a million is no zero.
    return [[float(f"{value:.4g}") for value in row[:i]] for i, row in enumerate(values)]
