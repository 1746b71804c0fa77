"""Who is new in a study that is to be added to a fitted model: participants, their sessions, stimuli."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ntfa.contract import SAME_PLACE_MM
from ntfa.errors import ModelError, StudyError
from ntfa.fitting.arrange import Labels
from ntfa.study import Study
from ntfa.study.checks import some
from ntfa.study.coverage import relabelled

SESSION = "session"


@dataclass(frozen=True)
class Arrival:
    """A study to be added, with labels under which everything in it can be known.

    study : sessions of known participants have labels of their own, such as "sub-01 ses-02"
    labels : of all that the model will know, newcomers last
    participants, stimuli : labels of newcomers
    session_of : known participants whose sessions some of the new participants are
    """

    study: Study
    labels: Labels
    participants: list[str]
    stimuli: list[str]
    session_of: dict[str, str]

    @property
    def of_newcomers(self) -> Study | None:
        """Trials of new participants."""
        return self.study.select(participants=self.participants) if self.participants else None

    @property
    def of_known(self) -> Study | None:
        """Trials of known participants, who saw new stimuli."""
        new = set(self.participants)
        known = [label for label in self.study.participants if label not in new]
        return self.study.select(participants=known) if known else None


def arrival_of(study: Study, labels: Labels, session: str | None = None) -> Arrival:
    """Sort out who is new in a study, to a model that knows some labels.

    A known participant who saw known stimuli again is another session of theirs, named by `session` or by the column
    `session` of the trials; one who saw new stimuli only tells of these. Refuses what can be neither.
    """
    study, session_of = _with_sessions(study, labels, session)
    people, shown = set(labels.participants), set(labels.stimuli)
    participants = [label for label in study.participants if label not in people]
    stimuli = [label for label in study.stimuli if label not in shown]
    if not participants and not stimuli:
        raise ModelError("the study has neither a participant nor a stimulus that the model does not know already")
    known = replace(
        labels,
        participants=[*labels.participants, *participants],
        stimuli=[*labels.stimuli, *stimuli],
        owners=[*labels.owners, *participants],
    )
    return Arrival(study, known, participants, stimuli, session_of)


def _with_sessions(study: Study, labels: Labels, session: str | None) -> tuple[Study, dict[str, str]]:
    """Give sessions of known participants labels of their own; return whose they are."""
    trials = study.trials
    is_known = trials["participant"].isin(labels.participants)
    again = is_known & trials["stimulus"].isin(labels.stimuli)
    if session is not None:
        if not str(session).strip():
            raise ModelError(f"session={session!r}: give the session a name, such as 'ses-02'")
        returned, named = is_known, pd.Series(str(session), index=trials.index)
    else:
        # All trials of who saw known stimuli again: what else they saw was in the same session.
        returned = trials["participant"].isin(trials["participant"][again])
        named = trials[SESSION] if SESSION in trials else pd.Series(np.nan, index=trials.index)
    if not returned.any():
        return study, {}
    _require_named(trials[returned], named[returned])
    new_labels = trials["participant"].where(~returned, trials["participant"] + " " + named.astype(str))
    session_of = dict(zip(new_labels[returned], trials["participant"][returned], strict=True))
    taken = [label for label in session_of if label in set(labels.participants)]
    if taken:
        raise ModelError(f"the model knows {some(map(repr, taken))} already: give this session another name")
    whose = {label: session_of.get(label, label) for label in sorted(set(new_labels))}
    frames = {label: study.frames[who] for label, who in whose.items()}
    changed = Study(
        study.coordinates,
        trials.assign(participant=new_labels),
        frames,
        study.mask_img,
        coverage=relabelled(study.coverage, whose),
    )
    return changed, dict(sorted(session_of.items()))


def _require_named(trials: pd.DataFrame, named: pd.Series[Any]) -> None:
    """Refuse trials of known participants and stimuli that no session tells from those of the fit."""
    missing = trials[named.isna()]
    if missing.empty:
        return
    raise ModelError(
        f"the model was fitted to {some(map(repr, missing['participant'].unique()), 3)}, with stimuli such as "
        f"{missing['stimulus'].iloc[0]!r}: if this is another session of theirs, say which, by session='ses-02' "
        f"(--session ses-02) or a column {SESSION!r} of the trials; if not, leave these participants out, or the "
        "stimuli that the model knows"
    )


def require_voxels(study: Study, coordinates: np.ndarray, mask_img: Any) -> None:
    """Refuse a study of other voxels than the model's; say how to come to the same ones."""
    if study.coordinates.shape == coordinates.shape and np.allclose(study.coordinates, coordinates, atol=SAME_PLACE_MM):
        return
    same = _shared(study.coordinates, coordinates)
    how = (
        "read its images with the model's own mask, Study.from_images(..., mask=model.mask_img_); or, if the study is "
        "on another grid, ask for resampling (resample=True, --resample)"
        if mask_img is not None
        else "the model has no mask, so take the voxels at model.coordinates_, in their order"
    )
    raise StudyError(
        f"the study's {study.n_voxels} voxels are not the {len(coordinates)} that the model was fitted to ({same} are "
        f"in both), and nothing is mapped from one to the other silently: {how}"
    )


def _shared(one: np.ndarray, other: np.ndarray) -> int:
    """Count positions that are in both."""
    keys: Sequence[set[tuple[int, ...]]] = [
        set(map(tuple, np.round(part / SAME_PLACE_MM / 10).astype(np.int64).tolist())) for part in (one, other)
    ]
    return len(keys[0] & keys[1])
