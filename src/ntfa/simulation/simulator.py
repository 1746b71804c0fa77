"""Draw a study from a truth, all at once or one participant at a time."""

import operator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ntfa.errors import StudyError
from ntfa.simulation.brain import FloatArray, mni_brain
from ntfa.simulation.design import Stream, stream
from ntfa.simulation.synthetic import USUAL_SIZES, make_synthetic
from ntfa.simulation.truth import Truth
from ntfa.simulation.twins import TWINS, make_twin
from ntfa.study import Study
from ntfa.study.checks import FrameArray, check_coordinates, row_chunks

KINDS = ("synthetic", *TWINS)


class Simulation(NamedTuple):
    """A simulated study, and the truth it was drawn from."""

    study: Study
    truth: Truth


@dataclass(frozen=True, eq=False)
class Simulator:
    """A simulated study that is drawn one participant at a time, so that it may exceed memory.

    Attributes
    ----------
    like : str
        The kind of study.
    seed : int
        With the sizes, it decides everything; participants have random numbers of their own, so each
        comes out the same whether or not, and in whatever order, others are drawn.
    truth : Truth
        What the study is drawn from.
    trials : DataFrame
        The trials of all participants, with the labels `run`, `category` and `group`.
    run_frames : tuple of int
        Number of frames of each run, rest included, the same for all participants; the first run is run 1.
    mask_img : nibabel image or None
        The voxels, unless they were given as coordinates.
    """

    like: str
    seed: int
    truth: Truth
    trials: pd.DataFrame
    run_frames: tuple[int, ...]
    mask_img: Any = None

    @classmethod
    def create(
        cls,
        like: str = "synthetic",
        *,
        random_state: int | None = 0,
        noise: float = 1.0,
        coordinates: ArrayLike | None = None,
        **sizes: int | None,
    ) -> "Simulator":
        """Draw the truth and the design, but no frames yet; parameters are those of `simulate`."""
        if like not in KINDS:
            raise StudyError(f"like must be one of {', '.join(KINDS)}, not {like!r}")
        if not (np.isfinite(noise) and noise >= 0):
            raise StudyError(f"noise must be a finite standard deviation of 0 or more, not {noise}")
        seed = _seed(random_state)
        full = (USUAL_SIZES if like == "synthetic" else TWINS[like].usual_sizes).but(**sizes)
        mask_img, positions = _voxels(coordinates, sizes.get("n_voxels"), full.n_voxels)
        if full.n_factors > len(positions):
            raise StudyError(f"n_factors ({full.n_factors}) is larger than the number of voxels ({len(positions)})")
        make = make_synthetic if like == "synthetic" else partial(make_twin, TWINS[like])
        truth, design = make(full, positions, float(noise), seed)
        return cls(like, seed, truth, design.trials, design.run_frames, mask_img)

    @property
    def participants(self) -> list[str]:
        """Labels of the participants, in sorted order."""
        return self.truth.participants

    @property
    def n_frames(self) -> int:
        """Number of frames of each participant, rest included."""
        return sum(self.run_frames)

    def frames(self, participant: str) -> FrameArray:
        """Draw one participant's frames [frames x V], float32: weights x factors + noise."""
        factors = self.truth.factors(participant)
        rng = stream(self.seed, Stream.FRAMES, self.participants.index(participant))
        weights = self._weights(participant, rng)
        frames = np.empty((self.n_frames, factors.shape[1]), dtype=np.float32)
        for rows in row_chunks(*frames.shape):
            rng.standard_normal(out=frames[rows], dtype=np.float32)
            frames[rows] *= np.float32(self.truth.noise)
            frames[rows] += weights[rows] @ factors
        return frames

    def run(self) -> Simulation:
        """Draw all participants into memory."""
        frames = {participant: self.frames(participant) for participant in self.participants}
        study = Study.from_arrays(frames, self.trials, self.truth.coordinates, self.mask_img)
        return Simulation(study, self.truth)

    def _weights(self, participant: str, rng: np.random.Generator) -> FrameArray:
        """Weights [frames x K] around the stimulus's mean in a trial, around zero at rest."""
        sd = self.truth.weights_sd
        weights = sd * rng.standard_normal((self.n_frames, len(sd)))
        means = self.truth.weights_mean.loc[participant]
        own = self.trials[self.trials["participant"] == participant]
        for stimulus, start, stop in own[["stimulus", "start", "stop"]].itertuples(index=False):
            weights[start:stop] += means.loc[stimulus].to_numpy()
        return weights.astype(np.float32)


def simulate(
    like: str = "synthetic",
    *,
    random_state: int | None = 0,
    n_participants: int | None = None,
    n_stimuli: int | None = None,
    n_frames: int | None = None,
    n_voxels: int | None = None,
    n_factors: int | None = None,
    n_runs: int | None = None,
    noise: float = 1.0,
    coordinates: ArrayLike | None = None,
) -> Simulation:
    """Simulate a study whose truth is known.

    Parameters
    ----------
    like : {"synthetic", "haxby", "lepping", "threatvids"}, default="synthetic"
        "synthetic" is the paper's: 3 groups of participants, each responding in a region of its own, to
        Task 1 half as much as to Task 2. The others have the sizes and designs of the paper's real
        studies, with individual layouts of the factors. Full-sized they take 1, 5 and 11 GB.
    random_state : int or None, default=0
        The seed; None for a different study each time.
    n_participants, n_stimuli, n_voxels, n_factors : int, optional
        Sizes, where they should differ from the usual ones.
    n_frames : int, optional
        Frames of each stimulus block; the rest between blocks grows and shrinks with them.
    n_runs : int, optional
        Runs of each participant. In "threatvids" each stimulus is shown in one run only, so there are
        at most as many runs as stimuli.
    noise : float, default=1.0
        Standard deviation of the noise in each voxel and frame.
    coordinates : array of shape (V, 3), optional
        Use these voxels (mm) instead of those of the MNI152 brain.

    Returns
    -------
    Simulation
        `study` and `truth`.

    Examples
    --------
    >>> study, truth = simulate("haxby", n_participants=2, n_runs=1, n_voxels=500)  # doctest: +SKIP
    """
    return Simulator.create(
        like,
        random_state=random_state,
        noise=noise,
        coordinates=coordinates,
        n_participants=n_participants,
        n_stimuli=n_stimuli,
        n_frames=n_frames,
        n_voxels=n_voxels,
        n_factors=n_factors,
        n_runs=n_runs,
    ).run()


def _seed(random_state: int | None) -> int:
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    try:
        seed = operator.index(random_state)
    except TypeError:
        seed = -1
    if seed < 0:
        raise StudyError(f"random_state must be a whole number of 0 or more, or None, not {random_state!r}")
    return seed


def _voxels(coordinates: ArrayLike | None, asked: int | None, usual: int | None) -> tuple[Any, FloatArray]:
    if coordinates is None:
        return mni_brain(n_voxels=usual)
    positions = check_coordinates(coordinates)
    if asked is not None and asked != len(positions):
        raise StudyError(f"n_voxels is {asked}, but coordinates has {len(positions)} voxels; give one of them")
    return None, positions
