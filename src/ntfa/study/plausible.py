"""Arrays that could be fitted but make no sense: recognised where a study is made, and refused or explained."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

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
ABOVE_ZERO = 0.95
"""Share of the voxels that are above zero on average in a scanner's images."""
SECONDS = (0.4, 0.85)
"""Share of the frames where trials of everybody end that may be counted in seconds: the repetition time, in seconds.

Trials counted in seconds of a longer one end past the frames.
"""
ALIKE = 0.1
"""These shares differ by less than this from person to person."""
LONG = 2
"""Frames after the last trial that are more than so many times the longest trial, or gap between two, are no rest."""
FEWEST = 5
"""Frames, trials, or voxels along an axis, below which there is no telling."""
N_REFERENCE, N_SAMPLE = 15, 64


def check_plausible(
    coordinates: NDArray[np.float64],
    trials: pd.DataFrame,
    frames: Mapping[str, NDArray[np.float32]],
    lengths: Mapping[str, int],
    mask_img: Any = None,
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
    warn_of_places_and_times(coordinates, trials, lengths, mask_img)
    warn_of_raw_units(sorted(label for label, array in frames.items() if in_raw_units(array)))


def warn_of_places_and_times(
    coordinates: NDArray[np.float64], trials: pd.DataFrame, lengths: Mapping[str, int], mask_img: Any = None
) -> None:
    """Say what looks wrong with coordinates and trials, without a look at values of frames."""
    warn_of_indices(coordinates, mask_img)
    warn_of_frames_without_trials(lengths, trials)
    warn_of_seconds(trials, lengths)


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


def refuse_frames_far_off(participant: str, frames: NDArray[np.float32], among: Rows | None = None) -> None:
    """Refuse frames, of all or among these rows, that would decide the whole fit, naming the first."""
    rows = frames_far_off(frames, among)
    if len(rows):
        largest = float(np.abs(frames[rows[0]]).max())
        raise StudyError(
            f"frames of participant {participant}: frame {rows[0]} has values up to {largest:.3g} and is more than "
            f"{FAR_OFF:.0f} times as far from the others as these are from each other ({len(rows)} such); leave it out "
            "of the trials and of the array, or repair it"
        )


def in_raw_units(frames: NDArray[np.float32]) -> bool:
    """Whether voxels [n, V] vary little around a mean far above zero, as a scanner's images do."""
    if len(frames) < FEWEST:
        return False
    sample = np.asarray(frames[some_rows(len(frames), N_SAMPLE)], dtype=np.float64)
    mean, sd = sample.mean(0), sample.std(0, ddof=1)
    varies = sd > 0
    if not varies.any() or np.mean(mean[varies] > 0) < ABOVE_ZERO:
        return False
    return bool(np.median(mean[varies] / sd[varies]) > RAW)


def warn_of_raw_units(participants: Sequence[str]) -> None:
    """Say whose frames are in the units of a scanner, and what to do."""
    if participants:
        warnings.warn(
            f"frames of participant {some(participants)} vary little around means far above zero, like a scanner's raw "
            "images: factors would show anatomy, not responses; z-score every voxel of every run against its rest, as "
            'Study.from_images and ntfa bids do (standardize="rest"), or, of maps, give contrasts',
            stacklevel=4,
        )


def warn_of_indices(coordinates: NDArray[np.float64], mask_img: Any = None) -> None:
    """Say that coordinates look like voxel indices: whole numbers from 0 on, one apart, which no affine gave."""
    if hasattr(mask_img, "coordinates") or (mask_img is not None and not np.array_equal(mask_img.affine, np.eye(4))):
        return
    if (coordinates < 0).any() or (coordinates != np.floor(coordinates)).any():
        return
    places = [np.unique(axis) for axis in coordinates.T]
    if all(len(axis) >= FEWEST and np.diff(axis).min() == 1 for axis in places):
        warnings.warn(
            "coordinates look like voxel indices (whole numbers from 0, one apart), not like mm: places and widths of "
            "factors would be in voxels; bring them to mm by the image's affine (nibabel.affines.apply_affine), "
            "which must not be the identity",
            stacklevel=5,
        )


def warn_of_seconds(trials: pd.DataFrame, lengths: Mapping[str, int]) -> None:
    """Say that start and stop may be seconds: everybody's trials end at the same early share of their frames."""
    # Frames that were cut out of runs here are followed by what is known of their rest.
    if set(ROWS_OF_REST) <= set(trials):
        return
    ends = {str(label): _early_end(own, lengths[str(label)]) for label, own in trials.groupby("participant")}
    shares = [end / lengths[label] for label, end in ends.items() if end is not None]
    if len(shares) == len(ends) and max(shares) - min(shares) < ALIKE:
        first = next(iter(ends))
        warnings.warn(
            f"trials end early in the frames of everybody (participant {first}: frame {ends[first]} of "
            f"{lengths[first]}), with more frames after them than between any two: if start and stop are seconds, "
            "divide them by the repetition time, since they count frames; if not, all is well",
            stacklevel=5,
        )


def _early_end(own: pd.DataFrame, n_frames: int) -> int | None:
    """Where a participant's trials end, if that is earlier than the rest that an experiment ends with makes it."""
    spans = own[["start", "stop"]].sort_values("start").to_numpy()
    end = int(spans[-1, 1])
    if len(spans) < FEWEST or not SECONDS[0] <= end / n_frames <= SECONDS[1]:
        return None
    gaps = spans[:, 0] - np.concatenate([[0], spans[:-1, 1]])
    usual = max(int(gaps.max()), int((spans[:, 1] - spans[:, 0]).max()))
    return end if n_frames - end > LONG * usual else None


def warn_of_frames_without_trials(labels: Collection[str], trials: pd.DataFrame) -> None:
    """Say whose frames are left out because no trial is theirs."""
    left_out = sorted(set(labels).difference(trials["participant"]))
    if left_out:
        warnings.warn(
            f"participant {some(left_out)}: frames but no trials, so left out of the study; if that is not meant, "
            f"spell labels alike in frames and trials, which has {some(sorted(set(trials['participant'])))}",
            stacklevel=5,
        )
