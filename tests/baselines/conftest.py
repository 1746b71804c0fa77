"""Small studies whose trials are out of step, and studies drawn from the models themselves."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from ntfa import Study

Trial = tuple[str, int]


@pytest.fixture(scope="session")
def make_study() -> Callable[..., Study]:
    """Make a study of participants whose trials (stimulus, number of frames) follow one another.

    `draw(participant, stimulus, repetition, n_frames)` gives the frames [n_frames, V] of a trial.
    """

    def make(design: dict[str, list[Trial]], draw: Callable[[str, str, int, int], np.ndarray]) -> Study:
        frames, rows = {}, []
        for participant, trials in design.items():
            parts, start = [], 0
            for i, (stimulus, n_frames) in enumerate(trials):
                repetition = [s for s, _ in trials[:i]].count(stimulus) + 1
                parts.append(draw(participant, stimulus, repetition, n_frames))
                rows.append((participant, stimulus, start, start + n_frames))
                start += n_frames
            frames[participant] = np.concatenate(parts).astype(np.float32)
        n_voxels = next(iter(frames.values())).shape[1]
        coordinates = np.stack([np.arange(n_voxels), np.zeros(n_voxels), np.zeros(n_voxels)], axis=1)
        return Study.from_arrays(
            frames, pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"]), coordinates
        )

    return make


@pytest.fixture(scope="session")
def from_matrices(make_study: Callable[..., Study]) -> Callable[..., Study]:
    """Make an aligned study of matrices [T, V], a participant each, cut into stimuli of equal length.

    Every participant sees the stimuli in an order of their own.
    """

    def make(matrices: list[np.ndarray], n_stimuli: int) -> Study:
        length = len(matrices[0]) // n_stimuli
        blocks = {
            f"p{p}": {f"s{s:02d}": matrix[s * length : (s + 1) * length] for s in range(n_stimuli)}
            for p, matrix in enumerate(matrices)
        }
        rng = np.random.default_rng(0)
        design = {p: [(f"s{s:02d}", length) for s in rng.permutation(n_stimuli)] for p in blocks}
        return make_study(design, lambda who, stimulus, repetition, n: blocks[who][stimulus])

    return make


@pytest.fixture(scope="session")
def out_of_step(make_study: Callable[..., Study]) -> Study:
    """Three participants, other orders, unequal trials and repetitions; `only a` and `not c` are not everyone's."""
    rng = np.random.default_rng(1)
    design = {
        "a": [("x", 4), ("y", 5), ("only a", 4), ("x", 3), ("not c", 4), ("y", 4)],
        "b": [("y", 4), ("not c", 4), ("x", 5), ("x", 5), ("y", 6), ("x", 4)],
        "c": [("x", 5), ("x", 4), ("y", 5)],
    }
    return make_study(design, lambda who, stimulus, repetition, n: rng.normal(size=(n, 12)))
