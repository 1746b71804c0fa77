"""How much each frame counted in a fit, over time, beside how much the head moved."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.plots.style import COLOURS, MISSING, shown
from ntfa.study.motion import COLUMN, HIGH_MM

MOST = 6
"""Participants that are shown unless they are named."""
MOVED = COLOURS[0]
SPOILED = COLOURS[1]


def plot_frames(
    model: TopographicModel, participants: Sequence[str] | None = None, *, figure: Figure | None = None
) -> Figure:
    """Draw how much each trial frame counted, one row per participant, with framewise displacement where it is known.

    Parameters
    ----------
    participants : list of labels, optional
        Whom to show; by default those with the most spoiled frames, six at most.
    figure : Figure, optional
        An empty figure to draw in.
    """
    frames = getattr(model, "frames_", None)
    if frames is None:
        raise ModelError('there is nothing to draw: all frames counted the same; fit with frames="robust"')
    people = most_spoiled(frames) if participants is None else list(participants)
    unknown = [who for who in people if who not in set(frames["participant"])]
    if unknown or not people:
        raise ModelError(f"participant {', '.join(map(repr, unknown)) or 'none'}: has no frames in the fit")
    figure = plt.figure(figsize=(9, 0.7 + 1.25 * len(people)), layout="constrained") if figure is None else figure
    axes = figure.subplots(len(people), 1, squeeze=False)[:, 0]
    for ax, who in zip(axes, people, strict=True):
        _draw(ax, frames[frames["participant"] == who], shown(who))
    axes[-1].set_xlabel("frame of a trial, in order of time")
    return figure


def most_spoiled(frames: pd.DataFrame, most: int = MOST) -> list[str]:
    """Participants with the most spoiled frames, at least one each; the first one if nobody has any."""
    counts = (frames["weight"] < 1).groupby(frames["participant"], sort=False).sum()
    some = counts[counts > 0].sort_values(ascending=False, kind="stable").index[:most]
    return [str(who) for who in some] or [str(counts.index[0])]


def _draw(ax: Axes, own: pd.DataFrame, name: str) -> None:
    place, weight = np.arange(len(own)), own["weight"].to_numpy()
    spoiled = weight < 1
    if COLUMN in own and own[COLUMN].notna().any():
        _draw_motion(ax.twinx(), place, own[COLUMN].to_numpy())
    ax.vlines(place, weight, 1, color=SPOILED, linewidth=0.8)
    ax.plot(place[~spoiled], weight[~spoiled], ".", color="0.25", markersize=3)
    ax.plot(place[spoiled], weight[spoiled], "o", color=SPOILED, markersize=4)
    for start in _starts_of_runs(own)[1:]:
        ax.axvline(start - 0.5, color=MISSING, linewidth=0.8)
    ax.set(ylim=(-0.08, 1.12), yticks=(0, 1), ylabel="weight", xlim=(-1, len(own)))
    # Drawn above the line of displacement, whose axes are added later.
    ax.set_zorder(1)
    ax.patch.set_visible(False)
    title = f"{name}: {int(spoiled.sum()):,} of {len(own):,} frames spoiled"
    ax.set_title(title, fontsize="medium", loc="left", parse_math=False)


def _draw_motion(ax: Axes, place: np.ndarray, displacement: np.ndarray) -> None:
    ax.plot(place, displacement, color=MOVED, linewidth=0.9, alpha=0.6)
    ax.axhline(HIGH_MM, color=MOVED, linewidth=0.6, linestyle=":")
    ax.set_ylim(0, max(2 * HIGH_MM, 1.1 * float(np.nanmax(displacement))))
    ax.set_ylabel("displacement\n(mm)", color=MOVED)
    ax.tick_params(colors=MOVED)


def _starts_of_runs(own: pd.DataFrame) -> np.ndarray:
    """Where runs begin among the frames, in order."""
    names = [name for name in ("session", "run") if name in own]
    if not names:
        return np.zeros(1, dtype=int)
    runs = own[names].astype(str).agg(" ".join, axis=1)
    return np.flatnonzero((runs != runs.shift()).to_numpy())
