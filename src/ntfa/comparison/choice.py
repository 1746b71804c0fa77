"""`ntfa choose`: how many factors, and how many dimensions, do the data support?

Candidates are fitted to a small version of the study without a fold of its cells, and predict these. All are tried on
one fold, the better half of them on the others (successive halving), and the smallest within one standard error of the
best is chosen: first the number of factors, by what factors alone predict, then the dimensions of embeddings, by
predictions as a whole. Every trial is a file, so that a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed

from ntfa.errors import ModelError
from ntfa.estimators.choosing import choose_response, supported_factors
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.trials import TRIAL_FOLDS, USUAL_DIM, Candidate, Trial, Trials
from ntfa.files.folders import write_file
from ntfa.files.reading import read_json
from ntfa.study import Study

TRIALS_FOLDER = "trials"
RATIOS = (0.5, 0.7, 1.0, 1.4, 2.0)
"""Numbers of factors that are tried by default, relative to what pursuit says that the data support."""
DIMENSIONS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Question:
    """What is to be chosen.

    n_factors, dims : numbers to try; None for those that suggest themselves
    n_folds : folds of the cells, each with a seed of its own
    """

    study: Study
    n_factors: Sequence[int] | None = None
    dims: Sequence[int] | None = None
    response: str = "auto"
    n_folds: int = TRIAL_FOLDS
    device: str = "auto"

    @property
    def model(self) -> NTFA:
        """The estimator whose settings are tried."""
        return NTFA("auto", response=self.response, random_state=0, device=self.device)


@dataclass(frozen=True)
class Chosen:
    """What was chosen, and the table of what was tried: one row per candidate."""

    n_factors: int
    dims: tuple[int, int]
    response: str
    tried: pd.DataFrame = field(repr=False)

    @property
    def sentence(self) -> str:
        """Say what was chosen and why, for a methods section."""
        numbers = self.tried[self.tried["choosing"] == "n_factors"]
        error = numbers[numbers["n_folds"] == numbers["n_folds"].max()].set_index("n_factors")["factor_error"]
        response = {"loadings": "individual loadings", "network": "networks"}[self.response]
        return (
            f"{self.n_factors} factors and embeddings of {self.dims[0]} (participants) and {self.dims[1]} (stimuli) "
            f"dimensions, with {response}: the smallest numbers within one standard error of the best at predicting "
            f"images of pairs left out of a reduced version of the study, of {numbers['n_factors'].min()} to "
            f"{numbers['n_factors'].max()} factors (squared error of what factors predict, relative to predicting "
            f"zero: {error.loc[self.n_factors]:.3f}; best: {error.min():.3f} with {error.idxmin()})."
        )


def choose_settings(question: Question, folder: Path, n_jobs: int = 1) -> Chosen:
    """Try candidates, and choose; trials are kept in a folder."""
    study = question.study
    supported = supported_factors(study)
    if supported is None:
        raise ModelError(
            "no pair of participant and stimulus can be left out to choose by: it takes three participants and three "
            "stimuli, most of them shown to several"
        )
    response = choose_response(question.model, study, supported.n_factors)
    kept = KeptTrials(question, folder, n_jobs)
    numbers = question.n_factors or [max(2, round(ratio * supported.n_factors)) for ratio in RATIOS]
    most = Trials(question.model, study).most_factors
    candidates = [Candidate(response, number) for number in sorted({min(number, most) for number in numbers})]
    of_factors = halving(candidates, kept.run, question.n_folds, lambda trial: trial.factor_errors)
    n_factors = of_factors.chosen.n_factors
    with_dims = [Candidate(response, n_factors, dims) for dims in _dims(question, response)]
    of_dims = halving(with_dims, kept.run, question.n_folds, lambda trial: trial.errors)
    assert of_dims.chosen.dims is not None
    tried = pd.concat([of_factors.table("n_factors"), of_dims.table("embedding_dim")], ignore_index=True)
    return Chosen(n_factors, of_dims.chosen.dims, response, tried)


def _dims(question: Question, response: str) -> list[tuple[int, int]]:
    """Dimensions to try: of stimuli with loadings, whose people are placed after the fit; of both with networks."""
    n_participants, n_stimuli = len(question.study.participants), len(question.study.stimuli)
    wanted = question.dims or DIMENSIONS
    if response == "network":
        return [(dim, dim) for dim in sorted(set(wanted)) if dim <= min(n_participants, n_stimuli)] or [(1, 1)]
    people = min(USUAL_DIM, max(1, n_participants - 1))
    return [(people, dim) for dim in sorted(set(wanted)) if dim < n_stimuli] or [(people, 1)]


@dataclass(frozen=True)
class Halving:
    """Trials of every candidate on the folds that it reached, the candidate that was chosen, and what by."""

    trials: Mapping[Candidate, list[Trial]]
    chosen: Candidate
    errors_of: Callable[[Trial], np.ndarray]

    def table(self, choosing: str) -> pd.DataFrame:
        """One row per candidate."""
        return pd.DataFrame([self._row(choosing, candidate) for candidate in self.trials])

    def _row(self, choosing: str, candidate: Candidate) -> dict[str, Any]:
        own = self.trials[candidate]
        participant_dim, stimulus_dim = candidate.dims or (None, None)
        shared = list(zip(own, self.trials[self.chosen], strict=False))
        more = np.concatenate([self.errors_of(one) - self.errors_of(other) for one, other in shared])
        errors, alone = (np.concatenate([getattr(one, name) for one in own]) for name in ("errors", "factor_errors"))
        return {
            "choosing": choosing,
            "n_factors": candidate.n_factors,
            "participant_dim": participant_dim,
            "stimulus_dim": stimulus_dim,
            "response": candidate.response,
            "error": float(errors.mean()),
            "error_se": _standard_error(errors),
            "factor_error": float(alone.mean()),
            "factor_error_se": _standard_error(alone),
            "more": float(more.mean()),
            "more_se": _standard_error(more),
            "agreement_participants": _agreement(own, "participants"),
            "agreement_stimuli": _agreement(own, "stimuli"),
            "n_folds": len(own),
            "seconds": sum(one.seconds for one in own),
            "chosen": candidate == self.chosen,
        }


def halving(
    candidates: Sequence[Candidate],
    run: Callable[[Sequence[tuple[Candidate, int]]], list[Trial]],
    n_folds: int,
    errors_of: Callable[[Trial], np.ndarray],
) -> Halving:
    """Try all candidates on one fold and the better half of them on the others; choose the smallest that suffices."""
    trials = {one: [trial] for one, trial in zip(candidates, run([(one, 0) for one in candidates]), strict=True)}
    ranked = sorted(candidates, key=lambda one: float(errors_of(trials[one][0]).mean()))
    finalists = [one for one in candidates if one in ranked[: max(2, -(-len(ranked) // 2))]]
    jobs = [(one, fold) for one in finalists for fold in range(1, n_folds)]
    for (one, _), trial in zip(jobs, run(jobs), strict=True):
        trials[one].append(trial)
    errors = {one: np.concatenate([errors_of(trial) for trial in trials[one]]) for one in finalists}
    best = min(errors, key=lambda one: float(errors[one].mean()))
    enough = (one for one in finalists if _is_close(errors[one], errors[best]))
    return Halving(trials, next(enough, best), errors_of)


def _is_close(errors: np.ndarray, best: np.ndarray) -> bool:
    return bool((errors - best).mean() <= _standard_error(errors - best))


def _standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _agreement(trials: Sequence[Trial], kind: str) -> float:
    """Mean correlation of distances between embeddings of fits to different folds; NaN where there is none."""
    distances = [trial.distances[kind] for trial in trials]
    pairs = [
        np.corrcoef(one, other)[0, 1]
        for i, one in enumerate(distances)
        for other in distances[:i]
        if len(one) == len(other) >= 3 and one.std() > 0 and other.std() > 0
    ]
    return float(np.mean(pairs)) if pairs else float("nan")


class KeptTrials:
    """Trials that are run in several processes, and kept as files of a folder under the study's and their own names."""

    def __init__(self, question: Question, folder: Path, n_jobs: int) -> None:
        self._question, self._n_jobs = question, n_jobs
        self._folder = folder / TRIALS_FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        self._identity = _identity(question)

    def run(self, jobs: Sequence[tuple[Candidate, int]]) -> list[Trial]:
        """Run what is not there yet, and return all."""
        missing = [job for job in jobs if self._read(*job) is None]
        if missing and self._n_jobs == 1:
            trials = Trials(self._question.model, self._question.study)
            for job in missing:
                self._write(*job, trials.run(*job))
        elif missing:
            tasks = (delayed(self._run_one)(*job) for job in missing)
            Parallel(n_jobs=self._n_jobs)(tasks)
        found = [self._read(*job) for job in jobs]
        assert all(trial is not None for trial in found)
        return [trial for trial in found if trial is not None]

    def _run_one(self, candidate: Candidate, fold: int) -> None:
        torch.set_num_threads(1)
        self._write(candidate, fold, Trials(self._question.model, self._question.study).run(candidate, fold))

    def _path(self, candidate: Candidate, fold: int) -> Path:
        dims = "auto" if candidate.dims is None else "-".join(map(str, candidate.dims))
        return self._folder / f"{candidate.response}_{candidate.n_factors}_{dims}_{fold}.json"

    def _write(self, candidate: Candidate, fold: int, trial: Trial) -> None:
        content = {
            "identity": self._identity,
            "errors": trial.errors.tolist(),
            "factor_errors": trial.factor_errors.tolist(),
            "distances": {kind: own.tolist() for kind, own in trial.distances.items()},
            "seconds": trial.seconds,
        }
        write_file(self._path(candidate, fold), json.dumps(content).encode())

    def _read(self, candidate: Candidate, fold: int) -> Trial | None:
        """Read a trial; None if it is not there, cannot be read, or is of another study or of other settings."""
        try:
            content = read_json(self._path(candidate, fold))
            if content["identity"] != self._identity:
                return None
            distances = {kind: np.array(own, dtype=np.float64) for kind, own in content["distances"].items()}
            errors, alone = (np.array(content[name], dtype=np.float64) for name in ("errors", "factor_errors"))
            return Trial(errors, alone, distances, float(content["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _identity(question: Question) -> str:
    """Digest of what trials depend on besides the candidate and the fold."""
    study = question.study
    digest = hashlib.sha256(study.trials.to_csv().encode())
    digest.update(np.ascontiguousarray(study.positions).tobytes())
    for participant in study.participants:
        digest.update(np.ascontiguousarray(study.frames[participant][:2]).tobytes())
    return digest.hexdigest()
