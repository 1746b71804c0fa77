"""Fitting the matrix-normal shared response model (after Shvartsman et al. 2018), with the bases integrated out.

    W_p ~ MatrixNormal(0, I, scale_p D)                              [K x V], D = diag(d_1, ..., d_V)
    Y_p ~ MatrixNormal(1 b_p^T + S W_p, noise R(phi), scale_p D)     [T x V]
    Y_p ~ MatrixNormal(1 b_p^T, Omega, scale_p D),  Omega = S S^T + noise R(phi)        W_p integrated out

Space is a diagonal, shared by all participants; time is described in `ntfa.baselines.temporal`. Only the products of
scale_p, d_v and Omega are determined: the mean of log d_v and that of log scale_p are fixed at 0.

The likelihood is climbed in turn along b_p, d_v, scale_p and Omega, each set to its best given the others, so that no
turn can lower it. Data enter through T x T matrices Y_p D^-1 Y_p^T and through one quadratic form a voxel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ntfa.baselines.aligned import Aligned
from ntfa.baselines.base import Array
from ntfa.baselines.temporal import Temporal, fit_temporal

TURNS_IN_SPACE = 20


@dataclass(frozen=True, eq=False)
class MatrixNormal:
    """Parameters: Omega, scale_p [P], d_v [V], and u [T], by which the offsets are b_p = Y_p^T u."""

    temporal: Temporal
    scales: Array
    variances: Array
    offset: Array

    def centred(self, frames: Array) -> Array:
        """Return Y - 1 b^T for frames [T, n]."""
        return frames - self.offset @ frames

    def expected_basis(self, frames: Array) -> Array:
        """Posterior mean of W^T given frames [T, V]: C^T Omega^-1 S, [V, K]; scales and variances cancel."""
        return self.centred(frames).T @ self.temporal.solve(self.temporal.response)


def start_matrix_normal(aligned: Aligned, n_features: int) -> MatrixNormal:
    """White time, equal scales and voxels, and offsets that are means over time."""
    n_frames, n_voxels = aligned.n_frames, aligned.study.n_voxels
    return MatrixNormal(
        Temporal.white(aligned.starts, n_features),
        np.ones(len(aligned.participants)),
        np.ones(n_voxels),
        np.full(n_frames, 1 / n_frames),
    )


def climb(aligned: Aligned, at: MatrixNormal) -> tuple[MatrixNormal, float]:
    """Set each group of parameters once to its best given the others; return them and the log-likelihood there."""
    distances = np.stack([at.temporal.distances(at.centred(frames)) for _, _, frames in aligned.centred()])
    at = fit_space(at, distances)
    grams = np.stack([_gram(frames, at.variances) for _, _, frames in aligned.centred()])
    at = fit_time(at, grams)
    return at, log_likelihood(at, grams)


def fit_space(at: MatrixNormal, distances: Array) -> MatrixNormal:
    """Find scales and variances, given the quadratic form y^T Omega^-1 y of each participant and voxel [P, V]."""
    n_frames = len(at.offset)
    scales, variances = at.scales, at.variances
    for _ in range(TURNS_IN_SPACE):
        variances = (distances / scales[:, None]).mean(0) / n_frames
        scales = (distances / variances).mean(1) / n_frames
    return _normalised(replace(at, scales=scales, variances=variances))


def fit_time(at: MatrixNormal, grams: Array) -> MatrixNormal:
    """Find Omega, then the offsets, given Y_p D^-1 Y_p^T of each participant [P, T, T]."""
    moments = np.mean([_centred_gram(at, gram) / s for gram, s in zip(grams, at.scales, strict=True)], axis=0)
    temporal = fit_temporal(moments / len(at.variances), at.temporal)
    weights = temporal.solve(np.ones((len(at.offset), 1)))[:, 0]
    return replace(at, temporal=temporal, offset=weights / weights.sum())


def log_likelihood(at: MatrixNormal, grams: Array) -> float:
    """Log density of all participants' frames, given Y_p D^-1 Y_p^T of each [P, T, T]."""
    n_participants, n_voxels, n_frames = len(at.scales), len(at.variances), len(at.offset)
    columns = n_participants * n_voxels
    log_det = columns * (n_frames * np.log(2 * np.pi) + at.temporal.log_det)
    log_det += n_frames * (n_voxels * np.log(at.scales).sum() + n_participants * np.log(at.variances).sum())
    return float(-(log_det + (_distances_summed(at, grams) / at.scales).sum()) / 2)


def _gram(frames: Array, variances: Array) -> Array:
    scaled = frames / np.sqrt(variances)
    return scaled @ scaled.T


def _centred_gram(at: MatrixNormal, gram: Array) -> Array:
    return at.centred(at.centred(gram).T)


def _distances_summed(at: MatrixNormal, grams: Array) -> Array:
    """Sum of y^T Omega^-1 y / d over the voxels of each participant: tr(Omega^-1 C), C the centred inner products."""
    return np.array([np.trace(at.temporal.solve(_centred_gram(at, gram))) for gram in grams])


def _normalised(at: MatrixNormal) -> MatrixNormal:
    """Say the same with the means of log d_v and log scale_p at 0."""
    voxels, participants = (float(np.exp(np.log(values).mean())) for values in (at.variances, at.scales))
    temporal = at.temporal.scaled(voxels * participants)
    return replace(at, temporal=temporal, variances=at.variances / voxels, scales=at.scales / participants)
