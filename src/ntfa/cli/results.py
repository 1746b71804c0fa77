"""From a study to an output folder: fit with checkpoints, write everything, put it in place when complete."""

from __future__ import annotations

import argparse
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from ntfa.folders import refuse_existing, write_folder
from ntfa.models.base import TopographicModel
from ntfa.models.saving import MARK, write_model
from ntfa.report import embeddings_figure, write_images, write_report
from ntfa.study import Study

logger = logging.getLogger("ntfa")


def is_complete(out: Path, args: argparse.Namespace) -> bool:
    """Whether there is nothing to resume because OUT holds the results already; refuse what cannot be written."""
    if args.resume and (out / MARK).is_file() and not checkpoint_folder(out).exists():
        return True
    refuse_existing(out, args.overwrite, MARK)
    return False


def fit_to_folder(
    model: TopographicModel,
    study: Study,
    args: argparse.Namespace,
    notes: Callable[[], Sequence[str]] = list,
    *,
    quality: pd.DataFrame | None = None,
    held_out: Study | None = None,
) -> None:
    """Fit and write the results to `args.out`.

    Parameters
    ----------
    notes : function
        Asked after the fit; its sentences go into the report.
    quality : DataFrame, optional
        A row a run: what was kept and what was lost.
    held_out : Study, optional
        Trials to compare predictions with.
    """
    out = Path(args.out)
    checkpoint = checkpoint_folder(out)
    refuse_existing(out, args.overwrite, MARK)
    if checkpoint.exists() and not args.resume:
        logger.warning("an interrupted fit to %s is given up; --resume would have gone on with it", out)
        shutil.rmtree(checkpoint)
    model.fit(study, checkpoint=checkpoint)
    with write_folder(out, args.overwrite, MARK) as folder:
        write_model(model, folder, args.command_line)
        write_images(model, folder, everything=getattr(args, "images", False))
        if hasattr(model, "participants_"):
            embeddings_figure(model, study).savefig(folder / "embeddings.png", dpi=150)
        write_report(model, study, folder / "report.html", notes(), args.command_line, quality, held_out)
    shutil.rmtree(checkpoint, ignore_errors=True)


def checkpoint_folder(out: Path) -> Path:
    """Where a fit's checkpoints are until it is complete: beside OUT, under a hidden name."""
    out = out.absolute()
    return out.with_name(f".{out.name}.checkpoint")
