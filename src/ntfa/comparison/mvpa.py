"""Multivoxel pattern analysis: how well each method's features tell categories of stimuli apart."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from ntfa.analyses.decoding import decode, summarise
from ntfa.analyses.folds import check_trials_table, folds_across, folds_within
from ntfa.comparison.features import COMPONENTS, TOPOGRAPHIC, Features, component_features, topographic_features
from ntfa.comparison.figures import save_figure
from ntfa.comparison.fits import NAMES, Fits
from ntfa.comparison.notes import NotPossible
from ntfa.errors import ModelError, StudyError
from ntfa.plots import plot_auc
from ntfa.simulation import Truth

logger = logging.getLogger("ntfa")

VOXELS_KEPT = 500


def mvpa(fits: Fits, folder: Path, truth: Truth | None) -> None:
    """Write `folds.tsv`, `by_category.tsv`, `by_participant.tsv`, `overall.tsv` and a figure of the AUCs."""
    write_aucs(fits, folder, feature_sets, n_best={"voxel": min(VOXELS_KEPT, fits.study.n_voxels)})


def feature_sets(fits: Fits) -> dict[str, Features]:
    """Features of every method, one row per trial."""
    study = fits.study
    sets: dict[str, Features] = {"voxel": pd.DataFrame(study.mean_images(), index=study.trials.index)}
    sets |= {NAMES[method]: topographic_features(fits, method, "trial") for method in TOPOGRAPHIC}
    for name in COMPONENTS:
        try:
            sets[name] = component_features(fits, name)
        except ModelError as error:
            logger.warning("%s left out: %s", name, error)
    return sets


def write_aucs(
    fits: Fits, folder: Path, make_sets: Callable[[Fits], dict[str, Features]], n_best: dict[str, int]
) -> None:
    """Classify with every set of features and write tables and figures."""
    ways = possible_ways(fits)
    sets = make_sets(fits)
    parts = []
    for across in ways:
        for name, features in sets.items():
            found = _classify(fits, name, features, across, n_best.get(name))
            if found is not None:
                parts.append(found.assign(features=name, across=across))
    if not parts:
        raise NotPossible("There are no features to classify with; the warnings say why each was left out.")
    rows = pd.concat(parts, ignore_index=True)
    rows.to_csv(folder / "folds.tsv", sep="\t", index=False)
    tables = {"by_category": ["category"], "by_participant": ["participant", "category"], "overall": []}
    for name, by in tables.items():
        table = summarise(rows, ["across", "features", *by])
        table.to_csv(folder / f"{name}.tsv", sep="\t", index=False)
        if name == "by_category":
            _draw(table, list(sets), folder)


def possible_ways(fits: Fits) -> list[str]:
    """Of the ways to leave trials out that are asked for, those that the design allows."""
    settings, trials = fits.settings, fits.study.trials
    category = settings.category_of(fits.study)
    try:
        check_trials_table(trials, category)
    except StudyError as error:
        raise NotPossible(str(error)) from error
    folds = {
        "trials": lambda: folds_within(trials, category, settings.run, settings.seed),
        "participants": lambda: folds_across(trials, category),
    }
    asked = list(folds) if settings.across == "both" else [settings.across]
    possible = [way for way in asked if folds[way]()]
    if not possible:
        needed = {
            "trials": f"no participant has two trials of each of two categories of {category!r}",
            "participants": f"no participant can be left out and tested on two categories of {category!r}",
        }
        raise NotPossible("; ".join(needed[way] for way in asked) + ": nothing to classify")
    for way in asked:
        if way not in possible:
            logger.warning("classification across %s is left out: the design does not allow it", way)
    return possible


def _classify(fits: Fits, name: str, features: Features, across: str, n_best: int | None) -> pd.DataFrame | None:
    """AUCs of one set of features; None, with a warning, where it cannot be made for every fold."""
    settings = fits.settings
    if across == "participants" and callable(features) and name in NAMES.values():
        logger.warning("%s cannot be fitted without the participant left out: not refitted, left out", name)
        return None
    try:
        return decode(
            features,
            fits.study.trials,
            settings.category_of(fits.study),
            across=across,
            run=settings.run,
            n_best=n_best,
            n_jobs=settings.n_jobs,
            random_state=settings.seed,
            progress=None if settings.quiet else f"{name}, across {across}",
        )
    except ModelError as error:
        if name not in COMPONENTS:
            raise
        logger.warning("%s left out: %s", name, error)
        return None


def _draw(table: pd.DataFrame, order: list[str], folder: Path) -> None:
    for across, own in table.groupby("across"):
        ranked = own.sort_values("features", key=lambda names: names.map(order.index), kind="stable")
        title = "own trials left out" if across == "trials" else "participants left out"
        save_figure(plot_auc(ranked, title=title), folder / f"auc_{across}")
