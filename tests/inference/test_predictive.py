import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import blobs, frames_of_cells, make_frames
from scipy.special import logsumexp
from test_collapsed import dense_log_likelihood, random_prior
from torch import Tensor

from ntfa.inference.bounds import Draw
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior
from ntfa.inference.frames import Frames, Units
from ntfa.inference.normal import NormalPosterior, RandomSource
from ntfa.inference.predictive import ESTIMATORS, log_predictive
from ntfa.models.htfa import TemplateFactors
from ntfa.models.module import TopographicModule
from ntfa.models.ntfa import NeuralFactors
from ntfa.models.tfa import SeparateFactors

NOISE_SD = 0.7


class TwoPlaces:
    """Every block's one factor is at the left or the right with equal chance; all share a shift of the mean weight."""

    def __init__(self, cells: Cells, effect: bool = False, shift_sd: float = 0.0, certain: bool = False) -> None:
        prior = random_prior(len(cells.block), effect, n_factors=1)
        self.prior = prior._replace(mean=2 * prior.mean)
        self.shift_sd, self.certain = shift_sd, certain
        self.draws: list[Draw] = []
        self.shifts: list[float] = []

    def draw_shared(self, noise: RandomSource) -> Tensor:
        shift = self.shift_sd * noise.randn_like(torch.zeros((), dtype=torch.float64))
        self.shifts.append(float(shift))
        return shift

    def draw_unshared(self, cells: Cells, shared: Tensor, noise: RandomSource, from_prior: bool) -> Draw:
        drawn = noise.randn_like(torch.zeros(len(cells.owner), dtype=torch.float64))
        draw = self.at(torch.ones_like(drawn) if self.certain else drawn, shared)
        self.draws.append(draw)
        return draw

    def at(self, side: Tensor, shift: Tensor | float) -> Draw:
        centers = torch.zeros(len(side), 1, 3, dtype=torch.float64)
        centers[:, 0, 0] = 0.8 * side.double().sign()
        log_widths = torch.zeros(len(side), 1, dtype=torch.float64)
        prior = self.prior._replace(mean=self.prior.mean + shift)
        return Draw([], centers, log_widths, prior, torch.tensor(NOISE_SD, dtype=torch.float64))


def dense_of_blocks(frames: Frames, draw: Draw) -> np.ndarray:
    """Log density of each block's frames, by dense normals."""
    per_cell = dense_log_likelihood(frames, draw.centers, draw.log_widths, draw.weights, float(draw.noise_sd))
    return np.bincount(frames.cells.block.numpy(), per_cell)


@pytest.fixture
def frames() -> Frames:
    return make_frames([[3, 1], [2], [2]], n_voxels=9, units=Units((0.0, 0.0, 0.0), 1.0, intensity=1.5))


@pytest.mark.parametrize("effect", [False, True])
def test_collapsed_is_the_dense_normal_when_all_is_known(frames, effect):
    model = TwoPlaces(frames.cells, effect, certain=True)
    result = log_predictive(model, frames, "collapsed", 9, RandomSource(0))
    expected = dense_of_blocks(frames, model.at(torch.ones(3), 0.0)).sum()
    assert result.value == pytest.approx(expected, rel=1e-10)
    assert result.standard_error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("n_samples", "n_shared", "n_own"), [(1, 1, 1), (6, 2, 3), (9, 3, 3), (10, 3, 4)])
def test_collapsed_averages_own_draws_in_each_block_and_shared_ones_outside(frames, n_samples, n_shared, n_own):
    model = TwoPlaces(frames.cells, shift_sd=0.5)
    result = log_predictive(model, frames, "collapsed", n_samples, RandomSource(1))
    assert (len(model.shifts), len(model.draws)) == (n_shared, n_shared * n_own)
    dense = np.array([dense_of_blocks(frames, draw) for draw in model.draws]).reshape(n_shared, n_own, 3)
    values = (logsumexp(dense, axis=1) - math.log(n_own)).sum(1)
    assert result.value == pytest.approx(values.mean(), rel=1e-10)
    assert result.n_samples == n_shared * n_own >= n_samples
    if n_shared == 1:
        assert math.isnan(result.standard_error)
    else:
        assert result.standard_error == pytest.approx(values.std(ddof=1) / math.sqrt(n_shared))


def test_collapsed_approaches_the_exact_predictive_from_below(frames):
    model = TwoPlaces(frames.cells)
    left, right = (dense_of_blocks(frames, model.at(side * torch.ones(3), 0.0)) for side in (-1, 1))
    exact = np.logaddexp(left, right).sum() - 3 * math.log(2)
    estimates = [log_predictive(model, frames, "collapsed", n, RandomSource(2)).value for n in (1, 900)]
    many = log_predictive(model, frames, "collapsed", 900, RandomSource(3))
    assert many.value == pytest.approx(exact, abs=0.15)
    assert many.value < exact + 4 * many.standard_error
    outside_the_logarithm = ((left + right) / 2).sum()
    assert exact - outside_the_logarithm > 1, "the two ways of averaging must differ for this test to tell them apart"
    assert abs(estimates[1] - exact) < abs(estimates[0] - exact)


@pytest.mark.parametrize("effect", [False, True])
def test_papers_estimator_has_the_mean_of_the_log_density_given_weights(frames, effect):
    model = TwoPlaces(frames.cells, effect, certain=True)
    result = log_predictive(model, frames, "paper", 1500, RandomSource(5))
    draw, intensity = model.at(torch.ones(3), 0.0), frames.units.intensity
    variance = draw.weights.sd.square() + (draw.weights.effect_sd.square() if effect else 0)
    expected = 0.0
    for c, y in enumerate(frames_of_cells(frames)):
        b = int(frames.cells.block[c])
        factor = blobs(frames.coordinates, draw.centers[b], draw.log_widths[b])
        misfit = ((y / intensity - draw.weights.mean[c].numpy() @ factor) ** 2).sum()
        misfit += len(y) * float(variance[c]) * (factor**2).sum()
        expected -= 0.5 * (y.size * math.log(2 * math.pi * (NOISE_SD * intensity) ** 2) + misfit / NOISE_SD**2)
    assert abs(result.value - expected) < 4 * result.standard_error
    assert 0 < result.standard_error < 0.02 * abs(expected)


@pytest.mark.parametrize("effect", [False, True])
def test_collapsed_is_tighter_than_the_papers(frames, effect):
    results = [
        log_predictive(TwoPlaces(frames.cells, effect, shift_sd=0.3), frames, name, 400, RandomSource(6))
        for name in ("collapsed", "paper")
    ]
    margin = 4 * math.hypot(*(result.standard_error for result in results))
    assert results[0].value > results[1].value + margin


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_standard_error_is_the_spread_of_repeated_estimates(frames, estimator):
    results = [
        log_predictive(TwoPlaces(frames.cells, shift_sd=0.5), frames, estimator, 49, RandomSource(seed))
        for seed in range(40)
    ]
    spread = np.std([result.value for result in results], ddof=1)
    claimed = math.sqrt(np.mean([result.standard_error**2 for result in results]))
    assert 0.6 < claimed / spread < 1.6


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_same_seed_same_estimate_and_no_gradients(frames, estimator):
    model = TwoPlaces(frames.cells, shift_sd=0.5)
    model.prior.mean.requires_grad_()
    first, second, other = (log_predictive(model, frames, estimator, 16, RandomSource(seed)) for seed in (7, 7, 8))
    assert first == second
    assert first != other


def test_only_the_papers_estimator_draws_factors_from_the_prior(frames, monkeypatch):
    model = TwoPlaces(frames.cells)
    asked: list[bool] = []
    draw_unshared = model.draw_unshared

    def noted(cells: Cells, shared: Tensor, noise: RandomSource, from_prior: bool) -> Draw:
        asked.append(from_prior)
        return draw_unshared(cells, shared, noise, from_prior)

    monkeypatch.setattr(model, "draw_unshared", noted)
    for estimator, expected in (("collapsed", {False}), ("paper", {True})):
        asked.clear()
        log_predictive(model, frames, estimator, 4, RandomSource(0))
        assert set(asked) == expected


# The models themselves ----------------------------------------------------------------------------------------------


def with_tight_posteriors(module: TopographicModule) -> TopographicModule:
    """Scatter the means, and shrink all posteriors to the smallest sd there is."""
    generator = torch.Generator().manual_seed(9)
    module = module.double()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, NormalPosterior):
                part.mean.copy_(0.5 * torch.randn(part.mean.shape, generator=generator, dtype=torch.float64))
                part.raw_sd.fill_(-50.0)
    return module


def weights_at_means(module: TopographicModule, cells: Cells) -> WeightPrior:
    if isinstance(module, NeuralFactors):
        return module.weights_given(module.z_participant.mean, module.z_stimulus.mean, cells)
    return module.weights(cells)


MODULES = {
    "ntfa": lambda: with_tight_posteriors(NeuralFactors(3, 2, n_factors=2, embedding_dim=2)),
    "htfa": lambda: with_tight_posteriors(TemplateFactors(3, n_factors=2)),
    "tfa": lambda: with_tight_posteriors(SeparateFactors(3, n_factors=2)),
}


@pytest.mark.parametrize("kind", MODULES)
@torch.no_grad()
def test_models_with_tight_posteriors_score_the_dense_normal(frames, kind):
    torch.manual_seed(10)
    module = MODULES[kind]()
    result = log_predictive(module, frames, "collapsed", 9, RandomSource(0))
    weights = weights_at_means(module, frames.cells)
    draw = Draw([], module.centers.mean, module.log_widths.mean, weights, module.noise_sd)
    assert result.value == pytest.approx(dense_of_blocks(frames, draw).sum(), abs=0.02)
    assert result.standard_error < 0.01


@torch.no_grad()
def test_a_block_without_factors_of_its_own_is_drawn_around_the_template(frames):
    module = MODULES["htfa"]()
    module.raw_center_spread.fill_(math.log(math.expm1(0.3)))
    cells = replace(frames.cells, owner=torch.tensor([0, -1, 2]))
    noise = RandomSource(1)

    def centers(from_prior: bool) -> Tensor:
        shared = module.draw_shared(noise)
        return torch.stack([module.draw_unshared(cells, shared, noise, from_prior).centers for _ in range(400)])

    known, template = module.centers.mean, module.template_centers.mean
    from_posterior, from_prior = centers(from_prior=False), centers(from_prior=True)
    for block, (mean, spread) in enumerate([(known[0], 1e-4), (template, 0.3), (known[2], 1e-4)]):
        drawn = from_posterior[:, block]
        assert bool(((drawn.mean(0) - mean).abs() < 5 * spread / 20 + 5e-4).all())
        assert bool((drawn.std(0) / spread - 1).abs().max() < 0.2)
    assert bool(((from_prior.mean(0) - template).abs() < 5 * 0.3 / 20).all())
    assert bool((from_prior.std(0) / 0.3 - 1).abs().max() < 0.2)


@torch.no_grad()
def test_a_participants_factors_come_from_the_network_when_drawn_from_the_prior(frames):
    torch.manual_seed(11)
    module = MODULES["ntfa"]()
    prior, _ = module.factors_given(module.z_participant.mean)
    noise = RandomSource(2)
    shared = module.draw_shared(noise)
    drawn = torch.stack([module.draw_unshared(frames.cells, shared, noise, True).centers for _ in range(400)])
    assert bool(((drawn.mean(0) - prior.mean).abs() < 5 * prior.sd / 20).all())
    own = module.draw_unshared(frames.cells, shared, noise, from_prior=False).centers
    torch.testing.assert_close(own, module.centers.mean, rtol=0, atol=1e-3)


# Each participant's part ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_parts_are_those_of_each_participants_blocks(frames, estimator):
    """Blocks 0 and 2 are participant 7's, as trials with factors of their own would be; block 1 is participant 4's."""
    owner = torch.tensor([7, 4, 7])
    together = replace(frames, cells=replace(frames.cells, participant=owner[frames.cells.block]))
    model = TwoPlaces(frames.cells, shift_sd=0.5)
    result = log_predictive(model, together, estimator, 9, RandomSource(1))
    assert set(result.by_participant) == {4, 7}
    assert sum(result.by_participant.values()) == pytest.approx(result.value, rel=1e-12)
    if estimator == "collapsed":
        dense = np.array([dense_of_blocks(frames, draw) for draw in model.draws]).reshape(3, 3, 3)
        per_block = (logsumexp(dense, axis=1) - math.log(3)).mean(0)
        expected = {4: per_block[1], 7: per_block[0] + per_block[2]}
        assert result.by_participant == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_models_parts_sum_to_its_score(collapsed_kind, study, fitted, estimator):
    result = fitted(collapsed_kind).log_predictive(study, estimator, n_samples=4)
    assert list(result.by_participant) == study.participants
    assert sum(result.by_participant.values()) == pytest.approx(result.value, rel=1e-12)
    assert result.value == fitted(collapsed_kind).score(study, estimator, n_samples=4)


def test_a_participants_part_is_the_score_of_their_trials_alone(collapsed_kind, study, fitted):
    model = copy.deepcopy(fitted(collapsed_kind))
    for part in model._fitted.module.modules():
        if isinstance(part, NormalPosterior):
            part.raw_sd.data.fill_(-50.0)
    parts = model.log_predictive(study, n_samples=4).by_participant
    for participant in study.participants[::2]:
        alone = model.log_predictive(study.select(participants=participant), n_samples=4)
        assert list(alone.by_participant) == [participant]
        assert alone.value == pytest.approx(parts[participant], abs=0.05)
    assert max(parts.values()) - min(parts.values()) > 1, "parts must differ for this test to tell them apart"
