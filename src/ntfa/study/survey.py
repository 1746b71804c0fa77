"""A look at all runs before any image is read: headers, events, confounds. What is wrong with any is found at once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntfa.errors import StudyError
from ntfa.study.bids import FoundRun, Selection, search
from ntfa.study.bids_surfaces import is_cortical, surface_space, with_found
from ntfa.study.checks import some
from ntfa.study.cutting import Preparation, cut, require_rest
from ntfa.study.events import as_label, read_events
from ntfa.study.greyordinates import Greyordinates
from ntfa.study.images import kept_frames, open_image, open_mask, refuse_other_grid, repetition_time
from ntfa.study.problems import Problem, refuse
from ntfa.study.surfaces import SurfaceFiles

NO_MASK = "no brain mask (desc-brain_mask) beside it"


@dataclass(frozen=True)
class Survey:
    """What runs are going to be like.

    runs : one row per run that can be prepared, as far as headers and events tell
    trials : their trials, `participant, stimulus, run` and, if there are any, `session`
    problems : what is wrong with the others
    """

    runs: pd.DataFrame
    trials: pd.DataFrame
    problems: list[Problem]


@dataclass
class _Seen:
    """Names in the stimulus column of all runs, and columns of those that lack it."""

    names: set[str] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    n_with_column: int = 0


def find_sound_runs(
    bids_dir: str | os.PathLike[str],
    wanted: Selection,
    how: Preparation,
    given_mask: Any = None,
    surfaces: SurfaceFiles | None = None,
) -> tuple[list[FoundRun], Any]:
    """Find runs as `find_runs` does; refuse, all at once, those that headers and events say cannot be prepared.

    Also returns the mask that was given, or the vertices and voxels of runs on surfaces.
    """
    found, problems = search(bids_dir, wanted)
    mask, _ = space_for(found, given_mask, surfaces or SurfaceFiles(), Path(wanted.derivatives or bids_dir))
    refuse([*problems, *survey(found, how, mask).problems])
    return found, mask


def space_for(
    found: Sequence[FoundRun], given_mask: Any, surfaces: SurfaceFiles, derivatives: Path
) -> tuple[Any, SurfaceFiles]:
    """Return the mask that was given, or the vertices and voxels of runs on surfaces; and these surfaces' files."""
    if given_mask is not None or not found or not is_cortical(found[0].space):
        return given_mask, surfaces
    files = with_found(surfaces, found[0].run, derivatives)
    return surface_space(found[0].run, files), files


def survey(found: Sequence[FoundRun], how: Preparation, given_mask: Any = None) -> Survey:
    """Look at runs without reading their images.

    Parameters
    ----------
    given_mask : path or image, optional
        Mask to use instead of the runs' own.
    """
    rows, trials, problems, seen = [], [], [], _Seen()
    mask = open_mask(given_mask) if isinstance(given_mask, str | os.PathLike) else given_mask
    for one in found:
        with warnings.catch_warnings():
            # All of these are said when the run is prepared.
            warnings.simplefilter("ignore")
            wrong = _wrong_with_mask(one, how, mask)
            try:
                row, own = _plan(one, how, seen, mask)
            except StudyError as error:
                wrong.append(str(error))
        problems += [Problem(one.run.participant, text) for text in dict.fromkeys(wrong)]
        if not wrong:
            rows.append(row)
            trials.append(own)
    of_trials = pd.concat(trials, ignore_index=True) if trials else pd.DataFrame()
    if found and given_mask is None and all(one.mask is None for one in found):
        text = "no run has a brain mask (desc-brain_mask) beside it; give one with --mask"
        problems = [Problem(None, text), *(one for one in problems if NO_MASK not in one.text)]
    return Survey(pd.DataFrame(rows), of_trials, _wrong_everywhere(seen, how) or problems)


def _wrong_everywhere(seen: _Seen, how: Preparation) -> list[Problem]:
    """Name what no run has: a column or condition that is misspelt. It makes no sense to list it for every file."""
    if seen.columns and not seen.n_with_column:
        text = f"no run has events with a column {how.stimulus_column!r} (--stimulus-column); they have "
        return [Problem(None, text + some(sorted(seen.columns), 20))]
    missing = sorted({*how.rest, *how.ignore} - seen.names)
    if not missing or not seen.n_with_column:
        return []
    return [Problem(None, f"no run has an event called {', '.join(missing)}; there are {some(sorted(seen.names), 20)}")]


def _plan(one: FoundRun, how: Preparation, seen: _Seen, mask: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    """Cut a run into trials by its header, events and confounds; refuse what could not be prepared."""
    run = one.run
    events = read_events(run.events, run.events_name)
    if how.stimulus_column in events:
        seen.n_with_column += 1
        seen.names |= set(events[how.stimulus_column].dropna().map(as_label))
    else:
        seen.columns |= set(map(str, events.columns))
    img = open_image(run, mask)
    t_r = repetition_time(run, img)
    if one.confounds != "none":
        run = one.with_confounds()
    kept = kept_frames(run, img.shape[3])
    times = np.asarray(run.start_time + kept * t_r, dtype=np.float64)
    cuts = cut(events, times, how, run.events_name, end=run.start_time + img.shape[3] * t_r)
    require_rest(len(cuts.rest), how, run.name)
    labels = {"participant": run.participant, "run": run.run} | ({"session": run.session} if run.session else {})
    row = labels | {
        "frames": img.shape[3],
        "t_r": t_r,
        "trials": len(cuts.trials),
        "trial_frames": sum(map(len, cuts.frames)),
        "rest_frames": len(cuts.rest),
        "voxels_in_image": int(np.prod(img.shape[:3])),
    }
    return row, cuts.trials[["stimulus"]].assign(**labels)


def _wrong_with_mask(one: FoundRun, how: Preparation, given: Any) -> list[str]:
    """Say what is wrong with a run's mask, or with its image beside the mask, by headers."""
    if isinstance(given, Greyordinates):
        try:
            open_image(one.run, given).columns_of(given)
        except StudyError as error:
            return [str(error)]
        return []
    if given is None and one.mask is None:
        return [f"{one.run.name}: {NO_MASK}; give one with --mask"]
    try:
        mask = open_mask(str(one.mask)) if given is None else given
        refuse_other_grid(mask, open_image(one.run), how.other_grid, one.run.name)
    except StudyError as error:
        return [str(error)]
    return []
