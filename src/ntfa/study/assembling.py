"""The study of all prepared participants. Frames are on disk once: the study has links to the participants' files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study.checks import mask_coordinates
from ntfa.study.coverage import MIN_COVERAGE, restricted, warn_of_coverage
from ntfa.study.derivative import open_frames, read_prepared, with_first_columns
from ntfa.study.events import join_tables
from ntfa.study.folder import StudyWriter
from ntfa.study.images import inside_of, mask_within, same_grid
from ntfa.study.preparing import Prepared, warn_of_losses
from ntfa.study.provenance import KEY, Provenance

Volume = NDArray[np.bool_]


def assemble_to_disk(
    out: Path,
    participants: Sequence[str],
    folder: Path,
    provenance: Provenance | None = None,
    min_coverage: float = MIN_COVERAGE,
) -> pd.DataFrame:
    """Write the study of all prepared participants, one at a time, on the voxels that enough of them have.

    Frames are not written again, where the file system can give a file two names: the columns of a participant's file
    are sorted such that the study's voxels come first, zeros for those that the participant lacks, and the study has a
    link to it. Files that are prepared anew later do not change the study.

    Parameters
    ----------
    out : Path
        The derivative that the participants are in.
    folder : Path
        Where the study goes.
    provenance : Provenance, optional
        How the participants were prepared; kept in the study's notes, with counts.
    min_coverage : float
        Share of the participants who must have a voxel.

    Returns
    -------
    DataFrame
        One row per run: what was kept and what was lost.
    """
    pairs = [read_prepared(out, participant, as_stored=True) for participant in participants]
    volumes = _volumes(pairs)
    seen_by = np.zeros(inside_of(pairs[0][1]).shape)
    for has in volumes.values():
        seen_by += has
    n_masks = int((np.sum([inside_of(mask) for _, mask in pairs], axis=0) >= min_coverage * len(pairs) - 1e-9).sum())
    inside = seen_by >= max(1.0, min_coverage * len(pairs) - 1e-9)
    if not inside.any():
        raise _no_voxel({label: int(has.sum()) for label, has in volumes.items()}, min_coverage)
    coverage = restricted({label: has[inside] for label, has in volumes.items()}, np.ones(int(inside.sum()), bool))
    mask_img = mask_within(pairs[0][1], inside)
    trials, quality = (join_tables(getattr(one, part) for one, _ in pairs) for part in ("trials", "quality"))
    n_lost = n_masks - int(inside.sum())
    notes = {} if provenance is None else {KEY: provenance.with_counts(quality, n_masks, n_lost).as_notes()}
    masks = {one.participant: inside_of(mask) for one, mask in pairs}
    with StudyWriter(
        folder,
        mask_coordinates(mask_img),
        trials,
        mask_img=mask_img,
        notes=notes,
        coverage=coverage,
        overwrite=True,
    ) as writer:
        for participant, own in masks.items():
            number = np.full(own.shape, -1)
            number[own] = np.arange(own.sum())
            number[~volumes[participant]] = -1
            _add(writer, out, participant, number[inside], int(own.sum()))
    warn_of_losses(quality)
    warn_of_coverage(coverage, {}, n_lost, min_coverage, len(pairs))
    return quality


def _volumes(pairs: Sequence[tuple[Prepared, Any]]) -> dict[str, Volume]:
    """Where each participant has data."""
    first = pairs[0][1]
    volumes = {}
    for one, mask in pairs:
        if not same_grid(first, mask):
            raise StudyError(
                f"{one.participant} is on another grid {_size(mask)} than {pairs[0][0].participant} {_size(first)}; "
                "prepare all of them with one --mask and --other-grid resample"
            )
        usable = np.array(inside_of(mask))
        usable[usable] = one.usable
        volumes[one.participant] = usable
    return volumes


def _no_voxel(n_usable: Mapping[str, int], min_coverage: float) -> StudyError:
    """Say that no voxel is left, and who has the fewest."""
    fewest = sorted(n_usable, key=lambda label: n_usable[label])[:3]
    shown = ", ".join(f"{label} has {n_usable[label]:,}" for label in fewest)
    return StudyError(
        f"no voxel is finite and varies in every run of {min_coverage:.0%} of the participants (of those with the "
        f"fewest, {shown}): leave them out, or see their masks and images"
    )


def _size(mask: Any) -> str:
    shape = inside_of(mask).shape
    return f"({shape[0]:,} vertices and voxels)" if len(shape) == 1 else f"({shape})"


def _add(writer: StudyWriter, out: Path, participant: str, voxels: NDArray[np.int64], n_in_mask: int) -> None:
    """Add a participant's frames at some of their mask's voxels: as a link, or else as a copy."""
    stored = open_frames(out, participant, n_in_mask)
    if can_link(stored.path, writer.working_folder):
        stored = with_first_columns(out, participant, stored, voxels)
        writer.link(participant, stored.path)
        return
    writer.add(participant, stored.at(voxels))


def can_link(file: Path, folder: Path) -> bool:
    """Whether a file can have a second name in a folder; it cannot on another disk, and on some not at all."""
    trial = folder / ".link"
    try:
        os.link(file, trial)
    except OSError:
        return False
    trial.unlink()
    return True
