"""Hierarchical topographic factor analysis (HTFA; Manning et al. 2014, 2018).
    xbar_k ~ N(0, 1),  rhobar_k ~ N(rho_0, 1)                       one template for the study
    x_bk ~ N(xbar_k, s_k^2),  rho_bk ~ N(rhobar_k, r_k^2)           factors of block b, around the template
    mu_nk ~ N(m_k, tau_k^2)                                         level of trial n
    W_ntk ~ N(mu_nk, sd_k^2)                                        weights of frame t of trial n
    Y_nt ~ N(W_nt F(x_b, rho_b), sigma_Y^2)                         the frame

Spreads s, r, tau, sd and means m are learned; the levels mu are integrated out exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ntfa.inference.bounds import Draw
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior
from ntfa.inference.normal import Normal, NormalPosterior, RandomSource, positive, unconstrained
from ntfa.inference.start import Start
from ntfa.models.module import TopographicModule, standard_normal
from ntfa.models.moving import Moves

PART_SPREAD, PART_SD = 0.05, 0.02
"""Spread around the template, and sd of the posterior, that parts of blocks start with."""


class HierarchicalFactors(TopographicModule):
    """Factors of every block around one template; what the weights are, a kind of model adds in `weights`.

    template_centers [K, 3], template_log_widths [K], centers [B, K, 3] and log_widths [B, K] are posteriors.
    """

    log_width_start: Tensor

    def __init__(self, n_blocks: int, n_factors: int) -> None:
        super().__init__(n_blocks, n_factors)
        k = n_factors
        self.template_centers = NormalPosterior(torch.zeros(k, 3), sd=0.01)
        self.template_log_widths = NormalPosterior(torch.zeros(k), sd=0.01)
        self.raw_center_spread = nn.Parameter(unconstrained(torch.full((k, 1), 0.02)))
        self.raw_log_width_spread = nn.Parameter(unconstrained(torch.full((k,), 0.02)))
        self.register_buffer("log_width_start", torch.zeros(()))

    def template_prior(self) -> tuple[Normal, Normal]:
        """Priors of the template's centres and log-widths: anywhere in the brain, around the typical width."""
        log_widths = standard_normal(self.template_log_widths.mean)
        return standard_normal(self.template_centers.mean), Normal(
            log_widths.mean + self.log_width_start, log_widths.sd
        )

    def factors_given(self, centers: Tensor, log_widths: Tensor, n_blocks: int) -> tuple[Normal, Normal]:
        """Priors of every block's centres [B, K, 3] and log-widths [B, K], given the template."""
        center_spread = positive(self.raw_center_spread).expand(n_blocks, -1, 3)
        log_width_spread = positive(self.raw_log_width_spread).expand(n_blocks, -1)
        return (
            Normal(centers.expand(n_blocks, -1, -1), center_spread),
            Normal(log_widths.expand(n_blocks, -1), log_width_spread),
        )

    def weights(self, cells: Cells) -> WeightPrior:
        """Prior of the weights of each cell."""
        raise NotImplementedError

    def draw(self, cells: Cells, noise: RandomSource) -> Draw:
        """Draw every latent variable from its posterior."""
        prior_centers, prior_log_widths = self.template_prior()
        template_centers = self.template_centers.draw("factors", prior_centers, noise)
        template_log_widths = self.template_log_widths.draw("factors", prior_log_widths, noise)
        priors = self.factors_given(template_centers.value, template_log_widths.value, len(self.centers.mean))
        factors, centers, log_widths = self._draw_factors(cells, priors, noise)
        latents = [template_centers, template_log_widths, *factors]
        return Draw(latents, centers, log_widths, self.weights(cells), self.noise_sd)

    def draw_shared(self, noise: RandomSource) -> tuple[Tensor, Tensor]:
        """Draw the template."""
        return self.template_centers.normal.sample(noise), self.template_log_widths.normal.sample(noise)

    def draw_unshared(self, cells: Cells, shared: tuple[Tensor, Tensor], noise: RandomSource, from_prior: bool) -> Draw:
        """Draw factors around the template, or from their posterior where a block has one."""
        priors = self.factors_given(*shared, len(cells.owner))
        centers, log_widths = self._new_factors(cells, priors, noise, from_prior)
        return Draw([], centers, log_widths, self.weights(cells), self.noise_sd)

    def expected(self, cells: Cells) -> Draw:
        """Factors at their posterior mean; the template's for a block that has none."""
        known = (cells.owner >= 0)[:, None]
        centers = torch.where(known[..., None], self.centers.mean[cells.owner], self.template_centers.mean)
        log_widths = torch.where(known, self.log_widths.mean[cells.owner], self.template_log_widths.mean)
        return Draw([], centers, log_widths, self.weights(cells), self.noise_sd)

    @torch.no_grad()
    def start_at(self, start: Start, cells: Cells) -> None:
        """Start template and blocks at the initial factors."""
        super().start_at(start, cells)
        self.template_centers.mean.copy_(start.centers)
        self.template_log_widths.mean.copy_(start.log_widths)
        self.log_width_start.copy_(start.log_widths.mean())


class TemplateFactors(HierarchicalFactors):
    """Generative model and posterior of HTFA."""

    factors_can_move = True

    def __init__(self, n_blocks: int, n_factors: int) -> None:
        super().__init__(n_blocks, n_factors)
        self.weights_mean = nn.Parameter(torch.zeros(n_factors))
        self.raw_weights_sd = nn.Parameter(torch.zeros(n_factors))
        self.raw_level_sd = nn.Parameter(torch.zeros(n_factors))

    def weights(self, cells: Cells) -> WeightPrior:
        """Prior of the weights, the same for every trial."""
        shape = (len(cells.block), -1)
        return WeightPrior(
            self.weights_mean.expand(shape),
            positive(self.raw_weights_sd).expand(shape),
            positive(self.raw_level_sd).expand(shape),
            is_of_block=True,
        )

    @torch.no_grad()
    def start_from(self, known: TemplateFactors, whose: Tensor) -> None:
        """Start at a fit to larger blocks: each block [B] at the factors of the one that it is part of.

        How far blocks lie from the template, and how well their places are known, starts anew: a part is neither as far
        from the template as the whole nor as well known, and spreads that start too large shrink for hundreds of steps.
        """
        for name in ("raw_noise_sd", "weights_mean", "raw_weights_sd", "raw_level_sd"):
            getattr(self, name).copy_(getattr(known, name))
        for name in ("centers", "log_widths"):
            own, template = getattr(self, name), getattr(self, f"template_{name}")
            template.mean.copy_(getattr(known, f"template_{name}").mean)
            own.mean.copy_(getattr(known, name).mean[whose.to(known.noise_sd.device)])
            own.raw_sd.copy_(unconstrained(torch.full_like(own.raw_sd, PART_SD)))
        for spread in (self.raw_center_spread, self.raw_log_width_spread):
            spread.copy_(unconstrained(torch.full_like(spread, PART_SPREAD)))

    @torch.no_grad()
    def start_at(self, start: Start, cells: Cells) -> None:
        """Start template and blocks at the initial factors, the weights' prior at their moments."""
        super().start_at(start, cells)
        self.weights_mean.copy_(start.cell_weights.mean(0))
        self.raw_weights_sd.copy_(unconstrained(start.weights_sd))
        self.raw_level_sd.copy_(unconstrained(start.cell_weights.std(0, correction=0).clamp(min=0.01)))

    def by_factor(self, name: str, tensor: Tensor) -> Tensor | None:
        """View a parameter factors first: all but the noise have a row for each, or one for each block and factor."""
        of_owners = super().by_factor(name, tensor)
        return tensor if of_owners is None and name != "raw_noise_sd" else of_owners

    @torch.no_grad()
    def move(self, moves: Moves) -> None:
        """Put factors elsewhere, in the template and in all blocks."""
        super().move(moves)
        moves.put(self.template_centers.mean, moves.centers)
        moves.put(self.template_log_widths.mean, moves.log_widths)
        moves.put(self.weights_mean, moves.mean)
        moves.put(self.raw_weights_sd, unconstrained(moves.sd))
        moves.put(self.raw_level_sd, unconstrained(moves.level_sd))

    @torch.no_grad()
    def expect_factor(self, factor: int, mean: Tensor, sd: Tensor) -> None:
        """Put the template's factor where blocks have it, and let them be as far from it as they are."""
        self.template_centers.mean[factor], self.template_log_widths.mean[factor] = mean[:3], mean[3]
        self.raw_center_spread[factor] = unconstrained(sd[:3].square().mean().sqrt())
        self.raw_log_width_spread[factor] = unconstrained(sd[3])
