"""Shares of stimulus, person and person by stimulus in recorded images, without a model.

Mean images of two halves of every pair's trials have the same truth and noise of their own. Products of their
components (`ntfa.analyses.interaction`) are therefore, in the mean, the squares of the true ones: noise falls out. They
need no model, and know nothing of smoothness, so that they are noisy; and they need a study in which every person sees
every stimulus twice.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.study import Study

Floats = NDArray[np.float64]
# Of images that are in memory at once.
MOST_VALUES = 1 << 25


def recorded_shares(study: Study) -> pd.DataFrame | None:
    """Shares with 95% intervals over participants (jackknife), `component, share, ci_low, ci_high`.

    None if somebody has seen something less than twice, or if there is nothing but noise.
    """
    halves = _half_means(study.on_shared_voxels())
    if halves is None or len(halves[0]) < 3:
        return None
    whole = components(*halves)
    if not whole.sum() > 0:
        return None
    n = len(halves[0])
    without = [np.delete(np.arange(n), p) for p in range(n)]
    shares = np.array([_shares(components(halves[0][rest], halves[1][rest])) for rest in without])
    share = _shares(whole)
    sd = np.sqrt((n - 1) / n * ((shares - shares.mean(0)) ** 2).sum(0))
    names = ("stimulus", "person", "person by stimulus")
    return pd.DataFrame({"component": names, "share": share, "ci_low": share - 1.96 * sd, "ci_high": share + 1.96 * sd})


def components(one: Floats, other: Floats) -> Floats:
    """Mean products of components of two sets of images [P, S, V]: of stimuli, people and both; squares if the same."""
    parts = [_parts(images) for images in (one, other)]
    return np.array([float(np.mean(a * b)) for a, b in zip(*parts, strict=True)])


def _parts(images: Floats) -> tuple[Floats, Floats, Floats]:
    of_stimuli, of_people = images.mean(0, keepdims=True), images.mean(1, keepdims=True)
    mean = of_stimuli.mean(1, keepdims=True)
    return of_stimuli - mean, of_people - mean, images - of_stimuli - of_people + mean


def _shares(found: Floats) -> Floats:
    """Shares of the whole; a component that comes out negative, by noise, is none."""
    found = np.maximum(found, 0)
    return np.asarray(found / max(found.sum(), np.finfo(float).tiny))


def _half_means(study: Study) -> tuple[Floats, Floats] | None:
    """Mean images [P, S, V] of every other trial of each pair, and of the rest."""
    trials = study.trials.sort_values(["participant", "start"], kind="stable")
    cell = trials.groupby(["participant", "stimulus"])
    half, n_pairs = cell.cumcount() % 2, len(study.participants) * len(study.stimuli)
    if len(cell) < n_pairs or cell.size().min() < 2:
        return None
    most = max(1, MOST_VALUES // (2 * n_pairs))
    voxels = np.arange(study.n_voxels)
    if len(voxels) > most:
        voxels = np.sort(np.random.default_rng(0).choice(voxels, most, replace=False))
    totals = np.zeros((2, len(study.participants), len(study.stimuli), len(voxels)))
    counts = np.zeros((*totals.shape[:3], 1))
    places = {what: s for s, what in enumerate(study.stimuli)}
    for p, who in enumerate(study.participants):
        own = trials[trials["participant"] == who]
        frames = np.asarray(study.frames[who])[:, voxels]
        spans = own[["start", "stop"]].to_numpy(dtype=np.int64)
        for what, (start, stop), of_half in zip(own["stimulus"], spans, half[own.index], strict=True):
            totals[of_half, p, places[what]] += frames[start:stop].sum(0)
            counts[of_half, p, places[what]] += stop - start
    means = totals / counts
    return means[0], means[1]
