"""Columns that blocks lack, against the multivariate normal of the columns that they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import blobs, frames_of_cells, make_frames, radial_basis
from scipy.stats import multivariate_normal
from test_collapsed import random_factors, random_prior, weight_moments
from test_detail import estimated, simulated
from test_loadings import NAMES, K, dense, value, variables
from test_regression import random
from torch import Tensor

from ntfa.fitting.pooling import pool
from ntfa.inference import coverage
from ntfa.inference.bounds import CollapsedLikelihood, Draw, sampled_log_likelihood
from ntfa.inference.collapsed import cell_log_likelihood
from ntfa.inference.frames import Frames, Units
from ntfa.inference.loadings import IndividualWeights, block_log_likelihoods, loadings_covariance, loadings_posterior
from ntfa.inference.normal import Normal, RandomSource
from ntfa.inference.projection import FrameBlock
from ntfa.inference.regression import TurnedDesign, design_log_likelihood
from ntfa.inference.start import find_start

DESIGN = [[3, 1], [2, 3, 4], [1, 2], [2]]
LACKED = [[1, 2, 7], [], [0, 1, 2, 3, 4, 9, 10], [1, 2, 7]]
N_VOXELS = 12


def lacking(frames: Frames, lacked: Sequence[Sequence[int]], scales: Tensor | None = None) -> Frames:
    """Take columns from the blocks of some frames."""
    patterns = [list(own) for own in dict.fromkeys(map(tuple, lacked))]
    arrays = [block.array.clone() for block in frames.blocks]
    for array, own in zip(arrays, lacked, strict=True):
        array[:, list(own)] = 0
    if scales is not None:
        arrays = [(array.double() * scales).to(array.dtype) for array in arrays]
    pattern = torch.tensor([patterns.index(list(own)) for own in lacked])
    columns = [torch.tensor(own, dtype=torch.long) for own in patterns]
    blocks = [FrameBlock(array, block.runs) for array, block in zip(arrays, frames.blocks, strict=True)]
    places = frames.units.millimetres(frames.coordinates)
    return Frames.arrange(blocks, frames.cells, places, frames.units, scales, (pattern, columns))


def seen_columns(block: int) -> list[int]:
    return [v for v in range(N_VOXELS) if v not in LACKED[block]]


@pytest.fixture(params=["same noise", "noise of voxels"])
def frames(request: pytest.FixtureRequest) -> Frames:
    scales = None
    if request.param == "noise of voxels":
        logarithms = torch.linspace(-0.5, 0.5, N_VOXELS, dtype=torch.float64)
        scales = logarithms[torch.randperm(N_VOXELS, generator=torch.Generator().manual_seed(0))].exp()
    units = Units((1.0, 0.0, 2.0), length=1.5, intensity=1.3)
    return lacking(make_frames(DESIGN, N_VOXELS, units=units), LACKED, scales)


def noise_of(frames: Frames, block: int, noise_sd: float) -> np.ndarray:
    scales = np.ones(N_VOXELS) if frames.scales is None else frames.scales.numpy()
    return noise_sd * scales[seen_columns(block)]


@pytest.mark.parametrize("n_sets", [1, 4], ids=["shared", "own"])
def test_weights_integrated_out_over_what_is_seen(frames: Frames, n_sets: int) -> None:
    centers, log_widths = random_factors(n_sets)
    prior, noise_sd = random_prior(8, effect=True), 0.7
    projection = frames.project(centers, log_widths)
    found = cell_log_likelihood(projection, prior, torch.tensor(noise_sd, dtype=torch.float64)) + frames.log_units
    for c, y in enumerate(frames_of_cells(frames)):
        b, n = int(frames.cells.block[c]), len(y)
        seen, intensity = seen_columns(b), frames.units.intensity
        factors = blobs(frames.coordinates, centers[b % n_sets], log_widths[b % n_sets])[:, seen]
        loadings = np.kron(np.eye(n), factors)
        mean, covariance = weight_moments(prior, c, n)
        noise = np.tile(noise_of(frames, b, noise_sd), n)
        total = (loadings.T @ covariance @ loadings + np.diag(noise**2)) * intensity**2
        expected = multivariate_normal(mean @ loadings * intensity, total).logpdf(y[:, seen].ravel())
        assert float(found[c]) == pytest.approx(expected, rel=1e-9)


def test_given_weights_over_what_is_seen(frames: Frames) -> None:
    (centers, log_widths), weights = random_factors(4), random(int(frames.cells.count.sum()), 3)
    noise_sd = torch.tensor(0.7, dtype=torch.float64)
    draw = Draw([], centers, log_widths, random_prior(8, effect=False), noise_sd)
    found = sampled_log_likelihood(frames, draw, weights) + frames.log_units
    rows = [rows for same in frames.cells.frames for rows in same]
    for c, y in enumerate(frames_of_cells(frames)):
        b, intensity = int(frames.cells.block[c]), frames.units.intensity
        seen = seen_columns(b)
        expected = weights[rows[c]].numpy() @ blobs(frames.coordinates, centers[b], log_widths[b])[:, seen] * intensity
        sds = torch.from_numpy(noise_of(frames, b, 0.7)) * intensity
        density = torch.distributions.Normal(torch.from_numpy(expected), sds).log_prob(torch.from_numpy(y[:, seen]))
        assert float(found[c]) == pytest.approx(float(density.sum()), rel=1e-9)


def test_a_design_s_loadings_over_what_is_seen() -> None:
    whole = make_frames(DESIGN, N_VOXELS)
    rows = random(8, 2)
    frames = lacking(replace(whole, cells=replace(whole.cells, design=rows)), LACKED)
    centers, log_widths = random_factors(4)
    loadings = Normal(random(2, 3, seed=4), torch.tensor([0.4, 1.2, 0.8], dtype=torch.float64))
    noise_sd = torch.tensor(0.7, dtype=torch.float64)
    projection = frames.project(centers, log_widths)
    found = float(design_log_likelihood(projection, TurnedDesign.of(frames.cells), loadings, noise_sd))
    expected, values = 0.0, frames_of_cells(frames)
    for b in range(len(DESIGN)):
        seen, mine = seen_columns(b), [c for c in range(8) if int(frames.cells.block[c]) == b]
        factors = blobs(frames.coordinates, centers[b], log_widths[b])[:, seen]
        design = np.concatenate([np.tile(rows[c].numpy(), (len(values[c]), 1)) for c in mine])
        by_loading = np.einsum("nj,kv->nvjk", design, factors).reshape(len(design) * len(seen), -1)
        spread = np.tile(loadings.sd.numpy() ** 2, 2)
        total = (by_loading * spread) @ by_loading.T + 0.7**2 * np.eye(len(by_loading))
        y = np.concatenate([values[c][:, seen] for c in mine]).ravel()
        expected += multivariate_normal(by_loading @ loadings.mean.numpy().ravel(), total).logpdf(y)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.fixture
def own_loadings() -> Frames:
    """Three participants, of whom the first and the last lack the same."""
    return lacking(make_frames([[1, 2, 3, 2], [2, 2, 1], [1, 2]], N_VOXELS, seed=3), [[0, 3, 8], [], [0, 3, 8]])


def only_seen(parts: tuple[Tensor, ...], frames: Frames, participant: int) -> tuple[Tensor, Tensor, Tensor]:
    """Frames of a participant, their mean and covariance, at the voxels that they have."""
    assert frames.unseen is not None
    mask = torch.ones(N_VOXELS, dtype=torch.bool)
    mask[frames.unseen.lacked_by(participant)] = False
    y, mean, covariance, features = parts
    seen = mask.repeat(len(features))
    return y[seen], mean[seen], covariance[seen][:, seen]


def test_individual_loadings_over_what_is_seen(own_loadings: Frames) -> None:
    given = variables(own_loadings)
    expected = [
        float(torch.distributions.MultivariateNormal(mean, covariance).log_prob(y))
        for y, mean, covariance in (only_seen(dense(own_loadings, given, p), own_loadings, p) for p in range(3))
    ]
    assert float(value(own_loadings, given)) == pytest.approx(sum(expected), rel=1e-9)
    prior = IndividualWeights(*(given[name] for name in NAMES[3:]))
    projection = own_loadings.project(given["centers"], given["log_widths"])
    found = block_log_likelihoods(projection, prior, given["noise_sd"])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_individual_loadings_are_finite_differences(own_loadings: Frames, name: str) -> None:
    given = variables(own_loadings)
    given[name].requires_grad_()
    (found,) = torch.autograd.grad(value(own_loadings, given), given[name])
    start, step = given[name].detach(), 1e-6
    indices = range(start.numel()) if name != "mixing" else [K, 2 * K, 2 * K + 1]
    for i in indices:
        move = torch.zeros(start.numel(), dtype=torch.float64)
        move[i] = step
        up, down = (
            float(value(own_loadings, given | {name: start + sign * move.reshape(start.shape)})) for sign in (1, -1)
        )
        assert float(found.reshape(-1)[i]) == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-4)


def test_posterior_of_individual_loadings_is_by_what_is_seen(own_loadings: Frames) -> None:
    given = variables(own_loadings)
    prior = IndividualWeights(*(given[name] for name in NAMES[3:]))
    projection = own_loadings.project(given["centers"], given["log_widths"])
    found = loadings_posterior(projection, prior, given["noise_sd"])
    factors = radial_basis(own_loadings.coordinates, given["centers"][0], given["log_widths"][0])
    spread, n_features = torch.diag(given["loading_sd"] ** 2), given["features"].shape[1]
    for p in range(3):
        parts = dense(own_loadings, given, p)
        y, mean, covariance = only_seen(parts, own_loadings, p)
        across = torch.kron(parts[3].T.contiguous(), spread @ given["mixing"].T @ factors)
        assert own_loadings.unseen is not None
        seen = torch.ones(N_VOXELS, dtype=torch.bool).index_fill(0, own_loadings.unseen.lacked_by(p), False)
        across = across[:, seen.repeat(len(parts[3]))]
        expected = (across @ torch.linalg.solve(covariance, y - mean)).reshape(n_features, K) @ given["mixing"].T
        torch.testing.assert_close(found.mean[p], expected)
        posterior = torch.kron(torch.eye(n_features, dtype=torch.float64), spread)
        posterior -= across @ torch.linalg.solve(covariance, across.T)
        rotated = loadings_covariance(projection.gram[p], prior, found.rotation.squared[p], given["noise_sd"])
        right = found.rotation.right[p]
        back = torch.einsum("aj,jkl,bj->akbl", right, rotated, right).reshape(posterior.shape)
        torch.testing.assert_close(back, posterior)


@pytest.mark.parametrize("chunk", [coverage.CHUNK_BYTES["cpu"], 1], ids=["at once", "piece by piece"])
def test_gradients_of_own_factors_are_finite_differences(
    frames: Frames, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "CHUNK_BYTES", {"cpu": chunk})
    monkeypatch.setattr(coverage, "SMALLEST_CHUNK", 2)
    (centers, log_widths), prior = random_factors(4), random_prior(8, effect=False)
    likelihood = CollapsedLikelihood(frames)

    def evaluate(where: Tensor) -> Tensor:
        draw = Draw([], where[..., :3], where[..., 3], prior, torch.tensor(0.7, dtype=torch.float64))
        return likelihood(draw, RandomSource(0))[0]

    where = torch.cat([centers, log_widths.unsqueeze(-1)], -1).requires_grad_()
    assert torch.autograd.gradcheck(evaluate, where, eps=1e-6, atol=1e-4)


def test_data_are_counted_where_they_are(frames: Frames) -> None:
    counts = [sum(lengths) * (N_VOXELS - len(lacked)) for lengths, lacked in zip(DESIGN, LACKED, strict=True)]
    assert frames.n_data == sum(counts)


def test_pooled_columns_keep_what_is_seen_of_them() -> None:
    grid = np.stack(np.meshgrid(*[np.arange(8.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    whole = make_frames([[3, 2], [2, 4]], len(grid), dtype=torch.float32, coordinates=grid)
    smooth = radial_basis(whole.coordinates, whole.coordinates[[100, 300]], torch.full((2,), 3.0).double()).float()
    for block in whole.blocks:
        block.array[:] = block.array[:, :2] @ smooth
    # A border through the middle of boxes.
    frames = lacking(whole, [[], np.flatnonzero(grid[:, 0] > 4.5).tolist()])
    pooled = pool(frames, 2.0)
    centers = torch.tensor([[[2.0, 3.0, 3.0], [5.0, 4.0, 4.0]]], dtype=torch.float64)
    log_widths = torch.full((1, 2), 36.0, dtype=torch.float64).log()
    fine, coarse = frames.project(centers, log_widths), pooled.project(centers, log_widths)
    torch.testing.assert_close(coarse.frames, fine.frames, rtol=0.03, atol=0.5)
    torch.testing.assert_close(coarse.gram, fine.gram, rtol=0.03, atol=0.5)
    assert pooled.n_data == frames.n_data


def test_weights_start_at_what_others_have_where_a_factor_is_unseen() -> None:
    grid = np.stack(np.meshgrid(*[np.arange(6.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    whole = make_frames([[2] * 3] * 4, len(grid), dtype=torch.float32, coordinates=grid)
    centers = torch.tensor([[1.0, 1, 1], [4.0, 4, 4]], dtype=torch.float64)
    factors = radial_basis(whole.coordinates, centers, torch.zeros(2, dtype=torch.float64)).float()
    for block in whole.blocks:
        block.array[:] = 0.01 * block.array + torch.tensor([2.0, 5.0]) @ factors
    frames = lacking(whole, [[], [], [], np.flatnonzero(grid[:, 0] > 2.5).tolist()])
    start = find_start(frames, 2, "pursuit", 0, factors=(centers, torch.zeros(2, dtype=torch.float64)))
    torch.testing.assert_close(start.cell_weights, torch.tensor([2.0, 5.0]).double().expand(12, 2), rtol=0.02, atol=0.0)
    assert start.noise_sd < 0.02


def test_pursuit_finds_a_factor_that_half_of_the_people_lack() -> None:
    grid = np.stack(np.meshgrid(*[np.arange(12.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    whole = make_frames([[2] * 4] * 6, len(grid), dtype=torch.float32, coordinates=grid)
    truth = torch.tensor([[3.0, 3, 3], [9.0, 9, 9], [9.0, 3, 4]], dtype=torch.float64)
    widths = torch.full((3,), 5.0, dtype=torch.float64).log()
    factors = radial_basis(whole.coordinates, truth, widths).float()
    rng = np.random.default_rng(0)
    for block in whole.blocks:
        block.array[:] = 0.3 * block.array + torch.from_numpy(rng.normal(size=(len(block.array), 3))).float() @ factors
    frames = lacking(whole, [np.flatnonzero(grid[:, 0] > 7.5).tolist()] * 3 + [[]] * 3)
    start = find_start(frames, 3, "pursuit", 0)
    apart = torch.cdist(truth, start.centers.double()).amin(1)
    assert float(apart.max()) < 1.5


def test_detail_is_by_who_has_a_voxel() -> None:
    whole, truth = simulated(own_sd=0.4, group_sd=0.3)
    lacked = [list(range(100)), [], list(range(100)), [], list(range(50, 120))]
    frames = lacking(whole, lacked)
    detail, posterior, factors = estimated(frames, truth["features"])
    group_variance, own_variance, noise = detail.variances.tolist()
    assert abs(noise - 1) < 0.05
    assert 0.1 < own_variance < 0.25
    assert detail.own is not None
    for voxel in (10, 70, 110, 200):
        rows, designs, who, start = [], [], [], 0
        for b, block in enumerate(frames.blocks):
            cell = frames.cells.of_frame[start : start + block.n_frames]
            start += block.n_frames
            if voxel in lacked[b]:
                assert not bool(detail.own[b, :, voxel].any())
                continue
            own = (frames.cells.block == b).nonzero().squeeze(-1)
            images = torch.stack([block.array[block.rows][cell == c, voxel].sum(0) / 2**0.5 for c in own])
            rows.append(images - posterior.weights[b, : len(own)] @ factors[:, voxel])
            designs.append(2**0.5 * truth["features"][frames.cells.stimulus[own]])
            who.append(b)
        designed = torch.cat(designs)
        covariance = noise * torch.eye(len(designed), dtype=torch.float64) + group_variance * designed @ designed.T
        covariance += own_variance * torch.block_diag(*(design @ design.T for design in designs))
        solved = torch.linalg.solve(covariance, torch.cat(rows))
        expected = group_variance * designed.T @ solved
        torch.testing.assert_close(detail.group[:, voxel].double(), expected, rtol=1e-4, atol=1e-5)
        for b, design, part in zip(who, designs, solved.split(len(rows[0])), strict=True):
            own_map = detail.own[b, :, voxel].double()
            torch.testing.assert_close(own_map, own_variance * design.T @ part, rtol=1e-4, atol=1e-5)
