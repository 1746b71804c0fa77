"""What is uncertain about a fitted model, as it is kept with its module."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class WeightSpread:
    """Weights of one pair: mean [K] and covariance [K, K]."""

    mean: Tensor
    covariance: Tensor


@dataclass(frozen=True)
class Embedded:
    """Embeddings as they are reported: means [n, D], covariances [n, D, D].

    is_joint : whether the covariances are more than variances
    """

    mean: Tensor
    covariances: Tensor
    is_joint: bool = True


@dataclass(frozen=True)
class Uncertainty:
    """What is uncertain about embeddings and factors, in standardised units.

    participants, stimuli : covariances [P, D, D] and [S, D', D']
    centers_sd, log_widths_sd : [P, K, 3] and [P, K]
    weights_variance : [K]
        Of a cell's mean weights, by its own frames alone.
    feature_spread : [F, F]
        Such that h^T S h is the leverage of a cell with features h, the inputs of the last layer of eta^W: the share of
        `weights_variance` that its prediction has because eta^W was learned.
    """

    participants: Tensor
    stimuli: Tensor
    centers_sd: Tensor
    log_widths_sd: Tensor
    weights_variance: Tensor
    feature_spread: Tensor


class UncertaintyBuffers(nn.Module):
    """An `Uncertainty` that is saved with a module, all zeros until `remember` is called.

    summary : [2, 3]
        Of participants and of stimuli: reliability, by how much variances were raised, and how many could be halved.
    """

    participants: Tensor
    stimuli: Tensor
    centers_sd: Tensor
    log_widths_sd: Tensor
    weights_variance: Tensor
    feature_spread: Tensor
    summary: Tensor

    def __init__(
        self, n_participants: int, n_stimuli: int, n_factors: int, n_dims: tuple[int, int], n_features: int
    ) -> None:
        super().__init__()
        self.register_buffer("participants", torch.zeros(n_participants, n_dims[0], n_dims[0]))
        self.register_buffer("stimuli", torch.zeros(n_stimuli, n_dims[1], n_dims[1]))
        self.register_buffer("centers_sd", torch.zeros(n_participants, n_factors, 3))
        self.register_buffer("log_widths_sd", torch.zeros(n_participants, n_factors))
        self.register_buffer("weights_variance", torch.zeros(n_factors))
        self.register_buffer("feature_spread", torch.zeros(n_features, n_features))
        self.register_buffer("summary", torch.zeros(2, 3))

    @property
    def is_known(self) -> bool:
        """Whether anything was remembered."""
        return bool(self.participants.any())

    def remember(self, found: Uncertainty) -> None:
        """Keep what was found."""
        for field in fields(found):
            getattr(self, field.name).copy_(getattr(found, field.name))

    def recalled(self) -> Uncertainty:
        """Return what was remembered."""
        return Uncertainty(**{field.name: getattr(self, field.name).clone() for field in fields(Uncertainty)})
