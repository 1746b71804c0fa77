"""The calibration benchmark: what it simulates and counts."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

SCRIPTS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("calibration")


@pytest.mark.parametrize("name", ["few", "trial effects", "smooth noise"])
def test_pairs_are_identical_in_truth_and_not_in_their_frames(calibration: ModuleType, name: str) -> None:
    study, truth = calibration.make_study(calibration.SCENARIOS[name], 3)
    z = truth.participant_embeddings.to_numpy()
    np.testing.assert_array_equal(z[0], z[1])
    np.testing.assert_array_equal(truth.participant_centers[0], truth.participant_centers[1])
    np.testing.assert_array_equal(truth.weights_mean.loc["sub-01"], truth.weights_mean.loc["sub-02"])
    assert np.linalg.norm(z[0] - z[2]) > 1e-3
    assert not np.array_equal(study.frames["sub-01"], study.frames["sub-02"])
    by_stimulus = truth.weights_mean.loc["sub-01"].to_numpy()
    np.testing.assert_array_equal(by_stimulus[0], by_stimulus[1])
    assert not np.allclose(by_stimulus[0], by_stimulus[2])


def test_misfit_adds_what_it_says(calibration: ModuleType) -> None:
    plain, truth = calibration.make_study(calibration.Scenario(n_participants=2, n_stimuli=2), 0)
    rough, _ = calibration.make_study(calibration.Scenario(n_participants=2, n_stimuli=2, smooth=0.5), 0)
    added = rough.frames["sub-01"] - plain.frames["sub-01"]
    assert added.std() == pytest.approx(0.5, rel=0.1)
    near = np.linalg.norm(truth.coordinates - truth.coordinates[300], axis=1)
    neighbour = int(np.argsort(near)[1])
    assert np.corrcoef(added[:, 300], added[:, neighbour])[0, 1] > 0.5


def test_rates_are_counted_with_jeffreys_interval(calibration: ModuleType) -> None:
    said = {"participants": [(0.0, 0.99), (0.0, 0.5), (0.5, 0.99), (0.3, 0.1)], "stimuli": [(0.0, 0.2)]}
    found = [{"scenario": "few", **dict.fromkeys(calibration.WAYS, said)}]
    table = calibration.false_positives(found).set_index("of")
    low, high = stats.beta(1.5, 1.5).ppf([0.025, 0.975])
    assert table.loc["participants", "calibrated"] == f"0.500 ({low:.3f}-{high:.3f})"
    assert table.loc["participants", "pairs"] == 2
    assert table.loc["stimuli", "calibrated"].startswith("0.000 (0.000-")
    power = calibration.power(found).set_index("of").loc["participants"]
    assert power["0.4-0.8"] == "1.00 (1)"
    assert power["0.2-0.4"] == "0.00 (1)"


def test_it_needs_neither_imaging_nor_saving_libraries() -> None:
    """It is to run on machines that have numpy, scipy, pandas and torch only."""
    hidden = ("nilearn", "nibabel", "sklearn", "matplotlib", "safetensors")
    script = (
        f"import sys, importlib.util as u\nhidden = {hidden}\nfind = u.find_spec\n"
        "for name in hidden[:-1]: sys.modules[name] = None\n"
        "u.find_spec = lambda name, *rest: None if name in hidden else find(name, *rest)\n"
        f"sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "import calibration\n"
        "from unittest.mock import MagicMock\n"
        "assert isinstance(sys.modules['safetensors'], MagicMock)\n"
        "print(calibration.make_study(calibration.SCENARIOS['few'], 0)[0].n_trials)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "128"
