"""Random halves of a study: of its people, of its stimuli, or of everybody's trials.

Each function takes the table of trials and returns two boolean arrays over its rows, which no row is in together.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError

Booleans = NDArray[np.bool_]
Halves = tuple[Booleans, Booleans]

FEWEST_PEOPLE = 4
FEWEST_STIMULI = 4
FEWEST_POINTS = 3


def halve_people(trials: pd.DataFrame, random: np.random.Generator) -> Halves:
    """Put each participant, with all trials, into one of two halves."""
    _require(trials, "stimulus", FEWEST_POINTS, "distances between stimuli")
    _require(trials, "participant", FEWEST_PEOPLE, "halves of the people")
    return _halve_labels(trials["participant"], random)


def halve_stimuli(trials: pd.DataFrame, random: np.random.Generator) -> Halves:
    """Put each stimulus, with all trials, into one of two halves."""
    _require(trials, "participant", FEWEST_POINTS, "distances between participants")
    _require(trials, "stimulus", FEWEST_STIMULI, "halves of the stimuli")
    return _halve_labels(trials["stimulus"], random)


def halve_trials(trials: pd.DataFrame, random: np.random.Generator, run: str | None = None) -> Halves:
    """Put half of everybody's trials of each stimulus into each half.

    Runs go into one half as a whole if there is a column `run` and each of a participant's runs has all of their
    stimuli: trials of one run share more than their stimulus. Otherwise each cell's trials are assigned at random; the
    trial of a cell that has no other is in neither half.
    """
    _require(trials, "participant", FEWEST_POINTS, "distances between participants")
    whole = run is not None and runs_are_whole(trials, run)
    half = _by_run(trials, str(run), random) if whole else _by_trial(trials, random)
    if not (half == 0).any():
        raise StudyError("halves of everybody's trials need a participant with two trials of a stimulus")
    return half == 0, half == 1


def runs_are_whole(trials: pd.DataFrame, run: str) -> bool:
    """Whether every participant has two runs or more, and each of these all stimuli that the participant saw."""
    if run not in trials or trials[run].isna().any():
        return False
    for _, person in trials.groupby("participant"):
        by_run = person.groupby(run)["stimulus"].nunique()
        if len(by_run) < 2 or (by_run < person["stimulus"].nunique()).any():
            return False
    return True


def _by_run(trials: pd.DataFrame, run: str, random: np.random.Generator) -> NDArray[np.int64]:
    half = np.full(len(trials), -1)
    for rows in _groups(trials, ["participant"]):
        runs = trials[run].iloc[rows]
        labels = sorted(runs.unique(), key=str)
        first = random.permutation(len(labels))[: _size(len(labels), random)]
        half[rows] = np.where(runs.isin([labels[i] for i in first]), 0, 1)
    return half


def _by_trial(trials: pd.DataFrame, random: np.random.Generator) -> NDArray[np.int64]:
    half = np.full(len(trials), -1)
    for rows in _groups(trials, ["participant", "stimulus"]):
        if len(rows) > 1:
            shuffled = random.permutation(rows)
            size = _size(len(rows), random)
            half[shuffled[:size]], half[shuffled[size:]] = 0, 1
    return half


def _groups(trials: pd.DataFrame, by: list[str]) -> list[NDArray[np.intp]]:
    """Row numbers of each group, in sorted order of the groups."""
    found = trials.reset_index(drop=True).groupby(by, sort=True).indices
    return [np.asarray(rows, dtype=np.intp) for rows in found.values()]


def _size(n: int, random: np.random.Generator) -> int:
    """Half of n; of an odd number either of the two that are nearest."""
    return n // 2 + (int(random.integers(2)) if n % 2 else 0)


def _halve_labels(column: pd.Series, random: np.random.Generator) -> Halves:
    labels = sorted(column.unique())
    chosen = {labels[i] for i in random.permutation(len(labels))[: len(labels) // 2]}
    first = column.isin(chosen).to_numpy()
    return first, ~first


def _require(trials: pd.DataFrame, kind: str, fewest: int, what: str) -> None:
    n = trials[kind].nunique()
    if n < fewest:
        named = {"participant": "participants", "stimulus": "stimuli"}[kind]
        raise StudyError(f"{what} need {fewest} {named} or more, and the study has {n}")
