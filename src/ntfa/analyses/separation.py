"""Do embeddings separate known groups?"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Separation:
    """How clusters of embeddings agree with known groups; `agreement` is the adjusted Rand index, 1 if exactly."""

    n_groups: int
    agreement: float


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

    means = embeddings[[column for column in embeddings if not str(column).endswith("_sd")]]
    known = groups.loc[embeddings.index]
    n_groups = int(known.nunique())
    clusters = KMeans(n_groups, n_init=10, random_state=0).fit_predict(means.to_numpy())
    return Separation(n_groups, float(adjusted_rand_score(known.astype(str), clusters)))
