"""Do fits from other starts come to the same embeddings?"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.inference.normal import NormalPosterior
from ntfa.models.module import TopographicModule

logger = logging.getLogger("ntfa")

EMBEDDINGS = {"participants": "z_participant", "stimuli": "z_stimulus"}
STABLE = 0.8
"""Correlation of embeddings under which a fit from another start is said to disagree."""


def aligned_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Correlation of two embeddings [n, D] of the same things, after the best shift, turn, reflection and scaling.

    It is 1 if they are the same picture seen from elsewhere, and, for many points, near 0 if they have nothing to do
    with each other; for few points it is well above 0 by chance.
    """
    one, other = one - one.mean(0), other - other.mean(0)
    size = np.linalg.norm(one) * np.linalg.norm(other)
    return float(np.linalg.svd(one.T @ other, compute_uv=False).sum() / size) if size > 0 else 0.0


def compare_starts(modules: Sequence[TopographicModule], bounds: Sequence[float]) -> pd.DataFrame | None:
    """Compare fits from several starts, and warn if they disagree; None of one start."""
    if len(modules) == 1:
        return None
    table = restart_table(modules, bounds)
    warn_if_unstable(table)
    return table


def restart_table(modules: Sequence[TopographicModule], bounds: Sequence[float]) -> pd.DataFrame:
    """One row per start: its bound, whether it was kept, and how its embeddings correlate with the kept one's."""
    kept = bounds.index(max(bounds))
    table = pd.DataFrame({"bound": bounds, "kept": [i == kept for i in range(len(bounds))]})
    table.index = pd.RangeIndex(1, len(bounds) + 1, name="restart")
    for name, attribute in EMBEDDINGS.items():
        if hasattr(modules[kept], attribute):
            best = _means(modules[kept], attribute)
            table[name] = [aligned_correlation(best, _means(module, attribute)) for module in modules]
    return table


def warn_if_unstable(table: pd.DataFrame) -> None:
    """Warn of embeddings that other starts did not come to."""
    for name in (name for name in EMBEDDINGS if name in table):
        apart = table.index[table[name] < STABLE].tolist()
        if apart:
            logger.warning(
                "the embedding of %s is not stable: start %s gave one whose correlation with the kept one is %.2f; "
                "see restarts_",
                name,
                " and ".join(map(str, apart)),
                table.loc[apart, name].min(),
            )


def _means(module: TopographicModule, attribute: str) -> NDArray[np.float64]:
    posterior = getattr(module, attribute)
    assert isinstance(posterior, NormalPosterior)
    return np.asarray(posterior.mean.detach().cpu().numpy(), dtype=np.float64)
