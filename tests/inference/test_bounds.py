import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from helpers import make_frames
from torch import Tensor, nn

from ntfa.inference.bounds import (
    Bound,
    CollapsedLikelihood,
    Draw,
    LatentLike,
    SampledLikelihood,
    elbo,
    importance_weighted,
    sampled_log_likelihood,
)
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior, weight_posterior
from ntfa.inference.frames import Frames
from ntfa.inference.normal import Latent, Normal, NormalPosterior, RandomSource
from ntfa.models.htfa import TemplateFactors
from ntfa.models.module import TopographicModule
from ntfa.models.ntfa import NeuralFactors
from ntfa.models.tfa import SeparateFactors


class TwoStories(nn.Module):
    """A model of two stories, linear and Gaussian, like NTFA's embeddings and factors.

    z ~ N(level, 1),  x ~ N(slope z, 0.6^2),  y ~ N(x, noise^2),  all of dimension two.
    """

    y = torch.tensor([1.5, -0.7], dtype=torch.float64)

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor([0.3, -0.4], dtype=torch.float64))
        self.slope = nn.Parameter(torch.tensor(1.2, dtype=torch.float64))
        self.noise = nn.Parameter(torch.tensor(0.8, dtype=torch.float64))
        self.z = NormalPosterior(torch.tensor([1.0, 0.1], dtype=torch.float64), sd=0.7)
        self.x = NormalPosterior(torch.tensor([0.7, -0.9], dtype=torch.float64), sd=0.6)

    @property
    def generative(self) -> list[nn.Parameter]:
        return [self.level, self.slope, self.noise]

    @property
    def variational(self) -> list[nn.Parameter]:
        return [*self.z.parameters(), *self.x.parameters()]

    def particle(self, noise: RandomSource) -> tuple[list[Latent], Tensor]:
        """Draw latents; return them and log p(y | them)."""
        z = self.z.draw("embeddings", Normal(self.level, torch.ones(2, dtype=torch.float64)), noise)
        x = self.x.draw("factors", Normal(self.slope * z.value, torch.full((2,), 0.6, dtype=torch.float64)), noise)
        return [z, x], self.log_likelihood(x.value)

    def log_likelihood(self, x: Tensor) -> Tensor:
        return torch.distributions.Normal(x, self.noise).log_prob(self.y).sum()

    def log_joint(self, z: Tensor, x: Tensor) -> Tensor:
        """log p(y, z, x), written apart from everything under test."""
        prior_z = torch.distributions.Normal(self.level, 1.0)
        prior_x = torch.distributions.Normal(self.slope * z, 0.6)
        return prior_z.log_prob(z).sum() + prior_x.log_prob(x).sum() + self.log_likelihood(x)

    def log_q(self, z: Tensor, x: Tensor) -> Tensor:
        return sum(
            torch.distributions.Normal(*posterior.normal).log_prob(value).sum()
            for posterior, value in ((self.z, z), (self.x, x))
        )

    def exact_log_evidence(self) -> float:
        variance = self.slope**2 + 0.6**2 + self.noise**2
        marginal = torch.distributions.Normal(self.slope * self.level, variance.sqrt())
        return float(marginal.log_prob(self.y).sum().detach())

    def bound(self, n_particles: int, noise: RandomSource) -> tuple[Tensor, Bound, list[list[Latent]]]:
        latents, log_likelihoods = zip(*(self.particle(noise) for _ in range(n_particles)), strict=True)
        surrogate, terms = importance_weighted(latents, log_likelihoods)
        return surrogate, terms.read(), list(latents)


def estimate(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


Particle = tuple[Sequence[LatentLike], Tensor]


def assert_climbs_to(exact: float, particle: Callable[[], Particle], n_draws: int = 300) -> None:
    """ELBO < IWAE(2) < IWAE(10) <= exact in the mean over sets of ten particles; weights average to the evidence."""
    bounds: dict[int, list[float]] = {1: [], 2: [], 10: []}
    for _ in range(n_draws):
        particles = [particle() for _ in range(10)]
        for size, values in bounds.items():
            groups = [particles[i : i + size] for i in range(0, 10, size)]
            values.append(np.mean([importance_weighted(*zip(*group, strict=True))[1].read().value for group in groups]))
    (one, _), (two, _), (ten, error) = (estimate(values) for values in bounds.values())
    assert one < two < ten < exact + 4 * error
    assert exact - ten < 0.5 * (exact - one)
    weight, weight_error = estimate(np.exp(np.subtract(bounds[10], exact)))
    assert abs(weight - 1) < 4 * weight_error
    assert weight_error < 0.1


# The linear-Gaussian case -------------------------------------------------------------------------------------------


def test_importance_weighted_bound_grows_with_particles_and_stays_under_the_evidence():
    model, noise = TwoStories(), RandomSource(0)
    assert_climbs_to(model.exact_log_evidence(), lambda: model.particle(noise))


def test_bound_is_the_average_of_weights_in_logs():
    model = TwoStories()
    _, bound, latents = model.bound(4, RandomSource(1))
    with torch.no_grad():
        ratios = [float(model.log_joint(z.value, x.value) - model.log_q(z.value, x.value)) for z, x in latents]
    assert bound.value == pytest.approx(math.log(np.mean(np.exp(ratios))), rel=1e-12)


def test_bound_is_exact_for_the_exact_posterior():
    model, noise = TwoStories(), RandomSource(2)
    with torch.no_grad():
        model.slope.zero_()
        precision = 1 / 0.6**2 + 1 / model.noise**2
        exact = Normal(model.y / model.noise**2 / precision, (1 / precision.sqrt()).expand(2))
    standard = Normal(model.level, torch.ones(2, dtype=torch.float64))
    for n_particles in (1, 3):
        values, log_likelihoods = [], []
        for _ in range(n_particles):
            z, x = standard.sample(noise), exact.sample(noise).requires_grad_()
            prior = Normal(model.slope * z, torch.full((2,), 0.6, dtype=torch.float64))
            values.append([Latent("embeddings", z, standard, standard), Latent("factors", x, exact, prior)])
            log_likelihoods.append(model.log_likelihood(x))
        bound = importance_weighted(values, log_likelihoods)[1].read()
        assert bound.value == pytest.approx(model.exact_log_evidence(), rel=1e-12)


def test_parts_of_one_particle_add_up_to_the_bound():
    _, bound, _ = TwoStories().bound(1, RandomSource(3))
    parts = bound.log_likelihood - bound.kl_embeddings - bound.kl_factors - bound.kl_weights
    assert parts == pytest.approx(bound.value)
    assert bound.kl_embeddings != 0
    assert bound.kl_factors != 0


def test_gradient_is_the_doubly_reparameterised_one_draw_by_draw():
    """Tucker et al. 2019, eq. 8: sum_l w_l^2 (d log w_l / d value_l) (d value_l / d parameter), by hand."""
    model = TwoStories()
    surrogate, _, latents = model.bound(3, RandomSource(4))
    ours = torch.autograd.grad(surrogate, model.variational, retain_graph=True)
    ratios = torch.stack([model.log_joint(z.value, x.value) - model.log_q(z.value, x.value) for z, x in latents])
    weights = torch.softmax(ratios.detach(), 0)
    expected = [torch.zeros_like(parameter) for parameter in model.variational]
    for weight, (z, x) in zip(weights, latents, strict=True):
        held = [latent.value.detach().requires_grad_() for latent in (z, x)]
        slopes = torch.autograd.grad(model.log_joint(*held) - model.log_q(*held), held)
        for latent, posterior, slope, offset in ((z, model.z, slopes[0], 0), (x, model.x, slopes[1], 2)):
            epsilon = (latent.value - posterior.mean).detach() / posterior.normal.sd.detach()
            expected[offset] += weight**2 * slope
            expected[offset + 1] += weight**2 * slope * epsilon * torch.sigmoid(posterior.raw_sd.detach())
    for gradient, truth in zip(ours, expected, strict=True):
        torch.testing.assert_close(gradient, truth, rtol=1e-10, atol=1e-12)


def plain_gradients(model: TwoStories, latents: list[list[Latent]], parameters: list[nn.Parameter]) -> list[Tensor]:
    """Gradient of log mean w through everything, log q included: unbiased, but noisy."""
    ratios = torch.stack([model.log_joint(z.value, x.value) - model.log_q(z.value, x.value) for z, x in latents])
    return list(torch.autograd.grad(torch.logsumexp(ratios, 0), parameters, retain_graph=True))


@pytest.mark.parametrize("n_particles", [1, 2, 5])
def test_gradient_of_generative_parameters_is_the_plain_one_draw_by_draw(n_particles):
    model, noise = TwoStories(), RandomSource(5)
    for _ in range(5):
        surrogate, _, latents = model.bound(n_particles, noise)
        expected = plain_gradients(model, latents, model.generative)
        ours = torch.autograd.grad(surrogate, model.generative)
        for gradient, truth in zip(ours, expected, strict=True):
            torch.testing.assert_close(gradient, truth, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_particles", [1, 4])
def test_gradient_of_variational_parameters_agrees_in_mean_with_the_plain_one_and_varies_less(n_particles):
    model = TwoStories()
    reparameterised, plain = [], []
    for seed in range(500):
        # The same draws twice: hooks on the drawn values would otherwise weigh the plain gradient too.
        surrogate, _, _ = model.bound(n_particles, RandomSource(seed))
        reparameterised.append(torch.cat(torch.autograd.grad(surrogate, model.variational)))
        noise = RandomSource(seed)
        latents = [model.particle(noise)[0] for _ in range(n_particles)]
        plain.append(torch.cat(plain_gradients(model, latents, model.variational)))
    ours, theirs = torch.stack(reparameterised), torch.stack(plain)
    difference = ours - theirs
    error = difference.std(0) / math.sqrt(len(difference))
    assert bool((difference.mean(0).abs() < 4 * error).all())
    assert bool((theirs.mean(0).abs() > 4 * error).any()), "a gradient of nothing but noise agrees with anything"
    assert float(ours.var(0).sum()) < float(theirs.var(0).sum())


def test_elbo_is_the_mean_of_the_single_particle_bound():
    model, noise = TwoStories(), RandomSource(6)
    closed, sampled = [], []
    for _ in range(1000):
        latents, log_likelihood = model.particle(noise)
        draw = Draw(latents, *[torch.zeros(())] * 2, WeightPrior(*[torch.zeros(())] * 2), model.noise)
        value, terms = elbo(draw, log_likelihood)
        bound = terms.read()
        assert value.item() == bound.value
        assert bound.value == pytest.approx(bound.log_likelihood - bound.kl_embeddings - bound.kl_factors)
        closed.append(bound.value)
        sampled.append(importance_weighted([latents], [log_likelihood])[1].read().value)
    mean, error = estimate(np.subtract(closed, sampled))
    assert abs(mean) < 4 * error
    assert np.var(closed) < np.var(sampled)
    exact, bound_error = model.exact_log_evidence(), estimate(closed)[1]
    assert np.mean(closed) < exact - 4 * bound_error


# Weights: sampled as in the paper, against integrated out -----------------------------------------------------------


@dataclass(frozen=True)
class FixedFactors:
    """Known factors, so that the collapsed likelihood is the exact evidence."""

    frames: Frames
    draw: Draw

    @property
    def exact(self) -> float:
        return float(CollapsedLikelihood(self.frames)(self.draw, RandomSource(0))[0])

    def at_best(self) -> SampledLikelihood:
        """Return mean-field weights at the mean and the conditional sd of the exact posterior."""
        projection = self.frames.project(self.draw.centers, self.draw.log_widths)
        exact = weight_posterior(projection, self.draw.weights, self.draw.noise_sd)
        sampled = SampledLikelihood(self.frames, exact.mean, sd=0.1)
        precision = torch.linalg.inv(exact.covariance).diagonal(dim1=-2, dim2=-1)
        with torch.no_grad():
            sd = precision.rsqrt()[self.frames.cells.of_frame]
            sampled.weights.raw_sd.copy_(torch.log(torch.expm1(sd - 1e-4)))
        return sampled


def fixed_factors(effect: bool, apart: float) -> FixedFactors:
    frames = make_frames([[2, 1], [2]], n_voxels=40, seed=3)
    centers = torch.tensor([[-apart, 0.0, 0.0], [apart, 0.0, 0.0]], dtype=torch.float64).repeat(2, 1, 1)
    log_widths = torch.full((2, 2), math.log(0.8), dtype=torch.float64)
    mean = torch.tensor([[0.5, -0.5], [0.0, 1.0], [0.3, 0.2]], dtype=torch.float64)
    effect_sd = torch.full_like(mean, 0.7) if effect else None
    weights = WeightPrior(mean, torch.full_like(mean, 0.5), effect_sd)
    return FixedFactors(frames, Draw([], centers, log_widths, weights, torch.tensor(0.9, dtype=torch.float64)))


@pytest.mark.parametrize("effect", [False, True])
def test_mean_field_weights_climb_to_the_collapsed_evidence(effect):
    fixed = fixed_factors(effect, apart=0.4)
    likelihood, noise = fixed.at_best(), RandomSource(7)
    with torch.no_grad():
        likelihood.weights.raw_sd += 0.3  # Wider than the posterior, so that importance weights are bounded.
    assert_climbs_to(fixed.exact, lambda: likelihood(fixed.draw, noise)[::-1], n_draws=200)


def test_mean_field_weights_reach_the_evidence_where_the_posterior_factorises():
    fixed = fixed_factors(effect=False, apart=12.0)
    with torch.no_grad():
        fixed.draw.centers[:, 0] = 0
    likelihood, noise = fixed.at_best(), RandomSource(8)
    for _ in range(3):
        value, latents = likelihood(fixed.draw, noise)
        bound = importance_weighted([latents], [value])[1].read()
        assert bound.value == pytest.approx(fixed.exact, rel=1e-9)
        assert bound.kl_weights == pytest.approx(bound.log_likelihood - bound.value)


@pytest.mark.parametrize("effect", [False, True])
def test_gradient_of_mean_field_weights_is_the_doubly_reparameterised_one_draw_by_draw(effect):
    fixed, noise = fixed_factors(effect, apart=0.4), RandomSource(9)
    likelihood, draw, cells = fixed.at_best(), fixed.draw, fixed.frames.cells
    posterior = likelihood.weights
    terms = [likelihood(draw, noise) for _ in range(3)]
    latents = [own for _, own in terms]
    surrogate, _ = importance_weighted(latents, [value for value, _ in terms])
    ours = torch.autograd.grad(surrogate, [posterior.mean, posterior.raw_sd])
    mean, sd = (part.detach() for part in posterior.normal)

    def log_weight(weights: Tensor) -> Tensor:
        log_p = sampled_log_likelihood(fixed.frames, draw, weights).sum() + draw.weights.log_prob(weights, cells)
        return log_p - torch.distributions.Normal(mean, sd).log_prob(weights).sum()

    held = [latent.value.detach().requires_grad_() for (latent,) in latents]
    log_weights = torch.stack([log_weight(weights) for weights in held])
    squared = torch.softmax(log_weights.detach(), 0).square()
    slopes = torch.autograd.grad((squared * log_weights).sum(), held)
    by_sd = sum(slope * (weights.detach() - mean) / sd for slope, weights in zip(slopes, held, strict=True))
    torch.testing.assert_close(ours[0], sum(slopes), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours[1], by_sd * torch.sigmoid(posterior.raw_sd.detach()), rtol=1e-9, atol=1e-12)


def test_sampled_likelihood_is_that_of_the_residual_image():
    fixed = fixed_factors(effect=False, apart=0.4)
    frames, draw = fixed.frames, fixed.draw
    weights = torch.randn(5, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    expected = torch.zeros(3, dtype=torch.float64)
    stacked = torch.cat([block.array[run] for block in frames.blocks for run in block.runs])
    for c, rows in enumerate(row for group in frames.cells.frames for row in group):
        b = int(frames.cells.block[c])
        squared = torch.cdist(draw.centers[b], frames.coordinates).square()
        image = weights[rows] @ torch.exp(-squared / draw.log_widths[b].exp()[:, None])
        expected[c] = torch.distributions.Normal(image, draw.noise_sd).log_prob(stacked[rows]).sum()
    torch.testing.assert_close(sampled_log_likelihood(frames, draw, weights), expected)


def test_sampled_likelihood_does_not_depend_on_the_units_of_inference():
    fixed = fixed_factors(effect=False, apart=0.4)
    weights = torch.randn(5, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    brighter = fixed.frames.with_intensity(3.0)
    prior = WeightPrior(*(part / 3 for part in fixed.draw.weights if isinstance(part, Tensor)))
    draw = replace(fixed.draw, weights=prior, noise_sd=fixed.draw.noise_sd / 3)
    plain = SampledLikelihood(fixed.frames, weights, sd=0.3)
    scaled = SampledLikelihood(brighter, weights / 3, sd=0.1)
    values = [likelihood(d, RandomSource(1)) for likelihood, d in ((plain, fixed.draw), (scaled, draw))]
    bounds = [importance_weighted([latents], [value])[1].read() for value, latents in values]
    assert bounds[0].value == pytest.approx(bounds[1].value, rel=1e-10)
    assert bounds[0].log_likelihood == pytest.approx(bounds[1].log_likelihood, rel=1e-10)


# KL divergences are counted once ------------------------------------------------------------------------------------


def scrambled(module: TopographicModule) -> TopographicModule:
    """Give every parameter some value, in float64."""
    generator = torch.Generator().manual_seed(10)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


MODULES = {
    "ntfa": lambda: scrambled(NeuralFactors(n_participants=3, n_stimuli=2, n_factors=2, embedding_dim=2)),
    "htfa": lambda: scrambled(TemplateFactors(n_blocks=3, n_factors=2)),
    "tfa": lambda: scrambled(SeparateFactors(n_blocks=3, n_factors=2)),
}


def layout(pairs: list[tuple[int, int]], n_frames: int) -> Cells:
    """Cells of n_frames frames each, of (participant, stimulus) pairs; a block a participant."""
    participant, stimulus = torch.tensor(pairs).T
    rows = torch.arange(len(pairs) * n_frames).reshape(len(pairs), n_frames)
    return Cells(participant, stimulus, participant, (rows,), torch.arange(3))


ONCE = layout([(0, 0), (1, 1), (2, 0)], n_frames=2)
OFTEN = layout([(p, s) for p in range(3) for s in range(2)] * 4, n_frames=7)


def kl(normal: Normal, prior: Normal) -> float:
    q, p = torch.distributions.Normal(*normal), torch.distributions.Normal(*prior)
    return float(torch.distributions.kl_divergence(q, p).sum().detach())


def kls_by_hand(module: TopographicModule, draw: Draw) -> tuple[float, float]:
    """KL divergences of factors and embeddings, each posterior against its prior once, given the draw's values."""
    own = module.centers.normal, module.log_widths.normal
    zero, one = torch.zeros(()).double(), torch.ones(()).double()
    if isinstance(module, NeuralFactors):
        z_participant, z_stimulus = module.z_participant.normal, module.z_stimulus.normal
        priors = module.factors_given(draw.latents[0].value)
        factors = sum(kl(q, p) for q, p in zip(own, priors, strict=True))
        return factors, kl(z_participant, Normal(zero, one)) + kl(z_stimulus, Normal(zero, one))
    if isinstance(module, TemplateFactors):
        template = module.template_centers.normal, module.template_log_widths.normal
        centers, log_widths = draw.latents[0].value, draw.latents[1].value
        spreads = [
            torch.nn.functional.softplus(raw) + 1e-4 for raw in (module.raw_center_spread, module.raw_log_width_spread)
        ]
        around = kl(own[0], Normal(centers, spreads[0])) + kl(own[1], Normal(log_widths, spreads[1]))
        return around + kl(template[0], Normal(zero, one)) + kl(template[1], Normal(module.log_width_start, one)), 0.0
    return kl(own[0], Normal(zero, one)) + kl(own[1], Normal(module.log_width_start, one)), 0.0


@pytest.mark.parametrize("kind", MODULES)
def test_kl_is_counted_once_however_many_trials_there_are(kind):
    module = MODULES[kind]()
    bounds = []
    for cells in (ONCE, OFTEN):
        draw = module.draw(cells, RandomSource(11))
        value, terms = elbo(draw, torch.zeros((), dtype=torch.float64))
        bound = terms.read()
        factors, embeddings = kls_by_hand(module, draw)
        assert bound.kl_factors == pytest.approx(factors)
        assert bound.kl_embeddings == pytest.approx(embeddings)
        assert value.item() == pytest.approx(-factors - embeddings)
        ratios = importance_weighted([draw.latents], [torch.zeros((), dtype=torch.float64)])[1].read()
        bounds.append((bound, ratios))
    assert bounds[0] == bounds[1], "the same draws must cost the same, whatever they are used for"
    assert (bounds[0][0].kl_embeddings > 0) == (kind == "ntfa")


@pytest.mark.parametrize("kind", MODULES)
def test_closed_form_kl_equals_the_average_over_draws(kind):
    module, noise = MODULES[kind](), RandomSource(12)
    differences = {"factors": [], "embeddings": []}
    for _ in range(600):
        latents = module.draw(ONCE, noise).latents
        for name, values in differences.items():
            values.append(float(sum((x.kl() + x.log_ratio()).detach() for x in latents if x.kind == name)))
    for name, values in differences.items():
        mean, error = estimate(values)
        assert abs(mean) <= 4 * error
        assert (error > 0) == (name == "factors" or kind == "ntfa")


@pytest.mark.parametrize("kind", MODULES)
def test_draws_come_from_the_posteriors(kind):
    module = MODULES[kind]()
    draw = module.draw(OFTEN, RandomSource(13))
    assert torch.equal(draw.centers, next(x.value for x in draw.latents if x.value.shape == (3, 2, 3)))
    drawn = torch.stack([module.draw(ONCE, RandomSource(seed)).centers for seed in range(400)]).detach()
    mean, sd = (part.detach() for part in module.centers.normal)
    assert bool(((drawn.mean(0) - mean).abs() < 5 * sd / 20).all())
    assert bool((drawn.std(0) / sd - 1).abs().max() < 0.25)


@pytest.mark.parametrize(("n_particles", "n_likelihoods"), [(1, 2), (2, 1)])
def test_particles_and_likelihoods_that_do_not_pair_are_an_error(n_particles, n_likelihoods):
    nothing = torch.zeros((), dtype=torch.float64)
    with pytest.raises(ValueError, match="zip"):
        importance_weighted([[]] * n_particles, [nothing] * n_likelihoods)
