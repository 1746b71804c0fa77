"""Dense CIFTI files with cortex, as fMRIPrep's 91k output has them: vertices without medial wall, and voxels."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import naming
from nibabel import cifti2
from nibabel.affines import apply_affine

from ntfa import NTFA, Study
from ntfa.errors import StudyError
from ntfa.study.greyordinates import Greyordinates
from ntfa.study.surfaces import Surfaces

N = 642
AFFINE = np.array([[-2.0, 0, 0, 90], [0, 2, 0, -126], [0, 0, 2, -72], [0, 0, 0, 1]])
SHAPE = (91, 109, 91)
WALL = {"CORTEX_LEFT": np.arange(30, 90), "CORTEX_RIGHT": np.arange(100, 150)}
EVENTS = pd.DataFrame({"onset": [4.0, 12.0, 20.0], "duration": 4.0, "trial_type": ["a", "b", "a"]})
QUICK = {"random_state": 0, "max_epochs": 3, "uncertainty": "mean-field", "response": "loadings", "embedding_dim": 1}


def greyordinates(n_vertices: int = N) -> Any:
    """Brain models in the order of fMRIPrep's file: both cortices, then structures of voxels."""
    axis = None
    for name, wall in WALL.items():
        used = np.setdiff1d(np.arange(n_vertices), wall)
        part = cifti2.BrainModelAxis.from_surface(used, n_vertices, name=f"CIFTI_STRUCTURE_{name}")
        axis = part if axis is None else axis + part
    for i, name in enumerate(("ACCUMBENS_LEFT", "BRAIN_STEM", "THALAMUS_RIGHT")):
        inside = np.zeros(SHAPE, dtype=bool)
        inside[40 + 4 * i : 43 + 4 * i, 60:63, 35:38] = True
        axis += cifti2.BrainModelAxis.from_mask(inside, affine=AFFINE, name=f"CIFTI_STRUCTURE_{name}")
    return axis


def dtseries(path: Path, axis: Any, n: int = 14, seed: int = 0) -> Path:
    rows = cifti2.SeriesAxis(0, 2.0, n, unit="SECOND")
    data = np.random.default_rng(seed).standard_normal((n, len(axis))).astype(np.float32)
    cifti2.Cifti2Image(data, (rows, axis)).to_filename(path)
    return path


def dscalar(path: Path, axis: Any, n: int = 4, seed: int = 0) -> Path:
    data = np.random.default_rng(seed).standard_normal((n, len(axis))).astype(np.float32)
    cifti2.Cifti2Image(data, (cifti2.ScalarAxis([f"map {i}" for i in range(n)]), axis)).to_filename(path)
    return path


def test_vertices_and_voxels_have_their_own_values_and_places(tmp_path: Path) -> None:
    axis = greyordinates()
    path = dtseries(tmp_path / "sub-01_task-x_space-fsLR_den-91k_bold.dtseries.nii", axis)
    study = Study.from_images([path], [EVENTS], ["sub-01"], standardize="none", delay=0)
    data = np.asarray(nibabel.load(path).dataobj)
    assert study.n_voxels == len(axis)
    np.testing.assert_array_equal(study.frames["sub-01"][0], data[2])
    template = Surfaces.fsaverage(N).by_side
    for name, side in (("CORTEX_LEFT", "left"), ("CORTEX_RIGHT", "right")):
        own = axis.name == f"CIFTI_STRUCTURE_{name}"
        np.testing.assert_allclose(study.coordinates[own], template[side].midthickness[axis.vertex[own]])
        assert not np.isin(axis.vertex[own], WALL[name]).any()
    np.testing.assert_allclose(study.coordinates[axis.volume_mask], apply_affine(AFFINE, axis.voxel[axis.volume_mask]))
    np.testing.assert_array_equal(study.positions[axis.volume_mask], study.coordinates[axis.volume_mask])
    apart = study.positions[axis.volume_mask][:, None] - study.positions[~axis.volume_mask][None, ::10]
    assert np.linalg.norm(apart, axis=-1).min() > 150


def test_results_are_cifti_with_the_same_brain_models(tmp_path: Path) -> None:
    axis = greyordinates()
    paths = [dscalar(tmp_path / f"sub-{i}_betas.dscalar.nii", axis, seed=i) for i in range(4)]
    study = Study.from_maps(paths, pd.DataFrame({"stimulus": list("abcd")}))
    study.save(tmp_path / "study")
    model = NTFA(3, **QUICK).fit(Study.open(tmp_path / "study"))
    image = model.predict_img([("sub-1", "a"), ("sub-2", "c")])
    assert isinstance(image, nibabel.Cifti2Image)
    image.to_filename(tmp_path / "predicted.dscalar.nii")
    again = nibabel.load(tmp_path / "predicted.dscalar.nii")
    assert again.header.get_axis(1) == axis
    np.testing.assert_allclose(again.get_fdata(), model.predict([("sub-1", "a"), ("sub-2", "c")]), rtol=1e-5)
    assert model.factor_img().shape == (3, len(axis))
    assert set(model.factors_["structure"]) <= {"left cortex", "right cortex", "volume"}


def test_a_factor_in_the_volume_stays_there(tmp_path: Path) -> None:
    axis = greyordinates()
    rng = np.random.default_rng(0)
    places = np.zeros((len(axis), 3))
    places[axis.volume_mask] = apply_affine(AFFINE, axis.voxel[axis.volume_mask])
    center = np.array([4.0, -4.0, 0.0])
    shape = np.where(axis.volume_mask, np.exp(-((places - center) ** 2).sum(1) / 4.0**2), 0)
    paths = []
    for i in range(5):
        data = rng.standard_normal((6, 1)) * 5 * shape + 0.3 * rng.standard_normal((6, len(axis)))
        paths.append(tmp_path / f"sub-{i}.dscalar.nii")
        rows = cifti2.ScalarAxis([f"map {m}" for m in range(6)])
        cifti2.Cifti2Image(data.astype(np.float32), (rows, axis)).to_filename(paths[-1])
    study = Study.from_maps(paths, pd.DataFrame({"stimulus": list("abcdef")}), scale=False)
    model = NTFA(1, **QUICK | {"max_epochs": 100}).fit(study)
    found = model.factors_.iloc[0]
    assert found["structure"] == "volume"
    assert np.linalg.norm(found[["x", "y", "z"]].to_numpy(float) - center) < 1


def test_a_file_that_lacks_some_vertices_costs_these_alone(tmp_path: Path) -> None:
    axis = greyordinates()
    gone = [5, 7, len(axis) - 1]
    fewer = axis[np.setdiff1d(np.arange(len(axis)), gone)]
    shuffled = fewer[np.random.default_rng(0).permutation(len(fewer))]
    paths = [dscalar(tmp_path / "sub-a.dscalar.nii", axis), dscalar(tmp_path / "sub-b.dscalar.nii", shuffled)]
    with pytest.warns(UserWarning, match="sub-b the most, 3 of"):
        study = Study.from_maps(paths, pd.DataFrame({"stimulus": list("abab")}), scale=False)
    assert study.mask_img.axis == axis
    assert np.flatnonzero(~study.coverage["sub-b"]).tolist() == gone
    one = np.asarray(nibabel.load(paths[1]).dataobj)
    order = {
        (n, v, *x): i for i, (n, v, x) in enumerate(zip(shuffled.name, shuffled.vertex, shuffled.voxel, strict=True))
    }
    for i, (n, v, x) in enumerate(zip(axis.name, axis.vertex, axis.voxel, strict=True)):
        expected = 0 if i in gone else one[:, order[n, v, *x]]
        np.testing.assert_array_equal(study.frames["sub-b"][:, i], expected)


def test_vertices_without_a_place_are_left_out_or_refused(tmp_path: Path) -> None:
    axis = greyordinates(700)
    path = dscalar(tmp_path / "sub-a.dscalar.nii", axis)
    table = pd.DataFrame({"stimulus": list("abab")})
    with pytest.warns(UserWarning, match="--midthickness"):
        study = Study.from_maps([path], table)
    assert study.n_voxels == axis.volume_mask.sum()
    assert study.mask_img.shape == SHAPE
    cortex = dscalar(tmp_path / "sub-b.dscalar.nii", axis[~axis.volume_mask])
    with pytest.raises(StudyError, match=naming(cortex, "--midthickness", "fsLR")):
        Study.from_maps([cortex], table)


def test_images_of_another_template_are_refused_by_name(tmp_path: Path) -> None:
    paths = [dscalar(tmp_path / "sub-a.dscalar.nii", greyordinates()), tmp_path / "sub-b.dscalar.nii"]
    dscalar(paths[1], greyordinates(700))
    table = pd.DataFrame({"stimulus": list("abab")})
    with pytest.raises(StudyError, match=naming(paths[1], 700, N)):
        Study.from_maps(paths, table)
    moved = greyordinates()
    moved.affine = AFFINE + np.eye(4)
    dscalar(paths[1], moved)
    with pytest.raises(StudyError, match=naming(paths[1], "grid")):
        Study.from_maps(paths, table)


def test_a_model_s_own_mask_reads_images_of_others(tmp_path: Path) -> None:
    axis = greyordinates()
    paths = [dscalar(tmp_path / f"sub-{i}.dscalar.nii", axis, seed=i) for i in range(3)]
    table = pd.DataFrame({"stimulus": list("abcd")})
    model = NTFA(2, **QUICK).fit(Study.from_maps(paths, table))
    model.save(tmp_path / "model")
    space = NTFA.load(tmp_path / "model").mask_img_
    assert isinstance(space, Greyordinates)
    other = Study.from_maps([dscalar(tmp_path / "sub-9.dscalar.nii", axis, seed=9)], table, mask=space)
    assert other.mask_img.axis == axis
    assert "sub-9" in model.add(other).participants_.index
