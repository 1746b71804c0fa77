"""From a study to an output folder: fit with checkpoints, write everything, put it in place when complete."""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd

from ntfa.cli.atlas import atlas_from
from ntfa.cli.starting import importing
from ntfa.cli.stopping import writing_alone
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.estimates import require_memory
from ntfa.estimators.saving import CONFIG_FILE, write_model
from ntfa.files.folders import discard, refuse_existing, write_file, write_folder
from ntfa.files.reading import read_json
from ntfa.progress import stage
from ntfa.study import Study

logger = logging.getLogger("ntfa")


PUBLISHED = "published.json"
INPUTS = "inputs.json"
BESIDE_THE_POINT = ("device", "verbose")


@contextmanager
def fitting_to(out: Path) -> Iterator[None]:
    """Be the only process that fits to OUT, until done or told to stop; an error leaves no empty checkpoint."""
    with writing_alone(out):
        try:
            yield
        except Exception:
            with suppress(OSError):
                checkpoint_folder(out).rmdir()
            raise


def is_complete(out: Path, model: TopographicModel, args: argparse.Namespace) -> bool:
    """Whether there is nothing to resume because OUT holds the results already; refuse what cannot be written.

    If not, it is noted on disk that a fit to OUT has begun: however early that is killed, what is at OUT will not be
    taken for its results.
    """
    checkpoint = checkpoint_folder(out)
    if args.resume and _holds_fit_of(model, out) and (not checkpoint.exists() or _was_published(checkpoint, out)):
        discard(checkpoint)
        return True
    refuse_existing(out, args.overwrite, CONFIG_FILE)
    _begin(out, args.resume)
    return False


def _holds_fit_of(model: TopographicModel, out: Path) -> bool:
    """Whether a folder has the results of such a model, fitted with the same settings."""
    try:
        config = json.loads((out / CONFIG_FILE).read_text(encoding="utf-8"))
        settings, kind = dict(config["parameters"]), config["model"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    params = json.loads(json.dumps(model.get_params()))
    same = all(settings.get(name) == params[name] for name in params if name not in BESIDE_THE_POINT)
    return same and kind == type(model).__name__


def holds_fit_to(out: Path, model: TopographicModel, inputs: Mapping[str, str]) -> bool:
    """Whether a folder has the results of such a model, fitted with the same settings to the same inputs."""
    try:
        noted = read_json(out / INPUTS)
    except ValueError:
        return False
    return noted == dict(inputs) and _holds_fit_of(model, out)


def _begin(out: Path, resume: bool) -> None:
    checkpoint = checkpoint_folder(out)
    if checkpoint.exists() and not resume:
        if any(checkpoint.glob("*.safetensors")):
            logger.warning("discarding an interrupted fit to %s; --resume would have continued it", out)
        discard(checkpoint)
    checkpoint.mkdir(parents=True, exist_ok=True)


def _note_published(checkpoint: Path, results: Path) -> None:
    """Note which results are about to be put in place, so that one who finds both knows that the fit is complete."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    write_file(checkpoint / PUBLISHED, json.dumps({"results": _digest(results)}).encode())


def _was_published(checkpoint: Path, out: Path) -> bool:
    try:
        noted = json.loads((checkpoint / PUBLISHED).read_text(encoding="utf-8"))
        return bool(noted == {"results": _digest(out)})
    except (OSError, ValueError):
        return False


def _digest(results: Path) -> str:
    digest = hashlib.sha256()
    for name in (CONFIG_FILE, "model.safetensors"):
        digest.update((results / name).read_bytes())
    return digest.hexdigest()


def fit_to_folder(
    model: TopographicModel,
    study: Study,
    args: argparse.Namespace,
    notes: Callable[[], Sequence[str]] = list,
    *,
    quality: pd.DataFrame | None = None,
    held_out: Study | None = None,
    study_name: str = "",
    inputs: Mapping[str, str] | None = None,
) -> None:
    """Fit and write the results to `args.out`.

    Parameters
    ----------
    notes : function
        Asked after the fit; its sentences go into the report.
    quality : DataFrame, optional
        One row per run: what was kept and what was lost.
    held_out : Study, optional
        Trials to compare predictions with.
    study_name : str
        What the report calls the study.
    inputs : mapping, optional
        What the study was made from, digests by name: kept, so that the same fit is not made twice.
    """
    out = Path(args.out)
    checkpoint = checkpoint_folder(out)
    refuse_existing(out, args.overwrite, CONFIG_FILE)
    atlas = atlas_from(args)
    _begin(out, args.resume)
    if not getattr(args, "force", False):
        require_memory(study, model)
    model.fit(study, checkpoint=checkpoint)
    # Pictures take time to import; of several processes one draws them, and a dry run none.
    with importing(own_process=False):
        from ntfa.report.build import write_report

    with write_folder(out, args.overwrite, CONFIG_FILE) as folder:
        write_model(model, folder, args.command_line)
        if inputs is not None:
            (folder / INPUTS).write_text(json.dumps(dict(inputs), indent=2) + "\n", encoding="utf-8")
        report, images = folder / "report.html", getattr(args, "images", False)
        with stage("Writing the report"):
            write_report(
                model,
                study,
                report,
                notes(),
                args.command_line,
                quality,
                held_out,
                all_images=images,
                study_name=study_name,
                atlas=atlas,
            )
        _note_published(checkpoint, folder)
    discard(checkpoint)


def checkpoint_folder(out: Path) -> Path:
    """Where a fit's checkpoints are until it is complete: beside OUT, under a hidden name."""
    out = out.absolute()
    return out.with_name(f".{out.name}.checkpoint")
