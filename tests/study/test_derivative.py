"""Prepared participants on disk: complete, current or done again, and the same study as made in memory."""

import errno
import json
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from bids import BIDSLayout
from helpers import naming

from ntfa import NTFA, Study
from ntfa.errors import StudyError
from ntfa.simulation import Simulator
from ntfa.simulation.bids import SPACE, write_bids
from ntfa.study.assembling import assemble_to_disk
from ntfa.study.bids import FoundRun, Selection, find_runs
from ntfa.study.cutting import Preparation
from ntfa.study.derivative import (
    Masking,
    describe_dataset,
    prepare_to_disk,
    prepared_quality,
    read_prepared,
)

HOW, MASKING = Preparation(rest="rest"), Masking(keep_white_matter=True)
Found = dict[str, list[FoundRun]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 participants, 2 runs of 3 stimuli, 120 voxels. Do not write into it."""
    simulator = Simulator.create(
        "synthetic", n_participants=3, n_stimuli=3, n_frames=8, n_voxels=120, n_factors=3, n_runs=2
    )
    folder = tmp_path_factory.mktemp("bids") / "dataset"
    write_bids(simulator, folder)
    (folder / "participants.tsv").write_text(
        "participant_id\tgroup\tsite\tage\nsub-01\tNA\t01\t20\nsub-02\tb\t02\t30.5\nsub-03\tb\t10\tn/a\n"
    )
    return folder


@pytest.fixture(scope="module")
def found_once(written: Path) -> list[FoundRun]:
    return find_runs(written, Selection())


@pytest.fixture
def dataset(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "dataset"))


@pytest.fixture
def found(found_once: list[FoundRun], written: Path, dataset: Path) -> Found:
    """The runs of `dataset`, without another search."""

    def moved(path: Any) -> Path:
        return dataset / Path(path).relative_to(written)

    by_participant: Found = {}
    for one in found_once:
        run = replace(one.run, img=moved(one.run.img), events=moved(one.run.events))
        here = replace(one, run=run, mask=moved(one.mask), confounds_file=moved(one.confounds_file))
        by_participant.setdefault(run.participant, []).append(here)
    return by_participant


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def prepare(out: Path, dataset: Path, runs: list[FoundRun], **options: Any) -> bool:
    masking = replace(MASKING, **{name: options.pop(name) for name in ("mask", "min_coverage") if name in options})
    return prepare_to_disk(out, dataset, runs, masking, replace(HOW, **options))


def touch(path: Path | None) -> None:
    assert path is not None
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


# --- one participant


def test_a_participant_is_a_folder_of_described_files(out: Path, dataset: Path, found: Found) -> None:
    assert prepare(out, dataset, found["sub-02"])
    stem = f"sub-02_task-synthetic_space-{SPACE}_desc-ntfa"
    kinds = ("frames.npy", "frames.json", "mask.nii.gz", "trials.tsv", "trials.json", "quality.tsv", "quality.json")
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files == {f"sub-02/func/{stem}_{kind}" for kind in kinds}
    for name in ("trials", "quality"):
        columns = pd.read_csv(out / f"sub-02/func/{stem}_{name}.tsv", sep="\t").columns
        described = json.loads((out / f"sub-02/func/{stem}_{name}.json").read_text())
        assert list(described) == list(columns)
        assert all(entry["Description"] for entry in described.values())
    sources = json.loads((out / f"sub-02/func/{stem}_frames.json").read_text())
    assert sources["Preparation"]["rest"] == ["rest"]
    assert {entry["File"] for entry in sources["Sources"]} == {
        str(path) for one in found["sub-02"] for path in (one.run.img, one.run.events, one.mask)
    }


def test_what_is_written_is_read_back(out: Path, dataset: Path, found: Found) -> None:
    prepare(out, dataset, found["sub-01"])
    prepared, mask = read_prepared(out, "sub-01")
    study = Study.from_bids(dataset, participants="01", rest="rest", keep_white_matter=True)
    np.testing.assert_array_equal(prepared.frames, study.frames["sub-01"])
    np.testing.assert_array_equal(np.asarray(mask.dataobj), np.asarray(study.mask_img.dataobj))
    assert prepared.usable.all()
    pd.testing.assert_frame_equal(prepared.trials, study.trials)
    first = prepared.trials.iloc[0]
    assert (first["group"], first["site"], first["age"]) == ("NA", "01", 20)
    pd.testing.assert_frame_equal(prepared.quality, prepared_quality(out, "sub-01"))
    assert prepared.quality["run"].tolist() == ["task-synthetic_run-01", "task-synthetic_run-02"]
    assert prepared.quality["frames"].tolist() == [56, 56]
    assert prepared.quality["rest_frames"].tolist() == [32, 32]


def test_what_has_not_been_prepared_is_named(out: Path, dataset: Path, found: Found) -> None:
    with pytest.raises(StudyError, match=naming("sub-01")):
        read_prepared(out, "sub-01")
    prepare(out, dataset, found["sub-01"])
    (frames,) = out.glob("sub-01/func/*_frames.npy")
    frames.write_bytes(frames.read_bytes()[:100])
    with pytest.raises(StudyError) as error:
        read_prepared(out, "sub-01")
    assert str(error.value).startswith(f"{frames}: cannot be read (")
    assert str(error.value).endswith("prepare sub-01 again")


# --- complete and current


def test_what_is_current_is_not_done_again(out: Path, dataset: Path, found: Found) -> None:
    assert prepare(out, dataset, found["sub-01"])
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert not prepare(out, dataset, found["sub-01"])
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.parametrize("changed", ["img", "events"])
def test_a_changed_file_is_reason_to_do_it_again(out: Path, dataset: Path, found: Found, changed: str) -> None:
    prepare(out, dataset, found["sub-01"])
    touch(getattr(found["sub-02"][0].run, changed))
    assert not prepare(out, dataset, found["sub-01"])
    touch(getattr(found["sub-01"][1].run, changed))
    assert prepare(out, dataset, found["sub-01"])
    assert not prepare(out, dataset, found["sub-01"])


def test_a_changed_mask_is_reason_to_do_it_again(out: Path, dataset: Path, found: Found, tmp_path: Path) -> None:
    prepare(out, dataset, found["sub-01"])
    touch(found["sub-01"][0].mask)
    assert prepare(out, dataset, found["sub-01"])
    mask = tmp_path / "mask.nii.gz"
    shutil.copy(str(found["sub-01"][0].mask), mask)
    assert prepare(out, dataset, found["sub-01"], mask=str(mask))
    assert not prepare(out, dataset, found["sub-01"], mask=str(mask))
    touch(mask)
    assert prepare(out, dataset, found["sub-01"], mask=str(mask))


def test_changed_confounds_are_reason_to_do_it_again_where_they_are_used(
    out: Path, dataset: Path, found: Found
) -> None:
    prepare(out, dataset, found["sub-01"])
    touch(found["sub-01"][0].confounds_file)
    assert not prepare(out, dataset, found["sub-01"])
    simple = [replace(one, confounds="simple") for one in found["sub-01"]]
    assert prepare(out, dataset, simple)
    assert not prepare(out, dataset, simple)
    touch(simple[0].confounds_file)
    assert prepare(out, dataset, simple)


def test_changed_times_or_runs_are_reason_to_do_it_again(out: Path, dataset: Path, found: Found) -> None:
    runs = found["sub-01"]
    prepare(out, dataset, runs)
    assert prepare(out, dataset, [replace(one, run=replace(one.run, start_time=0.9)) for one in runs])
    assert prepare(out, dataset, runs[:1])


def test_changed_labels_are_reason_to_do_it_again(out: Path, dataset: Path, found: Found) -> None:
    for participant in ("sub-01", "sub-02"):
        prepare(out, dataset, found[participant])
    table = dataset / "participants.tsv"
    table.write_text(table.read_text().replace("sub-02\tb", "sub-02\tc"))
    assert not prepare(out, dataset, found["sub-01"])
    assert prepare(out, dataset, found["sub-02"])
    assert set(read_prepared(out, "sub-02")[0].trials["group"]) == {"c"}


@pytest.mark.parametrize(
    "option",
    [
        {"include_rest": True},
        {"delay": 2.9},
        {"trial_duration": 8.0},
        {"merge_gap": 0.1},
        {"standardize": "run"},
        {"smoothing_fwhm": 4.0},
        {"high_pass": 0.01},
        {"category_column": "category"},
        {"ignore": ("task1_stim1",)},
    ],
    ids=lambda option: next(iter(option)),
)
def test_a_changed_option_is_reason_to_do_it_again(
    out: Path, dataset: Path, found: Found, option: dict[str, Any]
) -> None:
    prepare(out, dataset, found["sub-01"])
    assert prepare(out, dataset, found["sub-01"], **option)
    assert not prepare(out, dataset, found["sub-01"], **option)


@pytest.mark.parametrize("content", [None, "", "{}"])
def test_what_is_not_known_to_be_complete_is_done_again(
    out: Path, dataset: Path, found: Found, content: str | None
) -> None:
    prepare(out, dataset, found["sub-01"])
    (sidecar,) = out.glob("sub-01/func/*_frames.json")
    if content is None:
        sidecar.unlink()
    else:
        sidecar.write_text(content)
    assert prepare(out, dataset, found["sub-01"])


def test_a_failure_leaves_what_was_there_and_nothing_half_done(out: Path, dataset: Path, found: Found) -> None:
    prepare(out, dataset, found["sub-01"])
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    image = Path(found["sub-01"][1].run.img)
    image.write_bytes(image.read_bytes()[:2000])
    with pytest.raises(StudyError) as error:
        prepare(out, dataset, found["sub-01"])
    assert str(error.value).startswith(f"{image}: ")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    with pytest.raises(StudyError):
        prepare(out, dataset, found["sub-01"])


# --- all participants


def test_the_assembled_study_is_that_made_in_memory(out: Path, dataset: Path, found: Found, tmp_path: Path) -> None:
    for runs in found.values():
        prepare(out, dataset, runs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quality = assemble_to_disk(out, sorted(found), tmp_path / "study")
    assert len(quality) == 6
    on_disk = Study.open(tmp_path / "study")
    in_memory = Study.from_bids(dataset, rest="rest", keep_white_matter=True)
    pd.testing.assert_frame_equal(on_disk.trials, in_memory.trials)
    np.testing.assert_array_equal(on_disk.coordinates, in_memory.coordinates)
    np.testing.assert_array_equal(np.asarray(on_disk.mask_img.dataobj), np.asarray(in_memory.mask_img.dataobj))
    for participant in in_memory.participants:
        np.testing.assert_array_equal(on_disk.frames[participant], in_memory.frames[participant])


def test_participants_share_the_voxels_that_all_of_them_have(
    out: Path, dataset: Path, found: Found, tmp_path: Path
) -> None:
    """Two voxels are outside of a brain, another one has no signal: only that one is lost."""
    mask = nibabel.load(found["sub-02"][0].mask)
    data = np.asarray(mask.dataobj).copy()
    places = np.argwhere(data)
    data[tuple(places[[3, 70]].T)] = 0
    nibabel.Nifti1Image(data, mask.affine).to_filename(found["sub-02"][0].mask)
    path = found["sub-03"][1].run.img
    img = nibabel.load(path)
    volumes = np.asarray(img.dataobj).copy()
    volumes[tuple(places[50])] = 0
    nibabel.Nifti1Image(volumes, img.affine, img.header).to_filename(path)
    for runs in found.values():
        prepare(out, dataset, runs)
    with pytest.warns(UserWarning, match=naming("1 voxel")):
        assemble_to_disk(out, sorted(found), tmp_path / "study", min_coverage=1.0)
    study = Study.open(tmp_path / "study")
    kept = np.delete(np.arange(120), [3, 50, 70])
    np.testing.assert_array_equal(np.argwhere(np.asarray(study.mask_img.dataobj)), places[kept])
    np.testing.assert_array_equal(study.frames["sub-01"], read_prepared(out, "sub-01")[0].frames[:, kept])
    assert read_prepared(out, "sub-03")[0].usable.tolist() == [i != 50 for i in range(120)]
    with pytest.warns(UserWarning, match=naming("1 voxel")):
        in_memory = Study.from_bids(dataset, rest="rest", keep_white_matter=True, min_coverage=1.0)
    np.testing.assert_array_equal(in_memory.coordinates, study.coordinates)


def test_participants_have_zeros_where_they_lack_voxels(
    out: Path, prepared: dict[str, np.ndarray], tmp_path: Path, dataset: Path
) -> None:
    study = assembled(out, sorted(prepared), tmp_path / "study", min_coverage=0.6)
    assert study.n_voxels == 120
    unseen = {label: np.flatnonzero(~seen).tolist() for label, seen in study.coverage.items()}
    assert unseen == {"sub-02": [3, 70], "sub-03": [50]}
    for label, frames in prepared.items():
        assert not study.frames[label][:, unseen.get(label, [])].any()
        np.testing.assert_array_equal(study.frames[label][:, np.delete(np.arange(120), [3, 50, 70])], frames)
    with pytest.warns(UserWarning, match="sub-02"):
        in_memory = Study.from_bids(dataset, rest="rest", keep_white_matter=True, min_coverage=0.6)
    assert unseen == {label: np.flatnonzero(~seen).tolist() for label, seen in in_memory.coverage.items()}
    for label in prepared:
        np.testing.assert_array_equal(study.frames[label], in_memory.frames[label])


def test_participants_on_different_grids_are_not_mixed(out: Path, dataset: Path, found: Found, tmp_path: Path) -> None:
    for one in found["sub-02"]:
        for path in (one.mask, one.run.img):
            img = nibabel.load(path)
            moved = nibabel.Nifti1Image(np.asarray(img.dataobj), img.affine + np.diag([0.5, 0, 0, 0]), img.header)
            moved.to_filename(path)
    for participant in ("sub-01", "sub-02"):
        prepare(out, dataset, found[participant])
    with pytest.raises(StudyError) as error:
        assemble_to_disk(out, ["sub-01", "sub-02"], tmp_path / "study")
    assert str(error.value).startswith("sub-02 is on another grid")
    assert "--other-grid resample" in str(error.value)
    mask = str(found["sub-01"][0].mask)
    for participant in ("sub-01", "sub-02"):
        prepare(out, dataset, found[participant], mask=mask, other_grid="resample")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assemble_to_disk(out, ["sub-01", "sub-02"], tmp_path / "study")
    assert Study.open(tmp_path / "study").participants == ["sub-01", "sub-02"]


def test_participants_without_a_voxel_in_common_are_refused(
    out: Path, dataset: Path, found: Found, tmp_path: Path
) -> None:
    for half, participant in enumerate(("sub-01", "sub-02")):
        for one in found[participant]:
            mask = nibabel.load(one.mask)
            data = np.asarray(mask.dataobj).copy()
            data[half::2] = 0
            nibabel.Nifti1Image(data, mask.affine).to_filename(one.mask)
        prepare(out, dataset, found[participant])
    with pytest.raises(StudyError, match="voxel"):
        assemble_to_disk(out, ["sub-01", "sub-02"], tmp_path / "study", min_coverage=1.0)
    assert not (tmp_path / "study").exists()


def test_the_output_is_a_derivative_that_pybids_can_index(out: Path, dataset: Path, found: Found) -> None:
    describe_dataset(out, dataset)
    for runs in found.values():
        prepare(out, dataset, runs)
    description = json.loads((out / "dataset_description.json").read_text())
    assert description["DatasetType"] == "derivative"
    assert description["GeneratedBy"][0]["Name"] == "ntfa"
    assert description["BIDSVersion"]
    assert description["Name"]
    assert description["SourceDatasets"][0]["URL"] == dataset.as_uri()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        layout = BIDSLayout(out, validate=False, is_derivative=True)
    assert layout.get_subjects() == ["01", "02", "03"]
    (trials,) = layout.get(subject="02", suffix="trials", extension=".tsv", desc="ntfa")
    assert trials.get_entities()["space"] == SPACE
    assert trials.get_metadata()["onset"]["Units"] == "s"
    first = json.loads((out / "dataset_description.json").read_text())
    describe_dataset(out, dataset / "elsewhere")
    assert json.loads((out / "dataset_description.json").read_text()) == first


# --- frames are on disk once


def n_bytes(*folders: Path) -> int:
    """Size of all .npy files of frames in folders, those with several names counted once."""
    files = {path.stat().st_ino: path.stat() for folder in folders for path in folder.rglob("*.npy")}
    return sum(status.st_size for status in files.values() if status.st_size > 4000)


def lose_voxels(found: Found) -> np.ndarray:
    """Take voxels out of a mask, and the signal out of another in another participant; return which are left."""
    mask = nibabel.load(found["sub-02"][0].mask)
    data = np.asarray(mask.dataobj).copy()
    places = np.argwhere(data)
    data[tuple(places[[3, 70]].T)] = 0
    nibabel.Nifti1Image(data, mask.affine).to_filename(found["sub-02"][0].mask)
    path = found["sub-03"][1].run.img
    img = nibabel.load(path)
    volumes = np.asarray(img.dataobj).copy()
    volumes[tuple(places[50])] = 0
    nibabel.Nifti1Image(volumes, img.affine, img.header).to_filename(path)
    return np.delete(np.arange(120), [3, 50, 70])


@pytest.fixture
def prepared(out: Path, dataset: Path, found: Found) -> dict[str, np.ndarray]:
    """Participants with different voxels, prepared; return frames at voxels that all have."""
    kept = lose_voxels(found)
    frames = {}
    for participant, runs in found.items():
        prepare(out, dataset, runs)
        own = np.setdiff1d(np.arange(120), [3, 70]) if participant == "sub-02" else np.arange(120)
        frames[participant] = np.array(read_prepared(out, participant)[0].frames)[:, np.isin(own, kept)]
    return frames


def assembled(out: Path, participants: list[str], folder: Path, min_coverage: float = 1.0) -> Study:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assemble_to_disk(out, participants, folder, min_coverage=min_coverage)
    return Study.open(folder)


def test_frames_are_on_disk_once_whatever_the_masks(out: Path, prepared: dict[str, np.ndarray], tmp_path: Path) -> None:
    before, people = n_bytes(out), sorted(prepared)
    whole = {who: np.array(read_prepared(out, who)[0].frames) for who in people}
    study = assembled(out, people, tmp_path / "study")
    assert n_bytes(out, tmp_path / "study") == before
    for who in people:
        np.testing.assert_array_equal(study.frames[who], prepared[who])
        np.testing.assert_array_equal(read_prepared(out, who)[0].frames, whole[who])
    states = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assembled(out, people, tmp_path / "study")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == states, "nothing to sort again"


def test_voxels_come_back_when_somebody_is_left_out(
    out: Path, dataset: Path, found: Found, prepared: dict[str, np.ndarray], tmp_path: Path
) -> None:
    everybody = assembled(out, sorted(prepared), tmp_path / "all")
    two = assembled(out, ["sub-01", "sub-03"], tmp_path / "two")
    assert (everybody.n_voxels, two.n_voxels) == (117, 119)
    for runs in found.values():
        assert not prepare(out, dataset, runs), "all that was prepared is still there"
    for who in prepared:
        np.testing.assert_array_equal(everybody.frames[who], prepared[who])


def test_a_study_outlives_the_participants_and_a_move(
    out: Path, dataset: Path, found: Found, prepared: dict[str, np.ndarray], tmp_path: Path
) -> None:
    assembled(out, sorted(prepared), out / "study")
    assert prepare(out, dataset, found["sub-01"], delay=2.0), "prepared anew, otherwise"
    moved = out.rename(tmp_path / "elsewhere")
    for folder in (moved, shutil.copytree(moved, tmp_path / "copy")):
        study = Study.open(folder / "study")
        for who, frames in prepared.items():
            np.testing.assert_array_equal(study.frames[who], frames)
    shutil.rmtree(moved / "sub-02")
    np.testing.assert_array_equal(Study.open(moved / "study").frames["sub-02"], prepared["sub-02"])


def test_where_files_cannot_have_two_names_they_are_copied(
    out: Path, prepared: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*names: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    study = assembled(out, sorted(prepared), tmp_path / "study")
    for who, frames in prepared.items():
        np.testing.assert_array_equal(study.frames[who], frames)
        assert study.frames[who].flags.c_contiguous
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("memory", [None, "1GB"], ids=["in memory", "from disk"])
def test_columns_that_are_not_the_studys_change_no_fit(
    out: Path, prepared: dict[str, np.ndarray], tmp_path: Path, memory: str | None
) -> None:
    linked = assembled(out, sorted(prepared), tmp_path / "study")
    assert not linked.frames["sub-01"].flags.c_contiguous
    linked.save(tmp_path / "plain")
    plain = Study.open(tmp_path / "plain")
    assert plain.frames["sub-01"].flags.c_contiguous
    settings = {"n_factors": 2, "max_epochs": 4, "uncertainty": "laplace", "device": "cpu", "random_state": 0}
    one, other = (NTFA(memory=memory, **settings).fit(study) for study in (linked, plain))
    pd.testing.assert_frame_equal(one.factors_, other.factors_, rtol=1e-5)
    pd.testing.assert_frame_equal(one.participants_, other.participants_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("columns", [{"sub-01": 3}, {"sub-01": "120"}, {"sub-01": True}, [1], {"sub-01": 10**6}])
def test_columns_that_cannot_be_are_refused(
    out: Path, prepared: dict[str, np.ndarray], tmp_path: Path, columns: Any
) -> None:
    assembled(out, sorted(prepared), tmp_path / "study")
    path = tmp_path / "study" / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "columns": columns}))
    with pytest.raises(StudyError, match=naming(tmp_path / "study")):
        Study.open(tmp_path / "study")


def test_an_order_of_columns_that_cannot_be_is_named(
    out: Path, prepared: dict[str, np.ndarray], tmp_path: Path
) -> None:
    assembled(out, sorted(prepared), tmp_path / "study")
    (order,) = out.glob("sub-01/func/*_columns.npy")
    np.save(order, np.zeros(120, dtype=np.int64))
    with pytest.raises(StudyError, match=naming("sub-01", order.name)):
        read_prepared(out, "sub-01")
