"""Make a fit's report from a fitted model, or from its folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd

from ntfa.analyses.labels import label_table
from ntfa.errors import ModelError
from ntfa.estimators import MODELS
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.saving import CONFIG_FILE, summary, versions
from ntfa.files.reading import read_json
from ntfa.report import words
from ntfa.report.answers import ShownAnswer, read_answers
from ntfa.report.citations import references
from ntfa.report.coverage import coverage_of
from ntfa.report.data import as_block, page_data
from ntfa.report.design import Design, design_of, read_design, write_design
from ntfa.report.evidence import (
    About,
    Evidence,
    gather,
    predictions_in_words,
    read_about,
    read_evidence,
    write_evidence,
)
from ntfa.report.expected import Expected, expected_of
from ntfa.report.figures import Picture, inline, model_pictures
from ntfa.report.files import describe, find_quality, read_labels, write_labels
from ntfa.report.frames import frames_of
from ntfa.report.images import write_images
from ntfa.report.interaction import interaction_of
from ntfa.report.maps import PredictedMaps, predicted_maps
from ntfa.report.methods import Facts, methods
from ntfa.report.newcomers import newcomers_of
from ntfa.report.page import Report, Table, render
from ntfa.report.quality import quality_of, without_folders
from ntfa.report.regions import as_atlas, atlas_name, keep_atlas, kept_atlas
from ntfa.report.sessions import Sessions, read_sessions, sessions_of, write_sessions
from ntfa.report.tables import TABLES_FOLDER, factor_table, without_home, write_tables
from ntfa.report.verdict import verdict
from ntfa.study import Study
from ntfa.study.atlas import Atlas

# Small maps of each kind that are embedded.
MOST_MAPS = 40
KINDS = ("participant", "stimulus")
EMBEDDINGS = {"participant": "participants_", "stimulus": "stimuli_"}


@dataclass(frozen=True)
class Source:
    """What a fit's report is made of, besides the model.

    labels : tables by "participant" and "stimulus", one row per label
    notes : sentences for the summary
    files : name, size and contents of the files beside the report
    answers : to questions asked of the model since it was fitted
    atlas : names regions
    design : what the study's design can and cannot tell, if that is known
    sessions : how much embeddings change from session to session, if there are several
    """

    labels: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    notes: Sequence[str] = ()
    command: Sequence[str] = ()
    quality: pd.DataFrame | None = None
    versions: Mapping[str, Any] = field(default_factory=versions)
    files: Sequence[tuple[str, str, str]] = ()
    about: About = field(default_factory=About)
    answers: Sequence[ShownAnswer] = ()
    atlas: Atlas | None = None
    design: Design | None = None
    sessions: Sessions | None = None


def generate_report(
    model: TopographicModel, study: Study | None = None, held_out: Study | None = None, atlas: Any = None
) -> Report:
    """Make the report of a fitted model.

    Parameters
    ----------
    study : Study, optional
        What the model was fitted to: gives labels to colour by, and data to compare with.
    held_out : Study, optional
        Trials that the model was not fitted to; predictions are then compared with these.
    atlas : Atlas, image, or pair of image and labels, optional
        Names the regions of factors and of places.
    """
    regions = as_atlas(atlas)
    expected = expected_of(model)
    labels = _labels(study)
    source = Source(labels, gather(model, expected, study, held_out), about=About(date=today()), atlas=regions)
    if study is not None:
        source = replace(source, design=design_of(study), sessions=sessions_of(model, study))
    return _render(model, expected, source, model_pictures(model, labels))


def write_report(
    model: TopographicModel,
    study: Study | None,
    path: Path,
    notes: Sequence[str] = (),
    command: Sequence[str] = (),
    quality: pd.DataFrame | None = None,
    held_out: Study | None = None,
    *,
    all_images: bool = False,
    study_name: str = "",
    static: bool = False,
    atlas: Atlas | None = None,
) -> None:
    """Write a fit's report, and beside it what it can be made from again without the data.

    That is `figures/`, `predictions.tsv`, `labels_participants.tsv`, `labels_stimuli.tsv`, `quality.tsv` and
    `report.json`. Where there is neither `study` nor `held_out`, what is in the folder already is used. Also written
    are `tables/` with the other tables of the report, `embeddings.png`, and what `write_images` writes.

    Parameters
    ----------
    path : Path
        Where the report goes.
    notes : list of str
        Sentences for the summary.
    command : list of str
        The command line that made the fit.
    quality : DataFrame, optional
        One row per run: what was kept and what was lost.
    all_images : bool
        Whether factors and predictions of every participant are written as images too.
    study_name : str
        What the page calls the study.
    static : bool
        Whether to write a page without scripts as well, to the same name with `_static`.
    atlas : Atlas, optional
        Names regions, and is kept in the folder; by default the one that is kept there already, if any.
    """
    folder, expected = path.parent, expected_of(model)
    write_images(model, folder, everything=all_images, expected=expected)
    evidence, kept_notes = read_evidence(folder)
    if study is not None or held_out is not None:
        evidence = gather(model, expected, study, held_out)
    labels = {kind: own for kind in KINDS if (own := read_labels(folder, kind)) is not None} | _labels(study)
    quality = find_quality(folder) if quality is None else quality
    quality = None if quality is None else without_folders(quality)
    notes, pictures = list(notes) or kept_notes, model_pictures(model, labels)
    about = _about(folder, study_name)
    write_evidence(folder, evidence, pictures, notes, about)
    write_labels(folder, labels)
    design = read_design(folder) if study is None else design_of(study)
    if design is not None:
        write_design(folder, design)
    sessions = read_sessions(folder) if study is None else sessions_of(model, study)
    write_sessions(folder, sessions)
    if quality is not None:
        quality.to_csv(folder / "quality.tsv", sep="\t", index=False, na_rep="n/a")
    known, atlas = _config(folder), kept_atlas(folder) if atlas is None else atlas
    if atlas is not None:
        keep_atlas(folder, atlas)
    write_tables(folder / TABLES_FOLDER, model, expected, atlas)
    source = Source(
        labels, evidence, notes, command or known.get("command", ()), quality, known.get("versions") or versions()
    )
    files = describe(folder, leave_out=[path.name, static_path(path).name])
    source = replace(source, files=files, about=about, answers=read_answers(folder), atlas=atlas)
    source = replace(source, design=design, sessions=sessions)
    _render(model, expected, source, pictures).save_as_html(path)
    if static:
        _render(model, expected, source, pictures, static=True).save_as_html(static_path(path))


def static_path(path: Path) -> Path:
    """Where the page without scripts goes: beside the other, under the same name with `_static`."""
    return path.with_name(f"{path.stem}_static{path.suffix}")


def _about(folder: Path, study_name: str) -> About:
    """Say which study this is and when it was fitted: as was said first, for a report that is made again."""
    known = read_about(folder)
    return About(study_name or known.study, known.date or today())


def today() -> str:
    """Return today's date as the page shows it."""
    now = date.today()
    return f"{now.day} {now:%B %Y}"


def load_any(folder: Path) -> TopographicModel:
    """Read the fitted model in a folder, whichever kind it is."""
    kind = str(_config(folder).get("model", "")).lower()
    if kind not in MODELS:
        raise ModelError(f"{folder} is not a saved model: it has no {CONFIG_FILE} that names one")
    model: TopographicModel = MODELS[kind].load(folder, "cpu")
    return model


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / CONFIG_FILE)
    except ValueError:
        return {}
    command = config.get("command", [])
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ModelError(f"{folder / CONFIG_FILE}: the command is no list of words")
    if not isinstance(config.get("versions", {}), dict):
        raise ModelError(f"{folder / CONFIG_FILE}: versions are no table of names and versions")
    return config


def _labels(study: Study | None) -> dict[str, pd.DataFrame]:
    return {} if study is None else {kind: label_table(study, kind) for kind in KINDS}


def _render(
    model: TopographicModel,
    expected: Expected,
    source: Source,
    pictures: Sequence[Picture],
    *,
    static: bool = False,
) -> Report:
    tables = {kind: table for kind, name in EMBEDDINGS.items() if (table := getattr(model, name, None)) is not None}
    maps = predicted_maps(expected, model.coordinates_, tables)
    evidence, quality = source.evidence, None if source.quality is None else quality_of(source.quality)
    facts = Facts.of(model, {**versions(), **source.versions})
    paragraphs = methods(facts)
    in_sample = [] if _held_out(evidence.predictions) else predictions_in_words(evidence.predictions)
    figures: dict[str, list[Picture]] = {}
    for picture in [*pictures, *evidence.pictures]:
        figures.setdefault(picture.section, []).append(picture)
    return render(
        "fit.html",
        static=static,
        title=f"{type(model).__name__} report" + (f": {source.about.study}" if source.about.study else ""),
        model=type(model).__name__,
        about=source.about,
        numbers=summary(model),
        findings=verdict(model, evidence, quality, source.design),
        sentences=[*words.fit_in_words(model), *words.certainty_in_words(model), *in_sample],
        notes=source.notes,
        design=source.design,
        coverage=coverage_of(model),
        sessions=source.sessions,
        advice=words.what_to_look_at(model, with_quality=quality is not None),
        has_embeddings=hasattr(model, "participants_"),
        has_shares=getattr(model, "response_", None) == "loadings",
        calibrated=facts.calibration is not None and len(facts.calibration) == 2,
        figures=figures,
        left_out=evidence.left_out,
        maps=_gallery(expected, maps),
        map_limit=maps.limit if maps else 0,
        map_sides=maps.grid.sides if maps else (),
        factor_table=Table.of(factor_table(expected, source.atlas)),
        atlas="" if source.atlas is None else atlas_name(source.atlas),
        predictions=_prediction_table(evidence.predictions),
        quality=quality,
        frames=frames_of(model),
        quality_table=Table.of(source.quality) if source.quality is not None else None,
        settings={**model.fitted_params, "seed": model.seed_},
        versions=source.versions,
        command=without_home(shlex.join(source.command)),
        methods=paragraphs,
        preparation_known=facts.provenance is not None,
        references=references(paragraphs),
        files=source.files,
        answers=source.answers,
        interaction=interaction_of(model, evidence.predictions),
        newcomers=newcomers_of(model),
        data="" if static else as_block(page_data(model, expected, source.labels, maps, source.atlas)),
    )


def _held_out(predictions: pd.DataFrame | None) -> bool:
    return predictions is not None and not predictions.empty and bool(predictions["held_out"].all())


def _gallery(expected: Expected, maps: PredictedMaps | None) -> dict[str, Any]:
    """Small maps with their labels, by kind, and how many were left out."""
    if maps is None:
        return {}
    labels = {"participant": expected.participants, "stimulus": expected.stimuli}
    gallery = {}
    for kind in KINDS:
        own = maps.pictures(kind, MOST_MAPS)
        shown = [{"place": place, "label": labels[kind][place], "source": inline(png)} for place, png in own.items()]
        gallery[kind] = {"shown": shown, "left_out": len(labels[kind]) - len(own) if own else 0}
    return {kind: part for kind, part in gallery.items() if part["shown"]}


def _prediction_table(predictions: pd.DataFrame | None) -> Table | None:
    if predictions is None or predictions.empty:
        return None
    table = predictions[["participant", "stimulus"]].copy()
    table["correlation"] = predictions["correlation"].map("{:.2f}".format)
    table["error / error of zero"] = (predictions["mse"] / predictions["mse_of_zero"]).map("{:.3f}".format)
    return Table.of(table, most=100, numbers=("correlation", "error / error of zero"))
