"""Points for participants and stimuli from every method that has them, and whether they show known groups."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from ntfa.analyses.labels import label_table
from ntfa.analyses.separation import group_structure
from ntfa.baselines import BASELINES
from ntfa.comparison.figures import save_figure
from ntfa.comparison.fits import Fits
from ntfa.comparison.settings import Settings
from ntfa.errors import StudyError
from ntfa.plots import plot_embeddings
from ntfa.simulation import Truth
from ntfa.study import Study

logger = logging.getLogger("ntfa")

NAMES = {"pca": "PCA", "srm": "SRM", "mn-srm": "MN-SRM", "individual loadings": "individual loadings"}
MOST_GROUPS = 12
MOST_FEATURES = 10
TABLES = {"participant": "participants_", "stimulus": "stimuli_"}


def embeddings(fits: Fits, folder: Path, truth: Truth | None) -> None:
    """Write `participants.tsv`, `stimuli.tsv`, `separation.tsv` and a picture of all methods for each kind."""
    methods = _methods(fits)
    for attribute in TABLES.values():
        tables = [getattr(model, attribute).assign(method=name) for name, model in methods.items()]
        _in_order(pd.concat(tables)).to_csv(folder / f"{attribute.strip('_')}.tsv", sep="\t")
    rows = []
    for kind, wanted in label_groups(fits.study, fits.settings).items():
        for column, groups in wanted.items():
            for name, model in methods.items():
                rows += _measure(getattr(model, TABLES[kind]), groups, {"kind": kind, "labels": column, "method": name})
        _draw(methods, kind, wanted, folder)
    table = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["kind", "labels", "method"])
    table.to_csv(folder / "separation.tsv", sep="\t", index=False)


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Points first, then sds, covariances and the method, however many dimensions each method has."""

    def place(name: str) -> tuple[int, int, list[int]]:
        numbers = [int(part.lstrip("z")) for part in name.split("_") if part.lstrip("z").isdigit()]
        kind = {"sd": 1, "cov": 2, "method": 3}.get(name.rsplit("_", 1)[-1], 0)
        return kind, len(numbers), numbers

    columns: list[str] = sorted(map(str, table.columns), key=place)
    return table[columns]


def _methods(fits: Fits) -> dict[str, Any]:
    methods: dict[str, Any] = {"NTFA": fits.on_all("ntfa")}
    for key, kind in BASELINES.items():
        if len(fits.study.participants) < 2 and key != "pca":
            logger.warning("%s needs two participants: left out", NAMES[key])
            continue
        logger.info("Fitting %s", NAMES[key])
        model = kind()
        n_features = fits.settings.n_features or min(fits.settings.n_factors, MOST_FEATURES)
        wanted = {"n_features": n_features, "random_state": fits.settings.seed}
        model.set_params(**{name: value for name, value in wanted.items() if name in model.get_params()})
        try:
            methods[NAMES[key]] = model.fit(fits.study)
        except StudyError as error:
            logger.warning("%s left out: %s", NAMES[key], error)
    return methods


def label_groups(study: Study, settings: Settings) -> dict[str, pd.DataFrame]:
    """Labels of participants and of stimuli that make groups: those asked for, else all that can."""
    asked = {"participant": settings.participant_labels, "stimulus": settings.stimulus_labels}
    return {kind: _chosen(study, kind, columns) for kind, columns in asked.items()}


def _chosen(study: Study, kind: str, columns: tuple[str, ...]) -> pd.DataFrame:
    labels = label_table(study, kind)
    unknown = [column for column in columns if column not in labels]
    if unknown:
        known = ", ".join(map(str, labels)) or "none"
        raise StudyError(f"{unknown[0]!r} is no label that tells {kind}s apart; there are: {known}")
    if columns:
        return labels[list(columns)]
    sizes = {column: labels[column].value_counts() for column in labels}
    usable = [name for name, size in sizes.items() if (size > 1).sum() > 1 and len(size) <= MOST_GROUPS]
    return labels[usable]


def _measure(points: pd.DataFrame, groups: pd.Series, row: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        found = asdict(group_structure(points, groups))
    except StudyError as error:
        logger.warning("%s of %ss: %s", row["labels"], row["kind"], error)
        return []
    return [row | found | {"left_out": ", ".join(found["left_out"])}]


def _draw(methods: dict[str, Any], kind: str, wanted: pd.DataFrame, folder: Path) -> None:
    groups = wanted[wanted.columns[0]] if len(wanted.columns) else None
    n_columns = 2 if len(methods) > 1 else 1
    n_rows = -(-len(methods) // n_columns)
    figure, axes = plt.subplots(
        n_rows, n_columns, figsize=(5.5 * n_columns, 4.6 * n_rows), layout="constrained", squeeze=False
    )
    for ax in axes.flat[len(methods) :]:
        ax.set_axis_off()
    for ax, (name, model) in zip(axes.flat, methods.items(), strict=False):
        points = getattr(model, TABLES[kind])
        plot_embeddings(points, None if groups is None else groups.reindex(points.index), title=name, ax=ax)
    save_figure(figure, folder / TABLES[kind].strip("_"))
