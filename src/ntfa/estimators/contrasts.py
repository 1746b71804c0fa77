"""Contrasts of a fitted model: how the mean responses of two sets of pairs differ, voxel by voxel, factor by factor.

Let d be the difference of the two mean predicted maps and v its posterior variance, all that the pairs have in common
taken into account (`ntfa.uncertainty.combinations`). About *these people*, z = d / v^1/2.

About the *population* that they come from, other people would have other maps. With d_p the map of person p and v_p its
posterior variance, s^2 the sample variance of the d_p of n people, the true maps vary between people by

    b = s^2 + (sum_p v_p - n v) / (n - 1)          (E[sample variance of true maps | data])

and the variance of d around the population's difference is v + b / n, with Satterthwaite's degrees of freedom: n - 1
for b, unlimited for v. The d_p are differences within a person if both sets have the same people, and means of a group
of people otherwise, of which the two b / n add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from ntfa.contract import Pairs, as_pairs
from ntfa.errors import ModelError
from ntfa.estimators.images import to_image
from ntfa.estimators.result import Fitted
from ntfa.models.loadings import LoadingFactors
from ntfa.models.ntfa import NeuralFactors
from ntfa.study.atlas import Atlas
from ntfa.uncertainty.combinations import Combination, JointSpread, joint_spread
from ntfa.uncertainty.differences import adjusted

Floats = NDArray[np.float64]
MAPS = ("difference", "sd", "z", "p", "thresholded")
LEAST_PEOPLE = 3
# Beyond this a z-value means no more, and in float64 tails end.
LARGEST_Z = 37.0
TAIL = 0.05
"""Least sd of a voxel, in units of the largest: far out in a factor's tail difference and sd both vanish, and their
ratio would be the factor's, as if one knew how a response ends where there is none."""


@dataclass(frozen=True)
class Estimated:
    """A difference with its sd and degrees of freedom, one number per voxel or per factor."""

    difference: Floats
    sd: Floats
    freedom: Floats | None = None

    @property
    def p(self) -> Floats:
        """Two-sided p-values."""
        from scipy.special import ndtr, stdtr

        ratio = -np.abs(self._ratio)
        return np.asarray(2 * (ndtr(ratio) if self.freedom is None else stdtr(self.freedom, ratio)))

    @property
    def z(self) -> Floats:
        """The difference in units of its sd; with degrees of freedom, the z-value that has the same p-value."""
        from scipy.special import ndtri

        if self.freedom is None:
            return self._ratio
        size = -ndtri(np.maximum(self.p / 2, np.finfo(float).tiny))
        return np.asarray(np.sign(self._ratio) * np.minimum(size, LARGEST_Z))

    @property
    def _ratio(self) -> Floats:
        # What nothing is uncertain about, and nothing differs in, is zero.
        return self.difference / np.maximum(self.sd, np.finfo(float).tiny) * (self.sd > 0)


@dataclass(frozen=True, eq=False)
class Contrast:
    """The difference of the mean predicted maps of two sets of (participant, stimulus) pairs.

    Attributes
    ----------
    difference, sd, z, p : array of shape (V,)
        Mean map of the first set less that of the second, its standard deviation, their ratio (or the z-value with the
        same p-value, if degrees of freedom are few) and its two-sided p-value.
    threshold : float
        Size of z from which voxels are significant at the false discovery rate `alpha` (Benjamini and Hochberg);
        infinite if none is.
    significant : array of bool of shape (V,)
    factors : DataFrame
        The same of the factors' mean weights, those that differ most clearly first: `factor, x, y, z, width` (mm),
        `difference, sd, z_value, p, p_adjusted`, and `region` if there is an atlas.
    population : bool
        Whether sds are about the population that these people come from, instead of these people.
    """

    pairs_a: list[tuple[str, str]]
    pairs_b: list[tuple[str, str]]
    population: bool
    alpha: float
    voxels: Estimated
    weights: Estimated
    places: pd.DataFrame
    coordinates: NDArray[Any]
    mask_img: Any
    atlas: Atlas | None = None

    @property
    def difference(self) -> Floats:
        """Mean map of the first set less that of the second, [V]."""
        return self.voxels.difference

    @property
    def sd(self) -> Floats:
        """Standard deviation of the difference, [V]."""
        return self.voxels.sd

    @cached_property
    def z(self) -> Floats:
        """The difference as a z-value, [V]."""
        return self.voxels.z

    @cached_property
    def p(self) -> Floats:
        """Two-sided p-values, not adjusted, [V]."""
        return self.voxels.p

    @cached_property
    def significant(self) -> NDArray[np.bool_]:
        """Voxels that differ at the false discovery rate `alpha`, [V]."""
        return np.asarray(adjusted(self.p) <= self.alpha)

    @property
    def threshold(self) -> float:
        """Smallest size of z of a significant voxel; infinite if there is none."""
        return float(np.abs(self.z[self.significant]).min(initial=np.inf))

    @cached_property
    def factors(self) -> pd.DataFrame:
        """Factors and how their mean weights differ, those that differ most clearly first."""
        found, p = self.weights, self.weights.p
        table = self.places.assign(difference=found.difference, sd=found.sd, z_value=found.z, p=p)
        table["p_adjusted"] = adjusted(p)
        if self.atlas is not None:
            table["region"] = self.atlas.names(table[["x", "y", "z"]].to_numpy())
        return table.sort_values("p", kind="stable").reset_index(drop=True)

    def map(self, name: str = "difference") -> Floats:
        """One of the maps [V]: "difference", "sd", "z", "p" or "thresholded", z with zeros where not significant."""
        if name not in MAPS:
            raise ModelError(f"a contrast has no map {name!r}: choose one of {', '.join(MAPS)}")
        return np.where(self.significant, self.z, 0.0) if name == "thresholded" else getattr(self, name)

    def img(self, name: str = "difference") -> Any:
        """One of the maps as a 3-D Nifti image in the study's space; names as in `map`."""
        return to_image(self.map(name), self.mask_img)

    def plot(self, **options: Any) -> Any:
        """Draw difference and significant z-values on a brain; options are those of `plots.plot_contrast`."""
        # Pictures are a layer above models; nothing is imported from there unless one is asked for.
        from ntfa.plots.contrasts import plot_contrast

        return plot_contrast(self, **options)

    def __repr__(self) -> str:
        about = "the population" if self.population else "these people"
        return (
            f"Contrast of {len(self.pairs_a)} and {len(self.pairs_b)} pairs, about {about}: "
            f"{int(self.significant.sum())} of {len(self.z)} voxels differ (FDR {self.alpha:g})"
        )


class Contraster:
    """Works out contrasts of one fitted model; what all of them need is worked out once."""

    def __init__(self, fitted: Fitted, places: pd.DataFrame, mean_images: Any) -> None:
        module = fitted.module
        assert isinstance(module, NeuralFactors | LoadingFactors)
        self.fitted, self.places, self.mean_images = fitted, places, mean_images
        self.joint: JointSpread = joint_spread(module)
        self._voxels = fitted.units.standardise(torch.from_numpy(fitted.positions)).to(module.noise_sd).detach()
        self._scales = torch.from_numpy(fitted.scales).to(self._voxels)

    def contrast(self, pairs_a: Pairs, pairs_b: Pairs, population: bool, alpha: float, atlas: Atlas | None) -> Contrast:
        """Compare two sets of pairs."""
        a, b = (_checked(pairs, name) for pairs, name in ((pairs_a, "pairs_a"), (pairs_b, "pairs_b")))
        if set(a) == set(b):
            raise ModelError("both sets have the same pairs: there is nothing to contrast")
        if not 0 < alpha < 1:
            raise ModelError(f"alpha={alpha!r}: must be above 0 and below 1")
        self.fitted.pair_indices([*a, *b])
        voxels, weights = self._population(a, b) if population else self._these(a, b)
        people = {participant for participant, _ in [*a, *b]}
        places = self.places[self.places["participant"].isin(people)]
        places = places.groupby("factor")[["x", "y", "z", "width"]].mean().reset_index()
        fitted = self.fitted
        return Contrast(a, b, population, alpha, voxels, weights, places, fitted.coordinates, fitted.mask_img, atlas)

    def _these(self, a: list[tuple[str, str]], b: list[tuple[str, str]]) -> tuple[Estimated, Estimated]:
        """About these people: posterior mean and sd."""
        sums = self._sums([_Sum.difference(a, b)])
        return tuple(Estimated(mean[0], np.sqrt(variance[0])) for mean, variance in sums)  # type: ignore[return-value]

    def _population(self, a: list[tuple[str, str]], b: list[tuple[str, str]]) -> tuple[Estimated, Estimated]:
        """About the population: how people differ counts too."""
        groups = _groups(a, b)
        sums = [total for group in groups for total in group]
        whole = _Sum.joined([total.times(1 / len(group)) for group in groups for total in group])
        means = [_Sum.joined([total.times(1 / len(group)) for total in group]) for group in groups]
        sizes = [len(group) for group in groups]
        return tuple(  # type: ignore[return-value]
            _random_effects(mean, variance, sizes) for mean, variance in self._sums([whole, *means, *sums])
        )

    def _sums(self, sums: Sequence[_Sum]) -> list[tuple[Floats, Floats]]:
        """Means and variances of sums of maps [n, V], and of weights [n, K], in the units of the data."""
        intensity, combinations = self.fitted.units.intensity, [self._combination(total) for total in sums]
        variances = self.joint.image_variances(combinations, self._voxels, self._scales)
        variances = variances + TAIL**2 * variances.amax(1, keepdim=True)
        pairs = list(dict.fromkeys(pair for total in sums for pair in total.pairs))
        place, images = {pair: i for i, pair in enumerate(pairs)}, self.mean_images(pairs).astype(np.float64)
        maps = np.stack(
            [np.array(total.coefficients) @ images[[place[pair] for pair in total.pairs]] for total in sums]
        )
        spreads = [self.joint.weights(combination) for combination in combinations]
        weights = torch.stack([spread.mean for spread in spreads]).cpu().numpy() * intensity
        of_weights = torch.stack([spread.covariance.diagonal() for spread in spreads]).cpu().numpy() * intensity**2
        return [(maps, variances.cpu().numpy() * intensity**2), (weights, of_weights)]

    def _combination(self, total: _Sum) -> Combination:
        participants, stimuli = self.fitted.pair_indices(total.pairs)
        device = self._voxels.device
        coefficients = torch.tensor(total.coefficients, dtype=self._voxels.dtype, device=device)
        return Combination(participants.to(device), stimuli.to(device), coefficients)


@dataclass(frozen=True)
class _Sum:
    """A weighted sum of pairs."""

    pairs: list[tuple[str, str]]
    coefficients: list[float]

    @classmethod
    def mean(cls, pairs: list[tuple[str, str]]) -> _Sum:
        return cls(pairs, [1 / len(pairs)] * len(pairs))

    @classmethod
    def difference(cls, a: list[tuple[str, str]], b: list[tuple[str, str]]) -> _Sum:
        return cls.joined([cls.mean(a), cls.mean(b).times(-1)])

    @classmethod
    def joined(cls, sums: Sequence[_Sum]) -> _Sum:
        return cls([p for total in sums for p in total.pairs], [c for total in sums for c in total.coefficients])

    def times(self, factor: float) -> _Sum:
        return _Sum(self.pairs, [factor * coefficient for coefficient in self.coefficients])


def _checked(pairs: Pairs, name: str) -> list[tuple[str, str]]:
    """Return the pairs, each once: a set of pairs has none twice."""
    found = list(dict.fromkeys(as_pairs(pairs)))
    if not found:
        raise ModelError(f"{name} has no pairs")
    return found


def _groups(a: list[tuple[str, str]], b: list[tuple[str, str]]) -> list[list[_Sum]]:
    """What is compared of each person: one group of differences, or two groups of means, the second with a minus."""
    of_a, of_b = _by_person(a), _by_person(b)
    both = sorted(of_a.keys() & of_b.keys())
    if of_a.keys() == of_b.keys():
        groups = [[_Sum.difference(of_a[who], of_b[who]) for who in both]]
    elif both:
        raise ModelError(
            f"{', '.join(both[:5])}{', ...' if len(both) > 5 else ''} is in both sets, and others are in one alone: "
            "about a population, either the same people must be in both sets or none"
        )
    else:
        groups = [[_Sum.mean(own) for own in of_a.values()], [_Sum.mean(own).times(-1) for own in of_b.values()]]
    for group, people in zip(groups, (of_a, of_b), strict=False):
        if len(group) < LEAST_PEOPLE:
            raise ModelError(
                f"{', '.join(people)}: of {len(group)} nothing can be said about a population; {LEAST_PEOPLE} people "
                "are the least, or leave population=True out to speak of these people"
            )
    return groups


def _by_person(pairs: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for pair in pairs:
        found.setdefault(pair[0], []).append(pair)
    return found


def _random_effects(mean: Floats, variance: Floats, sizes: list[int]) -> Estimated:
    """Put together: rows are the whole difference, each group's mean, then each person's, group after group."""
    total, squares = variance[0].copy(), np.zeros_like(variance[0])
    first = 1 + len(sizes)
    for i, n in enumerate(sizes):
        own, posterior = mean[first : first + n], variance[first : first + n]
        between = own.var(0, ddof=1) + (posterior.sum(0) - n * variance[1 + i]) / (n - 1)
        share = np.maximum(between, 0) / n
        total += share
        squares += share**2 / (n - 1)
        first += n
    freedom = total**2 / np.maximum(squares, np.finfo(float).tiny)
    return Estimated(mean[0], np.sqrt(total), np.minimum(freedom, 1e6))
