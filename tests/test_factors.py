import math

import pytest
import torch

from ntfa.factors import radial_basis

VOXEL = 8.0
GRID = torch.cartesian_prod(*[torch.arange(-64.0, 65.0, VOXEL, dtype=torch.float64)] * 3)
WIDTHS = [VOXEL / 2, VOXEL, 40.0, 180.0]


def test_equals_the_formula_voxel_by_voxel():
    generator = torch.Generator().manual_seed(0)
    coordinates, centers = (30 * torch.randn(n, 3, dtype=torch.float64, generator=generator) for n in (7, 2))
    log_widths = torch.tensor([5.0, 8.0], dtype=torch.float64)
    factors = radial_basis(coordinates, centers, log_widths)
    for k in range(2):
        for v in range(7):
            distance = math.dist(coordinates[v].tolist(), centers[k].tolist())
            expected = math.exp(-(distance**2) / math.exp(log_widths[k].item()))
            assert factors[k, v].item() == pytest.approx(expected, rel=1e-12)


def test_leading_dimensions_are_independent_sets_of_factors():
    generator = torch.Generator().manual_seed(1)
    centers, log_widths = torch.randn(4, 5, 3, generator=generator), torch.randn(4, 5, generator=generator)
    coordinates = torch.randn(6, 3, generator=generator)
    together = radial_basis(coordinates, centers, log_widths)
    assert together.shape == (4, 5, 6)
    apart = [radial_basis(coordinates, c, w) for c, w in zip(centers, log_widths, strict=True)]
    torch.testing.assert_close(together, torch.stack(apart))


@pytest.mark.parametrize("width", WIDTHS)
def test_has_fallen_to_one_over_e_at_its_width(width):
    coordinates = torch.tensor([[0.0, 0.0, 0.0], [0.0, width, 0.0]], dtype=torch.float64)
    log_width = torch.tensor([2 * math.log(width)], dtype=torch.float64)
    factor = radial_basis(coordinates, torch.zeros(1, 3, dtype=torch.float64), log_width)
    torch.testing.assert_close(factor, torch.tensor([[1.0, math.exp(-1)]], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_value_and_gradient_are_finite_with_a_centre_on_a_voxel(width, dtype):
    voxel = len(GRID) // 2 + 3
    centers = GRID[voxel : voxel + 1].to(dtype).clone().requires_grad_()
    log_widths = torch.full((1,), 2 * math.log(width), dtype=dtype, requires_grad=True)
    factors = radial_basis(GRID.to(dtype), centers, log_widths)
    assert factors[0, voxel] == 1
    assert bool(((factors >= 0) & (factors <= 1)).all())
    at_centre = torch.autograd.grad(factors[0, voxel], (centers, log_widths), retain_graph=True)
    assert all(bool((gradient == 0).all()) for gradient in at_centre)
    weights = torch.linspace(-1, 2, len(GRID), dtype=dtype)
    everywhere = torch.autograd.grad((factors[0] * weights).sum(), (centers, log_widths))
    assert all(bool(torch.isfinite(gradient).all()) and bool(gradient.abs().max() > 0) for gradient in everywhere)


def test_gradient_equals_finite_differences():
    coordinates = torch.tensor([[0.0, 0, 0], [1, 0, 2], [-1, 1, 0.5]], dtype=torch.float64)
    centers = torch.tensor([[0.0, 0, 0], [0.3, -0.2, 1]], dtype=torch.float64, requires_grad=True)
    log_widths = torch.tensor([-0.5, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, rho: radial_basis(coordinates, x, rho), (centers, log_widths))
