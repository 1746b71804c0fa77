"""The additive image: what the others show for a stimulus, and a share of what is the participant's person.

    Y_nt ~ N(m_s + share * d_p, sigma^2)

m_s is the mean image of the stimulus over the other participants, d_p the mean of the participant's own deviations from
such images. The share is the one that predicts each training cell best from all others: since m_s knows nothing of the
participant, leaving a cell out only takes it out of d_p, and the best share is a ratio of inner products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ntfa.baselines.base import Array
from ntfa.baselines.cell_means import CellMeans, ParticipantCells, cell_means, require_shared
from ntfa.baselines.predicting import ImageBaseline
from ntfa.contract import with_shared_voxels
from ntfa.errors import ModelError
from ntfa.study import Study


@dataclass(eq=False)
class AdditiveImage(ImageBaseline):
    """The stimulus' mean image over the other participants, plus a share of the participant's own deviation.

    Parameters
    ----------
    share : float, optional
        From 0, the stimulus' image alone, to 1; by default what predicts training cells best that were left out.

    Attributes
    ----------
    share_ : float
        The share that was used.
    deviations_ : dict of participant to array of shape (V,)
        Mean of the participant's cells less what the others show for the same stimuli.
    noise_ : float
        Standard deviation of a voxel around predictions of cells that were left out.
    n_parameters_ : int
        Numbers in the images of stimuli and deviations, the share and the noise.
    """

    share: float | None = None

    def fit(self, study: Study, y: None = None) -> Self:
        """Average the study's cells and choose the share."""
        self._check_settings()
        self._require_study(study)
        study = with_shared_voxels(study, type(self).__name__)
        cells = cell_means(study)
        require_shared(cells, "additive images")
        others = _Others(cells)
        share = _best_share(cells, others) if self.share is None else float(self.share)
        variance = _left_out_variance(cells, others, share)
        self._others, self._cells, self.share_, self.noise_ = others, cells, share, math.sqrt(variance)
        self.deviations_ = {who: others.deviations(person).mean(0) for who, person in cells.by_participant.items()}
        self.n_parameters_ = (len(cells.stimuli) + len(cells.by_participant)) * cells.n_voxels + 2
        self._keep_labels(study, cells)
        return self

    def _check_settings(self) -> None:
        if self.share is not None and not (_is_number(self.share) and 0 <= self.share <= 1):
            raise ModelError(f"share={self.share!r}: must be None or a number from 0 to 1")

    def _image(self, participant: str, stimulus: str) -> Array:
        person, place = self._cells.by_participant[participant], self.stimuli_known_.index(stimulus)
        return self._others.images(person, np.array([place]))[0] + self.share_ * self.deviations_[participant]

    def _log_predictive(self, participant: str, cells: ParticipantCells, stimuli: list[str]) -> float:
        if not self.noise_ > 0:
            raise ModelError("the cells that were fitted are additive exactly: there is no noise to score others by")
        residuals = cells.images - self.predict([(participant, stimulus) for stimulus in stimuli])
        misfit = float(cells.scatter.sum() + cells.n_frames @ (residuals**2).sum(1))
        n_values = cells.n_frames.sum() * residuals.shape[1]
        return -0.5 * float(n_values * math.log(2 * math.pi * self.noise_**2) + misfit / self.noise_**2)


class _Others:
    """Mean images over the participants other than one."""

    def __init__(self, cells: CellMeans) -> None:
        self.total = np.zeros((len(cells.stimuli), cells.n_voxels))
        self.count = np.zeros(len(cells.stimuli))
        for person in cells.by_participant.values():
            self.total[person.stimuli] += person.images
            self.count[person.stimuli] += 1

    def images(self, person: ParticipantCells, stimuli: np.ndarray) -> Array:
        """Images of stimuli over all others, [n, V]; of one that nobody else saw, the mean of all their cells."""
        mine = np.zeros(len(self.count), dtype=int)
        mine[person.stimuli] = 1
        count = self.count[stimuli] - mine[stimuli]
        places = np.searchsorted(person.stimuli, np.minimum(stimuli, person.stimuli[-1]))
        total = self.total[stimuli] - mine[stimuli, None] * person.images[places]
        images = total / np.maximum(count, 1)[:, None]
        if (count == 0).any():
            everything = self.total.sum(0) - person.images.sum(0)
            images[count == 0] = everything / max(self.count.sum() - len(person.stimuli), 1)
        return images

    def deviations(self, person: ParticipantCells) -> Array:
        """A participant's cells less what the others show for the same stimuli, [n, V]."""
        return person.images - self.images(person, person.stimuli)


def _without_each(deviations: Array) -> Array:
    """Mean of all other rows, for each row; zero for a row that is alone."""
    n = len(deviations)
    return (deviations.sum(0) - deviations) / max(n - 1, 1) if n > 1 else np.zeros_like(deviations)


def _best_share(cells: CellMeans, others: _Others) -> float:
    """Least squares of cells that are left out on the mean deviation of the participant's others."""
    product, square = 0.0, 0.0
    for person in cells.by_participant.values():
        deviations = others.deviations(person)
        expected = _without_each(deviations)
        product += float(person.n_frames @ (deviations * expected).sum(1))
        square += float(person.n_frames @ (expected**2).sum(1))
    return min(max(product / square, 0.0), 1.0) if square > 0 else 0.0


def _left_out_variance(cells: CellMeans, others: _Others, share: float) -> float:
    """Mean square of frames around the prediction for their cell when it is left out."""
    total = 0.0
    for person in cells.by_participant.values():
        deviations = others.deviations(person)
        residuals = deviations - share * _without_each(deviations)
        total += float(person.scatter.sum() + person.n_frames @ (residuals**2).sum(1))
    return total / (cells.n_frames * cells.n_voxels)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
