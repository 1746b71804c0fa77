"""Values of a mask's voxels as volumes, without nilearn, which takes as long to import as a small fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Numbers in an affine as small as this are rounding, to nilearn too.
ASKEW = 1e-3


def unmask(values: Any, mask_img: Any) -> Any:
    """Put values [V] or [n, V] into a mask's volume, zero outside (`nilearn.masking.unmask`)."""
    from nibabel import Nifti1Image

    values, inside = np.asarray(values), np.asanyarray(mask_img.dataobj) != 0
    volume = np.zeros((*inside.shape, *values.shape[:-1]), dtype=values.dtype, order="F")
    volume[inside] = values.T
    return Nifti1Image(volume, mask_img.affine)


def straight(image: Any, resample: str = "continuous") -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Turn a volume so that its axes run along x, y and z, or resample it if it lies askew; return also its affine."""
    if ((np.abs(image.affine[:3, :3]) > ASKEW).sum(0) == 1).all():
        from nibabel import as_closest_canonical

        turned = as_closest_canonical(image)
    else:
        from nilearn.image import reorder_img

        turned = reorder_img(image, resample=resample)
    return np.asanyarray(turned.dataobj), turned.affine
