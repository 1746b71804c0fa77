"""What image headers claim, checked before anything is read: a header is a few bytes that anybody can write."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from ntfa.errors import StudyError
from ntfa.files.reading import reading, require_file

# A volume of 645 x 645 x 645 voxels.
MOST_VOXELS = 2**28
# One byte of deflate stands for 1032 at most.
MOST_COMPRESSED = 1032
# Beyond a GiB nobody's recording is compressed like that: 4-fold is usual, 20-fold is a lot.
LARGE, MOST_COMPRESSED_IF_LARGE = 2**30, 200
COMPRESSED = (".gz", ".bz2", ".zst")


def open_file(path: str | os.PathLike[str], where: str, kind: str) -> Any:
    """Open an image with nibabel; nothing but the header is read."""
    import nibabel

    with reading(f"{where}: cannot be read as {'an' if kind == 'image' else 'a'} {kind}"):
        require_file(path)
        return nibabel.load(path)


def require_sound(img: Any, where: str) -> None:
    """Refuse an image whose header cannot be true: its shape, its type, its size on disk, its place in space."""
    for name in ("shape", "affine", "header", "dataobj"):
        if getattr(img, name, None) is None:
            raise StudyError(f"{where}: a {type(img).__name__} is no image of voxels")
    shape = tuple(int(length) for length in img.shape)
    if not shape or min(shape) < 1 or math.prod(shape[:3]) > MOST_VOXELS:
        raise StudyError(f"{where}: no image can have the shape {shape} that its header claims")
    kind = np.dtype(img.get_data_dtype() if hasattr(img, "get_data_dtype") else img.dataobj.dtype)
    if kind.kind not in "fiub":
        raise StudyError(f"{where}: voxels must be real numbers, not {kind}")
    require_size(img, shape, kind.itemsize, where)
    affine = np.asarray(img.affine, dtype=np.float64)
    if affine.shape != (4, 4) or not np.isfinite(affine).all() or np.linalg.matrix_rank(affine[:3, :3]) < 3:
        raise StudyError(
            f"{where}: its affine is singular or not finite, so its voxels have no place: {affine.tolist()}"
        )


def require_size(img: Any, shape: tuple[int, ...], itemsize: int, where: str) -> None:
    """Refuse a file that is smaller than it must be to hold what its header claims."""
    import nibabel

    path = img.file_map["image"].filename if getattr(img, "file_map", None) and "image" in img.file_map else None
    if path is None or not nibabel.is_proxy(img.dataobj) or not os.path.isfile(path):
        return
    claimed, size = math.prod(shape) * itemsize, os.path.getsize(path)
    most = size
    if Path(path).suffix in COMPRESSED:
        most = size * (MOST_COMPRESSED if Path(path).suffix == ".gz" else LARGE)
        most = max(min(most, LARGE), size * MOST_COMPRESSED_IF_LARGE)
    if claimed > most:
        raise StudyError(
            f"{where}: the image breaks off or is damaged: its header claims {claimed:,} bytes, of shape {shape}, more "
            f"than a file of {size:,} bytes can hold"
        )
