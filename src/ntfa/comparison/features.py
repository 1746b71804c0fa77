"""Features for classification: from every method, made once or anew for each fold."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pandas as pd

from ntfa.baselines.components import ICA, DictionaryLearning
from ntfa.comparison.fits import NAMES, Fits
from ntfa.estimators.base import TopographicModel
from ntfa.study import Study

logger = logging.getLogger("ntfa")

TOPOGRAPHIC = ("ntfa", "htfa", "tfa")
COMPONENTS = {"ICA": ICA, "dictionary": DictionaryLearning}

Features = pd.DataFrame | Callable[[pd.Index], pd.DataFrame]


def weights_without_stimuli(model: TopographicModel, study: Study, by: str) -> pd.DataFrame:
    """Weights of each trial or frame, computed without knowing the stimulus: labels must not reach a classifier."""
    weights = model.transform(study, by=by, condition_on_stimulus=False)
    assert isinstance(weights, pd.DataFrame)
    return weights


def topographic_features(
    fits: Fits, method: str, by: str, then: Callable[[pd.DataFrame], pd.DataFrame] = lambda weights: weights
) -> Features:
    """Weights of a topographic model; `then` turns them into features.

    Fitted once, to all trials, without their stimuli; or with `refit_per_fold`, and with stimuli, to each fold's
    training trials. HTFA's factors are then a participant's, since a trial that was not fitted has none of its own.
    """
    if not fits.settings.refit_per_fold:
        return then(weights_without_stimuli(fits.without_stimuli(method), fits.study, by))
    changes: dict[str, Any] = {"verbose": 0} | ({"block": "participant"} if method == "htfa" else {})

    def for_fold(training: pd.Index) -> pd.DataFrame:
        chosen = fits.study.trials.index.isin(training)
        logger.info("Fitting %s to the %d training trials of a fold", NAMES[method], chosen.sum())
        model = fits.unfitted(method, **changes).fit(fits.study.select(trials=chosen))
        known = fits.study.select(participants=fits.study.select(trials=chosen).participants)
        return then(weights_without_stimuli(model, known, by))

    return for_fold


def component_features(fits: Fits, name: str) -> Features:
    """Time-averaged scores of components that are not topographic."""
    kind, study, settings = COMPONENTS[name], fits.study, fits.settings

    def make(chosen: Study) -> pd.DataFrame:
        n_components = min(settings.n_factors, chosen.n_trial_frames - 1)
        return kind(n_components, random_state=settings.seed).fit(chosen).transform(study)

    if settings.refit_per_fold:
        return lambda training: make(study.select(trials=study.trials.index.isin(training)))
    logger.info("Fitting %s", name)
    return make(study)
