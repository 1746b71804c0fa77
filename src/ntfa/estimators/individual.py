"""Results of individual loadings: what frames say of them after a fit, tables and maps of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from ntfa.errors import ModelError
from ntfa.estimators.result import Fitted
from ntfa.fitting.arrange import label_indices
from ntfa.fitting.task import Task
from ntfa.inference.detail import find_detail
from ntfa.inference.frames import Units
from ntfa.inference.loadings import loadings_posterior
from ntfa.inference.misfit import find_misfit
from ntfa.inference.projection import exponent_coefficients, factor_chunk, voxel_terms
from ntfa.models.loadings import LoadingFactors
from ntfa.study import Study


@torch.no_grad()
def condition_on_frames(module: LoadingFactors, task: Task, participant_dim: int | None) -> None:
    """Work out what was integrated out: everybody's loadings, detail that factors leave, and embeddings."""
    frames, processes = task.frames, task.sharing.processes
    centers, log_widths = module.centers.mean.detach(), module.log_widths.mean.detach()
    projection = frames.project(centers, log_widths)
    prior = module.weights_given(module.z_stimulus.mean.detach(), frames.cells)
    posterior = loadings_posterior(projection, prior, module.noise_sd)
    n_participants = len(module.loadings)
    detail = find_detail(frames, posterior, (centers[0], log_widths[0]), module.noise_sd, n_participants, processes)
    rotation = posterior.rotation._replace(
        squared=processes.gather(posterior.rotation.squared), right=processes.gather(posterior.rotation.right)
    )
    gram = projection.gram[0] if frames.unseen is None else frames.whole_gram(centers[0], log_widths[0])
    module.remember(posterior._replace(mean=processes.gather(posterior.mean), rotation=rotation), gram)
    module.seen_gram.remember(projection, n_participants, processes)
    module.remember_detail(detail, frames.units.intensity)
    n_stimuli = len(module.z_stimulus.mean)
    misfit = find_misfit(projection, prior, posterior.rotation, module.noise_sd, n_stimuli, processes)
    module.misfit = torch.cat([misfit, detail.likely.to(misfit).reshape(1)])
    module.report_embeddings(participant_dim, seed=0)


@torch.no_grad()
def loading_table(module: LoadingFactors, participants: Sequence[str], units: Units) -> pd.DataFrame:
    """Everybody's loadings: `participant, feature, factor, loading, loading_sd`, in the units of the data."""
    loadings = module.group_loadings + module.loadings
    _, n_features, n_factors = loadings.shape
    features = ["constant", *(f"axis{i}" for i in range(1, n_features))]
    levels = [list(participants), features, range(1, n_factors + 1)]
    table = pd.MultiIndex.from_product(levels, names=["participant", "feature", "factor"]).to_frame(index=False)
    for name, part in (("loading", loadings), ("loading_sd", module.loading_variances().sqrt())):
        table[name] = (part * units.intensity).cpu().numpy().ravel()
    return table


@torch.no_grad()
def weights_covariance_table(module: LoadingFactors, units: Units) -> pd.DataFrame:
    """Covariance of the factors' weights around their mean, [K, K], in the units of the data."""
    covariance = module.weights_covariance().cpu().numpy() * units.intensity**2
    factors = pd.RangeIndex(1, len(covariance) + 1, name="factor")
    return pd.DataFrame(covariance, index=factors, columns=factors)


@torch.no_grad()
def loading_maps(fitted: Fitted, participant: str | None) -> np.ndarray:
    """Maps of the group's or a participant's loadings, detail included, [r, V]."""
    module = fitted.module
    if not isinstance(module, LoadingFactors):
        raise ModelError("the fit has networks, not individual loadings; fit NTFA with response='loadings'")
    loadings, detail = module.group_loadings.detach(), module.detail_group
    if participant is not None:
        (place,) = label_indices("participant", [participant], fitted.labels.participants).tolist()
        loadings = loadings + module.loadings[place]
        if detail is not None and module.detail_own is not None and module.has_own_detail(place):
            detail = detail + module.detail_own[place]
    terms = voxel_terms(fitted.units.standardise(torch.from_numpy(fitted.positions).to(module.centers.mean.device)))
    coefficients = exponent_coefficients(module.centers.mean[0], module.log_widths.mean[0], terms.dtype)
    maps = (loadings * fitted.units.intensity).to(terms.dtype) @ factor_chunk(coefficients, terms)
    return (maps if detail is None else maps + detail).cpu().numpy()


def without_detail(study: Study, fitted: Fitted) -> Study:
    """Take the detail that a fit expects out of every trial's frames, so that factors and noise are left."""
    module, labels = fitted.module, fitted.labels
    assert isinstance(module, LoadingFactors)
    frames, trials = {}, study.trials.copy()
    for participant in study.participants:
        own = trials["participant"] == participant
        (who,) = label_indices("participant", [participant], labels.participants).tolist()
        parts = []
        for trial in trials[own].itertuples():
            what = labels.stimuli.index(str(trial.stimulus))
            detail = module.detail_image(who, what)
            assert detail is not None
            parts.append(study.frames[participant][trial.start : trial.stop] - detail.cpu().numpy())
        frames[participant] = np.concatenate(parts)
        stops = np.cumsum([len(part) for part in parts])
        trials.loc[own, "stop"], trials.loc[own, "start"] = stops, stops - [len(part) for part in parts]
        if participant in study.coverage:
            frames[participant][:, ~study.coverage[participant]] = 0
    return Study(study.coordinates, trials, frames, study.mask_img, coverage=study.coverage)
