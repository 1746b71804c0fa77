"""Fitted models that the parts of a comparison share: fitted once, kept in the output folder, read back after."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ntfa.comparison.image_baselines import fit_image_baselines
from ntfa.comparison.notes import NotPossible
from ntfa.comparison.settings import Settings
from ntfa.errors import StudyError
from ntfa.estimators import MODELS
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.settings import UNLABELLED
from ntfa.files.folders import discard
from ntfa.study import Study

logger = logging.getLogger("ntfa")

FITTED_TO = {
    "train": "the training trials",
    "all": "all trials",
    "unlabelled": "all trials, whatever their stimuli",
}
PAPER = "ntfa-paper"
"""NTFA with the paper's networks, whatever response model the data choose for NTFA itself."""
NAMES = {"ntfa": "NTFA", PAPER: "NTFA (paper)", "htfa": "HTFA", "tfa": "TFA", "tlsa": "TLSA"}


@dataclass(frozen=True)
class Fits:
    """A study, its split into training and test trials, and the models fitted to either.

    halves : distances between participants or stimuli by every method, of each half of the study that was looked at
    """

    study: Study
    settings: Settings
    folder: Path
    models: dict[tuple[str, str], TopographicModel] = field(default_factory=dict)
    halves: dict[str, dict[str, pd.DataFrame]] = field(default_factory=dict)

    def elsewhere(self, **halves: dict[str, pd.DataFrame]) -> Fits:
        """Return what another process is given: no models, which it finds in the folder, and no others of its own."""
        return replace(self, settings=replace(self.settings, quiet=True, n_jobs=1), models={}, halves=halves)

    @cached_property
    def split(self) -> tuple[Study, Study]:
        """Training and test trials, by the diagonal rule."""
        try:
            return self.study.split("diagonal")
        except StudyError as error:
            raise NotPossible(str(error)) from error

    @cached_property
    def image_baselines(self) -> dict[str, Any]:
        """Simple models of images, fitted to the training trials; those that the design allows."""
        return fit_image_baselines(self.split[0])

    def on_train(self, method: str) -> TopographicModel:
        """Return a model fitted to the training trials alone."""
        return self.of(method, "train")

    def on_all(self, method: str) -> TopographicModel:
        """Return a model fitted to all trials."""
        return self.of(method, "all")

    def without_stimuli(self, method: str) -> TopographicModel:
        """Return a model fitted to all trials that never saw which stimulus was shown.

        NTFA puts its factors where stimuli differ, in the trials that a classifier is tested on too.
        """
        if method != "ntfa":
            return self.on_all(method)
        return self.of(method, "unlabelled")

    def of(self, method: str, name: str) -> TopographicModel:
        """Return a model fitted to what one of `FITTED_TO` names."""
        if name == "train":
            return self._get(method, name, self.split[0])
        return self._get(method, name, unlabelled(self.study) if name == "unlabelled" else self.study)

    def folder_of(self, method: str, name: str) -> Path:
        """Where a fitted model is kept."""
        return self.folder / name / method

    def unfitted(self, method: str, **changes: Any) -> TopographicModel:
        """Make an estimator of this kind with the comparison's settings."""
        settings = self.settings
        special: dict[str, dict[str, Any]] = {
            "ntfa": {"embedding_dim": settings.embedding_dim, "uncertainty": "mean-field"},
            PAPER: {"embedding_dim": 2, "response": "network", "uncertainty": "mean-field"},
            "htfa": {"block": settings.htfa_block},
        }
        params: dict[str, Any] = {
            "n_factors": settings.n_factors,
            "max_epochs": settings.max_epochs,
            "random_state": settings.seed,
            "device": settings.device,
            "verbose": 0 if settings.quiet else 1,
            **special.get(method, {}),
        }
        model: TopographicModel = _kind(method)(**(params | changes))
        return model

    def _get(self, method: str, name: str, study: Study) -> TopographicModel:
        if method == PAPER and getattr(self._get("ntfa", name, study), "response_", None) == "network":
            return self._get("ntfa", name, study)
        if (name, method) not in self.models:
            self.models[name, method] = self._fit_or_load(method, name, study)
        return self.models[name, method]

    def _fit_or_load(self, method: str, name: str, study: Study) -> TopographicModel:
        folder = self.folder_of(method, name)
        if folder.exists():
            return _kind(method).load(folder, self.settings.device)
        logger.info("Fitting %s to %s", NAMES[method], FITTED_TO[name])
        # Ellipses are drawn of these embeddings alone, so that only this fit need find out how large they are.
        drawn = {"uncertainty": "calibrated"} if (method, name) == ("ntfa", "all") else {}
        model = self.unfitted(method, **drawn)
        checkpoint = self.folder / f".{name}-{method}.checkpoint"
        model.fit(study, checkpoint=checkpoint)
        model.save(folder)
        discard(checkpoint)
        return model


def _kind(method: str) -> type[TopographicModel]:
    """Return the estimator's class."""
    return MODELS["ntfa" if method == PAPER else method]


def unlabelled(study: Study) -> Study:
    """Return the same trials, all of one stimulus."""
    return replace(study, trials=study.trials.assign(stimulus=UNLABELLED))
