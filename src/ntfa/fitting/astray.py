"""Factors that are where they should be in most people, but not in all.

Three things can be the matter with a factor that all people share, in some of them. It may do nothing where it is,
because another covers the same, while much is left to explain elsewhere: it is put there. It may lie far from where
everybody else's is: it goes there. And two factors may have exchanged their places: they are exchanged back. With such
a change what people share of the factor is brought in line with where it then is in them: a template or a network that
has learned otherwise would speak against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ntfa.models.module import TopographicModule

if TYPE_CHECKING:
    from ntfa.fitting.training import Trainer

STRAY_SPREADS = 4.0
"""How many times as far as others' a stray is, at least, from the middle of all owners' factors, and over a radius."""
MOST_CHANGES = 16
"""How many changes are tried of an owner at a look, at most."""
FEWEST_OWNERS = 4
"""Owners there must be to tell which of them has a stray."""


@dataclass(frozen=True)
class Place:
    """Where a factor of one owner would better be; the most urgent of an owner's are tried first.

    owner : by its row of all processes'
    heir : a factor that is to have the place that this one leaves, if that is worth having
    """

    owner: int
    factor: int
    center: Tensor
    log_width: Tensor
    urgency: float
    heir: int | None = None


def in_turns(places: Iterable[Place]) -> Iterator[list[Place]]:
    """Bring together the most urgent place of each owner, then the next one of each that has another, and so on."""
    of_owners: dict[int, list[Place]] = {}
    for place in sorted(places, key=lambda one: -one.urgency):
        of_owners.setdefault(place.owner, []).append(place)
    for together in zip_longest(*(own[:MOST_CHANGES] for own in of_owners.values())):
        yield [place for place in together if place is not None]


class _Rows(NamedTuple):
    """Which of a few places are for owners of this process: rows of owners, factors, and which have heirs; [m]."""

    places: list[Place]
    row: Tensor
    factor: Tensor
    has_heir: Tensor
    heir: Tensor

    @classmethod
    def of(cls, trainer: Trainer, model: TopographicModule, places: Sequence[Place]) -> _Rows:
        own = [(row, place) for place in places if (row := row_of(trainer, place.owner)) is not None]
        table = [(row, place.factor, -1 if place.heir is None else place.heir) for row, place in own]
        row, factor, heir = torch.tensor(table, dtype=torch.long, device=model.centers.mean.device).reshape(-1, 3).T
        return cls([place for _, place in own], row, factor, heir >= 0, heir)

    def leave(self, of_owners: Tensor) -> None:
        """Let heirs have what the factors leave of a variable."""
        row = self.row[self.has_heir]
        of_owners[row, self.heir[self.has_heir]] = of_owners[row, self.factor[self.has_heir]]

    def make_typical(self, of_owners: Tensor) -> None:
        """Let factors have of a variable what the owner's others have."""
        of_owners[self.row, self.factor] = of_owners[self.row].median(1).values


def make_changes(trainer: Trainer, model: TopographicModule, places: Sequence[Place], n: int) -> None:
    """Put factors there, as well known as their owner's others, and bring what is shared of them in line with that.

    Of one owner there is one place at most; of all, the first few are taken.
    """
    rows = _Rows.of(trainer, model, places[:n])
    values = [place.center for place in rows.places], [place.log_width for place in rows.places]
    for posterior, value in zip((model.centers, model.log_widths), values, strict=True):
        rows.leave(posterior.mean)
        rows.leave(posterior.raw_sd)
        rows.make_typical(posterior.raw_sd)
        if value:
            posterior.mean[rows.row, rows.factor] = torch.stack(value).to(posterior.mean)
    for factor in _changed(places[:n]):
        bring_in_line(trainer, model, factor)


def forget_changed(trainer: Trainer, model: TopographicModule, places: Sequence[Place]) -> None:
    """Let the optimiser begin anew with what was changed: without momentum, in steps as large as other factors'."""
    rows = _Rows.of(trainer, model, places)
    for kind, moments in _moments_of_owners(trainer, model):
        rows.leave(moments)
        if kind == "exp_avg":
            moments[rows.row, rows.factor] = 0
        else:
            rows.make_typical(moments)
    for factor in _changed(places):
        _stop_what_is_shared(trainer, model, factor)


def _changed(places: Sequence[Place]) -> list[int]:
    factors = {place.factor for place in places} | {place.heir for place in places if place.heir is not None}
    return sorted(factors)


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


def _moments_of_owners(trainer: Trainer, model: TopographicModule) -> Iterator[tuple[str, Tensor]]:
    """What the optimiser knows of these."""
    for parameter in (*model.centers.parameters(), *model.log_widths.parameters()):
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


def find_swaps(trainer: Trainer, model: TopographicModule) -> list[Place]:
    """Find pairs of factors of one owner, over a radius off, that are each nearer to where the others have the other.

    The first of them goes to where the other one is, and that one has its place.
    """
    centers, log_widths = (trainer.processes.gather(part.mean) for part in (model.centers, model.log_widths))
    if len(centers) < FEWEST_OWNERS:
        return []
    middle, radius = centers.median(0).values, torch.exp(log_widths.median(0).values / 2)
    far, found = (centers - middle).norm(dim=-1) > radius, []
    for owner in (far.sum(1) > 1).nonzero().flatten().tolist():
        apart = torch.cdist(centers[owner], middle)
        nearer = (apart < apart.diagonal()[:, None]) & far[owner]
        saved = apart.diagonal()[:, None] + apart.diagonal() - apart - apart.mT
        pairs = (nearer & nearer.mT).triu(1).nonzero().tolist()
        free = set(range(len(middle)))
        for j, k in sorted(pairs, key=lambda pair: -float(saved[*pair])):
            # What has gone elsewhere already is not there to exchange.
            if {j, k} <= free:
                free -= {j, k}
                there = centers[owner, k].clone(), log_widths[owner, k].clone()
                found.append(Place(owner, j, *there, float(saved[j, k]), heir=k))
    return found
