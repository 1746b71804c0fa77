"""What NTFA leaves to the data: which response model, how many factors, and how many dimensions embeddings have.

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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ntfa.errors import ModelError
from ntfa.estimators.settings import plain
from ntfa.estimators.sizing import USUAL_FACTORS, Sizing, choose_n_factors
from ntfa.estimators.trials import USUAL_DIM, Candidate, Trials
from ntfa.files.folders import write_through
from ntfa.fitting.arrange import require_finite_trials
from ntfa.fitting.dimensions import stimulus_dimensions
from ntfa.fitting.task import current_processes
from ntfa.study import Study

if TYPE_CHECKING:
    from ntfa.estimators.ntfa import NTFA

logger = logging.getLogger("ntfa")

REMEMBERED = "choice.json"
RESPONSES = ("loadings", "network")
TRIAL_FACTORS = 30
"""Factors of the fits that response models are compared by, at most."""


@dataclass(frozen=True)
class Choice:
    """What was chosen, by the user or by the data, and why.

    participant_dim : None until a fit has shown how many are reliable
    n_factors : None in estimates that are made before there is a fit
    sizing : what the number of factors was chosen by, `reason` and `tried`; empty if it was given
    """

    response: str
    participant_dim: int | None
    stimulus_dim: int
    reason: str
    n_factors: int
    sizing: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it in terms that JSON knows."""
        dims = [self.participant_dim, self.stimulus_dim]
        chosen = {"response": self.response, "embedding_dim": dims, "reason": self.reason, "n_factors": self.n_factors}
        return chosen | ({"sizing": self.sizing} if self.sizing else {})

    @classmethod
    def from_json(cls, content: dict[str, Any] | None, embedding_dim: Any, n_factors: Any) -> Choice:
        """Invert `to_json`; models that were saved before there was a choice have networks of D dimensions each."""
        if content is None:
            return cls("network", int(embedding_dim), int(embedding_dim), "", int(n_factors))
        participant_dim, stimulus_dim = content["embedding_dim"]
        wished = zip(_wished_dims(embedding_dim), (participant_dim, stimulus_dim), strict=True)
        if any(wish is not None and wish != chosen for wish, chosen in wished):
            raise ValueError(f"embedding_dim is {embedding_dim!r}, but {content['embedding_dim']} were chosen")
        if content["response"] not in RESPONSES:
            raise ValueError(f"there is no response {content['response']!r}")
        number = int(content.get("n_factors", n_factors))
        if n_factors not in (number, "auto"):
            raise ValueError(f"n_factors is {n_factors!r}, but {number} were chosen")
        dims, sizing = (int(participant_dim), int(stimulus_dim)), _checked_sizing(content.get("sizing", {}))
        return cls(content["response"], *dims, str(content["reason"]), number, sizing)


def _checked_sizing(sizing: Any) -> dict[str, Any]:
    """Refuse what the number of factors cannot have been chosen by."""
    if not sizing:
        return {}
    wanted = ("n_factors", "error", "more", "more_se")
    rows = [{name: float(row[name]) for name in wanted} for row in sizing["tried"]]
    if not rows or not np.isfinite([value for row in rows for value in row.values()]).all():
        raise ValueError("what the number of factors was chosen by has something that is no finite number")
    return {"reason": str(sizing["reason"]), "tried": [row | {"n_factors": int(row["n_factors"])} for row in rows]}


def presumed(model: NTFA) -> Choice:
    """Return what a fit is presumed to choose, for estimates that are made before there is one."""
    participant_dim, stimulus_dim = _wished_dims(model.embedding_dim)
    response = "loadings" if model.response == "loadings" else "network"
    n_factors = USUAL_FACTORS if model.n_factors == "auto" else int(model.n_factors)
    return Choice(response, participant_dim or USUAL_DIM, stimulus_dim or USUAL_DIM, "presumed", n_factors)


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
        dims, number = (participant_dim, stimulus_dim), int(chosen["n_factors"])
        return Choice(chosen["response"], *dims, chosen["reason"], number, _checked_sizing(chosen.get("sizing")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _identity(model: NTFA, study: Study) -> str:
    """Digest of settings, trials, voxels and some frames of every participant."""
    digest = hashlib.sha256(json.dumps({name: plain(value) for name, value in model.get_params().items()}).encode())
    digest.update(study.trials.to_csv().encode())
    digest.update(np.ascontiguousarray(study.positions).tobytes())
    for participant in study.participants:
        digest.update(np.ascontiguousarray(study.frames[participant][:2]).tobytes())
    return digest.hexdigest()


def choose(model: NTFA, study: Study) -> Choice:
    """Choose what the model's settings leave to the data."""
    if _is_left_to_the_data(model):
        require_finite_trials(study)
    trials = Trials(model, study)
    n_factors, sizing = _n_factors(model, study, trials)
    response, reason = _response(model, study, trials, n_factors)
    dims = _dimensions(model, study, response)
    return Choice(response, *dims, reason, n_factors, sizing)


def _is_left_to_the_data(model: NTFA) -> bool:
    """Whether frames are looked at to choose anything."""
    asks_for_dims = model.response == "loadings" and _wished_dims(model.embedding_dim)[1] is None
    return model.response == "auto" or model.n_factors == "auto" or asks_for_dims


def _n_factors(model: NTFA, study: Study, trials: Trials) -> tuple[int, dict[str, Any]]:
    """Take the number of factors that was asked for, or choose it; and say what by."""
    if model.n_factors != "auto":
        return int(model.n_factors), {}
    found = _supported(trials, study)
    if found is None:
        usual = max(1, min(USUAL_FACTORS, study.n_voxels // 4))
        logger.info("NTFA: %d factors: no pair of participant and stimulus could be left out to choose by", usual)
        return usual, {}
    logger.info("NTFA: %d factors: %s", found.n_factors, found.reason)
    return found.n_factors, {"reason": found.reason, "tried": found.tried}


def supported_factors(study: Study) -> Sizing | None:
    """Say how many factors a study supports; None where no pair can be left out to tell."""
    from ntfa.estimators.ntfa import NTFA

    return _supported(Trials(NTFA("auto", device="cpu"), study), study)


def _supported(trials: Trials, study: Study) -> Sizing | None:
    possible = len(study.participants) >= 3 and len(study.stimuli) >= 3 and trials.are_possible
    return choose_n_factors(trials) if possible else None


def choose_response(model: NTFA, study: Study, n_factors: int) -> str:
    """Choose the response model alone, for a number of factors."""
    return _response(model, study, Trials(model, study), n_factors)[0]


def _dimensions(model: NTFA, study: Study, response: str) -> tuple[int | None, int]:
    """Take the dimensions that were asked for, or choose those of stimuli; those of people follow from the fit."""
    participant_dim, stimulus_dim = _wished_dims(model.embedding_dim)
    if response == "network":
        return participant_dim or USUAL_DIM, stimulus_dim or USUAL_DIM
    if stimulus_dim is None:
        stimulus_dim, errors = stimulus_dimensions(study, robust=model.frames == "robust")
        if errors is not None:
            found = ", ".join(f"{d}: {e:.3f}" for d, e in zip(errors.dims, errors.errors.mean(0), strict=True))
            logger.debug("dimensions of stimuli and error of images that were left out: %s", found)
    for kind, dim, n_labels in (
        ("stimuli", stimulus_dim, len(study.stimuli)),
        ("participants", participant_dim or 1, len(study.participants)),
    ):
        if dim > max(1, n_labels - 1):
            raise ModelError(
                f"embedding_dim={model.embedding_dim!r}: {n_labels} {kind} fill at most {max(1, n_labels - 1)} "
                "dimensions"
            )
    return participant_dim, stimulus_dim


def _wished_dims(embedding_dim: Any) -> tuple[int | None, int | None]:
    """Dimensions of participants and of stimuli that were asked for, None if left to the data."""
    if embedding_dim == "auto":
        return None, None
    if isinstance(embedding_dim, tuple | list):
        return int(embedding_dim[0]), int(embedding_dim[1])
    return int(embedding_dim), int(embedding_dim)


def _response(model: NTFA, study: Study, trials: Trials, n_factors: int) -> tuple[str, str]:
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
    if not trials.are_possible:
        return "loadings", "no pair of participant and stimulus could be left out to decide"
    errors = trial_errors(trials, n_factors)
    better = errors["loadings"] - errors["network"]
    margin = better.std(ddof=1) / np.sqrt(len(better)) if len(better) > 1 else np.inf
    response = "network" if better.mean() > margin else "loadings"
    text = (
        f"squared error of left-out images, relative to predicting zero: {errors['loadings'].mean():.3f} with "
        f"individual loadings, {errors['network'].mean():.3f} with networks (in a reduced version of the study)"
    )
    logger.info("NTFA: response=%r: %s", response, text)
    return response, text


def trial_errors(trials: Trials, n_factors: int) -> dict[str, np.ndarray]:
    """Relative errors of images of pairs that were left out, by participant, of both response models."""
    number = min(n_factors, TRIAL_FACTORS, trials.most_factors)
    return {response: trials.run(Candidate(response, number)).errors for response in RESPONSES}
