"""A study in which every participant and every stimulus is two: one for each half of its trials.

The two halves of one are identical in truth, whatever the data are like, so that how far a fit puts them apart is what
its uncertainty has to account for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.study import Study

Places = NDArray[np.int64]


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

    Repetitions of a cell alternate between the halves, and so does the half that a cell's first one goes to, so that
    halves are as alike as can be. Participants are split along other lines than stimuli: half of a participant has
    seen halves of either kind.
    """
    trials = study.trials.sort_values(["participant", "start"], kind="stable")
    repetition = trials.groupby(["participant", "stimulus"]).cumcount()
    stimulus_number = _number_within(trials, "participant", "stimulus")
    participant_number = _number_within(trials, "stimulus", "participant")
    half = {
        "participant": (repetition + stimulus_number) % 2,
        "stimulus": (repetition + participant_number + stimulus_number // 2) % 2,
    }
    halved = trials.copy()
    for kind, halves in half.items():
        codes = trials[kind].map({label: i for i, label in enumerate(sorted(trials[kind].unique()))})
        halved[kind] = [f"{code:09d}.{half}" for code, half in zip(codes, halves, strict=True)]
    halved = halved.loc[study.trials.index] if study.trials.index.is_unique else halved
    frames = {label: study.frames[study.participants[int(label[:9])]] for label in sorted(set(halved["participant"]))}
    result = Study(study.coordinates, halved, frames, study.mask_img)
    return Halves(result, _places(result.participants), _places(result.stimuli))


def _number_within(trials: pd.DataFrame, kind: str, other: str) -> pd.Series[int]:
    """Number each trial's `other` among those that its `kind` goes together with, from 0."""
    return trials.groupby(kind)[other].rank(method="dense").astype(int) - 1


def _places(labels: list[str]) -> Places:
    table = pd.Series(
        range(len(labels)), index=pd.MultiIndex.from_tuples([tuple(label.split(".")) for label in labels])
    )
    both = table.unstack().dropna()
    if both.shape[1] < 2:
        return np.empty((0, 3), dtype=np.int64)
    return np.column_stack([both.index.astype(np.int64), both.to_numpy(dtype=np.int64)])
