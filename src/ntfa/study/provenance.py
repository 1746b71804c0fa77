"""How a study was made from images: settings and what they came to, kept with the study and with every fit to it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import pandas as pd

from ntfa.errors import StudyError
from ntfa.study.cutting import Preparation

logger = logging.getLogger("ntfa")

KEY = "preparation"
"""Where the record is among a study's notes."""
LONGEST_TEXT = 500
COUNTS = {
    "n_volumes": "frames",
    "n_volumes_kept": "frames_kept",
    "n_trials": "trials",
    "n_trial_volumes": "trial_frames",
    "n_rest_volumes": "rest_frames",
    "n_trials_dropped": "trials_without_frames",
    "n_events_truncated": "events_past_the_end",
    "n_volumes_in_two_events": "frames_in_two_events",
}
"""Totals, and the columns of the quality table that they are sums of."""


@dataclass(frozen=True)
class Provenance(Preparation):
    """The settings of a preparation, and the facts that a methods section reports besides; None is not known.

    Parameters
    ----------
    confounds : {"none", "simple", "scrubbing", "compcor", "given"}, optional
        nilearn's denoising strategy, or regressors that the user gave.
    mask : {"brain masks", "given", "computed", "greyordinates"}, optional
        Whether voxels are from the runs' brain masks, from a mask that was given, or from one made of the images; or
        are all vertices and voxels of the images.
    min_coverage : float, optional
        Share of the participants who had to have a voxel.
    white_matter_removed : bool, optional
    space, preprocessing : str, optional
        Space of the images, and name and version of what preprocessed them.
    t_r : tuple of float
        Repetition times of the runs, in seconds, each once.
    n_participants, n_runs, n_volumes, ... : int, optional
        Totals over all runs; see `COUNTS`.
    n_voxels_in_mask, n_voxels_lost : int, optional
        Voxels of the mask, and those of them that too many participants lacked.
    """

    confounds: str | None = None
    mask: str | None = None
    min_coverage: float | None = None
    white_matter_removed: bool | None = None
    space: str | None = None
    preprocessing: str | None = None
    t_r: tuple[float, ...] = ()
    n_participants: int | None = None
    n_runs: int | None = None
    n_volumes: int | None = None
    n_volumes_kept: int | None = None
    n_trials: int | None = None
    n_trial_volumes: int | None = None
    n_rest_volumes: int | None = None
    n_trials_dropped: int | None = None
    n_events_truncated: int | None = None
    n_volumes_in_two_events: int | None = None
    n_voxels_in_mask: int | None = None
    n_voxels_lost: int | None = None

    @classmethod
    def of(cls, settings: Preparation, **facts: Any) -> Provenance:
        """Make a record of these settings and facts."""
        return cls(**asdict(settings), **facts)

    def with_counts(self, quality: pd.DataFrame, n_voxels_in_mask: int, n_voxels_lost: int) -> Provenance:
        """Add what a quality table (one row per run) and the masks say."""
        totals: dict[str, Any] = {name: int(quality[column].sum()) for name, column in COUNTS.items()}
        return replace(
            self,
            n_participants=int(quality["participant"].nunique()),
            n_runs=len(quality),
            t_r=tuple(sorted(set(quality["t_r"].astype(float).round(6)))),
            n_voxels_in_mask=n_voxels_in_mask,
            n_voxels_lost=n_voxels_lost,
            **totals,
        )

    def as_notes(self) -> dict[str, Any]:
        """Return what JSON can hold, for the notes of a study and the configuration of a fit."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> Provenance:
        """Read what `as_notes` gave; anybody may have written it, and earlier versions wrote less.

        Raises
        ------
        ValueError
            Naming the first entry that is not of its kind.
        """
        known = {field.name: field for field in fields(cls) if field.name in notes}
        for name, field in known.items():
            if not _is_of_kind(notes[name], str(field.type)):
                raise ValueError(f"{KEY}: {name} is {str(notes[name])[:80]!r}, which is no {field.type}")
        values: dict[str, Any] = {
            name: tuple(notes[name]) if isinstance(notes[name], list) else notes[name] for name in known
        }
        try:
            return cls(**values)
        except StudyError as error:
            raise ValueError(f"{KEY}: {error}") from error


def provenance_of(notes: Mapping[str, Any]) -> Provenance | None:
    """Return how a study was prepared, by its notes; None where they do not say, or say what makes no sense."""
    record = notes.get(KEY)
    if not isinstance(record, Mapping):
        return None
    try:
        return Provenance.from_notes(record)
    except ValueError as error:
        # Notes are free text to whoever saves a study: they must not keep anybody from fitting a model to it.
        logger.warning("the study's notes do not say how it was prepared (%s)", error)
        return None


def _is_of_kind(value: Any, kind: str) -> bool:
    """Whether a value from JSON is what a field's annotation says."""
    if kind.endswith(" | None"):
        return value is None or _is_of_kind(value, kind.removesuffix(" | None"))
    if kind.startswith("tuple["):
        each = kind.removeprefix("tuple[").removesuffix(", ...]")
        return isinstance(value, list | tuple) and all(_is_of_kind(entry, each) for entry in value)
    if kind == "str":
        return isinstance(value, str) and len(value) <= LONGEST_TEXT
    if isinstance(value, bool) or kind == "bool":
        return isinstance(value, bool) and kind == "bool"
    return isinstance(value, int if kind == "int" else int | float) and abs(value) < math.inf
