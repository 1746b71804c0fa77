"""Which trials to hold out."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study.checks import some


def diagonal(trials: pd.DataFrame, participants: Sequence[str], stimuli: Sequence[str]) -> NDArray[np.bool_]:
    """Hold out trials of participant number p and stimulus number s with p mod S = s, the paper's split."""
    participant = pd.Index(participants).get_indexer(pd.Index(trials["participant"]))
    stimulus = pd.Index(stimuli).get_indexer(pd.Index(trials["stimulus"]))
    held_out = participant % len(stimuli) == stimulus
    lost = [
        f"{column} {some(sorted(missing))}"
        for column in ("participant", "stimulus")
        if (missing := set(trials[column]).difference(trials.loc[~held_out, column]))
    ]
    if lost:
        raise StudyError(
            f"The diagonal split would leave no training trials for {' and '.join(lost)}. It holds out one "
            "stimulus of each participant, so each participant must have seen another stimulus, and each stimulus "
            "must have been seen by a participant for whom it is not held out. Hold out trials of your choice with "
            "split(boolean Series)"
        )
    return held_out
