"""What baselines share that predict an image for a participant and a stimulus: pairs by label, and scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ntfa.baselines.base import Array, Baseline
from ntfa.baselines.cell_means import CellMeans, ParticipantCells, cell_means
from ntfa.contract import Pairs, as_pairs, at_voxels, require_same_voxels
from ntfa.errors import ModelError
from ntfa.study import Study


@dataclass(eq=False)
class ImageBaseline(Baseline):
    """Base of the baselines whose frames are a predicted image of their participant and stimulus, plus noise."""

    # What a kind of baseline adds --------------------------------------------------------------------------------

    def _image(self, participant: str, stimulus: str) -> Array:
        """Return the predicted image of a pair, [V]."""
        raise NotImplementedError

    def _log_predictive(self, participant: str, cells: ParticipantCells, stimuli: list[str]) -> float:
        """Log density of the frames of a participant's cells, in nats; `stimuli` names the cells' stimuli."""
        raise NotImplementedError

    # What they share ---------------------------------------------------------------------------------------------

    def predict(self, pairs: Pairs) -> np.ndarray:
        """Images of (participant, stimulus) pairs, seen together or not, [n, V].

        Parameters
        ----------
        pairs : DataFrame with columns `participant` and `stimulus`, or list of (participant, stimulus)
        """
        self._require_fitted()
        named = as_pairs(pairs)
        self._require_known(named)
        images = [self._image(participant, stimulus) for participant, stimulus in named]
        return np.stack(images) if images else np.empty((0, len(self.coordinates_)))

    def log_predictive_by_participant(self, study: Study) -> dict[str, float]:
        """Exact log predictive density of each participant's trials, in nats."""
        self._require_fitted()
        self._require_known(as_pairs(study.trials))
        study = at_voxels(study, self.coordinates_)
        require_same_voxels(study, self.coordinates_)
        cells = cell_means(study)
        return {
            who: self._log_predictive(who, person, [cells.stimuli[s] for s in person.stimuli])
            for who, person in cells.by_participant.items()
        }

    def score(self, study: Study) -> float:
        """Exact log predictive density of all trials together, in nats."""
        return sum(self.log_predictive_by_participant(study).values())

    def _keep_labels(self, study: Study, cells: CellMeans) -> None:
        self._keep_voxels(study)
        self.participants_known_, self.stimuli_known_ = list(cells.by_participant), cells.stimuli

    def _require_known(self, pairs: list[tuple[str, str]]) -> None:
        known = {"participant": set(self.participants_known_), "stimulus": set(self.stimuli_known_)}
        for kind, labels in zip(known, zip(*pairs, strict=True), strict=False):
            unknown = sorted(set(labels).difference(known[kind]))
            if unknown:
                raise ModelError(f"the {type(self).__name__} was not fitted to {kind} {unknown[0]!r}")
