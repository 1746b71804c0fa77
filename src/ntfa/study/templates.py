"""Surfaces that are on this machine already: TemplateFlow's, which fMRIPrep has fetched, and fMRIPrep's own output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ntfa.study.surfaces import SurfaceFiles

DENSITIES = {32492: ("fsLR", "32k"), 59292: ("fsLR", "59k"), 40962: ("fsaverage", "41k"), 163842: ("fsaverage", "164k")}
"""Template and density by the number of vertices of a hemisphere, as TemplateFlow and fMRIPrep call them."""
Pair = tuple[str, str]


def find_surfaces(
    n_vertices: Mapping[str, int], derivatives: Path | None = None, distance: str = "sphere"
) -> SurfaceFiles | None:
    """Find midthickness surfaces with so many vertices in each hemisphere; None if there are none.

    TemplateFlow's come first: fMRIPrep's are of one person, in the space of that person's scan. Spheres and inflated
    surfaces are TemplateFlow's in both cases.

    Parameters
    ----------
    derivatives : Path, optional
        fMRIPrep's output.
    """
    (n, *others) = set(n_vertices.values())
    if others or n not in DENSITIES:
        return None
    template, density = DENSITIES[n]
    midthickness, source = _of_template(template, density, "midthickness"), f"TemplateFlow's {template} ({density})"
    if midthickness is None and derivatives is not None:
        midthickness = _of_fmriprep(derivatives, template, density)
        source = "" if midthickness is None else f"fMRIPrep's output for one participant ({Path(midthickness[0]).name})"
    if midthickness is None:
        return None
    sphere, inflated = (_of_template(template, density, name) for name in ("sphere", "inflated"))
    return SurfaceFiles(midthickness, sphere, inflated, distance, source)


def template_folder() -> Path:
    """Return the folder that TemplateFlow keeps templates in."""
    return Path(os.environ.get("TEMPLATEFLOW_HOME") or Path.home() / ".cache" / "templateflow")


def _of_template(template: str, density: str, name: str) -> Pair | None:
    folder = template_folder() / f"tpl-{template}"
    for order in ("tpl-{0}_den-{1}_hemi-{3}_{2}.surf.gii", "tpl-{0}_hemi-{3}_den-{1}_{2}.surf.gii"):
        pair = [folder / order.format(template, density, name, side) for side in "LR"]
        # What TemplateFlow has not fetched yet is there as an empty file.
        if all(path.is_file() and path.stat().st_size for path in pair):
            return str(pair[0]), str(pair[1])
    return None


def _of_fmriprep(derivatives: Path, template: str, density: str) -> Pair | None:
    name = f"*_hemi-L_space-{template}_den-{density}*_midthickness.surf.gii"
    for pattern in (f"sub-*/anat/{name}", f"sub-*/ses-*/anat/{name}"):
        for left in sorted(derivatives.glob(pattern)):
            right = left.with_name(left.name.replace("_hemi-L_", "_hemi-R_"))
            if right.is_file():
                return str(left), str(right)
    return None
