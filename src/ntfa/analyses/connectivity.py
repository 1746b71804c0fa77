"""Functional connectivity: how signals go together within each trial, those of factors, regions or clusters."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ntfa.errors import ModelError, StudyError
from ntfa.estimators.ntfa import NTFA
from ntfa.study import Study
from ntfa.study.signals import frame_table

logger = logging.getLogger("ntfa")

FEWEST_FRAMES = 3
EM_STEPS = 200
# Fisher's z of a perfect correlation is infinite; few frames do give such.
LARGEST_CORRELATION = 1 - 1e-6


def connectivity(signals: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Correlate every pair of signals over the frames of each trial, Fisher-transformed.

    Parameters
    ----------
    signals : DataFrame
        One row per frame, indexed by trial and frame as `transform(study, by="frame")` returns it; one column per
        signal.
    trials : DataFrame
        The study's trials; each needs three frames at least.

    Returns
    -------
    DataFrame
        arctanh(r), float32, indexed as `trials`; one column per pair of signals. A signal that does not change during a
        trial goes together with none: 0.
    """
    _check_signals(signals, trials)
    first, second = np.triu_indices(signals.shape[1], k=1)
    values, places = signals.to_numpy(dtype=np.float64), signals.groupby(level=0, sort=False).indices
    z = np.empty((len(trials), len(first)), dtype=np.float32)
    for i, trial in enumerate(trials.index):
        z[i] = _fisher(_correlations(values[places[trial]])[first, second])
    names = [signals.columns[first], signals.columns[second]]
    pairs = pd.MultiIndex.from_arrays(names, names=["signal_1", "signal_2"])
    return pd.DataFrame(z, index=trials.index, columns=pairs)


@torch.no_grad()
def factor_connectivity(model: NTFA, study: Study, groups: str | pd.Series | None = None) -> dict[str, pd.DataFrame]:
    """Covariance of the factors' weights from frame to frame around their means, for each group of trials.

    The model has one such covariance for all frames, `weights_covariance_`. Here that of each group's frames is
    estimated, by maximum likelihood given the fitted factors, mean responses and noise (no weight is estimated on the
    way, so that noise does not pass for connectivity), and shrunk towards the model's as if that had been seen in as
    many frames as there are factors.

    Parameters
    ----------
    model : NTFA
        Fitted with individual loadings.
    study : Study
        Trials of participants and stimuli that the model knows.
    groups : column of the trials, or Series indexed as them, optional
        Which group each trial is in, such as "stimulus" or "category"; all are in one, "all", by default.

    Returns
    -------
    dict of DataFrame
        Covariances [K, K] in the units of the data, by group.
    """
    module, fitted = model._loading_factors("factor_connectivity"), model._require_fitted()
    names = _groups_of_trials(study, groups)
    arranged = fitted.arranged(model._as_scored(study))
    frames, centers, log_widths = arranged.frames, module.centers.mean, module.log_widths.mean
    projection = frames.project(centers, log_widths)
    cells, grams = projection.cells, projection.distinct_gram
    mean = module.responses()[cells.participant, cells.stimulus]
    residual = projection.frames - projection.expected(mean)[cells.of_frame]
    which = torch.zeros_like(cells.of_frame) if projection.groups is None else projection.groups.of_frame
    found = {}
    for group in sorted(names.unique()):
        rows = torch.cat([arranged.trial_frames[i] for i in np.flatnonzero(names == group)])
        parts = [(residual[rows][which[rows] == g], gram) for g, gram in enumerate(grams)]
        covariance = _weights_covariance(parts, module.weights_covariance(), module.frame_variance)
        factors = pd.RangeIndex(1, len(covariance) + 1, name="factor")
        scaled = covariance.cpu().numpy() * fitted.units.intensity**2
        found[group] = pd.DataFrame(scaled, index=factors, columns=factors)
    return found


def _groups_of_trials(study: Study, groups: str | pd.Series | None) -> pd.Series:
    if groups is None:
        return pd.Series("all", index=study.trials.index)
    if isinstance(groups, str):
        if groups not in study.trials:
            raise StudyError(f"the trials have no column {groups!r}; they have {', '.join(map(str, study.trials))}")
        groups = study.trials[groups]
    return groups.reindex(study.trials.index).astype(str)


def _weights_covariance(parts: Sequence[tuple[Tensor, Tensor]], shared: Tensor, noise: Tensor) -> Tensor:
    """Estimate the covariance of weights from r_t = (y_t - mean) F^T, by expectation maximisation.

    Given Sigma, the weights of frame t have the posterior N(V r_t / s2, V) with V = (Sigma^-1 + G / s2)^-1. `parts` are
    residuals of participants who have the same voxels, with the G of these.
    """
    sums = [(len(residual), residual.mT @ residual, gram) for residual, gram in parts if len(residual)]
    sigma, n, n_prior = shared, sum(count for count, _, _ in sums), float(len(shared))
    for _ in range(EM_STEPS):
        seen = torch.zeros_like(sigma)
        for count, squares, gram in sums:
            spread = torch.linalg.inv(torch.linalg.inv(sigma) + gram / noise)
            seen += spread @ squares @ spread / noise.square() + count * spread
        sigma = (seen + n_prior * shared) / (n + n_prior)
        sigma = (sigma + sigma.mT) / 2
    return sigma


def roi_signals(study: Study, atlas: str = "power", radius: float = 5.0) -> pd.DataFrame:
    """Mean signals of published regions: spheres around coordinates that nilearn ships.

    Parameters
    ----------
    study : Study
        With voxels at MNI coordinates.
    atlas : {"power", "seitzman"}
        264 regions (Power et al., 2011) or 300 (Seitzman et al., 2020).
    radius : float
        Radius of the spheres, in mm.

    Returns
    -------
    DataFrame
        One row per trial frame; one column per region, numbered from 1 as in the atlas. Regions without a voxel that
        everybody has are left out.
    """
    from scipy.spatial import cKDTree

    if not radius > 0:
        raise ModelError(f"radius={radius!r}: must be a length in mm, greater than 0")
    centers = _atlas_coordinates(atlas)
    study = study.on_shared_voxels()
    members = cKDTree(study.coordinates).query_ball_point(centers, radius)
    found = [i for i, voxels in enumerate(members) if len(voxels)]
    if len(found) < 2:
        raise StudyError(
            f"{len(found)} of the {len(centers)} regions of the atlas {atlas!r} hold a voxel of the study: its "
            "coordinates must be MNI coordinates in mm, and the spheres no smaller than its voxels (radius=)"
        )
    logger.info("atlas %s: %d of %d regions contain a voxel of the study", atlas, len(found), len(centers))
    columns = pd.Index([i + 1 for i in found], name="region")
    return _mean_signals(study, [np.sort(members[i]) for i in found], columns)


def cluster_signals(study: Study, n_clusters: int, random_state: int = 0) -> pd.DataFrame:
    """Mean signals of neighbouring voxels: K-means of the voxels' positions, blind to data and labels.

    Parameters
    ----------
    study : Study
    n_clusters : int
        At most one per voxel.
    random_state : int
        Seed.

    Returns
    -------
    DataFrame
        One row per trial frame; one column per cluster, numbered from 1.
    """
    from sklearn.cluster import KMeans

    study = study.on_shared_voxels()
    if not 2 <= n_clusters <= study.n_voxels:
        raise ModelError(f"n_clusters={n_clusters!r}: must be between 2 and the study's {study.n_voxels} voxels")
    member = KMeans(n_clusters, n_init=1, random_state=random_state).fit_predict(study.coordinates)
    columns = pd.RangeIndex(1, n_clusters + 1, name="cluster")
    return _mean_signals(study, [np.flatnonzero(member == i) for i in range(n_clusters)], columns)


def _mean_signals(study: Study, members: list[np.ndarray], columns: pd.Index) -> pd.DataFrame:
    from scipy.sparse import csr_array

    sizes = np.array([len(voxels) for voxels in members])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    share = np.repeat(1 / sizes, sizes)
    average = csr_array((share, np.concatenate(members), starts), shape=(len(members), study.n_voxels))

    def signals(frames: np.ndarray) -> np.ndarray:
        return (average @ frames.T.astype(np.float64)).T

    return frame_table(study, signals, columns)


def _atlas_coordinates(atlas: str) -> np.ndarray:
    from nilearn.datasets import fetch_coords_power_2011, fetch_coords_seitzman_2018

    if atlas == "power":
        table = fetch_coords_power_2011().rois
    elif atlas == "seitzman":
        table = fetch_coords_seitzman_2018(ordered_regions=False).rois
    else:
        raise ModelError(f"atlas={atlas!r}: choose 'power' or 'seitzman'")
    return table[["x", "y", "z"]].to_numpy(dtype=np.float64)


def _correlations(frames: np.ndarray) -> np.ndarray:
    """Correlation of every pair of columns [T, K] -> [K, K]; 0 where one is constant."""
    centred = frames - frames.mean(0)
    norm = np.sqrt((centred**2).sum(0))
    changing = (np.ptp(frames, axis=0) > 0) & (norm > 0)
    scaled = np.divide(centred, norm, out=np.zeros_like(centred), where=changing)
    return scaled.T @ scaled


def _fisher(correlation: np.ndarray) -> np.ndarray:
    return np.arctanh(np.clip(correlation, -LARGEST_CORRELATION, LARGEST_CORRELATION))


def _check_signals(signals: pd.DataFrame, trials: pd.DataFrame) -> None:
    if signals.index.nlevels != 2:
        raise StudyError(
            "signals must have one row per frame, indexed by trial and frame, as transform(by='frame') returns"
        )
    if signals.shape[1] < 2:
        raise StudyError(f"connectivity needs at least two signals, not {signals.shape[1]}")
    if not trials.index.is_unique:
        raise StudyError("trials must be told apart by their index")
    n_frames = signals.groupby(level=0).size().reindex(trials.index, fill_value=0)
    short = n_frames[n_frames < FEWEST_FRAMES]
    if len(short):
        raise StudyError(
            f"trial {short.index[0]} has {short.iloc[0]} frames; correlations over time need {FEWEST_FRAMES} "
            f"({len(short)} of {len(trials)} trials are too short)"
        )
    if not np.isfinite(signals.to_numpy(dtype=np.float64)).all():
        raise StudyError("signals hold values that are not finite")
