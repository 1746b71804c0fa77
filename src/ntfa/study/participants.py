"""Labels of participants: `participants.tsv` of a BIDS dataset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntfa.errors import StudyError
from ntfa.study.events import read_table
from ntfa.study.preparing import Prepared


def with_participant_labels(prepared: Sequence[Prepared], bids_dir: str | os.PathLike[str]) -> list[Prepared]:
    """Add the columns of participants.tsv to the trials, as labels."""
    table = participant_labels(bids_dir)
    labelled = []
    for one in prepared:
        own = labels_of_participant(table, one.participant)
        fresh = {name: value for name, value in own.items() if name not in one.trials}
        labelled.append(replace(one, trials=one.trials.assign(**fresh)))
    return labelled


def labels_of_participant(table: pd.DataFrame, participant: str) -> dict[str, Any]:
    """One participant's row of `participant_labels`."""
    return {str(name): table.at[participant, name] for name in table} if participant in table.index else {}


def participant_labels(bids_dir: str | os.PathLike[str]) -> pd.DataFrame:
    """participants.tsv as a table indexed by participant, empty where there is none."""
    path = Path(bids_dir) / "participants.tsv"
    if not path.is_file():
        return pd.DataFrame()
    table = read_table(path, str(path), text=["participant_id"])
    if "participant_id" not in table:
        raise StudyError(f"{path}: no column participant_id")
    unnamed = np.flatnonzero(table["participant_id"].isna())
    if len(unnamed):
        raise StudyError(f"{path}, line {int(unnamed[0]) + 2}: participant_id is n/a")
    twice = np.flatnonzero(table["participant_id"].duplicated())
    if len(twice):
        row = int(twice[0])
        raise StudyError(f"{path}, line {row + 2}: {table['participant_id'].iloc[row]} is there twice")
    return table.set_index("participant_id")
