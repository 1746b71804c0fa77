"""Where labels go so that none covers another: geometry alone, in any one unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Right and up first, where readers look for a label; then beside, above and below, and in between.
DIRECTIONS = np.array(
    [
        *[(1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1)],
        *[(1, 0.5), (1, -0.5), (-1, 0.5), (-1, -0.5), (0.5, 1), (-0.5, 1), (0.5, -1), (-0.5, -1)],
    ],
    dtype=np.float64,
)
TO_THE_RIGHT = np.array([(1, 0)], dtype=np.float64)


def place_boxes(
    points: Floats,
    sizes: Floats,
    bounds: Floats,
    *,
    mark: float,
    obstacles: Floats,
    distances: Sequence[float],
    line_beyond: float,
    directions: Floats = DIRECTIONS,
    clearance: float = 1.0,
) -> Floats:
    """Place a box for each point, near it, within bounds, over no mark, no obstacle, no other box and no line to one.

    The points farthest from the middle are served first; those with no room get none. A box without a line is nearest
    to its own point; lines cross no other mark, box or line.

    Parameters
    ----------
    points, sizes : [n, 2]
        Each point, and the width and height of its box.
    bounds : [4]
        x0, y0, x1, y1 that boxes must lie in.
    mark : float
        Half the side of the square that each point's mark takes.
    obstacles : [m, 4]
        Further boxes that must stay clear.
    distances : list of float
        How far from its point a box may be, nearest first.
    line_beyond : float
        Distance from which a line leads from the point to its box.
    directions : [d, 2]
        Where boxes may be from their points, best first.
    clearance : float
        Least gap between boxes.

    Returns
    -------
    Lower left corner of each box, [n, 2]; NaN where there is no room.
    """
    corners = np.full((len(points), 2), np.nan)
    fixed = np.vstack([np.hstack([points - mark, points + mark]), np.reshape(obstacles, (-1, 4))])
    taken, lines = np.empty((0, 4)), np.empty((0, 4))
    for i in _outermost_first(points):
        corner = candidates(points[i], sizes[i], distances, directions)
        boxes = np.hstack([corner - clearance, corner + sizes[i] + clearance])
        line = np.hstack([np.broadcast_to(points[i], corner.shape), nearest(points[i], corner, sizes[i])])
        needs_line = np.hypot(*(line[:, 2:] - line[:, :2]).T) > line_beyond
        close = overlaps(np.hstack([boxes[:, :2].min(0), boxes[:, 2:].max(0)])[None], fixed)[0]
        others = np.vstack([fixed[close & (np.arange(len(fixed)) != i)], taken])
        free = inside(boxes, bounds) & ~overlaps(boxes, np.vstack([fixed[close], taken])).any(1)
        free &= ~crosses(lines, boxes).any(0)
        clear = ~(crosses(line, others).any(1) | meet(line, lines).any(1))
        free &= np.where(needs_line, clear, _is_nearest(line, points[close[: len(points)]], corner, sizes[i]))
        if free.any():
            best = int(np.argmax(free))
            corners[i] = corner[best]
            taken = np.vstack([taken, boxes[best]])
            lines = np.vstack([lines, line[best]]) if needs_line[best] else lines
    return corners


def _is_nearest(line: Floats, rivals: Floats, corners: Floats, size: Floats) -> NDArray[np.bool_]:
    """Whether each box is no farther from its own point, where its line begins, than from any other."""
    length = np.hypot(*(line[:, 2:] - line[:, :2]).T)
    return np.asarray(length <= distances_to(rivals, corners, size).min(1, initial=np.inf) + 1e-6)


def _outermost_first(points: Floats) -> list[int]:
    if not len(points):
        return []
    return np.argsort(-np.hypot(*(points - np.median(points, axis=0)).T), kind="stable").tolist()


def candidates(point: Floats, size: Floats, distances: Sequence[float], directions: Floats = DIRECTIONS) -> Floats:
    """Lower left corners of a box around a point, nearest first, [len(distances) * len(directions), 2]."""
    # A box to the right starts at the point, one to the left ends there, one straight above is centred on it.
    towards = directions / np.hypot(*directions.T)[:, None]
    anchor = point - size * (1 - np.sign(directions)) / 2
    return np.vstack([anchor + towards * distance for distance in distances])


def nearest(point: Floats, corners: Floats, size: Floats) -> Floats:
    """Return the nearest place of each box to a point, [n, 2]."""
    return np.clip(point, corners, corners + size)


def distances_to(points: Floats, corners: Floats, size: Floats) -> Floats:
    """Distance of each box from each point, [n boxes, n points]."""
    closest = np.clip(points[None], corners[:, None], (corners + size)[:, None])
    return np.asarray(np.hypot(*np.moveaxis(closest - points[None], -1, 0)))


def meet(lines: Floats, others: Floats) -> NDArray[np.bool_]:
    """Whether each line crosses each other line, [n, m]."""
    a, b = lines[:, None, :2], lines[:, None, 2:]
    c, d = others[None, :, :2], others[None, :, 2:]

    def side(p: Floats, q: Floats, r: Floats) -> Floats:
        return np.sign((q - p)[..., 0] * (r - p)[..., 1] - (q - p)[..., 1] * (r - p)[..., 0])

    return np.asarray((side(a, b, c) != side(a, b, d)) & (side(c, d, a) != side(c, d, b)))


def inside(boxes: Floats, bounds: Floats) -> NDArray[np.bool_]:
    """Whether each box lies within bounds."""
    return np.asarray((boxes[:, :2] >= bounds[:2]).all(1) & (boxes[:, 2:] <= bounds[2:]).all(1))


def overlaps(boxes: Floats, others: Floats) -> NDArray[np.bool_]:
    """Whether each box covers some of each other one, [n, m]."""
    a, b = boxes[:, None], others[None]
    apart = (a[..., :2] >= b[..., 2:]) | (b[..., :2] >= a[..., 2:])
    return np.asarray(~apart.any(-1))


def crosses(lines: Floats, boxes: Floats) -> NDArray[np.bool_]:
    """Whether each line (x0, y0, x1, y1) passes through each box, [n, m]."""
    start, step = lines[:, None, :2], (lines[:, 2:] - lines[:, :2])[:, None]
    step = np.where(np.abs(step) < 1e-9, 1e-9, step)
    low, high = (boxes[None, :, :2] - start) / step, (boxes[None, :, 2:] - start) / step
    enter, leave = np.minimum(low, high).max(-1), np.maximum(low, high).min(-1)
    return np.asarray(np.maximum(enter, 0) < np.minimum(leave, 1))
