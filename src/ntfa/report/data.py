"""What the page's script draws, as one block of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.plots.brains import space_of
from ntfa.plots.colouring import by_standing, colouring
from ntfa.plots.flattening import Flat, flatten, flatten_ranked
from ntfa.plots.style import SEQUENTIAL
from ntfa.report.brain import outlines
from ntfa.report.expected import Expected
from ntfa.report.maps import PredictedMaps, as_page_data
from ntfa.report.pairs import pair_statistics
from ntfa.report.regions import factor_regions, without_none
from ntfa.study.atlas import Atlas
from ntfa.uncertainty.moments import moments

TABLES = {"participant": "participants_", "stimulus": "stimuli_"}
# Sets of factors and of weights that are embedded; a study beyond this shows the average alone.
MOST_NUMBERS = 1_500_000
RAMP = [tuple(round(255 * part) for part in SEQUENTIAL(place)[:3]) for place in np.linspace(0, 1, 9)]

ALL_PAIRS = 4
"""Axes of which every pair is offered to look at."""


def as_block(data: Any) -> str:
    """Return JSON that may stand inside a `<script>` element: no character in it can end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_data(
    model: TopographicModel,
    expected: Expected,
    labels: Mapping[str, pd.DataFrame],
    maps: PredictedMaps | None,
    atlas: Atlas | None = None,
) -> dict[str, Any]:
    """Gather embeddings, labels, factors, maps and outlines; everything that is text stays text."""
    small = expected.factors.size + (0 if expected.weights is None else expected.weights.shape[1] * 40) <= MOST_NUMBERS
    return {
        "views": [vars(outline) for outline in outlines(model.coordinates_)],
        "factors": _rounded(expected.mean_factors, 1),
        "regions": without_none(factor_regions(expected, atlas) or []) or None,
        "own": _rounded(expected.factors, 1) if expected.own_factors and small else None,
        "ramp": RAMP,
        "kinds": {kind: _kind(model, expected, kind, labels.get(kind)) for kind in TABLES},
        "volumes": as_page_data(maps, space_of(model), atlas),
    }


def _kind(model: TopographicModel, expected: Expected, kind: str, labels: pd.DataFrame | None) -> dict[str, Any]:
    names = expected.participants if kind == "participant" else expected.stimuli
    index = pd.Index(names, name=kind)
    labels = pd.DataFrame(index=index) if labels is None else labels.reindex(index)
    table: pd.DataFrame | None = getattr(model, TABLES[kind], None)
    return {
        "labels": names,
        "columns": [str(column) for column in labels],
        "rows": [[as_text(value) for value in row] for row in labels.itertuples(index=False, name=None)],
        "colourings": [*_standing(table), *(_colouring(index, labels[column]) for column in labels)],
        "sessions": _sessions(table),
        **_weights(expected, kind),
        **(_embeddings(table, _shares(model, kind)) if table is not None else {"mean": None}),
    }


def as_text(value: Any, digits: int = 4) -> str:
    """Return a value of a table as the page shows it, fractions to so many digits."""
    if value is None or value is pd.NaT or value is pd.NA:
        return "n/a"
    if not isinstance(value, float | np.floating):
        return str(value)
    number = float(value)
    if np.isnan(number):
        return "n/a"
    return f"{number:.{digits}g}" if abs(number) < 1e5 else f"{number:.0f}"


def _shares(model: TopographicModel, kind: str) -> list[float]:
    """Share of the variance of responses that each axis holds; empty where the model does not say."""
    table: pd.DataFrame | None = getattr(model, "shares_", None)
    row = "participants" if kind == "participant" else "stimuli"
    shares = np.array([]) if table is None else table.loc[row].to_numpy(dtype=np.float64)
    return [float(share) for share in shares if np.isfinite(share)]


def _embeddings(table: pd.DataFrame, shares: Sequence[float]) -> dict[str, Any]:
    means, covariances = moments(table)
    lower = np.tril_indices(means.shape[1])
    # More pairs than this are more than a page can hold.
    pairs = pair_statistics(table) if len(table) ** 2 <= MOST_NUMBERS else []
    return {
        "mean": _rounded(means, 6),
        "sd": None if covariances is None else _rounded(np.sqrt(np.diagonal(covariances, axis1=1, axis2=2)), 6),
        "covariances": None if covariances is None else [[_digits(v) for v in c[lower]] for c in covariances],
        "pairs": [one.as_page_data() for one in pairs],
        "planes": _planes(table, means.shape[1], shares),
    }


def _planes(table: pd.DataFrame, n_dimensions: int, shares: Sequence[float]) -> list[dict[str, Any]]:
    """Ways to look at embeddings: the plane of two, or of more the principal directions and pairs of axes.

    Every pair of the first few; of the others, which hold less and less, neighbours only. Axes that have shares are
    principal ones already, and no others are offered.
    """
    if n_dimensions == 1:
        return [_plane("z1", flatten_ranked(table), shares, ranked=True)]
    pairs = list(combinations(range(1, min(n_dimensions, ALL_PAIRS) + 1), 2))
    pairs += [(i, i + 1) for i in range(ALL_PAIRS, n_dimensions)]
    planes = [_plane(f"z{i} and z{j}", flatten(table, (i, j)), shares) for i, j in pairs]
    if n_dimensions == 2 or shares:
        return planes
    return [_plane("principal directions", flatten(table, None), shares), *planes]


def _plane(name: str, flat: Flat, shares: Sequence[float], *, ranked: bool = False) -> dict[str, Any]:
    """Points in the plane, and of their covariances the variance across, the covariance, and the variance up."""
    covariances = None
    if flat.covariances is not None:
        covariances = [[_digits(c[0, 0]), _digits(c[0, 1]), _digits(c[1, 1])] for c in flat.covariances]
    points, axes = _rounded(flat.means, 6), [_axis_name(axis, shares) for axis in flat.names]
    return {"name": name, "axes": axes, "ranked": ranked, "points": points, "covs": covariances}


def _axis_name(name: str, shares: Sequence[float]) -> str:
    """Add to the name of an axis, z1 say, the share of the differences between responses that it holds."""
    number = name.removeprefix("z")
    if not number.isdigit() or int(number) > len(shares):
        return name
    return f"{name} ({shares[int(number) - 1]:.0%} of differences)"


def _colouring(index: pd.Index, values: pd.Series) -> dict[str, Any]:
    """Colours of one label: as in the static picture, with names in full."""
    chosen = colouring(index, values)
    names = {(key.colour, key.mark): as_text(value) for key, value in zip(chosen.rows, values, strict=True)}
    scale = None
    if chosen.scale is not None:
        scale = [as_text(float(end)) for end in chosen.scale.get_clim() if end is not None]
    keys = (
        []
        if scale
        else [{"name": names[k.colour, k.mark], "colour": _css(k.colour), "mark": k.mark} for k in chosen.keys]
    )
    return {
        "name": str(values.name),
        "rows": [[_css(key.colour), key.mark] for key in chosen.rows],
        "keys": keys,
        "scale": scale,
        "note": chosen.note,
    }


def _standing(table: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Colours that tell who was added from who was in the fit, where anybody was."""
    if table is None or "added" not in table or not table["added"].any():
        return []
    chosen = by_standing(table)
    keys = [{"name": key.name, "colour": _css(key.colour), "mark": key.mark} for key in chosen.keys]
    rows = [[_css(key.colour), key.mark] for key in chosen.rows]
    return [{"name": "who was added", "rows": rows, "keys": keys, "scale": None, "note": "", "standing": True}]


def _sessions(table: pd.DataFrame | None) -> list[list[int]]:
    """Places of participants and of their other sessions, to be joined by lines."""
    known = {} if table is None else {str(label): i for i, label in enumerate(table.index)}
    sessions = {} if table is None else table.attrs.get("session_of", {})
    return [[known[first], known[session]] for session, first in sessions.items()]


def _css(colour: str) -> str:
    """Turn matplotlib's grey levels into a colour that browsers know."""
    return colour if colour.startswith("#") else f"#{3 * f'{round(255 * float(colour)):02x}'}"


def _weights(expected: Expected, kind: str) -> dict[str, Any]:
    """Mean weights of every participant or stimulus, and the value that the strongest colour stands for."""
    nothing = {"weights": None, "weightLimit": None}
    if expected.weights is None or (kind == "stimulus" and not expected.by_stimulus):
        return nothing
    weights = expected.weights.mean(1 if kind == "participant" else 0)
    if weights.size > MOST_NUMBERS // 3:
        return nothing
    limit = _digits(float(np.abs(weights).max()) or 1.0, 3)
    return {"weights": [[_digits(value, 3) for value in row] for row in weights], "weightLimit": limit}


def _digits(value: float, digits: int = 7) -> float:
    return float(f"{value:.{digits}g}")


def _rounded(values: Any, digits: int) -> Any:
    return np.round(np.asarray(values, dtype=np.float64), digits).tolist()
