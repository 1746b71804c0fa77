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
from ntfa.version import __version__

if TYPE_CHECKING:
    from ntfa.models.base import TopographicModel

SCHEMA_VERSION = 1

AnyModel = TypeVar("AnyModel", bound="TopographicModel")


def save_model(model: TopographicModel, folder: Path, overwrite: bool) -> None:
    """Write a fitted model; whatever stood there is replaced only once the new folder is complete."""
    with write_folder(folder, overwrite) as partial:
        write_model(model, partial)


def write_model(model: TopographicModel, folder: Path, command: Sequence[str] | None = None) -> None:
    """Write a fitted model's files into an existing folder; `command` is the command line that made it."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in model._fitted.state_dict().items()}
    tensors["coordinates"] = torch.from_numpy(model.coordinates_)
    save_file(tensors, folder / "model.safetensors")
    _write_json(folder / "config.json", _config(model) | ({"command": list(command)} if command else {}))
    _write_json(folder / "summary.json", summary(model))
    model.history_.to_csv(folder / "history.tsv", sep="\t", index=False)
    model.factors_.to_csv(folder / "factors.tsv", sep="\t", index=False)
    for attribute, name in TABLES.items():
        if hasattr(model, attribute):
            getattr(model, attribute).to_csv(folder / name, sep="\t", index=attribute != "template_")
    if model.mask_img_ is not None:
        import nibabel

        nibabel.save(model.mask_img_, folder / "mask.nii.gz")


TABLES = {
    "participants_": "embeddings_participants.tsv",
    "stimuli_": "embeddings_stimuli.tsv",
    "template_": "template.tsv",
}


def summary(model: TopographicModel) -> dict[str, Any]:
    """Return what a fit came to, in a few numbers."""
    bound = float(model.history_["bound"].iloc[-1])
    return {
        "model": type(model).__name__,
        "n_participants": len(model._labels.participants),
        "n_stimuli": len(model._labels.stimuli),
        "n_trials": model.n_trials_,
        "n_voxels": len(model.coordinates_),
        "n_data": model.n_data_,
        "n_factors": model.n_factors,
        "n_parameters": model.n_parameters_,
        "n_steps": len(model.history_),
        "seconds": float(model.history_["seconds"].iloc[-1]),
        "converged": model.converged_,
        "stopped": model.stopped_,
        "bound": bound,
        "bound_per_datum": bound / model.n_data_,
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
    return {
        "schema_version": SCHEMA_VERSION,
        "model": type(model).__name__,
        "parameters": model.get_params(),
        "seed": model.seed_,
        "stopped": model.stopped_,
        "counts": {"data": model.n_data_, "trials": model.n_trials_, "parameters": model.n_parameters_},
        "units": asdict(model._units),
        "labels": asdict(model._labels),
        "versions": versions(),
    }


def load_model(kind: type[AnyModel], folder: Path) -> AnyModel:
    """Read a model of this kind back from its folder."""
    config = _read_config(folder)
    if config.get("model") != kind.__name__:
        raise ModelError(f"{folder} holds a model of kind {config.get('model')!r}, not {kind.__name__}")
    try:
        model = kind(**config["parameters"])
        model.seed_, model.stopped_ = int(config["seed"]), str(config["stopped"])
        model.converged_ = model.stopped_ == "converged"
        counts = config["counts"]
        model.n_data_, model.n_trials_ = int(counts["data"]), int(counts["trials"])
        model.n_parameters_ = int(counts["parameters"])
        units = config["units"]
        model._units = Units(tuple(units["origin"]), units["length"], units["intensity"])
        labels = config["labels"]
        owners = [tuple(owner) if isinstance(owner, list) else owner for owner in labels["owners"]]
        model._labels = Labels(labels["participants"], labels["stimuli"], owners)
        _load_tensors(model, folder)
        model.history_ = pd.read_csv(folder / "history.tsv", sep="\t")
        model.mask_img_ = _load_mask(folder)
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        raise ModelError(
            f"{folder}: the model in this folder cannot be read ({type(error).__name__}: {error})"
        ) from error
    model._hang_tables()
    return model


def _load_tensors(model: TopographicModel, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    model.coordinates_ = tensors.pop("coordinates").numpy().astype(np.float64)
    module = model._module().double()
    module.load_state_dict(tensors)
    model._fitted = module.to(model._device())


def _load_mask(folder: Path) -> Any:
    if not (folder / "mask.nii.gz").exists():
        return None
    import nibabel

    return nibabel.load(folder / "mask.nii.gz")


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
