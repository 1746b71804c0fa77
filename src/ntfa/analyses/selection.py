"""Sets of (participant, stimulus) pairs in words: `group=patient; stimulus=face,house`.

A selection is conditions that all must hold, each a name, an operator (=, !=, <, <=, >, >=) and values with commas
between, of which one must do. The name is `participant`, `stimulus`, or a column of what is known of either; where both
have a column of that name, `participant.NAME` and `stimulus.NAME` tell them apart.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pandas as pd

from ntfa.errors import ModelError

KINDS = ("participant", "stimulus")
CONDITION = re.compile(r"\s*([^=!<>]+?)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)
ORDERS: Mapping[str, Callable[[Any, float], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def select_pairs(selection: str | Sequence[str], labels: Mapping[str, pd.DataFrame]) -> list[tuple[str, str]]:
    """Return all pairs of the participants and the stimuli that a selection names.

    Parameters
    ----------
    selection : str or list of str
        Conditions, with semicolons between or as a list; all must hold.
    labels : dict of DataFrame
        Under "participant" and "stimulus", a table with one row per label, which is its index, and columns of what is
        known of them.
    """
    texts = [selection] if isinstance(selection, str) else list(selection)
    chosen = {kind: pd.Series(True, index=labels[kind].index) for kind in KINDS}
    for text in texts:
        for condition in _conditions(text):
            kind, held = _held(condition, labels)
            chosen[kind] &= held
    participants, stimuli = (chosen[kind].index[chosen[kind]].tolist() for kind in KINDS)
    for kind, found in zip(KINDS, (participants, stimuli), strict=True):
        if not found:
            raise ModelError(f"{'; '.join(texts)}: no {kind} is left")
    return [(participant, stimulus) for participant in participants for stimulus in stimuli]


def _conditions(text: str) -> list[str]:
    parts = [part for part in text.split(";") if part.strip()]
    if not parts:
        raise ModelError("a selection is empty; write for example stimulus=face, or group=patient")
    return parts


def _held(condition: str, labels: Mapping[str, pd.DataFrame]) -> tuple[str, pd.Series[bool]]:
    """Find whom a condition is about, participants or stimuli, and for which of them it holds."""
    match = CONDITION.fullmatch(condition)
    if match is None:
        raise ModelError(f"{condition.strip()!r} is no condition; write for example stimulus=face, or age>=30")
    name, sign, text = match.groups()
    kind, values = _values(name, labels)
    if sign in ORDERS:
        return kind, _ordered(values, sign, text, name)
    found = values.isin(_wanted(text, values, name))
    return kind, (found if sign == "=" else ~found & values.notna())


def _values(name: str, labels: Mapping[str, pd.DataFrame]) -> tuple[str, pd.Series[Any]]:
    """Return the labels themselves, or a column of one of the tables."""
    if name in KINDS:
        return name, labels[name].index.to_series().astype(str)
    kind, _, column = name.partition(".")
    if kind in KINDS and column in labels[kind]:
        return kind, labels[kind][column]
    having = [kind for kind in KINDS if name in labels[kind]]
    if len(having) == 2:
        raise ModelError(
            f"participants and stimuli both have a column {name!r}; say participant.{name} or stimulus.{name}"
        )
    if not having:
        known = [*KINDS, *(str(column) for kind in KINDS for column in labels[kind])]
        raise ModelError(f"there is no column {name!r}; there are {', '.join(known)}")
    return having[0], labels[having[0]][name]


def _wanted(text: str, values: pd.Series[Any], name: str) -> list[Any]:
    """Return the values that a text names; one that holds a comma itself is found too."""
    known = {_as_text(value): value for value in values.dropna()}
    if text in known:
        return [known[text]]
    wanted = []
    for part in (part.strip() for part in text.split(",")):
        if part not in known:
            near = get_close_matches(part, list(known), 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {_listed(list(known))}"
            raise ModelError(f"no {name} is {part!r}{hint}")
        wanted.append(known[part])
    return wanted


def _ordered(values: pd.Series[Any], sign: str, text: str, name: str) -> pd.Series[bool]:
    if not pd.api.types.is_numeric_dtype(values):
        raise ModelError(f"{name}{sign}{text}: {name} is not numbers, so that it cannot be compared with one")
    try:
        limit = float(text)
    except ValueError as error:
        raise ModelError(f"{name}{sign}{text}: {text!r} is no number") from error
    return pd.Series(ORDERS[sign](values, limit), index=values.index)


def _as_text(value: Any) -> str:
    """Write a value as people do: 3, not 3.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
