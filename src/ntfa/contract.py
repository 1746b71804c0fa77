"""What models and baselines have in common as estimators: scikit-learn's contract, with a study where it has arrays.

`fit(study, y=None)` returns the estimator, `__init__` only stores, settings are checked by `fit`, and what a fit found
is in attributes that end in an underscore. `clone`, `get_params`, `set_params`, `check_is_fitted`, tags and the HTML
representation are scikit-learn's own.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator

from ntfa.errors import ModelError, NotFittedError, StudyError
from ntfa.study import Study

SAME_PLACE_MM = 1e-3
Pairs = pd.DataFrame | Sequence[tuple[str, str]]
"""A table with columns `participant` and `stimulus`, or a list of (participant, stimulus)."""


class StudyEstimator(BaseEstimator):
    """Base of all that is fitted to a study."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, in the order in which they are declared: those that matter most come first."""
        params: dict[str, Any] = super().get_params(deep)
        return {name: params[name] for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Set parameters; one that there is not is refused by name."""
        try:
            super().set_params(**params)
        except ValueError as error:
            raise ModelError(str(error)) from error
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import TransformerTags

        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.no_validation = False, True
        tags.transformer_tags = TransformerTags(preserves_dtype=[])
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coordinates_")

    def _require_study(self, study: Any) -> None:
        if not isinstance(study, Study):
            raise ModelError(f"{type(self).__name__} is fitted to a Study, not to an object of {type(study).__name__}")

    def _require_fitted(self) -> Any:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit(study) first")


def with_shared_voxels(study: Study, what: str) -> Study:
    """Return the study on the voxels that everybody has, for what cannot do without; say so if these are fewer."""
    if not study.coverage:
        return study
    shared = study.on_shared_voxels()
    warnings.warn(
        f"{what} takes the {shared.n_voxels:,} voxels, of {study.n_voxels:,}, that all {len(study.participants)} "
        "participants have",
        stacklevel=3,
    )
    return shared


def at_voxels(study: Study, known: np.ndarray) -> Study:
    """Return a study in which somebody lacks voxels on those [V, 3] that something was fitted to, if it has them."""
    if not study.coverage or len(known) >= study.n_voxels:
        return study
    places = {tuple(place) for place in np.round(known, 3).tolist()}
    kept = np.array([tuple(place) in places for place in np.round(study.coordinates, 3).tolist()])
    return study if kept.sum() != len(known) else study.at(kept)


def require_same_voxels(study: Study, known: np.ndarray) -> None:
    """Refuse a study of other voxels than those [V, 3] that something was fitted to."""
    if study.coordinates.shape != known.shape or not np.allclose(study.coordinates, known, atol=SAME_PLACE_MM):
        raise StudyError(f"the study's {study.n_voxels} voxels are not the {len(known)} that the model was fitted to")


def as_pairs(pairs: Pairs) -> list[tuple[str, str]]:
    """Return (participant, stimulus) pairs of a table or a list; refuse what is neither."""
    if isinstance(pairs, pd.DataFrame):
        missing = [column for column in ("participant", "stimulus") if column not in pairs]
        if missing:
            raise ModelError(f"pairs has no column {' or '.join(missing)}")
        pairs = list(zip(pairs["participant"], pairs["stimulus"], strict=True))
    named = [tuple(pair) if isinstance(pair, list | tuple) else (pair,) for pair in pairs]
    if any(len(pair) != 2 for pair in named):
        raise ModelError("pairs must be a table with participant and stimulus, or a list of (participant, stimulus)")
    return [(str(pair[0]), str(pair[1])) for pair in named]
