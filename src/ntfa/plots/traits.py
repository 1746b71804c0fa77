"""Embeddings and a column that they may go with: groups with their centres, a number with its direction."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from ntfa.plots.colouring import Colouring, colouring, marker
from ntfa.plots.embeddings import plot_embeddings
from ntfa.plots.flattening import Flat, flatten, flatten_ranked
from ntfa.plots.labels import add_labels
from ntfa.plots.style import own_or_new, shown
from ntfa.uncertainty.moments import moments

# The share of a normal distribution within this many standard deviations is 95%.
REACH = 1.959964
MOST_LABELLED = 40


def plot_trait(embeddings: pd.DataFrame, values: pd.Series, *, ax: Axes | None = None) -> Axes:
    """Draw embeddings coloured by a column: diamonds at groups' centres, or an arrow from low to high numbers.

    One dimension is shown against its rank with lines at the means of groups, or against the number itself.

    Parameters
    ----------
    embeddings : DataFrame
        `participants_` or `stimuli_` of a fitted model.
    values : Series
        A text or a number for each of them.
    """
    numeric = pd.api.types.is_numeric_dtype(values)
    if "z2" not in embeddings and numeric:
        return _plot_against(embeddings, values, own_or_new(ax, (5.5, 4.5)))
    ax = plot_embeddings(embeddings, values, labels=len(embeddings) <= MOST_LABELLED, ax=ax)
    if "z2" not in embeddings:
        _draw_means(ax, flatten_ranked(embeddings), values, colouring(embeddings.index, values))
    elif numeric:
        _draw_direction(ax, flatten(embeddings, None), values)
    else:
        _draw_centres(ax, flatten(embeddings, None), values, colouring(embeddings.index, values))
    return ax


def _draw_centres(ax: Axes, flat: Flat, values: pd.Series, coloured: Colouring) -> None:
    for group in values.unique():
        rows = (values == group).to_numpy()
        colour = coloured.rows[int(rows.argmax())].colour
        ax.plot(*flat.means[rows].mean(0), ls="", marker="D", ms=10, mfc=colour, mec="white", mew=1.6, zorder=5)


def _draw_means(ax: Axes, flat: Flat, values: pd.Series, coloured: Colouring) -> None:
    for group in values.unique():
        rows = (values == group).to_numpy()
        colour = coloured.rows[int(rows.argmax())].colour
        ax.axvline(float(flat.means[rows, 0].mean()), color=colour, lw=1.4, ls="--", zorder=1)


def _draw_direction(ax: Axes, flat: Flat, values: pd.Series) -> None:
    """Draw where the regression of the points on the number goes, from its smallest to its largest value."""
    numbers = values.to_numpy(dtype=np.float64)
    centred = numbers - numbers.mean()
    slope = centred @ flat.means / (centred @ centred)
    low, high = (flat.means.mean(0) + slope * end for end in (centred.min(), centred.max()))
    style = {"arrowstyle": "-|>", "lw": 2.2, "color": "black", "mutation_scale": 16, "shrinkA": 0, "shrinkB": 0}
    arrow = ax.annotate("", tuple(high), tuple(low), arrowprops=style, zorder=5)
    if arrow.arrow_patch is not None:
        arrow.arrow_patch.set_path_effects([withStroke(linewidth=4.5, foreground="white")])


def _plot_against(embeddings: pd.DataFrame, values: pd.Series, ax: Axes) -> Axes:
    """Draw one dimension against a number, with a line of regression."""
    means, covariances = moments(embeddings)
    numbers, coloured = values.to_numpy(dtype=np.float64), colouring(embeddings.index, None)
    reach = None if covariances is None else REACH * np.sqrt(covariances[:, 0, 0])
    colour = coloured.rows[0].colour
    if reach is not None:
        ax.errorbar(numbers, means[:, 0], reach, ls="", color=colour, alpha=0.35, lw=1.0)
    ax.plot(numbers, means[:, 0], ls="", color=colour, **marker(coloured.rows[0], reach is None))  # type: ignore[arg-type]
    slope, constant = np.polyfit(numbers, means[:, 0], 1)
    ends = np.array([numbers.min(), numbers.max()])
    ax.plot(ends, constant + slope * ends, color="black", lw=1.6)
    ax.set_xlabel(shown(values.name), parse_math=False)
    ax.set_ylabel("z1")
    points = np.column_stack([numbers, means[:, 0]])
    add_labels(ax, points, list(embeddings.index) if len(points) <= MOST_LABELLED else [])
    return ax
