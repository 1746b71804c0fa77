"""The MNI152 template as nilearn shows it: its brain at some spacings, its shades of grey, and outlines of its views.

They are kept here as they come out of nilearn, whose import and resampling take longer than a small fit;
`tests/study/mni152_from_nilearn.py` makes the file. `mni152.txt` says whose they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_name("mni152.npz")
VIEWS = "xyz"


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
    to_mm = np.diag([spacing, spacing, spacing, 1.0])
    to_mm[:3, 3] = _read("origin")
    return to_mm


@lru_cache(maxsize=2)
def brain(spacing: int) -> NDArray[np.bool_]:
    """Which cells have brain, at 2 or 4 mm (`nilearn.datasets.load_mni152_brain_mask`)."""
    shape = tuple(_read(f"shape_{spacing}").tolist())
    bits = np.unpackbits(_read(f"brain_{spacing}"), count=int(np.prod(shape)))
    return bits.reshape(shape).astype(bool)


@lru_cache(maxsize=2)
def shades(spacing: int) -> NDArray[np.uint8]:
    """Shades of grey, 255 the lightest, at 2 or 3 mm (`nilearn.datasets.load_mni152_template`)."""
    return _read(f"shades_{spacing}")


@lru_cache(maxsize=3)
def outline(axis: str) -> Outline:
    """Draw the brain as seen along x, y or z (`nilearn.plotting.plot_glass_brain`)."""
    with np.load(FILE) as kept:
        vertices, codes, lengths, colours, widths, bounds = (
            kept[f"{axis}_{name}"] for name in ("vertices", "codes", "lengths", "colours", "widths", "bounds")
        )
    ends = np.cumsum(lengths)[:-1]
    pieces = zip(np.split(vertices, ends), np.split(codes, ends), colours.tolist(), widths.tolist(), strict=True)
    left, right, bottom, top = bounds.tolist()
    return Outline(tuple(Strokes(*piece) for piece in pieces), (left, right, bottom, top))


def _read(name: str) -> Any:
    with np.load(FILE) as kept:
        return kept[name]
