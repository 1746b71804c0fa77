"""Shares of stimulus, person and both: against known truth, plain loops, and studies that have no interaction."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ntfa import NTFA, Study, simulate
from ntfa.analyses.interaction import COMPONENTS, additive_images, against_additive, interaction
from ntfa.analyses.recorded import components, recorded_shares
from ntfa.baselines import AdditiveImage
from ntfa.errors import ModelError

P, S, K, V, N_RUNS, N_FRAMES = 8, 6, 4, 300, 4, 3


def make_study(sizes: tuple[float, float, float], seed: int = 0, noise: float = 0.5) -> tuple[Study, np.ndarray]:
    """A study whose mean images have components of these sizes, in weights of K factors; and the images [P, S, V]."""
    rng = np.random.default_rng(seed)
    coordinates = rng.uniform(-30, 30, (V, 3))
    centers = np.array([[-18, 0, 0], [18, 0, 0], [0, 18, 10], [0, -18, -10]])
    factors = np.exp(-((coordinates - centers[:, None]) ** 2).sum(-1) / 15**2)
    z_p, z_s = rng.normal(size=(P, 1)), rng.normal(size=(S, 1))
    of_stimuli, of_people, of_both = (rng.normal(size=(1, K)) for _ in range(3))
    parts = (
        sizes[0] * (z_s @ of_stimuli)[None],
        sizes[1] * (z_p @ of_people)[:, None],
        sizes[2] * z_p[:, :, None] * z_s[None] * of_both,
    )
    images = (1.0 + sum(parts)) @ factors
    rows, frames = [], {}
    for p in range(P):
        own = []
        for run in range(N_RUNS):
            for s in rng.permutation(S):
                start = N_FRAMES * len(own)
                rows.append((f"p{p}", f"s{s}", start, start + N_FRAMES, run))
                weights = 0.1 * rng.normal(size=(N_FRAMES, K)) @ factors
                own.append(images[p, s] + weights + noise * rng.normal(size=(N_FRAMES, V)))
        frames[f"p{p}"] = np.concatenate(own).astype(np.float32)
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop", "run"])
    return Study.from_arrays(frames, trials, coordinates), images


def true_shares(images: np.ndarray) -> np.ndarray:
    """By loops over pairs."""
    of_people, of_stimuli, mean = images.mean(1), images.mean(0), images.mean((0, 1))
    sums = np.zeros(3)
    for p in range(len(images)):
        for s in range(len(images[0])):
            parts = (of_stimuli[s] - mean, of_people[p] - mean, images[p, s] - of_people[p] - of_stimuli[s] + mean)
            sums += [(part**2).sum() for part in parts]
    return sums / sums.sum()


@pytest.fixture(scope="module")
def fit() -> Callable[..., NTFA]:
    def make(study: Study, response: str) -> NTFA:
        settings: dict[str, Any] = {"max_epochs": 300, "uncertainty": "laplace", "device": "cpu", "random_state": 0}
        return NTFA(K, response=response, embedding_dim=2, **settings).fit(study)

    return make


@pytest.mark.parametrize("response", ["loadings", "network"])
@pytest.mark.parametrize("sizes", [(1.0, 0.7, 0.0), (0.5, 0.5, 1.0)])
def test_shares_are_those_that_were_put_in(sizes: Any, response: str, fit: Callable[..., NTFA]) -> None:
    study, images = make_study(sizes)
    truth = true_shares(images)
    found = interaction(fit(study, response), study)
    assert found.shares["component"].tolist() == list(COMPONENTS)
    assert found.shares["share"].to_numpy() == pytest.approx(truth, abs=0.06 if response == "loadings" else 0.12)
    assert found.shares["share"].sum() == pytest.approx(1)
    assert found.recorded is not None
    assert found.recorded["share"].to_numpy() == pytest.approx(truth, abs=0.06)
    assert str(round(100 * found.shares["share"].iloc[2])) in found.sentences()[0]


def test_components_are_those_of_plain_loops() -> None:
    images = np.random.default_rng(0).normal(size=(4, 3, 7))
    found = components(images, images)
    assert found / found.sum() == pytest.approx(true_shares(images))


def test_recorded_shares_are_right_in_the_mean_where_noise_is_large() -> None:
    found, truths = [], []
    for seed in range(12):
        study, images = make_study((0.7, 0.7, 0.7), seed, noise=2.0)
        shares = recorded_shares(study)
        assert shares is not None
        found.append(shares["share"])
        truths.append(true_shares(images))
    assert np.mean(found, axis=0) == pytest.approx(np.mean(truths, axis=0), abs=0.05)


def test_recorded_shares_need_repeated_trials() -> None:
    study, _ = make_study((0.7, 0.7, 0.7))
    assert recorded_shares(study.split(study.trials["run"] > 0)[0]) is None


@pytest.mark.parametrize("response", ["loadings", "network"])
def test_pairs_are_those_whose_predictions_are_least_additive(response: str, fit: Callable[..., NTFA]) -> None:
    study, _ = make_study((0.5, 0.5, 1.0))
    model = fit(study, response)
    found = interaction(model)
    pairs = found.pairs[["participant", "stimulus"]]
    left = model.predict(pairs) - additive_images(model, pairs)
    expected = np.sqrt((left**2).mean(1))
    # A network's predictions are means over embeddings, not those of mean embeddings.
    error = 1e-4 if response == "loadings" else 0.1 * float(expected.max())
    assert found.pairs["size"].to_numpy() == pytest.approx(expected, abs=error)
    energy = found.pairs.assign(energy=found.pairs["size"] ** 2).groupby("participant")["energy"].sum()
    shares = found.participants.set_index("participant")["share"]
    assert shares.to_numpy() == pytest.approx((energy / energy.sum())[shares.index].to_numpy())
    assert found.held_out is None


def test_additive_images_are_rows_plus_columns(fit: Callable[..., NTFA]) -> None:
    study, _ = make_study((0.5, 0.5, 1.0))
    model = fit(study, "loadings")
    everything = np.stack([model.predict([(who, what) for what in study.stimuli]) for who in study.participants])
    pairs = pd.DataFrame({"participant": ["p3", "p0"], "stimulus": ["s1", "s5"]})
    expected = [everything[p].mean(0) + everything[:, s].mean(0) - everything.mean((0, 1)) for p, s in ((3, 1), (0, 5))]
    assert np.allclose(additive_images(model, pairs), expected, atol=1e-5)


@pytest.mark.parametrize(("size", "gains"), [(2.0, True), (0.0, False)])
def test_an_interaction_predicts_held_out_pairs(size: float, gains: bool, fit: Callable[..., NTFA]) -> None:
    study, _ = make_study((0.5, 0.5, size))
    train, test = study.split("diagonal")
    model = fit(train, "loadings")
    table = against_additive(model, train, test).set_index("against")
    own = table.loc["its own additive part"]
    assert (own["gain"] > 0.03) == gains
    assert own["n_better"] >= 7 or not gains
    assert own["ci_low"] < own["gain"] < own["ci_high"]
    additive = AdditiveImage().fit(train).predict(test.trials)
    observed = test.mean_images()
    who = test.trials["participant"].to_numpy()
    errors = [
        ((observed - additive) ** 2)[who == label].sum() / (observed**2)[who == label].sum() for label in set(who)
    ]
    assert table.loc["additive images", "error_of_additive"] == pytest.approx(np.mean(errors), rel=1e-4)


def test_some_voxels_stand_for_all(fit: Callable[..., NTFA], monkeypatch: pytest.MonkeyPatch) -> None:
    study, _ = make_study((0.7, 0.7, 0.7))
    model = fit(study, "loadings")
    whole = interaction(model).shares["share"]
    monkeypatch.setattr("ntfa.analyses.interaction.MOST_PRODUCTS", 1)
    some = interaction(model).shares["share"]
    assert some.to_numpy() == pytest.approx(whole.to_numpy(), abs=0.05)
    assert not np.array_equal(some, whole)


def test_one_person_does_not_interact() -> None:
    study = simulate("synthetic", n_participants=3, n_stimuli=4, n_frames=3, n_voxels=60, random_state=0).study
    alone = study.select(participants="sub-01")
    settings: dict[str, Any] = {"uncertainty": "mean-field", "response": "network", "embedding_dim": 2}
    model = NTFA(2, max_epochs=3, device="cpu", random_state=0, **settings).fit(alone)
    with pytest.raises(ModelError):
        interaction(model)
