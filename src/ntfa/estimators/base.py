"""The face that all topographic models share: fit, transform, predict, score, save, load."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ntfa.contract import Pairs, as_pairs, require_same_voxels
from ntfa.errors import ModelError
from ntfa.estimators.expectations import frame_weights, mean_images, trial_weights
from ntfa.estimators.frames import frame_table, tell_of_spoiled
from ntfa.estimators.images import as_study, to_image
from ntfa.estimators.result import Fitted
from ntfa.estimators.saving import load_model, save_model
from ntfa.estimators.settings import (
    as_bytes,
    check_count,
    check_settings,
    check_size,
    fit_identity,
    look_at_frames_on_disk,
    resolve_device,
    warn_of_design,
)
from ntfa.estimators.showing import ShowsItself
from ntfa.estimators.tables import history_table, owned_factor_table
from ntfa.fitting.arrange import Arranged, Labels, Layout, label_indices, labels_of, require_known_stimuli
from ntfa.fitting.optimise import Checkpoints, Optimised, Recipe, optimise_all
from ntfa.fitting.restarts import compare_starts
from ntfa.fitting.task import Task, prepare, uploaded
from ntfa.inference.bounds import CollapsedLikelihood, Likelihood, SampledLikelihood
from ntfa.inference.factors import radial_basis
from ntfa.inference.frames import Frames
from ntfa.inference.normal import RandomSource
from ntfa.inference.predictive import ESTIMATORS, LogPredictive, log_predictive
from ntfa.inference.start import Start
from ntfa.models.module import TopographicModule
from ntfa.seeds import RandomState, as_seed, is_seed
from ntfa.study import Study
from ntfa.study.greyordinates import factors_in_mm
from ntfa.study.provenance import provenance_of
from ntfa.study.signals import frame_index

logger = logging.getLogger("ntfa")

NUMBERS_PER_FACTOR, SMALL_MODULE = 16, 4_000_000
"""About how many numbers a module has for each factor of an owner or participant, and how many are soon made."""


@dataclass(eq=False, repr=False)
class TopographicModel(ShowsItself):
    """Base of the estimators; the fields are their parameters, documented in `NTFA`."""

    n_factors: int | str = 100
    _: KW_ONLY
    inference: str = "collapsed"
    init: str = "pursuit"
    n_particles: int = 1
    schedule: str = "one-cycle"
    max_epochs: int = 1000
    n_restarts: int = 1
    noise: str = "same"
    frames: str = "robust"
    coarse: str = "auto"
    memory: int | str | None = None
    device: str = "auto"
    random_state: RandomState = None
    verbose: int = 0

    @property
    def _k(self) -> int:
        """Number of factors, whoever chose it."""
        return int(self.n_factors)

    # What a kind of model adds -----------------------------------------------------------------------------------

    @property
    def _layout(self) -> Layout:
        raise NotImplementedError

    def _module(self, labels: Labels) -> TopographicModule:
        """Make an untrained module for these labels."""
        raise NotImplementedError

    def _shapes(self, labels: Labels) -> TopographicModule:
        """Make a module of which the shapes alone matter; a large one takes no memory."""
        # What PyTorch imports for tensors without memory takes most of a second: not for a small module.
        numbers = self._k**2 + NUMBERS_PER_FACTOR * self._k * (len(labels.owners) + len(labels.participants))
        where = "meta" if numbers > SMALL_MODULE else "cpu"
        with torch.device(where), torch.random.fork_rng(devices=[]):
            return self._module(labels)

    def _expected_sizes(self, known: Labels) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of a saved module that decide how large it is."""
        return {"centers.mean": (len(known.owners), self._k, 3)}

    def _choose(self, study: Study, checkpoint: Path | None) -> None:
        """Choose what the settings leave to the data: nothing."""

    def _chosen(self) -> dict[str, Any] | None:
        """What was chosen, in terms that JSON knows: nothing."""
        return None

    def _take_choice(self, chosen: dict[str, Any] | None) -> None:
        """Take up what a saved model had chosen: nothing."""

    def _labels(self, study: Study) -> Labels:
        """Collect what the model is to know of the study it is fitted to."""
        return labels_of(study, self._layout)

    def _likelihood(self, frames: Frames, start: Start) -> Likelihood:
        """Choose how the weights are treated."""
        if self.inference == "collapsed":
            return CollapsedLikelihood(frames)
        return SampledLikelihood(frames, start.weights, sd=0.1)

    def _estimate_uncertainty(self, module: TopographicModule, study: Study, task: Task) -> None:
        """Work out once, after training, what the module is to know besides its parameters: nothing."""

    def _calibrate(self, module: TopographicModule, study: Study, checkpoint: Path | None) -> None:
        """Do what takes other fits, when the frames of this one have left memory: nothing.

        `checkpoint` is the folder of the fit's checkpoints; other fits keep theirs in folders within it.
        """

    def _check_task(self, task: Task) -> None:
        """Refuse a task that this kind of model cannot do: none."""

    def _image_sds(self, pairs: Pairs, n_frames: int | None) -> np.ndarray:
        """Standard deviations of predicted images, [n, V]; only a model with a posterior of its weights has any."""
        raise ModelError(
            f"{type(self).__name__} has no posterior of the mean weights, and so no standard deviation of a predicted "
            "image; leave return_sd out, or fit NTFA"
        )

    def _weights(self, module: TopographicModule, arranged: Arranged, by: str) -> tuple[Tensor, Tensor]:
        """Mean and sd of the weights of each trial or frame."""
        return trial_weights(module, arranged) if by == "trial" else frame_weights(module, arranged)

    def _n_parameters(self, module: TopographicModule, study: Study) -> int:
        """Count parameters as the paper's family has them, q(W) and q(mu) included."""
        count = sum(parameter.numel() for parameter in module.parameters())
        count += 2 * study.n_trial_frames * self._k
        if self._layout.own_weights == "trial":
            count += 2 * study.n_trials * self._k
        return count

    def _set_fitted_attributes(self, fitted: Fitted) -> None:
        """Set the attributes that hold the results of a fit."""
        module, labels = fitted.module, fitted.labels
        self._set_factors(owned_factor_table(module, labels.owners, fitted.units), fitted)
        self.noise_ = float(module.noise_sd.detach()) * fitted.units.intensity
        self.voxel_noise_ = self.noise_ * fitted.scales
        self.seed_, self.history_, self.stopped_ = fitted.seed, fitted.history, fitted.stopped
        self.converged_ = fitted.stopped == "converged"
        self.n_data_, self.n_parameters_ = fitted.n_data, fitted.n_parameters
        self.coordinates_, self.mask_img_ = fitted.coordinates, fitted.mask_img
        for name, table in (("restarts_", fitted.restarts), ("frames_", fitted.frames)):
            self.__dict__.pop(name, None)
            if table is not None:
                setattr(self, name, table)
        self._fitted = fitted
        self._warned_of_stimuli = False

    def _set_factors(self, factors: pd.DataFrame, fitted: Fitted) -> None:
        """Keep a table of factors at the positions that inference knows, and show it in mm."""
        self._factors, self.factors_ = factors, factors_in_mm(factors, fitted.mask_img)

    # Fitting -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        study: Study | Sequence[Any],
        y: None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        **images: Any,
    ) -> Self:
        """Fit the model to a study.

        Parameters
        ----------
        study : Study, or list of images
            Images are converted by `Study.from_images`, with `events=` and its other arguments.
        y : ignored
            Here because scikit-learn passes one: labels of trials are in the study.
        checkpoint : folder, optional
            Where the state of the fit is saved every half minute and on SIGINT or SIGTERM. A fit that finds its own
            checkpoint there resumes from it, to the same result as one that was never interrupted; so does the second
            fit that `uncertainty="calibrated"` takes.
        """
        check_settings(self.get_params())
        if checkpoint is not None and not is_seed(self.random_state):
            raise ModelError("a fit that is to be resumed needs a seed: set random_state to a whole number")
        study = as_study(study, images)
        check_size(study, self.n_factors)
        if not getattr(self, "_is_helper", False):
            look_at_frames_on_disk(study)
            warn_of_design(study)
        seed, folder = as_seed(self.random_state), None if checkpoint is None else Path(checkpoint)
        with uploaded(study, resolve_device(self.device), self.memory) as at_hand:
            self._choose(at_hand, folder)
            labels = self._labels(at_hand)
            task = self._task(at_hand, labels)
        if not getattr(self, "_is_helper", False):
            tell_of_spoiled(study, task.trust)
        kept = None if folder is None else Checkpoints(folder, fit_identity(self, seed, task))
        tried = optimise_all(task, self._recipe(labels, seed), kept)
        best = max(tried, key=lambda one: one.final_bound)
        restarts = compare_starts([one.module for one in tried], [one.final_bound for one in tried])
        self._estimate_uncertainty(best.module, study, task)
        fitted = replace(self._as_fitted(study, labels, task, seed, best), restarts=restarts)
        # A calibration fits again: the frames of this fit must not lie in memory beside those of the next.
        del task
        self._calibrate(best.module, study, folder)
        self._set_fitted_attributes(fitted)
        return self

    def _task(self, study: Study, labels: Labels) -> Task:
        """Lay out the study for the fit, on the device, within memory."""
        sharded = self._shapes(labels).sharded_parameters
        settings: dict[str, Any] = {"coarse": self.coarse, "memory": as_bytes(self.memory), "noise": self.noise}
        settings["weighting"] = self.frames
        task = prepare(study, self._layout, labels, resolve_device(self.device), sharded, **settings)
        self._check_task(task)
        return task

    def _recipe(self, labels: Labels, seed: int) -> Recipe:
        """Say what is to be optimised, and how."""
        names = ("init", "schedule", "max_epochs", "n_particles", "n_restarts", "verbose")
        settings = {"n_factors": self._k, **{name: getattr(self, name) for name in names}}
        return Recipe(type(self).__name__, partial(self._module, labels), self._likelihood, seed, **settings)

    def _as_fitted(self, study: Study, labels: Labels, task: Task, seed: int, best: Optimised) -> Fitted:
        scales = task.frames.scales
        return Fitted(
            best.module,
            self.get_params(),
            seed,
            self._layout,
            labels.with_fingerprints(study),
            task.frames.units,
            np.ascontiguousarray(study.coordinates, dtype=np.float64),
            study.mask_img,
            history_table(best.history),
            str(best.history.stopped),
            study.n_data,
            study.n_trials,
            int(self._n_parameters(best.module, study)),
            noise_scales=None if scales is None else scales.cpu().numpy(),
            choice=self._chosen(),
            n_pooled=best.n_pooled,
            provenance=provenance_of(study.notes),
            frames=None if task.trust is None else frame_table(study, task.trust),
            coverage=study.coverage,
            n_frames=study.n_trial_frames,
        )

    # Results -----------------------------------------------------------------------------------------------------

    def transform(
        self, study: Study, *, by: str = "trial", return_sd: bool = False, condition_on_stimulus: bool = False
    ) -> pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]:
        """Weights of each factor in each trial: their exact posterior given the fitted factors.

        Parameters
        ----------
        study : Study
            Trials of participants that the model knows; of any stimuli, unless it is to be told these.
        by : {"trial", "frame"}
            One row per trial (the weights averaged over its frames), indexed as `study.trials`; or one row per frame.
        return_sd : bool
            Also return the posterior standard deviations, as a second table.
        condition_on_stimulus : bool
            By default weights are computed without using the stimulus, one trial at a time. If True, NTFA shrinks the
            weights of a trial towards their expectation given its stimulus: better estimates, but never features to
            classify stimuli by, because they contain the label. HTFA and TFA know no stimuli, and TLSA has no weights
            without them: it refuses the default.
        """
        if by not in ("trial", "frame"):
            raise ModelError(f"by={by!r}: choose 'trial' or 'frame'")
        fitted = self._require_fitted()
        weights = self._weights(fitted.module, fitted.arranged(study, condition_on_stimulus), by)
        index = study.trials.index if by == "trial" else frame_index(study)
        columns = pd.RangeIndex(1, weights[0].shape[1] + 1, name="factor")
        mean, sd = (
            pd.DataFrame((part * fitted.units.intensity).cpu().numpy(), index=index, columns=columns)
            for part in weights
        )
        return (mean, sd) if return_sd else mean

    @overload
    def predict(
        self, pairs: Pairs, *, return_sd: Literal[False] = False, n_frames: int | None = None
    ) -> np.ndarray: ...

    @overload
    def predict(
        self, pairs: Pairs, *, return_sd: Literal[True], n_frames: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]: ...

    def predict(
        self, pairs: Pairs, *, return_sd: bool = False, n_frames: int | None = None
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Posterior-predictive mean images of (participant, stimulus) pairs, seen together or not, [n, V].

        HTFA and TFA know no stimuli: a participant's image is the same for all of them, of which they warn.

        Parameters
        ----------
        pairs : DataFrame with columns `participant` and `stimulus`, or list of (participant, stimulus)
        return_sd : bool
            Also return standard deviations, [n, V]: of the mean image itself, which is what many trials would average
            to; or, with `n_frames`, of the average of so many frames that may be recorded. Only NTFA has them; the
            other models raise a `ModelError`.
        n_frames : int, optional
            Length of the trial that the standard deviations are for.
        """
        self._require_fitted()
        if n_frames is not None:
            check_count("n_frames", n_frames)
        sds = self._image_sds(pairs, n_frames) if return_sd else None
        images = self._mean_images(as_pairs(pairs))
        self._warn_if_stimuli_are_ignored()
        return images if sds is None else (images, sds)

    def _mean_images(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        fitted = self._require_fitted()
        own_factors = fitted.layout.own_factors == "participant"
        positions = torch.from_numpy(fitted.positions)
        return mean_images(fitted.module, *fitted.pair_indices(pairs), own_factors, positions, fitted.units)

    def _warn_if_stimuli_are_ignored(self) -> None:
        """Say once of every fit that its predictions are the same for all stimuli, if they are."""
        layout, labels = self._fitted.layout, self._fitted.labels
        if self._warned_of_stimuli or layout.own_weights != "trial" or len(labels.stimuli) < 2:
            return
        self._warned_of_stimuli = True
        same_for = "all stimuli" if layout.own_factors == "participant" else "all participants and stimuli"
        logger.warning("%s does not use the stimulus: it predicts one image for %s", type(self).__name__, same_for)

    def predict_img(self, pairs: Pairs) -> Any:
        """As `predict`, as a 4-D Nifti image in the study's space, one volume per pair.

        Of a study with cortical surfaces, a SurfaceImage or dense CIFTI image, one map per pair.
        """
        return to_image(self.predict(pairs), self.mask_img_)

    def factor_img(self, participant: str | None = None) -> Any:
        """Return factors as a 4-D Nifti image in the study's space, one volume per factor.

        Of a study with cortical surfaces, a SurfaceImage or dense CIFTI image, one map per factor.

        Parameters
        ----------
        participant : label, optional
            Whose factors; by default their average over all participants (or blocks).
        """
        fitted, table = self._require_fitted(), self._factors
        if participant is not None:
            label_indices("participant", [participant], fitted.labels.participants)
            table = table[table["participant"] == participant]
        mean = table.groupby("factor")[["x", "y", "z", "width"]].mean()
        factors = radial_basis(fitted.positions, mean[["x", "y", "z"]].to_numpy(), mean["width"].to_numpy())
        return to_image(factors, fitted.mask_img)

    def score(self, study: Study, estimator: str = "collapsed", n_samples: int = 100) -> float:
        """Log predictive density of held-out trials, in nats, over all of them together.

        Parameters
        ----------
        study : Study
            Trials of known participants and stimuli that the model was not fitted to. Nothing is fitted to them here.
        estimator : {"collapsed", "paper"}
            Weights integrated out and factors from their posterior; or all but embeddings sampled from the generative
            model, the paper's looser bound.
        n_samples : int
            Draws from the posterior.
        """
        return self.log_predictive(study, estimator, n_samples).value

    def log_predictive(self, study: Study, estimator: str = "collapsed", n_samples: int = 100) -> LogPredictive:
        """As `score`, with a Monte-Carlo standard error and each participant's part."""
        fitted = self._require_fitted()
        if estimator not in ESTIMATORS:
            raise ModelError(f"estimator={estimator!r}: choose one of {', '.join(map(repr, ESTIMATORS))}")
        check_count("n_samples", n_samples)
        require_known_stimuli(study, fitted.labels)
        require_same_voxels(study, fitted.coordinates)
        frames = fitted.arranged(self._as_scored(study)).frames
        result = log_predictive(fitted.module, frames, estimator, n_samples, RandomSource(fitted.seed))
        parts = {fitted.labels.participants[i]: value for i, value in result.by_participant.items()}
        return replace(result, by_participant=parts)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted model to a folder: safetensors, JSON and TSV, complete or not at all."""
        self._require_fitted()
        save_model(self, Path(folder), overwrite)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto") -> Self:
        """Read a model written by `save`, onto a device."""
        return load_model(cls, Path(folder), device)

    @property
    def fitted_params(self) -> dict[str, Any]:
        """Parameters as they were when the model was fitted."""
        return dict(self._require_fitted().params)

    def _require_fitted(self) -> Fitted:
        super()._require_fitted()
        return self._fitted

    def _as_scored(self, study: Study) -> Study:
        """Take out of held-out trials what a model expects of them besides factors: nothing."""
        return study
