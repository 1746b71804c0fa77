"""Find a BIDS dataset's runs: preprocessed images, their masks and confounds, and the events of the raw dataset."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ntfa.errors import StudyError
from ntfa.files.reading import one_line, read_json, reading, require_file, table_text
from ntfa.study.bids_surfaces import SURFACES, VOLUMES, extensions_of, image_of, paired
from ntfa.study.filtering import filter_of
from ntfa.study.images import Run, images_of
from ntfa.study.locating import description_of, locate
from ntfa.study.motion import framewise_displacement
from ntfa.study.problems import Problem, refuse
from ntfa.study.provenance import LONGEST_TEXT

CONFOUNDS = ("none", "simple", "scrubbing", "compcor")
SAME_RUN = ("subject", "session", "task", "acquisition", "run")


@dataclass(frozen=True)
class Selection:
    """Which runs of a dataset to take; None takes all there are.

    Parameters
    ----------
    derivatives : path, optional
        fMRIPrep's output; by default `derivatives/fmriprep`, or the one folder in `derivatives` with functional images,
        or, where there is none, the dataset itself.
    participants, sessions, tasks : labels, with or without `sub-` and `ses-`
    space, res : str, optional
        Of the preprocessed images.
    confounds : {"none", "simple", "scrubbing", "compcor"}
        nilearn's denoising strategies for fMRIPrep; scrubbing removes frames.
    filters : mapping
        Further BIDS entities by kind of file, as in a BIDS filter file: `{"bold": {"desc": "preproc"}}`; also for
        `mask` and `confounds`.
    database : path, optional
        Where pybids keeps its index between calls.
    excluded : labels
        Participants to leave out.
    den : str, optional
        Density of images on cortical surfaces.
    """

    derivatives: str | os.PathLike[str] | None = None
    participants: Sequence[str] | None = None
    sessions: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    space: str | None = None
    res: str | None = None
    confounds: str = "none"
    filters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    database: str | os.PathLike[str] | None = None
    excluded: Sequence[str] | None = None
    den: str | None = None


@dataclass(frozen=True)
class FoundRun:
    """A run, with its brain mask, its space, how to denoise it, and what preprocessed it."""

    run: Run
    mask: Path | None
    space: str | None
    confounds: str
    confounds_file: Path | None = None
    preprocessing: str | None = None

    def with_confounds(self) -> Run:
        """Read the run's confounds by nilearn's strategy, the frames to keep, and how much the head moved."""
        from nilearn.interfaces.fmriprep import load_confounds_strategy

        motion = framewise_displacement(self.confounds_file)
        if self.confounds == "none":
            return replace(self.run, motion=motion)
        with reading(f"{self.run.img}: its confounds cannot be read"):
            if self.confounds_file is not None:
                require_file(self.confounds_file.with_suffix(".json"))
                table_text(self.confounds_file)
            files = [str(file) for file in images_of(self.run)]
            img = files if len(files) > 1 else files[0]
            confounds, sample_mask = load_confounds_strategy(img, denoise_strategy=self.confounds)
            values = np.asarray(confounds, dtype=np.float64)
            if not np.isfinite(values).all():
                raise ValueError("some are not numbers; fMRIPrep's are n/a in the first frame only")
        return replace(self.run, confounds=confounds, sample_mask=sample_mask, motion=motion)


def find_runs(bids_dir: str | os.PathLike[str], wanted: Selection) -> list[FoundRun]:
    """Find the preprocessed runs and their events; runs are in order of participant, session, task and run.

    Raises
    ------
    StudyError
        That lists everything that is missing or wrong, by participant and file.
    """
    found, problems = search(bids_dir, wanted)
    refuse(problems)
    return found


def search(bids_dir: str | os.PathLike[str], wanted: Selection) -> tuple[list[FoundRun], list[Problem]]:
    """Find runs as `find_runs` does, and what is wrong with others."""
    if wanted.confounds not in CONFOUNDS:
        raise StudyError(f"confounds={wanted.confounds!r}: choose one of {', '.join(CONFOUNDS)}")
    root, source = locate(bids_dir, wanted.derivatives)
    raw = _layout(root, wanted.database)
    images = raw if source == root else _layout(source, wanted.database)
    _require_known([images, raw], "subject", _excluded(wanted))
    bolds, right, alone = paired(_bolds(images, wanted), partial(_same_run, also=("space", "res", "den")))
    _refuse_ambiguous(bolds)
    beside = _companions(raw, images, wanted) | {"right hemisphere": right}
    if not any(_same_run(bold) in beside["events"] for bold in bolds):
        return [], [Problem(None, _no_events(raw, bolds, list(beside["events"].values())))]
    pipeline = None if source == root else _pipeline(source)
    found, problems = [], [*alone, *_without_image([*bolds, *right.values()], raw, images, wanted)]
    for bold in bolds:
        try:
            found.append(replace(_found(bold, raw, beside, wanted), preprocessing=pipeline))
        except StudyError as error:
            problems.append(Problem(f"sub-{bold.get_entities()['subject']}", str(error)))
    return found, problems


def _layout(root: Path, database: str | os.PathLike[str] | None) -> Any:
    from bids import BIDSLayout

    logging.getLogger("bidsschematools").setLevel(logging.WARNING)
    # pybids would wait for a pipe, and stumble over a link to nothing.
    refuse(_problems_of_sidecars(root, require_file))
    try:
        return BIDSLayout(
            root,
            validate=False,
            derivatives=False,
            config=["bids", "derivatives"],
            database_path=None if database is None else Path(database) / root.resolve().name,
        )
    except MemoryError:
        raise
    except Exception as error:
        # pybids may raise anything for a damaged file, and does not always say which it stumbled over.
        refuse(_problems_of_sidecars(root, _read_json))
        raise StudyError(f"{root}: cannot be read as a BIDS dataset ({one_line(error)})") from error


def _problems_of_sidecars(root: Path, check: Callable[[Path], Any]) -> list[Problem]:
    """List sidecars that do not pass a check."""
    problems = []
    for path in sorted(root.rglob("*.json")):
        try:
            with reading(f"{path}: the sidecar cannot be read"):
                check(path)
        except StudyError as error:
            whose = next((part for part in path.relative_to(root).parts if part.startswith("sub-")), None)
            problems.append(Problem(whose, str(error)))
    return problems


def _pipeline(derivatives: Path) -> str | None:
    """Name and version of what made the derivatives, by their description; None where it does not say."""
    by = description_of(derivatives).get("GeneratedBy")
    first = by[0] if isinstance(by, list) and by and isinstance(by[0], dict) else {}
    name, version = first.get("Name"), first.get("Version")
    if not isinstance(name, str) or not name.strip():
        return None
    return " ".join(f"{name} {version if isinstance(version, str) else ''}".split())[:LONGEST_TEXT]


def _asked_for(wanted: Selection) -> dict[str, Any]:
    """Return the participants, sessions and tasks that are asked for, as pybids names them."""
    asked = {}
    for entity, labels, prefix in (
        ("subject", wanted.participants, "sub-"),
        ("session", wanted.sessions, "ses-"),
        ("task", wanted.tasks, "task-"),
    ):
        if labels:
            asked[entity] = [str(label).removeprefix(prefix) for label in labels]
    return asked


def _bolds(layout: Any, wanted: Selection) -> list[Any]:
    asked = _asked_for(wanted)
    for entity, labels in asked.items():
        _require_known([layout], entity, labels)
    query = {**_IMAGES, "extension": extensions_of(wanted.space), **asked}
    given = (("space", wanted.space), ("res", wanted.res), ("den", wanted.den))
    query |= {name: value for name, value in given if value is not None}
    query |= filter_of(wanted.filters, "bold")
    bolds = _without_excluded(_get(layout, query), wanted)
    preprocessed = [bold for bold in bolds if bold.get_entities().get("desc") == "preproc"]
    bolds = preprocessed or bolds
    if not bolds:
        shown = ", ".join(f"{key}={value}" for key, value in query.items() if key not in ("extension", "datatype"))
        others = _without_excluded(_get(layout, {**_IMAGES, "extension": [*VOLUMES, *SURFACES], **asked}), wanted)
        there = f"there are images in {_spaces(others)}" if others else "see also --derivatives"
        raise StudyError(f"{layout.root}: no preprocessed functional image with {shown}; {there}")
    return sorted(bolds, key=lambda bold: [str(bold.get_entities().get(entity, "")) for entity in SAME_RUN])


_IMAGES = {"suffix": "bold", "extension": list(VOLUMES), "datatype": "func"}


def _get(layout: Any, query: Mapping[str, Any]) -> list[Any]:
    try:
        return list(layout.get(**query))
    except ValueError as error:
        raise StudyError(f"{layout.root}: cannot be searched for {dict(query)} ({one_line(error)})") from error


def _excluded(wanted: Selection) -> list[str]:
    return [str(label).removeprefix("sub-") for label in wanted.excluded or ()]


def _without_excluded(files: list[Any], wanted: Selection) -> list[Any]:
    excluded = set(_excluded(wanted))
    return [file for file in files if file.get_entities().get("subject") not in excluded]


def _spaces(files: Sequence[Any]) -> str:
    """Name the spaces that images are in, and their resolutions."""
    found = set()
    for file in files:
        entities = file.get_entities()
        res = "".join(f" ({name} {entities[name]})" for name in ("res", "den") if name in entities)
        found.add(f"space {entities['space']}{res}" if "space" in entities else "the space of the scanner")
    return ", ".join(sorted(found))


def _require_known(layouts: Sequence[Any], entity: str, labels: list[str]) -> None:
    known = sorted({str(label) for layout in layouts for label in layout.get(return_type="id", target=entity)})
    missing = [label for label in labels if label not in known]
    if missing:
        shown = ", ".join(known) or "none"
        raise StudyError(f"{layouts[0].root}: no {entity} {', '.join(missing)}; there are {shown}")


def _same_run(file: Any, also: Sequence[str] = ()) -> tuple[Any, ...]:
    """Return what files of one run have in common."""
    entities = file.get_entities()
    return tuple(entities.get(entity) for entity in (*SAME_RUN, *also))


def _companions(raw: Any, images: Any, wanted: Selection) -> dict[str, dict[tuple[Any, ...], Any]]:
    """What belongs to runs, by kind and run; looked up once, since pybids takes long for each question."""

    def look_up(layout: Any, also: Sequence[str] = (), **query: Any) -> dict[tuple[Any, ...], Any]:
        return {_same_run(file, also): file for file in _get(layout, query)}

    nifti, table = [".nii", ".nii.gz"], {"extension": ".tsv"}
    masks = {"suffix": "mask", "desc": "brain", "extension": nifti} | filter_of(wanted.filters, "mask")
    confounds = {"suffix": ["timeseries", "regressors"], "desc": "confounds", **table}
    return {
        "events": look_up(images, suffix="events", **table) | look_up(raw, suffix="events", **table),
        "mask": look_up(images, ("space", "res"), **masks),
        "confounds": look_up(images, **confounds | filter_of(wanted.filters, "confounds")),
        "raw image": look_up(raw, suffix="bold", extension=nifti),
        "raw sidecar": look_up(raw, suffix="bold", extension=".json"),
    }


def _refuse_ambiguous(bolds: list[Any]) -> None:
    spaces = sorted({str(bold.get_entities().get("space")) for bold in bolds})
    seen: dict[tuple[Any, ...], Any] = {}
    for bold in bolds:
        key = _same_run(bold)
        if key in seen:
            raise StudyError(
                f"two images of one run: {seen[key].path} and {bold.path}; say which with --space or --res (there are "
                f"{_spaces(bolds)})"
            )
        seen[key] = bold
    if len(spaces) > 1:
        raise StudyError(f"runs in several spaces ({', '.join(spaces)}); choose one with --space")


def _without_image(bolds: list[Any], raw: Any, images: Any, wanted: Selection) -> list[Problem]:
    """List runs that were asked for and have events, but no image such as is wanted."""
    filters = filter_of(wanted.filters, "bold")
    query = _asked_for(wanted) | {name: value for name, value in filters.items() if name in SAME_RUN}
    done = {_same_run(bold) for bold in bolds}
    events = _without_excluded(_get(raw, {"suffix": "events", "extension": ".tsv", **query}), wanted)
    missing = sorted((file for file in events if _same_run(file) not in done), key=lambda file: str(file.path))
    others: dict[tuple[Any, ...], list[Any]] = {}
    for file in _get(images, {**_IMAGES, **_asked_for(wanted)}) if missing else ():
        others.setdefault(_same_run(file), []).append(file)
    problems = []
    for file in missing:
        there = others.get(_same_run(file), [])
        but = f", but one in {_spaces(there)}" if there and images is not raw else ""
        text = f"{file.path}: no preprocessed image of this run in {images.root}{but}; preprocess it, or leave it out"
        problems.append(Problem(f"sub-{file.get_entities()['subject']}", text))
    return problems


def _found(bold: Any, raw: Any, beside: Mapping[str, Mapping[tuple[Any, ...], Any]], wanted: Selection) -> FoundRun:
    entities, key = bold.get_entities(), _same_run(bold)
    if key not in beside["events"]:
        raise StudyError(f"{bold.path}: no events.tsv for this run in {raw.root}")
    metadata = _metadata(bold, beside["raw image"].get(key), beside["raw sidecar"].get(key), Path(raw.root))
    run = Run(
        img=image_of(bold, beside["right hemisphere"], _same_run(bold, ("space", "res", "den"))),
        events=Path(beside["events"][key].path),
        participant=f"sub-{entities['subject']}",
        run="_".join(f"{name}-{entities[key]}" for key, name in _RUN_NAMES if key in entities) or "run-1",
        session=f"ses-{entities['session']}" if "session" in entities else None,
        t_r=_positive(metadata, "RepetitionTime", bold.path),
        start_time=_number(metadata, "StartTime", bold.path) or 0.0,
    )
    mask, confounds = beside["mask"].get(_same_run(bold, ("space", "res"))), beside["confounds"].get(key)
    return FoundRun(run, _path(mask), entities.get("space"), wanted.confounds, _path(confounds))


def _no_events(raw: Any, bolds: Sequence[Any], others: Sequence[Any]) -> str:
    """Say that no run has events, and which events there are."""
    there = f", but there is {others[0].path}, of another run" if others else ""
    return (
        f"{raw.root}: none of the {len(bolds)} runs has an events.tsv, the first {bolds[0].path}{there}; events must "
        f"have the same {', '.join(SAME_RUN)} in their names as the images"
    )


_RUN_NAMES = (("task", "task"), ("acquisition", "acq"), ("run", "run"))


def _path(file: Any) -> Path | None:
    return None if file is None else Path(file.path)


def _metadata(bold: Any, raw_image: Any, raw_sidecar: Any, root: Path) -> dict[str, Any]:
    """The image's sidecar, completed by those of the raw run, which fMRIPrep's need not repeat."""
    if raw_image is not None:
        return {**raw_image.get_metadata(), **bold.get_metadata()}
    of_task = _read_json(root / f"task-{bold.get_entities().get('task')}_bold.json")
    of_run = {} if raw_sidecar is None else _read_json(Path(raw_sidecar.path))
    return {**of_task, **of_run, **bold.get_metadata()}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_json(path)
    except ValueError as error:
        raise StudyError(f"{path}: the sidecar cannot be read ({error})") from error


def _number(metadata: Mapping[str, Any], name: str, where: str) -> float | None:
    value = metadata.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise StudyError(f"{where}: the sidecar's {name} is {value!r}, not a number")
    return float(value)


def _positive(metadata: Mapping[str, Any], name: str, where: str) -> float | None:
    value = _number(metadata, name, where)
    if value is not None and not value > 0:
        raise StudyError(f"{where}: the sidecar's {name} is {value:g}, not above 0")
    return value
