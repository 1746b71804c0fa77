"""What the generative models have in common: factors with a posterior each, and the noise of a voxel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ntfa.inference.bounds import Draw
from ntfa.inference.cells import Cells
from ntfa.inference.normal import Latent, Normal, NormalPosterior, RandomSource, positive, unconstrained
from ntfa.inference.start import Start
from ntfa.models.moving import Moves


class TopographicModule(nn.Module):
    """A generative model together with its posterior, in standardised units.

    centers [B, K, 3] and log_widths [B, K] are the posteriors of every owner's factors.
    `sharded_parameters` names the variables that have one row per participant, or one row per owner of factors.
    """

    plateau: float | None = None
    """Gain of the bound, in nats per observation, below which a fit has arrived; None for the schedule's own."""

    factors_are_kept: bool = False
    """Whether factors stay where they start, for models that can be trained so."""

    sharded_parameters: dict[str, str] = {"centers": "owner", "log_widths": "owner"}  # noqa: RUF012

    factors_can_move: bool = False
    """Whether `move` can put a factor elsewhere in the middle of a fit."""

    owners_share_factors: bool = True
    """Whether the factors of all owners move together, being one thing in different people."""

    n_fitted: tuple[int, int] | None = None
    """Participants and stimuli that were in the fit, where others were added since."""

    density: Tensor | None
    """Log density per observation of each participant's frames [P], where it was worked out."""

    def __init__(self, n_owners: int, n_factors: int) -> None:
        super().__init__()
        self.centers = NormalPosterior(torch.zeros(n_owners, n_factors, 3), sd=0.01)
        self.log_widths = NormalPosterior(torch.zeros(n_owners, n_factors), sd=0.01)
        self.raw_noise_sd = nn.Parameter(unconstrained(torch.ones(())))
        self.register_buffer("density", None)

    @property
    def noise_sd(self) -> Tensor:
        """sigma_Y."""
        return positive(self.raw_noise_sd)

    @torch.no_grad()
    def start_at(self, start: Start, cells: Cells) -> None:
        """Set initial values."""
        self.centers.mean.copy_(start.centers.expand_as(self.centers.mean))
        self.log_widths.mean.copy_(start.log_widths.expand_as(self.log_widths.mean))
        self.raw_noise_sd.copy_(unconstrained(torch.tensor(start.noise_sd, dtype=torch.float64)))

    def by_factor(self, name: str, tensor: Tensor) -> Tensor | None:
        """View a parameter, or what an optimiser knows of it, factors first; None if it has no rows of factors."""
        return tensor.movedim(1, 0) if name.startswith(("centers.", "log_widths.")) else None

    @torch.no_grad()
    def move(self, moves: Moves) -> None:
        """Put factors elsewhere; whatever else is theirs is as in other factors until the fit goes on."""
        for name, parameter in self.named_parameters():
            rows = self.by_factor(name, parameter.data)
            if rows is not None:
                moves.make_typical(rows)
        moves.put(self.centers.mean.movedim(1, 0), moves.centers)
        moves.put(self.log_widths.mean.movedim(1, 0), moves.log_widths)

    def expect_factor(self, factor: int, mean: Tensor, sd: Tensor) -> None:
        """Let what owners share of a factor be as they have it: mean and sd of its centre and log-width, [4]."""

    def expect_tensors(self, tensors: Mapping[str, Tensor], n_voxels: int) -> None:
        """Make room for what a saved module of this kind may or may not have: nothing."""

    def draw(self, cells: Cells, noise: RandomSource) -> Draw:
        """Draw every latent variable from its posterior."""
        raise NotImplementedError

    def draw_shared(self, noise: RandomSource) -> Any:
        """Draw what the blocks of a study share."""
        raise NotImplementedError

    def draw_unshared(self, cells: Cells, shared: Any, noise: RandomSource, from_prior: bool) -> Draw:
        """Draw what is a block's own: factors from their prior given `shared`, or from their posterior if known."""
        raise NotImplementedError

    def expected(self, cells: Cells) -> Draw:
        """Return the posterior's expectation in place of a draw."""
        raise NotImplementedError

    def variational_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that learn at the fast rate: all but those of networks."""
        slow = {id(parameter) for parameter in self.network_parameters()}
        return (parameter for parameter in self.parameters() if id(parameter) not in slow)

    def factor_sd_parameters(self) -> Sequence[nn.Parameter]:
        """Parameters that sds of factors' posteriors are made of."""
        return self.centers.raw_sd, self.log_widths.raw_sd

    def network_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that learn at the slow rate."""
        return iter(())

    def _draw_factors(
        self, cells: Cells, priors: tuple[Normal, Normal], noise: RandomSource
    ) -> tuple[list[Latent], Tensor, Tensor]:
        """Draw all factors from their posteriors; return them as latents and as each block needs them."""
        centers = self.centers.draw("factors", priors[0], noise)
        log_widths = self.log_widths.draw("factors", priors[1], noise)
        return [centers, log_widths], cells.of_owner(centers.value), cells.of_owner(log_widths.value)

    def _new_factors(
        self, cells: Cells, priors: tuple[Normal, Normal], noise: RandomSource, from_prior: bool
    ) -> tuple[Tensor, Tensor]:
        """Draw factors for blocks [B]: from `priors` (one row per block), or from posteriors of known owners."""
        drawn = []
        for posterior, prior in zip((self.centers.normal, self.log_widths.normal), priors, strict=True):
            own = Normal(posterior.mean[cells.owner], posterior.sd[cells.owner])
            known = (cells.owner >= 0) & (not from_prior)
            known = known.reshape(-1, *[1] * (own.mean.dim() - 1))
            chosen = Normal(torch.where(known, own.mean, prior.mean), torch.where(known, own.sd, prior.sd))
            drawn.append(chosen.sample(noise))
        return drawn[0], drawn[1]


def standard_normal(like: Tensor) -> Normal:
    """N(0, 1) in the shape of `like`."""
    return Normal(torch.zeros_like(like), torch.ones_like(like))
