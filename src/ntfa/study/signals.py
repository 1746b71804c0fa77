"""Signals made of a study's frames, as tables with one row per trial frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from ntfa.study.study import Study


def frame_index(study: Study) -> pd.MultiIndex:
    """Trial (as `study.trials` is indexed) and frame of the participant, one row per trial frame."""
    trials = zip(study.trials.index, study.trials["start"], study.trials["stop"], strict=True)
    return pd.MultiIndex.from_tuples(
        [(label, frame) for label, start, stop in trials for frame in range(start, stop)], names=["trial", "frame"]
    )


def frame_table(study: Study, signals: Callable[[np.ndarray], np.ndarray], columns: pd.Index) -> pd.DataFrame:
    """Signals of every trial frame.

    Parameters
    ----------
    signals : callable
        Takes the frames of a trial [T, V], returns its signals [T, len(columns)].
    columns : Index
        Names of the signals.
    """
    trials: list[Any] = list(study.trials[["participant", "start", "stop"]].itertuples())
    parts = [signals(study.frames[trial.participant][trial.start : trial.stop]) for trial in trials]
    return pd.DataFrame(np.concatenate(parts), index=frame_index(study), columns=columns)
