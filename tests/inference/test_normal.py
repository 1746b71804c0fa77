import math

import pytest
import scipy.stats
import torch
from torch import Tensor

from ntfa.inference.normal import SMALLEST_SD, Latent, Normal, NormalPosterior, RandomSource, positive, unconstrained


def random_normal(*shape: int, seed: int, requires_grad: bool = False) -> Normal:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    sd = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.2
    return Normal(mean.requires_grad_(requires_grad), sd.requires_grad_(requires_grad))


def test_log_prob_sums_scipys_over_all_elements():
    normal, value = random_normal(4, 3, seed=0), random_normal(4, 3, seed=1).mean
    expected = scipy.stats.norm(normal.mean.numpy(), normal.sd.numpy()).logpdf(value.numpy()).sum()
    assert normal.log_prob(value).item() == pytest.approx(expected, rel=1e-12)


def test_log_prob_of_many_values_under_one_row():
    normal, values = random_normal(3, seed=0), random_normal(5, 3, seed=1).mean
    expected = sum(normal.log_prob(value) for value in values)
    torch.testing.assert_close(normal.log_prob(values), expected)


def test_kl_equals_torchs():
    own, prior = random_normal(4, 3, seed=2), random_normal(4, 3, seed=3)
    expected = torch.distributions.kl_divergence(torch.distributions.Normal(*own), torch.distributions.Normal(*prior))
    torch.testing.assert_close(own.kl(prior), expected.sum())
    assert own.kl(own).abs() < 1e-12


def test_kl_to_a_prior_shared_by_all_rows_counts_every_row():
    own, prior = random_normal(4, 3, seed=2), random_normal(3, seed=3)
    expected = sum(Normal(mean, sd).kl(prior) for mean, sd in zip(*own, strict=True))
    torch.testing.assert_close(own.kl(prior), expected)


def test_kl_equals_the_average_of_log_ratios_over_draws():
    own, prior = random_normal(2, seed=4), random_normal(2, seed=5)
    drawn = own.mean + own.sd * torch.randn(100_000, 2, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    q, p = (torch.distributions.Normal(*normal) for normal in (own, prior))
    ratios = (q.log_prob(drawn) - p.log_prob(drawn)).sum(1)
    error = float(ratios.std() / math.sqrt(len(ratios)))
    assert abs(float(ratios.mean() - own.kl(prior))) < 4 * error
    assert error < 0.02


def test_gradients_equal_finite_differences():
    own, prior = (random_normal(3, seed=seed, requires_grad=True) for seed in (7, 8))
    value = random_normal(3, seed=9).mean.requires_grad_()
    assert torch.autograd.gradcheck(lambda m, s, x: Normal(m, s).log_prob(x), (*own, value))
    assert torch.autograd.gradcheck(lambda m, s, pm, ps: Normal(m, s).kl(Normal(pm, ps)), (*own, *prior))


def test_detached_is_the_same_distribution_without_gradients():
    normal = random_normal(3, seed=10, requires_grad=True)
    detached = normal.detached()
    assert not detached.mean.requires_grad
    assert not detached.sd.requires_grad
    assert torch.equal(detached.mean, normal.mean)
    assert torch.equal(detached.sd, normal.sd)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_positive_and_unconstrained_are_inverses(dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10  # softplus is linear above 20
    raw = torch.linspace(-6, 50, 113, dtype=dtype)
    torch.testing.assert_close(unconstrained(positive(raw)), raw, rtol=tolerance, atol=20 * tolerance)
    sd = SMALLEST_SD + torch.logspace(-5, 3, 50, dtype=dtype)
    torch.testing.assert_close(positive(unconstrained(sd)), sd, rtol=tolerance, atol=0)


def test_positive_stays_above_the_floor_and_finite():
    raw = torch.tensor([-1e4, -50.0, 0.0, 1e4], dtype=torch.float64, requires_grad=True)
    sd = positive(raw)
    assert bool((sd >= SMALLEST_SD).all())
    (gradient,) = torch.autograd.grad(sd.sum(), raw)
    assert bool(torch.isfinite(gradient).all())
    at_floor = unconstrained(torch.tensor([0.0, SMALLEST_SD / 2, SMALLEST_SD], dtype=torch.float64))
    assert bool(torch.isfinite(at_floor).all())
    torch.testing.assert_close(positive(at_floor), torch.full_like(at_floor, SMALLEST_SD))


def test_noise_is_reproducible_and_does_not_repeat():
    first, second, other = RandomSource(3), RandomSource(3), RandomSource(4)
    tensor = torch.zeros(5, 2, dtype=torch.float64)
    drawn = [first.randn_like(tensor), first.randn_like(tensor)]
    torch.manual_seed(0)
    torch.randn(7)
    assert torch.equal(drawn[0], second.randn_like(tensor))
    assert torch.equal(drawn[1], second.randn_like(tensor))
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], other.randn_like(tensor))
    assert drawn[0].dtype == torch.float64


def test_noise_goes_on_from_a_saved_state():
    noise = RandomSource(5)
    noise.randn_like(torch.zeros(3))
    state = noise.generator.get_state()
    expected = noise.randn_like(torch.zeros(4))
    resumed = RandomSource(0)
    resumed.generator.set_state(state)
    assert torch.equal(resumed.randn_like(torch.zeros(4)), expected)


def test_samples_have_the_mean_and_sd_of_the_distribution():
    mean, sd = torch.tensor([2.0, -1.0]).double(), torch.tensor([0.5, 3.0]).double()
    n = 40_000
    drawn = Normal(mean.expand(n, 2), sd.expand(n, 2)).sample(RandomSource(0))
    assert bool(((drawn.mean(0) - mean).abs() < 4 * sd / n**0.5).all())
    assert bool(((drawn.std(0) / sd - 1).abs() < 4 / (2 * n) ** 0.5).all())


def test_posterior_starts_at_its_mean_and_sd():
    mean = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(11))
    posterior = NormalPosterior(mean, sd=0.07)
    torch.testing.assert_close(posterior.normal.mean.data, mean)
    torch.testing.assert_close(posterior.normal.sd.data, torch.full_like(mean, 0.07))
    with torch.no_grad():
        posterior.mean.zero_()
    assert bool((mean != 0).all()), "the caller's tensor must not change with the posterior"


def test_log_ratio_has_the_value_of_the_densities_but_only_the_path_gradient():
    own, prior = (random_normal(3, seed=seed, requires_grad=True) for seed in (12, 13))
    epsilon = torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64)

    def log_ratio(mean: Tensor, sd: Tensor, value: Tensor) -> Tensor:
        p, q = torch.distributions.Normal(*prior), torch.distributions.Normal(mean, sd)
        return (p.log_prob(value) - q.log_prob(value)).sum()

    value = own.mean + own.sd * epsilon
    latent = Latent("embeddings", value, own, prior)
    ratio = latent.log_ratio()
    torch.testing.assert_close(ratio, log_ratio(*own, value))
    torch.testing.assert_close(latent.kl(), own.kl(prior))
    ours = torch.autograd.grad(ratio, [*own, *prior])
    held = value.detach().requires_grad_()
    slope, *for_prior = torch.autograd.grad(log_ratio(own.mean.detach(), own.sd.detach(), held), [held, *prior])
    for gradient, truth in zip(ours, [slope, slope * epsilon, *for_prior], strict=True):
        torch.testing.assert_close(gradient, truth)
