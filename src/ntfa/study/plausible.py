"""Arrays that could be fitted but make no sense: recognised where a study is made, and refused or explained."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study.checks import some
from ntfa.study.rest import ROWS_OF_REST

Rows = NDArray[np.int64]
FAR_OFF = 100.0
"""A frame so many times as far from the others as these are from each other is an artefact; movement is far below."""
RAW = 5.0
"""Voxels whose mean is so many times their standard deviation are in the units of a scanner."""
TOO_EARLY = 0.85
"""Trials of everybody that end before this share of the frames may be counted in seconds."""
FEWEST = 5
"""Frames below which there is no telling."""
N_REFERENCE, N_SAMPLE = 15, 64


def check_plausible(
    coordinates: NDArray[np.float64],
    trials: pd.DataFrame,
    frames: Mapping[str, NDArray[np.float32]],
    lengths: Mapping[str, int],
) -> None:
    """Refuse a study's arrays, or warn of them, where they make no sense.

    Parameters
    ----------
    frames : mapping
        Of those who have trials.
    lengths : mapping
        Number of frames of all who were given.
    """
    for participant, array in frames.items():
        refuse_frames_far_off(participant, array)
    warn_of_indices(coordinates)
    warn_of_frames_without_trials(lengths, trials)
    warn_of_seconds(trials, lengths)
    warn_of_raw_units(sorted(label for label, array in frames.items() if in_raw_units(array)))


def some_rows(n: int, most: int) -> Rows:
    """Return at most so many of n rows, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def distances_from_typical(frames: NDArray[np.float32], rows: Rows | None = None) -> NDArray[np.float64]:
    """Root mean square distance of frames, all of [n, V] or these rows, from a typical one of them."""
    rows = np.arange(len(frames)) if rows is None else rows
    typical = _typical(frames, rows)
    away = np.empty(len(rows))
    for i, row in enumerate(rows):
        apart = np.subtract(frames[row], typical, dtype=np.float64)
        away[i] = np.sqrt(apart @ apart / len(apart))
    return away


def _typical(frames: NDArray[np.float32], rows: Rows) -> NDArray[np.float64]:
    # A median of few frames is hardly moved by one that is far off, and costs next to nothing.
    return np.median(frames[rows[some_rows(len(rows), N_REFERENCE)]], axis=0).astype(np.float64)


def frames_far_off(frames: NDArray[np.float32], rows: Rows | None = None) -> Rows:
    """Find frames, among all of [n, V] or these rows, so far from the others that they are artefacts."""
    rows = np.arange(len(frames)) if rows is None else rows
    if len(rows) < FEWEST or not frames.shape[1]:
        return np.empty(0, dtype=np.int64)
    away = distances_from_typical(frames, rows)
    usual = float(np.median(away))
    return rows[away > FAR_OFF * usual] if usual > 0 else np.empty(0, dtype=np.int64)


def values_far_off(frames: NDArray[np.float32], rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """Find frames that are far off among these rows of [n, V], and at which voxels they are, [found, V]."""
    found = frames_far_off(frames, rows)
    if not len(found):
        return found, np.zeros((0, frames.shape[1]), dtype=bool)
    usual = float(np.median(distances_from_typical(frames, rows)))
    return found, np.abs(frames[found] - _typical(frames, rows)) > FAR_OFF * usual


def refuse_frames_far_off(participant: str, frames: NDArray[np.float32]) -> None:
    """Refuse frames that would decide the whole fit, naming the first."""
    rows = frames_far_off(frames)
    if len(rows):
        largest = float(np.abs(frames[rows[0]]).max())
        raise StudyError(
            f"frames of participant {participant}: frame {rows[0]} has values up to {largest:.3g} and is more than "
            f"{FAR_OFF:.0f} times as far from the others as these are from each other ({len(rows)} such); leave it out "
            "of the trials and of the array, or repair it"
        )


def in_raw_units(frames: NDArray[np.float32]) -> bool:
    """Whether voxels [n, V] vary little around a mean far from zero, as a scanner's images do."""
    if len(frames) < FEWEST:
        return False
    sample = np.asarray(frames[some_rows(len(frames), N_SAMPLE)], dtype=np.float64)
    sd = sample.std(0, ddof=1)
    varies = sd > 0
    return bool(varies.any() and np.median(np.abs(sample.mean(0)[varies]) / sd[varies]) > RAW)


def warn_of_raw_units(participants: Sequence[str]) -> None:
    """Say whose frames are in the units of a scanner, and what to do."""
    if participants:
        warnings.warn(
            f"frames of participant {some(participants)} vary little around means far from zero, like a scanner's raw "
            "images: factors would show anatomy, not responses; z-score every voxel of every run against its rest, as "
            'Study.from_images and ntfa bids do (standardize="rest")',
            stacklevel=4,
        )


def warn_of_indices(coordinates: NDArray[np.float64]) -> None:
    """Say that coordinates look like voxel indices: whole numbers from 0 on, one apart."""
    if (coordinates < 0).any() or (coordinates != np.floor(coordinates)).any():
        return
    steps = [np.diff(np.unique(axis)) for axis in coordinates.T]
    if all(len(step) and (step == 1).all() for step in steps):
        warnings.warn(
            "coordinates look like voxel indices (whole numbers from 0, one apart), not like mm: places and widths of "
            "factors would be in voxels; bring them to mm by the image's affine (nibabel.affines.apply_affine)",
            stacklevel=4,
        )


def warn_of_seconds(trials: pd.DataFrame, lengths: Mapping[str, int]) -> None:
    """Say that start and stop may be seconds: everybody's trials end long before their frames do."""
    last = trials.groupby("participant")["stop"].max()
    frames = last.index.map(dict(lengths))
    # Frames that were cut out of runs here are followed by what is known of their rest.
    cut_here = set(ROWS_OF_REST) <= set(trials)
    if not cut_here and (last.to_numpy() < TOO_EARLY * frames.to_numpy(dtype=np.float64)).all():
        first = str(last.index[0])
        warnings.warn(
            f"trials end early in the frames of everybody (participant {first}: frame {last.iloc[0]} of "
            f"{lengths[first]}); if start and stop are seconds, divide them by the repetition time: they count frames",
            stacklevel=4,
        )


def warn_of_frames_without_trials(labels: Collection[str], trials: pd.DataFrame) -> None:
    """Say whose frames are left out because no trial is theirs."""
    left_out = sorted(set(labels).difference(trials["participant"]))
    if left_out:
        warnings.warn(
            f"participant {some(left_out)}: frames but no trials, so left out of the study; if that is not meant, "
            f"spell labels alike in frames and trials, which has {some(sorted(set(trials['participant'])))}",
            stacklevel=4,
        )
