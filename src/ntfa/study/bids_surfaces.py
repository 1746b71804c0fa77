"""Runs of a BIDS dataset on cortical surfaces: fMRIPrep's CIFTI files, and its pairs of GIFTI files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ntfa.errors import StudyError
from ntfa.files.headers import open_file
from ntfa.study.greyordinates import Greyordinates
from ntfa.study.images import Run
from ntfa.study.problems import Problem
from ntfa.study.series import GreyordinateSeries, is_surface, of_cifti, open_series, require_space
from ntfa.study.surfaces import SurfaceFiles, shipped_template
from ntfa.study.templates import find_surfaces

VOLUMES, SURFACES = (".nii", ".nii.gz"), (".dtseries.nii", ".func.gii")


def is_cortical(space: str | None) -> bool:
    """Whether a space is of cortical surfaces."""
    return space is not None and (space == "fsLR" or space.startswith(("fsaverage", "fsnative")))


def extensions_of(space: str | None) -> list[str]:
    """Return the endings that images of a space have."""
    return list(SURFACES if is_cortical(space) else VOLUMES)


def paired(files: Sequence[Any], same: Any) -> tuple[list[Any], dict[Any, Any], list[Problem]]:
    """Leave the left hemisphere's file of each pair, and return the right ones by run, and who lacks one.

    same : says of a file what files of one run have in common
    """
    by_side: dict[str | None, dict[Any, Any]] = {"L": {}, "R": {}, None: {}}
    for file in files:
        by_side[file.get_entities().get("hemi")][same(file)] = file
    left, right = by_side["L"], by_side["R"]
    alone = [one[key] for one, other in ((left, right), (right, left)) for key in one if key not in other]
    text = "{0}: the file of the other hemisphere is missing; preprocess the run again, or leave it out"
    problems = [Problem(f"sub-{file.get_entities()['subject']}", text.format(file.path)) for file in alone]
    kept = [file for file in files if file.get_entities().get("hemi") != "R" and file not in alone]
    return kept, right, problems


def image_of(file: Any, right: Mapping[Any, Any], key: Any) -> Any:
    """Return a run's image: its file, or the pair of its hemispheres."""
    path = Path(file.path)
    return (path, Path(right[key].path)) if path.name.endswith(".func.gii") else path


def series_of(run: Run) -> GreyordinateSeries | None:
    """Open a run's image, if it is on surfaces; only CIFTI files are left unread."""
    if is_surface(run.img):
        return open_series(run.img, run.name)
    is_dense = Path(str(run.img)).name.endswith(".dtseries.nii")
    return of_cifti(open_file(run.img, run.name, "image"), run.name) if is_dense else None


def surface_space(run: Run, files: SurfaceFiles) -> Greyordinates:
    """Return the vertices and voxels of a run's image."""
    series = series_of(run)
    if series is None:
        raise StudyError(f"{run.name}: is no image of cortical surfaces")
    return require_space(series, files.open(), files.distance)


def with_found(files: SurfaceFiles, run: Run, derivatives: Path) -> SurfaceFiles:
    """Complete what is named by what is there: fsaverage5 with nilearn, TemplateFlow's surfaces, fMRIPrep's."""
    series = series_of(run)
    if files.midthickness is not None or series is None or not series.n_vertices:
        return files
    if shipped_template(series.n_vertices) is not None:
        return files
    found = find_surfaces(series.n_vertices, derivatives, files.distance)
    if found is None:
        return files
    found = replace(found, sphere=files.sphere or found.sphere, inflated=files.inflated or found.inflated)
    if found.sphere is None and found.distance == "sphere":
        warnings.warn(
            f"vertices are placed by {found.source}, but there is no sphere with their number of vertices: distances "
            "are straight lines, also across a sulcus; name spheres (--sphere LEFT RIGHT), those of TemplateFlow are "
            "tpl-fsLR_den-32k_hemi-L_sphere.surf.gii",
            stacklevel=2,
        )
    return found
