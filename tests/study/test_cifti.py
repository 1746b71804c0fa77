"""Dense CIFTI files, written as Connectome Workbench and fMRIPrep write them, and maps as studies."""

import warnings
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
from ntfa.study.images import Run, open_image, repetition_time

SHAPE = (7, 6, 5)
AFFINE = np.array([[-3.0, 0, 0, 9], [0, 3, 0, -60], [0, 0, 3, -40], [0, 0, 0, 1]])
CONDITIONS = ["hand", "foot", "tongue"]


def voxels(seed: int = 0, share: float = 0.6) -> np.ndarray:
    return np.random.default_rng(seed).random(SHAPE) < share


def grid_axis(inside: np.ndarray) -> Any:
    """Two structures, as in a real file: columns are then not in the order of a mask."""
    right, left = inside.copy(), inside.copy()
    right[:3], left[3:] = False, False
    return cifti2.BrainModelAxis.from_mask(
        right, affine=AFFINE, name="CIFTI_STRUCTURE_CEREBELLUM_RIGHT"
    ) + cifti2.BrainModelAxis.from_mask(left, affine=AFFINE, name="CIFTI_STRUCTURE_CEREBELLUM_LEFT")


def surface_axis(n_vertices: int = 40) -> Any:
    used = np.arange(0, n_vertices, 2)
    return cifti2.BrainModelAxis.from_surface(used, n_vertices, name="CIFTI_STRUCTURE_CORTEX_LEFT")


def dscalar(path: Path, data: np.ndarray, axis: Any) -> Path:
    rows = cifti2.ScalarAxis([f"map {i}" for i in range(len(data))])
    cifti2.Cifti2Image(data.astype(np.float32), (rows, axis)).to_filename(path)
    return path


def dtseries(path: Path, data: np.ndarray, axis: Any, t_r: float) -> Path:
    rows = cifti2.SeriesAxis(0, t_r, len(data), unit="SECOND")
    cifti2.Cifti2Image(data.astype(np.float32), (rows, axis)).to_filename(path)
    return path


def maps(n: int, n_columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, n_columns)).astype(np.float32)


def value_at(axis: Any, data: np.ndarray, position: np.ndarray) -> np.ndarray:
    """A voxel's values, found by its place in mm and not by any order."""
    where = apply_affine(AFFINE, axis.voxel)
    return data[:, np.flatnonzero((np.abs(where - position) < 1e-3).all(1) & axis.volume_mask)[0]]


@pytest.mark.parametrize("with_cortex", [False, True])
def test_every_voxel_has_its_own_values_and_place(tmp_path: Path, with_cortex: bool) -> None:
    axis = surface_axis() + grid_axis(voxels()) if with_cortex else grid_axis(voxels())
    data = {who: maps(6, len(axis), seed) for seed, who in enumerate(("sub-01", "sub-02"))}
    paths = [dscalar(tmp_path / f"{who}_task-motor.dscalar.nii", own, axis) for who, own in data.items()]
    table = pd.DataFrame({"name": CONDITIONS * 2, "half": [1, 1, 1, 2, 2, 2], "kind": ["x", "y", "y"] * 2})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = Study.from_maps(paths, table, stimulus_column="name", run_column="half", scale=False)
    assert study.n_voxels == axis.volume_mask.sum() == voxels().sum()
    for who, own in data.items():
        expected = np.stack([value_at(axis, own, position) for position in study.coordinates], 1)
        np.testing.assert_array_equal(study.frames[who], expected)
    assert study.participants == ["sub-01", "sub-02"]
    own = study.trials[study.trials["participant"] == "sub-02"]
    assert own["stimulus"].tolist() == CONDITIONS * 2
    assert own["run"].tolist() == ["1"] * 3 + ["2"] * 3
    assert own["kind"].tolist() == ["x", "y", "y"] * 2
    assert own["start"].tolist() == list(range(6))
    assert (own["stop"] - own["start"] == 1).all()


def test_runs_that_alternate_keep_each_map_with_its_row(tmp_path: Path) -> None:
    axis = grid_axis(voxels())
    data = maps(6, len(axis))
    path = dscalar(tmp_path / "sub-01.dscalar.nii", data, axis)
    table = pd.DataFrame({"stimulus": list("abcabc"), "half": [1, 2, 1, 2, 1, 2], "number": range(6)})
    study = Study.from_maps([path], table, run_column="half", scale=False)
    for trial in study.trials.itertuples():
        shown = study.frames["sub-01"][trial.start]
        expected = [value_at(axis, data, position)[trial.number] for position in study.coordinates]
        np.testing.assert_array_equal(shown, expected)
        assert trial.run == str(table["half"][trial.number])


def test_maps_are_scaled_by_participant(tmp_path: Path) -> None:
    axis = grid_axis(voxels())
    paths = [
        dscalar(tmp_path / f"sub-{i}.dscalar.nii", scale * maps(4, len(axis), i), axis)
        for i, scale in ((1, 1), (2, 50))
    ]
    study = Study.from_maps(paths, pd.DataFrame({"stimulus": list("abab")}))
    for own in study.frames.values():
        assert np.sqrt((own.astype(float) ** 2).mean()) == pytest.approx(1, rel=1e-6)
    assert Study.from_maps(paths, pd.DataFrame({"stimulus": list("abab")}), scale=False).frames["sub-2"].std() > 40


def test_nifti_maps_are_the_same_study_as_cifti(tmp_path: Path) -> None:
    axis, inside = grid_axis(voxels()), voxels()
    data = maps(4, len(axis))
    volumes = np.zeros((*SHAPE, 4), dtype=np.float32)
    volumes[tuple(axis.voxel.T)] = data.T
    nibabel.Nifti1Image(volumes, AFFINE).to_filename(tmp_path / "sub-01_betas.nii.gz")
    nibabel.Nifti1Image(inside.astype(np.uint8), AFFINE).to_filename(tmp_path / "mask.nii.gz")
    table = tmp_path / "maps.tsv"
    pd.DataFrame({"stimulus": list("abab")}).to_csv(table, sep="\t", index=False)
    nifti = Study.from_maps([tmp_path / "sub-01_betas.nii.gz"], table, mask=tmp_path / "mask.nii.gz")
    cifti = Study.from_maps([dscalar(tmp_path / "sub-01.dscalar.nii", data, axis)], table)
    np.testing.assert_array_equal(nifti.coordinates, cifti.coordinates)
    np.testing.assert_array_equal(nifti.frames["sub-01"], cifti.frames["sub-01"])


def test_a_dense_series_has_its_repetition_time_and_is_cut_by_events(tmp_path: Path) -> None:
    axis = surface_axis() + grid_axis(voxels())
    data = maps(40, len(axis))
    path = dtseries(tmp_path / "sub-01_space-fsLR_den-91k_bold.dtseries.nii", data, axis, t_r=0.8)
    with pytest.warns(UserWarning, match="vertices of the cortical surface"):
        opened = open_image(Run(path, None, "sub-01"))
    assert opened.shape == (*SHAPE, 40)
    assert repetition_time(Run(path, None, "sub-01"), opened) == pytest.approx(0.8)
    events = pd.DataFrame({"onset": [4.0, 16.0], "duration": 4.0, "trial_type": ["a", "b"]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = Study.from_images([path], [events], standardize="none", delay=0)
    assert study.n_voxels == axis.volume_mask.sum()
    first = study.trials.iloc[0]
    np.testing.assert_array_equal(
        study.frames[study.participants[0]][first["start"] : first["stop"], 0],
        value_at(axis, data, study.coordinates[0])[5:10],
    )


def test_results_are_images_of_the_file_s_voxels(tmp_path: Path) -> None:
    axis = grid_axis(voxels())
    paths = [dscalar(tmp_path / f"sub-{i}.dscalar.nii", maps(6, len(axis), i), axis) for i in range(3)]
    study = Study.from_maps(paths, pd.DataFrame({"stimulus": CONDITIONS * 2}))
    model = NTFA(2, random_state=0, max_epochs=2, uncertainty="mean-field").fit(study)
    img = model.predict_img([("sub-0", "foot")])
    np.testing.assert_allclose(img.affine, AFFINE)
    assert img.shape[:3] == SHAPE
    assert not np.asarray(img.dataobj)[~voxels()].any()


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    axis = grid_axis(voxels())
    path = dscalar(tmp_path / "sub-01.dscalar.nii", maps(4, len(axis)), axis)
    table = pd.DataFrame({"stimulus": list("abab"), "half": [1, 1, 2, None]})
    cortex = dscalar(tmp_path / "sub-02.dscalar.nii", maps(4, len(surface_axis())), surface_axis())
    with pytest.raises(StudyError, match=naming("sub-02.dscalar.nii", "vertices")):
        Study.from_maps([cortex], table)
    with pytest.raises(StudyError, match=naming("sub-01.dscalar.nii", 4, 3)):
        Study.from_maps([path], table[:3])
    with pytest.raises(StudyError, match=naming("'trial_type'", "stimulus, half")):
        Study.from_maps([path], table, stimulus_column="trial_type")
    with pytest.raises(StudyError, match=naming("line 5", "half")):
        Study.from_maps([path], table, run_column="half")
    with pytest.raises(StudyError, match=naming("participants", 1, 2)):
        Study.from_maps([path], table, participants=["a", "b"])
    with pytest.raises(StudyError, match="give participants="):
        Study.from_maps([nibabel.load(path)], table)


def test_a_file_that_is_not_dense_is_refused(tmp_path: Path) -> None:
    axis = grid_axis(voxels())
    parcels = cifti2.ParcelsAxis.from_brain_models(
        [("left", axis[: len(axis) // 2]), ("right", axis[len(axis) // 2 :])]
    )
    rows = cifti2.ScalarAxis(["a", "b"])
    path = tmp_path / "sub-01.pscalar.nii"
    cifti2.Cifti2Image(maps(2, 2), (rows, parcels)).to_filename(path)
    with pytest.raises(StudyError, match=naming("sub-01.pscalar.nii", "dense")):
        Study.from_maps([path], pd.DataFrame({"stimulus": list("ab")}))


@pytest.mark.parametrize("size", [300, 600, 0.9])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, size: float) -> None:
    axis = grid_axis(voxels())
    path = dscalar(tmp_path / "sub-01.dscalar.nii", maps(50, len(axis)), axis)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(size if size > 1 else size * len(whole))])
    with pytest.raises(StudyError, match=naming("sub-01.dscalar.nii")):
        Study.from_maps([path], pd.DataFrame({"stimulus": ["a", "b"] * 25}))


def test_voxels_that_are_missing_in_some_file_are_unseen_there_or_dropped(tmp_path: Path) -> None:
    axis = grid_axis(voxels())
    data = [maps(4, len(axis), i) for i in range(2)]
    data[1][:, 3] = np.nan
    paths = [dscalar(tmp_path / f"sub-{i}.dscalar.nii", own, axis) for i, own in enumerate(data)]
    table = pd.DataFrame({"stimulus": list("abab")})
    with pytest.warns(UserWarning, match="sub-1"):
        study = Study.from_maps(paths, table)
    assert study.n_voxels == len(axis)
    assert study.coverage_table["unseen"].to_dict() == {"sub-0": 0, "sub-1": 1}
    sizes = [np.sqrt((study.frames[who] ** 2).sum() / (study.frames[who] != 0).sum()) for who in study.participants]
    np.testing.assert_allclose(sizes, 1, rtol=1e-5)
    with pytest.warns(UserWarning, match="1 voxel"):
        study = Study.from_maps(paths, table, min_coverage=0.6)
    assert not study.coverage
    gone = apply_affine(AFFINE, axis.voxel[3])
    assert study.n_voxels == len(axis) - 1
    assert not (np.abs(study.coordinates - gone) < 1e-3).all(1).any()
