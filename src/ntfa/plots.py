"""Pictures of a fitted model; every function draws into Axes it is given or makes, and returns them."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse

from ntfa.errors import ModelError

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
# A share q of a two-dimensional normal lies within sqrt(-2 log(1 - q)) standard deviations.
SHARES = (0.5, 0.95)


def plot_embeddings(
    embeddings: pd.DataFrame,
    groups: pd.Series | None = None,
    *,
    dimensions: tuple[int, int] = (1, 2),
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw embeddings: a cross at each posterior mean, ellipses that hold 50% and 95% of the posterior.

    Parameters
    ----------
    embeddings : DataFrame
        `participants_` or `stimuli_` of a fitted model.
    groups : Series, optional
        A group for each label, shown by colour.
    dimensions : pair of int
        Which dimensions to show; a one-dimensional embedding is shown against its rank.
    """
    ax = ax or plt.subplots(figsize=(5, 5), layout="constrained")[1]
    first, second = dimensions
    if "z2" not in embeddings and dimensions == (1, 2):
        embeddings = _against_rank(embeddings)
    for dimension in dimensions:
        if f"z{dimension}" not in embeddings:
            raise ModelError(f"dimensions={dimensions}: the embeddings have no dimension {dimension}")
    names = pd.Series("", index=embeddings.index) if groups is None else groups.loc[embeddings.index].astype(str)
    for colour, (name, rows) in zip(_cycle(names.nunique()), embeddings.groupby(names), strict=True):
        ax.plot(rows[f"z{first}"], rows[f"z{second}"], "+", color=colour, ms=8, mew=1.8, label=_literal(name) or None)
        for label, row in rows.iterrows():
            _add_ellipses(ax, row, dimensions, colour)
            place = (row[f"z{first}"], row[f"z{second}"])
            ax.annotate(_literal(label), place, xytext=(4, 4), textcoords="offset points", fontsize=7, color="0.25")
    if groups is not None:
        ax.legend(frameon=False, fontsize=8)
    ax.set(xlabel=f"z{first}", ylabel=f"z{second}", title=title)
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.15)
    return ax


def plot_bound(history: pd.DataFrame, n_data: int, *, ax: Axes | None = None) -> Axes:
    """Draw the bound in nats a datum over the steps of a fit; the start is cut off where it would hide the rest."""
    ax = ax or plt.subplots(figsize=(6, 3), layout="constrained")[1]
    bound = history["bound"] / n_data
    ax.plot(history["step"], bound, color=COLOURS[0], lw=1)
    settled = bound.iloc[len(bound) // 10 :]
    margin = 0.08 * (settled.max() - settled.min()) + 1e-9
    ax.set_ylim(settled.min() - margin, settled.max() + margin)
    ax.set(xlabel="step", ylabel="bound (nats a datum)")
    ax.ticklabel_format(axis="y", useOffset=False)
    return ax


def plot_factors(
    factors: pd.DataFrame, coordinates: np.ndarray, *, axes: Sequence[Axes] | None = None
) -> Sequence[Axes]:
    """Draw factors, averaged over participants, as circles of their 1/e radius on the brain's three projections.

    Parameters
    ----------
    factors : DataFrame
        `factors_` of a fitted model.
    coordinates : array of shape (V, 3)
        Voxels, shown as the brain's shadow.
    """
    if axes is None:
        axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")[1]
    mean = factors.groupby("factor")[["x", "y", "z", "width"]].mean()
    views = (("y", "z", "sagittal"), ("x", "z", "coronal"), ("x", "y", "axial"))
    for ax, (across, up, title) in zip(axes, views, strict=True):
        shadow = np.unique(coordinates[:, ["xyz".index(across), "xyz".index(up)]], axis=0)
        ax.plot(*shadow.T, "s", color="0.9", ms=3, zorder=0)
        for colour, (factor, row) in zip(_cycle(len(mean)), mean.iterrows(), strict=True):
            place = (row[across], row[up])
            ax.add_patch(Ellipse(place, 2 * row["width"], 2 * row["width"], fill=False, ec=colour, lw=1.2))
            if len(mean) <= 20:
                ax.annotate(str(factor), place, ha="center", va="center", fontsize=8, color=colour)
        ax.set(xlabel=f"{across} (mm)", ylabel=f"{up} (mm)", title=title)
        ax.set_aspect("equal")
    return axes


def _against_rank(embeddings: pd.DataFrame) -> pd.DataFrame:
    rank = embeddings["z1"].rank(method="first")
    return embeddings.assign(z2=(rank - rank.mean()) / max(len(rank), 1), z2_sd=1e-6)


def _add_ellipses(ax: Axes, row: pd.Series, dimensions: tuple[int, int], colour: str) -> None:
    first, second = dimensions
    for share in SHARES:
        radius = 2 * np.sqrt(-2 * np.log(1 - share))
        size = (radius * row[f"z{first}_sd"], radius * row[f"z{second}_sd"])
        centre = (row[f"z{first}"], row[f"z{second}"])
        ax.add_patch(Ellipse(centre, *size, color=colour, alpha=0.15, lw=0))


def _literal(text: object) -> str:
    """Keep matplotlib from reading dollar signs in a label as mathematics."""
    return str(text).replace("$", r"\$")


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]
