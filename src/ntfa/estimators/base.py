"""The face that all topographic models share: fit, transform, predict, score, save, load."""

from __future__ import annotations

import copy
import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ntfa.errors import ModelError, NotFittedError, StudyError
from ntfa.estimators.expectations import frame_weights, mean_images, trial_weights
from ntfa.estimators.images import as_study, to_image
from ntfa.estimators.result import Fitted
from ntfa.estimators.saving import load_model, save_model
from ntfa.estimators.settings import as_bytes, check_count, check_settings, check_size, fit_identity, resolve_device
from ntfa.estimators.tables import factor_table, history_table
from ntfa.fitting.arrange import Arranged, Labels, Layout, arrange, label_indices, labels_of, require_known_stimuli
from ntfa.fitting.checkpoint import Checkpoint
from ntfa.fitting.progress import Progress
from ntfa.fitting.restarts import restart_table, warn_if_unstable
from ntfa.fitting.schedules import SCHEDULES, CoarseToFine
from ntfa.fitting.sharing import Sharing
from ntfa.fitting.task import Task, prepare
from ntfa.fitting.training import History, Trainer
from ntfa.inference.bounds import CollapsedLikelihood, Likelihood, SampledLikelihood
from ntfa.inference.cells import Frames
from ntfa.inference.normal import RandomSource
from ntfa.inference.predictive import ESTIMATORS, LogPredictive, log_predictive
from ntfa.inference.start import Start, find_start
from ntfa.models.module import TopographicModule
from ntfa.study import Study
from ntfa.study.provenance import provenance_of
from ntfa.study.signals import frame_index

if TYPE_CHECKING:
    from ntfa.report.page import Report

logger = logging.getLogger("ntfa")

BOUNDS_TO_JUDGE_BY = 10


@dataclass(eq=False)
class TopographicModel:
    """Base of the estimators; the fields are their parameters, documented in `NTFA`."""

    n_factors: int = 100
    _: KW_ONLY
    inference: str = "collapsed"
    init: str = "pursuit"
    n_particles: int = 1
    schedule: str = "one-cycle"
    max_epochs: int = 1000
    n_restarts: int = 1
    noise: str = "same"
    coarse: str = "auto"
    memory: int | str | None = None
    device: str = "auto"
    random_state: int | None = None
    verbose: int = 0

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, as scikit-learn's estimators do."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters, as scikit-learn's estimators do."""
        for name, value in params.items():
            if name not in self.get_params():
                raise ModelError(f"{type(self).__name__} has no parameter {name!r}")
            setattr(self, name, value)
        return self

    # What a kind of model adds -----------------------------------------------------------------------------------

    @property
    def _layout(self) -> Layout:
        raise NotImplementedError

    def _module(self, labels: Labels) -> TopographicModule:
        """Make an untrained module for these labels."""
        raise NotImplementedError

    def _labels(self, study: Study) -> Labels:
        """Collect what the model is to know of the study it is fitted to."""
        return labels_of(study, self._layout)

    def _likelihood(self, frames: Frames, start: Start) -> Likelihood:
        """Choose how the weights are treated."""
        if self.inference == "collapsed":
            return CollapsedLikelihood(frames)
        return SampledLikelihood(frames, start.weights, sd=0.1)

    def _estimate_uncertainty(self, module: TopographicModule, study: Study, frames: Frames, labels: Labels) -> None:
        """Work out once, after training, what the module is to know besides its parameters: nothing."""

    def _calibrate(self, module: TopographicModule, study: Study) -> None:
        """Do what takes other fits, when the frames of this one have left memory: nothing."""

    def _weights(self, module: TopographicModule, arranged: Arranged, by: str) -> tuple[Tensor, Tensor]:
        """Mean and sd of the weights of each trial or frame."""
        return trial_weights(module, arranged) if by == "trial" else frame_weights(module, arranged)

    def _n_parameters(self, module: TopographicModule, study: Study) -> int:
        """Count parameters as the paper's family has them, q(W) and q(mu) included."""
        count = sum(parameter.numel() for parameter in module.parameters())
        count += 2 * study.n_trial_frames * self.n_factors
        if self._layout.own_weights == "trial":
            count += 2 * study.n_trials * self.n_factors
        return count

    def _set_fitted_attributes(self, fitted: Fitted) -> None:
        """Set the attributes that hold the results of a fit."""
        module, labels = fitted.module, fitted.labels
        factors = factor_table(module.centers, module.log_widths, fitted.units)
        keys = [owner if isinstance(owner, tuple) else (owner,) for owner in labels.owners]
        owners = np.repeat(np.arange(len(keys)), len(factors) // len(keys))
        for i, column in enumerate(["participant", "start", "stop"][: len(keys[0])]):
            factors.insert(i, column, [keys[owner][i] for owner in owners])
        self.factors_ = factors
        self.noise_ = float(module.noise_sd.detach()) * fitted.units.intensity
        self.voxel_noise_ = self.noise_ * fitted.scales
        self.seed_, self.history_, self.stopped_ = fitted.seed, fitted.history, fitted.stopped
        self.converged_ = fitted.stopped == "converged"
        self.n_data_, self.n_parameters_ = fitted.n_data, fitted.n_parameters
        self.coordinates_, self.mask_img_ = fitted.coordinates, fitted.mask_img
        self._fitted = fitted

    # Fitting -----------------------------------------------------------------------------------------------------

    def fit(
        self, study: Study | Sequence[Any], *, checkpoint: str | os.PathLike[str] | None = None, **images: Any
    ) -> Self:
        """Fit the model to a study.

        Parameters
        ----------
        study : Study, or list of images
            Images are converted by `Study.from_images`, with `events=` and its other arguments.
        checkpoint : folder, optional
            Where the state of the fit is saved every half minute and on SIGINT or SIGTERM. A fit that finds its own
            checkpoint there resumes from it, to the same result as one that was never interrupted.
        """
        check_settings(self.get_params())
        if checkpoint is not None and self.random_state is None:
            raise ModelError("a fit that is to be resumed needs a seed: set random_state")
        study = as_study(study, images)
        check_size(study, self.n_factors)
        seed = secrets.randbelow(2**31) if self.random_state is None else int(self.random_state)
        labels = self._labels(study)
        device, memory = resolve_device(self.device), as_bytes(self.memory)
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            sharded = self._module(labels).sharded_parameters
        task = prepare(
            study, self._layout, labels, device, sharded, coarse=self.coarse, memory=memory, noise=self.noise
        )
        self._check_task(task)
        frames = task.frames
        logger.debug(
            "%s on %s: %d sets of factors, %d cells, %s values",
            type(self).__name__,
            frames.energy.device,
            *(len(frames.blocks), len(frames.cells.block), f"{frames.n_data:,}"),
        )
        folder = None if checkpoint is None else Path(checkpoint)
        fits = [self._fit_once(task, seed, restart, folder) for restart in range(self.n_restarts)]
        bounds = [_final_bound(history) for _, history in fits]
        module, history = fits[bounds.index(max(bounds))]
        if self.n_restarts > 1:
            self.restarts_ = restart_table([module for module, _ in fits], bounds, bounds.index(max(bounds)))
            warn_if_unstable(self.restarts_)
        self._estimate_uncertainty(module, study, replace(frames, cells=task.cells), labels)
        fitted = replace(
            self._as_fitted(study, frames, labels, seed, module, history),
            n_pooled=None if task.coarse is None else len(task.coarse.coordinates),
            provenance=provenance_of(study.notes),
        )
        del task, frames
        self._calibrate(module, study)
        self._set_fitted_attributes(fitted)
        return self

    def _fit_once(self, task: Task, seed: int, restart: int, folder: Path | None) -> tuple[TopographicModule, History]:
        frames = task.frames if task.coarse is None else task.coarse
        start = find_start(frames, self.n_factors, self.init, seed, restart, task.sharing.group)
        with torch.random.fork_rng():
            torch.manual_seed(seed + restart)
            whole = self._module(task.labels).double()
        module = whole.to(frames.energy.device)
        module.start_at(task.gathered(start), task.cells)
        if task.sharing.group.size > 1:
            module = copy.deepcopy(whole)
            task.sharing.take(module)
        trainer = self._trainer(module, task.frames, start, seed + restart, task.coarse, task.sharing)
        kept = None
        if folder is not None:
            identity = fit_identity(type(self).__name__, self.get_params(), seed, task)
            kept = Checkpoint(folder / f"restart-{restart}.safetensors", identity)
        self._run(trainer, kept, restart)
        if module is not whole:
            state = {name: task.sharing.gather(name, tensor) for name, tensor in module.state_dict().items()}
            whole.load_state_dict(state)
        return whole, trainer.history

    def _run(self, trainer: Trainer, kept: Checkpoint | None, restart: int) -> None:
        name = type(self).__name__ if self.n_restarts == 1 else f"{type(self).__name__} {restart + 1}/{self.n_restarts}"
        progress = Progress(name, self.max_epochs, self.verbose)

        def after_step(trainer: Trainer) -> None:
            progress.after_step(trainer)
            if kept is not None:
                kept.after_step(trainer)

        try:
            if kept is not None:
                kept.restore(trainer)
            with kept.heeding_signals() if kept is not None else nullcontext():
                trainer.run(after_step)
            if kept is not None:
                kept.finish(trainer)
        finally:
            progress.close(trainer)

    def _trainer(
        self,
        module: TopographicModule,
        frames: Frames,
        start: Start,
        seed: int,
        coarse: Frames | None = None,
        sharing: Sharing | None = None,
    ) -> Trainer:
        kind = CoarseToFine if coarse is not None and self.schedule == "one-cycle" else SCHEDULES[self.schedule]
        likelihood = self._likelihood(frames, start)
        if sharing is not None and isinstance(likelihood, SampledLikelihood):
            likelihood.weights.share = sharing.shares.get("likelihood")
        return Trainer(
            module, likelihood, kind(self.max_epochs), RandomSource(seed), frames, self.n_particles, coarse, sharing
        )

    def _check_task(self, task: Task) -> None:
        """Refuse a task that this kind of model cannot do: none."""

    def _as_fitted(
        self, study: Study, frames: Frames, labels: Labels, seed: int, module: TopographicModule, history: History
    ) -> Fitted:
        return Fitted(
            module,
            self.get_params(),
            seed,
            self._layout,
            labels,
            frames.units,
            np.ascontiguousarray(study.coordinates, dtype=np.float64),
            study.mask_img,
            history_table(history),
            str(history.stopped),
            study.n_data,
            study.n_trials,
            int(self._n_parameters(module, study)),
            None if frames.scales is None else frames.scales.cpu().numpy(),
        )

    # Results -----------------------------------------------------------------------------------------------------

    def transform(
        self, study: Study, *, by: str = "trial", return_sd: bool = False, condition_on_stimulus: bool = True
    ) -> pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]:
        """Weights of each factor in each trial: their exact posterior given the fitted factors.

        Parameters
        ----------
        study : Study
            Trials of participants (and, for NTFA, stimuli) that the model knows.
        by : {"trial", "frame"}
            One row per trial (the weights averaged over its frames), indexed as `study.trials`; or one row per frame.
        return_sd : bool
            Also return the posterior standard deviations, as a second table.
        condition_on_stimulus : bool
            If False, compute the weights without using the stimulus, one trial at a time. This is needed before
            classifying them by stimulus: NTFA shrinks the weights of a trial towards their expectation given its
            stimulus, so that they would contain the label.
        """
        if by not in ("trial", "frame"):
            raise ModelError(f"by={by!r}: choose 'trial' or 'frame'")
        fitted, arranged = self._require_fitted(), self._arranged(study, condition_on_stimulus)
        weights = self._weights(fitted.module, arranged, by)
        index = study.trials.index if by == "trial" else frame_index(study)
        columns = pd.RangeIndex(1, weights[0].shape[1] + 1, name="factor")
        mean, sd = (
            pd.DataFrame((part * fitted.units.intensity).cpu().numpy(), index=index, columns=columns)
            for part in weights
        )
        return (mean, sd) if return_sd else mean

    def predict(self, pairs: pd.DataFrame | Sequence[tuple[str, str]]) -> np.ndarray:
        """Posterior-predictive mean images of (participant, stimulus) pairs, seen together or not, [n, V].

        Parameters
        ----------
        pairs : DataFrame with columns `participant` and `stimulus`, or list of (participant, stimulus)
        """
        fitted = self._require_fitted()
        named = _as_pairs(pairs)
        participants = label_indices(
            "participant", [participant for participant, _ in named], fitted.labels.participants
        )
        stimuli = label_indices("stimulus", [stimulus for _, stimulus in named], fitted.labels.stimuli)
        own_factors = fitted.layout.own_factors == "participant"
        coordinates = torch.from_numpy(fitted.coordinates)
        return mean_images(fitted.module, participants, stimuli, own_factors, coordinates, fitted.units)

    def predict_img(self, pairs: pd.DataFrame | Sequence[tuple[str, str]]) -> Any:
        """As `predict`, as a 4-D Nifti image in the study's space, one volume per pair."""
        return to_image(self.predict(pairs), self.mask_img_)

    def factor_img(self, participant: str | None = None) -> Any:
        """Return factors as a 4-D Nifti image in the study's space, one volume per factor.

        Parameters
        ----------
        participant : label, optional
            Whose factors; by default their average over all participants (or blocks).
        """
        fitted, table = self._require_fitted(), self.factors_
        if participant is not None:
            label_indices("participant", [participant], fitted.labels.participants)
            table = table[table["participant"] == participant]
        mean = table.groupby("factor")[["x", "y", "z", "width"]].mean()
        squared = ((fitted.coordinates[None] - mean[["x", "y", "z"]].to_numpy()[:, None]) ** 2).sum(-1)
        return to_image(np.exp(-squared / mean["width"].to_numpy()[:, None] ** 2), fitted.mask_img)

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
        frames = self._arranged(study).frames
        result = log_predictive(fitted.module, frames, estimator, n_samples, RandomSource(fitted.seed))
        parts = {fitted.labels.participants[i]: value for i, value in result.by_participant.items()}
        return replace(result, by_participant=parts)

    def generate_report(self, study: Study | None = None, held_out: Study | None = None) -> Report:
        """Make a report, one HTML page, to save with `save_as_html`, to open in a browser or to show in a notebook.

        Parameters
        ----------
        study : Study, optional
            What the model was fitted to: gives labels to colour by, and data to compare with.
        held_out : Study, optional
            Trials that the model was not fitted to; predictions are then compared with these.
        """
        # Reports are a layer above models; nothing is imported from there unless one is asked for.
        from ntfa.report.build import generate_report

        self._require_fitted()
        return generate_report(self, study, held_out)

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
        if not hasattr(self, "_fitted"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit(study) first")
        return self._fitted

    def _arranged(self, study: Study, condition_on_stimulus: bool = True) -> Arranged:
        fitted = self._require_fitted()
        known = fitted.coordinates
        if study.coordinates.shape != known.shape or not np.allclose(study.coordinates, known, atol=1e-3):
            raise StudyError(
                f"the study's {study.n_voxels} voxels are not the {len(known)} that the model was fitted to"
            )
        layout, labels = fitted.layout, fitted.labels
        if not condition_on_stimulus:
            layout, labels = replace(layout, own_weights="trial"), replace(labels, stimuli=[])
        elif layout.own_weights == "cell":
            require_known_stimuli(study, labels)
        device = fitted.module.raw_noise_sd.device
        on_disk, scales = self.memory is not None, fitted.noise_scales
        return arrange(study, layout, labels, device, fitted.units, on_disk=on_disk, scales=scales)


def _final_bound(history: History) -> float:
    last = [bound.value for bound in history.bounds[-BOUNDS_TO_JUDGE_BY:]]
    return sum(last) / len(last)


def _as_pairs(pairs: pd.DataFrame | Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    if isinstance(pairs, pd.DataFrame):
        missing = [column for column in ("participant", "stimulus") if column not in pairs]
        if missing:
            raise ModelError(f"pairs has no column {' or '.join(missing)}")
        pairs = list(zip(pairs["participant"], pairs["stimulus"], strict=True))
    named = [tuple(pair) if isinstance(pair, list | tuple) else (pair,) for pair in pairs]
    if any(len(pair) != 2 for pair in named):
        raise ModelError("pairs must be a table with participant and stimulus, or a list of (participant, stimulus)")
    return [(str(pair[0]), str(pair[1])) for pair in named]
