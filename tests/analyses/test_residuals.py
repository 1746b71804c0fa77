"""Residual sd of every voxel, against brute force."""

import numpy as np
import pandas as pd
import pytest

import ntfa.analyses.residuals as residuals
from ntfa import HTFA, NTFA, TFA, Study
from ntfa.analyses.residuals import residual_sd
from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel


def brute_force(model: TopographicModel, study: Study, by_trial: bool) -> np.ndarray:
    """Every residual of every frame, one by one, from the public tables."""
    weights, squares = model.transform(study, by="frame", condition_on_stimulus=True), []
    for name, trial in study.trials.iterrows():
        own = model.factors_[model.factors_["participant"] == trial["participant"]]
        if by_trial:
            own = own[(own["start"] == trial["start"]) & (own["stop"] == trial["stop"])]
        for frame in range(trial["start"], trial["stop"]):
            expected = np.zeros(study.n_voxels)
            for _, factor in own.iterrows():
                distance = study.coordinates - factor[["x", "y", "z"]].to_numpy(dtype=float)
                height = np.exp(-(distance**2).sum(1) / factor["width"] ** 2)
                expected += weights.loc[(name, frame), factor["factor"]] * height
            squares.append((study.frames[trial["participant"]][frame] - expected) ** 2)
    return np.sqrt(np.mean(squares, axis=0))


@pytest.mark.parametrize(
    ("model", "by_trial"),
    [
        (NTFA(n_factors=3, max_epochs=12, random_state=0), False),
        (HTFA(n_factors=2, max_epochs=5, random_state=0, block="trial"), True),
        (TFA(n_factors=2, max_epochs=5, random_state=0), False),
    ],
    ids=["ntfa", "htfa", "tfa"],
)
def test_it_is_what_brute_force_finds(uneven_study: Study, model: TopographicModel, by_trial: bool) -> None:
    model.fit(uneven_study)
    found = residual_sd(model, uneven_study)
    np.testing.assert_allclose(found, brute_force(model, uneven_study, by_trial), rtol=1e-5)


def test_chunks_do_not_change_it(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    model = NTFA(n_factors=2, max_epochs=3, random_state=0).fit(study)
    whole = residual_sd(model, study)
    monkeypatch.setattr(residuals, "CHUNK_VALUES", 60)
    np.testing.assert_allclose(residual_sd(model, study), whole, rtol=1e-12)


def test_trials_may_share_a_name(study: Study) -> None:
    model = NTFA(n_factors=2, max_epochs=3, random_state=0).fit(study)
    same = Study(study.coordinates, study.trials.set_axis(["a"] * study.n_trials), study.frames)
    np.testing.assert_allclose(residual_sd(model, same), residual_sd(model, study), rtol=1e-12)


def test_it_finds_the_noisy_voxels() -> None:
    rng = np.random.default_rng(0)
    coordinates = np.argwhere(np.ones((6, 6, 6))) * 8.0
    noise = np.where(coordinates[:, 0] < 20, 0.2, 2.0)
    frames = {p: noise * rng.normal(size=(200, len(coordinates))) for p in "ab"}
    trials = pd.DataFrame({"participant": ["a", "b"], "stimulus": ["s", "s"], "start": 0, "stop": 200})
    study = Study.from_arrays(frames, trials, coordinates)
    found = residual_sd(NTFA(n_factors=1, max_epochs=3, random_state=0).fit(study), study)
    # Four hundred values a voxel tell its sd to within a few percent; the factor takes a little of it.
    np.testing.assert_allclose(found, noise, rtol=0.2)


def test_a_trial_unknown_to_htfa_has_the_template(study: Study) -> None:
    train, test = study.split("diagonal")
    model = HTFA(n_factors=2, max_epochs=5, random_state=0, block="trial").fit(train)
    trial = test.trials.iloc[0]
    one = test.select(trials=test.trials.index == trial.name)
    weights = model.transform(one, by="frame").to_numpy()
    template = model.template_
    distance = study.coordinates[None] - template[["x", "y", "z"]].to_numpy()[:, None]
    factors = np.exp(-(distance**2).sum(-1) / template["width"].to_numpy()[:, None] ** 2)
    frames = study.frames[trial["participant"]][trial["start"] : trial["stop"]]
    expected = np.sqrt(((frames - weights @ factors) ** 2).mean(0))
    np.testing.assert_allclose(residual_sd(model, one), expected, rtol=1e-5)


def test_a_trial_of_another_study_at_the_same_frame_numbers_has_the_template(study: Study) -> None:
    model = HTFA(n_factors=2, max_epochs=40, random_state=0, block="trial").fit(study)
    frames = {who: -array for who, array in study.frames.items()}
    another = Study.from_arrays(frames, study.trials, study.coordinates)
    later = study.trials.assign(start=study.trials["start"] + 2, stop=study.trials["stop"] + 2)
    shifted = {who: np.concatenate([array[:2], array]) for who, array in frames.items()}
    expected = residual_sd(model, Study.from_arrays(shifted, later, study.coordinates))
    np.testing.assert_allclose(residual_sd(model, another), expected, rtol=1e-12)


def test_a_model_without_factors_for_a_trial_says_so(study: Study) -> None:
    train, test = study.split("diagonal")
    model = TFA(n_factors=2, max_epochs=2, random_state=0, block="trial").fit(train)
    with pytest.raises(ModelError):
        residual_sd(model, test)
