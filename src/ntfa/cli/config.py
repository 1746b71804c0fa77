"""`ntfa fit --config`: the settings of an earlier fit, from the config.json that it wrote."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ntfa.errors import ModelError
from ntfa.estimators import MODELS
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.saving import CONFIG_FILE, read_config, versions
from ntfa.estimators.settings import check_settings
from ntfa.files.reading import one_line

OPTION_OF = {"random_state": "seed"}
"""Parameters of models whose option has another name."""
NOT_TAKEN = ("verbose",)
"""Parameters that say how a fit is shown and not what it comes to."""


def take_config(args: argparse.Namespace) -> list[str]:
    """Put the settings of `args.config` into the arguments, except those given on the command line.

    Returns
    -------
    list of str
        What was done, in sentences: what was taken, what the command line says otherwise, and what differs here.

    Raises
    ------
    ModelError
        For a file that is not there, was not written by a fit, or was written by a newer version.
    """
    path = Path(args.config)
    path = path / CONFIG_FILE if path.is_dir() else path
    try:
        config = read_config(path)
    except ModelError as error:
        raise ModelError(f"--config {error}") from error
    model = _model_in(config, path)
    settings = {_option(name): value for name, value in model.get_params().items() if name not in NOT_TAKEN}
    settings["model"] = type(model).__name__.lower()
    given = set(getattr(args, "given", ()))
    said = [f"Settings from {path}: {_listed(settings)}.", *_overridden(args, settings, given)]
    said += _missing(config, model) + _other_versions(config)
    if "model" in given:
        said += _drop_foreign(settings, args.model)
    for name in settings.keys() - given:
        setattr(args, name, settings[name])
    return said


def _option(parameter: str) -> str:
    return OPTION_OF.get(parameter, parameter)


def _drop_foreign(settings: dict[str, Any], model: str) -> list[str]:
    """Leave out what another model than the file's does not have, and say so."""
    known = {"model", *map(_option, MODELS[model]().get_params())}
    foreign = {name: settings.pop(name) for name in list(settings) if name not in known}
    return [f"Ignored, because {model} has no such setting: {_listed(foreign)}."] if foreign else []


def _model_in(config: dict[str, Any], path: Path) -> TopographicModel:
    """Make the estimator that was fitted; one without a seed of its own gets the one that was drawn for it."""
    name, parameters = str(config["model"]).lower(), dict(config["parameters"])
    if name not in MODELS:
        raise ModelError(f"--config {path}: has the model {config['model']!r}; there are {', '.join(MODELS)}")
    unknown = sorted(parameters.keys() - MODELS[name]().get_params().keys())
    if unknown:
        raise ModelError(f"--config {path}: {config['model']} has no parameter {unknown[0]!r} here; update ntfa")
    if parameters.get("random_state") is None:
        parameters["random_state"] = config["seed"]
    model = MODELS[name](**parameters)
    try:
        check_settings(model.get_params())
    except ModelError as error:
        raise ModelError(f"--config {path}: {one_line(error)}") from error
    return model


def _overridden(args: argparse.Namespace, settings: dict[str, Any], given: set[str]) -> list[str]:
    changed = [name for name in settings if name in given and getattr(args, name) != settings[name]]
    texts = [f"{name}={getattr(args, name)!r} (in the file: {settings[name]!r})" for name in changed]
    return [f"Overridden by the command line: {', '.join(texts)}."] if texts else []


def _missing(config: dict[str, Any], model: TopographicModel) -> list[str]:
    """Say which parameters the fit did not know of, because its version had none of them."""
    params = model.get_params()
    there = {*config["parameters"], *NOT_TAKEN, "random_state"}
    missing = {name: params[name] for name in params if name not in there}
    return [f"Not in the file, so set to the default: {_listed(missing)}."] if missing else []


def _other_versions(config: dict[str, Any]) -> list[str]:
    then, now = config.get("versions"), versions()
    then = then if isinstance(then, dict) else {}
    texts = [f"{name} {now[name]} (in the file: {then.get(name)})" for name in now if then.get(name) != now[name]]
    return (
        [f"Versions differ from those of the file, so results may differ by rounding: {', '.join(texts)}."]
        if texts
        else []
    )


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
