"""Factors that are taken from where they do nothing and put elsewhere, in the middle of a fit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Moves:
    """Which factors go where, and what their weights are there, in standardised units; m of them.

    factor : [m]
    owner : [m], whose factors move; None if those of all owners do
    centers, log_widths : [m, 3] and [m]
    mean, level_sd, sd : [m], of the weights: mean over cells, sd of cells around it, and of frames around these
    """

    factor: Tensor
    owner: Tensor | None
    centers: Tensor
    log_widths: Tensor
    mean: Tensor
    level_sd: Tensor
    sd: Tensor

    def some(self, which: slice | Tensor) -> Moves:
        """Return some of them."""
        owner = None if self.owner is None else self.owner[which]
        others = (self.centers, self.log_widths, self.mean, self.level_sd, self.sd)
        return Moves(self.factor[which], owner, *(part[which] for part in others))

    def put(self, by_factor: Tensor, values: Tensor) -> None:
        """Set the moved rows of a variable that has factors first, then owners if these move on their own."""
        if self.owner is None:
            by_factor[self.factor] = values.reshape(
                len(values), *[1] * (by_factor.dim() - values.dim()), *values.shape[1:]
            )
        else:
            by_factor[self.factor, self.owner] = values

    def make_typical(self, by_factor: Tensor) -> None:
        """Set the moved rows of a variable to what it is for a factor in the middle of all."""
        middle = by_factor.median(0).values
        if self.owner is None:
            by_factor[self.factor] = middle
        else:
            by_factor[self.factor, self.owner] = middle[self.owner]

    def clear(self, by_factor: Tensor) -> None:
        """Set the moved rows of a variable to zero."""
        by_factor[self.factor if self.owner is None else (self.factor, self.owner)] = 0
