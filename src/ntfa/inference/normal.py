"""Independent normal distributions, the one family that priors and posteriors are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ntfa.inference.processes import Share

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
        return 0.5 * (self._away_from(prior).sum() - self.mean.numel())

    def kl_of_rows(self, prior: Normal) -> Tensor:
        """KL(self || prior), summed over the elements of each row of self."""
        return 0.5 * (self._away_from(prior) - 1).flatten(1).sum(1)

    def _away_from(self, prior: Normal) -> Tensor:
        """1 + 2 KL(self || prior) of each element."""
        ratio = (self.sd / prior.sd).square()
        shift = ((self.mean - prior.mean) / prior.sd).square()
        return ratio + shift - ratio.log()

    def detached(self) -> Normal:
        """Return the same distribution, closed to gradients."""
        return Normal(self.mean.detach(), self.sd.detach())

    def sample(self, noise: RandomSource, share: Share | None = None) -> Tensor:
        """Draw by reparameterisation: mean + sd * epsilon; see `RandomSource.randn_like` for the share."""
        return torch.addcmul(self.mean, self.sd, noise.randn_like(self.mean, share))

    def sample_grown(self, noise: RandomSource, n_before: int) -> Tensor:
        """Draw likewise, rows after the first `n_before` from a source of their own."""
        if n_before == len(self.mean):
            return self.sample(noise)
        before, after = (Normal(self.mean[own], self.sd[own]) for own in (slice(n_before), slice(n_before, None)))
        return torch.cat([before.sample(noise), after.sample(noise.of_newcomers)])


class RandomSource:
    """A seeded source of standard normal numbers, drawn on the CPU so that every device sees the same ones."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.seed = seed

    @cached_property
    def of_newcomers(self) -> RandomSource:
        """A source for rows that were added to a variable: the others get the numbers that they would get alone."""
        return RandomSource((self.seed + 1) % 2**32)

    def randn_like(self, tensor: Tensor, share: Share | None = None) -> Tensor:
        """Draw numbers of the same shape, on the same device.

        With a `share`, numbers are drawn for all processes' rows and this one's are kept: processes that start with
        one seed stay in step, and a variable gets the same numbers however many of them there are.
        """
        shape = tensor.shape if share is None else (share.total, *tensor.shape[1:])
        drawn = torch.randn(shape, generator=self.generator, dtype=tensor.dtype)
        return (drawn if share is None else drawn[share.rows]).to(tensor.device)


@dataclass(frozen=True)
class Latent:
    """One draw of a latent variable: its value, where it came from, and what was expected of it beforehand.

    counted : False in all but one of the processes that share the variable
    """

    kind: str
    value: Tensor
    posterior: Normal
    prior: Normal
    counted: bool = True

    def kl(self) -> Tensor:
        """KL divergence of posterior from prior, in closed form."""
        return self.posterior.kl(self.prior) if self.counted else self.value.new_zeros(())

    def log_ratio(self) -> Tensor:
        """Return log p(value) - log q(value), with q's own parameters closed to gradients.

        What remains is the gradient through the value: the first half of the doubly reparameterised estimator.
        """
        if not self.counted:
            return self.value.new_zeros(())
        return self.prior.log_prob(self.value) - self.posterior.detached().log_prob(self.value)


class NormalPosterior(nn.Module):
    """A fully factorised normal posterior, the learned mean and sd of a latent variable.

    share : which of a variable's rows these are, where other processes have the others
    counted : whether this process counts the variable in the bound; one of those that share it does
    """

    share: Share | None = None
    counted = True

    def __init__(self, mean: Tensor, sd: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean.clone())
        self.raw_sd = nn.Parameter(unconstrained(torch.full_like(mean, sd)))

    @property
    def normal(self) -> Normal:
        """The posterior as a distribution."""
        return Normal(self.mean, positive(self.raw_sd))

    def sample(self, noise: RandomSource) -> Tensor:
        """Draw by reparameterisation."""
        return self.normal.sample(noise, self.share)

    def draw(self, kind: str, prior: Normal, noise: RandomSource) -> Latent:
        """Draw from the posterior and remember the prior."""
        normal = self.normal
        return Latent(kind, normal.sample(noise, self.share), normal, prior, self.counted)
