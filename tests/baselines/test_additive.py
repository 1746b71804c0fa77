"""Additive images against loops over people and stimuli, and a search for the best share."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from ntfa import Study
from ntfa.baselines import AdditiveImage, MeanImage
from ntfa.errors import ModelError

Cells = dict[tuple[str, str], np.ndarray]


@pytest.fixture(scope="module")
def shifted(make_study: Callable[..., Study]) -> Study:
    """Five people who differ by an image each, four stimuli; not everybody saw everything."""
    rng = np.random.default_rng(2)
    people = {f"p{i}": rng.normal(size=40) for i in range(5)}
    shown = {f"s{i}": rng.normal(size=40) for i in range(4)}
    design = {who: [(s, 2) for s in shown] + [("s1", 3)] for who in people}
    design["p1"] = design["p1"][1:]
    design["p4"] = design["p4"][:2]
    return make_study(design, lambda who, s, repetition, n: people[who] + shown[s] + 1.5 * rng.normal(size=(n, 40)))


def cells_of(study: Study) -> Cells:
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    for row in study.trials.itertuples():
        frames = study.frames[row.participant][row.start : row.stop].astype(float)
        found.setdefault((row.participant, row.stimulus), []).append(frames)
    return {pair: np.concatenate(frames) for pair, frames in found.items()}


def image_of(cells: Cells, who: str, stimulus: str, share: float) -> np.ndarray:
    """The definition, from cells other than that of the pair itself."""

    def others(shown: str) -> np.ndarray:
        return np.mean([frames.mean(0) for (p, s), frames in cells.items() if s == shown and p != who], axis=0)

    own = [frames.mean(0) - others(s) for (p, s), frames in cells.items() if p == who and s != stimulus]
    return others(stimulus) + share * np.mean(own, axis=0)


def left_out_error(cells: Cells, share: float) -> float:
    return sum(((frames - image_of(cells, *pair, share)) ** 2).sum() for pair, frames in cells.items())


def test_the_share_is_the_best_for_cells_left_out(shifted: Study) -> None:
    cells = cells_of(shifted)
    best = minimize_scalar(lambda share: left_out_error(cells, share), bounds=(0, 1), method="bounded")
    model = AdditiveImage().fit(shifted)
    assert model.share_ == pytest.approx(best.x, abs=1e-5)
    assert 0.2 < model.share_ < 0.95
    assert model.noise_**2 == pytest.approx(best.fun / shifted.n_data, rel=1e-6)


def test_images_of_unseen_pairs_and_their_density(shifted: Study) -> None:
    train, test = shifted.split(shifted.trials["participant"].eq("p2") & shifted.trials["stimulus"].eq("s1"))
    cells, model = cells_of(train), AdditiveImage().fit(train)
    expected = image_of(cells, "p2", "s1", model.share_)
    np.testing.assert_allclose(model.predict(test.trials), np.stack([expected] * test.n_trials), rtol=1e-9)
    frames = cells_of(test)["p2", "s1"]
    assert model.score(test) == pytest.approx(norm(expected, model.noise_).logpdf(frames).sum(), rel=1e-9)
    errors = [
        ((test.mean_images() - one.predict(test.trials)) ** 2).mean()
        for one in (model, MeanImage("stimulus").fit(train))
    ]
    assert errors[0] < 0.8 * errors[1]


def test_a_share_may_be_given_and_zero_is_the_stimulus_image_of_the_others(shifted: Study) -> None:
    train, test = shifted.split(shifted.trials["participant"].eq("p0") & shifted.trials["stimulus"].eq("s2"))
    cells, model = cells_of(train), AdditiveImage(share=0.0).fit(train)
    mean = np.mean([frames.mean(0) for (_, s), frames in cells.items() if s == "s2"], axis=0)
    np.testing.assert_allclose(model.predict(test.trials)[0], mean, rtol=1e-9)
    for share in (-0.1, 1.5, "half", True):
        with pytest.raises(ModelError, match=f"share={share!r}"):
            AdditiveImage(share=share).fit(train)


def test_people_alike_but_for_noise_have_no_share(make_study: Callable[..., Study]) -> None:
    rng = np.random.default_rng(0)
    design = {f"p{p}": [(f"s{s}", 2) for s in range(5)] for p in range(12)}
    study = make_study(design, lambda who, s, repetition, n: rng.normal(size=(n, 200)))
    assert AdditiveImage().fit(study).share_ < 0.05


def test_parameters_are_counted(shifted: Study) -> None:
    assert AdditiveImage().fit(shifted).n_parameters_ == (4 + 5) * shifted.n_voxels + 2
