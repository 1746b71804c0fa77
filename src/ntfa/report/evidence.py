"""How a model compares with recorded data; kept beside the report, so that it can be made again without them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntfa.analyses.images import image_correlations, mean_image, typical
from ntfa.baselines import AdditiveImage, MeanImage
from ntfa.errors import ModelError, NTFAError
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.choosing import supported_factors
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.sizing import FEWEST_FACTORS
from ntfa.files.reading import read_json, reading, table_text
from ntfa.report.expected import Expected
from ntfa.report.figures import Picture, data_pictures, residuals_are_quick
from ntfa.report.files import safe_file_name
from ntfa.study import Study

NOTES, FIGURES, PREDICTIONS = "report.json", "figures", "predictions.tsv"
BASELINES = {
    "mse_of_stimulus_mean": "the mean image of the stimulus",
    "mse_of_additive": "that plus a share of the participant's own deviation",
}
"""Simple predictions of pairs that were held out, and their columns."""
TOO_MANY = 2
"""So many times what the data support is too many factors."""


@dataclass(frozen=True)
class Evidence:
    """What recorded data say of a model.

    predictions : DataFrame or None
        `participant, stimulus, correlation, mse, mse_of_zero, held_out`, one row per pair.
    pictures : figures that need data
    left_out : sentences on what was not worked out, and why
    supported : how many factors the data support; None where that is not known
    """

    predictions: pd.DataFrame | None = None
    pictures: list[Picture] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    supported: int | None = None


@dataclass(frozen=True)
class About:
    """Which study a fit is of, and when it was made, as the page shows both; empty where that is not known."""

    study: str = ""
    date: str = ""


def gather(model: TopographicModel, expected: Expected, study: Study | None, held_out: Study | None) -> Evidence:
    """Compare a model with data: trials held out from the fit if there are any, else those it was fitted to."""
    shown = study if held_out is None else held_out
    if shown is None:
        text = "The recorded data were not available, so predictions are not compared with them."
        return Evidence(left_out=[text])
    if expected.weights is None:
        return Evidence(
            left_out=["This model makes no predictions for trials that it was not fitted to, so it predicts no images."]
        )
    voxels = _shared_voxels(*(one for one in (study, held_out) if one is not None))
    table = prediction_table(model, expected, shown, voxels).assign(held_out=held_out is not None)
    if study is not None and held_out is not None:
        table = with_baselines(table, study.at(voxels), held_out.at(voxels))
    rows = table.iloc[typical(table["correlation"].to_numpy(dtype=np.float64))]
    pairs = _pairs(rows)
    left_out = []
    if study is not None and not residuals_are_quick(model, study):
        left_out.append(
            "The map of residuals would take minutes for a study of this size; draw it with ntfa.plots.plot_noise."
        )
    return Evidence(table, data_pictures(model, study, shown, pairs), left_out, _supported(model, study))


def _shared_voxels(*studies: Study) -> np.ndarray:
    """Which voxels all participants have, so that errors of all predictions are over the same ones; or else all."""
    shared = np.logical_and.reduce([study.coverage_share == 1 for study in studies])
    return shared if shared.any() else np.ones_like(shared)


def _supported(model: TopographicModel, study: Study | None) -> int | None:
    """How many factors the data support: known already if the data chose, else to be compared with those there are."""
    if not isinstance(model, NTFA) or study is None:
        return None
    if hasattr(model, "tried_"):
        return int(model.n_factors_)
    if int(model.n_factors_) <= TOO_MANY * FEWEST_FACTORS:
        # Whatever were found, these are not too many; and looking takes longer than so small a fit.
        return None
    found = supported_factors(study)
    return None if found is None else found.n_factors


def prediction_table(
    model: TopographicModel, expected: Expected, study: Study, voxels: np.ndarray | None = None
) -> pd.DataFrame:
    """Compare predicted with recorded mean images, one row per pair of participant and stimulus.

    `correlation` is over voxels, all or these, that the participant has; `mse_of_zero` is the mean squared error of
    predicting zero.
    """
    people = {label: i for i, label in enumerate(expected.participants)}
    places = {label: i for i, label in enumerate(expected.stimuli)}
    parts = []
    for participant in study.participants:
        own = study.select(participants=participant)
        known = [label for label in own.stimuli if label in places]
        if participant not in people or not known:
            continue
        observed = np.stack([mean_image(own.select(stimuli=label)) for label in known])
        predicted = expected.images(people[participant], [places[label] for label in known])
        seen = np.isfinite(observed[0]) if voxels is None else np.isfinite(observed[0]) & voxels
        parts.append(_compare(participant, known, observed[:, seen], predicted[:, seen]))
    columns = ["participant", "stimulus", "correlation", "mse", "mse_of_zero"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def with_baselines(table: pd.DataFrame, study: Study, held_out: Study) -> pd.DataFrame:
    """Add mean squared errors of simple predictions, fitted to the trials that the model was fitted to."""
    kinds: tuple[Any, ...] = (MeanImage(of="stimulus"), AdditiveImage())
    errors: dict[str, list[float]] = {}
    for column, kind in zip(BASELINES, kinds, strict=True):
        try:
            fitted = kind.fit(study)
            errors[column] = [_error_of(fitted, held_out, *pair) for pair in _pairs(table)]
        except NTFAError:
            # A study whose participants share no stimulus has no such prediction.
            continue
    return table.assign(**errors)


def _error_of(fitted: Any, held_out: Study, participant: str, stimulus: str) -> float:
    observed = mean_image(held_out.select(participants=participant, stimuli=stimulus))
    return float(((observed - fitted.predict([(participant, stimulus)])[0]) ** 2).mean())


def _pairs(table: pd.DataFrame) -> list[tuple[str, str]]:
    return [(str(row.participant), str(row.stimulus)) for row in table.itertuples()]


def _compare(participant: str, stimuli: Sequence[str], observed: Any, predicted: Any) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "participant": participant,
            "stimulus": list(stimuli),
            "correlation": image_correlations(observed, predicted),
            "mse": ((observed - predicted) ** 2).mean(1),
            "mse_of_zero": (observed**2).mean(1),
        }
    )


def predictions_in_words(table: pd.DataFrame | None) -> list[str]:
    """Say how predicted images compare with recorded ones."""
    if table is None or table.empty:
        return []
    which = "held out from the fit" if table["held_out"].all() else "the model was fitted to"
    return [
        f"The mean correlation of predicted with recorded images, over the {len(table):,} participant-stimulus pairs "
        f"{which}, is {table['correlation'].mean():.2f}; their mean squared error is "
        f"{table['mse'].sum() / table['mse_of_zero'].sum():.3f} times that of predicting zero."
    ]


def write_evidence(
    folder: Path, evidence: Evidence, pictures: Sequence[Picture], notes: Sequence[str], about: About
) -> None:
    """Keep notes, what the fit is of, the table of predictions, and all pictures as files."""
    (folder / FIGURES).mkdir(exist_ok=True)
    for picture in [*pictures, *evidence.pictures]:
        (folder / FIGURES / f"{picture.name}.png").write_bytes(picture.png)
        if picture.svg is not None:
            (folder / FIGURES / f"{picture.name}.svg").write_bytes(picture.svg)
        if picture.name == "embeddings":
            (folder / "embeddings.png").write_bytes(picture.png)
    if evidence.predictions is not None:
        evidence.predictions.to_csv(folder / PREDICTIONS, sep="\t", index=False)
    figures = [{"name": p.name, "section": p.section, "caption": p.caption} for p in evidence.pictures]
    content = {"notes": list(notes), "left_out": evidence.left_out, "figures": figures, "about": asdict(about)}
    content["supported"] = evidence.supported
    (folder / NOTES).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_about(folder: Path) -> About:
    """Read back what `write_evidence` kept of a study's name and the date; empty where there is nothing."""
    content = _read_notes(folder / NOTES).get("about", {}) if (folder / NOTES).exists() else {}
    return About(**{name: content[name] for name in ("study", "date") if name in content})


def read_evidence(folder: Path) -> tuple[Evidence, list[str]]:
    """Read back what `write_evidence` kept, with the notes; empty where there is nothing."""
    content = _read_notes(folder / NOTES) if (folder / NOTES).exists() else {}
    pictures = []
    for entry in content.get("figures", []):
        file = folder / FIGURES / f"{entry['name']}.png"
        if file.is_file():
            pictures.append(Picture(file.stem, entry["section"], entry["caption"], file.read_bytes()))
    table = _read_predictions(folder / PREDICTIONS) if (folder / PREDICTIONS).exists() else None
    left_out = content.get("left_out", ["The recorded data were not available; see ntfa report --study."])
    return Evidence(table, pictures, left_out, content.get("supported")), content.get("notes", [])


def _read_notes(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read ({error}); remove it to do without") from error
    for name in ("notes", "left_out"):
        if not _are_texts(content.get(name, [])):
            raise ModelError(f"{path}: {name} must be a list of sentences; remove the file to do without")
    if not isinstance(content.get("supported"), int | None):
        raise ModelError(f"{path}: supported must be a number of factors; remove the file to do without")
    about = content.get("about", {})
    if not isinstance(about, dict) or not _are_texts([about.get(key, "") for key in ("study", "date")]):
        raise ModelError(f"{path}: about must name a study and a date; remove the file to do without")
    figures = content.get("figures", [])
    keys = ("name", "section", "caption")
    if not isinstance(figures, list) or not all(
        isinstance(entry, dict) and _are_texts([entry.get(key) for key in keys]) for entry in figures
    ):
        raise ModelError(f"{path}: figures must have a {', a '.join(keys)} each; remove the file to do without")
    for entry in figures:
        # A name is ours, never a path.
        if entry["name"] != safe_file_name(entry["name"]):
            raise ModelError(
                f"{path}: no figure of ours is called {entry['name'][:100]!r}; remove the file to do without"
            )
    return content


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _read_predictions(path: Path) -> pd.DataFrame:
    text = dict.fromkeys(("participant", "stimulus"), str)
    with reading(f"{path}: cannot be read as a table of predictions", ModelError):
        content = io.StringIO(table_text(path, line_breaks=True))
        table = pd.read_csv(content, sep="\t", dtype=text, keep_default_na=False, index_col=False)
        table = table.astype(dict.fromkeys(("correlation", "mse", "mse_of_zero"), np.float64))
        if (
            not np.isfinite(table[["correlation", "mse", "mse_of_zero"]].to_numpy()).all()
            or not (table["mse_of_zero"] > 0).all()
        ):
            raise ValueError("it has something that is no finite number, or an image of nothing")
        if "participant" not in table or "stimulus" not in table or not pd.api.types.is_bool_dtype(table["held_out"]):
            raise ValueError("it has no participant, no stimulus, or does not say what was held out")
    return table
