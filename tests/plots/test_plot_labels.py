"""Labels: never over one another, never over a mark, never read as mathematics."""

import io
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from ntfa.plots.labels import LabelPlacer, add_labels, overlaps, place_boxes
from ntfa.plots.style import LONGEST_LABEL, shown


def drawn_boxes(ax: Axes) -> np.ndarray:
    """Boxes (pixels) of the labels that are visible once the figure is drawn."""
    ax.figure.canvas.draw()
    renderer = ax.figure.canvas.get_renderer()
    seen = [Text.get_window_extent(text, renderer).extents for text in ax.texts if text.get_visible()]
    return np.array(seen).reshape(-1, 4)


def note_of(ax: Axes) -> str:
    ax.figure.canvas.draw()
    (placer,) = [artist for artist in ax.get_children() if isinstance(artist, LabelPlacer)]
    return placer._note.get_text()


def inside(boxes: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Whether each box lies within bounds."""
    return (boxes[:, :2] >= bounds[:2]).all(1) & (boxes[:, 2:] <= bounds[2:]).all(1)


def assert_apart(boxes: np.ndarray) -> None:
    covered = overlaps(boxes, boxes)
    np.fill_diagonal(covered, False)
    assert not covered.any()


def scatter(n: int, size: float = 5.0, **options: object) -> tuple[Axes, np.ndarray]:
    _, ax = plt.subplots(figsize=(size, size), layout="constrained")
    points = np.random.default_rng(1).normal(size=(n, 2))
    ax.plot(*points.T, "+")
    add_labels(ax, points, [f"label {i}" for i in range(n)], **options)
    return ax, points


@pytest.mark.parametrize("n", [1, 2, 10, 40, 41, 200])
def test_no_two_labels_overlap_and_none_leaves_the_axes(n: int) -> None:
    ax, points = scatter(n)
    boxes = drawn_boxes(ax)
    assert len(boxes) >= min(n, 10)
    assert_apart(boxes)
    assert inside(boxes, np.array(ax.get_window_extent().extents)).all()
    marks = ax.transData.transform(points)
    assert not overlaps(boxes, np.hstack([marks - 2, marks + 2])).any()


def test_few_points_are_all_labelled_without_a_note() -> None:
    ax, _ = scatter(8)
    assert len(drawn_boxes(ax)) == 8
    assert note_of(ax) == ""


def test_labels_that_do_not_fit_are_counted() -> None:
    ax, _ = scatter(200)
    n_drawn = len(drawn_boxes(ax))
    assert n_drawn < 200
    assert note_of(ax) == f"{n_drawn} of 200 labels fit"


def test_the_note_is_within_the_figure() -> None:
    ax, _ = scatter(200)
    note_of(ax)
    (placer,) = [artist for artist in ax.get_children() if isinstance(artist, LabelPlacer)]
    box = placer._note.get_window_extent()
    assert box.y0 >= ax.get_window_extent().y1
    assert box.y1 <= ax.figure.bbox.y1


def test_labels_of_rows_are_to_the_right() -> None:
    _, ax = plt.subplots(figsize=(4, 6))
    ax.plot(np.zeros(10), range(10), "+")
    add_labels(ax, [(0, i) for i in range(10)], [f"row {i}" for i in range(10)], to_the_right=True)
    boxes = drawn_boxes(ax)
    points = ax.transData.transform([(0, i) for i in range(10)])
    assert len(boxes) == 10
    assert (boxes[:, 0] > points[:, 0]).all()
    np.testing.assert_allclose(boxes[:, [1, 3]].mean(1), points[:, 1], atol=1)


def test_points_in_one_place_get_labels_beside_them() -> None:
    _, ax = plt.subplots()
    ax.plot([0, 1, -1], [0, 1, -1], "+")
    add_labels(ax, [(0, 0)] * 5, list("abcde"))
    boxes = drawn_boxes(ax)
    assert_apart(boxes)
    assert len(boxes) >= 2


def test_a_label_is_nearest_to_its_own_point() -> None:
    ax, points = scatter(60)
    drawn_boxes(ax)
    marks = ax.transData.transform(points)
    shown_labels = [text for text in ax.texts if text.get_visible()]
    assert shown_labels
    for text in shown_labels:
        box = Text.get_window_extent(text, ax.figure.canvas.get_renderer())
        gap = np.hypot(*(np.clip(marks, box.min, box.max) - marks).T)
        assert int(np.argmin(gap)) == int(text.get_text().split()[1])


def test_the_extreme_points_are_labelled_first() -> None:
    ax, points = scatter(300)
    drawn_boxes(ax)
    labelled = [int(text.get_text().split()[1]) for text in ax.texts if text.get_visible()]
    far = np.hypot(*points.T)
    assert int(np.argmax(far)) in labelled
    assert np.median(far[labelled]) > np.median(far)


def test_placing_again_in_another_size_works() -> None:
    ax, _ = scatter(60)
    before = len(drawn_boxes(ax))
    ax.figure.set_size_inches(12, 12)
    after = drawn_boxes(ax)
    assert_apart(after)
    assert len(after) > before


@pytest.mark.parametrize("form", ["svg", "pdf", "png"])
def test_labels_are_placed_in_every_output(form: str) -> None:
    ax, _ = scatter(30)
    stream = io.BytesIO()
    ax.figure.savefig(stream, format=form, bbox_inches="tight")
    assert len(stream.getvalue()) > 1000


def test_a_figure_without_pyplot_will_do() -> None:
    ax = Figure(figsize=(4, 4), layout="constrained").subplots()
    add_labels(ax, [(0, 0), (1, 1)], ["a", "b"])
    ax.figure.savefig(io.BytesIO(), format="png")
    assert not plt.get_fignums()
    assert [text.get_visible() for text in ax.texts] == [True, True]


boxes = st.lists(st.tuples(*[st.floats(0, 100)] * 2, *[st.floats(1, 30)] * 2), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(boxes)
def test_boxes_are_clear_of_all_else_wherever_the_points_are(given_boxes: list[tuple[float, ...]]) -> None:
    values = np.array(given_boxes)
    points, sizes = values[:, :2], values[:, 2:]
    bounds, obstacle = np.array([0.0, 0.0, 100.0, 100.0]), np.array([[40.0, 40.0, 60.0, 60.0]])
    corners = place_boxes(points, sizes, bounds, obstacle, mark=1.0, gap=2.5, clearance=0.5)
    placed = np.isfinite(corners[:, 0])
    found = np.hstack([corners, corners + sizes])[placed]
    assert_apart(found)
    assert inside(found, bounds).all()
    assert not overlaps(found, obstacle).any()
    assert not overlaps(found, np.hstack([points - 1, points + 1])).any()


def test_a_lone_point_with_room_is_always_served() -> None:
    corner = place_boxes(
        np.array([[50.0, 50.0]]),
        np.array([[20.0, 8.0]]),
        np.array([0.0, 0.0, 100.0, 100.0]),
        np.empty((0, 4)),
        mark=2.0,
        gap=5.0,
    )
    np.testing.assert_allclose(corner, [[50 + 5 / np.sqrt(2), 50 + 5 / np.sqrt(2)]])


def test_boxes_overlap_where_they_share_some_area() -> None:
    boxes = np.array([[0.0, 0, 2, 2], [1, 1, 3, 3], [2, 0, 4, 2]])
    assert overlaps(boxes, boxes).tolist() == [[True, True, False], [True, True, True], [False, True, True]]


# --- what is written


def test_long_labels_are_shortened_with_an_ellipsis() -> None:
    assert shown("x" * 200) == "x" * (LONGEST_LABEL - 1) + "…"
    assert shown("x" * LONGEST_LABEL) == "x" * LONGEST_LABEL
    assert shown("two\nlines\tof text") == "two lines of text"
    assert shown(3) == "3"


def test_what_the_font_cannot_draw_is_a_box_and_joiners_vanish() -> None:
    assert shown("\U0001f469\u200d\U0001f469") == "□□"
    assert shown("café £5 ±") == "café £5 ±"


def test_odd_labels_are_drawn_as_they_are_without_warnings() -> None:
    odd = [r"$\frac$", "a_b^c", "<script>", "100% {x} & #~", "$unclosed", "😀 smile", "日本", "\\", "_hidden", ""]
    _, ax = plt.subplots(figsize=(6, 6))
    add_labels(ax, np.random.default_rng(0).uniform(size=(len(odd), 2)), odd)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn_boxes(ax)
    assert not any(text.get_parse_math() for text in ax.texts)
    assert [text.get_text() for text in ax.texts][:3] == [r"$\frac$", "a_b^c", "<script>"]
