"""What a simulated study was made from."""

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntfa.errors import StudyError
from ntfa.files.reading import one_line, read_json, table_text
from ntfa.inference.factors import radial_basis
from ntfa.simulation.brain import FloatArray
from ntfa.study.checks import FrameArray

TABLES = ("factors", "participant_factors", "participants", "stimuli", "weights")
LARGEST, LARGEST_LOG_WIDTH = 1e30, 100.0
LABELS = {"participant": str, "stimulus": str, "group": str, "category": str}


@dataclass(frozen=True, eq=False)
class Truth:
    """What a simulated study was made from: the answer a fitted model should come near.

    Arrays over participants follow the order of `participant_groups`.

    Attributes
    ----------
    coordinates : array of shape (V, 3)
        Positions of the voxels, in mm.
    participant_groups, stimulus_categories : Series of str
        The group of each participant and the category of each stimulus, by label.
    participant_embeddings, stimulus_embeddings : DataFrame
        Columns `z1`, `z2`, by label.
    centers : array of shape (K, 3)
        Centres of the factors shared by all participants, in mm.
    log_widths : array of shape (K,)
        Log of the squared radius (mm^2): a factor is ``exp(-|g - x|^2 / exp(log_width))``.
    participant_centers : array of shape (P, K, 3)
        Each participant's own centres.
    participant_log_widths : array of shape (P, K)
        Each participant's own log widths.
    weights_mean : DataFrame of shape (P * S, K)
        Mean weight of each factor, by (participant, stimulus).
    weights_sd : array of shape (K,)
        Standard deviation of a factor's weight from frame to frame.
    noise : float
        Standard deviation of the noise in each voxel and frame.
    """

    coordinates: FloatArray
    participant_groups: "pd.Series[str]"
    stimulus_categories: "pd.Series[str]"
    participant_embeddings: pd.DataFrame
    stimulus_embeddings: pd.DataFrame
    centers: FloatArray
    log_widths: FloatArray
    participant_centers: FloatArray
    participant_log_widths: FloatArray
    weights_mean: pd.DataFrame
    weights_sd: FloatArray
    noise: float

    @property
    def participants(self) -> list[str]:
        """Labels of the participants."""
        return self.participant_groups.index.tolist()

    @property
    def stimuli(self) -> list[str]:
        """Labels of the stimuli."""
        return self.stimulus_categories.index.tolist()

    def factors(self, participant: str) -> FrameArray:
        """The participant's factors [K x V]: how strongly each factor acts on each voxel, from 0 to 1."""
        p = self._position(self.participants, "participant", participant)
        widths = np.exp(self.participant_log_widths[p] / 2)
        return radial_basis(self.coordinates, self.participant_centers[p], widths, np.float32)

    def mean_image(self, participant: str, stimulus: str) -> FloatArray:
        """The image [V] around which the participant's frames of the stimulus scatter."""
        self._position(self.stimuli, "stimulus", stimulus)
        factors = self.factors(participant)
        weights = self.weights_mean.loc[[(participant, stimulus)]].to_numpy(dtype=np.float64)
        return weights[0] @ factors

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the truth as readable tables `truth_*.tsv` and `truth.json` into a folder."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        for name, table in self._tables().items():
            table.to_csv(root / f"truth_{name}.tsv", sep="\t", index=False)
        (root / "truth.json").write_text(json.dumps(self._summary(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def open(cls, folder: str | os.PathLike[str], coordinates: FloatArray) -> "Truth":
        """Read a truth written by `save`; `coordinates` are those of the study it was written with."""
        # Deferred, as it is a kind of Truth itself.
        from ntfa.simulation.individual import IndividualTruth

        root = Path(folder)
        try:
            tables = {name: read_truth_table(root / f"truth_{name}.tsv") for name in TABLES}
            summary = read_json(root / "truth.json")
            n_voxels = int(summary["n_voxels"])
            kind = IndividualTruth if summary.get("individual_loadings") else Truth
            truth = kind(**kind._read(root, tables, summary), coordinates=coordinates)
            truth._require_finite()
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise StudyError(f"{root} holds no truth of a simulation that can be read: {one_line(error)}") from error
        if n_voxels != len(coordinates):
            raise StudyError(f"{root} holds the truth of a study of {n_voxels} voxels, not {len(coordinates)}")
        return truth

    @classmethod
    def _read(cls, root: Path, tables: dict[str, pd.DataFrame], summary: dict[str, Any]) -> dict[str, Any]:
        """All attributes but the coordinates, from the tables of a folder and what else is in it."""
        return {**_read_tables(tables), "noise": float(summary["noise"])}

    def _require_finite(self) -> None:
        arrays: dict[str, list[Any]] = {
            "factors": [self.centers, self.log_widths, self.weights_sd],
            "participant_factors": [self.participant_centers, self.participant_log_widths],
            "participants": [self.participant_embeddings],
            "stimuli": [self.stimulus_embeddings],
            "weights": [self.weights_mean],
        }
        for name, parts in arrays.items():
            if not all((np.abs(np.asarray(part, dtype=np.float64)) < LARGEST).all() for part in parts):
                raise ValueError(f"truth_{name}.tsv has something that is no finite number, or one beyond all bounds")
        for widths in (self.log_widths, self.participant_log_widths):
            if np.abs(widths).max(initial=0.0) > LARGEST_LOG_WIDTH:
                raise ValueError(f"a log width is beyond {LARGEST_LOG_WIDTH:g}")
        if not 0 <= self.noise < np.inf:
            raise ValueError(f"the noise is {self.noise}")

    def _tables(self) -> dict[str, pd.DataFrame]:
        factor = pd.Index(range(len(self.centers)), name="factor")
        shared = _factor_table(factor, self.centers, self.log_widths)
        own = _factor_table(
            pd.MultiIndex.from_product([self.participants, factor], names=["participant", "factor"]),
            self.participant_centers.reshape(-1, 3),
            self.participant_log_widths.ravel(),
        )
        groups = self.participant_groups.rename("group").to_frame()
        categories = self.stimulus_categories.rename("category").to_frame()
        return {
            "factors": shared.assign(weights_sd=self.weights_sd),
            "participant_factors": own,
            "participants": groups.join(self.participant_embeddings).rename_axis("participant").reset_index(),
            "stimuli": categories.join(self.stimulus_embeddings).rename_axis("stimulus").reset_index(),
            "weights": self.weights_mean.add_prefix("factor").reset_index(),
        }

    def _summary(self) -> dict[str, Any]:
        return {
            "noise": self.noise,
            "n_factors": len(self.centers),
            "n_participants": len(self.participants),
            "n_stimuli": len(self.stimuli),
            "n_voxels": len(self.coordinates),
            "factor": "exp(-|voxel - center|^2 / exp(log_width)), in mm",
        }

    @staticmethod
    def _position(labels: list[str], kind: str, label: str) -> int:
        if label not in labels:
            raise StudyError(f"The simulation has no {kind} {label!r}; it has {', '.join(labels)}")
        return labels.index(label)


def read_truth_table(path: Path) -> pd.DataFrame:
    """Read a table; a label may be any text, `NA` too."""
    try:
        text = table_text(path, line_breaks=True)
        return pd.read_csv(io.StringIO(text), sep="\t", dtype=LABELS, keep_default_na=False, index_col=False)
    except ValueError as error:
        raise ValueError(f"{path.name}: {one_line(error)}") from error


def _read_tables(tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    participants, stimuli = tables["participants"].set_index("participant"), tables["stimuli"].set_index("stimulus")
    shared, own = tables["factors"], tables["participant_factors"]
    weights = tables["weights"].set_index(["participant", "stimulus"])
    pairs = [(participant, stimulus) for participant in participants.index for stimulus in stimuli.index]
    for name, index in {"participants": participants.index, "stimuli": stimuli.index, "weights": weights.index}.items():
        if index.has_duplicates:
            raise ValueError(f"truth_{name}.tsv has a row twice")
    missing = set(pairs).difference(weights.index)
    if missing:
        raise ValueError(f"truth_weights.tsv has no row for {min(missing)}")
    shape = (len(participants), len(shared))
    return {
        "participant_groups": participants.pop("group"),
        "stimulus_categories": stimuli.pop("category"),
        "participant_embeddings": participants.astype(np.float64),
        "stimulus_embeddings": stimuli.astype(np.float64),
        "centers": shared[["x", "y", "z"]].to_numpy(np.float64),
        "log_widths": shared["log_width"].to_numpy(np.float64),
        "participant_centers": own[["x", "y", "z"]].to_numpy(np.float64).reshape(*shape, 3),
        "participant_log_widths": own["log_width"].to_numpy(np.float64).reshape(shape),
        "weights_mean": weights.set_axis(range(len(shared)), axis=1).astype(np.float64),
        "weights_sd": shared["weights_sd"].to_numpy(np.float64),
    }


def _factor_table(index: pd.Index, centers: FloatArray, log_widths: FloatArray) -> pd.DataFrame:
    table = pd.DataFrame(centers, columns=["x", "y", "z"], index=index)
    return table.assign(log_width=log_widths).reset_index()


def labelled(labels: list[str], embeddings: list[FloatArray], name: str) -> pd.DataFrame:
    """Embeddings as a table: columns `z1`, `z2`, ..., one row per label."""
    values = np.stack(embeddings)
    columns = [f"z{d + 1}" for d in range(values.shape[1])]
    return pd.DataFrame(values, index=pd.Index(labels, name=name), columns=columns)
