"""Studies as hard as real ones: what can be predicted is what can be in the real ones, and what fails there fails."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ntfa import NTFA, Study
from ntfa.simulation import simulate
from ntfa.simulation.presets import PRESETS

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def presets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("measure_presets")


def maps_of(presets: ModuleType, like: str, study: Study) -> Any:
    """The maps of a study, scaled by those that are not held out as the real ones are."""
    stimuli = study.trials.drop_duplicates("stimulus")
    labels = {name: stimuli[name].tolist() for name in ("stimulus", "category")}
    form = presets.Maps(np.empty(0), np.empty(0), labels["stimulus"], labels["category"], centred=like == "mdtb")
    return presets.scaled(presets.usable(presets.from_study(study, form)))


# Errors of held-out maps over those of predicting zero in the real studies, by the same functions.
MEASURED = {
    "woo": {"mean image": 0.984, "stimulus' mean image": 0.968, "individual loadings": 0.934, "noise floor": 0.884},
    "mdtb": {"mean image": 1.0, "stimulus' mean image": 0.868, "individual loadings": 0.735, "noise floor": 0.565},
}


@pytest.mark.parametrize("like", ["woo", "mdtb"])
def test_what_can_be_predicted_is_what_can_be_in_the_real_study(presets: ModuleType, like: str) -> None:
    """The study's own size but for the voxels. Over seeds, errors have an sd of up to 0.01 (Woo) and 0.02 (MDTB)."""
    maps = maps_of(presets, like, simulate(like, n_voxels=1500).study)
    found = {name: error for name, (error, _) in presets.predictors(maps).items()}
    assert found == pytest.approx(MEASURED[like], abs={"woo": 0.025, "mdtb": 0.04}[like])
    assert found["individual loadings"] < found["stimulus' mean image"] - 0.015 < found["mean image"]
    realism, shares = PRESETS[like].realism, presets.shares(maps.values)
    asked = {name: getattr(realism, name) for name in shares if name != "noise"} | {"noise": realism.noise_share}
    assert shares == pytest.approx(asked, abs=0.02 if like == "woo" else 0.04)
    assert presets.noise_ar1(maps) == pytest.approx(realism.noise_ar1, abs=0.03)
    assert presets.decays(maps.values)["feature_decay"] == pytest.approx(realism.feature_decay, abs=0.03)


def test_the_papers_ntfa_predicts_worse_than_the_stimulus_mean_image(presets: ModuleType) -> None:
    """As on real data: factors follow each participant's smooth noise, and two dimensions are too few."""
    study = simulate("mdtb", n_participants=6, n_stimuli=8, n_voxels=400, n_factors=200).study
    maps = maps_of(presets, "mdtb", study)
    train = ~maps.held_out
    frames = {
        participant: np.concatenate(list(maps.values[p][train[p]])).astype(np.float32)
        for p, participant in enumerate(study.participants)
    }
    rows = [
        (participant, maps.stimuli[s], 2 * i, 2 * i + 2)
        for p, participant in enumerate(study.participants)
        for i, s in enumerate(np.flatnonzero(train[p]))
    ]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    model = NTFA(30, embedding_dim=2, uncertainty="mean-field", random_state=0)
    model.fit(Study.from_arrays(frames, trials, maps.coordinates))
    pairs = [(study.participants[p], maps.stimuli[s]) for p, s in np.argwhere(maps.held_out)]
    held_out = maps.values[maps.held_out]
    error = ((held_out - np.asarray(model.predict(pairs))[:, None]) ** 2).mean() / (held_out**2).mean()
    assert error > presets.predictors(maps)["stimulus' mean image"][0] + 0.02
