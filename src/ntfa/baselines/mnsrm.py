"""The matrix-normal shared response model on aligned stimuli, and points for participants and stimuli from it."""

from __future__ import annotations

import logging
from dataclasses import KW_ONLY, dataclass

import numpy as np
import pandas as pd

from ntfa.baselines.aligned import Aligned
from ntfa.baselines.base import Array
from ntfa.baselines.mnsrm_solver import MatrixNormal, climb, start_matrix_normal
from ntfa.baselines.shared import SharedResponse, SharedResponseModel, iteration_table
from ntfa.errors import ModelError, StudyError

logger = logging.getLogger("ntfa")


@dataclass(eq=False, repr=False)
class MNSRM(SharedResponseModel):
    """Matrix-normal shared response model on aligned stimuli, then PCA: points for participants and stimuli.

    As `SRM`, but maps need not be orthonormal: they are Gaussian and integrated out, with a variance of its own for
    each voxel that all participants share, and noise is correlated from frame to frame within a trial, alike for
    all. Participants are the first principal components of the posterior means of their vectorised maps; stimuli
    those of their vectorised blocks of the shared response (see `ntfa.baselines.shared.stimulus_blocks`). Maps and
    response are known only up to a rotation, which does not change these scores. All are point estimates: there is no
    measure of uncertainty.

    Parameters
    ----------
    n_features : int, default=10
        Features of the shared response, K.
    n_iter : int, default=50
        Iterations at most.
    tol : float, default=1e-6
        The fit has settled when an iteration adds less than this to the log-likelihood of a value (nats).
    n_components : int, default=2
        Dimensions of the points.
    random_state : int, RandomState, Generator or None
        For a face like the other models': the fit starts from the data and draws nothing.

    Attributes
    ----------
    participants_, stimuli_ : DataFrame
        `z1, z2, ...`, indexed by label; stimuli that someone lacks are not there.
    explained_ : DataFrame
        Share of the variance along each component, in columns `participant` and `stimulus`.
    shared_response_ : DataFrame
        One row per aligned frame (`stimulus`, `repetition`, `frame`), one column per feature, in units of the data.
    bases_ : dict of participant to array of shape (V, n_features)
        Posterior means of the participants' maps.
    means_ : dict of participant to array of shape (V,)
        The offsets b_p.
    noise_, autocorrelation_ : float
        Standard deviation of the noise, and its correlation from one frame of a trial to the next.
    scales_ : Series
        Each participant's variance, relative to the others: the mean of the logarithms is 0.
    voxel_variances_ : array of shape (V,)
        Each voxel's variance, relative to the others: the mean of the logarithms is 0.
    history_ : DataFrame
        `step` and `log_likelihood`, which never falls.
    converged_ : bool
        Whether the fit settled within `n_iter` iterations.
    left_out_ : list of str
        Stimuli that some participant lacks.
    n_parameters_ : int
        Numbers in the offsets, the shared response, the scales and the variances, and two for the noise.
    """

    _: KW_ONLY
    n_iter: int = 50
    tol: float = 1e-6

    def _check_settings(self) -> None:
        super()._check_settings()
        if isinstance(self.tol, bool) or not isinstance(self.tol, int | float | np.number) or not self.tol >= 0:
            raise ModelError(f"tol={self.tol!r}: must be a number, 0 or greater")

    def _check_size(self, aligned: Aligned, n_taken: int = 2) -> None:
        super()._check_size(aligned, n_taken)
        _require_variance(aligned)

    def _fit(self, aligned: Aligned) -> SharedResponse:
        at, history, converged = self._climb(aligned)
        means, bases, projections = {}, {}, {}
        for who, mean, frames in aligned.centred():
            means[who], bases[who] = mean + at.offset @ frames, at.expected_basis(frames)
            projections[who] = _least_squares(bases[who], at.variances)
        others = {
            "means_": means,
            "noise_": float(np.sqrt(at.temporal.noise)),
            "autocorrelation_": at.temporal.whitening.correlation,
            "scales_": pd.Series(at.scales, index=pd.Index(aligned.participants, name="participant")),
            "voxel_variances_": at.variances,
            "converged_": converged,
        }
        response = at.temporal.response
        n_parameters = (len(means) + 1) * len(at.variances) + response.size + len(at.scales) + 2
        table = iteration_table(history, "log_likelihood")
        return SharedResponse(response, bases, projections, means, table, n_parameters, others)

    def _climb(self, aligned: Aligned) -> tuple[MatrixNormal, list[float], bool]:
        at, history = start_matrix_normal(aligned, self.n_features), [-np.inf]
        enough = self.tol * len(aligned.participants) * aligned.n_frames * aligned.study.n_voxels
        for _ in range(self.n_iter):
            at, value = climb(aligned, at)
            history.append(value)
            if history[-1] - history[-2] < enough:
                return at, history[1:], True
        logger.warning("MNSRM has not converged after n_iter=%d iterations; increase n_iter", self.n_iter)
        return at, history[1:], False


def _least_squares(basis: Array, variances: Array) -> Array:
    """Take frames into the shared space: D^-1 B (B^T D^-1 B)^-1, [V, K]; voxels count by their precision."""
    weighted = basis / variances[:, None]
    return weighted @ np.linalg.pinv(basis.T @ weighted, hermitian=True)


def _require_variance(aligned: Aligned) -> None:
    """Refuse voxels that never change in the aligned frames: their variance would be 0, the likelihood unbounded."""
    changes = np.zeros(aligned.study.n_voxels, dtype=bool)
    for _, _, frames in aligned.centred():
        changes |= np.ptp(frames, axis=0) > 0
    constant = np.flatnonzero(~changes)
    if len(constant):
        raise StudyError(
            f"{len(constant)} voxels are constant in the aligned frames of every participant, for example voxel "
            f"{constant[0]}: leave them out of the study"
        )
