"""F F^T over the voxels that a participant has, where that is not all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ntfa.inference.frames import Projection
from ntfa.inference.processes import ALONE, Processes

WHOLE = -1


class SeenGrams(nn.Module):
    """Gram matrices of participants who lack voxels; nothing, if nobody does.

    own : [Q, K, K], or None
    which : [P], the place of each participant's matrix, -1 for that of all voxels, or None
    """

    own: Tensor | None
    which: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("own", None)
        self.register_buffer("which", None)

    def of(self, whole: Tensor, participants: Tensor) -> Tensor:
        """Return matrices [n, K, K] of some participants, or the one [K, K] that all have."""
        if self.own is None or self.which is None:
            return whole
        which = self.which[participants]
        seen = self.own[which.clamp(min=0)]
        return torch.where((which == WHOLE)[:, None, None], whole, seen)

    @torch.no_grad()
    def remember(
        self,
        projection: Projection,
        n_participants: int,
        processes: Processes = ALONE,
        places: Tensor | None = None,
    ) -> None:
        """Keep the matrices of all processes' blocks, which are participants in order, or those at `places`."""
        blocks, groups = len(projection.gram), projection.groups
        found = projection.gram[:0] if groups is None else projection.distinct_gram
        counts = processes.gather(torch.tensor([len(found)], device=found.device)).tolist()
        if not any(counts):
            return
        n_before = 0 if self.own is None else len(self.own)
        first = n_before + sum(counts[: processes.rank])
        which = torch.full((blocks,), WHOLE, device=found.device) if groups is None else groups.of_block + first
        gathered, matrices = processes.gather(which), processes.gather(found)
        self.make_room(n_before + len(matrices), n_participants, matrices)
        assert self.own is not None
        assert self.which is not None
        self.own[n_before:] = matrices
        self.which[torch.arange(len(gathered)).to(gathered) if places is None else places] = gathered

    def make_room(self, n_matrices: int, n_participants: int, like: Tensor) -> None:
        """Make room for more matrices and participants, and keep those there are."""
        own = torch.zeros(n_matrices, *like.shape[-2:], dtype=like.dtype, device=like.device)
        which = torch.full((n_participants,), WHOLE, device=like.device)
        if self.own is not None and self.which is not None:
            own[: len(self.own)], which[: len(self.which)] = self.own, self.which
        self.own, self.which = own, which

    def expect(self, name: str, tensors: Mapping[str, Tensor], gram: Tensor, n_participants: int) -> None:
        """Make room for what a saved module has under a name."""
        saved, which = tensors.get(f"{name}.own"), tensors.get(f"{name}.which")
        if saved is None or which is None:
            return
        sound = which.dtype == torch.long and bool(((which >= WHOLE) & (which < len(saved))).all())
        if not sound or not 0 < len(saved) <= n_participants:
            raise ValueError(f"{name} in model.safetensors does not say who lacks voxels")
        self.make_room(len(saved), n_participants, gram)
