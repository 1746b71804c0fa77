import numpy as np
import pytest
import torch
from helpers import blobs, cell_rows, frames_of_cells, make_frames

from ntfa.inference.cells import Cells
from ntfa.inference.frames import Units

DESIGN = [[3, 1], [2, 3, 5], [1]]


@pytest.fixture
def cells() -> Cells:
    return make_frames(DESIGN, n_voxels=4).cells


def test_layout_of_the_fixture_is_what_the_design_says(cells):
    lengths = [DESIGN[b][s] for b, s in zip(cells.participant.tolist(), cells.stimulus.tolist(), strict=True)]
    assert lengths == [len(rows) for rows in cell_rows(cells)] == [1, 1, 2, 3, 3, 5]
    assert sorted(np.concatenate(cell_rows(cells))) == list(range(15))


def test_count_and_owner_of_each_frame(cells):
    assert cells.count.dtype == torch.float64
    assert cells.count.tolist() == [1, 1, 2, 3, 3, 5]
    for c, rows in enumerate(cell_rows(cells)):
        assert (cells.of_frame[rows] == c).all()


def test_averaged_cells_are_one_frame_each(cells):
    averaged = cells.averaged
    per_cell = torch.randn(6, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    assert averaged.count.tolist() == [1] * 6
    assert averaged.of_frame.tolist() == list(range(6))
    assert torch.equal(averaged.total(per_cell), per_cell)
    assert torch.equal(averaged.block, cells.block)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_total(cells, shape):
    per_frame = torch.randn(15, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = np.stack([sum(per_frame[r].numpy() for r in rows) for rows in cell_rows(cells)])
    np.testing.assert_allclose(cells.total(per_frame).numpy(), expected, rtol=1e-12)


def test_scatter(cells):
    per_frame = torch.randn(15, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = [sum(np.outer(per_frame[r], per_frame[r]) for r in rows) for rows in cell_rows(cells)]
    np.testing.assert_allclose(cells.scatter(per_frame).numpy(), np.stack(expected), rtol=1e-12)


def test_times(cells):
    generator = torch.Generator().manual_seed(2)
    per_frame = torch.randn(15, 3, generator=generator, dtype=torch.float64)
    per_cell = torch.randn(6, 3, 3, generator=generator, dtype=torch.float64)
    product = cells.times(per_frame, per_cell).numpy()
    for c, rows in enumerate(cell_rows(cells)):
        for r in rows:
            np.testing.assert_allclose(product[r], per_frame[r].numpy() @ per_cell[c].numpy(), rtol=1e-12)


def test_blocks_total(cells):
    per_cell = torch.arange(1.0, 7.0, dtype=torch.float64)
    expected = [sum(float(x) for x, b in zip(per_cell, cells.block, strict=True) if b == block) for block in range(3)]
    assert cells.blocks_total(per_cell).tolist() == expected


def test_units_there_and_back():
    units = Units((1.0, -20.0, 300.0), length=40.0, intensity=3.0)
    positions = torch.randn(5, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(units.standardise(units.millimetres(positions)), positions)
    zero = units.standardise(torch.tensor([[1.0, -20.0, 300.0], [41.0, -20.0, 300.0]]))
    torch.testing.assert_close(zero, torch.tensor([[0.0, 0, 0], [1, 0, 0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_energy_is_the_sum_of_squares_of_each_frame_in_order(dtype):
    frames = make_frames([[20, 3], [18]], n_voxels=7, units=Units((0, 0, 0), 1.0, intensity=2.0), dtype=dtype)
    stacked = np.concatenate([block.array[run].double().numpy() for block in frames.blocks for run in block.runs])
    np.testing.assert_allclose(frames.energy.numpy(), (stacked**2).sum(1) / 4, rtol=1e-12)
    expected = [(y**2).sum() / 4 for y in frames_of_cells(frames)]
    np.testing.assert_allclose(frames.cell_energy.numpy(), expected, rtol=1e-12)
    assert (frames.n_voxels, frames.n_data) == (7, 41 * 7)


def test_projection_is_that_of_each_frame_on_the_factors_of_its_block():
    units = Units((0.1, 0.2, 0.3), length=0.7, intensity=2.0)
    frames = make_frames(DESIGN, n_voxels=9, units=units)
    generator = torch.Generator().manual_seed(4)
    centers = torch.randn(3, 2, 3, generator=generator, dtype=torch.float64)
    log_widths = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    projection = frames.project(centers, log_widths)
    assert projection.n_voxels == 9
    for c, (rows, y) in enumerate(zip(cell_rows(frames.cells), frames_of_cells(frames), strict=True)):
        b = int(frames.cells.block[c])
        factors = blobs(frames.coordinates, centers[b], log_widths[b])
        np.testing.assert_allclose(projection.frames[rows], y / 2.0 @ factors.T, rtol=1e-11)
        np.testing.assert_allclose(projection.gram[b], factors @ factors.T, rtol=1e-11)
        np.testing.assert_allclose(projection.energy[c], (y**2).sum() / 4, rtol=1e-12)


def test_another_intensity_changes_the_numbers_not_the_frames():
    frames = make_frames(DESIGN, n_voxels=5)
    before = frames.cell_energy
    brighter = frames.with_intensity(4.0)
    torch.testing.assert_close(brighter.cell_energy, before / 16)
    direct = make_frames(DESIGN, n_voxels=5, units=Units((0, 0, 0), 1.0, 4.0))
    torch.testing.assert_close(brighter.energy, direct.energy)
    assert brighter.blocks[0].array is frames.blocks[0].array
    centers, log_widths = torch.zeros(3, 1, 3, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    dim, bright = brighter.project(centers, log_widths), frames.project(centers, log_widths)
    torch.testing.assert_close(dim.frames, bright.frames / 4)
    torch.testing.assert_close(dim.gram, bright.gram)


def test_log_units_is_the_jacobian_of_rescaling():
    frames = make_frames(DESIGN, n_voxels=5, units=Units((0, 0, 0), 1.0, 3.0))
    values = torch.tensor([1.5, -0.2, 0.7], dtype=torch.float64)
    own = torch.distributions.Normal(0.0, 3.0 * 0.9).log_prob(values).sum()
    scaled = torch.distributions.Normal(0.0, 0.9).log_prob(values / 3.0).sum()
    per_value = frames.log_units / (frames.cells.count * frames.n_voxels)
    torch.testing.assert_close(3 * per_value, (own - scaled).expand_as(per_value))
