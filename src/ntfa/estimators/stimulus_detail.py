"""What responses to a new stimulus have in common that features of the fit's stimuli cannot express.

Features are directions in which the fit's stimuli differ. A new stimulus lies where it can among them, and what is left
of the average images r_p of its n viewers is taken as a map of its own and noise, the same at all voxels:

    r_p = m + noise_p,    m ~ N(0, kappa^2),    noise ~ N(0, v),        E[m] = n kappa^2 / (n kappa^2 + v) mean(r_p)

kappa^2 is what two viewers of a stimulus have in common, on average over all new stimuli; none, if none had two.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ntfa.estimators.arrival import Arrival
from ntfa.estimators.result import Fitted
from ntfa.fitting.spoiled import frame_counts
from ntfa.inference.projection import exponent_coefficients, factor_chunk, voxel_terms
from ntfa.models.loadings import LoadingFactors

Floats = NDArray[np.float64]


@torch.no_grad()
def add_stimulus_detail(module: LoadingFactors, arrival: Arrival, fitted: Fitted) -> None:
    """Add maps of new stimuli, which must have features already."""
    n_voxels, n_new = len(fitted.coordinates), len(arrival.stimuli)
    before = module.stimulus_detail
    empty = torch.zeros(n_new, n_voxels, device=module.gram.device)
    module.stimulus_detail = empty if before is None else torch.cat([before, empty])
    sums, squares, viewers = np.zeros((n_new, n_voxels)), np.zeros(n_new), np.zeros((n_new, n_voxels))
    images = _factor_images(module, fitted)
    counts = None
    if fitted.params.get("frames") == "robust":
        known = np.ones(1) if fitted.frames is None else fitted.frames["distance"].to_numpy()
        counts = frame_counts(arrival.study, known)
    place = {label: i for i, label in enumerate(arrival.labels.participants)}
    trials = arrival.study.trials
    trials = trials[trials["stimulus"].isin(arrival.stimuli)]
    for pair, own in trials.groupby(["participant", "stimulus"]):
        participant, stimulus = map(str, pair)
        i = arrival.stimuli.index(stimulus)
        s = len(arrival.labels.stimuli) - n_new + i
        rows = np.concatenate([np.arange(*span) for span in own[["start", "stop"]].to_numpy()])
        weights = None if counts is None else counts[participant][rows]
        recorded = np.average(np.asarray(arrival.study.frames[participant][rows], dtype=np.float64), 0, weights)
        seen = arrival.study.coverage.get(participant, 1.0)
        residual = (recorded - _expected(module, images, place[participant], s)) * seen
        sums[i], squares[i], viewers[i] = sums[i] + residual, squares[i] + (residual**2).sum(), viewers[i] + seen
    maps = _shrunk(sums, squares, viewers)
    module.stimulus_detail[len(module.stimulus_detail) - n_new :] = torch.from_numpy(maps).to(empty)


def _shrunk(sums: Floats, squares: Floats, viewers: Floats) -> Floats:
    """Posterior means [m, V], given numbers of viewers and sums of their residuals [m, V], and of squares [m]."""
    pairs = viewers * (viewers - 1)
    if not pairs.sum():
        return np.zeros_like(sums)
    common = float(((sums**2).sum(1) - squares)[pairs.sum(1) > 0].sum() / pairs.sum())
    noise = float(squares.sum() / viewers.sum()) - common
    if common <= 0:
        return np.zeros_like(sums)
    return np.asarray(common / (viewers * common + max(noise, 1e-12)) * sums)


def _factor_images(module: LoadingFactors, fitted: Fitted) -> torch.Tensor:
    """Factors [K, V], for weights in the units of the data."""
    voxels = torch.from_numpy(fitted.positions).to(module.centers.mean.device)
    terms = voxel_terms(fitted.units.standardise(voxels))
    coefficients = exponent_coefficients(module.centers.mean[0], module.log_widths.mean[0], terms.dtype)
    return factor_chunk(coefficients, terms) * fitted.units.intensity


def _expected(module: LoadingFactors, images: torch.Tensor, participant: int, stimulus: int) -> Floats:
    """The mean image of a pair so far."""
    features = module.features(module.z_stimulus.mean[stimulus])
    weights = features @ (module.group_loadings + module.loadings[participant])
    image, detail = weights.to(images) @ images, module.detail_image(participant, stimulus)
    return np.asarray((image if detail is None else image + detail).double().cpu().numpy())
