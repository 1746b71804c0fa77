"""What is uncertain about weighted sums of responses: dense algebra, and draws from the posterior."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ntfa.inference.loadings import Rotation
from ntfa.models.loadings import LoadingFactors
from ntfa.models.ntfa import NeuralFactors
from ntfa.models.spread import Uncertainty
from ntfa.uncertainty.combinations import Combination, joint_spread
from ntfa.uncertainty.drawn import draw_responses

P, S, K, D, V = 4, 5, 3, 2, 40
VOXELS = torch.from_numpy(np.random.default_rng(5).normal(size=(V, 3)))
EVERYWHERE = torch.arange(V)


def normal(generator: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(generator.normal(size=shape))


@pytest.fixture
def loadings() -> LoadingFactors:
    """Individual loadings with a posterior, as if P people had seen S stimuli, each so many times."""
    rng = np.random.default_rng(0)
    module = LoadingFactors(P, S, K, 2, D).double()
    with torch.no_grad():
        module.z_stimulus.mean.copy_(normal(rng, S, D))
        module.z_stimulus.raw_sd.fill_(-30.0)
        module.group_loadings.copy_(normal(rng, D + 1, K))
        module.loadings.copy_(0.5 * normal(rng, P, D + 1, K))
        module.lower.copy_(0.3 * normal(rng, K, K))
        module.raw_sd.copy_(0.3 * normal(rng, K))
        module.raw_loading_sd.copy_(0.3 * normal(rng, K))
        module.log_feature_scale.copy_(0.3 * normal(rng, D + 1))
        module.centers.mean.copy_(normal(rng, 1, K, 3))
        for posterior in (module.centers, module.log_widths):
            posterior.raw_sd.fill_(-30.0)
        images = factors(module)
        module.gram.copy_(images @ images.T)
        rotation = Rotation.of(design(module))
        module.design_squared.copy_(rotation.squared)
        module.design_right.copy_(rotation.right)
    module.misfit = None
    return module


def counts() -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(1, 6, size=(P, S))).double()


def design(module: LoadingFactors) -> Tensor:
    scaled = module.scaled(module.features(module.z_stimulus.mean)).detach()
    return counts().sqrt().unsqueeze(-1) * scaled


def factors(module: LoadingFactors | NeuralFactors, p: int = 0) -> Tensor:
    squared = (VOXELS - module.centers.mean.detach()[p].unsqueeze(1)).square().sum(-1)
    return torch.exp(-squared * torch.exp(-module.log_widths.mean.detach()[p]).unsqueeze(-1))


def some_pairs(seed: int = 2, n: int = 7) -> Combination:
    rng = np.random.default_rng(seed)
    places = torch.from_numpy(rng.choice(P * S, n, replace=False))
    return Combination(places // S, places % S, normal(rng, n))


def dense_covariance(module: LoadingFactors, combination: Combination) -> Tensor:
    """Posterior of everybody's loadings and the group's, as one regression of all frames, solved as it stands."""
    images, noise = factors(module), module.noise_sd.detach().square()
    mixing, r = module.mixing.detach(), D + 1
    features = module.features(module.z_stimulus.mean).detach()
    scale = module.log_feature_scale.detach().exp().square()
    of_loadings = mixing * module.loading_sd.detach().square() @ mixing.T
    of_frames = mixing * module.sd.detach().square() @ mixing.T
    one = torch.eye(K, dtype=torch.float64)
    size = r * K
    precision = torch.zeros((P + 1) * size, (P + 1) * size, dtype=torch.float64)
    for p in range(P):
        own = slice((p + 1) * size, (p + 2) * size)
        precision[own, own] += torch.linalg.inv(torch.kron(torch.diag(scale), of_loadings))
        for s in range(S):
            row = torch.kron(features[s].unsqueeze(0), one)
            both = torch.zeros(K, len(precision), dtype=torch.float64)
            both[:, :size], both[:, own] = row, row
            of_average = (images.T @ of_frames @ images + noise * torch.eye(V)) / counts()[p, s]
            seen = both.T @ images
            precision += seen @ torch.linalg.solve(of_average, seen.T)
    wanted = torch.zeros(K, len(precision), dtype=torch.float64)
    for p, s, c in zip(combination.participants, combination.stimuli, combination.coefficients, strict=True):
        row = c * torch.kron(features[s].unsqueeze(0), one)
        wanted[:, :size] += row
        wanted[:, (p + 1) * size : (p + 2) * size] += row
    return wanted @ torch.linalg.solve(precision, wanted.T)


def test_loadings_are_those_of_one_large_regression(loadings: LoadingFactors) -> None:
    combination = some_pairs()
    found = joint_spread(loadings).weights(combination)
    assert torch.allclose(found.covariance, dense_covariance(loadings, combination), rtol=1e-5, atol=1e-9)


def test_sum_of_weights_is_the_sum_of_the_pairs(loadings: LoadingFactors) -> None:
    combination, responses = some_pairs(), loadings.responses().detach()
    expected = sum(
        c * responses[p, s]
        for p, s, c in zip(combination.participants, combination.stimuli, combination.coefficients, strict=True)
    )
    assert torch.allclose(joint_spread(loadings).weights(combination).mean, expected)


def test_what_pairs_share_cancels_in_a_difference(loadings: LoadingFactors) -> None:
    spread = joint_spread(loadings)

    def variance(pairs: list[tuple[int, int]], signs: list[float]) -> float:
        places = torch.tensor(pairs)
        combination = Combination(places[:, 0], places[:, 1], torch.tensor(signs, dtype=torch.float64))
        return float(spread.weights(combination).covariance.trace())

    same_person = variance([(0, 0), (0, 1)], [1, -1])
    apart = variance([(0, 0)], [1]) + variance([(0, 1)], [1])
    together = variance([(0, 0), (0, 1)], [1, 1])
    assert same_person + together == pytest.approx(2 * apart)
    assert same_person != pytest.approx(apart, rel=0.01)


def with_everything(module: LoadingFactors) -> LoadingFactors:
    """Uncertain embeddings of stimuli, misfit and detail as well."""
    rng = np.random.default_rng(3)
    with torch.no_grad():
        module.z_stimulus.raw_sd.fill_(-4.0)
        module.detail_variances.copy_(torch.tensor([0.02, 0.05, 1.0]))
    module.detail_group, module.detail_own = normal(rng, D + 1, V), normal(rng, P, D + 1, V)
    module.misfit = torch.tensor([0.3, 0.2, 0.03], dtype=torch.float64)
    return module


def network() -> NeuralFactors:
    rng = np.random.default_rng(4)
    torch.manual_seed(0)
    module = NeuralFactors(P, S, K, D, D).double()
    with torch.no_grad():
        module.z_participant.mean.copy_(normal(rng, P, D))
        module.z_stimulus.mean.copy_(normal(rng, S, D))
        module.centers.mean.copy_(normal(rng, P, K, 3))
    n_features = module.uncertainty.feature_spread.shape[0]
    root = 0.1 * normal(rng, n_features, n_features)
    module.uncertainty.remember(
        Uncertainty(
            0.02 * torch.eye(D).double().repeat(P, 1, 1),
            0.01 * torch.eye(D).double().repeat(S, 1, 1),
            torch.zeros(P, K, 3).double(),
            torch.zeros(P, K).double(),
            torch.tensor([0.1, 0.2, 0.3]).double(),
            root @ root.T,
        )
    )
    return module


@pytest.mark.parametrize("kind", ["loadings", "network"])
def test_variances_are_those_of_draws_of_all_responses(kind: str, loadings: LoadingFactors) -> None:
    module = with_everything(loadings) if kind == "loadings" else network()
    combination, ones = some_pairs(), torch.ones(V, dtype=torch.float64)
    draws = draw_responses(module, 4000)
    total = torch.zeros(4001, V, dtype=torch.float64)
    for p, s, c in zip(combination.participants, combination.stimuli, combination.coefficients, strict=True):
        total += c * draws.images(int(p), VOXELS, EVERYWHERE)[:, s].detach()
    expected = joint_spread(module).image_variances([combination], VOXELS, ones)[0]
    # Embeddings of stimuli enter to first order, and draws have an error of their own.
    assert float(total[1:].var(0).mean() / expected.mean()) == pytest.approx(1, abs=0.06)
    assert torch.allclose(total[1:].var(0), expected, rtol=0.2)


def test_draws_scatter_around_what_is_expected(loadings: LoadingFactors) -> None:
    module = with_everything(loadings)
    images = draw_responses(module, 3000).images(1, VOXELS, EVERYWHERE).detach()
    detail = torch.stack([module.detail_image(1, s) for s in range(S)])
    mean = module.responses()[1].detach() @ factors(module) + detail
    assert torch.allclose(images[0], mean)
    error = images[1:].std(0) / 3000**0.5
    assert float(((images[1:].mean(0) - mean).abs() / error).max()) < 5


def test_places_and_widths_enter_to_first_order() -> None:
    module, rng = network(), np.random.default_rng(6)
    with torch.no_grad():
        module.uncertainty.centers_sd.fill_(0.02)
        module.uncertainty.log_widths_sd.fill_(0.03)
        module.uncertainty.participants.mul_(1e-9)
        module.uncertainty.stimuli.mul_(1e-9)
        module.uncertainty.feature_spread.zero_()
    combination, spread = some_pairs(), joint_spread(module)
    by_person: dict[int, Tensor] = {}
    z = (module.z_participant.mean.detach(), module.z_stimulus.mean.detach())
    for p, s, c in zip(combination.participants, combination.stimuli, combination.coefficients, strict=True):
        weights = module.weights_of(torch.cat([z[0][p], z[1][s]])).mean.detach()
        by_person[int(p)] = by_person.get(int(p), torch.zeros(K).double()) + c * weights
    centers, log_widths = module.centers.mean.detach().clone(), module.log_widths.mean.detach().clone()
    images = []
    for _ in range(4000):
        with torch.no_grad():
            module.centers.mean.copy_(centers + 0.02 * normal(rng, P, K, 3))
            module.log_widths.mean.copy_(log_widths + 0.03 * normal(rng, P, K))
        images.append(sum(weights @ factors(module, p) for p, weights in by_person.items()))
    with torch.no_grad():
        module.centers.mean.copy_(centers)
        module.log_widths.mean.copy_(log_widths)
    expected = spread.image_variances([combination], VOXELS, torch.ones(V).double())[0]
    assert torch.allclose(torch.stack(images).var(0), expected, rtol=0.15)
