"""Factors that are where they should be in most people, but not in all.

Three things can be the matter with a factor that all people share, in some of them. It may do nothing where it is,
because another covers the same, while much is left to explain elsewhere: it is put there. It may lie far from where
everybody else's is: it goes there. And two factors may have exchanged their places: they are exchanged back. With such
a change what people share of the factor is brought in line with where it then is in them: a template or a network that
has learned otherwise would speak against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from ntfa.models.module import TopographicModule

if TYPE_CHECKING:
    from ntfa.fitting.training import Trainer

STRAY_SPREADS = 4.0
"""How many times as far as others' a stray is, at least, from the middle of all owners' factors, and over a radius."""
MOST_CHANGES = 16
"""How many factors are tried in turn at a look, at most."""
FEWEST_OWNERS = 4
"""Owners there must be to tell which of them has a stray."""


@dataclass(frozen=True)
class Place:
    """Where a factor of one owner, by its row of all processes', would better be; the most urgent are tried first.

    heir : a factor that is to have the place that this one leaves, if that is worth having
    """

    owner: int
    factor: int
    center: Tensor
    log_width: Tensor
    urgency: float
    heir: int | None = None


class OwnChange(Protocol):
    """One or more changes of what single owners have of a factor, what is most urgent first."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def make(self, trainer: Trainer, model: TopographicModule, n: int) -> None:
        """Make the first few."""
        ...

    def forget(self, trainer: Trainer, model: TopographicModule, n: int) -> None:
        """Adapt the optimiser's moments to the first few."""
        ...


class OwnMoves:
    """A factor, and places for it in some owners."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.factor = places[0].factor
        self.places = sorted(places, key=lambda one: -one.urgency)
        self.urgency = sum(one.urgency for one in places)

    def __len__(self) -> int:
        """How many owners there are."""
        return len(self.places)

    def make(self, trainer: Trainer, model: TopographicModule, n: int) -> None:
        """Put the factor there in the first few owners, as well known as their others."""
        for place, row in self._own(trainer, n):
            if place.heir is not None:
                for parameter in _of_owners(model):
                    parameter[row, place.heir] = parameter[row, self.factor]
            model.centers.mean[row, self.factor] = place.center
            model.log_widths.mean[row, self.factor] = place.log_width
            for posterior in (model.centers, model.log_widths):
                posterior.raw_sd[row, self.factor] = posterior.raw_sd[row].median(0).values
        for factor in self._changed(n):
            bring_in_line(trainer, model, factor)

    def forget(self, trainer: Trainer, model: TopographicModule, n: int) -> None:
        """Let the optimiser begin anew with it: without momentum, in steps as large as other factors'."""
        if not n:
            return
        for kind, moments in _moments_of_owners(trainer, model):
            for place, row in self._own(trainer, n):
                if place.heir is not None:
                    moments[row, place.heir] = moments[row, self.factor]
                moments[row, self.factor] = 0 if kind == "exp_avg" else moments[row].median(0).values
        for factor in self._changed(n):
            _stop_what_is_shared(trainer, model, factor)

    def _changed(self, n: int) -> list[int]:
        heirs = {place.heir for place in self.places[:n] if place.heir is not None}
        return [self.factor, *sorted(heirs)]

    def _own(self, trainer: Trainer, n: int) -> Iterator[tuple[Place, int]]:
        for place in self.places[:n]:
            row = row_of(trainer, place.owner)
            if row is not None:
                yield place, row


@dataclass(frozen=True)
class Swap:
    """Two factors of one owner that are to have each other's places."""

    owner: int
    factors: tuple[int, int]
    urgency: float

    def __len__(self) -> int:
        """One."""
        return 1

    def make(self, trainer: Trainer, model: TopographicModule, _n: int) -> None:
        """Exchange them."""
        row = row_of(trainer, self.owner)
        if row is not None:
            for parameter in _of_owners(model):
                self._exchange(parameter[row])
        for factor in self.factors:
            bring_in_line(trainer, model, factor)

    def forget(self, trainer: Trainer, model: TopographicModule, n: int) -> None:
        """Exchange what the optimiser knows of them."""
        row = row_of(trainer, self.owner)
        if n and row is not None:
            for _, moments in _moments_of_owners(trainer, model):
                self._exchange(moments[row])
        for factor in self.factors if n else ():
            _stop_what_is_shared(trainer, model, factor)

    def _exchange(self, rows: Tensor) -> None:
        rows[list(self.factors)] = rows[list(self.factors[::-1])]


def bring_in_line(trainer: Trainer, model: TopographicModule, factor: int) -> None:
    """Let what owners share of a factor be as they have it now."""
    centers, log_widths = model.centers.normal, model.log_widths.normal
    own = [
        torch.cat([of_center[:, factor], of_width[:, factor, None]], 1)
        for of_center, of_width in zip(centers, log_widths, strict=True)
    ]
    mean, sd = (trainer.processes.gather(part) for part in own)
    spread = (mean.var(0, correction=0) + sd.square().mean(0)).sqrt()
    model.expect_factor(factor, mean.mean(0), spread)


def _of_owners(model: TopographicModule) -> Iterator[nn.Parameter]:
    """Parameters that have a row for each owner, and in it one for each factor."""
    yield from model.centers.parameters()
    yield from model.log_widths.parameters()


def _moments_of_owners(trainer: Trainer, model: TopographicModule) -> Iterator[tuple[str, Tensor]]:
    """What the optimiser knows of these."""
    for parameter in _of_owners(model):
        for kind, tensor in trainer.optimizer.state.get(parameter, {}).items():
            if tensor.shape == parameter.shape:
                yield kind, tensor


def _stop_what_is_shared(trainer: Trainer, model: TopographicModule, factor: int) -> None:
    """Take the momentum from what owners share of a factor."""
    for name, parameter in model.named_parameters():
        momentum = trainer.optimizer.state.get(parameter, {}).get("exp_avg")
        is_shared = name.partition(".")[0] not in model.sharded_parameters
        rows = model.by_factor(name, momentum) if is_shared and momentum is not None else None
        if rows is not None:
            rows[factor] = 0


def row_of(trainer: Trainer, owner: int) -> int | None:
    """Return where this process has the factors of an owner, if it does."""
    share = trainer.sharing.shares.get("owner")
    first, stop = (share.start, share.stop) if share else (0, owner + 1)
    return owner - first if first <= owner < stop else None


def by_factor(places: Sequence[Place]) -> list[OwnMoves]:
    """Bring together what is to move of each factor, the most urgent first."""
    groups: dict[int, list[Place]] = {}
    for place in places:
        groups.setdefault(place.factor, []).append(place)
    return sorted(map(OwnMoves, groups.values()), key=lambda one: -one.urgency)[:MOST_CHANGES]


def by_right(trainer: Trainer, model: TopographicModule, places: Sequence[Place]) -> list[Place]:
    """Let each place have the factor that the others have there, if that lies elsewhere in its owner.

    The factor that was to have it gets what that one leaves.
    """
    centers, log_widths = (trainer.processes.gather(part.mean) for part in (model.centers, model.log_widths))
    if len(centers) < FEWEST_OWNERS:
        return [*places]
    proposed = centers.clone()
    for place in places:
        proposed[place.owner, place.factor] = place.center
    middle, radius = proposed.median(0).values, torch.exp(log_widths.median(0).values / 2)
    apart, found = (centers - middle).norm(dim=-1), []
    for place in places:
        away = (middle - place.center).norm(dim=-1)
        # Of a factor that is where it should be, another one may be missing nearby.
        away[(apart[place.owner] < radius) | (apart[place.owner] < away)] = torch.inf
        rightful = int(away.argmin())
        known = rightful != place.factor and bool(away[rightful] < radius[rightful])
        found.append(replace(place, factor=rightful, heir=place.factor) if known else place)
    return found


def find_strays(trainer: Trainer, model: TopographicModule) -> list[Place]:
    """Find factors of one owner that are far from where those of the others are, of all processes."""
    centers, log_widths = (trainer.processes.gather(part.mean) for part in (model.centers, model.log_widths))
    if len(centers) < FEWEST_OWNERS:
        return []
    center, log_width = centers.median(0).values, log_widths.median(0).values
    apart = (centers - center).norm(dim=-1)
    far = (apart > STRAY_SPREADS * apart.median(0).values) & (apart > torch.exp(log_width / 2))
    return [
        Place(owner, factor, center[factor], log_width[factor], float(apart[owner, factor]))
        for owner, factor in far.nonzero().tolist()
    ]


def find_swaps(trainer: Trainer, model: TopographicModule) -> list[Swap]:
    """Find pairs of factors of one owner that are each nearer to where the others have the other one."""
    centers = trainer.processes.gather(model.centers.mean)
    if len(centers) < FEWEST_OWNERS:
        return []
    middle, found = centers.median(0).values, []
    for owner, own in enumerate(centers):
        apart = torch.cdist(own, middle)
        nearer = apart < apart.diagonal()[:, None]
        saved = apart.diagonal()[:, None] + apart.diagonal() - apart - apart.mT
        for j, k in (nearer & nearer.mT).triu(1).nonzero().tolist():
            found.append(Swap(owner, (j, k), float(saved[j, k])))
    return sorted(found, key=lambda one: -one.urgency)[:MOST_CHANGES]
