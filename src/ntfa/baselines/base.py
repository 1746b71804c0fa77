"""The face that all baselines share: parameters, checks, and scores of trials and frames as tables."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import ModelError, NotFittedError, StudyError
from ntfa.study import Study
from ntfa.study.signals import frame_index

Array = NDArray[np.float64]

COUNTS = ("n_components", "n_features", "n_iter")
LARGEST_SEED = 2**32 - 1
SAME_PLACE_MM = 1e-3


@dataclass(eq=False)
class Baseline:
    """Base of the baselines; the fields are their parameters."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, as scikit-learn's estimators do."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters, as scikit-learn's estimators do."""
        for name, value in params.items():
            if name not in self.get_params():
                raise ModelError(f"{type(self).__name__} has no parameter {name!r}")
            setattr(self, name, value)
        return self

    # What a kind of baseline adds --------------------------------------------------------------------------------

    def fit(self, study: Study) -> Self:
        """Fit to a study."""
        raise NotImplementedError

    @property
    def _columns(self) -> pd.Index:
        """Columns of what `transform` returns."""
        raise NotImplementedError

    def _project(self, participant: str, frames: Array) -> Array:
        """Return scores [frames, columns] of a participant's frames [frames, V]."""
        raise NotImplementedError

    def _check_participants(self, participants: list[str]) -> None:
        """Refuse participants whose frames cannot be projected."""

    # What they share ---------------------------------------------------------------------------------------------

    def transform(self, study: Study, *, by: str = "trial") -> pd.DataFrame:
        """Scores of a study's trials or frames, as the fit found their axes.

        Parameters
        ----------
        study : Study
            Its voxels must be those of the fit.
        by : {"trial", "frame"}
            One row per trial (its frames averaged), indexed as `study.trials`; or one row per frame, indexed by trial
            and frame of the participant.
        """
        self._require_fitted()
        if by not in ("trial", "frame"):
            raise ModelError(f"by={by!r}: choose 'trial' or 'frame'")
        self._check_voxels(study)
        self._check_participants(study.participants)
        trials = zip(study.trials["participant"], study.trials["start"], study.trials["stop"], strict=True)
        scores = [self._trial(study.frames[who][start:stop], who, by) for who, start, stop in trials]
        index = study.trials.index if by == "trial" else frame_index(study)
        return pd.DataFrame(np.concatenate(scores), index=index, columns=self._columns)

    def _trial(self, frames: NDArray[np.float32], participant: str, by: str) -> Array:
        """Scores of one trial; projections are affine, so the mean frame has the mean of the frames' scores."""
        taken = frames.astype(np.float64)
        return self._project(participant, taken.mean(0, keepdims=True) if by == "trial" else taken)

    def _keep_voxels(self, study: Study) -> None:
        self.coordinates_, self.mask_img_ = np.array(study.coordinates, dtype=np.float64), study.mask_img

    def _require_fitted(self) -> None:
        if not hasattr(self, "coordinates_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit(study) first")

    def _check_voxels(self, study: Study) -> None:
        known = self.coordinates_
        if study.coordinates.shape != known.shape or not np.allclose(study.coordinates, known, atol=SAME_PLACE_MM):
            raise StudyError(
                f"the study's {study.n_voxels} voxels are not the {len(known)} that this {type(self).__name__} "
                "was fitted to"
            )

    def _check_settings(self) -> None:
        """Refuse settings that mean nothing, naming parameter and value."""
        params = self.get_params()
        for name in COUNTS:
            if name in params and not (_is_whole(params[name]) and params[name] >= 1):
                raise ModelError(f"{name}={params[name]!r}: must be a whole number, at least 1")
        seed = params.get("random_state")
        if seed is not None and not (_is_whole(seed) and 0 <= seed <= LARGEST_SEED):
            raise ModelError(f"random_state={seed!r}: must be None or a whole number from 0 to {LARGEST_SEED}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
