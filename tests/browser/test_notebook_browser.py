"""What a model shows of itself inside a page, as a notebook would."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import SIZES, fits, opened

from ntfa import NTFA


def notebook(path: Path, *outputs: Any) -> Path:
    """Write a page of outputs under one another, as notebooks do."""
    cells = "".join(f"<div>{output._repr_html_()}</div>" for output in outputs)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    path.write_text(f"<!doctype html>{head}<body style='margin: 8px'>{cells}<p id='next'>next</p>", encoding="utf-8")
    return path


@pytest.mark.parametrize("n_points", [3, 300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_screen_holds_embeddings_and_two_compared(
    browser: Any, crowd: Callable[[int], NTFA], tmp_path: Path, size: str, scheme: str, n_points: int
) -> None:
    model = crowd(n_points)
    path = notebook(tmp_path / "notebook.html", model, model.show_embeddings(kind="stimulus"))
    with opened(browser, path, size, color_scheme=scheme) as one:
        frame = one.page.frame_locator("iframe")
        plot = frame.locator("[data-plot=stimulus]")
        assert plot.locator(".mark").count() == n_points
        below = one.page.locator("#next").bounding_box()["y"]
        for name, value in (("Select", "0"), ("Compare with", "2")):
            plot.locator(f"label:has-text('{name}') select").select_option(value)
        assert plot.locator(".card").count() == 3
        # The frame grows with what is in it: neither it nor the notebook scrolls sideways, and it never scrolls itself.
        one.page.wait_for_function(f"document.getElementById('next').getBoundingClientRect().y > {below}")
        inner = frame.locator("html").evaluate("e => [e.scrollWidth, e.clientWidth, e.scrollHeight, e.clientHeight]")
        assert inner[0] <= inner[1]
        assert inner[2] <= inner[3] + 1
        assert fits(one.page)
        colour = frame.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", colour)[:3])) < 200) == (scheme == "dark")


def test_points_are_pointed_at_in_a_frame(browser: Any, demo: Path, tmp_path: Path) -> None:
    model = NTFA.load(demo)
    with opened(browser, notebook(tmp_path / "notebook.html", model.show_embeddings())) as one:
        frame = one.page.frame_locator("iframe")
        assert frame.locator("[data-plot]").count() == 2
        frame.locator("[data-plot=participant] .mark[data-place='4']").focus()
        assert frame.locator("#tip strong").text_content() == "sub-05"
        one.page.keyboard.press("Enter")
        assert frame.locator("[data-plot=participant] .card h4").all_text_contents() == ["sub-05"]
