"""The truth of studies in which people have topographies of their own, which carry over from stimulus to stimulus."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntfa.files.reading import load_array
from ntfa.inference.factors import radial_basis
from ntfa.simulation.brain import FloatArray
from ntfa.simulation.truth import LARGEST, Truth, read_truth_table
from ntfa.study.checks import FrameArray

INDIVIDUAL_LOADINGS = "truth_individual_loadings.npy"
CONSTANT = "constant"


@dataclass(frozen=True, eq=False)
class IndividualTruth(Truth):
    """What a study as hard as a real one was made from.

    The image of a participant and a stimulus is the stimulus's features times the participant's loadings, and these are
    the group's loadings plus the participant's own: ``h_s (A + B_p)``. All other attributes are those of `Truth`. The
    factors (`centers`, `log_widths`) are the blobs that the group's loadings consist of, the same for everybody, and
    `weights_mean` has the group's response to each stimulus; `stimulus_embeddings` are the features but the constant
    one, and `participant_embeddings` two principal components of the participants' own loadings, which have many.

    Attributes
    ----------
    group_loadings : array of shape (R + 1, K)
        The group's loading of each feature, constant first, on each factor.
    individual_loadings : array of shape (P, R + 1, V)
        What each participant's loadings have in addition, as images.
    participant_noise : Series of float
        Standard deviation of each participant's noise, by label; `noise` is the median that they were drawn around.
    """

    group_loadings: FloatArray
    individual_loadings: FrameArray
    participant_noise: "pd.Series[float]"

    @property
    def stimulus_features(self) -> pd.DataFrame:
        """Features of each stimulus [S x (R + 1)]: the column `constant`, then those of `stimulus_embeddings`."""
        features = self.stimulus_embeddings.copy()
        features.insert(0, CONSTANT, 1.0)
        return features

    @cached_property
    def group_images(self) -> FrameArray:
        """The group's loadings of each feature as images [(R + 1) x V]."""
        factors = radial_basis(self.coordinates, self.centers, np.exp(self.log_widths / 2), np.float32)
        images: FrameArray = self.group_loadings.astype(np.float32) @ factors
        return images

    def loadings(self, participant: str) -> FrameArray:
        """The participant's loadings of each feature as images [(R + 1) x V]: the group's plus their own."""
        p = self._position(self.participants, "participant", participant)
        return self.group_images + self.individual_loadings[p]

    def images(self, participant: str) -> FrameArray:
        """The images [S x V] around which the participant's frames of each stimulus scatter."""
        images: FrameArray = self.stimulus_features.to_numpy(np.float32) @ self.loadings(participant)
        return images

    def mean_image(self, participant: str, stimulus: str) -> FloatArray:
        """The image [V] around which the participant's frames of the stimulus scatter."""
        s = self._position(self.stimuli, "stimulus", stimulus)
        image: FloatArray = self.stimulus_features.to_numpy()[s] @ self.loadings(participant)
        return image

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the truth as readable tables `truth_*.tsv`, `truth.json`, and own loadings as an array."""
        super().save(folder)
        np.save(Path(folder) / INDIVIDUAL_LOADINGS, self.individual_loadings, allow_pickle=False)

    @classmethod
    def _read(cls, root: Path, tables: dict[str, pd.DataFrame], summary: dict[str, Any]) -> dict[str, Any]:
        fields = super()._read(root, tables, summary)
        noise = fields["participant_embeddings"].pop("noise")
        loadings = read_truth_table(root / "truth_loadings.tsv").set_index("feature").to_numpy(np.float64)
        n_participants, n_features = len(noise), fields["stimulus_embeddings"].shape[1] + 1
        if loadings.shape != (n_features, len(fields["centers"])):
            raise ValueError("truth_loadings.tsv has not one row per feature and one column per factor")
        individual = _read_array(root, (n_participants, n_features, int(summary["n_voxels"])))
        return {**fields, "group_loadings": loadings, "individual_loadings": individual, "participant_noise": noise}

    def _require_finite(self) -> None:
        super()._require_finite()
        parts = {"truth_loadings.tsv": self.group_loadings, INDIVIDUAL_LOADINGS: self.individual_loadings}
        for name, values in {**parts, "the noise in truth_participants.tsv": self.participant_noise}.items():
            if not (np.abs(np.asarray(values)) < LARGEST).all():
                raise ValueError(f"{name} has something that is no finite number, or one beyond all bounds")

    def _tables(self) -> dict[str, pd.DataFrame]:
        tables = super()._tables()
        tables["participants"]["noise"] = self.participant_noise.to_numpy()
        features = pd.Index(self.stimulus_features.columns, name="feature")
        loadings = pd.DataFrame(self.group_loadings, index=features).add_prefix("factor")
        return {**tables, "loadings": loadings.reset_index()}

    def _summary(self) -> dict[str, Any]:
        return {**super()._summary(), "individual_loadings": True}


def _read_array(root: Path, shape: tuple[int, ...]) -> FrameArray:
    try:
        found = load_array(root / INDIVIDUAL_LOADINGS)
    except ValueError as error:
        raise ValueError(f"{INDIVIDUAL_LOADINGS}: {error}") from error
    if found.shape != shape or found.dtype != np.float32:
        raise ValueError(f"{INDIVIDUAL_LOADINGS} is no float32 array of shape {shape}")
    return np.array(found)
