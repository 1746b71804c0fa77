"""Vertices of cortex: their places, their distances for factors, images of nilearn and GIFTI in and out."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import naming
from nilearn.datasets import load_fsaverage
from nilearn.surface import InMemoryMesh, PolyMesh, SurfaceImage

from ntfa import Study
from ntfa.errors import StudyError
from ntfa.inference.factors import radial_basis
from ntfa.simulation.cortex import direction_of, simulate_cortex
from ntfa.study.greyordinates import Greyordinates, cortex_axis
from ntfa.study.spheres import great_circle
from ntfa.study.surfaces import Surfaces

N = 642
EVENTS = pd.DataFrame({"onset": [4.0, 12.0, 20.0], "duration": 4.0, "trial_type": ["a", "b", "a"]})
AS_THEY_ARE = {"standardize": "none", "delay": 0.0, "t_r": 2.0}


@pytest.fixture(scope="module")
def surfaces() -> Surfaces:
    return Surfaces.fsaverage(N)


@pytest.fixture(scope="module")
def space(surfaces: Surfaces) -> Greyordinates:
    return Greyordinates(cortex_axis({"left": N, "right": N}), surfaces)


def series(n: int = 14, n_vertices: int = N, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {side: rng.standard_normal((n_vertices, n)).astype(np.float32) for side in ("left", "right")}


def mesh_of(surfaces: Surfaces) -> Any:
    meshes = {
        side: InMemoryMesh(own.midthickness.astype(np.float32), own.faces.astype(np.int32))
        for side, own in surfaces.by_side.items()
    }
    return PolyMesh(**meshes)


def surf_gii(path: Path, points: np.ndarray, faces: np.ndarray, side: str) -> Path:
    """A surface as Connectome Workbench writes it."""
    arrays = [
        nibabel.gifti.GiftiDataArray(points.astype(np.float32), "NIFTI_INTENT_POINTSET", "NIFTI_TYPE_FLOAT32"),
        nibabel.gifti.GiftiDataArray(faces.astype(np.int32), "NIFTI_INTENT_TRIANGLE", "NIFTI_TYPE_INT32"),
    ]
    meta = nibabel.gifti.GiftiMetaData({"AnatomicalStructurePrimary": f"Cortex{side.capitalize()}"})
    nibabel.GiftiImage(darrays=arrays, meta=meta).to_filename(path)
    return path


def func_gii(folder: Path, values: dict[str, np.ndarray]) -> tuple[Path, Path]:
    """A run as fMRIPrep writes it: a file for each hemisphere, an array for each frame."""
    paths = []
    for side, own in values.items():
        path = folder / f"sub-01_task-x_hemi-{side[0].upper()}_space-fsaverage_bold.func.gii"
        arrays = [
            nibabel.gifti.GiftiDataArray(frame, "NIFTI_INTENT_TIME_SERIES", "NIFTI_TYPE_FLOAT32") for frame in own.T
        ]
        meta = nibabel.gifti.GiftiMetaData({"AnatomicalStructurePrimary": f"Cortex{side.capitalize()}"})
        nibabel.GiftiImage(darrays=arrays, meta=meta).to_filename(path)
        paths.append(path)
    return paths[0], paths[1]


# Where factors live --------------------------------------------------------------------------------------------------


def test_vertices_lie_halfway_through_the_cortex_and_spheres_have_its_area() -> None:
    whole, template = Surfaces.fsaverage(), load_fsaverage("fsaverage5")
    for side, surface in whole.by_side.items():
        white, pial = (template[name].parts[side].coordinates for name in ("white_matter", "pial"))
        np.testing.assert_allclose(surface.midthickness, (white + pial) / 2, atol=1e-4)
        a, b, c = (surface.midthickness[surface.faces[:, i]] for i in range(3))
        lengths = [np.linalg.norm(one - other, axis=1) for one, other in ((a, b), (b, c), (c, a))]
        half = sum(lengths) / 2
        area = np.sqrt(half * np.prod([half - length for length in lengths], axis=0)).sum()
        assert 4 * np.pi * surface.radius**2 == pytest.approx(area, rel=1e-3)


def test_a_factor_on_a_sphere_is_a_function_of_the_great_circle_alone(space: Greyordinates) -> None:
    rng = np.random.default_rng(1)
    surface = space.surfaces.by_side["left"]
    direction = surface.directions[17]
    spheres = space.spheres
    assert spheres is not None
    center = spheres.centers["left"] + 1.2 * surface.radius * direction
    factor = radial_basis(space.positions, center[None], [20.0])[0]
    own = great_circle(surface.directions, direction, surface.radius)
    chord = 2 * surface.radius * np.sin(own / surface.radius / 2)
    table = pd.DataFrame([dict(zip("xyz", center, strict=True)) | {"width": 20.0}])
    in_mm = space.to_mm(table).iloc[0]
    assert in_mm["structure"] == "left cortex"
    np.testing.assert_allclose(in_mm[["x", "y", "z"]].to_numpy(float), surface.midthickness[17], atol=1e-6)
    expected = np.exp(-((0.2 * surface.radius / 20) ** 2)) * np.exp(-((chord / in_mm["width"]) ** 2))
    np.testing.assert_allclose(factor[:N], expected, rtol=1e-9)
    assert factor[N:].max() < 1e-20
    # The widest factor that a fit starts with, anywhere in a hemisphere, hardly reaches the other one.
    inside = spheres.centers["left"] + surface.radius * rng.uniform(0, 1) * direction
    assert radial_basis(space.positions, inside[None], [1.2 * surface.radius])[0][N:].max() < 0.01


def test_centres_between_vertices_move_smoothly_on_the_cortex(space: Greyordinates) -> None:
    surface, spheres = space.surfaces.by_side["right"], space.spheres
    assert spheres is not None
    for face in surface.faces[::97]:
        shares = np.array([0.5, 0.3, 0.2])
        at = spheres.centers["right"] + surface.radius * shares @ surface.directions[face]
        table = pd.DataFrame([dict(zip("xyz", at, strict=True)) | {"width": 10.0}])
        found = space.to_mm(table)[["x", "y", "z"]].to_numpy(float)[0]
        np.testing.assert_allclose(found, shares @ surface.midthickness[face], atol=1e-6)
        np.testing.assert_allclose(
            direction_of(surface, found),
            (at - spheres.centers["right"]) / np.linalg.norm(at - spheres.centers["right"]),
        )


def test_sds_are_carried_from_the_sphere_to_the_cortex(space: Greyordinates) -> None:
    rng = np.random.default_rng(0)
    spheres, surface = space.spheres, space.surfaces.by_side["left"]
    assert spheres is not None
    inside = surface.directions[surface.faces[100]].mean(0)
    at = spheres.centers["left"] + surface.radius * inside / np.linalg.norm(inside)
    cloud = pd.DataFrame(at + 0.05 * rng.standard_normal((2000, 3)), columns=list("xyz")).assign(width=10.0)
    row = pd.DataFrame([dict(zip("xyz", at, strict=True)) | {"width": 10.0}])
    row = row.assign(x_sd=0.05, y_sd=0.05, z_sd=0.05, width_sd=1.0)
    found, drawn = space.to_mm(row).iloc[0], space.to_mm(cloud)
    for axis in "xyz":
        assert found[f"{axis}_sd"] == pytest.approx(drawn[axis].std(), rel=0.1)


def test_straight_lines_are_taken_where_they_are_asked_for_or_there_is_no_sphere(space: Greyordinates) -> None:
    straight = Greyordinates(space.axis, space.surfaces, "straight")
    np.testing.assert_array_equal(straight.positions, straight.coordinates)
    table = pd.DataFrame({"x": [-40.0, 40.0], "y": 0.0, "z": 10.0, "width": 9.0})
    found = straight.to_mm(table)
    assert found["structure"].tolist() == ["left cortex", "right cortex"]
    pd.testing.assert_frame_equal(found.drop(columns="structure"), table)
    with pytest.raises(StudyError, match=naming("'round'", "sphere", "straight")):
        Greyordinates(space.axis, space.surfaces, "round")


# Images in -----------------------------------------------------------------------------------------------------------


def test_surface_images_and_gifti_pairs_are_the_same_study(tmp_path: Path, surfaces: Surfaces) -> None:
    values = series()
    expected = np.concatenate(list(values.values()))[:, 2:4].T
    given = [SurfaceImage(mesh_of(surfaces), values), func_gii(tmp_path, values)]
    for img in given:
        study = Study.from_images([img], [EVENTS], ["sub-01"], **AS_THEY_ARE)
        assert study.n_voxels == 2 * N
        first = study.trials.iloc[0]
        np.testing.assert_array_equal(study.frames["sub-01"][first["start"] : first["stop"]], expected)
        np.testing.assert_allclose(study.coordinates[:N], surfaces.by_side["left"].midthickness)
        np.testing.assert_allclose(study.coordinates[N:], surfaces.by_side["right"].midthickness)
        assert "fsaverage3" in study.mask_img.surfaces.source


def test_vertices_without_signal_are_dropped_and_the_others_keep_their_places(surfaces: Surfaces) -> None:
    values = series()
    values["left"][[3, 5]] = np.nan
    values["right"][7] = 0
    with pytest.warns(UserWarning, match="3 voxel"):
        study = Study.from_images([SurfaceImage(mesh_of(surfaces), values)], [EVENTS], **AS_THEY_ARE)
    keep = np.setdiff1d(np.arange(2 * N), [3, 5, N + 7])
    both = np.concatenate([own.midthickness for own in surfaces.by_side.values()])
    np.testing.assert_allclose(study.coordinates, both[keep])
    np.testing.assert_array_equal(study.frames["1"][0], np.concatenate(list(values.values()))[keep, 2])
    image = study.mask_img.to_image(np.ones((1, study.n_voxels)))
    assert np.flatnonzero(image.data.parts["left"][:, 0] == 0).tolist() == [3, 5]
    assert np.flatnonzero(image.data.parts["right"][:, 0] == 0).tolist() == [7]


def test_a_mask_of_surfaces_says_which_vertices_are_used(surfaces: Surfaces) -> None:
    inside = {side: np.zeros((N, 1), dtype=np.float32) for side in ("left", "right")}
    inside["right"][10:50] = 1
    mask = SurfaceImage(mesh_of(surfaces), inside)
    study = Study.from_images([SurfaceImage(mesh_of(surfaces), series())], [EVENTS], mask=mask, **AS_THEY_ARE)
    np.testing.assert_allclose(study.coordinates, surfaces.by_side["right"].midthickness[10:50])


def test_named_surfaces_give_vertices_their_places(tmp_path: Path, surfaces: Surfaces) -> None:
    paths = {
        name: [
            surf_gii(tmp_path / f"tpl-x_hemi-{side[0].upper()}_{name}.surf.gii", points + shift, own.faces, side)
            for side, own in surfaces.by_side.items()
            for points in [own.sphere if name == "sphere" else own.midthickness]
            if points is not None
        ]
        for name, shift in (("midthickness", 1.0), ("sphere", 0.0))
    }
    given = Surfaces.open(paths["midthickness"], paths["sphere"])
    study = Study.from_images([SurfaceImage(mesh_of(surfaces), series())], [EVENTS], surfaces=given, **AS_THEY_ARE)
    np.testing.assert_allclose(study.coordinates[:N], surfaces.by_side["left"].midthickness + 1, atol=1e-5)
    assert "tpl-x_hemi-L_midthickness.surf.gii" in study.mask_img.surfaces.source
    assert study.mask_img.is_on_sphere
    no_sphere = Surfaces.open(paths["midthickness"])
    study = Study.from_images([SurfaceImage(mesh_of(surfaces), series())], [EVENTS], surfaces=no_sphere, **AS_THEY_ARE)
    assert not study.mask_img.is_on_sphere
    np.testing.assert_array_equal(study.positions, study.coordinates)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, surfaces: Surfaces) -> None:
    whole = SurfaceImage(mesh_of(surfaces), series())
    left, right = func_gii(tmp_path, series())
    with pytest.raises(StudyError, match=naming(right, "left hemisphere")):
        Study.from_images([(right, left)], [EVENTS], **AS_THEY_ARE)
    (tmp_path / "coarse").mkdir()
    coarse = func_gii(tmp_path / "coarse", series(n_vertices=162))
    with pytest.raises(StudyError, match=naming(coarse[0], "CORTEX_LEFT", 162, N)):
        Study.from_images([whole, coarse], [EVENTS, EVENTS], ["a", "b"], **AS_THEY_ARE)
    with pytest.raises(StudyError, match=naming("162", "--midthickness", "--sphere")):
        Study.from_images([coarse], [EVENTS], **AS_THEY_ARE)
    with pytest.raises(StudyError, match=naming("left", 162, N)):
        Study.from_images([coarse], [EVENTS], surfaces=surfaces, **AS_THEY_ARE)
    with pytest.raises(StudyError, match=naming("smoothing_fwhm", "wb_command")):
        Study.from_images([whole], [EVENTS], smoothing_fwhm=4, **AS_THEY_ARE)
    with pytest.raises(StudyError, match=naming("t_r")):
        Study.from_images([(left, right)], [EVENTS], standardize="none")
    volume = nibabel.Nifti1Image(np.ones((3, 3, 3, 14), np.float32), np.eye(4))
    with pytest.raises(StudyError, match=naming("volume", "surface")):
        Study.from_images([whole, volume], [EVENTS, EVENTS], ["a", "b"], **AS_THEY_ARE)
    own = surfaces.by_side["left"]
    files = [surf_gii(tmp_path / f"{i}.surf.gii", own.midthickness, own.faces, "left") for i in range(2)]
    with pytest.raises(StudyError, match=naming(files[0], "no sphere")):
        Surfaces.open(files, files)
    (tmp_path / "broken.surf.gii").write_text("<GIFTI>")
    with pytest.raises(StudyError, match=r"broken\.surf\.gii"):
        Surfaces.open([tmp_path / "broken.surf.gii"] * 2)


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_saved_study_has_its_surfaces(tmp_path: Path) -> None:
    study, _ = simulate_cortex(2, 3, 1, n_vertices=N)
    study.save(tmp_path / "study")
    again = Study.open(tmp_path / "study")
    np.testing.assert_array_equal(again.positions, study.positions)
    np.testing.assert_array_equal(again.coordinates, study.coordinates)
    assert again.mask_img.surfaces.source == study.mask_img.surfaces.source
    assert (again.mask_img.distance, again.mask_img.form) == ("sphere", "surface")
    own = again.mask_img.surfaces.by_side["right"]
    np.testing.assert_array_equal(own.inflated, study.mask_img.surfaces.by_side["right"].inflated)


@pytest.mark.parametrize("name", ["columns.dscalar.nii", "left_midthickness.surf.gii", "surfaces.json"])
def test_damaged_surfaces_are_refused_by_name(tmp_path: Path, name: str) -> None:
    study, _ = simulate_cortex(2, 3, 1, n_vertices=N)
    study.save(tmp_path / "study")
    path = tmp_path / "study" / "greyordinates" / name
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StudyError, match=naming(name)):
        Study.open(tmp_path / "study")
