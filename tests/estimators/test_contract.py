"""What every model promises, whatever its kind and inference."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.base
import torch

from ntfa import HTFA, NTFA, TFA, TLSA, Study, simulate
from ntfa.errors import ModelError, NotFittedError, NTFAError, StudyError
from ntfa.estimators.base import TopographicModel
from ntfa.simulation import Simulation

FACTORS = ["x", "y", "z", "width"]
TABLES = ("factors_", "history_", "participants_", "stimuli_", "template_", "loadings_")
Fitted = Callable[[Any], TopographicModel]


def all_pairs(study: Study) -> list[tuple[str, str]]:
    return [(participant, stimulus) for participant in study.participants for stimulus in study.stimuli]


def tables(model: TopographicModel) -> dict[str, pd.DataFrame]:
    found = {name: getattr(model, name) for name in TABLES if hasattr(model, name)}
    return found | {"history_": model.history_.drop(columns="seconds")}


def assert_same_fit(one: TopographicModel, other: TopographicModel, study: Study) -> None:
    assert tables(one).keys() == tables(other).keys()
    for name, table in tables(one).items():
        pd.testing.assert_frame_equal(table, tables(other)[name], check_exact=True, obj=name)
    assert one.noise_ == other.noise_
    assert one.n_parameters_ == other.n_parameters_
    assert (one.seed_, one.stopped_, one.converged_) == (other.seed_, other.stopped_, other.converged_)
    np.testing.assert_array_equal(one.predict(all_pairs(study)), other.predict(all_pairs(study)))
    for a, b in zip(one.transform(study, return_sd=True), other.transform(study, return_sd=True), strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)


def changed(study: Study, scale: float = 1.0, move: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Study:
    frames = {participant: array * np.float32(scale) for participant, array in study.frames.items()}
    return Study.from_arrays(frames, study.trials, move(study.coordinates))


def relabelled(study: Study, **labels: Callable[[str], str]) -> Study:
    trials = study.trials.assign(**{column: study.trials[column].map(new) for column, new in labels.items()})
    new = labels.get("participant", str)
    return Study.from_arrays({new(p): array for p, array in study.frames.items()}, trials, study.coordinates)


# --- reproducible


def test_same_seed_same_result(kind: Any, study: Study, fitted: Fitted) -> None:
    assert_same_fit(kind.make().fit(study), fitted(kind), study)


def test_another_seed_another_result(kind: Any, study: Study, fitted: Fitted) -> None:
    other = kind.make(random_state=1).fit(study)
    assert other.seed_ == 1
    assert not other.history_["bound"].equals(fitted(kind).history_["bound"])


def test_refit_equals_fit(kind: Any, study: Study, uneven_study: Study, fitted: Fitted) -> None:
    model = kind.make().fit(uneven_study.select(stimuli=study.stimuli[:3]))
    assert_same_fit(model.fit(study), fitted(kind), study)
    assert_same_fit(model.fit(study), fitted(kind), study)


def test_no_seed_draws_one_and_records_it(collapsed_kind: Any, study: Study) -> None:
    model = collapsed_kind.make(random_state=None, max_epochs=4).fit(study)
    again = collapsed_kind.make(random_state=None, max_epochs=4).fit(study)
    assert model.random_state is None
    assert model.seed_ != again.seed_
    assert_same_fit(collapsed_kind.make(random_state=model.seed_, max_epochs=4).fit(study), model, study)


def test_fit_touches_neither_the_study_nor_the_global_random_state(kind: Any, study: Study) -> None:
    frames = {participant: array.copy() for participant, array in study.frames.items()}
    trials, coordinates = study.trials.copy(), study.coordinates.copy()
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    model = kind.make(init="kmeans", max_epochs=3).fit(study)
    model.transform(study)
    model.score(study, n_samples=4)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    for participant, array in frames.items():
        np.testing.assert_array_equal(study.frames[participant], array)
    pd.testing.assert_frame_equal(study.trials, trials)
    np.testing.assert_array_equal(study.coordinates, coordinates)


def test_the_order_of_rows_and_of_participants_does_not_matter(kind: Any, study: Study, fitted: Fitted) -> None:
    frames = dict(reversed(study.frames.items()))
    shuffled = Study.from_arrays(frames, study.trials.sample(frac=1, random_state=1), study.coordinates)
    model = kind.make().fit(shuffled)
    expected = fitted(kind)
    np.testing.assert_array_equal(model.predict(all_pairs(study)), expected.predict(all_pairs(study)))
    pd.testing.assert_frame_equal(
        model.transform(shuffled).loc[study.trials.index], expected.transform(study), check_exact=True
    )


@pytest.mark.parametrize("estimator", [NTFA, HTFA, TFA, TLSA])
@pytest.mark.parametrize("inference", ["collapsed", "mean-field"])
def test_one_thread_or_two_agree(estimator: type[TopographicModel], inference: str) -> None:
    # Large enough for PyTorch to share its products out among threads.
    study = simulate("synthetic", n_participants=3, n_stimuli=4, n_frames=10, n_voxels=1500, random_state=0).study
    models = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        try:
            models.append(estimator(n_factors=20, inference=inference, max_epochs=8, random_state=0).fit(study))
        finally:
            torch.set_num_threads(1)
    one, two = models
    np.testing.assert_allclose(two.history_["bound"], one.history_["bound"], rtol=1e-4)
    np.testing.assert_allclose(two.factors_[FACTORS], one.factors_[FACTORS], rtol=1e-4, atol=1e-3)
    for table in ("participants_", "stimuli_"):
        if hasattr(one, table):
            np.testing.assert_allclose(getattr(two, table), getattr(one, table), rtol=1e-4, atol=1e-6)


# --- settings


def test_parameters_are_those_of_scikit_learn(kind: Any, study: Study) -> None:
    model = kind.make()
    assert model.get_params() == {**model.get_params(), **kind.settings, "n_factors": 3, "random_state": 0}
    assert model.set_params(n_factors=2, verbose=0) is model
    assert model.n_factors == 2
    copy = sklearn.base.clone(model.fit(study))
    assert type(copy) is type(model)
    assert copy.get_params() == model.get_params()
    assert not [name for name in vars(copy) if name.endswith("_")]
    with pytest.raises(ModelError, match="n_factor'"):
        model.set_params(n_factor=3)


WRONG = [
    *(("n_factors", value) for value in (0, -1, 2.5, "3", True, None)),
    *((name, 0) for name in ("max_epochs", "n_particles", "n_restarts")),
    ("inference", "exact"),
    ("inference", None),
    ("init", "random"),
    ("schedule", "cosine"),
    ("device", "tpu"),
    ("embedding_dim", 0),
    ("embedding_dim", 1.5),
    ("block", "stimulus"),
    *(("design", value) for value in ([], None, 3, ["stimulus", 1], ["stimulus", "stimulus"])),
]


def test_wrong_settings_are_named_at_fit(collapsed_kind: Any, study: Study) -> None:
    own = collapsed_kind.make().get_params()
    for name, value in [(name, value) for name, value in WRONG if name in own]:
        model = collapsed_kind.make(**{name: value})
        with pytest.raises(ModelError, match=re.escape(f"{name}={value!r}")):
            model.fit(study)
        with pytest.raises(NotFittedError):
            model.transform(study)


@pytest.mark.parametrize("value", ["a", 1.5, -1, 2**70])
def test_a_wrong_seed_is_named_at_fit(study: Study, value: Any) -> None:
    with pytest.raises(ModelError, match=re.escape(f"random_state={value!r}")):
        NTFA(n_factors=3, max_epochs=2, random_state=value).fit(study)


@pytest.mark.parametrize("name", ["n_factors", "max_epochs", "random_state"])
def test_numpy_integers_are_integers(study: Study, tmp_path: Path, name: str) -> None:
    settings = {"n_factors": 3, "max_epochs": 2, "random_state": 0, name: np.int64(2)}
    model = NTFA(**settings).fit(study, checkpoint=tmp_path / "checkpoint")
    model.save(tmp_path / "model")
    assert getattr(NTFA.load(tmp_path / "model"), name) == 2


def test_more_factors_than_voxels_are_refused(collapsed_kind: Any, study: Study) -> None:
    with pytest.raises(ModelError, match=r"n_factors=301 .* 300 voxels"):
        collapsed_kind.make(n_factors=301).fit(study)


@pytest.mark.parametrize("init", ["pursuit", "kmeans"])
@pytest.mark.parametrize("n_voxels", [2, 7])
def test_as_many_factors_as_voxels_fit(study: Study, n_voxels: int, init: str) -> None:
    frames = {participant: array[:, :n_voxels] for participant, array in study.frames.items()}
    small = Study.from_arrays(frames, study.trials, study.coordinates[:n_voxels])
    model = NTFA(n_factors=n_voxels, init=init, max_epochs=5, random_state=0).fit(small)
    assert np.isfinite(model.factors_[FACTORS].to_numpy()).all()
    assert np.isfinite(model.history_["bound"]).all()


def test_a_single_voxel_fits(study: Study) -> None:
    frames = {participant: array[:, :1] for participant, array in study.frames.items()}
    model = NTFA(n_factors=1, max_epochs=3, random_state=0)
    assert len(model.fit(Study.from_arrays(frames, study.trials, study.coordinates[:1])).factors_) == 6


# --- before and after a fit


@pytest.mark.parametrize(
    "use",
    [
        lambda model, study, folder: model.transform(study),
        lambda model, study, folder: model.predict(all_pairs(study)),
        lambda model, study, folder: model.score(study),
        lambda model, study, folder: model.log_predictive(study),
        lambda model, study, folder: model.save(folder),
    ],
    ids=["transform", "predict", "score", "log_predictive", "save"],
)
def test_unfitted_use_raises(collapsed_kind: Any, study: Study, tmp_path: Path, use: Callable) -> None:
    model = collapsed_kind.make()
    with pytest.raises(NotFittedError, match=rf"{type(model).__name__} is not fitted yet: call fit"):
        use(model, study, tmp_path / "model")
    assert not any(tmp_path.iterdir())


def test_a_failed_refit_leaves_the_fitted_model_as_it_was(study: Study) -> None:
    model = NTFA(n_factors=3, max_epochs=3, random_state=0).fit(study)
    before = model.predict(all_pairs(study))
    bad = relabelled(study, participant="x{}".format)
    bad.frames["xsub-01"] = np.full_like(bad.frames["xsub-01"], np.nan)
    with pytest.raises(StudyError, match="xsub-01"):
        model.fit(bad)
    np.testing.assert_array_equal(model.predict(all_pairs(study)), before)


def test_parameters_set_after_a_fit_do_not_change_its_results(study: Study, tmp_path: Path) -> None:
    model = NTFA(n_factors=3, max_epochs=3, random_state=0).fit(study)
    weights = model.transform(study)
    model.set_params(n_factors=2)
    pd.testing.assert_frame_equal(model.transform(study), weights)
    model.save(tmp_path / "model")
    pd.testing.assert_frame_equal(NTFA.load(tmp_path / "model").transform(study), weights)


# --- the course of a fit


def test_history_has_a_row_a_step_and_the_bound_improves(kind: Any, clearly_fitted: Fitted) -> None:
    history = clearly_fitted(kind).history_
    assert list(history.columns[:3]) == ["step", "seconds", "bound"]
    assert history["step"].tolist() == list(range(1, len(history) + 1))
    assert (history["seconds"] > 0).all()
    assert history["seconds"].is_monotonic_increasing
    bound = history["bound"].to_numpy()
    assert np.isfinite(bound).all()
    assert bound[-10:].mean() > bound[:10].mean()
    parts = history["log_likelihood"] - history[["kl_factors", "kl_embeddings", "kl_weights"]].sum(axis=1)
    np.testing.assert_allclose(parts, bound, rtol=1e-9)


@pytest.mark.parametrize("schedule", ["one-cycle", "paper"])
@pytest.mark.parametrize("max_epochs", [1, 2, 7])
def test_a_fit_cut_short_says_so(kind: Any, study: Study, schedule: str, max_epochs: int) -> None:
    model = kind.make(schedule=schedule, max_epochs=max_epochs).fit(study)
    assert (model.stopped_, model.converged_) == ("max_epochs", False)
    assert len(model.history_) == max_epochs


def test_a_fit_that_settles_says_so(collapsed_kind: Any, study: Study) -> None:
    model = collapsed_kind.make(max_epochs=2000).fit(study)
    assert (model.stopped_, model.converged_) == ("converged", True)
    assert len(model.history_) < 2000
    bound = model.history_["bound"].to_numpy() / study.n_data
    assert abs(bound[-10:].mean() - bound[-30:-20].mean()) < 1e-4


def test_restarts_keep_the_best_bound(collapsed_kind: Any, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    model = collapsed_kind.make(random_state=3, n_restarts=3, **QUICKLY.get(collapsed_kind.estimator, {}))
    tried = []

    def noted(*args: Any) -> Any:
        tried.append(optimise(*args))
        return tried[-1]

    monkeypatch.setattr("ntfa.fitting.optimise.optimise", noted)
    model.fit(study)
    final = [np.mean([bound.value for bound in one.history.bounds[-10:]]) for one in tried]
    starts = [one.module.centers.mean.detach().numpy() for one in tried]
    assert len(set(final)) == 3
    assert not np.allclose(starts[0], starts[1])
    assert model.history_["bound"].tail(10).mean() == pytest.approx(max(final), rel=1e-12)
    assert model._fitted.module is tried[int(np.argmax(final))].module


# --- units


def test_factors_are_found_where_they_were_planted_in_mm(
    kind: Any, clear_simulation: Simulation, clearly_fitted: Fitted
) -> None:
    truth, table = clear_simulation.truth, clearly_fitted(kind).factors_
    mean = table.groupby("factor")[FACTORS].mean()
    distance = np.linalg.norm(mean[["x", "y", "z"]].to_numpy()[:, None] - truth.centers, axis=-1)
    assert sorted(distance.argmin(1)) == [0, 1, 2]
    assert distance.min(1).max() < 1.0
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
        model.transform(scaled, return_sd=True), expected.transform(study, return_sd=True), strict=True
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
    if kind.name.startswith("ntfa"):
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
    mean, sd = fitted(kind).transform(study, return_sd=True)
    for table in (mean, sd):
        assert table.shape == (study.n_trials, 3)
        pd.testing.assert_index_equal(table.index, study.trials.index)
        assert table.columns.tolist() == [1, 2, 3]
        assert np.isfinite(table.to_numpy()).all()
    assert (sd > 0).all(axis=None)
    pd.testing.assert_frame_equal(fitted(kind).transform(study), mean)


def test_frames_average_to_their_trial(kind: Any, uneven_study: Study, fitted: Fitted) -> None:
    model = fitted(kind)
    frames, sd = model.transform(uneven_study, by="frame", return_sd=True)
    lengths = uneven_study.trials["stop"] - uneven_study.trials["start"]
    assert frames.shape == sd.shape == (lengths.sum(), 3)
    assert frames.index.names == ["trial", "frame"]
    for trial, row in uneven_study.trials.iterrows():
        assert frames.loc[trial].index.tolist() == list(range(row["start"], row["stop"]))
    trial_mean, trial_sd = model.transform(uneven_study, return_sd=True)
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
    whole = fitted(kind).transform(study, return_sd=True)
    for few, all_ in zip(fitted(kind).transform(part, return_sd=True), whole, strict=True):
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
    found = model.transform(study, by="frame").to_numpy()
    if not isinstance(model, TLSA):
        assert np.abs(found - np.concatenate(true)).max() < 0.25
    by_trial = model.transform(study).to_numpy()
    assert np.sqrt(np.mean((by_trial - np.stack([w.mean(0) for w in true])) ** 2)) < 0.05


def test_transform_knows_trial_and_frame(study: Study, fitted: Fitted, collapsed_kind: Any) -> None:
    with pytest.raises(ModelError, match="by='run'"):
        fitted(collapsed_kind).transform(study, by="run")


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
    for use in (model.transform, model.score, lambda _: model.predict([("sub-99", study.stimuli[0])])):
        with pytest.raises(ModelError, match="not fitted to participant 'sub-99'"):
            use(stranger)


def test_stimuli_only_in_the_test_set_are_named(kind: Any, study: Study) -> None:
    train, test = study.split(study.trials["stimulus"] == "task2_stim1")
    model = kind.make(max_epochs=3).fit(train)
    for estimator in ("collapsed", "paper"):
        with pytest.raises(ModelError, match="not fitted to stimulus 'task2_stim1'"):
            model.score(test, estimator)
    with pytest.raises(ModelError, match="not fitted to stimulus 'task2_stim1'"):
        model.predict([("sub-01", "task2_stim1")])
    if isinstance(model, NTFA | TLSA):
        with pytest.raises(ModelError, match="not fitted to stimulus 'task2_stim1'"):
            model.transform(test)
    else:
        assert model.transform(test).shape == (test.n_trials, 3)


def test_only_a_few_of_many_unknown_labels_are_listed(fitted: Fitted, collapsed_kind: Any) -> None:
    with pytest.raises(ModelError) as caught:
        fitted(collapsed_kind).predict([(f"stranger-{i}", "task1_stim1") for i in range(100)])
    assert "stranger-0" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_study_with_other_voxels_is_refused(kind: Any, study: Study, fitted: Fitted) -> None:
    moved = changed(study, move=lambda coordinates: coordinates + 5)
    for use in (fitted(kind).transform, fitted(kind).score):
        with pytest.raises(StudyError, match="voxels"):
            use(moved)


def test_a_study_with_fewer_voxels_is_refused(collapsed_kind: Any, study: Study, fitted: Fitted) -> None:
    frames = {participant: array[:, :200] for participant, array in study.frames.items()}
    fewer = Study.from_arrays(frames, study.trials, study.coordinates[:200])
    for use in (fitted(collapsed_kind).transform, fitted(collapsed_kind).score):
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


# --- difficult studies


def test_trials_may_differ_in_length_and_number(kind: Any, uneven_study: Study) -> None:
    assert (uneven_study.trials["stop"] - uneven_study.trials["start"]).nunique() > 2
    assert uneven_study.trials["participant"].value_counts().nunique() > 1
    model = kind.make(max_epochs=60).fit(uneven_study)
    weights = model.transform(uneven_study)
    pd.testing.assert_index_equal(weights.index, uneven_study.trials.index)
    assert np.isfinite(weights.to_numpy()).all()
    assert np.isfinite(model.score(uneven_study, n_samples=4))
    bound = model.history_["bound"]
    assert bound.tail(10).mean() > bound.head(10).mean()


def test_unusable_frames_are_found_at_fit(kind: Any, study: Study, tmp_path: Path) -> None:
    study.save(tmp_path / "study")
    path = tmp_path / "study" / "frames" / "sub-02.npy"
    frame = int(study.trials.loc[study.trials["participant"] == "sub-02", "start"].iloc[1]) + 1
    frames = np.load(path, mmap_mode="r+")
    frames[frame, 17] = np.nan
    frames.flush()
    opened = Study.open(tmp_path / "study")
    for use in (kind.make().fit, kind.make(max_epochs=2).fit(study).transform):
        with pytest.raises(StudyError, match=rf"participant sub-02: frame {frame}, voxel 17 is nan"):
            use(opened)


def test_frames_outside_trials_may_be_unusable(kind: Any, study: Study, fitted: Fitted) -> None:
    in_trials = study.trials.loc[study.trials["participant"] == "sub-02"]
    rest = set(range(len(study.frames["sub-02"])))
    for start, stop in in_trials[["start", "stop"]].itertuples(index=False):
        rest -= set(range(start, stop))
    array = study.frames["sub-02"].copy()
    array[sorted(rest)] = np.inf
    scrubbed = Study(study.coordinates, study.trials, {**study.frames, "sub-02": array})
    assert_same_fit(kind.make().fit(scrubbed), fitted(kind), study)


@pytest.mark.parametrize("which", ["participants", "stimuli"])
def test_one_participant_or_one_stimulus_fits_with_a_warning(
    kind: Any, study: Study, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    label = getattr(study, which)[0]
    one = study.select(**{which: label})
    with caplog.at_level(logging.WARNING, logger="ntfa"):
        model = kind.make(max_epochs=4).fit(one)
    assert [record.getMessage() for record in caplog.records if f"one {which[:4]}" in record.getMessage()]
    assert label in caplog.text
    assert np.isfinite(model.factors_[FACTORS].to_numpy()).all()
    assert np.isfinite(model.transform(one).to_numpy()).all()
    assert np.isfinite(model.score(one, n_samples=4))


def test_several_participants_and_stimuli_fit_without_a_warning(
    collapsed_kind: Any, study: Study, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="ntfa"):
        collapsed_kind.make(max_epochs=2).fit(study)
    assert not caplog.records


def test_arrays_may_run_backwards(study: Study) -> None:
    frames = {participant: array[:, ::-1] for participant, array in study.frames.items()}
    NTFA(n_factors=3, max_epochs=2, random_state=0).fit(
        Study.from_arrays(frames, study.trials, study.coordinates[::-1])
    )


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_any_scale_of_the_data_fits(kind: Any, study: Study, scale: float) -> None:
    model = kind.make(max_epochs=4).fit(changed(study, scale=scale))
    assert np.isfinite(model.history_["bound"]).all()
    assert model.noise_ / scale == pytest.approx(1, rel=0.5)


@pytest.mark.filterwarnings("error")
def test_no_pairs_give_no_images_and_no_warning(study: Study) -> None:
    assert NTFA(n_factors=2, max_epochs=1, random_state=0).fit(study).predict([]).shape == (0, study.n_voxels)


def test_the_start_in_the_data_ends_no_lower_than_kmeans_where_layouts_vary() -> None:
    study, _ = simulate(
        "haxby", n_participants=4, n_stimuli=4, n_runs=3, n_frames=5, n_voxels=800, n_factors=4, noise=0.1
    )
    bounds = {
        init: HTFA(n_factors=4, block="participant", init=init, n_restarts=2, max_epochs=200, random_state=0)
        .fit(study)
        .history_["bound"]
        .tail(10)
        .mean()
        for init in ("pursuit", "kmeans")
    }
    assert bounds["pursuit"] > bounds["kmeans"] - 100
