"""`ntfa contrast`: how the responses of two sets of people and stimuli differ, by a fitted model."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from ntfa.analyses.selection import KINDS, select_pairs
from ntfa.cli.asking import keep_answer, open_results
from ntfa.cli.atlas import atlas_from
from ntfa.errors import ModelError
from ntfa.estimators import NTFA
from ntfa.progress import stage
from ntfa.report.contrasts import contrast_answer
from ntfa.report.files import read_labels
from ntfa.report.regions import kept_atlas


def run(args: argparse.Namespace) -> None:
    """Contrast two sets of pairs, and keep the answer beside the results."""
    folder = Path(args.results)
    model = open_results(folder)
    if not isinstance(model, NTFA):
        raise ModelError(f"{folder} holds a fit of {type(model).__name__}; contrasts are NTFA's alone")
    atlas = atlas_from(args) or kept_atlas(folder)
    labels = known_labels(folder, model)
    pairs_a, pairs_b = (select_pairs([*own, *args.only], labels) for own in (args.a, args.b))
    with stage("Contrasting"):
        contrast = model.contrast(pairs_a, pairs_b, population=args.population, alpha=args.alpha, atlas=atlas)
        a, b = (_in_words(own, args.only) for own in (args.a, args.b))
        answer = contrast_answer(contrast, a, b, name=args.name or "", command=args.command_line)
    keep_answer(folder, model, answer)


def known_labels(folder: Path, model: NTFA) -> dict[str, pd.DataFrame]:
    """Return what is known of participants and of stimuli, one row for each that the model knows."""
    known = {"participant": model.participants_.index, "stimulus": model.stimuli_.index}
    found = {}
    for kind in KINDS:
        table = read_labels(folder, kind)
        found[kind] = pd.DataFrame(index=known[kind]) if table is None else table.reindex(known[kind])
    return found


def _in_words(own: list[str], only: list[str]) -> str:
    return "; ".join(text.strip() for text in [*own, *only])
