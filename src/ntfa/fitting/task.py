"""Before a fit: whose participants are this process's, where their frames lie, and how coarse they may be at first."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import distributed as dist

from ntfa.errors import ModelError
from ntfa.fitting.arrange import Labels, Layout, arrange
from ntfa.fitting.pooling import Boxes, pool
from ntfa.fitting.sharing import Sharing
from ntfa.fitting.spoiled import FrameTrust, frame_trust
from ntfa.fitting.voxel_noise import noise_scales
from ntfa.inference.cells import Cells
from ntfa.inference.frames import Frames
from ntfa.inference.processes import ALONE, DistributedProcesses, Processes, Share, divide
from ntfa.inference.pursuit import spacing_of
from ntfa.inference.start import Start
from ntfa.inference.streaming import is_stored
from ntfa.inference.upload import uploaded_once
from ntfa.study import Study

TOO_FEW_TO_POOL = 4_000_000
"""Frames times voxels under which pooling voxels does not pay."""
MANY = 30_000_000
"""Frames times voxels from which on small voxels are pooled before there are factors: to look for these takes long."""

logger = logging.getLogger("ntfa")

LARGEST_BOX_MM = 8.5
"""Side of a box of two voxels a side that may stand for them at first: a factor's radius is seldom smaller."""
LARGE_BOX_MM = 6.0
"""As far as more than two voxels a side are pooled."""
WIDEST_BOX = 0.85
"""Side of a box of two larger voxels a side, over the radii of all but the narrowest quarter of a start's factors."""
MOST_MAPPED = 256
"""Files of participants that may be mapped at the same time."""
FIXED_BYTES = 700 << 20
"""What a process takes besides frames: libraries, and a step's matrices."""


@dataclass(frozen=True)
class Task:
    """What there is to fit, as far as this process is concerned.

    labels, cells : of all processes
    frames, coarse : of this process's participants; `coarse` are pooled, None if that is not worth while, or not known
        to be fine before there are factors
    pools_if_wide : whether voxels are pooled two to a side if factors are wide
    trust : how far frames may be trusted, of all processes; None if nobody asked
    """

    labels: Labels
    cells: Cells
    frames: Frames
    coarse: Frames | None
    sharing: Sharing
    trust: FrameTrust | None = None
    pools_if_wide: bool = False

    def coarse_for(self, start: Start) -> Frames | None:
        """Return pooled frames for the first steps of a fit from a start, None if all are to be on all voxels."""
        if not self.pools_if_wide:
            return self.coarse
        side = 2 * spacing_of(self.frames.coordinates.cpu().numpy())
        radius = float(torch.exp(0.5 * torch.quantile(start.log_widths, 0.25)))
        return self._two_to_a_side if side <= WIDEST_BOX * radius else None

    @cached_property
    def _two_to_a_side(self) -> Frames | None:
        return _coarse(self.frames, 2, None)

    def gathered(self, start: Start) -> Start:
        """Return a start with the cells of all processes."""
        return replace(start, cell_weights=self.sharing.processes.gather(start.cell_weights))


def current_processes() -> Processes:
    """Return the processes that share a fit: those that torchrun started, or this one alone."""
    return (
        DistributedProcesses() if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 else ALONE
    )


def prepare(
    study: Study,
    layout: Layout,
    labels: Labels,
    device: torch.device,
    sharded: Mapping[str, str],
    *,
    coarse: str = "never",
    memory: int | None = None,
    noise: str = "same",
    weighting: str = "equal",
) -> Task:
    """Lay out a study for a fit.

    Parameters
    ----------
    sharded : which of the module's variables have a row a "participant", which a row an "owner" of factors
    coarse : {"auto", "always", "never"}
    memory : bytes to stay within, None for no limit
    noise : {"same", "voxel"}
    weighting : {"robust", "equal"}
        Whether spoiled frames count less.
    """
    processes = current_processes()
    theirs = own_participants(study, processes)
    own_study = study.select(participants=theirs)
    trust = frame_trust(own_study, study.stimuli, processes, device) if weighting == "robust" else None
    counts = None if trust is None else trust.by_participant(own_study)
    scales = noise_scales(own_study, device, processes, counts) if noise == "voxel" else None
    how = partial(arrange, on_disk=memory is not None, processes=processes, scales=scales)
    frames = how(own_study, layout, labels, device, trust=None if trust is None else trust.counted).frames
    sharing = _sharing(labels, theirs, frames, sharded, processes)
    cells = frames.cells
    participant, owner = (sharing.shares.get(kind) for kind in ("participant", "owner"))
    local = replace(
        cells,
        participant=cells.participant - (participant.start if participant else 0),
        owner=cells.owner - (owner.start if owner else 0),
    )
    frames = replace(frames, cells=local)
    times = pooled_side(study, coarse, on_disk=is_stored(frames.blocks))
    whole = None if trust is None else trust.gathered(processes, device)
    pooled = _coarse(frames, times, memory)
    pools_if_wide = pooled is None and coarse == "auto" and study.n_data >= TOO_FEW_TO_POOL
    return Task(labels, _gathered(cells, processes), frames, pooled, sharing, whole, pools_if_wide)


@contextmanager
def uploaded(study: Study, device: torch.device, memory: float | str | None) -> Iterator[Study]:
    """Have frames on a GPU for all that looks at them before a fit's first step; yields the study to look at.

    With a limit of memory frames are where that leaves them, and of several processes each has only some of them.
    """
    if device.type != "cuda" or memory is not None or current_processes().size > 1:
        yield study
        return
    if len(study.participants) <= MOST_MAPPED:
        # Files are mapped anew whenever they are asked for, and what is uploaded is known by what it was copied from.
        study = replace(study, frames=dict(study.frames))
    with uploaded_once(device, study.frames.values() if isinstance(study.frames, dict) else ()):
        yield study


def own_participants(study: Study, processes: Processes) -> list[str]:
    """Choose this process's participants: neighbours in order, with about as many frames as the others have."""
    if processes.size > len(study.participants):
        raise ModelError(
            f"{processes.size} processes are more than the study's {len(study.participants)} participants, "
            "which are what is divided among them; start fewer"
        )
    participants = study.participants
    lengths = (study.trials["stop"] - study.trials["start"]).groupby(study.trials["participant"]).sum()
    loads = lengths[participants].astype(float).tolist()
    return [participants[i] for i in divide(loads, processes.size)[processes.rank]]


def _sharing(
    labels: Labels, participants: list[str], frames: Frames, sharded: Mapping[str, str], processes: Processes
) -> Sharing:
    if processes.size == 1:
        return Sharing()
    first = labels.participants.index(participants[0])
    of_participants = Share(first, first + len(participants), len(labels.participants))
    first_owner = int(frames.cells.owner.min())
    of_owners = Share(first_owner, first_owner + len(frames.blocks), len(labels.owners))
    counts = processes.gather(torch.tensor([len(frames.energy)], device=frames.energy.device)).tolist()
    before = sum(counts[: processes.rank])
    of_frames = Share(before, before + len(frames.energy), sum(counts))
    kinds = {"participant": of_participants, "owner": of_owners, "likelihood": of_frames}
    return Sharing(processes, kinds | {name: kinds[kind] for name, kind in sharded.items()})


def _gathered(cells: Cells, processes: Processes) -> Cells:
    """Return the cells of all processes, in the order of processes; which frames are theirs is left out."""
    if processes.size == 1:
        return cells
    n_blocks = processes.gather(torch.tensor([len(cells.owner)], device=cells.owner.device)).tolist()
    whole = Cells(
        processes.gather(cells.participant),
        processes.gather(cells.stimulus),
        processes.gather(cells.block + sum(n_blocks[: processes.rank])),
        (),
        processes.gather(cells.owner),
        None if cells.design is None else processes.gather(cells.design),
    )
    whole.__dict__.update(count=processes.gather(cells.count), mass=processes.gather(cells.mass))
    return whole


def pooled_side(study: Study, wish: str, *, on_disk: bool) -> int:
    """Say how many voxels to a side are pooled at first, 1 for none: where voxels are small and the study is large."""
    times = _side(spacing_of(study.positions), wish == "always" or on_disk)
    return times if on_disk or wish == "always" or (wish == "auto" and study.n_data >= MANY) else 1


def _side(spacing_mm: float, at_any_rate: bool) -> int:
    two = 2 if at_any_rate or 2 * spacing_mm <= LARGEST_BOX_MM else 1
    return max(two, int(LARGE_BOX_MM / spacing_mm))


def _coarse(frames: Frames, times: int, memory: int | None) -> Frames | None:
    """Pool the frames, so many voxels to a side, or more if they would not fit into memory."""
    if times == 1:
        return None
    spacing = spacing_of(frames.coordinates.cpu().numpy())
    if memory is not None and is_stored(frames.blocks):
        times = _times_that_fit(frames, spacing, times, memory)
    pooled = pool(frames, times * spacing)
    logger.debug("voxels pooled %d to a side: %d columns for %d", times, len(pooled.coordinates), frames.n_voxels)
    return pooled


def _times_that_fit(frames: Frames, spacing: float, times: int, memory: int) -> int:
    """Find how many voxels to a side must be pooled for the pooled frames to fit into memory beside two blocks."""
    largest = max(block.n_frames for block in frames.blocks)
    room = memory - FIXED_BYTES - 8 * largest * frames.n_voxels
    for wider in range(times, times + 4):
        taken = 4 * len(frames.energy) * len(Boxes.around(frames.coordinates, wider * spacing).count)
        if taken <= room:
            return wider
    need = memory - room + taken
    raise ModelError(
        f"memory={memory / 2**30:.2f} GiB is too little for this study: two participants' frames at a time, the frames "
        f"pooled and all else take {need / 2**30:.2f} GiB"
    )
