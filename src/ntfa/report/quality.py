"""Data quality as the page shows it: one row per run with small bars, runs with problems first, no folder names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

# Beyond these a run is listed among those with problems: share of frames, share of voxels, mm.
MOST_FRAMES_LOST, MOST_VOXELS_LOST, MOST_MOTION = 0.2, 0.05, 0.5
COUNTED = {
    "trials_without_frames": "trials without a frame left",
    "events_past_the_end": "events cut off by the end of the run",
    "frames_in_two_events": "frames in two events",
}
NAMES = ("image", "events")
FOLDER = re.compile(r"^.*[/\\](?=[^/\\]+$)")


@dataclass(frozen=True)
class Bar:
    """A number with a bar: text beside it, the length of the bar and whether it is a problem; shares from 0 to 1."""

    text: str
    length: float
    problem: bool = False


@dataclass(frozen=True)
class RunRow:
    """One run: what it is called, its numbers, and what is wrong with it."""

    name: str
    frames: Bar | None
    trials: str
    voxels: Bar | None
    motion: Bar | None
    problems: list[str]


@dataclass(frozen=True)
class Quality:
    """All runs, those with problems first, and which numbers are known at all."""

    rows: list[RunRow]
    n_problems: int
    has_frames: bool
    has_trials: bool
    has_voxels: bool
    has_motion: bool


def without_folders(quality: pd.DataFrame) -> pd.DataFrame:
    """Call files by their names alone: where they are is nobody's business who reads a report."""
    named = {column: quality[column].map(_file_name, na_action="ignore") for column in NAMES if column in quality}
    return quality.assign(**named)


def _file_name(path: object) -> str:
    text = str(path)
    # "events of run 1 of participant a/b" is a description, and no path.
    return text if text.startswith(("run ", "events of run ")) else FOLDER.sub("", text)


def quality_of(quality: pd.DataFrame) -> Quality:
    """Turn the quality table into rows; a column that is not there is left out."""
    rows = [_row(row, quality) for row in quality.to_dict("records")]
    ordered = [row for row in rows if row.problems] + [row for row in rows if not row.problems]
    return Quality(
        ordered,
        sum(bool(row.problems) for row in rows),
        any(row.frames is not None for row in rows),
        any(row.trials for row in rows),
        any(row.voxels is not None for row in rows),
        any(row.motion is not None for row in rows),
    )


def quality_in_words(quality: Quality) -> str:
    """Say in a sentence whether anything is wrong with the data."""
    n_runs = len(quality.rows)
    if not quality.n_problems:
        return f"None of the {n_runs:,} runs lost many frames or voxels{' or moved much' * quality.has_motion}."
    first = quality.rows[0]
    others = f", and {quality.n_problems - 1} more" if quality.n_problems > 1 else ""
    return (
        f"{quality.n_problems:,} of {n_runs:,} runs have something to look at: {first.name} "
        f"({'; '.join(first.problems)}){others}."
    )


def _row(row: dict[object, object], table: pd.DataFrame) -> RunRow:
    frames, voxels, motion = _frames(row), _voxels(row), _motion(row, table)
    problems = [f"{bar.text}{what}" for bar, what in _named(frames, voxels, motion) if bar is not None and bar.problem]
    problems += [f"{value:,.0f} {text}" for column, text in COUNTED.items() if (value := _number(row, column) or 0) > 0]
    trials = _number(row, "trials")
    return RunRow(_run_name(row), frames, "" if trials is None else f"{trials:,.0f}", voxels, motion, problems)


def _named(frames: Bar | None, voxels: Bar | None, motion: Bar | None) -> Iterable[tuple[Bar | None, str]]:
    return (frames, " frames kept"), (voxels, " of voxels lost"), (motion, " mean displacement")


def _run_name(row: dict[object, object]) -> str:
    """Join the run's BIDS entities, each once, in BIDS's order: sub-01_ses-1_task-x_run-1."""
    parts = [str(row[key]) for key in ("participant", "session", "run") if key in row and not _missing(row[key])]
    entities = list(dict.fromkeys(part for text in parts for part in text.split("_")))
    return "_".join(entities)


def _frames(row: dict[object, object]) -> Bar | None:
    total, kept = _number(row, "frames"), _number(row, "frames_kept")
    if total is None or kept is None or total <= 0:
        return None
    return Bar(f"{kept:,.0f} of {total:,.0f}", kept / total, 1 - kept / total > MOST_FRAMES_LOST)


def _voxels(row: dict[object, object]) -> Bar | None:
    total, lost = _number(row, "voxels"), _number(row, "voxels_lost")
    if total is None or lost is None or total <= 0:
        return None
    share = lost / total
    text = f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"
    return Bar(text, share, share > MOST_VOXELS_LOST)


def _motion(row: dict[object, object], table: pd.DataFrame) -> Bar | None:
    mean = _number(row, "mean_fd")
    if mean is None:
        return None
    # As long as the worst run's, but half a millimetre is never shown as little.
    longest = max(float(pd.to_numeric(table["mean_fd"], errors="coerce").max()), MOST_MOTION)
    return Bar(f"{mean:.2f} mm", mean / longest, mean > MOST_MOTION)


def _number(row: dict[object, object], column: str) -> float | None:
    value = pd.to_numeric(row.get(column), errors="coerce")  # type: ignore[call-overload]
    return float(value) if value is not None and np.isfinite(value) else None


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value)) or value == ""
