"""What counts as unseen, what is dropped, and that a study keeps it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import naming

from ntfa import Study
from ntfa.baselines import PCA, MeanImage
from ntfa.errors import StudyError
from ntfa.study.checks import mask_coordinates

N_VOXELS, N_FRAMES = 24, 12
MASK = nibabel.Nifti1Image(np.ones((2, 3, 4), dtype=np.uint8), np.diag([3.0, 3.0, 3.0, 1.0]))


def parts(n_participants: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    labels = [f"sub-{i}" for i in range(n_participants)]
    frames = {label: rng.normal(size=(N_FRAMES, N_VOXELS)).astype(np.float32) for label in labels}
    rows = [(label, f"s{i % 3}", 2 * i, 2 * i + 2) for label in labels for i in range(6)]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    return {"frames": frames, "trials": trials, "coordinates": mask_coordinates(MASK), "mask_img": MASK}


def quietly(given: dict[str, Any], **options: Any) -> Study:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Study.from_arrays(**given, **options)


@pytest.fixture
def study() -> Study:
    given = parts()
    given["frames"]["sub-1"][:, [3, 20]] = np.nan
    given["frames"]["sub-2"][:, [3, 7]] = 0
    return quietly(given)


def unseen(study: Study) -> dict[str, list[int]]:
    return {label: np.flatnonzero(~seen).tolist() for label, seen in study.coverage.items()}


def test_nan_and_zeros_are_unseen_by_whoever_has_them(study: Study) -> None:
    assert unseen(study) == {"sub-1": [3, 20], "sub-2": [3, 7]}
    assert study.n_voxels == N_VOXELS
    assert study.n_data == 4 * N_FRAMES * N_VOXELS - 2 * 2 * N_FRAMES
    for label, voxels in unseen(study).items():
        assert not study.frames[label][:, voxels].any()
        assert study.coverage_table.loc[label].tolist() == [22, 2, 22 / 24]
    assert study.coverage_share[[0, 3, 7, 20]].tolist() == [1, 0.5, 0.75, 0.75]
    assert "2 participants lack some" in repr(study)


def test_a_complete_study_is_what_it_was() -> None:
    given = parts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = Study.from_arrays(**given)
    assert study.coverage == {}
    assert study.on_shared_voxels() is study
    assert all(study.frames[label] is given["frames"][label] for label in study.participants)


def test_voxels_that_too_few_have_are_dropped_and_counted() -> None:
    given = parts()
    given["frames"]["sub-1"][:, [3, 20]] = np.nan
    given["frames"]["sub-2"][:, [3, 7]] = 0
    with pytest.warns(UserWarning, match=naming("1 voxel", "75%", "2 of 4", "sub-1")):
        study = Study.from_arrays(**given, min_coverage=0.75)
    assert study.n_voxels == N_VOXELS - 1
    np.testing.assert_array_equal(study.coordinates, np.delete(given["coordinates"], 3, 0))
    np.testing.assert_array_equal(mask_coordinates(study.mask_img), study.coordinates)
    assert unseen(study) == {"sub-1": [19], "sub-2": [6]}
    assert quietly(given, min_coverage=1.0).coverage == {}
    for share in (-0.1, 1.2):
        with pytest.raises(StudyError, match="min_coverage"):
            Study.from_arrays(**given, min_coverage=share)


def test_no_voxel_is_dropped_where_all_are_wanted() -> None:
    given = parts(1)
    given["frames"]["sub-0"][:, 5] = np.nan
    assert quietly(given).n_voxels == N_VOXELS - 1
    assert unseen(quietly(given, min_coverage=0)) == {"sub-0": [5]}


def test_a_voxel_that_is_nan_at_times_is_unseen_and_said() -> None:
    given = parts()
    given["frames"]["sub-3"][[2, 5], 9] = np.nan
    with pytest.warns(UserWarning, match=naming("1 voxel", "sub-3", "some frames")):
        study = Study.from_arrays(**given)
    assert unseen(study) == {"sub-3": [9]}
    assert not study.frames["sub-3"][:, 9].any()


@pytest.mark.parametrize(
    ("where", "value", "named"),
    [
        ((7, slice(None)), np.nan, naming("sub-1", "frame 7", "voxel 0")),
        ((7, 3), np.inf, naming("sub-1", "frame 7", "voxel 3")),
        ((slice(None), 4), 2.5, naming("sub-1", "voxel 4", "constant")),
        ((slice(None), slice(None)), np.nan, naming("sub-1")),
        ((slice(None), slice(None)), 0.0, naming("sub-1")),
    ],
    ids=["a frame", "infinite", "constant", "nothing", "zeros"],
)
def test_what_is_no_missing_voxel_is_refused(where: Any, value: float, named: str) -> None:
    given = parts()
    given["frames"]["sub-1"][where] = value
    with pytest.raises(StudyError, match=named):
        Study.from_arrays(**given)


def test_who_has_none_of_the_voxels_is_named() -> None:
    given = parts()
    given["frames"]["sub-0"][:, :20] = np.nan
    for label in ("sub-1", "sub-2", "sub-3"):
        given["frames"][label][:, 20:] = np.nan
    with pytest.raises(StudyError, match=naming("sub-0")):
        quietly(given)


def test_parts_of_a_study_keep_who_has_what(study: Study) -> None:
    assert unseen(study.select(participants=["sub-0", "sub-2"])) == {"sub-2": [3, 7]}
    train, test = study.split("diagonal")
    assert unseen(train) == unseen(study)
    assert set(test.coverage) <= set(study.coverage)
    images = study.mean_images()
    lacking = (study.trials["participant"] == "sub-1").to_numpy()
    assert np.isnan(images[lacking][:, [3, 20]]).all()
    assert np.isfinite(images[lacking][:, 4]).all()


def test_a_saved_study_keeps_it(study: Study, tmp_path: Path) -> None:
    study.save(tmp_path / "study")
    opened = Study.open(tmp_path / "study")
    assert unseen(opened) == unseen(study)
    assert unseen(opened.select(participants="sub-1")) == {"sub-1": [3, 20]}
    # A version that knows nothing of it must not take zeros for data.
    assert json.loads((tmp_path / "study" / "study.json").read_text())["schema_version"] == 2
    study.on_shared_voxels().save(tmp_path / "shared")
    assert json.loads((tmp_path / "shared" / "study.json").read_text())["schema_version"] == 1
    assert not (tmp_path / "shared" / "coverage.npy").exists()
    np.save(tmp_path / "study" / "coverage.npy", np.ones((1, N_VOXELS), dtype=bool))
    with pytest.raises(StudyError, match=r"coverage\.npy"):
        Study.open(tmp_path / "study")


def test_frames_that_are_not_zero_where_they_are_unseen_are_refused(study: Study, tmp_path: Path) -> None:
    study.frames["sub-1"][2, 20] = 1.0
    with pytest.raises(StudyError, match="sub-1"):
        study.save(tmp_path / "study")


def test_baselines_take_the_voxels_that_everybody_has(study: Study) -> None:
    shared = study.on_shared_voxels()
    assert shared.n_voxels == N_VOXELS - 3
    for baseline in (PCA(2), MeanImage()):
        with pytest.warns(UserWarning, match=naming(21, 24)):
            fitted = baseline.fit(study)
        assert len(fitted.coordinates_) == N_VOXELS - 3
    pca = PCA(2).fit(shared)
    pd.testing.assert_frame_equal(pca.transform(study), pca.transform(shared))
