"""The estimator of topographic latent source analysis; its equations are in `ntfa.models.tlsa`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

import pandas as pd
import torch
from torch import Tensor

from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.result import Fitted
from ntfa.estimators.tables import factor_table
from ntfa.fitting.arrange import Arranged, Labels, Layout, labels_of
from ntfa.fitting.design import Coding
from ntfa.fitting.task import Task
from ntfa.inference.bounds import Likelihood
from ntfa.inference.frames import Frames
from ntfa.inference.regression import CollapsedLoadings, SampledLoadings, ridge_block_loadings
from ntfa.inference.start import Start
from ntfa.inference.streaming import is_stored
from ntfa.models.module import TopographicModule
from ntfa.models.tlsa import DesignFactors
from ntfa.study import Study
from ntfa.study.greyordinates import factors_in_mm


@dataclass(eq=False, repr=False)
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

    The other parameters and attributes are those of `NTFA`, but for `embedding_dim`, `uncertainty` and what comes of
    them: there are no embeddings. With `inference="mean-field"` the loadings have a fully factorised posterior and are
    sampled; either way `loadings_` has their exact posterior given the fitted sources.

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
    participant without data on a regressor (a stimulus never shown to them) has the group's loading on it.
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
        return DesignFactors(len(labels.participants), len(labels.stimuli), n_regressors, self._k)

    def _likelihood(self, frames: Frames, start: Start) -> Likelihood:
        if self.inference == "collapsed":
            return CollapsedLoadings(frames)
        return SampledLoadings(frames, ridge_block_loadings(frames.cells, start.cell_weights), sd=0.1)

    def _check_task(self, task: Task) -> None:
        if task.sharing.processes.size > 1 or is_stored(task.frames.blocks):
            raise ModelError("TLSA is fitted by one process, with all frames in memory: leave memory and torchrun out")

    def _estimate_uncertainty(self, module: TopographicModule, study: Study, task: Task) -> None:
        assert isinstance(module, DesignFactors)
        labels = task.labels
        module.settle(replace(task.frames, cells=task.cells))
        module.stimulus_rows.copy_(torch.from_numpy(_coding(labels).stimulus_rows(study.trials, labels.stimuli)))

    def _n_parameters(self, module: TopographicModule, study: Study) -> int:
        assert isinstance(module, DesignFactors)
        return sum(parameter.numel() for parameter in module.parameters()) + 2 * module.loadings_mean.numel()

    def _set_fitted_attributes(self, fitted: Fitted) -> None:
        super()._set_fitted_attributes(fitted)
        module = fitted.module
        assert isinstance(module, DesignFactors)
        self._template = factor_table(module.template_centers, module.template_log_widths, fitted.units)
        self.template_ = factors_in_mm(self._template, fitted.mask_img)
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
        self, study: Study, *, by: str = "trial", return_sd: bool = False, condition_on_stimulus: bool = False
    ) -> pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]:
        """Weights that the design predicts for each trial: its design row times the participant's loadings.

        These are what the design says, not what the trial's frames say: two trials of a participant with the same
        design row have the same weights, whatever was recorded. They are no features to decode the design from.

        Parameters
        ----------
        study : Study
            Trials of participants, and with levels of the design's columns, that the model knows.
        by : {"trial", "frame"}
            One row per trial, indexed as `study.trials`; or one row per frame, the same for all frames of a trial.
        return_sd : bool
            Also return the standard deviations that the loadings' posterior gives, as a second table.
        condition_on_stimulus : bool
            Must be True: without the design TLSA has nothing to say of a trial, and is not to be asked by mistake.
        """
        self._require_fitted()
        if not condition_on_stimulus:
            raise ModelError(
                "TLSA's weights come from the design alone, so a classifier would find the design in them; if that is "
                "what you want, ask for them by condition_on_stimulus=True"
            )
        return super().transform(study, by=by, return_sd=return_sd, condition_on_stimulus=True)

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
