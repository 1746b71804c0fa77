"""Newcomers to a model with the paper's networks: embeddings and factors of their own, fitted with all else frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ntfa.estimators.arrival import Arrival
from ntfa.estimators.densities import participant_densities
from ntfa.estimators.laying_out import laid_out
from ntfa.estimators.result import Fitted
from ntfa.fitting.arrange import Labels
from ntfa.fitting.frozen import train_rows
from ntfa.fitting.sharing import Sharing
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import cell_log_likelihood
from ntfa.inference.coverage import lacked_by_all
from ntfa.inference.frames import Frames
from ntfa.inference.processes import Processes
from ntfa.models.newcomers import grown, with_participants
from ntfa.models.ntfa import NeuralFactors
from ntfa.models.spread import Uncertainty
from ntfa.study import Study
from ntfa.uncertainty.curvature import laplace
from ntfa.uncertainty.halves import Places, halve
from ntfa.uncertainty.newcomers import Pairs, calibrated

MOST_STARTS = 24
"""Participants of the fit whose places are tried as starts."""
OF_PARTICIPANTS = ("z_participant", "centers", "log_widths")


def add_to_networks(module: NeuralFactors, arrival: Arrival, fitted: Fitted) -> Tensor:
    """Fill the empty rows of a grown module; return the log density per observation of new participants' frames."""
    # Features of new stimuli are shared by all who saw them, and newcomers are independent only without them.
    frames, processes = laid_out(arrival.study, arrival.labels, fitted, divided=not arrival.stimuli)
    n_known = len(arrival.labels.participants) - len(arrival.participants)
    s_known = len(arrival.labels.stimuli) - len(arrival.stimuli)
    _fit(module, frames, n_known, s_known)
    _gather(module, frames, n_known, processes)
    own = frames.cells.owner >= n_known
    found = participant_densities(module, frames, Sharing())
    densities = processes.gather(found[own])
    if module.density is not None:
        module.density[n_known:] = densities
    if module.uncertainty.is_known:
        _estimate_uncertainty(module, arrival, fitted, n_known, s_known)
    return densities


def _fit(module: NeuralFactors, frames: Frames, n_known: int, s_known: int) -> None:
    """Fit what is new and in these frames."""
    owners = torch.unique(frames.cells.owner)
    new = owners[owners >= n_known]
    seen = torch.unique(frames.cells.stimulus)
    with torch.no_grad():
        module.z_stimulus.mean[s_known:] = 0
        _start(module, frames, n_known)
    rows = dict.fromkeys(OF_PARTICIPANTS, new) if len(new) else {}
    if bool((seen >= s_known).any()):
        rows["z_stimulus"] = seen[seen >= s_known]
    train_rows(module, frames, rows)


def _start(module: NeuralFactors, frames: Frames, n_known: int) -> None:
    """Start each newcomer where the participant of the fit lies whose factors and embedding explain them best."""
    cells, n_fitted = frames.cells, module.fitted_sizes[0]
    tried = np.unique(np.linspace(0, n_fitted - 1, min(n_fitted, MOST_STARTS)).round().astype(int)).tolist()
    found = torch.stack([_explained(module, frames, cells, candidate) for candidate in tried])
    best = torch.tensor(tried, device=cells.owner.device)[found.argmax(0)]
    for owner, start in zip(cells.owner.tolist(), best.tolist(), strict=True):
        if owner >= n_known:
            for name in OF_PARTICIPANTS:
                posterior = getattr(module, name)
                posterior.mean[owner], posterior.raw_sd[owner] = posterior.mean[start], posterior.raw_sd[start]


def _explained(module: NeuralFactors, frames: Frames, cells: Cells, candidate: int) -> Tensor:
    """Log density of each block's frames if they were a known participant's, [B]."""
    z = module.z_participant.mean
    as_candidate = replace(cells, participant=torch.full_like(cells.participant, candidate))
    weights = module.weights_given(z, module.z_stimulus.mean, as_candidate)
    one = slice(candidate, candidate + 1)
    projection = frames.project(module.centers.mean[one], module.log_widths.mean[one])
    return cells.blocks_total(cell_log_likelihood(projection, weights, module.noise_sd))


@torch.no_grad()
def _gather(module: NeuralFactors, frames: Frames, n_known: int, processes: Processes) -> None:
    """Exchange the newcomers that each process has fitted."""
    if processes.size == 1:
        return
    own = frames.cells.owner
    own = own[own >= n_known]
    for name in OF_PARTICIPANTS:
        for parameter in getattr(module, name).parameters():
            parameter[n_known:] = processes.gather(parameter[own])


# Uncertainty -----------------------------------------------------------------------------------------------------


def _estimate_uncertainty(module: NeuralFactors, arrival: Arrival, fitted: Fitted, n_known: int, s_known: int) -> None:
    """Curvature at the newcomers' places; calibrated as the reference was, and by halves of the newcomers."""
    found, kept = _curvature(module, arrival.study, arrival.labels, fitted), module.uncertainty
    n_new = len(arrival.participants)
    raised = [max(1.0, float(value)) for value in kept.summary[:, 1]]
    if n_new:
        pairs = _participant_halves(module, arrival, fitted) if _is_calibrated(fitted) else None
        kept.participants[n_known:] = _calibrated(found.participants[-n_new:], raised[0], pairs)
        for name in ("centers_sd", "log_widths_sd"):
            reference, own = getattr(kept, name)[: module.fitted_sizes[0]], getattr(found, name)[-n_new:]
            # As uncertain as those of the fit, whose sds halves have raised, and never less than the curvature says.
            getattr(kept, name)[n_known:] = own * max(1.0, float(reference.median() / own.median()))
    if arrival.stimuli:
        pairs = _stimulus_halves(module, arrival, fitted) if _is_calibrated(fitted) else None
        kept.stimuli[s_known:] = _calibrated(found.stimuli[s_known:], raised[1], pairs)


def _is_calibrated(fitted: Fitted) -> bool:
    return fitted.params.get("uncertainty") == "calibrated"


def _curvature(module: NeuralFactors, study: Study, labels: Labels, fitted: Fitted) -> Uncertainty:
    """Curvature at the places of a study's participants, in their order among the labels, and of all stimuli."""
    frames, _ = laid_out(study, labels, fitted, divided=False)
    owners = torch.unique(frames.cells.owner)
    cells = replace(
        frames.cells,
        participant=torch.searchsorted(owners, frames.cells.participant),
        owner=torch.searchsorted(owners, frames.cells.owner),
    )
    known = with_participants(module, owners)
    return laplace(known, cells, frames.coordinates, frames.weights, lacked_by_all(frames))


def _calibrated(covariances: Tensor, raised: float, halves: Pairs | None) -> Tensor:
    own = (covariances * raised).cpu().numpy()
    if halves is not None:
        own = calibrated(own, np.eye(own.shape[-1]), replace(halves, covariance=halves.covariance * raised))
    return torch.from_numpy(own).to(covariances)


def _participant_halves(module: NeuralFactors, arrival: Arrival, fitted: Fitted) -> Pairs:
    """Fit halves of new participants as if they were new participants, and compare them."""
    whole = arrival.of_newcomers
    assert whole is not None
    halves = halve(whole)
    shown = {half: whole.stimuli[int(half[:9])] for half in halves.study.stimuli}
    study = replace(
        halves.study, trials=halves.study.trials.assign(stimulus=halves.study.trials["stimulus"].map(shown))
    )
    labels = _with(arrival.labels, participants=study.participants)
    n_known = len(arrival.labels.participants)
    trial = _trial_fit(module, study, labels, fitted)
    found = _curvature(trial, study, labels, fitted)
    return _pairs(halves.participants, trial.z_participant.mean[n_known:], found.participants)


def _stimulus_halves(module: NeuralFactors, arrival: Arrival, fitted: Fitted) -> Pairs:
    """Fit halves of new stimuli as if they were new stimuli, and compare them."""
    whole = replace(arrival.study, trials=arrival.study.trials.reset_index(drop=True))
    halves, new = halve(whole), set(arrival.stimuli)
    named = {half: whole.stimuli[int(half[:9])] for half in halves.study.stimuli}
    labelled = halves.study.trials["stimulus"].map(lambda half: half if named[half] in new else named[half])
    study = replace(whole, trials=whole.trials.assign(stimulus=labelled))
    wanted = sorted(half for half in named if named[half] in new)
    labels, s_known = _with(arrival.labels, stimuli=wanted), len(arrival.labels.stimuli)
    trial = _trial_fit(module, study, labels, fitted)
    found = _curvature(trial, study, labels, fitted)
    place = {half: i for i, half in enumerate(wanted)}
    codes, order = halves.study.stimuli, {label: i for i, label in enumerate(arrival.stimuli)}
    rows = [
        (order[named[codes[one]]], place[codes[one]], place[codes[other]])
        for _, one, other in halves.stimuli.tolist()
        if named[codes[one]] in new
    ]
    where = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return _pairs(where, trial.z_stimulus.mean[s_known:], found.stimuli[s_known:])


def _with(labels: Labels, participants: Sequence[str] = (), stimuli: Sequence[str] = ()) -> Labels:
    people = [*labels.participants, *participants]
    return replace(labels, participants=people, stimuli=[*labels.stimuli, *stimuli], owners=list(people))


def _trial_fit(module: NeuralFactors, study: Study, labels: Labels, fitted: Fitted) -> NeuralFactors:
    """Fit more newcomers, who are not to stay."""
    trial = grown(module, len(labels.participants), len(labels.stimuli))
    frames, _ = laid_out(study, labels, fitted, divided=False)
    _fit(trial, frames, len(module.z_participant.mean), len(module.z_stimulus.mean))
    return trial


def _pairs(where: Places, mean: Tensor, covariances: Tensor) -> Pairs:
    whole, one, other = where.T
    z, c = mean.detach().cpu().numpy(), covariances.cpu().numpy()
    return Pairs(whole, z[one] - z[other], c[one] + c[other])
