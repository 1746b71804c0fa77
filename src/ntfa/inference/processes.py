"""Processes that share a fit: each has some of the participants, and all have what participants share.

A process alone is a special case, for which sums and gatherings are what is there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch import distributed as dist


class Processes:
    """One process alone."""

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the processes."""
        return tensor

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of all processes, one process after another; all but the number of rows must agree."""
        return rows

    def any(self, wish: bool) -> bool:
        """Whether any process wishes so."""
        return wish

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace gradients by their sum over the processes, all in one message."""


ALONE = Processes()


class DistributedProcesses(Processes):
    """The processes that torchrun started, by `torch.distributed`."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the processes."""
        total = tensor.detach().clone().contiguous()
        dist.all_reduce(total)
        return total

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of all processes, one process after another."""
        counts = torch.zeros(self.size, dtype=torch.long, device=rows.device)
        counts[self.rank] = len(rows)
        counts = self.total(counts)
        padded = rows.new_zeros(int(counts.max()), *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts.tolist(), strict=True)])

    def any(self, wish: bool) -> bool:
        """Whether any process wishes so."""
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        return bool(self.total(torch.tensor(float(wish), device=device)))

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace gradients by their sum over the processes, all in one message."""
        own = list(parameters)
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in own])
        for parameter, part in zip(own, self.total(flat).split([p.numel() for p in own]), strict=True):
            parameter.grad = part.reshape(parameter.shape)


@dataclass(frozen=True)
class Share:
    """Which rows of a variable this process has: those from `start` up to `stop`, of `total`."""

    start: int
    stop: int
    total: int

    @property
    def rows(self) -> slice:
        """The rows, as a slice."""
        return slice(self.start, self.stop)


def divide(loads: Sequence[float], n_parts: int) -> list[range]:
    """Divide items, in order, into so many runs of about the same load, none of them empty."""
    if n_parts > len(loads):
        raise ValueError(f"{len(loads)} items cannot be divided into {n_parts} parts")
    before = [0.0, *accumulate(loads)]
    cuts = [0]
    for part in range(1, n_parts):
        goal = before[-1] * part / n_parts
        first, last = cuts[-1] + 1, len(loads) - (n_parts - part)
        cuts.append(min(range(first, last + 1), key=lambda cut: abs(before[cut] - goal)))
    return [range(low, high) for low, high in zip(cuts, [*cuts[1:], len(loads)], strict=True)]
