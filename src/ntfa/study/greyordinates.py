"""Vertices of cortex and voxels as the columns of a study: what a mask image is to a study of a volume."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.files.headers import open_file, require_size
from ntfa.files.reading import read_json, reading
from ntfa.study.checks import FloatArray
from ntfa.study.spheres import CORTEX, VOLUME, Places, Spheres
from ntfa.study.surfaces import HEMISPHERES, Surface, Surfaces, require_mesh, require_sphere

STRUCTURES = {side: f"CIFTI_STRUCTURE_CORTEX_{side.upper()}" for side in HEMISPHERES}
DISTANCES = ("sphere", "straight")
FORMS = ("surface", "cifti")
FOLDER = "greyordinates"
REACH = 6.0
"""In radii of the larger sphere: a third is its diameter, so that a factor can begin with all of a hemisphere."""
AXES = ["x", "y", "z"]


@dataclass(frozen=True, eq=False)
class Greyordinates:
    """Vertices of cortical surfaces, and voxels, that are the columns of a study.

    Parameters
    ----------
    axis : nibabel BrainModelAxis
        A column each, in their order.
    surfaces : Surfaces
        Give vertices their places.
    distance : {"sphere", "straight"}
        Whether factors of cortex are round over the sphere of their hemisphere, or in a straight line.
    form : {"surface", "cifti"}
        As what images are given back: nilearn's SurfaceImage, or dense CIFTI.
    """

    axis: Any
    surfaces: Surfaces
    distance: str = "sphere"
    form: str = "cifti"

    def __post_init__(self) -> None:
        """Refuse columns that surfaces do not fit."""
        if self.distance not in DISTANCES or self.form not in FORMS:
            raise StudyError(f"surface_distance={self.distance!r}: choose 'sphere' or 'straight'")
        for name, n_vertices in self.axis.nvertices.items():
            side = side_of(name)
            surface = self.surfaces.by_side.get(side)
            if surface is None or surface.n_vertices != n_vertices:
                n = "no" if surface is None else f"{surface.n_vertices:,}"
                raise StudyError(
                    f"the {side} hemisphere has {n_vertices:,} vertices in the data but {n} in {self.surfaces.source}; "
                    "name surfaces of the same template and density"
                )

    def __len__(self) -> int:
        """Count columns."""
        return len(self.axis)

    @property
    def is_on_sphere(self) -> bool:
        """Whether distances between vertices are measured over spheres."""
        return self.distance == "sphere" and self.surfaces.have_spheres and self.n_vertices > 0

    @property
    def n_vertices(self) -> int:
        """Number of columns that are vertices."""
        return int((~self.axis.volume_mask).sum())

    @cached_property
    def columns(self) -> dict[str, NDArray[np.int64]]:
        """Columns of each hemisphere that there is."""
        names = {side: np.flatnonzero(self.axis.name == STRUCTURES[side]) for side in HEMISPHERES}
        return {side: own for side, own in names.items() if len(own)}

    @cached_property
    def coordinates(self) -> FloatArray:
        """Places in mm, [V, 3]: of vertices on the midthickness surface."""
        places = np.empty((len(self.axis), 3))
        for side, own in self.columns.items():
            places[own] = self.surfaces.by_side[side].midthickness[self.axis.vertex[own]]
        places[self.axis.volume_mask] = self._voxels
        return places

    @property
    def _voxels(self) -> FloatArray:
        from nibabel.affines import apply_affine

        voxels = self.axis.voxel[self.axis.volume_mask]
        return np.asarray(apply_affine(self.axis.affine, voxels)) if len(voxels) else np.empty((0, 3))

    @cached_property
    def spheres(self) -> Spheres | None:
        """Where factors live, if that is not where voxels are."""
        if not self.is_on_sphere:
            return None
        return Spheres.around({side: self.surfaces.by_side[side] for side in self.columns}, self._voxels)

    @cached_property
    def positions(self) -> FloatArray:
        """Positions between which distances are straight lines for factors, [V, 3]."""
        if self.spheres is None:
            return self.coordinates
        found = self.coordinates.copy()
        for side, own in self.columns.items():
            found[own] = self.spheres.positions(side, self.axis.vertex[own])
        return found

    @cached_property
    def structures(self) -> NDArray[Any]:
        """Name of the structure of every column."""
        names = np.full(len(self.axis), VOLUME, dtype=object)
        for side, own in self.columns.items():
            names[own] = CORTEX[side]
        return names

    def keep(self, columns: NDArray[Any]) -> Greyordinates:
        """Keep some of the columns."""
        return replace(self, axis=self.axis[np.asarray(columns)])

    def to_mm(self, factors: pd.DataFrame) -> pd.DataFrame:
        """Turn a table of factors at `positions` into one in mm, with the structure that each factor is in."""
        at = self._places(factors[AXES].to_numpy(np.float64), factors["width"].to_numpy(np.float64))
        changed: dict[str, Any] = dict(zip(AXES, at.centers.T, strict=True)) | {"width": at.widths}
        if "x_sd" in factors:
            sds = factors[[f"{axis}_sd" for axis in AXES]].to_numpy(np.float64)
            spread = np.sqrt(((at.slopes * sds[:, None]) ** 2).sum(-1))
            changed |= {f"{axis}_sd": own for axis, own in zip(AXES, spread.T, strict=True)}
            changed["width_sd"] = factors["width_sd"] * at.widths / factors["width"]
        found = factors.assign(**changed)
        found.insert(list(found).index("width") + 1, "structure", at.structures)
        return found

    def _places(self, positions: FloatArray, widths: FloatArray) -> Places:
        if self.spheres is not None:
            return self.spheres.places(positions, widths)
        from scipy.spatial import cKDTree

        nearest = cKDTree(self.coordinates).query(positions)[1]
        return Places(positions, widths, self.structures[nearest], np.tile(np.eye(3), (len(widths), 1, 1)))

    def to_image(self, maps: Any, names: Sequence[str] | None = None) -> Any:
        """Put maps [n, V] into an image of the form that the study had; zero where there is no column."""
        maps = np.atleast_2d(np.asarray(maps, dtype=np.float32))
        if self.form == "surface":
            from nilearn.surface import SurfaceImage

            return SurfaceImage(self.mesh(), self.on_vertices(maps, 0.0))
        import nibabel

        rows = nibabel.cifti2.ScalarAxis([f"map {i + 1}" for i in range(len(maps))] if names is None else list(names))
        return nibabel.Cifti2Image(maps, (rows, self.axis))

    def mesh(self, which: str = "midthickness") -> Any:
        """Return the surfaces as a mesh of nilearn, both hemispheres or the one that there is."""
        from nilearn.surface import InMemoryMesh, PolyMesh

        meshes = {}
        for side in self.columns:
            surface = self.surfaces.by_side[side]
            points = getattr(surface, which)
            points = surface.midthickness if points is None else points
            meshes[side] = InMemoryMesh(points.astype(np.float32), surface.faces.astype(np.int32))
        return PolyMesh(**meshes)

    def on_vertices(self, maps: NDArray[Any], elsewhere: float = np.nan) -> dict[str, NDArray[Any]]:
        """Spread maps [n, V] over all vertices of each hemisphere, [vertices, n]."""
        found = {}
        for side, own in self.columns.items():
            values = np.full((self.surfaces.by_side[side].n_vertices, len(maps)), elsewhere, dtype=maps.dtype)
            values[self.axis.vertex[own]] = maps[:, own].T
            found[side] = values
        return found

    # Files -----------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write `greyordinates/` into a folder: the columns as a CIFTI file, surfaces as GIFTI, the rest as JSON."""
        import nibabel

        own = folder / FOLDER
        own.mkdir()
        rows = nibabel.cifti2.ScalarAxis(["columns"])
        nibabel.Cifti2Image(np.ones((1, len(self)), np.float32), (rows, self.axis)).to_filename(
            own / "columns.dscalar.nii"
        )
        for side, surface in self.surfaces.by_side.items():
            for name in ("midthickness", "sphere", "inflated"):
                points = getattr(surface, name)
                if points is not None:
                    _write_surface(own / _file_of(side, name), points, surface.faces, side)
        said = {"source": self.surfaces.source, "surface_distance": self.distance, "form": self.form}
        (own / "surfaces.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def open(cls, folder: Path) -> Greyordinates | None:
        """Read what `save` wrote into a folder; None if there is nothing."""
        own = folder / FOLDER
        if not os.path.lexists(own):
            return None
        where = f"{FOLDER}/columns.dscalar.nii"
        try:
            said = read_json(own / "surfaces.json")
        except ValueError as error:
            raise StudyError(f"{FOLDER}/surfaces.json cannot be read: {error}") from error
        img = open_file(own / "columns.dscalar.nii", where, "image")
        with reading(f"{where}: cannot be read as a CIFTI file"):
            require_size(img, tuple(map(int, img.shape)), np.dtype(img.get_data_dtype()).itemsize, where)
            axis = img.header.get_axis(1)
            axis.nvertices.items()
        sides = [side for side in HEMISPHERES if os.path.lexists(own / _file_of(side, "midthickness"))]
        surfaces = Surfaces({side: _read_surfaces(own, side) for side in sides}, str(said.get("source")))
        return cls(axis, surfaces, str(said.get("surface_distance")), str(said.get("form")))


def cortex_axis(n_vertices: Mapping[str, int]) -> Any:
    """Return columns that are all vertices of hemispheres, the left one's first."""
    import nibabel

    models = [
        nibabel.cifti2.BrainModelAxis.from_surface(np.arange(n_vertices[side]), n_vertices[side], name=STRUCTURES[side])
        for side in HEMISPHERES
        if side in n_vertices
    ]
    return models[0] if len(models) == 1 else models[0] + models[1]


def side_of(structure: str) -> str:
    """Return the hemisphere of a CIFTI structure; refuse surfaces of anything but cortex."""
    for side, name in STRUCTURES.items():
        if structure == name:
            return side
    raise StudyError(f"vertices of {structure} have no surface here: only those of the cortex can be read")


def _file_of(side: str, name: str) -> str:
    return f"{side}_{name}.surf.gii"


def _write_surface(path: Path, points: FloatArray, faces: NDArray[np.int64], side: str) -> None:
    import nibabel

    arrays = [
        nibabel.gifti.GiftiDataArray(points.astype(np.float32), "NIFTI_INTENT_POINTSET", "NIFTI_TYPE_FLOAT32"),
        nibabel.gifti.GiftiDataArray(faces.astype(np.int32), "NIFTI_INTENT_TRIANGLE", "NIFTI_TYPE_INT32"),
    ]
    meta = nibabel.gifti.GiftiMetaData({"AnatomicalStructurePrimary": f"Cortex{side.capitalize()}"})
    nibabel.GiftiImage(darrays=arrays, meta=meta).to_filename(path)


def _read_surfaces(folder: Path, side: str) -> Surface:
    parts: dict[str, Any] = {}
    for name in ("midthickness", "sphere", "inflated"):
        path, where = folder / _file_of(side, name), f"{FOLDER}/{_file_of(side, name)}"
        if name != "midthickness" and not os.path.lexists(path):
            continue
        img = open_file(path, where, "surface")
        with reading(f"{where}: cannot be read as a surface"):
            points, faces = (np.asarray(array.data) for array in img.darrays)
            parts[name] = require_mesh(points.astype(np.float64), faces.astype(np.int64), where)
    points, faces = parts["midthickness"]
    others = {name: own[0] for name, own in parts.items() if name != "midthickness"}
    for name, own in others.items():
        if len(own) != len(points):
            raise StudyError(f"{FOLDER}/{_file_of(side, name)}: has {len(own):,} vertices, not {len(points):,}")
    if "sphere" in others:
        require_sphere(others["sphere"], f"{FOLDER}/{_file_of(side, 'sphere')}")
    return Surface(points, faces, others.get("sphere"), others.get("inflated"))


def save_mask(mask_img: Any, folder: Path) -> None:
    """Write a mask image, or what stands for it, into a folder."""
    if isinstance(mask_img, Greyordinates):
        mask_img.save(folder)
    else:
        mask_img.to_filename(folder / "mask.nii.gz")


def positions_of(coordinates: FloatArray, mask_img: Any) -> FloatArray:
    """Return the positions between which factors know straight lines only: those in mm, unless cortex is on spheres."""
    return mask_img.positions if isinstance(mask_img, Greyordinates) else coordinates


def reach_of(mask_img: Any) -> float | None:
    """Return how far factors may reach at the start, where there are spheres: they begin with a third of it at most."""
    spheres = mask_img.spheres if isinstance(mask_img, Greyordinates) else None
    return None if spheres is None else REACH * max(surface.radius for surface in spheres.surfaces.values())


def factors_in_mm(factors: pd.DataFrame, mask_img: Any) -> pd.DataFrame:
    """Return a table of factors in mm, of one at the positions that a fit knows."""
    return mask_img.to_mm(factors) if isinstance(mask_img, Greyordinates) else factors
