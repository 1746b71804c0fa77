"""The study in memory: what is kept, what is shared, what is refused."""

from collections.abc import Callable
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import naming

from ntfa.errors import NTFAError, StudyError
from ntfa.study import Study

N_VOXELS = 6
STIMULI = ("face", "house", "cat")


def make_parts(n_participants: int = 3, n_frames: int = 30) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    participants = [f"sub-{i + 1:02d}" for i in range(n_participants)]
    rows = [
        (participant, stimulus, 10 * i, 10 * i + 5 + i, i + 1)
        for participant in participants
        for i, stimulus in enumerate(STIMULI)
    ]
    return {
        "frames": {p: rng.standard_normal((n_frames, N_VOXELS)).astype(np.float32) for p in participants},
        "trials": pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop", "run"]),
        "coordinates": np.argwhere(np.ones((1, 2, 3))) * 4.0,
    }


def make_study(**changes: Any) -> Study:
    return Study.from_arrays(**{**make_parts(), **changes})


def make_mask(shape: tuple[int, ...] = (1, 2, 3), spacing: float = 4.0) -> nibabel.Nifti1Image:
    return nibabel.Nifti1Image(np.ones(shape, dtype=np.uint8), np.diag([spacing] * 3 + [1.0]))


# --- what a study says about itself


def test_labels_counts_and_data() -> None:
    study = make_study()
    assert study.participants == ["sub-01", "sub-02", "sub-03"]
    assert study.stimuli == ["cat", "face", "house"]
    assert (study.n_voxels, study.n_trials) == (6, 9)
    assert study.n_data == 3 * (5 + 6 + 7) * 6
    assert study.coordinates.dtype == np.float64
    for part in ("3 participants", "3 stimuli", "9 trials", "54 trial frames", "6 voxels"):
        assert part in repr(study)


def test_unequal_trials_and_further_labels_are_kept_with_the_index() -> None:
    trials = make_parts()["trials"].iloc[[0, 3, 4, 6, 7, 8]]
    trials.index = pd.Index(list("uvwxyz"), name="trial")
    trials = trials.assign(note=["a", None, "c", "d", "e", "f"])
    study = make_study(trials=trials)
    assert study.trials.index.tolist() == list("uvwxyz")
    assert study.trials["note"].isna().tolist() == [False, True, False, False, False, False]
    assert study.trials["start"].dtype == np.int64


def test_labels_become_text() -> None:
    parts = make_parts()
    numbers = {label: i for i, label in enumerate(parts["frames"])}
    frames = {numbers[label]: array for label, array in parts["frames"].items()}
    trials = parts["trials"].assign(participant=parts["trials"]["participant"].map(numbers))
    assert make_study(frames=frames, trials=trials).participants == ["0", "1", "2"]


def test_whole_floats_are_frame_numbers() -> None:
    trials = make_parts()["trials"].astype({"start": float, "stop": float})
    pd.testing.assert_frame_equal(make_study(trials=trials).trials, make_study().trials)


def test_the_callers_table_is_neither_changed_nor_shared() -> None:
    parts = make_parts()
    before = parts["trials"].copy()
    study = Study.from_arrays(**parts)
    parts["trials"].loc[0, "stop"] = 1
    assert study.trials.loc[0, "stop"] == before.loc[0, "stop"]


def test_float32_frames_are_shared_and_others_converted() -> None:
    parts = make_parts()
    study = Study.from_arrays(**parts)
    assert all(np.shares_memory(study.frames[p], parts["frames"][p]) for p in study.participants)
    integers = {p: (array * 100).astype(np.int16) for p, array in parts["frames"].items()}
    converted = make_study(frames=integers).frames["sub-01"]
    assert converted.dtype == np.float32
    np.testing.assert_array_equal(converted, integers["sub-01"])


def test_memory_maps_stay_memory_maps(tmp_path: Any) -> None:
    parts = make_parts(n_participants=1)
    np.save(tmp_path / "x.npy", parts["frames"]["sub-01"])
    parts["frames"]["sub-01"] = np.load(tmp_path / "x.npy", mmap_mode="c")
    assert isinstance(Study.from_arrays(**parts).frames["sub-01"], np.memmap)


def test_participants_without_trials_are_left_out_whatever_their_values() -> None:
    parts = make_parts()
    frames = {**parts["frames"], "extra": np.full((4, N_VOXELS), np.nan, dtype=np.float32)}
    with pytest.warns(UserWarning, match="participant extra"):
        assert set(make_study(frames=frames).frames) == {"sub-01", "sub-02", "sub-03"}


def test_a_mask_of_the_same_voxels_is_accepted() -> None:
    mask = make_mask()
    assert make_study(mask_img=mask).mask_img is mask


def test_a_single_frame_has_no_constant_voxels() -> None:
    trials = pd.DataFrame({"participant": ["a"], "stimulus": ["x"], "start": [0], "stop": [1]})
    assert make_study(frames={"a": np.ones((1, N_VOXELS))}, trials=trials).n_data == N_VOXELS


# --- select and split


def test_select_shares_the_arrays_and_drops_frames_without_trials() -> None:
    study = make_study()
    part = study.select(participants=["sub-01", "sub-03"], stimuli="cat")
    assert part.participants == ["sub-01", "sub-03"]
    assert part.trials.index.tolist() == [2, 8]
    assert set(part.frames) == {"sub-01", "sub-03"}
    assert all(np.shares_memory(part.frames[p], study.frames[p]) for p in part.frames)
    assert part.coordinates is study.coordinates


def test_select_by_booleans_goes_by_index() -> None:
    study = make_study()
    wanted = (study.trials["run"] == 2).sample(frac=1, random_state=1)
    assert study.select(trials=wanted).trials.index.tolist() == [1, 4, 7]
    assert study.select(trials=wanted, participants="sub-02").trials.index.tolist() == [4]
    assert study.select(trials=(study.trials["run"] == 2).to_numpy()).n_trials == 3


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ({"participants": ["sub-01", "sub-99"]}, naming("sub-99")),
        ({"stimuli": "dog"}, naming("dog")),
        ({"stimuli": []}, "trials"),
        ({"trials": pd.Series([True] * 8)}, "trials"),
        ({"trials": pd.Series([True] * 9, index=range(1, 10))}, "trials"),
        ({"trials": pd.Series([1] * 9)}, "boolean"),
        ({"trials": np.ones(4, dtype=bool)}, naming(9)),
        ({"trials": pd.Series([True] * 8 + [None], dtype="boolean")}, "trials"),
    ],
)
def test_select_refuses_what_it_cannot_find(choice: dict[str, Any], named: str) -> None:
    with pytest.raises(StudyError, match=named):
        make_study().select(**choice)


@pytest.mark.parametrize(("n_participants", "n_stimuli"), [(2, 2), (3, 8), (8, 3), (9, 8), (5, 5)])
def test_diagonal_split_is_p_mod_s(n_participants: int, n_stimuli: int) -> None:
    rng = np.random.default_rng(n_participants)
    rows = [
        (f"p{p}", f"s{s}", 2 * s + 20 * run, 2 * s + 20 * run + 2)
        for p in range(n_participants)
        for s in range(n_stimuli)
        for run in range(2)
    ]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"]).sample(frac=1, random_state=0)
    frames = {f"p{p}": rng.standard_normal((40, N_VOXELS)) for p in range(n_participants)}
    study = make_study(frames=frames, trials=trials)
    train, test = study.split("diagonal")
    expected = {
        (p, s) for i, p in enumerate(study.participants) for j, s in enumerate(study.stimuli) if i % n_stimuli == j
    }
    assert set(zip(test.trials["participant"], test.trials["stimulus"], strict=True)) == expected
    assert test.n_trials == 2 * len(expected)
    assert sorted([*train.trials.index, *test.trials.index]) == sorted(trials.index)
    assert (train.participants, train.stimuli) == (study.participants, study.stimuli)
    assert np.shares_memory(train.frames["p0"], test.frames["p0"])


def test_diagonal_split_says_which_stimulus_would_be_lost() -> None:
    with pytest.raises(StudyError, match=naming("stimulus", "cat")):
        make_study().select(participants="sub-01").split("diagonal")


def test_diagonal_split_says_which_participant_would_be_lost() -> None:
    study = make_study()
    only_house = (study.trials["participant"] != "sub-03") | (study.trials["stimulus"] == "house")
    with pytest.raises(StudyError, match=naming("participant", "sub-03")):
        study.select(trials=only_house).split("diagonal")


def test_diagonal_split_needs_something_on_the_diagonal() -> None:
    study = make_study()
    _, test = study.split("diagonal")
    off = ~study.trials.index.isin(test.trials.index)
    with pytest.raises(StudyError, match=naming("test")):
        study.select(trials=off).split("diagonal")


def test_boolean_split_may_take_a_whole_stimulus() -> None:
    study = make_study()
    train, test = study.split(study.trials["stimulus"] == "cat")
    assert (train.stimuli, test.stimuli) == (["face", "house"], ["cat"])
    assert np.shares_memory(train.frames["sub-02"], test.frames["sub-02"])


@pytest.mark.parametrize(("value", "side"), [(True, "training"), (False, "test")])
def test_split_needs_both_sides(value: bool, side: str) -> None:
    study = make_study()
    with pytest.raises(StudyError, match=naming(side)):
        study.split(pd.Series(value, index=study.trials.index))


def test_split_knows_one_word() -> None:
    with pytest.raises(StudyError, match="'random'"):
        make_study().split("random")


# --- bad input


def put(column: str, row: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(parts: dict[str, Any]) -> None:
        parts["trials"] = parts["trials"].astype({column: object})
        parts["trials"].loc[row, column] = value

    return change


def put_frames(participant: str, array: Any) -> Callable[[dict[str, Any]], None]:
    return lambda parts: parts["frames"].update({participant: array})


def put_value(participant: str, frame: Any, voxel: Any, value: float) -> Callable[[dict[str, Any]], None]:
    def change(parts: dict[str, Any]) -> None:
        parts["frames"][participant][frame, voxel] = value

    return change


def put_position(voxel: int, position: list[float]) -> Callable[[dict[str, Any]], None]:
    def change(parts: dict[str, Any]) -> None:
        parts["coordinates"][voxel] = position

    return change


def replace_part(**new: Any) -> Callable[[dict[str, Any]], None]:
    return lambda parts: parts.update(new)


BAD_TRIALS = {
    "missing columns": (
        lambda parts: parts.update(trials=parts["trials"].drop(columns=["stimulus", "stop"])),
        naming("stimulus", "stop"),
    ),
    "column twice": (
        lambda parts: parts.update(trials=pd.concat([parts["trials"], parts["trials"]["run"]], axis=1)),
        naming("'run'"),
    ),
    "no trials": (lambda parts: parts.update(trials=parts["trials"].iloc[:0]), "trials"),
    "not a table": (replace_part(trials=[1, 2]), naming("trials", "list")),
    "start at stop": (put("stop", 4, 10), naming("row 4", "sub-02", "start", 10, "stop")),
    "negative start": (put("start", 3, -1), naming("row 3", "sub-02", "start")),
    "fraction": (put("start", 5, 20.5), naming("row 5", "sub-02", "start", 20.5)),
    "word": (put("stop", 5, "soon"), naming("row 5", "stop", "soon")),
    "no stop": (put("stop", 5, np.nan), naming("row 5", "stop")),
    "infinite stop": (put("stop", 5, np.inf), naming("row 5", "stop")),
    "past the end": (put("stop", 8, 31), naming("row 8", "sub-03", "stop", 31, 30)),
    "unknown participant": (put("participant", 2, "sub-99"), naming("row 2", "sub-99", "sub-01", "sub-02")),
    "no participant": (put("participant", 2, None), naming("row 2", "participant")),
    "empty stimulus": (put("stimulus", 7, " "), naming("row 7", "stimulus")),
    "overlap": (
        put("stop", 3, 11),
        naming("row 3", "sub-02", "row 4", [0, 11], [10, 16]),
    ),
}
BAD_FRAMES = {
    "not a dict": (replace_part(frames=[1]), naming("frames", "list")),
    "empty": (replace_part(frames={}), "frames"),
    "same label": (put_frames(1, np.eye(6)), None),
    "1-D": (put_frames("sub-02", np.ones(6)), naming("sub-02", "(6,)")),
    "voxels": (put_frames("sub-02", np.ones((30, 5))), naming("sub-02", 5, 6)),
    "complex": (put_frames("sub-02", np.ones((30, 6), dtype=complex)), naming("sub-02", "complex128")),
    "objects": (put_frames("sub-02", np.full((30, 6), "a", dtype=object)), naming("sub-02", "object")),
    "ragged": (put_frames("sub-02", [[1.0, 2.0], [3.0]]), naming("sub-02")),
    "NaN": (put_value("sub-02", [7, 9], slice(1, None), np.nan), naming("sub-02", 10, "frame 7", "voxel 1")),
    "infinite": (put_value("sub-03", 29, 0, -np.inf), naming("sub-03", 1, "frame 29", "voxel 0")),
    "too large": (
        lambda parts: parts["frames"].update({"sub-01": np.outer(np.arange(30), np.ones(6)) * 1e40}),
        naming("sub-01", 174, "float32", "frame 1", "voxel 0"),
    ),
    "constant": (put_value("sub-03", slice(None), [2, 4], 1.5), naming("sub-03", 2, "voxel 2")),
}
BAD_GEOMETRY = {
    "not V x 3": (replace_part(coordinates=np.ones((6, 2))), naming("coordinates", "(6, 2)")),
    "words": (replace_part(coordinates=[["a", "b", "c"]]), naming("coordinates")),
    "no voxels": (replace_part(coordinates=np.ones((0, 3))), r"\(0, 3\)"),
    "not finite": (put_position(4, [0, np.nan, 0]), naming(1, "voxel 4")),
    "duplicate": (put_position(5, [0, 0, 4]), naming(1, 5, [0.0, 0.0, 4.0])),
    "not an image": (replace_part(mask_img="mask.nii"), naming("mask_img", "str")),
    "4-D mask": (replace_part(mask_img=make_mask((1, 2, 3, 1))), naming("mask_img")),
    "mask size": (replace_part(mask_img=make_mask((1, 2, 4))), naming("mask_img", 8, "coordinates", 6)),
    "mask place": (replace_part(mask_img=make_mask(spacing=4.01)), naming("mask_img", 5, "voxel 1")),
}


BAD_INPUT = BAD_TRIALS | BAD_FRAMES | BAD_GEOMETRY


@pytest.mark.parametrize("case", BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_refused_by_name(case: tuple[Callable[[dict[str, Any]], None], str | None]) -> None:
    change, named = case
    parts = make_parts()
    change(parts)
    if named is None:
        parts["frames"]["1"] = np.eye(6)
        named = naming("participant", 1)
    with pytest.raises(StudyError, match=named) as caught:
        Study.from_arrays(**parts)
    assert isinstance(caught.value, NTFAError)
    assert isinstance(caught.value, ValueError)


def test_problems_are_found_in_any_chunk_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ntfa.study.checks.CHUNK_VALUES", 4 * N_VOXELS)
    parts = make_parts()
    Study.from_arrays(**parts)
    parts["frames"]["sub-01"][:, 1] = 3.0
    with pytest.raises(StudyError, match=naming("sub-01", "voxel 1")):
        Study.from_arrays(**parts)
    parts["frames"]["sub-01"][17] = np.nan
    with pytest.raises(StudyError, match=naming(6, "frame 17", "voxel 0")):
        Study.from_arrays(**parts)


def test_a_voxel_that_moves_in_the_last_frame_only_is_not_constant() -> None:
    parts = make_parts()
    parts["frames"]["sub-01"][:, 1] = 3.0
    parts["frames"]["sub-01"][-1, 1] = 3.5
    assert Study.from_arrays(**parts).n_trials == 9
