"""Fitted models on disk: a folder of safetensors, JSON and TSV, written completely or not at all."""

from __future__ import annotations

import io
import json
import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from ntfa.errors import ModelError, NTFAError
from ntfa.estimators.frames import FILE as FRAMES_FILE
from ntfa.estimators.frames import read_frame_table
from ntfa.estimators.newcomers import Newcomers
from ntfa.estimators.result import Fitted
from ntfa.estimators.settings import check_settings, plain, resolve_device
from ntfa.files.folders import write_folder
from ntfa.files.reading import one_line, read_json, require_file, table_text
from ntfa.fitting.arrange import Labels
from ntfa.fitting.design import Coding, Column
from ntfa.inference.frames import Units
from ntfa.seeds import LARGEST_SEED
from ntfa.study.checks import check_coordinates, check_mask
from ntfa.study.coverage import Coverage, check_coverage, packed
from ntfa.study.greyordinates import Greyordinates, save_mask
from ntfa.study.images import load_mask
from ntfa.study.provenance import KEY, Provenance
from ntfa.version import __version__

if TYPE_CHECKING:
    from ntfa.estimators.base import TopographicModel

logger = logging.getLogger("ntfa")

SCHEMA_VERSION = 1
CONFIG_FILE = "config.json"
LARGEST = 1e30
"""In standardised units, of a parameter that anybody fitted; products and squares of such are still finite."""

LARGEST_SCALE = 1e6
"""Of a voxel's noise in units of the voxels' geometric mean."""

AnyModel = TypeVar("AnyModel", bound="TopographicModel")


def save_model(model: TopographicModel, folder: Path, overwrite: bool) -> None:
    """Write a fitted model; whatever stood there is replaced only once the new folder is complete."""
    with write_folder(folder, overwrite, CONFIG_FILE) as partial:
        write_model(model, partial)


def write_model(model: TopographicModel, folder: Path, command: Sequence[str] | None = None) -> None:
    """Write a fitted model's files into an existing folder; `command` is the command line that made it."""
    fitted = model._fitted
    tensors = {name: tensor.cpu().contiguous() for name, tensor in fitted.module.state_dict().items()}
    tensors["coordinates"] = torch.from_numpy(fitted.coordinates)
    if fitted.noise_scales is not None:
        tensors["noise_scales"] = torch.from_numpy(fitted.noise_scales)
    if fitted.coverage:
        tensors["coverage"] = torch.from_numpy(packed(fitted.coverage)[1])
    (folder / "model.safetensors").write_bytes(save(tensors))
    _write_json(folder / CONFIG_FILE, _config(model) | ({"command": list(command)} if command else {}))
    _write_json(folder / "summary.json", summary(model))
    fitted.history.to_csv(folder / "history.tsv", sep="\t", index=False)
    model.factors_.to_csv(folder / "factors.tsv", sep="\t", index=False)
    for attribute, name in TABLES.items():
        if hasattr(model, attribute):
            getattr(model, attribute).to_csv(folder / name, sep="\t", index=attribute in INDEXED)
    if fitted.mask_img is not None:
        save_mask(fitted.mask_img, folder)


TABLES = {
    "participants_": "embeddings_participants.tsv",
    "stimuli_": "embeddings_stimuli.tsv",
    "template_": "template.tsv",
    "loadings_": "loadings.tsv",
    "weights_covariance_": "weights_covariance.tsv",
    "restarts_": "restarts.tsv",
    "newcomers_": "newcomers.tsv",
    "retests_": "retests.tsv",
    "tried_": "tried.tsv",
    "frames_": FRAMES_FILE,
}
MAY_BE_UNKNOWN = ["framewise_displacement"]
INDEXED = ("participants_", "stimuli_", "weights_covariance_", "restarts_")


def summary(model: TopographicModel) -> dict[str, Any]:
    """Return what a fit came to, in a few numbers."""
    fitted = model._fitted
    bound = float(fitted.history["bound"].iloc[-1])
    known = {"participants": len(fitted.labels.participants), "stimuli": len(fitted.labels.stimuli)}
    fit = dict(zip(known, known.values() if fitted.newcomers is None else fitted.newcomers.n_fitted, strict=True))
    return {
        "model": type(model).__name__,
        **{f"n_{kind}": n for kind, n in fit.items()},
        **({f"n_{kind}_added": known[kind] - n for kind, n in fit.items()} if fitted.newcomers is not None else {}),
        "n_trials": fitted.n_trials,
        "n_voxels": len(fitted.coordinates),
        "n_frames": fitted.n_frames or fitted.n_data // len(fitted.coordinates),
        "n_data": fitted.n_data,
        **({"n_participants_lacking_voxels": len(fitted.coverage)} if fitted.coverage else {}),
        "n_factors": fitted.n_factors,
        "n_parameters": fitted.n_parameters,
        "n_steps": len(fitted.history),
        "seconds": float(fitted.history["seconds"].iloc[-1]),
        "converged": model.converged_,
        "stopped": fitted.stopped,
        "bound": bound,
        "bound_per_datum": bound / fitted.n_data,
        "noise_sd": model.noise_,
        **{name: value for name, value in (fitted.choice or {}).items() if name != "sizing"},
    }


def versions() -> dict[str, str]:
    """Return versions of what a result depends on."""
    packages = ("torch", "numpy", "pandas", "safetensors")
    return {
        "ntfa": __version__,
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in packages},
    }


def _config(model: TopographicModel) -> dict[str, Any]:
    fitted = model._fitted
    return {
        "schema_version": SCHEMA_VERSION,
        "model": type(model).__name__,
        "parameters": {name: plain(value) for name, value in fitted.params.items()},
        "seed": fitted.seed,
        "chosen": fitted.choice,
        "stopped": fitted.stopped,
        "counts": {"data": fitted.n_data, "trials": fitted.n_trials, "parameters": fitted.n_parameters},
        "n_frames": fitted.n_frames,
        "n_pooled": fitted.n_pooled,
        **({"coverage": packed(fitted.coverage)[0]} if fitted.coverage else {}),
        KEY: None if fitted.provenance is None else fitted.provenance.as_notes(),
        "units": asdict(fitted.units),
        "labels": asdict(fitted.labels),
        **({} if fitted.newcomers is None else {"newcomers": fitted.newcomers.to_json()}),
        "versions": versions(),
    }


def load_model(kind: type[AnyModel], folder: Path, device: str) -> AnyModel:
    """Read a model of this kind back from its folder; anybody may have written it, so all of it is checked."""
    config = read_config(folder / CONFIG_FILE)
    if config.get("model") != kind.__name__:
        raise ModelError(f"{folder} holds a model of kind {config.get('model')!r}, not {kind.__name__}")
    place = resolve_device(device)
    try:
        model = kind(**config["parameters"])
        check_settings(model.get_params())
        model._take_choice(config.get("chosen"))
        model._set_fitted_attributes(_read_fitted(model, config, folder, place))
        _require_finite(model)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError, OSError, SafetensorError) as error:
        problem = one_line(error) if isinstance(error, NTFAError) else f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"{folder}: the model in this folder cannot be read ({problem})") from error
    return model


def _read_fitted(model: TopographicModel, config: dict[str, Any], folder: Path, device: torch.device) -> Fitted:
    counts, units = config["counts"], config["units"]
    known = _read_labels(config["labels"])
    require_file(folder / "model.safetensors")
    tensors = load_file(folder / "model.safetensors")
    coordinates = check_coordinates(tensors.pop("coordinates").numpy().astype(np.float64))
    scales = _read_scales(model, tensors.pop("noise_scales", None), len(coordinates))
    coverage = _read_coverage(config.get("coverage"), tensors.pop("coverage", None), known, len(coordinates))
    _require_sizes(model, known, tensors)
    with torch.random.fork_rng():
        module = model._module(known).double()
    module.expect_tensors(tensors, len(coordinates))
    _require_tensors(module.state_dict(), tensors)
    module.load_state_dict(tensors)
    newcomers = Newcomers.from_json(config.get("newcomers"), known)
    module.n_fitted = None if newcomers is None else newcomers.n_fitted
    mask = folder / "mask.nii.gz"
    mask_img = Greyordinates.open(folder) or (load_mask(mask) if os.path.lexists(mask) else None)
    check_mask(mask_img, coordinates)
    x, y, z = units["origin"]
    return Fitted(
        module.to(device),
        config["parameters"],
        int(config["seed"]),
        model._layout,
        known,
        Units((float(x), float(y), float(z)), float(units["length"]), float(units["intensity"])),
        coordinates,
        mask_img,
        _read_history(folder / "history.tsv"),
        str(config["stopped"]),
        int(counts["data"]),
        int(counts["trials"]),
        int(counts["parameters"]),
        scales,
        config.get("chosen"),
        _read_restarts(folder / TABLES["restarts_"]),
        _read_count(config, "n_pooled"),
        None if config.get(KEY) is None else Provenance.from_notes(dict(config[KEY])),
        newcomers,
        read_frame_table(folder / FRAMES_FILE) if model.frames == "robust" else None,
        coverage,
        _read_count(config, "n_frames"),
    )


def _read_count(config: dict[str, Any], name: str) -> int | None:
    """Say how many columns voxels were pooled into, or how many frames there were; earlier versions do not."""
    count = config.get(name)
    if count is not None and (type(count) is not int or count < 1):
        raise ValueError(f"{name} is {str(count)[:80]!r}, which is no number of voxels or frames")
    return count


def _read_coverage(labels: Any, seen: torch.Tensor | None, known: Labels, n_voxels: int) -> Coverage:
    """Take who has which voxels; nothing, if nobody lacks any."""
    if labels is None and seen is None:
        return {}
    if seen is None or not isinstance(labels, list) or seen.dtype != torch.bool or len(seen) != len(labels):
        raise ValueError("coverage must name the participants who lack voxels, and say which they have")
    return check_coverage(dict(zip(labels, seen.numpy(), strict=True)), known.participants, n_voxels)


def _read_scales(model: TopographicModel, scales: torch.Tensor | None, n_voxels: int) -> np.ndarray | None:
    """Take the voxels' noise, there if and only if it was asked for; refuse what is not in units of its mean."""
    if (scales is None) != (model.noise == "same"):
        raise ValueError(f"noise is {model.noise!r}, but noise_scales are {'missing' if scales is None else 'there'}")
    if scales is None:
        return None
    found = scales.double().numpy() if scales.is_floating_point() else np.zeros(0)
    sound = found.shape == (n_voxels,) and bool(((found > 1 / LARGEST_SCALE) & (found < LARGEST_SCALE)).all())
    if not sound or abs(np.log(found).mean()) > 1e-6:
        raise ValueError("noise_scales in model.safetensors must be a number above 0 for every voxel, 1 on average")
    return found


def _read_labels(labels: dict[str, Any]) -> Labels:
    owners = [tuple(owner) if isinstance(owner, list) else owner for owner in labels["owners"]]
    known = Labels(
        labels["participants"],
        labels["stimuli"],
        owners,
        Coding.from_json(labels.get("design")),
        _read_fingerprints(labels.get("fingerprints"), owners),
    )
    for name in ("participants", "stimuli"):
        own = getattr(known, name)
        if not isinstance(own, list) or not own or not all(isinstance(label, str) for label in own):
            raise ValueError(f"{name} must be a list of labels")
        if len(set(own)) < len(own):
            raise ValueError(f"{name} has a label twice")
    _require_owners(owners, known.participants)
    for column in known.design.columns if known.design is not None else []:
        _require_column(column)
    return known


def _read_fingerprints(fingerprints: Any, owners: list[Any]) -> list[str] | None:
    """Take the fingerprints of trials that own factors; models of earlier versions have none."""
    if fingerprints is not None:
        whole = isinstance(fingerprints, list) and all(isinstance(one, str) for one in fingerprints)
        if not whole or len(fingerprints) != len(owners):
            raise ValueError("fingerprints must be a list of texts, one for each owner of factors")
        return fingerprints
    if any(isinstance(owner, tuple) for owner in owners):
        logger.warning(
            "this model was saved by an earlier version, which knew trials by their frame numbers alone: results for "
            "trials of another study at the same numbers would be wrong; fit it again before using it so"
        )
    return None


def _require_column(column: Column) -> None:
    """Refuse a column of a design that no trials can have led to."""
    levels = column.levels
    labels = levels is None or (isinstance(levels, list) and levels and all(isinstance(label, str) for label in levels))
    scale = isinstance(column.scale, int | float) and 1 / LARGEST < column.scale < LARGEST
    if not isinstance(column.name, str) or not labels or not scale or len(set(levels or ())) < len(levels or ()):
        raise ValueError(f"the design has a column that makes no sense: {column}")


def _require_owners(owners: list[Any], participants: list[str]) -> None:
    """Refuse owners of factors that are neither participants nor (participant, start, stop) of a trial, all alike."""
    sizes = {len(owner) if isinstance(owner, tuple) else 1 for owner in owners}
    if len(sizes) != 1 or not sizes <= {1, 3} or len(set(owners)) < len(owners):
        raise ValueError("owners of factors must be participants, or trials, each of them once")
    for owner in owners:
        who, *span = owner if isinstance(owner, tuple) else (owner,)
        if who not in participants or not all(type(frame) is int for frame in span):
            raise ValueError(f"{owner!r} is no owner of factors")


def _require_sizes(model: TopographicModel, known: Labels, tensors: dict[str, torch.Tensor]) -> None:
    """Compare the settings that decide how large a module is with the tensors there are, before it is made."""
    for name, size in model._expected_sizes(known).items():
        _require_shape(name, tensors, size)


def _require_shape(name: str, tensors: dict[str, torch.Tensor], size: tuple[int, ...] | None) -> None:
    found = tuple(tensors[name].shape) if name in tensors else None
    if found != size:
        raise ValueError(f"{name} has the shape {found} in model.safetensors, but should have {size}")


def _require_tensors(wanted: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> None:
    """Refuse tensors of other names, shapes or types than the module's, and any that are not finite."""
    for name in sorted(wanted.keys() | tensors.keys()):
        _require_shape(name, tensors, tuple(wanted[name].shape) if name in wanted else None)
        tensor = tensors[name]
        sound = bool((tensor.abs() < LARGEST).all()) if tensor.is_floating_point() else not tensor.is_complex()
        if not sound or tensor.is_floating_point() != wanted[name].is_floating_point():
            raise ValueError(f"{name} in model.safetensors has something that is no finite number")


def _require_finite(model: TopographicModel) -> None:
    """Refuse a model whose numbers are sound one by one and come to nothing together."""
    fitted, factors = model._fitted, model.factors_
    scales = {"length": fitted.units.length, "intensity": fitted.units.intensity, "noise": model.noise_}
    for name, scale in scales.items():
        if not 1 / LARGEST < scale < LARGEST:
            raise ValueError(f"the {name} is {scale}")
    if not fitted.n_data > 0 or not fitted.n_trials > 0 or not 0 <= fitted.seed <= LARGEST_SEED:
        raise ValueError("counts must be above 0, and the seed must not be below")
    if not (factors["width"].between(1 / LARGEST, LARGEST)).all():
        raise ValueError("a factor has no width, or one beyond all bounds")
    # Who was added was checked as it was read; of stimuli no density is known.
    for name in ("factors_", "history_", *(TABLES.keys() - {"newcomers_"})):
        table = getattr(model, name, None)
        table = None if table is None else table.drop(columns=MAY_BE_UNKNOWN, errors="ignore")
        if table is not None and not (np.abs(table.select_dtypes("number").to_numpy(np.float64)) < LARGEST).all():
            raise ValueError(f"{name} has something that is no finite number, or one beyond all bounds")


def _read_history(path: Path) -> pd.DataFrame:
    return _read_table(path, {"step", "seconds", "bound"})


def _read_restarts(path: Path) -> pd.DataFrame | None:
    """Read how starts compare; there is nothing to read if there was one, or in models of earlier versions."""
    if not os.path.lexists(path):
        return None
    table = _read_table(path, {"restart", "bound", "kept"})
    if table["kept"].dtype.kind != "b" or table["kept"].sum() != 1:
        raise ValueError(f"{path.name}: kept must be True of one start, False of the others")
    return table.set_index("restart")


def _read_table(path: Path, wanted: set[str]) -> pd.DataFrame:
    """Read a table of numbers; refuse one that lacks columns or has text."""
    try:
        table = pd.read_csv(io.StringIO(table_text(path)), sep="\t", index_col=False)
    except ValueError as error:
        raise ValueError(f"{path.name}: {one_line(error)}") from error
    missing = wanted.difference(table.columns)
    if missing or table.empty:
        raise ValueError(f"{path.name} lacks {', '.join(sorted(missing)) or 'rows'}")
    text = [str(name) for name in table if table[name].dtype.kind not in "fib"]
    if text:
        raise ValueError(f"{path.name}: {text[0]} has something that is no number")
    return table


def read_config(path: Path) -> dict[str, Any]:
    """Read the config.json of a fit, and refuse any other file."""
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file; {path.parent} is not a saved model")
    try:
        config = read_json(path)
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read, it is not valid JSON ({error})") from error
    version = config.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        newer = f"was written by a newer ntfa (schema version {version}, this one reads {SCHEMA_VERSION}); update ntfa"
        raise ModelError(f"{path}: {newer}")
    parts = {"model": str, "parameters": dict, "seed": int}
    if version != SCHEMA_VERSION or not all(isinstance(config.get(name), kind) for name, kind in parts.items()):
        raise ModelError(f"{path}: was not written by a fit, or has schema version {version!r}, not {SCHEMA_VERSION}")
    return config


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
