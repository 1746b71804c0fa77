"""Topographic latent source analysis (TLSA; Gershman et al. 2011), with the experiment's design as regressors.

    xbar_k ~ N(0, 1),  rhobar_k ~ N(rho_0, 1)                       one template for the study
    x_pk ~ N(xbar_k, s_k^2),  rho_pk ~ N(rhobar_k, r_k^2)           sources of participant p, around the template
    B_pjk ~ N(Bbar_jk, d_k^2)                                       loading of p's source k on regressor j
    Y_nt ~ N(c_n B_p F(x_p, rho_p), sigma_Y^2)                      frame t of trial n, whose design row is c_n

Spreads s, r, d and the group's loadings Bbar are learned; the participants' loadings B are integrated out exactly.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

import pandas as pd
import torch
from torch import Tensor, nn

from ntfa.errors import ModelError
from ntfa.inference.bounds import Draw, Likelihood
from ntfa.inference.cells import Cells, Frames
from ntfa.inference.collapsed import WeightPrior, times
from ntfa.inference.normal import Noise, Normal, positive, unconstrained
from ntfa.inference.regression import (
    CollapsedLoadings,
    SampledLoadings,
    TurnedDesign,
    design_of,
    loading_posterior,
    ridge_block_loadings,
    ridge_loadings,
)
from ntfa.inference.start import Start
from ntfa.inference.streaming import is_stored
from ntfa.models.arrange import Arranged, Labels, Layout, labels_of
from ntfa.models.base import TopographicModel
from ntfa.models.design import Coding
from ntfa.models.fitted import Fitted
from ntfa.models.fitting import Task
from ntfa.models.htfa import AroundTemplate
from ntfa.models.module import TopographicModule
from ntfa.models.tables import factor_table
from ntfa.study import Study


class DesignFactors(AroundTemplate):
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

    def draw(self, cells: Cells, noise: Noise) -> Draw:
        """Draw every latent variable but the loadings from its posterior."""
        return replace(super().draw(cells, noise), loadings=self.loadings())

    def draw_own(self, cells: Cells, shared: tuple[Tensor, Tensor], noise: Noise, from_prior: bool) -> Draw:
        """Draw factors, and say what is known of the weights: from the priors, or from the posteriors."""
        draw = super().draw_own(cells, shared, noise, from_prior)
        return draw if from_prior else replace(draw, weights=self.known_weights(cells))

    def expected(self, cells: Cells) -> Draw:
        """Factors and weights at their posterior mean."""
        return replace(super().expected(cells), weights=self.known_weights(cells))

    @torch.no_grad()
    def start_at(self, start: Start, cells: Cells) -> None:
        """Start factors at the initial ones, the group's loadings where regression on the design puts them."""
        super().start_at(start, cells)
        group = ridge_loadings(cells, start.cell_weights)
        residual = start.cell_weights - design_of(cells) @ group
        size = design_of(cells).square().sum(-1).mean().sqrt()
        self.group_loadings.copy_(group)
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


@dataclass(eq=False)
class TLSA(TopographicModel):
    """Topographic latent source analysis: participants' sources around a template, driven by the experiment's design.

    A trial's activity is its design row times the participant's loadings, so all frames of trials with the same design
    row have the same expected image; what varies from frame to frame is noise.

    Parameters
    ----------
    design : str or list of str
        Columns of the trials. A column of labels gives an indicator of each level seen at the fit; a column of numbers
        gives its values, in units of their root mean square (centre it if it lies far from zero). If there is no
        column of labels, an intercept comes first. Numbers that are labels (a run, say) must be made text.

    The other parameters and attributes are those of `NTFA`; there are no embeddings. With `inference="mean-field"` the
    loadings get a fully factorised posterior and are sampled; either way `loadings_` has their exact posterior given
    the fitted sources.

    Attributes
    ----------
    template_ : DataFrame
        `factor, x, y, z, width` in mm, each number with its `_sd`.
    loadings_ : DataFrame
        `participant, regressor, factor, loading, loading_sd`, in the units of the data (for a column of numbers: per
        unit of it). A regressor is a level, a column of numbers, or "intercept"; with several columns of labels it is
        "column=level". The sd does not include what is uncertain about the sources.
    n_parameters_ : int
        Generative parameters, and mean and sd of every posterior, those of the loadings included.

    Notes
    -----
    `predict` takes for a stimulus' design row the mean of the rows of all training trials with that stimulus. A
    participant whose trials say nothing of a regressor (a stimulus never shown to them) has the group's loading on it,
    in sources of their own.
    """

    _: KW_ONLY
    design: str | list[str] = "stimulus"

    @property
    def _layout(self) -> Layout:
        return Layout(own_factors="participant", own_weights="design")

    def _labels(self, study: Study) -> Labels:
        return replace(labels_of(study, self._layout), design=Coding.of(study.trials, self.design))

    def _module(self, labels: Labels) -> DesignFactors:
        n_regressors = len(_coding(labels).regressors)
        return DesignFactors(len(labels.participants), len(labels.stimuli), n_regressors, self.n_factors)

    def _likelihood(self, frames: Frames, start: Start) -> Likelihood:
        if self.inference == "collapsed":
            return CollapsedLoadings(frames)
        return SampledLoadings(frames, ridge_block_loadings(frames.cells, start.cell_weights), sd=0.1)

    def _check_task(self, task: Task) -> None:
        if task.sharing.group.size > 1 or is_stored(task.frames.blocks):
            raise ModelError("TLSA is fitted by one process, with all frames in memory: leave memory and torchrun out")

    def _settle(self, module: TopographicModule, study: Study, frames: Frames, labels: Labels) -> None:
        assert isinstance(module, DesignFactors)
        module.settle(frames)
        module.stimulus_rows.copy_(torch.from_numpy(_coding(labels).stimulus_rows(study.trials, labels.stimuli)))

    def _n_parameters(self, module: TopographicModule, study: Study) -> int:
        assert isinstance(module, DesignFactors)
        return sum(parameter.numel() for parameter in module.parameters()) + 2 * module.loadings_mean.numel()

    def _hang(self, fitted: Fitted) -> None:
        super()._hang(fitted)
        module = fitted.module
        assert isinstance(module, DesignFactors)
        self.template_ = factor_table(module.template_centers, module.template_log_widths, fitted.units)
        self.loadings_ = _loading_table(module, fitted)

    def _weights(self, module: TopographicModule, arranged: Arranged, by: str) -> tuple[Tensor, Tensor]:
        assert isinstance(module, DesignFactors)
        cells = arranged.frames.cells
        rows = [frames[:1] if by == "trial" else frames for frames in arranged.trial_frames]
        cell = cells.of_frame[torch.cat(rows)]
        weights = module.known_weights(cells)
        assert weights.effect_sd is not None
        return weights.mean[cell], weights.effect_sd[cell]

    def transform(
        self, study: Study, *, by: str = "trial", return_sd: bool = False, blind: bool = False
    ) -> pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]:
        """Weights that the design predicts for each trial: its design row times the participant's loadings.

        These are what the design says, not what the trial's frames say: two trials of a participant with the same
        design row have the same weights, whatever was recorded. They are no features to decode the design from.

        Parameters
        ----------
        study : Study
            Trials of participants, and with levels of the design's columns, that the model knows.
        by : {"trial", "frame"}
            A row a trial, indexed as `study.trials`; or a row a frame, the same for all frames of a trial.
        return_sd : bool
            Also return the standard deviations that the loadings' posterior gives, as a second table.
        blind : bool
            Refused: without the design TLSA has nothing to say of a trial.
        """
        if blind:
            raise ModelError("TLSA's weights come from the design alone: there are none without it")
        return super().transform(study, by=by, return_sd=return_sd)

    def score(self, study: Study, estimator: str = "collapsed", n_samples: int = 100) -> float:
        """Log predictive density of held-out trials, in nats, over all of them together.

        Trials of a participant with the same design row share what is uncertain about their weights. Different rows
        are taken as independent given the fit: right for the indicators of one column, whose loadings are independent
        given the sources, and approximate for numbers and several columns, whose rows share loadings. Correlations
        between factors in the loadings' posterior are left out.

        Parameters
        ----------
        study : Study
            Trials of known participants and stimuli that the model was not fitted to. Nothing is fitted to them here.
        estimator : {"collapsed", "paper"}
            Sources and loadings from their posterior, loadings integrated out; or all but the template sampled from the
            generative model: sources around the template, loadings around the group's.
        n_samples : int
            Draws from the posterior.
        """
        return super().score(study, estimator, n_samples)


def _coding(labels: Labels) -> Coding:
    if labels.design is None:
        raise ValueError("no design")
    return labels.design


@torch.no_grad()
def _loading_table(module: DesignFactors, fitted: Fitted) -> pd.DataFrame:
    coding, n_factors = _coding(fitted.labels), module.loadings_mean.shape[-1]
    regressors = pd.Index(coding.regressors, name="regressor")
    levels = [fitted.labels.participants, range(len(regressors)), range(1, n_factors + 1)]
    index = pd.MultiIndex.from_product(levels, names=["participant", "regressor", "factor"])
    table = index.to_frame(index=False)
    table["regressor"] = regressors[table["regressor"]]
    units = fitted.units.intensity / coding.scales[:, None]
    for name, part in (("loading", module.loadings_mean), ("loading_sd", module.loadings_sd)):
        table[name] = (part.cpu().numpy() * units).ravel()
    return table
