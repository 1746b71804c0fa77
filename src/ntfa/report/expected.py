"""What a fitted model expects of every participant and stimulus: factors, weights, and maps made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.expectations import expected_of_pairs
from ntfa.estimators.ntfa import NTFA
from ntfa.inference.factors import LatestBasis

Floats = NDArray[np.float64]

POSITION = ["x", "y", "z"]
GEOMETRY = [*POSITION, "width"]
# Values of factors in memory at once: 64 MB.
CHUNK_VALUES = 1 << 23


@dataclass(frozen=True)
class Expected:
    """Posterior means of a fitted model.

    participants, stimuli : labels
    factors : [P, K, 4]
        x, y, z and width (mm) of every participant's factors; the template's where participants have none of their own.
    weights : [P, S, K] or None
        What the model expects of a participant who is shown a stimulus; None if it can say nothing of that.
    positions, at_positions : [V, 3], [P, K, 4]
        Where voxels and factors are for each other: as in mm, unless factors of cortex live on spheres.
    detail : callable or None
        What a pair's image has besides factors at the study's voxels, given the places of both, [V].
    own_factors, by_stimulus : bool
        Whether participants have factors of their own, and whether weights depend on the stimulus.
    """

    participants: list[str]
    stimuli: list[str]
    factors: Floats
    weights: Floats | None
    own_factors: bool
    by_stimulus: bool
    positions: Floats
    at_positions: Floats
    detail: Callable[[int, int], Floats | None] | None = None
    basis: LatestBasis = field(default_factory=LatestBasis, repr=False, compare=False)

    @property
    def mean_factors(self) -> Floats:
        """Average over participants, [K, 4]."""
        return np.asarray(self.factors.mean(0))

    @property
    def on_spheres(self) -> bool:
        """Whether factors live elsewhere than where they are shown."""
        return self.at_positions is not self.factors

    def radial(self, participant: int, places: Any) -> Floats:
        """Factors of one participant at some positions [V, 3], [K, V]."""
        own = self.at_positions[participant]
        return self.basis(places, own[:, :3], own[:, 3])

    def images(self, participant: int, stimuli: list[int]) -> Floats:
        """Predicted mean images of one participant and some stimuli at the study's voxels, [n, V]."""
        assert self.weights is not None
        places = self.positions
        chunk = max(1, CHUNK_VALUES // self.factors.shape[1])
        weights, starts = self.weights[participant, stimuli], range(0, len(places), chunk)
        images = np.hstack([weights @ self.radial(participant, places[first : first + chunk]) for first in starts])
        for image, stimulus in zip(images, stimuli, strict=True):
            detail = None if self.detail is None else self.detail(participant, stimulus)
            if detail is not None:
                image += detail
        return images


def expected_of(model: TopographicModel) -> Expected:
    """Work out the posterior means of a fitted model; `predict` gives the same images."""
    fitted = model._require_fitted()
    labels, own = fitted.labels, fitted.layout.own_factors == "participant"
    template = getattr(model, "template_", None)
    weights = _weights(model, own) if own or template is not None else None
    at = factors = _factors(model, own, model._factors, getattr(model, "_template", None))
    if model._factors is not model.factors_:
        factors = _factors(model, own, model.factors_, template)
    by_stimulus = fitted.layout.own_weights in ("cell", "design")
    detail = model._detail_image if isinstance(model, NTFA) else None
    return Expected(
        list(labels.participants),
        list(labels.stimuli),
        factors,
        weights,
        own,
        by_stimulus,
        fitted.positions,
        at,
        detail,
    )


def _factors(model: TopographicModel, own: bool, table: pd.DataFrame, template: pd.DataFrame | None) -> Floats:
    participants = model._require_fitted().labels.participants
    if own:
        order = {label: i for i, label in enumerate(participants)}
        rows = table.assign(place=table["participant"].map(order)).sort_values(["place", "factor"], kind="stable")
        return rows[GEOMETRY].to_numpy(dtype=np.float64).reshape(len(participants), -1, 4)
    mean = (table if template is None else template).groupby("factor")[GEOMETRY].mean()
    return np.broadcast_to(mean.to_numpy(dtype=np.float64), (len(participants), len(mean), 4))


@torch.no_grad()
def _weights(model: TopographicModel, own: bool) -> Floats:
    fitted = model._require_fitted()
    module, device = fitted.module, fitted.module.centers.mean.device
    stimuli = torch.arange(len(fitted.labels.stimuli), device=device)
    found = []
    # One participant at a time: all pairs at once would not fit into memory for hundreds of both.
    for i in range(len(fitted.labels.participants)):
        expected = expected_of_pairs(module, torch.full_like(stimuli, i), stimuli, own)
        found.append(expected.weights.mean.cpu().numpy())
    return np.asarray(np.stack(found), dtype=np.float64) * fitted.units.intensity
