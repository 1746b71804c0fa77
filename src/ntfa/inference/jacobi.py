"""Eigenvalues and eigenvectors of many small symmetric matrices, by Jacobi's rotations (Golub & Van Loan, 8.5).

    A <- J^T A J,   V <- V J,   J the rotation that makes A_pq zero, for all pairs p, q in turn

Pairs that have no row in common are rotated together, so that a sweep through all pairs of r rows takes r - 1 products.
A library's routine is as exact, and on a processor faster. But it makes a GPU wait, and cannot be part of a recorded
step; a fixed number of sweeps can.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

MOST_ROWS = 32
"""Rows of matrices up to which this pays: sweeps take a few hundred operations for five rows, thousands for thirty."""


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [B, r], in any order, and eigenvectors [B, r, r] of symmetric matrices [B, r, r]."""
    r = matrix.shape[-1]
    n = r + r % 2
    # A row of zeros has nothing to be rotated with.
    matrix = pad(matrix, (0, n - r, 0, n - r))
    vectors = torch.eye(n, dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    for _ in range(_n_sweeps(n)):
        for pairs in _rounds(n, matrix.device):
            rotation = _rotations(matrix, *pairs)
            matrix, vectors = rotation.mT @ matrix @ rotation, vectors @ rotation
    return matrix.diagonal(dim1=-2, dim2=-1)[..., :r], vectors[..., :r, :r]


def _n_sweeps(n: int) -> int:
    """Sweeps that bring what is off the diagonal below rounding: the number of exact digits doubles with each."""
    return 1 if n == 2 else 5 + n.bit_length() // 2


def _rotations(matrix: Tensor, read: Tensor, written: Tensor) -> Tensor:
    """Rotations J [B, n, n] by at most 45 degrees that make A_pq zero for some pairs."""
    flat = matrix.flatten(-2)
    own, other, both = flat.index_select(-1, read).unflatten(-1, (3, -1)).unbind(-2)
    apart = other - own
    angle = 0.5 * torch.atan2(2 * both * torch.copysign(torch.ones_like(apart), apart), apart.abs())
    cosine, sine = angle.cos(), angle.sin()
    entries = torch.cat([cosine, cosine, sine, -sine], -1)
    return torch.zeros_like(flat).index_copy(-1, written, entries).unflatten(-1, matrix.shape[-2:])


@cache
def _rounds(n: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Of each round of a sweep: where A_pp, A_qq and A_pq of its pairs are read, and J_pp, J_qq, J_pq, J_qp written.

    As in a tournament: one stays, the others go round, and those opposite each other are a pair.
    """
    players, rounds = list(range(n)), []
    for _ in range(n - 1):
        pairs = torch.tensor([sorted(pair) for pair in zip(players[: n // 2], players[: n // 2 - 1 : -1], strict=True)])
        p, q = pairs.T
        read = torch.cat([p * n + p, q * n + q, p * n + q])
        written = torch.cat([p * n + p, q * n + q, p * n + q, q * n + p])
        rounds.append((read.to(device), written.to(device)))
        players = [players[0], players[-1], *players[1:-1]]
    return rounds
