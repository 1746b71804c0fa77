"""What HTFA and TFA alone have: blocks, a template, levels of trials."""

import numpy as np
import pytest

from ntfa import HTFA, TFA, Study, simulate
from ntfa.errors import ModelError
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
    template = HTFA(n_factors=3, max_epochs=150, random_state=0).fit(study).template_
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
    by_trial = HTFA(n_factors=3, max_epochs=10, random_state=0).fit(study).predict(pairs)
    np.testing.assert_array_equal(by_trial, np.repeat(by_trial[:1], 24, axis=0))


def test_tfa_of_trials_knows_its_own_trials_only(study: Study) -> None:
    train, test = study.split("diagonal")
    model = TFA(n_factors=3, block="trial", max_epochs=4, random_state=0).fit(train)
    assert model.transform(train).shape == (train.n_trials, 3)
    for use in (model.transform, model.score, lambda held_out: model.predict(held_out.trials)):
        with pytest.raises(ModelError, match="TFA.* trial"):
            use(test)


def test_htfa_of_trials_meets_new_trials_with_its_template(study: Study) -> None:
    train, test = study.split("diagonal")
    model = HTFA(n_factors=3, max_epochs=60, random_state=0).fit(train)
    assert np.isfinite(model.transform(test).to_numpy()).all()
    assert np.isfinite(model.score(test))
    known = HTFA(n_factors=3, block="participant", max_epochs=60, random_state=0).fit(train)
    assert np.isfinite(known.score(test))
    assert known.score(test) != model.score(test)


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
