"""The estimator of hierarchical topographic factor analysis; its equations are in `ntfa.models.htfa`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.result import Fitted
from ntfa.estimators.tables import factor_table
from ntfa.fitting.arrange import Labels, Layout
from ntfa.fitting.optimise import Recipe
from ntfa.fitting.schedules import SETTLED
from ntfa.models.htfa import TemplateFactors
from ntfa.study import Study
from ntfa.study.greyordinates import factors_in_mm

MANY_FACTORS = 1000
"""Factors of all trials together from which a fit of participants' factors comes first; for fewer it saves no time."""

LONG_TRIAL = 8
"""Frames per trial from which trials' factors start at their participant's."""


@dataclass(eq=False, repr=False)
class HTFA(TopographicModel):
    """Hierarchical topographic factor analysis: one template of factors, every block's own around it.

    Parameters
    ----------
    block : {"participant", "trial"}
        Unit that factors are estimated for: every participant, or every trial, as in the comparison of the paper. With
        "trial", other trials have the factors of the template; a trial is recognised by its frames, not their numbers.

    With "trial", many long trials and the default inference, start and schedule, factors of participants are fitted
    first, each trial starts at its participant's, and `history_` holds the steps from there on.

    The other parameters and attributes are those of `NTFA`, but for `embedding_dim`, `uncertainty` and what comes of
    them: there are no embeddings.

    Attributes
    ----------
    template_ : DataFrame
        `factor, x, y, z, width` in mm, each number with its `_sd`.
    """

    _: KW_ONLY
    block: str = "participant"

    @property
    def _layout(self) -> Layout:
        return Layout(own_factors=self.block, own_weights="trial")

    def _module(self, labels: Labels) -> TemplateFactors:
        module = TemplateFactors(len(labels.owners), self._k)
        if getattr(self, "_is_helper", False):
            # Trials go on from there: what little is left to gain, they gain.
            module.plateau = SETTLED
        return module

    def _choose(self, study: Study, checkpoint: Path | None) -> None:
        """Fit participants' factors, where trials are to start from these."""
        owners: list[Any] = self._labels(study).owners
        self._approach = None
        if self.block != "trial":
            return
        usual = (self.inference, self.init, self.schedule) == ("collapsed", "pursuit", "one-cycle")
        if self.n_restarts > 1 or self.n_particles > 1 or not usual:
            return
        # Trials of few frames end far from their participant: going there from that start takes more steps, not fewer.
        if len(owners) * self._k < MANY_FACTORS or study.n_trial_frames < LONG_TRIAL * len(owners):
            return
        of_people = HTFA(**self.get_params() | {"block": "participant", "random_state": 0})
        of_people.max_epochs = max(1, self.max_epochs // 2)
        of_people._is_helper = True
        of_people.fit(study, checkpoint=None if checkpoint is None else checkpoint / "participants")
        known, participants = of_people._fitted.module, of_people._fitted.labels.participants
        assert isinstance(known, TemplateFactors)
        whose = torch.tensor([participants.index(participant) for participant, *_ in owners])
        self._approach = partial(TemplateFactors.start_from, known=known, whose=whose)
        self._steps_left = max(1, self.max_epochs - len(of_people.history_))

    def _recipe(self, labels: Labels, seed: int) -> Recipe:
        recipe = super()._recipe(labels, seed)
        approach = getattr(self, "_approach", None)
        return recipe if approach is None else replace(recipe, approach=approach, max_epochs=self._steps_left)

    def _set_fitted_attributes(self, fitted: Fitted) -> None:
        super()._set_fitted_attributes(fitted)
        self._approach = None
        module = fitted.module
        assert isinstance(module, TemplateFactors)
        self._template = factor_table(module.template_centers, module.template_log_widths, fitted.units)
        self.template_ = factors_in_mm(self._template, fitted.mask_img)
