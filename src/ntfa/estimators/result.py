"""Everything a fit leaves behind, in one piece: results are computed from this, never from settings changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ntfa.fitting.arrange import Labels, Layout
from ntfa.inference.cells import Units
from ntfa.models.module import TopographicModule
from ntfa.study.provenance import Provenance


@dataclass(frozen=True)
class Fitted:
    """A module after training, and what is needed to speak of it in the user's terms.

    noise_scales : noise sds of the voxels in units of their geometric mean; None if all are the same
    choice : what the data chose where settings left it to them
    restarts : how fits from other starts compare with the one that was kept; None if there was one start
    n_pooled : columns that the voxels were pooled into for the first steps; None if they were not
    provenance : how the study was made from images; None where that is not known
    """

    module: TopographicModule
    params: Mapping[str, Any]
    seed: int
    layout: Layout
    labels: Labels
    units: Units
    coordinates: np.ndarray
    mask_img: Any
    history: pd.DataFrame
    stopped: str
    n_data: int
    n_trials: int
    n_parameters: int
    noise_scales: np.ndarray | None = None
    choice: Mapping[str, Any] | None = None
    restarts: pd.DataFrame | None = None
    n_pooled: int | None = None
    provenance: Provenance | None = None

    @property
    def scales(self) -> np.ndarray:
        """Noise sds of all voxels in units of their geometric mean, [V]."""
        return np.ones(len(self.coordinates)) if self.noise_scales is None else self.noise_scales
