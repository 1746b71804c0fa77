"""The page: templates, style and script put into one file that needs no other."""

from __future__ import annotations

import base64
import hashlib
import tempfile
import webbrowser
from collections.abc import Collection
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader

from ntfa.report.data import as_text

# Rows of a table that the page shows; the rest are in the file it names.
MOST_ROWS = 400
# Log predictives of methods may differ in the fifth digit.
DIGITS = 6


@dataclass(frozen=True)
class Table:
    """A table as the page shows it: text in every cell."""

    columns: list[str]
    rows: list[list[str]]
    numeric: list[bool]
    left_out: int = 0

    @classmethod
    def of(cls, table: pd.DataFrame, most: int = MOST_ROWS, numbers: Collection[str] = ()) -> Table:
        """Turn a DataFrame into text, without its index; `numbers` names columns of numbers that are text already."""
        numeric = [column in numbers or pd.api.types.is_numeric_dtype(table[column]) for column in table]
        rows = [
            [as_text(value, DIGITS) for value in row] for row in table.head(most).itertuples(index=False, name=None)
        ]
        return cls([str(column) for column in table], rows, numeric, max(0, len(table) - most))


@dataclass(frozen=True)
class Report:
    """A report as one HTML page, as nilearn's reports are: save it, open it, or show it in a notebook.

    Attributes
    ----------
    html : str
        The page, which needs nothing beside it.
    height : int
        Of its frame in a notebook, in pixels.
    """

    html: str
    height: int = 800

    def save_as_html(self, path: str | Path) -> None:
        """Write the page to a file, which is replaced if it is there."""
        path = Path(path)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(self.html, encoding="utf-8", errors="replace")
        partial.replace(path)

    def open_in_browser(self) -> Path:
        """Open the page in a browser, from a temporary file, and return that."""
        path = Path(tempfile.mkdtemp(prefix="ntfa-report-")) / "report.html"
        self.save_as_html(path)
        webbrowser.open(path.as_uri())
        return path

    def _repr_html_(self) -> str:
        """Show the page in a notebook, in a frame of its own."""
        return f'<iframe srcdoc="{escape(self.html)}" width="100%" height="{self.height}" style="border:0"></iframe>'


def render(template: str, *, static: bool = False, **contents: Any) -> Report:
    """Fill a template; whatever is not markup of ours is escaped. A static page has no script."""
    script = "" if static else _script()
    contents |= {
        "style": _read("style.css"),
        "script": script,
        "script_hash": _hash(script),
        "static": static,
    }
    return Report(fill(template, **contents))


def fill(template: str, **contents: Any) -> str:
    """Fill a template that is no page by itself."""
    environment = Environment(loader=PackageLoader("ntfa", "report"), autoescape=True, trim_blocks=True)
    return environment.get_template(template).render(**contents)


def _read(name: str) -> str:
    return files("ntfa.report").joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    """Join the parts of the script, in the order of their names, inside a function of its own."""
    names = sorted(part.name for part in files("ntfa.report").joinpath("script").iterdir() if part.name.endswith(".js"))
    parts = [_read(f"script/{name}") for name in names]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def _hash(script: str) -> str:
    """Hash that tells browsers which script may run: this one, and none that a label might have brought."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
