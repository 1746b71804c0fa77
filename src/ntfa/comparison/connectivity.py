"""Functional connectivity: how well correlations between factors, regions or clusters tell categories apart."""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd

from ntfa.analyses.connectivity import cluster_signals, roi_signals
from ntfa.analyses.connectivity import connectivity as correlations
from ntfa.comparison.features import Features, topographic_features
from ntfa.comparison.fits import NAMES, Fits
from ntfa.comparison.mvpa import write_aucs
from ntfa.comparison.notes import NotPossible
from ntfa.errors import StudyError
from ntfa.simulation import Truth

logger = logging.getLogger("ntfa")

METHODS = ("ntfa", "htfa")
FEWEST_FRAMES = 4


def connectivity(fits: Fits, folder: Path, truth: Truth | None) -> None:
    """Write the same tables as MVPA; a study of trials too short for correlations gets a note instead."""
    shortest = (fits.study.trials["stop"] - fits.study.trials["start"]).min()
    if shortest < FEWEST_FRAMES:
        raise NotPossible(
            f"Trials of {shortest} frames are too short for correlations over time; {FEWEST_FRAMES} are needed."
        )
    write_aucs(fits, folder, feature_sets, n_best={})


def feature_sets(fits: Fits) -> dict[str, Features]:
    """Fisher-transformed correlations of every pair of signals, one row per trial."""
    study, settings = fits.study, fits.settings

    def pairs(signals: pd.DataFrame) -> pd.DataFrame:
        return correlations(signals, study.trials.loc[signals.index.get_level_values(0).unique()])

    sets: dict[str, Features] = {}
    if settings.n_factors > 1:
        sets |= {NAMES[method]: topographic_features(fits, method, "frame", pairs) for method in METHODS}
    try:
        sets[f"{settings.atlas} regions"] = pairs(roi_signals(study, settings.atlas))
    except StudyError as error:
        logger.warning("%s regions left out: %s", settings.atlas, error)
    n_clusters = min(settings.n_factors, study.n_voxels)
    if n_clusters > 1:
        sets["voxel clusters"] = pairs(cluster_signals(study, n_clusters, settings.seed))
    return sets
