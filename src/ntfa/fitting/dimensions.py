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
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from ntfa.fitting.spoiled import frame_counts
from ntfa.inference.upload import as_tensor
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
        # Slices are read where they lie; for a list of places each one is looked up.
        columns = slice(None, None, step) if len(shared) == study.n_voxels else torch.from_numpy(voxels)
        images, who, what = [], [], []
        for p, participant in enumerate(kept):
            frames = as_tensor(study.frames[participant])
            for stimulus, rows in _spans(trials[trials["participant"] == participant], study.stimuli):
                weights = None if counts is None else np.concatenate([counts[participant][own] for own in rows])
                images.append(_mean_image(frames, rows, columns, weights))
                who.append(p)
                what.append(stimulus)
        stacked = torch.stack(images).cpu().numpy()
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


def _spans(trials: pd.DataFrame, stimuli: list[str]) -> Iterator[tuple[int, list[slice]]]:
    """Go through a participant's stimuli in order: each one's number, and the frames of its trials."""
    number = trials["stimulus"].map({label: i for i, label in enumerate(stimuli)}).to_numpy()
    spans = trials[["start", "stop"]].to_numpy().tolist()
    for stimulus in np.unique(number):
        yield int(stimulus), [slice(*spans[i]) for i in np.flatnonzero(number == stimulus)]


def _mean_image(frames: Tensor, rows: list[slice], voxels: slice | Tensor, weights: Floats | None) -> Tensor:
    """Average frames of some rows at some voxels."""
    parts = torch.cat([frames[own, voxels] for own in rows]).double()
    if weights is None:
        return parts.mean(0).float()
    count = torch.from_numpy(weights).to(parts)
    return (count @ parts / count.sum()).float()


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
    """Squared errors [dims, ridges, test cells] of predictions from the training cells.

    |y - g A - o Y_p|^2 is made of inner products with the group's images A and with the person's own, Y_p.
    """
    fold = _Fold.of(cells, train, test)
    products = cells.products[np.ix_(train, train)]
    across, energy = cells.products[np.ix_(train, test)], cells.products.diagonal()[test]
    errors = np.empty((len(dims), len(RIDGES), int(test.sum())))
    for i, n_dim in enumerate(dims):
        features, group = fold.features(n_dim)
        on_train, on_test = group @ products, group @ across
        of_group = on_train @ group.T
        for own, asked in fold.people:
            g, o = _prediction(features, fold.what[own], fold.asked[asked])
            met = g @ on_test[:, asked] + o @ across[np.ix_(own, asked)]
            itself = (g * (g @ of_group + 2 * (o @ on_train[:, own].T))).sum(-1)
            itself += (o * (o @ products[np.ix_(own, own)])).sum(-1)
            errors[i][:, asked] = energy[asked] - 2 * met.diagonal(axis1=1, axis2=2) + itself
    return errors


def predicted_images(cells: CellImages, train: NDArray[np.bool_], test: NDArray[np.bool_]) -> Floats:
    """Predict images of test cells from the training cells, with the dimensions and the ridge that do so best."""
    dims = tuple(d for d in DIMENSIONS if d <= int(cells.stimulus.max()))
    errors = _fold_errors(cells, train, test, dims).sum(-1)
    best, ridge = np.unravel_index(errors.argmin(), errors.shape)
    fold, images = _Fold.of(cells, train, test), cells.images[train].astype(np.float64)
    features, group = fold.features(dims[best])
    predicted, of_group = np.empty((int(test.sum()), images.shape[1])), group @ images
    for own, asked in fold.people:
        g, o = _prediction(features, fold.what[own], fold.asked[asked])
        predicted[asked] = g[ridge] @ of_group + o[ridge] @ images[own]
    return predicted


@dataclass(frozen=True)
class _Fold:
    """Training cells and those that are asked for.

    what, asked : stimuli of the training cells and of the others
    people : places of each participant's training cells, and of those that are asked for
    averaging : [S, C], makes stimuli's mean images of the training cells'; rows of those never shown are zero
    scores : [S', D], principal components of the mean images of those that were shown
    """

    what: NDArray[np.int64]
    asked: NDArray[np.int64]
    people: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
    averaging: Floats
    scores: Floats

    @classmethod
    def of(cls, cells: CellImages, train: NDArray[np.bool_], test: NDArray[np.bool_]) -> _Fold:
        who, what, asking = cells.participant[train], cells.stimulus[train], cells.participant[test]
        n_stimuli = int(cells.stimulus.max()) + 1
        counts = np.bincount(what, minlength=n_stimuli)
        averaging = (what == np.arange(n_stimuli)[:, None]) / np.maximum(counts, 1)[:, None]
        shown = counts > 0
        centred = averaging[shown] - averaging[shown].mean(0)
        values, vectors = np.linalg.eigh(centred @ cells.products[np.ix_(train, train)] @ centred.T)
        scores = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0))
        people = [(np.flatnonzero(who == p), np.flatnonzero(asking == p)) for p in np.unique(asking)]
        return cls(what, cells.stimulus[test], people, averaging, scores)

    def features(self, n_dim: int) -> tuple[Floats, Floats]:
        """Features [S, D + 1] of the stimuli, and the weights of training cells in the group's images A, [D + 1, C]."""
        shown = self.averaging.any(1)
        features = np.zeros((len(self.averaging), n_dim + 1))
        # With fewer stimuli shown than there are, there are fewer components, too.
        kept = self.scores[:, :n_dim]
        features[shown, 1 : 1 + kept.shape[1]] = kept
        features[:, 0] = np.sqrt((self.scores[:, :n_dim] ** 2).mean()) or 1.0
        return features, np.linalg.pinv(features[shown]) @ self.averaging[shown]


def _prediction(features: Floats, own: NDArray[np.int64], asked: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """What predicted images of some stimuli are made of: g A + o Y_p, for every ridge [ridges, n, ...].

    A stimulus' image is h_s^T (A + B_p), with B_p = (D^T D + ridge)^-1 D^T (Y_p - D A), of which D are the features of
    the participant's own training cells and Y_p their images.
    """
    design, wanted = features[own], features[asked]
    squared = design.T @ design
    ridges = np.multiply.outer(RIDGES, np.trace(squared) / len(squared) * np.eye(len(squared)))
    solved = np.linalg.solve(squared + ridges, np.broadcast_to(wanted.T, (len(RIDGES), *wanted.T.shape)))
    o = solved.transpose(0, 2, 1) @ design.T
    return wanted - o @ design, o
