"""Do embeddings separate known groups?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ntfa.errors import StudyError


@dataclass(frozen=True)
class Separation:
    """How clusters of embeddings agree with known groups; `agreement` is the adjusted Rand index, 1 if exactly."""

    n_groups: int
    agreement: float


@dataclass(frozen=True)
class GroupStructure:
    """How well points show known groups, and how often permuted labels would do as well.

    silhouette : from -1 to 1; 0 if groups are mixed
    accuracy : of naming a left-out point's group by the nearest centroid of the others
    chance : share of the largest group
    silhouette_p, accuracy_p : share of shufflings at least as good
    left_out : groups of one member, which no point can be assigned to
    """

    n_points: int
    n_groups: int
    silhouette: float
    silhouette_p: float
    accuracy: float
    accuracy_p: float
    chance: float
    left_out: tuple[str, ...]


def separation(embeddings: pd.DataFrame, groups: pd.Series) -> Separation:
    """Cluster posterior means (K-means, as many clusters as groups) and compare with the groups.

    Parameters
    ----------
    embeddings : DataFrame
        `participants_` or `stimuli_` of a fitted model.
    groups : Series
        The group of each label.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score

    known = groups.loc[embeddings.index]
    n_groups = int(known.nunique())
    clusters = KMeans(n_groups, n_init=10, random_state=0).fit_predict(point_estimates(embeddings).to_numpy())
    return Separation(n_groups, float(adjusted_rand_score(known.astype(str), clusters)))


def group_structure(
    embeddings: pd.DataFrame, groups: pd.Series, *, n_permutations: int = 1000, random_state: int = 0
) -> GroupStructure:
    """Measure how well points show known groups, against permuted labels.

    Parameters
    ----------
    embeddings : DataFrame
        Points with columns `z1`, `z2`, ..., one row per label; columns ending in `_sd` or `_cov` are ignored.
    groups : Series
        The group of each label; labels without one, and groups of one member, are left out.
    n_permutations : int
        Number of shufflings.
    """
    known = groups.reindex(embeddings.index).dropna().astype(str)
    sizes = known.value_counts()
    alone = sorted(sizes.index[sizes < 2])
    known = known[~known.isin(alone)]
    if known.nunique() < 2:
        raise StudyError("groups can be separated only where two or more have at least two members each")
    points = point_estimates(embeddings).loc[known.index].to_numpy(dtype=np.float64)
    codes = pd.factorize(known)[0]
    random = np.random.default_rng(random_state)
    shuffled = [random.permutation(codes) for _ in range(n_permutations)]
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    silhouette, silhouette_p = _against_shuffled(lambda labels: mean_silhouette(distances, labels), codes, shuffled)
    accuracy, accuracy_p = _against_shuffled(lambda labels: nearest_centroid_accuracy(points, labels), codes, shuffled)
    chance = float(known.value_counts(normalize=True).max())
    numbers = (silhouette, silhouette_p, accuracy, accuracy_p, chance)
    return GroupStructure(len(known), known.nunique(), *numbers, tuple(alone))


def point_estimates(embeddings: pd.DataFrame) -> pd.DataFrame:
    """Return the points alone, without their uncertainty."""
    return embeddings[[column for column in embeddings if not str(column).endswith(("_sd", "_cov"))]]


def nearest_centroid_accuracy(points: np.ndarray, codes: np.ndarray) -> float:
    """Leave each point out, and name its group by the nearest of the centroids of the others.

    A centroid of a group of n without its member y is (n c - y) / (n - 1): no loop over points is needed.
    """
    indicator = (codes[:, None] == np.arange(codes.max() + 1)).astype(np.float64)
    counts = indicator.sum(0)
    centroids = (indicator.T @ points) / counts[:, None]
    distances = ((points[:, None] - centroids[None]) ** 2).sum(-1)
    size = counts[codes]
    own = np.arange(len(codes)), codes
    distances[own] *= (size / (size - 1)) ** 2
    return float((distances.argmin(1) == codes).mean())


def mean_silhouette(distances: np.ndarray, codes: np.ndarray) -> float:
    """Mean silhouette of points with these distances [n, n], in two groups or more.

    A point's is (b - a) / max(a, b), with a its mean distance from the others of its group and b that from the nearest
    other group; that of a point alone is 0.
    """
    indicator = (codes[:, None] == np.arange(codes.max() + 1)).astype(np.float64)
    counts, own = indicator.sum(0), (np.arange(len(codes)), codes)
    sums = distances @ indicator
    others = counts[codes] - 1
    within = sums[own] / np.maximum(others, 1)
    means = sums / counts
    means[own] = np.inf
    nearest = means.min(1)
    larger = np.maximum(within, nearest)
    has_any = (larger > 0) & (others > 0)
    return float(np.divide(nearest - within, larger, out=np.zeros_like(larger), where=has_any).mean())


def _against_shuffled(
    statistic: Callable[[np.ndarray], float], codes: np.ndarray, shuffled: list[np.ndarray]
) -> tuple[float, float]:
    """Return the statistic and its permutation p-value, the identity counted among the permutations."""
    found = statistic(codes)
    as_good = sum(statistic(labels) >= found - 1e-12 for labels in shuffled)
    return found, (1 + as_good) / (1 + len(shuffled))
