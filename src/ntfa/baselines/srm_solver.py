"""Fitting the shared response model (Chen et al. 2015): orthonormal bases, one response for all participants.

    s_t ~ N(0, C)                                               shared response of frame t, K features
    y_{p,t} ~ N(m_p + W_p s_t, rho_p I),  W_p^T W_p = I         W_p [V x K]

"probabilistic" maximises the likelihood with s_t integrated out, by expectation maximisation; "deterministic" is its
limit without noise: the least squares fit of W_p s_t. Both meet the data only through products of frames with W_p and
with S, and after one step W_p lies in the span of the participant's frames. So all iterations are run on the frames'
coordinates in their own span, of rank T - 1 at most: nothing that is iterated has the size of V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Eigenvalues are squares: directions with less than a millionth of the largest singular value are left to rounding.
SMALLEST_EIGENVALUE = 1e-12

# Share of a participant's sum of squares that counts as noise even where the fit is exact.
SMALLEST_NOISE = 1e-12


@dataclass(frozen=True, eq=False)
class Reduced:
    """Frames of one participant as coordinates in their own span: Y^T = Q coordinates, with Q [V, rank] orthonormal.

    Attributes
    ----------
    coordinates : array of shape (rank, T)
    n_voxels : int
    to_span : array of shape (T, rank)
        Q = Y^T to_span, for the centred frames Y [T, V].
    """

    coordinates: Array
    n_voxels: int
    to_span: Array

    @property
    def energy(self) -> float:
        """Sum of squares of the frames."""
        return float((self.coordinates**2).sum())


def reduce_frames(frames: Array) -> Reduced:
    """Find the span of centred frames [T, V] through their inner products."""
    values, vectors = np.linalg.eigh(frames @ frames.T)
    keep = values > SMALLEST_EIGENVALUE * values[-1]
    sizes = np.sqrt(values[keep])
    return Reduced(sizes[:, None] * vectors[:, keep].T, frames.shape[1], vectors[:, keep] / sizes)


@dataclass(frozen=True, eq=False)
class Parameters:
    """Parameters of the probabilistic model: bases (in the span, [rank, K]), C [K, K] and rho [P]."""

    bases: list[Array]
    covariance: Array
    noise: Array


@dataclass(frozen=True, eq=False)
class Expected:
    """What is known of the shared response given parameters: its mean [K, T], covariance [K, K], and the evidence."""

    mean: Array
    covariance: Array
    log_likelihood: float


def expect(data: Sequence[Reduced], at: Parameters) -> Expected:
    """Posterior of the shared response; the log-likelihood holds for orthonormal bases."""
    n_features, n_frames = len(at.covariance), data[0].coordinates.shape[1]
    precision = float((1 / at.noise).sum())
    evidence = sum(w.T @ one.coordinates / rho for w, one, rho in zip(at.bases, data, at.noise, strict=True))
    shrink = np.eye(n_features) + precision * at.covariance
    covariance = np.linalg.solve(shrink, at.covariance)
    covariance = (covariance + covariance.T) / 2
    mean = covariance @ evidence
    voxels = np.array([one.n_voxels for one in data])
    energy = np.array([one.energy for one in data])
    log_det = n_frames * (np.linalg.slogdet(shrink)[1] + (voxels * np.log(2 * np.pi * at.noise)).sum())
    distance = (energy / at.noise).sum() - (evidence * mean).sum()
    return Expected(mean, covariance, float(-(log_det + distance) / 2))


def maximise(data: Sequence[Reduced], expected: Expected) -> Parameters:
    """Parameters that maximise the expected log-likelihood."""
    n_frames = expected.mean.shape[1]
    second = n_frames * expected.covariance + expected.mean @ expected.mean.T
    crossed = [one.coordinates @ expected.mean.T for one in data]
    bases = [polar(cross) for cross in crossed]
    misfit = [
        one.energy - 2 * (w * cross).sum() + np.trace(second)
        for one, w, cross in zip(data, bases, crossed, strict=True)
    ]
    least = [max(float(left), SMALLEST_NOISE * one.energy) for left, one in zip(misfit, data, strict=True)]
    noise = np.array([left / (n_frames * one.n_voxels) for left, one in zip(least, data, strict=True)])
    return Parameters(bases, second / n_frames, noise)


def polar(matrix: Array) -> Array:
    """Return the orthonormal matrix that is nearest."""
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    return left @ right


@dataclass(frozen=True, eq=False)
class Fit:
    """Bases [rank, K] in the span, response [K, T], noise variance [P], and what was climbed after each iteration."""

    bases: list[Array]
    response: Array
    noise: Array
    history: list[float]


def fit_probabilistic(data: Sequence[Reduced], start: Parameters, n_iter: int) -> Fit:
    """Expectation maximisation; the history is of log-likelihoods, which never fall."""
    at, expected = start, expect(data, start)
    history = []
    for _ in range(n_iter):
        at = maximise(data, expected)
        expected = expect(data, at)
        history.append(expected.log_likelihood)
    return Fit(at.bases, expected.mean, at.noise, history)


def fit_deterministic(data: Sequence[Reduced], bases: list[Array], n_iter: int) -> Fit:
    """Least squares; the history is of sums of squares left, which never grow."""
    response = _mean_projection(data, bases)
    history = []
    for _ in range(n_iter):
        bases = [polar(one.coordinates @ response.T) for one in data]
        response = _mean_projection(data, bases)
        history.append(float(sum(_misfits(data, bases, response))))
    n_values = [one.n_voxels * response.shape[1] for one in data]
    return Fit(bases, response, np.array(_misfits(data, bases, response)) / n_values, history)


def start_in_units(data: Sequence[Reduced], bases: list[Array]) -> Parameters:
    """Start from the mean square of a value, so that data in other units take the same way."""
    n_values = sum(one.n_voxels * one.coordinates.shape[1] for one in data)
    mean_square = sum(one.energy for one in data) / n_values
    return Parameters(bases, mean_square * np.eye(bases[0].shape[1]), np.full(len(data), mean_square))


def spectral_bases(data: Sequence[Reduced], n_features: int) -> list[Array]:
    """Fit bases to the time courses that explain most, summed over the maps of all participants.

    From a random start the iterations may take hundreds to forget it, since with more voxels than frames any response
    can be fitted almost as well as any other.
    """
    inner = sum(one.coordinates.T @ one.coordinates / one.energy for one in data)
    courses = np.linalg.eigh(inner)[1][:, ::-1][:, :n_features]
    return [polar(one.coordinates @ courses) for one in data]


def random_bases(data: Sequence[Reduced], n_features: int, seed: int) -> list[Array]:
    """Draw orthonormal bases within the span of each participant's frames."""
    rng = np.random.default_rng(seed)
    return [np.linalg.qr(rng.normal(size=(len(one.coordinates), n_features)))[0] for one in data]


def _mean_projection(data: Sequence[Reduced], bases: list[Array]) -> Array:
    return np.mean([w.T @ one.coordinates for w, one in zip(bases, data, strict=True)], axis=0)


def _misfits(data: Sequence[Reduced], bases: list[Array], response: Array) -> list[float]:
    return [float(((one.coordinates - w @ response) ** 2).sum()) for w, one in zip(bases, data, strict=True)]
