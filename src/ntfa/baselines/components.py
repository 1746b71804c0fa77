"""Spatial components to set beside factors: canonical ICA and dictionary learning, through nilearn.

Both reduce each participant's frames to their leading spatial patterns, stack these, and look for maps that are
independent (ICA) or sparse (dictionary). A study with a mask goes through nilearn; one that is only arrays goes
through like steps with scikit-learn. The study is prepared already: nothing is smoothed, detrended or standardised.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from ntfa.baselines.base import Array, Baseline
from ntfa.contract import with_shared_voxels
from ntfa.errors import ModelError
from ntfa.seeds import RandomState, as_seed
from ntfa.study import Study

UNPREPARED = {"smoothing_fwhm": None, "standardize": False, "standardize_confounds": False, "detrend": False}


@dataclass(eq=False, repr=False)
class SpatialComponents(Baseline):
    """Base of ICA and dictionary learning: maps found over all participants, frames regressed on them."""

    n_components: int = 20
    _: KW_ONLY
    random_state: RandomState = None

    def _nilearn(self, **settings: Any) -> Any:
        """Make nilearn's estimator."""
        raise NotImplementedError

    def _maps(self, patterns: Array, seed: int) -> Array:
        """Find maps [n_components, V] in stacked patterns [n, V], without an image."""
        raise NotImplementedError

    def fit(self, study: Study, y: None = None) -> Self:
        """Find the maps, in the frames of all trials."""
        self._check_settings()
        self._require_study(study)
        study = with_shared_voxels(study, type(self).__name__)
        seed = as_seed(self.random_state)
        reduced = {who: leading_patterns(frames, self.n_components) for who, frames in _trial_frames(study)}
        n_patterns = sum(len(patterns) for patterns in reduced.values())
        if n_patterns < self.n_components:
            raise ModelError(f"n_components={self.n_components} is more than the study's {n_patterns} trial frames")
        with warnings.catch_warnings():
            # Both look for as many maps as they are told, whether or not the last of them have settled.
            warnings.filterwarnings("ignore", category=UserWarning)
            warnings.filterwarnings("ignore", category=RuntimeWarning)
            is_volume = hasattr(study.mask_img, "dataobj")
            maps = None if is_volume else self._maps(np.concatenate(list(reduced.values())), seed)
            self.components_ = self._maps_of_images(reduced, study.mask_img, seed) if maps is None else maps
        self.seed_ = seed
        self._keep_voxels(study)
        self._solver = np.linalg.pinv(self.components_.astype(np.float64))
        return self

    def _maps_of_images(self, reduced: dict[str, Array], mask_img: Any, seed: int) -> Array:
        from nilearn.masking import unmask

        images = [unmask(patterns.astype(np.float32), mask_img) for patterns in reduced.values()]
        estimator = self._nilearn(
            n_components=self.n_components, random_state=seed, mask=mask_img, n_jobs=1, **UNPREPARED
        )
        try:
            return np.asarray(estimator.fit(images).components_, dtype=np.float64)
        except ValueError as error:
            # Dictionary learning drops empty maps, and nilearn refuses to end with none.
            raise ModelError(f"{type(self).__name__} found no components in the study: {error}") from error

    @property
    def _columns(self) -> pd.Index:
        return pd.RangeIndex(1, len(self.components_) + 1, name="component")

    def _project(self, participant: str, frames: Array) -> Array:
        """Least squares of frames on the maps; of several solutions the smallest."""
        return frames @ self._solver


@dataclass(eq=False, repr=False)
class ICA(SpatialComponents):
    """Canonical independent component analysis: spatially independent maps shared by all participants.

    Parameters
    ----------
    n_components : int
        Number of maps.
    random_state : int, RandomState, Generator or None
        Seed, or what to draw it from; kept as `seed_`.

    Attributes
    ----------
    components_ : array of shape (n_components, V)
        The maps.
    coordinates_, mask_img_
        Those of the study.
    """

    def _nilearn(self, **settings: Any) -> Any:
        from nilearn.decomposition import CanICA

        return CanICA(**settings)

    def _maps(self, patterns: Array, seed: int) -> Array:
        from sklearn.decomposition import FastICA

        model = FastICA(self.n_components, whiten="unit-variance", max_iter=500, random_state=seed)
        return _upright(model.fit_transform(_unit_rows(patterns).T).T)


@dataclass(eq=False, repr=False)
class DictionaryLearning(SpatialComponents):
    """Dictionary learning: sparse maps shared by all participants.

    Parameters
    ----------
    n_components : int
        Number of maps.
    alpha : float
        Sparsity: the larger, the fewer voxels a map has. In nilearn's units where the study has a mask; without one,
        a tenth of it is the value below which a voxel of typical size is left out of a map.
    random_state : int, RandomState, Generator or None
        Seed, or what to draw it from; kept as `seed_`.

    Attributes
    ----------
    components_ : array of shape (n_components, V)
        The maps.
    coordinates_, mask_img_
        Those of the study.
    """

    _: KW_ONLY
    alpha: float = 10.0

    def fit(self, study: Study, y: None = None) -> Self:
        """Find the maps, in the frames of all trials."""
        if not self.alpha > 0:
            raise ModelError(f"alpha={self.alpha!r}: must be greater than 0")
        return super().fit(study, y)

    def _nilearn(self, **settings: Any) -> Any:
        from nilearn.decomposition import DictLearning

        return DictLearning(alpha=self.alpha, **settings)

    def _maps(self, patterns: Array, seed: int) -> Array:
        from sklearn.decomposition import MiniBatchDictionaryLearning

        # A voxel of typical size is then made of n_components maps that are about one there.
        typical = np.sqrt((patterns**2).sum(0).mean() / self.n_components)
        voxels = patterns.T / (typical or 1.0)
        model = MiniBatchDictionaryLearning(
            self.n_components,
            alpha=self.alpha / 10,
            batch_size=256,
            max_iter=20,
            fit_algorithm="cd",
            transform_algorithm="lasso_cd",
            transform_alpha=self.alpha / 10,
            random_state=seed,
        )
        return _upright(model.fit(voxels).transform(voxels).T)


def leading_patterns(frames: np.ndarray, n_patterns: int) -> Array:
    """Leading right singular vectors of frames [T, V], times singular values: [min(T, n_patterns), V].

    nilearn begins with the same reduction. Done here, before frames become images, no participant's whole recording
    has to be put into a volume; frames that are their own leading patterns stay what they are under it.
    """
    values = frames.astype(np.float64)
    if len(values) <= n_patterns:
        return values
    _, left = np.linalg.eigh(values @ values.T)
    return left[:, : -n_patterns - 1 : -1].T @ values


def _trial_frames(study: Study) -> Iterator[tuple[str, np.ndarray]]:
    """Each participant's frames that are in a trial, once each, in order of time."""
    for who, trials in study.trials.groupby("participant"):
        used = np.zeros(len(study.frames[str(who)]), dtype=bool)
        for start, stop in zip(trials["start"], trials["stop"], strict=True):
            used[start:stop] = True
        yield str(who), study.frames[str(who)][used]


def _unit_rows(patterns: Array) -> Array:
    """Patterns of length one, so that no participant counts more for being noisier."""
    norm = np.linalg.norm(patterns, axis=1, keepdims=True)
    return patterns / np.where(norm > 0, norm, 1)


def _upright(maps: Array) -> Array:
    """Turn the sign of each map so that its peak is positive; an arbitrary sign is not left to chance."""
    peak = np.take_along_axis(maps, np.abs(maps).argmax(1)[:, None], axis=1)
    return np.asarray(maps * np.where(peak < 0, -1, 1), dtype=np.float64)
