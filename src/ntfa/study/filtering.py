"""BIDS filter files, as other BIDS Apps have them: entities that files of a kind must have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ntfa.errors import StudyError
from ntfa.files.reading import read_json

USED = ("bold", "mask", "confounds")
"""Kinds of files that are looked for, and can be filtered."""


def read_filters(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a filter file: a JSON object of entities by kind of file."""
    try:
        return read_json(path)
    except ValueError as error:
        raise StudyError(f"{path}: cannot be read as a BIDS filter file, a JSON object ({error})") from error


def ignored(filters: Mapping[str, Any]) -> list[str]:
    """List kinds of files that are filtered for other BIDS Apps."""
    return [str(kind) for kind in filters if kind not in USED]


def filter_of(filters: Any, kind: str) -> dict[str, Any]:
    """Return the entities that files of a kind must have, in terms of pybids: null is none, "*" any."""
    from bids.layout import Query

    found = filters.get(kind, {}) if isinstance(filters, Mapping) else None
    if not isinstance(found, Mapping):
        raise StudyError(f'filters must be entities by kind of file, such as {{"bold": {{"run": 1}}}}, not {filters!r}')
    special = {None: Query.NONE, "*": Query.ANY}
    return {str(entity): special[value] if value is None or value == "*" else value for entity, value in found.items()}
