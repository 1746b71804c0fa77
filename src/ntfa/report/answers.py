"""Answers to questions that were asked of a fitted model, kept beside its results and shown in its report.

`ntfa test`, `ntfa contrast` and their like each write one folder, complete or not at all:

    RESULTS/answers/NAME/answer.json    title, sentences, names and captions of what is beside it
                         *.tsv          tables
                         *.png, *.svg   figures
                         *.nii.gz       images (or *.dscalar.nii, *.func.gii)
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ntfa.errors import ModelError
from ntfa.estimators.images import save_image
from ntfa.files.folders import write_folder
from ntfa.files.reading import read_json, reading, table_text
from ntfa.report.figures import Picture
from ntfa.report.files import safe_file_name
from ntfa.report.page import Table

ANSWERS, ANSWER_FILE = "answers", "answer.json"
# Rows of a table that the page shows; all of them are in the file.
MOST_ROWS = 60


@dataclass(frozen=True)
class Answer:
    """What was asked and what came out, in the form that every question shares.

    name : of its folder; the same question asked again replaces its answer
    title : the question, as the report's heading has it
    sentences : for the paper, the most important first
    cautions : what the reader must know before believing them
    tables : by name, with a caption each
    figures : by name, with a caption each
    images : images by name, written beside the tables
    command : the command line that asked
    """

    name: str
    title: str
    sentences: Sequence[str]
    cautions: Sequence[str] = ()
    tables: Mapping[str, tuple[pd.DataFrame, str]] = field(default_factory=dict)
    figures: Mapping[str, tuple[Figure, str]] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ()


@dataclass(frozen=True)
class ShownAnswer:
    """An answer as the page shows it, read from its folder."""

    name: str
    title: str
    sentences: list[str]
    cautions: list[str]
    tables: list[tuple[str, Table, str]]
    pictures: list[Picture]


def write_answer(results: Path, answer: Answer) -> Path:
    """Write an answer beside the results of a fit, in place of an earlier one to the same question."""
    folder = results / ANSWERS / safe_file_name(answer.name)
    with write_folder(folder, overwrite=True, mark=ANSWER_FILE) as partial:
        for name, (table, _) in answer.tables.items():
            table.to_csv(partial / f"{name}.tsv", sep="\t", index=False, na_rep="n/a", float_format="%.6g")
        for name, (figure, caption) in answer.figures.items():
            picture = Picture.of(figure, name, ANSWERS, caption)
            (partial / f"{name}.png").write_bytes(picture.png)
            (partial / f"{name}.svg").write_bytes(picture.svg or b"")
        for name, image in answer.images.items():
            save_image(image, partial, name)
        content = {
            "title": answer.title,
            "sentences": list(answer.sentences),
            "cautions": list(answer.cautions),
            "tables": {name: caption for name, (_, caption) in answer.tables.items()},
            "figures": {name: caption for name, (_, caption) in answer.figures.items()},
            "command": list(answer.command),
        }
        (partial / ANSWER_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return folder


def read_answers(results: Path) -> list[ShownAnswer]:
    """Read all answers beside the results of a fit, by name; none is no error."""
    return [_read_answer(path.parent) for path in sorted((results / ANSWERS).glob(f"*/{ANSWER_FILE}"))]


def _read_answer(folder: Path) -> ShownAnswer:
    path = folder / ANSWER_FILE
    try:
        content = read_json(path)
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read ({error}); remove {folder} to do without") from error
    texts = [content.get("title"), *_listed(content, "sentences", path), *_listed(content, "cautions", path)]
    captions = {**_named(content, "tables", path), **_named(content, "figures", path)}
    if not all(isinstance(text, str) for text in [*texts, *captions.values()]):
        raise ModelError(f"{path}: title, sentences and captions must be texts; remove {folder} to do without")
    tables = [
        (name, Table.of(_rounded(_read_table(folder / f"{name}.tsv")), MOST_ROWS), caption)
        for name, caption in content["tables"].items()
    ]
    pictures = [
        Picture(name, ANSWERS, caption, (folder / f"{name}.png").read_bytes())
        for name, caption in content["figures"].items()
        if (folder / f"{name}.png").is_file()
    ]
    return ShownAnswer(folder.name, content["title"], content["sentences"], content["cautions"], tables, pictures)


def _rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Numbers as a reader wants them: three digits; files have all of them."""
    table = table.copy()
    for name in table.select_dtypes("float"):
        largest = table[name].abs().max()
        table[name] = [0.0 if abs(value) < 1e-6 * largest else float(f"{value:.3g}") for value in table[name]]
    return table


def _listed(content: dict[str, Any], name: str, path: Path) -> list[Any]:
    if not isinstance(content.get(name), list):
        raise ModelError(f"{path}: {name} must be a list; remove {path.parent} to do without")
    return list(content[name])


def _named(content: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    named = content.get(name)
    # A name is ours, never a path.
    if not isinstance(named, dict) or any(key != safe_file_name(key) for key in named):
        raise ModelError(f"{path}: {name} must have names of ours; remove {path.parent} to do without")
    return named


def _read_table(path: Path) -> pd.DataFrame:
    with reading(f"{path}: cannot be read as a table", ModelError):
        return pd.read_csv(io.StringIO(table_text(path, line_breaks=True)), sep="\t", na_values=["n/a"])
