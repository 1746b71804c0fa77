"""Labels of points that never cover one another: placed when a figure is drawn, since only then is its size known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox, IdentityTransform

from ntfa.plots.placing import DIRECTIONS, TO_THE_RIGHT, Floats, nearest, place_boxes
from ntfa.plots.style import shown

FONT_SIZE = 7.0
NOTE_SIZE = 7.0
NOTE_ROOM = 11.0
# Distances (points) of a label from its mark. Far ones need a line to it, which many labels have no room for.
NEAR = (1.5, 4.0)
FAR = (8.0, 14.0, 22.0, 32.0, 44.0)
MOST_LINES = 40


def add_labels(
    ax: Axes,
    points: Any,
    labels: Sequence[object],
    *,
    marker_radius: float = 4.0,
    colour: str = "0.2",
    notes: Sequence[str] = (),
    what: str = "labels",
    to_the_right: bool = False,
) -> LabelPlacer:
    """Label points [n, 2] (data coordinates) without one label covering another, or the mark of any point.

    Labels with no room are left out, and a note above the Axes says how many are shown.

    Parameters
    ----------
    marker_radius : float
        Room to leave around each point, in points (1/72 inch).
    notes : list of str
        Further notes, shown in the same place.
    what : str
        What the labels name, for the note.
    to_the_right : bool
        Whether labels may only be to the right of their points, as suits points in rows.
    """
    points = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    texts = [
        ax.annotate(
            shown(label),
            (float(x), float(y)),
            xytext=(0, 0),
            textcoords="offset points",
            ha="left",
            va="bottom",
            fontsize=FONT_SIZE,
            color=colour,
            parse_math=False,
            zorder=4,
            path_effects=[withStroke(linewidth=1.5, foreground="white", alpha=0.7)],
        )
        for label, (x, y) in zip(labels, points, strict=True)
    ]
    placer = LabelPlacer(ax, texts, points, marker_radius, list(notes), what, to_the_right)
    ax.add_artist(placer)
    # Layouts make no room for what is clipped to the Axes, and the note is above them.
    placer.set_clip_on(False)
    return placer


class LabelPlacer(Artist):
    """Moves labels to where they fit, hides those that do not, and draws lines to those that are far off.

    It is drawn just before the labels, when limits, aspect and layout of the Axes are settled.
    """

    def __init__(
        self,
        ax: Axes,
        texts: Sequence[Annotation],
        points: Floats,
        marker_radius: float,
        notes: Sequence[str],
        what: str,
        to_the_right: bool,
    ) -> None:
        super().__init__()
        self.set_zorder(3.9)
        self._own_axes, self._labels, self._points = ax, list(texts), points
        self._radius, self._notes, self._what, self._to_the_right = marker_radius, list(notes), what, to_the_right
        self._placed: tuple[bytes, Floats] | None = None
        self._note = Text(0, 0, " ", ha="right", va="bottom", fontsize=NOTE_SIZE, color="0.35", parse_math=False)
        for text in texts:
            text.set_in_layout(False)

    def draw(self, renderer: Any) -> None:
        """Place the labels and draw the lines and the note; the labels draw themselves afterwards."""
        if not self.get_visible():
            return
        pixels = self._pixels()
        points = self._own_axes.transData.transform(self._points)
        for text in self._labels:
            text.set_visible(True)
            text.set_position((0, 0))
        boxes = [text.get_window_extent(renderer) for text in self._labels]
        sizes = np.array([box.size for box in boxes]).reshape(-1, 2)
        corners = self._place(renderer, points, sizes, pixels)
        for i, text in enumerate(self._labels):
            text.set_visible(bool(np.isfinite(corners[i, 0])))
            if text.get_visible():
                # Where the box now is may differ from its point by the font's descent, so move it by the difference.
                text.set_position(tuple((corners[i] - boxes[i].min) / pixels))
                self._draw_line(renderer, points[i], corners[i], sizes[i], pixels)
        self._draw_note(renderer, int(np.isfinite(corners[:, 0]).sum()), pixels)

    def get_window_extent(self, renderer: Any = None) -> Bbox:
        """Room for the note, so that layouts leave it."""
        box = self._own_axes.get_window_extent(renderer)
        return Bbox.from_bounds(box.x0, box.y1, box.width, self._room() * self._pixels())

    def get_tightbbox(self, renderer: Any = None) -> Bbox:
        """As `get_window_extent`."""
        return self.get_window_extent(renderer)

    def _room(self) -> float:
        return NOTE_ROOM if self._labels or self._notes else 0.0

    def _pixels(self) -> float:
        """Pixels to a point (1/72 inch)."""
        return float(self._own_axes.figure.dpi) / 72

    def _place(self, renderer: Any, points: Floats, sizes: Floats, pixels: float) -> Floats:
        gaps = NEAR + FAR if len(points) <= MOST_LINES and not self._to_the_right else NEAR
        distances = [(self._radius + gap) * pixels for gap in gaps]
        bounds = np.array(self._own_axes.get_window_extent(renderer).extents)
        obstacles = np.vstack([np.empty((0, 4)), *self._furniture(renderer)])
        # A figure is drawn more than once, mostly without a change.
        state = b"".join(array.tobytes() for array in (points, sizes, bounds, obstacles))
        if self._placed is None or self._placed[0] != state:
            corners = place_boxes(
                *(points, sizes, bounds),
                mark=0.7 * self._radius * pixels,
                obstacles=obstacles,
                distances=distances,
                line_beyond=0 if self._to_the_right else self._line_beyond() * pixels,
                directions=TO_THE_RIGHT if self._to_the_right else DIRECTIONS,
                clearance=0.7 * pixels,
            )
            self._placed = state, corners
        return self._placed[1]

    def _line_beyond(self) -> float:
        return self._radius + NEAR[-1] + 1

    def _furniture(self, renderer: Any) -> list[Floats]:
        """Boxes of what else is written in the Axes: the legend, texts of others."""
        own = set(map(id, self._labels))
        others: list[Artist] = [text for text in self._own_axes.texts if id(text) not in own and text.get_text()]
        legend = self._own_axes.get_legend()
        others += [legend] if legend is not None else []
        return [np.array(other.get_window_extent(renderer).extents)[None] for other in others if other.get_visible()]

    def _draw_line(self, renderer: Any, point: Floats, corner: Floats, size: Floats, pixels: float) -> None:
        end = nearest(point, corner[None], size)[0]
        if np.hypot(*(end - point)) > self._line_beyond() * pixels:
            line = Line2D(*np.stack([point, end]).T, lw=0.5, color="0.55", transform=IdentityTransform())
            line.set_figure(self._own_axes.figure)
            line.draw(renderer)

    def _draw_note(self, renderer: Any, n_shown: int, pixels: float) -> None:
        hidden = len(self._labels) - n_shown
        left_out = [f"{n_shown} of {len(self._labels)} {self._what} fit"] if hidden else []
        box = self._own_axes.get_window_extent(renderer)
        self._note.set_text("; ".join([*self._notes, *left_out]))
        self._note.set_position((box.x1, box.y1 + 2 * pixels))
        self._note.set_transform(IdentityTransform())
        self._note.set_figure(self._own_axes.figure)
        self._note.draw(renderer)
