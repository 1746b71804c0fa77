"""Regression of each participant's cells on features of the stimuli, and the choice of its two settings.

With M_p [n, V] a participant's cell means, N_p the diagonal matrix of their numbers of frames and X_p [n, C + 1] the
features of their stimuli, deviations from the group's loadings are

    B_p = G_p X_p^T N_p (M_p - X_p A_0)        G_p = (X_p^T N_p X_p + penalty)^-1

Every prediction is thus a sum of the participant's own cells and of the group's mean images, with coefficients that no
voxel has a part in. Errors on held-out cells follow from inner products of these images, which are computed once:
trying one more number of components or one more penalty costs next to nothing, however many voxels there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ntfa.baselines.base import Array
from ntfa.baselines.cell_means import Booleans, CellMeans, ParticipantCells, group_means
from ntfa.baselines.principal import principal_components

HeldOut = Mapping[str, Booleans]


@dataclass(frozen=True, eq=False)
class Loadings:
    """Fitted loadings.

    Attributes
    ----------
    features : array of shape (S, C + 1)
        A constant, and scores of the stimuli's group mean images along their first C principal components.
    group : array of shape (C + 1, V)
        A_0: what the features carry, for everybody.
    deviations : dict of participant to array of shape (C + 1, V)
        B_p.
    covariances : dict of participant to array of shape (C + 1, C + 1)
        G_p: covariance of a voxel's deviations given the data, in units of the noise variance.
    """

    features: Array
    group: Array
    deviations: dict[str, Array]
    covariances: dict[str, Array]


def fit_loadings(cells: CellMeans, n_components: int, ridge: float, held_out: HeldOut | None = None) -> Loadings:
    """Fit to all cells but those held out; `ridge` is in units of what an average cell adds to X^T N X."""
    means = group_means(cells, held_out)
    scores = principal_components(list(means), n_components).scores
    features = with_constant(scores / np.sqrt(cells.n_voxels))
    group = np.linalg.pinv(features) @ means
    penalty = ridge * typical_square(cells, features, held_out)
    deviations, covariances = {}, {}
    for who, own in cells.by_participant.items():
        kept = np.ones(len(own.stimuli), dtype=bool) if held_out is None else ~held_out[who]
        x, n_frames = features[own.stimuli[kept]], own.n_frames[kept, None]
        covariances[who] = np.linalg.inv(x.T @ (n_frames * x) + penalty * np.eye(x.shape[1]))
        deviations[who] = covariances[who] @ (x.T @ (n_frames * (own.images[kept] - x @ group)))
    return Loadings(features, group, deviations, covariances)


def with_constant(scores: Array) -> Array:
    """Put a constant before the scores, of their own size, so that one penalty suits both."""
    size = float(np.sqrt((scores**2).mean())) or 1.0
    return np.column_stack([np.full(len(scores), size), scores])


def typical_square(cells: CellMeans, features: Array, held_out: HeldOut | None = None) -> float:
    """What an average cell adds to the diagonal of X^T N X.

    Not what a participant adds: with more cells, data should count for more against the same penalty.
    """
    squares = (features**2).mean(1)
    total, n_cells = 0.0, 0
    for who, own in cells.by_participant.items():
        kept = slice(None) if held_out is None else ~held_out[who]
        total += float(own.n_frames[kept] @ squares[own.stimuli[kept]])
        n_cells += len(own.stimuli[kept])
    return total / n_cells


def held_out_errors(cells: CellMeans, held_out: HeldOut, n_components: Sequence[int], ridges: Sequence[float]) -> Array:
    """Sum of squared errors of held-out cells, times their frames, for every pair of settings: [n, m]."""
    means = group_means(cells, held_out)
    scores = _all_scores(means)
    sets = [with_constant(scores[:, :count]) for count in n_components]
    smoothers = [features @ np.linalg.pinv(features) for features in sets]
    penalties = [np.array(ridges) * typical_square(cells, features, held_out) for features in sets]
    errors, of_means = np.zeros((len(sets), len(ridges))), means @ means.T
    for who, own in cells.by_participant.items():
        if held_out[who].any():
            products = _Products(own.images @ own.images.T, own.images @ means.T, of_means)
            for i, settings in enumerate(zip(sets, smoothers, penalties, strict=True)):
                errors[i] += _participant_errors(own, held_out[who], products, *settings)
    return errors


@dataclass(frozen=True, eq=False)
class _Products:
    """Inner products of a participant's n cells and the S mean images."""

    own: Array
    own_means: Array
    means: Array

    def squares(self, own: Array, means: Array) -> Array:
        """Squared lengths of sums of images with coefficients [..., n] for the cells and [..., S] for the means."""
        return (
            ((own @ self.own) * own).sum(-1)
            + 2 * ((own @ self.own_means) * means).sum(-1)
            + ((means @ self.means) * means).sum(-1)
        )


def _participant_errors(
    own: ParticipantCells,
    held_out: Booleans,
    products: _Products,
    features: Array,
    smoother: Array,
    penalties: Array,
) -> Array:
    """Errors of one participant's held-out cells, for every penalty."""
    train, test = own.stimuli[~held_out], own.stimuli[held_out]
    weighted = features[train].T * own.n_frames[~held_out]
    values, vectors = np.linalg.eigh(weighted @ features[train])
    left, right = features[test] @ vectors, vectors.T @ weighted
    # What each held-out cell's prediction takes from the participant's other cells, [penalties, test, train].
    taken = (left / (values + penalties[:, None])[:, None]) @ right
    of_own = np.zeros((len(penalties), len(test), len(own.stimuli)))
    of_own[..., held_out] = np.eye(len(test))
    of_own[..., ~held_out] = -taken
    of_means = taken @ smoother[train] - smoother[test]
    return products.squares(of_own, of_means) @ own.n_frames[held_out]


def _all_scores(means: Array) -> Array:
    """Scores along all principal components, [S, S], in units of a voxel."""
    centred = means - means.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T / means.shape[1])
    return np.asarray(vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0)))


def noise_variance(cells: CellMeans, folds: Sequence[HeldOut], n_components: int, ridge: float) -> float:
    """Variance of the noise under which cells that were held out are as likely as can be.

    A held-out cell of n frames lies around its prediction with n^-1 + h^T G h times this variance, h being the features
    of its stimulus, and its frames lie around the cell with the variance itself.
    """
    total, n_frames = 0.0, 0.0
    for held_out in folds:
        fitted = fit_loadings(cells, n_components, ridge, held_out)
        for who, own in cells.by_participant.items():
            out, h = held_out[who], fitted.features[own.stimuli[held_out[who]]]
            residuals = own.images[out] - h @ (fitted.group + fitted.deviations[who])
            spread = 1 / own.n_frames[out] + ((h @ fitted.covariances[who]) * h).sum(1)
            total += float(own.scatter[out].sum() + ((residuals**2).sum(1) / spread).sum())
            n_frames += float(own.n_frames[out].sum())
    return total / (n_frames * cells.n_voxels)
