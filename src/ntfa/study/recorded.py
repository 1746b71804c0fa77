"""What was recorded, as it is looked at: counts, parts of its trials, parts of its voxels."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study.checks import FloatArray, FrameArray, OneOrMoreLabels, some
from ntfa.study.coverage import Coverage, coverage_table, kept_voxels, restricted, shares
from ntfa.study.folder import MappedFrames
from ntfa.study.greyordinates import positions_of, reach_of
from ntfa.study.images import keep_voxels
from ntfa.study.splitting import diagonal

Booleans = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class Recorded:
    """The data of a `Study`, however it was made; its attributes are described there."""

    coordinates: FloatArray
    trials: pd.DataFrame
    frames: Mapping[str, FrameArray]
    mask_img: Any = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=dict)

    @property
    def participants(self) -> list[str]:
        """Sorted labels of the participants."""
        return sorted(self.trials["participant"].unique().tolist())

    @property
    def stimuli(self) -> list[str]:
        """Sorted labels of the stimuli."""
        return sorted(self.trials["stimulus"].unique().tolist())

    @property
    def positions(self) -> FloatArray:
        """Positions that factors know straight lines between, [V, 3]: `coordinates`, unless cortex is on spheres."""
        return positions_of(self.coordinates, self.mask_img)

    @property
    def reach(self) -> float | None:
        """How far factors may reach at the start of a fit, mm, where positions put structures apart; else None."""
        return reach_of(self.mask_img)

    @property
    def n_voxels(self) -> int:
        """Number of voxels, V."""
        return len(self.coordinates)

    @property
    def n_trials(self) -> int:
        """Number of trials, N."""
        return len(self.trials)

    @property
    def n_trial_frames(self) -> int:
        """Number of frames that belong to a trial."""
        return int((self.trials["stop"] - self.trials["start"]).sum())

    @property
    def n_data(self) -> int:
        """Number of recorded values in trials: trial frames x the voxels that their participant has."""
        lengths = (self.trials["stop"] - self.trials["start"]).groupby(self.trials["participant"]).sum()
        unseen = sum(int(lengths[label]) * int((~seen).sum()) for label, seen in self.coverage.items())
        return self.n_trial_frames * self.n_voxels - unseen

    def __repr__(self) -> str:
        return (
            f"Study({len(self.participants)} participants, {len(self.stimuli)} stimuli, "
            f"{self.n_trials} trials, {self.n_trial_frames:,} trial frames, {self.n_voxels:,} voxels"
            + (f", {len(self.coverage)} participants lack some)" if self.coverage else ")")
        )

    def select(
        self,
        participants: OneOrMoreLabels | None = None,
        stimuli: OneOrMoreLabels | None = None,
        trials: "pd.Series[bool] | Booleans | None" = None,
    ) -> Self:
        """Take some of the trials; the arrays are shared with this study.

        Parameters
        ----------
        participants, stimuli : label or labels, optional
            Keep only trials of these.
        trials : boolean Series indexed as `trials`, optional
            Keep only trials that are True.
        """
        keep = np.ones(self.n_trials, dtype=bool)
        if participants is not None:
            keep &= self._has_label("participant", participants)
        if stimuli is not None:
            keep &= self._has_label("stimulus", stimuli)
        if trials is not None:
            keep &= self._booleans(trials)
        if not keep.any():
            raise StudyError("The selection leaves no trials")
        return self._keep(keep)

    def split(self, test: "str | pd.Series[bool] | Booleans") -> tuple[Self, Self]:
        """Split into a training and a test study, which share this study's arrays.

        Parameters
        ----------
        test : "diagonal" or boolean Series indexed as `trials`
            The trials to hold out. "diagonal": trials of participant number p and stimulus number s (in sorted order,
            S stimuli) with p mod S = s; every participant and every stimulus must keep training trials.

        Returns
        -------
        train, test : Study
        """
        if not isinstance(test, str):
            held_out = self._booleans(test)
        elif test == "diagonal":
            held_out = diagonal(self.trials, self.participants, self.stimuli)
        else:
            raise StudyError(f'split takes "diagonal" or a boolean Series indexed as trials, not {test!r}')
        if held_out.all() or not held_out.any():
            side = "training" if held_out.all() else "test"
            raise StudyError(f"The split leaves the {side} set without trials")
        return self._keep(~held_out), self._keep(held_out)

    def mean_images(self) -> FrameArray:
        """Average each trial over its frames: [N, V], in the order of `trials`; NaN in voxels that are unseen."""
        trials = zip(self.trials["participant"], self.trials["start"], self.trials["stop"], strict=True)
        images = np.stack([self.frames[who][start:stop].mean(0) for who, start, stop in trials])
        for label, seen in self.coverage.items():
            images[np.ix_((self.trials["participant"] == label).to_numpy(), ~seen)] = np.nan
        return images

    def at(self, kept: Booleans) -> Self:
        """Keep some of the voxels, given as booleans [V]; frames are copied."""
        if kept.all():
            return self
        frames = {label: np.ascontiguousarray(self.frames[label][:, kept]) for label in self.participants}
        mask_img = None if self.mask_img is None else keep_voxels(self.mask_img, kept)
        coverage = restricted(self.coverage, kept)
        return replace(self, coordinates=self.coordinates[kept], frames=frames, mask_img=mask_img, coverage=coverage)

    def on_shared_voxels(self) -> Self:
        """Keep the voxels that every participant has; this study itself if that is all of them."""
        if not self.coverage:
            return self
        return self.at(kept_voxels(self.coverage, len(self.participants), self.n_voxels, 1.0))

    @property
    def coverage_share(self) -> FloatArray:
        """Share of the participants who have each voxel, [V]."""
        return shares(self.coverage, len(self.participants), self.n_voxels)

    @property
    def coverage_table(self) -> pd.DataFrame:
        """How many voxels each participant has, and lacks: `voxels`, `unseen`, `share`."""
        return coverage_table(self)

    def _keep(self, keep: Booleans) -> Self:
        trials = self.trials.loc[keep]
        left = set(trials["participant"])
        coverage = {label: seen for label, seen in self.coverage.items() if label in left}
        if isinstance(self.frames, MappedFrames):
            return replace(self, trials=trials, frames=self.frames.only(left), coverage=coverage)
        frames = {label: array for label, array in self.frames.items() if label in left}
        return replace(self, trials=trials, frames=frames, coverage=coverage)

    def _has_label(self, column: str, labels: OneOrMoreLabels) -> Booleans:
        wanted = {str(label) for label in ([labels] if isinstance(labels, str) else labels)}
        unknown = sorted(wanted.difference(self.trials[column]))
        if unknown:
            raise StudyError(f"No trials have the {column} {some(unknown)}")
        return self.trials[column].isin(wanted).to_numpy(dtype=bool)

    def _booleans(self, values: "pd.Series[bool] | Booleans") -> Booleans:
        """Booleans in the order of `trials`, from a Series (by index) or an array (by position)."""
        if not isinstance(values, pd.Series):
            values = np.asarray(values)
            if values.shape != (self.n_trials,):
                raise StudyError(f"Expected {self.n_trials} booleans, one per trial, not shape {values.shape}")
            values = pd.Series(values, index=self.trials.index)
        if not pd.api.types.is_bool_dtype(values) or values.isna().any():
            raise StudyError(f"The trials to take must be a boolean Series without gaps, not {values.dtype}")
        if not values.index.equals(self.trials.index):
            values = self._aligned(values)
        return values.to_numpy(dtype=bool)

    def _aligned(self, values: "pd.Series[bool]") -> "pd.Series[bool]":
        index = self.trials.index
        comparable = values.index.is_unique and index.is_unique and len(values) == len(index)
        if not comparable or not values.index.isin(index).all():
            raise StudyError(
                f"The boolean Series ({len(values)} rows) is not indexed as trials ({len(index)} rows); "
                "make it from the trials table, for example trials['run'] == 2"
            )
        return values.loc[index]
