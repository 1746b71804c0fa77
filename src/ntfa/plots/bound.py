"""The bound over the course of a fit."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.plots.style import COLOURS, own_or_new

UNITS = {"step": "step", "seconds": "time (s)"}


def plot_bound(
    history: pd.DataFrame | TopographicModel,
    n_data: int | None = None,
    *,
    against: str = "step",
    ax: Axes | None = None,
) -> Axes:
    """Draw the bound in nats per observation over a fit; the start is cut off where it would hide the rest.

    Parameters
    ----------
    history : DataFrame or fitted model
        `history_` of a fitted model, or the model.
    n_data : int, optional
        Number of recorded values, `n_data_` of the model; needed with a table.
    against : {"step", "seconds"}
    """
    if not isinstance(history, pd.DataFrame):
        model = history
        history, n_data = model.history_, model.n_data_ if n_data is None else n_data
    if n_data is None:
        raise ModelError("plot_bound needs n_data (n_data_ of the model) to say the bound in nats per observation")
    if against not in UNITS:
        raise ModelError(f"against={against!r}: choose 'step' or 'seconds'")
    ax = own_or_new(ax, (6, 3))
    bound = history["bound"] / n_data
    ax.plot(history[against], bound, color=COLOURS[0], lw=1, marker="." if len(bound) == 1 else "")
    settled = bound.iloc[len(bound) // 10 :]
    margin = 0.08 * (settled.max() - settled.min()) + 1e-9
    ax.set_ylim(settled.min() - margin, settled.max() + margin)
    ax.set(xlabel=UNITS[against], ylabel="bound (nats per observation)")
    ax.ticklabel_format(axis="y", useOffset=False)
    return ax
