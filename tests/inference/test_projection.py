import math

import pytest
import torch
from helpers import radial_basis
from torch import Tensor

from ntfa.inference import projection
from ntfa.inference.projection import (
    FrameBlock,
    exponent_coefficients,
    factor_chunk,
    place_blocks,
    project,
    voxel_terms,
)

N_VOXELS = 1300


def standardised_brain(voxel: float, radius: float = 80.0) -> tuple[Tensor, float]:
    """A ball of voxels in units of its spread, and how long a voxel is in them."""
    axis = torch.arange(-radius, radius + 1, voxel, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis, axis)
    ball = grid[grid.square().sum(1) <= radius**2]
    spread = ball.var(0).mean().sqrt()
    return ball / spread, voxel / float(spread)


def some_factors(n_blocks: int, n_factors: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(n_blocks, n_factors, 3, dtype=torch.float64, generator=generator)
    log_widths = 0.5 * torch.randn(n_blocks, n_factors, dtype=torch.float64, generator=generator)
    return centers.requires_grad_(), log_widths.requires_grad_()


def some_blocks(n_voxels: int, dtype: torch.dtype = torch.float64) -> list[FrameBlock]:
    """Unequal blocks: a part of an array, a whole one, three runs out of order, one frame of the first one's array."""
    generator = torch.Generator().manual_seed(1)
    first, second, third = (
        torch.randn(n, n_voxels, dtype=torch.float64, generator=generator).to(dtype) for n in (9, 4, 6)
    )
    return [
        FrameBlock(first, [slice(2, 7)]),
        FrameBlock(second, [slice(0, 4)]),
        FrameBlock(third, [slice(4, 6), slice(0, 1), slice(2, 3)]),
        FrameBlock(first, [slice(8, 9)]),
    ]


def dense_projection(
    centers: Tensor, log_widths: Tensor, blocks: list[FrameBlock], coordinates: Tensor
) -> tuple[Tensor, Tensor]:
    """The same through `radial_basis`, whole matrices and ordinary autograd, in float64."""
    factors = radial_basis(coordinates, centers, log_widths)
    projected = [
        block.array[run].double() @ factor.T
        for block, factor in zip(blocks, factors, strict=True)
        for run in block.runs
    ]
    return torch.cat(projected), factors @ factors.mT


def gradients_of_a_random_sum(outputs: tuple[Tensor, Tensor], inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    total = sum(
        (output * torch.randn(output.shape, dtype=output.dtype, generator=generator)).sum() for output in outputs
    )
    return torch.autograd.grad(total, inputs)


@pytest.fixture
def small_chunks(monkeypatch):
    """Make chunks as small as they get; returns the number of voxels of every chunk of factors formed."""
    sizes: list[int] = []

    def counted(coefficients: Tensor, terms: Tensor) -> Tensor:
        sizes.append(terms.shape[1])
        return factor_chunk(coefficients, terms)

    monkeypatch.setattr(projection, "CHUNK_BYTES", {"cpu": 1})
    monkeypatch.setattr(projection, "factor_chunk", counted)
    return sizes


@pytest.mark.parametrize("voxel", [2.5, 8.0])
def test_factor_chunks_equal_the_radial_basis(voxel):
    coordinates, length = standardised_brain(voxel)
    centers = torch.stack([coordinates[len(coordinates) // 3], coordinates[-1] + 0.3 * length, coordinates.mean(0)])
    for width in (length / 2, length, 0.5, 4.0):
        log_widths = torch.full((3,), 2 * math.log(width), dtype=torch.float64)
        expected = radial_basis(coordinates, centers, log_widths)
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-3)):
            coefficients = exponent_coefficients(centers, log_widths, dtype)
            factors = factor_chunk(coefficients, voxel_terms(coordinates, dtype))
            assert factors.dtype == dtype
            torch.testing.assert_close(factors.double(), expected, rtol=0, atol=tolerance)


def test_single_precision_is_good_to_six_digits_at_ordinary_widths():
    coordinates, length = standardised_brain(8.0)
    log_widths = torch.full((5,), 2 * math.log(3 * length), dtype=torch.float64)
    coefficients = exponent_coefficients(coordinates[::700][:5], log_widths, torch.float32)
    factors = factor_chunk(coefficients, voxel_terms(coordinates))
    expected = radial_basis(coordinates, coordinates[::700][:5], log_widths)
    torch.testing.assert_close(factors.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_factor_exceeds_one(dtype):
    coordinates = torch.randn(600, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    centers = coordinates[::5]
    log_widths = torch.full((len(centers),), 2 * math.log(0.05), dtype=torch.float64)
    coefficients, terms = exponent_coefficients(centers, log_widths, dtype), voxel_terms(coordinates, dtype)
    assert bool((coefficients @ terms).amax() > 0), "rounding has nothing to lift: this test would prove nothing"
    factors = factor_chunk(coefficients, terms)
    assert bool(((factors >= 0) & (factors <= 1)).all())
    torch.testing.assert_close(factors.amax(1).double(), torch.ones(len(centers)).double(), rtol=0, atol=1e-3)


def test_far_away_a_factor_is_next_to_nothing_but_no_product_is_a_denormal_number():
    coordinates, length = standardised_brain(8.0)
    log_widths = torch.full((1,), 2 * math.log(length / 2), dtype=torch.float64)
    coefficients = exponent_coefficients(coordinates[:1], log_widths, torch.float32)
    factors = factor_chunk(coefficients, voxel_terms(coordinates))
    assert float(factors.amin()) ** 2 > torch.finfo(torch.float32).tiny
    assert float(factors.median()) < 1e-16


@pytest.mark.parametrize("n_factors", [1, 4])  # runs are read one by one with few factors, gathered with many
def test_several_chunks_and_unequal_blocks_equal_one_dense_product(small_chunks, n_factors):
    coordinates = torch.randn(N_VOXELS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    blocks = some_blocks(N_VOXELS)
    inputs = some_factors(len(blocks), n_factors)
    outputs = project(*inputs, blocks, voxel_terms(coordinates, torch.float64))
    assert sum(small_chunks) == len(blocks) * N_VOXELS
    assert max(small_chunks) < N_VOXELS / 2
    expected = dense_projection(*inputs, blocks, coordinates)
    for output, truth in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, truth, rtol=1e-11, atol=1e-11)
    ours = gradients_of_a_random_sum(outputs, inputs)
    assert sum(small_chunks) == 2 * len(blocks) * N_VOXELS
    for gradient, truth in zip(ours, gradients_of_a_random_sum(expected, inputs), strict=True):
        torch.testing.assert_close(gradient, truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n_factors", [1, 4])
def test_reading_a_block_gives_each_of_its_frames_once(n_factors):
    voxels = slice(3, 8)
    for block in some_blocks(12):
        expected = torch.cat([block.array[run, voxels] for run in block.runs])
        assert torch.equal(torch.cat(block.read(voxels, n_factors)), expected)
        assert block.n_frames == len(expected)
        assert torch.equal(block.array[block.rows], torch.cat([block.array[run] for run in block.runs]))


def test_result_does_not_depend_on_the_chunks(monkeypatch):
    coordinates = torch.randn(N_VOXELS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    blocks = some_blocks(N_VOXELS)
    inputs = some_factors(len(blocks), n_factors=2)
    terms = voxel_terms(coordinates, torch.float64)
    whole = project(*inputs, blocks, terms)
    monkeypatch.setattr(projection, "CHUNK_BYTES", {"cpu": 1})
    for part, together in zip(project(*inputs, blocks, terms), whole, strict=True):
        torch.testing.assert_close(part, together, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_factors", [1, 2])
@pytest.mark.parametrize("output", [0, 1])
def test_gradient_equals_finite_differences(output, n_factors):
    coordinates = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    blocks = some_blocks(12)
    centers, log_widths = some_factors(len(blocks), n_factors)
    with torch.no_grad():
        centers[0, 0] = coordinates[4]
    terms = voxel_terms(coordinates, torch.float64)
    assert torch.autograd.gradcheck(lambda x, rho: project(x, rho, blocks, terms)[output], (centers, log_widths))


@pytest.mark.parametrize(("width", "tolerance"), [(0.5, 2e-3), (1.0, 2e-4), (4.0, 2e-5)])
def test_single_precision_gradient_is_close_to_the_double_one(width, tolerance):
    coordinates, length = standardised_brain(8.0)
    generator = torch.Generator().manual_seed(6)
    blocks = [FrameBlock(torch.randn(5, len(coordinates), generator=generator), [slice(0, 5)])]
    centers = coordinates[None, 100::900].clone().requires_grad_()
    log_widths = torch.full(centers.shape[:2], 2 * math.log(width * length), dtype=torch.float64, requires_grad=True)
    inputs = centers, log_widths
    ours = gradients_of_a_random_sum(project(*inputs, blocks, voxel_terms(coordinates)), inputs)
    expected = gradients_of_a_random_sum(dense_projection(*inputs, blocks, coordinates), inputs)
    for gradient, truth in zip(ours, expected, strict=True):
        assert gradient.dtype == torch.float64
        assert float((gradient - truth).norm() / truth.norm()) < tolerance


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("most_together", [1, 2, 100])
def test_stacked_blocks_equal_single_ones(most_together, weighted, monkeypatch):
    generator = torch.Generator().manual_seed(5)
    n_voxels, n_factors, lengths = 60, 3, [5, 5, 5, 2, 2, 7]
    coordinates = torch.randn(n_voxels, 3, generator=generator, dtype=torch.float64)
    weights = torch.rand(n_voxels, generator=generator, dtype=torch.float64) if weighted else None
    terms = voxel_terms(coordinates, torch.float64, weights)
    single = [
        FrameBlock(torch.randn(n, n_voxels, generator=generator, dtype=torch.float64), [slice(0, n)]) for n in lengths
    ]
    stacked = []
    for n in dict.fromkeys(lengths):
        same = [block.array for block in single if len(block.array) == n]
        stack = projection.empty_stack(len(same), n, n_voxels, torch.float64, torch.device("cpu"))
        assert stack.shape[-1] == 64  # rows are filled up with columns that may not count
        stacked += projection.unstack(stack, n_voxels)
        for block, array in zip(stacked[-len(same) :], same, strict=True):
            block.array.copy_(array)
    centers = torch.randn(len(lengths), n_factors, 3, generator=generator, dtype=torch.float64).requires_grad_()
    log_widths = torch.randn(len(lengths), n_factors, generator=generator, dtype=torch.float64).requires_grad_()
    monkeypatch.setitem(projection.CHUNK_BYTES, "cpu", most_together * 8 * n_factors * n_voxels)
    found = []
    for blocks in (single, stacked):
        projected, gram = project(centers, log_widths, blocks, terms)
        value = projected.sin().sum() + gram.square().sum()
        found.append([projected, gram, *torch.autograd.grad(value, [centers, log_widths])])
    for ours, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_blocks_stay_where_they_are_on_a_cpu_but_for_runs_of_small_studies(monkeypatch):
    array = torch.randn(6, 4)
    blocks = [FrameBlock(array, [slice(0, 2)]), FrameBlock(array, [slice(2, 3), slice(5, 6)])]
    one_run, two_runs = place_blocks(blocks, torch.device("cpu"))
    assert one_run is blocks[0]
    assert two_runs.runs == [slice(0, 2)]
    torch.testing.assert_close(two_runs.array, array[[2, 5]])
    monkeypatch.setattr(projection, "SMALL_STUDY", 4 * 4 * 4 - 1)
    assert place_blocks(blocks, torch.device("cpu")) is blocks


def test_placed_blocks_hold_their_own_rows_alone(monkeypatch):
    """A meta device stands for a GPU: of what is put there only the shape can be seen."""
    blocks = [FrameBlock(torch.zeros(9, 4), [slice(0, 2), slice(5, 6)]), FrameBlock(torch.zeros(3, 4), [slice(0, 3)])]
    for small, stacked in ((1, False), (1 << 20, True)):
        monkeypatch.setattr(projection, "SMALL_BLOCK", small)
        placed = place_blocks(blocks, torch.device("meta"))
        assert [tuple(block.array.shape) for block in placed] == [(3, 4), (3, 4)]
        assert [block.runs for block in placed] == [[slice(0, 3)], [slice(0, 3)]]
        places = [((2, 3, 32), 0), ((2, 3, 32), 1)] if stacked else [((1, 3, 32), 0), ((1, 3, 32), 0)]
        assert [(tuple(block.stack.shape), block.place) for block in placed] == places


def test_stacks_hold_the_frames_of_all_runs_and_zeros():
    arrays = [torch.randn(9, 33), torch.randn(5, 33)]
    blocks = [FrameBlock(arrays[0], [slice(1, 3), slice(5, 6), slice(8, 9)]), FrameBlock(arrays[1], [slice(1, 5)])]
    first, second = projection.stacked(blocks, torch.device("cpu"))
    torch.testing.assert_close(first.array, arrays[0][[1, 2, 5, 8]])
    torch.testing.assert_close(second.array, arrays[1][1:])
    assert first.stack is second.stack
    assert (first.place, second.place, tuple(first.stack.shape)) == (0, 1, (2, 4, 64))
    assert not first.stack[..., 33:].any()
    assert first.runs == second.runs == [slice(0, 4)]


@pytest.mark.parametrize("runs", [[slice(0, 4)], [slice(0, 1), slice(3, 6)]])
def test_chunks_of_voxels_keep_to_their_bytes_and_cover_all(runs, monkeypatch):
    n_voxels, n_factors, largest = 2000, 3, 700
    block = FrameBlock(torch.zeros(6, n_voxels, dtype=torch.float64), runs)
    # Of each voxel a chunk holds 4 frames, the factors and their slope.
    monkeypatch.setitem(projection.CHUNK_BYTES, "cpu", largest * (4 + 2 * n_factors) * 8 + 8)
    chunks = list(projection._chunks(block, n_factors))
    assert [voxel for chunk in chunks for voxel in range(chunk.start, chunk.stop)] == list(range(n_voxels))
    assert [chunk.stop - chunk.start for chunk in chunks] == [672, 672, 656]
