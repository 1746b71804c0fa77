"""The small networks that map embeddings to factors and weights."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def perceptron(sizes: list[int]) -> nn.Sequential:
    """Fully connected layers with PReLU between them."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes[:-1]):
        layers += [nn.Linear(n_in, n_out), nn.PReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def start_output(network: nn.Sequential, output: Tensor, spread: float) -> None:
    """Let the network's output start at `output`, and shrink how far it strays from there with its input."""
    last = network[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.mul_(spread)
        last.bias.copy_(output.reshape(-1))


def features_of(network: nn.Sequential, rows: Tensor) -> Tensor:
    """Inputs of a network's last layer, and 1 for its bias, [n, F]."""
    hidden = network[:-1](rows)
    return torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1)
