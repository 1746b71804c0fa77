"""Simulated BIDS datasets: what pybids and nilearn find in them is what was simulated."""

import json
import warnings
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from bids import BIDSLayout
from helpers import naming
from nilearn.interfaces.fmriprep import load_confounds_strategy
from nilearn.masking import apply_mask

import ntfa.simulation.bids
from ntfa.cli import main
from ntfa.errors import OutputError, StudyError
from ntfa.simulation import Simulator
from ntfa.simulation.bids import SPACE, write_bids

TINY: dict[str, Any] = {"n_participants": 2, "n_stimuli": 3, "n_frames": 5, "n_voxels": 60, "n_factors": 3, "n_runs": 2}
PARTICIPANT, T_R = "sub-02", 2.0


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    return Simulator.create("synthetic", **TINY)


@pytest.fixture(scope="module")
def dataset(simulator: Simulator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Do not write into it."""
    folder = tmp_path_factory.mktemp("bids") / "dataset"
    write_bids(simulator, folder, t_r=T_R)
    return folder


def derivative(dataset: Path, run: int, name: str, like: str = "synthetic", participant: str = PARTICIPANT) -> str:
    folder = dataset / "derivatives" / "fmriprep" / participant / "func"
    return str(folder / f"{participant}_task-{like}_run-{run:02d}_{name}")


def bold_file(dataset: Path, run: int, like: str = "synthetic", participant: str = PARTICIPANT) -> str:
    return derivative(dataset, run, f"space-{SPACE}_desc-preproc_bold.nii.gz", like, participant)


def confounds_of(dataset: Path, run: int) -> pd.DataFrame:
    return pd.read_csv(derivative(dataset, run, "desc-confounds_timeseries.tsv"), sep="\t")


def events_of(dataset: Path, run: int, like: str = "synthetic", participant: str = PARTICIPANT) -> pd.DataFrame:
    name = f"{participant}_task-{like}_run-{run:02d}_events.tsv"
    return pd.read_csv(dataset / participant / "func" / name, sep="\t")


def own_trials(simulator: Simulator, participant: str, run: int) -> pd.DataFrame:
    return simulator.trials.query("participant == @participant and run == @run")


def zscore(frames: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return (frames - frames[rest].mean(axis=0)) / frames[rest].std(axis=0)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- what other tools find


def test_pybids_finds_runs_events_and_masks(simulator: Simulator, dataset: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        layout = BIDSLayout(dataset, derivatives=True)
    assert layout.get_subjects() == ["01", "02"]
    assert layout.get_tasks() == ["synthetic"]
    assert len(layout.derivatives) == 2
    asked = {"task": "synthetic", "subject": "02", "run": 2}
    (bold,) = layout.get(**asked, scope="fMRIPrep", suffix="bold", extension=".nii.gz", desc="preproc", space=SPACE)
    metadata = bold.get_metadata()
    assert (metadata["RepetitionTime"], metadata["StartTime"]) == (T_R, T_R / 2)
    assert metadata["SliceTimingCorrected"]
    assert not metadata["SkullStripped"]
    assert len(layout.get(**asked, suffix="mask", desc="brain", space=SPACE, extension=".nii.gz")) == 1
    assert len(layout.get(**asked, suffix="timeseries", desc="confounds", extension=".tsv")) == 1
    assert len(layout.get(scope="derivatives", suffix="bold", extension=".nii.gz")) == 4
    (events,) = layout.get(**asked, scope="raw", suffix="events", extension=".tsv")
    assert set(events.get_df()["trial_type"]) == {*simulator.truth.stimuli, "rest"}
    assert not layout.get(scope="raw", suffix="bold", extension=".nii.gz")
    (participants,) = layout.get(scope="raw", suffix="participants", extension=".tsv")
    assert participants.get_df()["group"].tolist() == simulator.truth.participant_groups.tolist()


@pytest.mark.parametrize("strategy", ["simple", "scrubbing", "compcor"])
def test_nilearn_reads_the_confounds(simulator: Simulator, dataset: Path, strategy: str) -> None:
    for run, n_frames in enumerate(simulator.run_frames, start=1):
        table, sample_mask = load_confounds_strategy(bold_file(dataset, run), denoise_strategy=strategy)
        assert len(table) == n_frames
        assert np.isfinite(table.to_numpy()).all()
        assert {"trans_x", "rot_z_derivative1_power2", "cosine00"} <= set(table)
        assert ("csf" in table) == (strategy != "compcor")
        assert ("a_comp_cor_04" in table) == (strategy == "compcor")
        assert (sample_mask is None) == (strategy != "scrubbing")


def test_scrubbing_drops_the_spikes_alone(simulator: Simulator, dataset: Path) -> None:
    for run, n_frames in enumerate(simulator.run_frames, start=1):
        displacement = confounds_of(dataset, run)["framewise_displacement"]
        spikes = np.flatnonzero(displacement > 0.5)
        assert len(spikes) == 2
        assert displacement.drop(index=spikes).max() < 0.2
        _, kept = load_confounds_strategy(bold_file(dataset, run), denoise_strategy="scrubbing")
        np.testing.assert_array_equal(kept, np.setdiff1d(np.arange(n_frames), spikes))


def test_displacement_follows_from_the_motion(dataset: Path) -> None:
    table = confounds_of(dataset, 1)
    change = table[[f"{kind}_{axis}_derivative1" for kind in ("trans", "rot") for axis in "xyz"]].abs() * (
        [1] * 3 + [50] * 3
    )
    np.testing.assert_allclose(change.sum(axis=1)[1:], table["framewise_displacement"][1:], rtol=1e-6)
    assert table.loc[0, ["framewise_displacement", "std_dvars", "csf_derivative1"]].isna().all()
    assert not table.drop(index=0).isna().any(axis=None)


@pytest.mark.parametrize("n_frames", [2, 10, 11, 16, 17])
def test_spikes_leave_room_in_short_runs(n_frames: int) -> None:
    spikes = ntfa.simulation.bids._spikes(n_frames, np.random.default_rng(0))
    assert len(spikes) == (n_frames >= 11) + (n_frames >= 17)
    ends = np.array([-1, *spikes, n_frames])
    assert len(spikes) == 0 or np.diff(ends).min() > 5


# --- the frames


@pytest.mark.parametrize(
    ("like", "t_r", "start_time", "delay"),
    [
        ("synthetic", 2.0, None, 3.0),
        ("haxby", 2.5, 0.0, 0.0),
        ("lepping", 0.735, None, 4.4),
        ("threatvids", 2 / 3, 0.1234, 5.0),
    ],
)
@pytest.mark.parametrize("rest_events", [True, False])
def test_cutting_and_zscoring_the_files_gives_the_simulated_frames(
    like: str, t_r: float, start_time: float | None, delay: float, rest_events: bool, tmp_path: Path
) -> None:
    # 7 stimuli are spread unevenly over the runs of threatvids.
    simulator = Simulator.create(like, **{**TINY, "n_stimuli": 7, "n_participants": 1})
    write_bids(simulator, tmp_path / "d", t_r=t_r, start_time=start_time, delay=delay, rest_events=rest_events)
    truth = simulator.frames("sub-01")
    first = 0
    for run, n_frames in enumerate(simulator.run_frames, start=1):
        path = bold_file(tmp_path / "d", run, like, "sub-01")
        sidecar = json.loads(Path(path.replace(".nii.gz", ".json")).read_text())
        times = sidecar["StartTime"] + np.arange(n_frames) * sidecar["RepetitionTime"]
        events = events_of(tmp_path / "d", run, like, "sub-01")
        begin = events["onset"].to_numpy()[:, None] + delay
        inside = (times >= begin) & (times < begin + events["duration"].to_numpy()[:, None])
        assert inside.sum(axis=0).max() == 1
        shown = events["trial_type"].to_numpy() != "rest"
        assert shown.all() == (not rest_events)
        rest = inside[~shown].any(axis=0) if rest_events else ~inside.any(axis=0)

        own = own_trials(simulator, "sub-01", run)
        assert (
            events[shown][["trial_type", "category"]].to_numpy().tolist()
            == own[["stimulus", "category"]].to_numpy().tolist()
        )
        for frames, start, stop in zip(inside[shown], own["start"] - first, own["stop"] - first, strict=True):
            np.testing.assert_array_equal(np.flatnonzero(frames), np.arange(start, stop))
        assert rest.sum() == n_frames - (own["stop"] - own["start"]).sum()

        image = apply_mask(path, path.replace("preproc_bold", "brain_mask"), dtype="f8")
        assert image.mean(axis=0).min() > 700
        expected = truth[first : first + n_frames].astype(np.float64)
        np.testing.assert_allclose(zscore(image, rest), zscore(expected, rest), atol=1e-4)
        first += n_frames
    assert first == len(truth)


def test_runs_differ_in_units_but_not_in_grid(simulator: Simulator, dataset: Path) -> None:
    images = [nibabel.load(bold_file(dataset, run)) for run in (1, 2)]
    for image, n_frames in zip(images, simulator.run_frames, strict=True):
        np.testing.assert_allclose(image.affine, simulator.mask_img.affine, rtol=1e-6)
        assert image.shape == (*simulator.mask_img.shape, n_frames)
        assert image.get_data_dtype() == np.float32
        assert image.header.get_zooms()[3] == T_R
        assert image.header.get_xyzt_units() == ("mm", "sec")
    inside = np.asarray(simulator.mask_img.dataobj) > 0
    mask = nibabel.load(derivative(dataset, 1, f"space-{SPACE}_desc-brain_mask.nii.gz"))
    np.testing.assert_array_equal(np.asarray(mask.dataobj), inside)
    means = [image.get_fdata().mean(axis=3) for image in images]
    assert (np.abs(means[0] - means[1])[inside] > 1).mean() > 0.9
    assert means[0][~inside].max() < 50 < means[0][inside].min()
    assert (images[0].get_fdata()[~inside].std(axis=1) > 0).all()


@pytest.mark.parametrize("like", ["synthetic", "haxby", "lepping", "threatvids"])
def test_run_lengths_enclose_the_trials(like: str) -> None:
    simulator = Simulator.create(like, **{**TINY, "n_stimuli": 7, "n_runs": 3})
    assert simulator.n_frames == sum(simulator.run_frames) == len(simulator.frames("sub-01"))
    assert len(set(simulator.run_frames)) == (2 if like == "threatvids" else 1)
    stops = np.cumsum(simulator.run_frames)
    for trial in simulator.trials.to_dict("records"):
        run = trial["run"] - 1
        assert stops[run] - simulator.run_frames[run] <= trial["start"] < trial["stop"] <= stops[run]


# --- the folder


def test_the_truth_is_beside_the_data(simulator: Simulator, dataset: Path) -> None:
    truth = dataset / "derivatives" / "truth"
    assert len(pd.read_csv(truth / "truth_weights.tsv", sep="\t")) == len(simulator.truth.weights_mean)
    simulation = json.loads((truth / "simulation.json").read_text())
    assert (simulation["seed"], simulation["delay"], simulation["rest_events"]) == (0, 3.0, True)
    description = json.loads((dataset / "dataset_description.json").read_text())
    assert "Simulated" in description["Name"]
    assert description["BIDSVersion"] == "1.9.0"
    assert "no raw images" in (dataset / "README").read_text()


def test_same_seed_same_files(simulator: Simulator, dataset: Path, tmp_path: Path) -> None:
    write_bids(Simulator.create("synthetic", **TINY), tmp_path / "again", t_r=T_R)
    assert contents(tmp_path / "again") == contents(dataset)


def test_an_existing_folder_is_replaced_only_if_told_to(simulator: Simulator, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    with pytest.raises(OutputError, match=naming(tmp_path / "out")):
        write_bids(simulator, tmp_path / "out")
    with pytest.raises(OutputError, match=naming(tmp_path / "out")):
        write_bids(simulator, tmp_path / "out", overwrite=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine.txt"]
    (tmp_path / "out" / "dataset_description.json").write_text("{}")
    write_bids(simulator, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "README").exists()
    assert not (tmp_path / "out" / "mine.txt").exists()


def test_a_failure_midway_leaves_nothing(simulator: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(ntfa.simulation.bids, "_confounds", fail)
    with pytest.raises(OSError, match="no space"):
        write_bids(simulator, tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"t_r": 0.0}, naming("t_r", 0.0)),
        ({"t_r": float("nan")}, naming("t_r", "nan")),
        ({"delay": float("inf")}, naming("delay", "inf")),
        ({"start_time": -1.0}, naming("start_time")),
    ],
)
def test_impossible_times_are_named(simulator: Simulator, settings: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=named):
        write_bids(simulator, tmp_path / "out", **settings)
    assert not any(tmp_path.iterdir())


def test_voxels_without_a_mask_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="mask"):
        write_bids(Simulator.create(coordinates=np.eye(3) * 9, n_factors=1), tmp_path / "out")


# --- the command


def test_the_command_says_where_it_went_and_what_to_try(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "a b"
    sizes = [f"--{name[2:]}={value}" for name, value in TINY.items()]
    assert main(["simulate", f"{out}/", "--bids", "--like", "haxby", "--t-r", "1.5", *sizes]) == 0
    printed = capsys.readouterr().out
    assert str(out) in printed
    assert (
        f"ntfa bids '{out}' '{out}-results' group --task haxby --rest rest --category-column category --n-factors 3\n"
        in printed
    )
    assert nibabel.load(bold_file(out, 1, "haxby")).header.get_zooms()[3] == 1.5
    assert main(["simulate", str(out), "--bids", *sizes]) == 1
    assert "exists already" in capsys.readouterr().err


def test_a_repetition_time_is_for_bids_only(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["simulate", str(tmp_path / "out"), "--t-r", "1"]) == 1
    assert "--t-r applies to --bids only" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
