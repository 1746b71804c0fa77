"""Which trials are held out together: runs, stratified thirds, or participants."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ntfa.errors import StudyError
from ntfa.study.checks import some

logger = logging.getLogger("ntfa")

MOST_SPLITS = 3
FEWEST_TRIALS = 2


@dataclass(frozen=True)
class Fold:
    """Trials to train on and to test on, by their place in the table, and the categories both can tell apart.

    Attributes
    ----------
    participant : str
        Whose trials are tested.
    number : int
        Counts the participant's folds from 1; across participants, the held-out participants.
    scheme : {"run", "stratified", "participant"}
        What is held out.
    train, test : array of int
    categories : tuple
        Those present, and not alone, in both.
    """

    participant: str
    number: int
    scheme: str
    train: np.ndarray
    test: np.ndarray
    categories: tuple[Any, ...]


def folds_within(trials: pd.DataFrame, category: str, run: str, random_state: int) -> list[Fold]:
    """Folds of each participant's own trials: runs if these allow it, else stratified thirds."""
    folds = []
    for participant, places in _by_participant(trials):
        labels = trials[category].to_numpy()[places]
        kept = pd.Series(labels).isin(_frequent(str(participant), labels)).to_numpy()
        places, labels = places[kept], labels[kept]
        if len(set(labels)) < 2:
            logger.warning("participant %s is left out: fewer than two categories to tell apart", participant)
            continue
        runs = trials[run].iloc[places] if run in trials else None
        scheme, splits = _splits(labels, runs, random_state)
        for number, (train, test) in enumerate(splits, start=1):
            categories = tuple(sorted(set(labels), key=str))
            folds.append(Fold(str(participant), number, scheme, places[train], places[test], categories))
    return folds


def folds_across(trials: pd.DataFrame, category: str) -> list[Fold]:
    """Folds that hold out all trials of one participant each."""
    labels, known = trials[category].to_numpy(), trials[category].notna().to_numpy()
    folds = []
    for number, (participant, test) in enumerate(_by_participant(trials), start=1):
        held_out = np.zeros(len(trials), dtype=bool)
        held_out[test] = True
        train, test = np.flatnonzero(known & ~held_out), np.flatnonzero(known & held_out)
        categories = _testable(labels[train]) & _testable(labels[test])
        untested = sorted(map(str, set(labels[test]) - categories))
        if untested:
            logger.warning("participant %s is not tested for %s: no other trials to compare", participant, untested)
        if categories:
            ordered = tuple(sorted(categories, key=str))
            folds.append(Fold(str(participant), number, "participant", train, test, ordered))
    return folds


def _by_participant(trials: pd.DataFrame) -> Iterator[tuple[Any, np.ndarray]]:
    places = trials.reset_index(drop=True).groupby("participant").groups
    yield from ((who, np.asarray(places[who])) for who in sorted(places, key=str))


def _frequent(participant: str, labels: np.ndarray) -> list[Any]:
    """Categories with enough trials to be in a training and a test set; others are named in a warning."""
    counts = pd.Series(labels).value_counts()
    rare = sorted(map(str, counts.index[counts < FEWEST_TRIALS]))
    if rare:
        logger.warning("participant %s: category %s left out, it has a single trial", participant, some(rare))
    return list(counts.index[counts >= FEWEST_TRIALS])


Splits = Sequence[tuple[np.ndarray, np.ndarray]]


def _splits(labels: np.ndarray, runs: pd.Series | None, random_state: int) -> tuple[str, Splits]:
    from sklearn.model_selection import LeaveOneGroupOut, StratifiedKFold

    if runs is not None and runs.notna().all() and runs.nunique() > 1:
        by_run = list(LeaveOneGroupOut().split(labels, groups=runs.astype(str).to_numpy()))
        wanted = set(labels)
        if all(_testable(labels[side]) == wanted for split in by_run for side in split):
            return "run", by_run
    n_splits = min(MOST_SPLITS, int(pd.Series(labels).value_counts().min()))
    codes = pd.factorize(labels, sort=False)[0]
    folds = StratifiedKFold(n_splits, shuffle=True, random_state=random_state)
    return "stratified", list(folds.split(codes, codes))


def _testable(labels: np.ndarray) -> set[Any]:
    """Categories that some, but not all, of the trials have."""
    present = set(labels)
    return present if len(present) > 1 else set()


def check_trials_table(trials: pd.DataFrame, category: str) -> None:
    """Refuse a table of trials that cannot be decoded, saying why."""
    missing = [column for column in ("participant", category) if column not in trials]
    if missing:
        raise StudyError(f"trials have no column {some(missing)}; they have {some(trials.columns, limit=20)}")
    if not trials.index.is_unique:
        again = trials.index[trials.index.duplicated()]
        raise StudyError(f"trials must be told apart by their index, but {some(again.unique())} occurs more than once")
    if trials[category].nunique() < 2:
        raise StudyError(
            f"decoding needs at least two categories; all trials have the {category} {_only(trials, category)}"
        )


def _only(trials: pd.DataFrame, category: str) -> str:
    return some(trials[category].dropna().unique()) or "n/a"
