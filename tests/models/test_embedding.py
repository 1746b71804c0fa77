"""Axes of reported embeddings: distances in the metric, the first axis largest, and as many as are reliable."""

import pytest
import torch

from ntfa.models.embedding import n_reliable_axes, participant_scores, principal_axes


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distances_are_those_of_the_metric_up_to_one_scale() -> None:
    points, root = random(7, 3), random(3, 3, seed=1)
    found = principal_axes(points, root @ root.T, 3)
    expected = torch.cdist(points @ root, points @ root)
    ratio = torch.cdist(found.scores, found.scores)[expected > 0] / expected[expected > 0]
    assert torch.allclose(ratio, ratio[0].expand_as(ratio))
    assert torch.allclose((points - points.mean(0)) @ found.axes, found.scores)


def test_the_first_axis_has_unit_variance_and_holds_most() -> None:
    found = principal_axes(random(20, 4), torch.eye(4, dtype=torch.float64), 4)
    variances = found.scores.square().mean(0)
    assert float(variances[0]) == pytest.approx(1)
    assert bool((variances.diff() <= 0).all())
    assert torch.allclose(found.shares, variances / variances.sum())


def test_axes_do_not_depend_on_the_basis_of_the_points() -> None:
    points, basis = random(9, 3), random(3, 3, seed=2)
    metric = torch.eye(3, dtype=torch.float64)
    other = torch.linalg.inv(basis) @ metric @ torch.linalg.inv(basis).T
    one, two = principal_axes(points, metric, 2), principal_axes(points @ basis, other, 2)
    assert torch.allclose(one.scores, two.scores, atol=1e-9)


def test_fewer_points_than_dimensions_leave_the_rest_at_zero() -> None:
    found = principal_axes(random(2, 4), torch.eye(4, dtype=torch.float64), 3)
    assert found.scores.shape == (2, 3)
    assert not bool(found.scores[:, 1:].any())


def test_distances_between_participants_are_those_of_their_responses() -> None:
    loadings, features, factors = random(5, 3, 4), random(6, 3, seed=1), random(4, 11, seed=2)
    points = participant_scores(loadings, features, factors @ factors.T)
    responses = (features @ loadings @ factors).flatten(1) / len(features) ** 0.5
    assert torch.allclose(torch.cdist(points, points), torch.cdist(responses, responses), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [2, 4])
def test_as_many_axes_as_people_differ_in_are_reliable(rank: int) -> None:
    counts = []
    for seed in range(10):
        scores, maps = random(30, rank, seed=seed), random(rank, 200, seed=100 + seed)
        noise = random(30, 200, seed=200 + seed)
        counts.append(n_reliable_axes(scores @ maps + noise, torch.Generator().manual_seed(seed)))
    assert sum(count == rank for count in counts) >= 9


def test_people_who_differ_by_noise_alone_get_a_plane() -> None:
    assert n_reliable_axes(random(20, 300), torch.Generator().manual_seed(0)) == 2
