"""Intervals for means over participants."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import t as student

CONFIDENCE = 0.95


def mean_interval(values: pd.Series, name: str, prefix: str = "", confidence: float = CONFIDENCE) -> dict[str, float]:
    """Mean and t-interval, under the name and `<prefix>ci_low`, `<prefix>ci_high`; missing for a single value."""
    n, mean = len(values), float(values.mean())
    half = float(student.ppf((1 + confidence) / 2, n - 1) * values.std() / np.sqrt(n)) if n > 1 else float("nan")
    return {name: mean, f"{prefix}ci_low": mean - half, f"{prefix}ci_high": mean + half}
