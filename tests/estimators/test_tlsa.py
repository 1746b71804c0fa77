"""What TLSA alone has: a design, loadings on it, and what they predict."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import naming, weights_of
from scipy.stats import multivariate_normal, norm

from ntfa import TLSA, Study, simulate
from ntfa.errors import ModelError, StudyError
from ntfa.fitting.design import Coding
from ntfa.models.tlsa import DesignFactors

CENTER = ["x", "y", "z"]
STIMULI = ["cat", "dog", "owl"]


@dataclass(frozen=True)
class Planted:
    """A study made by TLSA itself, and what it was made from: centers [P, K, 3], loadings [P, J, K]."""

    study: Study
    centers: np.ndarray
    loadings: np.ndarray
    noise: float


def plant(design: str, n_participants: int = 6, n_trials: int = 9, n_frames: int = 4, noise: float = 0.4) -> Planted:
    """Two sources of 14 mm on a grid, a few mm apart between participants.

    `design`: "stimulus", or "load", whose regressors are an intercept and a number between 200 and 800.
    """
    rng = np.random.default_rng(3)
    axis = np.arange(-28.0, 29.0, 8.0)
    coordinates = np.stack(np.meshgrid(axis, axis, axis), -1).reshape(-1, 3)
    centers = np.array([[-14.0, 6.0, 0.0], [13.0, -8.0, 5.0]]) + rng.normal(0, 2, (n_participants, 2, 3))
    load = rng.uniform(200, 800, (n_participants, n_trials)).round()
    stimulus = np.arange(n_trials) % 3
    if design == "stimulus":
        group, spread = np.array([[2.0, -1.0], [0.5, 1.5], [-1.0, 0.0]]), 0.5
    else:
        group, spread = np.array([[1.0, -1.0], [0.003, 0.004]]), np.array([[0.5], [0.001]])
    loadings = group + spread * rng.normal(size=(n_participants, *group.shape))
    frames, trials = {}, []
    for p in range(n_participants):
        squared = ((coordinates - centers[p][:, None]) ** 2).sum(-1)
        rows = np.eye(3)[stimulus] if design == "stimulus" else np.stack([np.ones(n_trials), load[p]], 1)
        images = rows @ loadings[p] @ np.exp(-squared / 14**2)
        frames[f"p{p}"] = np.repeat(images, n_frames, 0) + noise * rng.normal(
            size=(n_trials * n_frames, len(squared.T))
        )
        trials += [
            (f"p{p}", STIMULI[stimulus[n]], n * n_frames, (n + 1) * n_frames, load[p, n]) for n in range(n_trials)
        ]
    table = pd.DataFrame(trials, columns=["participant", "stimulus", "start", "stop", "load"])
    return Planted(Study.from_arrays(frames, table, coordinates), centers, loadings, noise)


@pytest.fixture(scope="module")
def by_stimulus() -> Planted:
    return plant("stimulus")


@pytest.fixture(scope="module")
def by_load() -> Planted:
    return plant("load")


@pytest.fixture(scope="module")
def stimulus_model(by_stimulus: Planted) -> TLSA:
    return TLSA(n_factors=2, max_epochs=200, random_state=0).fit(by_stimulus.study)


@pytest.fixture(scope="module")
def load_model(by_load: Planted) -> TLSA:
    return TLSA(n_factors=2, design="load", max_epochs=300, random_state=0).fit(by_load.study)


def shaped(model: TLSA, column: str = "loading") -> np.ndarray:
    """A column of `loadings_` as [P, J, K]."""
    table = model.loadings_
    return table[column].to_numpy().reshape(table["participant"].nunique(), -1, model.n_factors)


def matched(model: TLSA, planted: Planted) -> tuple[np.ndarray, np.ndarray]:
    """Distances of all sources from the true ones in mm, and which true source each is."""
    found = model.factors_[CENTER].to_numpy().reshape(*planted.centers.shape)
    distance = np.linalg.norm(found[:, :, None] - planted.centers[:, None], axis=-1)
    order = distance.mean(0).argmin(1)
    assert sorted(order) == [0, 1]
    return distance[:, np.arange(2), order], order


def image(model: TLSA, who: str, weights: np.ndarray) -> np.ndarray:
    """Weights times the participant's factors, by the table of factors."""
    own = model.factors_[model.factors_["participant"] == who]
    squared = ((model.coordinates_[None] - own[CENTER].to_numpy()[:, None]) ** 2).sum(-1)
    return weights @ np.exp(-squared / own["width"].to_numpy()[:, None] ** 2)


# --- recovery


@pytest.mark.parametrize("inference", ["collapsed", "mean-field"])
def test_planted_sources_and_loadings_are_found(by_stimulus: Planted, stimulus_model: TLSA, inference: str) -> None:
    model = stimulus_model
    if inference == "mean-field":
        model = TLSA(n_factors=2, inference=inference, max_epochs=200, random_state=0).fit(by_stimulus.study)
    distance, order = matched(model, by_stimulus)
    assert distance.mean() < 1
    assert distance.max() < 2
    assert model.noise_ == pytest.approx(by_stimulus.noise, rel=0.02)
    assert (model.template_["width"] - 14).abs().max() < 1
    error = (shaped(model) - by_stimulus.loadings[:, :, order]) / shaped(model, "loading_sd")
    assert 0.6 < np.sqrt(np.mean(error**2)) < 1.5
    assert np.mean(np.abs(error) < 2) > 0.85


def test_slopes_are_found_per_unit_of_the_column(by_load: Planted, load_model: TLSA) -> None:
    distance, order = matched(load_model, by_load)
    assert distance.max() < 2
    assert load_model.loadings_["regressor"].unique().tolist() == ["intercept", "load"]
    true = by_load.loadings[:, :, order]
    assert np.abs(shaped(load_model)[:, 1] - true[:, 1]).max() < 3e-4
    error = (shaped(load_model) - true) / shaped(load_model, "loading_sd")
    assert 0.6 < np.sqrt(np.mean(error**2)) < 1.6


def test_the_unit_of_a_column_does_not_matter(by_load: Planted, load_model: TLSA) -> None:
    trials = by_load.study.trials.assign(load=by_load.study.trials["load"] / 1000)
    other = Study.from_arrays(by_load.study.frames, trials, by_load.study.coordinates)
    model = TLSA(n_factors=2, design="load", max_epochs=300, random_state=0).fit(other)
    np.testing.assert_allclose(shaped(model)[:, 1], 1000 * shaped(load_model)[:, 1], rtol=1e-6)
    assert model.score(other, n_samples=4) == pytest.approx(load_model.score(by_load.study, n_samples=4), rel=1e-8)


def test_held_out_cells_of_a_synthetic_study_are_predicted_better_than_by_nothing() -> None:
    study, truth = simulate("synthetic", n_frames=5, n_voxels=300, noise=0.2, random_state=0)
    train, test = study.split("diagonal")
    model = TLSA(n_factors=3, max_epochs=60, random_state=0).fit(train)
    predicted, observed = model.predict(test.trials), test.mean_images()
    pairs = test.trials[["participant", "stimulus"]].itertuples(index=False)
    true = np.stack([truth.mean_image(who, what) for who, what in pairs])
    assert np.mean((true - predicted) ** 2) < 0.9 * np.mean(true**2)
    assert np.mean((observed - predicted) ** 2) < 0.95 * np.mean(observed**2)
    trials = test.trials[["participant", "start", "stop"]].itertuples(index=False)
    frames = np.concatenate([test.frames[who][start:stop] for who, start, stop in trials])
    assert model.score(test) > norm(0, model.noise_).logpdf(frames).sum() + 100


# --- results


def test_loadings_are_a_table_with_the_labels_people_wrote(stimulus_model: TLSA, by_stimulus: Planted) -> None:
    table = stimulus_model.loadings_
    assert table.columns.tolist() == ["participant", "regressor", "factor", "loading", "loading_sd"]
    expected = [(p, s, k) for p in by_stimulus.study.participants for s in STIMULI for k in (1, 2)]
    assert list(table[["participant", "regressor", "factor"]].itertuples(index=False, name=None)) == expected
    assert (table["loading_sd"] > 0).all()


def test_prediction_is_the_loading_times_the_factors(stimulus_model: TLSA, by_stimulus: Planted) -> None:
    table = stimulus_model.loadings_.set_index(["participant", "regressor"])["loading"]
    for who, what in (("p0", "owl"), ("p5", "cat")):
        expected = image(stimulus_model, who, table.loc[(who, what)].to_numpy())
        np.testing.assert_allclose(stimulus_model.predict([(who, what)])[0], expected, atol=1e-5)


def test_a_stimulus_of_a_numeric_design_is_its_mean_row(load_model: TLSA, by_load: Planted) -> None:
    mean = by_load.study.trials.groupby("stimulus")["load"].mean()
    for s, what in enumerate(STIMULI):
        weights = np.array([1, mean.iloc[s]]) @ shaped(load_model)[2]
        np.testing.assert_allclose(load_model.predict([("p2", what)])[0], image(load_model, "p2", weights), atol=1e-5)


def test_a_pair_never_seen_together_has_the_groups_loading_in_the_participants_factors(by_stimulus: Planted) -> None:
    trials = by_stimulus.study.trials
    unseen = (trials["participant"] == "p1") & (trials["stimulus"] == "dog")
    train, test = by_stimulus.study.split(unseen)
    model = TLSA(n_factors=2, max_epochs=100, random_state=0).fit(train)
    module = model._fitted.module
    assert isinstance(module, DesignFactors)
    group = module.group_loadings.detach().numpy()[1] * model._fitted.units.intensity
    np.testing.assert_allclose(shaped(model)[1, 1], group, rtol=1e-12)
    np.testing.assert_allclose(model.predict(test.trials)[0], image(model, "p1", group), atol=1e-5)
    sd = shaped(model, "loading_sd")
    assert (sd[1, 1] > 3 * sd[0, 1]).all()


def test_transform_is_what_the_design_predicts(load_model: TLSA, by_load: Planted) -> None:
    mean, sd = weights_of(load_model, by_load.study, return_sd=True)
    for n, trial in by_load.study.trials.iterrows():
        row, p = np.array([1, trial["load"]]), int(trial["participant"][1:])
        np.testing.assert_allclose(mean.loc[n], row @ shaped(load_model)[p], rtol=1e-9)
        np.testing.assert_allclose(sd.loc[n] ** 2, row**2 @ shaped(load_model, "loading_sd")[p] ** 2, rtol=1e-9)
    silent = {who: np.random.default_rng(0).normal(size=array.shape) for who, array in by_load.study.frames.items()}
    other = Study.from_arrays(silent, by_load.study.trials, by_load.study.coordinates)
    pd.testing.assert_frame_equal(weights_of(load_model, other), mean)


@pytest.mark.parametrize("which", ["stimulus", "load"])
def test_score_equals_the_dense_normal_where_factors_are_certain(which: str) -> None:
    planted = plant(which, n_participants=2, n_trials=4, n_frames=2)
    kept = (planted.study.coordinates**2).sum(1) < 500
    frames = {who: array[:, kept] for who, array in planted.study.frames.items()}
    study = Study.from_arrays(frames, planted.study.trials, planted.study.coordinates[kept])
    model = TLSA(n_factors=2, design=which, max_epochs=30, random_state=0).fit(study)
    with torch.no_grad():
        for name, parameter in model._fitted.module.named_parameters():
            if name.endswith(".raw_sd"):
                parameter.fill_(-40.0)
    expected = 0.0
    weights, sd = weights_of(model, study, return_sd=True)
    for _, cell in study.trials.groupby(["participant", which]):
        who, mean, variance = cell["participant"].iloc[0], weights.loc[cell.index[0]], sd.loc[cell.index[0]] ** 2
        y = np.concatenate([study.frames[who][trial["start"] : trial["stop"]] for _, trial in cell.iterrows()])
        factors = np.stack([image(model, who, row) for row in np.eye(2)])
        shared = np.kron(np.ones((len(y), len(y))), factors.T @ np.diag(variance) @ factors)
        around = np.tile(mean.to_numpy() @ factors, len(y))
        expected += multivariate_normal(around, shared + model.noise_**2 * np.eye(y.size)).logpdf(y.ravel())
    assert model.score(study, n_samples=1) == pytest.approx(expected, abs=0.05)
    assert expected < -100


# --- designs


def test_labels_of_a_column(by_stimulus: Planted) -> None:
    study = by_stimulus.study
    trials = study.trials.assign(animal=np.where(study.trials["stimulus"] == "owl", "bird", "mammal"))
    labelled = Study.from_arrays(study.frames, trials, study.coordinates)
    model = TLSA(n_factors=2, design="animal", max_epochs=40, random_state=0).fit(labelled)
    assert model.loadings_["regressor"].unique().tolist() == ["bird", "mammal"]
    cat, dog, owl = model.predict([("p0", what) for what in STIMULI])
    np.testing.assert_array_equal(cat, dog)
    assert np.abs(cat - owl).max() > 0.1
    both = TLSA(n_factors=2, design=["animal", "stimulus"], max_epochs=4, random_state=0).fit(labelled)
    names = ["animal=bird", "animal=mammal", "stimulus=cat", "stimulus=dog", "stimulus=owl"]
    assert both.loadings_["regressor"].unique().tolist() == names
    assert np.isfinite(both.score(labelled, n_samples=4))


def test_labels_and_numbers_side_by_side(by_load: Planted, tmp_path: Path) -> None:
    model = TLSA(n_factors=2, design=["stimulus", "load"], max_epochs=30, random_state=0).fit(by_load.study)
    assert model.loadings_["regressor"].unique().tolist() == [*STIMULI, "load"]
    train, test = by_load.study.split(by_load.study.trials["start"] == 0)
    model.fit(train).save(tmp_path / "model")
    loaded = TLSA.load(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["parameters"]["design"] == loaded.design == ["stimulus", "load"]
    pd.testing.assert_frame_equal(loaded.loadings_, model.loadings_, check_exact=True)
    for estimator in ("collapsed", "paper"):
        assert loaded.score(test, estimator, n_samples=4) == model.score(test, estimator, n_samples=4)
    np.testing.assert_array_equal(loaded.predict(test.trials), model.predict(test.trials))
    pd.testing.assert_frame_equal(weights_of(loaded, test), weights_of(model, test), check_exact=True)


def test_a_design_survives_disk_whatever_its_labels(by_stimulus: Planted, tmp_path: Path) -> None:
    names = dict(zip(STIMULI, ["NA", "01", "ü\t\n\"'"], strict=True))
    trials = by_stimulus.study.trials.assign(label=by_stimulus.study.trials["stimulus"].map(names))
    study = Study.from_arrays(by_stimulus.study.frames, trials, by_stimulus.study.coordinates)
    model = TLSA(n_factors=2, design="label", max_epochs=3, random_state=0).fit(study)
    model.save(tmp_path / "model")
    loaded = TLSA.load(tmp_path / "model")
    assert loaded.loadings_["regressor"].unique().tolist() == sorted(names.values())
    pd.testing.assert_frame_equal(weights_of(loaded, study), weights_of(model, study), check_exact=True)


def test_an_intercept_comes_where_there_are_no_labels() -> None:
    trials = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "x"], "c": [True, False, True]})
    scale = np.sqrt(14 / 3)
    numbers = Coding.of(trials, "a")
    assert numbers.regressors == ["intercept", "a"]
    np.testing.assert_allclose(numbers.rows(trials), [[1, 1 / scale], [1, 2 / scale], [1, 3 / scale]])
    np.testing.assert_allclose(numbers.scales, [1, scale])
    mixed = Coding.of(trials, ["a", "b"])
    assert mixed.regressors == ["a", "x", "y"]
    np.testing.assert_allclose(mixed.rows(trials) * mixed.scales, [[1, 1, 0], [2, 0, 1], [3, 1, 0]])
    assert Coding.of(trials, ["c", "b"]).regressors == ["c=False", "c=True", "b=x", "b=y"]
    np.testing.assert_array_equal(Coding.of(trials, "c").rows(trials), [[0, 1], [1, 0], [0, 1]])
    assert Coding.of(trials.assign(a=0.0), "a").scales.tolist() == [1, 1]


def test_a_level_named_like_a_column_of_numbers_is_told_from_it() -> None:
    trials = pd.DataFrame({"x": [1.0, 2.0], "b": ["x", "y"]})
    assert Coding.of(trials, ["x", "b"]).regressors == ["x", "b=x", "b=y"]


# --- what is refused


def with_column(study: Study, **columns: Any) -> Study:
    return Study.from_arrays(study.frames, study.trials.assign(**columns), study.coordinates)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (lambda n: [np.nan if i == 7 else 1.0 * i for i in range(n)], naming("row 7", "load")),
        (
            lambda n: [np.inf if i == 7 else 1.0 * i for i in range(n)],
            naming("row 7", "load", "inf"),
        ),
        (lambda n: [None if i == 7 else "a" for i in range(n)], naming("row 7", "load")),
        (lambda n: [" " if i == 7 else "a" for i in range(n)], naming("row 7", "load")),
    ],
    ids=["missing number", "infinite", "missing label", "blank label"],
)
def test_missing_values_are_named(by_load: Planted, values: Any, named: str) -> None:
    broken = with_column(by_load.study, load=values(by_load.study.n_trials))
    with pytest.raises(StudyError, match=named):
        TLSA(n_factors=2, design="load", max_epochs=2).fit(broken)


def test_a_column_that_is_not_there_is_named(by_load: Planted, load_model: TLSA) -> None:
    with pytest.raises(StudyError, match=naming("'lode'", "load")):
        TLSA(n_factors=2, design="lode", max_epochs=2).fit(by_load.study)
    trials = by_load.study.trials.drop(columns="load")
    without = Study.from_arrays(by_load.study.frames, trials, by_load.study.coordinates)
    for use in (partial(weights_of, load_model), load_model.score):
        with pytest.raises(StudyError, match=naming("'load'")):
            use(without)


def test_text_in_a_column_of_numbers_is_named(by_load: Planted, load_model: TLSA) -> None:
    text = with_column(by_load.study, load=["much", *by_load.study.trials["load"].astype(str)[1:]])
    with pytest.raises(StudyError, match=naming("row 0", "load", "much")):
        weights_of(load_model, text)


def test_levels_not_in_the_fit_are_named(by_stimulus: Planted) -> None:
    n = by_stimulus.study.n_trials
    known = with_column(by_stimulus.study, task=["a", "b"] * (n // 2))
    model = TLSA(n_factors=2, design="task", max_epochs=2, random_state=0).fit(known)
    new = with_column(by_stimulus.study, task=["a", "c"] * (n // 2))
    for use in (partial(weights_of, model), model.score):
        with pytest.raises(ModelError, match=naming("task", "'c'", "row 1", "a", "b")):
            use(new)
