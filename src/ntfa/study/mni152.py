"""The MNI152 template as nilearn shows it: its brain at some spacings, its shades of grey, and outlines of its views.

Read from the files that come with nilearn, whose import and resampling take longer than a small fit: the template has
voxels of 1 mm, so that at 2, 3 or 4 mm it is every second, third or fourth of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEMPLATE = "datasets/data/mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"
LEAST = 0.2
"""Share of the template's lightest voxel above which there is brain (`nilearn.datasets.load_mni152_brain_mask`)."""
VIEWS = {"x": "side", "y": "back", "z": "top"}
PLACES = {
    "x": ((0.38, 0.38), (-108, -70)),
    "y": ((0.39, 0.39), (-73, -73)),
    "z": ((0.36, 0.37), (-71, -107)),
}
"""Scale and origin (mm) of the outlines in the files of each view, which are in units of their own."""
MARGIN, LINE_MM = 0.025, 0.1
"""What is left free around an outline: a share of it, and half of a line."""
MOVE, LINE, CURVE = 1, 2, 4
"""matplotlib's codes of a path."""


@dataclass(frozen=True)
class Strokes:
    """Lines of one kind in the outline of a view: a path in mm, as vertices [n, 2] and matplotlib's codes [n]."""

    vertices: NDArray[np.float64]
    codes: NDArray[np.uint8]
    colour: str
    width: float


@dataclass(frozen=True)
class Outline:
    """Glass brain as seen along an axis: what is drawn, first things first, and left, right, bottom and top in mm."""

    strokes: tuple[Strokes, ...]
    bounds: tuple[float, float, float, float]


def affine(spacing: int) -> NDArray[np.float64]:
    """From cells to mm."""
    return np.asarray(_template()[1] @ np.diag([spacing, spacing, spacing, 1.0]))


def brain(spacing: int) -> NDArray[np.bool_]:
    """Which cells have brain (`nilearn.datasets.load_mni152_brain_mask`)."""
    values = _template()[0]
    return np.asarray(_every(spacing, values) > LEAST * values.max())


def shades(spacing: int) -> NDArray[np.uint8]:
    """Shades of grey, 255 the lightest (`nilearn.datasets.load_mni152_template`)."""
    values = _every(spacing, _template()[0])
    return np.rint(255 / values.max() * values).astype(np.uint8)


def _every(spacing: int, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Take voxels so many mm apart, zero where the last one lies beyond."""
    pad = [(0, -(size - 1) % spacing) for size in values.shape]
    return np.pad(values, pad)[::spacing, ::spacing, ::spacing]


@lru_cache(maxsize=1)
def _template() -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Values at 1 mm, and the affine from cells to mm."""
    from nibabel import load

    image: Any = load(_file(TEMPLATE))
    return np.asarray(image.dataobj), np.asarray(image.affine)


@lru_cache(maxsize=3)
def outline(axis: str) -> Outline:
    """Draw the brain as seen along x, y or z (`nilearn.plotting.plot_glass_brain`), lines of one kind together."""
    drawn = json.loads(_file(f"plotting/glass_brain_files/brain_schematics_{VIEWS[axis]}.json").read_text())
    kinds: list[tuple[tuple[str, float], list[Any]]] = []
    for path in drawn["paths"]:
        kind = (path["edgecolor"], path["linewidth"])
        if not kinds or kinds[-1][0] != kind:
            kinds.append((kind, []))
        kinds[-1][1].extend(path["items"])
    strokes = tuple(Strokes(*_joined(items, axis), colour, width) for (colour, width), items in kinds)
    left, right, bottom, top = drawn["metadata"]["bounds"]
    low, high = _in_mm([[left, bottom], [right, top]], axis)
    margin = MARGIN * (high - low) + LINE_MM
    (left, bottom), (right, top) = low - margin, high + margin
    return Outline(strokes, (left, right, bottom, top))


def _joined(items: list[Any], axis: str) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Make one path of pieces, which go on where the one before ended or begin elsewhere."""
    vertices: list[list[float]] = []
    codes: list[int] = []
    for item in items:
        goes_on = bool(vertices) and np.allclose(vertices[-1], item["pts"][0], atol=1e-6)
        code = CURVE if item["type"] == "bezier" else LINE
        vertices += item["pts"][goes_on:]
        codes += [MOVE, *[code] * (len(item["pts"]) - 1)][goes_on:]
    return _in_mm(vertices, axis), np.array(codes, dtype=np.uint8)


def _in_mm(points: Any, axis: str) -> NDArray[np.float64]:
    scale, origin = PLACES[axis]
    return np.asarray(points, dtype=np.float64) * scale + origin


def _file(name: str) -> Path:
    """Find a file of nilearn's without importing it."""
    found = find_spec("nilearn")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0], name)
