"""Labels of points that never cover one another: placed when a figure is drawn, since only then is its size known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox, IdentityTransform
from numpy.typing import NDArray

from ntfa.plots.style import shown

Floats = NDArray[np.float64]

FONT_SIZE = 7.0
NOTE_ROOM = 11.0
# Distance of a label from its mark, and least distance between labels, in points (1/72 inch).
GAP, CLEARANCE = 1.5, 0.7
# Right and up first, where readers look for a label.
AROUND = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1)], dtype=np.float64)
TO_THE_RIGHT = np.array([(1, 0)], dtype=np.float64)


def add_labels(
    ax: Axes,
    points: Any,
    labels: Sequence[object],
    *,
    marker_radius: float = 4.0,
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
    style: dict[str, Any] = {"fontsize": FONT_SIZE, "color": "0.2", "ha": "left", "va": "bottom", "zorder": 4}
    style["path_effects"] = [withStroke(linewidth=1.5, foreground="white", alpha=0.7)]
    texts = [
        ax.annotate(shown(label), tuple(point), (0, 0), textcoords="offset points", parse_math=False, **style)
        for label, point in zip(labels, points, strict=True)
    ]
    directions = TO_THE_RIGHT if to_the_right else AROUND
    placer = LabelPlacer(ax, texts, points, marker_radius, list(notes), what, directions)
    ax.add_artist(placer)
    # Layouts make no room for what is clipped to the Axes, and the note is above them.
    placer.set_clip_on(False)
    return placer


class LabelPlacer(Artist):
    """Moves labels to where they fit and hides those that do not.

    It is drawn just before the labels, when limits, aspect and layout of the Axes are settled.
    """

    def __init__(
        self,
        ax: Axes,
        texts: Sequence[Annotation],
        points: Floats,
        marker_radius: float,
        notes: list[str],
        what: str,
        directions: Floats,
    ) -> None:
        super().__init__()
        self.set_zorder(3.9)
        self._own_axes, self._labels, self._points, self._directions = ax, list(texts), points, directions
        self._radius, self._notes, self._what = marker_radius, notes, what
        self._note = Text(0, 0, "", ha="right", va="bottom", fontsize=FONT_SIZE, color="0.35", parse_math=False)
        for text in texts:
            text.set_in_layout(False)

    def draw(self, renderer: Any) -> None:
        """Place the labels and draw the note; the labels draw themselves afterwards."""
        if not self.get_visible():
            return
        ax, pixels = self._own_axes, self._pixels()
        for text in self._labels:
            text.set_visible(True)
            text.set_position((0, 0))
        boxes = [text.get_window_extent(renderer) for text in self._labels]
        corners = place_boxes(
            ax.transData.transform(self._points),
            np.array([box.size for box in boxes]).reshape(-1, 2),
            np.array(ax.get_window_extent(renderer).extents),
            np.vstack([np.empty((0, 4)), *self._furniture(renderer)]),
            mark=0.7 * self._radius * pixels,
            gap=(self._radius + GAP) * pixels,
            clearance=CLEARANCE * pixels,
            directions=self._directions,
        )
        for text, box, corner in zip(self._labels, boxes, corners, strict=True):
            text.set_visible(bool(np.isfinite(corner[0])))
            # Where the box now is may differ from its point by the font's descent, so move it by the difference.
            text.set_position(tuple((corner - box.min) / pixels) if text.get_visible() else (0, 0))
        self._draw_note(renderer, sum(text.get_visible() for text in self._labels))

    def get_window_extent(self, renderer: Any = None) -> Bbox:
        """Room for the note, so that layouts leave it."""
        box, room = self._own_axes.get_window_extent(renderer), NOTE_ROOM if self._labels or self._notes else 0.0
        return Bbox.from_bounds(box.x0, box.y1, box.width, room * self._pixels())

    def get_tightbbox(self, renderer: Any = None) -> Bbox:
        """As `get_window_extent`."""
        return self.get_window_extent(renderer)

    def _pixels(self) -> float:
        """Pixels to a point (1/72 inch)."""
        return float(self._own_axes.figure.dpi) / 72

    def _furniture(self, renderer: Any) -> list[Floats]:
        """Boxes of what else is written in the Axes: the legend, texts of others."""
        others: list[Any] = [text for text in self._own_axes.texts if text not in self._labels and text.get_text()]
        others += [legend] if (legend := self._own_axes.get_legend()) is not None else []
        return [np.array(other.get_window_extent(renderer).extents)[None] for other in others if other.get_visible()]

    def _draw_note(self, renderer: Any, n_shown: int) -> None:
        box, n_labels = self._own_axes.get_window_extent(renderer), len(self._labels)
        left_out = [f"{n_shown} of {n_labels} {self._what} fit"] if n_shown < n_labels else []
        self._note.set(text="; ".join([*self._notes, *left_out]), position=(box.x1, box.y1 + 2 * self._pixels()))
        self._note.set_transform(IdentityTransform())
        self._note.set_figure(self._own_axes.figure)
        self._note.draw(renderer)


def place_boxes(
    points: Floats,
    sizes: Floats,
    bounds: Floats,
    obstacles: Floats,
    *,
    mark: float,
    gap: float,
    clearance: float = 1.0,
    directions: Floats = AROUND,
) -> Floats:
    """Place a box beside each point, within bounds, over no mark, no obstacle and no other box.

    The points farthest from the middle are served first; those with no room get none.

    Parameters
    ----------
    points, sizes : [n, 2]
        Each point, and the width and height of its box.
    bounds : [4]
        x0, y0, x1, y1 that boxes must lie in.
    obstacles : [m, 4]
        Further boxes that must stay clear.
    mark, gap, clearance : float
        Half the side of a point's mark, distance of a box from its point, least distance between boxes.
    directions : [d, 2]
        Where boxes may be from their points, best first.

    Returns
    -------
    Lower left corner of each box, [n, 2]; NaN where there is no room.
    """
    corners = np.full(points.shape, np.nan)
    taken = np.vstack([np.hstack([points - mark, points + mark]), np.reshape(obstacles, (-1, 4))])
    offsets = gap * directions / np.hypot(*directions.T)[:, None]
    from_middle = np.hypot(*(points - np.median(points, axis=0)).T) if len(points) else np.empty(0)
    for i in np.argsort(-from_middle, kind="stable"):
        # A box to the right starts at the point, one to the left ends there, one straight above is centred on it.
        corner = points[i] + offsets - sizes[i] * (1 - np.sign(directions)) / 2
        boxes = np.hstack([corner - clearance, corner + sizes[i] + clearance])
        free = (boxes[:, :2] >= bounds[:2]).all(1) & (boxes[:, 2:] <= bounds[2:]).all(1)
        free &= ~overlaps(boxes, taken).any(1) & _is_nearest(corner, sizes[i], points, i)
        if free.any():
            corners[i] = corner[np.argmax(free)]
            taken = np.vstack([taken, boxes[np.argmax(free)]])
    return corners


def overlaps(boxes: Floats, others: Floats) -> NDArray[np.bool_]:
    """Whether each box (x0, y0, x1, y1) covers some of each other one, [n, m]."""
    one, other = boxes[:, None], others[None]
    apart = (one[..., :2] >= other[..., 2:]) | (other[..., :2] >= one[..., 2:])
    return np.asarray(~apart.any(-1))


def _is_nearest(corners: Floats, size: Floats, points: Floats, own: int) -> NDArray[np.bool_]:
    """Whether boxes are no farther from their own point than from any other, so that none is taken for another's."""
    closest = np.clip(points[None], corners[:, None], (corners + size)[:, None])
    distances = np.hypot(*np.moveaxis(closest - points[None], -1, 0))
    return np.asarray(distances[:, own] <= distances.min(1) + 1e-6)
