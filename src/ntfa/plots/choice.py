"""How well left-out images are predicted with each number of factors, and which number was chosen."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.plots.style import COLOURS, own_or_new


def plot_choice(tried: pd.DataFrame | TopographicModel, chosen: int | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the error of left-out images over the number of factors.

    The band is one standard error of the difference from the chosen number.

    Parameters
    ----------
    tried : DataFrame or fitted model
        `tried_` of a model fitted with `n_factors="auto"`, or the model.
    chosen : int, optional
        The number to mark, `n_factors_` of the model; needed with a table.
    """
    if not isinstance(tried, pd.DataFrame):
        if not hasattr(tried, "tried_"):
            raise ModelError('plot_choice: the number of factors was given, not chosen; fit with n_factors="auto"')
        chosen = tried._fitted.n_factors if chosen is None else chosen
        tried = pd.DataFrame(tried.tried_)
    if chosen is None or chosen not in set(tried["n_factors"]):
        raise ModelError(f"plot_choice: chosen={chosen!r} is not among the numbers that were tried")
    ax = own_or_new(ax, (6, 3))
    numbers, error = tried["n_factors"], tried["error"]
    ax.fill_between(numbers, error - tried["more_se"], error + tried["more_se"], color=COLOURS[0], alpha=0.2, lw=0)
    ax.plot(numbers, error, color=COLOURS[0], lw=1, marker=".")
    ax.axvline(chosen, color=COLOURS[1], lw=1, ls="--")
    ax.annotate(f" {chosen} chosen", (chosen, 1), xycoords=("data", "axes fraction"), va="top", color=COLOURS[1])
    ax.set(xscale="log", xlabel="number of factors", ylabel="error of left-out images\n(predicting zero: 1)")
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100) if tick <= numbers.max()]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    return ax
