"""Dense CIFTI files (`.dscalar.nii`, `.dtseries.nii`) as series of volumes.

A dense file has a row per map or time point and a column per greyordinate: a voxel, which has a place in a grid, or a
vertex of the cortical surface, which has none in the file. Here voxels are read, and that vertices are left out is
said; `ntfa.study.series` reads both.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.files.headers import require_size
from ntfa.files.reading import reading

SECOND = "SECOND"


def is_cifti(img: Any) -> bool:
    """Whether an image is a CIFTI-2 file."""
    import nibabel

    return isinstance(img, nibabel.Cifti2Image)


class _Volumes:
    """The maps of a dense file as an array [x, y, z, n], read when asked for; NaN where there is no greyordinate.

    Not marked as a proxy: of a proxy, nibabel reads a value to learn its type.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, dataobj: Any, columns: NDArray[np.int64], voxels: NDArray[np.int64], shape: tuple[int, ...]):
        self._dataobj, self._columns, self._places = dataobj, columns, tuple(voxels.T)
        self.shape = (*shape, int(dataobj.shape[0]))
        self.ndim = 4

    def __getitem__(self, index: Any) -> NDArray[np.float32]:
        if not (isinstance(index, tuple) and len(index) == 2 and index[0] is Ellipsis and isinstance(index[1], slice)):
            return np.asarray(self)[index]
        rows = np.asarray(self._dataobj[index[1]], dtype=np.float32)
        volumes = np.full((*self.shape[:3], len(rows)), np.nan, dtype=np.float32)
        volumes[self._places] = rows[:, self._columns].T
        return volumes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[..., slice(None)].astype(dtype or self.dtype, copy=False)


def as_volumes(img: Any, where: str) -> Any:
    """Return the voxels of a dense file as a 4-D image, whose data are read when they are asked for."""
    import nibabel

    axis, of_rows = dense_axes(img, where)
    require_size(img, tuple(map(int, img.shape)), np.dtype(img.get_data_dtype()).itemsize, where)
    columns = np.flatnonzero(axis.volume_mask)
    _say_what_is_left_out(len(columns), len(axis), where)
    volumes = nibabel.Nifti1Image(
        _Volumes(img.dataobj, columns, axis.voxel[columns], tuple(axis.volume_shape)), np.asarray(axis.affine)
    )
    if isinstance(of_rows, nibabel.cifti2.SeriesAxis) and of_rows.unit == SECOND:
        volumes.header.set_xyzt_units("mm", "sec")
        volumes.header.set_zooms((*volumes.header.get_zooms()[:3], of_rows.step))
    return volumes


def greyordinate_mask(img: Any, where: str) -> Any:
    """Return the mask of a dense file's voxels."""
    import nibabel

    axis, _ = dense_axes(img, where)
    _say_what_is_left_out(int(axis.volume_mask.sum()), len(axis), where)
    inside = np.zeros(axis.volume_shape, dtype=np.uint8)
    inside[tuple(axis.voxel[axis.volume_mask].T)] = 1
    return nibabel.Nifti1Image(inside, np.asarray(axis.affine))


def dense_axes(img: Any, where: str) -> tuple[Any, Any]:
    """Return what columns and rows stand for; refuse a file that is not dense."""
    import nibabel

    with reading(f"{where}: cannot be read as a CIFTI file"):
        axes = [img.header.get_axis(i) for i in range(img.ndim)]
    rows = (nibabel.cifti2.ScalarAxis, nibabel.cifti2.SeriesAxis)
    if len(axes) != 2 or not isinstance(axes[1], nibabel.cifti2.BrainModelAxis) or not isinstance(axes[0], rows):
        raise StudyError(f"{where}: a CIFTI file of maps must be dense, .dscalar.nii or .dtseries.nii")
    return axes[1], axes[0]


def _say_what_is_left_out(n_voxels: int, n_all: int, where: str) -> None:
    if not n_voxels:
        raise StudyError(
            f"{where}: its {n_all:,} greyordinates are vertices of the cortical surface, but the study is a volume's; "
            "leave the mask out, or give images in a volume"
        )
    if n_voxels < n_all:
        # The same text for every file, so that it is said once.
        warnings.warn(
            f"{n_all - n_voxels:,} of {n_all:,} greyordinates are vertices of the cortical surface and are left out; "
            f"the {n_voxels:,} voxels are used. For cortex, name the midthickness surfaces and spheres of its template "
            "(--midthickness, --sphere; surfaces=), or give images in a volume",
            stacklevel=3,
        )
