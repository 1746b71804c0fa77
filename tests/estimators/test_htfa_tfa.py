"""What HTFA and TFA alone have: blocks, a template, levels of trials."""

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from ntfa import HTFA, TFA, Study, simulate
from ntfa.errors import Interrupted, ModelError
from ntfa.estimators import htfa
from ntfa.fitting.checkpoint import Checkpoint
from ntfa.fitting.training import Trainer
from ntfa.simulation import Simulation

CENTER = ["x", "y", "z"]


@pytest.fixture(scope="module")
def individual() -> Simulation:
    """A twin of a real study, in which every participant has a layout of their own."""
    return simulate(
        "haxby",
        n_participants=4,
        n_stimuli=4,
        n_runs=3,
        n_frames=5,
        n_voxels=800,
        n_factors=4,
        noise=0.1,
        random_state=1,
    )


def test_the_template_is_a_table_in_mm(clear_simulation: Simulation) -> None:
    study, truth = clear_simulation
    template = HTFA(n_factors=3, block="trial", max_epochs=150, random_state=0).fit(study).template_
    assert template.columns.tolist()[:5] == ["factor", "x", "y", "z", "width"]
    assert template["factor"].tolist() == [1, 2, 3]
    distance = np.linalg.norm(template[CENTER].to_numpy()[:, None] - truth.centers, axis=-1)
    assert sorted(distance.argmin(1)) == [0, 1, 2]
    assert distance.min(1).max() < 1.5
    assert (template[["x_sd", "y_sd", "z_sd", "width_sd"]] > 0).all(axis=None)


@pytest.mark.parametrize("estimator", [HTFA, TFA])
def test_every_block_has_rows_in_the_table_of_factors(uneven_study: Study, estimator: type[HTFA] | type[TFA]) -> None:
    model = estimator(n_factors=2, block="trial", max_epochs=2, random_state=0).fit(uneven_study)
    assert model.factors_.columns.tolist()[:4] == ["participant", "start", "stop", "factor"]
    rows = model.factors_[["participant", "start", "stop"]].drop_duplicates()
    expected = uneven_study.trials.sort_values(["participant", "start"])[["participant", "start", "stop"]]
    assert rows.to_numpy().tolist() == expected.to_numpy().tolist()
    assert len(model.factors_) == 2 * uneven_study.n_trials
    by_participant = estimator(n_factors=2, block="participant", max_epochs=2, random_state=0).fit(uneven_study)
    assert by_participant.factors_["participant"].tolist() == [p for p in uneven_study.participants for _ in range(2)]
    assert "start" not in by_participant.factors_


@pytest.mark.parametrize("estimator", [HTFA, TFA])
def test_participants_factors_follow_their_own_layout(
    individual: Simulation, estimator: type[HTFA] | type[TFA]
) -> None:
    study, truth = individual
    model = estimator(n_factors=4, block="participant", max_epochs=200, random_state=0).fit(study)
    found = model.factors_[CENTER].to_numpy().reshape(4, 4, 3)
    distance = np.linalg.norm(found.mean(0)[:, None] - truth.centers, axis=-1)
    assert sorted(distance.argmin(1)) == [0, 1, 2, 3]
    true = truth.participant_centers[:, distance.argmin(1)]
    own = (found - found.mean(0)).ravel()
    true_own = (true - true.mean(0)).ravel()
    assert np.std(true_own) > 1
    assert np.corrcoef(own, true_own)[0, 1] > 0.8


def test_no_stimulus_is_told_from_another(study: Study) -> None:
    pairs = [(p, s) for p in study.participants for s in study.stimuli]
    for model in (HTFA(n_factors=3, block="participant"), TFA(n_factors=3)):
        images = model.set_params(max_epochs=10, random_state=0).fit(study).predict(pairs).reshape(6, 4, -1)
        np.testing.assert_array_equal(images, np.repeat(images[:, :1], 4, axis=1))
        assert np.abs(images[0] - images[1]).max() > 0
    by_trial = HTFA(n_factors=3, block="trial", max_epochs=10, random_state=0).fit(study).predict(pairs)
    np.testing.assert_array_equal(by_trial, np.repeat(by_trial[:1], 24, axis=0))


def test_tfa_of_trials_knows_its_own_trials_only(study: Study) -> None:
    train, test = study.split("diagonal")
    model = TFA(n_factors=3, block="trial", max_epochs=4, random_state=0).fit(train)
    assert model.transform(train).shape == (train.n_trials, 3)
    for use in (model.transform, model.score, lambda held_out: model.predict(held_out.trials)):
        with pytest.raises(ModelError, match="TFA"):
            use(test)


def test_htfa_of_trials_meets_new_trials_with_its_template(study: Study) -> None:
    train, test = study.split("diagonal")
    model = HTFA(n_factors=3, block="trial", max_epochs=60, random_state=0).fit(train)
    weights, score, known = model.transform(test), model.score(test), model.score(train)
    assert np.isfinite(weights.to_numpy()).all()
    module = model._fitted.module
    with torch.no_grad():
        module.centers.mean += 1.0
    pd.testing.assert_frame_equal(model.transform(test), weights)
    assert model.score(test) == score
    assert model.score(train) < known - 1
    with torch.no_grad():
        module.template_centers.mean += 1.0
    assert model.score(test) < score - 1


def moved(study: Study, by: int) -> Study:
    """The same trials at other frame numbers."""
    frames = {who: np.concatenate([array[:by], array]) for who, array in study.frames.items()}
    trials = study.trials.assign(start=study.trials["start"] + by, stop=study.trials["stop"] + by)
    return Study.from_arrays(frames, trials, study.coordinates)


def test_trials_of_another_study_are_new_whatever_their_frame_numbers(study: Study) -> None:
    """They have the numbers of fitted trials, and would be given these trials' factors."""
    another = Study.from_arrays({who: -array for who, array in study.frames.items()}, study.trials, study.coordinates)
    by_trial = HTFA(n_factors=3, block="trial", max_epochs=40, random_state=0).fit(study)
    for estimator in ("collapsed", "paper"):
        assert by_trial.score(another, estimator) == by_trial.score(moved(another, 3), estimator)
    pd.testing.assert_frame_equal(by_trial.transform(another), by_trial.transform(moved(another, 3)))
    tfa = TFA(n_factors=3, block="trial", max_epochs=4, random_state=0).fit(study)
    for use in (tfa.transform, tfa.score):
        with pytest.raises(ModelError):
            use(another)


@pytest.mark.parametrize("estimator", [HTFA, TFA])
def test_fitted_trials_are_known_whatever_their_frame_numbers(
    study: Study, estimator: type[HTFA] | type[TFA], tmp_path: Path
) -> None:
    model = estimator(n_factors=3, block="trial", max_epochs=40, random_state=0).fit(study)
    model.save(tmp_path / "model")
    loaded = estimator.load(tmp_path / "model")
    elsewhere = moved(study, 3)
    for use in (model, loaded):
        assert use.score(elsewhere) == use.score(study) == model.score(study)
        pd.testing.assert_frame_equal(use.transform(elsewhere), model.transform(study))
    shifted = moved(study, 10)  # Trials are ten frames apart: these start where others did at the fit.
    assert set(shifted.trials["start"]) & set(study.trials["start"])
    assert model.score(shifted) == model.score(study)


def test_trials_with_the_same_frames_are_told_apart_by_their_numbers(study: Study) -> None:
    who = study.participants[0]
    first, second = study.trials.index[study.trials["participant"] == who][:2]
    array = study.frames[who].copy()
    one, other = (slice(*study.trials.loc[trial, ["start", "stop"]]) for trial in (first, second))
    array[other] = array[one]
    twice = Study.from_arrays({**study.frames, who: array}, study.trials, study.coordinates)
    model = HTFA(n_factors=3, block="trial", max_epochs=10, random_state=0).fit(twice)
    weights = model.transform(twice)
    owners = model.factors_.groupby(["participant", "start"])[CENTER].mean()
    assert (owners.loc[who, one.start] != owners.loc[who, other.start]).all()
    assert (weights.loc[first] != weights.loc[second]).any()


def test_models_saved_without_fingerprints_load_with_a_warning(
    study: Study, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = HTFA(n_factors=3, block="trial", max_epochs=4, random_state=0).fit(study)
    model.save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    assert len(set(config["labels"].pop("fingerprints"))) == study.n_trials
    path.write_text(json.dumps(config))
    loaded = HTFA.load(tmp_path / "model")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert loaded.score(study) == model.score(study)
    path.write_text(json.dumps(config | {"labels": config["labels"] | {"fingerprints": ["a"]}}))
    with pytest.raises(ModelError, match="fingerprints"):
        HTFA.load(tmp_path / "model")


@pytest.mark.parametrize("estimator", [HTFA, TFA])
def test_frames_of_a_trial_share_its_level(clear_simulation: Simulation, estimator: type[HTFA] | type[TFA]) -> None:
    """What is unknown of the level does not average out, so 5 frames have more than 1 / 5 of a frame's variance."""
    study = clear_simulation.study
    model = estimator(n_factors=3, block="participant", max_epochs=30, random_state=0).fit(study)
    _, sd = model.transform(study, return_sd=True)
    _, frame_sd = model.transform(study, by="frame", return_sd=True)
    first = frame_sd.groupby(level="trial").first().loc[sd.index]
    assert (sd > first / np.sqrt(5)).all(axis=None)
    assert (sd < first).all(axis=None)


def test_hierarchy_helps_where_a_block_has_little_data() -> None:
    """HTFA's factors of noisy trials come nearer the truth than TFA's, which borrow nothing."""
    study, truth = simulate(
        "synthetic", n_participants=3, n_stimuli=4, n_frames=4, n_voxels=600, noise=0.5, random_state=0
    )
    error = {}
    for estimator in (HTFA, TFA):
        model = estimator(n_factors=3, block="trial", max_epochs=150, random_state=0).fit(study)
        centers = model.factors_[CENTER].to_numpy()
        error[estimator] = np.linalg.norm(centers[:, None] - truth.centers, axis=-1).min(1).mean()
    assert error[HTFA] < error[TFA]


@pytest.fixture(scope="module")
def ten_frames() -> Simulation:
    """Trials of ten frames, in which every participant has a layout of their own."""
    sizes = {"n_participants": 4, "n_stimuli": 4, "n_runs": 2, "n_voxels": 400, "n_factors": 3}
    return simulate("haxby", **sizes, n_frames=10, noise=0.3, random_state=1)


@pytest.fixture(scope="module")
def trials(ten_frames: Simulation) -> Study:
    return ten_frames.study


def test_trials_that_start_at_their_participants_factors_end_as_near(
    ten_frames: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, truth = ten_frames

    def fitted() -> HTFA:
        return HTFA(n_factors=3, block="trial", random_state=0, device="cpu").fit(trials)

    def error(model: HTFA) -> float:
        found = model.factors_.groupby("participant")[CENTER].apply(lambda own: own.to_numpy())
        apart = [
            np.linalg.norm(found[who][:, None] - true, axis=-1).min(1)
            for who, true in zip(trials.participants, truth.participant_centers, strict=True)
        ]
        return float(np.median(np.concatenate(apart)))

    monkeypatch.setattr(htfa, "MANY_FACTORS", 10**9)
    alone = fitted()
    monkeypatch.setattr(htfa, "MANY_FACTORS", 1)
    approached = fitted()
    assert alone.converged_
    assert approached.converged_
    assert len(approached.history_) < len(alone.history_)
    final = [model.history_["bound"].iloc[-10:].mean() / trials.n_data for model in (alone, approached)]
    assert final[1] > final[0] - 5e-4
    assert error(approached) < error(alone) + 0.5


def test_steps_of_both_fits_count_and_short_trials_start_as_ever(
    trials: Study, monkeypatch: pytest.MonkeyPatch, uneven_study: Study
) -> None:
    monkeypatch.setattr(htfa, "MANY_FACTORS", 1)
    settings = {"n_factors": 2, "block": "trial", "random_state": 0, "device": "cpu"}
    few = HTFA(max_epochs=8, **settings).fit(trials)
    assert (len(few.history_), few.stopped_) == (4, "max_epochs")
    monkeypatch.setattr(htfa, "LONG_TRIAL", 11)
    assert len(HTFA(max_epochs=8, **settings).fit(trials).history_) == 8


@pytest.mark.parametrize("which", ["participants/restart-0.safetensors", "restart-0.safetensors"])
def test_stopped_in_the_fit_to_participants_or_in_that_to_trials(
    trials: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str
) -> None:
    monkeypatch.setattr(htfa, "MANY_FACTORS", 1)
    model = HTFA(n_factors=2, block="trial", max_epochs=12, random_state=0, device="cpu")
    undisturbed = clone(model).fit(trials)
    original = Checkpoint.after_step

    def after_step(self: Checkpoint, trainer: Trainer) -> None:
        if self.path == tmp_path / which and len(trainer.history.bounds) == 3:
            self.signals.append(signal.SIGTERM)
        original(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "after_step", after_step)
        with pytest.raises(Interrupted):
            clone(model).fit(trials, checkpoint=tmp_path)
    resumed = clone(model).fit(trials, checkpoint=tmp_path)
    for name, tensor in undisturbed._fitted.module.state_dict().items():
        assert torch.equal(resumed._fitted.module.state_dict()[name], tensor), name
