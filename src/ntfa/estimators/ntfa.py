"""The estimator of neural topographic factor analysis; its equations are in `ntfa.models.ntfa`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel, _as_pairs
from ntfa.estimators.expectations import FactorSpread, image_sd
from ntfa.estimators.result import Fitted
from ntfa.estimators.settings import check_count
from ntfa.estimators.tables import embedding_table, replace_spread
from ntfa.fitting.arrange import Labels, Layout, label_indices
from ntfa.inference.cells import Frames
from ntfa.models.module import TopographicModule
from ntfa.models.ntfa import NeuralFactors
from ntfa.models.spread import WeightSpread
from ntfa.study import Study
from ntfa.uncertainty.calibration import calibrate
from ntfa.uncertainty.curvature import laplace
from ntfa.uncertainty.halves import halve

logger = logging.getLogger("ntfa")

Pairs = pd.DataFrame | Sequence[tuple[str, str]]


@dataclass(eq=False)
class NTFA(TopographicModel):
    """Neural topographic factor analysis: embeddings of participants and stimuli, with uncertainty.

    Estimates K Gaussian factors; neural networks predict their centres, widths and weights from a low-dimensional
    embedding of each participant and each stimulus.

    Parameters
    ----------
    n_factors : int
        Number of factors, K.
    embedding_dim : int
        Dimensions of the embeddings, D.
    inference : {"collapsed", "mean-field"}
        Marginalise the weights exactly; or sample them from a fully factorised posterior, as in the paper.
    init : {"pursuit", "kmeans"}
        Start with factors found by matching pursuit in the data, and embeddings at the principal components of their
        weights; or with K-means on voxel positions and embeddings near zero, as the paper did.
    n_particles : int
        Particles of the importance-weighted bound; one is the ELBO.
    schedule : {"one-cycle", "paper"}
        How learning rates change; see docs/model.md.
    max_epochs : int
        Maximum number of steps; every step uses the whole study.
    n_restarts : int
        Fits from this many random starts and keeps the one with the best bound.
    noise : {"same", "voxel"}
        One noise sd for all voxels; or one for each, in proportion to how much its frames vary around the mean of their
        participant and stimulus. The second pays where voxels have not been standardised and differ in noise; see
        docs/robustness.md.
    uncertainty : {"calibrated", "laplace", "mean-field"}
        How sds and covariances of embeddings and factors are estimated. "calibrated": a second fit, to split halves of
        the trials of every participant and stimulus, shows how far estimates of the same embedding differ by noise; it
        takes as long as the first, or up to twice as long. "laplace": a Laplace approximation at the fit, which is
        overconfident if the model is misspecified or participants are few. "mean-field": the variational posterior, as
        in the paper, which is more overconfident. See docs/calibration.md.
    coarse : {"auto", "always", "never"}
        Whether most steps are taken on pooled voxels; "auto" does so in large studies of small voxels.
    memory : str, int or None
        Memory to stay within, such as "2GB" or a number of bytes: frames of a saved study are then read from disk as
        they are needed.
    device : {"auto", "cpu", "cuda"}
    random_state : int or None
        Seed; None draws one, which is recorded in `seed_`.
    verbose : int
        0 is silent, 1 shows progress.

    Attributes
    ----------
    participants_, stimuli_ : DataFrame
        Embeddings: one row per label; `z1, z2, ...`, `z1_sd, z2_sd, ...` and `z1_z2_cov, ...` (none of these with
        `uncertainty="mean-field"`).
    factors_ : DataFrame
        `participant, factor, x, y, z, width` in mm, each number with its `_sd`. The width is the radius at which a
        factor has fallen to 1/e.
    noise_ : float
        Standard deviation of a voxel around its mean; with `noise="voxel"` the geometric mean over voxels.
    voxel_noise_ : array of shape (V,)
        The same, of each voxel.
    history_ : DataFrame
        `step, seconds, bound` (nats) and the bound's parts.
    n_parameters_ : int
        Number of parameters as the paper counts them, those of q(W) included even if the weights are integrated out.
    converged_ : bool
        Whether the bound stopped rising before `max_epochs`.
    """

    _: KW_ONLY
    embedding_dim: int = 2
    uncertainty: str = "calibrated"

    @property
    def _layout(self) -> Layout:
        return Layout(own_factors="participant", own_weights="cell")

    def _module(self, labels: Labels) -> NeuralFactors:
        return NeuralFactors(len(labels.participants), len(labels.stimuli), self.n_factors, self.embedding_dim)

    def _estimate_uncertainty(self, module: TopographicModule, study: Study, frames: Frames, labels: Labels) -> None:
        """Work out what is uncertain about embeddings and factors, given the fit."""
        assert isinstance(module, NeuralFactors)
        if self.uncertainty != "mean-field":
            module.uncertainty.remember(laplace(module, frames.cells, frames.coordinates, frames.weights))

    def _calibrate(self, module: TopographicModule, study: Study) -> None:
        """See how far apart noise alone puts halves of the same participant or stimulus."""
        assert isinstance(module, NeuralFactors)
        if self.uncertainty != "calibrated":
            return
        halves = halve(study)
        logger.info(
            "NTFA: fitting split halves of participants and stimuli, to calibrate the uncertainty of embeddings"
        )
        halved = self._like_this(uncertainty="laplace").fit(halves.study)._fitted.module
        assert isinstance(halved, NeuralFactors)
        module.uncertainty.remember(calibrate(module, module.uncertainty.recalled(), halved, halves))

    def _like_this(self, **params: Any) -> NTFA:
        """Make an estimator with the same settings, but for these, that starts once, from the same seed always."""
        return NTFA(**self.get_params() | {"n_restarts": 1, "random_state": 0} | params)

    def _set_fitted_attributes(self, fitted: Fitted) -> None:
        super()._set_fitted_attributes(fitted)
        module, labels = fitted.module, fitted.labels
        assert isinstance(module, NeuralFactors)
        of_participants, of_stimuli = module.covariances() if module.uncertainty.is_known else (None, None)
        self.participants_ = embedding_table(module.z_participant, labels.participants, "participant", of_participants)
        self.stimuli_ = embedding_table(module.z_stimulus, labels.stimuli, "stimulus", of_stimuli)
        self.factors_ = replace_spread(self.factors_, *module.factor_sds(), fitted.units)

    @property
    def calibration_(self) -> pd.DataFrame:
        """How the uncertainty of the embeddings was found, a row for participants and one for stimuli.

        `reliability`: share of the variance between embeddings that is not noise, by halves of each one's trials.
        `variance_inflation`: by how much the variances the fit itself gives were multiplied, on average. `n_halved`:
        how many had enough trials to be split. All missing where that was not asked for, or where too few could be
        halved.
        """
        module = self._require_fitted().module
        assert isinstance(module, NeuralFactors)
        summary = module.uncertainty.summary.cpu()
        table = pd.DataFrame(
            summary.numpy(), ["participants", "stimuli"], ["reliability", "variance_inflation", "n_halved"]
        )
        return table.where(table["n_halved"] > 0)

    def predict(  # type: ignore[override]
        self, pairs: Pairs, *, return_sd: bool = False, n_frames: int | None = None
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Posterior-predictive mean images of (participant, stimulus) pairs, seen together or not, [n, V].

        Parameters
        ----------
        pairs : DataFrame with columns `participant` and `stimulus`, or list of (participant, stimulus)
        return_sd : bool
            Also return standard deviations, [n, V]: of the mean image itself, which is what many trials would average
            to; or, with `n_frames`, of the average of so many frames that may be recorded.
        n_frames : int, optional
            Length of the trial that the standard deviations are for.
        """
        images = super().predict(pairs)
        if not return_sd:
            return images
        if n_frames is not None:
            check_count("n_frames", n_frames)
        return images, self._image_sds(pairs, n_frames)

    def predict_weights(self, pairs: Pairs, *, return_sd: bool = False) -> Any:
        """Mean weights of each factor for (participant, stimulus) pairs, seen together or not.

        A table with one row per pair and one column per factor; with `return_sd`, also one of standard deviations of
        the mean, which is what many trials would average to.
        """
        spreads = self._weight_spreads(pairs, None)
        named = pd.MultiIndex.from_tuples(_as_pairs(pairs), names=["participant", "stimulus"])
        columns = pd.RangeIndex(1, self._require_fitted().params["n_factors"] + 1, name="factor")
        intensity = self._require_fitted().units.intensity
        parts = [(spread.mean, spread.covariance.diagonal().sqrt()) for spread in spreads]
        mean, sd = (
            pd.DataFrame((torch.stack(part) * intensity).cpu().numpy(), index=named, columns=columns)
            for part in zip(*parts, strict=True)
        )
        return (mean, sd) if return_sd else mean

    def _weight_spreads(self, pairs: Pairs, n_frames: int | None) -> list[WeightSpread]:
        fitted = self._require_fitted()
        assert isinstance(fitted.module, NeuralFactors)
        named = _as_pairs(pairs)
        if not named:
            raise ModelError("there are no pairs to predict")
        participants = label_indices(
            "participant", [participant for participant, _ in named], fitted.labels.participants
        )
        stimuli = label_indices("stimulus", [stimulus for _, stimulus in named], fitted.labels.stimuli)
        both = zip(participants.tolist(), stimuli.tolist(), strict=True)
        return [fitted.module.weights_spread(p, s, n_frames) for p, s in both]

    def _image_sds(self, pairs: Pairs, n_frames: int | None) -> np.ndarray:
        fitted = self._require_fitted()
        module, units = fitted.module, fitted.units
        assert isinstance(module, NeuralFactors)
        voxels = units.standardise(torch.from_numpy(fitted.coordinates)).to(module.noise_sd)
        scales = torch.from_numpy(fitted.scales).to(module.noise_sd)
        noise_sd = None if n_frames is None else module.noise_sd.detach() * scales / n_frames**0.5
        factors = [part.detach() for part in (module.centers.mean, module.log_widths.mean, *module.factor_sds())]
        participants = label_indices("participant", [who for who, _ in _as_pairs(pairs)], fitted.labels.participants)
        sds = [
            image_sd(spread, FactorSpread(*(part[p] for part in factors)), voxels, noise_sd) * units.intensity
            for p, spread in zip(participants.tolist(), self._weight_spreads(pairs, n_frames), strict=True)
        ]
        return torch.stack(sds).cpu().numpy().astype(np.float32)
