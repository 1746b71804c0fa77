"""Independent normal distributions, the one family that priors and posteriors are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

LOG_2PI = math.log(2 * math.pi)

SMALLEST_SD = 1e-4
"""Floor of every standard deviation, in standardised units (a few micrometres, or 1e-4 of the data's sd)."""


def positive(raw: Tensor) -> Tensor:
    """Map an unconstrained number to a positive one."""
    return softplus(raw) + SMALLEST_SD


def unconstrained(value: Tensor) -> Tensor:
    """Invert `positive`."""
    above = (value - SMALLEST_SD).clamp(min=1e-12)
    return above + torch.log(-torch.expm1(-above))


class Normal(NamedTuple):
    """N(mean, sd^2), elementwise."""

    mean: Tensor
    sd: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, summed over all elements."""
        residual = (value - self.mean) / self.sd
        n_extra = value.numel() // self.sd.numel()
        return -0.5 * (residual.square().sum() + value.numel() * LOG_2PI) - n_extra * self.sd.log().sum()

    def kl(self, prior: Normal) -> Tensor:
        """KL(self || prior), summed over all elements of self."""
        ratio = (self.sd / prior.sd).square()
        shift = ((self.mean - prior.mean) / prior.sd).square()
        return 0.5 * (ratio + shift - 1 - ratio.log()).sum()

    def detached(self) -> Normal:
        """Return the same distribution, closed to gradients."""
        return Normal(self.mean.detach(), self.sd.detach())

    def sample(self, noise: Noise) -> Tensor:
        """Draw by reparameterisation: mean + sd * epsilon."""
        return self.mean + self.sd * noise.like(self.mean)


class Noise:
    """A seeded source of standard normal numbers, drawn on the CPU so that every device sees the same ones."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def like(self, tensor: Tensor) -> Tensor:
        """Draw numbers of the same shape, on the same device."""
        drawn = torch.randn(tensor.shape, generator=self.generator, dtype=tensor.dtype)
        return drawn.to(tensor.device)


@dataclass(frozen=True)
class Latent:
    """One draw of a latent variable: its value, where it came from, and what was expected of it beforehand."""

    kind: str
    value: Tensor
    posterior: Normal
    prior: Normal

    def kl(self) -> Tensor:
        """KL divergence of posterior from prior, in closed form."""
        return self.posterior.kl(self.prior)

    def log_ratio(self) -> Tensor:
        """Return log p(value) - log q(value), with q's own parameters closed to gradients.

        What remains is the gradient through the value: the first half of the doubly reparameterised estimator.
        """
        return self.prior.log_prob(self.value) - self.posterior.detached().log_prob(self.value)


class NormalPosterior(nn.Module):
    """A fully factorised normal posterior, the learned mean and sd of a latent variable."""

    def __init__(self, mean: Tensor, sd: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean.clone())
        self.raw_sd = nn.Parameter(unconstrained(torch.full_like(mean, sd)))

    @property
    def normal(self) -> Normal:
        """The posterior as a distribution."""
        return Normal(self.mean, positive(self.raw_sd))

    def draw(self, kind: str, prior: Normal, noise: Noise) -> Latent:
        """Draw from the posterior and remember the prior."""
        posterior = self.normal
        return Latent(kind, posterior.sample(noise), posterior, prior)
