"""Are the same moments of the same stimuli beside one another, and is what is left out said?"""

import logging
from collections.abc import Callable

import numpy as np
import pytest
from helpers import naming

from ntfa import Study
from ntfa.baselines.aligned import align
from ntfa.errors import StudyError

STIMULI = {"x": 100, "y": 200, "only a": 300, "not c": 400}


def test_every_row_is_the_same_moment_for_all(make_study: Callable[..., Study], out_of_step: Study) -> None:
    def moment(who: str, stimulus: str, repetition: int, n_frames: int) -> np.ndarray:
        code = STIMULI[stimulus] + 10 * repetition + np.arange(n_frames)
        return np.stack([code, code**2], axis=1)

    trials = out_of_step.trials.assign(n=lambda t: t["stop"] - t["start"])
    design = {
        who: list(own[["stimulus", "n"]].itertuples(index=False, name=None))
        for who, own in trials.groupby("participant")
    }
    aligned = align(make_study(design, moment))
    expected = [STIMULI[stimulus] + 10 * repetition + frame for stimulus, repetition, frame in aligned.index]
    for participant in "abc":
        np.testing.assert_array_equal(aligned.matrix(participant)[:, 0], expected)


def test_repetitions_and_lengths_are_cut_to_what_all_have(out_of_step: Study) -> None:
    aligned = align(out_of_step)
    lengths = {("x", 1): 4, ("x", 2): 3, ("y", 1): 4}
    assert aligned.index.tolist() == [(*place, frame) for place, n in lengths.items() for frame in range(n)]
    assert aligned.index.names == ["stimulus", "repetition", "frame"]
    assert aligned.stimuli == ["x", "y"]
    assert aligned.participants == ["a", "b", "c"]
    np.testing.assert_array_equal(np.flatnonzero(aligned.starts), [0, 4, 7])


def test_trials_are_counted_in_time_whatever_their_row(out_of_step: Study) -> None:
    shuffled = Study.from_arrays(
        out_of_step.frames, out_of_step.trials.sample(frac=1, random_state=0), out_of_step.coordinates
    )
    one, other = align(out_of_step), align(shuffled)
    for participant in one.participants:
        np.testing.assert_array_equal(one.matrix(participant), other.matrix(participant))


def test_what_is_left_out_is_said_once(out_of_step: Study, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ntfa"):
        aligned = align(out_of_step)
    assert aligned.left_out == ["not c", "only a"]
    assert aligned.n_trials_left_out == 15 - 3 * 3
    (record,) = caplog.records
    assert "6 of 15 trials" in record.getMessage()
    assert "not c, only a" in record.getMessage()


def test_repetitions_alone_left_out_are_said_too(out_of_step: Study, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ntfa"):
        aligned = align(out_of_step.select(stimuli="x"))
    assert aligned.left_out == []
    assert "1 of 7 trials" in caplog.text


def test_a_design_that_all_share_is_used_whole(study: Study, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ntfa"):
        aligned = align(study)
    assert not caplog.records
    assert (aligned.left_out, aligned.n_trials_left_out) == ([], 0)
    assert aligned.n_frames * len(study.participants) == study.n_trial_frames


def test_centred_frames_and_means_add_up(out_of_step: Study) -> None:
    aligned = align(out_of_step)
    centred = list(aligned.centred())
    assert [participant for participant, _, _ in centred] == aligned.participants
    for participant, mean, frames in centred:
        np.testing.assert_allclose(frames.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(frames + mean, aligned.matrix(participant))


def test_one_participant_is_refused(out_of_step: Study) -> None:
    with pytest.raises(StudyError, match=naming("b")):
        align(out_of_step.select(participants="b"))


def test_no_common_stimulus_is_refused(out_of_step: Study) -> None:
    keep = (out_of_step.trials["participant"] == "a") == (out_of_step.trials["stimulus"] == "only a")
    with pytest.raises(StudyError, match=naming("stimulus", 3)):
        align(out_of_step.select(trials=keep))


def test_unusable_values_are_named(out_of_step: Study) -> None:
    frames = {who: array.copy() for who, array in out_of_step.frames.items()}
    frames["b"][2, 7] = np.nan
    aligned = align(Study(out_of_step.coordinates, out_of_step.trials, frames))
    with pytest.raises(StudyError, match=naming("participant b", "frame 2", "voxel 7", "nan")):
        list(aligned.centred())
