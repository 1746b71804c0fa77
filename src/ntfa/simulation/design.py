"""Sizes of a simulated study, its random streams, and when each stimulus is shown."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import pandas as pd

from ntfa.errors import StudyError


@dataclass(frozen=True)
class Sizes:
    """How large a simulated study is; no number of voxels means the brain at 8 mm."""

    n_participants: int
    n_stimuli: int
    n_frames: int
    n_factors: int
    n_runs: int
    n_voxels: int | None = None

    def but(self, **sizes: int | None) -> "Sizes":
        """These sizes, but for the given ones that are not None."""
        given = {name: value for name, value in sizes.items() if value is not None}
        return replace(self, **{name: check_count(name, value) for name, value in given.items()})


def check_count(name: str, value: object) -> int:
    """The value, if it is a positive whole number."""
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count <= 0:
        raise StudyError(f"{name} must be a positive whole number, not {value!r}")
    return count


class Stream(IntEnum):
    """What a stream of random numbers is for: each has its own, so none depends on another's length."""

    TEMPLATE = 0
    PARTICIPANT = 1
    STIMULUS = 2
    ORDER = 3
    FRAMES = 4
    SCANNER = 5
    CONFOUNDS = 6


def stream(seed: int, purpose: Stream, index: int = 0) -> np.random.Generator:
    """The random numbers of one purpose and one participant or stimulus."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(purpose), index)))


@dataclass(frozen=True, eq=False)
class Design:
    """When each stimulus is shown: a table of trials, and the frames of each run, the same for all participants."""

    trials: pd.DataFrame
    run_frames: tuple[int, ...]


def participant_labels(count: int) -> list[str]:
    """``sub-01``, ``sub-02``, ..., padded so that they sort in this order."""
    width = max(2, len(str(count)))
    return [f"sub-{i + 1:0{width}d}" for i in range(count)]


def spread(count: int, names: Sequence[str], shares: Sequence[float] | None = None) -> list[str]:
    """Give each of `count` items one of the names, in blocks as equal as can be, or of these shares."""
    weights = np.ones(len(names)) if shares is None else np.asarray(shares, dtype=float)
    # Subtracting a hair makes the remainder of an even spread go to the first names.
    edges = np.ceil(np.cumsum(weights) / weights.sum() * count - 1e-9).astype(int)
    sizes = np.diff(edges, prepend=0)
    return [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]


def numbered_stimuli(categories: Mapping[str, str], count: int, always: bool = False) -> "pd.Series[str]":
    """The category of each of `count` stimuli, by label.

    Parameters
    ----------
    categories : mapping
        Names of stimuli and the category of each.
    count : int
        If there are more stimuli than names, those of one name are numbered from the second on.
    always : bool, default=False
        Whether to number the first one too.
    """
    names = list(categories)
    labels = {}
    for i in range(count):
        name, number = names[i % len(names)], i // len(names) + 1
        labels[f"{name}_{number:02d}" if always or number > 1 else name] = categories[name]
    return pd.Series(labels, name="category")


def make_design(
    orders: Mapping[str, Sequence[Sequence[str]]],
    n_frames: int,
    rest_frames: Callable[[int], int],
    groups: "pd.Series[str]",
    categories: "pd.Series[str]",
) -> Design:
    """Lay out every participant's runs.

    Parameters
    ----------
    orders : mapping
        For each participant, for each run, the stimuli in the order shown; as many for all participants.
    n_frames : int
        Frames of a stimulus block.
    rest_frames : callable
        Number of rest frames of a run with this many blocks.
    groups, categories : Series
        The group of each participant and the category of each stimulus, by label.
    """
    rows = []
    run_frames: list[int] = []
    for participant, runs in orders.items():
        run_frames = []
        for run, stimuli in enumerate(runs, start=1):
            n_rest = rest_frames(len(stimuli))
            for stimulus, start in zip(stimuli, block_starts(len(stimuli), n_frames, n_rest), strict=True):
                first = sum(run_frames) + int(start)
                rows.append((participant, stimulus, first, first + n_frames, run))
            run_frames.append(n_rest + len(stimuli) * n_frames)
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop", "run"])
    trials["category"] = trials["stimulus"].map(categories)
    trials["group"] = trials["participant"].map(groups)
    return Design(trials, tuple(run_frames))


def block_starts(n_blocks: int, n_frames: int, n_rest: int) -> np.ndarray:
    """First frames of the blocks of a run, with its rest shared out before, between and after them."""
    rest_before = np.round(np.linspace(0, n_rest, n_blocks + 2)[1:-1]).astype(int)
    return rest_before + np.arange(n_blocks) * n_frames
