"""Information about factors and weights, against brute force with every voxel's covariance."""

import pytest
import torch
from torch import Tensor

from ntfa.uncertainty.information import CellInformation, cell_information, tangent_gram, tangents

K, NOISE = 2, 0.7


def case() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 3, dtype=torch.float64)] * 3)
    return {
        "voxels": grid + 0.05 * torch.randn(grid.shape, generator=generator, dtype=torch.float64),
        "center": torch.tensor([[0.3, -0.2, 0.1], [-0.1, 0.4, 0.2]], dtype=torch.float64),
        "log_width": torch.tensor([-1.0, -0.4], dtype=torch.float64),
        "mean": torch.tensor([0.8, -0.5], dtype=torch.float64),
        "log_sd": torch.tensor([-0.7, 0.2], dtype=torch.float64),
    }


def factors(center: Tensor, log_width: Tensor, voxels: Tensor) -> Tensor:
    squared = (voxels - center[:, None]).square().sum(-1)
    return torch.exp(-squared * torch.exp(-log_width)[:, None])


def moments(parameters: Tensor, voxels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a frame, given x of both factors, y, z, log-widths, means and log sds."""
    x, y, z, log_width, mean, log_sd = parameters.reshape(6, K)
    shapes = factors(torch.stack([x, y, z], 1), log_width, voxels)
    covariance = shapes.T @ torch.diag(torch.exp(2 * log_sd)) @ shapes
    return mean @ shapes, covariance + NOISE**2 * torch.eye(len(voxels), dtype=torch.float64)


def brute_force(parameters: Tensor, voxels: Tensor) -> Tensor:
    """Fisher information of one frame: d mean' Q d mean + tr(Q dC Q dC) / 2."""
    d_mean, d_covariance = torch.autograd.functional.jacobian(lambda p: moments(p, voxels), parameters)
    precision = torch.linalg.inv(moments(parameters, voxels)[1])
    scaled = torch.einsum("uv,vwi->uwi", precision, d_covariance)
    return d_mean.T @ precision @ d_mean + 0.5 * torch.einsum("uvi,vuj->ij", scaled, scaled)


def whole(found: CellInformation) -> Tensor:
    """Put the blocks together; nothing connects means and log sds."""
    none = torch.zeros_like(found.mean)
    return torch.cat(
        [
            torch.cat([found.geometry, found.geometry_mean, found.geometry_log_sd], 1),
            torch.cat([found.geometry_mean.T, found.mean, none], 1),
            torch.cat([found.geometry_log_sd.T, none, found.log_sd], 1),
        ]
    )


@pytest.mark.parametrize("n_frames", [1, 7])
def test_information_agrees_with_brute_force(n_frames: int) -> None:
    own = case()
    gram = tangent_gram(own["center"], own["log_width"], own["voxels"])
    noise_sd = torch.tensor(NOISE, dtype=torch.float64)
    found = cell_information(gram, own["mean"], own["log_sd"].exp(), noise_sd, n_frames)
    parameters = torch.cat([own["center"].T.flatten(), own["log_width"], own["mean"], own["log_sd"]])
    torch.testing.assert_close(whole(found), n_frames * brute_force(parameters, own["voxels"]))


def test_tangents_are_derivatives() -> None:
    own = case()
    images = tangents(own["center"], own["log_width"], own["voxels"]).unflatten(0, (5, K))
    by_center, by_width = torch.autograd.functional.jacobian(
        lambda center, log_width: factors(center, log_width, own["voxels"]), (own["center"], own["log_width"])
    )
    torch.testing.assert_close(images[0], factors(own["center"], own["log_width"], own["voxels"]))
    for k in range(K):
        for axis in range(3):
            torch.testing.assert_close(images[1 + axis, k], by_center[k, :, k, axis])
        torch.testing.assert_close(images[4, k], by_width[k, :, k])


def test_voxels_may_be_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    own = case()
    at_once = tangent_gram(own["center"], own["log_width"], own["voxels"])
    monkeypatch.setattr("ntfa.uncertainty.information.VOXELS_AT_ONCE", 10)
    torch.testing.assert_close(tangent_gram(own["center"], own["log_width"], own["voxels"]), at_once)


def test_weights_without_spread_leave_no_freedom() -> None:
    """Then frames say of the means what a regression would."""
    own = case()
    gram = tangent_gram(own["center"], own["log_width"], own["voxels"])
    found = cell_information(gram, own["mean"], torch.full((K,), 1e-6), torch.tensor(NOISE, dtype=torch.float64), 3)
    shapes = factors(own["center"], own["log_width"], own["voxels"])
    torch.testing.assert_close(found.mean, 3 * shapes @ shapes.T / NOISE**2)
    assert float(found.log_sd.abs().max()) < 1e-12


def test_cells_taken_together_say_what_each_says() -> None:
    own = case()
    gram = tangent_gram(own["center"], own["log_width"], own["voxels"])
    noise_sd = torch.tensor(NOISE, dtype=torch.float64)
    means, sds = torch.stack([own["mean"], -own["mean"]]), torch.stack([own["log_sd"].exp(), own["log_sd"].exp() / 2])
    counts = torch.tensor([3.0, 5.0], dtype=torch.float64)
    together = cell_information(gram, means, sds, noise_sd, counts[:, None, None])
    for c in range(2):
        alone = cell_information(gram, means[c], sds[c], noise_sd, float(counts[c]))
        for name in ("geometry", "mean", "log_sd", "geometry_mean", "geometry_log_sd"):
            torch.testing.assert_close(getattr(together, name)[c], getattr(alone, name))
