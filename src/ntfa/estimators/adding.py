"""Adding newcomers to a fitted model: what is shared stays as it is, only what is theirs is worked out."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import pandas as pd
from torch import Tensor

from ntfa.estimators.adding_loadings import add_to_loadings
from ntfa.estimators.adding_networks import add_to_networks
from ntfa.estimators.arrival import Arrival, arrival_of, require_voxels
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.newcomers import Newcomer, Newcomers, count_in_words, newcomer_table, retest_table
from ntfa.estimators.result import Fitted
from ntfa.models.loadings import LoadingFactors
from ntfa.models.newcomers import grown
from ntfa.models.ntfa import NeuralFactors
from ntfa.models.spread import Embedded
from ntfa.progress import stage
from ntfa.study import Study
from ntfa.study.checks import some
from ntfa.study.resampling import resampled
from ntfa.uncertainty.newcomers import place_rarity, rarity

logger = logging.getLogger("ntfa")


class AddingModel(TopographicModel):
    """A model that others can be added to once it is fitted."""

    participants_: pd.DataFrame
    stimuli_: pd.DataFrame

    def add(self, study: Study, *, session: str | None = None, resample: bool = False) -> Self:
        """Return a model that also knows new participants, new stimuli or new sessions; see docs/adding.md.

        All that is shared stays as it was fitted, and so does everybody whom this model knows, to the bit.

        Parameters
        ----------
        study : Study
            Trials of new participants, with known or new stimuli; or of known participants with new stimuli.
        session : str, optional
            Name of another session of participants whom the model knows. Each becomes a new point, such as
            "sub-01 ses-02". By default the column `session` of the trials names it.
        resample : bool
            Bring a study on another grid onto the model's voxels; by default other voxels are refused.
        """
        fitted = with_newcomers(self._require_fitted(), study, session, resample)
        added = type(self)(**fitted.params)
        added._take_choice(self._chosen())
        added._set_fitted_attributes(fitted)
        return added

    def _set_newcomers(self, newcomers: Newcomers | None) -> None:
        """Set the attributes that tell of who was added, if anybody was."""
        for name in ("newcomers_", "retests_"):
            self.__dict__.pop(name, None)
        if newcomers is not None:
            newcomers.mark(self.participants_, self.stimuli_)
            self.newcomers_ = newcomer_table(newcomers)
            self.retests_ = retest_table(newcomers, self.participants_)


def with_newcomers(fitted: Fitted, study: Study, session: str | None, resample: bool) -> Fitted:
    """Return a fit that knows the participants and stimuli of a study too; `fitted` stays as it is."""
    if resample:
        study = resampled(study, fitted.mask_img)
    require_voxels(study, fitted.coordinates, fitted.mask_img)
    # With the fit's surfaces and its distance, whatever the study has.
    arrival = arrival_of(replace(study, mask_img=fitted.mask_img), fitted.labels, session)
    known = fitted.module
    assert isinstance(known, LoadingFactors | NeuralFactors)
    sizes = len(arrival.labels.participants), len(arrival.labels.stimuli)
    with stage(f"NTFA: adding {count_in_words(len(arrival.participants), len(arrival.stimuli))}"):
        module = grown(known, *sizes)
        fill = add_to_loadings if isinstance(module, LoadingFactors) else add_to_networks
        densities = fill(module, arrival, fitted)  # type: ignore[arg-type]
    records = _records(arrival, densities, module)
    before = () if fitted.newcomers is None else fitted.newcomers.records
    newcomers = Newcomers(module.fitted_sizes, (*before, *records))
    _warn(records)
    # What known people lacked in the fit stays: their maps are by the voxels they had there.
    coverage = {**arrival.study.coverage, **fitted.coverage}
    coverage = {label: seen for label, seen in coverage.items() if label in arrival.labels.participants}
    return replace(fitted, module=module, labels=arrival.labels, newcomers=newcomers, coverage=coverage)


def _records(arrival: Arrival, densities: Tensor, module: LoadingFactors | NeuralFactors) -> list[Newcomer]:
    """Record who was added, and how rare their data and places are among those of the fit."""
    values, trials = densities.cpu().numpy(), arrival.study.trials
    p_data = np.full(len(values), np.nan)
    if module.density is not None:
        p_data = rarity(values, module.density[: module.fitted_sizes[0]].cpu().numpy())
    people, shown = (_place_rarity(*both) for both in zip(module.embedded(), module.fitted_sizes, strict=True))
    counts = {kind: trials[kind].value_counts() for kind in ("participant", "stimulus")}
    numbers = zip(arrival.participants, values, p_data, people[len(people) - len(values) :], strict=True)
    records = [
        Newcomer("participant", label, int(counts["participant"][label]), arrival.session_of.get(label), *_known(found))
        for label, *found in numbers
    ]
    places = zip(arrival.stimuli, shown[len(shown) - len(arrival.stimuli) :], strict=True)
    return records + [
        Newcomer("stimulus", label, int(counts["stimulus"][label]), None, None, None, *_known([p]))
        for label, p in places
    ]


def _place_rarity(embedded: Embedded, n_fitted: int) -> np.ndarray:
    """How rare the places of all who were added are, those before included."""
    mean, covariances = embedded.mean.cpu().numpy(), embedded.covariances.cpu().numpy()
    return place_rarity(mean[n_fitted:], covariances[n_fitted:], mean[:n_fitted])


def _known(values: Sequence[float]) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _warn(records: Sequence[Newcomer]) -> None:
    outside = [record.label for record in records if record.is_outside]
    if outside:
        logger.warning(
            "%s: outside of what the model has seen (data much less, or more, probable than those of the fit, or a "
            "place far from all of them); do not rely on where they are placed",
            some(map(repr, outside)),
        )
    if any(record.kind == "participant" and record.p_data is None for record in records):
        logger.warning(
            "whether newcomers are outside of what the model has seen is not known: too few participants were in the "
            "fit, or it was made by an earlier version; fit it again to know"
        )
