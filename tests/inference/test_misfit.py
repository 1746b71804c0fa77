"""What features leave of responses: found again where it was put in, and none where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import make_frames
from torch import Tensor

from ntfa.inference.frames import Frames
from ntfa.inference.loadings import IndividualWeights, loadings_posterior
from ntfa.inference.misfit import find_misfit

N_PARTICIPANTS, N_STIMULI, R, K, V, N_FRAMES = 12, 14, 3, 4, 60, 4
CENTERS = torch.tensor([[[-1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, -1]]], dtype=torch.float64)
LOG_WIDTHS = torch.zeros(1, K, dtype=torch.float64)
LOADING_SD, SD, NOISE_SD = 0.8, 0.3, 0.5


def simulated(rho: float, omega: float, seed: int) -> tuple[Frames, IndividualWeights]:
    """Frames whose weights are loadings times features, and something of stimuli's and of pairs' own."""
    rng = np.random.default_rng(seed)
    lengths = [[N_FRAMES] * N_STIMULI] * N_PARTICIPANTS
    frames = make_frames(lengths, n_voxels=V, seed=seed)
    images = torch.exp(-(frames.coordinates - CENTERS[0].unsqueeze(1)).square().sum(-1))
    features = torch.from_numpy(np.c_[np.ones(N_STIMULI), rng.normal(size=(N_STIMULI, R - 1))])

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape))

    own = LOADING_SD * normal(N_PARTICIPANTS, R, K)
    of_stimuli = rho * LOADING_SD * normal(N_STIMULI, K)
    of_pairs = omega * LOADING_SD * normal(N_PARTICIPANTS, N_STIMULI, K)
    start = 0
    for b, block in enumerate(frames.blocks):
        stimulus = frames.cells.stimulus[frames.cells.of_frame[start : start + block.n_frames]]
        mean = features[stimulus] @ own[b] + of_stimuli[stimulus] + of_pairs[b, stimulus]
        block.array[block.rows] *= NOISE_SD
        block.array[block.rows] += (mean + SD * normal(len(stimulus), K)) @ images
        start += block.n_frames
    frames = Frames.arrange(frames.blocks, frames.cells, frames.coordinates, frames.units)
    size = torch.ones(K, dtype=torch.float64)
    shown = features[frames.cells.stimulus]
    prior = IndividualWeights(
        0 * shown @ torch.zeros(R, K).double(), shown, SD * size, LOADING_SD * size, torch.eye(K).double()
    )
    return frames, prior


def found(rho: float, omega: float, seed: int) -> Tensor:
    frames, prior = simulated(rho, omega, seed)
    projection, noise_sd = frames.project(CENTERS, LOG_WIDTHS), torch.tensor(NOISE_SD, dtype=torch.float64)
    rotation = loadings_posterior(projection, prior, noise_sd).rotation
    return find_misfit(projection, prior, rotation, noise_sd, N_STIMULI)


@pytest.mark.parametrize(("rho", "omega"), [(0.8, 0.0), (0.0, 0.6), (0.5, 0.5)])
def test_both_variances_are_found(rho: float, omega: float) -> None:
    mean = torch.stack([found(rho, omega, seed) for seed in range(8)]).mean(0).tolist()
    assert mean == pytest.approx([rho**2, omega**2], rel=0.3, abs=0.01)


def test_nothing_is_found_where_features_hold_all() -> None:
    assert float(torch.stack([found(0.0, 0.0, seed) for seed in range(4)]).max()) < 0.01


def test_features_as_many_as_stimuli_leave_nothing() -> None:
    frames, prior = simulated(0.5, 0.5, 0)
    every = torch.eye(N_STIMULI, dtype=torch.float64)[frames.cells.stimulus]
    projection, noise_sd = frames.project(CENTERS, LOG_WIDTHS), torch.tensor(NOISE_SD, dtype=torch.float64)
    prior = prior._replace(features=every)
    rotation = loadings_posterior(projection, prior, noise_sd).rotation
    assert find_misfit(projection, prior, rotation, noise_sd, N_STIMULI).tolist() == [0, 0]
