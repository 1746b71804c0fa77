"""Null models: every frame is one image plus noise.

Y_nt ~ N(m, sigma^2)      m = 0, or the mean of all frames, or of all frames of the trial's stimulus
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from ntfa.baselines.base import Baseline
from ntfa.contract import Pairs, as_pairs, at_voxels, require_same_voxels, with_shared_voxels
from ntfa.errors import ModelError
from ntfa.study import Study

OF = ("nothing", "study", "stimulus")


@dataclass(eq=False, repr=False)
class MeanImage(Baseline):
    """A null model: an image that does not depend on the participant, plus independent noise.

    Parameters
    ----------
    of : {"nothing", "study", "stimulus"}
        No image at all (zero), the mean over the study, or the mean over all participants who saw the stimulus.

    Attributes
    ----------
    images_ : array of shape (S, V)
        The image of each stimulus, in the order of `stimuli_known_`.
    noise_ : float
        Standard deviation of a voxel around it.
    n_parameters_ : int
    """

    of: str = "study"

    def fit(self, study: Study, y: None = None) -> Self:
        """Average the frames of the study's trials."""
        self._require_study(study)
        study = with_shared_voxels(study, type(self).__name__)
        if self.of not in OF:
            raise ModelError(f"of={self.of!r}: choose one of {', '.join(map(repr, OF))}")
        self._keep_voxels(study)
        self.stimuli_known_ = study.stimuli
        sums = {stimulus: np.zeros(study.n_voxels) for stimulus in study.stimuli}
        counts, energy = dict.fromkeys(study.stimuli, 0), 0.0
        for _, stimulus, frames in _trials(study):
            sums[stimulus] += frames.sum(0)
            counts[stimulus] += len(frames)
            energy += float((frames**2).sum())
        self.images_, explained = self._images(sums, counts)
        self.noise_ = math.sqrt(max(energy - explained, 0.0) / study.n_data)
        self.n_parameters_ = 1 + {"nothing": 0, "study": 1, "stimulus": len(sums)}[self.of] * study.n_voxels
        return self

    def _images(self, sums: Mapping[str, np.ndarray], counts: Mapping[str, int]) -> tuple[np.ndarray, float]:
        """Return the image of each stimulus, and the energy that the images take out of the frames."""
        total, frames = np.stack(list(sums.values())), np.array(list(counts.values()))[:, None]
        if self.of == "nothing":
            images = np.zeros_like(total)
        elif self.of == "study":
            images = np.broadcast_to(total.sum(0) / frames.sum(), total.shape)
        else:
            images = total / frames
        return images, float((frames * images**2).sum())

    def predict(self, pairs: Pairs, *, return_sd: bool = False) -> np.ndarray:
        """Images of (participant, stimulus) pairs, [n, V]; participants make no difference.

        `return_sd` is there because the models have it; True is refused, because means have no posterior here.
        """
        self._require_fitted()
        if return_sd:
            raise ModelError("return_sd=True: MeanImage has images without standard deviations")
        stimuli = [stimulus for _, stimulus in as_pairs(pairs)]
        unknown = sorted(set(stimuli).difference(self.stimuli_known_))
        if unknown:
            raise ModelError(f"the model was not fitted to stimulus {unknown[0]!r}")
        return self.images_[[self.stimuli_known_.index(stimulus) for stimulus in stimuli]]

    def log_predictive_by_participant(self, study: Study) -> dict[str, float]:
        """Exact log predictive density of each participant's trials, in nats."""
        images = self.predict(study.trials)
        study = at_voxels(study, self.coordinates_)
        require_same_voxels(study, self.coordinates_)
        if not self.noise_ > 0:
            raise ModelError("the frames that were fitted are the images exactly: there is no noise to score others by")
        total = dict.fromkeys(study.participants, 0.0)
        constant = -0.5 * math.log(2 * math.pi * self.noise_**2)
        for image, (participant, _, frames) in zip(images, _trials(study), strict=True):
            misfit = float(((frames - image) ** 2).sum())
            total[participant] += frames.size * constant - 0.5 * misfit / self.noise_**2
        return total

    def score(self, study: Study) -> float:
        """Exact log predictive density of all trials together, in nats."""
        return sum(self.log_predictive_by_participant(study).values())


def _trials(study: Study) -> Iterator[tuple[str, str, np.ndarray]]:
    """Go through the trials: participant, stimulus, frames in float64."""
    columns = (study.trials[name] for name in ("participant", "stimulus", "start", "stop"))
    for participant, stimulus, start, stop in zip(*columns, strict=True):
        yield participant, stimulus, study.frames[participant][start:stop].astype(np.float64)
