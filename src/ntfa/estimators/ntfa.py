"""The estimator of neural topographic factor analysis; its equations are in `ntfa.models.ntfa`."""

from __future__ import annotations

import logging
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ntfa.contract import Pairs, as_pairs
from ntfa.errors import ModelError
from ntfa.estimators.adding import AddingModel
from ntfa.estimators.choosing import Choice, choose_once, presumed
from ntfa.estimators.contrasts import Contrast, Contraster
from ntfa.estimators.densities import participant_densities
from ntfa.estimators.expectations import FactorSpread, image_sd
from ntfa.estimators.found import LoadingResults
from ntfa.estimators.individual import (
    condition_on_frames,
    without_detail,
)
from ntfa.estimators.result import Fitted
from ntfa.estimators.sessions import split_sessions
from ntfa.estimators.settings import warn_of_single_runs
from ntfa.estimators.tables import embedding_table, replace_spread
from ntfa.estimators.trials import USUAL_DIM
from ntfa.fitting.arrange import Labels, Layout
from ntfa.fitting.optimise import Recipe
from ntfa.fitting.task import Task
from ntfa.inference.bounds import Likelihood
from ntfa.inference.coverage import lacked_by_all
from ntfa.inference.frames import Frames
from ntfa.inference.loadings import LoadingsLikelihood
from ntfa.inference.start import Start
from ntfa.models.loadings import LoadingFactors
from ntfa.models.module import TopographicModule
from ntfa.models.ntfa import NeuralFactors
from ntfa.models.spread import WeightSpread
from ntfa.progress import stage
from ntfa.study import Study
from ntfa.study.atlas import Atlas
from ntfa.uncertainty.calibration import calibrate, degrees_of_freedom
from ntfa.uncertainty.curvature import laplace
from ntfa.uncertainty.differences import DEGREES_OF_FREEDOM
from ntfa.uncertainty.halves import halve

logger = logging.getLogger("ntfa")


@dataclass(eq=False, repr=False)
class NTFA(LoadingResults, AddingModel):
    """Neural topographic factor analysis: embeddings of participants and stimuli, with uncertainty.

    Estimates K Gaussian factors; neural networks predict their centres, widths and weights from a low-dimensional
    embedding of each participant and each stimulus.

    Parameters
    ----------
    n_factors : int or "auto"
        Number of factors, K. "auto": the fewest that predict left-out pairs as well as any number up to 100 does.
    embedding_dim : int, (int, int) or "auto"
        Dimensions of the embeddings: of both, or of participants and of stimuli separately. "auto": the number for
        stimuli that best predicts left-out pairs, and the number for participants that is reliable.
    response : {"auto", "loadings", "network"}
        How participants differ. "loadings": factors have the same positions in all participants, and each participant
        has individual loadings, marginalised exactly; best on all real studies tried so far. "network": the model of
        the paper, with individual factors and networks of both embeddings. "auto" chooses the one that better predicts
        pairs left out of a small version of the study, and the network wherever another setting of the paper
        (`inference="mean-field"`, `n_particles`, `schedule="paper"`, `init="kmeans"`) is asked for.
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
    frames : {"robust", "equal"}
        Let frames that lie far from their participant's others, as movement makes them, count less; or let all count
        the same. See docs/robustness.md.
    uncertainty : {"calibrated", "laplace", "mean-field"}
        How sds and covariances of embeddings and factors are estimated. "calibrated": a second fit, to split halves of
        the trials of every participant and stimulus, shows how far estimates of the same embedding differ by noise; it
        takes as long as the first, or up to twice as long. "laplace": a Laplace approximation at the fit, which is
        overconfident if the model is misspecified or participants are few. "mean-field": the variational posterior, as
        in the paper, which is more overconfident. See docs/calibration.md.
    coarse : {"auto", "always", "never"}
        Whether most steps are taken on pooled voxels; "auto" does so in large studies whose voxels
        are small, or small beside their factors.
    memory : str, int or None
        Memory to stay within, such as "2GB" or a number of bytes: frames of a saved study are then read from disk as
        they are needed.
    device : {"auto", "cpu", "cuda"}
    random_state : int, RandomState, Generator or None
        Seed. A source of random numbers gives a new one at every fit, and None takes one from the system; which it was
        is recorded in `seed_`.
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
    response_, choice_reason_ : str
        The response model that was taken, and why.
    n_factors_ : int
        The number of factors.
    tried_ : DataFrame
        With `n_factors="auto"`: numbers of factors that were tried, and their errors; see docs/choosing.md.
    history_ : DataFrame
        `step, seconds, bound` (nats) and the bound's parts.
    restarts_ : DataFrame
        With `n_restarts` of 2 or more: `bound` of each start, whether it was `kept`, and how its embeddings correlate
        with the kept one's.
    frames_ : DataFrame
        With `frames="robust"`: `participant, trial, stimulus, frame, distance, weight` of each frame of a trial, and
        `session`, `run` and `framewise_displacement` (mm) where they are known. Spoiled frames have a weight below 1.
    n_parameters_ : int
        Number of parameters as the paper counts them, those of q(W) included even if the weights are integrated out.
    converged_ : bool
        Whether the bound stopped rising before `max_epochs`.
    newcomers_, retests_ : DataFrame
        After `add`: who was added, and how far new sessions of known participants lie from the first.
    """

    n_factors: int | str = "auto"
    _: KW_ONLY
    embedding_dim: int | tuple[int, int] | str = "auto"
    response: str = "auto"
    uncertainty: str = "calibrated"

    @property
    def _layout(self) -> Layout:
        return Layout(own_factors="participant", own_weights="cell")

    def _choose(self, study: Study, checkpoint: Path | None) -> None:
        what = "number of factors, response model" if self.n_factors == "auto" else "response model"
        with stage(f"NTFA: choosing {what} and dimensions"):
            self._choice = choose_once(self, study, checkpoint)

    def _chosen(self) -> dict[str, Any] | None:
        return self._choice.to_json()

    def _take_choice(self, chosen: dict[str, Any] | None) -> None:
        self._choice = Choice.from_json(chosen, self.embedding_dim, self.n_factors)

    @property
    def _k(self) -> int:
        return (getattr(self, "_choice", None) or presumed(self)).n_factors

    def _module(self, labels: Labels) -> NeuralFactors | LoadingFactors:
        choice = getattr(self, "_choice", None) or presumed(self)
        sizes = (len(labels.participants), len(labels.stimuli), choice.n_factors)
        if choice.response == "network":
            return NeuralFactors(*sizes, choice.participant_dim or USUAL_DIM, choice.stimulus_dim)
        return LoadingFactors(*sizes, choice.participant_dim or USUAL_DIM, choice.stimulus_dim)

    def _expected_sizes(self, known: Labels) -> dict[str, tuple[int, ...]]:
        choice, k = self._choice, self._k
        stimuli = {"z_stimulus.mean": (len(known.stimuli), choice.stimulus_dim)}
        if choice.response == "loadings":
            return stimuli | {
                "centers.mean": (1, k, 3),
                "loadings": (len(known.participants), choice.stimulus_dim + 1, k),
                "embeddings.participants": (len(known.participants), choice.participant_dim or 0),
            }
        participants = {"z_participant.mean": (len(known.participants), choice.participant_dim or 0)}
        return super()._expected_sizes(known) | stimuli | participants

    def _likelihood(self, frames: Frames, start: Start) -> Likelihood:
        return LoadingsLikelihood(frames) if self._choice.response == "loadings" else super()._likelihood(frames, start)

    def _recipe(self, labels: Labels, seed: int) -> Recipe:
        return replace(super()._recipe(labels, seed), kept_factors=getattr(self, "_kept_factors", None))

    def _estimate_uncertainty(self, module: TopographicModule, study: Study, task: Task) -> None:
        """Work out what is uncertain about embeddings and factors, given the fit."""
        if isinstance(module, LoadingFactors):
            condition_on_frames(module, task, self._choice.participant_dim)
            self._choice = replace(self._choice, participant_dim=module.embeddings.participants.shape[1])
        elif isinstance(module, NeuralFactors) and self.uncertainty != "mean-field":
            frames = task.frames
            lacked = lacked_by_all(frames, task.sharing.processes)
            module.uncertainty.remember(laplace(module, task.cells, frames.coordinates, frames.weights, lacked))
        if isinstance(module, NeuralFactors | LoadingFactors) and not getattr(self, "_is_helper", False):
            module.density = participant_densities(module, task.frames, task.sharing)

    def _calibrate(self, module: TopographicModule, study: Study, checkpoint: Path | None) -> None:
        """See how far apart noise alone puts halves of the same participant or stimulus."""
        if self.uncertainty != "calibrated":
            return
        warn_of_single_runs(study)
        halves = halve(study)
        logger.info(
            "NTFA: fitting split halves of participants and stimuli, to calibrate the uncertainty of embeddings"
        )
        own_checkpoint = None if checkpoint is None else checkpoint / "halves"
        halved = self._refit(module, halves.study, own_checkpoint)._fitted.module
        calibrate(module, halved, halves)

    def _refit(self, module: TopographicModule, study: Study, checkpoint: Path | None = None) -> NTFA:
        """Fit the same model to a study of other participants, with factors in the same places if all share them."""
        choice = self._choice
        dims = (choice.participant_dim, choice.stimulus_dim)
        like_this = self._like_this(
            uncertainty="laplace", response=choice.response, embedding_dim=dims, n_factors=choice.n_factors
        )
        if isinstance(module, LoadingFactors):
            # Factors in the same places for all say little of what is noise in anybody's embedding. Without moving
            # them a step needs no frames, and pooling voxels would save nothing.
            like_this.coarse = "never"
            like_this._kept_factors = (module.centers.mean.detach()[0], module.log_widths.mean.detach()[0])
        return like_this.fit(study, checkpoint=checkpoint)

    def embed_sessions(self, study: Study) -> pd.DataFrame:
        """Embeddings of every session of every participant by itself, one row per `participant` and `session`.

        Fits again, to `study` with each session as a participant: seconds with individual loadings, whose factors stay
        in place; with networks about as long as the first fit. Axes are not those of `participants_`.
        `ntfa.analyses.retest` says from the result how reliable embeddings are from session to session.

        Parameters
        ----------
        study : Study
            What the model was fitted to; its trials have a column `session`.
        """
        module = self._require_fitted().module
        sessions, whose = split_sessions(study)
        return self._refit(module, sessions).participants_.set_axis(whose)

    def _like_this(self, **params: Any) -> NTFA:
        """Make an estimator with the same settings, but for these, that starts once, from the same seed always."""
        like_this = NTFA(**self.get_params() | {"n_restarts": 1, "random_state": 0} | params)
        like_this._is_helper = True
        return like_this

    def _set_fitted_attributes(self, fitted: Fitted) -> None:
        super()._set_fitted_attributes(fitted)
        module, labels = fitted.module, fitted.labels
        assert isinstance(module, NeuralFactors | LoadingFactors)
        participants, stimuli = module.embedded()
        self.participants_ = embedding_table(participants, labels.participants, "participant")
        self.stimuli_ = embedding_table(stimuli, labels.stimuli, "stimulus")
        overfits, halved = isinstance(module, NeuralFactors), module.calibration[:, 2].int().tolist()
        for embedded, table, n in zip(module.embedded(), (self.participants_, self.stimuli_), halved, strict=True):
            if n:
                table.attrs[DEGREES_OF_FREEDOM] = degrees_of_freedom(n, embedded.mean.shape[1], overfits)
        self._set_factors(replace_spread(self._factors, *module.factor_sds(), fitted.units), fitted)
        self.response_, self.choice_reason_ = self._choice.response, self._choice.reason
        self.n_factors_ = self._choice.n_factors
        self.__dict__.pop("tried_", None)
        if self._choice.sizing:
            self.tried_ = pd.DataFrame(self._choice.sizing["tried"])
        self._set_newcomers(fitted.newcomers)

    def _n_parameters(self, module: TopographicModule, study: Study) -> int:
        count = super()._n_parameters(module, study)
        if not isinstance(module, LoadingFactors):
            return count
        # Half of the mixing matrix is fixed; the family would have a q of every loading.
        return count - self._k * (self._k + 1) // 2 + 2 * module.loadings.numel()

    def _mean_images(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        images = super()._mean_images(pairs)
        for image, (p, s) in zip(images, self._pair_indices(pairs), strict=True):
            detail = self._detail_image(p, s)
            if detail is not None:
                image += detail
        return images

    def _factor_images(self, pairs: Pairs) -> np.ndarray:
        """What factors alone predict, without maps of detail."""
        return super()._mean_images(as_pairs(pairs))

    def _detail_image(self, participant: int, stimulus: int) -> np.ndarray | None:
        module = self._require_fitted().module
        detail = module.detail_image(participant, stimulus) if isinstance(module, LoadingFactors) else None
        return None if detail is None else detail.cpu().numpy()

    def _as_scored(self, study: Study) -> Study:
        module = self._require_fitted().module
        if isinstance(module, LoadingFactors) and module.detail_group is not None:
            return without_detail(study, self._fitted)
        return study

    def predict_weights(self, pairs: Pairs, *, return_sd: bool = False) -> Any:
        """Mean weights of each factor for (participant, stimulus) pairs, seen together or not.

        A table with one row per pair and one column per factor; with `return_sd`, also one of standard deviations of
        the mean, which is what many trials would average to.
        """
        spreads = self._weight_spreads(pairs, None)
        named = pd.MultiIndex.from_tuples(as_pairs(pairs), names=["participant", "stimulus"])
        columns = pd.RangeIndex(1, self._require_fitted().n_factors + 1, name="factor")
        intensity = self._require_fitted().units.intensity
        parts = [(spread.mean, spread.covariance.diagonal().sqrt()) for spread in spreads]
        mean, sd = (
            pd.DataFrame((torch.stack(part) * intensity).cpu().numpy(), index=named, columns=columns)
            for part in zip(*parts, strict=True)
        )
        return (mean, sd) if return_sd else mean

    def contrast(
        self,
        pairs_a: Pairs,
        pairs_b: Pairs,
        *,
        population: bool = False,
        alpha: float = 0.05,
        atlas: Atlas | None = None,
    ) -> Contrast:
        """How the mean predicted maps of two sets of (participant, stimulus) pairs differ, with sd and z.

        Within a person, between people or between stimuli: whatever the pairs say, seen together or not.

        Parameters
        ----------
        pairs_a, pairs_b : DataFrame with columns `participant` and `stimulus`, or list of (participant, stimulus)
        population : bool
            Whether sds are about the people that these come from (random effects: how people differ counts, and each
            person counts the same), instead of these people. The same people must then be in both sets, or none.
        alpha : float
            False discovery rate of `threshold`.
        atlas : Atlas, optional
            Gives the table of factors names of regions: `Atlas.open(image, labels)`.
        """
        contraster = Contraster(self._require_fitted(), self.factors_, self._mean_images)
        return contraster.contrast(pairs_a, pairs_b, population, alpha, atlas)

    def _pair_indices(self, pairs: Pairs) -> list[tuple[int, int]]:
        participants, stimuli = self._require_fitted().pair_indices(as_pairs(pairs))
        return list(zip(participants.tolist(), stimuli.tolist(), strict=True))

    def _weight_spreads(self, pairs: Pairs, n_frames: int | None) -> list[WeightSpread]:
        module = self._require_fitted().module
        assert isinstance(module, NeuralFactors | LoadingFactors)
        if not as_pairs(pairs):
            raise ModelError("there are no pairs to predict")
        return [module.weights_spread(p, s, n_frames) for p, s in self._pair_indices(pairs)]

    def _image_sds(self, pairs: Pairs, n_frames: int | None) -> np.ndarray:
        fitted = self._require_fitted()
        module, units = fitted.module, fitted.units
        assert isinstance(module, NeuralFactors | LoadingFactors)
        voxels = units.standardise(torch.from_numpy(fitted.positions)).to(module.noise_sd)
        scales = torch.from_numpy(fitted.scales).to(module.noise_sd)
        factors = [part.detach() for part in (module.centers.mean, module.log_widths.mean, *module.factor_sds())]
        sds = []
        for (p, s), spread in zip(self._pair_indices(pairs), self._weight_spreads(pairs, n_frames), strict=True):
            white = module.white_variance(p, s, n_frames)
            own = FactorSpread(*(part[p if len(part) > 1 else 0] for part in factors))
            noise_sd = None if white is None else white.sqrt() * scales
            seen = fitted.coverage.get(fitted.labels.participants[p])
            unseen = None if seen is None else module.white_variance(p, s, n_frames, seen=False)
            if seen is not None and unseen is not None and noise_sd is not None:
                noise_sd = torch.where(torch.from_numpy(seen).to(scales.device), noise_sd, unseen.sqrt() * scales)
            sds.append(image_sd(spread, own, voxels, noise_sd) * units.intensity)
        return torch.stack(sds).cpu().numpy().astype(np.float32)
