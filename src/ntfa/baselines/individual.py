"""Individual loadings: everybody's own maps of what stimuli have in common, by ridge regression.

    Y_nt ~ N(T_s (A_0 + B_p), sigma^2)        B_p ~ N(0, sigma^2 / penalty)

T_s are a constant and the first principal components of the stimuli's group mean images, A_0 their maps in the group,
and B_p what a participant adds to these. Nothing is iterated. What a participant does differently is thus learned from
some stimuli and predicted for others, which no mean image can do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
from scipy.spatial.distance import pdist, squareform

from ntfa.baselines.base import Array
from ntfa.baselines.cell_means import (
    Booleans,
    CellMeans,
    ParticipantCells,
    cell_means,
    inner_folds,
    require_shared,
)
from ntfa.baselines.loadings_fitting import Choice, Loadings, fit_loadings, held_out_errors, noise_variance
from ntfa.baselines.predicting import ImageBaseline
from ntfa.baselines.principal import component_names, explained_table, principal_components, score_table
from ntfa.contract import with_shared_voxels
from ntfa.errors import ModelError, StudyError
from ntfa.study import Study

COMPONENTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
RIDGES = tuple(2.0**power for power in range(-2, 11))
CONSTANTS = (1.0, 2.0, 4.0, 8.0)
MOST_FOLDS = 10
# Errors that differ by less than this share are alike.
ALIKE = 1e-3


@dataclass(eq=False)
class IndividualLoadings(ImageBaseline):
    """Regression of each participant's images on scores of the stimuli, around a regression for the group.

    Stimuli have scores: a constant and the first principal components of their mean images over participants. Maps that
    go with the scores are found for the group by least squares, and for each participant as deviations from these by
    ridge regression. The image of a participant and a stimulus, seen together or not, is the stimulus' scores times the
    participant's maps. Numbers of components and ridge are chosen on cells that are held out inside the data of the
    fit.

    Parameters
    ----------
    n_components : int, optional
        Components of the stimuli, beside the constant; chosen if not given.
    ridge : float, optional
        How strongly maps are drawn to the group's: as by so many cells of average size; chosen if not given.
    constant : float, optional
        How freely participants differ in what all stimuli have in common: the constant's size, in units of the scores'
        root mean square; chosen if not given.

    Attributes
    ----------
    n_components_, ridge_, constant_ : int, float, float
        Those that were used.
    choices_ : DataFrame
        `n_components`, `constant`, `ridge`, and `error`, the mean squared error of held-out cells over that of
        predicting zero.
    stimuli_ : DataFrame
        Scores `z1, z2, ...` of the stimuli, in units of the data.
    participants_ : DataFrame
        As many principal components of the participants' deviations.
    participant_distances_ : DataFrame
        Root mean square difference between two participants' predicted images, over all stimuli and voxels.
    explained_ : DataFrame
        Share of the variance along each component, in columns `participant` and `stimulus`.
    group_loadings_ : array of shape (C + 1, V)
        The group's maps: one for the constant, and one for each of C components.
    loadings_ : dict of participant to array of shape (C + 1, V)
        The participants' maps.
    noise_ : float
        Standard deviation of a voxel around the prediction, once the loadings are known.
    n_parameters_ : int
        Numbers in the scores and maps, and two for noise and ridge.
    left_out_ : list of str
        Stimuli that were not used: none.
    """

    n_components: int | None = None
    ridge: float | None = None
    constant: float | None = None

    def fit(self, study: Study, y: None = None) -> Self:
        """Choose the settings that are not given, and fit to all trials of the study."""
        self._check_settings()
        self._require_study(study)
        study = with_shared_voxels(study, type(self).__name__)
        cells = cell_means(study)
        require_shared(cells, "individual loadings")
        folds = inner_folds(cells, MOST_FOLDS)
        if not folds:
            raise StudyError(
                "individual loadings hold out cells to choose their settings by, and no stimulus was seen by two "
                "participants of whom one saw another stimulus too"
            )
        choices = self._choices(cells, folds)
        choice = _simplest_of_the_best(choices)
        fitted, variance = fit_loadings(cells, choice), noise_variance(cells, folds, choice)
        self.choices_, self.n_components_, self.ridge_ = choices, choice.n_components, choice.ridge
        self.constant_, self.noise_ = choice.constant, math.sqrt(variance)
        self._set_results(fitted, cells)
        self._keep_labels(study, cells)
        return self

    def _choices(self, cells: CellMeans, folds: Sequence[dict[str, Booleans]]) -> pd.DataFrame:
        """Error of held-out cells under all settings that are left open."""
        most = max(len(cells.stimuli) - 1, 1)
        counts = [n for n in COMPONENTS if n <= most] if self.n_components is None else [int(self.n_components)]
        ridges = list(RIDGES) if self.ridge is None else [float(self.ridge)]
        constants = list(CONSTANTS) if self.constant is None else [float(self.constant)]
        errors = np.sum([held_out_errors(cells, fold, counts, ridges, constants) for fold in folds], axis=0)
        squares = [(person.n_frames * (person.images**2).sum(1), who) for who, person in cells.by_participant.items()]
        zero = sum(float(square[fold[who]].sum()) for fold in folds for square, who in squares)
        grid = pd.MultiIndex.from_product([counts, constants, ridges], names=["n_components", "constant", "ridge"])
        return pd.DataFrame({"error": errors.ravel() / (zero or 1.0)}, index=grid).reset_index()

    def _set_results(self, fitted: Loadings, cells: CellMeans) -> None:
        labels, count = list(cells.by_participant), self.n_components_
        # Deviations as they show in images: the root of the scores' mean square takes maps to the size of their effect.
        size = np.linalg.cholesky(_mean_square(fitted.features)).T
        effects = [size @ fitted.deviations[who] for who in labels]
        participants = principal_components(effects, count)
        stimuli = principal_components(list(fitted.features[:, 1:] @ fitted.group[1:]), count)
        self._fitted = fitted
        self.group_loadings_ = fitted.group
        self.loadings_ = {who: fitted.group + fitted.deviations[who] for who in labels}
        self.participants_ = score_table(participants.scores / np.sqrt(cells.n_voxels), labels, "participant")
        self.stimuli_ = score_table(fitted.features[:, 1:], cells.stimuli, "stimulus")
        self.explained_ = explained_table(participant=participants, stimulus=stimuli)
        distances = squareform(pdist(np.stack([effect.ravel() for effect in effects])) / np.sqrt(cells.n_voxels))
        index = pd.Index(labels, name="participant")
        self.participant_distances_ = pd.DataFrame(distances, index=index, columns=index)
        n_maps = (len(labels) + 1) * (count + 1)
        self.n_parameters_, self.left_out_ = n_maps * cells.n_voxels + len(cells.stimuli) * count + 2, list[str]()
        self._projections = {who: np.linalg.pinv(maps[1:]) for who, maps in self.loadings_.items()}

    def _check_settings(self) -> None:
        if self.n_components is not None:
            super()._check_settings()
        for name, value in (("ridge", self.ridge), ("constant", self.constant)):
            if value is not None and (isinstance(value, bool | str) or not 0 < value < math.inf):
                raise ModelError(f"{name}={value!r}: must be None or a number greater than 0")

    def _image(self, participant: str, stimulus: str) -> Array:
        return self._fitted.features[self.stimuli_known_.index(stimulus)] @ self.loadings_[participant]

    def _log_predictive(self, participant: str, cells: ParticipantCells, stimuli: list[str]) -> float:
        """Frames around uncertain loadings: all cells of a participant are normal together, voxel by voxel."""
        if not self.noise_ > 0:
            raise ModelError("the cells that were fitted are predicted exactly: there is no noise to score others by")
        h = self._fitted.features[[self.stimuli_known_.index(stimulus) for stimulus in stimuli]]
        residuals = cells.images - h @ self.loadings_[participant]
        root = np.sqrt(cells.n_frames)[:, None]
        spread = np.eye(len(h)) + (root * h) @ self._fitted.covariances[participant] @ (root * h).T
        misfit = cells.scatter.sum() + ((root * residuals) * np.linalg.solve(spread, root * residuals)).sum()
        n_values, n_voxels = cells.n_frames.sum() * residuals.shape[1], residuals.shape[1]
        log_det = n_voxels * np.linalg.slogdet(spread)[1] + n_values * math.log(2 * math.pi * self.noise_**2)
        return -0.5 * float(log_det + misfit / self.noise_**2)

    @property
    def _columns(self) -> pd.Index:
        return pd.Index(component_names(self.n_components_))

    def _project(self, participant: str, frames: Array) -> Array:
        """Scores by which the participant's maps come nearest to a frame, given their constant."""
        constant = self._fitted.features[0, 0] * self.loadings_[participant][0]
        return (frames - constant) @ self._projections[participant]

    @property
    def _projected(self) -> Collection[str]:
        return self.loadings_


def _simplest_of_the_best(choices: pd.DataFrame) -> Choice:
    """Fewest components, then the largest ridge, then the smallest constant among settings about as good as the best.

    With as many components as stimuli have, what others show says nothing of a stimulus that was held out, nor do such
    cells of the ridge: the error is flat, and its least value an accident.
    """
    good = choices[choices["error"] <= choices["error"].min() * (1 + ALIKE)]
    order = good.sort_values(["n_components", "ridge", "constant"], ascending=[True, False, True])
    simplest = order.iloc[0]
    return Choice(int(simplest["n_components"]), float(simplest["ridge"]), float(simplest["constant"]))


def _mean_square(features: Array) -> Array:
    """Mean of h h^T over stimuli, with as much added as keeps it from being singular."""
    square = features.T @ features / len(features)
    return square + 1e-12 * np.trace(square) * np.eye(len(square))
