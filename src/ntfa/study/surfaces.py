"""Surfaces of the cerebral cortex: where its vertices lie, and on which sphere they are registered.

An image of cortex has a value per vertex and, often, no place for it. Places come from surfaces with the same vertices:
the midthickness surface, halfway through the cortex, for mm; and the sphere on which a template is registered, over
which distances along the cortex are measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.files.reading import reading, require_file
from ntfa.study.checks import FloatArray

HEMISPHERES = ("left", "right")
TEMPLATE = "fsaverage5"
FSAVERAGE = {642: "fsaverage3", 2562: "fsaverage4", 10242: TEMPLATE, 40962: "fsaverage6", 163842: "fsaverage"}
"""Templates by their number of vertices; each has the first vertices of the next, and nilearn ships the third."""
ROUND = 0.02
"""Share of a sphere's radius by which its vertices may differ from it."""

Faces = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Surface:
    """Surfaces of one hemisphere, with the same vertices.

    midthickness : [n, 3], mm
    faces : [m, 3], triangles of vertices
    sphere : [n, 3], around the origin, or None where there is none
    inflated : [n, 3], to draw on, or None
    """

    midthickness: FloatArray
    faces: Faces
    sphere: FloatArray | None = None
    inflated: FloatArray | None = None

    @property
    def n_vertices(self) -> int:
        """Number of vertices."""
        return len(self.midthickness)

    @cached_property
    def radius(self) -> float:
        """Radius of a sphere that has the midthickness surface's area, mm."""
        a, b, c = (self.midthickness[corner] for corner in self.faces.T)
        area = float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2)
        return float(np.sqrt(area / (4 * np.pi)))

    @cached_property
    def directions(self) -> FloatArray:
        """Unit vectors from the sphere's centre to its vertices, [n, 3]."""
        assert self.sphere is not None
        return np.asarray(self.sphere / np.linalg.norm(self.sphere, axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Surfaces:
    """Surfaces of the hemispheres, by "left" and "right", and where they come from, in words."""

    by_side: Mapping[str, Surface]
    source: str

    @classmethod
    def open(
        cls, midthickness: Any, sphere: Any = None, inflated: Any = None, *, source: str | None = None
    ) -> Surfaces:
        """Read surfaces that somebody names.

        Parameters
        ----------
        midthickness, sphere, inflated : (left, right)
            Files (`.surf.gii`, or FreeSurfer's) or meshes of nilearn, or None. Without a sphere distances are straight
            lines; inflated surfaces are for pictures.
        source : str, optional
            What to say of where they come from.
        """
        parts = {
            name: _pair(given, name)
            for name, given in (("midthickness", midthickness), ("sphere", sphere), ("inflated", inflated))
            if given is not None
        }
        if "midthickness" not in parts:
            raise StudyError("vertices need a midthickness surface of each hemisphere, which gives them places in mm")
        surfaces = {side: _surface({name: pair[side] for name, pair in parts.items()}, side) for side in HEMISPHERES}
        return cls(surfaces, source or f"the midthickness surfaces that were named ({_names(midthickness)})")

    @classmethod
    def fsaverage(cls, n_vertices: int = 10242) -> Surfaces:
        """Return the fsaverage template that comes with nilearn: fsaverage5, or its first vertices."""
        from nilearn.datasets import load_fsaverage

        meshes = load_fsaverage(TEMPLATE)
        surfaces = {side: _template_surface(meshes, side, n_vertices) for side in HEMISPHERES}
        return cls(surfaces, f"the {FSAVERAGE[n_vertices]} template that comes with nilearn (between white and pial)")

    @property
    def have_spheres(self) -> bool:
        """Whether distances can be measured over spheres."""
        return all(surface.sphere is not None for surface in self.by_side.values())


@dataclass(frozen=True)
class SurfaceFiles:
    """Files of surfaces that somebody names, or that were found: pairs (left, right); and which distance is wanted."""

    midthickness: tuple[str, str] | None = None
    sphere: tuple[str, str] | None = None
    inflated: tuple[str, str] | None = None
    distance: str = "sphere"
    source: str | None = None

    def open(self) -> Surfaces | None:
        """Read them; None where no midthickness is named."""
        if self.midthickness is None:
            if self.sphere is not None or self.inflated is not None:
                raise StudyError("spheres and inflated surfaces need midthickness surfaces, which give vertices places")
            return None
        return Surfaces.open(self.midthickness, self.sphere, self.inflated, source=self.source)

    @property
    def paths(self) -> list[str]:
        """All files."""
        return [path for pair in (self.midthickness, self.sphere, self.inflated) for path in pair or ()]


def shipped_template(n_vertices: Mapping[str, int]) -> Surfaces | None:
    """Return the template with so many vertices in each hemisphere, if it comes with nilearn."""
    (n, *others) = set(n_vertices.values())
    return Surfaces.fsaverage(n) if not others and n in FSAVERAGE and n <= 10242 else None


def what_to_name(n_vertices: Mapping[str, int]) -> str:
    """Say which surfaces data with so many vertices in each hemisphere need."""
    counts = sorted(set(n_vertices.values()))
    known = {32492: "fsLR at 32k, as of fMRIPrep's 91k output", 59292: "fsLR at 59k", 163842: "fsaverage"}
    known |= {n: FSAVERAGE[n] for n in (40962,)}
    of = ", ".join(f"{n:,} vertices" + (f" ({known[n]})" if n in known else "") for n in counts)
    return (
        f"hemispheres of {of} have no surface that comes with nilearn, so their vertices have no place: name the "
        "template's midthickness surfaces and spheres with these vertices (--midthickness LEFT RIGHT --sphere LEFT "
        "RIGHT; Surfaces.open for surfaces=), for fsLR those of TemplateFlow: "
        "tpl-fsLR_den-32k_hemi-L_midthickness.surf.gii and tpl-fsLR_den-32k_hemi-L_sphere.surf.gii"
    )


def _template_surface(meshes: Any, side: str, n_vertices: int) -> Surface:
    def at(name: str) -> FloatArray:
        return _single(meshes[name].parts[side].coordinates[:n_vertices])

    sphere, faces = at("sphere"), np.asarray(meshes["sphere"].parts[side].faces, dtype=np.int64)
    if n_vertices < len(meshes["sphere"].parts[side].coordinates):
        faces = _triangles(sphere)
    return Surface(_single((at("white_matter") + at("pial")) / 2), faces, sphere, at("inflated"))


def _triangles(sphere: FloatArray) -> Faces:
    """Triangles between vertices of a sphere, corners in the order in which surfaces have them, seen from outside."""
    from scipy.spatial import ConvexHull

    faces = np.asarray(ConvexHull(sphere).simplices, dtype=np.int64)
    a, b, c = (sphere[corner] for corner in faces.T)
    inwards = (np.cross(b - a, c - a) * a).sum(1) < 0
    faces[inwards] = faces[inwards][:, ::-1]
    return faces


def _pair(given: Any, name: str) -> dict[str, Any]:
    """Return meshes (coordinates, faces) by hemisphere, and where each is from."""
    if hasattr(given, "parts"):
        given = tuple(given.parts.get(side) for side in HEMISPHERES)
    if isinstance(given, str | os.PathLike) or len(given) != 2 or any(one is None for one in given):
        raise StudyError(f"{name} must be two surfaces, the left hemisphere's and the right one's")
    return {
        side: (_mesh(one, name), _where(one, f"{name} ({side})")) for side, one in zip(HEMISPHERES, given, strict=True)
    }


def _mesh(given: Any, name: str) -> tuple[FloatArray, Faces]:
    from nilearn.surface import load_surf_mesh

    where = _where(given, name)
    with reading(f"{where}: cannot be read as a surface"):
        if isinstance(given, str | os.PathLike):
            require_file(given)
        mesh = load_surf_mesh(os.fspath(given) if isinstance(given, os.PathLike) else given)
        points, faces = _single(mesh.coordinates), np.asarray(mesh.faces, dtype=np.int64)
    return require_mesh(points, faces, where)


def require_mesh(points: FloatArray, faces: Faces, where: str) -> tuple[FloatArray, Faces]:
    """Refuse a surface whose vertices or triangles make no sense."""
    sound = points.ndim == 2 and points.shape[1:] == (3,) and faces.ndim == 2 and faces.shape[1:] == (3,)
    if not sound or not len(points) or not len(faces):
        raise StudyError(
            f"{where}: a surface needs vertices and triangles, n x 3; these are {points.shape}, {faces.shape}"
        )
    if not np.isfinite(points).all() or faces.min() < 0 or faces.max() >= len(points):
        raise StudyError(f"{where}: a vertex is not finite, or a triangle has a corner that is no vertex")
    return points, faces


def _surface(parts: Mapping[str, Any], side: str) -> Surface:
    (points, faces), where = parts["midthickness"]
    others: dict[str, FloatArray] = {}
    for name in ("sphere", "inflated"):
        if name in parts:
            (others[name], _), its_file = parts[name]
            if len(others[name]) != len(points):
                raise StudyError(f"{its_file} has {len(others[name]):,} vertices, but {where} has {len(points):,}")
    if "sphere" in others:
        require_sphere(others["sphere"], parts["sphere"][1])
    return Surface(points, faces, others.get("sphere"), others.get("inflated"))


def require_sphere(points: FloatArray, where: str) -> None:
    """Refuse what is no sphere around the origin."""
    radii = np.linalg.norm(points, axis=1)
    if not radii.mean() > 0 or np.ptp(radii) > ROUND * radii.mean():
        raise StudyError(
            f"{where}: is no sphere around the origin (its vertices are {radii.min():.1f} to {radii.max():.1f} from it)"
        )


def _single(points: Any) -> FloatArray:
    """Round to what a surface file holds, so that a surface that is written and read again is the same."""
    return np.asarray(points, dtype=np.float32).astype(np.float64)


def _where(given: Any, name: str) -> str:
    return os.fspath(given) if isinstance(given, str | os.PathLike) else name


def _names(pair: Any) -> str:
    given = (
        [os.path.basename(one) for one in pair if isinstance(one, str | os.PathLike)]
        if not hasattr(pair, "parts")
        else []
    )
    return ", ".join(given) if given else "as meshes"
