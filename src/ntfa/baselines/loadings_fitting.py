"""Regression of each participant's cells on features of the stimuli, and the choice of its two settings.

With M_p [n, V] a participant's cell means, N_p the diagonal matrix of their numbers of frames and X_p [n, C + 1] the
features of their stimuli, deviations from the group's loadings are

    B_p = G_p X_p^T N_p (M_p - X_p A_0)        G_p = (X_p^T N_p X_p + penalty)^-1

Every prediction is thus a sum of the participant's own cells and of the group's mean images, with coefficients that no
voxel has a part in. Errors on held-out cells follow from inner products of these images, which are computed once:
trying other settings costs next to nothing, however many voxels there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ntfa.baselines.base import Array
from ntfa.baselines.cell_means import Booleans, CellMeans, ParticipantCells, group_means
from ntfa.baselines.principal import principal_components

HeldOut = Mapping[str, Booleans]


@dataclass(frozen=True)
class Choice:
    """Settings of a fit.

    n_components : number of components of the stimuli
    ridge : penalty, in units of what an average cell's scores add to X^T N X
    constant : size of the constant, in units of the scores' root mean square
    """

    n_components: int
    ridge: float
    constant: float


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


def fit_loadings(cells: CellMeans, choice: Choice, held_out: HeldOut | None = None) -> Loadings:
    """Fit to all cells but those held out."""
    means = group_means(cells, held_out)
    scores = principal_components(list(means), choice.n_components).scores / np.sqrt(cells.n_voxels)
    features = with_constant(scores, choice.constant)
    group = np.linalg.pinv(features) @ means
    penalty = choice.ridge * typical_square(cells, scores, held_out)
    deviations, covariances = {}, {}
    for who, person in cells.by_participant.items():
        kept = np.ones(len(person.stimuli), dtype=bool) if held_out is None else ~held_out[who]
        x, n_frames = features[person.stimuli[kept]], person.n_frames[kept, None]
        covariances[who] = np.linalg.inv(x.T @ (n_frames * x) + penalty * np.eye(x.shape[1]))
        deviations[who] = covariances[who] @ (x.T @ (n_frames * (person.images[kept] - x @ group)))
    return Loadings(features, group, deviations, covariances)


def with_constant(scores: Array, constant: float) -> Array:
    """Put a constant before the scores, in units of their size; the larger, the less a penalty does to it."""
    size = float(np.sqrt((scores**2).mean())) or 1.0
    return np.column_stack([np.full(len(scores), constant * size), scores])


def typical_square(cells: CellMeans, scores: Array, held_out: HeldOut | None = None) -> float:
    """What an average cell adds to the diagonal of X^T N X, over components; its frames, if all scores are zero.

    Not what a participant adds: with more cells, data should count for more against the same penalty.
    """
    squares = (scores**2).mean(1) if scores.any() else np.ones(len(scores))
    total, n_cells = 0.0, 0
    for who, person in cells.by_participant.items():
        kept = slice(None) if held_out is None else ~held_out[who]
        total += float(person.n_frames[kept] @ squares[person.stimuli[kept]])
        n_cells += len(person.stimuli[kept])
    return total / n_cells


def held_out_errors(
    cells: CellMeans,
    held_out: HeldOut,
    n_components: Sequence[int],
    ridges: Sequence[float],
    constants: Sequence[float],
) -> Array:
    """Sum of squared errors of held-out cells, times their frames: [n_components, constants, ridges]."""
    means = group_means(cells, held_out)
    scores, of_means = _all_scores(means), means @ means.T
    products = {
        who: _Products(person.images @ person.images.T, person.images @ means.T, of_means)
        for who, person in cells.by_participant.items()
        if held_out[who].any()
    }
    errors = np.zeros((len(n_components), len(constants), len(ridges)))
    for i, count in enumerate(n_components):
        penalties = np.array(ridges) * typical_square(cells, scores[:, :count], held_out)
        for j, constant in enumerate(constants):
            features = with_constant(scores[:, :count], constant)
            smoother = features @ np.linalg.pinv(features)
            for who, known in products.items():
                person = cells.by_participant[who]
                errors[i, j] += _participant_errors(person, held_out[who], known, features, smoother, penalties)
    return errors


@dataclass(frozen=True, eq=False)
class _Products:
    """Inner products of a participant's n cells and the S mean images."""

    cells: Array
    cells_means: Array
    means: Array

    def squares(self, cells: Array, means: Array) -> Array:
        """Squared lengths of sums of images with coefficients [..., n] for the cells and [..., S] for the means."""
        return (
            ((cells @ self.cells) * cells).sum(-1)
            + 2 * ((cells @ self.cells_means) * means).sum(-1)
            + ((means @ self.means) * means).sum(-1)
        )


def _participant_errors(
    person: ParticipantCells,
    held_out: Booleans,
    products: _Products,
    features: Array,
    smoother: Array,
    penalties: Array,
) -> Array:
    """Errors of one participant's held-out cells, for every penalty."""
    train, test = person.stimuli[~held_out], person.stimuli[held_out]
    weighted = features[train].T * person.n_frames[~held_out]
    values, vectors = np.linalg.eigh(weighted @ features[train])
    left, right = features[test] @ vectors, vectors.T @ weighted
    # What each held-out cell's prediction takes from the participant's other cells, [penalties, test, train].
    taken = (left / (values + penalties[:, None])[:, None]) @ right
    of_cells = np.zeros((len(penalties), len(test), len(person.stimuli)))
    of_cells[..., held_out] = np.eye(len(test))
    of_cells[..., ~held_out] = -taken
    of_means = taken @ smoother[train] - smoother[test]
    return products.squares(of_cells, of_means) @ person.n_frames[held_out]


def _all_scores(means: Array) -> Array:
    """Scores along all principal components, [S, S], in units of a voxel."""
    centred = means - means.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T / means.shape[1])
    return np.asarray(vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0)))


def noise_variance(cells: CellMeans, folds: Sequence[HeldOut], choice: Choice) -> float:
    """Variance of the noise under which cells that were held out are as likely as can be.

    A held-out cell of n frames lies around its prediction with n^-1 + h^T G h times this variance, h being the features
    of its stimulus, and its frames lie around the cell with the variance itself.
    """
    total, n_frames = 0.0, 0.0
    for held_out in folds:
        fitted = fit_loadings(cells, choice, held_out)
        for who, person in cells.by_participant.items():
            out, h = held_out[who], fitted.features[person.stimuli[held_out[who]]]
            residuals = person.images[out] - h @ (fitted.group + fitted.deviations[who])
            spread = 1 / person.n_frames[out] + ((h @ fitted.covariances[who]) * h).sum(1)
            total += float(person.scatter[out].sum() + ((residuals**2).sum(1) / spread).sum())
            n_frames += float(person.n_frames[out].sum())
    return total / (n_frames * cells.n_voxels)
