"""Checks of everything a study is made from; each failure names the place and the remedy."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ntfa.errors import StudyError

REQUIRED_COLUMNS = ("participant", "stimulus", "start", "stop")
MASK_TOLERANCE_MM = 1e-3
CHUNK_VALUES = 2**22
LARGEST_FRAME = 2**53
IF_SECONDS = (
    "(start and stop count frames: seconds are to be divided by the repetition time, or left to Study.from_images)"
)

NEEDS_SAME = "every participant needs the same voxels"

FloatArray = NDArray[np.float64]
FrameArray = NDArray[np.float32]
OneOrMoreLabels = str | Iterable[str]


def some(items: Iterable[object], limit: int = 5) -> str:
    """List the first few items for a message: ``a, b and 3 more``."""
    names = [str(item) for item in items]
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def as_list(labels: OneOrMoreLabels | None) -> list[str] | None:
    """One label or several, as a list."""
    return None if labels is None else [labels] if isinstance(labels, str) else [str(label) for label in labels]


def row_chunks(n_rows: int, n_columns: int) -> Iterator[slice]:
    """Slices of rows that together hold a few million values at most."""
    step = max(1, CHUNK_VALUES // max(1, n_columns))
    return (slice(first, min(first + step, n_rows)) for first in range(0, n_rows, step))


# --- coordinates and mask


def check_coordinates(coordinates: ArrayLike) -> FloatArray:
    """Return the voxel positions as a finite V x 3 array without duplicates."""
    try:
        positions = np.asarray(coordinates)
        if positions.dtype.kind == "c":
            raise ValueError("they are complex")
        positions = positions.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise StudyError(f"coordinates must be numbers, V x 3, in mm: {error}") from error
    if positions.ndim != 2 or positions.shape[1] != 3 or len(positions) == 0:
        turned = "; give coordinates.T" if positions.ndim == 2 and positions.shape[0] == 3 < positions.shape[1] else ""
        raise StudyError(f"coordinates must have shape V x 3 (mm, one row per voxel), not {positions.shape}{turned}")
    bad = np.flatnonzero(~np.isfinite(positions).all(axis=1))
    if len(bad):
        raise StudyError(f"coordinates of {len(bad)} voxels are not finite, the first is voxel {bad[0]}")
    _check_distinct(positions)
    return positions


def _check_distinct(positions: FloatArray) -> None:
    order = np.lexsort(positions.T)
    same = np.flatnonzero((np.diff(positions[order], axis=0) == 0).all(axis=1))
    if len(same):
        first, second = sorted(order[same[0] : same[0] + 2])
        raise StudyError(
            f"coordinates: voxels {first} and {second} have the same position {positions[first].tolist()} "
            f"({len(same)} duplicates in all); drop one of each pair"
        )


def mask_coordinates(mask_img: Any) -> FloatArray:
    """Positions (mm) of a mask's voxels, in the order of a nilearn masker; of vertices too, where it has any."""
    if hasattr(mask_img, "coordinates"):
        return np.asarray(mask_img.coordinates)
    data = np.asanyarray(mask_img.dataobj)
    if data.ndim != 3:
        raise StudyError(f"mask_img must be a 3-D image, not of shape {data.shape}")
    affine = np.asarray(mask_img.affine, dtype=np.float64)
    return np.argwhere(data != 0) @ affine[:3, :3].T + affine[:3, 3]


def check_mask(mask_img: Any, coordinates: FloatArray) -> None:
    """Check that the mask, where there is one, holds exactly the study's voxels in the study's order."""
    if mask_img is None:
        return
    is_image = hasattr(mask_img, "dataobj") and hasattr(mask_img, "affine")
    if not is_image and not hasattr(mask_img, "coordinates"):
        raise StudyError(f"mask_img must be a nibabel image, not {type(mask_img).__name__}")
    expected = mask_coordinates(mask_img)
    if len(expected) != len(coordinates):
        raise StudyError(f"mask_img has {len(expected)} voxels, coordinates has {len(coordinates)}")
    distance = np.abs(expected - coordinates).max(axis=1)
    bad = np.flatnonzero(~(distance <= MASK_TOLERANCE_MM))
    if len(bad) and np.array_equal(coordinates, np.argwhere(np.asanyarray(mask_img.dataobj) != 0)):
        raise StudyError(
            "coordinates are the voxel indices of mask_img, not mm: bring them to mm by its affine "
            "(nibabel.affines.apply_affine(mask_img.affine, coordinates))"
        )
    if len(bad):
        raise StudyError(
            f"coordinates differ from those of mask_img at {len(bad)} voxels, first at voxel {bad[0]}: "
            f"{coordinates[bad[0]].tolist()} against {expected[bad[0]].tolist()}; "
            "coordinates must follow the mask's voxels in C order (as a nilearn masker does), in mm"
        )


# --- trials


def check_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """Return a copy of the trials with string labels and whole-number frames, index and labels kept."""
    if not isinstance(trials, pd.DataFrame):
        raise StudyError(f"trials must be a pandas DataFrame, not {type(trials).__name__}")
    _check_columns(trials)
    if trials.empty:
        raise StudyError("trials has no rows: a study needs at least one trial")
    table = trials.copy()
    for column in ("participant", "stimulus"):
        table[column] = _labels(trials, column)
    for column in ("start", "stop"):
        table[column] = _frame_numbers(trials, column)
    _check_intervals(table)
    _check_overlaps(table)
    return table


def _check_columns(trials: pd.DataFrame) -> None:
    missing = [column for column in REQUIRED_COLUMNS if column not in trials.columns]
    if missing:
        raise StudyError(
            f"trials lacks the column(s) {', '.join(missing)}; it needs {', '.join(REQUIRED_COLUMNS)} "
            f"and has {some(trials.columns, 10)}"
        )
    twice = trials.columns[trials.columns.duplicated()]
    if len(twice):
        raise StudyError(f"trials has the column {twice[0]!r} more than once")


def _row(table: pd.DataFrame, position: int) -> str:
    """Name a row by its index label, and by its participant where that is known."""
    return f"trials row {table.index[position]} (participant {table['participant'].iloc[position]})"


def _labels(trials: pd.DataFrame, column: str) -> "pd.Series[str]":
    labels = trials[column]
    text = labels.astype(str)
    bad = np.flatnonzero(labels.isna() | (text.str.strip() == ""))
    if len(bad):
        raise StudyError(f"trials row {trials.index[bad[0]]} has no {column}: {len(bad)} labels are missing")
    return text


def as_numbers(values: pd.Series) -> pd.Series:
    """Turn a column into numbers, missing where there is none."""
    try:
        return pd.to_numeric(values, errors="coerce")
    except OverflowError:
        # Whole numbers beyond any float; as text they are infinite.
        return pd.to_numeric(values.astype(str), errors="coerce")


def _frame_numbers(trials: pd.DataFrame, column: str) -> pd.Series:
    values = as_numbers(trials[column]).to_numpy(dtype=np.float64, na_value=np.nan)
    whole = np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) < LARGEST_FRAME)
    bad = np.flatnonzero(~whole)
    if len(bad):
        raise StudyError(
            f"{_row(trials, bad[0])}: {column} must be a whole number of frames, not {trials[column].iloc[bad[0]]!r}"
            + (f" {IF_SECONDS}" if np.isfinite(values[bad[0]]) else "")
        )
    return pd.Series(values.astype(np.int64), index=trials.index)


def _check_intervals(table: pd.DataFrame) -> None:
    start, stop = table["start"].to_numpy(), table["stop"].to_numpy()
    for position in np.flatnonzero(start < 0)[:1]:
        raise StudyError(f"{_row(table, position)}: start is negative ({start[position]})")
    for position in np.flatnonzero(start >= stop)[:1]:
        raise StudyError(
            f"{_row(table, position)}: start ({start[position]}) must be before stop ({stop[position]}); "
            "a trial is the frames start, ..., stop - 1"
        )


def _check_overlaps(table: pd.DataFrame) -> None:
    order = np.lexsort((table["start"], pd.factorize(table["participant"])[0]))
    ordered = table.iloc[order]
    participant = ordered["participant"].to_numpy()
    inside = ordered["stop"].to_numpy()[:-1] > ordered["start"].to_numpy()[1:]
    for i in np.flatnonzero(inside & (participant[:-1] == participant[1:]))[:1]:
        first, second = sorted(order[i : i + 2])
        spans = table[["start", "stop"]].to_numpy()
        raise StudyError(
            f"{_row(table, first)} and row {table.index[second]} overlap "
            f"(frames {spans[first].tolist()} and {spans[second].tolist()}): a frame can be in one trial only"
        )


def check_trials_fit(table: pd.DataFrame, lengths: Mapping[str, int]) -> None:
    """Check that each trial's participant is known and has all of the trial's frames."""
    available = table["participant"].map(dict(lengths)).to_numpy(dtype=np.float64)
    for position in np.flatnonzero(np.isnan(available))[:1]:
        raise StudyError(
            f"{_row(table, position)}: there are no frames of this participant; frames has {some(lengths)}"
        )
    stop = table["stop"].to_numpy()
    for position in np.flatnonzero(stop > available)[:1]:
        raise StudyError(
            f"{_row(table, position)}: stop ({stop[position]}) is past the end, "
            f"the participant has {int(available[position])} frames {IF_SECONDS}"
        )


# --- frames


def check_frames(frames: Mapping[Any, ArrayLike], n_voxels: int) -> dict[str, FrameArray]:
    """Return the frames by string label, float32, each frames x voxels; values are not looked at."""
    if not isinstance(frames, Mapping):
        raise StudyError(f"frames must be a dict participant -> array, not {type(frames).__name__}")
    if not frames:
        raise StudyError("frames is empty: give at least one participant's array")
    arrays: dict[str, FrameArray] = {}
    for participant, array in frames.items():
        if str(participant) in arrays:
            raise StudyError(f"frames has the participant {participant} twice (labels are compared as text)")
        arrays[str(participant)] = check_participant(participant, array, n_voxels)
    return arrays


def check_participant(participant: Hashable, array: ArrayLike, n_voxels: int) -> FrameArray:
    """Return one participant's frames as float32, copied only when they are of another type."""
    try:
        # A memory map stays one; other subclasses (matrices) would change what indexing means.
        data = array if isinstance(array, np.memmap) else np.asarray(array)
    except ValueError as error:
        raise StudyError(f"frames of participant {participant} are not an array: {error}") from error
    if data.dtype.kind not in "fiub":
        raise StudyError(f"frames of participant {participant} must be real numbers, not {data.dtype}")
    if data.ndim != 2:
        raise StudyError(f"frames of participant {participant} must be frames x voxels, not {data.shape}")
    if data.shape[1] != n_voxels:
        advice = "they seem to be voxels x frames: give array.T" if len(data) == n_voxels else NEEDS_SAME
        raise StudyError(
            f"frames of participant {participant} have {data.shape[1]} voxels, coordinates has {n_voxels}; {advice}"
        )
    # Values too large for float32 become infinite here and are reported by check_values.
    with np.errstate(over="ignore"):
        return data.astype(np.float32, copy=False)


def check_values(participant: str, array: FrameArray, seen: NDArray[np.bool_] | None = None) -> None:
    """Check that one participant's frames are finite and that every voxel varies, or is zero where it is unseen."""
    for rows in row_chunks(*array.shape):
        if not np.isfinite(array[rows]).all():
            raise not_finite(participant, array)
    still = constant_voxels(array, seen)
    if len(still) and len(array) > 1:
        raise StudyError(
            f"frames of participant {participant}: {len(still)} voxels are constant, first voxel {still[0]}; "
            "drop voxels without signal from every participant, from coordinates and from the mask"
        )
    if seen is not None and any(array[rows][:, ~seen].any() for rows in row_chunks(*array.shape)):
        raise StudyError(f"frames of participant {participant} are not zero in voxels that coverage says are unseen")


def constant_voxels(array: FrameArray, among: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Find voxels that are the same in all frames, among all or these."""
    n_frames, n_voxels = array.shape
    still = np.arange(n_voxels) if among is None else np.flatnonzero(among)
    for rows in row_chunks(n_frames, n_voxels):
        if not len(still):
            break
        chunk = array[rows]
        part = chunk if len(still) == n_voxels else chunk[:, still]
        still = still[(part == array[0, still]).all(axis=0)]
    return still


def not_finite(participant: str, array: FrameArray, among: NDArray[np.bool_] | None = None) -> StudyError:
    """Name the first value that is NaN or infinite, among all voxels or these."""
    count, where = 0, (0, 0)
    for rows in row_chunks(*array.shape):
        broken = ~np.isfinite(array[rows])
        bad = np.argwhere(broken if among is None else broken & among)
        if len(bad) and not count:
            where = (rows.start + int(bad[0, 0]), int(bad[0, 1]))
        count += len(bad)
    return StudyError(
        f"frames of participant {participant}: {count} values are NaN or infinite (in float32), "
        f"first at frame {where[0]}, voxel {where[1]}; drop or repair these frames or voxels"
    )
