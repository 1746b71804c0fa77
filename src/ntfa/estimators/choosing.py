"""What NTFA leaves to the data: which response model, and how many dimensions embeddings have.

Two response models describe how people differ. With *individual loadings* factors are in the same places for everybody,
and people differ in how they respond. With the paper's *networks* people have factors in places of their own, and
networks of both embeddings predict places and responses. Where noise is smooth, as in all real studies tried so far,
own places follow the noise and predictions get worse; where people's places truly differ, they are needed. So both are
fitted to a small version of the study (pooled voxels, few factors, some participants), with some cells left out, and
networks are taken only if they predict these clearly better.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from ntfa.errors import ModelError
from ntfa.estimators.settings import plain
from ntfa.files.folders import write_through
from ntfa.fitting.arrange import require_finite_trials
from ntfa.fitting.dimensions import some, stimulus_dimensions
from ntfa.fitting.pooling import Boxes
from ntfa.fitting.task import current_processes
from ntfa.inference.start import spacing_of
from ntfa.study import Study

if TYPE_CHECKING:
    from ntfa.estimators.ntfa import NTFA

logger = logging.getLogger("ntfa")

REMEMBERED = "choice.json"
RESPONSES = ("loadings", "network")
USUAL_DIM = 2
TRIAL_PARTICIPANTS, TRIAL_COLUMNS, TRIAL_FACTORS, TRIAL_EPOCHS = 24, 2000, 30, 120
TRIAL_FOLDS = 4


@dataclass(frozen=True)
class Choice:
    """What was chosen, by the user or by the data, and why.

    participant_dim : None until a fit has shown how many are reliable
    """

    response: str
    participant_dim: int | None
    stimulus_dim: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return it in terms that JSON knows."""
        dims = [self.participant_dim, self.stimulus_dim]
        return {"response": self.response, "embedding_dim": dims, "reason": self.reason}

    @classmethod
    def from_json(cls, content: dict[str, Any] | None, embedding_dim: Any) -> Choice:
        """Invert `to_json`; models that were saved before there was a choice have networks of D dimensions each."""
        if content is None:
            return cls("network", int(embedding_dim), int(embedding_dim), "")
        participant_dim, stimulus_dim = content["embedding_dim"]
        wished = zip(_wished_dims(embedding_dim), (participant_dim, stimulus_dim), strict=True)
        if any(wish is not None and wish != chosen for wish, chosen in wished):
            raise ValueError(f"embedding_dim is {embedding_dim!r}, but {content['embedding_dim']} were chosen")
        if content["response"] not in RESPONSES:
            raise ValueError(f"there is no response {content['response']!r}")
        return cls(content["response"], int(participant_dim), int(stimulus_dim), str(content["reason"]))


def presumed(model: NTFA) -> Choice:
    """Return what a fit is presumed to choose, for estimates that are made before there is one."""
    participant_dim, stimulus_dim = _wished_dims(model.embedding_dim)
    response = "loadings" if model.response == "loadings" else "network"
    return Choice(response, participant_dim or USUAL_DIM, stimulus_dim or USUAL_DIM, "presumed")


def choose_once(model: NTFA, study: Study, folder: Path | None) -> Choice:
    """Choose, and remember it in the folder of the fit's checkpoints: a fit that is resumed need not choose again."""
    path = None if folder is None else folder / REMEMBERED
    identity = "" if path is None else _identity(model, study)
    known = None if path is None else _recalled(path, identity)
    processes = current_processes()
    # Choosing takes all processes, so that all of them must remember, or none.
    forgotten = processes.any(known is None)
    if known is not None and not forgotten:
        return known
    found = choose(model, study)
    if path is not None and processes.is_first:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_through(path, json.dumps({"identity": identity, "chosen": found.to_json()}).encode())
    return found


def _recalled(path: Path, identity: str) -> Choice | None:
    """Return what was chosen for the same study and settings; None if that is not known, or cannot be read."""
    try:
        content = json.loads(path.read_bytes())
        if content["identity"] != identity:
            return None
        chosen = content["chosen"]
        participant_dim, stimulus_dim = chosen["embedding_dim"]
        return Choice(chosen["response"], participant_dim, stimulus_dim, chosen["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _identity(model: NTFA, study: Study) -> str:
    """Digest of settings, trials, voxels and some frames of every participant."""
    digest = hashlib.sha256(json.dumps({name: plain(value) for name, value in model.get_params().items()}).encode())
    digest.update(study.trials.to_csv().encode())
    digest.update(np.ascontiguousarray(study.coordinates).tobytes())
    for participant in study.participants:
        digest.update(np.ascontiguousarray(study.frames[participant][:2]).tobytes())
    return digest.hexdigest()


def choose(model: NTFA, study: Study) -> Choice:
    """Choose what the model's settings leave to the data."""
    participant_dim, stimulus_dim = _wished_dims(model.embedding_dim)
    if model.response != "network":
        require_finite_trials(study)
    response, reason = _response(model, study)
    if response == "network":
        dims = (participant_dim or USUAL_DIM, stimulus_dim or USUAL_DIM)
        return Choice(response, *dims, reason)
    if stimulus_dim is None:
        stimulus_dim, errors = stimulus_dimensions(study)
        if errors is not None:
            found = ", ".join(f"{d}: {e:.3f}" for d, e in zip(errors.dims, errors.errors.mean(0), strict=True))
            logger.debug("dimensions of stimuli and error of images that were left out: %s", found)
    most = max(1, len(study.stimuli) - 1)
    if stimulus_dim > most:
        raise ModelError(
            f"embedding_dim={model.embedding_dim!r}: {len(study.stimuli)} stimuli fill at most {most} dimensions"
        )
    if participant_dim is not None and participant_dim > max(1, len(study.participants) - 1):
        raise ModelError(
            f"embedding_dim={model.embedding_dim!r}: {len(study.participants)} participants fill at most "
            f"{max(1, len(study.participants) - 1)} dimensions"
        )
    return Choice(response, participant_dim, stimulus_dim, reason)


def _wished_dims(embedding_dim: Any) -> tuple[int | None, int | None]:
    """Dimensions of participants and of stimuli that were asked for, None if left to the data."""
    if embedding_dim == "auto":
        return None, None
    if isinstance(embedding_dim, tuple | list):
        return int(embedding_dim[0]), int(embedding_dim[1])
    return int(embedding_dim), int(embedding_dim)


def _response(model: NTFA, study: Study) -> tuple[str, str]:
    """Choose the response model, and say why."""
    if model.response != "auto":
        return model.response, "asked for"
    if model.inference == "mean-field" or model.n_particles > 1 or model.schedule == "paper" or model.init == "kmeans":
        return "network", "the paper's inference, schedule or start was asked for, and goes with its networks"
    if len(study.participants) < 3 or len(study.stimuli) < 3:
        return "network", "there are too few participants or stimuli to leave some pairs out"
    participant_dim, stimulus_dim = _wished_dims(model.embedding_dim)
    if (participant_dim or 0) >= len(study.participants) or (stimulus_dim or 0) >= len(study.stimuli):
        return "network", "more dimensions were asked for than loadings of so few participants or stimuli can fill"
    left_out = cells_left_out(study)
    if left_out is None:
        return "loadings", "no pair of participant and stimulus could be left out to decide"
    errors = trial_errors(model, study, left_out)
    better = errors["loadings"] - errors["network"]
    margin = better.std(ddof=1) / np.sqrt(len(better)) if len(better) > 1 else np.inf
    response = "network" if better.mean() > margin else "loadings"
    text = (
        f"squared error of left-out images, relative to predicting zero: {errors['loadings'].mean():.3f} with "
        f"individual loadings, {errors['network'].mean():.3f} with networks (in a reduced version of the study)"
    )
    logger.info("NTFA: response=%r: %s", response, text)
    return response, text


def cells_left_out(study: Study) -> pd.Series[bool] | None:
    """Choose trials to leave out: about a quarter of all pairs, none whose participant or stimulus is then unknown."""
    trials = study.trials
    number = {
        kind: trials[kind].map({label: i for i, label in enumerate(sorted(trials[kind].unique()))})
        for kind in ("participant", "stimulus")
    }
    test = (number["participant"] + number["stimulus"]) % TRIAL_FOLDS == 0
    seen = trials[~test]
    for kind, other in (("participant", "stimulus"), ("stimulus", "participant")):
        enough = seen.groupby(kind)[other].nunique()
        test &= trials[kind].map(enough).fillna(0) >= 2
    return test if test.any() and trials[test]["participant"].nunique() > 2 else None


def trial_errors(model: NTFA, study: Study, left_out: pd.Series[bool]) -> dict[str, np.ndarray]:
    """Relative errors of images of pairs that were left out, by participant, of both response models."""
    n_participants = max(TRIAL_PARTICIPANTS, current_processes().size)
    small = pooled_study(study, some(study.participants, n_participants), TRIAL_COLUMNS)
    train, test = small.split(left_out.loc[small.trials.index])
    n_factors = max(1, min(model.n_factors, TRIAL_FACTORS, train.n_voxels // 4))
    settings = {
        "n_factors": n_factors,
        "max_epochs": min(TRIAL_EPOCHS, model.max_epochs),
        "uncertainty": "mean-field",
        "coarse": "never",
        "memory": None,
        "verbose": 0,
        "noise": "same",
    }
    errors = {}
    for response in RESPONSES:
        dims = "auto" if response == "loadings" else USUAL_DIM
        fitted = model._like_this(**settings, response=response, embedding_dim=dims).fit(train)
        errors[response] = image_errors(fitted.predict, test)
    return errors


def image_errors(predict: Callable[[pd.DataFrame], np.ndarray], test: Study) -> np.ndarray:
    """Squared error of predicted mean images of a study's pairs over that of predicting zero, by participant."""
    errors = []
    for participant in test.participants:
        trials = test.trials[test.trials["participant"] == participant]
        pairs = trials[["participant", "stimulus"]].drop_duplicates()
        misfit = energy = 0.0
        for image, stimulus in zip(predict(pairs), pairs["stimulus"], strict=True):
            for trial in trials[trials["stimulus"] == stimulus].itertuples():
                frames = test.frames[participant][trial.start : trial.stop].astype(np.float64)
                mean = frames.mean(0)
                misfit += len(frames) * float(((mean - image) ** 2).sum())
                energy += len(frames) * float((mean**2).sum())
        errors.append(misfit / energy if energy > 0 else 1.0)
    return np.array(errors)


def pooled_study(study: Study, participants: list[str], most_columns: int) -> Study:
    """Some participants of a study, with neighbouring voxels averaged until there are few enough columns."""
    positions = torch.from_numpy(np.ascontiguousarray(study.coordinates, dtype=np.float64))
    side = spacing_of(study.coordinates)
    boxes = Boxes.around(positions, side)
    while len(boxes.count) > most_columns:
        side *= 1.26
        boxes = Boxes.around(positions, side)
    some_trials = study.trials[study.trials["participant"].isin(participants)].copy()
    frames = {p: _pooled(study.frames[p], some_trials[some_trials["participant"] == p], boxes) for p in participants}
    for participant in participants:
        own = some_trials["participant"] == participant
        lengths = (some_trials.loc[own, "stop"] - some_trials.loc[own, "start"]).to_numpy()
        stops = np.cumsum(lengths)
        some_trials.loc[own, "start"], some_trials.loc[own, "stop"] = stops - lengths, stops
    coordinates = (boxes.total(positions.T) / boxes.count).T.numpy()
    return Study.from_arrays(frames, some_trials, coordinates)


def _pooled(frames: np.ndarray, trials: pd.DataFrame, boxes: Boxes) -> np.ndarray:
    """Frames of the trials, one after another, averaged over boxes of voxels."""
    rows = [frames[start:stop] for start, stop in zip(trials["start"], trials["stop"], strict=True)]
    pooled = boxes.total(torch.from_numpy(np.concatenate(rows))) / boxes.count
    return pooled.to(torch.float32).numpy()
