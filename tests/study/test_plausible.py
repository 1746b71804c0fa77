"""Arrays that could be fitted but make no sense are refused or explained where a study is made."""

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
from ntfa.study.plausible import FAR_OFF, distances_from_typical, frames_far_off, in_raw_units

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


def as_seconds(parts: Parts) -> None:
    """Whole seconds of a study with a repetition time of 0.8 s."""
    parts["trials"] = parts["trials"].assign(
        start=parts["trials"]["start"] // 5 * 4, stop=parts["trials"]["stop"] // 5 * 4
    )


ODD = {
    "raw scanner units": (times_100, ["participant b", "standardize"]),
    "voxel indices": (lambda parts: parts.update(coordinates=np.argwhere(np.ones((2, 3, 4)))), ["coordinates", "mm"]),
    "frames without trials": (leave_out, ["participant b"]),
    "seconds": (as_seconds, ["participant a", 32, 40, "seconds"]),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_looks_wrong_is_said_once(odd: str) -> None:
    change, things = ODD[odd]
    parts = make_parts()
    change(parts)
    messages = said(parts)
    assert len(messages) == 1
    assert_names(messages[0], *things)


def test_percent_signal_change_and_positive_maps_are_no_raw_units() -> None:
    frames = np.random.default_rng(0).standard_normal((50, 30)).astype(np.float32)
    assert in_raw_units(1000 + 20 * frames)
    assert in_raw_units(1e-6 * (1000 + 20 * frames)), "whatever the unit"
    assert not in_raw_units(frames + 2)
    assert not in_raw_units(frames[:3] + 1000)


@pytest.mark.parametrize(
    ("coordinates", "warned"),
    [
        (np.argwhere(np.ones((2, 3, 4))), True),
        (np.argwhere(np.ones((2, 3, 4))) + 10, True),
        (np.argwhere(np.ones((2, 3, 4))) * 2, False),
        (np.argwhere(np.ones((2, 3, 4))) - [0, 1, 0], False),
        (np.argwhere(np.ones((2, 3, 4))) + 0.5, False),
    ],
)
def test_voxel_indices_are_whole_numbers_one_apart(coordinates: Any, warned: bool) -> None:
    assert bool(said(make_parts() | {"coordinates": coordinates})) == warned


# --- from images


def image_and_events(affine: Any) -> tuple[Any, pd.DataFrame]:
    random = np.random.default_rng(0)
    data = (1000 + 20 * random.standard_normal((3, 3, 3, 60))).astype(np.float32)
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
    mask = nibabel.Nifti1Image(np.ones((3, 3, 3), dtype=np.uint8), affine)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        Study.from_images([img], [events], mask=mask, **options)
    assert_names(caught[0].message, *things)


def test_onsets_in_milliseconds_are_recognised() -> None:
    img, events = image_and_events(np.diag([3.0, 3, 3, 1]))
    mask = nibabel.Nifti1Image(np.ones((3, 3, 3), dtype=np.uint8), img.affine)
    make: Callable[..., Study] = Study.from_images
    with pytest.raises(StudyError, match=naming("run-1", 20000, "118 s", "seconds")):
        make([img], [events.assign(onset=events["onset"] * 1000)], mask=mask)
