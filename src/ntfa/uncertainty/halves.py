"""A study in which every participant and every stimulus is two: one for each half of its trials.

The two halves of one are identical in truth, whatever the data are like, so that how far a fit puts them apart is what
its uncertainty has to account for.
"""

from __future__ import annotations

import shutil
import weakref
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ntfa.study import Study
from ntfa.study.checks import FrameArray
from ntfa.study.coverage import relabelled
from ntfa.study.rest import rows_of_rest

Places = NDArray[np.int64]
FRAMES_AT_ONCE = 64
DRAWS = 10
"""Ways to halve that are tried until one keeps the study in one piece."""


@dataclass(frozen=True)
class Halves:
    """A halved study, and who is who.

    participants, stimuli : [n, 3]
        Of all that could be halved: place among the study's labels, and places of both halves among the halved
        study's. One with a single trial is left whole and not listed.
    """

    study: Study
    participants: Places
    stimuli: Places


def halve(study: Study) -> Halves:
    """Split trials of every participant, and of every stimulus, in two.

    Runs of a participant alternate between the halves, so that what the trials of one run have in common, its baseline
    for one, is noise. Where there is but one run, repetitions of a cell alternate, and so does the half that a cell's
    first one goes to; halves of the frames are then z-scored by halves of the rest, if the study knows them.
    Which of its participants go to which half is drawn for every stimulus, as many to either, and so are stimuli for
    every participant: were it always the same ones, the halved study would fall into parts that share no stimulus, and
    how such parts lie to each other is not in the data.
    """
    trials = study.trials.sort_values(["participant", "start"], kind="stable")
    cell = ["participant", "stimulus"]
    run = _run_numbers(trials)
    many = run.groupby(trials["participant"]).transform("nunique") > 1
    # Runs are numbered among those of the participant and, for stimuli, among those that a cell is in.
    in_cell = run.groupby([trials[name] for name in cell]).rank(method="dense").astype(int) - 1
    turn = trials.groupby(cell).cumcount().where(~many, in_cell)
    drawn = []
    for seed in range(DRAWS):
        of_participant = (turn + _drawn_half(trials, "participant", "stimulus", seed)).where(~many, run) % 2
        of_stimulus = (turn + _drawn_half(trials, "stimulus", "participant", seed)) % 2
        drawn.append(_with_halves(trials, {"participant": of_participant, "stimulus": of_stimulus}))
        if n_parts(drawn[-1]) == n_parts(trials):
            break
    halved = min(drawn, key=n_parts)
    halved = halved.loc[study.trials.index] if study.trials.index.is_unique else halved
    scratch = Path(mkdtemp(prefix="ntfa-halves-"))
    frames = _half_frames(study, halved, scratch)
    coverage = relabelled(study.coverage, {label: study.participants[int(label[:9])] for label in frames})
    result = Study(study.coordinates, halved, frames, study.mask_img, coverage=coverage)
    # Files of changed frames, if there are any, are needed as long as the halved study is.
    weakref.finalize(result, shutil.rmtree, scratch, ignore_errors=True)
    return Halves(result, _places(result.participants), _places(result.stimuli))


def _run_numbers(trials: pd.DataFrame) -> pd.Series[int]:
    """Number each trial's run, by session and run, among those of its participant; 0 where there are no labels."""
    if "run" not in trials:
        return pd.Series(0, index=trials.index)
    columns = [name for name in ("session", "run") if name in trials]
    first = trials.groupby(["participant", *columns], dropna=False)["start"].transform("min")
    return first.groupby(trials["participant"]).rank(method="dense").astype(int) - 1


def _half_frames(study: Study, halved: pd.DataFrame, scratch: Path) -> dict[str, FrameArray]:
    """Frames of every half of a participant; trials are changed to where they are in these.

    A half of one run's frames is z-scored by a half of that run's rest, where the study knows it: both halves would
    otherwise share the error of one baseline, and it would be taken for a trait.
    """
    frames, whole = {}, study.participants
    rows = {str(label): places for label, places in halved.groupby("participant").indices.items()}
    for label in sorted(rows):
        array, rest = study.frames[whole[int(label[:9])]], rows_of_rest(halved.iloc[rows[label]])
        if rest is not None:
            own = halved["participant"] == label
            spans = halved.loc[own, ["start", "stop"]].to_numpy()
            array = _shifted(array, spans, array[rest[int(label[-1])]], scratch / f"{label}.npy")
            stops = np.cumsum(spans[:, 1] - spans[:, 0])
            halved.loc[own, "stop"], halved.loc[own, "start"] = stops, stops - (spans[:, 1] - spans[:, 0])
        frames[label] = array
    return frames


def _shifted(array: FrameArray, spans: Places, shift: NDArray[np.float32], path: Path) -> FrameArray:
    """Frames of some trials less a shift; in a file if they came from one, so that memory is not filled."""
    rows = np.concatenate([np.arange(*span) for span in spans])
    if not isinstance(array, np.memmap):
        return np.asarray(array[rows] - shift, dtype=np.float32)
    shifted = np.lib.format.open_memmap(path, "w+", np.float32, (len(rows), array.shape[1]))
    for first in range(0, len(rows), FRAMES_AT_ONCE):
        shifted[first : first + FRAMES_AT_ONCE] = array[rows[first : first + FRAMES_AT_ONCE]] - shift
    shifted.flush()
    return shifted


def _drawn_half(trials: pd.DataFrame, kind: str, other: str, seed: int) -> pd.Series[int]:
    """0 or 1 for each trial's `other`, drawn among those that its `kind` goes together with: as many of either."""
    half = pd.Series(0, index=trials.index)
    for number, (_, own) in enumerate(trials.groupby(kind, sort=True)):
        labels = sorted(own[other].unique())
        order = np.random.default_rng([seed, len(kind), number]).permutation(len(labels))
        half.loc[own.index] = own[other].map(dict(zip(labels, order % 2, strict=True)))
    return half


def _with_halves(trials: pd.DataFrame, half: dict[str, pd.Series[int]]) -> pd.DataFrame:
    """Trials whose labels are numbers, a dot, and the half."""
    halved = trials.copy()
    for kind, halves in half.items():
        codes = trials[kind].map({label: i for i, label in enumerate(sorted(trials[kind].unique()))})
        halved[kind] = [f"{code:09d}.{half}" for code, half in zip(codes, halves, strict=True)]
    return halved


def n_parts(trials: pd.DataFrame) -> int:
    """Count the parts of a design that have neither a participant nor a stimulus in common."""
    participants, stimuli = (pd.factorize(trials[kind])[0] for kind in ("participant", "stimulus"))
    n = int(participants.max()) + 1
    links = (np.ones(len(trials)), (participants, n + stimuli))
    size = n + int(stimuli.max()) + 1
    return int(connected_components(coo_array(links, shape=(size, size)), directed=False)[0])


def _places(labels: list[str]) -> Places:
    table = pd.Series(
        range(len(labels)), index=pd.MultiIndex.from_tuples([tuple(label.split(".")) for label in labels])
    )
    both = table.unstack().dropna()
    if both.shape[1] < 2:
        return np.empty((0, 3), dtype=np.int64)
    return np.column_stack([both.index.astype(np.int64), both.to_numpy(dtype=np.int64)])
