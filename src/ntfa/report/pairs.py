"""Statistics of every pair of participants or of stimuli: what the page shows of two that are compared, and a table.

A statistic that is added to `pair_statistics` appears on the page and in the table; nothing else need change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.uncertainty.differences import difference_matrix
from ntfa.uncertainty.moments import moments

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairStatistic:
    """One number for every pair.

    key : its column in the table
    name : what the page calls it
    format : how the page writes it: "level" as a percentage, "p" as a p-value, "number" as it is
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
    if covariances is None:
        return []
    levels = difference_matrix(embeddings).to_numpy()
    return [PairStatistic("level", "Largest credible level at which they differ", "level", levels)]


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
    return [row[:i].tolist() for i, row in enumerate(np.round(values, 5))]
