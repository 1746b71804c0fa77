"""Where factors are, how wide, how uncertain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.inference.factors import radial_basis
from ntfa.plots.brains import VIEWS, Space, add_scale, new_figure, shadow_axes, space_of
from ntfa.plots.flattening import ellipses
from ntfa.plots.labels import add_labels
from ntfa.plots.style import DIVERGING, colours, shown
from ntfa.plots.surfaces import draw_factors, number_factors, structures_of, voxels_of
from ntfa.plots.volumes import draw_glass
from ntfa.study.greyordinates import Greyordinates
from ntfa.study.spheres import VOLUME

MOST_NUMBERED = 20
# Shares of their radius that circles may be drawn at, and the share of the brain's shadow that they may cover.
SHRINKS = (1, 2, 3, 4, 5, 6, 8, 10)
MOST_COVERED = 0.4
MOST_IN_FULL = 8
POSITION = ["x", "y", "z"]


def plot_factors(
    factors: pd.DataFrame | TopographicModel,
    coordinates: Any = None,
    *,
    participants: str | Sequence[str] | None = None,
    values: Any = None,
    values_name: str = "mean weight",
    axes: Sequence[Axes] | None = None,
    figure: Figure | None = None,
) -> Sequence[Axes]:
    """Draw factors as circles of their 1/e radius, seen from three sides, with contours of what is uncertain.

    More than eight factors that would cover much of the brain are drawn at a share of their radius, which is said.
    Each circle is at the factor's posterior mean, averaged over participants. The dotted contour around its centre
    holds 95% of the centre's posterior if one participant is shown, and 95% of where a participant's centre may be
    (their spread and their posteriors together) if several are.

    Parameters
    ----------
    factors : fitted model or DataFrame
        A model is drawn on a glass brain if its voxels are in MNI space. `factors_` of a model, or a model that
        is elsewhere or has no mask, is drawn on the voxels' shadow. Factors of cortex are painted on inflated surfaces,
        as far as they are above 1/e of their peak.
    coordinates : array of shape (V, 3), optional
        Voxels for the shadow; needed with a DataFrame.
    participants : label or labels, optional
        Whose factors to show; by default all.
    values : Series by factor, or array of shape (K,), optional
        Numbers to colour factors by, such as mean weights, `model.transform(study).mean()`; by default each factor has
        a colour of its own.
    axes : three Axes, optional
        Where to draw the three projections.
    figure : Figure, optional
        Where to draw the glass brain.

    Returns
    -------
    The sagittal, the coronal and the axial Axes; or those of the hemispheres, and of the voxels if there are any.
    """
    if isinstance(factors, pd.DataFrame):
        if coordinates is None:
            raise ModelError("a table of factors needs coordinates (coordinates_ of the model) to be drawn on")
        table, space = factors, Space(np.asarray(coordinates))
    else:
        table, space = factors.factors_, space_of(factors)
        if axes is None and space.greyordinates is not None and space.greyordinates.n_vertices:
            return _on_surfaces(factors, space.greyordinates, participants, values, values_name, figure)
    mean, spread = summarise_factors(table, participants)
    colour, scale = _colours(mean.index, values)
    views, figure = _three_axes(space, axes, figure)
    shrink = _shrink(mean["width"].to_numpy(), space.coordinates)
    for ax, (across, up, _) in zip(views, VIEWS, strict=True):
        _draw_factors(ax, mean, spread, (across, up), colour, shrink, filled=scale is not None)
    _explain(figure, views, shrink, scale, shown(values_name), on_glass=space.is_mni and axes is None)
    return views


def _on_surfaces(
    model: TopographicModel,
    space: Greyordinates,
    participants: str | Sequence[str] | None,
    values: Any,
    values_name: str,
    figure: Figure | None,
) -> Sequence[Axes]:
    """Paint factors on hemispheres, and draw those of the volume as circles from the front and from above."""
    at = summarise_factors(model._factors, participants)[0]
    mean, spread = summarise_factors(model.factors_, participants)
    colour, scale = _colours(mean.index, values)
    figure, voxels = new_figure(figure, (9, 3.2)), voxels_of(space)
    share = 0.66 if voxels.any() else 0.87
    shapes = radial_basis(space.positions, at[POSITION].to_numpy(), at["width"].to_numpy())
    views = draw_factors(figure, (0.01, 0.05, share, 0.9), shapes, colour, space)
    structures = structures_of(at, space)
    if len(mean) <= MOST_NUMBERED:
        number_factors(views, space, mean, structures)
    if voxels.any():
        own = (structures == VOLUME).to_numpy()
        beside = [figure.add_axes((0.01 + share + 0.11 * i, 0.2, 0.1, 0.6)) for i in range(2)]
        shadow_axes(beside, space.coordinates[voxels], VIEWS[1:])
        chosen = [colour[i] for i in np.flatnonzero(own)]
        for ax, (across, up, _) in zip(beside, VIEWS[1:], strict=True):
            ax.axis("off")
            if own.any():
                part = None if spread is None else spread[own]
                _draw_factors(ax, mean[own], part, (across, up), chosen, 1, filled=scale is not None)
        views = [*views, *beside]
    if scale is not None:
        add_scale(figure, (0.915, 0.2, 0.015, 0.6), scale, shown(values_name))
    return views


def summarise_factors(
    factors: pd.DataFrame, participants: str | Sequence[str] | None = None
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Average factors over participants: `x, y, z, width` by factor, and the sd of a participant's `x, y, z`.

    The sd is that of the posterior for one participant, and of participants' spread and posterior together for several;
    None if the table has no sds and there is but one participant.
    """
    if participants is not None:
        wanted = [participants] if isinstance(participants, str) else list(participants)
        unknown = sorted(set(wanted).difference(factors["participant"]))
        if unknown:
            raise ModelError(f"the factors are not those of participant {shown(', '.join(unknown), 80)}")
        factors = factors[factors["participant"].isin(wanted)]
    grouped = factors.groupby("factor")
    mean = grouped[[*POSITION, "width"]].mean()
    variance = grouped[POSITION].var(ddof=0)
    sds = [f"{axis}_sd" for axis in POSITION]
    if set(sds).issubset(factors):
        posterior = (factors[sds] ** 2).groupby(factors["factor"]).mean()
        variance += posterior.set_axis(POSITION, axis=1)
    elif int(grouped.size().max()) == 1:
        return mean, None
    return mean, variance**0.5


def _three_axes(space: Space, axes: Sequence[Axes] | None, figure: Figure | None) -> tuple[Sequence[Axes], Any]:
    if axes is None and space.is_mni:
        figure = new_figure(figure, (9, 3.2))
        return draw_glass(figure, (0.01, 0.02, 0.87, 0.92)), figure
    if axes is None:
        made = figure or plt.figure(figsize=(9, 3.2), layout="constrained")
        axes = made.subplots(1, 3)
    return shadow_axes(axes, space.coordinates), axes[0].figure


def _colours(index: pd.Index, values: Any) -> tuple[list[Any], ScalarMappable | None]:
    if values is None:
        return list(colours(len(index))), None
    if isinstance(values, pd.Series):
        values = values.reindex(index)
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (len(index),) or not np.isfinite(values).all():
        raise ModelError(f"values must be a finite number for each of the {len(index)} factors")
    limit = float(np.abs(values).max()) or 1.0
    scale = ScalarMappable(Normalize(-limit, limit), DIVERGING)
    return list(scale.to_rgba(values)), scale


def _explain(
    figure: Any, views: Sequence[Axes], shrink: int, scale: ScalarMappable | None, name: str, *, on_glass: bool
) -> None:
    """Say by how much circles are shrunk, and what their colours mean."""
    note = f"circles at 1/{shrink} of the factors' radius" if shrink > 1 else ""
    if note and on_glass:
        figure.text(0.99, 0.98, note, ha="right", va="top", fontsize=7, color="0.35")
    elif note:
        add_labels(views[-1], [], [], notes=[note])
    if scale is not None and on_glass:
        add_scale(figure, (0.905, 0.2, 0.015, 0.6), scale, name)
    elif scale is not None:
        figure.colorbar(scale, ax=list(views), shrink=0.7).set_label(name, parse_math=False)


def _shrink(widths: Any, coordinates: Any) -> int:
    """By how much circles must be shrunk, so that they do not cover the brain seen from above."""
    shadow = 0.75 * float(np.prod(np.ptp(np.asarray(coordinates)[:, :2], axis=0)))
    covered = float(np.pi * (widths**2).sum()) / max(shadow, 1e-9)
    if len(widths) <= MOST_IN_FULL:
        return 1
    return next((shrink for shrink in SHRINKS if covered / shrink**2 <= MOST_COVERED), SHRINKS[-1])


def _draw_factors(
    ax: Axes,
    mean: pd.DataFrame,
    spread: pd.DataFrame | None,
    view: tuple[str, str],
    colour: list[Any],
    shrink: int,
    *,
    filled: bool,
) -> None:
    places = mean[list(view)].to_numpy(dtype=np.float64)
    # Wide ones first, so that they do not hide narrow ones.
    for i in np.argsort(-mean["width"].to_numpy(), kind="stable") if filled else range(len(mean)):
        size = 2 * float(mean["width"].iloc[i]) / shrink
        face = (*colour[i][:3], 0.75) if filled else "none"
        edge = "0.35" if filled else colour[i]
        ax.add_patch(Ellipse(tuple(places[i]), size, size, facecolor=face, edgecolor=edge, lw=0.6 if filled else 1.2))
    if spread is not None:
        variances = spread[list(view)].to_numpy(dtype=np.float64) ** 2
        contours = [ellipses(place, np.diag(own), (0.95,))[0] for place, own in zip(places, variances, strict=True)]
        edges = ["0.1"] * len(mean) if filled else colour
        ax.add_collection(PatchCollection(contours, facecolor="none", edgecolor=edges, linestyle=":", linewidth=0.8))
    if len(mean) <= MOST_NUMBERED:
        add_labels(ax, places, list(mean.index), marker_radius=0.5, what="numbers")
