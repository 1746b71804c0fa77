"""Fits and studies compared and changed, for the tests of what estimators promise."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from helpers import weights_of

from ntfa import Study
from ntfa.estimators.base import TopographicModel

FACTORS = ["x", "y", "z", "width"]
TABLES = ("factors_", "history_", "participants_", "stimuli_", "template_", "loadings_")
Fitted = Callable[[Any], TopographicModel]


def all_pairs(study: Study) -> list[tuple[str, str]]:
    return [(participant, stimulus) for participant in study.participants for stimulus in study.stimuli]


def tables(model: TopographicModel) -> dict[str, pd.DataFrame]:
    found = {name: getattr(model, name) for name in TABLES if hasattr(model, name)}
    return found | {"history_": model.history_.drop(columns="seconds")}


def assert_same_fit(one: TopographicModel, other: TopographicModel, study: Study) -> None:
    assert tables(one).keys() == tables(other).keys()
    for name, table in tables(one).items():
        pd.testing.assert_frame_equal(table, tables(other)[name], check_exact=True, obj=name)
    assert one.noise_ == other.noise_
    assert one.n_parameters_ == other.n_parameters_
    assert (one.seed_, one.stopped_, one.converged_) == (other.seed_, other.stopped_, other.converged_)
    np.testing.assert_array_equal(one.predict(all_pairs(study)), other.predict(all_pairs(study)))
    for a, b in zip(weights_of(one, study, return_sd=True), weights_of(other, study, return_sd=True), strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)


def changed(study: Study, scale: float = 1.0, move: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Study:
    frames = {participant: array * np.float32(scale) for participant, array in study.frames.items()}
    return Study.from_arrays(frames, study.trials, move(study.coordinates))


def relabelled(study: Study, **labels: Callable[[str], str]) -> Study:
    trials = study.trials.assign(**{column: study.trials[column].map(new) for column, new in labels.items()})
    new = labels.get("participant", str)
    return Study.from_arrays({new(p): array for p, array in study.frames.items()}, trials, study.coordinates)
