"""Images in and out of the estimators, for studies that have a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ntfa.errors import ModelError
from ntfa.study import Study
from ntfa.study.greyordinates import Greyordinates
from ntfa.study.volumes import unmask


def as_study(source: Study | Sequence[Any], images: Mapping[str, Any]) -> Study:
    """Take a study as it is; make one of images and their events."""
    if isinstance(source, Study):
        if images:
            raise ModelError(f"{', '.join(images)} goes with images, not with a study")
        return source
    if not isinstance(source, list | tuple) or "events" not in images:
        raise ModelError(f"fit takes a Study, or a list of images with events=, not {type(source).__name__}")
    return Study.from_images(source, **images)


def to_image(maps: np.ndarray, mask_img: Any, names: Sequence[str] | None = None) -> Any:
    """Put maps [n, V] into the mask's volume, or onto its surfaces, one after another; CIFTI keeps their names."""
    if mask_img is None:
        raise ModelError("the study has no mask_img, so its maps have no image; use the arrays instead")
    if isinstance(mask_img, Greyordinates):
        return mask_img.to_image(maps, names)
    return unmask(np.asarray(maps, dtype=np.float32), mask_img)


def save_image(image: Any, folder: Path, name: str) -> str:
    """Write an image of any form into a folder under a name without suffix; return its file's name.

    NIfTI as `name.nii.gz`, dense CIFTI as `name.dscalar.nii`, a SurfaceImage as a pair of GIFTI files,
    `name_hemi-L.func.gii` and `name_hemi-R.func.gii`.
    """
    import nibabel

    if not hasattr(image, "mesh"):
        file = f"{name}.dscalar.nii" if isinstance(image, nibabel.Cifti2Image) else f"{name}.nii.gz"
        image.to_filename(folder / file)
        return file
    for side, values in image.data.parts.items():
        maps = np.asarray(values, dtype=np.float32).reshape(len(values), -1).T
        arrays = [nibabel.gifti.GiftiDataArray(own, "NIFTI_INTENT_NONE", "NIFTI_TYPE_FLOAT32") for own in maps]
        meta = nibabel.gifti.GiftiMetaData({"AnatomicalStructurePrimary": f"Cortex{side.capitalize()}"})
        written = nibabel.GiftiImage(darrays=arrays, meta=meta)
        written.to_filename(folder / f"{name}_hemi-{side[0].upper()}.func.gii")
    return f"{name}_hemi-{next(iter(image.data.parts))[0].upper()}.func.gii"
