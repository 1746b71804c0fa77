"""PCA of time-averaged trials: the plainest picture of how trials differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from ntfa.baselines.base import Array, Baseline
from ntfa.baselines.principal import component_names, explained_table, principal_components
from ntfa.contract import with_shared_voxels
from ntfa.fitting.arrange import require_finite_trials
from ntfa.study import Study


@dataclass(eq=False, repr=False)
class PCA(Baseline):
    """Principal components of time-averaged trials.

    Each trial is averaged over its frames; a trial's scores are its places along the first principal components of
    these images. Every trial counts alike, and no stimuli need to be aligned. Participants and stimuli are points,
    the average of their trials' scores, without any measure of uncertainty.

    Parameters
    ----------
    n_components : int, default=2

    Attributes
    ----------
    trials_ : DataFrame
        Scores `z1, z2, ...` of each trial, indexed as the study's trials.
    participants_, stimuli_ : DataFrame
        The average scores of each participant's, or stimulus', trials, indexed by label.
    explained_ : DataFrame
        Share of the trials' variance along each component, in the column `trial`.
    components_ : array of shape (n_components, V)
        Unit vectors; the largest entry of each, in absolute value, is positive.
    mean_ : array of shape (V,)
        The average trial.
    n_parameters_ : int
        Numbers in `components_` and `mean_`.
    left_out_ : list of str
        Stimuli that were not used: none.
    """

    n_components: int = 2

    def fit(self, study: Study, y: None = None) -> Self:
        """Find the components of a study's trials."""
        self._check_settings()
        self._require_study(study)
        study = with_shared_voxels(study, type(self).__name__)
        images = study.mean_images()
        if not np.isfinite(images).all():
            require_finite_trials(study)
        found = principal_components(list(images), self.n_components)
        self.mean_, self.components_ = images.mean(0, dtype=np.float64), found.components
        self.trials_ = pd.DataFrame(found.scores, index=study.trials.index, columns=self._columns)
        self.participants_ = self._average(study, "participant")
        self.stimuli_ = self._average(study, "stimulus")
        self.explained_ = explained_table(trial=found)
        self.n_parameters_ = int(self.components_.size + self.mean_.size)
        self.left_out_: list[str] = []
        self._keep_voxels(study)
        return self

    def _average(self, study: Study, kind: str) -> pd.DataFrame:
        """Average over the trials of each participant or stimulus, sorted by label."""
        labels = pd.Index(study.trials[kind], name=kind)
        return self.trials_.set_axis(labels).groupby(level=0).mean()

    @property
    def _columns(self) -> pd.Index:
        return pd.Index(component_names(len(self.components_)))

    def _project(self, participant: str, frames: Array) -> Array:
        return (frames - self.mean_) @ self.components_.T
