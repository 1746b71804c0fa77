"""Columns that tell something of participants or stimuli: found in a table, and matched with the labels of a fit."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntfa.errors import StudyError
from ntfa.files.reading import reading, table_rows
from ntfa.study import Study

LABEL_COLUMNS = {
    "participant": ("participant", "participant_id", "subject", "subject_id"),
    "stimulus": ("stimulus", "stimulus_id", "trial_type"),
}
LABEL_FILES = {"participant": "labels_participants.tsv", "stimulus": "labels_stimuli.tsv"}
PLURAL = {"participant": "participants", "stimulus": "stimuli"}
MISSING = {"", "n/a", "N/A", "NA", "NaN", "nan"}
# "01" is a label, not the number one.
CODE = re.compile(r"[-+]?0\d+")
SESSION = re.compile(r"(.+?)[ _]ses-\S+")
MOST_NAMED = 5

Table = pd.DataFrame | Study | str | PathLike[str]


def columns_for(labels: pd.Index, names: Sequence[str], table: Table, kind: str) -> pd.DataFrame:
    """Find columns for the labels of a fit: one row per label, in the same order; missing values stay missing.

    Parameters
    ----------
    labels : Index
        Labels of participants or stimuli, each of which must have a row in the table. `sub-` before a label may be
        missing on either side, and a session that is a point of its own may have the row of its participant.
    names : list of str
        Columns.
    table : DataFrame, Study or path
        A table with a column of labels, or with labels as its index; a study, whose trials have the columns; a TSV or
        CSV file; or a folder of results, in which the labels of the study that was fitted are.
    kind : {"participant", "stimulus"}
    """
    if isinstance(table, Study):
        return _columns_of_trials(labels, names, table, kind)
    where = "the table" if isinstance(table, pd.DataFrame) else str(_file(table, kind))
    found = table if isinstance(table, pd.DataFrame) else read_columns(_file(table, kind))
    found = _labelled(found, kind, where)
    for name in names:
        if name not in found:
            near = _nearest(name, found.columns)
            raise StudyError(f"{where} has no column {name!r}; it has {_listed(found.columns)}{near}")
    rows = _matched(labels, found.index, kind, where)
    return found[list(dict.fromkeys(names))].iloc[rows].set_axis(labels)


def read_columns(path: Path) -> pd.DataFrame:
    """Read a TSV or CSV file: a column is numbers if all of its values look like numbers, else text."""
    with reading(f"{path}: cannot be read as a table"):
        columns, rows = table_rows(path)
    return pd.DataFrame(rows, columns=columns, dtype=object).apply(_typed)


def participant_of(label: str, known: Container[str] = ()) -> str:
    """Whose session a point is: `sub-01` for `sub-01 ses-02`, and for `sub-01 later` if `sub-01` is known."""
    before, _, _ = label.rpartition(" ")
    if before in known:
        return before
    session = SESSION.fullmatch(label)
    return session[1] if session else label


def _typed(values: pd.Series) -> pd.Series:
    stripped = values.str.strip()
    known = stripped.where(~stripped.isin(MISSING))
    numbers = pd.to_numeric(known, errors="coerce")
    is_code = bool(known.dropna().str.fullmatch(CODE).any())
    return numbers if not is_code and known.notna().any() and (numbers.notna() == known.notna()).all() else known


def _file(table: str | PathLike[str], kind: str) -> Path:
    path = Path(table)
    if not path.is_dir():
        return path
    if not (path / LABEL_FILES[kind]).exists():
        raise StudyError(f"{path} has no {LABEL_FILES[kind]}: give a table with the column instead")
    return path / LABEL_FILES[kind]


def _columns_of_trials(labels: pd.Index, names: Sequence[str], study: Study, kind: str) -> pd.DataFrame:
    from ntfa.plots.colouring import label_column

    found = pd.DataFrame({name: label_column(study, kind, name) for name in names})
    rows = _matched(labels, found.index, kind, "the study")
    return found.iloc[rows].set_axis(labels)


def _labelled(table: pd.DataFrame, kind: str, where: str) -> pd.DataFrame:
    """Index a table by its column of labels, if it is not yet."""
    column = next((name for name in LABEL_COLUMNS[kind] if name in table), None)
    if column is not None:
        table = table.set_index(column, drop=False)
    elif isinstance(table.index, pd.RangeIndex):
        raise StudyError(f"{where} has no column {LABEL_COLUMNS[kind][0]!r} that says which {kind} a row is about")
    index = pd.Index([_text(label) for label in table.index])
    twice = index[index.duplicated()]
    if len(twice):
        raise StudyError(f"{where} has {twice[0]!r} in several rows; there must be one row for each {kind}")
    return table.set_axis(index)


def _text(label: Any) -> str:
    """Write a label as people do, also where a reader took it for a number."""
    is_whole = isinstance(label, float | np.floating) and float(label).is_integer()
    return str(int(label)) if is_whole else str(label).strip()


def _matched(labels: Iterable[Any], rows: pd.Index, kind: str, where: str) -> list[int]:
    """Row of every label."""
    places: dict[str, int] = {}
    for place, row in enumerate(rows):
        if places.setdefault(_plain(row), place) != place:
            raise StudyError(f"{where} has both {rows[places[_plain(row)]]!r} and {row!r}, which are the same {kind}")
    names = [str(label) for label in labels]
    known = set(names)
    found = {name: _row_of(name, known, places, kind) for name in names}
    missing = [label for label, place in found.items() if place is None]
    if missing:
        raise StudyError(
            f"{where} has no row for {len(missing)} of {len(found)} {PLURAL[kind]}: {_listed(missing)}"
            f"{_nearest(missing[0], rows)}. Labels must be spelled as in the fit; where a value is not known, write n/a"
        )
    return [place for place in found.values() if place is not None]


def _row_of(label: str, known: Container[str], places: Mapping[str, int], kind: str) -> int | None:
    names = [label, participant_of(label, known)] if kind == "participant" else [label]
    return next((places[_plain(name)] for name in names if _plain(name) in places), None)


def _plain(label: object) -> str:
    return str(label).strip().removeprefix("sub-")


def _nearest(name: str, known: Iterable[Any]) -> str:
    near = difflib.get_close_matches(name, [str(one) for one in known], 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _listed(names: Iterable[Any]) -> str:
    texts = [repr(str(name)) for name in names]
    more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + more
