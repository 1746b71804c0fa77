"""What a study's design cannot tell apart, whatever model is fitted: who saw what, and in which run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ntfa.study.rest import rows_of_rest

RUN = ("session", "run")


@dataclass(frozen=True)
class Limit:
    """Something that a design cannot tell, in sentences.

    kind : a short name for it
    cannot : what cannot be concluded, and why
    can : what can be concluded all the same; empty where that goes without saying
    remedy : what to do about it; empty where nothing helps
    """

    kind: str
    cannot: str
    can: str = ""
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """What cannot be told and what to do, for a log."""
        return f"{self.cannot}; {self.remedy}" if self.remedy else self.cannot


def limits_of(trials: pd.DataFrame) -> list[Limit]:
    """Say what the design of these trials cannot tell."""
    pairs = trials[["participant", "stimulus"]].astype(str).drop_duplicates()
    limits = [_only_one(kind, pairs) for kind in ("participant", "stimulus")]
    if pairs["participant"].nunique() > 1 and pairs["stimulus"].nunique() > 1:
        apart = _sets_apart(pairs)
        limits += [apart] if apart is not None else [_seen_by_one(pairs), _saw_one(pairs)]
    return [limit for limit in (*limits, _in_one_run(trials), limit_of_single_runs(trials)) if limit is not None]


def _only_one(kind: str, pairs: pd.DataFrame) -> Limit | None:
    labels = pairs[kind].unique()
    if len(labels) > 1:
        return None
    return Limit(
        f"one {kind}",
        f"the study has one {kind} only ({labels[0]}): how one {kind} differs from another cannot be learned",
    )


def _sets_apart(pairs: pd.DataFrame) -> Limit | None:
    """Whether participants fall into sets who share no stimulus with each other."""
    sets = _connected(pairs)
    if len(sets) == 1:
        return None
    if len(sets) == pairs["participant"].nunique():
        return Limit(
            "nested",
            "no stimulus was shown to two participants: how stimuli differ cannot be told apart from how the "
            "participants who saw them differ, and predictions of a participant's response to another one's stimulus "
            "are guesses",
            "How the stimuli of one participant differ from each other, and where factors lie, can be concluded.",
            "give stimuli labels that participants share, such as their category",
        )
    first, second = (", ".join(map(repr, one[:3])) + (", ..." if len(one) > 3 else "") for one in sets[:2])
    return Limit(
        "sets apart",
        f"participants fall into {len(sets)} sets that share no stimulus (the first two: {first} and {second}): how "
        "people of different sets differ cannot be told apart from how what they saw differs",
        "People of one set can be compared with each other, and so can the stimuli that they saw.",
        "give stimuli labels that all participants share, such as their category, or fit each set by itself",
    )


def _connected(pairs: pd.DataFrame) -> list[list[str]]:
    """Sets of participants who are connected by stimuli that they share, sorted."""
    of_stimulus = {label: set(own) for label, own in pairs.groupby("stimulus")["participant"]}
    sets: list[set[str]] = []
    for viewers in of_stimulus.values():
        joined = [one for one in sets if one & viewers]
        sets = [one for one in sets if not one & viewers] + [viewers.union(*joined)]
    return sorted(sorted(one) for one in sets)


def _seen_by_one(pairs: pd.DataFrame) -> Limit | None:
    alone = _with_one(pairs, "stimulus")
    if not alone:
        return None
    return Limit(
        "seen by one",
        f"stimulus {_some(alone)} was shown to one participant only: what is its own and what is that participant's "
        "cannot be told apart",
    )


def _saw_one(pairs: pd.DataFrame) -> Limit | None:
    alone = _with_one(pairs, "participant")
    if not alone:
        return None
    return Limit(
        "saw one",
        f"participant {_some(alone)} was shown one stimulus only: what is their own and what is that stimulus' cannot "
        "be told apart",
    )


def _with_one(pairs: pd.DataFrame, kind: str) -> list[str]:
    counts = pairs.groupby(kind).size()
    return [str(label) for label in counts.index[counts == 1]]


def _in_one_run(trials: pd.DataFrame) -> Limit | None:
    """Whether stimuli were shown in one run only, the same for everybody, while there are others."""
    columns = [name for name in RUN if name in trials]
    if "run" not in columns or not trials.groupby("participant")[columns].apply(_n_different).gt(1).any():
        return None
    n_runs = trials.groupby("stimulus")[columns].apply(_n_different)
    alone = [str(label) for label in n_runs.index[n_runs == 1]]
    if not alone:
        return None
    which = "every stimulus" if len(alone) == len(n_runs) else f"stimulus {_some(alone)}"
    return Limit(
        "in one run",
        f"{which} was shown in one run only: what is its own and what is that run's, such as its baseline, cannot be "
        "told apart",
        "Stimuli of the same run can be compared with each other.",
        "show stimuli in several runs, or compare those within a run",
    )


def limit_of_single_runs(trials: pd.DataFrame) -> Limit | None:
    """Whether somebody has one run only, of unknown rest: differences between people may be differences of runs."""
    columns = [name for name in RUN if name in trials]
    if "run" not in columns or trials["participant"].nunique() < 2:
        return None
    alone = [
        str(label)
        for label, own in trials.groupby("participant")
        if _n_different(own[columns]) == 1 and rows_of_rest(own) is None
    ]
    if not alone:
        return None
    return Limit(
        "single runs",
        f"{_some(alone)}: one run only, so that what differs between participants cannot be told apart from what "
        "differs between runs, such as a baseline; levels of differences between participants may be too high",
        remedy="record two runs or more, or let ntfa z-score the run against its rest, which tells how sure the "
        "baseline is",
    )


def _n_different(own: pd.DataFrame) -> int:
    return len(own.drop_duplicates())


def _some(labels: Sequence[str]) -> str:
    return ", ".join(map(repr, labels[:3])) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


def share_recorded(trials: pd.DataFrame) -> tuple[int, int]:
    """Count pairs of participant and stimulus that were recorded, and all there are."""
    shown = trials[["participant", "stimulus"]].astype(str)
    return len(shown.drop_duplicates()), int(np.prod([shown[kind].nunique() for kind in shown]))
