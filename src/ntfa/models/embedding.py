"""Axes of embeddings that mean the same in every fit: the first holds most of the response, distances are responses'.

Embeddings are known up to an invertible map. The map that is reported makes the squared distance between two stimuli
the expected squared distance between a person's responses to them, and that between two participants the squared
distance between their responses to all stimuli, as far as D dimensions hold it. Axes are principal axes, the first of
unit variance, with signs settled; so two fits agree on them unless two axes hold the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

N_PERMUTED = 20
MOST_PARTICIPANT_DIMS = 8


class PrincipalAxes(NamedTuple):
    """Principal axes of n points.

    scores : [n, D], the points on the axes, the first of unit variance
    axes : [.., D], such that (point - mean) @ axes are its scores
    shares : [D], share of the variance of all points that each axis holds
    """

    scores: Tensor
    axes: Tensor
    shares: Tensor


def principal_axes(points: Tensor, metric: Tensor, n_dim: int) -> PrincipalAxes:
    """Find the principal axes of points [n, q] whose squared distances are d M d^T."""
    centred = points - points.mean(0)
    values, left = torch.linalg.eigh((centred @ metric @ centred.mT).cpu())
    values, left = values.flip(0).clamp(min=0).to(points), left.flip(1).to(points)
    kept = min(n_dim, len(points))
    used = (values[:kept] > 1e-12 * values[0].clamp(min=1e-300)).to(points)
    unit = (len(points) / values[0].clamp(min=1e-300)).sqrt()
    sign = settled_signs(left)[:, :kept]
    scores = left[:, :kept] * sign * values[:kept].sqrt() * unit * used
    axes = metric @ centred.mT @ (left[:, :kept] * sign * used / values[:kept].clamp(min=1e-300).sqrt()) * unit
    shares = values[:kept] / values.sum().clamp(min=1e-300)
    return PrincipalAxes(*(_padded(part, n_dim) for part in (scores, axes, shares)))


def settled_signs(columns: Tensor) -> Tensor:
    """Signs [1, D] that make the largest entry of every column positive.

    The first of those that are as large but for rounding: of two points' scores, which are x and -x, the last bits
    would otherwise decide.
    """
    size = columns.abs()
    largest = size >= (1 - 1e-6) * size.amax(0)
    first = largest & (largest.cumsum(0) == 1)
    return (columns * first).sum(0, keepdim=True).sign()


def _padded(values: Tensor, n_dim: int) -> Tensor:
    """Add columns of zeros where there are fewer points than dimensions."""
    missing = n_dim - values.shape[-1]
    return torch.cat([values, values.new_zeros(*values.shape[:-1], missing)], -1) if missing > 0 else values


def participant_scores(loadings: Tensor, features: Tensor, gram: Tensor) -> Tensor:
    """Loadings [P, r, K] as points [P, r K] whose plain distances are those of responses to all stimuli [S, r]."""
    stimuli, images = score_roots(features, gram)
    return (stimuli.mT @ loadings @ images).flatten(1)


def score_roots(features: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky roots of the features' second moments [r, r] and of F F^T [K, K]."""
    moments = features.mT @ features / len(features)
    return torch.linalg.cholesky(_regular(moments)), torch.linalg.cholesky(_regular(gram))


def _regular(matrix: Tensor) -> Tensor:
    size = matrix.diagonal().mean().clamp(min=1e-300)
    return matrix + 1e-9 * size * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def n_reliable_axes(points: Tensor, generator: torch.Generator) -> int:
    """Count the axes that hold more than they would if every coordinate were another person's (parallel analysis).

    At least two, so that there is a plane to look at, unless there are fewer than three points.
    """
    points = points.cpu().double()
    most = max(1, min(MOST_PARTICIPANT_DIMS, len(points) - 1))
    found = _spectrum(points)[:most]
    null = []
    for _ in range(N_PERMUTED):
        order = torch.rand(points.shape, generator=generator, dtype=points.dtype).argsort(0)
        null.append(_spectrum(points.gather(0, order))[:most])
    above = found > torch.stack(null).amax(0)
    count = int(above.long().cumprod(0).sum())
    return min(max(2, count), most)


def _spectrum(points: Tensor) -> Tensor:
    centred = points - points.mean(0)
    return torch.linalg.eigvalsh(centred @ centred.mT).flip(0)


class ReportedEmbeddings(nn.Module):
    """Embeddings on axes that mean the same in every fit, with covariances; zeros until `remember` is called.

    participants [P, D], stimuli [S, D'], their covariances [P, D, D] and [S, D', D'], and shares [D], [D'] of the
    variance of responses that each axis holds. axes [D', D'] turn the model's own embeddings of stimuli into these.
    summary : [2, 3]
        Of participants and of stimuli: reliability, by how much variances were raised, and how many could be halved.
    """

    participants: Tensor
    stimuli: Tensor
    participant_covariances: Tensor
    stimulus_covariances: Tensor
    participant_shares: Tensor
    stimulus_shares: Tensor
    axes: Tensor
    summary: Tensor

    def __init__(self, n_participants: int, n_stimuli: int, participant_dim: int, stimulus_dim: int) -> None:
        super().__init__()
        for name, n, d in (("participant", n_participants, participant_dim), ("stimulus", n_stimuli, stimulus_dim)):
            plural = {"participant": "participants", "stimulus": "stimuli"}[name]
            self.register_buffer(plural, torch.zeros(n, d))
            self.register_buffer(f"{name}_covariances", torch.zeros(n, d, d))
            self.register_buffer(f"{name}_shares", torch.zeros(d))
        self.register_buffer("axes", torch.zeros(stimulus_dim, stimulus_dim))
        self.register_buffer("summary", torch.zeros(2, 3))

    def remember(
        self, participants: PrincipalAxes, stimuli: PrincipalAxes, of_participants: Tensor, of_stimuli: Tensor
    ) -> None:
        """Keep what was found, in as many dimensions as it has."""
        self.participants, self.stimuli = participants.scores, stimuli.scores
        self.participant_covariances, self.stimulus_covariances = of_participants, of_stimuli
        self.participant_shares, self.stimulus_shares = participants.shares, stimuli.shares
        self.axes = stimuli.axes
