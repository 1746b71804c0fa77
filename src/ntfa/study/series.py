"""Series of frames or maps at vertices and voxels, as files of cortex hold them: rows are read when they are asked for.

Three forms: dense CIFTI (`.dtseries.nii`, `.dscalar.nii`), nilearn's SurfaceImage, and pairs of GIFTI files, (left,
right), as fMRIPrep writes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.files.headers import open_file, require_size
from ntfa.files.reading import reading
from ntfa.study.cifti import SECOND, dense_axes
from ntfa.study.greyordinates import Greyordinates, cortex_axis
from ntfa.study.surfaces import HEMISPHERES, Surfaces, shipped_template, what_to_name
from ntfa.study.templates import find_surfaces

Rows = Callable[[slice], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class GreyordinateSeries:
    """Frames or maps [n, columns], with what the columns are.

    axis : nibabel BrainModelAxis
    t_r : seconds from row to row, 0 if the file does not say
    form : "cifti" or "surface"
    mesh : of a SurfaceImage, its own
    """

    axis: Any
    n_rows: int
    read: Rows
    name: str
    t_r: float = 0.0
    form: str = "cifti"
    mesh: Any = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape as of an image that has its columns in a row."""
        return (len(self.axis), 1, 1, self.n_rows)

    @property
    def header(self) -> GreyordinateSeries:
        """The series itself, which knows what is asked of a header."""
        return self

    def get_zooms(self) -> tuple[float, ...]:
        """Return sizes of columns, which have none, and seconds from row to row."""
        return (1.0, 1.0, 1.0, self.t_r)

    def get_xyzt_units(self) -> tuple[str, str]:
        """Return units of the sizes."""
        return ("mm", "sec")

    @property
    def n_vertices(self) -> dict[str, int]:
        """Vertices of each structure's surface."""
        return {str(name): int(n) for name, n in self.axis.nvertices.items()}

    def columns_of(self, space: Greyordinates) -> NDArray[np.int64]:
        """Say which of the series' columns each of a study's is, -1 where the series has none for it."""
        wanted, own = space.axis, self.axis
        found = np.full(len(wanted), -1)
        for name, n_vertices in wanted.nvertices.items():
            there = own.nvertices.get(name)
            if there != n_vertices:
                has = f"{there:,} vertices" if there else "no vertices"
                raise StudyError(
                    f"{self.name}: has {has} of {name.removeprefix('CIFTI_STRUCTURE_')}, not {n_vertices:,}; "
                    "all images must be of one template and density"
                )
            columns = np.full(n_vertices, -1)
            mine = np.flatnonzero(own.name == name)
            columns[own.vertex[mine]] = mine
            these = wanted.name == name
            found[these] = columns[wanted.vertex[these]]
        if wanted.volume_mask.any():
            found[wanted.volume_mask] = self._columns_of_voxels(wanted)
        if (found < 0).all():
            raise StudyError(f"{self.name}: has none of the vertices and voxels that are wanted")
        return found

    def _columns_of_voxels(self, wanted: Any) -> NDArray[np.int64]:
        own = self.axis
        if own.volume_shape != wanted.volume_shape or not np.allclose(own.affine, wanted.affine, atol=1e-3):
            raise StudyError(f"{self.name}: its voxels are on a grid {own.volume_shape}, not on {wanted.volume_shape}")
        columns = np.full(wanted.volume_shape, -1)
        mine = np.flatnonzero(own.volume_mask)
        columns[tuple(own.voxel[mine].T)] = mine
        return columns[tuple(wanted.voxel[wanted.volume_mask].T)]


def is_surface(img: Any) -> bool:
    """Whether what is given as an image is a SurfaceImage, or a pair of GIFTI files."""
    return (hasattr(img, "mesh") and hasattr(img, "data")) or isinstance(img, tuple | list)


def open_series(img: Any, name: str) -> GreyordinateSeries:
    """Open a SurfaceImage or a pair of GIFTI files."""
    if isinstance(img, tuple | list):
        return _of_gifti(img, name)
    parts = {side: np.asarray(values) for side, values in img.data.parts.items()}
    return _of_vertices(parts, name, mesh=img.mesh)


def of_cifti(img: Any, name: str) -> GreyordinateSeries:
    """Take a dense CIFTI file."""
    import nibabel

    axis, of_rows = dense_axes(img, name)
    require_size(img, tuple(map(int, img.shape)), np.dtype(img.get_data_dtype()).itemsize, name)
    in_seconds = isinstance(of_rows, nibabel.cifti2.SeriesAxis) and of_rows.unit == SECOND

    def read(rows: slice) -> NDArray[np.float32]:
        return np.asarray(img.dataobj[rows], dtype=np.float32)

    return GreyordinateSeries(axis, len(of_rows), read, name, float(of_rows.step) if in_seconds else 0.0)


def _of_vertices(parts: dict[str, NDArray[Any]], name: str, mesh: Any = None) -> GreyordinateSeries:
    """Take arrays [vertices, n] of hemispheres."""
    for side, values in parts.items():
        if side not in HEMISPHERES or values.ndim > 2 or values.dtype.kind not in "fiub":
            raise StudyError(f"{name}: a surface image must have real numbers, vertices x frames, for left and right")
    arrays = {side: parts[side].reshape(len(parts[side]), -1) for side in HEMISPHERES if side in parts}
    lengths = {side: values.shape[1] for side, values in arrays.items()}
    if not lengths or len(set(lengths.values())) > 1:
        raise StudyError(f"{name}: its hemispheres have different numbers of frames, {lengths}")
    axis = cortex_axis({side: len(values) for side, values in arrays.items()})

    def read(rows: slice) -> NDArray[np.float32]:
        return np.concatenate([values[:, rows] for values in arrays.values()]).T.astype(np.float32)

    return GreyordinateSeries(axis, next(iter(lengths.values())), read, name, form="surface", mesh=mesh)


def _of_gifti(pair: Sequence[Any], name: str) -> GreyordinateSeries:
    if len(pair) != 2:
        raise StudyError(f"{name}: images of surfaces come in pairs, (left, right), not {len(pair)} files")
    return _of_vertices({side: _gifti_data(one, side) for side, one in zip(HEMISPHERES, pair, strict=True)}, name)


def _gifti_data(path: Any, side: str) -> NDArray[np.float32]:
    """Return one hemisphere's values [vertices, n]; refuse the other hemisphere's file."""
    import nibabel

    where = os.fspath(path) if isinstance(path, str | os.PathLike) else f"the {side} hemisphere"
    img = open_file(path, where, "image") if isinstance(path, str | os.PathLike) else path
    if not isinstance(img, nibabel.GiftiImage):
        raise StudyError(f"{where}: an image of a hemisphere must be GIFTI, .func.gii or .shape.gii")
    if hemisphere_of(img, where) not in (None, side):
        raise StudyError(f"{where}: is not of the {side} hemisphere; pairs are (left, right)")
    with reading(f"{where}: cannot be read as values of vertices"):
        arrays = [np.asarray(array.data, dtype=np.float32) for array in img.darrays]
        values = np.stack(arrays, axis=1) if len({array.shape for array in arrays}) == 1 else None
        if values is None:
            raise ValueError("its arrays differ in length")
        return values.reshape(len(values), -1)


def hemisphere_of(img: Any, where: str) -> str | None:
    """Say of which hemisphere a GIFTI file is, by what is written in it or by its name; None if neither says."""
    said = str(dict(img.meta).get("AnatomicalStructurePrimary", "")).lower()
    entity = re.search(r"(?:^|_)hemi-([LR])(?=[_.])|(?:^|[./])([lr])h\.", os.path.basename(where))
    by_name = {"L": "left", "R": "right"}.get((entity[1] or entity[2]).upper()) if entity else None
    return next((side for side in HEMISPHERES if said == f"cortex{side}"), by_name)


def space_of(series: GreyordinateSeries, surfaces: Surfaces | None, distance: str) -> Greyordinates | None:
    """Return the columns of a series as a study's, with surfaces that are named or that there are; None without any."""
    by_side = series.n_vertices
    if surfaces is None and by_side:
        found = None if shipped_template(by_side) else find_surfaces(by_side)
        surfaces = shipped_template(by_side) or (found.open() if found else None) or _own_mesh(series)
    return None if surfaces is None else Greyordinates(series.axis, surfaces, distance, series.form)


def require_space(series: GreyordinateSeries, surfaces: Surfaces | None, distance: str) -> Greyordinates:
    """Return the columns of a series as a study's; refuse vertices without a place."""
    space = space_of(series, surfaces, distance)
    if space is None:
        raise StudyError(f"{series.name}: {what_to_name(series.n_vertices)}")
    return space


def _own_mesh(series: GreyordinateSeries) -> Surfaces | None:
    """Take the mesh that a SurfaceImage has for the midthickness surface."""
    if series.mesh is None or len(series.mesh.parts) != 2:
        return None
    return Surfaces.open(series.mesh, source="the surface image's own mesh, taken to be the midthickness surface")
