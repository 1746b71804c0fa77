"""Do two participants, or two stimuli, really differ? What the posterior of their embeddings says.

The difference of two embeddings is normal, d ~ N(m_a - m_b, C_a + C_b). The *level* at which two differ is the largest
credible level whose ellipsoid of d does not hold zero: the chi-squared distribution's mass, with D degrees of freedom,
below m' C^-1 m. It is 0 if the means coincide and nears 1 as they move apart.

With NTFA's calibrated covariances (docs/calibration.md) the level of two that are identical in truth is above 0.95 in
about 5% of cases. With those of other fits it is far more often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import ModelError
from ntfa.uncertainty.moments import moments

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """Two embeddings compared.

    distance : between the posterior means
    level : largest credible level whose ellipsoid of the difference does not hold zero, from 0 to 1
    mean, sd : of the difference (the first less the second), one number per dimension
    """

    distance: float
    level: float
    mean: tuple[float, ...]
    sd: tuple[float, ...]


@dataclass(frozen=True)
class Spread:
    """How far embeddings lie apart, against what is uncertain about them.

    n_pairs : number of pairs
    n_apart : pairs that differ at the level asked for
    between : root mean square distance of a posterior mean from their average, a dimension
    uncertainty : root mean posterior variance, a dimension
    """

    n_pairs: int
    n_apart: int
    between: float
    uncertainty: float

    @property
    def share_apart(self) -> float:
        """Share of pairs that differ; 0 if there is no pair."""
        return self.n_apart / self.n_pairs if self.n_pairs else 0.0

    @property
    def ratio(self) -> float:
        """Spread of the means in units of their uncertainty."""
        return self.between / self.uncertainty


def difference(embeddings: pd.DataFrame, a: str, b: str) -> Difference:
    """Compare two participants or stimuli.

    Parameters
    ----------
    embeddings : DataFrame
        `participants_` or `stimuli_` of a fitted model; covariances `z1_z2_cov` are used if they are there.
    a, b : label
    """
    for label in (a, b):
        if label not in embeddings.index:
            raise ModelError(f"{label!r} has no embedding; there are {', '.join(map(str, embeddings.index[:5]))}, ...")
    means, covariances = _with_uncertainty(embeddings.loc[[a, b]])
    apart, covariance = means[0] - means[1], covariances[0] + covariances[1]
    level = float(_levels(apart[None], covariance[None])[0])
    sd = np.sqrt(np.diag(covariance))
    return Difference(float(np.linalg.norm(apart)), level, tuple(apart.tolist()), tuple(sd.tolist()))


def difference_matrix(embeddings: pd.DataFrame) -> pd.DataFrame:
    """Level at which every two participants or stimuli differ: symmetric, with zeros on the diagonal."""
    means, covariances = _with_uncertainty(embeddings)
    rows = [_levels(one - means, covariance + covariances) for one, covariance in zip(means, covariances, strict=True)]
    return pd.DataFrame(np.array(rows), index=embeddings.index, columns=embeddings.index)


def spread(embeddings: pd.DataFrame, level: float = LEVEL) -> Spread:
    """Say how many pairs differ at a level, and how the spread of the means compares with their uncertainty."""
    means, covariances = _with_uncertainty(embeddings)
    upper = np.triu_indices(len(embeddings), 1)
    apart = difference_matrix(embeddings).to_numpy()[upper] >= level
    between = np.sqrt(((means - means.mean(0)) ** 2).mean())
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    return Spread(len(apart), int(apart.sum()), float(between), float(np.sqrt(variances.mean())))


def _with_uncertainty(embeddings: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    means, covariances = moments(embeddings)
    if covariances is None:
        raise ModelError("point estimates have no uncertainty to compare a difference with: the table has no z1_sd")
    return means, covariances


def _levels(apart: NDArray[np.float64], covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Levels [n] of differences [n, D] with covariances [n, D, D]."""
    from scipy.special import gammainc

    scaled = np.linalg.solve(covariance, apart[..., None])[..., 0]
    squared = (apart * scaled).sum(-1)
    # The chi-squared distribution's cumulative function is the regularised lower incomplete gamma function.
    return np.asarray(gammainc(apart.shape[-1] / 2, squared / 2))
