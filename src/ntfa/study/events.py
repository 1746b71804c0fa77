"""Events tables: when something was shown."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pandas as pd

from ntfa.errors import StudyError
from ntfa.files.reading import table_rows

TIMES = ("onset", "duration")
MISSING = ("n/a", "")


def read_events(source: pd.DataFrame | str | os.PathLike[str], where: str) -> pd.DataFrame:
    """Read and check an events table, BIDS's or nilearn's.

    Parameters
    ----------
    source : DataFrame or path of a TSV file
    where : str
        What to call it in an error: the file, or which run's it is.

    Returns
    -------
    DataFrame with `onset` and `duration` in seconds as numbers, in order of onset, and every other column as it was.
    Durations that BIDS gives as `n/a` are NaN. The index is the row that an event had, for `row_name`.
    """
    events = read_table(source, where, TIMES) if not isinstance(source, pd.DataFrame) else source.reset_index(drop=True)
    missing = [column for column in TIMES if column not in events]
    if missing:
        raise StudyError(f"{where}: no column {' or '.join(missing)}; it has {', '.join(map(repr, events.columns))}")
    if events.empty:
        raise StudyError(f"{where}: there are no events in it")
    for column in TIMES:
        events[column] = _numbers(events[column], where, may_be_missing=column == "duration")
    negative = np.flatnonzero(events["duration"] < 0)
    if len(negative):
        row = negative[0]
        raise StudyError(f"{where}, {row_name(row)}: the duration {events['duration'].iloc[row]:g} is negative")
    return events.sort_values("onset", kind="stable")


def read_table(path: str | os.PathLike[str], where: str, text: Collection[str] = ()) -> pd.DataFrame:
    """Read a TSV file as BIDS writes it: `n/a` or nothing is missing, columns of numbers are numbers.

    Parameters
    ----------
    where : str
        What to call it in an error.
    text : collection of str
        Columns to leave as they are written.
    """
    try:
        columns, rows = table_rows(path)
    except ValueError as error:
        raise StudyError(f"{where}: cannot be read as a table ({error})") from error
    table = pd.DataFrame(rows, columns=columns, dtype=str)
    table = table.mask(table.isin(MISSING))
    for column in table.columns.difference(list(text)):
        table[column] = _as_numbers_if_all_are(table[column])
    return table


def _as_numbers_if_all_are(column: pd.Series) -> pd.Series:
    """Turn a column such as ratings into numbers; leave labels such as `01` alone."""
    given = column.dropna()
    if given.empty:
        # Neither: what it is depends on the tables that it is joined with.
        return column.astype(object)
    numbers = pd.to_numeric(given, errors="coerce")
    padded = given.str.match(r"^[+-]?0\d")
    return column if numbers.isna().any() or padded.any() else pd.to_numeric(column)


def join_tables(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Put tables below each other; a column that is numbers in some and text in others is text."""
    joined = pd.concat(list(tables), ignore_index=True).infer_objects()
    for column in joined:
        if pd.api.types.is_object_dtype(joined[column]):
            joined[column] = joined[column].map(as_label, na_action="ignore")
    return joined


def as_label(value: object) -> str:
    """Turn a value into text; 44 is 44 whether or not others of its column, such as 47.5, have decimals."""
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _numbers(column: pd.Series, where: str, may_be_missing: bool) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    wrong = numbers.isna() & ~(column.isna() & may_be_missing) | np.isinf(numbers)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        value: Any = column.iloc[row]
        shown = "n/a" if pd.isna(value) else repr(value)
        raise StudyError(f"{where}, {row_name(row)}: {column.name} is {shown}, not a number")
    return numbers


def row_name(row: int) -> str:
    """Name a row as an editor shows it: the header is line 1."""
    return f"event {row + 1} (line {row + 2})"
