"""Maps of detail: the posterior means of a mixed model, voxel by voxel, against dense algebra and simulated truth."""

from __future__ import annotations

import numpy as np
import torch
from helpers import make_frames, radial_basis
from torch import Tensor

from ntfa.inference.detail import Detail, find_detail
from ntfa.inference.frames import Frames
from ntfa.inference.loadings import IndividualWeights, LoadingsPosterior, loadings_posterior

N_PARTICIPANTS, N_STIMULI, R, K, V = 5, 8, 3, 2, 300


def simulated(own_sd: float, group_sd: float, seed: int = 0) -> tuple[Frames, dict[str, Tensor]]:
    """Frames that are maps of the group's and of people's own, on features of the stimuli, and noise of unit sd."""
    rng = np.random.default_rng(seed)
    frames = make_frames([[2] * N_STIMULI] * N_PARTICIPANTS, n_voxels=V, seed=seed)
    features = torch.from_numpy(np.c_[np.ones(N_STIMULI), rng.normal(size=(N_STIMULI, R - 1))])
    group = group_sd * torch.from_numpy(rng.normal(size=(R, V)))
    own = own_sd * torch.from_numpy(rng.normal(size=(N_PARTICIPANTS, R, V)))
    start = 0
    for b, block in enumerate(frames.blocks):
        stimulus = frames.cells.stimulus[frames.cells.of_frame[start : start + block.n_frames]]
        block.array[block.rows] += features[stimulus] @ (group + own[b])
        start += block.n_frames
    frames = Frames.arrange(frames.blocks, frames.cells, frames.coordinates, frames.units)
    return frames, {"features": features, "group": group, "own": own}


def estimated(frames: Frames, features: Tensor) -> tuple[Detail, LoadingsPosterior, Tensor]:
    """Detail given factors that explain next to nothing, and all else it was found from."""
    centers, log_widths = torch.zeros(1, K, 3, dtype=torch.float64), torch.zeros(1, K, dtype=torch.float64)
    centers[0, 1] = 1.0
    small = torch.full((K,), 1e-3, dtype=torch.float64)
    mean = torch.zeros(len(frames.cells.stimulus), K, dtype=torch.float64)
    prior = IndividualWeights(mean, features[frames.cells.stimulus], small, small, torch.eye(K, dtype=torch.float64))
    noise_sd = torch.tensor(1.5, dtype=torch.float64)
    posterior = loadings_posterior(frames.project(centers, log_widths), prior, noise_sd)
    detail = find_detail(frames, posterior, (centers[0], log_widths[0]), noise_sd, N_PARTICIPANTS)
    return detail, posterior, radial_basis(frames.coordinates, centers[0], log_widths[0])


def test_maps_are_the_posterior_means_of_the_mixed_model() -> None:
    frames, truth = simulated(own_sd=0.4, group_sd=0.3)
    detail, posterior, factors = estimated(frames, truth["features"])
    group_variance, own_variance, noise = detail.variances.tolist()
    rows, designs = [], []
    start = 0
    for b, block in enumerate(frames.blocks):
        cell = frames.cells.of_frame[start : start + block.n_frames]
        own = (frames.cells.block == b).nonzero().squeeze(-1)
        images = torch.stack([block.array[block.rows][cell == c].sum(0) / 2**0.5 for c in own])
        rows.append(images - posterior.weights[b, : len(own)] @ factors)
        designs.append(2**0.5 * truth["features"][frames.cells.stimulus[own]])
        start += block.n_frames
    designed, everything = torch.cat(designs), torch.cat(rows)
    covariance = noise * torch.eye(len(designed), dtype=torch.float64) + group_variance * designed @ designed.T
    covariance += own_variance * torch.block_diag(*(design @ design.T for design in designs))
    solved = torch.linalg.solve(covariance, everything)
    torch.testing.assert_close(detail.group.double(), group_variance * designed.T @ solved, rtol=1e-4, atol=1e-5)
    assert detail.own is not None
    for own, design, part in zip(detail.own, designs, solved.split(N_STIMULI), strict=True):
        torch.testing.assert_close(own.double(), own_variance * design.T @ part, rtol=1e-4, atol=1e-5)


def test_variances_and_maps_are_near_the_truth() -> None:
    frames, truth = simulated(own_sd=0.4, group_sd=0.3)
    detail, _, _ = estimated(frames, truth["features"])
    group_variance, own_variance, noise = detail.variances.tolist()
    assert abs(noise - 1) < 0.05
    assert 0.1 < own_variance < 0.25
    assert 0.03 < group_variance < 0.2
    assert detail.own is not None
    total, expected = detail.group + detail.own, truth["group"] + truth["own"]
    assert np.corrcoef(total.flatten(), expected.flatten())[0, 1] > 0.8


def test_noise_alone_leaves_next_to_nothing() -> None:
    frames, truth = simulated(own_sd=0.0, group_sd=0.0)
    detail, _, _ = estimated(frames, truth["features"])
    assert detail.own is not None
    assert float((detail.group + detail.own).square().mean()) < 0.005
