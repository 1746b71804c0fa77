"""Cutting trials out of a run, and z-scoring them against its rest.

Frame i is acquired at StartTime + i * TR. A trial's frames are those acquired in
[onset + delay, onset + delay + duration). Rest frames are those of the baseline events, cut the same way, or, in a run
that has none, those outside every (delayed) event.

Rules for what does not fit: a frame in two events belongs to the one that started last; an event is cut off at the end
of the run; a trial with no frame left is dropped. Each is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study.events import as_label, row_name

Indices = NDArray[np.int64]
STANDARDIZE = ("rest", "run", "none")
VOXELS_AT_ONCE = 1024
MILLISECONDS = 50
"""Onsets that are usually so many times later than the end of the run are in milliseconds."""


@dataclass(frozen=True)
class Preparation:
    """How runs become trials.

    Parameters
    ----------
    stimulus_column : str
        Column of the events that names the stimulus.
    category_column : str, optional
        Column that names its category, kept as the label `category`.
    rest : tuple of str
        Baseline conditions: used for z-scoring, and left out of the trials unless `include_rest`.
    include_rest : bool
        Whether the baseline is also modelled as a stimulus.
    ignore : tuple of str
        Conditions that are neither trials nor rest, such as button presses.
    delay : float
        Haemodynamic delay: seconds from an event to the frames that show the response to it.
    trial_duration : float, optional
        Seconds a trial lasts, instead of the event's own duration.
    merge_gap : float, optional
        Events of one stimulus that follow each other within so many seconds are merged into one trial.
    standardize : {"rest", "run", "none"}
        Z-score each voxel of each run by the mean and sd of that run's rest frames, of all its frames, or not at all.
    min_rest_frames : int
        Fewest rest frames that a run can be z-scored by.
    smoothing_fwhm : float, optional
        Full width at half maximum of a Gaussian to smooth by, in mm.
    high_pass : float, optional
        Lowest frequency to keep, in Hz.
    other_grid : {"refuse", "resample"}
        What to do with an image on another grid than the mask's.
    """

    stimulus_column: str = "trial_type"
    category_column: str | None = None
    rest: tuple[str, ...] = ()
    include_rest: bool = False
    ignore: tuple[str, ...] = ()
    delay: float = 3.0
    trial_duration: float | None = None
    merge_gap: float | None = None
    standardize: str = "rest"
    min_rest_frames: int = 10
    smoothing_fwhm: float | None = None
    high_pass: float | None = None
    other_grid: str = "refuse"

    def __post_init__(self) -> None:
        # One name may be given as text, which would otherwise be taken for a list of letters.
        for name in ("rest", "ignore"):
            value = getattr(self, name)
            names = (value,) if isinstance(value, str) else tuple(map(str, value or ()))
            object.__setattr__(self, name, names)
        if self.standardize not in STANDARDIZE:
            raise StudyError(f"standardize={self.standardize!r}: choose one of {', '.join(STANDARDIZE)}")
        if self.other_grid not in ("refuse", "resample"):
            raise StudyError(f"other_grid={self.other_grid!r}: choose refuse or resample")
        for name in ("trial_duration", "smoothing_fwhm", "high_pass"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise StudyError(f"{name}={value!r}: must be above 0")


@dataclass(frozen=True)
class Cut:
    """Which of a run's kept frames belong to which trial, and which are rest."""

    trials: pd.DataFrame
    frames: list[Indices]
    rest: Indices
    counts: dict[str, int] = field(default_factory=dict)


def cut(
    events: pd.DataFrame, times: NDArray[np.float64], how: Preparation, where: str, end: float | None = None
) -> Cut:
    """Cut a run into trials.

    Parameters
    ----------
    events : DataFrame
        From `read_events`.
    times : array
        Acquisition times of the frames that were kept, in seconds.
    where : str
        What to call the events in an error.
    end : float, optional
        When the run ends, in seconds; one step after the last of `times` if not given.

    Returns
    -------
    Cut
        Frames are positions in `times`.
    """
    shown = _trials_and_rest(events, how, where)
    spans = _spans(shown, how, where)
    owner = _owners(spans, times)
    is_rest = shown["_stimulus"].isin(how.rest).to_numpy()
    is_trial = ~shown["_stimulus"].isin(how.ignore).to_numpy() & (~is_rest | how.include_rest)
    frames = [np.flatnonzero(owner == i) for i in range(len(shown))]
    # Decided run by run: a run without baseline events has to be z-scored by something.
    rest = np.flatnonzero(np.isin(owner, np.flatnonzero(is_rest)) if is_rest.any() else owner < 0)
    kept = [int(i) for i in np.flatnonzero(is_trial) if len(frames[i])]
    # Scrubbed frames are missing from `times`, so whoever knows when the run ends says so.
    end = times[-1] + _step(times) if end is None else end
    _refuse_milliseconds(shown, end, where)
    if not kept:
        raise StudyError(f"{where}: no trial is left after cutting; {_why_none(shown, end)}")
    covered = sum(((times >= start - _EPS) & (times < stop - _EPS)).sum() for start, stop in spans)
    counts = {
        "trials_without_frames": int(is_trial.sum()) - len(kept),
        "events_past_the_end": int((spans[:, 1] > end + _EPS).sum()),
        "frames_in_two_events": int(covered - (owner >= 0).sum()),
    }
    return Cut(_labels(shown.iloc[kept], how), [frames[i] for i in kept], rest, counts)


def _refuse_milliseconds(events: pd.DataFrame, end: float, where: str) -> None:
    """Refuse onsets that are so far beyond the end of the run that they are in another unit."""
    usual = float(events["onset"].median())
    if usual > MILLISECONDS * end:
        raise StudyError(
            f"{where}: half of the {len(events)} events begin after {usual:g} s, but the run ends at {end:g} s: onsets "
            "and durations must be in seconds, not ms"
        )


def _why_none(events: pd.DataFrame, end: float) -> str:
    """Say what may be wrong with events of which none is within the run."""
    first = float(events["onset"].min())
    if first > end:
        return f"the first event is at {first:g} s and the run ends at {end:g} s: are these the events of this run?"
    return "see onsets and durations (in seconds), delay and stimulus column"


# Times read from text are good to a microsecond or so.
_EPS = 1e-6


def _step(times: NDArray[np.float64]) -> float:
    return float(np.diff(times).min()) if len(times) > 1 else 0.0


def _trials_and_rest(events: pd.DataFrame, how: Preparation, where: str) -> pd.DataFrame:
    """Name each event's stimulus, and merge what belongs to one block."""
    for column in filter(None, (how.stimulus_column, how.category_column)):
        if column not in events:
            raise StudyError(f"{where}: no column {column!r}; it has {', '.join(map(str, events.columns))}")
    names = events[how.stimulus_column]
    unnamed = np.flatnonzero(names.isna() | (names.astype(str).str.strip() == ""))
    if len(unnamed):
        raise StudyError(
            f"{where}, {row_name(events.index[unnamed[0]])}: {how.stimulus_column} is n/a, as in {len(unnamed)} of "
            f"{len(events)} events; name them, or choose another stimulus column"
        )
    named = events.assign(_stimulus=events[how.stimulus_column].map(as_label))
    return named if how.merge_gap is None else _merged(named, how.merge_gap)


def _merged(events: pd.DataFrame, gap: float) -> pd.DataFrame:
    ends = events["onset"] + events["duration"].fillna(0)
    follows = (events["_stimulus"] == events["_stimulus"].shift()) & (events["onset"] - ends.shift() <= gap + _EPS)
    block = (~follows).cumsum()
    merged = events.groupby(block, sort=True).first()
    lasting = ends.groupby(block).max() - merged["onset"]
    unknown = events["duration"].isna().groupby(block).any()
    return merged.assign(duration=lasting.mask(unknown)).set_axis(events.index[~follows])


def _spans(events: pd.DataFrame, how: Preparation, where: str) -> NDArray[np.float64]:
    """Start and stop of every event's response, in seconds."""
    lasting = events["duration"]
    # Baseline and ignored events keep their own durations: these say how long there was nothing, or something else.
    if how.trial_duration is not None:
        lasting = lasting.mask(~events["_stimulus"].isin((*how.rest, *how.ignore)), how.trial_duration)
    unknown = np.flatnonzero(lasting.isna())
    if len(unknown):
        row = row_name(events.index[unknown[0]])
        raise StudyError(f"{where}, {row}: the duration is n/a; give a trial duration")
    # Rest is delayed too: its first frames still show the response to what came before.
    starts = events["onset"].to_numpy() + how.delay
    return np.stack([starts, starts + lasting.to_numpy()], 1)


def _owners(spans: NDArray[np.float64], times: NDArray[np.float64]) -> Indices:
    """The event each frame belongs to, -1 for none; events are in order of onset, so later ones take precedence."""
    owner = np.full(len(times), -1)
    for i, (start, stop) in enumerate(spans):
        owner[(times >= start - _EPS) & (times < stop - _EPS)] = i
    return owner


def _labels(events: pd.DataFrame, how: Preparation) -> pd.DataFrame:
    """Trials as a table: `stimulus`, `onset`, `duration`, and every other column of the events as a label."""
    table = pd.DataFrame({"stimulus": events["_stimulus"]})
    if how.category_column is not None:
        table["category"] = events[how.category_column]
    taken = {how.stimulus_column, "_stimulus", "participant", "start", "stop", "run", "session", *table}
    others = [column for column in events if column not in taken]
    return table.join(events[others]).reset_index(drop=True)


def standardise(frames: NDArray[np.float32], rest: Indices, how: Preparation, where: str) -> NDArray[np.float32]:
    """Z-score every voxel of a run's frames [n, V], in place; a voxel that does not vary becomes NaN.

    Raises
    ------
    StudyError
        If there are too few rest frames to know their mean and sd.
    """
    if how.standardize == "none":
        return frames
    require_rest(len(rest), how, where)
    # In float64, a few voxels at a time: sums over a long run lose digits in float32, and a float64 copy takes memory.
    for first in range(0, frames.shape[1], VOXELS_AT_ONCE):
        voxels = slice(first, first + VOXELS_AT_ONCE)
        values = frames[:, voxels].astype(np.float64)
        reference = values[rest] if how.standardize == "rest" else values
        sd = reference.std(0, ddof=1) if len(reference) > 1 else np.zeros(values.shape[1])
        sd[~(sd > 0)] = np.nan
        # A voxel that hardly varies may go beyond float32; it is then infinite, and not used.
        with np.errstate(over="ignore"):
            frames[:, voxels] = (values - reference.mean(0)) / sd
    return frames


def require_rest(n_frames: int, how: Preparation, where: str) -> None:
    """Refuse a run with too few rest frames to know their mean and sd."""
    if how.standardize == "rest" and n_frames < how.min_rest_frames:
        raise StudyError(
            f"{where}: only {n_frames} rest frame(s), fewer than the {how.min_rest_frames} needed to z-score by; name "
            "the baseline condition(s), lower min_rest_frames, or standardize by the whole run or not at all"
        )
