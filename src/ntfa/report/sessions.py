"""How much embeddings change from session to session, for the report; kept beside it as `sessions.tsv`."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ntfa.analyses.retest import FEWEST_PEOPLE, retest
from ntfa.errors import ModelError, NTFAError
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.sessions import n_with_sessions
from ntfa.files.reading import reading, table_text
from ntfa.progress import stage
from ntfa.study import Study

FILE = "sessions.tsv"
INDEX = ["participant", "session"]


@dataclass(frozen=True)
class Sessions:
    """Embeddings of every session, or why there are none, in a sentence."""

    points: pd.DataFrame | None = None
    left_out: str = ""

    @property
    def sentences(self) -> list[str]:
        """How reliable embeddings are from session to session, or why that is not known."""
        return [self.left_out] if self.points is None else retest_in_words(self.points)


def sessions_of(model: TopographicModel, study: Study) -> Sessions | None:
    """Embed sessions by themselves, if there are several of enough people and if that is a matter of seconds."""
    n_people = n_with_sessions(study)
    if not isinstance(model, NTFA) or not n_people:
        return None
    if n_people < FEWEST_PEOPLE:
        return Sessions(
            left_out=f"{n_people} participant(s) have several sessions, too few to say how reliable embeddings are "
            "from session to session."
        )
    if model.response_ != "loadings":
        return Sessions(
            left_out="How reliable embeddings are from session to session was not measured, because with networks it "
            "takes as long as the fit: embed_sessions of the model does it from Python."
        )
    try:
        with stage("Embedding every session by itself"):
            return Sessions(model.embed_sessions(study))
    except NTFAError as error:
        return Sessions(left_out=f"Sessions could not be embedded by themselves ({error}).")


def retest_in_words(points: pd.DataFrame) -> list[str]:
    """Say how far apart sessions of one person are, relative to those of different people."""
    found = retest(points)
    how = "good" if found.icc >= 0.75 else "moderate" if found.icc >= 0.5 else "poor"
    return [
        f"From session to session, {found.n_people:,} participants with {found.n_points:,} sessions: the intraclass "
        f"correlation of their embeddings, each estimated from one session alone, is {found.icc:.2f} (95% interval "
        f"{found.low:.2f} to {found.high:.2f}; {how}). Sessions of one person are {found.within / found.between:.2f} "
        "times as far apart as sessions of different people.",
        f"The session nearest to a session is the same person's in {found.identified:.0%} of cases; chance would be "
        f"{found.by_chance:.0%}. A change that all people share, such as practice, counts as unreliable here.",
    ]


def write_sessions(folder: Path, sessions: Sessions | None) -> None:
    """Keep embeddings of sessions beside the report."""
    if sessions is not None and sessions.points is not None:
        sessions.points.to_csv(folder / FILE, sep="\t", index_label=INDEX)


def read_sessions(folder: Path) -> Sessions | None:
    """Read back what `write_sessions` kept; None where there is nothing."""
    path = folder / FILE
    if not path.exists():
        return None
    with reading(f"{path}: cannot be read as embeddings of sessions; remove it to do without", ModelError):
        content = io.StringIO(table_text(path, line_breaks=True))
        table = pd.read_csv(content, sep="\t", dtype=dict.fromkeys(INDEX, str), keep_default_na=False)
        points = table.set_index(INDEX).astype(float)
        # Tried here, so that a table that is none of ours is named.
        if not np.isfinite(points).all(axis=None) or not np.isfinite(retest(points).icc):
            raise ValueError("it has something that is no finite number, or points that are all the same")
        return Sessions(points)
