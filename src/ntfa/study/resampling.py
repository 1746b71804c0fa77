"""A study on another grid, brought onto that of a mask; only where somebody asks for it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from ntfa.errors import StudyError
from ntfa.study.checks import mask_coordinates
from ntfa.study.coverage import check_coverage
from ntfa.study.images import on_grid_of
from ntfa.study.study import Study

MOST_OUTSIDE = 0.5
"""Share of a voxel that must lie in the study's mask for it to have a value."""


def resampled(study: Study, mask_img: Any) -> Study:
    """Return the study at a mask's voxels, by continuous interpolation of its frames.

    Refuses a study without a mask of its own, and one whose mask leaves voxels of the other without values.
    """
    for whose, mask in (("study", study.mask_img), ("model", mask_img)):
        if not hasattr(mask, "dataobj"):
            what = "has no mask image" if mask is None else "is of cortical surfaces"
            raise StudyError(f"the {whose} {what}, so frames cannot be resampled from one grid to another")
    inside = np.asanyarray(mask_img.dataobj) > 0
    covered = _on_grid(study.mask_img, np.ones((1, study.n_voxels), dtype=np.float32), mask_img)[0]
    missing = int((covered[inside] < MOST_OUTSIDE).sum())
    if missing:
        raise StudyError(
            f"{missing} of the model's {int(inside.sum())} voxels lie outside of the study's mask, so that resampling "
            "gives them no values; prepare the study with a larger mask"
        )
    frames, coverage = {}, {}
    for label, array in study.frames.items():
        # Near the edge of the mask, or of what a participant has, a voxel's value is that of the part that has one.
        part, seen = covered[inside], study.coverage.get(label)
        if seen is not None:
            part = _on_grid(study.mask_img, seen[None].astype(np.float32), mask_img)[0][inside]
            coverage[label] = part >= MOST_OUTSIDE
        values = _on_grid(study.mask_img, array, mask_img)[:, inside] / np.maximum(part, MOST_OUTSIDE)
        frames[label] = np.ascontiguousarray(values * coverage.get(label, np.float32(1)))
    coordinates = mask_coordinates(mask_img)
    coverage = check_coverage(coverage, study.participants, len(coordinates))
    return replace(study, coordinates=coordinates, frames=frames, mask_img=mask_img, coverage=coverage)


def _on_grid(own: Any, values: np.ndarray, mask_img: Any) -> np.ndarray:
    """Maps [n, V] of one mask as volumes [n, x, y, z] on another's grid."""
    from nilearn.masking import unmask

    volumes = unmask(np.asarray(values, dtype=np.float32), own)
    with warnings.catch_warnings():
        # A mask is interpolated on purpose, to see how much of a voxel is covered.
        warnings.filterwarnings("ignore", "Resampling binary images")
        img = on_grid_of(mask_img, volumes, "resample", "the study")
    return np.moveaxis(np.asarray(img.dataobj, dtype=np.float32), -1, 0)
