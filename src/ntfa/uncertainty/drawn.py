"""Draws of the mean responses of all people to all stimuli, as a fitted model leaves them open.

Draws are right together, not pair by pair: what several pairs share is drawn once. So whatever is computed of a draw,
such as how much of the responses is an interaction, has over many draws the distribution that it has given the data.
Places and widths of factors stay at their means.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ntfa.models.loadings import LoadingFactors
from ntfa.models.networks import features_of
from ntfa.models.ntfa import NeuralFactors
from ntfa.uncertainty.combinations import LoadingsSpread, NetworkSpread
from ntfa.uncertainty.information import factors_at


@torch.no_grad()
def draw_responses(
    module: LoadingFactors | NeuralFactors, n: int, seed: int = 0, intensity: float = 1.0
) -> ResponseDraws:
    """Draw the responses of everybody to everything n times; before them comes the posterior mean.

    intensity : one unit of standardised images in the units of the data, which maps of detail are kept in
    """
    generator = torch.Generator().manual_seed(seed)
    if isinstance(module, LoadingFactors):
        return _LoadingsDraws(module, n, generator, intensity)
    return _NetworkDraws(module, n, generator)


class ResponseDraws:
    """Draws of responses, to be had person by person and at some voxels at a time, in standardised units."""

    n_participants: int
    n_stimuli: int

    def images(self, participant: int, voxels: Tensor, which: Tensor) -> Tensor:
        """Images [1 + n, S, V] of a person's responses at voxels [V, 3], whose places among all are `which` [V]."""
        raise NotImplementedError


class _Shared(NamedTuple):
    """What is everybody's at some voxels: factors [K, V], and draws of the group's maps of detail if there are any."""

    factors: Tensor
    detail: Tensor | None


class _LoadingsDraws(ResponseDraws):
    def __init__(self, module: LoadingFactors, n: int, generator: torch.Generator, intensity: float) -> None:
        self.module, self.n, self.generator, self.spread = module, n, generator, LoadingsSpread(module)
        self.intensity = intensity
        self.n_participants, self.n_stimuli = len(module.loadings), len(module.z_stimulus.mean)
        z, sd = module.z_stimulus.mean, module.z_stimulus.normal.sd
        drawn = z + sd * self._normal(n, *z.shape)
        self.features = module.features(torch.cat([z.unsqueeze(0), drawn]))
        root = torch.linalg.cholesky(_symmetric(self.spread.group_covariance))
        r, k = module.group_loadings.shape
        self.group = _with_mean((self._normal(n, r * k) @ root.mT).unflatten(1, (r, k)))
        self.outside = self._outside()
        self.of_stimuli = _with_mean(self._own(0))
        self.detail_root = torch.linalg.cholesky(_symmetric(self.spread.detail_group_covariance))
        self.seed = int(torch.randint(2**31, 2**32, (1,), generator=generator))
        self._latest: tuple[Tensor, _Shared] | None = None

    def _normal(self, *shape: int) -> Tensor:
        like = self.module.loadings
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(like)

    def _outside(self) -> Tensor:
        features = self.module.features(self.module.z_stimulus.mean)
        return torch.eye(len(features)).to(features) - features @ torch.linalg.pinv(features)

    def _own(self, which: int) -> Tensor:
        """Responses of stimuli (0) or of a person's pairs (1) besides what features say, [n, S, K] in the basis L."""
        module = self.module
        size = module.loading_sd.detach() * (0.0 if module.misfit is None else module.misfit[which].sqrt())
        return self.outside @ self._normal(self.n, self.n_stimuli, len(size)) * size

    def _weights(self, p: int) -> Tensor:
        """Mean weights [1 + n, S, K] of one person."""
        module, person, right = self.module, self.spread._person(p), self.module.design_right[p]
        roots = torch.linalg.cholesky(_symmetric(person.covariance))
        own = torch.einsum("jkl,njl->njk", roots, self._normal(self.n, *roots.shape[:2]))
        by_group = torch.einsum("jkl,aj,nal->njk", person.unknown, right, self.group)
        scaled = module.log_feature_scale.exp().unsqueeze(-1) * (right @ (_with_mean(own) + by_group))
        loadings = module.group_loadings + module.loadings[p] + scaled @ module.mixing.mT
        besides = self.of_stimuli + _with_mean(self._own(1))
        return self.features @ loadings + besides @ module.mixing.mT

    def images(self, participant: int, voxels: Tensor, which: Tensor) -> Tensor:
        """Images [1 + n, S, V] of a person's responses at voxels [V, 3], whose places among all are `which` [V]."""
        # People are asked for one after the other at the same voxels.
        if self._latest is None or self._latest[0] is not which:
            self._latest = (which, self._shared(voxels, which))
        shared = self._latest[1]
        # The same draws for every part of the voxels.
        self.generator.manual_seed(self.seed + participant)
        return self._weights(participant) @ shared.factors + self._detail(participant, which, shared.detail)

    def _shared(self, voxels: Tensor, which: Tensor) -> _Shared:
        factors = factors_at(self.module.centers.mean[0], self.module.log_widths.mean[0], voxels)
        if self.module.detail_group is None:
            return _Shared(factors, None)
        self.generator.manual_seed(self.seed - 1 - int(which[0]))
        return _Shared(factors, self.detail_root @ self._normal(self.n, len(self.detail_root), len(which)))

    def _detail(self, p: int, which: Tensor, of_group: Tensor | None) -> Tensor:
        module = self.module
        if module.detail_group is None or of_group is None:
            return self.features.new_zeros(())
        mean, own = module.detail_group[:, which], module.detail_own if module.has_own_detail(p) else None
        right, (variance, unknown) = module.design_right[p], self.spread.detail_of(p)
        drawn = right @ (variance.sqrt().unsqueeze(-1) * self._normal(self.n, len(variance), len(which)))
        drawn = drawn + right * unknown @ right.mT @ of_group
        mean = (mean if own is None else mean + own[p][:, which]).to(drawn) / self.intensity
        return self.features @ (mean + _with_mean(module.log_feature_scale.exp().unsqueeze(-1) * drawn))


class _NetworkDraws(ResponseDraws):
    def __init__(self, module: NeuralFactors, n: int, generator: torch.Generator) -> None:
        self.module, self.spread = module, NetworkSpread(module, n)
        means = (module.z_participant.mean, module.z_stimulus.mean)
        self.n_participants, self.n_stimuli = (len(mean) for mean in means)
        self.z = [torch.cat([mean.unsqueeze(0), drawn]) for mean, drawn in zip(means, self.spread.z, strict=True)]
        shape = (n, len(self.spread.feature_root), len(module.uncertainty.weights_variance))
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.spread.feature_root)
        self.layer = _with_mean(self.spread.feature_root @ drawn * module.uncertainty.weights_variance.sqrt())

    def images(self, participant: int, voxels: Tensor, which: Tensor) -> Tensor:
        """Images [1 + n, S, V] of a person's responses at voxels [V, 3], whose places among all are `which` [V]."""
        module, (of_participants, of_stimuli) = self.module, self.z
        own = of_participants[:, participant].unsqueeze(1).expand(-1, self.n_stimuli, -1)
        weights = module.weights_of(torch.cat([own, of_stimuli], -1)).mean
        features = features_of(module.weight_network, torch.cat([own[0], of_stimuli[0]], -1))
        factors = factors_at(module.centers.mean[participant], module.log_widths.mean[participant], voxels)
        return (weights + features @ self.layer) @ factors


def _with_mean(deviations: Tensor) -> Tensor:
    """Put no deviation before the draws."""
    return torch.cat([torch.zeros_like(deviations[:1]), deviations])


def _symmetric(covariances: Tensor) -> Tensor:
    """Make covariances that are singular but for rounding fit for a Cholesky decomposition."""
    size = covariances.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-300)[..., None, None]
    one = torch.eye(covariances.shape[-1]).to(covariances)
    return (covariances + covariances.mT) / 2 + 1e-9 * size * one
