"""A temporal covariance in three parts: shared response, level of the noise, and its autocorrelation.

    Omega = S S^T + noise R(phi)           [T x T]

R is the correlation of a first-order autoregression within each trial, R[t, t'] = phi^|t - t'|, and zero between
trials, which stand beside one another in an order that nobody saw. With L L^T = R, Omega is that of probabilistic PCA
in whitened time:

    L^-1 Omega L^-T = U (diag(values) - noise) U^T + noise I

so, for given phi, the best S and noise of a moment matrix are known in closed form (the eigenvectors and -values of the
whitened matrix), and phi is found by a search along a line. A free diagonal, or a free T x T matrix, in place of
noise R would leave it open which of noise and response a frame's variance belongs to; two numbers do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar

Array = NDArray[np.float64]
Booleans = NDArray[np.bool_]

LARGEST_CORRELATION = 0.98
CORRELATION_TOLERANCE = 1e-3

# Share of the mean variance that counts as noise even where the response explains everything.
SMALLEST_NOISE = 1e-12


@dataclass(frozen=True, eq=False)
class Whitening:
    """L^-1 of an autoregression that starts anew at some rows."""

    starts: Booleans
    correlation: float

    @property
    def log_det(self) -> float:
        """Return log |R|."""
        return float((~self.starts).sum() * np.log1p(-(self.correlation**2)))

    @cached_property
    def _weights(self) -> tuple[Array, Array]:
        """What a row, and what the row before it, count: [T, 1] each."""
        innovation = np.sqrt(1 - self.correlation**2)
        own = np.where(self.starts, 1.0, 1 / innovation)
        before = np.where(self.starts, 0.0, self.correlation / innovation)
        return own[:, None], before[:, None]

    def apply(self, rows: Array) -> Array:
        """Return L^-1 rows, for rows [T, n]; linear in T."""
        own, before = self._weights
        white = own * rows
        white[1:] -= before[1:] * rows[:-1]
        return white

    def apply_transposed(self, rows: Array) -> Array:
        """Return L^-T rows."""
        own, before = self._weights
        white = own * rows
        white[:-1] -= before[1:] * rows[1:]
        return white

    def undo(self, white: Array) -> Array:
        """Return L white."""
        own, before = self._weights
        rows = white / own
        for t in range(1, len(rows)):
            rows[t] += before[t] / own[t] * rows[t - 1]
        return rows


@dataclass(frozen=True, eq=False)
class Temporal:
    """Omega, by its whitening, orthonormal axes U [T, K] in whitened time, their values [K], and the noise."""

    whitening: Whitening
    axes: Array
    values: Array
    noise: float

    @classmethod
    def white(cls, starts: Booleans, n_features: int) -> Temporal:
        """Return the identity."""
        axes = np.zeros((len(starts), n_features))
        return cls(Whitening(starts, 0.0), axes, np.ones(n_features), 1.0)

    @property
    def response(self) -> Array:
        """S, [T, K]: the largest entry of each column, in absolute value, is positive."""
        response = self.whitening.undo(self.axes * np.sqrt(self.values - self.noise))
        largest = np.take_along_axis(response, np.abs(response).argmax(0)[None], axis=0)
        return response * np.where(largest < 0, -1.0, 1.0)

    @property
    def log_det(self) -> float:
        """Return log |Omega|."""
        n_frames, n_features = self.axes.shape
        free = (n_frames - n_features) * np.log(self.noise)
        return float(self.whitening.log_det + np.log(self.values).sum() + free)

    @property
    def _explained(self) -> Array:
        return self.axes * np.sqrt(1 - self.noise / self.values)

    def distances(self, columns: Array) -> Array:
        """Return y^T Omega^-1 y of each column y of [T, n]; linear in n and in T."""
        white = self.whitening.apply(columns)
        explained = self._explained.T @ white
        return (np.einsum("tn,tn->n", white, white) - np.einsum("kn,kn->n", explained, explained)) / self.noise

    def solve(self, columns: Array) -> Array:
        """Return Omega^-1 columns."""
        white = self.whitening.apply(columns)
        white -= self._explained @ (self._explained.T @ white)
        return self.whitening.apply_transposed(white) / self.noise

    def scaled(self, factor: float) -> Temporal:
        """Return factor * Omega."""
        return Temporal(self.whitening, self.axes, self.values * factor, self.noise * factor)


def fit_temporal(moments: Array, start: Temporal) -> Temporal:
    """Find the Omega of greatest likelihood for moments M, that is least log|Omega| + tr(Omega^-1 M).

    Where the search along phi finds nothing better, phi stays as it was; S and noise are the best for it either way,
    so the likelihood never falls.
    """
    starts, n_features, now = start.whitening.starts, len(start.values), start.whitening.correlation

    def at(correlation: float) -> Temporal:
        return _best_given_correlation(moments, Whitening(starts, correlation), n_features)

    if starts.all():
        return at(now)
    bounds, options = (-LARGEST_CORRELATION, LARGEST_CORRELATION), {"xatol": CORRELATION_TOLERANCE}
    found = minimize_scalar(lambda phi: at(phi).log_det, bounds=bounds, method="bounded", options=options)
    return min(at(now), at(float(found.x)), key=lambda temporal: temporal.log_det)


def _best_given_correlation(moments: Array, whitening: Whitening, n_features: int) -> Temporal:
    """Probabilistic PCA in whitened time; tr(Omega^-1 M) is then T, so log|Omega| alone tells phis apart."""
    white = whitening.apply(whitening.apply(moments).T)
    n_frames, total = len(white), float(np.trace(white))
    values, axes = eigh(white, subset_by_index=[n_frames - n_features, n_frames - 1])
    noise = max((total - float(values.sum())) / (n_frames - n_features), SMALLEST_NOISE * total / n_frames)
    return Temporal(whitening, axes[:, ::-1], np.maximum(values[::-1], noise), noise)
