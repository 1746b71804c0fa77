"""Log predictive density of frames that no posterior has seen.

`collapsed`: weights integrated out; what participants share is averaged outside the logarithm, what is their own inside
it, so that the estimate is a lower bound in expectation:

    E_shared [ sum_blocks log mean_l p(Y_block | own_l, shared) ]

`paper`: the estimator of Sennesh et al. 2020: everything but the embeddings drawn from the generative model,
(1/L) sum_l log p(Y | W_l, x_l, rho_l).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ntfa.inference.bounds import Draw, sampled_log_likelihood
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior, cell_log_likelihood
from ntfa.inference.frames import Frames
from ntfa.inference.normal import RandomSource


class Predictive(Protocol):
    """What scoring needs of a model."""

    def draw_shared(self, noise: RandomSource) -> Any:
        """Draw what all blocks share."""
        ...

    def draw_unshared(self, cells: Cells, shared: Any, noise: RandomSource, from_prior: bool) -> Draw:
        """Draw what is a block's own, its factors from their prior or, where there is one, from their posterior."""
        ...


@dataclass(frozen=True)
class LogPredictive:
    """A log predictive density in nats, its Monte-Carlo standard error, and the number of draws it took.

    by_participant : parts of the value, by participant
    """

    value: float
    standard_error: float
    n_samples: int
    by_participant: Mapping[Any, float]


@torch.no_grad()
def log_predictive(
    model: Predictive, frames: Frames, estimator: str, n_samples: int, noise: RandomSource
) -> LogPredictive:
    """Estimate the log predictive density of all frames together."""
    per_block = torch.stack(list(ESTIMATORS[estimator](model, frames, n_samples, noise))).double()
    values = per_block.sum(1)
    error = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan
    n_drawn = math.prod(_shared_and_own(n_samples)) if estimator == "collapsed" else n_samples
    return LogPredictive(float(values.mean()), error, n_drawn, _by_participant(per_block.mean(0), frames.cells))


def _by_participant(per_block: Tensor, cells: Cells) -> dict[int, float]:
    total: dict[int, float] = {}
    participant = dict(zip(cells.block.tolist(), cells.participant.tolist(), strict=True))
    for block, value in enumerate(per_block.tolist()):
        total[participant[block]] = total.get(participant[block], 0.0) + value
    return total


def _shared_and_own(n_samples: int) -> tuple[int, int]:
    """Split draws into draws of what is shared, and draws of what is a block's own for each of them."""
    n_shared = max(1, round(math.sqrt(n_samples)))
    return n_shared, -(-n_samples // n_shared)


def _collapsed(model: Predictive, frames: Frames, n_samples: int, noise: RandomSource) -> Iterator[Tensor]:
    n_shared, n_own = _shared_and_own(n_samples)
    for _ in range(n_shared):
        shared = model.draw_shared(noise)
        draws = (model.draw_unshared(frames.cells, shared, noise, from_prior=False) for _ in range(n_own))
        per_block = torch.stack([_block_log_likelihood(frames, draw) for draw in draws])
        yield torch.logsumexp(per_block, 0) - math.log(n_own)


def _block_log_likelihood(frames: Frames, draw: Draw) -> Tensor:
    projection = frames.project(draw.centers, draw.log_widths)
    per_cell = cell_log_likelihood(projection, draw.weights, draw.noise_sd)
    return frames.cells.blocks_total(per_cell + frames.log_units)


def _paper(model: Predictive, frames: Frames, n_samples: int, noise: RandomSource) -> Iterator[Tensor]:
    for _ in range(n_samples):
        draw = model.draw_unshared(frames.cells, model.draw_shared(noise), noise, from_prior=True)
        weights = _draw_weights(draw.weights, frames.cells, noise)
        per_cell = sampled_log_likelihood(frames, draw, weights)
        yield frames.cells.blocks_total(per_cell + frames.log_units)


def _draw_weights(prior: WeightPrior, cells: Cells, noise: RandomSource) -> Tensor:
    cell = cells.of_frame
    mean, sd = prior.mean[cell], prior.sd[cell]
    deviation = torch.zeros_like(mean)
    if prior.effect_sd is not None:
        deviation = (prior.effect_sd * noise.randn_like(prior.mean))[cell]
    deviation = deviation + sd * noise.randn_like(mean)
    return mean + (deviation if prior.mixing is None else deviation @ prior.mixing.mT)


ESTIMATORS = {"collapsed": _collapsed, "paper": _paper}
