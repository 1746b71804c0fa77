"""What reads files: for each reader a folder to damage, how to read it, and how to tell a wrong success."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import torch

from ntfa import HTFA, NTFA, TFA, TLSA, Study, simulate
from ntfa.analyses.columns import columns_for
from ntfa.comparison.report import write_comparison_report
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.choosing import choose
from ntfa.fitting.arrange import arrange
from ntfa.fitting.checkpoint import Checkpoint
from ntfa.fitting.optimise import make_trainer
from ntfa.inference.start import find_start
from ntfa.report.build import load_any
from ntfa.report.evidence import predictions_in_words, read_evidence
from ntfa.report.files import find_quality, read_labels
from ntfa.report.page import Table
from ntfa.simulation import Simulation, Simulator, Truth
from ntfa.simulation.bids import write_bids
from ntfa.study.assembling import assemble_to_disk
from ntfa.study.bids import (
    FoundRun,
    _metadata,
    _number,
    _positive,
)
from ntfa.study.cutting import Preparation
from ntfa.study.derivative import Masking, prepare_to_disk
from ntfa.study.events import read_events
from ntfa.study.images import Run
from ntfa.study.participants import labels_of_participant, participant_labels
from ntfa.study.preparing import prepare_participant

SHAPE, N_FRAMES, T_R = (4, 3, 3), 24, 2.0
HOW = {"rest": ("rest",), "min_rest_frames": 3}
EVENTS = "onset\tduration\ttrial_type\trating\n" + "".join(
    f"{8 * i}\t5\t{('rest', 'face', 'house')[i % 3]}\t{i}.5\n" for i in range(6)
)
BOLD = "sub-01_task-x_space-MNI152NLin2009cAsym_desc-preproc_bold.nii.gz"


@dataclass(frozen=True)
class Reader:
    """A reader, and how to fuzz it.

    make : writes a sound folder
    files : what may be damaged in it, as patterns
    read : reads the folder
    problem : says what is wrong with what was read, None if nothing is
    places : words of which an error must have one, so that it names the place
    """

    make: Callable[[Path], None]
    files: Sequence[str]
    read: Callable[[Path], Any]
    problem: Callable[[Any], str | None]
    places: Sequence[str]


# --- images and tables


def _make_run(folder: Path, suffix: str = ".nii.gz", n_frames: int = N_FRAMES) -> None:
    random = np.random.default_rng(0)
    affine = np.diag([3.0, 3.0, 4.0, 1.0])
    data = random.normal(100, 5, (*SHAPE, n_frames)).astype(np.float32)
    img = nibabel.Nifti1Image(data, affine)
    img.header.set_zooms((3, 3, 4, T_R))
    img.to_filename(folder / f"bold{suffix}")
    nibabel.Nifti1Image(np.ones(SHAPE, np.float32), affine).to_filename(folder / f"mask{suffix}")
    (folder / "events.tsv").write_text(EVENTS)


def _make_plain_run(folder: Path) -> None:
    _make_run(folder, ".nii")


def _read_run(folder: Path) -> Study:
    bold, mask = (next(folder.glob(f"{name}*"), folder / f"{name}.nii") for name in ("bold", "mask"))
    return Study.from_images([str(bold)], [str(folder / "events.tsv")], ["sub-01"], str(mask), t_r=T_R, **HOW)


def _make_head(folder: Path) -> None:
    """A ball that stands out, so that a brain mask can be made of it."""
    random, size = np.random.default_rng(0), 12
    place = np.linalg.norm(np.indices((size,) * 3) - (size - 1) / 2, axis=0)
    data = random.normal(0, 5, (size, size, size, N_FRAMES)) + 1000 * (place < size / 2.2)[..., None]
    img = nibabel.Nifti1Image(data.astype(np.float32), np.diag([3.0, 3.0, 3.0, 1.0]))
    img.header.set_zooms((3, 3, 3, T_R))
    img.header.set_xyzt_units("mm", "sec")
    img.to_filename(folder / "bold.nii.gz")
    (folder / "events.tsv").write_text(EVENTS)


def _read_headers(folder: Path) -> Study:
    """As `_read_run`, with the repetition time of the header, a mask made of the images, and resampling."""
    bold = next(folder.glob("bold*"), folder / "bold.nii.gz")
    return Study.from_images([str(bold)], [str(folder / "events.tsv")], other_grid="resample", **HOW)


def study_problem(study: Study) -> str | None:
    """Say what is wrong with a study that was accepted."""
    if not np.isfinite(study.coordinates).all():
        return "coordinates are not finite"
    if len(np.unique(study.coordinates, axis=0)) < study.n_voxels:
        return "two voxels have one position"
    for label, frames in study.frames.items():
        if not np.isfinite(frames).all():
            return f"frames of {label} are not finite"
    if study.mask_img is not None and int((np.asanyarray(study.mask_img.dataobj) != 0).sum()) != study.n_voxels:
        return "the mask has other voxels than the study"
    return None


def _read_events(folder: Path) -> tuple[pd.DataFrame, str]:
    path = folder / "events.tsv"
    return read_events(path, str(path)), _text(path)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8-sig")


def _lines(text: str) -> int:
    """Rows that a person sees: lines with something on them, less the header."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return sum(bool(line.strip(" ")) for line in lines) - 1


def events_problem(found: tuple[pd.DataFrame, str]) -> str | None:
    """Say what is wrong with events that were accepted; `found` has the file's text too."""
    events, text = found
    if not np.isfinite(events["onset"]).all() or not events["onset"].is_monotonic_increasing:
        return "onsets are not finite or not in order"
    if not (events["duration"].isna() | np.isfinite(events["duration"])).all() or (events["duration"] < 0).any():
        return "durations are infinite or negative"
    if len(events) != _lines(text):
        return f"{_lines(text)} lines, but {len(events)} events"
    header = text.replace("\r", "\n").lstrip("\n").split("\n")[0].split("\t")
    if header.count("onset") != 1 or header.count("duration") != 1:
        return "the header has a column twice"
    return None


def _read_participants(folder: Path) -> tuple[pd.DataFrame, str]:
    table = participant_labels(folder)
    for label in table.index:
        labels_of_participant(table, label)
    return table, _text(folder / "participants.tsv") if (folder / "participants.tsv").is_file() else ""


def participants_problem(found: tuple[pd.DataFrame, str]) -> str | None:
    """Say what is wrong with participants that were accepted."""
    table, text = found
    if text and len(table) != _lines(text):
        return f"{_lines(text)} lines, but {len(table)} participants"
    if table.index.isna().any() or table.index.has_duplicates or not table.columns.is_unique:
        return "a label is missing or there twice"
    return None


def _make_participants(folder: Path) -> None:
    rows = [f"sub-{i:02d}\t{20 + i}\t{'FM'[i % 2]}\t{i / 7:.3f}\tn/a" for i in range(1, 6)]
    text = "\n".join(["participant_id\tage\tsex\tscore\tnote", *rows])
    (folder / "participants.tsv").write_text(text + "\n")


def _read_columns(folder: Path) -> pd.DataFrame:
    labels = pd.Index([f"sub-{i:02d}" for i in range(1, 6)])
    return columns_for(labels, ["age", "sex", "score"], folder / "participants.tsv", "participant")


def columns_problem(table: pd.DataFrame) -> str | None:
    """Say what is wrong with columns that were accepted."""
    if list(table.index) != [f"sub-{i:02d}" for i in range(1, 6)] or list(table.columns) != ["age", "sex", "score"]:
        return "rows or columns are not those asked for"
    return None


# --- confounds and sidecars


def _make_confounds(folder: Path) -> None:
    n_frames = 60
    _make_run(folder, n_frames=n_frames)
    (folder / "bold.nii.gz").rename(folder / BOLD)
    simulator = Simulator.create("synthetic", n_participants=1, n_stimuli=2, n_frames=30, n_voxels=60, n_factors=3)
    write_bids(simulator, folder / "d")
    func = folder / "d/derivatives/fmriprep/sub-01/func"
    for suffix in ("tsv", "json"):
        text = next(func.glob(f"*confounds_timeseries.{suffix}")).read_text()
        if suffix == "tsv":
            text = "\n".join(text.split("\n")[: n_frames + 1]) + "\n"
        (folder / f"sub-01_task-x_desc-confounds_timeseries.{suffix}").write_text(text)


def _read_confounds(folder: Path) -> Study:
    run = Run(folder / BOLD, folder / "events.tsv", "sub-01", t_r=T_R)
    size = sum(path.stat().st_size for path in folder.glob("*confounds*") if path.is_file())
    strategy = ("simple", "scrubbing", "compcor")[size % 3]
    file = folder / "sub-01_task-x_desc-confounds_timeseries.tsv"
    found = FoundRun(run, folder / "mask.nii.gz", "MNI152NLin2009cAsym", strategy, file)
    mask = nibabel.load(folder / "mask.nii.gz")
    prepared = prepare_participant([found.with_confounds()], mask, Preparation(**HOW))
    return Study._from_prepared([prepared], mask, 0.5)


def _make_sidecars(folder: Path) -> None:
    timing = {"RepetitionTime": 2.0, "StartTime": 0.5, "TaskName": "x", "SliceTiming": [0.0, 1.0]}
    (folder / "task-x_bold.json").write_text(json.dumps(timing))
    (folder / "run_bold.json").write_text(json.dumps({"StartTime": 0.25, "EchoTime": 0.03}))


def _read_sidecars(folder: Path) -> tuple[float | None, float | None]:
    bold = SimpleNamespace(get_entities=lambda: {"task": "x"}, get_metadata=dict)
    metadata = _metadata(bold, None, SimpleNamespace(path=folder / "run_bold.json"), folder)
    return _positive(metadata, "RepetitionTime", str(folder)), _number(metadata, "StartTime", str(folder))


def sidecar_problem(found: tuple[float | None, float | None]) -> str | None:
    """Say what is wrong with timing that was accepted."""
    t_r, start = found
    bad = (t_r is not None and not 0 < t_r < np.inf) or (start is not None and not np.isfinite(start))
    return f"timing is {found}" if bad else None


def _make_bids(folder: Path) -> None:
    simulator = Simulator.create("synthetic", n_participants=1, n_stimuli=2, n_frames=30, n_voxels=60, n_factors=3)
    write_bids(simulator, folder / "d")


def _read_bids(folder: Path) -> Study:
    return Study.from_bids(folder / "d", rest="rest", keep_white_matter=True, confounds="simple", min_rest_frames=3)


# --- studies and prepared participants


@cache
def simulation() -> Simulation:
    """A very small study."""
    return simulate("synthetic", n_participants=3, n_stimuli=2, n_frames=4, n_voxels=60, random_state=0)


@cache
def fitted(kind: type[TopographicModel]) -> TopographicModel:
    """A model after two steps."""
    model: Any = kind(n_factors=2, max_epochs=2, random_state=0, device="cpu")
    return model.fit(simulation().study)


def _make_study(folder: Path) -> None:
    simulation().study.save(folder / "study")


def _read_study(folder: Path) -> Study:
    study = Study.open(folder / "study")
    model = NTFA(n_factors=2, device="cpu")
    arrange(study, model._layout, model._labels(study), torch.device("cpu"))
    return study


def opened_problem(study: Study) -> str | None:
    """As `study_problem`; frames outside of trials may be anything."""
    inside = {label: [np.zeros((0, study.n_voxels))] for label in study.frames}
    for trial in study.trials.itertuples():
        inside[trial.participant].append(study.frames[trial.participant][trial.start : trial.stop])
    return study_problem(
        Study(study.coordinates, study.trials, {k: np.concatenate(v) for k, v in inside.items()}, study.mask_img)
    )


def _make_prepared(folder: Path) -> None:
    for suffix in ("01", "02"):
        own = folder / f"source-{suffix}"
        own.mkdir()
        _make_run(own)
        run = Run(own / "bold.nii.gz", own / "events.tsv", f"sub-{suffix}", t_r=T_R)
        found = FoundRun(run, own / "mask.nii.gz", None, "none")
        prepare_to_disk(folder / "out", folder, [found], Masking(keep_white_matter=True), Preparation(**HOW))


def _read_prepared(folder: Path) -> Study:
    assemble_to_disk(folder / "out", ["sub-01", "sub-02"], folder / "study")
    return Study.open(folder / "study")


def _make_truth(folder: Path) -> None:
    simulation().truth.save(folder / "truth")


def _read_truth(folder: Path) -> Truth:
    return Truth.open(folder / "truth", simulation().truth.coordinates)


def truth_problem(truth: Truth) -> str | None:
    """Say what is wrong with a truth that was accepted."""
    if not truth.noise >= 0 or not np.isfinite(truth.noise):
        return f"noise is {truth.noise}"
    images = [truth.mean_image(p, s) for p in truth.participants for s in truth.stimuli]
    return None if np.isfinite(images).all() else "a mean image is not finite"


# --- models


def _make_model(kind: type[TopographicModel]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        fitted(kind).save(folder / "model")

    return make


def _read_model(folder: Path) -> TopographicModel:
    return load_any(folder / "model")


def model_problem(model: TopographicModel) -> str | None:
    """Say what is wrong with a model that was accepted: its tables, its predictions, its images."""
    for name in ("factors_", "participants_", "stimuli_", "template_", "loadings_", "history_"):
        table = getattr(model, name, None)
        if table is not None and not np.isfinite(table.select_dtypes("number").to_numpy(dtype=float)).all():
            return f"{name} is not finite"
    if not 0 < model.noise_ < np.inf:
        return f"noise_ is {model.noise_}"
    labels = model._fitted.labels
    pairs = [(participant, stimulus) for participant in labels.participants for stimulus in labels.stimuli]
    if not np.isfinite(model.predict(pairs)).all():
        return "predictions are not finite"
    if model.mask_img_ is not None and not np.isfinite(model.factor_img().get_fdata()).all():
        return "factor images are not finite"
    return None


def _trainer() -> Any:
    study = simulation().study
    model = NTFA(n_factors=2, max_epochs=2, response="loadings", embedding_dim=1, random_state=0, device="cpu")
    model._choice = choose(model, study)
    labels = model._labels(study)
    frames = arrange(study, model._layout, labels, torch.device("cpu")).frames
    start = find_start(frames, 2, "pursuit", 0, 0)
    module: Any = model._module(labels).double()
    module.start_at(start, frames.cells)
    return make_trainer(model._recipe(labels, 0), module, frames, start)


def _make_checkpoint(folder: Path) -> None:
    trainer = _trainer()
    trainer.run(lambda trainer: None)
    Checkpoint(folder / "restart-0.safetensors", {"a": 1}).write(trainer)


@cache
def _kept_trainer() -> Any:
    return _trainer()


def _read_checkpoint(folder: Path) -> Any:
    trainer = _kept_trainer()
    Checkpoint(folder / "restart-0.safetensors", {"a": 1}).restore(trainer)
    return trainer


def checkpoint_problem(trainer: Any) -> str | None:
    """Say what is wrong with a checkpoint that was accepted."""
    tensors = trainer.tensors()
    broken = [name for name, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()]
    return f"{broken[0]} is not finite" if broken else None


# --- reports


def _make_report_files(folder: Path) -> None:
    (folder / "figures").mkdir()
    (folder / "figures" / "prediction-1.png").write_bytes(b"\x89PNG")
    figures = [{"name": "prediction-1", "section": "predictions", "caption": "A pair"}]
    content = {"notes": ["a note"], "left_out": ["a sentence"], "figures": figures}
    (folder / "report.json").write_text(json.dumps(content))
    columns = "participant\tstimulus\tcorrelation\tmse\tmse_of_zero\theld_out\n"
    (folder / "predictions.tsv").write_text(
        columns + "sub-01\ta\t0.5\t1.0\t2.0\tTrue\nsub-02\tb\t0.25\t1.5\t2.0\tTrue\n"
    )
    (folder / "labels_participants.tsv").write_text("participant\tgroup\tage\nsub-01\ta\t20\nsub-02\tn/a\t30.5\n")
    (folder / "labels_stimuli.tsv").write_text("stimulus\tcategory\na\tx\nb\ty\n")
    (folder / "quality.tsv").write_text("participant\trun\tframes\nsub-01\t1\t100\nsub-02\t1\t99\n")


def _read_report_files(folder: Path) -> Any:
    evidence, notes = read_evidence(folder)
    predictions_in_words(evidence.predictions)
    for kind in ("participant", "stimulus"):
        read_labels(folder, kind)
    quality = find_quality(folder)
    if quality is not None:
        Table.of(quality)
    return [*notes, *evidence.left_out, *(part for p in evidence.pictures for part in (p.name, p.section, p.caption))]


def report_problem(texts: Any) -> str | None:
    """Say what is wrong with texts that were accepted."""
    return None if all(isinstance(text, str) for text in texts) else "something is no text"


TABLES = {
    "generalisation/table.tsv": "method\tn_parameters\tmse_over_zero\nNTFA\t100\t0.5\nHTFA\t200\t0.6\n",
    "generalisation/differences.tsv": "estimator\tagainst\tdifference\tci_low\tci_high\tn_better\tn\n"
    "collapsed\tHTFA\t0.1\t0.0\t0.2\t3\t4\ncollapsed\tzero\t0.1\t0.0\t0.2\t3\t4\n",
    "embeddings/separation.tsv": "kind\tlabels\tmethod\taccuracy\taccuracy_p\tchance\n"
    "participants\tgroup\tNTFA\t0.9\t0.01\t0.5\nparticipants\tgroup\tPCA\t0.8\t0.02\t0.5\n",
    "predictions/summary.tsv": "method\tcorrelation\nNTFA\t0.5\nHTFA\t0.4\n",
    "mvpa/overall.tsv": "across\tfeatures\tauc\ntrials\tNTFA\t0.8\ntrials\tPCA\t0.7\n",
    "connectivity/overall.tsv": "across\tfeatures\tauc\ntrials\tNTFA\t0.8\ntrials\tPCA\t0.7\n",
    "reproducibility/distances.tsv": "distances\thalves\tmethod\tcorrelation\tlow\thigh\tn_halvings\n"
    "stimuli\tpeople\tNTFA\t0.5\t0.4\t0.6\t4\nstimuli\tpeople\timages\t0.8\t0.7\t0.9\t4\n",
    "reproducibility/errors.tsv": "method\terror\tci_low\tci_high\nNTFA\t0.9\t0.8\t1.0\nnoise floor\t0.8\t0.7\t0.9\n",
    "reproducibility/identification.tsv": "among\tmethod\tnearer\tci_low\tci_high\nother people\tNTFA\t0.7\t0.6\t0.8\n",
    "reproducibility/left_out.tsv": "what\treason\nDistances\ttoo few\n",
}


def _make_comparison(folder: Path) -> None:
    for name, text in TABLES.items():
        path = folder / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "part.json").write_text('{"part": "x", "seconds": 1.0}')
    content = {"study": "abc", "settings": {"n_factors": 3, "seed": 0}, "command": ["ntfa"], "versions": {"ntfa": "1"}}
    (folder / "out" / "comparison.json").write_text(json.dumps(content))


def _read_comparison(folder: Path) -> str:
    return write_comparison_report(folder / "out").read_text()


def page_problem(html: str) -> str | None:
    """Say what is wrong with a page that was made."""
    return "markup of a label is in the page" if "<script>alert" in html else None


MODEL_FILES = [f"model/{name}" for name in ("config.json", "model.safetensors", "history.tsv", "mask.nii.gz")]
PREPARED_FILES = [f"out/sub-0*/func/*_{name}" for name in ("frames.npy", "trials.tsv", "mask.nii.gz", "quality.tsv")]
IMAGE_PLACES = ("bold", "mask", "events", "voxel", "coordinates", "participant")
READERS = {
    "image, gz": Reader(_make_run, ["bold*"], _read_run, study_problem, IMAGE_PLACES),
    "image, plain": Reader(_make_plain_run, ["bold*"], _read_run, study_problem, IMAGE_PLACES),
    "image, header": Reader(_make_head, ["bold*"], _read_headers, study_problem, (*IMAGE_PLACES, "images")),
    "mask": Reader(_make_run, ["mask*"], _read_run, study_problem, IMAGE_PLACES),
    "events": Reader(_make_run, ["events*"], _read_events, events_problem, ["events.tsv"]),
    "events, cut": Reader(_make_run, ["events*"], _read_run, study_problem, ["events.tsv", "bold", "coordinates"]),
    "participants": Reader(_make_participants, ["*"], _read_participants, participants_problem, ["participants.tsv"]),
    "columns": Reader(_make_participants, ["*"], _read_columns, columns_problem, ["participants.tsv"]),
    "confounds": Reader(_make_confounds, ["*confounds*"], _read_confounds, study_problem, ["sub-01_task-x"]),
    "sidecars": Reader(_make_sidecars, ["*.json"], _read_sidecars, sidecar_problem, ["{folder}"]),
    "saved study": Reader(
        _make_study, ["study/*", "study/frames/*"], _read_study, opened_problem, ["{folder}", "participant"]
    ),
    "prepared": Reader(
        _make_prepared, PREPARED_FILES, _read_prepared, study_problem, ["sub-0", "participant", "trials row"]
    ),
    "truth": Reader(_make_truth, ["truth/*"], _read_truth, truth_problem, ["{folder}"]),
    "NTFA": Reader(_make_model(NTFA), MODEL_FILES, _read_model, model_problem, ["{folder}"]),
    "HTFA": Reader(_make_model(HTFA), MODEL_FILES, _read_model, model_problem, ["{folder}"]),
    "TFA": Reader(_make_model(TFA), MODEL_FILES, _read_model, model_problem, ["{folder}"]),
    "TLSA": Reader(_make_model(TLSA), MODEL_FILES, _read_model, model_problem, ["{folder}"]),
    "checkpoint": Reader(_make_checkpoint, ["*"], _read_checkpoint, checkpoint_problem, ["{folder}"]),
    "report files": Reader(_make_report_files, ["*.json", "*.tsv"], _read_report_files, report_problem, ["{folder}"]),
    "comparison": Reader(_make_comparison, ["out/*/*.tsv", "out/*.json"], _read_comparison, page_problem, ["{folder}"]),
    "BIDS dataset": Reader(_make_bids, ["d/**/*.json", "d/**/*.tsv"], _read_bids, study_problem, ["{folder}"]),
}
