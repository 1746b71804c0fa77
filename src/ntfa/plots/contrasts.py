"""Maps of a contrast on a brain, and the factors whose weights differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ntfa.estimators.contrasts import Contrast
from ntfa.plots.brains import Space
from ntfa.plots.images import STRONGEST
from ntfa.plots.maps import draw_maps
from ntfa.plots.style import COLOURS, DIVERGING, MISSING, SEQUENTIAL, own_or_new, shown

MOST_FACTORS = 15
UNITS = {"difference": "signal", "sd": "signal", "z": "z", "thresholded": "z", "p": "p"}


def plot_contrast(
    contrast: Contrast, name: str = "thresholded", *, view: str = "glass", title: str = "", figure: Figure | None = None
) -> Figure:
    """Draw one of a contrast's maps on a brain.

    Parameters
    ----------
    name : {"thresholded", "difference", "z", "sd"}
    view : {"glass", "slices"}
        On a glass brain, or on slices where the map is strongest.
    figure : Figure, optional
        An empty figure to draw in.
    """
    values = contrast.map(name)
    space = Space(contrast.coordinates, contrast.mask_img)
    options: dict[str, Any] = {"view": view, "unit": UNITS[name], "title": title, "figure": figure}
    if name in ("sd", "p"):
        scale = (0.0, float(np.percentile(values, STRONGEST)) or 1.0)
        return draw_maps({_heading(contrast, name): values}, space, scale=scale, cmap=SEQUENTIAL, **options)
    shown_values = values[contrast.significant] if name == "thresholded" else values
    limit = float(np.percentile(np.abs(shown_values), STRONGEST)) if len(shown_values) else 1.0
    scale = (-limit or -1.0, limit or 1.0)
    return draw_maps({_heading(contrast, name): values}, space, scale=scale, cmap=DIVERGING, **options)


def _heading(contrast: Contrast, name: str) -> str:
    if name != "thresholded":
        return {"difference": "difference of the mean maps", "sd": "standard deviation", "z": "z", "p": "p"}[name]
    if not contrast.significant.any():
        return f"no voxel differs (FDR {contrast.alpha:g})"
    return f"z where |z| >= {contrast.threshold:.2f} (FDR {contrast.alpha:g})"


def plot_contrast_factors(contrast: Contrast, *, most: int = MOST_FACTORS, ax: Axes | None = None) -> Axes:
    """Draw differences of factors' weights with 95% intervals, the clearest first; grey: not significant by FDR."""
    table = contrast.factors.head(most).iloc[::-1]
    ax = own_or_new(ax, (6.0, 1.0 + 0.28 * len(table)))
    rows = np.arange(len(table))
    clear = (table["p_adjusted"] <= contrast.alpha).to_numpy()
    for is_clear, colour in ((True, COLOURS[0]), (False, MISSING)):
        own = clear == is_clear
        ax.errorbar(
            table["difference"][own], rows[own], xerr=1.96 * table["sd"][own], fmt="o", ms=5, color=colour, capsize=2
        )
    ax.axvline(0, color="0.3", lw=0.9, ls="--", zorder=0)
    ax.set_yticks(rows, [_factor_name(row) for _, row in table.iterrows()], fontsize=8)
    ax.set_xlabel("difference of mean weights (95% interval)")
    ax.set_ylim(-0.7, len(table) - 0.3)
    return ax


def _factor_name(row: pd.Series[Any]) -> str:
    place = f"({row['x']:.0f}, {row['y']:.0f}, {row['z']:.0f})"
    return (
        f"{int(row['factor'])}: {shown(row['region'], 30)}" if "region" in row else f"{int(row['factor'])}: {place} mm"
    )
