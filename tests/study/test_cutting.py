"""Which frames belong to which trial, which are rest, and z-scores by them, against brute force in milliseconds."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import assert_names, naming
from hypothesis import given, settings
from hypothesis import strategies as st

from ntfa.errors import StudyError
from ntfa.study.cutting import Cut, Preparation, cut, standardise
from ntfa.study.events import read_events

NAMES = ("face", "house", "rest", "press")


def table(*rows: tuple[float, float, str]) -> pd.DataFrame:
    return read_events(pd.DataFrame(rows, columns=["onset", "duration", "trial_type"]), "events.tsv")


def frames_of(found: Cut) -> list[list[int]]:
    return [rows.tolist() for rows in found.frames]


def cut_every_second(events: pd.DataFrame, n_frames: int = 20, **how: Any) -> Cut:
    """Cut a run of one frame a second, without a delay unless told otherwise."""
    return cut(events, np.arange(n_frames, dtype=float), Preparation(**{"delay": 0, **how}), "events.tsv")


# --- the rule, against brute force


@dataclass(frozen=True)
class Case:
    """A run and its events, in milliseconds."""

    events: list[tuple[int, int, str]]
    kept: list[int]
    n_frames: int
    t_r: int
    start_time: int
    delay: int
    trial_duration: int | None
    rest: tuple[str, ...]
    ignore: tuple[str, ...]
    include_rest: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    t_r = draw(st.sampled_from([667, 735, 1000, 2000, 2500]))
    n_frames = draw(st.integers(1, 30))
    # Half of the times are those of frames, so that events begin and end just on them.
    on_grid = st.integers(-3, 32).map(lambda i: i * t_r)
    onset = on_grid | st.integers(-3 * t_r, 32 * t_r)
    duration = st.integers(0, 6).map(lambda i: i * t_r) | st.integers(0, 6 * t_r)
    events = draw(st.lists(st.tuples(onset, duration, st.sampled_from(NAMES)), min_size=1, max_size=10))
    return Case(
        events=events,
        kept=sorted(draw(st.sets(st.integers(0, n_frames - 1), min_size=1))),
        n_frames=n_frames,
        t_r=t_r,
        start_time=draw(st.sampled_from([0, t_r // 2, 333])),
        delay=draw(st.sampled_from([0, t_r, 3000, 4400])),
        trial_duration=draw(st.none() | st.sampled_from([t_r, 3 * t_r, 1234])),
        rest=draw(st.sampled_from([(), ("rest",)])),
        ignore=draw(st.sampled_from([(), ("press",)])),
        include_rest=draw(st.booleans()),
    )


def by_brute_force(case: Case) -> tuple[list[tuple[str, list[int]]], list[int], dict[str, int]]:
    """Trials with their frames (places among the kept), rest frames, and counts."""
    shown = sorted(case.events, key=lambda event: event[0])
    special = (*case.rest, *case.ignore)
    spans = []
    for onset, duration, name in shown:
        lasting = duration if case.trial_duration is None or name in special else case.trial_duration
        spans.append((onset + case.delay, onset + case.delay + lasting))
    own: list[list[int]] = [[] for _ in shown]
    rest, outside, shared = [], [], 0
    for place, frame in enumerate(case.kept):
        time = case.start_time + frame * case.t_r
        inside = [i for i, (start, stop) in enumerate(spans) if start <= time < stop]
        shared += max(0, len(inside) - 1)
        if not inside:
            outside.append(place)
            continue
        own[inside[-1]].append(place)
        if shown[inside[-1]][2] in case.rest:
            rest.append(place)
    if not any(name in case.rest for _, _, name in shown):
        rest = outside
    wanted = [
        i
        for i, (_, _, name) in enumerate(shown)
        if name not in case.ignore and (name not in case.rest or case.include_rest)
    ]
    counts = {
        "trials_without_frames": sum(not own[i] for i in wanted),
        "events_past_the_end": sum(stop > case.start_time + case.n_frames * case.t_r for _, stop in spans),
        "frames_in_two_events": shared,
    }
    return [(shown[i][2], own[i]) for i in wanted if own[i]], rest, counts


@given(cases())
@settings(max_examples=400, deadline=None)
def test_the_frame_rule(case: Case) -> None:
    rows = [(onset / 1000, duration / 1000, name) for onset, duration, name in case.events]
    how = Preparation(
        rest=case.rest,
        ignore=case.ignore,
        include_rest=case.include_rest,
        delay=case.delay / 1000,
        trial_duration=None if case.trial_duration is None else case.trial_duration / 1000,
    )
    times = case.start_time / 1000 + np.array(case.kept) * (case.t_r / 1000)
    end = case.start_time / 1000 + case.n_frames * (case.t_r / 1000)
    trials, rest, counts = by_brute_force(case)
    if not trials:
        with pytest.raises(StudyError, match=naming("events.tsv")):
            cut(table(*rows), times, how, "events.tsv", end)
        return
    found = cut(table(*rows), times, how, "events.tsv", end)
    assert list(zip(found.trials["stimulus"], frames_of(found), strict=True)) == trials
    assert found.rest.tolist() == rest
    assert found.counts == counts


@pytest.mark.parametrize("t_r", [0.1, 0.7, 1 / 3, 2.5])
@pytest.mark.parametrize("start", [7, 29, 71])
def test_a_frame_just_at_the_start_is_in_and_one_just_at_the_stop_is_out(t_r: float, start: int) -> None:
    """Neither a frame's time nor an event's end is exact: 29 * 0.1 > 2.9 and 7 * 0.7 < 4.9."""
    for n_frames in range(1, 9):
        times = np.arange(100) * t_r
        onset, duration = round(start * t_r, 9), round(n_frames * t_r, 9)
        found = cut(table((onset, duration, "a")), times, Preparation(delay=0), "events")
        assert frames_of(found) == [list(range(start, start + n_frames))]
        delayed = cut(table((onset - 3.3, duration, "a")), times, Preparation(delay=3.3), "events")
        assert frames_of(delayed) == frames_of(found)


# --- rules for what does not fit


def test_of_two_events_the_later_one_has_the_frame() -> None:
    found = cut_every_second(table((2, 6, "long"), (4, 2, "short"), (12, 2, "first"), (12, 2, "second")))
    assert dict(zip(found.trials["stimulus"], frames_of(found), strict=True)) == {
        "long": [2, 3, 6, 7],
        "short": [4, 5],
        "second": [12, 13],
    }
    assert found.counts["frames_in_two_events"] == 4
    assert found.counts["trials_without_frames"] == 1
    assert found.rest.tolist() == [0, 1, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19]


def test_events_past_the_end_are_cut_off_and_counted() -> None:
    found = cut_every_second(table((1, 2, "a"), (18, 2, "to the end"), (18.5, 4, "over the end"), (30, 2, "after")))
    assert dict(zip(found.trials["stimulus"], frames_of(found), strict=True)) == {
        "a": [1, 2],
        "to the end": [18],
        "over the end": [19],
    }
    assert found.counts == {"trials_without_frames": 1, "events_past_the_end": 2, "frames_in_two_events": 1}


def test_an_event_that_ends_in_scrubbed_frames_is_not_past_the_end() -> None:
    how, events = Preparation(delay=0), table((1, 3, "a"), (5, 4, "b"))
    found = cut(events, np.array([0.0, 1.0, 3.0, 5.0, 6.0]), how, "events", end=9.0)
    assert frames_of(found) == [[1, 2], [3, 4]]
    assert found.counts == {"trials_without_frames": 0, "events_past_the_end": 0, "frames_in_two_events": 0}
    assert cut(events, np.arange(8.0), how, "events", end=8.0).counts["events_past_the_end"] == 1


def test_an_event_before_the_run_keeps_the_frames_it_reaches() -> None:
    found = cut_every_second(table((-4, 6, "a"), (-8, 2, "b")), delay=1)
    assert frames_of(found) == [[0, 1, 2]]
    assert found.counts == {"trials_without_frames": 1, "events_past_the_end": 0, "frames_in_two_events": 0}


def test_without_a_trial_the_run_is_refused_with_the_reason() -> None:
    for events in (table((40, 2, "a")), table((1, 0, "a")), table((1, 5, "rest"))):
        with pytest.raises(StudyError, match=naming("events.tsv")):
            cut_every_second(events, rest="rest")


# --- options


def test_short_events_of_one_stimulus_make_a_block() -> None:
    """As in ds000105: a picture of 0.5 s every 2 s, twelve to a block."""
    rows = [(12 + 36.0 * block + 2.0 * i, 0.5, name) for block, name in enumerate("xxy") for i in range(12)]
    times = np.arange(60) * 2.5
    events = table(*rows)
    apart = cut(events, times, Preparation(), "events")
    assert len(apart.trials) < 36
    merged = cut(events, times, Preparation(merge_gap=2), "events")
    assert merged.trials["stimulus"].tolist() == ["x", "x", "y"]
    assert merged.trials["onset"].tolist() == [12, 48, 84]
    assert merged.trials["duration"].tolist() == [22.5] * 3
    inside = [[i for i, t in enumerate(times) if start <= t < start + 22.5] for start in (15, 51, 87)]
    assert frames_of(merged) == inside
    # 1.5 s lie between pictures, 13.5 s between blocks.
    assert len(cut(events, times, Preparation(merge_gap=1.5), "events").trials) == 3
    assert len(cut(events, times, Preparation(merge_gap=1.4), "events").trials) == len(apart.trials)
    assert len(cut(events, times, Preparation(merge_gap=13.5), "events").trials) == 2


def test_another_stimulus_ends_a_block() -> None:
    found = cut_every_second(table((0, 2, "a"), (2, 2, "a"), (4, 2, "b"), (6, 2, "a")), merge_gap=5)
    assert list(zip(found.trials["stimulus"], frames_of(found), strict=True)) == [
        ("a", [0, 1, 2, 3]),
        ("b", [4, 5]),
        ("a", [6, 7]),
    ]


def test_ignored_events_are_neither_trials_nor_rest() -> None:
    events = table((2, 3, "a"), (8, 2, "press"))
    found = cut_every_second(events, ignore="press")
    assert found.trials["stimulus"].tolist() == ["a"]
    assert set(found.rest.tolist()) == set(range(20)) - {2, 3, 4, 8, 9}
    assert cut_every_second(events).trials["stimulus"].tolist() == ["a", "press"]


def test_rest_is_left_out_of_the_trials_unless_asked_for() -> None:
    events = table((0, 4, "rest"), (4, 3, "a"), (7, 2, "blank"), (9, 3, "a"), (12, 4, "rest"))
    found = cut_every_second(events, rest=["rest", "blank"])
    assert found.trials["stimulus"].tolist() == ["a", "a"]
    assert found.rest.tolist() == [0, 1, 2, 3, 7, 8, 12, 13, 14, 15]
    included = cut_every_second(events, rest=["rest", "blank"], include_rest=True)
    assert included.trials["stimulus"].tolist() == ["rest", "a", "blank", "a", "rest"]
    assert included.rest.tolist() == found.rest.tolist()


def test_a_run_without_baseline_events_rests_outside_of_all_delayed_events() -> None:
    events = table((2, 3, "a"), (10, 3, "b"))
    found = cut_every_second(events, rest="rest", delay=2)
    assert found.rest.tolist() == [0, 1, 2, 3, 7, 8, 9, 10, 11, 15, 16, 17, 18, 19]


def test_a_trial_duration_replaces_that_of_trials_but_not_of_rest() -> None:
    events = table((0, 5, "rest"), (5, 0.5, "a"), (10, 0.5, "press"))
    found = cut_every_second(events, rest="rest", ignore="press", trial_duration=3)
    assert frames_of(found) == [[5, 6, 7]]
    assert found.rest.tolist() == [0, 1, 2, 3, 4]
    unknown = events.assign(duration=[5, np.nan, 0.5])
    assert frames_of(cut_every_second(unknown, rest="rest", ignore="press", trial_duration=3)) == [[5, 6, 7]]


def test_names_of_conditions_may_be_numbers() -> None:
    found = cut_every_second(table((0, 4, 0), (4, 4, 1)), rest=[0])  # type: ignore[arg-type]
    assert found.trials["stimulus"].tolist() == ["1"]
    assert found.rest.tolist() == [0, 1, 2, 3]


def test_a_number_is_one_stimulus_whether_or_not_others_of_its_run_have_decimals() -> None:
    first, second = (
        cut_every_second(table((0, 2, low), (4, 2, high))).trials["stimulus"].tolist()  # type: ignore[arg-type]
        for low, high in [(44, 46), (44.0, 47.5)]
    )
    assert (first, second) == (["44", "46"], ["44", "47.5"])


@pytest.mark.parametrize(
    ("setting", "things"),
    [
        ({"standardize": "zscore"}, ["standardize='zscore'", "rest", "run", "none"]),
        ({"other_grid": "ignore"}, ["other_grid='ignore'", "refuse", "resample"]),
        ({"trial_duration": 0}, ["trial_duration=0"]),
        ({"smoothing_fwhm": -1}, ["smoothing_fwhm=-1"]),
        ({"high_pass": float("nan")}, ["high_pass=nan"]),
    ],
)
def test_settings_that_cannot_be_are_refused(setting: dict[str, Any], things: list[str]) -> None:
    with pytest.raises(StudyError) as error:
        Preparation(**setting)
    assert_names(error.value, *things)


# --- labels


def test_columns_of_the_events_are_labels_of_the_trials() -> None:
    events = table((5, 2, "b"), (0, 2, "a"), (8, 0, "nothing"))
    events = events.assign(kind=["1", "2", "3"], rating=[1.5, np.nan, 3], code=["01", "02", "03"], run=9, start=9)
    found = cut_every_second(events, category_column="kind")
    assert list(found.trials) == ["stimulus", "category", "onset", "duration", "kind", "rating", "code"]
    assert found.trials["category"].tolist() == found.trials["kind"].tolist() == ["1", "2"]
    assert found.trials["onset"].tolist() == [0, 5]
    assert found.trials["code"].tolist() == ["01", "02"]
    np.testing.assert_array_equal(found.trials["rating"], [1.5, np.nan])


def test_another_column_can_name_the_stimulus() -> None:
    events = table((0, 2, "face"), (5, 2, "face")).assign(stim_file=["ann.png", "bob.png"])
    found = cut_every_second(events, stimulus_column="stim_file", category_column="trial_type")
    assert found.trials["stimulus"].tolist() == ["ann.png", "bob.png"]
    assert found.trials["category"].tolist() == found.trials["trial_type"].tolist() == ["face", "face"]
    assert "stim_file" not in found.trials


def test_a_block_has_the_labels_of_its_first_event() -> None:
    events = table((0, 1, "a"), (2, 1, "a"), (10, 1, "a")).assign(picture=["x", "y", "z"])
    assert cut_every_second(events, merge_gap=3).trials["picture"].tolist() == ["x", "z"]


@pytest.mark.parametrize("option", ["stimulus_column", "category_column"])
def test_a_column_that_is_not_there_is_named(option: str) -> None:
    with pytest.raises(StudyError) as error:
        cut_every_second(table((0, 2, "a")), **{option: "kind"})
    assert_names(error.value, "events.tsv", "'kind'", "onset", "duration", "trial_type")


def test_an_event_without_a_name_is_named_by_its_row_in_the_file() -> None:
    events = table((9, 2, "a"), (5, 2, None), (1, 1, "b"), (3, 1, None))  # type: ignore[arg-type]
    with pytest.raises(StudyError) as error:
        cut_every_second(events)
    assert_names(error.value, "events.tsv", "line 5", "trial_type", 2, 4)


@pytest.mark.parametrize("merge_gap", [None, 1.0])
def test_an_event_of_unknown_duration_is_named_by_its_row_in_the_file(merge_gap: float | None) -> None:
    events = table((9, 2, "a"), (1, 1, "b"), (5, np.nan, "c"))
    with pytest.raises(StudyError) as error:
        cut_every_second(events, merge_gap=merge_gap)
    assert_names(error.value, "events.tsv", "line 4", "duration")


# --- z-scoring


@pytest.fixture
def series() -> np.ndarray:
    """More voxels than are done at once, on levels at which float32 has few digits left."""
    rng = np.random.default_rng(0)
    return (rng.uniform(500, 20000, 1500) + rng.uniform(1, 50, 1500) * rng.standard_normal((40, 1500))).astype("f4")


def zscored(series: np.ndarray, reference: np.ndarray) -> np.ndarray:
    exact = np.asarray(series, dtype=np.longdouble)
    part = exact[reference]
    mean = part.sum(0) / len(part)
    sd = np.sqrt(((part - mean) ** 2).sum(0) / (len(part) - 1))
    return ((exact - mean) / sd).astype(np.float64)


@pytest.mark.parametrize("reference", ["rest", "run"])
def test_zscores_are_those_of_rest_or_of_the_run(series: np.ndarray, reference: str) -> None:
    rest = np.arange(3, 25, 2)
    expected = zscored(series, rest if reference == "rest" else np.arange(len(series)))
    found = standardise(series.copy(), rest, Preparation(standardize=reference), "run")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_zscoring_works_in_place(series: np.ndarray) -> None:
    assert standardise(series, np.arange(20), Preparation(), "run") is series


def test_frames_can_be_left_as_they_are(series: np.ndarray) -> None:
    found = standardise(series.copy(), np.array([], dtype=int), Preparation(standardize="none"), "run")
    np.testing.assert_array_equal(found, series)


def test_too_few_rest_frames_are_refused_with_the_reason(series: np.ndarray) -> None:
    with pytest.raises(StudyError) as error:
        standardise(series, np.arange(9), Preparation(), "bold.nii.gz")
    assert str(error.value).startswith("bold.nii.gz: only 9 rest frame(s), fewer than the 10 needed to z-score by")
    assert "min_rest_frames" in str(error.value)
    standardise(series.copy(), np.arange(10), Preparation(), "run")
    standardise(series.copy(), np.arange(9), Preparation(min_rest_frames=9), "run")
    standardise(series.copy(), np.arange(0), Preparation(standardize="run"), "run")


def test_a_voxel_that_does_not_vary_is_nan_not_zero(series: np.ndarray) -> None:
    series[:, 3] = 700
    series[:20, 1200] = 700
    found = standardise(series.copy(), np.arange(20), Preparation(), "run")
    assert np.flatnonzero(np.isnan(found).all(0)).tolist() == [3, 1200]
    assert np.isfinite(np.delete(found, [3, 1200], axis=1)).all()
    one = standardise(series.copy(), np.arange(1), Preparation(min_rest_frames=1), "run")
    assert np.isnan(one).all()
