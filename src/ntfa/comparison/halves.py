"""Every method on one half of a study: distances between its participants or stimuli."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntfa.analyses.halving import Booleans, Halves, halve_people, halve_stimuli, halve_trials
from ntfa.analyses.reproducibility import (
    participant_image_distances,
    point_distances,
    stimulus_image_distances,
)
from ntfa.baselines import BASELINES
from ntfa.comparison.embeddings import MOST_FEATURES, NAMES, TABLES
from ntfa.comparison.fits import Fits
from ntfa.comparison.image_baselines import INDIVIDUAL
from ntfa.errors import NTFAError
from ntfa.files.folders import write_file
from ntfa.files.reading import table_text
from ntfa.study import Study

logger = logging.getLogger("ntfa")

FOLDER = "halves"
Halve = Callable[[Fits, np.random.Generator], Halves]


@dataclass(frozen=True)
class Halving:
    """A way to halve a study: what is halved, and whose distances are then compared.

    what : one of "people", "trials", "stimuli"
    kind : "participant" or "stimulus"
    """

    what: str
    kind: str
    halve: Halve

    @property
    def question(self) -> str:
        """Say what is compared."""
        whose = {"participant": "participants", "stimulus": "stimuli"}[self.kind]
        return f"{whose}, halves of the {self.what}"


HALVINGS = (
    Halving("people", "stimulus", lambda fits, random: halve_people(fits.study.trials, random)),
    Halving("trials", "participant", lambda fits, random: halve_trials(fits.study.trials, random, fits.settings.run)),
    Halving("stimuli", "participant", lambda fits, random: halve_stimuli(fits.study.trials, random)),
)


def scaled_half(study: Study, chosen: Booleans) -> Study:
    """Take some trials, and divide each participant's frames by their root mean square over these trials.

    Noise makes distances larger. A participant whose recording was noisier in one half than in the other would be far
    from everybody there and near in the other, and halves would disagree however alike people's responses are.
    """
    half = study.select(trials=chosen)
    frames, parts = {}, []
    for who in half.participants:
        trials = half.trials[half.trials["participant"] == who]
        spans = list(zip(trials["start"], trials["stop"], strict=True))
        taken = np.concatenate([half.frames[who][start:stop] for start, stop in spans]).astype(np.float64)
        size = float(np.sqrt((taken**2).mean())) or 1.0
        frames[who] = (taken / size).astype(np.float32)
        lengths = trials["stop"] - trials["start"]
        parts.append(trials.assign(start=lengths.cumsum() - lengths, stop=lengths.cumsum()))
    return Study(half.coordinates, pd.concat(parts), frames, half.mask_img)


@dataclass(frozen=True)
class Half:
    """One half of a halving: its name, and the trials in it."""

    name: str
    way: Halving
    chosen: Booleans


def halves_of(fits: Fits, way: Halving) -> list[Half]:
    """Return the halves of all halvings of a kind, two of each one after the other."""
    found = []
    for number in range(1, fits.settings.n_halvings + 1):
        # Its own stream for each halving, so that one more does not change those before.
        random = np.random.default_rng([fits.settings.seed, HALVINGS.index(way), number])
        sides = zip(way.halve(fits, random), "ab", strict=True)
        found += [Half(f"{way.what}-{number}-{side}", way, chosen) for chosen, side in sides]
    return found


def look_at_half(fits: Fits, half: Half) -> dict[str, pd.DataFrame]:
    """Distances between participants or stimuli by every method, by one half alone."""
    if half.name not in fits.halves:
        fits.halves[half.name] = distances_of_half(fits, scaled_half(fits.study, half.chosen), half.way.kind, half.name)
    return fits.halves[half.name]


def distances_of_half(fits: Fits, half: Study, kind: str, name: str) -> dict[str, pd.DataFrame]:
    """Distances between participants or stimuli by every method, fitted to one half alone.

    Principal components and models of a shared response have as many dimensions as NTFA's points have.
    """
    points = ntfa_points(fits, half, kind, name)
    found = {"NTFA": point_distances(points)}
    for key, make in BASELINES.items():
        model = make()
        wanted = {
            "n_features": fits.settings.n_features or min(fits.settings.n_factors, MOST_FEATURES),
            "random_state": fits.settings.seed,
            # Individual loadings choose for themselves how many they need.
            **({} if key == INDIVIDUAL else {"n_components": len(points.columns)}),
        }
        model.set_params(**{param: value for param, value in wanted.items() if param in model.get_params()})
        try:
            found[NAMES[key]] = _baseline_distances(model.fit(half), kind)
        except NTFAError as error:
            logger.warning("%s left out of %s: %s", NAMES[key], name, error)
    of_images = {"participant": participant_image_distances, "stimulus": stimulus_image_distances}[kind]
    labels = (half.trials[column].tolist() for column in ("participant", "stimulus"))
    return found | {"images": of_images(half.mean_images(), *labels)}


def _baseline_distances(model: Any, kind: str) -> pd.DataFrame:
    if kind == "participant" and hasattr(model, "participant_distances_"):
        distances: pd.DataFrame = model.participant_distances_
        return distances
    return point_distances(getattr(model, TABLES[kind]))


def ntfa_points(fits: Fits, half: Study, kind: str, name: str) -> pd.DataFrame:
    """Points of NTFA fitted to a half: from an earlier run that was interrupted, or fitted now and kept."""
    path = fits.folder / FOLDER / f"{name}.tsv"
    if path.exists():
        return _read_points(path, kind)
    logger.info("Fitting NTFA to %s", name)
    model: Any = fits.unfitted("ntfa", verbose=0).fit(half)
    table: pd.DataFrame = getattr(model, TABLES[kind])
    points = table[[column for column in table if str(column)[0] == "z" and str(column)[1:].isdigit()]]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, points.to_csv(sep="\t", index_label=kind).encode())
    return points


def _read_points(path: Path, kind: str) -> pd.DataFrame:
    content = io.StringIO(table_text(path, line_breaks=True))
    return pd.read_csv(content, sep="\t", dtype={kind: str}, keep_default_na=False, index_col=False).set_index(kind)
