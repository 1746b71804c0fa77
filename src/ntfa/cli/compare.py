"""`ntfa compare`: the paper's whole evaluation on one study."""

from __future__ import annotations

import argparse
import logging
from dataclasses import fields
from pathlib import Path

from ntfa.cli.stopping import writing_alone
from ntfa.comparison import PARTS, Settings, compare
from ntfa.comparison.report import write_comparison_report
from ntfa.comparison.run import COMPARISON_FILE
from ntfa.comparison.words import comparison_in_words
from ntfa.contract import with_shared_voxels
from ntfa.files.folders import tidy_inside
from ntfa.simulation import Truth
from ntfa.study import Study
from ntfa.study.provenance import provenance_of

logger = logging.getLogger("ntfa")


def run(args: argparse.Namespace) -> None:
    """Compare and write."""
    with writing_alone(Path(args.out)):
        if (Path(args.out) / COMPARISON_FILE).is_file():
            tidy_inside(Path(args.out))
        _run(args)


def _run(args: argparse.Namespace) -> None:
    study = with_shared_voxels(Study.open(args.study), "The comparison")
    prepared = provenance_of(study.notes)
    if prepared is not None and prepared.standardize == "run":
        logger.warning(
            "each run was z-scored over all its frames, held-out ones included; prepare with --standardize rest"
        )
    truth = Truth.open(args.study, study.coordinates) if study.notes.get("simulated") else None
    options = {field.name: getattr(args, field.name) for field in fields(Settings) if hasattr(args, field.name)}
    options |= {name: tuple(options[name] or ()) for name in ("participant_labels", "stimulus_labels")}
    folder = compare(
        study,
        args.out,
        Settings(**options),
        parts=args.parts or tuple(PARTS),
        truth=truth,
        overwrite=args.overwrite,
        command=args.command_line,
    )
    write_comparison_report(folder)
    print(*comparison_in_words(folder), f"Report: {folder / 'report.html'}", sep="\n")
