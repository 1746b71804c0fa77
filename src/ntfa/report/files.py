"""Files beside the report: labels and quality read and written, and a list of what is there."""

from __future__ import annotations

import hashlib
import io
import re
import unicodedata
from collections.abc import Collection, Mapping
from pathlib import Path

import pandas as pd

from ntfa.errors import ModelError
from ntfa.files.reading import reading, table_text
from ntfa.study.events import join_tables, read_table

LABELS = {"participant": "labels_participants.tsv", "stimulus": "labels_stimuli.tsv"}
QUALITY = "quality.tsv"
LONGEST_NAME = 60
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
CONTENTS = {
    "config.json": "settings, seed, labels, versions, command line",
    "model.safetensors": "the fitted parameters; read with ntfa.NTFA.load",
    "summary.json": "summary of the fit",
    "history.tsv": "the bound, step by step",
    "factors.tsv": "factors of every participant, mm, with sd",
    "factors.nii.gz": "factors averaged over participants, one volume per factor",
    "factors.dscalar.nii": "factors averaged over participants, one map per factor",
    "factors_hemi-L.func.gii": "factors averaged over participants, left hemisphere, one map per factor",
    "factors_hemi-R.func.gii": "the same, right hemisphere",
    "factors": "factors of every participant as images",
    "embeddings_participants.tsv": "embeddings of participants, with sd",
    "embeddings_stimuli.tsv": "embeddings of stimuli, with sd",
    "embeddings.png": "figure of the embeddings",
    "frames.tsv": "how much each frame counted in the fit, and how far it lies from its participant's others",
    "newcomers.tsv": "who was added to the fit, and how rare their data and places are in it",
    "retests.tsv": "other sessions of participants: how far from the first",
    "sessions.tsv": "embeddings of every session of every participant by itself",
    "template.tsv": "the group's factors",
    "loadings.tsv": "loadings of every participant, with sd",
    "tried.tsv": "numbers of factors that were tried, and their errors",
    "weights_covariance.tsv": "covariance of the factors' weights from frame to frame",
    "loadings_stimuli.tsv": "mean weight of every factor for every stimulus, and its sd over participants",
    "labels_participants.tsv": "labels of participants",
    "labels_stimuli.tsv": "labels of stimuli",
    "mask.nii.gz": "the voxels used",
    "greyordinates": "the vertices and voxels used, and the surfaces that give vertices their places",
    "predictions": "predicted images of every participant, one volume per stimulus",
    "predictions.nii.gz": "predicted images averaged over participants, one volume per stimulus",
    "predictions.dscalar.nii": "predicted images averaged over participants, one map per stimulus",
    "predictions_hemi-L.func.gii": "predicted images averaged over participants, left hemisphere, one map per stimulus",
    "predictions_hemi-R.func.gii": "the same, right hemisphere",
    "predictions.tsv": "predicted against recorded images, pair by pair",
    "quality.tsv": "data quality: frames, trials and voxels kept and lost, one row per run",
    "figures": "this report's figures, as PNG and as SVG",
    "tables": "this report's other tables: factors, pairs of participants and of stimuli, settings, coverage",
    "design.json": "what the study's design can and cannot tell",
    "inputs.json": "digests of the prepared participants that were fitted",
    "report.json": "notes and captions of this report",
    "answers": "answers to questions asked of this fit, one folder each: sentences, tables, figures, images",
    "atlas": "the atlas that names regions: an image and a table of its labels",
    "comparison.json": "settings and versions of the comparison",
    "models": "the fitted models",
}


def safe_file_name(label: str) -> str:
    """Turn any label into a file name: letters, digits and dashes, with a hash of the label where that changed it."""
    plain = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode("ascii")
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-")[:LONGEST_NAME]
    if slug and slug == label:
        return slug
    digest = hashlib.sha256(label.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{slug}-{digest}" if slug else digest


def write_labels(folder: Path, labels: Mapping[str, pd.DataFrame]) -> None:
    """Write the labels of participants and stimuli, one table each."""
    for kind, table in labels.items():
        table.to_csv(folder / LABELS[kind], sep="\t", na_rep="n/a", index_label=kind)


def read_labels(folder: Path, kind: str) -> pd.DataFrame | None:
    """Read what `write_labels` wrote: a column is numbers if all of it looks like numbers, else text."""
    path = folder / LABELS[kind]
    if not path.exists():
        return None
    with reading(f"{path}: cannot be read as a table", ModelError):
        content = io.StringIO(table_text(path, line_breaks=True))
        table = pd.read_csv(content, sep="\t", index_col=False, dtype=str, keep_default_na=False)
    if kind not in table or table[kind].duplicated().any():
        raise ModelError(f"{path}: it has no column {kind}, or has a {kind} twice; remove it to do without")
    table = table.set_index(kind)
    for column in table:
        known = table[column] != "n/a"
        values = table[column].where(known)
        # "01" is a label, not the number one.
        numbers = bool(known.any()) and all(NUMBER.fullmatch(text) for text in values.dropna())
        table[column] = pd.to_numeric(values) if numbers else values
    return table


def find_quality(folder: Path) -> pd.DataFrame | None:
    """Find what was kept and lost of every run: in the folder, or in the BIDS derivative that it is part of."""
    places = [folder / QUALITY] if (folder / QUALITY).exists() else []
    if not places and (folder.parent / "dataset_description.json").exists():
        places = sorted(folder.parent.glob("sub-*/func/*_desc-ntfa_quality.tsv"))
    tables = [read_table(place, str(place), text=("participant", "run", "session")) for place in places]
    return join_tables(tables) if tables else None


def describe(folder: Path, leave_out: Collection[str]) -> list[tuple[str, str, str]]:
    """List name, size and contents of what is in a folder, hidden files and the report itself left out."""
    listed = []
    for path in sorted(folder.iterdir()):
        if path.name in leave_out or path.name.startswith("."):
            continue
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        size = _size(sum(file.stat().st_size for file in files))
        name = path.name if path.is_file() else f"{path.name}/ ({len(files)} files)"
        listed.append((name, size, CONTENTS.get(path.name, "")))
    return listed


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
