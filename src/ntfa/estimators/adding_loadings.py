"""Newcomers to a model with individual loadings, in closed form but for features of new stimuli."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ntfa.estimators.arrival import Arrival
from ntfa.estimators.densities import participant_densities
from ntfa.estimators.laying_out import laid_out
from ntfa.estimators.result import Fitted
from ntfa.estimators.stimulus_detail import add_stimulus_detail
from ntfa.fitting.arrange import Labels
from ntfa.fitting.sharing import Sharing
from ntfa.inference.averages import Averages
from ntfa.inference.detail import MOST_VALUES, own_detail
from ntfa.inference.frames import Frames
from ntfa.inference.loadings import loadings_posterior
from ntfa.inference.processes import Processes
from ntfa.models.loadings import LoadingFactors
from ntfa.models.newcomers import (
    Axes,
    find_stimuli,
    grown,
    keep_loadings,
    loadings_of,
    participant_axes,
    scores_of,
    stimulus_scores,
)
from ntfa.models.spread import Embedded
from ntfa.uncertainty.calibration import f_factor
from ntfa.uncertainty.halves import Halves, Places, halve
from ntfa.uncertainty.newcomers import Floats, Pairs, calibrated, left_out_shift, stretch_between


@dataclass(frozen=True)
class NewRows:
    """Where newcomers stand in the module: participants [n] and stimuli [m]; `known` are the participants before."""

    known: Tensor
    participants: Tensor
    stimuli: Tensor

    @classmethod
    def of(cls, module: LoadingFactors, arrival: Arrival) -> NewRows:
        """Find the rows of a grown module that are new."""
        device = module.gram.device
        n_all, s_all = len(arrival.labels.participants), len(arrival.labels.stimuli)
        known = n_all - len(arrival.participants)
        return cls(
            torch.arange(known, device=device),
            torch.arange(known, n_all, device=device),
            torch.arange(s_all - len(arrival.stimuli), s_all, device=device),
        )


def add_to_loadings(module: LoadingFactors, arrival: Arrival, fitted: Fitted) -> Tensor:
    """Fill the empty rows of a grown module; return the log density per observation of new participants' frames."""
    places, axes = NewRows.of(module, arrival), participant_axes(module)
    parts, averages = [], []
    for study in (arrival.of_newcomers, arrival.of_known):
        if study is not None:
            parts.append(laid_out(study, arrival.labels, fitted))
            averages.append(_averages(module, *parts[-1], known=study is arrival.of_known))
    together = averages[0] if len(averages) == 1 else averages[0].joined(averages[1])
    of_stimuli = _place(module, together, places)
    densities = module.gram.new_zeros(0)
    if len(places.participants):
        frames, processes = parts[0]
        found = scores_of(module, loadings_of(module, together, places.participants), axes, places.participants)
        module.embeddings.participants[places.participants] = found.mean
        module.embeddings.participant_covariances[places.participants] = found.covariances
        _add_detail(module, frames, processes)
        densities = participant_densities(module, frames, Sharing(processes))
        if module.density is not None:
            module.density[places.participants] = densities
    if of_stimuli is not None:
        module.embeddings.stimuli[places.stimuli] = of_stimuli.mean
        module.embeddings.stimulus_covariances[places.stimuli] = of_stimuli.covariances
        add_stimulus_detail(module, arrival, fitted)
    if fitted.params.get("uncertainty") == "calibrated":
        _calibrate(module, arrival, fitted, places, axes)
    return densities


@torch.no_grad()
def _averages(module: LoadingFactors, frames: Frames, processes: Processes, known: bool = True) -> Averages:
    """Average the frames; and, unless they are of people or halves whom the module knows, note what these lack.

    Known people are taken to have the voxels that they had in the fit.
    """
    projection = frames.project(module.centers.mean, module.log_widths.mean)
    if not known:
        places = processes.gather(frames.cells.owner)
        module.seen_gram.remember(projection, len(module.loadings), processes, places)
    return Averages.of(projection, processes)


def _place(module: LoadingFactors, averages: Averages, places: NewRows) -> Embedded | None:
    """Find loadings of new participants and features of new stimuli; return where these lie, if there are any."""
    is_new = torch.isin(averages.stimulus, places.stimuli)
    if len(places.participants):
        seen = Averages(*(part[~is_new] for part in averages))
        keep_loadings(module, loadings_of(module, seen, places.participants), places.participants)
    if not len(places.stimuli):
        return None
    covariances = find_stimuli(module, averages, places.stimuli, places.known)
    if len(places.participants):
        keep_loadings(module, loadings_of(module, averages, places.participants), places.participants)
    return stimulus_scores(module, places.stimuli, covariances)


@torch.no_grad()
def _add_detail(module: LoadingFactors, frames: Frames, processes: Processes) -> None:
    """Add maps of what new participants' images have besides factors, unless there would be too many of them."""
    known = module.detail_own
    if module.detail_group is None or known is None:
        return
    n_before = int(module.loadings.shape[0]) - int(processes.gather(frames.cells.owner).numel())
    if len(known) < n_before or len(module.loadings) * known[0].numel() > MOST_VALUES:
        return
    factors = module.centers.mean, module.log_widths.mean
    prior = module.weights_given(module.z_stimulus.mean, frames.cells)
    explained = loadings_posterior(frames.project(*factors), prior, module.noise_sd)
    scale = (module.log_feature_scale.exp() * frames.units.intensity).unsqueeze(-1).to(known)
    group, variances = module.detail_group / scale, module.detail_variances
    maps = own_detail(frames, explained, (factors[0][0], factors[1][0]), group, variances) * scale
    module.detail_own = torch.cat([known, processes.gather(maps).to(known)])


# Calibration -----------------------------------------------------------------------------------------------------


def _calibrate(module: LoadingFactors, arrival: Arrival, fitted: Fitted, places: NewRows, axes: Axes) -> None:
    """Bring covariances of newcomers to what halves, of the fit's and of their own, and leaving out show."""
    halved = _Halved.of(module, arrival, fitted)
    found, (n_participants, n_stimuli) = module.embeddings, module.fitted_sizes
    if len(places.participants):
        designs = module.design_squared[:n_participants], module.design_right[:n_participants]
        before = module.score_covariances(axes.axes, axes.features, *designs)
        stretch = _stretch(before, found.participant_covariances[:n_participants], bool(found.summary[0, 2]))
        own = _numpy(found.participant_covariances[places.participants])
        after = calibrated(own, stretch, halved.of_participants(axes))
        shift = left_out_shift(_numpy(axes.points), _numpy(found.participants[:n_participants]))
        shift *= f_factor(n_participants, len(shift))
        is_new = np.array([label not in arrival.session_of for label in arrival.participants])
        after = after + is_new[:, None, None] * shift
        found.participant_covariances[places.participants] = torch.from_numpy(after).to(found.participants)
    if len(places.stimuli):
        variance = torch.diag_embed(module.z_stimulus.normal.sd[:n_stimuli].detach().square())
        before = found.axes.mT @ variance @ found.axes
        stretch = _stretch(before, found.stimulus_covariances[:n_stimuli], bool(found.summary[1, 2]))
        own = _numpy(found.stimulus_covariances[places.stimuli])
        after = calibrated(own, stretch, halved.of_stimuli(places))
        found.stimulus_covariances[places.stimuli] = torch.from_numpy(after).to(found.stimuli)


def _stretch(before: Tensor, after: Tensor, was_calibrated: bool) -> Floats:
    """How covariances were stretched by halves of the reference; not at all if they could not be halved."""
    return stretch_between(_numpy(before), _numpy(after)) if was_calibrated else np.eye(before.shape[-1])


def _numpy(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().double().numpy()


@dataclass(frozen=True)
class _Halved:
    """Averages of cells of halves; and which of the grown module's rows each half is a half of."""

    module: LoadingFactors
    arrival: Arrival
    halves: Halves
    averages: Averages
    participant: Tensor
    stimulus: Tensor

    @classmethod
    def of(cls, module: LoadingFactors, arrival: Arrival, fitted: Fitted) -> _Halved:
        halves, labels = halve(arrival.study), arrival.labels
        own = halves.study
        as_labels = Labels(own.participants, own.stimuli, list(own.participants))
        averages = _averages(module, *laid_out(own, as_labels, fitted))
        participant = _places(own.participants, arrival.study.participants, labels.participants)
        stimulus = _places(own.stimuli, arrival.study.stimuli, labels.stimuli)
        device = module.gram.device
        return cls(module, arrival, halves, averages, participant.to(device), stimulus.to(device))

    def of_participants(self, axes: Axes) -> Pairs:
        """Compare both halves of every new participant, placed one by one."""
        new, known = self.arrival.participants, self.arrival.study.participants
        where = _of_labels(self.halves.participants, known, new)
        averages = self.averages._replace(stimulus=self.stimulus[self.averages.stimulus])
        halves = torch.arange(len(self.participant), device=self.participant.device)
        wanted = halves[torch.isin(halves, torch.from_numpy(where[:, 1:].ravel()).to(halves))]
        if not len(where):
            return _no_pairs(axes.axes.shape[1])
        whose = self.participant[wanted]
        found = scores_of(self.module, loadings_of(self.module, averages, wanted, whose), axes, whose)
        return _pairs(where, found, {half: i for i, half in enumerate(wanted.tolist())})

    def of_stimuli(self, places: NewRows) -> Pairs:
        """Compare both halves of every new stimulus, given whoever saw them."""
        where = _of_labels(self.halves.stimuli, self.arrival.study.stimuli, self.arrival.stimuli)
        if not len(where):
            return _no_pairs(self.module.z_stimulus.mean.shape[1])
        n_known = len(self.module.z_stimulus.mean)
        wanted = np.sort(where[:, 1:].ravel())
        scratch = grown(self.module, len(self.module.loadings), n_known + len(wanted))
        place = self.stimulus.clone()
        rows = torch.arange(n_known, n_known + len(wanted), device=place.device)
        place[torch.from_numpy(wanted).to(place)] = rows
        whose = self.participant[self.averages.participant]
        averages = self.averages._replace(participant=whose, stimulus=place[self.averages.stimulus])
        counts = torch.isin(whose, places.participants) | torch.isin(averages.stimulus, rows)
        averages = Averages(*(part[counts] for part in averages))
        found = stimulus_scores(scratch, rows, find_stimuli(scratch, averages, rows, places.known))
        return _pairs(where, found, {half: i for i, half in enumerate(wanted.tolist())})


def _places(halves: list[str], labels: list[str], known: list[str]) -> Tensor:
    """Place among all known labels of what each half is a half of."""
    place = {label: i for i, label in enumerate(known)}
    return torch.tensor([place[labels[int(half[:9])]] for half in halves], dtype=torch.long)


def _of_labels(where: Places, labels: list[str], wanted: list[str]) -> Places:
    """Keep rows of those wanted, counted among these from now on."""
    place = {label: i for i, label in enumerate(wanted)}
    kept = [[place[labels[whole]], one, other] for whole, one, other in where.tolist() if labels[whole] in place]
    return np.array(kept, dtype=np.int64).reshape(-1, 3)


def _no_pairs(n_dim: int) -> Pairs:
    return Pairs(np.empty(0, dtype=np.int64), np.empty((0, n_dim)), np.empty((0, n_dim, n_dim)))


def _pairs(where: Places, found: Embedded, place: dict[int, int]) -> Pairs:
    one, other = ([place[half] for half in where[:, i].tolist()] for i in (1, 2))
    mean, covariance = _numpy(found.mean), _numpy(found.covariances)
    return Pairs(where[:, 0], mean[one] - mean[other], covariance[one] + covariance[other])
