"""The likelihood with individual loadings integrated out, against the multivariate normal that it is."""

from __future__ import annotations

import pytest
import torch
from helpers import make_frames, radial_basis
from torch import Tensor

from ntfa.inference import jacobi
from ntfa.inference.frames import Frames
from ntfa.inference.loadings import (
    IndividualWeights,
    block_log_likelihoods,
    loadings_covariance,
    loadings_posterior,
    log_likelihood,
)

K, R, S = 3, 3, 4
NAMES = ("centers", "log_widths", "noise_sd", *IndividualWeights._fields)


@pytest.fixture
def frames() -> Frames:
    """Two participants, cells of one, two and three frames; the second has seen three of the four stimuli."""
    return make_frames([[1, 2, 3, 2], [2, 2, 1]], n_voxels=12, seed=3)


def variables(frames: Frames, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    stimulus_features = torch.cat([torch.ones(S, 1, dtype=torch.float64), draw(S, R - 1)], 1)
    n_cells = len(frames.cells.count)
    return {
        "centers": 0.5 * draw(1, K, 3),
        "log_widths": 0.2 * draw(1, K),
        "noise_sd": torch.tensor(0.7, dtype=torch.float64),
        "mean": 0.5 * draw(n_cells, K),
        "features": stimulus_features[frames.cells.stimulus],
        "sd": draw(K).exp(),
        "loading_sd": 0.5 * draw(K).exp(),
        "mixing": torch.eye(K, dtype=torch.float64) + torch.tril(0.5 * draw(K, K), -1),
    }


def value(frames: Frames, given: dict[str, Tensor]) -> Tensor:
    prior = IndividualWeights(*(given[name] for name in NAMES[3:]))
    return log_likelihood(frames.project(given["centers"], given["log_widths"]), prior, given["noise_sd"])


def test_jacobis_rotations_give_the_same_value_and_gradients(frames: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for _ in range(2):
        given = {name: part.requires_grad_() for name, part in variables(frames).items()}
        found.append([total := value(frames, given), *torch.autograd.grad(total, list(given.values()))])
        monkeypatch.setattr("ntfa.inference.loadings._eigh", jacobi.eigh)
    for by_library, by_rotations in zip(*found, strict=True):
        torch.testing.assert_close(by_rotations, by_library, rtol=1e-9, atol=1e-9)


def dense(frames: Frames, given: dict[str, Tensor], participant: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Frames of a participant, their mean and covariance as one long vector, and the frames' features."""
    cells = frames.cells
    factors = radial_basis(frames.coordinates, given["centers"][0], given["log_widths"][0])
    rows = [i for i, c in enumerate(cells.of_frame.tolist()) if int(cells.block[c]) == participant]
    cell = cells.of_frame[rows]
    all_frames = torch.cat([block.array[block.rows] for block in frames.blocks]).double() / frames.units.intensity
    mixing, features = given["mixing"], given["features"][cell]
    within = factors.T @ mixing @ torch.diag(given["sd"] ** 2) @ mixing.T @ factors
    within += given["noise_sd"] ** 2 * torch.eye(factors.shape[1], dtype=torch.float64)
    between = factors.T @ mixing @ torch.diag(given["loading_sd"] ** 2) @ mixing.T @ factors
    covariance = torch.kron(torch.eye(len(rows), dtype=torch.float64), within)
    covariance += torch.kron(features @ features.T, between)
    return all_frames[rows].flatten(), (given["mean"][cell] @ factors).flatten(), covariance, features


def test_density_is_that_of_the_joint_normal(frames: Frames) -> None:
    given = variables(frames)
    expected = 0.0
    for participant in (0, 1):
        y, mean, covariance, _ = dense(frames, given, participant)
        expected += float(torch.distributions.MultivariateNormal(mean, covariance).log_prob(y))
    assert float(value(frames, given)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_differences(frames: Frames, name: str) -> None:
    given = variables(frames)
    given[name].requires_grad_()
    (found,) = torch.autograd.grad(value(frames, given), given[name])
    step = 1e-6
    flat = given[name].detach().reshape(-1)
    indices = range(len(flat)) if name != "mixing" else [K, 2 * K, 2 * K + 1]
    for i in indices:
        sides = []
        for sign in (1, -1):
            moved = flat.clone()
            moved[i] += sign * step
            sides.append(float(value(frames, given | {name: moved.reshape(given[name].shape)})))
        expected = (sides[0] - sides[1]) / (2 * step)
        assert float(found.reshape(-1)[i]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_gradients_stay_finite_where_singular_values_agree(frames: Frames) -> None:
    given = variables(frames)
    given["features"] = torch.eye(S, R, dtype=torch.float64)[frames.cells.stimulus].requires_grad_()
    (found,) = torch.autograd.grad(value(frames, given), given["features"])
    assert bool(torch.isfinite(found).all())
    assert bool(found.any())


def test_features_of_no_size_leave_the_density_without_loadings(frames: Frames) -> None:
    given = variables(frames)
    nothing = given | {"features": torch.zeros_like(given["features"])}
    no_spread = given | {"loading_sd": torch.full_like(given["loading_sd"], 1e-9)}
    assert float(value(frames, nothing)) == pytest.approx(float(value(frames, no_spread)), rel=1e-9)


def test_posterior_is_that_of_the_joint_normal(frames: Frames) -> None:
    given = variables(frames)
    prior = IndividualWeights(*(given[name] for name in NAMES[3:]))
    projection = frames.project(given["centers"], given["log_widths"])
    found = loadings_posterior(projection, prior, given["noise_sd"])
    factors = radial_basis(frames.coordinates, given["centers"][0], given["log_widths"][0])
    spread = torch.diag(given["loading_sd"] ** 2)
    for participant in (0, 1):
        y, mean, covariance, features = dense(frames, given, participant)
        # e [R, K] in the basis L has variance tau^2; its covariance with the frames is features x (tau^2 L^T F).
        across = torch.kron(features.T.contiguous(), spread @ given["mixing"].T @ factors)
        expected = (across @ torch.linalg.solve(covariance, y - mean)).reshape(R, K) @ given["mixing"].T
        assert torch.allclose(found.mean[participant], expected, atol=1e-8)
        posterior = torch.kron(torch.eye(R, dtype=torch.float64), spread)
        posterior -= across @ torch.linalg.solve(covariance, across.T)
        rotated = loadings_covariance(projection.gram[0], prior, found.rotation.squared[participant], given["noise_sd"])
        right = found.rotation.right[participant]
        back = torch.einsum("aj,jkl,bj->akbl", right, rotated, right).reshape(R * K, R * K)
        assert torch.allclose(back, posterior, atol=1e-8)


def test_each_participants_density_is_that_of_their_joint_normal(frames: Frames) -> None:
    given = variables(frames)
    prior = IndividualWeights(*(given[name] for name in NAMES[3:]))
    found = block_log_likelihoods(frames.project(given["centers"], given["log_widths"]), prior, given["noise_sd"])
    for participant in (0, 1):
        y, mean, covariance, _ = dense(frames, given, participant)
        expected = float(torch.distributions.MultivariateNormal(mean, covariance).log_prob(y))
        assert float(found[participant]) == pytest.approx(expected, rel=1e-6)
