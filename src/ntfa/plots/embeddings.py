"""Embeddings of participants or stimuli, with what is uncertain about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.plots.colouring import IN_THE_FIT, Colouring, by_standing, colouring, explain, label_column, marker
from ntfa.plots.flattening import Flat, ellipses, flatten, flatten_ranked
from ntfa.plots.labels import NOTE_ROOM, add_labels
from ntfa.plots.style import own_or_new
from ntfa.study import Study

TABLES = {"participant": "participants_", "stimulus": "stimuli_"}
# With more rows than this, filled ellipses would run into one another.
MOST_FILLED = 40
# A share q of a one-dimensional normal lies within this many standard deviations: q = 50%, 95%.
INTERVALS = (0.674490, 1.959964)


def plot_embeddings(
    embeddings: pd.DataFrame | TopographicModel,
    groups: pd.Series | str | None = None,
    *,
    kind: str = "participant",
    study: Study | None = None,
    dimensions: Sequence[int] | None = None,
    labels: bool = True,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw embeddings: a cross at each posterior mean, ellipses that hold 50% and 95% of the posterior.

    One dimension is shown against its rank, with intervals for ellipses; of more than two, the two principal directions
    of the posterior means, and their share of the variance is said. Point estimates (no `_sd` columns) are dots.
    Labels never cover one another: those with no room are left out, and a note says how many are shown.

    Parameters
    ----------
    embeddings : DataFrame or fitted model
        `participants_` or `stimuli_` of a fitted model, or the model and `kind`.
    groups : Series or str, optional
        What to colour by: a group or a number for each label; or the name of a column of `study.trials`. Fractions, and
        whole numbers of more than eight values, are coloured on a scale, everything else as groups. Grey is missing.
        By default all have one colour; but if somebody was added to the fit, they have, and all others are grey.
    kind : {"participant", "stimulus"}
        Which embeddings of a model to draw, and whose labels a column of `study.trials` tells.
    study : Study, optional
        Where the column named in `groups` is found.
    dimensions : pair of int, optional
        Which dimensions to show, counted from 1.
    labels : bool
        Whether to write the labels.
    """
    table = embedding_table_of(embeddings, kind)
    if isinstance(groups, str):
        if study is None:
            raise ModelError(f"groups={groups!r} names a column of the trials: give study= as well, or a Series")
        groups = label_column(study, kind, groups)
    coloured = by_standing(table) if groups is None and "added" in table else colouring(table.index, groups)
    ranked = "z2" not in table and dimensions is None
    own, ax = ax is None, own_or_new(ax, (5.5, 5.0))
    points = _draw_against_rank(ax, table, coloured) if ranked else _draw_flat(ax, flatten(table, dimensions), coloured)
    _join_sessions(ax, table, points, coloured)
    if own and isinstance(ax.figure, Figure):
        ax.figure.set_size_inches(*_size(ax, len(table), ranked))
    explain(ax, coloured, "z1_sd" not in table)
    written = list(table.index) if labels else []
    notes = [coloured.note] if coloured.note else []
    add_labels(ax, points[: len(written)], written, marker_radius=_radius(len(table)), notes=notes, to_the_right=ranked)
    ax.set_title(title, parse_math=False, pad=NOTE_ROOM + 3 if len(table) > 8 else None)
    return ax


def embedding_table_of(embeddings: pd.DataFrame | TopographicModel, kind: str) -> pd.DataFrame:
    """Return the embeddings of a model, or the table as it is."""
    if kind not in TABLES:
        raise ModelError(f"kind={kind!r}: choose 'participant' or 'stimulus'")
    if isinstance(embeddings, pd.DataFrame):
        return embeddings
    table = getattr(embeddings, TABLES[kind], None)
    if table is None:
        raise ModelError(f"this {type(embeddings).__name__} has no {TABLES[kind]}: fit a model with embeddings first")
    return table


def _draw_flat(ax: Axes, flat: Flat, coloured: Colouring) -> Any:
    n_rows = len(flat.means)
    _draw_marks(ax, flat.means, coloured, flat.covariances is None)
    if flat.covariances is not None:
        faint = 0.35 * (MOST_FILLED / max(n_rows, MOST_FILLED)) ** 0.5
        for mean, covariance, key in zip(flat.means, flat.covariances, coloured.rows, strict=True):
            half, most = ellipses(mean, covariance)
            for patch, width in ((most, 0.4), (half, 0.7)):
                patch.set(facecolor=(key.colour, 0.05 if key == IN_THE_FIT else 0.14), edgecolor="none")
                if n_rows > MOST_FILLED:
                    patch.set(facecolor="none", edgecolor=(key.colour, faint), lw=width)
                ax.add_patch(patch)
    ax.set(xlabel=flat.names[0], ylabel=flat.names[1])
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.1)
    return flat.means


def _join_sessions(ax: Axes, table: pd.DataFrame, points: Any, coloured: Colouring) -> None:
    """Draw a line from each participant to their other sessions."""
    place = {label: i for i, label in enumerate(table.index)}
    for session, first in table.attrs.get("session_of", {}).items():
        if session in place and first in place:
            ends = points[[place[first], place[session]]]
            ax.plot(*ends.T, color=coloured.rows[place[session]].colour, lw=0.9, zorder=1.5)


def _draw_against_rank(ax: Axes, table: pd.DataFrame, coloured: Colouring) -> Any:
    flat = flatten_ranked(table)
    points = ends = flat.means
    _draw_marks(ax, points, coloured, flat.covariances is None)
    if flat.covariances is not None:
        sds = np.sqrt(flat.covariances[:, 0, 0])
        for reach, width in zip(INTERVALS, (3.0, 1.0), strict=True):
            offset = np.outer(reach * sds, (1, 0))
            ends = points + offset
            segments = list(np.stack([points - offset, ends], 1))
            lines = LineCollection(segments, colors=[(key.colour, 0.35) for key in coloured.rows], linewidths=width)
            ax.add_collection(lines)
    ax.set(xlabel=flat.names[0], ylabel=flat.names[1])
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.margins(x=0.2, y=0.5 / max(len(points), 2))
    ax.autoscale_view()
    return ends


def _draw_marks(ax: Axes, points: Any, coloured: Colouring, point_estimates: bool) -> None:
    """Draw a mark at every point, one line object for each key."""
    for key in dict.fromkeys(coloured.rows):
        rows = [i for i, other in enumerate(coloured.rows) if other == key]
        style: dict[str, Any] = marker(key, point_estimates)
        scale = _radius(len(points)) / _radius(1)
        style.update(ms=scale * style["ms"], mew=scale * style["mew"])
        ax.plot(*points[rows].T, ls="", color=key.colour, **style)


def _radius(count: int) -> float:
    """Radius of a mark, in points: smaller where there are many."""
    return 4.5 if count <= MOST_FILLED else 3.6 if count <= 5 * MOST_FILLED else 2.8


def _size(ax: Axes, count: int, ranked: bool) -> tuple[float, float]:
    """Size of a figure in inches that suits so many embeddings and their extent."""
    if ranked:
        return 5.5, min(max(0.16 * count + 1.2, 3.0), 16.0)
    extent = ax.dataLim
    tallness = extent.height / extent.width if extent.width > 0 else 1.0
    width = 5.5 if count <= MOST_FILLED else 8.5
    return width, width * min(max(tallness, 0.6), 1.2)
