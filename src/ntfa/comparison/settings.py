"""What is compared, and how."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from ntfa.errors import ModelError, StudyError
from ntfa.study import Study

IRRELEVANT = ("device", "n_jobs", "quiet")
USUAL_RUN = "run"
CHOICES = {
    "htfa_block": ("trial", "participant"),
    "across": ("trials", "participants", "both"),
    "atlas": ("power", "seitzman"),
}


@dataclass(frozen=True)
class Settings:
    """Settings of a comparison.

    Parameters
    ----------
    n_factors : int
        Factors of the topographic models, and components of ICA and dictionary learning, K.
    embedding_dim : int, (int, int) or "auto"
        Dimensions of NTFA's embeddings.
    n_features : int, optional
        Features of the shared response (SRM, MN-SRM); by default as many as factors, at most 10.
    max_epochs : int
        Maximum number of steps of each fit.
    n_samples : int
        Posterior samples for each log predictive density.
    htfa_block : {"trial", "participant"}
        Unit that HTFA estimates factors for; in the paper, the trial.
    category : column of the trials, optional
        Labels that MVPA and connectivity classify; by default `category` if the trials have it, else `stimulus`.
    run : column of the trials
        Left out one at a time in cross-validation, where the design allows it.
    across : {"trials", "participants", "both"}
        Classify each participant's own trials, or those of participants left out, or both.
    participant_labels, stimulus_labels : columns
        Groups that embeddings should separate; by default all labels that make groups.
    refit_per_fold : bool
        Fit the models of MVPA and connectivity to the training trials of each fold, with their stimuli; otherwise once
        to all trials, without stimuli.
    atlas : {"power", "seitzman"}
        Regions whose connectivity is compared.
    n_halvings : int
        Random halvings of the people, of everybody's trials and of the stimuli; NTFA is fitted twice for each of them.
    """

    n_factors: int = 100
    embedding_dim: int | tuple[int, int] | str = "auto"
    n_features: int | None = None
    max_epochs: int = 1000
    n_samples: int = 100
    htfa_block: str = "trial"
    category: str | None = None
    run: str = USUAL_RUN
    across: str = "trials"
    participant_labels: tuple[str, ...] = ()
    stimulus_labels: tuple[str, ...] = ()
    refit_per_fold: bool = False
    atlas: str = "power"
    n_halvings: int = 4
    seed: int = 0
    device: str = "auto"
    n_jobs: int = 2
    quiet: bool = False

    def check(self, study: Study) -> None:
        """Refuse what no part could be run with, before any is."""
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ModelError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(map(repr, known))}")
        if self.n_halvings < 1:
            raise ModelError(f"n_halvings={self.n_halvings!r}: must be at least 1")
        self.category_of(study)
        if self.run != USUAL_RUN:
            _require_column(study, self.run)

    def category_of(self, study: Study) -> str:
        """Return the column whose values are told apart, checked."""
        column = self.category or ("category" if "category" in study.trials else "stimulus")
        _require_column(study, column)
        return column

    def identity(self, study: Study) -> dict[str, Any]:
        """Say what is compared on what, so that results of something else are not mistaken for it."""
        settings = {name: value for name, value in asdict(self).items() if name not in IRRELEVANT}
        return {"settings": _plain(settings), "study": fingerprint(study)}


def _require_column(study: Study, column: str) -> None:
    if column not in study.trials:
        raise StudyError(f"the trials have no column {column!r}; they have {', '.join(map(str, study.trials))}")


def fingerprint(study: Study) -> str:
    """Hash the trials, the voxels' places and some of the values of a study."""
    digest = hashlib.sha256(repr(list(study.trials)).encode())
    digest.update(pd.util.hash_pandas_object(study.trials.astype(str)).to_numpy().tobytes())
    digest.update(np.ascontiguousarray(study.positions, dtype=np.float64).tobytes())
    for participant in study.participants:
        frames = study.frames[participant]
        digest.update(repr((participant, frames.shape)).encode())
        digest.update(np.ascontiguousarray(frames[:: max(1, len(frames) // 10)]).tobytes())
    return digest.hexdigest()


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
