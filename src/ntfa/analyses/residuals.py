"""What a fitted model leaves unexplained, voxel by voxel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.estimators.base import TopographicModel
from ntfa.fitting.arrange import known_owners, owner_key
from ntfa.inference.factors import LatestBasis
from ntfa.study import Study

# Values of a chunk of frames, and of a participant's factors, that are in memory at once: 64 MB in float64.
CHUNK_VALUES = 1 << 23


def residual_sd(model: TopographicModel, study: Study) -> NDArray[np.float64]:
    """Standard deviation of every voxel around what the model makes of its frame, [V].

    The residual of a frame is y - E[W] F, with the posterior mean of its weights given the frame and the posterior mean
    of its factors; the sd is the root of its mean square over all trial frames of participants who have the voxel.
    Compare with `noise_`, the sd that the model takes every voxel to have. Frames are read participant by participant,
    a few at a time.
    """
    total, count = np.zeros((2, study.n_voxels))
    fitted, basis = model._require_fitted(), LatestBasis()
    for participant in study.participants:
        own, seen = study.select(participants=participant), study.coverage.get(participant, 1.0)
        left = np.zeros(study.n_voxels)
        # What is left unexplained by all that the model knows of a frame, its stimulus included.
        weights = np.asarray(model.transform(own, by="frame", condition_on_stimulus=True))
        spans = own.trials[["start", "stop"]].to_numpy()
        rows = [np.arange(*span) for span in spans]
        order = np.split(np.arange(len(weights)), np.cumsum([len(one) for one in rows])[:-1])
        for trials, factors in _factors_of_trials(model, own):
            frames = own.frames[participant][np.concatenate([rows[i] for i in trials])]
            of_frames = weights[np.concatenate([order[i] for i in trials])]
            _add_squares(left, frames, of_frames, factors, fitted.positions, basis)
        total, count = total + left * seen, count + own.n_trial_frames * seen
    return np.asarray(np.sqrt(total / np.maximum(count, 1)))


def _factors_of_trials(model: TopographicModel, study: Study) -> Iterator[tuple[NDArray[np.int64], pd.DataFrame]]:
    """Factors `x, y, z, width`, a participant's, the template's or a trial's own, and trials made of them."""
    fitted, table = model._require_fitted(), model._factors
    labels = fitted.labels
    owners = known_owners(study, labels, [owner_key(fitted.layout, trial) for trial in study.trials.itertuples()])
    n_factors = len(table) // len(labels.owners)
    template: pd.DataFrame | None = getattr(model, "_template", None)
    for owner in sorted(set(owners)):
        own = table.iloc[owner * n_factors : (owner + 1) * n_factors] if owner >= 0 else template
        assert own is not None, "transform has refused trials without factors"
        yield np.flatnonzero(np.array(owners) == owner), own


def _add_squares(
    total: NDArray[np.float64],
    frames: Any,
    weights: Any,
    factors: pd.DataFrame,
    coordinates: Any,
    basis: LatestBasis,
) -> None:
    """Add the squared residuals of some frames [T, V] to every voxel's total, voxel chunk by voxel chunk."""
    centers, widths = factors[["x", "y", "z"]].to_numpy(), factors["width"].to_numpy()
    size = max(1, CHUNK_VALUES // max(len(frames), len(factors)))
    for first in range(0, len(total), size):
        voxels = slice(first, first + size)
        residual = frames[:, voxels] - weights @ basis(coordinates[voxels], centers, widths)
        total[voxels] += (residual**2).sum(0)
