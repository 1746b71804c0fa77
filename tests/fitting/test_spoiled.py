"""Spoiled frames: found where they are, and no response taken for one; in any order, on disk, by several processes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from ntfa import Study
from ntfa.fitting.arrange import Layout, labels_of
from ntfa.fitting.spoiled import FrameTrust, frame_counts, frame_trust
from ntfa.fitting.task import prepare
from ntfa.fitting.voxel_noise import noise_scales
from ntfa.inference.processes import Processes

N_PEOPLE, N_STIMULI, N_TRIALS, LENGTH, V = 3, 4, 2, 5, 300
GRID = 3 * np.stack(np.meshgrid(*[np.arange(7.0)] * 3, indexing="ij"), -1).reshape(-1, 3)[:V]
SPOILED = {("sub-1", 3): 5.0, ("sub-1", 4): -5.0, ("sub-3", 17): 3.0}
"""Frames, and how many times as large as the noise what movement adds to them is."""


def make_study(spoiled: dict | None = None, response: float = 0.0, smooth: bool = False, length: int = LENGTH) -> Study:
    """Noise of unit sd; the first stimulus shows a response in everybody; movement is bright to one side."""
    rng = np.random.default_rng(0)
    frames, trials = {}, []
    pattern = np.exp(-((GRID / 3 - 3) ** 2).sum(1) / 4)
    movement = (GRID[:, 0] - 9) / GRID[:, 0].std()
    kernel = np.exp(-((GRID[:, None] - GRID) ** 2 / 9).sum(-1) / 2) if smooth else np.eye(V)
    kernel /= np.sqrt((kernel**2).sum(1, keepdims=True))
    for p in range(1, N_PEOPLE + 1):
        who, n = f"sub-{p}", N_STIMULI * N_TRIALS
        array = rng.normal(size=(n * length + 1, V)) @ kernel.T
        for i in range(n):
            start = 1 + i * length
            trials.append((who, f"s{i % N_STIMULI}", start, start + length))
            if i % N_STIMULI == 0:
                array[start : start + length] += response * rng.uniform(0.8, 1.2, (length, 1)) * pattern
        for (whose, row), size in (spoiled or {}).items():
            if whose == who:
                array[row] += size * movement
        frames[who] = (10.0**p * array).astype(np.float32)
    table = pd.DataFrame(trials, columns=["participant", "stimulus", "start", "stop"])
    return Study.from_arrays(frames, table.sample(frac=1, random_state=1), GRID)


def trust_of(study: Study) -> FrameTrust:
    return frame_trust(study, study.stimuli)


def found(study: Study) -> set[tuple[str, int]]:
    counts = frame_counts(study) or {}
    return {(who, int(row)) for who, own in counts.items() for row in np.flatnonzero(own < 1)}


@pytest.mark.parametrize("smooth", [False, True])
def test_frames_with_movement_are_found_and_no_others(smooth: bool) -> None:
    assert found(make_study(SPOILED, smooth=smooth)) == set(SPOILED)
    assert found(make_study(smooth=smooth)) == set()
    assert trust_of(make_study(smooth=smooth)).counted is None


def test_weight_is_by_the_fourth_power_of_the_distance() -> None:
    trust = trust_of(make_study(SPOILED))
    low = trust.trust < 1
    np.testing.assert_allclose(trust.trust[low], trust.distance[low] ** -4)
    # Movement five times as large as the noise makes a frame's square 26 times as large.
    assert trust.distance[low].max() == pytest.approx(26**0.5, rel=0.1)
    assert np.median(trust.distance[~low]) == pytest.approx(1, rel=0.02)


def test_voxels_that_somebody_lacks_are_no_movement() -> None:
    study = make_study(SPOILED, response=10.0)
    frames = {who: array.copy() for who, array in study.frames.items()}
    frames["sub-1"][:, :60] = np.nan
    lacking = Study.from_arrays(frames, study.trials, GRID, min_coverage=0.3)
    assert lacking.n_voxels == V
    assert found(lacking) == set(SPOILED)


@pytest.mark.parametrize("response", [3.0, 10.0, 100.0])
def test_a_strong_response_is_none(response: float) -> None:
    study = make_study(SPOILED, response=response)
    assert trust_of(make_study(response=response)).distance.max() > response / 5
    assert found(study) == set(SPOILED)


def test_trials_of_one_frame_and_a_strong_response() -> None:
    spoiled = {("sub-1", 3): 6.0}
    assert found(make_study(spoiled, response=30.0, length=1)) == set(spoiled)


def test_a_strong_response_of_one_trial_is_none() -> None:
    """Nothing can tell it from movement that lasts a trial; so it counts as it would without any of this."""
    study = make_study(response=20.0)
    once = study.trials["stimulus"].ne("s0") | study.trials["start"].eq(1) & study.trials["participant"].eq("sub-1")
    assert found(study.split(~once)[0]) == set()


def test_neither_the_order_of_trials_nor_units_matter() -> None:
    study = make_study(SPOILED, response=5.0)
    other = Study.from_arrays(
        {who: array * np.float32(0.01) for who, array in study.frames.items()},
        study.trials.sort_values("start"),
        GRID,
    )
    np.testing.assert_allclose(trust_of(other).trust, trust_of(study).trust, rtol=1e-4)


def test_newcomers_are_judged_by_the_frames_of_the_fit_and_with_caution() -> None:
    spoiled = {("sub-1", 3): 0.9, ("sub-2", 8): 3.0}
    study = make_study({("sub-1", 3): 1.5, ("sub-2", 8): 3.0})
    assert found(study) == set(spoiled)
    # Movement one and a half times as large as the noise makes a frame's square 3.2 times as large.
    assert set(counted(study, np.ones(100))) == {("sub-1", 3), ("sub-2", 8)}
    assert set(counted(make_study(spoiled), np.ones(100))) == {("sub-2", 8)}
    varied = np.exp(np.random.default_rng(0).normal(size=500) / 4)
    assert set(counted(study, varied)) == set()


def counted(study: Study, known: np.ndarray) -> set[tuple[str, int]]:
    counts = frame_counts(study, known) or {}
    return {(who, int(row)) for who, own in counts.items() for row in np.flatnonzero(own < 1)}


def test_frames_too_few_to_tell_count_the_same() -> None:
    frames = {"a": np.random.default_rng(0).normal(size=(4, V)).astype(np.float32)}
    frames["a"][2] *= 50
    trials = pd.DataFrame({"participant": "a", "stimulus": "s", "start": [0], "stop": [4]})
    assert found(Study(GRID, trials, frames)) == set()


class OneOfTwo(Processes):
    """A process that shares with another, whose contributions are given."""

    size = 2

    def __init__(self, logs: list[torch.Tensor], totals: list[torch.Tensor]) -> None:
        self.others, self.totals = logs, totals

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows, self.others.pop(0)])

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + self.totals.pop(0)


class Recording(Processes):
    """Alone, and remembers what it would have sent."""

    def __init__(self) -> None:
        self.logs: list[torch.Tensor] = []
        self.totals: list[torch.Tensor] = []

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        self.logs.append(rows.clone())
        return rows

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        self.totals.append(tensor.clone())
        return tensor


def test_processes_find_together_what_one_finds() -> None:
    study = make_study(SPOILED, response=10.0)
    people = study.participants
    one, other = study.select(participants=people[:2]), study.select(participants=people[2:])
    recording = Recording()
    # The other process doubts the same stimuli as this one, so that both send as many messages.
    frame_trust(other, study.stimuli, recording)
    whole = trust_of(study)
    assert len(recording.totals) > 1
    part = frame_trust(one, study.stimuli, OneOfTwo(recording.logs, recording.totals))
    np.testing.assert_allclose(part.trust, whole.trust[: len(part.trust)], rtol=1e-6)


def test_a_task_has_frames_that_count_as_they_should() -> None:
    study, layout = make_study(SPOILED), Layout("participant", "cell")
    labels = labels_of(study, layout)
    robust, equal = (
        prepare(study, layout, labels, torch.device("cpu"), {}, weighting=how) for how in ("robust", "equal")
    )
    assert equal.trust is None
    assert equal.frames.cells.trust is None
    assert robust.trust is not None
    assert robust.frames.cells.trust is not None
    np.testing.assert_array_equal(robust.frames.cells.trust, robust.trust.trust)
    # The energy of a frame that hardly counts is not part of what one is.
    energy = robust.frames.energy * robust.frames.units.intensity**2
    trusted = float((energy * robust.frames.cells.trust).mean()) / V
    assert robust.frames.units.intensity == pytest.approx(trusted**0.5)
    place = [i for i, row in enumerate(robust.frames.blocks[0].rows.tolist()) if ("sub-1", row) in SPOILED]
    assert set(np.flatnonzero(robust.trust.trust < 1)) >= set(place)


def test_noise_of_voxels_is_not_that_of_movement() -> None:
    clean, study = make_study(), make_study({("sub-1", 3): 40.0})
    expected = noise_scales(clean, torch.device("cpu"))
    spoilt = noise_scales(study.select(participants="sub-1"), torch.device("cpu"))
    counted = noise_scales(study, torch.device("cpu"), counts=frame_counts(study))
    assert np.abs(np.log(counted / expected)).max() < 0.05
    assert np.abs(np.log(spoilt / expected)).max() > 0.5
