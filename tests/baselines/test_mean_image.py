"""Null models against densities computed frame by frame with scipy."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from helpers import naming
from scipy.stats import norm

from ntfa import Study
from ntfa.baselines.mean_image import OF, MeanImage
from ntfa.errors import ModelError, NotFittedError, StudyError


@pytest.fixture(scope="module")
def halves(out_of_step: Study) -> tuple[Study, Study]:
    """Unequal trials to fit to, and trials of the same stimuli to score."""
    held_out = (out_of_step.trials.groupby(["participant", "stimulus"]).cumcount() == 1).to_numpy()
    return out_of_step.split(held_out)


def frames_of(study: Study) -> list[tuple[str, str, np.ndarray]]:
    rows = study.trials[["participant", "stimulus", "start", "stop"]].itertuples(index=False)
    return [(who, shown, study.frames[who][start:stop].astype(float)) for who, shown, start, stop in rows]


def expected_images(study: Study, of: str) -> dict[str, np.ndarray]:
    found = {}
    for stimulus in study.stimuli:
        chosen = [frames for _, shown, frames in frames_of(study) if of == "study" or shown == stimulus]
        found[stimulus] = np.zeros(study.n_voxels) if of == "nothing" else np.concatenate(chosen).mean(0)
    return found


@pytest.mark.parametrize("of", OF)
def test_images_noise_and_density_are_those_of_brute_force(halves: tuple[Study, Study], of: str) -> None:
    train, test = halves
    model, images = MeanImage(of).fit(train), expected_images(train, of)
    np.testing.assert_allclose(model.predict([("anyone", s) for s in images]), list(images.values()), rtol=1e-12)
    residuals = np.concatenate([frames - images[shown] for _, shown, frames in frames_of(train)])
    assert model.noise_ == pytest.approx(math.sqrt((residuals**2).mean()), rel=1e-12)
    expected = dict.fromkeys(test.participants, 0.0)
    for who, shown, frames in frames_of(test):
        expected[who] += norm(images[shown], model.noise_).logpdf(frames).sum()
    own = model.log_predictive_by_participant(test)
    assert own == pytest.approx(expected, rel=1e-12)
    assert model.score(test) == pytest.approx(sum(expected.values()), rel=1e-12)


@pytest.mark.parametrize(("of", "n_images"), [("nothing", 0), ("study", 1), ("stimulus", 4)])
def test_parameters_are_counted(out_of_step: Study, of: str, n_images: int) -> None:
    assert MeanImage(of).fit(out_of_step).n_parameters_ == 1 + n_images * out_of_step.n_voxels


def test_pairs_may_come_as_a_table(halves: tuple[Study, Study]) -> None:
    train, test = halves
    model = MeanImage("stimulus").fit(train)
    pairs = list(zip(test.trials["participant"], test.trials["stimulus"], strict=True))
    np.testing.assert_array_equal(model.predict(test.trials), model.predict(pairs))
    assert model.predict(test.trials).shape == (test.n_trials, test.n_voxels)


def test_frames_outside_trials_do_not_count(halves: tuple[Study, Study]) -> None:
    train, test = halves
    frames = {who: array.copy() for who, array in train.frames.items()}
    for who, _, start, stop in test.trials[["participant", "stimulus", "start", "stop"]].itertuples(index=False):
        frames[who][start:stop] = 1e3
    spoilt = Study(train.coordinates, train.trials, frames)
    for of in OF:
        one, other = MeanImage(of).fit(train), MeanImage(of).fit(spoilt)
        np.testing.assert_array_equal(one.images_, other.images_)
        assert one.noise_ == other.noise_


def test_errors_say_what_is_wrong(out_of_step: Study, make_study: Callable[..., Study]) -> None:
    with pytest.raises(ModelError, match=naming("of='participant'", "'stimulus'")):
        MeanImage("participant").fit(out_of_step)
    with pytest.raises(NotFittedError):
        MeanImage().predict([("a", "x")])
    with pytest.raises(NotFittedError):
        MeanImage().score(out_of_step)
    model = MeanImage("stimulus").fit(out_of_step)
    with pytest.raises(ModelError, match="'never shown'"):
        model.predict([("a", "x"), ("a", "never shown")])
    other = Study(out_of_step.coordinates + 5, out_of_step.trials, out_of_step.frames)
    with pytest.raises(StudyError, match=naming(12)):
        model.score(other)
    rng = np.random.default_rng(0)
    once = make_study({"a": [("x", 1), ("y", 1)]}, lambda *_: rng.normal(size=(1, 3)))
    with pytest.raises(ModelError, match="noise"):
        MeanImage("stimulus").fit(once).score(once)
