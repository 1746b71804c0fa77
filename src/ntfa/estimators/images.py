"""Images in and out of the estimators, for studies that have a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntfa.errors import ModelError
from ntfa.study import Study
from ntfa.study.greyordinates import Greyordinates


def as_study(source: Study | Sequence[Any], images: Mapping[str, Any]) -> Study:
    """Take a study as it is; make one of images and their events."""
    if isinstance(source, Study):
        if images:
            raise ModelError(f"{', '.join(images)} goes with images, not with a study")
        return source
    if not isinstance(source, list | tuple) or "events" not in images:
        raise ModelError(f"fit takes a Study, or a list of images with events=, not {type(source).__name__}")
    return Study.from_images(source, **images)


def to_image(maps: np.ndarray, mask_img: Any) -> Any:
    """Put maps [n, V] into the mask's volume, or onto its surfaces, one after another."""
    from nilearn.masking import unmask

    if mask_img is None:
        raise ModelError("the study has no mask_img, so its maps have no image; use the arrays instead")
    if isinstance(mask_img, Greyordinates):
        return mask_img.to_image(maps)
    return unmask(np.asarray(maps, dtype=np.float32), mask_img)
