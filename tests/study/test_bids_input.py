"""BIDS datasets with fMRIPrep-like derivatives: the runs that are found, and the study made of them."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import assert_names, naming

from ntfa import Study
from ntfa.errors import StudyError
from ntfa.simulation import Simulator
from ntfa.simulation.bids import SPACE, write_bids
from ntfa.study.bids import FoundRun, Selection, find_runs
from ntfa.study.bids_masks import mask_for
from ntfa.study.checks import mask_coordinates
from ntfa.study.motion import of_frames
from ntfa.study.participants import participant_labels

T_R = 2.0
FUNC = Path("derivatives/fmriprep/sub-02/func")
RUN = "sub-02_task-synthetic_run-01"
BOLD = f"{RUN}_space-{SPACE}_desc-preproc_bold"
MASK = f"{RUN}_space-{SPACE}_desc-brain_mask.nii.gz"
EVENTS = Path("sub-02/func") / f"{RUN}_events.tsv"


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    """3 participants in 3 groups, 2 runs of 3 stimuli and 56 frames each, 32 of rest, 150 voxels."""
    return Simulator.create("synthetic", n_participants=3, n_stimuli=3, n_frames=8, n_voxels=150, n_factors=3, n_runs=2)


@pytest.fixture(scope="module")
def written(simulator: Simulator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Do not write into it."""
    folder = tmp_path_factory.mktemp("bids") / "dataset"
    write_bids(simulator, folder, t_r=T_R)
    return folder


@pytest.fixture
def dataset(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "dataset"))


def from_bids(dataset: Path, derivatives: Path | None = None, **options: Any) -> Study:
    return Study.from_bids(dataset, derivatives, **{"rest": "rest", "keep_white_matter": True, **options})


def labels(found: list[FoundRun]) -> list[tuple[str, str | None, str]]:
    return [(one.run.participant, one.run.session, one.run.run) for one in found]


def error_of(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(StudyError) as error:
        call(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def edit_sidecar(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


# --- the simulated study comes back


def expected_frames(simulator: Simulator, participant: str) -> tuple[np.ndarray, pd.DataFrame]:
    """The simulator's trial frames, z-scored by the rest of their run, and its trials."""
    frames = simulator.frames(participant).astype(np.float64)
    trials = simulator.trials[simulator.trials["participant"] == participant].sort_values("start")
    parts, first = [], 0
    for run, n_frames in enumerate(simulator.run_frames, start=1):
        shown = np.zeros(len(frames), dtype=bool)
        for trial in trials[trials["run"] == run].itertuples():
            shown[trial.start : trial.stop] = True
        in_run = np.zeros(len(frames), dtype=bool)
        in_run[first : first + n_frames] = True
        rest = frames[in_run & ~shown]
        parts.append((frames[shown] - rest.mean(0)) / rest.std(0, ddof=1))
        first += n_frames
    return np.concatenate(parts), trials


@pytest.mark.parametrize(
    ("like", "timing", "rest_events"),
    [
        ("synthetic", {}, True),
        ("haxby", {"t_r": 2.5, "start_time": 0.0, "delay": 0.0}, False),
        ("lepping", {"t_r": 0.735, "delay": 4.4}, True),
        ("threatvids", {"t_r": 2 / 3, "start_time": 0.1234, "delay": 5.0}, True),
    ],
)
def test_the_simulated_frames_come_back(like: str, timing: dict[str, float], rest_events: bool, tmp_path: Path) -> None:
    simulator = Simulator.create(
        like, n_participants=2, n_stimuli=4, n_frames=5, n_voxels=60, n_factors=3, n_runs=2, random_state=1
    )
    write_bids(simulator, tmp_path / "d", rest_events=rest_events, **timing)
    rest = "rest" if rest_events else ()
    study = from_bids(tmp_path / "d", rest=rest, delay=timing.get("delay", 3.0), min_rest_frames=5)
    np.testing.assert_allclose(study.coordinates, simulator.truth.coordinates, atol=1e-4)
    for participant in simulator.participants:
        frames, trials = expected_frames(simulator, participant)
        # Scanner units have a mean of about 100 sd, of which float32 keeps 5 digits.
        np.testing.assert_allclose(study.frames[participant], frames, atol=2e-4)
        own = study.trials[study.trials["participant"] == participant]
        for column in ("stimulus", "category", "group"):
            assert own[column].tolist() == trials[column].tolist()
        assert own["run"].tolist() == [f"task-{like}_run-{run:02d}" for run in trials["run"]]
        lengths = (trials["stop"] - trials["start"]).tolist()
        assert (own["stop"] - own["start"]).tolist() == lengths
        assert own["stop"].tolist() == np.cumsum(lengths).tolist()


def test_white_matter_is_taken_out_in_mni_space_unless_kept(tmp_path: Path) -> None:
    simulator = Simulator.create("synthetic", n_participants=1, n_stimuli=2, n_frames=5, n_voxels=300)
    write_bids(simulator, tmp_path / "d")
    grey = from_bids(tmp_path / "d", keep_white_matter=False)
    assert 100 < grey.n_voxels < 300
    found = find_runs(tmp_path / "d", Selection())
    whole = mask_coordinates(mask_for(found, None, 1.0, True))
    assert len(whole) == 300
    assert {*map(tuple, grey.coordinates)} < {*map(tuple, whole)}


def test_rest_can_be_a_stimulus_of_its_own(written: Path) -> None:
    study = from_bids(written, include_rest=True)
    assert "rest" in study.stimuli
    assert study.trials["category"].isna().sum() == (study.trials["stimulus"] == "rest").sum() == 3 * 2 * 4


# --- confounds


def test_confounds_are_regressed_out_and_scrubbing_removes_frames(simulator: Simulator, written: Path) -> None:
    plain = from_bids(written)
    studies = {name: from_bids(written, confounds=name) for name in ("none", "simple", "compcor", "scrubbing")}
    np.testing.assert_array_equal(studies["none"].frames["sub-01"], plain.frames["sub-01"])
    n_lost = 0
    for participant in simulator.participants:
        for name in ("simple", "compcor"):
            assert studies[name].frames[participant].shape == plain.frames[participant].shape
            assert np.abs(studies[name].frames[participant] - plain.frames[participant]).max() > 0.1
        for run in (1, 2):
            stem = written / f"derivatives/fmriprep/{participant}/func/{participant}_task-synthetic_run-{run:02d}"
            confounds = pd.read_csv(f"{stem}_desc-confounds_timeseries.tsv", sep="\t")
            spikes = np.flatnonzero(confounds["framewise_displacement"] > 0.5)
            assert len(spikes) == 2
            n_lost += sum((frame // 8) % 2 for frame in spikes)
    assert n_lost > 0
    assert studies["scrubbing"].n_trial_frames == plain.n_trial_frames - n_lost


@pytest.mark.parametrize("confounds", ["none", "scrubbing"])
def test_trials_have_the_motion_of_their_frames(written: Path, confounds: str) -> None:
    study = from_bids(written, confounds=confounds)
    trials = study.trials[study.trials["participant"] == "sub-01"].sort_values("start")
    stem = written / "derivatives/fmriprep/sub-01/func/sub-01_task-synthetic_run-"
    tables = [pd.read_csv(f"{stem}{run:02d}_desc-confounds_timeseries.tsv", sep="\t") for run in (1, 2)]
    expected = [table["framewise_displacement"].round(3).to_numpy() for table in tables]
    # Trials and rest take turns, eight frames each.
    place = [np.flatnonzero(np.arange(len(one)) // 8 % 2) for one in expected]
    if confounds == "scrubbing":
        place = [rows[expected[run][rows] <= 0.5] for run, rows in enumerate(place)]
    found = [
        of_frames(text, stop - start)
        for text, start, stop in trials[["framewise_displacement", "start", "stop"]].to_numpy()
    ]
    np.testing.assert_allclose(
        np.concatenate(found), np.concatenate([one[rows] for one, rows in zip(expected, place, strict=True)]), atol=6e-4
    )


def test_confounds_that_cannot_be_read_are_named_by_run(dataset: Path) -> None:
    message = error_of(from_bids, dataset, confounds="all")
    assert_names(message, "confounds='all'", "none", "simple", "scrubbing", "compcor")
    (dataset / FUNC / f"{RUN}_desc-confounds_timeseries.tsv").write_text("csf\n1\n")
    assert_names(error_of(from_bids, dataset, confounds="simple"), f"{dataset / FUNC / BOLD}.nii.gz", "confounds")
    (dataset / FUNC / f"{RUN}_desc-confounds_timeseries.tsv").unlink()
    assert_names(error_of(from_bids, dataset, confounds="simple"), f"{dataset / FUNC / BOLD}.nii.gz", "confounds")


# --- which runs


def test_runs_are_in_order_with_their_files(written: Path) -> None:
    found = find_runs(written, Selection())
    expected = [(f"sub-0{p}", None, f"task-synthetic_run-0{r}") for p in (1, 2, 3) for r in (1, 2)]
    assert labels(found) == expected
    one = found[2]
    assert one.run.img == written / FUNC / f"{BOLD}.nii.gz"
    assert one.run.events == written / EVENTS
    assert one.mask == written / FUNC / MASK
    assert one.confounds_file == written / FUNC / f"{RUN}_desc-confounds_timeseries.tsv"
    assert (one.space, one.run.t_r, one.run.start_time) == (SPACE, T_R, T_R / 2)


def test_participants_are_chosen_with_and_without_prefix(written: Path) -> None:
    for chosen in (["02"], ["sub-02"]):
        assert {one[0] for one in labels(find_runs(written, Selection(participants=chosen)))} == {"sub-02"}
    assert from_bids(written, participants="sub-03").participants == ["sub-03"]
    message = error_of(find_runs, written, Selection(participants=["sub-01", "07"]))
    assert_names(message, written / "derivatives/fmriprep", "07", "01", "02", "03")


def test_what_there_is_not_cannot_be_chosen(written: Path) -> None:
    root = written / "derivatives/fmriprep"
    assert_names(error_of(find_runs, written, Selection(tasks=["rest"])), root, "task", "rest", "synthetic")
    assert_names(error_of(find_runs, written, Selection(sessions=["1"])), root, "session", 1)
    assert_names(error_of(find_runs, written, Selection(space="T1w")), root, "space=T1w")


def test_sessions_are_labels_and_can_be_chosen(dataset: Path) -> None:
    """The second run becomes a second session."""
    for folder in (dataset, dataset / "derivatives/fmriprep"):
        for path in sorted(folder.glob("sub-*/func/*")):
            session = "ses-b" if "_run-02_" in path.name else "ses-a"
            target = path.parents[1] / session / "func" / path.name.replace("_task-", f"_{session}_task-")
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    study = from_bids(dataset)
    assert study.trials.groupby("run")["session"].unique().map(list).to_dict() == {
        "task-synthetic_run-01": ["ses-a"],
        "task-synthetic_run-02": ["ses-b"],
    }
    one = from_bids(dataset, sessions="ses-b")
    assert one.trials["session"].unique().tolist() == ["ses-b"]
    np.testing.assert_array_equal(one.frames["sub-02"][:24], study.frames["sub-02"][24:])
    assert {session for _, session, _ in labels(find_runs(dataset, Selection(sessions=["b"])))} == {"ses-b"}


def rename_task(path: Path, run: str, task: str) -> None:
    if f"_run-{run}_" in path.name:
        path.rename(path.with_name(path.name.replace("task-synthetic", f"task-{task}")))


def test_tasks_are_told_apart_and_can_be_chosen(dataset: Path) -> None:
    """The second run becomes a run of another task."""
    for path in sorted(dataset.glob("**/func/*")):
        rename_task(path, "02", "other")
    study = from_bids(dataset)
    assert study.trials["run"].unique().tolist() == ["task-other_run-02", "task-synthetic_run-01"]
    other = from_bids(dataset, task="other")
    assert other.trials["run"].unique().tolist() == ["task-other_run-02"]
    np.testing.assert_array_equal(other.frames["sub-01"][:24], study.frames["sub-01"][:24])
    assert len(find_runs(dataset, Selection(tasks=["task-other", "synthetic"]))) == 6


def test_files_of_another_acquisition_are_not_mixed_up(dataset: Path) -> None:
    """Runs that differ only in an entity that one of them lacks have their own events, masks and confounds."""
    for path in sorted(dataset.glob("**/func/*_run-0*")):
        acquisition = "_acq-fast" if "_run-02_" in path.name else ""
        path.rename(path.with_name(path.name.replace("_run-01", "").replace("_run-02", acquisition)))
    found = find_runs(dataset, Selection(participants=["02"]))
    assert [one.run.run for one in found] == ["task-synthetic", "task-synthetic_acq-fast"]
    for one in found:
        is_fast = "fast" in str(one.run.img.name)
        for path in (one.run.events, one.mask, one.confounds_file):
            assert ("fast" in path.name) == is_fast


def test_of_two_spaces_one_must_be_chosen(dataset: Path) -> None:
    for path in sorted((dataset / "derivatives/fmriprep").glob(f"**/*space-{SPACE}*")):
        shutil.copy(path, path.with_name(path.name.replace(SPACE, "T1w")))
    message = error_of(find_runs, dataset, Selection())
    assert SPACE in message
    assert "space-T1w" in message
    assert "--space" in message
    native = from_bids(dataset, space="T1w", keep_white_matter=False)
    assert native.n_voxels == 150, "white matter is known in MNI space only"
    assert {one.space for one in find_runs(dataset, Selection(space=SPACE))} == {SPACE}


def test_of_two_resolutions_one_must_be_chosen(dataset: Path) -> None:
    for path in sorted((dataset / "derivatives/fmriprep").glob(f"**/*space-{SPACE}*")):
        shutil.copy(path, path.with_name(path.name.replace(SPACE, f"{SPACE}_res-2")))
        path.rename(path.with_name(path.name.replace(SPACE, f"{SPACE}_res-1")))
    assert "--res" in error_of(find_runs, dataset, Selection())
    found = find_runs(dataset, Selection(res="2"))
    assert all("_res-2_" in one.run.img.name and "_res-2_" in str(one.mask) for one in found)
    assert len(found) == 6


def test_a_participant_in_another_space_is_not_mixed_in(dataset: Path) -> None:
    for path in sorted((dataset / FUNC).glob(f"*space-{SPACE}*")):
        path.rename(path.with_name(path.name.replace(SPACE, "T1w")))
    message = error_of(find_runs, dataset, Selection())
    assert_names(message, SPACE, "T1w", "--space")


def test_a_filter_takes_some_of_the_runs(written: Path) -> None:
    assert [run for _, _, run in labels(find_runs(written, Selection(filters={"bold": {"run": 2}})))] == [
        "task-synthetic_run-02"
    ] * 3
    message = error_of(find_runs, written, Selection(filters={"bold": {"colour": "red"}}))
    assert "colour" in message
    assert_names(error_of(from_bids, written, filters=["run"]), "filters")


def test_pybids_index_is_kept_between_calls(written: Path, tmp_path: Path) -> None:
    first, second = (find_runs(written, Selection(database=tmp_path / "index")) for _ in range(2))
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["dataset", "fmriprep"]
    assert labels(first) == labels(second)
    assert [one.run.t_r for one in second] == [T_R] * 6


# --- where derivatives are


def test_derivatives_are_found_under_another_name_or_elsewhere(dataset: Path, tmp_path: Path) -> None:
    expected = from_bids(dataset).frames["sub-01"]
    (dataset / "derivatives/fmriprep").rename(dataset / "derivatives/fmriprep-24.1")
    # Our own output is no fMRIPrep's.
    (dataset / "derivatives/ntfa/sub-01/func").mkdir(parents=True)
    assert len(find_runs(dataset, Selection())) == 6
    elsewhere = (dataset / "derivatives/fmriprep-24.1").rename(tmp_path / "prep")
    np.testing.assert_array_equal(from_bids(dataset, elsewhere).frames["sub-01"], expected)
    message = error_of(find_runs, dataset, Selection(derivatives=tmp_path / "x"))
    assert_names(message, tmp_path / "x")


def test_of_two_derivatives_one_must_be_chosen(dataset: Path) -> None:
    fmriprep = dataset / "derivatives/fmriprep"
    shutil.copytree(fmriprep, dataset / "derivatives/b")
    fmriprep.rename(dataset / "derivatives/a")
    message = error_of(from_bids, dataset)
    assert_names(message, dataset / "derivatives", "a", "b", "--derivatives")


def test_a_dataset_may_hold_its_own_images(dataset: Path) -> None:
    """As maps of single trials do: no derivatives, no preproc, a mask beside."""
    expected = from_bids(dataset).frames["sub-01"]
    for path in sorted((dataset / "derivatives/fmriprep").glob("sub-*/func/*")):
        name = path.name.replace("desc-preproc", "desc-betas")
        path.rename(dataset / path.parents[1].name / "func" / name)
    shutil.rmtree(dataset / "derivatives")
    np.testing.assert_array_equal(from_bids(dataset).frames["sub-01"], expected)


def test_without_derivatives_there_is_nothing_to_do(dataset: Path) -> None:
    shutil.rmtree(dataset / "derivatives")
    assert_names(error_of(from_bids, dataset), dataset, "suffix=bold")


@pytest.mark.parametrize("lost", ["run", "participant"])
def test_a_run_that_fmriprep_has_not_done_is_named(dataset: Path, lost: str) -> None:
    if lost == "run":
        (dataset / FUNC / f"{BOLD}.nii.gz").unlink()
    else:
        shutil.rmtree(dataset / "derivatives/fmriprep/sub-02")
    with pytest.raises(StudyError, match=naming("sub-02", dataset / EVENTS, dataset / "derivatives/fmriprep")):
        from_bids(dataset)
    for wanted in (Selection(participants=["01", "03"]), Selection(excluded=["sub-02"])):
        assert len(find_runs(dataset, wanted)) == 4
    if lost == "run":
        assert len(find_runs(dataset, Selection(filters={"bold": {"run": 2}}))) == 3


@pytest.mark.parametrize("name", ["nowhere", "derivatives"])
def test_a_folder_that_is_no_dataset_is_refused(dataset: Path, name: str) -> None:
    message = error_of(from_bids, dataset / name)
    assert_names(message, dataset / name, "dataset_description.json")


def test_a_run_without_events_is_named(dataset: Path) -> None:
    (dataset / EVENTS).unlink()
    message = error_of(find_runs, dataset, Selection())
    assert_names(message, f"{dataset / FUNC / BOLD}.nii.gz", "events.tsv", dataset)


# --- sidecars


@pytest.mark.parametrize(("place", "content"), [("run", b"[1, 2]"), ("run", b'{"TaskName": "\xe4"}'), ("task", b"{")])
def test_an_unreadable_sidecar_is_named(dataset: Path, place: str, content: bytes) -> None:
    path = dataset / FUNC / f"{BOLD}.json" if place == "run" else dataset / "task-synthetic_bold.json"
    path.write_bytes(content)
    assert_names(error_of(find_runs, dataset, Selection()), path)


@pytest.mark.parametrize(
    ("entry", "things"),
    [
        ({"RepetitionTime": 0}, ["RepetitionTime", 0]),
        ({"StartTime": "n/a"}, ["StartTime", "'n/a'"]),
    ],
)
def test_times_in_a_sidecar_must_be_numbers(dataset: Path, entry: dict[str, Any], things: list[Any]) -> None:
    edit_sidecar(dataset / FUNC / f"{BOLD}.json", **entry)
    assert_names(error_of(find_runs, dataset, Selection()), f"{dataset / FUNC / BOLD}.nii.gz", *things)


def test_a_header_that_contradicts_the_sidecar_is_said_and_the_sidecar_used(dataset: Path) -> None:
    edit_sidecar(dataset / FUNC / f"{BOLD}.json", RepetitionTime=1.0, StartTime=0.5)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        study = from_bids(dataset, participants="02", standardize="none", filters={"bold": {"run": 1}})
    messages = [str(one.message) for one in said if one.category is UserWarning]
    assert_names(messages[0], f"{dataset / FUNC / BOLD}.nii.gz", "2 s", "1 s")
    # The first event is at 13.5 s and lasts 16 s; its frames are 3 s later.
    img = nibabel.load(dataset / FUNC / f"{BOLD}.nii.gz")
    series = img.get_fdata()[np.asarray(study.mask_img.dataobj) > 0].T
    np.testing.assert_allclose(study.frames["sub-02"][:16], series[16:32], rtol=1e-6)


def test_what_a_sidecar_lacks_is_in_those_of_the_raw_dataset(dataset: Path) -> None:
    for path in (dataset / "derivatives/fmriprep").glob("sub-*/func/*_bold.json"):
        path.write_text("{}")

    def times() -> set[tuple[float | None, float]]:
        return {(one.run.t_r, one.run.start_time) for one in find_runs(dataset, Selection())}

    assert times() == {(T_R, 0.0)}
    edit_sidecar(dataset / "task-synthetic_bold.json", RepetitionTime=9.0)
    for participant in ("sub-01", "sub-02", "sub-03"):
        for run in ("01", "02"):
            sidecar = f"{participant}/func/{participant}_task-synthetic_run-{run}_bold.json"
            (dataset / sidecar).write_text('{"RepetitionTime": 1.5}')
    assert times() == {(1.5, 0.0)}
    for path in [*dataset.glob("sub-*/func/*_bold.json"), dataset / "task-synthetic_bold.json"]:
        path.unlink()
    assert times() == {(None, 0.0)}, "then the header says it"


# --- masks


def test_the_voxels_are_those_in_enough_of_the_masks(dataset: Path) -> None:
    mask = nibabel.load(dataset / FUNC / MASK)
    inside = np.asarray(mask.dataobj).copy()
    first = tuple(np.argwhere(inside)[0])
    inside[first] = 0
    nibabel.Nifti1Image(inside, mask.affine).to_filename(dataset / FUNC / MASK)
    found = find_runs(dataset, Selection())
    assert [len(mask_coordinates(mask_for(found, None, share, True))) for share in (1.0, 0.5)] == [149, 150]
    assert from_bids(dataset, min_coverage=1.0).n_voxels == 149
    study = from_bids(dataset)
    assert study.n_voxels == 150
    (lacking,) = study.coverage
    assert lacking == FUNC.parts[-2]
    assert np.flatnonzero(~study.coverage[lacking]).tolist() == [0]
    assert not study.frames[lacking][:, 0].any()


def test_a_mask_can_be_given(dataset: Path, tmp_path: Path) -> None:
    mask = nibabel.load(dataset / FUNC / MASK)
    inside = np.asarray(mask.dataobj).copy()
    inside[: inside.shape[0] // 2] = 0
    half = nibabel.Nifti1Image(inside, mask.affine)
    half.to_filename(tmp_path / "half.nii.gz")
    whole = from_bids(dataset)
    for given in (half, tmp_path / "half.nii.gz"):
        study = from_bids(dataset, mask=given, keep_white_matter=False)
        assert study.n_voxels == inside.sum()
        kept = [tuple(place) in {*map(tuple, study.coordinates)} for place in whole.coordinates]
        np.testing.assert_array_equal(study.frames["sub-01"], whole.frames["sub-01"][:, kept])


def test_a_run_without_a_mask_is_named(dataset: Path) -> None:
    (dataset / FUNC / MASK).unlink()
    message = error_of(from_bids, dataset)
    assert_names(message, f"{dataset / FUNC / BOLD}.nii.gz", "desc-brain_mask")


def test_masks_that_cannot_be_used_are_named(dataset: Path) -> None:
    path = dataset / FUNC / MASK
    mask = nibabel.load(path)
    data = np.asarray(mask.dataobj).copy()
    masks = (find_runs(dataset, Selection()), None, 1.0, True)
    nibabel.Nifti1Image(np.zeros_like(data), mask.affine).to_filename(path)
    assert_names(error_of(mask_for, *masks), path)
    nibabel.Nifti1Image(data, mask.affine + np.diag([1.0, 0, 0, 0])).to_filename(path)
    assert_names(error_of(mask_for, *masks), path, data.shape)
    path.write_bytes(b"no mask")
    assert_names(error_of(mask_for, *masks), path)


def test_a_run_on_another_grid_is_refused_or_resampled(dataset: Path) -> None:
    path = dataset / FUNC / f"{BOLD}.nii.gz"
    img = nibabel.load(path)
    moved = img.affine.copy()
    moved[0, 3] += 2
    data = np.asarray(img.dataobj).copy()
    nibabel.Nifti1Image(data, moved, img.header).to_filename(path)
    assert error_of(from_bids, dataset).startswith(f"{path}: its grid {data.shape[:3]} is not the mask's")
    study = from_bids(dataset, other_grid="resample")
    assert study.participants == ["sub-01", "sub-02", "sub-03"]


# --- labels of participants


def test_participant_labels_are_kept_as_written(dataset: Path) -> None:
    rows = ["participant_id\tsite\tage\tpartner\tcategory", "sub-02\t01\t30\tNone\tx", "sub-01\t02\tn/a\tNA\ty"]
    (dataset / "participants.tsv").write_bytes(b"\xef\xbb\xbf" + "\n".join(rows).encode())
    trials = from_bids(dataset).trials.groupby("participant")
    assert trials["site"].first().tolist()[:2] == ["02", "01"]
    assert trials["partner"].first().tolist()[:2] == ["NA", "None"]
    assert trials["age"].first()["sub-02"] == 30
    assert trials["site"].count()["sub-03"] == 0, "sub-03 is not in the table"
    assert trials["category"].first().tolist() == ["Task 1"] * 3, "events say more of a trial than participants.tsv"
    (dataset / "participants.tsv").unlink()
    assert participant_labels(dataset).empty


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("id\tgroup\nsub-01\ta\n", ": no column participant_id"),
        ("participant_id\tgroup\nsub-01\ta\nsub-02\ta\nsub-01\tb\n", ", line 4: sub-01 is there twice"),
        ("", ": cannot be read as a table"),
    ],
)
def test_broken_participant_labels_are_named(dataset: Path, content: str, problem: str) -> None:
    (dataset / "participants.tsv").write_text(content)
    assert error_of(participant_labels, dataset).startswith(f"{dataset / 'participants.tsv'}{problem}")
