"""Which voxels of a BIDS dataset's runs are used, or which vertices; and what is recorded of how runs are prepared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study.bids import FoundRun
from ntfa.study.bids_surfaces import is_cortical, surface_space
from ntfa.study.cutting import Preparation
from ntfa.study.greyordinates import Greyordinates
from ntfa.study.images import load_mask, shared_mask, without_white_matter
from ntfa.study.provenance import Provenance
from ntfa.study.surfaces import SurfaceFiles


def mask_for(
    found: Sequence[FoundRun],
    given: Any,
    min_coverage: float,
    keep_white_matter: bool,
    surfaces: SurfaceFiles | None = None,
) -> Any:
    """The voxels to use: a given mask, or those in enough participants' brain masks less, in MNI space, white matter.

    A participant's brain mask is what all of their runs' have in common. Runs on surfaces have no masks: what is used
    are their vertices and voxels.
    """
    if isinstance(given, Greyordinates):
        return given
    if given is not None:
        return load_mask(given)
    if is_cortical(found[0].space):
        return surface_space(found[0].run, surfaces or SurfaceFiles())
    masks = _brain_masks(found)
    names = [f"{label} ({next(run.mask for run in found if run.run.participant == label)})" for label in masks]
    mask = shared_mask(list(masks.values()), min_coverage, names)
    return without_white_matter(mask) if _removes_white_matter(found, given, keep_white_matter) else mask


def own_masks(found: Sequence[FoundRun], given: Any, mask_img: Any) -> dict[str, NDArray[np.bool_]]:
    """Which of a mask's voxels are in each participant's brain mask; nothing, where a mask was given."""
    if given is not None or isinstance(mask_img, Greyordinates):
        return {}
    inside = np.asanyarray(mask_img.dataobj) > 0
    return {label: (np.asanyarray(own.dataobj) > 0)[inside] for label, own in _brain_masks(found).items()}


def _brain_masks(found: Sequence[FoundRun]) -> dict[str, Any]:
    """What the masks of each participant's runs have in common."""
    without = [run.run.name for run in found if run.mask is None]
    if without:
        raise StudyError(f"{without[0]}: no brain mask (desc-brain_mask) beside it; give one with --mask")
    paths: dict[str, set[Path]] = {}
    for run in found:
        assert run.mask is not None
        paths.setdefault(run.run.participant, set()).add(run.mask)
    return {
        label: shared_mask([load_mask(path) for path in sorted(own)], 1.0, [str(path) for path in sorted(own)])
        for label, own in paths.items()
    }


def _removes_white_matter(found: Sequence[FoundRun], given_mask: Any, keep: bool) -> bool:
    # The template that knows where white matter is lies in MNI space, and a mask that was given is used as it is.
    return given_mask is None and not keep and str(found[0].space or "").startswith("MNI")


def describe_runs(
    found: Sequence[FoundRun], how: Preparation, *, given_mask: Any, min_coverage: float, keep_white: bool
) -> Provenance:
    """Record how runs are prepared with these settings; counts are added when it is done."""
    return Provenance.of(
        how,
        confounds=found[0].confounds,
        mask="greyordinates" if is_cortical(found[0].space) else "brain masks" if given_mask is None else "given",
        min_coverage=min_coverage,
        white_matter_removed=_removes_white_matter(found, given_mask, keep_white),
        space=found[0].space,
        preprocessing=found[0].preprocessing,
    )
