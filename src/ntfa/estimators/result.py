"""Everything a fit leaves behind, in one piece: results are computed from this, never from settings changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from ntfa.contract import require_same_voxels
from ntfa.estimators.newcomers import Newcomers
from ntfa.fitting.arrange import Arranged, Labels, Layout, arrange, label_indices, require_known_stimuli
from ntfa.inference.frames import Units
from ntfa.models.module import TopographicModule
from ntfa.study import Study
from ntfa.study.coverage import Coverage
from ntfa.study.greyordinates import positions_of
from ntfa.study.provenance import Provenance


@dataclass(frozen=True)
class Fitted:
    """A module after training, and what is needed to speak of it in the user's terms.

    noise_scales : noise sds of the voxels in units of their geometric mean; None if all are the same
    choice : what the data chose where settings left it to them
    restarts : how fits from other starts compare with the one that was kept; None if there was one start
    n_pooled : columns that the voxels were pooled into for the first steps; None if they were not
    provenance : how the study was made from images; None where that is not known
    newcomers : who was added since the fit; None if nobody was
    frames : how much each frame counted, as a table; None if all counted the same
    coverage : of participants who lack voxels, which they have
    n_frames : how many frames were fitted; None in models of earlier versions
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
    newcomers: Newcomers | None = None
    frames: pd.DataFrame | None = None
    coverage: Coverage = field(default_factory=dict)
    n_frames: int | None = None

    @property
    def n_factors(self) -> int:
        """Number of factors, whoever chose it."""
        return int(self.module.log_widths.mean.shape[-1])

    @property
    def scales(self) -> np.ndarray:
        """Noise sds of all voxels in units of their geometric mean, [V]."""
        return np.ones(len(self.coordinates)) if self.noise_scales is None else self.noise_scales

    @property
    def positions(self) -> np.ndarray:
        """Where the voxels are for factors, [V, 3]: `coordinates`, unless factors of cortex live on spheres."""
        return positions_of(self.coordinates, self.mask_img)

    def pair_indices(self, pairs: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
        """Where the participants and the stimuli of pairs stand among the known ones, [n] each."""
        participants = label_indices("participant", [participant for participant, _ in pairs], self.labels.participants)
        return participants, label_indices("stimulus", [stimulus for _, stimulus in pairs], self.labels.stimuli)

    def arranged(self, study: Study, condition_on_stimulus: bool = True) -> Arranged:
        """Lay out another study as the fit's was, with weights that are expected given the stimulus or not."""
        require_same_voxels(study, self.coordinates)
        study = replace(study, mask_img=self.mask_img)
        layout, labels = self.layout, self.labels
        if not condition_on_stimulus:
            layout, labels = replace(layout, own_weights="trial"), replace(labels, stimuli=[])
        elif layout.own_weights == "cell":
            require_known_stimuli(study, labels)
        device, on_disk = self.module.raw_noise_sd.device, self.params.get("memory") is not None
        return arrange(study, layout, labels, device, self.units, on_disk=on_disk, scales=self.noise_scales)
