"""Which factors go together: as a matrix, and as lines between their places in the brain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ntfa.analyses.connectivity import connectivity
from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.plots.brains import VIEWS, Space, add_scale, new_figure, shadow_axes, space_of
from ntfa.plots.factors import summarise_factors
from ntfa.plots.style import DIVERGING, LINES, own_or_new, shown
from ntfa.study import Study

MOST_NAMED = 40
WIDEST_LINE = 4.0


def plot_connectivity(matrix: Any, study: Study | None = None, *, title: str = "", ax: Axes | None = None) -> Axes:
    """Draw how factors go together as a matrix of correlations, blue against red; the diagonal is left grey.

    Parameters
    ----------
    matrix : array or DataFrame of shape (K, K), table of pairs, or fitted model
        Correlations; or what `ntfa.analyses.connectivity.connectivity` returns, averaged over its trials here; or a
        model, and the study whose trials its weights are correlated in, computed without knowing the stimuli.
    study : Study, optional
        Needed with a model.
    """
    table = correlation_matrix(matrix, study)
    ax = own_or_new(ax, (5.2, 4.6))
    values = table.to_numpy(dtype=np.float64)
    limit = _limit(values)
    apart = np.ma.masked_where(np.eye(len(values), dtype=bool) | ~np.isfinite(values), values)
    image = ax.imshow(apart, cmap=DIVERGING.with_extremes(bad="0.85"), vmin=-limit, vmax=limit, interpolation="nearest")
    named = len(table) <= MOST_NAMED
    places = range(len(table)) if named else range(9, len(table), 10)
    names = [shown(table.index[i], 12) for i in places]
    small = 8 if len(places) <= 20 else 5
    ax.set_xticks(places, names, fontsize=small, rotation=90 if max(map(len, names), default=0) > 2 else 0)
    ax.set_yticks(places, names, fontsize=small)
    for label in [*ax.get_xticklabels(), *ax.get_yticklabels()]:
        label.set_parse_math(False)
    ax.set(xlabel="factor", ylabel="factor")
    ax.set_title(title, parse_math=False)
    ax.figure.colorbar(image, ax=ax, shrink=0.8).set_label("correlation")
    return ax


def plot_connectome(
    matrix: Any,
    model: TopographicModel,
    study: Study | None = None,
    *,
    n_lines: int | None = None,
    participants: Any = None,
    title: str = "",
    figure: Figure | None = None,
) -> Figure:
    """Draw the strongest connections between factors as lines between their centres.

    On nilearn's glass brain if the model's voxels are in MNI space, on their shadow if not.

    Parameters
    ----------
    matrix : as for `plot_connectivity`
    model : fitted model
        Whose factors' centres to use.
    study : Study, optional
        Needed if `matrix` is a model.
    n_lines : int, optional
        How many connections to draw, the strongest first; by default as many as there are factors.
    participants : label or labels, optional
        Whose factors' centres to average; by default all participants'.
    """
    table = correlation_matrix(matrix, study)
    centres = summarise_factors(model.factors_, participants)[0]
    if len(centres) != len(table):
        raise ModelError(f"the matrix is of {len(table)} factors, the model has {len(centres)}")
    strongest, n_pairs = _strongest(table.to_numpy(), len(table) if n_lines is None else n_lines)
    n_drawn = int((np.triu(strongest, 1) != 0).sum())
    figure = new_figure(figure, (9, 3.5))
    note = f"the strongest {n_drawn} of {n_pairs} connections" if n_drawn < n_pairs else f"all {n_pairs} connections"
    heading = f"{shown(title, 60)}: {note}" if title else note
    figure.text(0.01, 0.985, heading, va="top", fontsize=9, parse_math=False)
    limit = _limit(table.to_numpy())
    places = centres[["x", "y", "z"]].to_numpy(dtype=np.float64)
    _draw_connections(figure, strongest, places, limit, space_of(model))
    scale = ScalarMappable(Normalize(-limit, limit), LINES)
    add_scale(figure, (0.905, 0.2, 0.015, 0.6), scale, "correlation")
    return figure


def correlation_matrix(source: Any, study: Study | None = None) -> pd.DataFrame:
    """Correlations of every factor with every other, by factor, from what `plot_connectivity` takes."""
    if isinstance(source, TopographicModel):
        if study is None:
            raise ModelError("a model needs study= to say in which trials its weights are to be correlated")
        weights: Any = source.transform(study, by="frame")
        source = connectivity(weights, study.trials)
    if isinstance(source, pd.DataFrame) and isinstance(source.columns, pd.MultiIndex):
        return _from_pairs(source)
    table = source if isinstance(source, pd.DataFrame) else pd.DataFrame(np.asarray(source, dtype=np.float64))
    if not isinstance(source, pd.DataFrame):
        table = table.set_axis(range(1, len(table) + 1)).set_axis(range(1, table.shape[1] + 1), axis=1)
    values = table.to_numpy(dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not np.allclose(values, values.T, equal_nan=True):
        raise ModelError(f"a matrix of connections must be square and symmetric, not of shape {values.shape}")
    return table


def _from_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    """Average Fisher-transformed correlations over trials and lay them out as a matrix."""
    names = list(dict.fromkeys([*pairs.columns.get_level_values(0), *pairs.columns.get_level_values(1)]))
    table = pd.DataFrame(np.eye(len(names)), index=names, columns=names)
    values = np.tanh(pairs.mean().to_numpy(dtype=np.float64))
    levels = (pairs.columns.get_level_values(level) for level in (0, 1))
    for one, other, value in zip(*levels, values, strict=True):
        table.loc[one, other] = table.loc[other, one] = value
    return table


def _limit(values: np.ndarray) -> float:
    """Largest correlation between two different factors."""
    apart = values[~np.eye(len(values), dtype=bool)]
    return float(np.nanmax(np.abs(apart), initial=0.0)) or 1.0


def _strongest(values: np.ndarray, n_lines: int) -> tuple[np.ndarray, int]:
    """Set all but the strongest pairs to zero; return also how many pairs there are."""
    first, second = np.triu_indices(len(values), 1)
    strength = np.nan_to_num(values[first, second])
    kept = np.zeros_like(values, dtype=np.float64)
    for i in np.argsort(-np.abs(strength), kind="stable")[: max(n_lines, 0)]:
        kept[first[i], second[i]] = kept[second[i], first[i]] = strength[i]
    return kept, len(first)


def _draw_connections(figure: Figure, strength: np.ndarray, places: np.ndarray, limit: float, space: Space) -> None:
    if space.is_mni:
        from nilearn.plotting import plot_connectome as on_glass_brain

        on_glass_brain(
            *(strength, places),
            figure=figure,
            axes=(0.01, 0.02, 0.87, 0.88),
            **{
                "node_size": 12,
                "node_color": "0.2",
                "edge_cmap": LINES,
                "colorbar": False,
                "edge_vmin": -limit,
                "edge_vmax": limit,
            },
        )
        return
    edges = {"left": 0.07, "right": 0.88, "bottom": 0.16, "top": 0.84, "wspace": 0.4}
    axes = shadow_axes(list(figure.subplots(1, 3, gridspec_kw=edges)), space.coordinates)
    pairs = np.argwhere(np.triu(strength, 1))
    for ax, (across, up, _) in zip(axes, VIEWS, strict=True):
        flat = places[:, ["xyz".index(across), "xyz".index(up)]]
        for i, j in pairs:
            value = strength[i, j] / limit
            ax.plot(*flat[[i, j]].T, color=LINES(0.5 + value / 2), lw=max(WIDEST_LINE * abs(value), 0.3))
        ax.plot(*flat.T, "o", color="0.2", ms=3)
