"""The robustness benchmark: every trouble is what it says, and nothing else is touched."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

SCRIPTS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def robustness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("robustness")


def make(robustness: ModuleType, **trouble: Any) -> Any:
    return robustness.make_study(robustness.Scenario(**trouble), 3)


@pytest.fixture
def clean(robustness: ModuleType) -> Any:
    return make(robustness)


def added(clean: Any, spoiled: Any) -> np.ndarray:
    return np.asarray(spoiled[0].frames["sub-01"] - clean[0].frames["sub-01"])


def test_frames_are_signal_in_trials_and_noise_all_over(clean: Any) -> None:
    train, test, truth = clean
    assert (train.n_trials, test.n_trials) == (180, 108)
    trials = pd.concat([train.trials, test.trials])
    own = trials[(trials["participant"] == "sub-01") & (trials["stimulus"] == "stim-01")]
    frames = train.frames["sub-01"]
    mean = np.mean([frames[start:stop].mean(0) for start, stop in zip(own["start"], own["stop"], strict=True)], axis=0)
    image = truth.mean_image("sub-01", "stim-01")
    strong = np.abs(image) > 0.5 * np.abs(image).max()
    assert np.corrcoef(mean[strong], image[strong])[0, 1] > 0.5
    assert frames[::6].std() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("noise", ["t", "autocorrelated", "by voxel"])
def test_noise_has_the_same_variance_and_another_shape(robustness: ModuleType, noise: str) -> None:
    rng = np.random.default_rng(0)
    values = robustness._noise(robustness.Scenario(noise=noise), 3, rng, 2000, 500)
    assert values.var() == pytest.approx(1, rel=0.15)
    if noise == "t":
        assert stats.kstest(values[::3, ::7].ravel() * 3**0.5, stats.t(3).cdf).pvalue > 0.001
    if noise == "autocorrelated":
        runs = values.reshape(robustness.N_RUNS, -1, 500)
        assert (runs[:, 1:] * runs[:, :-1]).mean() == pytest.approx(0.5, abs=0.02)
        assert (runs[1:, 0] * runs[:-1, -1]).mean() == pytest.approx(0, abs=0.1)
    if noise == "by voxel":
        assert np.log(values.std(0)).std() == pytest.approx(0.5, rel=0.15)


def test_drift_is_slow_and_a_high_pass_takes_it_out(robustness: ModuleType, clean: Any) -> None:
    drift = added(clean, make(robustness, drift=0.5))
    assert drift.std() == pytest.approx(0.5, rel=0.1)
    runs = drift.reshape(robustness.N_RUNS, -1, drift.shape[1])
    assert np.diff(runs, axis=1).std() < 0.2 * drift.std()
    left = robustness._without_slow(drift).reshape(runs.shape)
    assert (left - left.mean(1, keepdims=True)).std() < 0.05 * drift.std()


def test_spikes_are_rare_and_large_and_scrubbing_leaves_their_frames_out(robustness: ModuleType, clean: Any) -> None:
    spoiled, scrubbed = make(robustness, spikes=0.03), make(robustness, spikes=0.03, remedy="scrub")
    size = np.sqrt((added(clean, spoiled) ** 2).mean(1))
    bad = size > 1e-3
    assert 1 <= bad.sum() <= 0.1 * len(bad)
    np.testing.assert_allclose(size[bad], 5, rtol=1e-3)
    np.testing.assert_array_equal(scrubbed[0].frames["sub-01"], clean[0].frames["sub-01"][~bad])
    own = clean[0].trials[clean[0].trials["participant"] == "sub-01"]
    for trial in own.itertuples():
        moved = scrubbed[0].trials.loc[trial.Index]
        kept = clean[0].frames["sub-01"][trial.start : trial.stop][~bad[trial.start : trial.stop]]
        np.testing.assert_array_equal(scrubbed[0].frames["sub-01"][moved["start"] : moved["stop"]], kept)


def test_half_of_the_trials_are_off_by_one_frame_and_frames_are_as_they_were(
    robustness: ModuleType, clean: Any
) -> None:
    moved = make(robustness, misplaced=0.5)
    shift = moved[0].trials["start"].to_numpy() - clean[0].trials["start"].to_numpy()
    assert set(shift) == {-1, 0, 1}
    assert 0.35 < (shift != 0).mean() < 0.65
    assert not added(clean, moved).any()


def test_a_tenth_of_the_training_labels_is_wrong(robustness: ModuleType, clean: Any) -> None:
    train, test, _ = make(robustness, mislabelled=0.1)
    assert (train.trials["stimulus"].to_numpy() != clean[0].trials["stimulus"].to_numpy()).sum() == 18
    assert (test.trials["stimulus"].to_numpy() == clean[1].trials["stimulus"].to_numpy()).all()


def test_one_participant_keeps_a_tenth_of_its_trials(robustness: ModuleType) -> None:
    counts = make(robustness, few=True)[0].trials["participant"].value_counts()
    assert counts.pop("sub-01") == 2
    assert set(counts) == {15}


def test_averages_of_noiseless_trials_have_no_misfit(robustness: ModuleType, clean: Any) -> None:
    train, _, truth = clean
    trials = train.trials
    images = [truth.mean_image(who, what) for who, what in zip(trials["participant"], trials["stimulus"], strict=True)]
    frames = {
        who: np.stack([image for image, own in zip(images, trials["participant"] == who, strict=True) if own])
        for who in train.participants
    }
    place = trials.groupby("participant").cumcount()
    perfect = type(train)(train.coordinates, trials.assign(start=place, stop=place + 1), frames)
    assert robustness._misfit_of_average(perfect, truth, trials) == pytest.approx(0, abs=1e-10)
    zero = type(train)(train.coordinates, perfect.trials, {who: 0 * array for who, array in frames.items()})
    assert robustness._misfit_of_average(zero, truth, trials) == pytest.approx(1)


def test_tables_have_a_row_a_scenario(robustness: ModuleType) -> None:
    one = {
        "spoiled": 0.03,
        "networks": True,
        "factors_found": 5,
        "center_error": 1.0,
        "center_error_few": 2.0,
        "distances": {"participants": 0.9, "stimuli": 0.8},
        "levels": {"participants": [(0.0, 0.99), (0.0, 0.2), (1.0, 0.99)], "stimuli": [(0.0, 0.1), (1.0, 0.5)]},
        "intervals": {"centres": (9, 10), "weights, seen": (8, 10), "weights, unseen": (7, 10)},
        "misfit": {"seen": 0.1, "unseen": 0.2, "few": 0.3, "average": 0.4},
    }
    found = [{"scenario": name, **one} for name in ("clean", "drift", "clean")]
    found.append({"scenario": "clean, frames='equal'", **one, "spoiled": None, "networks": False})
    recovered = robustness.recovery(found).set_index("scenario")
    assert recovered.loc["clean", "studies"] == 2
    assert recovered.loc["drift", "error, unseen"] == "0.200"
    assert recovered["spoiled"].tolist() == ["3.0%", "", "3.0%"]
    assert recovered["networks"].tolist() == ["2", "0", "1"]
    said = robustness.trust(found).set_index("scenario").loc["clean"]
    assert said["identical participants differ"].startswith("0.500 (")
    assert said["participants 0.8-1.2 apart differ"] == "1.00 (2)"
    assert said["stimuli 0.8-1.2 apart differ"] == "0.00 (2)"
    assert said["weights, unseen"] == "0.700"
    few = robustness.of_the_few(found)
    assert few["scenario"].tolist() == ["clean"]
    assert few["centres, mm"].tolist() == ["2.00"]
