"""The face that all topographic models share: fit, transform, predict, score, save, load."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch

from ntfa.errors import ModelError, NotFittedError, StudyError
from ntfa.inference.bounds import CollapsedLikelihood, SampledLikelihood
from ntfa.inference.cells import Frames
from ntfa.inference.checkpoint import Checkpoint
from ntfa.inference.normal import Noise
from ntfa.inference.predictive import ESTIMATORS, LogPredictive, log_predictive
from ntfa.inference.schedules import SCHEDULES
from ntfa.inference.start import STARTS, Start, find_start
from ntfa.inference.training import History, Trainer
from ntfa.models.arrange import Arranged, Layout, arrange, labels_of, places, require_known_stimuli
from ntfa.models.expectations import frame_weights, mean_images, trial_weights
from ntfa.models.module import TopographicModule
from ntfa.models.progress import Progress
from ntfa.models.saving import load_model, save_model
from ntfa.models.tables import factor_table, history_table
from ntfa.study import Study

logger = logging.getLogger("ntfa")

BOUNDS_TO_JUDGE_BY = 10
COUNTS = ("n_factors", "embedding_dim", "n_particles", "max_epochs", "n_restarts")


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

    def _module(self) -> TopographicModule:
        """Make an untrained module for the labels at hand."""
        raise NotImplementedError

    def _hang_tables(self) -> None:
        """Hang the posterior's tables on the estimator."""
        module, labels = self._fitted, self._labels
        factors = factor_table(module.centers, module.log_widths, self._units)
        owners = np.repeat(np.arange(len(labels.owners)), self.n_factors)
        keys = [owner if isinstance(owner, tuple) else (owner,) for owner in labels.owners]
        for i, column in enumerate(["participant", "start", "stop"][: len(keys[0])]):
            factors.insert(i, column, [keys[owner][i] for owner in owners])
        self.factors_ = factors
        self.noise_ = float(module.noise_sd.detach()) * self._units.intensity

    # Fitting -----------------------------------------------------------------------------------------------------

    def fit(self, study: Study, *, checkpoint: str | os.PathLike[str] | None = None) -> Self:
        """Fit the model to a study.

        Parameters
        ----------
        study : Study
        checkpoint : folder, optional
            Where the state of the fit is kept every half minute and when SIGINT or SIGTERM arrives. A fit that finds
            its own checkpoint there goes on from it, to the same result as one that was never interrupted.
        """
        self._check_settings()
        self._check_size(study)
        self.seed_ = secrets.randbelow(2**31) if self.random_state is None else int(self.random_state)
        device = self._device()
        self._labels = labels_of(study, self._layout)
        frames = arrange(study, self._layout, self._labels, device).frames
        self._units = frames.units
        folder = Path(checkpoint) if checkpoint is not None else None
        start = find_start(frames, self.n_factors, self.init, self.seed_)
        fits = [self._fit_once(frames, start, restart, folder) for restart in range(self.n_restarts)]
        best = max(range(self.n_restarts), key=lambda restart: _final_bound(fits[restart][1]))
        module, history = fits[best]
        self._fitted = module
        self._remember(study, frames, history)
        return self

    def _fit_once(
        self, frames: Frames, start: Start, restart: int, folder: Path | None
    ) -> tuple[TopographicModule, History]:
        seed = self.seed_ + restart
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module = self._module().double()
        module = module.to(frames.energy.device)
        module.start_at(start, frames.cells)
        trainer = self._trainer(module, frames, start, seed)
        progress = Progress(self._title(restart), self.max_epochs, self.verbose)
        kept = None if folder is None else Checkpoint(folder / f"restart-{restart}.safetensors", self._identity(frames))
        if kept is not None:
            kept.restore(trainer)

        def after_step(trainer: Trainer) -> None:
            progress.after_step(trainer)
            if kept is not None:
                kept.after_step(trainer)

        try:
            with kept.heeding_signals() if kept is not None else nullcontext():
                trainer.run(after_step)
        finally:
            progress.close(trainer)
        if kept is not None:
            kept.write(trainer)
        return module, trainer.history

    def _trainer(self, module: TopographicModule, frames: Frames, start: Start, seed: int) -> Trainer:
        schedule = SCHEDULES[self.schedule](self.max_epochs)
        if self.inference == "collapsed":
            likelihood: Any = CollapsedLikelihood(frames)
        else:
            likelihood = SampledLikelihood(frames, start.weights, sd=0.1)
        return Trainer(module, likelihood, schedule, Noise(seed), frames, self.n_particles)

    def _remember(self, study: Study, frames: Frames, history: History) -> None:
        self.coordinates_ = np.ascontiguousarray(study.coordinates, dtype=np.float64)
        self.mask_img_ = study.mask_img
        self.history_ = history_table(history)
        self.stopped_ = str(history.stopped)
        self.converged_ = history.stopped == "converged"
        self.n_data_ = frames.n_data
        self.n_trials_ = study.n_trials
        self.n_parameters_ = self._count_parameters(study)
        self._hang_tables()

    def _count_parameters(self, study: Study) -> int:
        """Parameters of networks, priors and all posteriors of the paper's family, q(W) and q(mu) included."""
        own = sum(parameter.numel() for parameter in self._fitted.parameters())
        levels = 2 * study.n_trials * self.n_factors if self._layout.own_weights == "trial" else 0
        return own + 2 * study.n_trial_frames * self.n_factors + levels

    # Results -----------------------------------------------------------------------------------------------------

    def transform(
        self, study: Study, *, by: str = "trial", return_sd: bool = False
    ) -> pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]:
        """Weights of each factor in each trial: their exact posterior given the fitted factors.

        Parameters
        ----------
        study : Study
            Trials of participants (and, for NTFA, stimuli) that the model knows.
        by : {"trial", "frame"}
            A row a trial (the weights averaged over its frames), indexed as `study.trials`; or a row a frame.
        return_sd : bool
            Also return the posterior standard deviations, as a second table.
        """
        if by not in ("trial", "frame"):
            raise ModelError(f"by={by!r}: choose 'trial' or 'frame'")
        arranged = self._arranged(study)
        weights = trial_weights(self._fitted, arranged) if by == "trial" else frame_weights(self._fitted, arranged)
        index = study.trials.index if by == "trial" else _frame_index(study)
        columns = pd.RangeIndex(1, self.n_factors + 1, name="factor")
        mean, sd = (
            pd.DataFrame((part * self._units.intensity).cpu().numpy(), index=index, columns=columns) for part in weights
        )
        return (mean, sd) if return_sd else mean

    def predict(self, pairs: pd.DataFrame | Sequence[tuple[str, str]]) -> np.ndarray:
        """Posterior-predictive mean images of (participant, stimulus) pairs, seen together or not, [n, V].

        Parameters
        ----------
        pairs : DataFrame with columns `participant` and `stimulus`, or list of (participant, stimulus)
        """
        self._require_fitted()
        if isinstance(pairs, pd.DataFrame):
            pairs = list(zip(pairs["participant"], pairs["stimulus"], strict=True))
        participants = places("participant", [str(p) for p, _ in pairs], self._labels.participants)
        stimuli = places("stimulus", [str(s) for _, s in pairs], self._labels.stimuli)
        coordinates = torch.from_numpy(self.coordinates_)
        own_factors = self._layout.own_factors == "participant"
        return mean_images(self._fitted, participants, stimuli, own_factors, coordinates, self._units)

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
        """As `score`, with a Monte-Carlo standard error."""
        self._require_fitted()
        if estimator not in ESTIMATORS:
            raise ModelError(f"estimator={estimator!r}: choose one of {', '.join(map(repr, ESTIMATORS))}")
        if n_samples < 1:
            raise ModelError(f"n_samples={n_samples}: at least one is needed")
        require_known_stimuli(study, self._labels)
        frames = self._arranged(study).frames
        return log_predictive(self._fitted, frames, estimator, n_samples, Noise(self.seed_))

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted model to a folder: safetensors, JSON and TSV, complete or not at all."""
        self._require_fitted()
        save_model(self, Path(folder), overwrite)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a model written by `save`."""
        return load_model(cls, Path(folder))

    # Checks ------------------------------------------------------------------------------------------------------

    def _require_fitted(self) -> None:
        if not hasattr(self, "_fitted"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit(study) first")

    def _arranged(self, study: Study) -> Arranged:
        self._require_fitted()
        if not np.allclose(study.coordinates, self.coordinates_, atol=1e-3):
            raise StudyError("the study's voxels are not those the model was fitted to")
        if self._layout.own_weights == "cell":
            require_known_stimuli(study, self._labels)
        return arrange(study, self._layout, self._labels, self._device(), self._units)

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ModelError("device='cuda', but PyTorch finds no CUDA device here; use 'cpu' or 'auto'")
        return torch.device(self.device)

    def _check_settings(self) -> None:
        choices = {
            "inference": ("collapsed", "mean-field"),
            "init": tuple(STARTS),
            "schedule": tuple(SCHEDULES),
            "device": ("auto", "cpu", "cuda"),
            "block": ("participant", "trial"),
        }
        for name, value in self.get_params().items():
            if name in choices and value not in choices[name]:
                raise ModelError(f"{name}={value!r}: choose one of {', '.join(map(repr, choices[name]))}")
            if name in COUNTS and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
                raise ModelError(f"{name}={value!r}: must be a whole number, at least 1")

    def _check_size(self, study: Study) -> None:
        if self.n_factors > study.n_voxels:
            raise ModelError(f"n_factors={self.n_factors} is more than the study's {study.n_voxels} voxels")
        for kind, labels in (("participant", study.participants), ("stimulus", study.stimuli)):
            if len(labels) == 1:
                logger.warning(
                    "the study has one %s only (%s): how one %s differs from another cannot be learned",
                    *(kind, labels[0], kind),
                )

    def _identity(self, frames: Frames) -> dict[str, object]:
        """Say what is being fitted to what, for a checkpoint to be recognised by."""
        settings = {k: v for k, v in self.get_params().items() if k not in ("device", "verbose", "random_state")}
        layout = hashlib.sha256(repr((self._labels, len(frames.energy))).encode())
        layout.update(frames.coordinates.cpu().numpy().tobytes())
        energy = f"{float(frames.energy.sum()) * frames.units.intensity**2:.6e}"
        identity = {
            "model": type(self).__name__,
            "seed": self.seed_,
            "layout": layout.hexdigest(),
            "energy": energy,
        }
        return {**identity, "settings": settings}

    def _title(self, restart: int) -> str:
        name = type(self).__name__
        return name if self.n_restarts == 1 else f"{name} {restart + 1}/{self.n_restarts}"


def _final_bound(history: History) -> float:
    last = [bound.value for bound in history.bounds[-BOUNDS_TO_JUDGE_BY:]]
    return sum(last) / len(last)


def _frame_index(study: Study) -> pd.MultiIndex:
    """Trial (as `study.trials` is indexed) and frame of the participant, a row a trial frame."""
    trials = zip(study.trials.index, study.trials["start"], study.trials["stop"], strict=True)
    return pd.MultiIndex.from_tuples(
        [(label, frame) for label, start, stop in trials for frame in range(start, stop)],
        names=["trial", "frame"],
    )
