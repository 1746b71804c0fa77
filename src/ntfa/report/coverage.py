"""Who lacks which voxels, for the report: in words, in a table, and which factors lie there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.inference.factors import radial_basis
from ntfa.report.page import Table
from ntfa.study.checks import some

UNSEEN = 0.5
"""Share of a factor's energy that somebody must lack for it to be named."""
MOST_NAMED = 12
"""Factors that are named one by one."""


@dataclass(frozen=True)
class ShownCoverage:
    """What the page says of voxels that participants lack.

    sentences, warnings : in words; warnings name factors and participants
    table : one row per participant who lacks voxels
    """

    sentences: list[str]
    warnings: list[str]
    table: Table


def coverage_of(model: TopographicModel) -> ShownCoverage | None:
    """Say who lacks voxels; None if nobody does."""
    fitted = model._require_fitted()
    if not fitted.coverage:
        return None
    n, n_voxels = len(fitted.labels.participants), len(fitted.coordinates)
    table = coverage_rows(model)
    shared = int(np.logical_and.reduce(list(fitted.coverage.values())).sum())
    first = table.iloc[0]
    sentences = [
        f"{len(table):,} of {n:,} participants lack some of the {n_voxels:,} voxels, {first['participant']} the most "
        f"({first['lacked']:,}, {first['lacked'] / n_voxels:.1%}); {shared:,} voxels are everybody's. Each participant "
        "counts with the voxels they have: nothing is taken to be zero, and nothing is dropped for the others.",
        "Predicted maps are whole for everybody. Where a participant has no data they show what the others' responses, "
        "and this participant's elsewhere, lead one to expect.",
    ]
    return ShownCoverage(sentences, factors_in_words(unseen_factors(model)), Table.of(_as_shown(table), most=100))


def coverage_rows(model: TopographicModel) -> pd.DataFrame:
    """Count voxels, one row per participant who lacks some: `participant, voxels, lacked`, the most lacking first."""
    fitted = model._require_fitted()
    rows = [(label, int(seen.sum()), int((~seen).sum())) for label, seen in fitted.coverage.items()]
    table = pd.DataFrame(rows, columns=["participant", "voxels", "lacked"])
    return table.sort_values(["lacked", "participant"], ascending=[False, True], ignore_index=True)


def _as_shown(table: pd.DataFrame) -> pd.DataFrame:
    share = table["lacked"] / (table["voxels"] + table["lacked"])
    return table.assign(share=[f"{100 * value:.1f}%" for value in share])


def unseen_factors(model: TopographicModel) -> pd.DataFrame:
    """Factors that lie largely in what somebody lacks: `factor, x, y, z, participant, unseen`, shares of energy."""
    fitted = model._require_fitted()
    table, rows = model.factors_, []
    n_factors = fitted.n_factors
    for label, seen in fitted.coverage.items():
        own = table[table["participant"].astype(str) == label] if "participant" in table else table
        own = own.iloc[:n_factors]
        at = model._factors.loc[own.index]
        squares = radial_basis(fitted.positions, at[["x", "y", "z"]].to_numpy(), at["width"].to_numpy()) ** 2
        unseen = squares[:, ~seen].sum(1) / np.maximum(squares.sum(1), np.finfo(float).tiny)
        for row, share in zip(own.itertuples(), unseen, strict=True):
            if share >= UNSEEN:
                rows.append((row.factor, row.x, row.y, row.z, label, float(share)))
    return pd.DataFrame(rows, columns=["factor", "x", "y", "z", "participant", "unseen"])


def factors_in_words(unseen: pd.DataFrame) -> list[str]:
    """Name the factors, and who lacks them."""
    said = []
    for _, own in list(unseen.groupby("factor"))[:MOST_NAMED]:
        x, y, z = own[["x", "y", "z"]].mean().round().astype(int)
        said.append(
            f"Factor {own['factor'].iloc[0]} (at {x}, {y}, {z} mm) lies largely in what {some(own['participant'])} "
            f"{'lacks' if len(own) == 1 else 'lack'} ({own['unseen'].min():.0%} of it or more): weights there are "
            "known from others, not measured."
        )
    left = unseen["factor"].nunique() - len(said)
    return [*said, f"The same is true of {left} more factor(s)."] if left > 0 else said
