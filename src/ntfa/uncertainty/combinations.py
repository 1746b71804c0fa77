"""What is uncertain about a weighted sum of mean responses, such as the difference of two sets of pairs.

Pairs share people, stimuli, factors and what was learned from everybody, so that errors of their predictions are
correlated: in a difference much of them cancels, and in a mean much does not. With c_i the coefficients of the pairs
i = (p, s), the sum of mean weights and of mean images is

    w = sum_i c_i W_i,    image = sum_p w_p F_p,    w_p = sum over the pairs of p of c_i W_i

Individual loadings, W_i = h_s^T (A + E_p): with g_p = sum c_i h_s over the pairs of p,

    given A, E_p has its exact posterior, apart from other people's:    sum_p Cov(g_p^T E_p | A)
    if A moves, E_p moves back by what the frames of p know of it, by a share G_p:
        M Cov(A) M^T,   M = sum_p g_p^T (I - G_p),   Cov(A)^-1 = sum_p (Cov(E_p) + noise of p)^-1
    a stimulus' embedding moves all of its pairs:    sum_s J_s^T Cov(z_s) J_s,   J_s = sum c_i (A + E_p) over those of s

    stimuli, and pairs, have something of their own that features leave out:    `ntfa.inference.misfit`

and likewise for maps of detail. Networks, W_i = eta^W(z_p, z_s): draws of all embeddings, each used in all of its
pairs, and what is uncertain about the last layer of eta^W, which all pairs share. Factors enter to first order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ntfa.inference.collapsed import posterior_covariance
from ntfa.inference.normal import RandomSource
from ntfa.models.loadings import LoadingFactors
from ntfa.models.networks import features_of
from ntfa.models.ntfa import DRAWS_FOR_INTERVALS, NeuralFactors
from ntfa.models.spread import WeightSpread
from ntfa.uncertainty.information import VOXELS_AT_ONCE, tangents

# Of images of factors that are in memory at once: 128 MB in float64.
MOST_VALUES = 1 << 24


@dataclass(frozen=True)
class Combination:
    """A weighted sum of pairs: places of participants and stimuli among the known ones, and coefficients, [n] each."""

    participants: Tensor
    stimuli: Tensor
    coefficients: Tensor

    def total(self, values: Tensor, places: Tensor, n: int) -> Tensor:
        """Sum of values [n_pairs, ...] times coefficients, of the pairs of each place, [n, ...]."""
        shape = [-1, *[1] * (values.dim() - 1)]
        weighted = values * self.coefficients.reshape(shape).to(values)
        return weighted.new_zeros(n, *values.shape[1:]).index_add(0, places, weighted)


class JointSpread:
    """What is uncertain about the mean responses of all pairs together."""

    def weights(self, combination: Combination) -> WeightSpread:
        """Sum of the mean weights, [K], and its covariance."""
        raise NotImplementedError

    def image_variances(self, combinations: Sequence[Combination], voxels: Tensor, scales: Tensor) -> Tensor:
        """Variances [n, V] of sums of mean images at voxels [V, 3] with scales of noise [V], in standardised units."""
        raise NotImplementedError


def joint_spread(module: LoadingFactors | NeuralFactors) -> JointSpread:
    """Return what a fitted module says of combinations of pairs."""
    return LoadingsSpread(module) if isinstance(module, LoadingFactors) else NetworkSpread(module)


# Individual loadings -------------------------------------------------------------------------------------------------


class LoadingsSpread(JointSpread):
    """Of individual loadings; features are scaled by lambda and weights in the basis L until the end."""

    @torch.no_grad()
    def __init__(self, module: LoadingFactors) -> None:
        self.module = module
        self.gram = module.mixing.mT @ module.gram @ module.mixing
        k, r = len(self.gram), module.design_squared.shape[1]
        information = self.gram.new_zeros(r, k, r, k)
        for p in range(len(module.loadings)):
            right = module.design_right[p]
            information += torch.einsum("aj,bj,jkl->akbl", right, right, self._person(p).information)
        self.group_covariance = _inverse(information.reshape(r * k, r * k))
        self.detail_group_covariance = self._detail_group_covariance()

    def _person(self, p: int) -> _Person:
        module = self.module
        gram = module.mixing.mT @ module.grams(torch.tensor([p], device=self.gram.device))[0] @ module.mixing
        return _Person.of(
            gram, module.design_squared[p], module.loading_sd, module.sd, module.noise_sd.detach().square()
        )

    def _features(self, combination: Combination) -> dict[int, Tensor]:
        """g_p of the people in a combination, scaled, [r]."""
        module = self.module
        features = module.scaled(module.features(module.z_stimulus.mean))[combination.stimuli]
        total = combination.total(features, combination.participants, len(module.loadings))
        return {p: total[p] for p in torch.unique(combination.participants).tolist()}

    @torch.no_grad()
    def weights(self, combination: Combination) -> WeightSpread:
        """Sum of the mean weights, [K], and its covariance."""
        module, k = self.module, len(self.gram)
        covariance = self.gram.new_zeros(k, k)
        by_group = self.gram.new_zeros(k, module.design_squared.shape[1], k)
        for p, features in self._features(combination).items():
            scores, person = features @ module.design_right[p], self._person(p)
            covariance += torch.einsum("j,jkl->kl", scores.square(), person.covariance)
            by_group += torch.einsum("j,aj,jkl->kal", scores, module.design_right[p], person.unknown)
        flat = by_group.flatten(1)
        covariance += flat @ self.group_covariance @ flat.mT
        covariance += self._misfit(combination)
        covariance = module.mixing @ covariance @ module.mixing.mT
        responses = module.responses()[combination.participants, combination.stimuli]
        mean = combination.coefficients.to(responses) @ responses
        return WeightSpread(mean.detach(), (covariance + self._by_embeddings(combination)).detach())

    def _misfit(self, combination: Combination) -> Tensor:
        """What stimuli, and pairs, have besides what their features say.

        What of it is linear in the features is in the loadings, which were estimated with it; the rest is in no map.
        """
        module = self.module
        if module.misfit is None:
            return torch.zeros_like(self.gram)
        features = module.features(module.z_stimulus.mean)
        one = torch.eye(len(features)).to(features)
        people, where = torch.unique(combination.participants, return_inverse=True)
        of_pairs = combination.total(one[combination.stimuli], where, len(people))
        outside = of_pairs - of_pairs @ features @ torch.linalg.pinv(features)
        rho, omega, _ = module.misfit.to(features)
        size = rho * outside.sum(0).square().sum() + omega * outside.square().sum()
        return torch.diag(size * module.loading_sd.square())

    def _by_embeddings(self, combination: Combination) -> Tensor:
        """What embeddings of stimuli contribute to the covariance of weights."""
        module = self.module
        slopes = (module.group_loadings + module.loadings)[combination.participants, 1:]
        slopes = combination.total(slopes, combination.stimuli, len(module.z_stimulus.mean))
        return torch.einsum("sdk,sd,sdl->kl", slopes, module.z_stimulus.normal.sd.square(), slopes)

    @torch.no_grad()
    def image_variances(self, combinations: Sequence[Combination], voxels: Tensor, scales: Tensor) -> Tensor:
        """Variances [n, V] of sums of mean images at voxels [V, 3] with scales of noise [V], in standardised units."""
        module = self.module
        centers_sd, log_widths_sd = (part.detach()[0] for part in module.factor_sds())
        of_shape = torch.cat([centers_sd.T.flatten(), log_widths_sd]).square()
        spreads = [self.weights(combination) for combination in combinations]
        white = torch.stack([self.detail_variance(combination) for combination in combinations])
        parts = []
        for part in voxels.split(VOXELS_AT_ONCE):
            images, slopes = _images(module.centers.mean.detach()[0], module.log_widths.mean.detach()[0], part)
            parts.append(
                torch.stack([_image_variance(spread, images, slopes.square(), of_shape) for spread in spreads])
            )
        return torch.cat(parts, 1) + white.unsqueeze(1) * scales.square()

    @torch.no_grad()
    def detail_variance(self, combination: Combination) -> Tensor:
        """Variance of what maps of detail add, the same at all voxels."""
        module = self.module
        variance, by_group = self.gram.new_zeros(()), self.gram.new_zeros(module.design_squared.shape[1])
        for p, features in self._features(combination).items():
            scores = features @ module.design_right[p]
            own, unknown = self.detail_of(p)
            variance = variance + (scores.square() * own).sum()
            by_group = by_group + module.design_right[p] @ (unknown * scores)
        return variance + by_group @ self.detail_group_covariance @ by_group

    def detail_of(self, p: int) -> tuple[Tensor, Tensor]:
        """Variances [r] of a person's own rotated maps of detail, and the share [r] of the group's not undone by them.

        Maps are made as if own ones had a variance of at least some size, v. If it is less, u, they hold noise that
        they should not: with k the share of the data in them, (1 - k)^2 u + k (1 - k) v is what they are wrong by.
        """
        module = self.module
        _, used, noise = module.detail_variances
        likely = used if module.misfit is None else module.misfit[2]
        squared = module.design_squared[p]
        if not module.has_own_detail(p):
            return likely.expand_as(squared), torch.ones_like(squared)
        known = used * squared / (noise + used * squared).clamp(min=1e-30)
        return (1 - known).square() * likely + known * (1 - known) * used, 1 - known

    def _detail_group_covariance(self) -> Tensor:
        """Covariance [r, r] of the group's maps of detail at a voxel, over features."""
        module = self.module
        group, own, noise = module.detail_variances
        r = module.design_squared.shape[1]
        if module.detail_group is None or not float(group) > 0:
            return self.gram.new_zeros(r, r)
        precision = module.design_squared / (noise + own * module.design_squared).clamp(min=1e-30)
        information = torch.einsum("prj,pj,psj->rs", module.design_right, precision, module.design_right)
        return torch.linalg.inv(information + torch.eye(r).to(information) / group)


@dataclass(frozen=True)
class _Person:
    """What frames say of one person's rotated loadings, each [r, K, K] in the basis L.

    covariance : of e_j given A
    unknown : I - G, the share of a change of A that e_j does not undo
    information : about A
    """

    covariance: Tensor
    unknown: Tensor
    information: Tensor

    @classmethod
    def of(cls, gram: Tensor, squared: Tensor, loading_sd: Tensor, sd: Tensor, noise: Tensor) -> _Person:
        tau, frames = loading_sd.detach().square(), sd.detach().square()
        total = frames + squared.unsqueeze(-1) * tau
        of_row = posterior_covariance(gram.expand(len(squared), -1, -1).clone(), total.sqrt(), noise)
        # Written without a division by tau, which may be as good as zero.
        steep = squared.sqrt().unsqueeze(-1) / total
        slope = steep * tau
        return cls(
            torch.diag_embed(tau * frames / total) + _scaled(of_row, slope, slope),
            torch.diag_embed(frames / total) + _scaled(of_row, slope, steep),
            torch.diag_embed(squared.unsqueeze(-1) / total) - _scaled(of_row, steep, steep),
        )


def _scaled(matrices: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return rows.unsqueeze(-1) * matrices * columns.unsqueeze(-2)


def _inverse(information: Tensor) -> Tensor:
    """Inverse of what is known; what nobody's frames know of is as good as unknown, not infinitely so."""
    size = information.diagonal().mean().clamp(min=1e-300)
    return torch.linalg.inv(information + 1e-9 * size * torch.eye(len(information)).to(information))


def _images(centers: Tensor, log_widths: Tensor, voxels: Tensor) -> tuple[Tensor, Tensor]:
    """Images of factors [K, V] and of their derivatives by places and widths [4 K, V]."""
    k = len(log_widths)
    images, slopes = tangents(centers, log_widths, voxels).split([k, 4 * k])
    return images, slopes


def _image_variance(spread: WeightSpread, images: Tensor, slopes_squared: Tensor, of_shape: Tensor) -> Tensor:
    squared = (spread.mean.square() + spread.covariance.diagonal()).repeat(4)
    return (spread.covariance @ images * images).sum(0) + (of_shape * squared) @ slopes_squared


# Networks ------------------------------------------------------------------------------------------------------------


class NetworkSpread(JointSpread):
    """Of networks, by the same draws of everybody's embeddings for all combinations."""

    @torch.no_grad()
    def __init__(self, module: NeuralFactors, n_draws: int = DRAWS_FOR_INTERVALS) -> None:
        self.module, noise = module, RandomSource(0)
        self.z = []
        for z, covariances in zip((module.z_participant, module.z_stimulus), module.covariances(), strict=True):
            root = torch.linalg.cholesky(covariances.detach())
            draws = noise.randn_like(root.new_empty(n_draws, *root.shape[:2]))
            self.z.append(z.mean.detach() + torch.einsum("nij,dnj->dni", root, draws))
        values, axes = torch.linalg.eigh(module.uncertainty.feature_spread)
        self.feature_root = axes * values.clamp(min=0).sqrt()

    @torch.no_grad()
    def _by_person(self, combination: Combination) -> tuple[Tensor, Tensor, Tensor]:
        """People in a combination [n], draws of their weights [draws, n, K], and features of the last layer [n, F]."""
        people, where = torch.unique(combination.participants, return_inverse=True)
        drawn = []
        for of_participants, of_stimuli in zip(*self.z, strict=True):
            pairs = torch.cat([of_participants[combination.participants], of_stimuli[combination.stimuli]], -1)
            drawn.append(combination.total(self.module.weights_of(pairs).mean, where, len(people)))
        z = (self.module.z_participant.mean, self.module.z_stimulus.mean)
        pairs = torch.cat([z[0][combination.participants], z[1][combination.stimuli]], -1)
        features = combination.total(features_of(self.module.weight_network, pairs), where, len(people))
        return people, torch.stack(drawn), features @ self.feature_root

    @torch.no_grad()
    def weights(self, combination: Combination) -> WeightSpread:
        """Sum of the mean weights, [K], and its covariance."""
        _, drawn, features = self._by_person(combination)
        total = drawn.sum(1)
        learned = features.sum(0).square().sum() * self.module.uncertainty.weights_variance
        return WeightSpread(total.mean(0), torch.atleast_2d(torch.cov(total.mT)) + torch.diag(learned))

    @torch.no_grad()
    def image_variances(self, combinations: Sequence[Combination], voxels: Tensor, scales: Tensor) -> Tensor:
        """Variances [n, V] of sums of mean images at voxels [V, 3] with scales of noise [V], in standardised units."""
        found = []
        for combination in combinations:
            people, drawn, features = self._by_person(combination)
            at_once = max(1, MOST_VALUES // (len(self.feature_root) * drawn.shape[-1] + len(drawn)))
            parts = [self._variance(people, drawn, features, part) for part in voxels.split(at_once)]
            found.append(torch.cat(parts))
        return torch.stack(found)

    def _variance(self, people: Tensor, drawn: Tensor, features: Tensor, voxels: Tensor) -> Tensor:
        mean, spread = drawn.mean(0), drawn.var(0)
        deviations = voxels.new_zeros(len(drawn), len(voxels))
        learned = voxels.new_zeros(features.shape[1], drawn.shape[-1], len(voxels))
        variance = voxels.new_zeros(len(voxels))
        for i, (images, slopes, of_shape) in enumerate(self._factors(people, voxels)):
            deviations += (drawn[:, i] - mean[i]) @ images
            learned += features[i].reshape(-1, 1, 1) * images
            variance += (of_shape * (mean[i].square() + spread[i]).repeat(4)) @ slopes.square()
        by_layer = torch.einsum("k,fkv->v", self.module.uncertainty.weights_variance, learned.square())
        return variance + deviations.square().sum(0) / (len(drawn) - 1) + by_layer

    def _factors(self, people: Tensor, voxels: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Images of each person's factors, their derivatives, and the variances of places and widths, [4 K]."""
        module = self.module
        centers_sd, log_widths_sd = module.factor_sds()
        for p in people.tolist():
            images, slopes = _images(module.centers.mean.detach()[p], module.log_widths.mean.detach()[p], voxels)
            yield images, slopes, torch.cat([centers_sd[p].T.flatten(), log_widths_sd[p]]).detach().square()
