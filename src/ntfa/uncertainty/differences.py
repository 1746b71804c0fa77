"""Do two participants, or two stimuli, really differ? What calibrated uncertainty of their embeddings says.

Let m be the difference of two embeddings and C_a, C_b their covariances, T2 = m' (C_a + C_b)^-1 m. If the covariances
were known, T2 of two that are identical would follow a chi-squared distribution with D degrees of freedom. Those of a
calibrated fit were estimated from halves (`ntfa.uncertainty.calibration`) and then widened such that 95% ellipses are
right. So T2 q, with q the ratio of both distributions' 95% quantiles, follows an F distribution with D and as many
degrees of freedom as the halves gave, in its tails too. With that

- the *p-value* is the chance that two that are identical come out as far apart as these;
- the *effect size* is the distance in units of the noise of one embedding, sqrt(m' S^-1 m) with S its covariance.
  Noise alone puts estimates apart, so that the plain distance is too large: what is reported is the true distance for
  which the one found would be the median, and for which it would be the 97.5% and the 2.5% quantile (a 95% interval);
- the *level* is one minus the p-value: the largest level whose confidence ellipsoid of the difference leaves zero out.

`participants_` and `stimuli_` of a fitted model carry these degrees of freedom (in `attrs`). Tables that do not, or of
fits without calibration, are taken at their word, as normal distributions: such levels are far too high
(docs/calibration.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import ModelError
from ntfa.uncertainty.moments import moments

LEVEL = 0.95
DEGREES_OF_FREEDOM = "degrees_of_freedom"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """Two embeddings compared.

    distance : between the posterior means
    p : chance that two which are identical come out as far apart
    effect, effect_low, effect_high : distance in units of the noise of one embedding, and its 95% interval
    mean, sd : of the difference (the first less the second), one number per dimension
    """

    distance: float
    p: float
    effect: float
    effect_low: float
    effect_high: float
    mean: tuple[float, ...]
    sd: tuple[float, ...]

    @property
    def level(self) -> float:
        """Largest level whose confidence ellipsoid of the difference does not hold zero, from 0 to 1: 1 - p."""
        return 1 - self.p


@dataclass(frozen=True)
class Spread:
    """How far embeddings lie apart, against what is uncertain about them.

    n_pairs : number of pairs
    n_apart : pairs that differ at the level asked for, each taken by itself
    n_apart_adjusted : pairs that differ at that level after adjusting for the number of pairs (Benjamini-Hochberg)
    between : root mean square distance of a posterior mean from their average, a dimension
    uncertainty : root mean posterior variance, a dimension
    """

    n_pairs: int
    n_apart: int
    n_apart_adjusted: int
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
    test = _Test.of(embeddings)
    squared = _squared(apart[None], covariance[None])
    effect, low, high = (float(end[0]) for end in test.effects(squared))
    distance, p = float(np.linalg.norm(apart)), float(test.p_values(squared)[0])
    sd = np.sqrt(np.diag(covariance))
    return Difference(distance, p, effect, low, high, tuple(apart.tolist()), tuple(sd.tolist()))


def differences(embeddings: pd.DataFrame) -> pd.DataFrame:
    """Compare every two participants or stimuli: one row per pair, the clearest difference first.

    Columns: `a, b, distance, effect, effect_low, effect_high, p` as in `Difference`, and `p_adjusted`, the p-value
    adjusted for the number of pairs (Benjamini-Hochberg): of pairs with `p_adjusted` under 0.05 about one in twenty,
    at most, is expected to be identical.
    """
    means, covariances = _with_uncertainty(embeddings)
    one, other = np.triu_indices(len(embeddings), 1)
    apart = means[one] - means[other]
    test, squared = _Test.of(embeddings), _squared(apart, covariances[one] + covariances[other])
    p = test.p_values(squared)
    table = pd.DataFrame(
        {"a": embeddings.index[one], "b": embeddings.index[other], "distance": np.linalg.norm(apart, axis=1)}
    )
    table["effect"], table["effect_low"], table["effect_high"] = test.effects(squared)
    table["p"], table["p_adjusted"] = p, adjusted(p)
    return table.sort_values("p", kind="stable", ignore_index=True)


def difference_matrix(embeddings: pd.DataFrame) -> pd.DataFrame:
    """Level at which every two participants or stimuli differ: symmetric, with zeros on the diagonal."""
    means, covariances = _with_uncertainty(embeddings)
    test = _Test.of(embeddings)
    rows = [
        1 - test.p_values(_squared(one - means, covariance + covariances))
        for one, covariance in zip(means, covariances, strict=True)
    ]
    return pd.DataFrame(np.array(rows), index=embeddings.index, columns=embeddings.index)


def spread(embeddings: pd.DataFrame, level: float = LEVEL) -> Spread:
    """Say how many pairs differ at a level, and how the spread of the means compares with their uncertainty."""
    means, covariances = _with_uncertainty(embeddings)
    one, other = np.triu_indices(len(embeddings), 1)
    p = _Test.of(embeddings).p_values(_squared(means[one] - means[other], covariances[one] + covariances[other]))
    n_apart, n_adjusted = (int((values <= 1 - level).sum()) for values in (p, adjusted(p)))
    between = np.sqrt(((means - means.mean(0)) ** 2).mean())
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    return Spread(len(p), n_apart, n_adjusted, float(between), float(np.sqrt(variances.mean())))


def adjusted(p: Floats) -> Floats:
    """Adjust p-values for their number, by Benjamini and Hochberg (1995)."""
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p)) if len(p) else p


@dataclass(frozen=True)
class _Test:
    """The distribution of T2 of two that are identical.

    n_dim : D
    freedom : degrees of freedom that covariances were estimated with; None if they are taken to be known
    """

    n_dim: int
    freedom: int | None

    @classmethod
    def of(cls, embeddings: pd.DataFrame) -> _Test:
        n_dim = moments(embeddings.iloc[:1])[0].shape[1]
        return cls(n_dim, embeddings.attrs.get(DEGREES_OF_FREEDOM))

    def statistic(self, squared: Floats) -> Floats:
        """T2, or the statistic that has an F distribution."""
        from scipy.special import chdtri, fdtri

        if self.freedom is None:
            return squared
        return squared * float(fdtri(self.n_dim, self.freedom, LEVEL) / chdtri(self.n_dim, 1 - LEVEL))

    def p_values(self, squared: Floats) -> Floats:
        from scipy.special import chdtrc, fdtrc

        found = self.statistic(squared)
        if self.freedom is None:
            return np.asarray(chdtrc(self.n_dim, found))
        return np.asarray(fdtrc(self.n_dim, self.freedom, found))

    def effects(self, squared: Floats) -> tuple[Floats, Floats, Floats]:
        """Effect sizes, and both ends of their intervals; 0 where even that would come out so far apart more often."""
        found = self.statistic(squared)
        low, middle, high = (_solve(partial(self._excess, found, q), self.n_dim * found) for q in (0.975, 0.5, 0.025))
        return middle, low, high

    def _excess(self, found: Floats, quantile: float, effect: Floats) -> Floats:
        return self._below(found, effect) - quantile

    def _below(self, found: Floats, effect: Floats) -> Floats:
        """Chance of a smaller statistic than this if the true distance is `effect`."""
        from scipy.special import chndtr, ncfdtr

        shift = np.maximum(effect**2 / 2, 1e-12)
        if self.freedom is None:
            return np.asarray(chndtr(found, self.n_dim, shift))
        return np.asarray(ncfdtr(self.n_dim, self.freedom, shift, found))


def _solve(excess: Callable[[Floats], Floats], squared: Floats) -> Floats:
    """Bisect for the effect at which a falling function is zero, around T2; 0 if it is not positive there already."""
    low, high = np.zeros_like(squared), 20 + 4 * np.sqrt(2 * squared)
    for _ in range(50):
        middle = (low + high) / 2
        above = excess(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(high < 1e-6, 0.0, (low + high) / 2)


def _with_uncertainty(embeddings: pd.DataFrame) -> tuple[Floats, Floats]:
    means, covariances = moments(embeddings)
    if covariances is None:
        raise ModelError("point estimates have no uncertainty to compare a difference with: the table has no z1_sd")
    return means, covariances


def _squared(apart: Floats, covariance: Floats) -> Floats:
    """T2 of differences [n, D] with covariances [n, D, D]."""
    scaled = np.linalg.solve(covariance, apart[..., None])[..., 0]
    return np.asarray((apart * scaled).sum(-1))
