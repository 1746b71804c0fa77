"""`ntfa bids` with datasets as people have them: what is wrong is said at once, and by subject and file."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import assert_names, naming

from ntfa import Study
from ntfa.cli import main
from ntfa.errors import OutputError, StudyError
from ntfa.simulation import Simulator
from ntfa.simulation.bids import SPACE, write_bids
from ntfa.study.bids import Selection, find_runs, search
from ntfa.study.cutting import Preparation
from ntfa.study.derivative import Masking, prepare_to_disk
from ntfa.study.locating import locate
from ntfa.study.survey import survey

PREPARE = ["--rest", "rest", "--keep-white-matter"]
FIT = ["--n-factors", "2", "--max-epochs", "3", "--uncertainty", "laplace", "--device", "cpu"]
# As fMRIPrep 24 writes it, but for the folders.
FMRIPREP = {
    "Name": "fMRIPrep - fMRI PREProcessing workflow",
    "BIDSVersion": "1.4.0",
    "DatasetType": "derivative",
    "GeneratedBy": [{"Name": "fMRIPrep", "Version": "24.1.1", "CodeURL": "https://github.com/nipreps/fmriprep"}],
    "HowToAcknowledge": "Please cite our paper",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 participants, 2 runs of 3 stimuli, 120 voxels. Do not write into it."""
    sizes = {"n_participants": 3, "n_stimuli": 3, "n_frames": 6, "n_voxels": 120, "n_factors": 3, "n_runs": 2}
    folder = tmp_path_factory.mktemp("bids") / "dataset"
    write_bids(Simulator.create("synthetic", **sizes), folder)
    return folder


@pytest.fixture
def dataset(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "dataset"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a volume is read."""

    def read(*args: Any) -> None:
        raise AssertionError("an image was read")

    monkeypatch.setattr("ntfa.study.images._few_volumes", read)


def run(dataset: Path, out: Path, level: str, *options: Any) -> int:
    return main(["bids", str(dataset), str(out), level, *PREPARE, *map(str, options)])


def func(dataset: Path, participant: str, kind: str, run: str = "01") -> Path:
    stem = f"{participant}_task-synthetic_run-{run}"
    if kind == "events":
        return dataset / participant / "func" / f"{stem}_events.tsv"
    name = {"bold": "desc-preproc_bold", "mask": "desc-brain_mask"}[kind]
    return dataset / "derivatives/fmriprep" / participant / "func" / f"{stem}_space-{SPACE}_{name}.nii.gz"


# --- all problems at once


@pytest.fixture
def broken(dataset: Path) -> dict[str, Path]:
    """Break something else in every participant but the last; return what is to be named, by what is wrong."""
    files = {
        "no events": func(dataset, "sub-01", "events"),
        "bad events": func(dataset, "sub-01", "events", "02"),
        "no image": func(dataset, "sub-02", "bold"),
        "no mask": func(dataset, "sub-02", "mask", "02"),
    }
    for kind in ("no events", "no image", "no mask"):
        files[kind].unlink()
    files["bad events"].write_text("onset\tduration\ttrial_type\n1\t2\trest\n3\t-1\ta\n")
    return files


@pytest.mark.parametrize("options", [["participant"], ["group", *FIT], ["group", "--dry-run"]], ids=" ".join)
def test_everything_that_is_wrong_is_listed_at_once(
    dataset: Path, broken: dict[str, Path], out: Path, capsys: pytest.CaptureFixture, no_images: None, options: Any
) -> None:
    assert run(dataset, out, *options) == 1
    captured = capsys.readouterr()
    assert_names(captured.err, "sub-01", "sub-02", "4 problems", "--exclude-participant 01 02")
    assert_names(captured.err, func(dataset, "sub-01", "bold"), broken["bad events"], "line 3")
    assert_names(captured.err, func(dataset, "sub-02", "events"), func(dataset, "sub-02", "bold", "02"))
    assert "sub-03" not in captured.err
    assert not out.exists()
    rows = [line.split()[:2] for line in captured.out.splitlines() if line.strip().startswith("sub-")]
    shown = [["sub-03", "task-synthetic_run-01"], ["sub-03", "task-synthetic_run-02"]]
    assert rows == (shown if "--dry-run" in options else [])


def test_participants_can_be_left_out(dataset: Path, broken: dict[str, Path], out: Path) -> None:
    assert run(dataset, out, "participant", "--exclude-participant", "01", "sub-02", "--quiet") == 0
    assert [path.name for path in out.glob("sub-*")] == ["sub-03"]
    study = Study.from_bids(dataset, rest="rest", keep_white_matter=True, exclude=["sub-01", "02"])
    assert study.participants == ["sub-03"]
    with pytest.raises(StudyError, match=naming("09", "01", "02", "03")):
        find_runs(dataset, Selection(excluded=["09"]))


def test_python_lists_everything_too(dataset: Path, broken: dict[str, Path], no_images: None) -> None:
    things = (func(dataset, "sub-01", "bold"), broken["bad events"], func(dataset, "sub-02", "events"))
    with pytest.raises(StudyError, match=naming(*things)):
        Study.from_bids(dataset, rest="rest")


def test_damaged_sidecars_are_all_named(dataset: Path) -> None:
    paths = [func(dataset, f"sub-0{i}", "bold").with_suffix("").with_suffix(".json") for i in (1, 3)]
    for path in paths:
        path.write_text("{")
    with pytest.raises(StudyError, match=naming("sub-01", "sub-03", *paths)):
        find_runs(dataset, Selection())


def test_what_concerns_everybody_is_said_once(dataset: Path) -> None:
    (dataset / "task-synthetic_bold.json").write_text("{")
    with pytest.raises(StudyError) as error:
        find_runs(dataset, Selection())
    assert str(error.value).count("task-synthetic_bold.json") == 1


def test_a_wrong_column_is_found_before_any_image_is_read(
    written: Path, out: Path, capsys: pytest.CaptureFixture, no_images: None
) -> None:
    assert run(written, out, "group", "--stimulus-column", "picture") == 1
    message = capsys.readouterr().err
    assert_names(message, "'picture'", "trial_type", "category")
    assert message.count("picture") == 1, "not for every file"
    with pytest.raises(StudyError, match=naming("'picture'", "trial_type")):
        Study.from_bids(written, stimulus_column="picture")


def test_a_column_that_one_file_lacks_is_named_with_that_file(dataset: Path, no_images: None) -> None:
    path = func(dataset, "sub-02", "events")
    path.write_text(path.read_text().replace("trial_type", "condition", 1))
    with pytest.raises(StudyError, match=naming(path, "'trial_type'", "condition")):
        Study.from_bids(dataset, rest="rest")


def test_grids_confounds_and_rest_are_looked_at_before_any_image_is_read(dataset: Path, no_images: None) -> None:
    other = func(dataset, "sub-01", "mask")
    mask = nibabel.load(other)
    nibabel.Nifti1Image(np.asarray(mask.dataobj), mask.affine + np.diag([1.0, 0, 0, 0])).to_filename(other)
    confounds = func(dataset, "sub-02", "bold").parent / "sub-02_task-synthetic_run-01_desc-confounds_timeseries.tsv"
    confounds.unlink()
    path = func(dataset, "sub-03", "events")
    path.write_text("onset\tduration\ttrial_type\n0\t80\trest_\n2\t80\ttask1_stim1\n2\t1\trest\n")
    found, problems = search(dataset, Selection(confounds="simple"))
    assert not problems
    seen = survey(found, Preparation(rest="rest"))
    named = {problem.participant: problem.text for problem in seen.problems}
    for participant in ("sub-01", "sub-02", "sub-03"):
        assert_names(named[participant], func(dataset, participant, "bold"))
    assert len(seen.problems) == 3
    assert seen.runs["run"].tolist() == ["task-synthetic_run-02"] * 3


def test_all_that_is_wrong_with_one_run_is_listed(dataset: Path, no_images: None) -> None:
    func(dataset, "sub-01", "mask").unlink()
    func(dataset, "sub-01", "events").write_text("onset\tduration\ttrial_type\n3\t-1\ta\n")
    with pytest.raises(StudyError, match=naming("sub-01", "no brain mask", "line 2", "negative")):
        Study.from_bids(dataset)


@pytest.mark.parametrize("kind", ["events", "mask"])
def test_what_every_run_lacks_is_said_once(
    dataset: Path, out: Path, capsys: pytest.CaptureFixture, no_images: None, kind: str
) -> None:
    for participant in ("sub-01", "sub-02", "sub-03"):
        for number in ("01", "02"):
            func(dataset, participant, kind, number).unlink()
    assert run(dataset, out, "participant", "--dry-run") == 1
    message = capsys.readouterr().err
    assert_names(message, *{"events": [dataset, "events.tsv", "none of the 6 runs"], "mask": ["--mask"]}[kind])
    assert message.count(".nii.gz") <= 1
    assert "--exclude-participant" not in message


def test_events_that_are_named_unlike_images_are_shown(dataset: Path, no_images: None) -> None:
    for path in sorted(dataset.glob("sub-*/func/*_events.tsv")):
        path.rename(path.with_name(path.name.replace("run-0", "run-1")))
    with pytest.raises(StudyError, match=naming("none of the 6 runs", func(dataset, "sub-01", "events", "11"))):
        find_runs(dataset, Selection())


def test_events_of_another_run_are_suspected(dataset: Path, no_images: None) -> None:
    path = func(dataset, "sub-02", "events")
    path.write_text("onset\tduration\ttrial_type\n100\t9\trest\n118\t9\ta\n130\t9\trest\n")
    with pytest.raises(StudyError, match=naming(path, "100 s", "85 s", "of this run")):
        Study.from_bids(dataset, rest="rest")


@pytest.mark.parametrize("first", [0, 1000])
def test_milliseconds_are_recognised_before_any_image_is_read(dataset: Path, no_images: None, first: int) -> None:
    """Also if the first event is at zero, and so lasts as long as the run."""
    path = func(dataset, "sub-02", "events")
    path.write_text(f"onset\tduration\ttrial_type\n{first}\t9000\trest\n18000\t9000\ta\n30000\t9000\trest\n")
    with pytest.raises(StudyError, match=naming(path, "of the 3 events", "85 s", "not ms")):
        Study.from_bids(dataset, rest="rest")


def test_an_image_whose_first_axis_is_time_is_recognised(dataset: Path, no_images: None) -> None:
    path = func(dataset, "sub-02", "bold")
    img = nibabel.load(path)
    nibabel.Nifti1Image(np.moveaxis(np.asarray(img.dataobj), 3, 0), img.affine, img.header).to_filename(path)
    with pytest.raises(StudyError, match=naming(path, "fourth axis")):
        Study.from_bids(dataset, rest="rest")


@pytest.mark.parametrize("what", ["bold", "events", "mask", "sidecar"])
def test_files_of_datalad_that_were_not_fetched_are_named(dataset: Path, no_images: None, what: str) -> None:
    """In a clone they are links into `.git/annex`, where there is nothing."""
    paths = [func(dataset, f"sub-0{i}", what if what != "sidecar" else "bold") for i in (1, 2)]
    if what == "sidecar":
        paths = [path.with_suffix("").with_suffix(".json") for path in paths]
    for path in paths:
        path.unlink()
        path.symlink_to("../../.git/annex/objects/Fx/Zq/MD5E-s1234--d41d8cd98f00b204e9800998ecf8427e.nii.gz")
    with pytest.raises(StudyError, match=naming("sub-01", "sub-02", *paths, "datalad get")):
        Study.from_bids(dataset, rest="rest")


# --- which images


def test_a_wrong_space_lists_those_there_are(dataset: Path) -> None:
    for path in sorted((dataset / "derivatives/fmriprep").glob(f"**/*space-{SPACE}*")):
        shutil.copy(path, path.with_name(path.name.replace(f"space-{SPACE}", "space-T1w_res-2")))
    with pytest.raises(StudyError, match=naming("space=MNI", SPACE, "T1w", "res 2")):
        find_runs(dataset, Selection(space="MNI"))
    for path in (dataset / "derivatives/fmriprep/sub-02").glob(f"func/*space-{SPACE}*"):
        path.unlink()
    with pytest.raises(StudyError, match=naming("sub-02", func(dataset, "sub-02", "events"), "T1w")):
        find_runs(dataset, Selection(space=SPACE))


def test_a_filter_file_is_as_other_apps_have_it(
    dataset: Path, out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "filter.json"
    path.write_text(json.dumps({"t1w": {"session": "x"}, "bold": {"datatype": "func", "suffix": "bold", "run": "*"}}))
    with caplog.at_level(logging.INFO, "ntfa"):
        assert run(dataset, out, "participant", "--dry-run", "--bids-filter-file", path) == 0
    assert any(str(path) in line and "t1w" in line and "bold" in line for line in caplog.messages)
    assert "3 participants, 6 runs" in capsys.readouterr().out
    assert len(find_runs(dataset, Selection(filters={"bold": {"run": 2, "session": None}}))) == 3
    with pytest.raises(StudyError, match=naming("session")):
        find_runs(dataset, Selection(filters={"bold": {"session": "*"}}))


def test_masks_and_confounds_can_be_filtered(dataset: Path) -> None:
    for path in sorted((dataset / "derivatives/fmriprep").glob("**/*desc-brain_mask*")):
        path.rename(path.with_name(path.name.replace("desc-brain", "desc-grey")))
    assert {one.mask for one in find_runs(dataset, Selection())} == {None}
    found = find_runs(dataset, Selection(filters={"mask": {"desc": "grey"}, "confounds": {"run": 1}}))
    assert all("desc-grey_mask" in str(one.mask) for one in found)
    assert [one.confounds_file is None for one in found] == [False, True] * 3


# --- frames that cannot be


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_a_spoiled_frame_is_named_and_left_out_as_if_scrubbed(
    dataset: Path, out: Path, caplog: pytest.LogCaptureFixture, value: float
) -> None:
    """The frame is one of rest, which all others of the run are z-scored by."""
    path = func(dataset, "sub-02", "bold")
    events = pd.read_csv(func(dataset, "sub-02", "events"), sep="\t")
    img = nibabel.load(path)
    data = np.asarray(img.dataobj).copy()
    frame = 2
    assert events["trial_type"].iloc[0] == "rest"
    data[..., frame] = value
    nibabel.Nifti1Image(data, img.affine, img.header).to_filename(path)
    with caplog.at_level(logging.WARNING, "ntfa"):
        assert run(dataset, out, "participant", "--participant-label", "02") == 0
    (said,) = [line for line in caplog.messages if str(path) in line]
    assert_names(said, "sub-02", "task-synthetic_run-01", f"frame {frame}")
    (table,) = out.glob("sub-02/func/*_quality.tsv")
    quality = pd.read_csv(table, sep="\t")
    assert quality["frames_spoiled"].tolist() == [1, 0]
    assert quality["frames_kept"].tolist() == [41, 42]
    assert quality["voxels_lost"].tolist() == [0, 0]
    kept = np.delete(np.arange(42), frame)
    scrubbed = Study.from_images(
        [img],
        [func(dataset, "sub-02", "events")],
        mask=func(dataset, "sub-02", "mask"),
        sample_masks=[kept],
        start_time=1.0,
        rest="rest",
    )
    (frames,) = out.glob("sub-02/func/*_frames.npy")
    n = scrubbed.n_trial_frames
    np.testing.assert_allclose(np.load(frames)[:n], scrubbed.frames["1"][:n], rtol=1e-4, atol=1e-4)


def test_a_run_of_spoiled_frames_is_refused_by_name(dataset: Path) -> None:
    path = func(dataset, "sub-02", "bold")
    img = nibabel.load(path)
    data = np.asarray(img.dataobj).copy()
    data[..., 5:12] = np.nan
    nibabel.Nifti1Image(data, img.affine, img.header).to_filename(path)
    with pytest.raises(StudyError, match=naming(path, "sub-02", "task-synthetic_run-01", "7 of 42", "frame 5")):
        Study.from_bids(dataset, rest="rest", keep_white_matter=True)


@pytest.mark.parametrize("value", [np.nan, 1e6])
def test_a_voxel_that_is_spoiled_in_a_frame_is_dropped_and_the_frame_kept(dataset: Path, value: float) -> None:
    path = func(dataset, "sub-02", "bold")
    img = nibabel.load(path)
    data = np.asarray(img.dataobj).copy()
    places = np.argwhere(np.asarray(nibabel.load(func(dataset, "sub-02", "mask")).dataobj))
    data[(*places[7], 5)] = value
    nibabel.Nifti1Image(data, img.affine, img.header).to_filename(path)
    with pytest.warns(UserWarning, match=naming("1 voxel")):
        study = Study.from_bids(dataset, rest="rest", keep_white_matter=True)
    assert study.n_voxels == 119
    assert study.n_trial_frames == 3 * 2 * 3 * 6
    np.testing.assert_array_equal(np.argwhere(np.asarray(study.mask_img.dataobj)), np.delete(places, 7, axis=0))


# --- again


def test_the_same_command_again_has_nothing_to_do(
    dataset: Path, out: Path, capsys: pytest.CaptureFixture, no_pictures: None
) -> None:
    assert run(dataset, out, "group", *FIT, "--quiet") == 0
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert run(dataset, out, "group", *FIT, "--quiet") == 0
    assert "nothing to do" in capsys.readouterr().out
    assert run(dataset, out, "participant", "--quiet") == 0
    assert "nothing to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before
    for other in (["--seed", 1], ["--exclude-participant", "03"]):
        assert run(dataset, out, "group", *FIT, "--quiet", *other) == 1, "that is another fit"
    path = func(dataset, "sub-02", "events")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    assert run(dataset, out, "group", *FIT, "--quiet") == 1, "these are other data"
    assert run(dataset, out, "group", *FIT, "--quiet", "--overwrite") == 0
    assert run(dataset, out, "group", *FIT, "--quiet") == 0


# --- fMRIPrep's folder for the dataset


def test_fmripreps_folder_is_recognised(dataset: Path, out: Path, tmp_path: Path) -> None:
    prep = dataset / "derivatives/fmriprep"
    (prep / "dataset_description.json").write_text(json.dumps(FMRIPREP))
    assert locate(prep, None) == (dataset, prep)
    assert run(prep, out, "participant", "--quiet") == 0
    assert [path.name for path in sorted(out.glob("sub-*"))] == ["sub-01", "sub-02", "sub-03"]
    (trials,) = out.glob("sub-01/func/*_trials.tsv")
    assert "group" in pd.read_csv(trials, sep="\t"), "labels are in the dataset's participants.tsv"


@pytest.mark.parametrize("where", ["links", "uri", "relative", "sources", "sourcedata"])
def test_the_dataset_is_found_where_fmriprep_says_it_is(dataset: Path, tmp_path: Path, where: str) -> None:
    prep = (dataset / "derivatives/fmriprep").rename(tmp_path / "the output")
    dataset = dataset.rename(tmp_path / "the data")
    said = {
        "links": {"DatasetLinks": {"templateflow": "/nowhere", "raw": str(dataset)}},
        "uri": {"DatasetLinks": {"raw": dataset.as_uri()}},
        "relative": {"DatasetLinks": {"raw": "../the data"}},
        "sources": {"SourceDatasets": [{"DOI": "x"}, {"URL": dataset.as_uri()}]},
        "sourcedata": {},
    }[where]
    (prep / "dataset_description.json").write_text(json.dumps(FMRIPREP | said))
    if where == "sourcedata":
        (prep / "sourcedata").mkdir()
        dataset = dataset.rename(prep / "sourcedata/raw")
    raw, source = locate(prep, None)
    assert (raw.resolve(), source) == (dataset, prep)


def test_without_the_dataset_it_is_said_which_folder_to_give(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    prep = (dataset / "derivatives/fmriprep").rename(tmp_path / "a/b/prep")
    (prep / "dataset_description.json").write_text(json.dumps(FMRIPREP | {"DatasetLinks": {"raw": "/data"}}))
    with pytest.raises(StudyError, match=naming(prep, "--derivatives", "events.tsv")):
        Study.from_bids(prep)


# --- a full disk


def test_a_disk_without_room_is_said_before_anything_is_written(
    written: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [one for one in find_runs(written, Selection()) if one.run.participant == "sub-01"]
    monkeypatch.setattr("ntfa.files.folders.free_at", lambda path: 10_000)
    with pytest.raises(OutputError, match=naming(out / "sub-01", "MB")):
        prepare_to_disk(out, written, runs, Masking(keep_white_matter=True), Preparation(rest="rest"))
    assert not any(out.iterdir())


def test_a_full_disk_is_said_once_and_nobody_blamed_for_it(
    written: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("ntfa.files.folders.free_at", lambda path: 10_000)
    assert run(written, out, "participant", "--quiet") == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert_names(message, "3 of 3 participants", out / "sub-01", "make room")
    assert "--exclude-participant" not in message
