"""How much each frame counted in a fit, as a table; and what to say of it."""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntfa.files.reading import one_line, table_text
from ntfa.fitting.spoiled import FrameTrust
from ntfa.study import Study
from ntfa.study.motion import COLUMN, of_frames

logger = logging.getLogger("ntfa")

FILE = "frames.tsv"
TEXT = ("participant", "session", "run", "stimulus")
NUMBERS = ("frame", "distance", "weight")
MANY, AT_LEAST = 0.2, 3
"""Share of the frames of a run, and number of them, from which on there is a warning."""


def frame_table(study: Study, trust: FrameTrust) -> pd.DataFrame:
    """Say how much each trial frame counts, one row each, participant by participant in order of time.

    `participant`, `session` and `run` where trials have them, `trial` (as `study.trials` is indexed), `stimulus`,
    `frame` (row of the participant's frames), `distance` (how many times as far from the participant's typical frame
    as is usual), `weight` and, if any is known, `framewise_displacement` in mm.
    """
    trials = study.trials.sort_values(["participant", "start"], kind="stable")
    lengths = (trials["stop"] - trials["start"]).to_numpy()
    columns = [name for name in ("participant", "session", "run") if name in trials]
    # As labels: runs may be numbers in memory, and are text in files.
    labels = trials[columns].astype(object).where(trials[columns].notna(), "").astype(str)
    table = labels.assign(trial=trials.index, stimulus=trials["stimulus"])
    table = table.loc[table.index.repeat(lengths)].reset_index(drop=True)
    table["frame"] = np.concatenate([np.arange(*span) for span in trials[["start", "stop"]].to_numpy()])
    table["distance"], table["weight"] = trust.distance, trust.trust
    if COLUMN in trials:
        table[COLUMN] = np.concatenate(list(map(of_frames, trials[COLUMN], lengths)))
    return table


def spoiled_by_run(frames: pd.DataFrame) -> pd.DataFrame:
    """Count frames and spoiled ones: `frames`, `spoiled`, one row per participant, session and run."""
    names = [name for name in ("participant", "session", "run") if name in frames]
    spoiled = (frames["weight"] < 1).groupby([frames[name] for name in names], sort=False, dropna=False)
    return spoiled.agg(frames="size", spoiled="sum").reset_index()


def many_spoiled(frames: pd.DataFrame) -> pd.DataFrame:
    """Runs of which a large share of the frames is spoiled, as `spoiled_by_run` has them."""
    runs = spoiled_by_run(frames)
    return runs[(runs["spoiled"] >= AT_LEAST) & (runs["spoiled"] > MANY * runs["frames"])]


def spoiled_in_words(frames: pd.DataFrame) -> str:
    """Say in a sentence how many frames are spoiled, and in whom."""
    spoiled, n = frames[frames["weight"] < 1], frames["participant"].nunique()
    if spoiled.empty:
        return f"None of the {len(frames):,} frames lies far from its participant's others; all count the same."
    one = len(spoiled) == 1
    return (
        f"{len(spoiled):,} of {len(frames):,} frames ({len(spoiled) / len(frames):.1%}), in "
        f"{spoiled['participant'].nunique()} of {n} participants, {'lies' if one else 'lie'} far from "
        f"{'its' if one else 'their'} participant's others and {'counts' if one else 'count'} less."
    )


def runs_in_words(runs: pd.DataFrame) -> str:
    """Name runs, with how many of their frames are spoiled."""
    names = [name for name in ("session", "run") if name in runs]
    rows = runs.to_dict("records")
    return ", ".join(
        " ".join([str(row["participant"]), *(_named(name, str(row[name])) for name in names)])
        + f" ({row['spoiled']} of {row['frames']})"
        for row in rows
    )


def _named(column: str, label: str) -> str:
    """Say what a label is of, unless it says so itself, as BIDS's do."""
    return label if label.startswith(column[:3]) else f"{column} {label}"


def tell_of_spoiled(study: Study, trust: FrameTrust | None) -> None:
    """Log how many frames are spoiled, and warn of runs that have many; say nothing where nobody asked."""
    if trust is None or trust.counted is None:
        return
    frames = frame_table(study, trust)
    logger.info("%s", spoiled_in_words(frames))
    many = many_spoiled(frames)
    if len(many):
        logger.warning(
            "many frames lie far from their participant's others, as movement makes them, and hardly count: %s; look "
            "at these runs, and leave them out if they are bad",
            runs_in_words(many),
        )


def read_frame_table(path: Path) -> pd.DataFrame | None:
    """Read the table that was saved with a model; None if there is none, as in models of earlier versions."""
    if not os.path.lexists(path):
        return None
    try:
        # Labels may be anything, line breaks and "NA" included.
        table = pd.read_csv(
            io.StringIO(table_text(path, line_breaks=True), newline=""),
            sep="\t",
            index_col=False,
            dtype=dict.fromkeys(TEXT, str),
            na_values={COLUMN: [""]},
            keep_default_na=False,
        )
    except ValueError as error:
        raise ValueError(f"{path.name}: {one_line(error)}") from error
    lacking = {"participant", "trial", "stimulus", *NUMBERS}.difference(table)
    if lacking or table.empty:
        raise ValueError(f"{path.name} lacks {', '.join(sorted(lacking)) or 'rows'}")
    _require_numbers(table, path.name)
    return table


def _require_numbers(table: pd.DataFrame, name: str) -> None:
    """Refuse weights that are not between 0 and 1, and anything else that no fit can have written."""
    numbers: dict[str, Any] = {column: table[column] for column in (*NUMBERS, COLUMN) if column in table}
    for column, values in numbers.items():
        if values.dtype.kind not in "fi":
            raise ValueError(f"{name}: {column} has something that is no number")
    sound = table["weight"].between(0, 1) & table["distance"].ge(0) & table["frame"].ge(0)
    if not sound.all() or table["frame"].dtype.kind != "i":
        raise ValueError(f"{name}: row {int((~sound).to_numpy().argmax())} makes no sense")
