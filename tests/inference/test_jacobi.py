import pytest
import torch

from ntfa.inference import jacobi


def random_symmetric(r: int, kind: str) -> torch.Tensor:
    random = torch.Generator().manual_seed(r)
    rows = torch.randn(16, 40, r, generator=random, dtype=torch.float64)
    if kind == "of unlike sizes":
        rows *= torch.logspace(-6, 3, r, dtype=torch.float64)
    if kind == "without rank":
        rows[..., (r + 1) // 2 :] = 0
    if kind == "all the same":
        rows = torch.ones_like(rows)
    return rows.mT @ rows


@pytest.mark.parametrize("kind", ["usual", "of unlike sizes", "without rank", "all the same"])
@pytest.mark.parametrize("r", [1, 2, 3, 4, 7, 21, 32])
def test_eigenvalues_and_vectors_are_those_of_the_library(r: int, kind: str) -> None:
    matrix = random_symmetric(r, kind)
    values, vectors = jacobi.eigh(matrix)
    expected = torch.linalg.eigvalsh(matrix)
    size = expected[:, -1:]
    assert float(((values.sort(-1).values - expected) / size).abs().max()) < 1e-14 * r
    assert float((vectors.mT @ vectors - torch.eye(r)).abs().max()) < 1e-14 * r
    again = vectors * values.unsqueeze(-2) @ vectors.mT
    assert float(((again - matrix) / size.unsqueeze(-1)).abs().max()) < 1e-14 * r


def test_nothing_comes_of_nothing() -> None:
    values, vectors = jacobi.eigh(torch.zeros(2, 3, 3, dtype=torch.float64))
    assert not values.any()
    assert torch.equal(vectors, torch.eye(3, dtype=torch.float64).expand(2, 3, 3))


def test_every_pair_meets_once_a_sweep() -> None:
    for n in (2, 4, 6, 22):
        read = torch.stack([where.unflatten(0, (3, -1))[2] for where, _ in jacobi._rounds(n, torch.device("cpu"))])
        assert read.shape == (n - 1, n // 2)
        pairs = {(int(place) // n, int(place) % n) for place in read.flatten()}
        assert pairs == {(p, q) for p in range(n) for q in range(p + 1, n)}
