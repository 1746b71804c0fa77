"""Figures on disk: a PNG to look at and an SVG to cut from."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DPI = 130


def save_figure(drawn: Axes | Figure, path: Path) -> None:
    """Write a figure (or the one that Axes belong to) as `path`.png and `path`.svg, and let go of it."""
    figure = drawn if isinstance(drawn, Figure) else drawn.get_figure()
    assert isinstance(figure, Figure)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=DPI)
    plt.close(figure)
