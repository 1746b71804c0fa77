"""How well left-out images are predicted with each number of factors, and which number was chosen."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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


PANELS = {"n_factors": ("n_factors", "number of factors"), "embedding_dim": ("stimulus_dim", "dimensions of stimuli")}


def plot_tried(tried: pd.DataFrame, *, figure: Figure | None = None) -> Figure:
    """Draw what `ntfa choose` tried: how much worse than the chosen one each predicts, and how embeddings agree.

    Open symbols were tried on one fold only.

    Parameters
    ----------
    tried : DataFrame
        As in its choice.tsv, one row per candidate.
    """
    figure = plt.figure(figsize=(9, 3.4), layout="constrained") if figure is None else figure
    for ax, (choosing, (across, label)) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        own = tried[tried["choosing"] == choosing].sort_values(across)
        final = own["n_folds"] == own["n_folds"].max()
        ax.plot(own[across], own["more"], color=COLOURS[0], lw=1)
        for part, fill in ((own[~final], "white"), (own[final], COLOURS[0])):
            ax.errorbar(
                part[across], part["more"], part["more_se"], fmt="o", ms=5, mfc=fill, color=COLOURS[0], capsize=2
            )
        chosen = own[own["chosen"]]
        ax.plot(chosen[across], chosen["more"], "o", ms=12, mfc="none", color=COLOURS[1])
        ax.set(xlabel=label, ylabel="error of left-out images,\nmore than the chosen")
        if len(own) > 1:
            ax.set_xscale("log")
        ax.set_xticks(own[across], [f"{value:.0f}" for value in own[across]])
        ax.minorticks_off()
        beside = ax.twinx()
        for kind, style in (("stimuli", "-"), ("participants", ":")):
            known = own.dropna(subset=f"agreement_{kind}")
            values = known[f"agreement_{kind}"]
            beside.plot(known[across], values, style, color="0.6", lw=1, marker=".", label=f"agreement, {kind}")
        beside.set(ylim=(-0.05, 1.05))
        beside.tick_params(colors="0.5")
    figure.legend(*beside.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure
