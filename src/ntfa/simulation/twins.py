"""Twins of the paper's real studies: the same sizes and designs, drawn from an NTFA-like truth."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ntfa.simulation.brain import FloatArray, scattered_voxels
from ntfa.simulation.design import (
    Design,
    Sizes,
    Stream,
    make_design,
    numbered_stimuli,
    participant_labels,
    spread,
    stream,
)
from ntfa.simulation.truth import Truth, labelled

EMBEDDING_DIM = 2
CATEGORY_RADIUS = 1.2
CATEGORY_SD = 0.3
GROUP_RADIUS = 1.0
GROUP_SD = 0.4

CENTER_SHIFT_MM = 4.0
CENTER_JITTER_MM = 1.5
RADIUS_MM = (10.0, 16.0)
LOG_WIDTH_SHIFT = 0.15
LOG_WIDTH_JITTER = 0.05

HIDDEN_UNITS = 16
REFERENCE_PAIRS = 1000
WEIGHTS_SPREAD = 0.5
WEIGHTS_SD = (0.2, 0.5)


@dataclass(frozen=True)
class Twin:
    """The design of a real study.

    Attributes
    ----------
    usual_sizes : Sizes
        The study's own sizes.
    run_frames : int
        Frames of a run at the study's own sizes; the share of rest in it holds at any size.
    categories : dict of str to str
        The stimuli and the category of each.
    exemplars : bool
        If True there are many numbered stimuli of each name, each shown once in the study; if False
        each stimulus is shown once a run.
    groups : dict of str to float
        The groups of participants and their shares.
    """

    usual_sizes: Sizes
    run_frames: int
    categories: dict[str, str]
    exemplars: bool = False
    groups: dict[str, float] = field(default_factory=lambda: {"all": 1.0})

    @property
    def rest_per_task_frame(self) -> float:
        """Rest frames for every frame of a stimulus block."""
        sizes = self.usual_sizes
        n_blocks = sizes.n_stimuli / (sizes.n_runs if self.exemplars else 1)
        return self.run_frames / (n_blocks * sizes.n_frames) - 1

    def stimuli(self, count: int) -> "pd.Series[str]":
        """The category of each of `count` stimuli, by label."""
        return numbered_stimuli(self.categories, count, always=self.exemplars)

    def runs(self, categories: "pd.Series[str]", n_runs: int) -> list[list[str]]:
        """The stimuli of each run, in no particular order."""
        if not self.exemplars:
            return [categories.index.tolist()] * n_runs
        # Dealt out category by category, so that each run has its share of each; no run is empty.
        dealt = categories.sort_values(kind="stable").index.tolist()
        n_runs = min(n_runs, len(dealt))
        return [dealt[run::n_runs] for run in range(n_runs)]


TWINS = {
    "haxby": Twin(
        Sizes(n_participants=6, n_stimuli=8, n_frames=12, n_voxels=32_233, n_factors=100, n_runs=12),
        run_frames=121,
        categories={
            "face": "animate",
            "house": "inanimate",
            "cat": "animate",
            "bottle": "inanimate",
            "scissors": "inanimate",
            "shoe": "inanimate",
            "chair": "inanimate",
            "scrambledpix": "control",
        },
    ),
    "lepping": Twin(
        Sizes(n_participants=39, n_stimuli=4, n_frames=10, n_voxels=62_733, n_factors=100, n_runs=5),
        run_frames=105,
        categories={
            "positive_music": "music",
            "negative_music": "music",
            "positive_nonmusic": "nonmusic",
            "negative_nonmusic": "nonmusic",
        },
        groups={"mdd": 19.0, "control": 20.0},
    ),
    "threatvids": Twin(
        Sizes(n_participants=21, n_stimuli=36, n_frames=20, n_voxels=81_638, n_factors=100, n_runs=3),
        run_frames=552,
        categories={"spiders": "spiders", "heights": "heights", "social": "social"},
        exemplars=True,
    ),
}


@dataclass(frozen=True, eq=False)
class Template:
    """What all participants share: the factors, and how they depend on the embeddings."""

    centers: FloatArray
    log_widths: FloatArray
    center_map: FloatArray
    log_width_map: FloatArray
    hidden_map: FloatArray
    hidden_bias: FloatArray
    output_map: FloatArray
    weights_sd: FloatArray

    @classmethod
    def draw(cls, n_factors: int, coordinates: FloatArray, rng: np.random.Generator) -> "Template":
        """Scatter the factors over the brain and draw the maps from embeddings."""
        hidden_map = rng.normal(size=(2 * EMBEDDING_DIM, HIDDEN_UNITS), scale=EMBEDDING_DIM**-0.5)
        hidden_bias = rng.normal(size=HIDDEN_UNITS, scale=0.5)
        output = rng.normal(size=(HIDDEN_UNITS, n_factors))
        reference = np.tanh(rng.normal(size=(REFERENCE_PAIRS, 2 * EMBEDDING_DIM)) @ hidden_map + hidden_bias)
        amplitude = rng.lognormal(sigma=0.4, size=n_factors)
        amplitude *= WEIGHTS_SPREAD / np.sqrt((amplitude**2).mean())
        return cls(
            centers=scattered_voxels(coordinates, n_factors, rng),
            log_widths=2 * np.log(rng.uniform(*RADIUS_MM, size=n_factors)),
            center_map=rng.normal(size=(EMBEDDING_DIM, n_factors, 3)),
            log_width_map=rng.normal(size=(EMBEDDING_DIM, n_factors)),
            hidden_map=hidden_map,
            hidden_bias=hidden_bias,
            output_map=output * amplitude / (reference @ output).std(axis=0),
            weights_sd=rng.uniform(*WEIGHTS_SD, size=n_factors),
        )

    def layout(self, z: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Centres [K x 3] and log widths [K] of a participant at z, with individual jitter."""
        shift = CENTER_SHIFT_MM * np.tanh(np.einsum("d,dki->ki", z, self.center_map))
        growth = LOG_WIDTH_SHIFT * np.tanh(z @ self.log_width_map)
        centers = self.centers + shift + rng.normal(scale=CENTER_JITTER_MM, size=shift.shape)
        return centers, self.log_widths + growth + rng.normal(scale=LOG_WIDTH_JITTER, size=growth.shape)

    def weights_mean(self, participants: pd.DataFrame, stimuli: pd.DataFrame) -> pd.DataFrame:
        """Mean weights of all pairs: a small network of both embeddings."""
        cells = pd.MultiIndex.from_product([participants.index, stimuli.index])
        z_participant = np.repeat(participants.to_numpy(), len(stimuli), axis=0)
        z_stimulus = np.tile(stimuli.to_numpy(), (len(participants), 1))
        hidden = np.tanh(np.hstack([z_participant, z_stimulus]) @ self.hidden_map + self.hidden_bias)
        return pd.DataFrame(hidden @ self.output_map, index=cells)


def make_twin(twin: Twin, sizes: Sizes, coordinates: FloatArray, noise: float, seed: int) -> tuple[Truth, Design]:
    """Draw the truth and lay out the runs."""
    labels = participant_labels(sizes.n_participants)
    group_names = spread(len(labels), list(twin.groups), list(twin.groups.values()))
    groups = pd.Series(group_names, index=labels, name="group")
    categories = twin.stimuli(sizes.n_stimuli)
    template = Template.draw(sizes.n_factors, coordinates, stream(seed, Stream.TEMPLATE))
    group_means = _ring(list(twin.groups), GROUP_RADIUS)
    group_sd = GROUP_SD if len(group_means) > 1 else 1.0
    people, layouts = [], []
    for i, group in enumerate(group_names):
        rng = stream(seed, Stream.PARTICIPANT, i)
        people.append(rng.normal(group_means[group], group_sd))
        layouts.append(template.layout(people[-1], rng))
    participants = labelled(labels, people, "participant")
    stimuli = _stimulus_embeddings(twin, categories, seed)
    truth = Truth(
        coordinates=coordinates,
        participant_groups=groups,
        stimulus_categories=categories,
        participant_embeddings=participants,
        stimulus_embeddings=stimuli,
        centers=template.centers,
        log_widths=template.log_widths,
        participant_centers=np.stack([centers for centers, _ in layouts]),
        participant_log_widths=np.stack([log_widths for _, log_widths in layouts]),
        weights_mean=template.weights_mean(participants, stimuli),
        weights_sd=template.weights_sd,
        noise=noise,
    )
    return truth, _design(twin, sizes, truth, seed)


def _ring(names: list[str], radius: float) -> dict[str, FloatArray]:
    """Means evenly spaced on a circle, the origin for a single one."""
    if len(names) == 1:
        return {names[0]: np.zeros(EMBEDDING_DIM)}
    angles = 2 * np.pi * np.arange(len(names)) / len(names)
    return {name: radius * np.array([np.cos(angle), np.sin(angle)]) for name, angle in zip(names, angles, strict=True)}


def _stimulus_embeddings(twin: Twin, categories: "pd.Series[str]", seed: int) -> pd.DataFrame:
    means = _ring(list(dict.fromkeys(twin.categories.values())), CATEGORY_RADIUS)
    draws = [
        stream(seed, Stream.STIMULUS, i).normal(means[category], CATEGORY_SD) for i, category in enumerate(categories)
    ]
    return labelled(categories.index.tolist(), draws, "stimulus")


def _design(twin: Twin, sizes: Sizes, truth: Truth, seed: int) -> Design:
    n_frames = sizes.n_frames
    runs = twin.runs(truth.stimulus_categories, sizes.n_runs)
    orders = {}
    for i, participant in enumerate(truth.participants):
        rng = stream(seed, Stream.ORDER, i)
        orders[participant] = [rng.permutation(run).tolist() for run in runs]
    return make_design(
        orders,
        n_frames,
        lambda n_blocks: round(n_blocks * n_frames * twin.rest_per_task_frame),
        truth.participant_groups,
        truth.stimulus_categories,
    )
