"""Pages in a real browser, opened from disk with the network off."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SIZES = {"desktop": (1400, 900), "tablet": (768, 1000), "phone": (390, 844)}


@dataclass
class Opened:
    """A page, and everything that went wrong on it."""

    page: Any
    troubles: list[str] = field(default_factory=list)

    def middle(self, kind: str, place: int) -> tuple[float, float]:
        """Where a point is on the screen."""
        ring = self.page.locator(f"[data-plot={kind}] .mark[data-place='{place}'] .ring")
        ring.scroll_into_view_if_needed()
        box = ring.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def verdict(self, kind: str) -> Any:
        return self.page.locator(f"[data-plot={kind}] .verdict")

    def choose(self, kind: str, what: str, value: object) -> None:
        self.page.locator(f"[data-plot={kind}] label:has-text('{what}') select").select_option(str(value))

    def data(self) -> Any:
        return json.loads(self.page.locator("#data").text_content())


@contextmanager
def opened(browser: Any, path: Path, size: str = "desktop", **options: Any) -> Iterator[Opened]:
    """Open a page without a network; fail if anything went wrong by the end."""
    width, height = SIZES[size]
    context = browser.new_context(offline=True, viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(10_000)
    one = Opened(context.new_page())
    one.page.on("console", lambda message: one.troubles.append(f"{message.type}: {message.text}"))
    one.page.on("pageerror", lambda error: one.troubles.append(str(error)))
    one.page.on("requestfailed", lambda request: one.troubles.append(f"failed: {request.url[:80]}"))
    one.page.on("dialog", lambda dialog: (one.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    one.page.goto(path.as_uri())
    yield one
    context.close()
    assert one.troubles == []


def fits(page: Any) -> bool:
    wide, visible = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    return bool(wide <= visible)
