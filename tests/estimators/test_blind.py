"""Weights computed as if nobody knew which stimulus was shown."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ntfa import NTFA, TLSA, Study
from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.inference.cells import Cells
from ntfa.inference.normal import NormalPosterior
from ntfa.models.ntfa import NeuralFactors

Fitted = Callable[[Any], TopographicModel]
PARTICIPANTS, STIMULI, FACTORS = 3, 5, 2


@pytest.fixture
def blind_kind(collapsed_kind: Any) -> Any:
    """Every model that has weights without a design."""
    if collapsed_kind.estimator is TLSA:
        pytest.skip("TLSA has none")
    return collapsed_kind


def with_stimuli(study: Study, stimuli: Any) -> Study:
    return Study(study.coordinates, study.trials.assign(stimulus=stimuli), study.frames, study.mask_img)


@pytest.mark.parametrize("by", ["trial", "frame"])
def test_stimuli_make_no_difference(blind_kind: Any, study: Study, fitted: Fitted, by: str) -> None:
    model = fitted(blind_kind)
    expected = model.transform(study, by=by, condition_on_stimulus=False, return_sd=True)
    shuffled = study.trials["stimulus"].sample(frac=1, random_state=3).to_numpy()
    unknown = [f"never shown {i}" for i in range(study.n_trials)]
    for stimuli in (shuffled, unknown):
        found = model.transform(with_stimuli(study, stimuli), by=by, condition_on_stimulus=False, return_sd=True)
        for one, other in zip(found, expected, strict=True):
            pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_that_is_the_default(blind_kind: Any, study: Study, fitted: Fitted) -> None:
    model = fitted(blind_kind)
    expected = model.transform(study, condition_on_stimulus=False)
    pd.testing.assert_frame_equal(model.transform(study), expected, check_exact=True)


def test_stimuli_do_make_a_difference_to_ntfa_that_sees_them(study: Study) -> None:
    model = NTFA(n_factors=3, max_epochs=60, random_state=0).fit(study)
    shuffled = with_stimuli(study, study.trials["stimulus"].sample(frac=1, random_state=3).to_numpy())
    seeing, mistaken = (model.transform(shown, condition_on_stimulus=True) for shown in (study, shuffled))
    assert (seeing - mistaken).abs().to_numpy().max() > 1e-3 * seeing.abs().to_numpy().max()


def test_trials_are_taken_one_at_a_time(blind_kind: Any, study: Study, fitted: Fitted) -> None:
    model, some = fitted(blind_kind), study.select(trials=np.arange(study.n_trials) % 3 == 0)
    alone = model.transform(some, condition_on_stimulus=False)
    # Products of float32 frames round differently with fewer frames.
    np.testing.assert_allclose(
        alone, model.transform(study, condition_on_stimulus=False).loc[some.trials.index], rtol=1e-6, atol=1e-7
    )


def test_models_that_do_not_know_stimuli_are_the_same_blind(blind_kind: Any, study: Study, fitted: Fitted) -> None:
    if "ntfa" in blind_kind.name:
        pytest.skip("NTFA knows stimuli")
    model = fitted(blind_kind)
    seeing = model.transform(study, condition_on_stimulus=True)
    pd.testing.assert_frame_equal(model.transform(study, condition_on_stimulus=False), seeing, check_exact=True)


def test_tlsa_refuses(study: Study) -> None:
    model = TLSA(n_factors=2, max_epochs=3, random_state=0).fit(study)
    for blind in ({}, {"condition_on_stimulus": False}):
        with pytest.raises(ModelError, match="condition_on_stimulus"):
            model.transform(study, **blind)
    assert model.transform(study, condition_on_stimulus=True).shape == (study.n_trials, 2)


# The prior -----------------------------------------------------------------------------------------------------------


def cells_of(stimulus: list[int]) -> Cells:
    n = len(stimulus)
    participant = torch.arange(n) % PARTICIPANTS
    return Cells(participant, torch.tensor(stimulus), participant, (torch.arange(n)[:, None],), torch.arange(n))


@pytest.fixture
def module() -> NeuralFactors:
    torch.manual_seed(0)
    module = NeuralFactors(PARTICIPANTS, STIMULI, FACTORS, embedding_dim=2).double()
    with torch.no_grad():
        for posterior in (module.z_participant, module.z_stimulus):
            posterior.mean.copy_(torch.randn_like(posterior.mean))
            posterior.raw_sd.fill_(-50.0)
    return module


def matched_moments(module: NeuralFactors, participant: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over stimuli, sd within them and sd between them, by a loop."""
    means, variances = [], []
    for stimulus in range(STIMULI):
        pair = torch.cat([module.z_participant.mean[participant], module.z_stimulus.mean[stimulus]])
        mean, raw = module.weight_network(pair).unflatten(-1, (-1, 2)).unbind(-1)
        means.append(mean.numpy())
        variances.append(np.logaddexp(0, raw.numpy()) ** 2)
    return np.mean(means, 0), np.sqrt(np.mean(variances, 0)), np.std(means, 0)


@torch.no_grad()
def test_prior_of_an_unknown_stimulus_matches_the_moments_of_all(module: NeuralFactors) -> None:
    found = module.expected(cells_of([-1, -1, -1])).weights
    for participant in range(PARTICIPANTS):
        mean, sd, effect_sd = matched_moments(module, participant)
        np.testing.assert_allclose(found.mean[participant], mean, atol=1e-3)
        np.testing.assert_allclose(found.sd[participant], sd, rtol=1e-2)
        np.testing.assert_allclose(found.effect_sd[participant], effect_sd, rtol=1e-2)
        assert (effect_sd > 0.01).all(), "stimuli must differ for this test to tell them apart"


@torch.no_grad()
def test_only_cells_without_a_stimulus_are_averaged(module: NeuralFactors) -> None:
    mixed = module.expected(cells_of([-1, 3, -1])).weights
    unknown, known = (module.expected(cells_of([s] * 3)).weights for s in (-1, 3))
    np.testing.assert_allclose(mixed.mean[[0, 2]], unknown.mean[[0, 2]], atol=1e-3)
    np.testing.assert_allclose(mixed.mean[1], known.mean[1], atol=1e-3)
    assert float(mixed.effect_sd[1].max()) < 1e-2 < float(mixed.effect_sd[0].min())


@torch.no_grad()
def test_total_variance_is_that_of_the_mixture(module: NeuralFactors) -> None:
    """Embeddings uncertain: draws from the mixture have the variance that the prior claims, sd and effect together."""
    for posterior in (module.z_participant, module.z_stimulus):
        assert isinstance(posterior, NormalPosterior)
        posterior.raw_sd.fill_(float(np.log(np.expm1(0.3))))
    prior, generator = module.expected(cells_of([-1])).weights, torch.Generator().manual_seed(1)
    n = 20_000

    def draw(posterior: NormalPosterior, rows: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        return posterior.mean[rows] + 0.3 * noise

    stimulus = torch.randint(STIMULI, (n,), generator=generator)
    pairs = torch.cat(
        [draw(module.z_participant, torch.zeros(n, dtype=torch.long)), draw(module.z_stimulus, stimulus)], 1
    )
    mean, raw = module.weight_network(pairs).unflatten(-1, (-1, 2)).unbind(-1)
    total = mean.var(0) + torch.nn.functional.softplus(raw).square().mean(0)
    claimed = prior.sd[0].square() + prior.effect_sd[0].square()
    np.testing.assert_allclose(claimed, total, rtol=0.25)
    np.testing.assert_allclose(prior.mean[0], mean.mean(0), atol=0.15)
