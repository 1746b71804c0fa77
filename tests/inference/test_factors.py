"""A factor is exp(-|g - x|^2 / exp(rho)), and the projection's way of forming it is exact where that is delicate."""

import math

import pytest
import torch
from helpers import radial_basis
from torch import Tensor

from ntfa.inference.projection import FrameBlock, exponent_coefficients, factor_chunk, project, voxel_terms

VOXEL = 8.0
GRID = torch.cartesian_prod(*[torch.arange(-64.0, 65.0, VOXEL, dtype=torch.float64)] * 3)
SPREAD = float(GRID.var(0).mean().sqrt())
WIDTHS = [VOXEL / 2, VOXEL, 40.0, 180.0]


def formed(coordinates: Tensor, centers: Tensor, log_widths: Tensor) -> Tensor:
    """Factors [..., K, V] as the projection forms them."""
    coefficients = exponent_coefficients(centers, log_widths, coordinates.dtype)
    return factor_chunk(coefficients, voxel_terms(coordinates, coordinates.dtype))


@pytest.mark.parametrize("factors_at", [formed, radial_basis])
def test_equals_the_formula_voxel_by_voxel(factors_at):
    generator = torch.Generator().manual_seed(0)
    coordinates, centers = (30 * torch.randn(n, 3, dtype=torch.float64, generator=generator) for n in (7, 2))
    log_widths = torch.tensor([5.0, 8.0], dtype=torch.float64)
    factors = factors_at(coordinates, centers, log_widths)
    for k in range(2):
        for v in range(7):
            distance = math.dist(coordinates[v].tolist(), centers[k].tolist())
            expected = math.exp(max(-60.0, -(distance**2) / math.exp(log_widths[k].item())))
            assert factors[k, v].item() == pytest.approx(expected, rel=1e-11)


def test_leading_dimensions_are_independent_sets_of_factors():
    generator = torch.Generator().manual_seed(1)
    centers, log_widths = torch.randn(4, 5, 3, generator=generator), torch.randn(4, 5, generator=generator)
    coordinates = torch.randn(6, 3, generator=generator)
    together = formed(coordinates, centers, log_widths)
    assert together.shape == (4, 5, 6)
    apart = [formed(coordinates, c, w) for c, w in zip(centers, log_widths, strict=True)]
    torch.testing.assert_close(together, torch.stack(apart))


@pytest.mark.parametrize("width", WIDTHS)
def test_has_fallen_to_one_over_e_at_its_width(width):
    coordinates = torch.tensor([[0.0, 0.0, 0.0], [0.0, width, 0.0]], dtype=torch.float64)
    log_width = torch.tensor([2 * math.log(width)], dtype=torch.float64)
    factor = formed(coordinates, torch.zeros(1, 3, dtype=torch.float64), log_width)
    torch.testing.assert_close(factor, torch.tensor([[1.0, math.exp(-1)]], dtype=torch.float64))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-9)])
@pytest.mark.parametrize("width", WIDTHS)
def test_gradient_is_that_of_the_formula_with_a_centre_on_a_voxel(width, dtype, tolerance):
    voxel, coordinates = len(GRID) // 2 + 3, GRID / SPREAD
    centers = coordinates[None, voxel : voxel + 1].clone().requires_grad_()
    log_widths = torch.full((1, 1), 2 * math.log(width / SPREAD), dtype=torch.float64, requires_grad=True)
    frame = torch.linspace(-1, 2, len(GRID), dtype=dtype)[None]
    projected, _ = project(centers, log_widths, [FrameBlock(frame, [slice(0, 1)])], voxel_terms(coordinates, dtype))
    expected = (radial_basis(coordinates, centers, log_widths)[0] * frame.double()).sum()
    ours, truth = (torch.autograd.grad(value, (centers, log_widths)) for value in (projected[0, 0], expected))
    for gradient, exact in zip(ours, truth, strict=True):
        assert float(exact.abs().max()) > 0
        torch.testing.assert_close(gradient, exact, rtol=tolerance, atol=tolerance)
