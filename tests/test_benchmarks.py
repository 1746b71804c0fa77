"""The parts of the benchmark scripts that decide what their tables say."""

import importlib
import sys
from itertools import permutations
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("peers")


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("growth")


def test_centres_are_matched_so_that_the_sum_of_distances_is_least(peers: ModuleType) -> None:
    rng = np.random.default_rng(0)
    found, true = rng.normal(size=(2, 3, 4, 3))
    errors = peers.center_errors(found, true)
    for ours, theirs, error in zip(found, true, errors, strict=True):
        best = min(
            (np.linalg.norm(ours - theirs[list(order)], axis=-1) for order in permutations(range(4))), key=np.sum
        )
        np.testing.assert_allclose(error, best)


def test_the_signal_itself_is_explained_wholly_and_nothing_not_at_all(peers: ModuleType) -> None:
    rng = np.random.default_rng(0)
    coordinates, centers, widths = rng.normal(size=(20, 3)), rng.normal(size=(2, 3, 3)), np.full((2, 3), 0.7)
    weights = rng.normal(size=(2, 5, 3))
    squared = ((coordinates - centers[:, :, None]) ** 2).sum(-1)
    signal = weights @ np.exp(-squared / 0.49)
    found = {"centers": centers, "widths": widths, "weights": weights}
    assert peers.explained(found, signal, coordinates) == pytest.approx(1)
    assert peers.explained({**found, "weights": 0 * weights}, signal, coordinates) == pytest.approx(0)
    assert peers.explained({**found, "weights": weights / 2}, signal, coordinates) == pytest.approx(0.75)
    alone = {name: part[:1] for name, part in found.items()}
    assert peers.explained(alone, signal, coordinates) == pytest.approx(1)


def test_the_attainable_error_is_that_of_the_whole_information_matrix(peers: ModuleType) -> None:
    rng = np.random.default_rng(0)
    coordinates, centers, widths = rng.normal(size=(30, 3)), rng.normal(size=(2, 3)), np.array([0.9, 1.4])
    weights = rng.normal(size=(4, 2))

    def signal(x: np.ndarray) -> np.ndarray:
        squared = ((coordinates - x[:6].reshape(2, 1, 3)) ** 2).sum(-1)
        return x[8:].reshape(4, 2) @ np.exp(-squared / np.exp(x[6:8])[:, None])

    at = np.concatenate([centers.ravel(), 2 * np.log(widths), weights.ravel()])
    steps = 1e-5 * np.eye(len(at))
    jacobian = np.stack([(signal(at + step) - signal(at - step)).ravel() / 2e-5 for step in steps])
    variances = np.linalg.inv(jacobian @ jacobian.T).diagonal()
    found = peers.attainable(centers, widths, signal(at), coordinates)
    np.testing.assert_allclose(found, np.sqrt(variances[:6].reshape(2, 3).sum(1)), rtol=1e-5)


def test_both_sides_get_the_signal_plus_noise_of_the_size_asked_for(peers: ModuleType, tmp_path: Path) -> None:
    case = peers.Case(participants=2, runs=2, length=5, voxels=200, factors=3, widen=2.0)
    signal = peers.simulate_case(case, 0.5, tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz") as kept:
        assert kept["frames"].shape == signal.shape == (2, 80, 200)
        assert kept["centers"].shape == (2, 3, 3)
        noise = kept["frames"] - signal
        study = peers.study_of(kept["frames"], kept["stimuli"], kept["coordinates"])
    assert noise.std() == pytest.approx(0.5, rel=0.03)
    assert abs(np.corrcoef(noise.ravel(), signal.ravel())[0, 1]) < 0.03
    assert (study.n_trials, study.n_trial_frames) == (32, 160)


def test_a_process_over_its_limit_is_ended_and_one_that_fails_is_told_apart(peers: ModuleType) -> None:
    endless = peers.run_limited([sys.executable, "-c", "print('1 of 2', flush=True)\nwhile True: pass"], 1)
    assert (endless.ended, endless.said) == ("limit", "1 of 2")
    assert peers.run_limited([sys.executable, "-c", "raise SystemExit(3)"], 60).ended == "failed"
    done = peers.run_limited([sys.executable, "-c", "x = bytearray(10**8)"], 60)
    assert done.ended == "done"
    assert done.peak > 95


def test_a_fit_that_did_not_end_has_a_lower_limit_and_no_errors(peers: ModuleType) -> None:
    ours = {"study": "s", "package": "ntfa", "model": "HTFA", "ended": "done", "wall": 2.0, "CPU": 2.0, "R2": 0.9}
    theirs = {"study": "s", "package": "BrainIAK", "model": "HTFA", "ended": "limit", "process CPU": 300.0, "said": "3"}
    shown = peers.table([ours, theirs]).splitlines()
    assert len({line.count("|") for line in shown}) == 1
    assert "> 300" in shown[-1]
    assert peers.ratios([ours, theirs]) == ["s, HTFA: more than 150x less CPU time"]
    assert peers.ratios([ours, {**theirs, "ended": "done", "CPU": 100.0}]) == ["s, HTFA: 50x less CPU time"]
    assert peers.ratios([ours, {**theirs, "ended": "failed"}]) == []
    assert peers.unfinished([ours, theirs]) == ["s, BrainIAK HTFA: limit at 300 CPU s, having said '3'"]


def test_the_slope_is_the_exponent_of_a_power_law(growth: ModuleType) -> None:
    sizes = np.array([2.0, 4.0, 16.0])
    assert growth.slope(sizes, 3 * sizes**1.7) == pytest.approx(1.7)


def test_a_size_becomes_the_design_of_a_step(growth: ModuleType) -> None:
    participants, stimuli, repeats, length, voxels, factors = growth.Size().design
    assert stimuli * repeats * length == growth.Size().frames
    assert (participants, voxels, factors) == (growth.Size().participants, growth.Size().voxels, growth.Size().factors)
