"""Dots with intervals: methods side by side, one cluster per question."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ntfa.errors import ModelError
from ntfa.plots.style import colours, own_or_new, shown

MARKERS = "osD^vPX*"
LONGEST_LINE = 18


def plot_intervals(
    table: pd.DataFrame,
    value: str,
    *,
    by: str,
    ends: tuple[str, str] = ("ci_low", "ci_high"),
    line: float | None = None,
    ylabel: str = "",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw one number of every method as a dot with an interval, a cluster for each value of another column.

    Parameters
    ----------
    table : DataFrame
        `method`, the columns named by `value`, `by` and `ends`; one row per dot. Where an end is missing, so is the
        whisker.
    line : float, optional
        Where to draw a dashed line, such as chance.
    """
    missing = [column for column in ("method", value, by, *ends) if column not in table]
    if missing or table.empty:
        raise ModelError(f"plot_intervals needs rows with {', '.join(missing) or 'something in them'}")
    methods, clusters = list(dict.fromkeys(table["method"])), list(dict.fromkeys(table[by]))
    ax = own_or_new(ax, (min(max(2.5 + 0.25 * len(methods) * len(clusters), 5.0), 14), 3.6))
    step = 0.8 / len(methods)
    for i, (method, colour) in enumerate(zip(methods, colours(len(methods)), strict=True)):
        rows = table[table["method"] == method].drop_duplicates(by).set_index(by).reindex(clusters)
        places = np.arange(len(clusters)) + (i - (len(methods) - 1) / 2) * step
        _draw(ax, places, rows[value], rows[list(ends)], colour, MARKERS[i % len(MARKERS)], shown(method))
    if line is not None:
        ax.axhline(line, color="0.3", lw=0.9, ls="--", zorder=1)
    ax.set_xlim(-0.6, len(clusters) - 0.4)
    ax.set_xticks(range(len(clusters)), [fill(shown(name, 60), LONGEST_LINE) for name in clusters], fontsize=8)
    for between in range(1, len(clusters)):
        ax.axvline(between - 0.5, color="0.85", lw=0.8, zorder=0)
    ax.set_ylabel(ylabel, parse_math=False)
    ax.set_title(title, parse_math=False)
    legend = ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for text in (*legend.get_texts(), *ax.get_xticklabels()):
        text.set_parse_math(False)
    return ax


def _draw(ax: Axes, places: Any, values: pd.Series, ends: pd.DataFrame, colour: str, marker: str, name: str) -> None:
    heights = values.to_numpy(dtype=np.float64)
    reach = np.abs(ends.to_numpy(dtype=np.float64).T - heights)
    ax.errorbar(places, heights, np.nan_to_num(reach), fmt="none", ecolor=colour, elinewidth=1.2, capsize=2, zorder=2)
    ax.plot(places, heights, marker, color=colour, ms=5, mec="white", mew=0.5, label=name, zorder=3)
