"""How many dimensions do the stimuli's responses fill? Held-out cells inside the training data decide.

Every participant's mean image of a stimulus is predicted from the others' by individual loadings on D principal
components of the stimuli's mean images (as `ntfa.baselines.IndividualLoadings` does), with the cell itself left out.
Predictions are weighted sums of images, so all errors follow from the inner products of images: D is chosen at the cost
of one product of the cells' mean images with themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ntfa.fitting.spoiled import frame_counts
from ntfa.study import Study

DIMENSIONS = (1, 2, 3, 5, 8, 12, 16, 20)
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MOST_PARTICIPANTS = 48
MOST_FOLDS = 8
MOST_CELLS = 1000
MOST_VOXELS = 10_000
"""Voxels that inner products of images are taken over; of more, every second, third, ... will do."""
LEAST_SHARED = 0.5
"""Share of the voxels that participants must have in common, where some lack voxels."""
FEW_STIMULI = 3
NEGLIGIBLE = 0.01
"""Share of what the best number of dimensions explains that may be given up for fewer of them."""

Floats = NDArray[np.float64]
Cells = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Participant and stimulus of each cell."""


@dataclass(frozen=True)
class CellImages:
    """Cells, and the inner products of their mean images.

    participant, stimulus : [C], numbered from 0
    images : [C, V], in units of their root mean square
    products : [C, C]
    participants : labels of those that are numbered
    voxels : [V], which of the study's these are; all of these participants have them
    """

    participant: NDArray[np.int64]
    stimulus: NDArray[np.int64]
    images: NDArray[np.float32]
    products: Floats
    participants: list[str]
    voxels: NDArray[np.int64]

    @classmethod
    def of(cls, study: Study, *, robust: bool = False) -> CellImages:
        """Average the frames of every cell, of so many participants that their images fit into memory.

        robust : let spoiled frames count less
        """
        kept = some(study.participants, min(MOST_PARTICIPANTS, max(4, MOST_CELLS // len(study.stimuli))))
        kept, shared = _with_shared_voxels(study, kept)
        trials = study.trials[study.trials["participant"].isin(kept)]
        counts = frame_counts(study.select(participants=kept)) if robust else None
        step = -(-len(shared) // MOST_VOXELS)
        voxels = shared[::step]
        # Slices are read where they lie; for a list of places numpy looks each one up.
        columns = slice(None, None, step) if len(shared) == study.n_voxels else voxels
        stimuli = {label: i for i, label in enumerate(study.stimuli)}
        images, who, what = [], [], []
        for p, participant in enumerate(kept):
            for stimulus, shown in trials[trials["participant"] == participant].groupby("stimulus"):
                rows = [slice(*span) for span in shown[["start", "stop"]].to_numpy()]
                weights = None if counts is None else np.concatenate([counts[participant][own] for own in rows])
                images.append(_mean_image(study.frames[participant], rows, columns, weights))
                who.append(p)
                what.append(stimuli[str(stimulus)])
        stacked = np.stack(images)
        # In units of their own: squares of very large or small intensities have no place in float32.
        stacked /= float(np.sqrt((stacked.astype(np.float64) ** 2).mean())) or 1.0
        return cls(np.array(who), np.array(what), stacked, (stacked @ stacked.T).astype(np.float64), kept, voxels)


def _with_shared_voxels(study: Study, labels: list[str]) -> tuple[list[str], NDArray[np.int64]]:
    """As many participants, of these, as have half of the voxels in common, and their common voxels."""
    everything = np.ones(study.n_voxels, dtype=bool)
    if not study.coverage:
        return labels, np.arange(study.n_voxels)
    left = {label: study.coverage.get(label, everything) for label in labels}
    shared, kept = everything, list[str]()
    while left:
        label = max(left, key=lambda one: int((left[one] & shared).sum()))
        together = shared & left.pop(label)
        if kept and together.sum() < LEAST_SHARED * study.n_voxels:
            break
        shared = together
        kept.append(label)
    return sorted(kept), np.flatnonzero(shared)


def some(labels: list[str], most: int) -> list[str]:
    """At most so many labels, spread evenly over all."""
    places = np.unique(np.linspace(0, len(labels) - 1, min(most, len(labels))).astype(int))
    return [labels[i] for i in places]


def _mean_image(
    frames: np.ndarray, rows: list[slice], voxels: slice | NDArray[np.int64], weights: Floats | None
) -> NDArray[np.float32]:
    """Average frames of some rows at some voxels."""
    parts = [frames[own, voxels] for own in rows]
    return np.average(np.concatenate(parts).astype(np.float64), 0, weights).astype(np.float32)


@dataclass(frozen=True)
class DimensionErrors:
    """Squared errors of predicted images, over that of predicting zero.

    dims : [n], dimensions tried
    errors : [P, n], of each participant, at the ridge that is best over all of them
    """

    dims: tuple[int, ...]
    errors: Floats

    def smallest_sufficient(self) -> int:
        """Return the smallest number of dimensions within one standard error of the best, or negligibly worse."""
        mean = self.errors.mean(0)
        best = int(mean.argmin())
        apart = self.errors - self.errors[:, [best]]
        error = apart.std(0, ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else np.zeros(len(mean))
        allowed = np.maximum(error, NEGLIGIBLE * max(0.0, 1 - float(mean[best])))
        return self.dims[int(np.flatnonzero(apart.mean(0) <= allowed)[0])]


def stimulus_dimensions(study: Study, *, robust: bool = False) -> tuple[int, DimensionErrors | None]:
    """Choose how many dimensions embeddings of stimuli have; errors are None where there is nothing to choose by.

    robust : let spoiled frames count less
    """
    n_stimuli = len(study.stimuli)
    if n_stimuli < FEW_STIMULI or len(study.participants) < 3:
        return max(1, min(2, n_stimuli - 1)), None
    errors = dimension_errors(CellImages.of(study, robust=robust))
    return (min(2, n_stimuli - 1), None) if errors is None else (errors.smallest_sufficient(), errors)


def dimension_errors(cells: CellImages) -> DimensionErrors | None:
    """Predict cells that are left out, fold by fold; None if no cell can be left out."""
    n_stimuli = int(cells.stimulus.max()) + 1
    dims = tuple(d for d in DIMENSIONS if d < n_stimuli)
    n_folds = min(MOST_FOLDS, n_stimuli)
    fold = (cells.participant + cells.stimulus) % n_folds
    errors = np.zeros((len(dims), len(RIDGES), int(cells.participant.max()) + 1))
    energy = np.zeros(errors.shape[-1])
    for left_out in range(n_folds):
        test = (fold == left_out) & predictable(cells, fold != left_out)
        if not test.any():
            continue
        found = _fold_errors(cells, fold != left_out, test, dims)
        for who in np.unique(cells.participant[test]):
            own = cells.participant[test] == who
            errors[..., who] += found[..., own].sum(-1)
            energy[who] += cells.products.diagonal()[test][own].sum()
    seen = energy > 0
    if seen.sum() < 2:
        return None
    relative = errors[..., seen] / energy[seen]
    best = relative.mean(-1).argmin(1)
    return DimensionErrors(dims, np.stack([relative[i, ridge] for i, ridge in enumerate(best)], 1))


def predictable(cells: CellImages, train: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Cells whose stimulus others have been shown, and whose participant was shown something else, in training."""
    by_stimulus = np.bincount(cells.stimulus[train], minlength=int(cells.stimulus.max()) + 1)
    by_participant = np.bincount(cells.participant[train], minlength=int(cells.participant.max()) + 1)
    return (by_stimulus[cells.stimulus] >= 2) & (by_participant[cells.participant] >= 2)


def _fold_errors(cells: CellImages, train: NDArray[np.bool_], test: NDArray[np.bool_], dims: tuple[int, ...]) -> Floats:
    """Squared errors [dims, ridges, test cells] of predictions from the training cells."""
    products = cells.products[np.ix_(train, train)]
    across, energy = cells.products[np.ix_(test, train)], cells.products.diagonal()[test]
    errors = np.empty((len(dims), len(RIDGES), int(test.sum())))
    for i, j, weights in _predictions(cells, train, test, dims):
        errors[i, j] = energy - 2 * (weights * across).sum(1) + ((weights @ products) * weights).sum(1)
    return errors


def predicted_images(cells: CellImages, train: NDArray[np.bool_], test: NDArray[np.bool_]) -> Floats:
    """Predict images of test cells from the training cells, with the dimensions and the ridge that do so best."""
    dims = tuple(d for d in DIMENSIONS if d <= int(cells.stimulus.max()))
    errors = _fold_errors(cells, train, test, dims).sum(-1)
    best = np.unravel_index(errors.argmin(), errors.shape)
    weights = next(weights for i, j, weights in _predictions(cells, train, test, dims) if (i, j) == best)
    return weights @ cells.images[train].astype(np.float64)


def _predictions(
    cells: CellImages, train: NDArray[np.bool_], test: NDArray[np.bool_], dims: tuple[int, ...]
) -> Iterator[tuple[int, int, Floats]]:
    """Weights [test cells, training cells] of predictions, for every number of dimensions and every ridge."""
    who, what = cells.participant[train], cells.stimulus[train]
    n_stimuli = int(cells.stimulus.max()) + 1
    counts = np.bincount(what, minlength=n_stimuli)
    averaging = (what == np.arange(n_stimuli)[:, None]) / np.maximum(counts, 1)[:, None]
    shown = counts > 0
    centred = averaging[shown] - averaging[shown].mean(0)
    values, vectors = np.linalg.eigh(centred @ cells.products[np.ix_(train, train)] @ centred.T)
    scores = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0))
    for i, n_dim in enumerate(dims):
        features = np.zeros((n_stimuli, n_dim + 1))
        features[shown, 1:] = scores[:, :n_dim]
        features[:, 0] = np.sqrt((scores[:, :n_dim] ** 2).mean()) or 1.0
        group = np.linalg.pinv(features[shown]) @ averaging[shown]
        for j, ridge in enumerate(RIDGES):
            yield (
                i,
                j,
                _prediction_weights(
                    features, group, ridge, (who, what), (cells.participant[test], cells.stimulus[test])
                ),
            )


def _prediction_weights(features: Floats, group: Floats, ridge: float, cells: Cells, wanted: Cells) -> Floats:
    """Weights on training images of the predicted images of wanted cells, [n, C].

    A cell's image is predicted by h_s^T (A + B_p), with A = `group` and B_p = (D^T D + ridge)^-1 D^T (Y_p - D A), of
    which D are the features of the participant's own training cells and Y_p their images.
    """
    who, what = cells
    weights = features[wanted[1]] @ group
    for participant in np.unique(wanted[0]):
        own, asked = np.flatnonzero(who == participant), np.flatnonzero(wanted[0] == participant)
        design = features[what[own]]
        squared = design.T @ design
        squared += ridge * np.trace(squared) / len(squared) * np.eye(len(squared))
        on_own = np.linalg.solve(squared, features[wanted[1][asked]].T).T @ design.T
        weights[asked] -= (on_own @ design) @ group
        weights[np.ix_(asked, own)] += on_own
    return weights
