"""What all pictures share: colours that can be told apart, labels that can be read, Axes to draw into."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.font_manager import FontProperties, findfont, get_font

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MISSING = "0.65"
LONGEST_LABEL = 24
# The lightest tenth of viridis cannot be seen on white.
SEQUENTIAL = ListedColormap(mpl.colormaps["viridis"](np.linspace(0, 0.9, 256)), name="viridis on white")
DIVERGING = mpl.colormaps["RdBu_r"]
# As DIVERGING, without the near-white middle, in which lines would not be seen.
LINES = ListedColormap(DIVERGING(np.r_[0:0.32:128j, 0.68:1:128j]), name="RdBu lines")


def own_or_new(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """Return the Axes given, or those of a new figure."""
    if ax is not None:
        return ax
    _, new = plt.subplots(figsize=figsize, layout="constrained")
    return new


def colours(count: int) -> list[str]:
    """As many colours as asked for, from the start again when they run out."""
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def shown(label: object, longest: int = LONGEST_LABEL) -> str:
    """Return a label as a picture shows it: on one line, shortened, and a box for what the font cannot draw.

    Text made of it must be drawn with `parse_math=False`, or dollar signs would be read as mathematics.
    """
    text = " ".join(str(label).split())
    text = "".join(_drawable(character) for character in text)
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def _drawable(character: str) -> str:
    # Joiners and variation selectors have no shape of their own.
    if unicodedata.category(character) in ("Cf", "Cc") or "\ufe00" <= character <= "\ufe0f":
        return ""
    return character if _has_glyph(character, tuple(FontProperties().get_family())) else "□"


@lru_cache(maxsize=4096)
def _has_glyph(character: str, families: tuple[str, ...]) -> bool:
    fonts = (get_font(findfont(FontProperties(family=[family]))) for family in families)
    return any(font.get_char_index(ord(character)) for font in fonts)
