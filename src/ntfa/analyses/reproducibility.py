"""Does it come out again? Distances between halves of the data, what noise leaves to predict, and identification.

Points of participants or stimuli are known up to a rotation at best, so that two fits are compared by the distances
between their points: the rank correlation over all pairs is 1 if both put the same pairs close together and 0 if one
says nothing of the other. It asks for no truth, and anything that has distances can take part: models, principal
components, plain images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import pdist, squareform
from scipy.stats import rankdata
from scipy.stats import t as student

from ntfa.analyses.intervals import CONFIDENCE, mean_interval
from ntfa.errors import ModelError
from ntfa.uncertainty.moments import moments

Floats = NDArray[np.float64]

FEWEST_PAIRS = 3
# Correlations that differ by less are the same image's, computed in another order.
TIE = 1e-9
# What is left of an image, as a share of its size, that is rounding: predictions are computed in single precision.
ROUNDING = 1e-5


# --- distances


def point_distances(points: pd.DataFrame) -> pd.DataFrame:
    """Euclidean distances between the rows of a table with columns `z1, z2, ...`: square, with its labels."""
    means, _ = moments(points)
    return pd.DataFrame(squareform(pdist(means)), index=points.index, columns=points.index)


def stimulus_image_distances(images: ArrayLike, participants: Sequence[str], stimuli: Sequence[str]) -> pd.DataFrame:
    """Root mean square differences between the stimuli's mean images, in which each participant counts once.

    Parameters
    ----------
    images : array of shape (n, V)
        One image per trial; `participants` and `stimuli` say whose and of what.
    """
    cells, index = _cell_images(images, participants, stimuli)
    labels = sorted(set(index["stimulus"]))
    means = np.stack([cells[(index["stimulus"] == label).to_numpy()].mean(0) for label in labels])
    return _square(pdist(means) / np.sqrt(means.shape[1]), labels, "stimulus")


def participant_image_distances(images: ArrayLike, participants: Sequence[str], stimuli: Sequence[str]) -> pd.DataFrame:
    """Root mean square differences between participants' mean images of the same stimuli.

    Of each two, the stimuli count that both saw; the distance of two who share none is missing.
    """
    cells, index = _cell_images(images, participants, stimuli)
    labels = sorted(set(index["participant"]))
    total, count = np.zeros((2, len(labels), len(labels)))
    for rows in index.groupby("stimulus").indices.values():
        present = pd.Index(labels).get_indexer(pd.Index(index["participant"].iloc[rows]))
        total[np.ix_(present, present)] += squareform(pdist(cells[rows], "sqeuclidean")) / cells.shape[1]
        count[np.ix_(present, present)] += 1
    with np.errstate(invalid="ignore"):
        distances = np.sqrt(np.where(count > 0, total / count, np.nan))
    return pd.DataFrame(distances, index=pd.Index(labels, name="participant"), columns=labels)


def _cell_images(images: ArrayLike, participants: Sequence[str], stimuli: Sequence[str]) -> tuple[Floats, pd.DataFrame]:
    """Average the images of each participant and stimulus: [cells, V], and the cells' labels."""
    values = np.asarray(images, dtype=np.float64)
    table = pd.DataFrame({"participant": list(participants), "stimulus": list(stimuli)})
    if len(table) != len(values):
        raise ModelError(f"{len(values)} images have {len(table)} labels; there must be one for each")
    groups = table.groupby(["participant", "stimulus"], sort=True).indices
    index = pd.DataFrame(list(groups), columns=["participant", "stimulus"])
    return np.stack([values[rows].mean(0) for rows in groups.values()]), index


def _square(condensed: Floats, labels: list[str], name: str) -> pd.DataFrame:
    return pd.DataFrame(squareform(condensed), index=pd.Index(labels, name=name), columns=labels)


def distance_agreement(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """Rank correlation (Spearman) of two tables of distances, over all pairs of labels that both have.

    Missing with fewer than three pairs, or if all distances of a table are the same.
    """
    labels = one.index.intersection(other.index)
    upper = np.triu_indices(len(labels), 1)
    first, second = (table.loc[labels, labels].to_numpy(dtype=np.float64)[upper] for table in (one, other))
    known = np.isfinite(first) & np.isfinite(second)
    if known.sum() < FEWEST_PAIRS:
        return float("nan")
    ranks = [rankdata(distances[known]) for distances in (first, second)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def summarise_halvings(rows: pd.DataFrame, by: Sequence[str], against: str = "NTFA") -> pd.DataFrame:
    """Mean agreement over random halvings, and the interval that most halvings lie in.

    Parameters
    ----------
    rows : DataFrame
        `method`, `halving`, `correlation` and the columns of `by`; one row per method and halving.
    against : str
        The method that others are compared with, halving by halving.

    Returns
    -------
    DataFrame
        The columns of `by`, `method`, `correlation`, `low` and `high` (2.5% and 97.5% quantiles over halvings: these
        share people, so that the interval says how much the halving matters, not how another sample would come out),
        `n_halvings`, `difference` (the other method's correlation less this one's, on average) and `n_above` (in how
        many halvings the other's is higher).
    """
    found = []
    for key, group in rows.dropna(subset=["correlation"]).groupby([*by, "method"], sort=False):
        values = group.set_index("halving")["correlation"]
        same = _where(rows, dict(zip(by, key, strict=False)) | {"method": against})
        difference = (same.set_index("halving")["correlation"] - values).dropna()
        low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        numbers = {"correlation": values.mean(), "low": low, "high": high, "n_halvings": len(values)}
        if key[-1] != against:
            numbers |= {"difference": difference.mean(), "n_above": int((difference > 0).sum())}
        found.append(dict(zip([*by, "method"], key, strict=True)) | numbers)
    columns = [*by, "method", "correlation", "low", "high", "n_halvings", "difference", "n_above"]
    return pd.DataFrame(found, columns=columns)


def _where(rows: pd.DataFrame, values: dict[str, object]) -> pd.DataFrame:
    chosen = np.ones(len(rows), dtype=bool)
    for column, value in values.items():
        chosen &= (rows[column] == value).to_numpy()
    return rows[chosen]


# --- errors of images, and what noise leaves to predict


@dataclass(frozen=True)
class Ratio:
    """A ratio of two sums over participants, with a 95% interval by leaving one participant out at a time."""

    value: float
    ci_low: float
    ci_high: float
    n: int


def error_over_zero(observed: ArrayLike, predicted: ArrayLike, participants: Sequence[str]) -> Ratio:
    """Squared error of predicted images [n, V] over that of predicting zero."""
    y, images = np.asarray(observed, dtype=np.float64), np.asarray(predicted)
    table = pd.DataFrame({"error": ((y - images) ** 2).sum(1), "zero": (y**2).sum(1)}, index=list(participants))
    sums = table.groupby(level=0).sum()
    return ratio_of_sums(sums["error"].to_numpy(), sums["zero"].to_numpy())


def noise_floor(images: ArrayLike, participants: Sequence[str], stimuli: Sequence[str]) -> Ratio | None:
    """Variance of repeated images around their cell's mean, over the error of predicting zero.

    No prediction of participant and stimulus can have a smaller error than the variance of repetitions, estimated
    without bias (n - 1). Cells without repetition are left out; None if no cell has any.
    """
    values = np.asarray(images, dtype=np.float64)
    table = pd.DataFrame({"participant": list(participants), "stimulus": list(stimuli)})
    rows = []
    for chosen in table.groupby(["participant", "stimulus"]).indices.values():
        repeated, n = values[chosen], len(chosen)
        if n > 1:
            noise = ((repeated - repeated.mean(0)) ** 2).sum() * n / (n - 1)
            rows.append((table["participant"].iloc[chosen[0]], noise, (repeated**2).sum()))
    if not rows:
        return None
    sums = pd.DataFrame(rows, columns=["participant", "noise", "zero"]).groupby("participant").sum()
    return ratio_of_sums(sums["noise"].to_numpy(), sums["zero"].to_numpy())


def ratio_of_sums(above: ArrayLike, below: ArrayLike) -> Ratio:
    """Sum of one over the sum of the other, values of n participants each, with a jackknife interval."""
    tops, bottoms = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    n, value = len(tops), float(tops.sum() / bottoms.sum())
    if n < 2:
        return Ratio(value, float("nan"), float("nan"), n)
    without = (tops.sum() - tops) / (bottoms.sum() - bottoms)
    error = np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
    half = float(student.ppf((1 + CONFIDENCE) / 2, n - 1) * error)
    return Ratio(value, value - half, value + half, n)


# --- identification


def identify(
    observed: ArrayLike, candidates: ArrayLike, correct: int, common: ArrayLike | None = None
) -> tuple[float, float]:
    """Is an image nearer to the one predicted for it than to other predictions?

    Parameters
    ----------
    observed : array of shape (V,)
    candidates : array of shape (n, V)
        Predicted images, compared by their correlation over voxels.
    correct : int
        Which of them was predicted for the observed one.
    common : array of shape (V,), optional
        What all candidates should share, such as the mean image of the person whom all are of; taken out of all images
        by regression. Predictions of pairs that a fit has seen hold more of it than that of the pair it has not, and
        would be told apart by that alone.

    Returns
    -------
    nearer : float
        Share of the other candidates that correlate less; ties count half, so that chance is 1/2.
    first : float
        Whether no other correlates as much; shared among ties, so that chance is 1/n.
    """
    images = np.concatenate([np.asarray(observed)[None], np.asarray(candidates)]).astype(np.float64)
    left = _without(images, None if common is None else np.asarray(common, dtype=np.float64))
    correlations = _unit(left[1:]) @ _unit(left[:1])[0]
    ahead = correlations[correct] - np.delete(correlations, correct)
    tied, behind = np.abs(ahead) <= TIE, ahead < -TIE
    nearer = float(np.where(tied, 0.5, ahead > 0).mean()) if len(ahead) else float("nan")
    return nearer, 0.0 if behind.any() else 1 / (1 + int(tied.sum()))


def _without(images: Floats, common: Floats | None) -> Floats:
    """Images less their mean over voxels and less what regression on a common one explains; 0 if that is all."""
    left = images - images.mean(1, keepdims=True)
    if common is not None:
        axis = _unit(common[None] - common.mean())[0]
        left = left - (left @ axis)[:, None] * axis
    size = np.linalg.norm(images, axis=1, keepdims=True)
    return np.where(np.linalg.norm(left, axis=1, keepdims=True) > ROUNDING * size, left, 0.0)


def _unit(images: Floats) -> Floats:
    """Images of length one; those of length zero stay."""
    size = np.linalg.norm(images, axis=1, keepdims=True)
    return np.divide(images, size, out=np.zeros_like(images), where=size > 0)


def summarise_identification(rows: pd.DataFrame) -> pd.DataFrame:
    """Average identification over participants, each one's mean counting once, with t-intervals and chance.

    Parameters
    ----------
    rows : DataFrame
        `among`, `method`, `participant`, `nearer`, `first` and `n_candidates`; one row per held-out cell and method.

    Returns
    -------
    DataFrame
        `among`, `method`, `nearer`, `ci_low`, `ci_high`, `chance` (1/2), `first`, `first_ci_low`, `first_ci_high`,
        `first_chance`, `n_participants`, `n_cells`.
    """
    found = []
    for (among, method), group in rows.groupby(["among", "method"], sort=False):
        means = group.assign(first_chance=1 / group["n_candidates"]).groupby("participant").mean(numeric_only=True)
        found.append(
            {"among": among, "method": method}
            | mean_interval(means["nearer"], "nearer")
            | {"chance": 0.5}
            | mean_interval(means["first"], "first", "first_")
            | {"first_chance": means["first_chance"].mean(), "n_participants": len(means), "n_cells": len(group)}
        )
    return pd.DataFrame(found)
