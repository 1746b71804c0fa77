"""From runs to a study: cut, z-score, put together, one participant after another."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.files.headers import open_file
from ntfa.study.checks import some
from ntfa.study.cifti import greyordinate_mask, is_cifti
from ntfa.study.cutting import Cut, Preparation, cut, standardise
from ntfa.study.events import join_tables, read_events
from ntfa.study.greyordinates import Greyordinates
from ntfa.study.images import (
    Run,
    Voxels,
    kept_frames,
    load_mask,
    mean_volume,
    open_image,
    repetition_time,
    voxel_series,
    without_frames,
)
from ntfa.study.motion import COLUMN, as_text, motion_summary
from ntfa.study.rest import with_rest
from ntfa.study.series import GreyordinateSeries, is_surface, of_cifti, open_series, require_space, space_of
from ntfa.study.surfaces import Surfaces

MOST_SPOILED = 0.1
"""Share of a run's frames above which it is not frames that are spoiled, but the run."""


@dataclass(frozen=True)
class Prepared:
    """One participant's trial frames, one run after another.

    frames : [trial frames, V], voxels as in the mask; zero in those that are not usable.
    trials : one row per trial; `start` and `stop` into `frames`.
    usable : [V], voxels that the participant has: finite and varying in every run, and in their own mask.
    quality : one row per run: what was kept and what was lost.
    """

    participant: str
    frames: NDArray[np.float32]
    trials: pd.DataFrame
    usable: Voxels
    quality: pd.DataFrame


def prepare_participant(
    runs: Sequence[Run], mask_img: Any, how: Preparation, own_mask: Voxels | None = None
) -> Prepared:
    """Prepare all runs of one participant.

    own_mask : which of the mask's voxels are in the participant's own brain mask; all, if not given
    """
    parts = [_prepare_run(run, mask_img, how, keep_rest=len(runs) == 1) for run in runs]
    offsets = np.cumsum([0] + [len(part.frames) for part in parts])
    tables = [
        part.trials.assign(start=part.trials["start"] + offset, stop=part.trials["stop"] + offset)
        for part, offset in zip(parts, offsets[:-1], strict=True)
    ]
    frames, trials = np.concatenate([part.frames for part in parts]), join_tables(tables)
    # Minimum and maximum are NaN or infinite wherever a frame is, without a second array of that size.
    low, high = frames.min(0), frames.max(0)
    usable = np.isfinite(low) & np.isfinite(high) & (low != high)
    if own_mask is not None:
        usable &= own_mask
    if not usable.any():
        raise StudyError(f"{runs[0].participant}: no voxel of the mask is finite and varies in every run")
    quality = pd.DataFrame([part.quality for part in parts])
    if parts[0].rest is not None:
        frames, trials = with_rest(frames, trials, parts[0].rest)
    frames[:, ~usable] = 0
    return Prepared(runs[0].participant, frames, trials, usable, quality)


class _PreparedRun(NamedTuple):
    frames: NDArray[np.float32]
    trials: pd.DataFrame
    quality: dict[str, Any]
    rest: NDArray[np.float32] | None


def _prepare_run(run: Run, mask_img: Any, how: Preparation, keep_rest: bool) -> _PreparedRun:
    img = open_image(run, mask_img)
    t_r = repetition_time(run, img)
    # Cut before the image is read, which takes long, and again if that shows frames to leave out.
    kept, found = _cut(run, img, how, t_r)
    series, broken, spoiled = voxel_series(run, img, mask_img, how, t_r)
    if broken.all():
        raise StudyError(f"{_which(run)}: no voxel of the mask is finite and varies; see image and mask")
    if len(spoiled):
        _warn_of_spoiled(run, spoiled, img.shape[3])
        kept, found = _cut(without_frames(run, spoiled, img.shape[3]), img, how, t_r)
    # Z-scored over the whole run before trials are cut out: rest frames are needed for that, and not kept.
    frames = standardise(series, found.rest, how, run.name)
    del series
    order = np.concatenate(found.frames)
    lengths = np.array([len(rows) for rows in found.frames])
    stops = np.cumsum(lengths)
    labels = {"participant": run.participant, "run": run.run} | ({"session": run.session} if run.session else {})
    trials = found.trials.assign(**labels, start=stops - lengths, stop=stops)
    if run.motion is not None and len(run.motion) == img.shape[3]:
        trials[COLUMN] = [as_text(run.motion[kept[rows]]) for rows in found.frames]
    picked = frames[order]
    # Zeros stood in for these, for filters to work; NaN marks them until the voxels of all runs are known.
    picked[:, broken] = np.nan
    rest = frames[found.rest] if keep_rest and how.standardize == "rest" else None
    if rest is not None:
        rest[:, broken] = np.nan
    row = labels | {
        "frames": img.shape[3],
        "frames_kept": len(kept),
        "frames_spoiled": len(spoiled),
        "trials": len(trials),
        "trial_frames": len(order),
        "rest_frames": len(found.rest),
        **found.counts,
        "t_r": t_r,
        "start_time": run.start_time,
        "voxels": picked.shape[1],
        "voxels_lost": int((~np.isfinite(picked.sum(0))).sum()),
        **motion_summary(run.motion),
        "image": run.name,
        "events": run.events_name,
    }
    return _PreparedRun(picked, trials, row, rest)


def _cut(run: Run, img: Any, how: Preparation, t_r: float) -> tuple[NDArray[np.int64], Cut]:
    """Return which frames are kept, and the trials and rest among them."""
    events = read_events(run.events, run.events_name)
    kept = kept_frames(run, img.shape[3])
    # Of kept frames only, but counted from the start of the run: scrubbing does not move the others in time.
    times = np.asarray(run.start_time + kept * t_r, dtype=np.float64)
    return kept, cut(events, times, how, run.events_name, end=run.start_time + img.shape[3] * t_r)


def _warn_of_spoiled(run: Run, spoiled: NDArray[np.int64], n_frames: int) -> None:
    """Say which frames of a run are left out because they cannot be measurements."""
    if len(spoiled) > MOST_SPOILED * n_frames:
        raise StudyError(
            f"{_which(run)}: {len(spoiled)} of {n_frames} frames, the first is frame {spoiled[0]}, are not finite or "
            "far off the others; repair the image, or leave the run out"
        )
    warnings.warn(
        f"{_which(run)}: frame {some(spoiled)}, counted from 0, is not finite or far off all others, and was left out "
        "as if scrubbed",
        stacklevel=3,
    )


def _which(run: Run) -> str:
    return f"{run.name} (participant {run.participant}, run {run.run})"


def assemble(prepared: Sequence[Prepared]) -> tuple[dict[str, NDArray[np.float32]], pd.DataFrame]:
    """Put prepared participants together: frames, zero in voxels that somebody lacks, and trials."""
    return {one.participant: one.frames for one in prepared}, join_tables(one.trials for one in prepared)


def warn_of_losses(quality: pd.DataFrame) -> None:
    """Say once, with counts, what did not fit."""
    notes = {
        "trials_without_frames": "trial(s) had no frame left and were dropped",
        "events_past_the_end": "event(s) reach past the end of their run and were cut off there",
        "frames_in_two_events": "frame(s) lie in two events and were assigned to the later one",
    }
    said = [f"{int(quality[column].sum()):,} {text}" for column, text in notes.items() if quality[column].sum()]
    if quality["t_r"].round(3).nunique() > 1:
        counts = quality["t_r"].round(3).value_counts().to_dict()
        said.append(f"runs differ in TR ({counts}, seconds: runs); each was cut by its own")
    if said:
        warnings.warn("; ".join(said), stacklevel=3)


def as_runs(
    imgs: Sequence[Any],
    events: Sequence[Any],
    participants: Sequence[str] | None,
    confounds: Sequence[Any] | None,
    sample_masks: Sequence[Any] | None,
    runs: Sequence[str] | None,
    **timing: Any,
) -> dict[str, list[Run]]:
    """Turn lists with one entry per run into runs by participant."""
    if not isinstance(imgs, list | tuple):
        raise StudyError(f"imgs must be a list with one image per run, not {type(imgs).__name__}")
    n = len(imgs)
    lists = {
        "events": events,
        "participants": ["1"] * n if participants is None else participants,
        "confounds": [None] * n if confounds is None else confounds,
        "sample_masks": [None] * n if sample_masks is None else sample_masks,
        "runs": runs,
    }
    for name, entries in lists.items():
        if entries is not None and (isinstance(entries, str | pd.DataFrame) or len(entries) != n):
            raise StudyError(f"{name} must be a list with one entry for each of the {n} image(s)")
    if n == 0:
        raise StudyError("imgs is empty: give one image per run")
    found: dict[str, list[Run]] = {}
    for i, img in enumerate(imgs):
        own = found.setdefault(str(lists["participants"][i]), [])  # type: ignore[index]
        label = f"run-{len(own) + 1}" if runs is None else str(runs[i])
        regressors, kept = lists["confounds"][i], lists["sample_masks"][i]  # type: ignore[index]
        participant = str(lists["participants"][i])  # type: ignore[index]
        own.append(Run(img, events[i], participant, label, confounds=regressors, sample_mask=kept, **timing))
    return found


def mask_of(imgs: Sequence[Any], mask: Any, surfaces: Surfaces | None = None, distance: str = "sphere") -> Any:
    """Load the mask that was given, or take a file's vertices and voxels, or make nilearn's brain mask of all images.

    surfaces, distance : of a study with vertices, where these are, and what distances between them are
    """
    # Imported here: nilearn takes seconds, and studies from arrays do without.
    from nilearn.masking import compute_multi_epi_mask

    if isinstance(mask, Greyordinates):
        return mask
    if mask is not None and not is_surface(mask):
        return load_mask(mask)
    first = Run(imgs[0], None, "unknown")
    opened = open_file(first.img, first.name, "image") if isinstance(first.img, str | os.PathLike) else first.img
    if is_cifti(opened):
        return cifti_space(opened, first.name, surfaces, distance) or greyordinate_mask(opened, first.name)
    if is_surface(opened):
        space = require_space(open_series(opened, first.name), surfaces, distance)
        return space if mask is None else within(space, open_series(mask, "mask"))
    means = [mean_volume(Run(img, None, "unknown", str(i + 1))) for i, img in enumerate(imgs)]
    try:
        return load_mask(compute_multi_epi_mask(means))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise StudyError(f"no brain mask can be made of these images ({reason}); give one with mask=") from error


def cifti_space(img: Any, name: str, surfaces: Surfaces | None, distance: str) -> Greyordinates | None:
    """Return a dense file's vertices and voxels; None if there are no vertices, or they have no place and may go."""
    series = of_cifti(img, name)
    if not series.n_vertices:
        return None
    is_needed = surfaces is not None or not series.axis.volume_mask.any()
    return require_space(series, surfaces, distance) if is_needed else space_of(series, surfaces, distance)


def within(space: Greyordinates, mask: GreyordinateSeries) -> Greyordinates:
    """Keep what lies in a mask of surfaces."""
    columns = mask.columns_of(space)
    inside = (columns >= 0) & (np.nan_to_num(mask.read(slice(0, 1))[0])[columns] > 0)
    if not inside.any():
        raise StudyError("the mask is empty")
    return space.keep(inside)
