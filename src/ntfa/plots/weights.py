"""Weights of factors over the frames of a trial."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.plots.style import COLOURS, own_or_new, shown
from ntfa.study import Study

# 95% of a normal lie within so many standard deviations.
REACH = 1.96


def plot_weights(
    model: TopographicModel,
    study: Study,
    trial: Hashable,
    *,
    factors: Sequence[int] | None = None,
    condition_on_stimulus: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw the weights of factors over the frames of one trial: posterior means, and bands that hold 95%.

    A trial of one frame is drawn factor by factor.

    Parameters
    ----------
    trial : label
        A row of `study.trials`, by its index.
    factors : list of int, optional
        Which factors to draw, numbered from 1; by default the eight whose weights are largest (root mean square).
    condition_on_stimulus : bool
        Whether the weights may know which stimulus was shown, as in `transform`.
    """
    row, mean, sd = _weights_of(model, study, trial, condition_on_stimulus)
    unknown = sorted(set(factors or ()).difference(mean.columns))
    if unknown:
        raise ModelError(f"factors={list(factors or ())}: the model has no factor {unknown[0]}")
    largest = (mean**2).mean().nlargest(len(COLOURS)).index
    chosen = list(factors) if factors is not None else sorted(largest)
    ax = own_or_new(ax, (6.5, 3.4))
    ax.axhline(0, color="0.8", lw=0.8, zorder=0)
    ax.set_ylabel("weight")
    draw = _draw_bands if len(mean) > 1 else _draw_points
    draw(ax, mean[chosen], REACH * sd[chosen])
    some = f" ({len(chosen)} of {mean.shape[1]} factors)" if len(chosen) < mean.shape[1] else ""
    ax.set_title(f"{shown(row['participant'])}, {shown(row['stimulus'])}{some}", fontsize=10, parse_math=False)
    return ax


def _weights_of(
    model: TopographicModel, study: Study, trial: Hashable, condition_on_stimulus: bool
) -> tuple[pd.Series, pd.DataFrame, pd.DataFrame]:
    """Return the trial's row, and posterior means and sds of its weights [T, K]."""
    if trial not in study.trials.index:
        raise ModelError(f"trial={trial!r} is not in the index of the study's trials")
    rows = study.trials[study.trials.index == trial]
    if len(rows) > 1:
        raise ModelError(f"trial={trial!r}: the study has {len(rows)} trials of that name")
    row = rows.iloc[0]
    # Weights may depend on other frames of the same participant and stimulus, and on no others.
    same = study.select(participants=row["participant"])
    weights = model.transform(same, by="frame", return_sd=True, condition_on_stimulus=condition_on_stimulus)
    mean, sd = cast("tuple[pd.DataFrame, pd.DataFrame]", weights)
    return row, mean.loc[[trial]], sd.loc[[trial]]


def _draw_bands(ax: Axes, mean: pd.DataFrame, reach: pd.DataFrame) -> None:
    frames = np.arange(1, len(mean) + 1)
    for i, factor in enumerate(mean):
        colour, style = COLOURS[i % len(COLOURS)], "-" if i < len(COLOURS) else "--"
        ax.plot(frames, mean[factor], style, color=colour, lw=1.4, label=f"factor {factor}")
        low, high = mean[factor] - reach[factor], mean[factor] + reach[factor]
        ax.fill_between(frames, low, high, color=colour, alpha=0.18, lw=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("frame of the trial")
    beside = ax.figure.get_layout_engine() is not None
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {"loc": "best"}
    ax.legend(frameon=False, fontsize=8, **place)


def _draw_points(ax: Axes, mean: pd.DataFrame, reach: pd.DataFrame) -> None:
    places = range(mean.shape[1])
    ax.errorbar(places, mean.to_numpy()[0], reach.to_numpy()[0], color=COLOURS[0], fmt="o", ms=4, lw=1.2, capsize=2)
    ax.set_xticks(places, [str(factor) for factor in mean])
    ax.set_xlabel("factor")
