"""Pure noise with random labels: no set of features may tell the labels apart."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from ntfa import NTFA, Study
from ntfa.analyses.decoding import decode
from ntfa.comparison import Settings, connectivity, features, mvpa
from ntfa.comparison.fits import Fits
from ntfa.estimators.base import TopographicModel
from ntfa.simulation.brain import mni_brain

SEEDS = range(8)
N_PARTICIPANTS, N_TRIALS, N_FRAMES, N_BEST = 3, 48, 3, 15
SETTINGS = Settings(n_factors=3, max_epochs=10, refit_per_fold=True, device="cpu", n_jobs=1, quiet=True)
ONCE = replace(SETTINGS, refit_per_fold=False)
SETS = ("voxel", "NTFA", "HTFA", "TFA", "ICA", "dictionary")
CONNECTIVITY_SETS = ("NTFA", "HTFA", "power regions", "voxel clusters")
Aucs = dict[str, "pd.Series[float]"]
# Chance of a false alarm in any of the sets that are looked at together. A fixed number of standard errors would not
# do: these are estimated from few values, and there are many sets.
FALSE_ALARM = 0.01


def noise_study(seed: int) -> Study:
    """Frames of white noise; half of each participant's trials, at random, are called `face`, the others `house`."""
    rng = np.random.default_rng(seed)
    coordinates = mni_brain(n_voxels=120)[1]
    rows = []
    for p in range(N_PARTICIPANTS):
        labels = rng.permutation(["face", "house"] * (N_TRIALS // 2))
        rows += [(f"p{p}", label, i * N_FRAMES, (i + 1) * N_FRAMES) for i, label in enumerate(labels)]
    frames = {f"p{p}": rng.normal(size=(N_TRIALS * N_FRAMES, len(coordinates))) for p in range(N_PARTICIPANTS)}
    return Study.from_arrays(
        frames, pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"]), coordinates
    )


def aucs(sets: dict[str, Any], trials: pd.DataFrame, category: str) -> Aucs:
    """Mean AUC of each participant, for every set of features."""
    found = {}
    for name, values in sets.items():
        n_best = N_BEST if name == "voxel" else None
        found[name] = decode(values, trials, category, n_best=n_best, n_jobs=1).groupby("participant")["auc"].mean()
    return found


def over_seeds(of_seed: Callable[[int], Aucs]) -> Aucs:
    found = [of_seed(seed) for seed in SEEDS]
    return {name: pd.concat([one[name] for one in found]) for name in found[0]}


def assert_at_chance(found: Aucs) -> None:
    allowed = student.ppf(1 - FALSE_ALARM / 2 / len(found), len(SEEDS) * N_PARTICIPANTS - 1)
    for name, values in found.items():
        assert len(values) == len(SEEDS) * N_PARTICIPANTS
        assert values.sem() < 0.04, f"{name}: too uncertain to tell"
        said = f"{name}: {values.mean():.3f} +- {values.sem():.3f}"
        assert abs(values.mean() - 0.5) < allowed * values.sem(), said


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fits")


def test_features_refitted_for_each_fold_are_at_chance(nowhere: Path) -> None:
    def of_seed(seed: int) -> Aucs:
        study = noise_study(seed)
        return aucs(mvpa.feature_sets(Fits(study, SETTINGS, nowhere / "refit")), study.trials, "stimulus")

    found = over_seeds(of_seed)
    assert tuple(found) == SETS
    assert_at_chance(found)


def test_connectivity_refitted_for_each_fold_is_at_chance(nowhere: Path) -> None:
    def of_seed(seed: int) -> Aucs:
        study = noise_study(seed)
        return aucs(connectivity.feature_sets(Fits(study, SETTINGS, nowhere / "refit")), study.trials, "stimulus")

    found = over_seeds(of_seed)
    assert tuple(found) == CONNECTIVITY_SETS
    assert_at_chance(found)


def test_weights_as_transform_gives_them_by_default_are_at_chance() -> None:
    """What a user classifies who does not read on."""

    def of_seed(seed: int) -> Aucs:
        study = noise_study(seed)

        def weights(training: pd.Index) -> Any:
            train = study.select(trials=study.trials.index.isin(training))
            model = NTFA(n_factors=3, max_epochs=10, random_state=0, uncertainty="mean-field", device="cpu")
            return model.fit(train).transform(study)

        return aucs({"NTFA": weights}, study.trials, "stimulus")

    assert_at_chance(over_seeds(of_seed))


def test_the_check_catches_weights_that_know_the_stimulus(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def knowing(model: TopographicModel, study: Study, by: str) -> Any:
        return model.transform(study, by=by, condition_on_stimulus=True)

    monkeypatch.setattr(features, "weights_without_stimuli", knowing)

    def of_seed(seed: int) -> Aucs:
        study = noise_study(seed)
        fits = Fits(study, SETTINGS, nowhere / "seeing")
        return aucs({"NTFA": features.topographic_features(fits, "ntfa", "trial")}, study.trials, "stimulus")

    found = over_seeds(of_seed)
    assert found["NTFA"].mean() > 0.5 + 5 * found["NTFA"].sem()
    with pytest.raises(AssertionError, match="NTFA"):
        assert_at_chance(found)


def test_the_check_catches_factors_that_were_fitted_with_the_labels(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why stimuli are left out of a fit to all trials: NTFA puts its factors where tested trials differ, too."""
    monkeypatch.setattr(Fits, "without_stimuli", Fits.on_all)

    def of_seed(seed: int) -> Aucs:
        study = noise_study(seed)
        fits = Fits(study, ONCE, nowhere / f"once-{seed}")
        return aucs({"NTFA": features.topographic_features(fits, "ntfa", "trial")}, study.trials, "stimulus")

    with pytest.raises(AssertionError, match="NTFA"):
        assert_at_chance(over_seeds(of_seed))


def test_features_fitted_once_are_at_chance(nowhere: Path) -> None:
    def of_seed(seed: int) -> Aucs:
        study = noise_study(seed)
        fits = Fits(study, ONCE, nowhere / f"once-{seed}")
        own, pairs = mvpa.feature_sets(fits), connectivity.feature_sets(fits)
        return aucs(own | {f"pairs of {name}": values for name, values in pairs.items()}, study.trials, "stimulus")

    found = over_seeds(of_seed)
    assert len(found) == len(SETS) + len(CONNECTIVITY_SETS)
    assert_at_chance(found)
