"""Prepared participants on disk: a BIDS derivative, one folder per participant, complete or not at all.

OUT/dataset_description.json
OUT/sub-01/func/sub-01[_task-X][_space-Y]_desc-ntfa_frames.npy, _frames.json, _mask.nii.gz, _trials.tsv, _trials.json,
    _quality.tsv, _quality.json, and _columns.npy where columns of the frames are not in the order of the mask
OUT/study/      the assembled study, for `ntfa fit`; its frames are the same files
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import NTFAError, OutputError, StudyError
from ntfa.files.folders import only_writer, save_array, write_file, write_folder
from ntfa.files.reading import load_array, read_json
from ntfa.study.bids import FoundRun
from ntfa.study.bids_masks import mask_for
from ntfa.study.checks import as_numbers, check_trials
from ntfa.study.coverage import MIN_COVERAGE
from ntfa.study.cutting import Preparation
from ntfa.study.events import read_table
from ntfa.study.greyordinates import Greyordinates
from ntfa.study.images import images_of, inside_of, load_mask
from ntfa.study.motion import COLUMN
from ntfa.study.participants import labels_of_participant, participant_labels, with_participant_labels
from ntfa.study.preparing import Prepared, prepare_participant
from ntfa.study.surfaces import SurfaceFiles
from ntfa.version import __version__

TRIAL_COLUMNS = {
    "participant": "Participant label",
    "stimulus": "What was shown",
    "start": "First row of the trial in the frames, counted from 0",
    "stop": "Row after the last one of the trial",
    "run": "Run the trial was recorded in",
    "session": "Session the trial was recorded in",
    "onset": {"Description": "Onset of the event, before the delay", "Units": "s"},
    "duration": {"Description": "Duration of the event", "Units": "s"},
    "category": "Category of the stimulus",
    COLUMN: {"Description": "Framewise displacement of each frame of the trial, by the confounds", "Units": "mm"},
}
QUALITY_COLUMNS = {
    "frames": "Volumes of the run",
    "frames_kept": "Volumes left after scrubbing",
    "trials": "Trials cut out of the run",
    "trial_frames": "Volumes in trials",
    "rest_frames": "Volumes of rest, which the run was z-scored by",
    "trials_without_frames": "Trials dropped because no volume of theirs was left",
    "events_past_the_end": "Events cut off by the end of the run",
    "frames_in_two_events": "Volumes in two events; they went to the one that started last",
    "t_r": {"Description": "Repetition time", "Units": "s"},
    "start_time": {"Description": "Time that the first volume stands for", "Units": "s"},
    "voxels": "Voxels of the mask",
    "voxels_lost": "Voxels of the mask that are not finite or do not vary in this run",
}


FURTHER_COLUMNS = {
    "frames_spoiled": "Volumes left out because they are not finite or far off all others",
    "mean_fd": {"Description": "Mean framewise displacement, by the run's confounds", "Units": "mm"},
    "max_fd": {"Description": "Largest framewise displacement", "Units": "mm"},
    "frames_high_fd": "Volumes with a framewise displacement above 0.5 mm",
}
"""Columns that some runs do without: those whose confounds have no framewise displacement, or prepared earlier."""


@dataclass(frozen=True)
class Masking:
    """Which voxels to use: a mask file, or the runs' brain masks, and those that enough participants have.

    surfaces : of runs on cortical surfaces, where their vertices are
    """

    mask: str | None = None
    min_coverage: float = MIN_COVERAGE
    keep_white_matter: bool = False
    surfaces: SurfaceFiles = field(default_factory=SurfaceFiles)


def describe_dataset(out: Path, source: Path) -> None:
    """Write `dataset_description.json`, if there is none yet."""
    path = out / "dataset_description.json"
    if path.exists():
        return
    description = {
        "Name": "Trials prepared for topographic factor analysis",
        "BIDSVersion": "1.9.0",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "ntfa", "Version": __version__}],
        "SourceDatasets": [{"URL": source.absolute().as_uri()}],
    }
    out.mkdir(parents=True, exist_ok=True)
    write_file(path, (json.dumps(description, indent=2, ensure_ascii=False) + "\n").encode())


def prepare_to_disk(out: Path, bids_dir: Path, found: Sequence[FoundRun], masking: Masking, how: Preparation) -> bool:
    """Prepare one participant and write it; False if what is there is complete and current."""
    with only_writer(out / found[0].run.participant):
        return _prepare_to_disk(out, bids_dir, found, masking, how)


def _prepare_to_disk(out: Path, bids_dir: Path, found: Sequence[FoundRun], masking: Masking, how: Preparation) -> bool:
    participant = found[0].run.participant
    labels = labels_of_participant(participant_labels(bids_dir), participant)
    sources = fingerprint(found, masking, how, labels)
    if is_current(out / participant, sources):
        return False
    mask_img = mask_for(found, masking.mask, 1.0, masking.keep_white_matter, masking.surfaces)
    prepared = prepare_participant([one.with_confounds() for one in found], mask_img, how)
    (prepared,) = with_participant_labels([prepared], bids_dir)
    stem = _stem(found)
    with write_folder(out / participant, overwrite=True, mark="func", needed=prepared.frames.nbytes) as folder:
        func = folder / "func"
        func.mkdir()
        save_array(func / f"{stem}_frames.npy", prepared.frames)
        if isinstance(mask_img, Greyordinates):
            mask_img.save(func)
        else:
            mask_img.to_filename(func / f"{stem}_mask.nii.gz")
        prepared.trials.to_csv(func / f"{stem}_trials.tsv", sep="\t", index=False, na_rep="n/a")
        prepared.quality.to_csv(func / f"{stem}_quality.tsv", sep="\t", index=False, na_rep="n/a")
        _write_json(func / f"{stem}_trials.json", _columns(prepared.trials, TRIAL_COLUMNS))
        _write_json(func / f"{stem}_quality.json", _columns(prepared.quality, QUALITY_COLUMNS | FURTHER_COLUMNS))
        _write_json(func / f"{stem}_frames.json", {"Version": __version__, **sources})
    return True


@dataclass(frozen=True)
class Outcome:
    """Whether a participant was written or current already, or why not, and what was warned about.

    is_of_disk : whether the problem is with where results go, and not with the participant
    """

    written: bool
    problem: str | None
    warnings: tuple[str, ...]
    is_of_disk: bool = False


def try_to_prepare(out: Path, bids_dir: Path, found: Sequence[FoundRun], masking: Masking, how: Preparation) -> Outcome:
    """As `prepare_to_disk`, for work in other processes: errors and warnings come back as text."""
    written, problem, is_of_disk = False, None, False
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            written = prepare_to_disk(out, bids_dir, found, masking, how)
        except NTFAError as error:
            problem, is_of_disk = str(error), isinstance(error, OutputError)
    return Outcome(written, problem, tuple(str(warning.message) for warning in said), is_of_disk)


def _stem(found: Sequence[FoundRun]) -> str:
    tasks = sorted({part for one in found for part in one.run.run.split("_") if part.startswith("task-")})
    space = [f"space-{found[0].space}"] if found[0].space else []
    task = ["task-" + "".join(name.removeprefix("task-") for name in tasks)] if tasks else []
    return "_".join([found[0].run.participant, *task, *space, "desc-ntfa"])


def fingerprint(
    found: Sequence[FoundRun], masking: Masking, how: Preparation, labels: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a prepared participant depends on: options, labels, and the size and time of every file."""
    files = [path for one in found for path in (*images_of(one.run), one.run.events, one.mask) if path is not None]
    files += [one.confounds_file for one in found if one.confounds != "none" and one.confounds_file is not None]
    files += [*([masking.mask] if masking.mask else []), *masking.surfaces.paths]
    sources = [_state(Path(path)) for path in dict.fromkeys(map(str, files))]
    return {
        "Preparation": {**asdict(how), "rest": list(how.rest), "ignore": list(how.ignore)},
        # How many others have a voxel does not change how this participant is prepared.
        "Masking": {"mask": masking.mask, "keep_white_matter": masking.keep_white_matter, **_surfaces(masking)},
        "Confounds": found[0].confounds,
        "Timing": [[one.run.t_r, one.run.start_time] for one in found],
        "Labels": {name: str(value) for name, value in labels.items()},
        "Sources": sources,
    }


def _surfaces(masking: Masking) -> dict[str, Any]:
    """Which surfaces were named or found; nothing where none were, as it was before there were any."""
    return {} if masking.surfaces == SurfaceFiles() else {"surfaces": asdict(masking.surfaces)}


def _state(path: Path) -> dict[str, Any]:
    try:
        status = path.stat()
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error})") from error
    return {"File": str(path), "Bytes": status.st_size, "Modified": status.st_mtime_ns}


def is_current(folder: Path, sources: dict[str, Any]) -> bool:
    """Whether a participant was prepared from just these files with just these options."""
    sidecars = list(folder.glob("func/*_frames.json"))
    if len(sidecars) != 1:
        return False
    try:
        written = read_json(sidecars[0])
    except ValueError:
        return False
    written.pop("Version", None)
    return bool(written == json.loads(json.dumps(sources)))


def prepared_state(out: Path, participants: Sequence[str]) -> dict[str, str]:
    """Digest what each prepared participant was made from; it changes when somebody is prepared anew."""
    digests = {}
    for participant in participants:
        path = _prepared_file(out, participant, "frames.json")
        try:
            content = read_json(path)
        except ValueError as error:
            raise StudyError(f"{path}: cannot be read ({error}); prepare {participant} again") from error
        content.pop("Version", None)
        text = json.dumps(content, sort_keys=True)
        digests[participant] = hashlib.sha256(text.encode()).hexdigest()
    return digests


@dataclass(frozen=True)
class StoredFrames:
    """A prepared participant's frames on disk.

    path : the file
    values : [n, V], mapped from it
    columns : which of the mask's voxels each column is; a study has its own voxels first, those among them that the
        participant lacks as columns of zeros, -1
    """

    path: Path
    values: np.memmap
    columns: NDArray[np.int64]

    def in_order(self) -> NDArray[np.float32]:
        """Return the frames with columns as in the mask."""
        if np.array_equal(self.columns, np.arange(len(self.columns))):
            return self.values
        return np.take(self.values, self.places, axis=1)

    @property
    def places(self) -> NDArray[np.int64]:
        """Which column each of the mask's voxels is in."""
        inside = np.flatnonzero(self.columns >= 0)
        return inside[np.argsort(self.columns[inside])]

    def at(self, voxels: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the frames at voxels of the mask; zeros where these are -1."""
        values = np.take(self.values, self.places[np.maximum(voxels, 0)], axis=1)
        values[:, voxels < 0] = 0
        return values


def open_frames(out: Path, participant: str, n_voxels: int) -> StoredFrames:
    """Open the frames of one prepared participant, whose mask has so many voxels."""
    path = _prepared_file(out, participant, "frames.npy")
    try:
        frames = load_array(path)
        order = path.with_name(path.name.replace("_frames.npy", "_columns.npy"))
        columns = np.array(load_array(order)) if order.exists() else np.arange(n_voxels)
        if columns.dtype != np.int64 or not np.array_equal(np.sort(columns[columns >= 0]), np.arange(n_voxels)):
            raise ValueError(f"{order.name} is no order of {n_voxels} columns")
        if frames.ndim != 2 or frames.shape[1] != len(columns) or frames.dtype != np.float32 or not len(frames):
            raise ValueError(f"it must be float32, frames x {len(columns)} columns, not {frames.dtype} {frames.shape}")
    except ValueError as error:
        raise StudyError(f"{path}: cannot be read ({error}); prepare {participant} again") from error
    return StoredFrames(path, frames, columns)


def read_prepared(out: Path, participant: str, *, as_stored: bool = False) -> tuple[Prepared, Any]:
    """Read one prepared participant and its mask, frames memory-mapped if they can be.

    Columns are as in the mask; with `as_stored` the frames' are left as they are on disk, and so are not copied.
    """
    trials = _read_trials(_prepared_file(out, participant, "trials.tsv"))
    on_surface = Greyordinates.open(out / participant / "func")
    mask_img = on_surface or load_mask(_prepared_file(out, participant, "mask.nii.gz"))
    stored = open_frames(out, participant, int(inside_of(mask_img).sum()))
    low, high = (getattr(stored.values, name)(0)[stored.places] for name in ("min", "max"))
    usable = np.isfinite(low) & np.isfinite(high) & (low != high)
    frames = stored.values if as_stored else stored.in_order()
    return Prepared(participant, frames, trials, usable, prepared_quality(out, participant)), mask_img


def with_first_columns(out: Path, participant: str, stored: StoredFrames, first: NDArray[np.int64]) -> StoredFrames:
    """Bring these voxels of the mask, in this order, into the first columns of a participant's frames on disk.

    -1 stands for a voxel that the participant lacks, and is a column of zeros. All voxels stay, so that other studies
    can be made of them later.
    """
    if np.array_equal(stored.columns[: len(first)], first):
        return stored
    n_voxels = len(stored.places)
    columns = np.concatenate([first, np.setdiff1d(np.arange(n_voxels), first)])
    folder = out / participant
    with (
        only_writer(folder),
        write_folder(folder, overwrite=True, mark="func", needed=stored.values.nbytes) as new,
    ):
        (new / "func").mkdir()
        for file in (folder / "func").iterdir():
            if file.is_dir():
                shutil.copytree(file, new / "func" / file.name)
            elif not file.name.endswith(("_frames.npy", "_columns.npy")):
                shutil.copy2(file, new / "func" / file.name)
        # Indexing would put the columns one after another, but frames are read row by row.
        save_array(new / "func" / stored.path.name, stored.at(columns))
        save_array(new / "func" / stored.path.name.replace("_frames.npy", "_columns.npy"), columns)
    return open_frames(out, participant, n_voxels)


def prepared_quality(out: Path, participant: str) -> pd.DataFrame:
    """Read what was kept and lost of one prepared participant."""
    path = _prepared_file(out, participant, "quality.tsv")
    table = _read_tsv(path)
    for column in QUALITY_COLUMNS:
        numbers = as_numbers(table[column]) if column in table else pd.Series([np.nan])
        if not np.isfinite(numbers).all():
            raise StudyError(f"{path}: {column} must be numbers; prepare {participant} again")
        table[column] = numbers
    return table


def _prepared_file(out: Path, participant: str, kind: str) -> Path:
    found = next((out / participant / "func").glob(f"*_desc-ntfa_{kind}"), None)
    if found is None:
        raise StudyError(f"{out}: participant {participant} has not been prepared, it has no {kind}")
    return found


def _read_trials(path: Path) -> pd.DataFrame:
    try:
        return check_trials(_read_tsv(path))
    except StudyError as error:
        raise error if str(path) in str(error) else StudyError(f"{path}: {error}") from error


def _read_tsv(path: Path) -> pd.DataFrame:
    return read_table(path, str(path), text=("participant", "stimulus", "run", "session"))


def _columns(table: pd.DataFrame, known: dict[str, Any]) -> dict[str, Any]:
    """Describe a table's columns, as a BIDS sidecar does."""
    described = {}
    for column in map(str, table.columns):
        text = known.get(column, "As in the events or participants of the source dataset")
        described[column] = text if isinstance(text, dict) else {"Description": text}
    return described


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
