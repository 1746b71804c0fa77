"""What models of a shared response have in common: bases, a response, and points for participants and stimuli."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from ntfa.baselines.aligned import Aligned, align
from ntfa.baselines.base import Array, Baseline
from ntfa.baselines.principal import explained_table, principal_components, score_table
from ntfa.contract import with_shared_voxels
from ntfa.errors import ModelError
from ntfa.seeds import RandomState
from ntfa.study import Study


@dataclass(frozen=True, eq=False)
class SharedResponse:
    """A fitted shared response: frame t of participant p is about `means[p] + response[t] @ bases[p].T`.

    Attributes
    ----------
    response : array of shape (T, K)
        In the order of the aligned rows.
    bases, projections : dict of participant to array of shape (V, K)
        The participant's own maps; and what takes their frames, less the mean, into the shared space.
    means : dict of participant to array of shape (V,)
    history : DataFrame
        A row an iteration.
    n_parameters : int
    others : dict
        Further results, by the name of the estimator's attribute.
    """

    response: Array
    bases: dict[str, Array]
    projections: dict[str, Array]
    means: dict[str, Array]
    history: pd.DataFrame
    n_parameters: int
    others: dict[str, Any]


@dataclass(eq=False, repr=False)
class SharedResponseModel(Baseline):
    """Base of the estimators of a shared response."""

    n_features: int = 10
    _: KW_ONLY
    n_iter: int = 10
    n_components: int = 2
    random_state: RandomState = None

    def fit(self, study: Study, y: None = None) -> Self:
        """Fit to the stimuli that all participants have; which were left out is logged and kept in `left_out_`."""
        self._check_settings()
        self._require_study(study)
        study = with_shared_voxels(study, type(self).__name__)
        aligned = align(study)
        self._check_size(aligned)
        fitted = self._fit(aligned)
        participants = principal_components([fitted.bases[who] for who in aligned.participants], self.n_components)
        columns = pd.RangeIndex(1, self.n_features + 1, name="feature")
        response = pd.DataFrame(fitted.response, index=aligned.index, columns=columns)
        stimuli = principal_components(list(stimulus_blocks(response).values()), self.n_components)
        self.shared_response_, self.bases_, self.history_ = response, fitted.bases, fitted.history
        self.participants_ = score_table(participants.scores, aligned.participants, "participant")
        self.stimuli_ = score_table(stimuli.scores, aligned.stimuli, "stimulus")
        self.explained_ = explained_table(participant=participants, stimulus=stimuli)
        self.n_parameters_, self.left_out_ = fitted.n_parameters, aligned.left_out
        for name, value in fitted.others.items():
            setattr(self, name, value)
        self._shared = fitted
        self._keep_voxels(study)
        return self

    def _fit(self, aligned: Aligned) -> SharedResponse:
        raise NotImplementedError

    def _check_size(self, aligned: Aligned, n_taken: int = 1) -> None:
        """Refuse more features than voxels, or than directions of time; offsets and noise have taken some of these."""
        most = max(min(aligned.study.n_voxels, aligned.n_frames - n_taken), 0)
        if self.n_features > most:
            raise ModelError(
                f"n_features={self.n_features}: {aligned.n_frames} aligned frames of {aligned.study.n_voxels} voxels "
                f"allow {most} at most"
            )

    @property
    def _columns(self) -> pd.Index:
        return self.shared_response_.columns

    def _project(self, participant: str, frames: Array) -> Array:
        return (frames - self._shared.means[participant]) @ self._shared.projections[participant]

    @property
    def _projected(self) -> Collection[str]:
        return self._shared.bases


def iteration_table(values: Sequence[float], name: str) -> pd.DataFrame:
    """A row an iteration: `step` and the value after it."""
    return pd.DataFrame({"step": range(1, len(values) + 1), name: list(values)})


def stimulus_blocks(response: pd.DataFrame) -> dict[str, Array]:
    """Cut a shared response into one block a stimulus, all of one length.

    A stimulus' repetitions are averaged, each cut to the shortest of them; blocks are then cut to the shortest.
    """
    blocks = {}
    for stimulus, own in response.groupby(level="stimulus", sort=True):
        repetitions = [one.to_numpy() for _, one in own.groupby(level="repetition")]
        shortest = min(map(len, repetitions))
        blocks[str(stimulus)] = np.mean([one[:shortest] for one in repetitions], axis=0)
    length = min(map(len, blocks.values()))
    return {stimulus: block[:length] for stimulus, block in blocks.items()}
