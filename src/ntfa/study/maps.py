"""Maps that were estimated before (one per trial or condition: betas, contrasts) as frames of a study."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.study.coverage import Coverage
from ntfa.study.cutting import Preparation
from ntfa.study.events import as_label, read_table
from ntfa.study.images import Run, open_image, repetition_time_of_header
from ntfa.study.preparing import Prepared, prepare_participant

NOT_LABELS = ("onset", "duration", "participant", "start", "stop")
"""Columns of a table that mean something else in a study's trials, or nothing for a map."""


def prepare_maps(
    imgs: Sequence[Any],
    tables: Sequence[pd.DataFrame],
    participants: Sequence[str],
    mask_img: Any,
    stimulus_column: str,
    run_column: str | None,
    **settings: Any,
) -> list[Prepared]:
    """Read the maps of all participants; a map is a frame and a trial, its row of the table gives its labels."""
    how = Preparation(stimulus_column=stimulus_column, standardize="none", delay=0.0, **settings)
    runs: dict[str, list[Run]] = {}
    for img, table, participant in zip(imgs, tables, participants, strict=True):
        runs.setdefault(participant, []).extend(_runs(img, table, participant, stimulus_column, run_column, mask_img))
    prepared = [prepare_participant(own, mask_img, how) for own in runs.values()]
    return [replace(one, trials=one.trials.drop(columns=["onset", "duration"])) for one in prepared]


def _runs(
    img: Any, table: pd.DataFrame, participant: str, stimulus: str, run_column: str | None, mask_img: Any
) -> list[Run]:
    """Describe each map as an event that lasts one frame; maps of different runs as runs of their own."""
    source = Run(img, None, participant)
    opened = open_image(source, mask_img)
    n_maps = opened.shape[3]
    if len(table) != n_maps:
        raise StudyError(f"{source.name}: {n_maps} maps, but {len(table)} rows in the table; it needs a row for each")
    for column in filter(None, (stimulus, run_column)):
        if column not in table:
            raise StudyError(f"the table of maps has no column {column!r}; it has {', '.join(map(str, table.columns))}")
    t_r = repetition_time_of_header(opened.header) or 1.0
    labels = table.reset_index(drop=True).drop(columns=[c for c in NOT_LABELS if c in table and c != stimulus])
    events = labels.assign(onset=np.arange(n_maps) * t_r, duration=t_r)
    names = pd.Series("1", index=events.index) if run_column is None else _run_names(events[run_column], run_column)
    return [
        Run(img, events[own], participant, str(name), t_r=t_r, sample_mask=None if own.all() else np.flatnonzero(own))
        for name in names.unique()
        if (own := (names == name).to_numpy()).any()
    ]


def _run_names(column: pd.Series, name: str) -> pd.Series:
    missing = np.flatnonzero(column.isna())
    if len(missing):
        raise StudyError(f"the table of maps, line {missing[0] + 2}: {name} is n/a; every map needs its run")
    return column.map(as_label)


def maps_as_lists(
    imgs: Sequence[Any], tables: Any, participants: Sequence[str] | None
) -> tuple[list[Any], list[pd.DataFrame], list[str]]:
    """Return images, tables and participants, one each, from what a user gives."""
    if not isinstance(imgs, list | tuple) or not imgs:
        raise StudyError("imgs must be a list of images of maps, one per participant")
    one_for_all = isinstance(tables, str | os.PathLike | pd.DataFrame)
    sources = [tables] if one_for_all else list(tables)
    read = [one if isinstance(one, pd.DataFrame) else read_table(one, str(one)) for one in sources]
    read = read * len(imgs) if one_for_all else read
    if participants is None:
        imgs_of = [img[0] if isinstance(img, tuple | list) else img for img in imgs]
        unnamed = [i for i, img in enumerate(imgs_of) if not isinstance(img, str | os.PathLike)]
        if unnamed:
            raise StudyError(f"image {unnamed[0]} is no file whose name says whose it is; give participants=")
        participants = [participant_of_file(img) for img in imgs_of]
    for name, entries in (("tables", read), ("participants", participants)):
        if len(entries) != len(imgs):
            raise StudyError(f"{name} must have one entry for each of the {len(imgs)} image(s), not {len(entries)}")
    return list(imgs), read, [str(label) for label in participants]


def participant_of_file(path: str | os.PathLike[str]) -> str:
    """Say whose a file is: its BIDS entity sub-, or else its name without endings."""
    name = Path(path).name
    found = re.match(r"(sub-[a-zA-Z0-9]+)", name)
    return found.group(1) if found else name.split(".")[0]


def scaled(frames: Mapping[str, NDArray[np.float32]], coverage: Coverage) -> dict[str, NDArray[np.float32]]:
    """Divide each participant's maps by their root mean square, so that nobody counts more for larger units."""
    sizes = {}
    for label, own in frames.items():
        share = float(np.mean(coverage.get(label, True)))
        sizes[label] = float(np.sqrt(np.mean(np.square(own, dtype=np.float64)) / share))
    return {label: own / np.float32(sizes[label]) for label, own in frames.items()}
