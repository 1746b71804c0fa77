"""Pictures of docs/gallery.md, drawn by the lines of that page.

usage: python docs/pictures/gallery.py [docs/images/gallery]
"""

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from PIL import Image

PAGE = Path(__file__).resolve().parents[1] / "gallery.md"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n!\[[^\]]*\]\(images/gallery/(\w+)\.png\))?", re.DOTALL)


def drawn(page: str, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Run the code of a page, block by block; with each picture that follows a block comes the figure it drew."""
    import matplotlib.pyplot as plt

    for code, picture in BLOCK.findall(page):
        before = set(plt.get_fignums())
        exec(compile(code, PAGE.name, "exec"), names)
        if picture:
            (new,) = set(plt.get_fignums()) - before
            yield picture, plt.figure(new)
            plt.close("all")


def save_small(figure: Any, path: Path, dpi: int = 80) -> None:
    """Save a figure with as many colours as it takes to look the same, and no more bytes."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    Image.open(drawn).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    mpl.use("Agg")
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE.parent / "images" / "gallery"
    out.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn(PAGE.read_text(encoding="utf-8"), {}):
        save_small(figure, out / f"{name}.png")
