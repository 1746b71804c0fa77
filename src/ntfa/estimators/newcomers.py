"""Who was added to a fitted model: records that are saved with it, and tables of them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from ntfa.fitting.arrange import Labels
from ntfa.uncertainty.differences import difference
from ntfa.uncertainty.newcomers import LEVEL

KINDS = ("participant", "stimulus")
SESSION_OF = "session_of"
"""Among the `attrs` of the table of participants: whose other sessions some are, by label."""


@dataclass(frozen=True)
class Newcomer:
    """One who was added.

    kind : "participant" or "stimulus"
    n_trials : how many trials there were of it
    session_of : the participant whose other session it is; None of somebody new
    density : log density per observation of a participant's data; None where it is not known
    p_data, p_place : how rare such data, and such a place, are among those of the fit; None where that is not known
    """

    kind: str
    label: str
    n_trials: int
    session_of: str | None = None
    density: float | None = None
    p_data: float | None = None
    p_place: float | None = None

    @property
    def is_outside(self) -> bool:
        """Whether the data, or the place, are of a kind that the fit has not seen; of two chances, either may be it."""
        return any(p is not None and p < LEVEL / 2 for p in (self.p_data, self.p_place))


@dataclass(frozen=True)
class Newcomers:
    """All who were added, and how many participants and stimuli the fit had before them."""

    n_fitted: tuple[int, int]
    records: tuple[Newcomer, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what JSON knows."""
        return {"n_fitted": list(self.n_fitted), "records": [asdict(record) for record in self.records]}

    @classmethod
    def from_json(cls, saved: Any, labels: Labels) -> Newcomers | None:
        """Read what was saved; refuse what does not go with the labels."""
        if saved is None:
            return None
        records = tuple(Newcomer(**record) for record in saved["records"])
        participants, stimuli = saved["n_fitted"]
        for kind, n, known in zip(KINDS, (participants, stimuli), (labels.participants, labels.stimuli), strict=True):
            named = [record.label for record in records if record.kind == kind]
            if type(n) is not int or n < 1 or known[n:] != named:
                raise ValueError(f"who was added ({kind}) are not the last of the model's labels")
        if any(not _is_sound(record, labels) for record in records):
            raise ValueError("a record of who was added makes no sense")
        return cls((participants, stimuli), records)

    def of_kind(self, kind: str) -> list[Newcomer]:
        """Return who was added of one kind, in order."""
        return [record for record in self.records if record.kind == kind]

    @property
    def session_of(self) -> dict[str, str]:
        """Participants whose other sessions some are, by label."""
        return {record.label: record.session_of for record in self.records if record.session_of is not None}

    def mark(self, participants: pd.DataFrame, stimuli: pd.DataFrame) -> None:
        """Say in tables of embeddings who was `added`, who of them is `outside`, and whose sessions some are."""
        for kind, n, table in zip(KINDS, self.n_fitted, (participants, stimuli), strict=True):
            own = self.of_kind(kind)
            table["added"] = [False] * n + [True] * len(own)
            table["outside"] = [False] * n + [record.is_outside for record in own]
        participants.attrs[SESSION_OF] = self.session_of


def _is_sound(record: Newcomer, labels: Labels) -> bool:
    numbers = [value for value in (record.density, record.p_data, record.p_place) if value is not None]
    sound = all(type(value) is float and math.isfinite(value) for value in numbers)
    first = record.session_of is None or record.session_of in labels.participants
    return sound and first and record.kind in KINDS and type(record.n_trials) is int


def count_in_words(n_participants: int, n_stimuli: int) -> str:
    """Say how many newcomers there are, such as "4 participants and 1 stimulus"."""
    parts = [
        f"{n:,} {one if n == 1 else several}"
        for n, one, several in ((n_participants, "participant", "participants"), (n_stimuli, "stimulus", "stimuli"))
        if n
    ]
    return " and ".join(parts)


def newcomer_table(newcomers: Newcomers | None) -> pd.DataFrame:
    """Who was added: `kind, label, n_trials, session_of, density, p_data, p_place, outside`, one row each."""
    numbers = ["density", "p_data", "p_place"]
    columns = ["kind", "label", "n_trials", "session_of", *numbers]
    records = () if newcomers is None else newcomers.records
    table = pd.DataFrame([asdict(record) for record in records], columns=columns)
    table["outside"] = [record.is_outside for record in records]
    return table.astype(dict.fromkeys(numbers, float) | {"outside": bool})


def retest_table(newcomers: Newcomers | None, participants: pd.DataFrame) -> pd.DataFrame:
    """Other sessions of participants: how far from the first, with p and effect size.

    `participant, session, distance, p, effect, effect_low, effect_high`, one row per session.
    """
    names = ["distance", "p", "effect", "effect_low", "effect_high"]
    rows = []
    for record in newcomers.of_kind("participant") if newcomers is not None else ():
        if record.session_of is not None:
            found = difference(participants, record.session_of, record.label)
            rows.append([record.session_of, record.label, *(getattr(found, name) for name in names)])
    return pd.DataFrame(rows, columns=["participant", "session", *names])
