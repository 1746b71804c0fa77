"""A study as a folder: study.json, trials.tsv, coordinates.npy, frames/<participant>.npy, and its mask.

The mask is `mask.nii.gz`, or `greyordinates/` of a study with cortical surfaces.
"""

import io
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ntfa.errors import NTFAError, StudyError
from ntfa.files.folders import not_written, publish, refuse_existing, require_room, save_array, sibling
from ntfa.files.headers import open_file, require_sound
from ntfa.files.reading import load_array, one_line, read_json, reading, table_text
from ntfa.study.checks import (
    FrameArray,
    check_coordinates,
    check_mask,
    check_participant,
    check_trials,
    check_trials_fit,
    check_values,
    some,
)
from ntfa.study.coverage import Coverage, check_coverage, packed
from ntfa.study.greyordinates import Greyordinates, save_mask
from ntfa.study.plausible import refuse_frames_far_off, warn_of_places_and_times
from ntfa.version import __version__

SCHEMA_VERSION = 1
INCOMPLETE_VERSION = 2
"""Of studies in which somebody lacks voxels: zeros in their frames, which earlier versions would take for data."""
COVERAGE_FILE = "coverage.npy"
MOST_HELD = 256
"""Files of frames that a study holds open."""
STUDY_FILE = "study.json"
MISSING = "n/a"


class StudyWriter:
    """Write a study folder one participant at a time, for studies larger than memory.

    Use it in a `with` block. The folder appears, complete, when the block ends; if the block fails,
    nothing is left behind and whatever was there before is untouched.

    Parameters
    ----------
    folder : path
        Where the study goes. Something there is refused, unless `overwrite`.
    coordinates : array of shape (V, 3)
        Positions of the voxels, in mm.
    trials : DataFrame
        The trials of all participants.
    mask_img : nibabel image, optional
        A mask of exactly these voxels, in C order.
    notes : mapping, optional
        Anything worth keeping in `study.json`.
    coverage : mapping of participant to boolean array of shape (V,), optional
        Of participants who lack voxels, which they have; their frames are zero in the others.
    overwrite : bool, default=False
        Whether to replace what is at `folder`.

    Attributes
    ----------
    working_folder : Path
        Where the files are until the block ends; further files written there become part of the folder.
    participants : list of str
        Sorted labels of the participants to `add`.

    Examples
    --------
    >>> with StudyWriter("study", coordinates, trials) as writer:  # doctest: +SKIP
    ...     for participant in writer.participants:
    ...         writer.add(participant, load_frames(participant))
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        coordinates: ArrayLike,
        trials: pd.DataFrame,
        *,
        mask_img: Any = None,
        notes: Mapping[str, Any] | None = None,
        coverage: Coverage | None = None,
        overwrite: bool = False,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.coordinates = check_coordinates(coordinates)
        self.trials = check_trials(trials)
        self.mask_img = mask_img
        self.notes = dict(notes or {})
        self.coverage = check_coverage(coverage or {}, set(self.trials["participant"]), len(self.coordinates))
        self.overwrite = overwrite
        check_mask(mask_img, self.coordinates)
        self.participants: list[str] = sorted(self.trials["participant"].unique().tolist())
        self.working_folder = sibling(self.folder, "partial")
        self._files: dict[str, str] = {}
        self._columns: dict[str, int] = {}

    def __enter__(self) -> "StudyWriter":
        refuse_existing(self.folder, self.overwrite, STUDY_FILE)
        (self.working_folder / "frames").mkdir(parents=True)
        return self

    def add(self, participant: str, frames: ArrayLike) -> None:
        """Check and write one participant's frames [frames x V]."""
        array = check_participant(participant, frames, len(self.coordinates))
        target = self._checked(participant, array)
        require_room(self.folder, array.nbytes)
        with self._writing(array.nbytes):
            save_array(target, np.ascontiguousarray(array))

    def link(self, participant: str, file: Path) -> None:
        """Check one participant's frames in an .npy file and give the file a second name here; nothing is copied.

        The file may have more columns than the study has voxels: the first ones count. It must not be changed later,
        only replaced.
        """
        n_columns = _load_array(file).shape[-1]
        target = self._checked(participant, _load_frames(participant, file, len(self.coordinates), n_columns))
        with self._writing():
            os.link(file, target)
        if n_columns > len(self.coordinates):
            self._columns[participant] = n_columns

    def _checked(self, participant: str, array: FrameArray) -> Path:
        """Check frames, and return where they go."""
        trials = self.trials[self.trials["participant"] == participant]
        if trials.empty:
            raise StudyError(f"Participant {participant} has no trials, so its frames are not part of the study")
        check_trials_fit(trials, {participant: len(array)})
        check_values(participant, array, self.coverage.get(participant))
        refuse_frames_far_off(participant, array)
        name = f"frames/{safe_name(participant)}.npy"
        # Also true of two labels that differ in case only, on a file system that does not tell them apart.
        if (self.working_folder / name).exists():
            raise StudyError(f"{name} (participant {participant}) has been written already")
        self._files[participant] = name
        return self.working_folder / name

    @contextmanager
    def _writing(self, needed: int = 0) -> Iterator[None]:
        """Say which file could not be written, and how much room it takes."""
        try:
            yield
        except OSError as error:
            if isinstance(error, NTFAError):
                raise
            raise not_written(self.folder, error, needed, self.working_folder) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with self._writing():
                    self._finish()
        finally:
            shutil.rmtree(self.working_folder, ignore_errors=True)

    def _finish(self) -> None:
        missing = sorted(set(self.participants).difference(self._files))
        if missing:
            raise StudyError(f"Trials but no frames were written for participant {some(missing)}")
        save_array(self.working_folder / "coordinates.npy", self.coordinates)
        self.trials.to_csv(self.working_folder / "trials.tsv", sep="\t", index=False, na_rep=MISSING)
        if self.coverage:
            save_array(self.working_folder / COVERAGE_FILE, packed(self.coverage)[1])
        if self.mask_img is not None:
            save_mask(self.mask_img, self.working_folder)
        text = json.dumps(self._description(), indent=2, ensure_ascii=False)
        (self.working_folder / "study.json").write_text(text + "\n", encoding="utf-8")
        publish(self.working_folder, self.folder, self.overwrite, STUDY_FILE)

    def _description(self) -> dict[str, Any]:
        others = self.trials.drop(columns=["participant", "stimulus"])
        return {
            "schema_version": INCOMPLETE_VERSION if self.coverage else SCHEMA_VERSION,
            "ntfa_version": __version__,
            "n_voxels": len(self.coordinates),
            "n_trials": len(self.trials),
            "n_participants": len(self.participants),
            "n_stimuli": int(self.trials["stimulus"].nunique()),
            # A run labelled "01" must not come back as the number 1.
            "text_columns": [str(c) for c in others if not pd.api.types.is_numeric_dtype(others[c])],
            "participants": {label: self._files[label] for label in self.participants},
            # Files of some may have columns after those of the study's voxels.
            "columns": self._columns,
            # Who lacks voxels: the rows of coverage.npy, which say what they have.
            **({"coverage": sorted(self.coverage)} if self.coverage else {}),
            "notes": self.notes,
        }


def safe_name(label: str) -> str:
    """Turn a label into a plain file name: anything but ``A-Za-z0-9._-`` is percent-encoded."""
    return quote(label, safe="").replace("~", "%7E")


def read_study(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a study folder and check it: the arguments of `Study`, frames memory-mapped."""
    root = Path(folder)
    try:
        return _read(root, _read_description(root))
    except StudyError as error:
        raise StudyError(f"{root}: {one_line(error)}") from error


def _read(root: Path, description: dict[str, Any]) -> dict[str, Any]:
    coordinates = check_coordinates(np.array(_load_array(root / "coordinates.npy")))
    trials = check_trials(_read_trials(root / "trials.tsv", description))
    for name, count in (("n_voxels", len(coordinates)), ("n_trials", len(trials))):
        if description.get(name) != count:
            raise StudyError(f"study.json says {name} is {description.get(name)}, but the files have {count}")
    files, columns = _frame_files(root, description), _columns(description, len(coordinates))
    check_trials_fit(trials, dict.fromkeys(files, np.iinfo(np.int64).max))
    wanted = trials["participant"].unique().tolist()
    coverage = _read_coverage(root, description, set(files), len(coordinates))
    for label in wanted:
        _load_frames(label, files[label], len(coordinates), columns.get(label))
    frames = MappedFrames({label: files[label] for label in wanted}, len(coordinates), columns)
    lengths = {label: len(array) for label, array in frames.items()}
    check_trials_fit(trials, lengths)
    mask_img = Greyordinates.open(root) or _load_mask(root / "mask.nii.gz")
    check_mask(mask_img, coordinates)
    warn_of_places_and_times(coordinates, trials, dict.fromkeys(files, 0) | lengths, mask_img)
    notes = description.get("notes")
    return {
        "coordinates": coordinates,
        "trials": trials,
        "frames": frames,
        "mask_img": mask_img,
        "notes": notes if isinstance(notes, dict) else {},
        "coverage": {label: seen for label, seen in coverage.items() if label in wanted},
    }


def _read_description(root: Path) -> dict[str, Any]:
    path = root / "study.json"
    if not path.is_file():
        raise StudyError("not a study folder, there is no study.json in it")
    try:
        description = read_json(path)
    except ValueError as error:
        raise StudyError(f"study.json cannot be read: {error}") from error
    version = description.get("schema_version")
    if version not in (SCHEMA_VERSION, INCOMPLETE_VERSION):
        raise StudyError(
            f"study.json has schema_version {version}, this version of ntfa reads {SCHEMA_VERSION} and "
            f"{INCOMPLETE_VERSION}; "
            "write the study again, or use the ntfa that wrote it"
        )
    return description


def _frame_files(root: Path, description: dict[str, Any]) -> dict[str, Path]:
    files = description.get("participants")
    if not isinstance(files, dict):
        raise StudyError("study.json has no participants")
    for label, name in files.items():
        plain = isinstance(name, str) and "\\" not in name and PurePosixPath(name).as_posix() == name
        parts = PurePosixPath(name).parts if plain else ()
        if len(parts) != 2 or parts[0] != "frames" or parts[1] == "..":
            raise StudyError(f"study.json: the file of participant {label} must be in frames/, not {name!r}")
    if len(set(files.values())) < len(files):
        raise StudyError("study.json: two participants have one file")
    return {label: root / name for label, name in files.items()}


def _columns(description: dict[str, Any], n_voxels: int) -> dict[str, int]:
    """Read whose files have how many columns, where these are more than there are voxels."""
    columns = description.get("columns", {})
    if not isinstance(columns, dict) or not all(type(n) is int and n > n_voxels for n in columns.values()):
        raise StudyError(f"study.json: columns must be numbers above {n_voxels} by participant, not {columns!r:.200}")
    return columns


def _read_coverage(root: Path, description: dict[str, Any], known: set[str], n_voxels: int) -> Coverage:
    if description["schema_version"] == SCHEMA_VERSION:
        return {}
    labels = description.get("coverage")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise StudyError("study.json: coverage must name the participants who lack voxels")
    seen = np.array(_load_array(root / COVERAGE_FILE))
    if seen.dtype != np.bool_ or seen.shape != (len(labels), n_voxels):
        raise StudyError(f"{COVERAGE_FILE} must be {len(labels)} x {n_voxels} booleans, not {seen.dtype} {seen.shape}")
    return check_coverage(dict(zip(labels, seen, strict=True)), known, n_voxels)


def _read_trials(path: Path, description: dict[str, Any]) -> pd.DataFrame:
    try:
        text = table_text(path, line_breaks=True)
        columns = pd.read_csv(io.StringIO(text), sep="\t", nrows=0, index_col=False).columns
        labels = {"participant", "stimulus"}
        return pd.read_csv(
            io.StringIO(text),
            sep="\t",
            dtype={c: str for c in columns if c in labels.union(description.get("text_columns", []))},
            keep_default_na=False,
            na_values={c: [MISSING] for c in columns if c not in labels},
            index_col=False,
        )
    except (ValueError, TypeError) as error:
        raise StudyError(f"{path.name} cannot be read: {one_line(error)}") from error


def _load_array(path: Path, mmap_mode: Any = "r") -> np.memmap:
    try:
        return load_array(path, mmap_mode)
    except ValueError as error:
        raise StudyError(f"{path.name} cannot be read: {error}") from error


class HeldFile:
    """A file that stays readable when it is removed or replaced, where the system has names for open files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)

    @property
    def name(self) -> Path:
        """A path that leads to it."""
        held = Path(f"/proc/self/fd/{self._descriptor}")
        return held if held.exists() else self.path

    def __reduce__(self) -> tuple[type["HeldFile"], tuple[Path]]:
        """Open it anew in another process."""
        return HeldFile, (self.path,)

    def __del__(self) -> None:
        """Let it go."""
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class MappedFrames(Mapping[str, FrameArray]):
    """Participants' frames in files, mapped when they are asked for and let go when nobody uses them any more.

    So whoever goes through participants one by one has one of them in memory, and not all in the end. The last one that
    was asked for is kept, for those who go through trials. Files of hundreds of participants are not held open.
    """

    def __init__(
        self, files: Mapping[str, Path | HeldFile], n_voxels: int, columns: Mapping[str, int] | None = None
    ) -> None:
        hold = len(files) <= MOST_HELD
        self.files = {
            label: HeldFile(file) if hold and isinstance(file, Path) else file for label, file in files.items()
        }
        self.n_voxels, self.columns = n_voxels, dict(columns or {})
        self._last: tuple[str, FrameArray] | None = None

    def __getitem__(self, label: str) -> FrameArray:
        """Map one participant's frames."""
        if self._last is None or self._last[0] != label:
            file = self.files[label]
            path = file.name if isinstance(file, HeldFile) else file
            self._last = label, _load_frames(label, path, self.n_voxels, self.columns.get(label))
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        """Go through the labels."""
        return iter(self.files)

    def __len__(self) -> int:
        """Count participants."""
        return len(self.files)

    def only(self, labels: Collection[str]) -> "MappedFrames":
        """Keep some participants."""
        kept = {label: file for label, file in self.files.items() if label in labels}
        return MappedFrames(kept, self.n_voxels, self.columns)


def _load_frames(label: str, path: Path, n_voxels: int, n_columns: int | None = None) -> FrameArray:
    """Map a participant's frames; of a file with more columns, those of the voxels."""
    # Copy-on-write: nothing reaches the file, and torch takes the array without a read-only warning.
    array = _load_array(path, mmap_mode="c")
    if array.dtype != np.float32:
        raise StudyError(f"{path.name} (participant {label}) must be float32, not {array.dtype}")
    if n_columns is None:
        return check_participant(label, array, n_voxels)
    return check_participant(label, array, n_columns)[:, :n_voxels]


def _load_mask(path: Path) -> Any:
    if not path.exists():
        return None
    import nibabel

    mask = open_file(path, path.name, "mask")
    require_sound(mask, path.name)
    with reading(f"{path.name} cannot be read"):
        # In memory, so that the image outlives a folder that is replaced.
        return nibabel.Nifti1Image(np.asanyarray(mask.dataobj), mask.affine, mask.header)
