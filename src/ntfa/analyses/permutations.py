"""Permutation tests of embeddings against columns of a design, with confounds, strata and unequal spread.

Let Y be the points [n, D], Z the confounds with a constant, and A orthonormal columns [n, q] that span what is left of
the predictors once Z is taken out. The explained sum of squares, tr Y'AA'Y, is that of PERMANOVA and of distance-based
regression with Euclidean distances. Divided by its residual counterpart it is their pseudo-F, whose null distribution
depends on how spread and group sizes go together: where the smallest of two groups spreads most, one test in three is
a false positive at 5%. So

1.  it is divided by what chance alone would make of it, whatever the spread of each point: Omega, the covariance of
    A'Y, is estimated from squared residuals of the full model, each divided by (1 - leverage)^2 (MacKinnon and White
    1985), and F = tr Y'AA'Y / tr Omega. For groups without confounds this is the pseudo-F of Anderson et al. (2017),
    with the variance of a group of n multiplied by n / (n - 1);
2.  how far F may go by chance depends on the shape of Omega too, f = (tr Omega)^2 / tr Omega^2 degrees of freedom.
    Permutations are therefore ranked by a normal deviate of F, as that of a chi-squared variable over f;
3.  residuals of the confounds are permuted, and the full model is fitted again (Freedman and Lane 1983).

Groups that spread differently are not exchangeable even so. Their residuals are also multiplied by random signs, which
needs symmetric distributions but no equal spread (Winkler et al. 2014), and the larger p-value of both is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Numbers that the arrays of one batch of permutations may hold, about 30 MB.
BATCH = 4_000_000


@dataclass(frozen=True)
class Design:
    """Predictors beside confounds, as orthonormal columns.

    confounds : [n, r], a constant among them
    predictors : [n, q], what is left of the predictors once the confounds are taken out
    """

    confounds: Floats
    predictors: Floats

    @classmethod
    def of(cls, predictors: Floats, confounds: Floats | None = None) -> Design:
        """Orthonormalise predictors [n, q] beside confounds [n, r], to which a constant is added."""
        constant = np.ones((len(predictors), 1))
        nuisance = _basis(constant if confounds is None else np.hstack([constant, _scaled(confounds)]))
        scaled = _scaled(predictors)
        return cls(nuisance, _basis(scaled - nuisance @ (nuisance.T @ scaled), smallest=1e-7))

    @cached_property
    def _both(self) -> Floats:
        return np.hstack([self.confounds, self.predictors])

    @property
    def leverages(self) -> Floats:
        """How much each point decides of its own fitted value, from 0 to 1, [n]."""
        return np.asarray((self._both**2).sum(1))

    @property
    def n_free(self) -> int:
        """Degrees of freedom that are left for residuals."""
        return len(self.confounds) - self._both.shape[1]

    def without_confounds(self, points: Floats) -> Floats:
        """Residuals of points [..., n, D] from the confounds."""
        return points - self.confounds @ (self.confounds.T @ points)

    def residuals(self, points: Floats) -> Floats:
        """Residuals of points [..., n, D] from predictors and confounds."""
        return points - self._both @ (self._both.T @ points)


@dataclass(frozen=True)
class Location:
    """How far predictors explain points.

    statistic : F, the explained sum of squares over what chance makes of it, spread being what it is
    r2 : share of the variance that the confounds leave
    p : share of permutations, and of changes of sign if they were asked for, with a deviate as large
    """

    statistic: float
    r2: float
    p: float


def location_test(points: Floats, design: Design, orders: Ints, signs: Floats | None = None) -> Location:
    """Test whether predictors explain points [n, D].

    Parameters
    ----------
    orders : array
        Permutations [m, n], the first of which leaves everything in its place.
    signs : array, optional
        Changes of sign [m, n], of which the first changes nothing; the larger p-value of both is kept.
    """
    left = design.without_confounds(points)
    found, deviates = _deviates(left, design, orders, None)
    p = share_as_large(deviates)
    if signs is not None:
        p = max(p, share_as_large(_deviates(left, design, None, signs)[1]))
    total = float((left**2).sum())
    explained = float(((design.predictors.T @ left) ** 2).sum())
    return Location(float(found[0]), explained / total if total > 0 else 0.0, p)


def _deviates(left: Floats, design: Design, orders: Ints | None, signs: Floats | None) -> tuple[Floats, Floats]:
    """F of all rearrangements of residuals [n, D], and the normal deviates that they are ranked by."""
    arranged = orders if orders is not None else signs
    assert arranged is not None
    n, n_dim = left.shape
    size = max(1, BATCH // (n * n_dim * (1 + design.predictors.shape[1])))
    parts = []
    for start in range(0, len(arranged), size):
        some = arranged[start : start + size]
        parts.append(_adjusted_f(left[some] if orders is not None else left * some[..., None], design))
    f, freedom = (np.concatenate(part) for part in zip(*parts, strict=True))
    # Wilson and Hilferty's cube root: unlike a tail probability it does not round to zero for large F.
    return f, (np.cbrt(f) - 1 + 2 / (9 * freedom)) / np.sqrt(2 / (9 * freedom))


def _adjusted_f(points: Floats, design: Design) -> tuple[Floats, Floats]:
    """F and its degrees of freedom for points [m, n, D]."""
    predictors, n_points = design.predictors, points.shape[-2]
    explained = ((predictors.T @ points) ** 2).sum((-2, -1))
    # A point that decides its own fitted value has no residual, and no part in the predictors' either.
    weights = 1 / np.maximum(1 - design.leverages, 1e-9)
    errors = design.residuals(points) * weights[:, None]
    spread = (predictors[None, :, :, None] * errors[:, :, None, :]).reshape(len(points), n_points, -1)
    # The smaller of both products has the same trace, and so has its square.
    omega = spread.swapaxes(1, 2) @ spread if spread.shape[2] <= n_points else spread @ spread.swapaxes(1, 2)
    trace, squared = np.trace(omega, axis1=1, axis2=2), (omega**2).sum((1, 2))
    # Where nothing is left unexplained F is as large as numbers allow; where nothing varies at all it is zero.
    tiny = np.finfo(float).tiny
    f = explained / np.maximum(trace, np.maximum(1e-30 * explained, tiny))
    return f, np.maximum(trace**2, tiny) / np.maximum(squared, tiny)


def share_as_large(statistics: Floats) -> float:
    """Share of statistics [m] at least as large as the first, which counts itself."""
    return float((statistics >= statistics[0] - 1e-9 * max(1.0, abs(float(statistics[0])))).mean())


def permuted_orders(n: int, n_permutations: int, seed: int, strata: Ints | None = None) -> Ints:
    """Draw permutations [1 + n_permutations, n], the first of which changes nothing, within strata if there are any."""
    codes = np.zeros(n, dtype=np.int64) if strata is None else strata
    keys = np.random.default_rng([seed, 1]).random((n_permutations, n))
    orders = np.tile(np.arange(n), (n_permutations + 1, 1))
    orders[1:, np.argsort(codes, kind="stable")] = np.argsort(codes + keys, axis=1)
    return orders


def random_signs(n: int, n_permutations: int, seed: int) -> Floats:
    """Draw changes of sign [1 + n_permutations, n], the first of which changes nothing."""
    signs = np.random.default_rng([seed, 2]).choice((-1.0, 1.0), (n_permutations + 1, n))
    signs[0] = 1.0
    return signs


def log_arrangements(values: Ints, strata: Ints | None = None) -> float:
    """Logarithm of the number of different ways to permute values [n] (as codes) within strata."""
    codes = np.zeros_like(values) if strata is None else strata
    parts = [np.unique(values[codes == stratum], return_counts=True)[1] for stratum in np.unique(codes)]
    return float(sum(gammaln(counts.sum() + 1) - gammaln(counts + 1).sum() for counts in parts))


def indicators(codes: Ints) -> Floats:
    """One column per value of `codes` [n] but for the first."""
    return np.asarray(codes[:, None] == np.unique(codes)[1:], dtype=np.float64)


def _scaled(columns: Floats) -> Floats:
    """Centre columns and bring them to unit length, so that none is lost for being small."""
    centred = columns - columns.mean(0)
    length = np.linalg.norm(centred, axis=0)
    return np.asarray(centred / np.where(length > 1e-12 * np.abs(columns).max(0, initial=0.0), length, np.inf))


def _basis(columns: Floats, smallest: float = 1e-9) -> Floats:
    """Orthonormal columns that span the same space, directions shorter than `smallest` left out."""
    if not columns.shape[1]:
        return columns
    directions, lengths, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(directions[:, lengths > smallest])
