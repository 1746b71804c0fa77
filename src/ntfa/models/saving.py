"""Fitted models on disk: a folder of safetensors, JSON and TSV, written completely or not at all."""

from __future__ import annotations

import json
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
from safetensors.torch import load_file, save_file

from ntfa.errors import ModelError
from ntfa.folders import write_folder
from ntfa.inference.cells import Units
from ntfa.models.arrange import Labels
from ntfa.models.design import Coding
from ntfa.models.fitted import Fitted
from ntfa.models.settings import plain, resolve_device
from ntfa.study.images import load_mask
from ntfa.version import __version__

if TYPE_CHECKING:
    from ntfa.models.base import TopographicModel

SCHEMA_VERSION = 1
MARK = "config.json"

AnyModel = TypeVar("AnyModel", bound="TopographicModel")


def save_model(model: TopographicModel, folder: Path, overwrite: bool) -> None:
    """Write a fitted model; whatever stood there is replaced only once the new folder is complete."""
    with write_folder(folder, overwrite, MARK) as partial:
        write_model(model, partial)


def write_model(model: TopographicModel, folder: Path, command: Sequence[str] | None = None) -> None:
    """Write a fitted model's files into an existing folder; `command` is the command line that made it."""
    fitted = model._fitted
    tensors = {name: tensor.cpu().contiguous() for name, tensor in fitted.module.state_dict().items()}
    tensors["coordinates"] = torch.from_numpy(fitted.coordinates)
    save_file(tensors, folder / "model.safetensors")
    _write_json(folder / MARK, _config(model) | ({"command": list(command)} if command else {}))
    _write_json(folder / "summary.json", summary(model))
    fitted.history.to_csv(folder / "history.tsv", sep="\t", index=False)
    model.factors_.to_csv(folder / "factors.tsv", sep="\t", index=False)
    for attribute, name in TABLES.items():
        if hasattr(model, attribute):
            getattr(model, attribute).to_csv(folder / name, sep="\t", index=attribute in INDEXED)
    if fitted.mask_img is not None:
        fitted.mask_img.to_filename(folder / "mask.nii.gz")


TABLES = {
    "participants_": "embeddings_participants.tsv",
    "stimuli_": "embeddings_stimuli.tsv",
    "template_": "template.tsv",
    "loadings_": "loadings.tsv",
}
INDEXED = ("participants_", "stimuli_")


def summary(model: TopographicModel) -> dict[str, Any]:
    """Return what a fit came to, in a few numbers."""
    fitted = model._fitted
    bound = float(fitted.history["bound"].iloc[-1])
    return {
        "model": type(model).__name__,
        "n_participants": len(fitted.labels.participants),
        "n_stimuli": len(fitted.labels.stimuli),
        "n_trials": fitted.n_trials,
        "n_voxels": len(fitted.coordinates),
        "n_data": fitted.n_data,
        "n_factors": plain(fitted.params["n_factors"]),
        "n_parameters": fitted.n_parameters,
        "n_steps": len(fitted.history),
        "seconds": float(fitted.history["seconds"].iloc[-1]),
        "converged": model.converged_,
        "stopped": fitted.stopped,
        "bound": bound,
        "bound_per_datum": bound / fitted.n_data,
        "noise_sd": model.noise_,
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
        "stopped": fitted.stopped,
        "counts": {"data": fitted.n_data, "trials": fitted.n_trials, "parameters": fitted.n_parameters},
        "units": asdict(fitted.units),
        "labels": asdict(fitted.labels),
        "versions": versions(),
    }


def load_model(kind: type[AnyModel], folder: Path, device: str) -> AnyModel:
    """Read a model of this kind back from its folder."""
    config = _read_config(folder)
    if config.get("model") != kind.__name__:
        raise ModelError(f"{folder} holds a model of kind {config.get('model')!r}, not {kind.__name__}")
    place = resolve_device(device)
    try:
        model = kind(**config["parameters"])
        model._hang(_read_fitted(model, config, folder, place))
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise ModelError(f"{folder}: the model in this folder cannot be read ({problem})") from error
    return model


def _read_fitted(model: TopographicModel, config: dict[str, Any], folder: Path, device: torch.device) -> Fitted:
    labels, counts, units = config["labels"], config["counts"], config["units"]
    owners = [tuple(owner) if isinstance(owner, list) else owner for owner in labels["owners"]]
    known = Labels(labels["participants"], labels["stimuli"], owners, Coding.from_json(labels.get("design")))
    tensors = load_file(folder / "model.safetensors")
    coordinates = tensors.pop("coordinates").numpy().astype(np.float64)
    with torch.random.fork_rng():
        module = model._module(known).double()
    module.load_state_dict(tensors)
    mask = folder / "mask.nii.gz"
    x, y, z = units["origin"]
    return Fitted(
        module.to(device),
        config["parameters"],
        int(config["seed"]),
        model._layout,
        known,
        Units((float(x), float(y), float(z)), float(units["length"]), float(units["intensity"])),
        coordinates,
        load_mask(mask) if mask.exists() else None,
        _read_history(folder / "history.tsv"),
        str(config["stopped"]),
        int(counts["data"]),
        int(counts["trials"]),
        int(counts["parameters"]),
    )


def _read_history(path: Path) -> pd.DataFrame:
    history = pd.read_csv(path, sep="\t")
    missing = {"step", "seconds", "bound"}.difference(history.columns)
    if missing or history.empty:
        raise ValueError(f"{path.name} lacks {', '.join(sorted(missing)) or 'rows'}")
    return history


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} is not a saved model: it has no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    version = config.get("schema_version") if isinstance(config, dict) else None
    if version != SCHEMA_VERSION:
        raise ModelError(f"{path} has schema version {version!r}; this version of ntfa reads {SCHEMA_VERSION}")
    return dict(config)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
