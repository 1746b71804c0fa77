"""The paper's synthetic study (Algorithm 2): each group responds in a region of its own."""

from itertools import zip_longest

import numpy as np
import pandas as pd

from ntfa.simulation.brain import FloatArray, farthest_voxels
from ntfa.simulation.design import Design, Sizes, Stream, make_design, participant_labels, spread, stream
from ntfa.simulation.truth import Truth, labelled

USUAL_SIZES = Sizes(n_participants=9, n_stimuli=8, n_frames=20, n_factors=3, n_runs=1)

# Left frontal, right temporal, medial occipital (MNI, mm): 80 mm or more apart.
REGIONS = np.array([[-36.0, 32.0, 12.0], [44.0, -16.0, 12.0], [-4.0, -80.0, 8.0]])
LOG_WIDTH = float(np.log(20.0**2))
LOG_WIDTH_SD = 0.1
WEIGHTS_SD = 0.3

# The response is z_p . z_s. Groups differ across the direction of the stimuli and tasks differ along
# it, so every group responds to Task 1 about half as much as to Task 2.
GROUP_MEANS = {"Group 1": (1.0, -1.0), "Group 2": (1.0, 0.0), "Group 3": (1.0, 1.0)}
PARTICIPANT_SD = 0.05
TASK_MEANS = {"Task 1": (0.6, 0.0), "Task 2": (1.2, 0.0)}
STIMULUS_RELATIVE_SD = 0.08
STIMULUS_SIDEWAYS_SD = 0.02


def make_synthetic(sizes: Sizes, coordinates: FloatArray, noise: float, seed: int) -> tuple[Truth, Design]:
    """Draw the truth and lay out the runs."""
    labels = participant_labels(sizes.n_participants)
    group_names = list(GROUP_MEANS)[: sizes.n_factors]
    groups = pd.Series(spread(len(labels), group_names), index=labels, name="group")
    categories = _stimuli(sizes.n_stimuli)
    participants = labelled(labels, [_participant(seed, i, g) for i, g in enumerate(groups)], "participant")
    stimuli = labelled(categories.index.tolist(), [_stimulus(seed, i, c) for i, c in enumerate(categories)], "stimulus")
    centers, log_widths = _factors(sizes.n_factors, coordinates, seed)
    truth = Truth(
        coordinates=coordinates,
        participant_groups=groups,
        stimulus_categories=categories,
        participant_embeddings=participants,
        stimulus_embeddings=stimuli,
        centers=centers,
        log_widths=log_widths,
        participant_centers=np.repeat(centers[None], len(labels), axis=0),
        participant_log_widths=np.repeat(log_widths[None], len(labels), axis=0),
        weights_mean=_weights_mean(participants, stimuli, groups, sizes.n_factors),
        weights_sd=np.full(sizes.n_factors, WEIGHTS_SD),
        noise=noise,
    )
    return truth, _design(sizes, truth)


def _stimuli(count: int) -> "pd.Series[str]":
    """Category of each stimulus: ``task1_stim1``, ``task1_stim2``, ..., ``task2_stim1``, ..."""
    categories = spread(count, list(TASK_MEANS))
    width = len(str(categories.count("Task 1")))
    labels = [
        f"{task.lower().replace(' ', '')}_stim{i + 1:0{width}d}"
        for task in TASK_MEANS
        for i in range(categories.count(task))
    ]
    return pd.Series(categories, index=labels, name="category")


def _participant(seed: int, index: int, group: str) -> FloatArray:
    return stream(seed, Stream.PARTICIPANT, index).normal(GROUP_MEANS[group], PARTICIPANT_SD)


def _stimulus(seed: int, index: int, category: str) -> FloatArray:
    mean = TASK_MEANS[category]
    sd = (STIMULUS_RELATIVE_SD * mean[0], STIMULUS_SIDEWAYS_SD)
    return stream(seed, Stream.STIMULUS, index).normal(mean, sd)


def _factors(n_factors: int, coordinates: FloatArray, seed: int) -> tuple[FloatArray, FloatArray]:
    centers = farthest_voxels(coordinates, REGIONS, n_factors)
    return centers, stream(seed, Stream.TEMPLATE).normal(LOG_WIDTH, LOG_WIDTH_SD, size=n_factors)


def _weights_mean(
    participants: pd.DataFrame, stimuli: pd.DataFrame, groups: "pd.Series[str]", n_factors: int
) -> pd.DataFrame:
    """Mean weights: z_p . z_s in the region of the participant's group, zero elsewhere."""
    region = np.array([list(GROUP_MEANS).index(group) for group in groups])
    responds = region[:, None] == np.arange(n_factors)
    response = participants.to_numpy() @ stimuli.to_numpy().T
    weights = response[:, :, None] * responds[:, None, :]
    cells = pd.MultiIndex.from_product([participants.index, stimuli.index])
    return pd.DataFrame(weights.reshape(-1, n_factors), index=cells)


def _design(sizes: Sizes, truth: Truth) -> Design:
    n_frames = sizes.n_frames
    by_task = [[s for s, c in truth.stimulus_categories.items() if c == task] for task in TASK_MEANS]
    order = [str(s) for pair in zip_longest(*by_task) for s in pair if s is not None]
    return make_design(
        {participant: [order] * sizes.n_runs for participant in truth.participants},
        n_frames,
        lambda n_blocks: (n_blocks + 1) * n_frames,
        truth.participant_groups,
        truth.stimulus_categories,
    )
