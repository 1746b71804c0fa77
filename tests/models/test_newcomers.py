"""Newcomers to a model with individual loadings, against the multivariate normals that everything comes from."""

from __future__ import annotations

import pytest
import torch
from helpers import make_frames, radial_basis
from scipy.optimize import minimize
from torch import Tensor

from ntfa.inference.averages import Averages
from ntfa.inference.frames import Frames
from ntfa.inference.loadings import loadings_posterior
from ntfa.models.loadings import LoadingFactors
from ntfa.models.newcomers import find_stimuli, grown, keep_loadings, loadings_of, remembered, weights_prior

K, D, S = 2, 2, 4


@pytest.fixture
def frames() -> Frames:
    """Three participants who saw four stimuli, in cells of one to three frames."""
    return make_frames([[1, 2, 3, 2], [2, 2, 1, 3], [3, 1, 2, 2]], n_voxels=10, seed=5)


@pytest.fixture
def module(frames: Frames) -> LoadingFactors:
    """A module of any parameters, that knows what the frames say of everybody's loadings."""
    torch.manual_seed(1)
    module = LoadingFactors(3, S, K, 2, D).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))
        module.z_stimulus.mean.copy_(torch.randn(S, D))
        projection = frames.project(module.centers.mean, module.log_widths.mean)
        prior = module.weights_given(module.z_stimulus.mean, frames.cells)
        module.remember(loadings_posterior(projection, prior, module.noise_sd), projection.gram[0])
        module.report_embeddings(2, seed=0)
    return module


def averages_of(module: LoadingFactors, frames: Frames) -> Averages:
    with torch.no_grad():
        return Averages.of(frames.project(module.centers.mean, module.log_widths.mean))


def only(averages: Averages, rows: Tensor) -> Averages:
    return Averages(*(part[rows] for part in averages))


def test_loadings_by_averages_are_those_by_frames(module: LoadingFactors, frames: Frames) -> None:
    found = loadings_of(module, averages_of(module, frames), torch.arange(3))
    scale = module.log_feature_scale.exp().unsqueeze(-1)
    torch.testing.assert_close(scale * found.mean, module.loadings, rtol=1e-6, atol=1e-9)


def test_remembered_rows_say_what_the_frames_said(module: LoadingFactors) -> None:
    rows = remembered(module, torch.tensor([0, 2]))
    projection = rows._replace(owner=rows.owner // 2).as_projection(module.gram, 2)
    found = loadings_posterior(projection, weights_prior(module, rows.design), module.noise_sd)
    scale = module.log_feature_scale.exp().unsqueeze(-1)
    torch.testing.assert_close(scale * found.mean, module.loadings[[0, 2]], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.rotation.squared, module.design_squared[[0, 2]], rtol=1e-6, atol=1e-9)


def log_density(module: LoadingFactors, frames: Frames, z: Tensor, participants: list[int]) -> float:
    """Log density of all frames of some participants, each as one long vector, loadings and weights integrated out."""
    cells, total = frames.cells, 0.0
    factors = radial_basis(frames.coordinates, module.centers.mean[0], module.log_widths.mean[0])
    everything = torch.cat([block.array[block.rows] for block in frames.blocks]).double()
    mixed = module.mixing.mT @ factors
    within = mixed.T @ torch.diag(module.sd**2) @ mixed + module.noise_sd**2 * torch.eye(factors.shape[1])
    between = mixed.T @ torch.diag(module.loading_sd**2) @ mixed
    for participant in participants:
        own = cells.block[cells.of_frame] == participant
        features = module.features(z)[cells.stimulus[cells.of_frame[own]]]
        scaled = module.scaled(features)
        covariance = torch.kron(torch.eye(len(features)).double(), within) + torch.kron(scaled @ scaled.T, between)
        mean = (features @ module.group_loadings @ factors).flatten()
        y = everything[own].flatten()
        total += float(torch.distributions.MultivariateNormal(mean, covariance).log_prob(y))
    return total


@pytest.mark.parametrize("newcomer", [False, True], ids=["known people", "and a new participant"])
def test_features_of_a_new_stimulus_are_the_most_probable_given_all_frames(
    frames: Frames, module: LoadingFactors, newcomer: bool
) -> None:
    new, n_known = 3, 2 if newcomer else 3
    # What is known of the first participants was said by frames of other stimuli.
    averages = averages_of(module, frames)
    before = only(averages, averages.stimulus != new)
    known = torch.arange(n_known)
    keep_loadings(module, loadings_of(module, before, known), known)
    if newcomer:
        keep_loadings(module, loadings_of(module, before, torch.tensor([2])), torch.tensor([2]))
    with torch.no_grad():
        module.z_stimulus.mean[new] = 0
    theirs = (averages.stimulus == new) | (averages.participant >= n_known)
    covariance = find_stimuli(module, only(averages, theirs), torch.tensor([new]), known)

    def minus_log_joint(value: object) -> float:
        z = module.z_stimulus.mean.detach().clone()
        z[new] = torch.tensor(value).double()
        with torch.no_grad():
            return -log_density(module, frames, z, [0, 1, 2]) + float(z[new].square().sum()) / 2

    best = minimize(minus_log_joint, [0.0] * D, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10})
    torch.testing.assert_close(module.z_stimulus.mean[new].detach(), torch.tensor(best.x), atol=2e-4, rtol=0)
    assert bool((torch.linalg.eigvalsh(covariance) > 0).all())
    assert bool((torch.linalg.eigvalsh(covariance) <= 1).all())


def test_a_grown_module_keeps_what_it_knows_to_the_bit(module: LoadingFactors) -> None:
    larger = grown(module, 5, S + 1)
    for name, tensor in module.state_dict().items():
        own = larger.state_dict()[name]
        assert torch.equal(own if own.shape == tensor.shape else own[: len(tensor)], tensor), name
    assert larger.fitted_sizes == (3, S)
