"""Trial fits: candidates for a setting are fitted to a small version of a study, and predict cells that were left out.

The small version has pooled voxels and some of the participants, and the fits are short: what is compared are
candidates with each other, not with anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from ntfa.estimators.settings import resolve_device
from ntfa.fitting.dimensions import CellImages, some, stimulus_dimensions
from ntfa.fitting.pooling import Boxes, pieces
from ntfa.fitting.spoiled import frame_counts
from ntfa.fitting.task import current_processes
from ntfa.inference.pursuit import spacing_of
from ntfa.inference.upload import as_tensor, rows_on
from ntfa.study import Study

if TYPE_CHECKING:
    from ntfa.estimators.ntfa import NTFA

USUAL_DIM = 2
TRIAL_PARTICIPANTS, TRIAL_COLUMNS, TRIAL_EPOCHS = 24, 2000, 120
TRIAL_FOLDS = 4
COLUMNS_PER_FACTOR = 4
"""Pooled voxels that there must be for every factor of a trial fit."""


@dataclass(frozen=True)
class Candidate:
    """Settings to try; `dims` of participants and stimuli are left to the training cells if None."""

    response: str
    n_factors: int
    dims: tuple[int, int] | None = None


@dataclass(frozen=True)
class Trial:
    """What a candidate came to.

    errors : [P], squared error of images of left-out cells over that of predicting zero, by participant
    factor_errors : [P], the same of what factors alone predict, without maps of detail
    distances : between embeddings, by kind
    seconds : that it took
    """

    errors: np.ndarray
    factor_errors: np.ndarray
    distances: Mapping[str, np.ndarray]
    seconds: float


class Trials:
    """Fits of candidates to a small version of a study, each to all of it but one fold of the cells.

    Parameters
    ----------
    model : NTFA
        Whose other settings candidates have.
    study : Study
        The training data; nothing else is seen.
    """

    def __init__(self, model: NTFA, study: Study) -> None:
        self.model, self._study = model, study
        self._known: dict[tuple[Candidate, int], Trial] = {}
        self._dims: dict[int, int] = {}

    @property
    def are_possible(self) -> bool:
        """Whether some cells can be left out."""
        return cells_left_out(self._study) is not None

    @cached_property
    def small(self) -> Study:
        """The small version."""
        n_participants = max(TRIAL_PARTICIPANTS, current_processes().size)
        kept, device = some(self._study.participants, n_participants), resolve_device(self.model.device)
        return pooled_study(self._study, kept, TRIAL_COLUMNS, device)

    @cached_property
    def counts(self) -> dict[str, NDArray[np.float64]] | None:
        """How much frames of the small version count, None if all the same."""
        return frame_counts(self.small) if self.model.frames == "robust" else None

    @cached_property
    def cells(self) -> CellImages:
        """Mean images of the cells of the small version."""
        return CellImages.of(self.small, robust=self.model.frames == "robust")

    @property
    def most_factors(self) -> int:
        """The largest number of factors that can be tried."""
        return max(1, self.small.n_voxels // COLUMNS_PER_FACTOR)

    def run(self, candidate: Candidate, fold: int = 0) -> Trial:
        """Fit a candidate without a fold, and predict that; what was tried before is remembered."""
        if (candidate, fold) not in self._known:
            self._known[candidate, fold] = self._try(candidate, fold)
        return self._known[candidate, fold]

    def _try(self, candidate: Candidate, fold: int) -> Trial:
        began = time.perf_counter()
        left_out = cells_left_out(self._study, fold)
        assert left_out is not None
        train, test = self.small.split(left_out.loc[self.small.trials.index])
        dims = candidate.dims or self._usual_dims(candidate.response, train, fold)
        fitted = self.model._like_this(
            n_factors=candidate.n_factors,
            response=candidate.response,
            embedding_dim=dims,
            max_epochs=min(TRIAL_EPOCHS, self.model.max_epochs),
            random_state=fold,
            uncertainty="mean-field",
            coarse="never",
            memory=None,
            verbose=0,
            noise="same",
        ).fit(train)
        return Trial(
            image_errors(fitted.predict, test, self.counts),
            image_errors(fitted._factor_images, test, self.counts),
            {kind: pdist(_points(table)) for kind, table in _embeddings(fitted).items()},
            time.perf_counter() - began,
        )

    def _usual_dims(self, response: str, train: Study, fold: int) -> tuple[int, int]:
        """Dimensions of a trial fit: of people's loadings they are beside the point, those of stimuli are not."""
        if response == "network":
            return USUAL_DIM, USUAL_DIM
        if fold not in self._dims:
            self._dims[fold] = stimulus_dimensions(train, robust=self.model.frames == "robust")[0]
        return min(USUAL_DIM, max(1, len(train.participants) - 1)), self._dims[fold]


def _embeddings(fitted: NTFA) -> dict[str, pd.DataFrame]:
    return {"participants": fitted.participants_, "stimuli": fitted.stimuli_}


def _points(table: pd.DataFrame) -> np.ndarray:
    axes = [name for name in map(str, table) if name[0] == "z" and name[1:].isdigit()]
    return table[axes].sort_index().to_numpy()


def cells_left_out(study: Study, fold: int = 0) -> pd.Series[bool] | None:
    """Choose trials to leave out: about a quarter of all pairs, none whose participant or stimulus is then unknown."""
    trials = study.trials
    number = {
        kind: trials[kind].map({label: i for i, label in enumerate(sorted(trials[kind].unique()))})
        for kind in ("participant", "stimulus")
    }
    test = (number["participant"] + number["stimulus"]) % TRIAL_FOLDS == fold
    seen = trials[~test]
    for kind, other in (("participant", "stimulus"), ("stimulus", "participant")):
        enough = seen.groupby(kind)[other].nunique()
        test &= trials[kind].map(enough).fillna(0) >= 2
    return test if test.any() and trials[test]["participant"].nunique() > 2 else None


def image_errors(
    predict: Callable[[pd.DataFrame], np.ndarray],
    test: Study,
    counts: Mapping[str, NDArray[np.float64]] | None = None,
) -> np.ndarray:
    """Squared error of predicted mean images of a study's pairs over that of predicting zero, by participant.

    counts : how much the frames of each participant count, one each by default
    """
    errors = []
    by_participant = dict(iter(test.trials.groupby("participant")))
    pairs = test.trials[["participant", "stimulus"]].drop_duplicates()
    predicted = dict(zip(pairs.itertuples(index=False, name=None), predict(pairs), strict=True))
    for participant in test.participants:
        trials = by_participant[participant]
        misfit = energy = 0.0
        for stimulus, start, stop in zip(trials["stimulus"], trials["start"], trials["stop"], strict=True):
            frames = test.frames[participant][start:stop].astype(np.float64)
            weights = None if counts is None else counts[participant][start:stop]
            mean, n = np.average(frames, 0, weights), len(frames) if weights is None else weights.sum()
            misfit += n * float(
                (((mean - predicted[participant, stimulus]) * test.coverage.get(participant, 1)) ** 2).sum()
            )
            energy += n * float((mean**2).sum())
        errors.append(misfit / energy if energy > 0 else 1.0)
    return np.array(errors)


def pooled_study(study: Study, participants: list[str], most_columns: int, device: torch.device) -> Study:
    """Some participants of a study, with neighbouring voxels averaged until there are few enough columns.

    device : where they are averaged
    """
    positions = torch.from_numpy(np.ascontiguousarray(study.positions, dtype=np.float64))
    side = spacing_of(study.positions)
    boxes = Boxes.around(positions, side)
    while len(boxes.count) > most_columns:
        side *= 1.26
        boxes = Boxes.around(positions, side)
    some_trials = study.trials[study.trials["participant"].isin(participants)].copy()
    there = Boxes(boxes.members.to(device), boxes.count.to(device))
    frames, coverage = {}, {}
    for p in participants:
        seen = study.coverage.get(p)
        count = boxes.count
        if seen is not None:
            count = boxes.total(torch.from_numpy(seen)[None].double())[0].long()
            coverage[p] = (count > 0).numpy()
        own_trials = some_trials[some_trials["participant"] == p]
        frames[p] = _pooled(study.frames[p], own_trials, there, count.clamp(min=1).to(device))
    for participant in participants:
        own = some_trials["participant"] == participant
        lengths = (some_trials.loc[own, "stop"] - some_trials.loc[own, "start"]).to_numpy()
        stops = np.cumsum(lengths)
        some_trials.loc[own, "start"], some_trials.loc[own, "stop"] = stops - lengths, stops
    coordinates = (boxes.total(positions.T) / boxes.count).T.numpy()
    # What it is made of was checked before; its coarse voxels would only be warned of again.
    return Study(coordinates, some_trials, frames, coverage=coverage)


def _pooled(frames: np.ndarray, trials: pd.DataFrame, boxes: Boxes, count: torch.Tensor) -> np.ndarray:
    """Frames of the trials, one after another, averaged over boxes of so many voxels that are seen."""
    rows = torch.cat([torch.arange(*span) for span in trials[["start", "stop"]].to_numpy().tolist()])
    whole, device = as_tensor(frames), count.device
    parts = rows_on(device, whole, pieces(rows, whole.shape[1], device))
    return torch.cat([(boxes.total(part) / count).float() for part in parts]).cpu().numpy()
