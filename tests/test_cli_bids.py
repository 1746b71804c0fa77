"""`ntfa bids`: from a BIDS dataset to a fitted model, skipping what is done, naming what is wrong."""

import html
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from bids import BIDSLayout
from helpers import assert_names

from ntfa import NTFA, Study
from ntfa.analyses.separation import separation
from ntfa.cli import main
from ntfa.estimators.saving import versions
from ntfa.report.methods import Facts, methods
from ntfa.simulation import Simulator
from ntfa.simulation.bids import SPACE, write_bids
from ntfa.study.provenance import provenance_of

PREPARE = ["--rest", "rest", "--keep-white-matter"]
FIT = ["--n-factors", "3", "--max-epochs", "5", "--device", "cpu"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 participants, 2 runs of 3 stimuli, 120 voxels. Do not write into it."""
    simulator = Simulator.create(
        "synthetic", n_participants=3, n_stimuli=3, n_frames=6, n_voxels=120, n_factors=3, n_runs=2
    )
    folder = tmp_path_factory.mktemp("bids") / "dataset"
    write_bids(simulator, folder)
    return folder


@pytest.fixture
def dataset(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "dataset"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


Command = Callable[..., int]


@pytest.fixture
def bids(caplog: pytest.LogCaptureFixture) -> Command:
    """Run the command; the log is that of the last run."""

    def run(dataset: Path, out: Path, level: str, *options: Any) -> int:
        caplog.clear()
        with caplog.at_level(logging.INFO, "ntfa"):
            return main(["bids", str(dataset), str(out), level, *PREPARE, *map(str, options)])

    return run


def said(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """What the log says of each participant."""
    lines = [record.getMessage() for record in caplog.records]
    return dict(line.split(": ", 1) for line in lines if line.startswith("sub-") and ": " in line)


def error_of(capsys: pytest.CaptureFixture) -> str:
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    errors = [line for line in captured.err.splitlines() if line.startswith("ntfa: error: ")]
    assert len(errors) == 1
    return errors[0].removeprefix("ntfa: error: ")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def bold(dataset: Path, participant: str, run: str = "01") -> Path:
    name = f"{participant}_task-synthetic_run-{run}_space-{SPACE}_desc-preproc_bold.nii.gz"
    return dataset / "derivatives/fmriprep" / participant / "func" / name


def events(dataset: Path, participant: str, run: str = "01") -> Path:
    return dataset / participant / "func" / f"{participant}_task-synthetic_run-{run}_events.tsv"


def sidecar(image: Path) -> Path:
    return image.with_name(image.name.replace(".nii.gz", ".json"))


PREPARED, CURRENT = "prepared", "up to date"


# --- from dataset to model


def test_a_dataset_goes_in_and_groups_and_tasks_come_out(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    simulator = Simulator.create("synthetic", n_participants=6, n_stimuli=6, n_frames=10, n_voxels=300, n_factors=3)
    write_bids(simulator, tmp_path / "dataset")
    command = ["bids", str(tmp_path / "dataset"), str(tmp_path / "out")]
    assert main([*command, "participant", *PREPARE, "--quiet"]) == 0
    fit = ["--n-factors", "3", "--max-epochs", "250", "--device", "cpu", "--quiet"]
    assert main([*command, "group", *PREPARE, *fit]) == 0
    results = tmp_path / "out" / "ntfa"
    printed = capsys.readouterr().out
    assert str(results / "report.html") in printed
    assert "6 runs were prepared: 360 trial frames, 420 rest frames, 0 frames discarded." in printed
    assert (results / "report.html").stat().st_size > 10_000
    assert json.loads((results / "config.json").read_text())["command"] == ["ntfa", *command, "group", *PREPARE, *fit]

    from_disk = NTFA.load(results)
    in_memory = NTFA(n_factors=3, max_epochs=250, device="cpu", random_state=0).fit(simulator.run().study)
    for model in (from_disk, in_memory):
        assert separation(model.participants_, simulator.truth.participant_groups).agreement == 1
        assert separation(model.stimuli_, simulator.truth.stimulus_categories).agreement == 1
    assert from_disk.mask_img_.shape == simulator.mask_img.shape

    study = Study.open(tmp_path / "out" / "study")
    other = Study.from_bids(tmp_path / "dataset", rest="rest", keep_white_matter=True)
    prepared = provenance_of(study.notes)
    assert prepared == provenance_of(other.notes) == Facts.of(from_disk, versions()).provenance
    assert (prepared.n_runs, prepared.n_trial_volumes, prepared.n_rest_volumes, prepared.t_r) == (6, 360, 420, (2.0,))
    assert (prepared.rest, prepared.space, prepared.white_matter_removed) == (("rest",), SPACE, False)
    preparation = methods(Facts.of(from_disk, versions()))[0]
    assert preparation in html.unescape((results / "report.html").read_text())
    pd.testing.assert_frame_equal(study.trials, other.trials)
    for participant in simulator.participants:
        np.testing.assert_array_equal(study.frames[participant], other.frames[participant])


def test_group_prepares_what_is_missing_and_assembles_all(
    bids: Command, written: Path, out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, no_pictures: None
) -> None:
    """As on a cluster: one job a participant, then the group."""
    assert bids(written, out, "participant", "--participant-label", "01") == 0
    assert said(caplog) == {"sub-01": PREPARED}
    assert bids(written, out, "participant", "--participant_label", "sub-03") == 0
    assert said(caplog) == {"sub-03": PREPARED}
    assert sorted(path.name for path in out.iterdir()) == ["dataset_description.json", "sub-01", "sub-03"]
    assert bids(written, out, "group", *FIT, "--work-dir", tmp_path / "work") == 0
    assert said(caplog) == {"sub-01": CURRENT, "sub-02": PREPARED, "sub-03": CURRENT}
    assert Study.open(tmp_path / "work" / "study").participants == ["sub-01", "sub-02", "sub-03"]
    assert not (out / "study").exists()
    assert NTFA.load(out / "ntfa").participants_.index.tolist() == ["sub-01", "sub-02", "sub-03"]


def test_group_takes_only_the_participants_that_are_asked_for(
    bids: Command, written: Path, out: Path, no_pictures: None
) -> None:
    assert bids(written, out, "participant") == 0
    assert bids(written, out, "group", *FIT, "--model", "tfa", "--participant-label", "01", "sub-02") == 0
    assert Study.open(out / "study").participants == ["sub-01", "sub-02"]
    assert (out / "tfa" / "config.json").is_file()


def test_results_are_not_replaced_unless_told_to(
    bids: Command, written: Path, out: Path, capsys: pytest.CaptureFixture, no_pictures: None
) -> None:
    assert bids(written, out, "group", *FIT) == 0
    before = contents(out)
    assert bids(written, out, "group", *FIT, "--seed", 1) == 1
    assert error_of(capsys).startswith(f"{out / 'ntfa'} exists already")
    assert bids(written, out, "group", *FIT, "--participant-label", "01", "--seed", 1) == 1
    assert contents(out) == before, "the assembled study still is that of the results"
    assert bids(written, out, "group", *FIT, "--resume") == 0
    assert "complete already" in capsys.readouterr().out
    assert contents(out) == before
    assert bids(written, out, "group", *FIT, "--seed", 1, "--overwrite") == 0
    assert json.loads((out / "ntfa" / "config.json").read_text())["seed"] == 1
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith("sub-")) == [
        "dataset_description.json",
        "ntfa",
        "study",
    ]


def test_the_output_is_a_valid_derivative(bids: Command, written: Path, out: Path, no_pictures: None) -> None:
    assert bids(written, out, "group", *FIT) == 0
    description = json.loads((out / "dataset_description.json").read_text())
    assert description["DatasetType"] == "derivative"
    assert description["GeneratedBy"][0]["Name"] == "ntfa"
    layout = BIDSLayout(out, validate=False, is_derivative=True)
    assert layout.get_subjects() == ["01", "02", "03"]
    assert len(layout.get(suffix="quality", extension=".tsv", desc="ntfa")) == 3


def test_output_inside_the_dataset_is_not_taken_for_fmripreps(bids: Command, dataset: Path, no_pictures: None) -> None:
    (dataset / "derivatives/fmriprep").rename(dataset / "derivatives/fmriprep-24")
    out = dataset / "derivatives/ntfa"
    assert bids(dataset, out, "participant") == 0
    assert bids(dataset, out, "group", *FIT) == 0
    assert len(Study.open(out / "study").participants) == 3


# --- what is done is skipped


def test_only_what_changed_is_done_again(
    bids: Command, dataset: Path, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert bids(dataset, out, "participant") == 0
    assert said(caplog) == dict.fromkeys(("sub-01", "sub-02", "sub-03"), PREPARED)
    before = contents(out)
    assert bids(dataset, out, "participant") == 0
    assert said(caplog) == dict.fromkeys(("sub-01", "sub-02", "sub-03"), CURRENT)
    path = events(dataset, "sub-02")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    assert bids(dataset, out, "participant") == 0
    assert said(caplog) == {"sub-01": CURRENT, "sub-02": PREPARED, "sub-03": CURRENT}
    same = {name: content for name, content in contents(out).items() if not name.endswith("_frames.json")}
    assert same == {name: before[name] for name in same}
    assert bids(dataset, out, "participant", "--delay", "4", "--participant-label", "03") == 0
    assert said(caplog) == {"sub-03": PREPARED}
    assert bids(dataset, out, "participant", "--delay", "4") == 0
    assert said(caplog) == {"sub-01": PREPARED, "sub-02": PREPARED, "sub-03": CURRENT}


def test_participants_can_be_prepared_at_once(bids: Command, written: Path, out: Path, tmp_path: Path) -> None:
    assert bids(written, out, "participant") == 0
    assert bids(written, tmp_path / "two", "participant", "--n-jobs", "2") == 0
    assert contents(tmp_path / "two") == contents(out)


def test_a_dry_run_shows_the_plan_and_writes_nothing(
    bids: Command, written: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    before = contents(written)
    assert bids(written, out, "group", "--dry-run", "--n-factors", "50") == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line.strip().startswith("sub-")]
    assert rows == [
        [f"sub-0{p}", f"task-synthetic_run-0{r}", "42", "2.0", "3", "18", "24"] for p in (1, 2, 3) for r in (1, 2)
    ]
    assert "3 participants, 6 runs, 18 trials of 3 stimuli: task1_stim1, task1_stim2, task2_stim1" in printed
    assert "50 factors" in printed
    assert not any(tmp_path.iterdir())
    assert contents(written) == before


# --- which runs


def test_runs_can_be_filtered_by_a_file(
    bids: Command, written: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "filter.json"
    path.write_text('{"bold": {"run": 2}, "t1w": {"session": "x"}}')
    index = ["--bids-database-dir", tmp_path / "index"]
    for _ in range(2):
        assert bids(written, out, "participant", "--dry-run", "--bids-filter-file", path, *index) == 0
        assert "3 participants, 3 runs, 9 trials" in capsys.readouterr().out
    assert any((tmp_path / "index").iterdir())
    path.write_text("{")
    assert bids(written, out, "participant", "--bids-filter-file", path) == 1
    assert_names(error_of(capsys), path)
    path.write_text("[]")
    assert bids(written, out, "participant", "--bids-filter-file", path) == 1
    assert_names(error_of(capsys), path)
    path.write_text('{"bold": ["run"]}')
    assert bids(written, out, "participant", "--bids-filter-file", path) == 1
    assert_names(error_of(capsys), "filters")
    assert not out.exists()


def test_sessions_and_tasks_can_be_chosen(bids: Command, dataset: Path, out: Path) -> None:
    for folder in (dataset, dataset / "derivatives/fmriprep"):
        for path in sorted(folder.glob("sub-*/func/*")):
            session, task = ("ses-b", "other") if "_run-02_" in path.name else ("ses-a", "synthetic")
            name = path.name.replace("_task-synthetic", f"_{session}_task-{task}")
            target = path.parents[1] / session / "func" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    assert bids(dataset, out, "participant", "--session-label", "ses-b") == 0
    (trials,) = (out / "sub-01" / "func").glob(f"sub-01_task-other_space-{SPACE}_desc-ntfa_trials.tsv")
    table = pd.read_csv(trials, sep="\t")
    assert set(table["session"]) == {"ses-b"}
    assert set(table["run"]) == {"task-other_run-02"}
    assert bids(dataset, out, "participant", "--task", "synthetic", "--space", SPACE) == 0
    assert [path.name.split("_")[1] for path in (out / "sub-01" / "func").iterdir()] == ["task-synthetic"] * 7
    assert bids(dataset, out, "participant") == 0
    (trials,) = (out / "sub-01" / "func").glob("sub-01_task-othersynthetic_*_trials.tsv")
    assert len(pd.read_csv(trials, sep="\t")) == 6


def test_confounds_scrub_frames(bids: Command, written: Path, out: Path) -> None:
    assert bids(written, out, "participant", "--confounds", "scrubbing") == 0
    (path,) = out.glob("sub-01/func/*_quality.tsv")
    quality = pd.read_csv(path, sep="\t")
    assert quality["frames"].tolist() == [42, 42]
    assert quality["frames_kept"].tolist() == [40, 40]


# --- what is wrong


def test_one_broken_run_fails_its_participant_alone(
    bids: Command, dataset: Path, out: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture
) -> None:
    path = bold(dataset, "sub-02", "02")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    for level, jobs in (("participant", 1), ("participant", 2), ("group", 1)):
        shutil.rmtree(out, ignore_errors=True)
        assert bids(dataset, out, level, "--n-jobs", jobs, *FIT) == 1
        message = error_of(capsys)
        assert_names(message, "1 of 3", "sub-02", path)
        assert sorted(path.name for path in out.iterdir()) == ["dataset_description.json", "sub-01", "sub-03"]
    assert any(line.startswith(f"sub-02 failed: {path}: ") for line in caplog.messages)
    path.write_bytes(whole)
    assert bids(dataset, out, "participant") == 0
    assert said(caplog) == {"sub-01": CURRENT, "sub-02": PREPARED, "sub-03": CURRENT}


def test_a_misspelt_baseline_is_named(bids: Command, written: Path, out: Path, capsys: pytest.CaptureFixture) -> None:
    assert bids(written, out, "participant", "--rest", "rset") == 1
    message = error_of(capsys)
    assert_names(message, "rset", "rest", "task1_stim1", "task1_stim2", "task2_stim1")
    assert bids(written, out, "participant", "--ignore", "press", "rest") == 1
    assert_names(error_of(capsys), "press", "task1_stim1")
    assert bids(written, out, "participant", "--stimulus-column", "picture") == 1
    assert_names(error_of(capsys), "'picture'", "trial_type", "category")
    assert not any(out.glob("sub-*"))


@pytest.mark.parametrize(
    ("break_it", "things"),
    [
        (lambda d: (d / "dataset_description.json").unlink(), ["{d}", "dataset_description.json"]),
        (lambda d: bold(d, "sub-01").unlink(), ["{events}"]),
        (
            lambda d: sidecar(bold(d, "sub-01")).write_text("{"),
            ["{sidecar}"],
        ),
        (
            lambda d: events(d, "sub-01").write_text("onset\tduration\ttrial_type\n1\t2\trest\n3\t-1\ta\n"),
            ["sub-01", "{events}", "line 3", "duration", "-1"],
        ),
        (
            lambda d: events(d, "sub-01").write_text("onset\tduration\ttrial_type\n900\t2\ta\n"),
            ["sub-01", "{events}", "trial"],
        ),
    ],
    ids=["dataset", "image", "sidecar", "duration", "trials"],
)
def test_what_is_wrong_is_named(
    bids: Command,
    dataset: Path,
    out: Path,
    capsys: pytest.CaptureFixture,
    break_it: Callable[[Path], Any],
    things: list[str],
) -> None:
    break_it(dataset)
    assert bids(dataset, out, "participant") == 1
    named = {"d": dataset, "events": events(dataset, "sub-01"), "sidecar": sidecar(bold(dataset, "sub-01"))}
    error = error_of(capsys)
    assert_names(error, *(thing.format(**named) for thing in things))
    assert not any(out.glob("sub-*")), "before any image is read"


def test_options_that_cannot_be_are_refused(
    bids: Command, written: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert bids(written, out, "participant", "--n-jobs", "0") == 1
    assert error_of(capsys).startswith("--n-jobs 0: ")
    assert bids(written, out, "participant", "--trial-duration", "-1") == 1
    assert_names(error_of(capsys), "trial_duration=-1.0")
    assert bids(written, out, "participant", "--mask", tmp_path / "no.nii.gz") == 1
    assert str(tmp_path / "no.nii.gz") in error_of(capsys)
    with pytest.raises(SystemExit) as end:
        bids(written, out, "everybody")
    assert end.value.code == 2


def test_a_folder_of_something_else_is_left_alone(
    bids: Command, written: Path, out: Path, capsys: pytest.CaptureFixture
) -> None:
    out.mkdir()
    (out / "thesis.tex").write_text("...")
    assert bids(written, out, "participant") == 1
    assert error_of(capsys).startswith(f"{out} exists and ")
    assert contents(out) == {"thesis.tex": b"..."}


# --- what is said


def test_what_does_not_fit_is_said_in_words(
    bids: Command, dataset: Path, out: Path, caplog: pytest.LogCaptureFixture, no_pictures: None
) -> None:
    with events(dataset, "sub-02").open("a") as file:
        file.write("400.0\t2.0\ttask1_stim1\tTask 1\n")
    path = sidecar(bold(dataset, "sub-03"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "RepetitionTime": 2.01}))
    losses = (
        "1 trial(s) had no frame left and were dropped; "
        "1 event(s) reach past the end of their run and were cut off there; "
        "runs differ in TR ({2.0: 5, 2.01: 1}, seconds: runs); each was cut by its own"
    )
    assert bids(dataset, out, "participant") == 0
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned[0].startswith(f"{bold(dataset, 'sub-03')}: the header says a TR of 2 s, but 2.01 s was given")
    assert warned[1:] == [losses]
    assert bids(dataset, out, "group", *FIT) == 0
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert losses in warned


def test_version_and_help(capsys: pytest.CaptureFixture) -> None:
    for option in ("--version", "--help"):
        with pytest.raises(SystemExit) as end:
            main(["bids", option])
        assert end.value.code == 0
    printed = capsys.readouterr().out
    for option in (
        *("--participant-label", "--participant_label", "--session-label", "--task", "--space", "--res"),
        *("--derivatives", "--stimulus-column", "--category-column", "--rest", "--include-rest", "--delay"),
        *("--trial-duration", "--standardize", "--confounds", "--smoothing-fwhm", "--high-pass", "--mask"),
        *("--keep-white-matter", "--min-coverage", "--bids-filter-file", "--bids-database-dir", "--work-dir"),
        *("--n-jobs", "--dry-run", "--version", "-v", "--model", "--n-factors", "--embedding-dim", "--device"),
    ):
        assert option in printed
