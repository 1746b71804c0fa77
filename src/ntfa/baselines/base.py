"""The face that all baselines share: parameters, checks, and scores of trials and frames as tables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from ntfa.contract import StudyEstimator, at_voxels, require_same_voxels
from ntfa.errors import ModelError
from ntfa.fitting.arrange import label_indices
from ntfa.seeds import check_random_state, is_whole
from ntfa.study import Study
from ntfa.study.signals import frame_index

Array = NDArray[np.float64]

COUNTS = ("n_components", "n_features", "n_iter")
LACKING = {
    "transform": "it finds no axes to score trials along",
    "predict": "it has scores of trials that were recorded (transform), and no images of trials that were not",
    "score": "it is no density of held-out trials",
}
"""What models have and a baseline may lack, and why."""


@dataclass(eq=False, repr=False)
class Baseline(StudyEstimator):
    """Base of the baselines; the fields are their parameters.

    They share the models' `fit` and `transform`, without standard deviations. Those that say what a trial will look
    like have `predict` and `score`; what a baseline lacks is not there, and asking for it says why.
    """

    def __getattr__(self, name: str) -> Any:
        # Asked only for what is not there; an AttributeError lets hasattr, and so scikit-learn, see that it is lacking.
        reason = f": {LACKING[name]}" if name in LACKING else ""
        raise AttributeError(f"{type(self).__name__} has no {name!r}{reason}")

    # What a kind of baseline adds --------------------------------------------------------------------------------

    def fit(self, study: Study, y: None = None) -> Self:
        """Fit to a study; `y` is ignored, as by the models."""
        raise NotImplementedError

    @property
    def _columns(self) -> pd.Index:
        """Columns of what `transform` returns; one that has none lacks the attribute, so that `dir` works."""
        raise AttributeError

    def _project(self, participant: str, frames: Array) -> Array:
        """Return scores [frames, columns] of a participant's frames [frames, V]."""
        raise NotImplementedError

    @property
    def _projected(self) -> Collection[str] | None:
        """Participants whose frames can be projected; None if anybody's can."""
        return None

    # What they share ---------------------------------------------------------------------------------------------

    def _can_transform(self) -> bool:
        return type(self)._project is not Baseline._project or self.__getattr__("transform")

    @available_if(_can_transform)
    def transform(
        self, study: Study, *, by: str = "trial", return_sd: bool = False, condition_on_stimulus: bool = False
    ) -> pd.DataFrame:
        """Scores of a study's trials or frames, as the fit found their axes.

        Parameters
        ----------
        study : Study
            Its voxels must be those of the fit.
        by : {"trial", "frame"}
            One row per trial (its frames averaged), indexed as `study.trials`; or one row per frame, indexed by trial
            and frame of the participant.
        return_sd, condition_on_stimulus : bool
            Here because the models have them; True is refused. Scores have no standard deviations, and never depend on
            which stimulus was shown.
        """
        self._require_fitted()
        for name, wanted in (("return_sd", return_sd), ("condition_on_stimulus", condition_on_stimulus)):
            if wanted:
                raise ModelError(
                    f"{name}=True: {type(self).__name__} has no such scores, only those of the frames alone"
                )
        if by not in ("trial", "frame"):
            raise ModelError(f"by={by!r}: choose 'trial' or 'frame'")
        study = at_voxels(study, self.coordinates_)
        require_same_voxels(study, self.coordinates_)
        if self._projected is not None:
            label_indices("participant", study.participants, list(self._projected))
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

    def _check_settings(self) -> None:
        """Refuse settings that mean nothing, naming parameter and value."""
        params = self.get_params()
        for name in COUNTS:
            if name in params and not (is_whole(params[name]) and params[name] >= 1):
                raise ModelError(f"{name}={params[name]!r}: must be a whole number, at least 1")
        check_random_state(params.get("random_state"))
