"""Individual loadings against regressions and densities written out, and against studies whose truth is known."""

import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal

from ntfa import Study
from ntfa.baselines import AdditiveImage, IndividualLoadings, MeanImage
from ntfa.baselines.cell_means import cell_means, group_means, inner_folds
from ntfa.baselines.loadings_fitting import Choice, fit_loadings, held_out_errors
from ntfa.errors import ModelError, NotFittedError, StudyError

MakeStudy = Callable[..., Study]
NOISE = 0.5


def cells_of(study: Study) -> dict[tuple[str, str], np.ndarray]:
    """All frames of each participant and stimulus."""
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    for row in study.trials.itertuples():
        frames = study.frames[row.participant][row.start : row.stop].astype(float)
        found.setdefault((row.participant, row.stimulus), []).append(frames)
    return {pair: np.concatenate(frames) for pair, frames in found.items()}


def brute_force(study: Study, n_components: int, ridge: float, constant: float) -> dict[tuple[str, str], np.ndarray]:
    """Predicted images of all pairs, by the definition: means, SVD, least squares, normal equations."""
    cells = cells_of(study)
    means = {pair: frames.mean(0) for pair, frames in cells.items()}
    group = np.stack([np.mean([m for (_, s), m in means.items() if s == shown], 0) for shown in study.stimuli])
    u, size, _ = np.linalg.svd(group - group.mean(0), full_matrices=False)
    scores = u[:, :n_components] * size[:n_components] / np.sqrt(study.n_voxels)
    features = np.c_[np.full(len(group), constant * np.sqrt((scores**2).mean())), scores]
    loadings = np.linalg.lstsq(features, group, rcond=None)[0]
    of = dict(zip(study.stimuli, features, strict=True))
    penalty = ridge * np.mean([len(frames) * (of[s][1:] ** 2).mean() for (_, s), frames in cells.items()])
    images = {}
    for who in study.participants:
        rows = [(of[s], frame) for (p, s), frames in cells.items() if p == who for frame in frames]
        x, y = np.stack([row for row, _ in rows]), np.stack([frame for _, frame in rows])
        own = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ (y - x @ loadings))
        images |= {(who, s): of[s] @ (loadings + own) for s in study.stimuli}
    return images


@pytest.fixture(scope="module")
def individual(make_study: MakeStudy) -> tuple[Study, np.ndarray, list[tuple[str, str]]]:
    """8 participants with topographies of their own in two dimensions, 9 stimuli, 2 trials; the truth and its pairs."""
    rng = np.random.default_rng(3)
    n_participants, n_stimuli, n_voxels = 8, 9, 150
    scores = np.c_[np.ones(n_stimuli), rng.normal(size=(n_stimuli, 2))]
    maps = rng.normal(size=(3, n_voxels)) + 0.7 * rng.normal(size=(n_participants, 3, n_voxels))
    truth = scores @ maps
    design = {f"p{p}": [(f"s{s}", 1) for s in range(n_stimuli)] * 2 for p in range(n_participants)}
    study = make_study(
        design,
        lambda who, stimulus, repetition, n: (
            truth[int(who[1:]), [int(stimulus[1:])]] + NOISE * rng.normal(size=(n, n_voxels))
        ),
    )
    pairs = [(f"p{p}", f"s{s}") for p in range(n_participants) for s in range(n_stimuli)]
    return study, truth.reshape(-1, n_voxels), pairs


# --- by hand


@pytest.mark.parametrize("settings", [(1, 0.5, 1.0), (2, 7.0, 3.0)])
def test_predictions_are_those_of_the_regression_written_out(
    out_of_step: Study, settings: tuple[int, float, float]
) -> None:
    expected = brute_force(out_of_step, *settings)
    model = IndividualLoadings(*settings).fit(out_of_step)
    np.testing.assert_allclose(model.predict(list(expected)), list(expected.values()), rtol=1e-9)
    assert (model.n_components_, model.ridge_, model.constant_) == settings


def test_errors_of_all_settings_are_those_of_fits_without_the_cells(out_of_step: Study, study: Study) -> None:
    for one in (out_of_step, study):
        cells, counts, ridges, constants = cell_means(one), [1, 2, 3], [0.1, 2.0, 50.0], [1.0, 4.0]
        for fold in inner_folds(cells, 3):
            found = held_out_errors(cells, fold, counts, ridges, constants).ravel()
            settings = itertools.product(counts, constants, ridges)
            for error, (count, constant, ridge) in zip(found, settings, strict=True):
                fitted, total = fit_loadings(cells, Choice(count, ridge, constant), fold), 0.0
                for who, own in cells.by_participant.items():
                    predicted = fitted.features[own.stimuli] @ (fitted.group + fitted.deviations[who])
                    squares = ((own.images - predicted) ** 2).sum(1)
                    total += (own.n_frames * squares)[fold[who]].sum()
                assert error == pytest.approx(total, rel=1e-8)


def test_a_fit_without_cells_is_a_fit_to_the_study_without_them(individual: tuple) -> None:
    study = individual[0]
    cells = cell_means(study)
    fold = inner_folds(cells, 4)[1]
    held_out = [fold[who][study.stimuli.index(s)] for who, s in study.trials[["participant", "stimulus"]].to_numpy()]
    train = study.split(np.array(held_out))[0]
    choice = Choice(2, 3.0, 1.0)
    one, other = fit_loadings(cells, choice, fold), fit_loadings(cell_means(train), choice)
    np.testing.assert_allclose(one.features, other.features, rtol=1e-9)
    for who in study.participants:
        np.testing.assert_allclose(one.deviations[who], other.deviations[who], rtol=1e-8)


def test_every_cell_that_can_be_is_held_out_once(out_of_step: Study, study: Study) -> None:
    for one in (out_of_step, study):
        cells = cell_means(one)
        folds = inner_folds(cells, 10)
        for who, own in cells.by_participant.items():
            times = np.sum([fold[who] for fold in folds], axis=0)
            n_people = one.trials.groupby("stimulus")["participant"].nunique()
            alone = n_people[[cells.stimuli[s] for s in own.stimuli]].to_numpy() == 1
            assert (times <= 1).all()
            assert (times[alone] == 0).all()
            assert (one is out_of_step) or (times == 1).all()
        for fold in folds:
            assert np.isfinite(group_means(cells, fold)).all(), "a stimulus is left to nobody"
            assert all((~held_out).any() for held_out in fold.values()), "a participant is left without a cell"


def test_the_density_is_that_of_all_frames_together(out_of_step: Study) -> None:
    held_out = (out_of_step.trials.groupby(["participant", "stimulus"]).cumcount() == 1).to_numpy()
    train, test = out_of_step.split(held_out)
    model = IndividualLoadings(1, 2.0).fit(train)
    fitted, expected = model._fitted, {}
    for who in test.participants:
        own = [(s, frame) for (p, s), frames in cells_of(test).items() if p == who for frame in frames]
        h = fitted.features[[train.stimuli.index(s) for s, _ in own]]
        covariance = model.noise_**2 * (np.eye(len(own)) + h @ fitted.covariances[who] @ h.T)
        residuals = np.stack([frame for _, frame in own]) - model.predict([(who, s) for s, _ in own])
        expected[who] = multivariate_normal(np.zeros(len(own)), covariance).logpdf(residuals.T).sum()
    assert model.log_predictive_by_participant(test) == pytest.approx(expected, rel=1e-9)
    assert model.score(test) == pytest.approx(sum(expected.values()), rel=1e-9)


def test_distances_are_those_between_predicted_images(individual: tuple) -> None:
    study = individual[0]
    model = IndividualLoadings().fit(study)
    images = {who: model.predict([(who, s) for s in study.stimuli]) for who in study.participants}
    for one in study.participants:
        for other in study.participants:
            expected = np.sqrt(((images[one] - images[other]) ** 2).mean())
            assert model.participant_distances_.loc[one, other] == pytest.approx(expected, abs=1e-6)


# --- truth


def test_individual_topographies_are_found_and_carried_to_other_stimuli(individual: tuple) -> None:
    study, truth, pairs = individual
    unseen = [(int(p[1:]) * 2 + 1) % 9 == int(s[1:]) for p, s in pairs]
    expected = dict(zip(pairs, truth, strict=True))
    held_out = {pair for pair, out in zip(pairs, unseen, strict=True) if out}
    shown = list(study.trials[["participant", "stimulus"]].itertuples(index=False, name=None))
    train, test = study.split(np.array([pair in held_out for pair in shown]))
    model = IndividualLoadings().fit(train)
    assert model.n_components_ == 2
    images = np.stack([expected[pair] for pair in shown if pair in held_out])
    errors = {
        type(one).__name__: ((one.fit(train).predict(test.trials) - images) ** 2).mean()
        for one in (IndividualLoadings(), AdditiveImage(), MeanImage("stimulus"))
    }
    assert errors["IndividualLoadings"] < 0.15 * errors["AdditiveImage"] < 0.15 * errors["MeanImage"]
    assert model.noise_ == pytest.approx(NOISE, rel=0.05)
    # The best anybody could score, who knows the truth.
    best = -0.5 * test.n_data * (1 + np.log(2 * np.pi * NOISE**2))
    assert best - 0.15 * test.n_data < model.score(test) < best + 0.05 * test.n_data
    assert model.score(test) > AdditiveImage().fit(train).score(test)


def test_where_people_do_not_differ_they_are_not_told_apart(make_study: MakeStudy) -> None:
    rng = np.random.default_rng(0)
    images = {f"s{s}": rng.normal(size=100) for s in range(6)}
    design = {f"p{p}": [(s, 1) for s in images] for p in range(10)}
    study = make_study(design, lambda who, s, repetition, n: images[s] + rng.normal(size=(n, 100)))
    model = IndividualLoadings().fit(study)
    apart = model.participant_distances_.to_numpy()[np.triu_indices(10, 1)].mean()
    # Whole images of two people differ by root 2, all of it noise.
    assert apart < 0.03 * np.sqrt(2)


def test_people_who_differ_by_an_image_are_found_whatever_stimuli_are_like(make_study: MakeStudy) -> None:
    """Stimuli that fill all dimensions leave nothing to learn from one for another, but the constant."""
    rng = np.random.default_rng(0)
    people, shown = rng.normal(size=(8, 80)), rng.normal(size=(5, 80))
    design = {f"p{p}": [(f"s{s}", 1) for s in range(5)] for p in range(8)}
    study = make_study(
        design,
        lambda who, s, repetition, n: people[int(who[1:])] + shown[int(s[1:])] + 0.7 * rng.normal(size=(n, 80)),
    )
    train, test = study.split("diagonal")
    own, stimulus = (
        ((one.fit(train).predict(test.trials) - test.mean_images()) ** 2).mean()
        for one in (IndividualLoadings(), MeanImage("stimulus"))
    )
    assert own < 0.7 * stimulus


def test_frames_without_noise_have_their_stimulus_scores(individual: tuple) -> None:
    study, truth, pairs = individual
    clean = {who: truth[[pair[0] == who for pair in pairs]].astype(np.float32) for who in study.participants}
    trials = pd.DataFrame(pairs, columns=["participant", "stimulus"])
    trials["start"] = trials.groupby("participant").cumcount()
    trials["stop"] = trials["start"] + 1
    exact = Study.from_arrays(clean, trials, study.coordinates)
    model = IndividualLoadings(2, 1e-6).fit(exact)
    expected = model.stimuli_.loc[trials["stimulus"]].to_numpy()
    np.testing.assert_allclose(model.transform(exact).to_numpy(), expected, atol=1e-3)


# --- what it must not see


def test_held_out_trials_have_no_part_in_a_fit(individual: tuple) -> None:
    study = individual[0]
    train, test = study.split("diagonal")
    rng = np.random.default_rng(5)
    frames = {who: array.copy() for who, array in study.frames.items()}
    for row in test.trials.itertuples():
        frames[row.participant][row.start : row.stop] = 40 * rng.normal(size=study.n_voxels)
    planted = Study(study.coordinates, study.trials, frames).split("diagonal")[0]
    for kind in (IndividualLoadings, AdditiveImage):
        one, other = kind().fit(train), kind().fit(planted)
        np.testing.assert_array_equal(one.predict(test.trials), other.predict(test.trials))
        assert one.noise_ == other.noise_


# --- what cannot be done


def test_errors_say_what_is_wrong(out_of_step: Study) -> None:
    with pytest.raises(NotFittedError):
        IndividualLoadings().predict([("a", "x")])
    for value in (0, -1.0, "large", True, float("inf"), float("nan")):
        for name in ("ridge", "constant"):
            with pytest.raises(ModelError, match=f"{name}={value!r}"):
                IndividualLoadings(**{name: value}).fit(out_of_step)
    model = IndividualLoadings().fit(out_of_step)
    with pytest.raises(ModelError, match="stimulus 'never shown'"):
        model.predict([("a", "x"), ("a", "never shown")])
    with pytest.raises(ModelError, match="participant 'nobody'"):
        model.predict([("nobody", "x")])
    with pytest.raises(ModelError, match="stimulus"):
        model.predict(out_of_step.trials[["participant"]])
    other = Study(out_of_step.coordinates + 5, out_of_step.trials, out_of_step.frames)
    with pytest.raises(StudyError, match="voxels"):
        model.score(other)
    assert model.predict([]).shape == (0, out_of_step.n_voxels)


def test_designs_in_which_people_and_stimuli_cannot_be_told_apart_are_refused(make_study: MakeStudy) -> None:
    rng = np.random.default_rng(0)

    def draw(who: str, stimulus: str, repetition: int, n: int) -> np.ndarray:
        return rng.normal(size=(n, 9))

    designs = {
        "alone": {"a": [("x", 2), ("y", 2)]},
        "saw one": {"a": [("x", 2)], "b": [("x", 2)], "c": [("y", 2)]},
        "nothing shared": {"a": [("x", 2), ("y", 2)], "b": [("z", 2), ("w", 2)]},
    }
    for name, design in designs.items():
        with pytest.raises(StudyError):
            IndividualLoadings().fit(make_study(design, draw))
        if name != "nothing shared":
            with pytest.raises(StudyError):
                AdditiveImage().fit(make_study(design, draw))


def test_one_stimulus_of_one_person_is_fitted_with_the_others(make_study: MakeStudy) -> None:
    rng = np.random.default_rng(0)
    design = {"a": [("x", 2), ("y", 2)], "b": [("x", 2), ("y", 2)], "c": [("y", 2)], "d": [("x", 1), ("mine", 1)]}
    study = make_study(design, lambda who, stimulus, repetition, n: rng.normal(size=(n, 9)))
    for model in (IndividualLoadings(), AdditiveImage()):
        images = model.fit(study).predict([(p, s) for p in study.participants for s in study.stimuli])
        assert np.isfinite(images).all()
        assert np.isfinite(model.score(study))
