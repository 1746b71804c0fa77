"""What every model promises of its results, whatever its kind and inference."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparing import FACTORS, Fitted, all_pairs, changed, relabelled
from helpers import naming, weights_of

from ntfa import NTFA, TLSA, Study
from ntfa.errors import ModelError, NTFAError, StudyError
from ntfa.simulation import Simulation

# --- units


def test_factors_are_found_where_they_were_planted_in_mm(
    kind: Any, clear_simulation: Simulation, clearly_fitted: Fitted
) -> None:
    truth, table = clear_simulation.truth, clearly_fitted(kind).factors_
    mean = table.groupby("factor")[FACTORS].mean()
    distance = np.linalg.norm(mean[["x", "y", "z"]].to_numpy()[:, None] - truth.centers, axis=-1)
    assert sorted(distance.argmin(1)) == [0, 1, 2]
    # Voxels are 8 mm apart; TLSA, which takes what varies from frame to frame for noise, is the farthest off.
    assert distance.min(1).max() < 1.2
    radius = np.exp(truth.log_widths / 2)[distance.argmin(1)]
    np.testing.assert_allclose(mean["width"], radius, rtol=0.1)
    every = np.linalg.norm(table[["x", "y", "z"]].to_numpy()[:, None] - truth.centers, axis=-1).min(1)
    assert every.max() < 4.0
    assert (table[["x_sd", "y_sd", "z_sd", "width_sd"]] > 0).all(axis=None)
    assert (table[["x_sd", "y_sd", "z_sd", "width_sd"]] < 10).all(axis=None)


def test_noise_is_found_in_the_units_of_the_data(
    kind: Any, clear_simulation: Simulation, clearly_fitted: Fitted
) -> None:
    model, (study, truth) = clearly_fitted(kind), clear_simulation
    expected = truth.noise
    if isinstance(model, TLSA):
        # It knows no variation of the weights from frame to frame, which is noise to it.
        trials = study.trials[["participant", "start", "stop"]].itertuples(index=False)
        expected = np.mean([study.frames[p][start:stop].var(0, ddof=1).mean() for p, start, stop in trials]) ** 0.5
        assert expected > 1.05 * truth.noise
    assert model.noise_ == pytest.approx(expected, rel=0.03)


def test_coordinates_moved_and_scaled_carry_through(kind: Any, study: Study, fitted: Fitted) -> None:
    shift = np.array([100.0, -50.0, 20.0])
    moved = changed(study, move=lambda coordinates: 2 * coordinates + shift)
    model, expected = kind.make().fit(moved), fitted(kind)
    np.testing.assert_allclose(model.factors_[["x", "y", "z"]], 2 * expected.factors_[["x", "y", "z"]] + shift)
    columns = ["width", "x_sd", "y_sd", "z_sd", "width_sd"]
    np.testing.assert_allclose(model.factors_[columns], 2 * expected.factors_[columns], rtol=1e-6)
    np.testing.assert_allclose(model.predict(all_pairs(study)), expected.predict(all_pairs(study)), atol=1e-6)
    np.testing.assert_allclose(model.history_["bound"], expected.history_["bound"])


def test_data_in_other_units_give_the_same_factors_and_scaled_images(kind: Any, study: Study, fitted: Fitted) -> None:
    scaled = changed(study, scale=1000)
    model, expected = kind.make().fit(scaled), fitted(kind)
    np.testing.assert_allclose(model.factors_[FACTORS], expected.factors_[FACTORS], rtol=1e-4)
    for table in ("participants_", "stimuli_"):
        if hasattr(expected, table):
            np.testing.assert_allclose(getattr(model, table), getattr(expected, table), rtol=1e-4, atol=1e-5)
    assert model.noise_ == pytest.approx(1000 * expected.noise_, rel=1e-5)
    for ours, theirs in zip(
        weights_of(model, scaled, return_sd=True), weights_of(expected, study, return_sd=True), strict=True
    ):
        np.testing.assert_allclose(ours, 1000 * theirs, rtol=1e-3, atol=0.1)
    np.testing.assert_allclose(
        model.predict(all_pairs(study)), 1000 * expected.predict(all_pairs(study)), rtol=1e-3, atol=0.1
    )
    shift = study.n_data * np.log(1000)
    np.testing.assert_allclose(model.history_["bound"] + shift, expected.history_["bound"], rtol=1e-6)
    assert model.score(scaled) + shift == pytest.approx(expected.score(study), rel=1e-6)


# --- the number of parameters, counted by hand


def test_parameters_are_counted_as_documented(kind: Any, study: Study, fitted: Fitted) -> None:
    p, s, n, t, k, d = 6, 4, 24, 24 * 5, 3, 2
    assert (len(study.participants), len(study.stimuli), study.n_trials, study.n_trial_frames) == (p, s, n, t)
    own_weights, levels, noise = 2 * t * k, 2 * n * k, 1
    if getattr(fitted(kind), "response_", None) == "loadings":
        r = len(fitted(kind).shares_.loc["stimuli"].dropna()) + 1
        group, spreads, mixing = r * k, 2 * k + r, k * (k - 1) // 2
        expected = group + spreads + mixing + 2 * (r - 1) * s + 8 * k + 2 * p * r * k + own_weights + noise
    elif kind.name.startswith("ntfa"):
        factor_network = (d + 1) * 2 * d + 1 + (2 * d + 1) * 4 * d + 1 + (4 * d + 1) * 8 * k
        weight_network = (2 * d + 1) * 4 * d + 1 + (4 * d + 1) * 8 * d + 1 + (8 * d + 1) * 2 * k
        expected = factor_network + weight_network + 2 * d * (p + s) + 8 * k * p + own_weights + noise
    elif kind.name.startswith("htfa"):
        blocks = n if "trial" in kind.name else p
        template, spreads, prior = 8 * k, 2 * k, 3 * k
        expected = template + spreads + prior + 8 * k * blocks + own_weights + levels + noise
    elif kind.name.startswith("tlsa"):
        template, spreads, prior, loadings = 8 * k, 2 * k, s * k + k, 2 * p * s * k
        expected = template + spreads + prior + 8 * k * p + loadings + noise
    else:
        expected = 8 * k * p + 3 * k * p + own_weights + levels + noise
    assert fitted(kind).n_parameters_ == expected


# --- transform


def test_transform_is_a_row_a_trial_indexed_as_the_trials(kind: Any, study: Study, fitted: Fitted) -> None:
    mean, sd = weights_of(fitted(kind), study, return_sd=True)
    for table in (mean, sd):
        assert table.shape == (study.n_trials, 3)
        pd.testing.assert_index_equal(table.index, study.trials.index)
        assert table.columns.tolist() == [1, 2, 3]
        assert np.isfinite(table.to_numpy()).all()
    assert (sd > 0).all(axis=None)
    pd.testing.assert_frame_equal(weights_of(fitted(kind), study), mean)


def test_frames_average_to_their_trial(kind: Any, uneven_study: Study, fitted: Fitted) -> None:
    model = fitted(kind)
    frames, sd = weights_of(model, uneven_study, by="frame", return_sd=True)
    lengths = uneven_study.trials["stop"] - uneven_study.trials["start"]
    assert frames.shape == sd.shape == (lengths.sum(), 3)
    assert frames.index.names == ["trial", "frame"]
    for trial, row in uneven_study.trials.iterrows():
        assert frames.loc[trial].index.tolist() == list(range(row["start"], row["stop"]))
    trial_mean, trial_sd = weights_of(model, uneven_study, return_sd=True)
    averages = frames.groupby(level="trial").mean().loc[uneven_study.trials.index]
    np.testing.assert_allclose(averages, trial_mean, atol=1e-9)
    largest = sd.groupby(level="trial").max().loc[uneven_study.trials.index]
    assert (trial_sd <= largest + 1e-12).all(axis=None)
    if isinstance(model, TLSA):
        np.testing.assert_allclose(trial_sd, largest, rtol=1e-12)
    else:
        assert (trial_sd[lengths > 1] < largest[lengths > 1]).all(axis=None)


def test_a_part_of_a_study_has_the_weights_it_has_in_the_whole(kind: Any, study: Study, fitted: Fitted) -> None:
    part = study.select(participants=study.participants[2:4], stimuli=study.stimuli[1:3])
    whole = weights_of(fitted(kind), study, return_sd=True)
    for few, all_ in zip(weights_of(fitted(kind), part, return_sd=True), whole, strict=True):
        # Products of float32 frames round differently with fewer frames.
        np.testing.assert_allclose(few, all_.loc[part.trials.index], rtol=1e-6, atol=1e-7)


def test_transform_recovers_the_simulated_weights(
    kind: Any, clear_simulation: Simulation, clearly_fitted: Fitted
) -> None:
    study, truth = clear_simulation
    model = clearly_fitted(kind)
    centers = model.factors_.groupby("factor")[["x", "y", "z"]].mean().to_numpy()
    order = np.linalg.norm(centers[:, None] - truth.centers, axis=-1).argmin(1)
    true = []
    for who, start, stop in study.trials[["participant", "start", "stop"]].itertuples(index=False):
        solution, *_ = np.linalg.lstsq(truth.factors(who).T, study.frames[who][start:stop].T, rcond=None)
        true.append(solution.T[:, order])
    found = weights_of(model, study, by="frame").to_numpy()
    if not isinstance(model, TLSA):
        assert np.abs(found - np.concatenate(true)).max() < 0.25
    by_trial = weights_of(model, study).to_numpy()
    assert np.sqrt(np.mean((by_trial - np.stack([w.mean(0) for w in true])) ** 2)) < 0.05


def test_transform_knows_trial_and_frame(study: Study, fitted: Fitted, collapsed_kind: Any) -> None:
    with pytest.raises(ModelError, match="by='run'"):
        weights_of(fitted(collapsed_kind), study, by="run")


# --- predict


def test_predict_takes_a_table_or_pairs(kind: Any, study: Study, fitted: Fitted) -> None:
    model, pairs = fitted(kind), all_pairs(study)
    images = model.predict(pairs)
    assert images.shape == (len(pairs), study.n_voxels)
    assert np.isfinite(images).all()
    table = pd.DataFrame(pairs, columns=["participant", "stimulus"], index=range(7, 7 + len(pairs)))
    np.testing.assert_array_equal(model.predict(table.assign(run=1)), images)
    np.testing.assert_array_equal(model.predict(pairs[::-1]), images[::-1])
    np.testing.assert_array_equal(model.predict(pairs[5:6]), images[5:6])
    assert model.predict([]).shape == (0, study.n_voxels)


def test_predict_covers_pairs_never_seen_together(kind: Any, study: Study) -> None:
    unseen = (study.trials["participant"] == "sub-02") & (study.trials["stimulus"] == study.stimuli[0])
    train, test = study.split(unseen)
    images = kind.make().fit(train).predict(test.trials)
    assert images.shape == (1, study.n_voxels)
    assert np.isfinite(images).all()
    assert np.abs(images).max() > 0


@pytest.mark.parametrize("pairs", [("sub-01", "task1_stim1"), "sub-01", pd.DataFrame({"participant": ["sub-01"]}), [1]])
def test_predict_says_what_it_wants(fitted: Fitted, collapsed_kind: Any, pairs: Any) -> None:
    with pytest.raises(NTFAError, match="stimulus"):
        fitted(collapsed_kind).predict(pairs)


# --- what a model does not know


def test_unknown_participants_are_named(kind: Any, study: Study, fitted: Fitted) -> None:
    model = fitted(kind)
    stranger = relabelled(study, participant=lambda p: "sub-99" if p == "sub-03" else p)
    for use in (partial(weights_of, model), model.score, lambda _: model.predict([("sub-99", study.stimuli[0])])):
        with pytest.raises(ModelError, match=naming("participant", "'sub-99'")):
            use(stranger)


def test_stimuli_only_in_the_test_set_are_named(kind: Any, study: Study) -> None:
    train, test = study.split(study.trials["stimulus"] == "task2_stim1")
    model = kind.make(max_epochs=3).fit(train)
    for estimator in ("collapsed", "paper"):
        with pytest.raises(ModelError, match=naming("stimulus", "'task2_stim1'")):
            model.score(test, estimator)
    with pytest.raises(ModelError, match=naming("stimulus", "'task2_stim1'")):
        model.predict([("sub-01", "task2_stim1")])
    if isinstance(model, NTFA | TLSA):
        with pytest.raises(ModelError, match=naming("stimulus", "'task2_stim1'")):
            model.transform(test, condition_on_stimulus=True)
    if not isinstance(model, TLSA):
        assert model.transform(test).shape == (test.n_trials, 3)


def test_only_a_few_of_many_unknown_labels_are_listed(fitted: Fitted, collapsed_kind: Any) -> None:
    with pytest.raises(ModelError) as caught:
        fitted(collapsed_kind).predict([(f"stranger-{i}", "task1_stim1") for i in range(100)])
    assert "stranger-0" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_study_with_other_voxels_is_refused(kind: Any, study: Study, fitted: Fitted) -> None:
    moved = changed(study, move=lambda coordinates: coordinates + 5)
    for use in (partial(weights_of, fitted(kind)), fitted(kind).score):
        with pytest.raises(StudyError, match="voxels"):
            use(moved)


def test_a_study_with_fewer_voxels_is_refused(collapsed_kind: Any, study: Study, fitted: Fitted) -> None:
    frames = {participant: array[:, :200] for participant, array in study.frames.items()}
    fewer = Study.from_arrays(frames, study.trials, study.coordinates[:200])
    for use in (partial(weights_of, fitted(collapsed_kind)), fitted(collapsed_kind).score):
        with pytest.raises(StudyError, match="voxels"):
            use(fewer)


# --- score


def test_score_is_reproducible_and_the_papers_estimator_looser(
    kind: Any, clear_simulation: Simulation, clearly_fitted: Fitted
) -> None:
    model, study = clearly_fitted(kind), clear_simulation.study
    scores = {}
    for estimator in ("collapsed", "paper"):
        result = model.log_predictive(study, estimator, n_samples=16)
        assert result.value == model.score(study, estimator, n_samples=16)
        assert np.isfinite(result.value)
        assert result.standard_error > 0
        scores[estimator] = result.value
    assert scores["collapsed"] > scores["paper"]


def test_score_refuses_what_it_cannot_do(collapsed_kind: Any, study: Study, fitted: Fitted) -> None:
    with pytest.raises(ModelError, match="estimator='exact'"):
        fitted(collapsed_kind).score(study, "exact")
    with pytest.raises(ModelError, match="n_samples=0"):
        fitted(collapsed_kind).score(study, n_samples=0)
