"""Which voxels each participant has: what was not measured is no zero, and no reason to drop a voxel for everybody.

Frames are zero where a participant has no data; `Study.coverage` says where that is.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study.checks import FrameArray, constant_voxels, not_finite, row_chunks, some

if TYPE_CHECKING:
    from ntfa.study.study import Study

Voxels = NDArray[np.bool_]
Coverage = Mapping[str, Voxels]

MIN_COVERAGE = 0.5
"""Share of the participants who must have a voxel, by default."""
MOST_SPOILED = 0.5
"""Share of a frame's voxels above which it is not voxels that are unseen, but the frame that is spoiled."""


def check_min_coverage(min_coverage: float) -> float:
    """Refuse a share of participants that is none."""
    if not 0 <= min_coverage <= 1:
        raise StudyError(f"min_coverage={min_coverage!r}: give a share of the participants, from 0 to 1")
    return float(min_coverage)


def check_coverage(coverage: Coverage, known: Collection[str], n_voxels: int) -> dict[str, Voxels]:
    """Return who lacks which voxels, without those who lack none."""
    found = {}
    for label, seen in coverage.items():
        if label not in known or seen.shape != (n_voxels,) or seen.dtype != np.bool_ or not seen.any():
            raise StudyError(
                f"coverage of participant {label} must be {n_voxels} booleans, one at least True, of a participant "
                "with frames"
            )
        if not seen.all():
            found[label] = seen
    return found


def seen_voxels(participant: str, array: FrameArray) -> tuple[Voxels | None, int]:
    """Find the voxels that a participant has data of; None if all. Also count those that are NaN in some frames only.

    Unseen are voxels that are NaN in some frame, or zero in all.

    Raises
    ------
    StudyError
        If a value is infinite, a voxel constant but not zero, a frame NaN in most voxels, or nothing is seen at all.
    """
    usable, n_partly = _without_nan(participant, array)
    still = constant_voxels(array, usable)
    if not len(still) and usable is None:
        return None, 0
    zero = still[array[0, still] == 0]
    constant = np.setdiff1d(still, zero)
    if len(constant) and len(array) > 1:
        raise StudyError(
            f"frames of participant {participant}: {len(constant)} voxels are constant, first voxel {constant[0]}; "
            "drop voxels without signal from coordinates and from the mask, or make them NaN where they are unseen"
        )
    seen = np.ones(array.shape[1], dtype=bool) if usable is None else usable
    seen[zero] = False
    if not seen.any():
        raise StudyError(f"frames of participant {participant} have no voxel that is finite and varies")
    return (None if seen.all() else seen), n_partly


def _without_nan(participant: str, array: FrameArray) -> tuple[Voxels | None, int]:
    """Find voxels that are never NaN, None if all; and count those that are NaN in some frames only."""
    n_bad = np.zeros(array.shape[1], dtype=np.int64)
    for rows in row_chunks(*array.shape):
        finite = np.isfinite(array[rows])
        if not finite.all():
            if np.isinf(array[rows]).any():
                raise not_finite(participant, array)
            n_bad += (~finite).sum(0)
    if not n_bad.any():
        return None, 0
    partly = (n_bad > 0) & (n_bad < len(array))
    if partly.any():
        elsewhere = n_bad < len(array)
        for rows in row_chunks(*array.shape):
            if (np.isnan(array[rows][:, elsewhere]).mean(1) > MOST_SPOILED).any():
                raise not_finite(participant, array, elsewhere)
    return n_bad == 0, int(partly.sum())


def look_over(
    frames: Mapping[str, FrameArray],
) -> tuple[dict[str, FrameArray], dict[str, Voxels], dict[str, int]]:
    """Return frames that are zero where they are unseen, who has which voxels, and how many were NaN in part."""
    looked, coverage, partly = {}, {}, {}
    for label, array in frames.items():
        looked[label] = array
        seen, n_partly = seen_voxels(label, array)
        if seen is not None:
            coverage[label] = seen
            if np.isnan(array[:, ~seen]).any():
                looked[label] = np.where(seen, array, np.float32(0))
        if n_partly:
            partly[label] = n_partly
    return looked, coverage, partly


def shares(coverage: Coverage, n_participants: int, n_voxels: int) -> NDArray[np.float64]:
    """Share of the participants who have each voxel."""
    lacked = np.zeros(n_voxels)
    for seen in coverage.values():
        lacked += ~seen
    return np.asarray(1 - lacked / n_participants)


def kept_voxels(coverage: Coverage, n_participants: int, n_voxels: int, min_coverage: float) -> Voxels:
    """Choose the voxels that enough participants have."""
    kept = shares(coverage, n_participants, n_voxels) >= min_coverage - 1e-9
    if not kept.any():
        fewest = sorted(coverage, key=lambda label: int(coverage[label].sum()))[:3]
        shown = ", ".join(f"{label} has {int(coverage[label].sum()):,}" for label in fewest)
        raise StudyError(
            f"no voxel is finite and varies in {min_coverage:.0%} of the participants (of those with the fewest, "
            f"{shown}): leave them out, or see their masks and images"
        )
    return np.asarray(kept)


def restricted(coverage: Coverage, kept: Voxels) -> dict[str, Voxels]:
    """Keep some of the voxels, and who lacks one of them."""
    left = {label: seen[kept] for label, seen in coverage.items() if not seen[kept].all()}
    empty = [label for label, seen in left.items() if not seen.any()]
    if empty:
        raise StudyError(
            f"participant {some(empty)} has none of the {int(kept.sum()):,} voxels that enough others have: leave them "
            "out, or see their mask and images"
        )
    return left


def warn_of_coverage(
    coverage: Coverage, partly: Mapping[str, int], n_dropped: int, min_coverage: float, n_participants: int
) -> None:
    """Say once who lacks voxels, and what was dropped."""
    said = []
    if n_dropped:
        said.append(
            f"{n_dropped:,} voxel(s) that fewer than {min_coverage:.0%} of the participants have were dropped for all "
            "participants (min_coverage)"
        )
    if coverage:
        most = max(coverage, key=lambda label: int((~coverage[label]).sum()))
        lacked = int((~coverage[most]).sum())
        said.append(
            f"{len(coverage)} of {n_participants} participants lack voxels ({most} the most, {lacked:,} of "
            f"{len(coverage[most]):,}) and count with those they have"
        )
    if partly:
        total = sum(partly.values())
        said.append(
            f"{total:,} voxel(s) that are NaN in some frames only, of participant {some(sorted(partly))}, count as "
            "unseen in all of that participant's frames"
        )
    if said:
        warnings.warn("; ".join(said), stacklevel=4)


def coverage_table(study: Study) -> pd.DataFrame:
    """Count the voxels that each participant has, one row per participant: `voxels`, `unseen`, `share`."""
    unseen = [0 if (seen := study.coverage.get(label)) is None else int((~seen).sum()) for label in study.participants]
    table = pd.DataFrame({"unseen": unseen}, index=pd.Index(study.participants, name="participant"))
    table.insert(0, "voxels", study.n_voxels - table["unseen"])
    return table.assign(share=table["voxels"] / study.n_voxels)


def relabelled(coverage: Coverage, whose: Mapping[str, str]) -> dict[str, Voxels]:
    """Return the coverage of participants who are somebody's parts: `whose` says, by new label, whose."""
    return {label: coverage[who] for label, who in whose.items() if who in coverage}


def packed(coverage: Coverage) -> tuple[list[str], Voxels]:
    """Return who lacks voxels, and one row [V] for each."""
    labels: Sequence[str] = sorted(coverage)
    return list(labels), np.stack([coverage[label] for label in labels])
