"""Motion of a run, as fMRIPrep's confounds have it: framewise displacement in mm, one value per frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study.events import read_table

COLUMN = "framewise_displacement"
HIGH_MM = 0.5
"""Framewise displacement above which a frame is usually called a motion outlier (Power et al., 2012)."""


def framewise_displacement(confounds_file: Path | None) -> NDArray[np.float64] | None:
    """Read framewise displacement, mm, NaN where it is not known; None where there is no such column or file."""
    if confounds_file is None or not confounds_file.is_file():
        return None
    try:
        table = read_table(confounds_file, str(confounds_file))
    except (StudyError, OSError):
        # Denoising, which needs the file, says what is wrong with it; a report can do without.
        return None
    if COLUMN not in table:
        return None
    return np.asarray(pd.to_numeric(table[COLUMN], errors="coerce"), dtype=np.float64)


def motion_summary(displacement: NDArray[np.float64] | None) -> dict[str, Any]:
    """Summarise a run's motion for its row of the quality table; empty where nothing is known."""
    known = np.array([]) if displacement is None else displacement[np.isfinite(displacement)]
    if not len(known):
        return {}
    return {
        "mean_fd": round(float(known.mean()), 4),
        "max_fd": round(float(known.max()), 4),
        "frames_high_fd": int((known > HIGH_MM).sum()),
    }


def as_text(displacement: NDArray[np.float64]) -> str:
    """Write the framewise displacement of a trial's frames into one field of the trials table, n/a where unknown."""
    return " ".join(f"{value:.3f}" if np.isfinite(value) else "n/a" for value in displacement)


def of_frames(text: Any, n_frames: int) -> NDArray[np.float64]:
    """Read framewise displacement of a trial's frames, NaN where it is not known: invert `as_text`."""
    values = pd.to_numeric(pd.Series(str(text).split(), dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    return values if len(values) == n_frames else np.full(n_frames, np.nan)
