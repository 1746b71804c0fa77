"""A study with stimuli lined up: the same rows for every participant, as shared-response models need them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.fitting.arrange import require_finite_trials
from ntfa.study import Study

logger = logging.getLogger("ntfa")

Array = NDArray[np.float64]
Place = tuple[str, int]
"""A stimulus and which of its repetitions, from 1."""


@dataclass(frozen=True, eq=False)
class Aligned:
    """Trials re-ordered so that row t of every participant's matrix is the same moment of the same stimulus.

    Kept are the stimuli that all participants have, in sorted order. The n-th trial (in time) of a stimulus of one
    participant stands beside the n-th of every other, for as many repetitions as all participants have, cut to the
    shortest of these trials. Nothing is averaged.

    Attributes
    ----------
    study : Study
    index : MultiIndex
        `stimulus`, `repetition` (from 1) and `frame` (of the trial, from 0) of each row.
    rows : dict of participant to array
        Which of the participant's frames stands in each row.
    left_out : list of str
        Stimuli that some participant lacks, sorted.
    n_trials_left_out : int
        Trials of the study that are in no row.
    """

    study: Study
    index: pd.MultiIndex
    rows: dict[str, NDArray[np.intp]]
    left_out: list[str]
    n_trials_left_out: int

    @property
    def participants(self) -> list[str]:
        """Sorted labels of the participants."""
        return list(self.rows)

    @property
    def stimuli(self) -> list[str]:
        """Sorted labels of the stimuli that everyone has."""
        return sorted(self.index.unique("stimulus").tolist())

    @property
    def n_frames(self) -> int:
        """Number of rows, T."""
        return len(self.index)

    @property
    def starts(self) -> NDArray[np.bool_]:
        """Whether a row is the first of its trial."""
        return np.asarray(self.index.get_level_values("frame") == 0)

    def matrix(self, participant: str) -> Array:
        """Return a participant's frames in the common order, [T, V], in float64; computed at every call."""
        frames = self.study.frames[participant][self.rows[participant]].astype(np.float64)
        if not np.isfinite(frames).all():
            require_finite_trials(self.study)
        return frames

    def centred(self) -> Iterator[tuple[str, Array, Array]]:
        """Go through the participants: label, mean over rows [V], and frames less that mean [T, V]."""
        for participant in self.participants:
            frames = self.matrix(participant)
            mean = frames.mean(0)
            frames -= mean
            yield participant, mean, frames


def align(study: Study) -> Aligned:
    """Line up a study's stimuli, as described in `Aligned`; what had to be left out is logged as one warning.

    Raises
    ------
    StudyError
        If there is one participant only, or no stimulus that all participants have.
    """
    participants = study.participants
    if len(participants) < 2:
        raise StudyError(f"a shared response needs two participants or more; the study has {participants[0]} only")
    trials = {participant: _by_place(study, participant) for participant in participants}
    places = sorted(set.intersection(*(set(own) for own in trials.values())))
    if not places:
        raise StudyError(f"no stimulus was shown to all {len(participants)} participants, so none can be aligned")
    lengths = {place: min(_length(own[place]) for own in trials.values()) for place in places}
    rows = {participant: _rows(own, lengths) for participant, own in trials.items()}
    kept = {stimulus for stimulus, _ in places}
    left_out = [stimulus for stimulus in study.stimuli if stimulus not in kept]
    aligned = Aligned(study, _index(lengths), rows, left_out, study.n_trials - len(places) * len(participants))
    _warn(aligned)
    return aligned


def _by_place(study: Study, participant: str) -> dict[Place, tuple[int, int]]:
    """First frame, and the one after the last, of each repetition of each stimulus."""
    own = study.trials[study.trials["participant"] == participant].sort_values("start", kind="stable")
    repetition = own.groupby("stimulus").cumcount() + 1
    places = zip(own["stimulus"].astype(str), repetition.astype(int), strict=True)
    return dict(zip(places, zip(own["start"], own["stop"], strict=True), strict=True))


def _length(trial: tuple[int, int]) -> int:
    return int(trial[1] - trial[0])


def _rows(trials: dict[Place, tuple[int, int]], lengths: dict[Place, int]) -> NDArray[np.intp]:
    return np.concatenate([np.arange(trials[place][0], trials[place][0] + n) for place, n in lengths.items()])


def _index(lengths: dict[Place, int]) -> pd.MultiIndex:
    rows = [(*place, frame) for place, n in lengths.items() for frame in range(n)]
    return pd.MultiIndex.from_tuples(rows, names=["stimulus", "repetition", "frame"])


def _warn(aligned: Aligned) -> None:
    """Name every stimulus left out: they are the user's to know, however many."""
    if not aligned.n_trials_left_out:
        return
    stimuli = ", ".join(aligned.left_out)
    lacking = f"; stimuli that some participant lacks: {stimuli}" if stimuli else "; no stimulus is lost altogether"
    text = "aligning stimuli leaves out %d of %d trials, which not every participant has%s"
    logger.warning(text, aligned.n_trials_left_out, aligned.study.n_trials, lacking)
