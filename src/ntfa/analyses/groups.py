"""Do embeddings fall into groups that nobody has named?

Points are clustered by Ward's method into 2, 3, ... clusters, and the number with the largest mean silhouette is kept.
Any cloud can be cut so. Whether there are groups is therefore a second question: how often does a cloud without
groups, a normal distribution with the mean and the covariance of the points, give as large a silhouette?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ntfa.analyses.separation import mean_silhouette, point_estimates
from ntfa.errors import StudyError

FEWEST_POINTS = 4
"""Two clusters of two."""


@dataclass(frozen=True)
class FoundGroups:
    """Groups found among points, without any label.

    clusters : cluster of every point, 1, 2, ..., at the number of clusters with the largest mean silhouette
    silhouette : mean silhouette of these clusters, from -1 to 1
    p_value : share of normal clouds without groups that give as large a silhouette, whatever their number of clusters
    level : the p-value from which on the points are said to have no groups
    """

    clusters: pd.Series
    silhouette: float
    p_value: float
    level: float

    @property
    def n_clusters(self) -> int:
        """Number of clusters, two or more unless all points coincide, whether they are groups or not."""
        return int(self.clusters.nunique())

    @property
    def n_groups(self) -> int:
        """Number of groups: one, which is to say none, where a cloud without groups might well look as clustered."""
        return self.n_clusters if self.p_value < self.level else 1

    def agreement(self, groups: pd.Series) -> float:
        """Return the adjusted Rand index of clusters and known groups: 1 if they are the same, about 0 by chance."""
        from sklearn.metrics import adjusted_rand_score

        return float(adjusted_rand_score(groups.loc[self.clusters.index].astype(str), self.clusters))


def find_groups(
    embeddings: pd.DataFrame,
    *,
    max_groups: int = 10,
    level: float = 0.05,
    n_draws: int = 499,
    random_state: int = 0,
) -> FoundGroups:
    """Find how many groups points fall into, if any, from the points alone.

    Parameters
    ----------
    embeddings : DataFrame
        `participants_` or `stimuli_` of a fitted model, in any number of dimensions; columns ending in `_sd` or `_cov`
        are ignored. The uncertainty of the points is part of how they scatter, and so of the clouds they are compared
        with.
    max_groups : int
        Most groups to look for; never more than half as many as there are points.
    level : float
        How often groups may be found where there are none.
    n_draws : int
        Number of clouds without groups to compare with.

    Notes
    -----
    Few points seldom show groups for sure, however well they are clustered: eight points in two groups whose centres
    are eight standard deviations apart are told from one elongated cloud in about four cases of five.
    """
    points = point_estimates(embeddings)
    values = points.to_numpy(dtype=np.float64)
    if len(values) < FEWEST_POINTS:
        raise StudyError(f"groups can be looked for among {FEWEST_POINTS} points or more, not {len(values)}")
    if not np.isfinite(values).all():
        raise StudyError(f"{points.index[~np.isfinite(values).all(1)][0]}: its embedding is not finite")
    most = max(2, min(max_groups, len(values) // 2))
    clusters, silhouette = _best_clusters(values, most)
    random = np.random.default_rng(random_state)
    mean, covariance = values.mean(0), np.atleast_2d(np.cov(values, rowvar=False))
    clouds = random.multivariate_normal(mean, covariance, (n_draws, len(values)), method="eigh")
    as_clustered = sum(_best_clusters(cloud, most)[1] >= silhouette - 1e-12 for cloud in clouds)
    found = pd.Series(pd.factorize(clusters)[0] + 1, index=points.index, name="cluster")
    return FoundGroups(found, silhouette, (1 + as_clustered) / (1 + n_draws), level)


def _best_clusters(points: np.ndarray, most: int) -> tuple[np.ndarray, float]:
    """Cut Ward's tree where the mean silhouette is largest: cluster of every point, and silhouette."""
    from scipy.cluster.hierarchy import ward
    from scipy.spatial.distance import pdist, squareform

    distances = pdist(points)
    best, largest = np.zeros(len(points), dtype=np.int64), 0.0
    whole = squareform(distances)
    for codes in _cuts(ward(distances)[:, :2].astype(np.int64), most):
        silhouette = mean_silhouette(whole, codes)
        if silhouette > largest:
            best, largest = codes, silhouette
    return best, largest


def _cuts(merges: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Follow a tree's merges [n - 1, 2] from the leaves, and stop at every number of clusters from `most` to two.

    SciPy's own `fcluster` checks the tree at every cut, which takes longer than all else that is done to a cloud.
    """
    n_points = len(merges) + 1
    codes = np.arange(n_points)
    for i, (one, other) in enumerate(merges):
        codes[(codes == one) | (codes == other)] = n_points + i
        if 2 <= n_points - 1 - i <= most:
            yield np.unique(codes, return_inverse=True)[1]
