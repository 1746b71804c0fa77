"""From a study to an output folder: fit with checkpoints, write everything, put it in place when complete."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ntfa.folders import publish, refuse_existing
from ntfa.models.base import TopographicModel
from ntfa.models.saving import write_model
from ntfa.report import embeddings_figure, write_report
from ntfa.study import Study

CHECKPOINT = "checkpoint"


def fit_to_folder(
    model: TopographicModel,
    study: Study,
    args: argparse.Namespace,
    notes: Callable[[], Sequence[str]] = list,
) -> None:
    """Fit and write the results to `args.out`; `notes` are asked for after the fit and go into the report."""
    out = Path(args.out)
    partial = partial_folder(out)
    if not args.resume:
        refuse_existing(out, args.overwrite)
        shutil.rmtree(partial, ignore_errors=True)
    model.fit(study, checkpoint=partial / CHECKPOINT)
    write_model(model, partial, args.command_line)
    write_report(model, study, partial / "report.html", notes(), args.command_line)
    if hasattr(model, "participants_"):
        embeddings_figure(model, study).savefig(partial / "embeddings.png", dpi=150)
    shutil.rmtree(partial / CHECKPOINT)
    publish(partial, out, args.overwrite)


def partial_folder(out: Path) -> Path:
    """Where a fit's files are until they are complete: beside OUT, under a hidden name."""
    out = out.absolute()
    return out.with_name(f".{out.name}.partial")
