"""Predicted maps, in cubes: one per participant and one per stimulus, as small pictures and as numbers for slices."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.plots.brains import Space
from ntfa.report.brain import MAP_CELLS, Grid, png
from ntfa.report.expected import Expected
from ntfa.report.regions import cell_regions
from ntfa.study import mni152
from ntfa.study.atlas import Atlas
from ntfa.uncertainty.moments import moments

Floats = NDArray[np.float64]

# Bytes of all maps together, one per cube and map: the report stays well below 10 MB.
MOST_BYTES = 3_000_000
# Cells along the brain's length that a study with many maps still has.
LEAST_CELLS = 26
# Values beyond this percentile of all maps have the strongest colour, so that a few do not pale the rest.
STRONGEST = 99.5
TEMPLATE_MM = 3


@dataclass(frozen=True)
class PredictedMaps:
    """What the model predicts, cube by cube: each participant's average over stimuli, and each stimulus' over people.

    participant, stimulus : values [C] by the place of their label; some may be left out
    slopes : [D, C] by kind, what a step of one along each axis of the embeddings adds to a map, by least squares
    limit : value that the strongest colour stands for
    """

    grid: Grid
    participant: dict[int, Floats]
    stimulus: dict[int, Floats]
    limit: float
    slopes: Mapping[str, Floats] = field(default_factory=dict)

    def pictures(self, kind: str, most: int) -> dict[int, bytes]:
        """Draw at most so many as small PNGs, evenly spread over the labels."""
        own: dict[int, Floats] = getattr(self, kind)
        places = sorted(own)
        return {places[i]: png(self.grid.projections(own[places[i]]), self.limit) for i in evenly(len(places), most)}


def predicted_maps(
    expected: Expected, coordinates: Any, embeddings: Mapping[str, pd.DataFrame] | None = None
) -> PredictedMaps | None:
    """Work out all maps that fit into the page; None for a model that predicts nothing.

    Parameters
    ----------
    embeddings : tables by "participant" and "stimulus", optional
        Say how maps change with them.
    """
    if expected.weights is None:
        return None
    n_people, n_stimuli = len(expected.participants), len(expected.stimuli) if expected.by_stimulus else 0
    grid = _grid(coordinates, n_people + n_stimuli)
    people, stimuli = np.zeros((n_people, grid.n)), np.zeros((n_stimuli, grid.n))
    for i in range(n_people):
        images = _images(expected, i, grid)
        people[i] = images.mean(0)
        stimuli += images[:n_stimuli] / n_people
    limit = float(np.percentile(np.abs(np.concatenate([people, stimuli])), STRONGEST)) or 1.0
    found = {"participant": people, "stimulus": stimuli}
    slopes = {kind: s for kind, table in (embeddings or {}).items() if (s := _slopes(table, found[kind])) is not None}
    most = max(1, MOST_BYTES // grid.n)
    kept = {kind: evenly(len(maps), most * len(maps) // (n_people + n_stimuli)) for kind, maps in found.items()}
    by_place = [{i: found[kind][i] for i in kept[kind]} for kind in found]
    return PredictedMaps(grid, by_place[0], by_place[1], limit, slopes)


def _grid(coordinates: Any, n_maps: int) -> Grid:
    """Gather voxels into cubes, larger ones where there are many maps."""
    n_cells = MAP_CELLS
    grid = Grid.of(coordinates, n_cells)
    while grid.n * n_maps > MOST_BYTES and n_cells > LEAST_CELLS:
        n_cells -= 3
        grid = Grid.of(coordinates, n_cells)
    return grid


def _images(expected: Expected, participant: int, grid: Grid) -> Floats:
    """Predicted images of one participant and all stimuli, in cubes: factors, and what detail there is."""
    assert expected.weights is not None
    if expected.on_spheres:
        everywhere = expected.images(participant, list(range(len(expected.weights[participant]))))
        return np.stack([grid.pooled(image) for image in everywhere])
    images = expected.weights[participant] @ expected.radial(participant, grid.places)
    for stimulus, image in enumerate(images):
        detail = None if expected.detail is None else expected.detail(participant, stimulus)
        if detail is None:
            break
        image += grid.pooled(detail)
    return np.asarray(images)


def _slopes(table: pd.DataFrame, maps: Floats) -> Floats | None:
    """Regress maps [n, C] on embeddings; None where there are too few for that."""
    means, _ = moments(table)
    centred = means - means.mean(0)
    if len(maps) <= centred.shape[1] + 1 or np.linalg.matrix_rank(centred) < centred.shape[1]:
        return None
    return np.linalg.pinv(centred) @ (maps - maps.mean(0))


def evenly(count: int, most: int) -> list[int]:
    """Pick at most so many places, evenly spread."""
    if count <= most:
        return list(range(count))
    return sorted({round(place) for place in np.linspace(0, count - 1, max(most, 1))})


def as_page_data(maps: PredictedMaps | None, space: Space, atlas: Atlas | None = None) -> dict[str, Any] | None:
    """Turn maps into what the page's script reads: cubes that are brain as bits, values as bytes with a scale."""
    if maps is None:
        return None
    grid = maps.grid
    inside = np.zeros(grid.shape, dtype=bool)
    inside[tuple(grid.cells.T)] = True
    packed: dict[str, Any] = {}
    for kind in ("participant", "stimulus"):
        packed[kind] = {place: _packed(values[grid.order]) for place, values in getattr(maps, kind).items()}
        if kind in maps.slopes:
            packed[f"{kind}_slopes"] = [_packed(values[grid.order]) for values in maps.slopes[kind]]
    return {
        "shape": list(grid.shape),
        "origin": np.round(grid.origin, 3).tolist(),
        "size": round(grid.size, 4),
        "inside": _base64(np.packbits(inside.ravel())),
        "limit": float(f"{maps.limit:.4g}"),
        "maps": packed,
        "template": _template(grid) if space.is_mni else None,
        "regions": cell_regions(grid, atlas),
    }


def _packed(values: Floats) -> dict[str, Any]:
    scale = float(np.abs(values).max()) or 1.0
    return {"scale": float(f"{scale:.6g}"), "values": _base64(np.rint(127 * values / scale).astype(np.int8))}


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def _template(grid: Grid) -> dict[str, Any]:
    """Sample the MNI152 template over the box of the cubes, as shades of grey."""
    from scipy.ndimage import affine_transform

    low, high = grid.origin - grid.size, grid.origin + grid.size * np.array(grid.shape)
    shape = tuple(np.ceil((high - low) / TEMPLATE_MM).astype(int).tolist())
    to_image = np.linalg.inv(mni152.affine(TEMPLATE_MM))
    matrix = to_image[:3, :3] * TEMPLATE_MM
    sampled = affine_transform(
        mni152.shades(TEMPLATE_MM).astype(np.float64), matrix, to_image[:3, :3] @ low + to_image[:3, 3], shape, order=1
    )
    shades = np.clip(255 * sampled / max(float(sampled.max()), 1e-12), 0, 255).astype(np.uint8)
    return {"shape": list(shape), "origin": low.tolist(), "size": TEMPLATE_MM, "values": _base64(shades)}
