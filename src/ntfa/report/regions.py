"""Names of regions for factors and places of a report, from an atlas that is kept beside the results."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from ntfa.errors import StudyError
from ntfa.files.folders import discard, sibling, write_file
from ntfa.report.brain import Grid
from ntfa.report.expected import Expected
from ntfa.study.atlas import NO_REGION, Atlas

ATLAS_FOLDER = "atlas"
SUFFIXES = (".gz", ".nii", ".img", ".hdr")


def as_atlas(source: Any) -> Atlas | None:
    """Open an atlas: an `Atlas`, an image with its labels beside it, or a pair of image and labels; None is none."""
    if source is None or isinstance(source, Atlas):
        return source
    image, labels = source if isinstance(source, tuple | list) and len(source) == 2 else (source, None)
    if not isinstance(image, str | os.PathLike) and not hasattr(image, "affine"):
        raise StudyError(f"atlas={source!r}: give an image, or a pair of an image and its labels")
    return Atlas.open(image, labels)


def atlas_name(atlas: Atlas) -> str:
    """Return the name of the atlas' file, without its folder and suffixes."""
    name = Path(atlas.name).name
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def keep_atlas(folder: Path, atlas: Atlas) -> None:
    """Write an atlas beside the results, as an image and a table, in the place of the one that was kept before."""
    name = re.sub(r"[^\w-]+", "-", atlas_name(atlas), flags=re.ASCII).strip("-") or "atlas"
    own = folder / ATLAS_FOLDER
    if Path(atlas.name) == own / f"{name}.nii.gz":
        return
    # Elsewhere first: half an atlas would be taken for the one to use.
    partial = sibling(own, "partial")
    partial.mkdir()
    kind = np.int32 if np.abs(atlas.values).max() > np.iinfo(np.int16).max else np.int16
    nibabel.save(nibabel.Nifti1Image(atlas.values.astype(kind), atlas.affine), partial / f"{name}.nii.gz")
    rows = [f"{value}\t{' '.join(region.split())}" for value, region in sorted(atlas.regions.items())]
    write_file(partial / f"{name}.tsv", "\n".join(["index\tname", *rows, ""]).encode())
    discard(own)
    partial.replace(own)


def kept_atlas(folder: Path) -> Atlas | None:
    """Read the atlas that is kept beside the results in a folder; None where there is none."""
    images = sorted((folder / ATLAS_FOLDER).glob("*.nii.gz"))
    return Atlas.open(images[0]) if images else None


def factor_regions(expected: Expected, atlas: Atlas | None) -> list[str] | None:
    """Name the region of each factor's centre, averaged over participants."""
    return None if atlas is None else atlas.names(expected.mean_factors[:, :3])


def cell_regions(grid: Grid, atlas: Atlas | None) -> dict[str, Any] | None:
    """Name the region of every cube of the maps, in the order in which the page has them."""
    if atlas is None:
        return None
    names, numbers = np.unique(atlas.names(grid.places[grid.order]), return_inverse=True)
    cells = base64.b64encode(numbers.astype("<u2").tobytes()).decode("ascii")
    return {"names": without_none(names.tolist()), "cells": cells}


def without_none(names: list[str]) -> list[str]:
    """Leave the names of places in no region empty: texts beside a pointer then say nothing of it."""
    return ["" if name == NO_REGION else name for name in names]
