"""Mean images of cells: what each participant showed, on average, for each stimulus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntfa.baselines.base import Array
from ntfa.errors import StudyError
from ntfa.fitting.arrange import require_finite_trials
from ntfa.study import Study

Integers = NDArray[np.intp]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ParticipantCells:
    """Cells of one participant, in the order of their stimuli.

    Attributes
    ----------
    stimuli : array of shape (n,)
        Index of each cell's stimulus among the study's stimuli.
    images : array of shape (n, V)
        Mean over the frames of all trials of the cell.
    n_frames : array of shape (n,)
    scatter : array of shape (n,)
        Sum of squares of the cell's frames around their mean, over frames and voxels.
    """

    stimuli: Integers
    images: Array
    n_frames: Array
    scatter: Array


@dataclass(frozen=True, eq=False)
class CellMeans:
    """Cells of all participants, by label, and the study's stimuli."""

    by_participant: dict[str, ParticipantCells]
    stimuli: list[str]

    @property
    def n_voxels(self) -> int:
        """Number of voxels, V."""
        return next(iter(self.by_participant.values())).images.shape[1]

    @property
    def n_frames(self) -> float:
        """Number of frames in all cells."""
        return float(sum(cells.n_frames.sum() for cells in self.by_participant.values()))


def cell_means(study: Study) -> CellMeans:
    """Average the frames of each participant's trials of each stimulus."""
    index = {stimulus: i for i, stimulus in enumerate(study.stimuli)}
    found = {}
    for who in study.participants:
        by_stimulus = study.trials[study.trials["participant"] == who].groupby("stimulus", sort=True)
        cells = [(index[str(shown)], _frames(study, who, trials)) for shown, trials in by_stimulus]
        images = np.stack([frames.mean(0) for _, frames in cells])
        scatter = np.array([((frames - image) ** 2).sum() for (_, frames), image in zip(cells, images, strict=True)])
        n_frames = np.array([len(frames) for _, frames in cells], dtype=np.float64)
        found[who] = ParticipantCells(np.array([i for i, _ in cells]), images, n_frames, scatter)
    return CellMeans(found, study.stimuli)


def _frames(study: Study, participant: str, trials: Any) -> Array:
    spans = zip(trials["start"], trials["stop"], strict=True)
    frames = np.concatenate([study.frames[participant][start:stop] for start, stop in spans]).astype(np.float64)
    if not np.isfinite(frames).all():
        require_finite_trials(study)
    return frames


def group_means(cells: CellMeans, held_out: Mapping[str, Booleans] | None = None) -> Array:
    """Mean image of each stimulus over the participants who have it, each counting once, [S, V].

    Cells that are `held_out` have no part in it; every stimulus must be left to somebody.
    """
    total, count = np.zeros((len(cells.stimuli), cells.n_voxels)), np.zeros((len(cells.stimuli), 1))
    for who, person in cells.by_participant.items():
        kept = slice(None) if held_out is None else ~held_out[who]
        total[person.stimuli[kept]] += person.images[kept]
        count[person.stimuli[kept]] += 1
    return total / count


def inner_folds(cells: CellMeans, most: int) -> list[dict[str, Booleans]]:
    """Divide cells into folds to hold out in turn, so that settings can be chosen on cells that a fit has not seen.

    Fold f holds out each participant's cells number i with (i + number of the participant) mod n_folds = f: all
    stimuli and participants alike. A participant's only cell is never held out, nor are all cells of a stimulus.
    """
    n_folds = min(most, max(len(person.stimuli) for person in cells.by_participant.values()))
    folds = []
    for fold in range(n_folds):
        held_out = {
            who: ((np.arange(len(person.stimuli)) + p) % n_folds == fold) & (len(person.stimuli) > 1)
            for p, (who, person) in enumerate(cells.by_participant.items())
        }
        folds.append(_leave_stimuli(cells, held_out))
    return [fold for fold in folds if any(held_out.any() for held_out in fold.values())]


def _leave_stimuli(cells: CellMeans, held_out: dict[str, Booleans]) -> dict[str, Booleans]:
    """Take back cells of stimuli that nobody would be left with."""
    kept = np.zeros(len(cells.stimuli), dtype=bool)
    for who, person in cells.by_participant.items():
        kept[person.stimuli[~held_out[who]]] = True
    return {who: held_out[who] & kept[person.stimuli] for who, person in cells.by_participant.items()}


def require_shared(cells: CellMeans, what: str) -> None:
    """Refuse studies in which nothing of a participant could be told from nothing of a stimulus."""
    counts: Sequence[int] = [len(person.stimuli) for person in cells.by_participant.values()]
    if len(counts) < 2:
        raise StudyError(f"{what} compare participants, and the study has {next(iter(cells.by_participant))} only")
    if max(counts) < 2:
        raise StudyError(
            f"{what} need participants who saw two stimuli or more; here everybody saw one, so that what is a "
            "participant's cannot be told from what is a stimulus'"
        )
