"""Names of places: regions of an atlas, a label image with a table of what its numbers mean."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.files.headers import open_file, require_sound
from ntfa.files.reading import one_line, reading, require_file

NO_REGION = "none"
"""What a place is called that is further from every region than asked for: white matter, mostly."""
WITHIN_MM = 4.0
INDEX_COLUMNS, NAME_COLUMNS = ("index", "label", "value", "id"), ("name", "region", "label", "abbreviation")
BACKGROUND = {"background", "unknown", "???"}
# <label index="3" x="52" y="30" z="15">Inferior Frontal Gyrus</label>, as FSL has it; the image's value is one more.
FSL_LABEL = re.compile(r"<label\s[^>]*?index=\"(\d+)\"[^>]*>([^<]*)</label>")


@dataclass(frozen=True, eq=False)
class Atlas:
    """Regions of a brain, to name places in mm by.

    values : integers [X, Y, Z], 0 where there is no region
    affine : from cells of the grid to mm
    regions : name of each value
    name : of the atlas, for errors
    """

    values: NDArray[np.int64]
    affine: NDArray[np.float64]
    regions: Mapping[int, str]
    name: str = "atlas"

    @classmethod
    def open(cls, image: Any, labels: Any = None) -> Atlas:
        """Read an atlas.

        Parameters
        ----------
        image : path or Nifti image
            3-D, an integer for each region and 0 elsewhere, in the space of the study.
        labels : path, DataFrame, mapping or list, optional
            What the integers mean. A table with columns `index` and `name` (BIDS' `dseg.tsv`, nilearn's `lut`), a text
            file with a number and a name per line (FreeSurfer), FSL's XML, or names alone, one per line or as a list:
            those of 1, 2, ..., or of 0, 1, ... if the first is "Background". By default the `.tsv` beside the image.
        """
        is_path = isinstance(image, str | os.PathLike)
        name = str(image) if is_path else "the atlas"
        img = open_file(image, name, "image") if is_path else image
        if labels is None:
            labels = _beside(image) if is_path else None
        if labels is None:
            raise StudyError(f"{name}: a table of its labels is needed, with columns index and name")
        values = _values(img, name)
        regions = _regions(labels)
        known = set(regions) & set(np.unique(values).tolist())
        if not known:
            raise StudyError(
                f"{name}: none of its values is among the labels ({_some(regions)}); are they of this atlas?"
            )
        return cls(values, np.asarray(img.affine, dtype=np.float64), regions, name)

    def names(self, coordinates: Any, within: float = WITHIN_MM) -> list[str]:
        """Name of the region that each place [n, 3] in mm is in, or nearest to; "none" beyond `within` mm of all."""
        places = np.atleast_2d(np.asarray(coordinates, dtype=np.float64))
        if places.shape[-1] != 3:
            raise StudyError(f"places must have x, y and z, not shape {np.shape(coordinates)}")
        found = self._inside(places)
        outside = np.flatnonzero(found == 0)
        if len(outside):
            tree, values = self._tree
            distance, nearest = tree.query(places[outside], distance_upper_bound=within)
            near = np.isfinite(distance)
            found[outside[near]] = values[nearest[near]]
        return [NO_REGION if value == 0 else self.regions.get(value, f"label {value}") for value in found.tolist()]

    def _inside(self, places: NDArray[np.float64]) -> NDArray[np.int64]:
        """Value of the cell that each place is in, 0 outside of the image."""
        to_cells = np.linalg.inv(self.affine)
        cells = np.rint(places @ to_cells[:3, :3].T + to_cells[:3, 3])
        inside = ((cells >= 0) & (cells < self.values.shape)).all(1)
        found = np.zeros(len(places), dtype=np.int64)
        found[inside] = self.values[tuple(cells[inside].astype(np.int64).T)]
        return found

    @cached_property
    def _tree(self) -> tuple[Any, NDArray[np.int64]]:
        """All cells that are in a region, to look for the nearest, and their values."""
        from scipy.spatial import cKDTree

        cells = np.argwhere(self.values != 0)
        return cKDTree(cells @ self.affine[:3, :3].T + self.affine[:3, 3]), self.values[tuple(cells.T)]


def _values(img: Any, name: str) -> NDArray[np.int64]:
    require_sound(img, name)
    shape = tuple(length for i, length in enumerate(img.shape) if i < 3 or length != 1)
    if len(shape) != 3:
        raise StudyError(f"{name}: an atlas must be a 3-D image of labels, this one has shape {img.shape}")
    with reading(f"{name}: cannot be read as an image"):
        values = np.asarray(img.dataobj).reshape(shape)
    whole = np.rint(np.nan_to_num(values, posinf=0, neginf=0))
    if np.abs(values - whole)[np.isfinite(values)].max(initial=0.0) > 1e-3:
        raise StudyError(f"{name}: its values are no whole numbers; is it a map of probabilities instead of labels?")
    return whole.astype(np.int64)


def _beside(image: str | os.PathLike[str]) -> Path | None:
    """Return the table of labels that is named like an image, if there is one."""
    path = Path(image)
    beside = path.with_name(path.name.removesuffix(".gz").removesuffix(".nii") + ".tsv")
    return beside if beside.is_file() else None


def _regions(labels: Any) -> dict[int, str]:
    """Read what values mean, in whatever form it is given."""
    where = str(labels) if isinstance(labels, str | os.PathLike) else "labels of the atlas"
    try:
        if isinstance(labels, str | os.PathLike):
            regions = _from_file(Path(labels))
        elif isinstance(labels, pd.DataFrame):
            regions = _from_columns(labels.columns, labels.itertuples(index=False))
        elif isinstance(labels, Mapping):
            regions = {int(value): str(region) for value, region in labels.items()}
        else:
            regions = _from_list([str(region) for region in labels])
    except (TypeError, ValueError, OSError) as error:
        raise StudyError(f"{where}: no labels of an atlas can be read from it ({one_line(error)})") from error
    regions = {value: region.strip() for value, region in regions.items() if value != 0 and region.strip()}
    if not regions:
        raise StudyError(f"{where}: it names no region; columns index and name are expected")
    return regions


def _from_file(path: Path) -> dict[int, str]:
    require_file(path)
    text = path.read_bytes().decode("utf-8-sig")
    if path.suffix.lower() == ".xml":
        return {int(value) + 1: unescape(region) for value, region in FSL_LABEL.findall(text)}
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        return {}
    separator = "\t" if "\t" in lines[0] else ","
    header = [name.strip().strip('"') for name in lines[0].split(separator)]
    if len(header) > 1 and _column(header, NAME_COLUMNS) is not None and not header[0].isdigit():
        return _from_columns(header, [_cells(line, separator) for line in lines[1:]])
    numbered = [re.match(r"\s*(\d+)[\s,:]+(.+)", line) for line in lines]
    if all(numbered):
        return {int(match[1]): _without_colours(match[2]) for match in numbered if match}
    return _from_list(lines)


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip().strip('"') for cell in line.split(separator)]


def _without_colours(text: str) -> str:
    """Leave the four numbers out that FreeSurfer has after a name, or what comes after a tab."""
    return re.sub(r"(\s+\d+){3,4}$", "", text.split("\t")[0]).strip()


def _from_columns(columns: Iterable[Any], rows: Iterable[Sequence[Any]]) -> dict[int, str]:
    header = [str(column).strip().lower() for column in columns]
    of_index = _column(header, INDEX_COLUMNS)
    of_name = _column(header, NAME_COLUMNS, besides=of_index)
    if of_index is None or of_name is None:
        raise ValueError(f"it has the columns {', '.join(header)}; index and name are needed")
    regions = {}
    for number, row in enumerate(rows, start=2):
        try:
            regions[int(float(row[of_index]))] = str(row[of_name])
        except (ValueError, IndexError, OverflowError) as error:
            raise ValueError(f"line {number} has no whole number in the column {header[of_index]}") from error
    return regions


def _column(header: Sequence[str], names: Sequence[str], besides: int | None = None) -> int | None:
    lower = [name.lower() for name in header]
    found = [lower.index(name) for name in names if name in lower and lower.index(name) != besides]
    return found[0] if found else None


def _from_list(names: Sequence[str]) -> dict[int, str]:
    """Names alone, in order; the first is that of the background, or of the value 1."""
    first = 0 if names and names[0].strip().lower() in BACKGROUND else 1
    return dict(enumerate(names, start=first))


def _some(regions: Mapping[int, str]) -> str:
    return ", ".join(f"{value} {region}" for value, region in list(regions.items())[:3]) + ", ..."
