"""Find a BIDS dataset's runs: preprocessed images, their masks and confounds, and the events of the raw dataset."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ntfa.errors import StudyError
from ntfa.study.images import Run, load_mask, shared_mask, without_white_matter
from ntfa.study.preparing import Prepared

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
        Further BIDS entities by suffix, as in a BIDS filter file: `{"bold": {"desc": "preproc"}}`.
    database : path, optional
        Where pybids keeps its index between calls.
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


@dataclass(frozen=True)
class FoundRun:
    """A run, with its brain mask, its space, and how to denoise it."""

    run: Run
    mask: Path | None
    space: str | None
    confounds: str

    def with_confounds(self) -> Run:
        """Read the run's confounds by nilearn's strategy, and the frames to keep."""
        from nilearn.interfaces.fmriprep import load_confounds_strategy

        if self.confounds == "none":
            return self.run
        try:
            confounds, sample_mask = load_confounds_strategy(str(self.run.img), denoise_strategy=self.confounds)
        except (ValueError, OSError, KeyError) as error:
            raise StudyError(f"{self.run.img}: its confounds cannot be read ({error})") from error
        return replace(self.run, confounds=confounds, sample_mask=sample_mask)


def find_runs(bids_dir: str | os.PathLike[str], wanted: Selection) -> list[FoundRun]:
    """Find the preprocessed runs and their events; runs are in order of participant, session, task and run."""
    root = Path(bids_dir)
    if not (root / "dataset_description.json").is_file():
        raise StudyError(f"{root}: not a BIDS dataset, it has no dataset_description.json")
    if wanted.confounds not in CONFOUNDS:
        raise StudyError(f"confounds={wanted.confounds!r}: choose one of {', '.join(CONFOUNDS)}")
    source = _derivatives(root, wanted)
    raw = _layout(root, wanted.database)
    images = raw if source == root else _layout(source, wanted.database)
    bolds = _bolds(images, wanted)
    _refuse_ambiguous(bolds)
    return [_found(bold, raw, images, wanted) for bold in bolds]


def _layout(root: Path, database: str | os.PathLike[str] | None) -> Any:
    from bids import BIDSLayout

    logging.getLogger("bidsschematools").setLevel(logging.WARNING)
    try:
        return BIDSLayout(
            root,
            validate=False,
            derivatives=False,
            config=["bids", "derivatives"],
            database_path=None if database is None else Path(database) / root.resolve().name,
        )
    except (OSError, ValueError, TypeError) as error:
        raise StudyError(f"{root}: cannot be read as a BIDS dataset ({error})") from error


def _derivatives(root: Path, wanted: Selection) -> Path:
    if wanted.derivatives is not None:
        given = Path(wanted.derivatives)
        if not given.is_dir():
            raise StudyError(f"{given}: there is no such folder of derivatives")
        return given
    inside = root / "derivatives"
    usual = inside / "fmriprep"
    with_images = [path for path in sorted(inside.glob("*")) if any(path.glob("sub-*/**/func"))]
    names = [usual] if usual.is_dir() else with_images
    if len(names) > 1:
        shown = ", ".join(path.name for path in names)
        raise StudyError(f"{inside}: several derivatives ({shown}); say which with --derivatives")
    return names[0] if names else root


def _bolds(layout: Any, wanted: Selection) -> list[Any]:
    query: dict[str, Any] = {"suffix": "bold", "extension": [".nii", ".nii.gz"], "datatype": "func"}
    for entity, labels, prefix in (
        ("subject", wanted.participants, "sub-"),
        ("session", wanted.sessions, "ses-"),
        ("task", wanted.tasks, "task-"),
    ):
        if labels:
            query[entity] = _known(layout, entity, [str(label).removeprefix(prefix) for label in labels])
    query |= {name: value for name, value in (("space", wanted.space), ("res", wanted.res)) if value is not None}
    query |= dict(wanted.filters.get("bold", {}))
    bolds = layout.get(**query)
    preprocessed = [bold for bold in bolds if bold.get_entities().get("desc") == "preproc"]
    bolds = preprocessed or bolds
    if not bolds:
        shown = ", ".join(f"{key}={value}" for key, value in query.items() if key not in ("extension", "datatype"))
        raise StudyError(f"{layout.root}: no preprocessed functional image with {shown}")
    return sorted(bolds, key=lambda bold: [str(bold.get_entities().get(entity, "")) for entity in SAME_RUN])


def _known(layout: Any, entity: str, labels: list[str]) -> list[str]:
    known = layout.get(return_type="id", target=entity)
    missing = [label for label in labels if label not in known]
    if missing:
        raise StudyError(f"{layout.root}: no {entity} {', '.join(missing)}; there are {', '.join(map(str, known))}")
    return labels


def _refuse_ambiguous(bolds: list[Any]) -> None:
    seen: dict[tuple[Any, ...], Any] = {}
    for bold in bolds:
        entities = bold.get_entities()
        key = tuple(entities.get(entity) for entity in SAME_RUN)
        if key in seen:
            raise StudyError(
                f"two images of one run: {seen[key].path} and {bold.path}; say which space or resolution to use"
            )
        seen[key] = bold


def _found(bold: Any, raw: Any, images: Any, wanted: Selection) -> FoundRun:
    entities = bold.get_entities()
    same = {entity: entities[entity] for entity in SAME_RUN if entity in entities}
    metadata = _metadata(bold, raw, same)
    run = Run(
        img=Path(bold.path),
        events=_events(bold, raw, images, same),
        participant=f"sub-{entities['subject']}",
        run="_".join(f"{name}-{entities[key]}" for key, name in _RUN_NAMES if key in entities) or "run-1",
        session=f"ses-{entities['session']}" if "session" in entities else None,
        t_r=_positive(metadata, "RepetitionTime", bold.path),
        start_time=float(metadata.get("StartTime") or 0.0),
    )
    mask = images.get(suffix="mask", desc="brain", extension=[".nii", ".nii.gz"], **same, **_space(entities))
    return FoundRun(run, Path(mask[0].path) if mask else None, entities.get("space"), wanted.confounds)


_RUN_NAMES = (("task", "task"), ("acquisition", "acq"), ("run", "run"))


def _space(entities: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entities[name] for name in ("space", "res") if name in entities}


def _metadata(bold: Any, raw: Any, same: dict[str, Any]) -> dict[str, Any]:
    """The image's sidecar, completed by that of the raw run, which fMRIPrep's need not repeat."""
    try:
        own = dict(bold.get_metadata())
        for source in raw.get(suffix="bold", extension=[".json", ".nii", ".nii.gz"], **same)[:1]:
            own = {**source.get_metadata(), **own}
    except (ValueError, OSError) as error:
        raise StudyError(f"{bold.path}: a sidecar of it cannot be read ({error})") from error
    if "RepetitionTime" not in own:
        task = Path(raw.root) / f"task-{same.get('task')}_bold.json"
        own = {**_read_json(task), **own}
    return own


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8-sig")))
    except (ValueError, OSError) as error:
        raise StudyError(f"{path}: the sidecar cannot be read ({error})") from error


def _positive(metadata: Mapping[str, Any], name: str, where: str) -> float | None:
    value = metadata.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise StudyError(f"{where}: the sidecar's {name} is {value!r}, not a positive number")
    return float(value)


def _events(bold: Any, raw: Any, images: Any, same: dict[str, Any]) -> Path:
    for layout in (raw, images):
        found = layout.get(suffix="events", extension=".tsv", **same)
        if found:
            return Path(found[0].path)
    raise StudyError(f"{bold.path}: no events.tsv for this run in {raw.root}")


def mask_for(found: Sequence[FoundRun], given: Any, min_coverage: float, keep_white_matter: bool) -> Any:
    """The voxels to use: a given mask, or the runs' brain masks less, in MNI space, white matter."""
    spaces = {run.space for run in found}
    if len(spaces) > 1:
        raise StudyError(f"runs in several spaces ({', '.join(map(str, spaces))}); choose one with --space")
    if given is not None:
        return load_mask(given)
    paths = sorted({run.mask for run in found if run.mask is not None})
    if not paths:
        raise StudyError(f"{found[0].run.name}: no brain mask (desc-brain_mask) beside it; give one with --mask")
    mask = shared_mask([load_mask(path) for path in paths], min_coverage, [str(path) for path in paths])
    in_mni = str(found[0].space or "").startswith("MNI")
    return mask if keep_white_matter or not in_mni else without_white_matter(mask)


def with_participant_labels(prepared: Sequence[Prepared], bids_dir: str | os.PathLike[str]) -> list[Prepared]:
    """Add the columns of participants.tsv to the trials, as labels."""
    table = participant_labels(bids_dir)
    labelled = []
    for one in prepared:
        own = table.loc[one.participant].to_dict() if one.participant in table.index else {}
        fresh = {str(name): value for name, value in own.items() if name not in one.trials}
        labelled.append(replace(one, trials=one.trials.assign(**fresh)))
    return labelled


def participant_labels(bids_dir: str | os.PathLike[str]) -> pd.DataFrame:
    """participants.tsv as a table indexed by participant, empty where there is none."""
    path = Path(bids_dir) / "participants.tsv"
    if not path.is_file():
        return pd.DataFrame()
    try:
        table = pd.read_csv(path, sep="\t", na_values=["n/a"], dtype={"participant_id": str}, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise StudyError(f"{path}: cannot be read as a table ({error})") from error
    if "participant_id" not in table:
        raise StudyError(f"{path}: no column participant_id")
    return table.set_index("participant_id")
