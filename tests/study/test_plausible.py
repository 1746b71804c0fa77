"""Arrays that could be fitted but make no sense are refused or explained where a study is made."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import assert_names, naming

from ntfa import HTFA, NTFA, Study
from ntfa.cli import main
from ntfa.errors import StudyError
from ntfa.study.plausible import FAR_OFF, distances_from_typical, frames_far_off, in_raw_units, warn_of_indices

Parts = dict[str, Any]


def make_parts(n_frames: int = 40) -> Parts:
    """Two participants, four trials each, z-scored frames of 24 voxels, 3 mm apart around the origin."""
    random = np.random.default_rng(0)
    rows = [(who, f"s{i}", 10 * i, 10 * i + 10) for who in ("a", "b") for i in range(n_frames // 10)]
    return {
        "frames": {who: random.standard_normal((n_frames, 24)).astype(np.float32) for who in ("a", "b")},
        "trials": pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"]),
        "coordinates": (np.argwhere(np.ones((2, 3, 4))) - 1) * 3.0,
    }


def said(parts: Parts) -> list[str]:
    """Everything that is warned of when a study is made."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Study.from_arrays(**parts)
    return [str(one.message) for one in caught]


def test_a_plausible_study_is_made_without_a_word() -> None:
    assert said(make_parts()) == []


# --- refused


@pytest.mark.parametrize("value", [1e6, -1e6])
@pytest.mark.parametrize("voxels", [slice(None), 5])
def test_a_frame_of_a_million_is_refused_by_name(value: float, voxels: Any) -> None:
    parts = make_parts()
    parts["frames"]["b"][17, voxels] = value
    with pytest.raises(StudyError, match=naming("participant b", "frame 17")):
        Study.from_arrays(**parts)


def test_a_frame_of_a_million_is_refused_in_raw_units_and_on_the_way_to_disk(tmp_path: Path) -> None:
    parts = make_parts()
    study = Study.from_arrays(**parts)
    parts["frames"]["b"] += 1000
    parts["frames"]["b"][3] = 1e6
    with pytest.raises(StudyError, match=naming("participant b", "frame 3")):
        Study.from_arrays(**parts)
    with pytest.raises(StudyError, match=naming("participant b", "frame 3")):
        study.save(tmp_path / "study")
    assert not any(tmp_path.iterdir())


def test_distance_from_a_typical_frame_is_that_of_brute_force() -> None:
    frames = np.random.default_rng(0).standard_normal((11, 7)).astype(np.float32)
    typical = np.array([sorted(frames[:, v].tolist())[5] for v in range(7)])
    expected = [np.sqrt(sum((frames[i, v] - typical[v]) ** 2 for v in range(7)) / 7) for i in range(11)]
    np.testing.assert_allclose(distances_from_typical(frames), expected, rtol=1e-6)


def test_movement_is_far_below_what_is_refused() -> None:
    random = np.random.default_rng(0)
    frames = random.standard_normal((300, 50)).astype(np.float32)
    frames[[4, 90]] += 20 * random.standard_normal((2, 50)).astype(np.float32)
    assert not len(frames_far_off(frames))
    frames[90] = 1.5 * FAR_OFF * random.standard_normal(50)
    assert frames_far_off(frames).tolist() == [90]
    assert not len(frames_far_off(frames[89:92])), "of three frames nobody can tell"


def test_frames_the_wrong_way_round_are_recognised() -> None:
    parts = make_parts()
    parts["frames"]["a"] = parts["frames"]["a"].T
    with pytest.raises(StudyError, match=naming("participant a", 40, 24, "array.T")):
        Study.from_arrays(**parts)
    with pytest.raises(StudyError, match=naming("(3, 24)", "coordinates.T")):
        Study.from_arrays(**make_parts() | {"coordinates": make_parts()["coordinates"].T})


def test_seconds_are_no_frames() -> None:
    parts = make_parts()
    fractions = parts["trials"].astype({"start": float}).assign(start=parts["trials"]["start"] * 0.75 + 0.3)
    with pytest.raises(StudyError, match=naming("row 0", "start", 0.3, "seconds")):
        Study.from_arrays(**parts | {"trials": fractions})
    longer = parts["trials"].assign(start=parts["trials"]["start"] * 2, stop=parts["trials"]["stop"] * 2)
    with pytest.raises(StudyError, match=naming("row 2", "participant a", "stop", 60, 40, "seconds")):
        Study.from_arrays(**parts | {"trials": longer})


# --- explained


def times_100(parts: Parts) -> None:
    """Make of z-scored frames what a scanner gives: around a mean of 1000, varying by 20."""
    parts["frames"]["b"] = 1000 + 20 * parts["frames"]["b"]


def leave_out(parts: Parts) -> None:
    parts["trials"] = parts["trials"][parts["trials"]["participant"] != "b"]


def as_seconds(parts: Parts, t_r: float = 0.8, gap: int = 5, n_frames: int = 150) -> None:
    """Whole seconds of a study with a short repetition time: trials of ten frames, so many apart."""
    random = np.random.default_rng(0)
    first = np.arange(gap, n_frames - 9, 10 + gap)
    spans = np.round(np.stack([first, first + 10], 1) * t_r).astype(int)
    rows = [(who, f"s{i % 4}", *span) for who in ("a", "b") for i, span in enumerate(spans)]
    parts["trials"] = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    parts["frames"] = {who: random.standard_normal((n_frames, 24)).astype(np.float32) for who in ("a", "b")}


def as_indices(parts: Parts) -> None:
    """Some voxels of a grid, as nibabel counts them."""
    grid = np.argwhere(np.ones((5, 6, 7)))
    parts["coordinates"] = grid[np.sort(np.random.default_rng(0).choice(len(grid), 24, replace=False))]


ODD = {
    "raw scanner units": (times_100, ["participant b", "standardize"]),
    "voxel indices": (as_indices, ["coordinates", "mm"]),
    "frames without trials": (leave_out, ["participant b"]),
    "seconds": (as_seconds, ["participant a", 120, 150, "seconds"]),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_looks_wrong_is_said_once(odd: str) -> None:
    change, things = ODD[odd]
    parts = make_parts()
    change(parts)
    messages = said(parts)
    assert len(messages) == 1
    assert_names(messages[0], *things)


@pytest.mark.parametrize("t_r", [0.5, 0.6, 0.72, 0.8])
@pytest.mark.parametrize("gap", [0, 5, 12])
def test_seconds_of_short_repetition_times_are_recognised(t_r: float, gap: int) -> None:
    parts = make_parts()
    as_seconds(parts, t_r, gap, n_frames=300)
    (message,) = said(parts)
    assert_names(message, "seconds")


def spans(n_trials: int, length: int, gap: int, first: int = 0) -> list[tuple[int, int]]:
    starts = [first + i * (length + gap) for i in range(n_trials)]
    return [(start, start + length) for start in starts]


ORDINARY = {
    "no rest": (spans(8, 10, 0), 80),
    "rest after the only trial": ([(0, 16)], 20),
    "rest between trials and at the end": (spans(8, 10, 15, first=15), 215),
    "more rest at the end": (spans(12, 10, 10, first=10), 270),
    "events with short gaps": (spans(40, 2, 3), 215),
    "a long rest in the middle, and at the end": (spans(8, 10, 0) + spans(8, 10, 0, first=120), 240),
    "a first run of two": (spans(8, 10, 15), 215),
}


@pytest.mark.parametrize("design", ORDINARY)
def test_rest_at_the_end_is_no_cause_for_alarm(design: str) -> None:
    own, n_frames = ORDINARY[design]
    rows = [(who, f"s{i}", *span) for who in ("a", "b") for i, span in enumerate(own)]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    random = np.random.default_rng(0)
    frames = {who: random.standard_normal((n_frames, 24)).astype(np.float32) for who in ("a", "b")}
    assert said(make_parts() | {"frames": frames, "trials": trials}) == []


def test_trials_that_end_early_in_some_people_only_are_no_seconds() -> None:
    parts = make_parts()
    as_seconds(parts)
    parts["frames"]["b"] = parts["frames"]["b"][:125]
    assert said(parts) == []


def test_percent_signal_change_and_maps_are_no_raw_units() -> None:
    frames = np.random.default_rng(0).standard_normal((50, 30)).astype(np.float32)
    assert in_raw_units(1000 + 20 * frames)
    assert in_raw_units(1e-6 * (1000 + 20 * frames)), "whatever the unit"
    assert not in_raw_units(frames + 2)
    assert not in_raw_units(frames[:3] + 1000)
    assert not in_raw_units(frames + np.where(np.arange(30) % 10, 20, -20)), "a response everybody shows, up and down"


@pytest.mark.parametrize(
    ("coordinates", "warned"),
    [
        (np.argwhere(np.ones((5, 5, 5))), True),
        (np.argwhere(np.ones((5, 5, 5))) + 10, True),
        (np.argwhere(np.ones((20, 6, 6))) * [1, 1, 1] + np.where(np.arange(720) < 360, 0, 30)[:, None], True),
        (np.argwhere(np.ones((5, 5, 5))) * 2, False),
        (np.argwhere(np.ones((5, 5, 5))) - [0, 1, 0], False),
        (np.argwhere(np.ones((5, 5, 5))) + 0.5, False),
        (np.argwhere(np.ones((2, 3, 4))), False),
        (np.stack([np.arange(30), np.zeros(30), np.zeros(30)], 1), False),
    ],
)
def test_voxel_indices_are_whole_numbers_one_apart(coordinates: Any, warned: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_indices(coordinates)
    assert bool(caught) == warned


def test_millimetres_that_an_affine_gave_are_no_indices() -> None:
    """Right, front and top of a grid of 1 mm: whole numbers above zero."""
    affine = np.eye(4)
    affine[:3, 3] = 10
    mask = nibabel.Nifti1Image(np.ones((5, 5, 5), dtype=np.uint8), affine)
    coordinates = np.argwhere(np.ones((5, 5, 5)))
    random = np.random.default_rng(0)
    frames = {who: random.standard_normal((40, 125)).astype(np.float32) for who in ("a", "b")}
    parts = make_parts() | {"frames": frames, "mask_img": mask}
    assert said(parts | {"coordinates": coordinates + 10.0}) == []
    with pytest.raises(StudyError, match=naming("voxel indices", "affine")):
        Study.from_arrays(**parts | {"coordinates": coordinates})


# --- a folder that somebody wrote, or edited


def edit(folder: Path, odd: str) -> None:
    """Bring an oddity into a saved study by hand, as one who writes such folders would."""
    parts = make_parts()
    ODD[odd][0](parts)
    np.save(folder / "coordinates.npy", parts["coordinates"].astype(np.float64))
    for who, array in parts["frames"].items():
        np.save(folder / f"frames/{who}.npy", array.astype(np.float32))
    parts["trials"].to_csv(folder / "trials.tsv", sep="\t", index=False)
    description = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(description | {"n_trials": len(parts["trials"])}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Study.from_arrays(**make_parts()).save(tmp_path / "study")
    return tmp_path / "study"


QUICK = {"n_factors": 2, "max_epochs": 2, "random_state": 0, "device": "cpu"}


@pytest.mark.parametrize("odd", ODD)
def test_a_folder_goes_through_the_same_door(folder: Path, odd: str) -> None:
    edit(folder, odd)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        HTFA(**QUICK).fit(Study.open(folder))
    assert len(caught) == 1
    assert_names(caught[0].message, *ODD[odd][1])


@pytest.mark.parametrize("value", [1e6, np.nan, np.inf])
@pytest.mark.parametrize("model", [NTFA(**QUICK), HTFA(**QUICK)], ids=lambda model: type(model).__name__)
def test_a_frame_that_was_spoiled_in_its_file_is_refused_by_name(folder: Path, value: float, model: Any) -> None:
    array = np.load(folder / "frames/b.npy")
    array[17] = value
    np.save(folder / "frames/b.npy", array)
    with pytest.raises(StudyError, match=naming("participant b", "frame 17")):
        model.fit(Study.open(folder))


def test_commands_say_once_and_without_code_what_looks_wrong(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, no_pictures: None
) -> None:
    edit(folder, "raw scanner units")
    options = ["--n-factors", "2", "--max-epochs", "2", "--uncertainty", "laplace", "--device", "cpu"]
    assert main(["fit", str(folder), str(tmp_path / "out"), *options]) == 0
    (line,) = [line for line in caplog.messages if "scanner" in line]
    assert line.startswith("frames of participant b")


def test_a_dry_run_says_what_the_design_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    parts = make_parts()
    parts["trials"]["stimulus"] = parts["trials"]["participant"] + parts["trials"]["stimulus"]
    Study.from_arrays(**parts).save(tmp_path / "study")
    assert main(["fit", str(tmp_path / "study"), str(tmp_path / "out"), "--dry-run"]) == 0
    assert_names(capsys.readouterr().out, "Note: no stimulus was shown to two participants")


# --- from images


def image_and_events(affine: Any) -> tuple[Any, pd.DataFrame]:
    random = np.random.default_rng(0)
    data = (1000 + 20 * random.standard_normal((5, 5, 5, 60))).astype(np.float32)
    img = nibabel.Nifti1Image(data, affine)
    img.header.set_zooms((1, 1, 1, 2.0))
    events = pd.DataFrame({"onset": [20.0, 60.0], "duration": 20.0, "trial_type": ["x", "y"]})
    return img, events


@pytest.mark.parametrize(
    ("affine", "options", "things"),
    [
        (np.diag([3.0, 3, 3, 1]), {"standardize": "none"}, ["participant 1", "standardize"]),
        (np.eye(4), {}, ["coordinates", "mm"]),
    ],
    ids=["raw units", "no affine"],
)
def test_images_go_through_the_same_door(affine: Any, options: dict[str, Any], things: list[Any]) -> None:
    img, events = image_and_events(affine)
    mask = nibabel.Nifti1Image(np.ones((5, 5, 5), dtype=np.uint8), affine)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        Study.from_images([img], [events], mask=mask, **options)
    assert_names(caught[0].message, *things)


def test_onsets_in_milliseconds_are_recognised() -> None:
    img, events = image_and_events(np.diag([3.0, 3, 3, 1]))
    mask = nibabel.Nifti1Image(np.ones((5, 5, 5), dtype=np.uint8), img.affine)
    make: Callable[..., Study] = Study.from_images
    with pytest.raises(StudyError, match=naming("run-1", 40000, "120 s", "not ms")):
        make([img], [events.assign(onset=events["onset"] * 1000)], mask=mask)
