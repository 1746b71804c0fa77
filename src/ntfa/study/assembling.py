"""The study of all prepared participants. Frames are on disk once: the study has links to the participants' files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study.checks import mask_coordinates
from ntfa.study.derivative import open_frames, read_prepared, with_first_columns
from ntfa.study.events import join_tables
from ntfa.study.folder import StudyWriter
from ntfa.study.images import inside_of, keep_voxels, same_grid
from ntfa.study.preparing import Prepared, no_voxel_in_common, warn_of_losses
from ntfa.study.provenance import KEY, Provenance

Volume = NDArray[np.bool_]


def assemble_to_disk(
    out: Path, participants: Sequence[str], folder: Path, provenance: Provenance | None = None
) -> pd.DataFrame:
    """Write the study of all prepared participants, one at a time, on the voxels they share.

    Frames are not written again, where the file system can give a file two names: the columns of a participant's file
    are sorted such that the study's voxels come first, and the study has a link to it. Files that are prepared anew
    later do not change the study.

    Parameters
    ----------
    out : Path
        The derivative that the participants are in.
    folder : Path
        Where the study goes.
    provenance : Provenance, optional
        How the participants were prepared; kept in the study's notes, with counts.

    Returns
    -------
    DataFrame
        One row per run: what was kept and what was lost.
    """
    pairs = [read_prepared(out, participant, as_stored=True) for participant in participants]
    in_masks, shared = _shared_voxels(pairs)
    mask_img = keep_voxels(pairs[0][1], shared[inside_of(pairs[0][1])])
    trials, quality = (join_tables(getattr(one, part) for one, _ in pairs) for part in ("trials", "quality"))
    n_lost = int(in_masks.sum() - shared.sum())
    notes = {} if provenance is None else {KEY: provenance.with_counts(quality, int(in_masks.sum()), n_lost).as_notes()}
    masks = {one.participant: inside_of(mask) for one, mask in pairs}
    with StudyWriter(
        folder, mask_coordinates(mask_img), trials, mask_img=mask_img, notes=notes, overwrite=True
    ) as writer:
        for participant, inside in masks.items():
            _add(writer, out, participant, np.flatnonzero(shared[inside]), int(inside.sum()))
    warn_of_losses(quality, n_lost)
    return quality


def _shared_voxels(pairs: Sequence[tuple[Prepared, Any]]) -> tuple[Volume, Volume]:
    """Voxels in the masks of all participants, and those of them that everybody has."""
    first = pairs[0][1]
    in_masks, shared = (np.ones(inside_of(first).shape, dtype=bool) for _ in range(2))
    for one, mask in pairs:
        if not same_grid(first, mask):
            raise StudyError(
                f"{one.participant} is on another grid {_size(mask)} than {pairs[0][0].participant} {_size(first)}; "
                "prepare all of them with one --mask and --other-grid resample"
            )
        usable = np.array(inside_of(mask))
        in_masks &= usable
        usable[usable] = one.usable
        shared &= usable
    if not shared.any():
        raise no_voxel_in_common({one.participant: int(one.usable.sum()) for one, _ in pairs})
    return in_masks, shared


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
    places = np.argsort(stored.columns)[voxels]
    writer.add(participant, np.take(stored.values, places, axis=1))


def can_link(file: Path, folder: Path) -> bool:
    """Whether a file can have a second name in a folder; it cannot on another disk, and on some not at all."""
    trial = folder / ".link"
    try:
        os.link(file, trial)
    except OSError:
        return False
    trial.unlink()
    return True
