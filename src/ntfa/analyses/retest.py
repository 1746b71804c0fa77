"""Test-retest reliability: how far apart the points of one person are from session to session, and those of others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from ntfa.errors import ModelError
from ntfa.uncertainty.moments import moments

Floats = NDArray[np.float64]
FEWEST_PEOPLE = 3
N_RESAMPLED = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Retest:
    """What sessions say of points.

    Attributes
    ----------
    icc, low, high : float
        Intraclass correlation, ICC(1) summed over dimensions: share of the variance between points that is between
        people; and bounds of what most other samples of people would have given.
    within, between : float
        Root mean square distance of two sessions of one person, and of sessions of two people.
    identified, by_chance : float
        Share of points whose nearest other is of the same person, and what chance would give.
    n_people, n_points : int
        People with two sessions or more, and their sessions.
    """

    icc: float
    low: float
    high: float
    within: float
    between: float
    identified: float
    by_chance: float
    n_people: int
    n_points: int


def retest(points: pd.DataFrame, random_state: int = 0) -> Retest:
    """Compare points of people in several sessions.

    Parameters
    ----------
    points : DataFrame
        Columns `z1, z2, ...`, one row per participant and session, with `participant` as a level of the index; those
        with one session are left out.
    random_state : int
        Seed of the resampling of people that gives the interval.
    """
    people = points.index.get_level_values("participant")
    points = points[people.duplicated(keep=False)]
    labels = points.index.get_level_values("participant")
    groups = [moments(points)[0][labels == label] for label in sorted(set(labels))]
    if len(groups) < FEWEST_PEOPLE:
        raise ModelError(f"test-retest reliability needs {FEWEST_PEOPLE} people with two sessions, not {len(groups)}")
    random = np.random.default_rng(random_state)
    drawn = random.integers(len(groups), size=(N_RESAMPLED, len(groups)))
    resampled = _correlations(groups, drawn)
    known = resampled[np.isfinite(resampled)]
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(known) else (np.nan, np.nan)
    owner = np.repeat(np.arange(len(groups)), [len(own) for own in groups])
    apart = cdist(np.concatenate(groups), np.concatenate(groups))
    same, other = owner[:, None] == owner, ~np.eye(len(owner), dtype=bool)
    nearest = np.where(other, apart, np.inf).argmin(1)
    return Retest(
        intraclass_correlation(groups),
        float(low),
        float(high),
        _root_mean_square(apart[same & other]),
        _root_mean_square(apart[~same]),
        float((owner[nearest] == owner).mean()),
        float((same & other).sum(1).mean() / (len(owner) - 1)),
        len(groups),
        len(owner),
    )


def intraclass_correlation(groups: list[Floats]) -> float:
    """ICC(1) of points [k, D] of several people, variances summed over dimensions; missing if nothing varies."""
    return float(_correlations(groups, np.arange(len(groups))[None])[0])


def _correlations(groups: list[Floats], drawn: NDArray[np.int64]) -> Floats:
    """ICC(1) of samples [R, n] of the people, each a list of their numbers."""
    sizes = np.array([len(own) for own in groups])[drawn]
    means = np.stack([own.mean(0) for own in groups])[drawn]
    within = np.array([np.square(own - own.mean(0)).sum() for own in groups])[drawn].sum(1)
    n, total = sizes.shape[1], sizes.sum(1)
    middle = (sizes[..., None] * means).sum(1) / total[:, None]
    between = (sizes * np.square(means - middle[:, None]).sum(-1)).sum(1) / (n - 1)
    within = within / (total - n)
    # What the number of sessions would be if everybody had the same.
    usual = (total - np.square(sizes).sum(1) / total) / (n - 1)
    scale = between + (usual - 1) * within
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(scale > 0, (between - within) / scale, np.nan)


def _root_mean_square(values: Floats) -> float:
    return float(np.sqrt(np.square(values).mean()))
