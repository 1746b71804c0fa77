"""Run the parts of a comparison that are asked for and not there yet."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from ntfa.comparison.ahead import fit_ahead
from ntfa.comparison.connectivity import connectivity
from ntfa.comparison.embeddings import embeddings, label_groups
from ntfa.comparison.fits import Fits
from ntfa.comparison.generalisation import generalisation
from ntfa.comparison.mvpa import mvpa
from ntfa.comparison.notes import NotPossible, write_note
from ntfa.comparison.predictions import predictions
from ntfa.comparison.processes import n_at_once, run_all
from ntfa.comparison.reproducibility import reproducibility
from ntfa.comparison.settings import Settings
from ntfa.contract import with_shared_voxels
from ntfa.errors import ModelError, OutputError
from ntfa.estimators.saving import versions
from ntfa.files.folders import discard, refuse_existing, write_folder
from ntfa.files.reading import read_json, refuse_links
from ntfa.progress import stage
from ntfa.simulation import Truth
from ntfa.study import Study

logger = logging.getLogger("ntfa")

COMPARISON_FILE = "comparison.json"
PART_FILE = "part.json"
Part = Callable[[Fits, Path, "Truth | None"], None]

PARTS: dict[str, Part] = {
    "generalisation": generalisation,
    "embeddings": embeddings,
    "predictions": predictions,
    "mvpa": mvpa,
    "connectivity": connectivity,
    "reproducibility": reproducibility,
}

LONGEST_FIRST = ("mvpa", "generalisation", "predictions", "embeddings", "connectivity", "reproducibility")


def compare(
    study: Study,
    out: str | Path,
    settings: Settings | None = None,
    *,
    parts: Sequence[str] = tuple(PARTS),
    truth: Truth | None = None,
    overwrite: bool = False,
    command: Sequence[str] = (),
) -> Path:
    """Run the paper's evaluation on a study and write its tables and figures.

    Parameters
    ----------
    study : Study
        Where somebody lacks voxels, those that everybody has are taken: not all that is compared can do without.
    out : path
        In the folder of an earlier comparison of the same study with the same settings, completed parts are not run
        again.
    settings : Settings, optional
    parts : names of parts
        Some of "generalisation", "embeddings", "predictions", "mvpa", "connectivity", "reproducibility".
    truth : Truth, optional
        Of a simulated study: adds the error of the oracle.
    overwrite : bool
        Remove an existing comparison at `out` and start again.
    """
    settings, folder = settings or Settings(), Path(out)
    study = with_shared_voxels(study, "The comparison")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ModelError(f"there is no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    # Before anything is fitted, and before the settings are written down as those of this folder.
    settings.check(study)
    label_groups(study, settings)
    _open(folder, settings.identity(study), overwrite, command)
    fits = Fits(study, settings, folder / "models")
    wanted = [name for name in PARTS if name in parts]
    missing = [name for name in wanted if not (folder / name / PART_FILE).exists()]
    for name in wanted:
        if name not in missing:
            logger.info("%s: done already", name)
    fit_ahead(fits, missing)
    _run_all(missing, fits, folder, truth)
    return folder


def _open(folder: Path, identity: dict[str, Any], overwrite: bool, command: Sequence[str]) -> None:
    """Make the folder, or make sure that it holds a comparison of the same things."""
    refuse_existing(folder, True, COMPARISON_FILE)
    if folder.exists() and overwrite:
        discard(folder)
    known = folder / COMPARISON_FILE
    if known.exists():
        refuse_links(folder)
        _require_same(folder, _read_known(known), identity)
        return
    folder.mkdir(parents=True, exist_ok=True)
    content = {**identity, "command": list(command), "versions": versions()}
    partial = folder / f".{COMPARISON_FILE}.partial"
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(known)


def _read_known(path: Path) -> dict[str, Any]:
    try:
        known = read_json(path)
    except ValueError as error:
        raise OutputError(f"{path} cannot be read ({error}); choose another place or say overwrite") from error
    return known if isinstance(known.get("settings"), dict) else {**known, "settings": {}}


def _require_same(folder: Path, known: dict[str, Any], identity: dict[str, Any]) -> None:
    if known.get("study") != identity["study"]:
        raise OutputError(f"{folder} holds a comparison on another study; choose another place or say overwrite")
    before, now = known.get("settings", {}), identity["settings"]
    changed = [f"{name} was {before.get(name)!r}, is {now[name]!r}" for name in now if before.get(name) != now[name]]
    if changed:
        raise OutputError(
            f"{folder} holds a comparison with other settings ({'; '.join(changed)}); "
            "choose another place or say overwrite"
        )


def _run_all(names: Sequence[str], fits: Fits, folder: Path, truth: Truth | None) -> None:
    """Run parts one after another, or several at a time where that pays."""
    at_once = n_at_once(fits.settings, fits.study) if len(names) > 1 else 1
    if at_once == 1:
        for name in names:
            _run(name, fits, folder / name, truth)
        return
    jobs = []
    for name in sorted(names, key=LONGEST_FIRST.index):
        logger.info("%s", name)
        halves = fits.halves if name == "reproducibility" else {}
        jobs.append((name, fits.elsewhere(**halves), folder / name, truth))
    with stage(f"Comparing: {', '.join(names)}"):
        run_all(_run_apart, jobs, at_once)


def _run_apart(name: str, fits: Fits, folder: Path, truth: Truth | None) -> None:
    """Run a part in a process of its own, which nobody looks at."""
    mpl.use("agg")
    _run(name, fits, folder, truth)


def _run(name: str, fits: Fits, folder: Path, truth: Truth | None) -> None:
    logger.info("%s", name)
    began = time.perf_counter()
    with write_folder(folder, folder.exists(), PART_FILE) as partial, stage(f"Comparing: {name}"):
        try:
            PARTS[name](fits, partial, truth)
        except NotPossible as reason:
            write_note(partial, name, reason)
        done = {"part": name, "seconds": round(time.perf_counter() - began, 1)}
        (partial / PART_FILE).write_text(json.dumps(done) + "\n", encoding="utf-8")
