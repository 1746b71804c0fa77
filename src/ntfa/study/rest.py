"""What a study knows of its rest: how far the baseline that frames were z-scored by may be off.

Z-scoring subtracts the mean of a run's rest frames, and with it the error of that mean, from all frames of the run. A
participant with several runs has a baseline for each, so runs show how large such errors are. Of a participant with
one run nothing else does; two more frames are kept of them, which are in no trial: by how much the mean of either half
of the rest frames differs from the mean of all. Columns of the trials say which rows these are.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ROWS_OF_REST = ("rest_half_1", "rest_half_2")

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


def halves_of_rest(rest: Rows) -> tuple[Rows, Rows]:
    """Split rest frames, in order of time, into outer and inner quarters: a linear drift has the same mean in both."""
    first, second, third, fourth = np.array_split(np.sort(rest), 4)
    return np.concatenate([first, fourth]), np.concatenate([second, third])


def with_rest(frames: Floats, trials: pd.DataFrame, rest: Floats) -> tuple[Floats, pd.DataFrame]:
    """Add to a participant's frames [n, V] what halves of their rest frames [m, V] say of the baseline.

    Fewer than four rest frames cannot be halved twice, and nothing is added then.
    """
    if len(rest) < 4:
        return frames, trials
    mean = rest.mean(0, dtype=np.float64)
    halves = [rest[rows].mean(0, dtype=np.float64) - mean for rows in halves_of_rest(np.arange(len(rest)))]
    rows = {name: len(frames) + i for i, name in enumerate(ROWS_OF_REST)}
    return np.concatenate([frames, np.asarray(halves, dtype=frames.dtype)]), trials.assign(**rows)


def rows_of_rest(trials: pd.DataFrame) -> list[int] | None:
    """Rows of a participant's frames that hold halves of their rest; None if there are none."""
    if not set(ROWS_OF_REST) <= set(trials):
        return None
    rows = trials[list(ROWS_OF_REST)].dropna().drop_duplicates()
    return [int(row) for row in rows.iloc[0]] if len(rows) == 1 else None
