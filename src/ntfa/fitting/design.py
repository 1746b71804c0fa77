"""From columns of the trials table to the rows of a design: indicators of labels, and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from ntfa.errors import ModelError, StudyError
from ntfa.study.checks import some


@dataclass(frozen=True)
class Column:
    """A column of the trials as a fit saw it: an indicator of each of `levels`, or a number in units of `scale`."""

    name: str
    levels: list[str] | None
    scale: float = 1.0

    @classmethod
    def of(cls, trials: pd.DataFrame, name: str) -> Self:
        """Learn levels, or the root mean square of the numbers, from the trials of a fit."""
        values = _column(trials, name)
        if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
            # Sorted, so that the order of the trials does not matter to the last bit.
            scale = float(np.sqrt(np.mean(np.sort(_numbers(values)) ** 2)))
            return cls(name, None, scale or 1.0)
        return cls(name, sorted(set(_labels(values))))

    def rows(self, trials: pd.DataFrame) -> np.ndarray:
        """Code the trials, [N, levels or 1]; refuse a level that was not in the fit."""
        values = _column(trials, self.name)
        if self.levels is None:
            return _numbers(values)[:, None] / self.scale
        labels = _labels(values)
        codes = pd.Index(self.levels).get_indexer(pd.Index(labels))
        for place in np.flatnonzero(codes < 0)[:1]:
            raise ModelError(
                f"the model was not fitted to {self.name} {labels[place]!r} (trials row {trials.index[place]}); "
                f"its design knows {some(self.levels)}"
            )
        return np.eye(len(self.levels))[codes]


@dataclass(frozen=True)
class Coding:
    """How trials become design rows: the columns side by side, after an intercept if none of them is of labels."""

    columns: list[Column]

    @classmethod
    def of(cls, trials: pd.DataFrame, design: str | Sequence[str]) -> Self:
        """Learn the coding of one or several columns from the trials of a fit."""
        return cls([Column.of(trials, name) for name in ([design] if isinstance(design, str) else design)])

    @classmethod
    def from_json(cls, saved: Mapping[str, Any] | None) -> Self | None:
        """Invert `dataclasses.asdict`; None stays None."""
        return None if saved is None else cls([Column(**column) for column in saved["columns"]])

    @property
    def has_intercept(self) -> bool:
        """Whether the first regressor is one everywhere."""
        return all(column.levels is None for column in self.columns)

    @property
    def regressors(self) -> list[str]:
        """A name for each regressor: a numeric column's own, or the level's, after its column if that is needed."""
        plain = [name for column in self.columns for name in (column.levels or [column.name])]
        plain = ["intercept", *plain] if self.has_intercept else plain
        n_of_labels = sum(column.levels is not None for column in self.columns)
        if n_of_labels < 2 and len(set(plain)) == len(plain):
            return plain
        full = [_full_names(column) for column in self.columns]
        return ["intercept"] * self.has_intercept + [name for names in full for name in names]

    @property
    def scales(self) -> np.ndarray:
        """What one is in each regressor, in the units of its column, [J]."""
        parts = [np.full(len(column.levels or [""]), column.scale) for column in self.columns]
        return np.concatenate([np.ones(int(self.has_intercept)), *parts])

    def rows(self, trials: pd.DataFrame) -> np.ndarray:
        """Code the trials, [N, J]."""
        parts = [column.rows(trials) for column in self.columns]
        return np.concatenate([np.ones((len(trials), int(self.has_intercept))), *parts], axis=1)

    def stimulus_rows(self, trials: pd.DataFrame, stimuli: Sequence[str]) -> np.ndarray:
        """Average the rows of each stimulus' trials, [S, J]."""
        trials = trials.sort_values(["participant", "start"], kind="stable")
        rows, shown = self.rows(trials), trials["stimulus"].to_numpy()
        return np.stack([rows[shown == stimulus].mean(0) for stimulus in stimuli])


def _full_names(column: Column) -> list[str]:
    return [column.name] if column.levels is None else [f"{column.name}={level}" for level in column.levels]


def _column(trials: pd.DataFrame, name: str) -> pd.Series:
    if name not in trials:
        raise StudyError(f"the trials have no column {name!r}, which the design asks for; they have {some(trials, 10)}")
    return trials[name]


def _labels(values: pd.Series) -> list[str]:
    text = values.astype(str)
    _refuse(values, (values.isna() | (text.str.strip() == "")).to_numpy(dtype=bool), "has no value")
    return text.tolist()


def _numbers(values: pd.Series) -> np.ndarray:
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    _refuse(values, values.isna().to_numpy(dtype=bool), "has no value")
    _refuse(values, ~np.isfinite(numbers), "is {}, not a finite number")
    return numbers


def _refuse(values: pd.Series, bad: np.ndarray, what: str) -> None:
    for place in np.flatnonzero(bad)[:1]:
        problem = what.format(values.iloc[place])
        raise StudyError(
            f"trials row {values.index[place]}: {values.name} {problem}, and the design needs one "
            f"({int(bad.sum())} such rows)"
        )
