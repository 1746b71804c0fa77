"""The shared response model on aligned stimuli, and points for participants and stimuli from it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
import pandas as pd

from ntfa.baselines.aligned import Aligned
from ntfa.baselines.shared import SharedResponse, SharedResponseModel, iteration_table
from ntfa.baselines.srm_solver import (
    Fit,
    Reduced,
    fit_deterministic,
    fit_probabilistic,
    polar,
    random_bases,
    reduce_frames,
    spectral_bases,
    start_in_units,
)
from ntfa.errors import ModelError
from ntfa.seeds import as_seed

CHOICES = {"method": ("probabilistic", "deterministic"), "init": ("spectral", "random")}


@dataclass(eq=False, repr=False)
class SRM(SharedResponseModel):
    """Shared response model on aligned stimuli, then PCA: points for participants and stimuli.

    Trials are re-ordered so that stimuli line up (see `ntfa.baselines.aligned.Aligned`), and each voxel's mean over
    the aligned frames is taken off. The model finds a response that all participants share, and for each an
    orthonormal basis of maps through which it is seen. Participants are then the first principal components of their
    vectorised bases; stimuli those of their vectorised blocks of the response (see
    `ntfa.baselines.shared.stimulus_blocks`). Bases and response are known only up to a rotation, which does not
    change these scores. All are point estimates: there is no measure of uncertainty.

    Parameters
    ----------
    n_features : int, default=10
        Features of the shared response, K.
    n_iter : int, default=10
        Iterations; all are run.
    method : {"probabilistic", "deterministic"}
        Maximum likelihood by expectation maximisation, or least squares.
    init : {"spectral", "random"}
        Start at the time courses that explain most over all participants' voxels, which draws nothing; or at random
        bases, as the method is usually run, which may need hundreds of iterations.
    n_components : int, default=2
        Dimensions of the points.
    random_state : int, RandomState, Generator or None
        Seed of a random start, or what to draw it from; kept as `seed_`.

    Attributes
    ----------
    participants_, stimuli_ : DataFrame
        `z1, z2, ...`, indexed by label; stimuli that someone lacks are not there.
    explained_ : DataFrame
        Share of the variance along each component, in columns `participant` and `stimulus`.
    shared_response_ : DataFrame
        One row per aligned frame (`stimulus`, `repetition`, `frame`), one column per feature; the posterior mean, if
        probabilistic.
    bases_ : dict of participant to array of shape (V, n_features)
        Orthonormal columns.
    noise_ : Series
        Standard deviation of what is left of each participant's values.
    history_ : DataFrame
        `step` and `log_likelihood`, or `objective`: the sum of squares left (deterministic).
    left_out_ : list of str
        Stimuli that some participant lacks.
    n_parameters_ : int
        Numbers in the means and bases, and the noise and covariance (probabilistic) or response (deterministic).
    """

    _: KW_ONLY
    method: str = "probabilistic"
    init: str = "spectral"

    def _check_settings(self) -> None:
        super()._check_settings()
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ModelError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(map(repr, choices))}")

    def _fit(self, aligned: Aligned) -> SharedResponse:
        seed = as_seed(self.random_state)
        data = self._reduced(aligned)
        found = self._run(list(data.values()), seed)
        means, bases = {}, {}
        for (who, mean, frames), in_span in zip(aligned.centred(), found.bases, strict=True):
            # Orthonormal already, but for the rounding of small eigenvalues.
            means[who], bases[who] = mean, polar(frames.T @ (data[who].to_span @ in_span))
        noise = pd.Series(np.sqrt(found.noise), index=pd.Index(aligned.participants, name="participant"))
        n_parameters = sum(basis.size + len(basis) for basis in bases.values()) + self._n_others(found)
        history = iteration_table(found.history, "log_likelihood" if self.method == "probabilistic" else "objective")
        others = {"seed_": seed, "noise_": noise}
        return SharedResponse(found.response.T, bases, bases, means, history, n_parameters, others)

    def _reduced(self, aligned: Aligned) -> dict[str, Reduced]:
        data = {who: reduce_frames(frames) for who, _, frames in aligned.centred()}
        for who, one in data.items():
            rank = len(one.coordinates)
            if rank < self.n_features:
                raise ModelError(
                    f"n_features={self.n_features}: the {aligned.n_frames} aligned frames of participant {who} span "
                    f"{rank} dimensions only"
                )
        return data

    def _run(self, data: list[Reduced], seed: int) -> Fit:
        spectral = self.init == "spectral"
        bases = spectral_bases(data, self.n_features) if spectral else random_bases(data, self.n_features, seed)
        if self.method == "probabilistic":
            return fit_probabilistic(data, start_in_units(data, bases), self.n_iter)
        return fit_deterministic(data, bases, self.n_iter)

    def _n_others(self, found: Fit) -> int:
        """Count what is learned beside means and bases."""
        if self.method == "probabilistic":
            return len(found.noise) + self.n_features * (self.n_features + 1) // 2
        return found.response.size
