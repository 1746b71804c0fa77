"""Bounds on the log evidence: the ELBO, and the importance-weighted bound with its doubly reparameterised gradient.

Collapsed inference with one particle maximises the ELBO with KL divergences in closed form. Otherwise, with
log w_l = log p(Y, latents_l) - log q(latents_l) for particles l = 1..L, the bound is log (1/L) sum_l w_l.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ntfa.inference.collapsed import WeightPrior, log_likelihood
from ntfa.inference.frames import Frames
from ntfa.inference.normal import LOG_2PI, Latent, Normal, NormalPosterior, RandomSource
from ntfa.inference.processes import ALONE, Processes
from ntfa.inference.streaming import is_stored

if TYPE_CHECKING:
    from ntfa.inference.loadings import IndividualWeights

KINDS = ("factors", "embeddings", "weights")

Evaluate = Callable[..., Tensor]
"""A log likelihood in standardised units, of frames and variables."""


class LatentLike(Protocol):
    """A latent variable of a draw."""

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        ...

    @property
    def value(self) -> Tensor:
        """The drawn value."""
        ...

    def log_ratio(self) -> Tensor:
        """Return log p - log q, q's parameters closed to gradients."""
        ...


@dataclass(frozen=True)
class Draw:
    """One joint draw of a model's latent variables, and what it says of the frames.

    centers : [B, K, 3]
    log_widths : [B, K]
    weights : prior of the weights, one row per cell
    noise_sd : scalar, sd of a voxel around its mean
    individual : prior of weights and loadings, where participants have loadings of their own
    loadings : prior of the loadings, mean [J, K] and sd [K], where weights are a design's rows times loadings
    """

    latents: Sequence[Latent]
    centers: Tensor
    log_widths: Tensor
    weights: WeightPrior
    noise_sd: Tensor
    loadings: Normal | None = None
    individual: IndividualWeights | None = None


@dataclass(frozen=True)
class Bound:
    """A bound in nats and its parts: value = log_likelihood - kl_factors - kl_embeddings - kl_weights.

    With several particles the parts are importance-weighted averages and no longer add up to the value.
    """

    value: float
    log_likelihood: float
    kl_factors: float = 0.0
    kl_embeddings: float = 0.0
    kl_weights: float = 0.0


@dataclass(frozen=True)
class Terms:
    """A bound and its parts, on their device: reading numbers off a GPU makes it wait, so that is done last."""

    value: Tensor
    log_likelihood: Tensor
    kl: dict[str, Tensor]

    def stacked(self) -> Tensor:
        """Return value and parts in the order of `Bound`."""
        nothing = torch.zeros_like(self.value)
        parts = [self.value, self.log_likelihood, *(self.kl.get(kind, nothing) for kind in KINDS)]
        return torch.stack([part.detach().double() for part in parts])

    def read(self) -> Bound:
        """Return the numbers."""
        return Bound(*self.stacked().tolist())


class Likelihood(Protocol):
    """A way to treat the weights of some frames: returns log p(frames | draw) and any latents it drew itself."""

    frames: Frames

    def __call__(self, draw: Draw, noise: RandomSource) -> tuple[Tensor, Sequence[LatentLike]]:
        """Evaluate at a draw."""
        ...


class CollapsedLikelihood(nn.Module):
    """Weights integrated out exactly."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self.frames = frames

    def forward(self, draw: Draw, noise: RandomSource) -> tuple[Tensor, Sequence[LatentLike]]:
        """Return log p(frames | draw)."""
        prior = draw.weights
        variables = (draw.centers, draw.log_widths, draw.noise_sd, prior.mean, prior.sd, prior.effect_sd)
        axes = ("block", "block", "all", "cell", "cell", "cell")
        evaluate = partial(_collapsed, is_of_block=prior.is_of_block)
        return _in_data_units(self.frames, evaluate, axes, variables), ()


def _in_data_units(frames: Frames, evaluate: Evaluate, axes: Sequence[str], variables: Sequence[Any]) -> Tensor:
    """Evaluate a log likelihood in the units of the data, block by block where frames are on disk."""
    if is_stored(frames.blocks):
        value = BlockByBlock.apply(frames, evaluate, axes, *variables)
    else:
        value = evaluate(frames, *variables)
    return value + frames.log_units.sum()


def _collapsed(
    frames: Frames,
    centers: Tensor,
    log_widths: Tensor,
    noise_sd: Tensor,
    mean: Tensor,
    sd: Tensor,
    effect_sd: Tensor | None,
    *,
    is_of_block: bool,
) -> Tensor:
    prior = WeightPrior(mean, sd, effect_sd, is_of_block=is_of_block)
    return log_likelihood(frames.project(centers, log_widths), prior, noise_sd)


class BlockByBlock(torch.autograd.Function):
    """A log likelihood of frames on disk: value and gradient of each block while it is in memory.

    evaluate : the log likelihood of some frames, a function of these and of the variables
    axes : whether a variable has one row per "block", one per "cell", one per "frame", or goes to "all" blocks as it is
    """

    @staticmethod
    def forward(ctx: Any, frames: Frames, evaluate: Evaluate, axes: Sequence[str], *variables: Tensor | None) -> Tensor:
        """Sum the blocks' values, and keep the sum of their gradients."""
        gradients = [None if whole is None else torch.zeros_like(whole) for whole in variables]
        total = torch.zeros_like(frames.energy[0])
        start = 0
        for b, (cells, block) in enumerate(frames.by_block()):
            stop = start + len(block.energy)
            rows: dict[str, Any] = {"block": slice(b, b + 1), "cell": cells, "frame": slice(start, stop), "all": ()}
            own, start = [rows[axis] for axis in axes], stop
            parts = [
                None if whole is None else whole[places].detach().requires_grad_()
                for whole, places in zip(variables, own, strict=True)
            ]
            with torch.enable_grad():
                value = evaluate(block, *parts)
                slopes = iter(torch.autograd.grad(value, [part for part in parts if part is not None]))
            for gradient, places in zip(gradients, own, strict=True):
                if gradient is not None:
                    gradient[places] += next(slopes)
            total += value.detach()
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients that were formed with the value."""
        return None, None, None, *(None if gradient is None else outer[0] * gradient for gradient in ctx.saved_tensors)


@dataclass(frozen=True)
class SampledWeights:
    """Weights of all frames, drawn from q(W)."""

    value: Tensor
    prior: WeightPrior
    posterior: NormalPosterior
    frames: Frames
    kind: str = "weights"

    def log_ratio(self) -> Tensor:
        """Return log p(W) - log q(W), q's parameters closed to gradients."""
        log_q = self.posterior.normal.detached().log_prob(self.value)
        return self.prior.log_prob(self.value, self.frames.cells) - log_q


class SampledLikelihood(nn.Module):
    """Weights sampled from a posterior of their own for every frame: the paper's mean-field family."""

    def __init__(self, frames: Frames, weights: Tensor, sd: float) -> None:
        super().__init__()
        self.frames = frames
        self.weights = NormalPosterior(weights, sd)

    def forward(self, draw: Draw, noise: RandomSource) -> tuple[Tensor, Sequence[LatentLike]]:
        """Draw the weights and return log p(frames | weights, draw)."""
        weights = self.weights.sample(noise)
        latent = SampledWeights(weights, draw.weights, self.weights, self.frames)
        variables = (draw.centers, draw.log_widths, draw.noise_sd, weights)
        return _in_data_units(self.frames, _sampled, ("block", "block", "all", "frame"), variables), (latent,)


def _sampled(frames: Frames, centers: Tensor, log_widths: Tensor, noise_sd: Tensor, weights: Tensor) -> Tensor:
    return _sampled_cells(frames, centers, log_widths, noise_sd, weights).sum()


def sampled_log_likelihood(frames: Frames, draw: Draw, weights: Tensor) -> Tensor:
    """Log density of each cell's frames given weights [n_frames, K] and factors, [C], in standardised units.

    |y - W F|^2 = |y|^2 - 2 W . y F^T + W G W^T: no residual image is formed.
    """
    return _sampled_cells(frames, draw.centers, draw.log_widths, draw.noise_sd, weights)


def _sampled_cells(frames: Frames, centers: Tensor, log_widths: Tensor, noise_sd: Tensor, weights: Tensor) -> Tensor:
    cells = frames.cells
    projection = frames.project(centers, log_widths)
    if cells.root is not None:
        weights = weights * cells.root
    cross = cells.total((weights * projection.frames).sum(-1))
    explained = (cells.scatter(weights) * projection.gram[cells.block]).sum((-2, -1))
    noise = noise_sd.square()
    misfit = (projection.energy - 2 * cross + explained) / noise
    return -0.5 * (cells.count * projection.n_voxels * (LOG_2PI + noise.log()) + misfit)


def elbo(draw: Draw, log_likelihood: Tensor) -> tuple[Tensor, Terms]:
    """Return the evidence lower bound, KL divergences in closed form: (to maximise, record)."""
    kl = _kl_by_kind(draw.latents)
    value = log_likelihood - torch.stack(list(kl.values())).sum()
    return value, Terms(value, log_likelihood, kl)


def importance_weighted(
    latents: Sequence[Sequence[LatentLike]], log_likelihoods: Sequence[Tensor], processes: Processes = ALONE
) -> tuple[Tensor, Terms]:
    """Return a surrogate whose gradient is that of the importance-weighted bound, and the bound itself.

    For the generative parameters the surrogate's gradient is sum_l w_l d log w_l, with normalised weights w_l. For the
    variational parameters, which act only through the drawn values, it is sum_l w_l^2 d log w_l: the doubly
    reparameterised gradient (Tucker et al. 2019). The second w_l is applied where the gradient enters the values.

    A process of several adds the part of log w_l that is its own; the first one has the bound's value.
    """
    ratios = [[latent.log_ratio() for latent in particle] for particle in latents]
    log_weights = torch.stack([log_p + sum(own) for log_p, own in zip(log_likelihoods, ratios, strict=True)])
    all_log_weights = processes.total(log_weights.detach())
    normalised = torch.softmax(all_log_weights, 0)
    for weight, particle in zip(normalised, latents, strict=True):
        for latent in particle:
            latent.value.register_hook(lambda gradient, weight=weight: weight * gradient)
    value = torch.logsumexp(all_log_weights, 0) - math.log(len(log_weights))
    value = value if processes.is_first else torch.zeros_like(value)
    kl = {kind: torch.zeros_like(value) for kind in KINDS}
    for weight, particle, own in zip(normalised, latents, ratios, strict=True):
        for latent, ratio in zip(particle, own, strict=True):
            kl[latent.kind] = kl[latent.kind] - weight * ratio.detach()
    log_likelihood = (normalised * torch.stack([term.detach() for term in log_likelihoods])).sum()
    return (normalised * log_weights).sum(), Terms(value, log_likelihood, kl)


def _kl_by_kind(latents: Sequence[Latent]) -> dict[str, Tensor]:
    kl: dict[str, Tensor] = {}
    for latent in latents:
        kl[latent.kind] = kl[latent.kind] + latent.kl() if latent.kind in kl else latent.kl()
    return kl
