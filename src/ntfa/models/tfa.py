"""Topographic factor analysis (TFA; Manning et al. 2014).
    x_bk ~ N(0, 1),  rho_bk ~ N(rho_0, 1)                 factors of block b, anywhere in the brain
    mu_nk ~ N(m_bk, tau_bk^2)                             level of trial n
    W_ntk ~ N(mu_nk, sd_bk^2)                             weights of frame t of trial n
    Y_nt ~ N(W_nt F(x_b, rho_b), sigma_Y^2)               the frame

Blocks share nothing but the noise; the levels mu are integrated out exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ntfa.errors import ModelError
from ntfa.inference.bounds import Draw
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior
from ntfa.inference.normal import Normal, RandomSource, positive, unconstrained
from ntfa.inference.start import Start
from ntfa.models.module import TopographicModule, standard_normal
from ntfa.models.moving import Moves


class SeparateFactors(TopographicModule):
    """Generative model and posterior of TFA: centers [B, K, 3] and log_widths [B, K] are posteriors."""

    factors_can_move = True
    owners_share_factors = False
    log_width_start: Tensor
    sharded_parameters = dict.fromkeys(
        ("centers", "log_widths", "weights_mean", "raw_weights_sd", "raw_level_sd"), "owner"
    )

    def __init__(self, n_blocks: int, n_factors: int) -> None:
        super().__init__(n_blocks, n_factors)
        self.weights_mean = nn.Parameter(torch.zeros(n_blocks, n_factors))
        self.raw_weights_sd = nn.Parameter(torch.zeros(n_blocks, n_factors))
        self.raw_level_sd = nn.Parameter(torch.zeros(n_blocks, n_factors))
        self.register_buffer("log_width_start", torch.zeros(()))

    def factor_prior(self) -> tuple[Normal, Normal]:
        """Priors of centres [B, K, 3] and log-widths [B, K]: anywhere in the brain, around the typical width."""
        log_widths = standard_normal(self.log_widths.mean)
        return standard_normal(self.centers.mean), Normal(log_widths.mean + self.log_width_start, log_widths.sd)

    def weights(self, cells: Cells) -> WeightPrior:
        """Prior of the weights of each cell, by its block."""
        owner = self._known(cells)[cells.block]
        sd, level_sd = positive(self.raw_weights_sd), positive(self.raw_level_sd)
        return WeightPrior(self.weights_mean[owner], sd[owner], level_sd[owner], is_of_block=True)

    def draw(self, cells: Cells, noise: RandomSource) -> Draw:
        """Draw every latent variable from its posterior."""
        latents, centers, log_widths = self._draw_factors(cells, self.factor_prior(), noise)
        return Draw(latents, centers, log_widths, self.weights(cells), self.noise_sd)

    def draw_shared(self, noise: RandomSource) -> None:
        """Nothing is shared."""

    def draw_unshared(self, cells: Cells, shared: None, noise: RandomSource, from_prior: bool) -> Draw:
        """Draw factors from their prior or their posterior."""
        owner = self._known(cells)
        priors = self.factor_prior()
        of_block = (
            Normal(*(part[owner] for part in priors[0])),
            Normal(*(part[owner] for part in priors[1])),
        )
        centers, log_widths = self._new_factors(cells, of_block, noise, from_prior)
        return Draw([], centers, log_widths, self.weights(cells), self.noise_sd)

    def expected(self, cells: Cells) -> Draw:
        """Factors at their posterior mean."""
        owner = self._known(cells)
        return Draw([], self.centers.mean[owner], self.log_widths.mean[owner], self.weights(cells), self.noise_sd)

    @torch.no_grad()
    def start_at(self, start: Start, cells: Cells) -> None:
        """Start every block at the initial factors, its weights' prior at their moments."""
        super().start_at(start, cells)
        self.log_width_start.copy_(start.log_widths.mean())
        owner, zeros = cells.owner[cells.block], torch.zeros_like(self.weights_mean)
        count = zeros.index_add(0, owner, torch.ones_like(start.cell_weights))
        self.weights_mean.copy_(zeros.index_add(0, owner, start.cell_weights) / count)
        self.raw_weights_sd.copy_(unconstrained(start.weights_sd).expand_as(zeros))
        level_sd = start.cell_weights.std(0, correction=0).clamp(min=0.01)
        self.raw_level_sd.copy_(unconstrained(level_sd).expand_as(zeros))

    def by_factor(self, name: str, tensor: Tensor) -> Tensor | None:
        """View a parameter factors first, then blocks: all but the noise have a row for each block and factor."""
        return None if name == "raw_noise_sd" else tensor.movedim(1, 0)

    @torch.no_grad()
    def move(self, moves: Moves) -> None:
        """Put factors of some blocks elsewhere."""
        super().move(moves)
        moves.put(self.weights_mean.T, moves.mean)
        moves.put(self.raw_weights_sd.T, unconstrained(moves.sd))
        moves.put(self.raw_level_sd.T, unconstrained(moves.level_sd))

    def _known(self, cells: Cells) -> Tensor:
        if bool((cells.owner < 0).any()):
            raise ModelError(
                "TFA by trial shares nothing between trials, so it cannot predict a trial that it was not fitted to"
            )
        return cells.owner
