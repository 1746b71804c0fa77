"""Where a BIDS dataset's events are, and where its preprocessed images: also if fMRIPrep's folder is what was given."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from ntfa.errors import StudyError
from ntfa.files.reading import read_json

logger = logging.getLogger("ntfa")

DESCRIPTION = "dataset_description.json"


def locate(bids_dir: str | os.PathLike[str], derivatives: str | os.PathLike[str] | None) -> tuple[Path, Path]:
    """Return the folder with the events, and that with the preprocessed images; they may be the same.

    Where the output of fMRIPrep was given for the dataset itself, the dataset is looked for: where the output says it
    came from, in its `sourcedata`, and around it.
    """
    root = Path(bids_dir)
    if not (root / DESCRIPTION).is_file():
        raise StudyError(f"{root}: not a BIDS dataset, it has no {DESCRIPTION}")
    if derivatives is not None:
        if not Path(derivatives).is_dir():
            raise StudyError(f"{Path(derivatives)}: there is no such folder of derivatives")
        return root, Path(derivatives)
    if not _is_derivative(root) or _has_events(root):
        return root, _derivatives_of(root)
    for raw in _possible_sources(root):
        if (raw / DESCRIPTION).is_file() and _has_events(raw):
            logger.info("%s holds derivatives; events are taken from %s, which they were made from", root, raw)
            return raw, root
    raise StudyError(
        f"{root}: these are derivatives, such as fMRIPrep's output, without events: give the folder of the dataset "
        f"that they were made from (with its events.tsv) as BIDS_DIR, and this one as --derivatives {root}"
    )


def _derivatives_of(root: Path) -> Path:
    """Find the one folder of derivatives with images; the dataset itself, where there is none."""
    inside = root / "derivatives"
    usual = inside / "fmriprep"
    with_images = [path for path in sorted(inside.glob("*")) if any(path.glob("sub-*/**/func/*_bold.nii*"))]
    names = [usual] if usual.is_dir() else with_images
    if len(names) > 1:
        shown = ", ".join(path.name for path in names)
        raise StudyError(f"{inside}: several derivatives ({shown}); say which with --derivatives")
    return names[0] if names else root


def description_of(folder: Path) -> dict[str, Any]:
    """Read a dataset's description; empty where there is none that can be read."""
    try:
        return read_json(folder / DESCRIPTION)
    except ValueError:
        return {}


def _is_derivative(folder: Path) -> bool:
    known = description_of(folder)
    made_by = known.get("GeneratedBy")
    return known.get("DatasetType", "derivative" if made_by else "raw") == "derivative"


def _has_events(folder: Path) -> bool:
    return any(folder.glob("sub-*/**/*_events.tsv"))


def _possible_sources(root: Path) -> Iterator[Path]:
    """Folders that derivatives may have been made from, the likeliest first."""
    known = description_of(root)
    links, sources = known.get("DatasetLinks"), known.get("SourceDatasets")
    if isinstance(links, dict):
        yield from _as_folders(root, [links.get("raw"), *links.values()])
    if isinstance(sources, list):
        yield from _as_folders(root, [entry.get("URL") for entry in sources if isinstance(entry, dict)])
    yield from (root / "sourcedata" / "raw", root / "sourcedata")
    parent = root.resolve().parent
    yield from (parent.parent, parent)


def _as_folders(root: Path, addresses: list[Any]) -> Iterator[Path]:
    for address in addresses:
        parsed = urlparse(address) if isinstance(address, str) else None
        if parsed is not None and parsed.scheme in ("", "file") and parsed.path:
            # An absolute path stays what it is; others are meant from the folder that names them.
            yield root / unquote(parsed.path)
