from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import RAW, make_frames

from ntfa import HTFA, Study
from ntfa.fitting import pooling
from ntfa.fitting.pooling import Boxes, pool
from ntfa.fitting.schedules import CoarseToFine, OneCycle
from ntfa.fitting.training import Trainer
from ntfa.inference.collapsed import WeightPrior, log_likelihood
from ntfa.inference.factors import radial_basis
from ntfa.inference.frames import Frames
from ntfa.inference.start import find_start
from ntfa.inference.streaming import loaded

GRID = np.stack(np.meshgrid(*[np.arange(8.0)] * 3, indexing="ij"), -1).reshape(-1, 3)


def test_boxes_hold_every_voxel_once_and_sum_over_their_own():
    rng = np.random.default_rng(0)
    keep = np.sort(rng.permutation(len(GRID))[:300])
    coordinates = torch.from_numpy(GRID[keep])
    boxes = Boxes.around(coordinates, 2.0)
    members = boxes.members.flatten()
    assert sorted(members[members < 300].tolist()) == list(range(300))
    values = torch.from_numpy(rng.normal(size=(4, 300)))
    place = (GRID[keep] // 2).astype(int) @ [16, 4, 1]
    expected = np.stack([values[:, place == box].sum(1) for box in np.unique(place)], 1)
    np.testing.assert_allclose(boxes.total(values).numpy(), expected, atol=1e-12)


def test_pooled_frames_stand_for_as_many_voxels_and_as_much_energy():
    frames = make_frames([[3, 2], [4]], len(GRID), coordinates=GRID)
    pooled = pool(frames, 2.0)
    assert len(pooled.coordinates) == 64
    assert (pooled.n_voxels, pooled.n_data) == (frames.n_voxels, frames.n_data)
    torch.testing.assert_close(pooled.cell_energy, frames.cell_energy)
    for block, coarse in zip(frames.blocks, pooled.blocks, strict=True):
        assert coarse.array.shape == (block.n_frames, 64)
        totals = coarse.array.sum(1) * 8
        torch.testing.assert_close(totals, block.array[block.rows].sum(1))


def test_pooling_a_few_frames_at_a_time_changes_nothing(monkeypatch):
    frames = make_frames([[3, 2], [4]], len(GRID), coordinates=GRID)
    at_once = pool(frames, 2.0)
    monkeypatch.setitem(pooling.PIECE_BYTES, "cpu", 2 * len(GRID) * 8)
    for whole, pieces in zip(at_once.blocks, pool(frames, 2.0).blocks, strict=True):
        assert torch.equal(whole.array, pieces.array)


@pytest.mark.parametrize("width", [8.0, 30.0])
@pytest.mark.parametrize("lacked", [None, slice(0, 64)])
def test_pooled_frames_are_projected_onto_averages_of_factors_over_boxes(width, lacked):
    """Ten times nearer than onto factors at the boxes' middles, which would be found too wide."""
    whole = make_frames([[3, 2], [4]], len(GRID), coordinates=GRID)
    pattern = None if lacked is None else (torch.tensor([0, 1]), [torch.arange(len(GRID))[lacked], torch.arange(0)])
    pooled = pool(Frames.arrange(whole.blocks, whole.cells, torch.from_numpy(GRID), RAW, lacked=pattern), 2.0)
    assert pooled.blur == pytest.approx(2 * 0.5**2)
    centers = torch.tensor([[3.2, 4, 2], [5, 4.6, 5]], dtype=torch.float64).expand(2, -1, -1)
    log_widths = torch.full((2, 2), np.log(width), dtype=torch.float64)
    boxes = Boxes.around(torch.from_numpy(GRID), 2.0)
    values = radial_basis(GRID, centers[0].numpy(), np.full(2, width**0.5))
    averages = boxes.total(torch.from_numpy(values)) / 8
    seen = boxes.total((~torch.isin(torch.arange(len(GRID)), pattern[1][0]))[None].double()) if pattern else 8
    projected = torch.cat([8 * block.array @ averages.T for block in pooled.blocks])
    averaged, apart = (
        [
            float((found - expected).norm() / expected.norm())
            for found, expected in (
                (projection.gram[0], (averages * seen) @ averages.T),
                (projection.frames, projected),
            )
        ]
        for projection in (one.project(centers, log_widths) for one in (pooled, replace(pooled, blur=None)))
    )
    assert max(averaged) < 0.01
    assert all(near < far / 10 for near, far in zip(averaged, apart, strict=True))


@pytest.mark.parametrize("width", [30.0, 300.0, 3000.0])
def test_projections_of_pooled_frames_near_those_of_the_frames_as_factors_widen(width):
    frames = make_frames([[3, 2], [4]], len(GRID), coordinates=GRID)
    centers = torch.tensor([[3.0, 4, 2], [5, 5, 5]], dtype=torch.float64).expand(2, -1, -1)
    log_widths = torch.full((2, 2), np.log(width), dtype=torch.float64)
    fine, coarse = (one.project(centers, log_widths) for one in (frames, pool(frames, 2.0)))
    assert float((fine.gram - coarse.gram).norm() / fine.gram.norm()) < 2 / width
    assert float((fine.frames - coarse.frames).norm() / fine.frames.norm()) < 1.5 / width**0.5
    prior = WeightPrior(torch.zeros(3, 2).double(), torch.ones(3, 2).double())
    one = torch.ones((), dtype=torch.float64)
    densities = [float(log_likelihood(projection, prior, one)) for projection in (fine, coarse)]
    assert abs(densities[0] - densities[1]) / frames.n_data < 0.2 / width


def test_widths_of_averages_are_those_of_wider_factors_and_back():
    frames = make_frames([[3, 2]], len(GRID), coordinates=GRID)
    pooled = pool(frames, 2.0)
    log_width = np.log(7.0)
    wider, height = pooled.averaged(torch.tensor(log_width))
    assert float(wider) == pytest.approx(np.log(7.5))
    assert float(height) == pytest.approx((7 / 7.5) ** 1.5)
    assert pooled.of_voxels(float(wider)) == pytest.approx(log_width)
    assert pooled.of_voxels(np.log(0.5)) == pytest.approx(np.log(0.25))
    assert frames.of_voxels(log_width) == pytest.approx(log_width)


def test_pooling_single_voxels_changes_nothing():
    frames = make_frames([[3, 2], [4]], len(GRID), coordinates=GRID)
    pooled = pool(frames, 1.0)
    centers = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 4
    fine, coarse = (one.project(centers, torch.ones(2, 3).double()) for one in (frames, pooled))
    torch.testing.assert_close(fine.frames, coarse.frames)
    torch.testing.assert_close(fine.gram, coarse.gram)


def test_gradients_of_a_pooled_projection_are_those_of_its_value():
    pooled = pool(make_frames([[3, 2]], len(GRID), coordinates=GRID), 2.0)

    def value(centers, log_widths):
        projection = pooled.project(centers, log_widths)
        return projection.frames.square().sum() + projection.gram.square().sum()

    centers = torch.tensor([[[3.0, 4, 2], [5, 5, 5]]], dtype=torch.float64, requires_grad=True)
    log_widths = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, (centers, log_widths))


@pytest.mark.parametrize("method", ["pursuit", "kmeans"])
def test_a_start_on_pooled_frames_is_near_one_on_the_frames(method):
    rng = np.random.default_rng(1)
    frames = make_frames([[6], [6]], len(GRID), coordinates=GRID)
    blob = np.exp(-((GRID - [2.0, 5, 4]) ** 2).sum(1) / 6)
    for block in frames.blocks:
        block.array.copy_(torch.from_numpy(0.05 * rng.normal(size=block.array.shape) + 3 * blob))
    frames = type(frames).arrange(frames.blocks, frames.cells, torch.from_numpy(GRID), RAW)
    fine, coarse = (find_start(one, 1, method, seed=0) for one in (frames, pool(frames, 2.0)))
    assert float((fine.centers - coarse.centers).norm()) < 1.8
    if method == "pursuit":
        assert float((coarse.centers - torch.tensor([2.0, 5, 4])).norm()) < 1.8


def test_frames_in_memory_are_their_own():
    frames = make_frames([[3, 2], [4]], 30)
    assert list(loaded(frames.blocks, torch.device("cpu"))) == list(frames.blocks)


def test_coarse_to_fine_cools_down_twice_and_ends_on_the_frames_as_they_are():
    schedule = CoarseToFine(1000)
    bounds = [1 - 0.5**i for i in range(1000)]
    paces = [schedule.pace(bounds[:n]) for n in range(400)]
    stop = next(n for n, pace in enumerate(paces) if pace.stop)
    assert paces[stop].stop == "converged"
    coarse = [pace.coarse for pace in paces[:stop]]
    assert coarse == sorted(coarse, reverse=True)
    assert stop - sum(coarse) == schedule.fine
    alone = OneCycle(1000 - schedule.fine)
    assert [pace.factor for pace in paces[: sum(coarse)]] == [alone.pace(bounds[:n]).factor for n in range(sum(coarse))]
    last = [pace.factor for pace in paces[sum(coarse) : stop]]
    assert last == sorted(last, reverse=True)
    assert last[0] < schedule.fine_factor
    assert last[-1] > 0


def test_coarse_to_fine_keeps_to_max_epochs_and_does_not_call_that_converged():
    schedule = CoarseToFine(50)
    rising = [float(i) for i in range(60)]
    paces = [schedule.pace(rising[:n]) for n in range(60)]
    assert next(n for n, pace in enumerate(paces) if pace.stop) == 50
    assert paces[50].stop == "max_epochs"
    assert not paces[49].coarse


def blobs(radius: float, spacing: float = 5.0) -> Study:
    """Two people's frames of two blobs, on a grid of large voxels."""
    rng = np.random.default_rng(0)
    coordinates = np.stack(np.meshgrid(*[np.arange(16) * spacing] * 3, indexing="ij"), -1).reshape(-1, 3)
    factors = radial_basis(coordinates, np.array([[20.0, 25, 20], [50.0, 50, 40]]), [radius, radius])
    frames = {
        name: rng.normal(size=(12, 2)) @ factors + 0.01 * rng.normal(size=(12, len(coordinates))) for name in "ab"
    }
    rows = [(name, f"s{i % 2}", 3 * i, 3 * i + 3) for name in "ab" for i in range(4)]
    return Study.from_arrays(
        frames, pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"]), coordinates
    )


@pytest.mark.parametrize(("radius", "coarse", "pooled"), [(20, "auto", 512), (6, "auto", None), (20, "never", None)])
def test_large_voxels_are_pooled_where_factors_are_wide(radius, coarse, pooled, monkeypatch):
    monkeypatch.setattr("ntfa.fitting.task.TOO_FEW_TO_POOL", 0)
    refits, refit_noise = [], Trainer.refit_noise

    def noted(trainer):
        refits.append((len(trainer.history.bounds), trainer.likelihood.frames is trainer.frames))
        refit_noise(trainer)

    monkeypatch.setattr(Trainer, "refit_noise", noted)
    model = HTFA(2, max_epochs=60, random_state=0, coarse=coarse).fit(blobs(radius))
    assert model._fitted.n_pooled == pooled
    assert refits == ([] if pooled is None else [(60 - CoarseToFine.fine, True)])
    found = model.factors_.groupby("factor")["x"].mean().sort_values().to_numpy()
    np.testing.assert_allclose(found, [20, 50], atol=0.5)


def test_a_small_study_is_not_pooled_however_wide_its_factors():
    assert HTFA(2, max_epochs=2, random_state=0).fit(blobs(20))._fitted.n_pooled is None
