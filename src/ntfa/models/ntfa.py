"""Neural topographic factor analysis (NTFA; Sennesh, Khan et al., NeurIPS 2020).

z^P_p ~ N(0, I),  z^S_s ~ N(0, I)                embeddings of participants and stimuli
x_p, rho_p ~ N(eta^F(z^P_p))                     centres and log-widths of participant p's factors
W_nt ~ N(eta^W(z^P_p, z^S_s))                    weights of frame t of trial n, in which p saw s
Y_nt ~ N(W_nt F(x_p, rho_p), sigma_Y^2)          the frame
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ntfa.errors import ModelError
from ntfa.inference.bounds import Draw
from ntfa.inference.cells import Cells, Frames
from ntfa.inference.collapsed import WeightPrior
from ntfa.inference.normal import Noise, Normal, NormalPosterior, positive, unconstrained
from ntfa.inference.start import Start
from ntfa.models.arrange import Labels, Layout, places
from ntfa.models.base import TopographicModel, _as_pairs
from ntfa.models.calibration import calibrate
from ntfa.models.curvature import UncertaintyBuffers, features_of, laplace
from ntfa.models.expectations import FactorSpread, WeightSpread, image_sd
from ntfa.models.fitted import Fitted
from ntfa.models.halves import halve
from ntfa.models.module import TopographicModule, standard_normal
from ntfa.models.networks import perceptron, start_output
from ntfa.models.settings import check_count
from ntfa.models.tables import embedding_table, replace_spread
from ntfa.study import Study

logger = logging.getLogger("ntfa")

Pairs = pd.DataFrame | Sequence[tuple[str, str]]

DRAWS_FOR_EXPECTATION, DRAWS_FOR_INTERVALS = 64, 512


class NeuralFactors(TopographicModule):
    """Generative model and posterior of NTFA.

    z_participant [P, D], z_stimulus [S, D], centers [P, K, 3] and log_widths [P, K] are posteriors;
    factor_network is eta^F, weight_network is eta^W.
    """

    own = TopographicModule.own | {"z_participant": "participant"}

    def __init__(self, n_participants: int, n_stimuli: int, n_factors: int, embedding_dim: int) -> None:
        super().__init__(n_participants, n_factors)
        k, d = n_factors, embedding_dim
        self.z_participant = NormalPosterior(0.1 * torch.randn(n_participants, d), sd=0.1)
        self.z_stimulus = NormalPosterior(0.1 * torch.randn(n_stimuli, d), sd=0.1)
        self.factor_network = perceptron([d, 2 * d, 4 * d, 8 * k])
        self.weight_network = perceptron([2 * d, 4 * d, 8 * d, 2 * k])
        self.uncertainty = UncertaintyBuffers(n_participants, n_stimuli, k, d, 8 * d + 1)

    def factors_given(self, z_participant: Tensor) -> tuple[Normal, Normal]:
        """eta^F: priors of centres [P, K, 3] and log-widths [P, K], given embeddings [P, D]."""
        output = self.factor_network(z_participant).unflatten(-1, (-1, 4, 2))
        mean, sd = output[..., 0], positive(output[..., 1])
        return Normal(mean[..., :3], sd[..., :3]), Normal(mean[..., 3], sd[..., 3])

    def weights_given(self, z_participant: Tensor, z_stimulus: Tensor, cells: Cells) -> WeightPrior:
        """eta^W: prior of the weights [C, K] of each cell, given embeddings [P, D] and [S, D]."""
        return self.weights_of(torch.cat([z_participant[cells.participant], z_stimulus[cells.stimulus]], -1))

    def weights_of(self, pairs: Tensor) -> WeightPrior:
        """eta^W: prior of weights [..., K], given embeddings of participant and stimulus, [..., 2 D]."""
        output = self.weight_network(pairs).unflatten(-1, (-1, 2))
        return WeightPrior(output[..., 0], positive(output[..., 1]))

    def draw(self, cells: Cells, noise: Noise) -> Draw:
        """Draw every latent variable from its posterior."""
        z_participant = self.z_participant.draw("embeddings", standard_normal(self.z_participant.mean), noise)
        z_stimulus = self.z_stimulus.draw("embeddings", standard_normal(self.z_stimulus.mean), noise)
        priors = self.factors_given(z_participant.value)
        factors, centers, log_widths = self._draw_factors(cells, priors, noise)
        weights = self.weights_given(z_participant.value, z_stimulus.value, cells)
        return Draw([z_participant, z_stimulus, *factors], centers, log_widths, weights, self.noise_sd)

    def draw_shared(self, noise: Noise) -> Tensor:
        """Draw the stimuli's embeddings, which all participants share."""
        return self.z_stimulus.normal.sample(noise)

    def draw_own(self, cells: Cells, shared: Tensor, noise: Noise, from_prior: bool) -> Draw:
        """Draw the participants' embeddings, and their factors from eta^F or from their posterior."""
        z_participant = self.z_participant.normal.sample(noise)
        priors = self.factors_given(z_participant[cells.owner])
        centers, log_widths = self._new_factors(cells, priors, noise, from_prior)
        return Draw([], centers, log_widths, self.weights_given(z_participant, shared, cells), self.noise_sd)

    def expected(self, cells: Cells) -> Draw:
        """Factors at their posterior mean, weights' prior averaged over the embeddings' posteriors.

        And over all stimuli, each as likely as any, for cells whose stimulus is not known (-1).
        """
        noise, possible = Noise(0), self._possible(cells)
        priors = [
            self.weights_given(self.z_participant.normal.sample(noise), self.draw_shared(noise), of_stimulus)
            for _ in range(-(-DRAWS_FOR_EXPECTATION // len(possible)))
            for of_stimulus in possible
        ]
        means = torch.stack([prior.mean for prior in priors])
        mean = means.mean(0)
        sd = torch.stack([prior.sd.square() for prior in priors]).mean(0).sqrt()
        # All frames of a cell share embeddings and stimulus: what is uncertain about their mean is one effect for all.
        weights = WeightPrior(mean, sd, effect_sd=(means - mean).square().mean(0).sqrt())
        return Draw([], self.centers.mean[cells.owner], self.log_widths.mean[cells.owner], weights, self.noise_sd)

    def covariances(self) -> tuple[Tensor, Tensor]:
        """Covariances of the embeddings, [P, D, D] and [S, D, D]: worked out after the fit, or q's if that was not."""
        if self.uncertainty.is_known:
            return self.uncertainty.participants, self.uncertainty.stimuli
        of_participants, of_stimuli = (torch.diag_embed(z.normal.sd**2) for z in (self.z_participant, self.z_stimulus))
        return of_participants, of_stimuli

    def factor_sds(self) -> tuple[Tensor, Tensor]:
        """Sds of centres [P, K, 3] and log-widths [P, K], likewise."""
        if self.uncertainty.is_known:
            return self.uncertainty.centers_sd, self.uncertainty.log_widths_sd
        return self.centers.normal.sd, self.log_widths.normal.sd

    @torch.no_grad()
    def weights_spread(self, participant: int, stimulus: int, n_frames: int | None) -> WeightSpread:
        """Mean weights of a pair, and how uncertain they are; or, of `n_frames` frames, how uncertain their average."""
        noise, draws = Noise(0), []
        for z, covariances, place in zip(
            (self.z_participant, self.z_stimulus), self.covariances(), (participant, stimulus), strict=True
        ):
            root = torch.linalg.cholesky(covariances[place])
            draws.append(z.mean[place] + noise.like(root.new_empty(DRAWS_FOR_INTERVALS, len(root))) @ root.mT)
        weights = self.weights_of(torch.cat(draws, -1))
        pair = torch.cat([self.z_participant.mean[participant], self.z_stimulus.mean[stimulus]])
        features = features_of(self.weight_network, pair[None])[0]
        learned = features @ self.uncertainty.feature_spread @ features * self.uncertainty.weights_variance
        covariance = torch.atleast_2d(torch.cov(weights.mean.mT)) + torch.diag(learned)
        if n_frames is not None:
            covariance = covariance + torch.diag(weights.sd.square().mean(0) / n_frames)
        return WeightSpread(weights.mean.mean(0), covariance)

    def _possible(self, cells: Cells) -> list[Cells]:
        """Return the cells once for every stimulus that those without one may have shown."""
        unknown = cells.stimulus < 0
        if not bool(unknown.any()):
            return [cells]
        n_stimuli = len(self.z_stimulus.mean)
        return [replace(cells, stimulus=torch.where(unknown, s, cells.stimulus)) for s in range(n_stimuli)]

    @torch.no_grad()
    def start_at(self, start: Start, cells: Cells) -> None:
        """Start networks at the initial factors and weights, embeddings at what tells those weights apart.

        Factors that were not found from the data say little of the weights; embeddings then stay near zero.
        """
        super().start_at(start, cells)
        factors = torch.cat([start.centers, start.log_widths.unsqueeze(-1)], -1)
        sd = unconstrained(torch.full_like(factors, 0.02))
        start_output(self.factor_network, torch.stack([factors, sd], -1), spread=0.1)
        weights = torch.stack([start.cell_weights.mean(0), unconstrained(start.weights_sd)], -1)
        start_output(self.weight_network, weights, spread=1.0)
        if not start.from_data:
            return
        responses = _response_table(start.cell_weights, cells, len(self.z_participant.mean), len(self.z_stimulus.mean))
        _start_embedding(self.z_participant, responses.flatten(1))
        _start_embedding(self.z_stimulus, responses.transpose(0, 1).flatten(1))

    def network_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of eta^F and eta^W."""
        yield from self.factor_network.parameters()
        yield from self.weight_network.parameters()


def _response_table(cell_weights: Tensor, cells: Cells, n_participants: int, n_stimuli: int) -> Tensor:
    """Mean weights of every participant to every stimulus [P, S, K]; unseen pairs filled in additively."""
    table = cell_weights.new_full((n_participants, n_stimuli, cell_weights.shape[1]), torch.nan)
    table[cells.participant, cells.stimulus] = cell_weights
    overall = table.nanmean((0, 1), keepdim=True)
    additive = table.nanmean(1, keepdim=True) + table.nanmean(0, keepdim=True) - overall
    return torch.where(table.isnan(), additive, table)


def _start_embedding(posterior: NormalPosterior, responses: Tensor) -> None:
    """Principal components of the responses (a row each), the first scaled to unit variance like the prior."""
    centred = (responses - responses.mean(0)).cpu()
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    n_used = min(posterior.mean.shape[1], len(values))
    scale = len(responses) ** 0.5 / values[0].clamp(min=1e-12)
    components = left[:, :n_used] * values[:n_used] * scale
    # A singular vector's sign is arbitrary, and differs between machines unless it is settled here.
    components *= components.gather(0, components.abs().argmax(0, keepdim=True)).sign()
    posterior.mean[:, :n_used] = components.to(posterior.mean.device)


@dataclass(eq=False)
class NTFA(TopographicModel):
    """Neural topographic factor analysis: embeddings of participants and stimuli, with uncertainty.

    Finds K Gaussian blobs whose places, widths and activity small networks predict from a low-dimensional embedding of
    each participant and each stimulus.

    Parameters
    ----------
    n_factors : int
        Number of blobs, K.
    embedding_dim : int
        Dimensions of the embeddings, D.
    inference : {"collapsed", "mean-field"}
        Integrate the weights out exactly, or sample them from a posterior of their own for every frame, as the paper
        did.
    init : {"pursuit", "kmeans"}
        Start with factors found by matching pursuit in the data, and embeddings at the principal components of their
        weights; or with K-means on voxel positions and embeddings near zero, as the paper did.
    n_particles : int
        Particles of the importance-weighted bound; one is the ELBO.
    schedule : {"one-cycle", "paper"}
        How learning rates change; see docs/model.md.
    max_epochs : int
        Most steps to take; every step sees the whole study.
    n_restarts : int
        Fits from this many random starts and keeps the one with the best bound.
    noise : {"same", "voxel"}
        One noise sd for all voxels; or one for each, in proportion to how much its frames vary around the mean of their
        participant and stimulus. The second pays where voxels have not been standardised and differ in noise; see
        docs/robustness.md.
    uncertainty : {"calibrated", "laplace", "mean-field"}
        Where the sds and covariances of embeddings and factors come from. "calibrated": a second fit, to halves of
        every participant's and stimulus' trials, tells how far apart noise alone puts two that are identical; it takes
        as long as the first, or up to twice as long. "laplace": the curvature at the fit, which is too sure if the
        model is not quite right or participants are few. "mean-field": the fitted posterior, as in the paper, surer
        still. See docs/calibration.md.
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
        Embeddings: a row a label; `z1, z2, ...`, `z1_sd, z2_sd, ...` and `z1_z2_cov, ...` (none of these with
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

    def _settle(self, module: TopographicModule, study: Study, frames: Frames, labels: Labels) -> None:
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
        logger.info("NTFA: fitting halves of participants and stimuli, to see how far apart noise alone puts them")
        halved = self._like_this(uncertainty="laplace").fit(halves.study)._fitted.module
        assert isinstance(halved, NeuralFactors)
        module.uncertainty.remember(calibrate(module, module.uncertainty.recalled(), halved, halves))

    def _like_this(self, **params: Any) -> NTFA:
        """Make an estimator with the same settings, but for these, that starts once, from the same seed always."""
        return NTFA(**self.get_params() | {"n_restarts": 1, "random_state": 0} | params)

    def _hang(self, fitted: Fitted) -> None:
        super()._hang(fitted)
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
        `raised`: by how much the variances the fit itself gives were multiplied, on average. `n_halved`: how many had
        trials enough to be halved. All missing where that was not asked for, or where too few could be halved.
        """
        module = self._require_fitted().module
        assert isinstance(module, NeuralFactors)
        summary = module.uncertainty.summary.cpu()
        table = pd.DataFrame(summary.numpy(), ["participants", "stimuli"], ["reliability", "raised", "n_halved"])
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

        A table with a row a pair and a column a factor; with `return_sd`, also one of standard deviations of the mean,
        which is what many trials would average to.
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
        participants = places("participant", [participant for participant, _ in named], fitted.labels.participants)
        stimuli = places("stimulus", [stimulus for _, stimulus in named], fitted.labels.stimuli)
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
        participants = places("participant", [who for who, _ in _as_pairs(pairs)], fitted.labels.participants)
        sds = [
            image_sd(spread, FactorSpread(*(part[p] for part in factors)), voxels, noise_sd) * units.intensity
            for p, spread in zip(participants.tolist(), self._weight_spreads(pairs, n_frames), strict=True)
        ]
        return torch.stack(sds).cpu().numpy().astype(np.float32)
