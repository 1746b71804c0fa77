"""From a study to arranged frames: which trials share factors, which share a weight prior, in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntfa.errors import ModelError, StudyError
from ntfa.fitting.design import Coding
from ntfa.inference.cells import Cells
from ntfa.inference.frames import Frames, Units
from ntfa.inference.processes import ALONE, Processes
from ntfa.inference.projection import FrameBlock, place_blocks
from ntfa.inference.streaming import StoredBlock, is_stored
from ntfa.inference.upload import as_tensor
from ntfa.study import Study


@dataclass(frozen=True)
class Layout:
    """How a kind of model groups trials.

    own_factors, own_weights : "participant", "trial", "cell" (all trials of a participant and a stimulus) or "design"
        (all trials of a participant with the same design row)
        What has a set of factors, and what has a prior on weights, of its own.
    """

    own_factors: str
    own_weights: str


@dataclass(frozen=True)
class Labels:
    """What a fitted model knows: participants, stimuli and owners of factors, by their place in this list.

    `design` says how trials become design rows, for a model that has them. `fingerprints` tell the trials that own
    factors by what was recorded in them: another study has other trials at the same frame numbers.
    """

    participants: list[str]
    stimuli: list[str]
    owners: list[Hashable]
    design: Coding | None = None
    # Not shown: checkpoints know a study by how its labels are shown, and what is in the frames by other means.
    fingerprints: list[str] | None = field(default=None, repr=False)

    def with_fingerprints(self, study: Study) -> Labels:
        """Add the fingerprints of the trials that own factors, where trials do."""
        if not all(isinstance(owner, tuple) for owner in self.owners):
            return self
        return replace(self, fingerprints=[_fingerprint(study, owner) for owner in self.owners])


@dataclass(frozen=True)
class Arranged:
    """A study's frames in the order of inference, and the way back to its trials."""

    frames: Frames
    trial_frames: list[Tensor]


def owner_key(layout: Layout, trial: object) -> Hashable:
    """Name whose factors a trial (a named tuple of the trials table) uses."""
    participant = str(trial.participant)  # type: ignore[attr-defined]
    if layout.own_factors == "participant":
        return participant
    return (participant, int(trial.start), int(trial.stop))  # type: ignore[attr-defined]


def labels_of(study: Study, layout: Layout) -> Labels:
    """Collect the labels of the study that a model is fitted to."""
    owners = dict.fromkeys(owner_key(layout, trial) for trial in _in_order(study))
    return Labels(list(study.participants), list(study.stimuli), list(owners))


def _fingerprint(study: Study, owner: Any) -> str:
    """Digest the frames of a trial, (participant, start, stop)."""
    participant, start, stop = owner
    frames = np.ascontiguousarray(study.frames[participant][start:stop], dtype="<f4")
    return hashlib.blake2b(frames.data, digest_size=16).hexdigest()


def arrange(
    study: Study,
    layout: Layout,
    labels: Labels,
    device: torch.device,
    units: Units | None = None,
    *,
    on_disk: bool = False,
    processes: Processes = ALONE,
    scales: np.ndarray | None = None,
    trust: Tensor | None = None,
) -> Arranged:
    """Lay out the study's frames; `units` are found from those of all processes unless given.

    on_disk : leave frames that are mapped from files where they are
    scales : noise sds of the voxels in units of their geometric mean, if they are not the same
    trust : how much each trial frame counts, by participant and time, if not one
    """
    label_indices("participant", study.participants, labels.participants)
    blocks, block_keys, trial_frames = _blocks(study, layout, on_disk)
    cells = _cells(study, layout, labels, block_keys, trial_frames, device)
    if trust is not None:
        cells = replace(cells, trust=trust.to(device))
    coordinates = torch.from_numpy(np.ascontiguousarray(study.positions, dtype=np.float64))
    placed = blocks if is_stored(blocks) else place_blocks(blocks, device)
    noise = None if scales is None else torch.from_numpy(scales)
    lacked = None if not study.coverage else _lacked(study, [_participant_of(key) for key in block_keys])
    frames = Frames.arrange(placed, cells, coordinates, units or _units(study.positions), noise, lacked)
    if study.reach is not None:
        frames = replace(frames, reach=study.reach / frames.units.length)
    # |y|^2 of every frame is known already, so that frames are looked through only if there is something to find.
    if not bool(torch.isfinite(frames.energy).all()):
        require_finite_trials(study)
    if units is None:
        energy, n = processes.total(torch.stack([frames.cell_energy.sum(), frames.energy.new_tensor(frames.n_data)]))
        frames = frames.with_intensity(float(energy / n) ** 0.5 or 1.0)
    return Arranged(frames, [trial_frames[i] for i in range(study.n_trials)])


def _participant_of(key: Hashable) -> str:
    """Whose a block is; see `owner_key`."""
    return str(key[0]) if isinstance(key, tuple) else str(key)


def _lacked(study: Study, participants: Sequence[str]) -> tuple[Tensor, list[Tensor]]:
    """Return a number for each block, the same for who lacks the same voxels, and the voxels of each number."""
    numbers: dict[bytes, int] = {}
    columns, pattern = list[Tensor](), []
    for participant in participants:
        seen = study.coverage.get(participant)
        key = b"" if seen is None else np.packbits(seen).tobytes()
        if key not in numbers:
            numbers[key] = len(columns)
            columns.append(torch.from_numpy(np.flatnonzero(~seen) if seen is not None else np.empty(0, np.int64)))
        pattern.append(numbers[key])
    return torch.tensor(pattern), columns


def _in_order(study: Study) -> list:
    """Trials as named tuples with their row number first, by participant and time."""
    table = study.trials.reset_index(drop=True)[["participant", "stimulus", "start", "stop"]]
    return list(table.sort_values(["participant", "start"], kind="stable").itertuples())


def _blocks(study: Study, layout: Layout, on_disk: bool) -> tuple[list[FrameBlock], list[Hashable], dict[int, Tensor]]:
    runs: dict[Hashable, list[slice]] = {}
    arrays = {participant: study.frames[participant] for participant in study.participants}
    source: dict[Hashable, np.ndarray] = {}
    trial_frames: dict[int, Tensor] = {}
    position = 0
    for trial in _in_order(study):
        key = owner_key(layout, trial)
        source[key] = arrays[trial.participant]
        _append_run(runs.setdefault(key, []), slice(trial.start, trial.stop))
        trial_frames[trial.Index] = torch.arange(position, position + trial.stop - trial.start)
        position += trial.stop - trial.start
    return [_block(source[key], own, on_disk) for key, own in runs.items()], list(runs), trial_frames


def _block(array: np.ndarray, runs: list[slice], on_disk: bool) -> FrameBlock:
    if on_disk and is_on_disk(array):
        assert isinstance(array, np.memmap)
        return StoredBlock.of(array, runs)
    return FrameBlock(as_tensor(array), runs)


def is_on_disk(array: np.ndarray) -> bool:
    """Whether an array is mapped from a file, so that it can be read from there when it is needed."""
    # Rows in one piece each; between them there may be columns of voxels that are not the study's.
    return isinstance(array, np.memmap) and array.filename is not None and array.strides[1] == array.itemsize


def _append_run(runs: list[slice], run: slice) -> None:
    """Add a run of rows, joined to the last one where it goes on from it."""
    if runs and runs[-1].stop == run.start:
        run = slice(runs.pop().start, run.stop)
    runs.append(run)


def _cells(
    study: Study,
    layout: Layout,
    labels: Labels,
    block_keys: list[Hashable],
    trial_frames: dict[int, Tensor],
    device: torch.device,
) -> Cells:
    participants = {label: i for i, label in enumerate(labels.participants)}
    stimuli = {label: i for i, label in enumerate(labels.stimuli)}
    block_index = {key: i for i, key in enumerate(block_keys)}
    design = None if labels.design is None else labels.design.rows(study.trials)
    members: dict[Hashable, list] = {}
    for trial in _in_order(study):
        members.setdefault(_cell_key(layout, trial, design), []).append(trial)
    rows = {key: torch.cat([trial_frames[trial.Index] for trial in trials]) for key, trials in members.items()}
    order = sorted(members, key=lambda key: len(rows[key]))
    lengths = sorted({len(rows[key]) for key in order})
    frames = tuple(torch.stack([rows[key] for key in order if len(rows[key]) == n]).to(device) for n in lengths)
    first = [members[key][0] for key in order]
    return Cells(
        participant=torch.tensor([participants[trial.participant] for trial in first], device=device),
        stimulus=torch.tensor([stimuli.get(trial.stimulus, -1) for trial in first], device=device),
        block=torch.tensor([block_index[owner_key(layout, trial)] for trial in first], device=device),
        frames=frames,
        owner=torch.tensor(known_owners(study, labels, block_keys), device=device),
        design=None if design is None else torch.from_numpy(design[[trial.Index for trial in first]]).to(device),
    )


def known_owners(study: Study, labels: Labels, block_keys: Sequence[Hashable]) -> list[int]:
    """Place of each block's factors among those of the model, -1 where it has none for the block."""
    places = {key: i for i, key in enumerate(labels.owners)}
    if labels.fingerprints is None:
        return [places.get(key, -1) for key in block_keys]
    known: dict[Hashable, list[int]] = {}
    for i, (owner, fingerprint) in enumerate(zip(labels.owners, labels.fingerprints, strict=True)):
        known.setdefault((owner[0], fingerprint), []).append(i)  # type: ignore[index]
    found = [known.get((key[0], _fingerprint(study, key)), [-1]) for key in block_keys]  # type: ignore[index]
    # Trials whose frames are all the same are told apart by their numbers.
    return [places[key] if places.get(key) in same else same[0] for key, same in zip(block_keys, found, strict=True)]


def _cell_key(layout: Layout, trial: Any, design: np.ndarray | None) -> Hashable:
    """Name the cell that a trial (a named tuple of the trials table, row number first) belongs to."""
    if layout.own_weights == "trial":
        return int(trial.Index)
    return (trial.participant, trial.stimulus if design is None else tuple(design[trial.Index]))


def _units(positions: np.ndarray) -> Units:
    x, y, z = (float(value) for value in positions.mean(0))
    length = float(np.sqrt(positions.var(0).mean()))
    return Units((x, y, z), length or 1.0, intensity=1.0)


def label_indices(kind: str, wanted: Sequence[str], known: Sequence[str]) -> Tensor:
    """Return where labels stand among the known ones; refuse those that do not, naming them."""
    place = {label: i for i, label in enumerate(known)}
    unknown = list(dict.fromkeys(label for label in wanted if label not in place))
    if unknown:
        shown = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        raise ModelError(f"the model was not fitted to {kind} {shown}; it knows {len(known)} of them")
    return torch.tensor([place[label] for label in wanted], dtype=torch.long)


def require_known_stimuli(study: Study, labels: Labels) -> None:
    """Refuse a study with stimuli that were not in the fit, naming them."""
    label_indices("stimulus", study.stimuli, labels.stimuli)


def require_finite_trials(study: Study) -> None:
    """Refuse a value of a trial that is not finite, naming its place."""
    for participant, own in study.trials.groupby("participant", sort=False):
        frames = study.frames[str(participant)]
        as_read = as_tensor(frames)
        for start, stop in zip(own["start"], own["stop"], strict=True):
            # A sum is finite only if all its terms are, and takes a tenth of the time of looking at each.
            if bool(torch.isfinite(as_read[start:stop].sum())):
                continue
            broken = np.argwhere(~np.isfinite(frames[start:stop]))
            if len(broken):
                frame, voxel = (int(i) for i in broken[0])
                value = float(frames[start + frame, voxel])
                raise StudyError(f"participant {participant}: frame {start + frame}, voxel {voxel} is {value}")
