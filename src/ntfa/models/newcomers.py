"""Newcomers to a fitted model with individual loadings: who was not in the fit gets a place, and nobody else moves.

Everything that participants and stimuli share is known. Of a new participant the posterior of E_p is then in closed
form, that of `ntfa.inference.loadings`, and linear in it is the place among the reference's participants. The features
of new stimuli are those that make the averages of everybody who saw them most probable, with loadings integrated out:

    max over z of  log p(averages of new stimuli, and of new participants | z, what earlier frames said)  -  |z|^2 / 2

and their covariance is the inverse of the expected information, each participant's loadings being as uncertain as they
are. Earlier frames enter by the rows that stand for them (`ntfa.inference.averages`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from ntfa.inference.averages import Averages, Rows, remembered_rows
from ntfa.inference.loadings import IndividualWeights, LoadingsPosterior, loadings_posterior, log_likelihood
from ntfa.inference.normal import unconstrained
from ntfa.models.embedding import participant_scores, principal_axes
from ntfa.models.loadings import SMALLEST_VARIANCE, LoadingFactors
from ntfa.models.ntfa import NeuralFactors
from ntfa.models.spread import Embedded

MOST_STEPS = 100
AnyModule = TypeVar("AnyModule", bound=LoadingFactors | NeuralFactors)


class Axes(NamedTuple):
    """The axes that participants are shown on.

    mean, axes : [r K] and [r K, D], such that (points - mean) @ axes are a participant's scores
    features : [S, r], of the stimuli that were in the fit
    points : [P, r K], of the participants who were
    """

    mean: Tensor
    axes: Tensor
    features: Tensor
    points: Tensor


@torch.no_grad()
def grown(known: AnyModule, n_participants: int, n_stimuli: int) -> AnyModule:
    """Return a module with room for more participants and stimuli, after those that it knows; known ones are copied."""
    participants, stimuli = known.embedded()
    sizes = (len(known.gram) if isinstance(known, LoadingFactors) else known.log_widths.mean.shape[1],)
    dims = participants.mean.shape[1], stimuli.mean.shape[1]
    with torch.random.fork_rng(devices=[]):
        module = type(known)(n_participants, n_stimuli, *sizes, *dims).double().to(known.noise_sd.device)
    tensors = known.state_dict()
    if isinstance(known, LoadingFactors) and isinstance(module, LoadingFactors):
        module.detail_group, module.detail_own = known.detail_group, known.detail_own
        module.stimulus_detail, module.misfit = known.stimulus_detail, known.misfit
        if known.seen_gram.own is not None:
            module.seen_gram.make_room(len(known.seen_gram.own), n_participants, known.gram)
    if known.density is not None:
        module.density = known.density.new_zeros(n_participants)
    for name, tensor in module.state_dict().items():
        own = tensors[name]
        (tensor if tensor.shape == own.shape else tensor[: len(own)]).copy_(own)
    module.n_fitted = known.fitted_sizes
    return cast(AnyModule, module)


@torch.no_grad()
def with_participants(module: NeuralFactors, participants: Tensor) -> NeuralFactors:
    """Return a copy of a module that knows some of the participants [n] only."""
    n_stimuli, n_dims = module.z_stimulus.mean.shape
    n_factors, n_all = module.log_widths.mean.shape[1], len(module.z_participant.mean)
    with torch.random.fork_rng(devices=[]):
        some = NeuralFactors(len(participants), n_stimuli, n_factors, module.z_participant.mean.shape[1], n_dims)
    some = some.double().to(module.noise_sd.device)
    tensors = module.state_dict()
    of_participants = (
        "z_participant.",
        "centers.",
        "log_widths.",
        "uncertainty.participants",
        "uncertainty.centers_sd",
        "uncertainty.log_widths_sd",
    )
    for name, tensor in some.state_dict().items():
        own = tensors[name]
        tensor.copy_(own[participants] if name.startswith(of_participants) and len(own) == n_all else own)
    return some


def weights_prior(module: LoadingFactors, design: Tensor) -> IndividualWeights:
    """Prior of the weights of rows with some design [N, r]."""
    mean = design @ module.group_loadings
    return IndividualWeights(mean, module.scaled(design), module.sd, module.loading_sd, module.mixing)


def as_rows(module: LoadingFactors, averages: Averages, z_stimulus: Tensor) -> Rows:
    """Give averages the designs that stimuli with these embeddings have."""
    design = module.features(z_stimulus)[averages.stimulus] * averages.n_frames.sqrt().unsqueeze(-1)
    return Rows(averages.participant, design, averages.projected)


@torch.no_grad()
def remembered(module: LoadingFactors, participants: Tensor) -> Rows:
    """Rows that stand for the frames that known participants [n] were fitted to."""
    scale = module.log_feature_scale.exp()
    prior = weights_prior(module, module.loadings.new_zeros(0, len(scale)))
    parts = []
    for place in participants.tolist():
        loadings = module.loadings[place] / scale.unsqueeze(-1)
        squared, right = module.design_squared[place], module.design_right[place]
        gram = module.grams(participants.new_tensor([place]))[0]
        scaled, apart = remembered_rows(loadings, squared, right, gram, prior, module.noise_sd)
        design = scaled / scale
        projected = apart + weights_prior(module, design).mean @ gram
        parts.append(Rows(torch.full_like(squared, place).long(), design, projected))
    return Rows(*(torch.cat(part) for part in zip(*parts, strict=True)))


@torch.no_grad()
def loadings_of(
    module: LoadingFactors, averages: Averages, participants: Tensor, whose: Tensor | None = None
) -> LoadingsPosterior:
    """Posterior of the loadings of some participants [n], in order, from averages of theirs alone.

    whose : [n], places in the module, if participants are counted in another way; who lacks which voxels is known there
    """
    own = torch.isin(averages.participant, participants)
    rows = as_rows(module, Averages(*(part[own] for part in averages)), module.z_stimulus.mean)
    place = torch.searchsorted(participants, rows.owner)
    grams = module.grams(participants if whose is None else whose)
    projection = rows._replace(owner=place).as_projection(grams, len(participants))
    return loadings_posterior(projection, weights_prior(module, rows.design), module.noise_sd)


@torch.no_grad()
def keep_loadings(module: LoadingFactors, found: LoadingsPosterior, participants: Tensor) -> None:
    """Keep the loadings of some participants [n]."""
    module.loadings[participants] = module.log_feature_scale.exp().unsqueeze(-1) * found.mean
    module.design_squared[participants] = found.rotation.squared
    module.design_right[participants] = found.rotation.right


def find_stimuli(module: LoadingFactors, averages: Averages, stimuli: Tensor, known: Tensor) -> Tensor:
    """Find features of stimuli [m] whose rows are still empty, keep them, and return their covariances [m, D, D].

    averages : of everybody who saw these stimuli, and of new participants whatever they saw
    stimuli : places in the module, in order
    known : participants who were in the fit, whose earlier frames count too
    """
    start, _ = _given_loadings(module, averages, stimuli)
    involved = torch.unique(averages.participant)
    before = [remembered(module, own)] if len(own := involved[torch.isin(involved, known)]) else []

    def log_joint(z: Tensor) -> Tensor:
        everything = module.z_stimulus.mean.detach().index_copy(0, stimuli, z)
        rows = Rows(*map(torch.cat, zip(as_rows(module, averages, everything), *before, strict=True)))
        owner = torch.searchsorted(involved, rows.owner)
        projection = rows._replace(owner=owner).as_projection(module.grams(involved), len(involved))
        return log_likelihood(projection, weights_prior(module, rows.design), module.noise_sd) - z.square().sum() / 2

    best = _maximise(log_joint, start)
    with torch.no_grad():
        module.z_stimulus.mean[stimuli] = best
        _, precision = _given_loadings(module, averages, stimuli)
        own_sd = precision.diagonal(dim1=-2, dim2=-1).rsqrt()
        module.z_stimulus.raw_sd[stimuli] = unconstrained(own_sd)
    return torch.linalg.inv(precision)


def _maximise(value: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Climb from a start to the nearest maximum."""
    z = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([z], max_iter=MOST_STEPS, line_search_fn="strong_wolfe", tolerance_change=1e-9)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -value(z)
        z.grad = torch.autograd.grad(loss, z)[0].contiguous()
        return loss.detach()

    optimiser.step(closure)
    return z.detach()


@torch.no_grad()
def _given_loadings(module: LoadingFactors, averages: Averages, stimuli: Tensor) -> tuple[Tensor, Tensor]:
    """Posterior means [m, D] and precisions [m, D, D] of features, loadings being as they are known, errors and all."""
    n_dim, noise = module.z_stimulus.mean.shape[1], module.noise_sd.square()
    precision = torch.eye(n_dim).to(module.gram).repeat(len(stimuli), 1, 1)
    linear = precision.new_zeros(len(stimuli), n_dim)
    one = torch.eye(len(module.gram)).to(module.gram)
    for i, stimulus in enumerate(stimuli.tolist()):
        for c in torch.nonzero(averages.stimulus == stimulus).flatten().tolist():
            participant, count = averages.participant[c], averages.n_frames[c]
            gram = module.grams(participant[None])[0]
            features = module.features(module.z_stimulus.mean[stimulus])
            spread = (
                torch.diag(module.sd.square()) + count * module.loading_spread(participant[None], features[None])[0]
            )
            covariance = module.mixing @ spread @ module.mixing.mT
            loadings = (module.group_loadings + module.loadings[participant]) * count.sqrt()
            residual = averages.projected[c] - loadings[0] @ gram
            solved = (
                torch.linalg.solve(one + gram @ covariance / noise, torch.cat([gram, residual[:, None]], 1)) / noise
            )
            precision[i] += loadings[1:] @ solved[:, :-1] @ loadings[1:].mT
            linear[i] += loadings[1:] @ solved[:, -1]
    return torch.linalg.solve(precision, linear), precision


@torch.no_grad()
def participant_axes(module: LoadingFactors) -> Axes:
    """Find again the axes that participants of the fit are shown on."""
    n_participants, n_stimuli = module.fitted_sizes
    features = module.features(module.z_stimulus.mean[:n_stimuli])
    points = participant_scores(module.loadings[:n_participants], features, module.gram)
    one, shown = torch.eye(points.shape[1]).to(points), module.embeddings.participants[:n_participants]
    found = principal_axes(points, one, shown.shape[1])
    # Rounding may decide a sign, on another machine another one.
    sign = torch.where((found.scores * shown).sum(0) < 0, -1.0, 1.0).to(points)
    return Axes(points.mean(0), found.axes * sign, features, points)


@torch.no_grad()
def scores_of(module: LoadingFactors, found: LoadingsPosterior, axes: Axes, participants: Tensor) -> Embedded:
    """Places of participants [n] with some loadings among those of the fit, with what is uncertain about them."""
    loadings = module.log_feature_scale.exp().unsqueeze(-1) * found.mean
    mean = (participant_scores(loadings, axes.features, module.gram) - axes.mean) @ axes.axes
    design = found.rotation.squared, found.rotation.right
    spread = module.score_covariances(axes.axes, axes.features, *design, participants)
    return Embedded(mean, _regular(spread))


@torch.no_grad()
def stimulus_scores(module: LoadingFactors, stimuli: Tensor, covariances: Tensor) -> Embedded:
    """Places of stimuli [m], whose features have covariances [m, D, D], among those of the fit."""
    axes, centre = module.embeddings.axes, module.z_stimulus.mean[: module.fitted_sizes[1]].mean(0)
    return Embedded((module.z_stimulus.mean[stimuli] - centre) @ axes, _regular(axes.mT @ covariances @ axes))


def _regular(covariances: Tensor) -> Tensor:
    return covariances + SMALLEST_VARIANCE * torch.eye(covariances.shape[-1]).to(covariances)
