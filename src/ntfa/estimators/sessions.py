"""A study in which every session of a participant is a participant of its own."""

from __future__ import annotations

import pandas as pd

from ntfa.errors import StudyError
from ntfa.study import Study
from ntfa.study.coverage import relabelled

SESSION = "session"


def n_with_sessions(study: Study) -> int:
    """Count participants with two sessions or more."""
    if SESSION not in study.trials:
        return 0
    return int((study.trials.groupby("participant")[SESSION].nunique() > 1).sum())


def split_sessions(study: Study) -> tuple[Study, pd.MultiIndex]:
    """Make each session a participant; return the study and, in its order of participants, whose session each is."""
    if not n_with_sessions(study):
        raise StudyError("no participant has trials with two labels in a column `session`")
    trials = study.trials
    known = trials[SESSION].notna()
    whose = trials.loc[known, ["participant", SESSION]].astype(str)
    pairs = sorted(set(whose.itertuples(index=False, name=None)))
    code = {pair: f"{i:09d}" for i, pair in enumerate(pairs)}
    labels = [code[pair] for pair in whose.itertuples(index=False, name=None)]
    split = Study(
        study.coordinates,
        trials[known].assign(participant=labels),
        {code[pair]: study.frames[pair[0]] for pair in pairs},
        study.mask_img,
        coverage=relabelled(study.coverage, {code[pair]: pair[0] for pair in pairs}),
    )
    return split, pd.MultiIndex.from_tuples(pairs, names=["participant", SESSION])
