"""Topographic latent source analysis (TLSA; Gershman et al. 2011), with the experiment's design as regressors.

    xbar_k ~ N(0, 1),  rhobar_k ~ N(rho_0, 1)                       one template for the study
    x_pk ~ N(xbar_k, s_k^2),  rho_pk ~ N(rhobar_k, r_k^2)           sources of participant p, around the template
    B_pjk ~ N(Bbar_jk, d_k^2)                                       loading of p's source k on regressor j
    Y_nt ~ N(c_n B_p F(x_p, rho_p), sigma_Y^2)                      frame t of trial n, whose design row is c_n

Spreads s, r, d and the group's loadings Bbar are learned; the participants' loadings B are integrated out exactly.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ntfa.inference.bounds import Draw
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior, times
from ntfa.inference.frames import Frames
from ntfa.inference.normal import Normal, RandomSource, positive, unconstrained
from ntfa.inference.regression import TurnedDesign, design_of, loading_posterior, ridge_loadings
from ntfa.inference.start import Start
from ntfa.models.htfa import HierarchicalFactors


class DesignFactors(HierarchicalFactors):
    """Generative model and posterior of TLSA.

    group_loadings [J, K] is Bbar. The posterior of the loadings given the factors, loadings_mean and loadings_sd
    [P, J, K], is worked out after training, and stimulus_rows [S, J] are the design rows that a stimulus stands for.
    """

    loadings_mean: Tensor
    loadings_sd: Tensor
    stimulus_rows: Tensor

    def __init__(self, n_participants: int, n_stimuli: int, n_regressors: int, n_factors: int) -> None:
        super().__init__(n_participants, n_factors)
        self.group_loadings = nn.Parameter(torch.zeros(n_regressors, n_factors))
        self.raw_loadings_spread = nn.Parameter(torch.zeros(n_factors))
        self.register_buffer("loadings_mean", torch.zeros(n_participants, n_regressors, n_factors))
        self.register_buffer("loadings_sd", torch.ones(n_participants, n_regressors, n_factors))
        self.register_buffer("stimulus_rows", torch.zeros(n_stimuli, n_regressors))

    def loadings(self) -> Normal:
        """Prior of a participant's loadings: mean [J, K], sd [K]."""
        return Normal(self.group_loadings, positive(self.raw_loadings_spread))

    def weights(self, cells: Cells) -> WeightPrior:
        """Prior of the weights of each cell, for a participant of whom nothing is known: one effect for all frames."""
        rows, loadings = self._rows(cells), self.loadings()
        return _as_effect(rows @ loadings.mean, rows.square().sum(-1, keepdim=True).sqrt() * loadings.sd)

    def known_weights(self, cells: Cells) -> WeightPrior:
        """As `weights`, from the posterior of the participants' own loadings."""
        rows, owner = self._rows(cells), cells.owner[cells.block]
        variance = times(rows.square(), self.loadings_sd[owner].square())
        return _as_effect(times(rows, self.loadings_mean[owner]), variance.sqrt())

    def draw(self, cells: Cells, noise: RandomSource) -> Draw:
        """Draw every latent variable but the loadings from its posterior."""
        return replace(super().draw(cells, noise), loadings=self.loadings())

    def draw_unshared(self, cells: Cells, shared: tuple[Tensor, Tensor], noise: RandomSource, from_prior: bool) -> Draw:
        """Draw factors, and say what is known of the weights: from the priors, or from the posteriors."""
        draw = super().draw_unshared(cells, shared, noise, from_prior)
        return draw if from_prior else replace(draw, weights=self.known_weights(cells))

    def expected(self, cells: Cells) -> Draw:
        """Factors and weights at their posterior mean."""
        return replace(super().expected(cells), weights=self.known_weights(cells))

    @torch.no_grad()
    def start_at(self, start: Start, cells: Cells) -> None:
        """Start factors at the initial ones, the group's loadings where regression on the design puts them."""
        super().start_at(start, cells)
        shared = ridge_loadings(cells, start.cell_weights)
        residual = start.cell_weights - design_of(cells) @ shared
        size = design_of(cells).square().sum(-1).mean().sqrt()
        self.group_loadings.copy_(shared)
        self.raw_loadings_spread.copy_(unconstrained((residual.square().mean(0).sqrt() / size).clamp(min=0.01)))

    @torch.no_grad()
    def settle(self, frames: Frames) -> None:
        """Work out the exact posterior of every participant's loadings, with the factors at their posterior mean."""
        cells = frames.cells
        expected = super().expected(cells)
        projection = frames.project(expected.centers, expected.log_widths)
        posterior = loading_posterior(projection, TurnedDesign.of(cells), self.loadings(), self.noise_sd)
        self.loadings_mean[cells.owner], self.loadings_sd[cells.owner] = posterior

    def _rows(self, cells: Cells) -> Tensor:
        """Design rows [C, J]: the cells' own, or those that their stimuli stand for."""
        return self.stimulus_rows[cells.stimulus] if cells.design is None else cells.design


def _as_effect(mean: Tensor, sd: Tensor) -> WeightPrior:
    """All frames of a cell have the same weights, N(mean, sd^2)."""
    return WeightPrior(mean, torch.zeros_like(sd), sd)
