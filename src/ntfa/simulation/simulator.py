"""Draw a study from a truth, all at once or one participant at a time."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Unpack

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ntfa.errors import StudyError
from ntfa.simulation.brain import Box, FloatArray, mni_brain
from ntfa.simulation.design import Design, Sizes, Stream, stream
from ntfa.simulation.individual import IndividualTruth
from ntfa.simulation.presets import PRESETS, SETTINGS, Realism, Settings
from ntfa.simulation.realistic import SmoothNoise, draw_participant, make_realistic
from ntfa.simulation.synthetic import USUAL_SIZES, make_synthetic
from ntfa.simulation.truth import Truth
from ntfa.simulation.twins import TWINS, make_twin
from ntfa.study import Study
from ntfa.study.checks import FrameArray, check_coordinates, row_chunks

KINDS = ("synthetic", *TWINS, *PRESETS)


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
    realism : Realism or None
        The settings of a study as hard as a real one.
    smooth_noise : SmoothNoise or None
        What its noise is drawn from; the noise of other studies is white.
    """

    like: str
    seed: int
    truth: Truth
    trials: pd.DataFrame
    run_frames: tuple[int, ...]
    mask_img: Any = None
    realism: Realism | None = None
    smooth_noise: SmoothNoise | None = None

    @classmethod
    def create(
        cls,
        like: str = "synthetic",
        *,
        random_state: int | None = 0,
        noise: float = 1.0,
        coordinates: ArrayLike | None = None,
        settings: Mapping[str, object] | None = None,
        **sizes: int | None,
    ) -> "Simulator":
        """Draw the truth and the design, but no frames yet; parameters and settings are those of `simulate`."""
        if like not in KINDS:
            raise StudyError(f"like must be one of {', '.join(KINDS)}, not {like!r}")
        if not (np.isfinite(noise) and noise >= 0):
            raise StudyError(f"noise must be a finite standard deviation of 0 or more, not {noise}")
        seed = _seed(random_state)
        full = _usual_sizes(like).but(**sizes)
        realism = _realism(like, full.n_stimuli, settings or {})
        box = PRESETS[like].box if like in PRESETS else None
        mask_img, positions = _voxels(coordinates, sizes.get("n_voxels"), full.n_voxels, box)
        if full.n_factors > len(positions):
            raise StudyError(f"n_factors ({full.n_factors}) is larger than the number of voxels ({len(positions)})")
        truth, design = _draw_truth(like, realism, full, positions, float(noise), seed)
        smooth_noise = None if realism is None else SmoothNoise.of(realism, positions)
        return cls(like, seed, truth, design.trials, design.run_frames, mask_img, realism, smooth_noise)

    @property
    def participants(self) -> list[str]:
        """Labels of the participants, in sorted order."""
        return self.truth.participants

    @property
    def n_frames(self) -> int:
        """Number of frames of each participant, rest included."""
        return sum(self.run_frames)

    def frames(self, participant: str) -> FrameArray:
        """Draw one participant's frames [frames x V], float32: weights x factors, or images, and noise."""
        if self.smooth_noise is not None and isinstance(self.truth, IndividualTruth):
            return draw_participant(self.truth, self.smooth_noise, participant, self.trials, self.seed)
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
    **settings: Unpack[Settings],
) -> Simulation:
    """Simulate a study whose truth is known.

    Parameters
    ----------
    like : {"synthetic", "haxby", "lepping", "threatvids", "woo", "mdtb"}, default="synthetic"
        "synthetic" is the paper's: 3 groups of participants, each responding in a region of its own, to
        Task 1 half as much as to Task 2. "haxby", "lepping" and "threatvids" have the sizes and designs
        of the paper's real studies, with individual layouts of the factors. Full-sized they take 1, 5
        and 11 GB. "woo" and "mdtb" are as hard as two real studies of maps (no rest between them), by
        what was measured there: smooth noise, people with topographies of their own, responses of many
        dimensions.
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
        Standard deviation of the noise in each voxel and frame; in "woo" and "mdtb" that of the median
        participant, in the units in which the shares below hold when it is 1.
    coordinates : array of shape (V, 3), optional
        Use these voxels (mm) instead of those of the MNI152 brain.
    **settings
        For "woo" and "mdtb" only, where they should differ from what was measured:

        - `mean_share`, `stimulus_share`: shares of the variance of a frame that are the group's mean
          response to all stimuli, and what the group's response to a stimulus has in addition.
        - `individual_mean_share`, `individual_share`: the same of what a participant's responses have
          in addition to the group's. The rest is noise.
        - `n_features`: dimensions of the responses, less than the number of stimuli.
        - `feature_decay`, `individual_decay`: each dimension's share of the group's, or of people's
          own, responses relative to the dimension before it, from 0.01 to 1.
        - `response_fwhm`, `individual_fwhm`, `noise_fwhm`: smoothness (mm) of the group's responses,
          of people's own, and of noise; a number, or a dict of several and their shares, as in
          ``{10: 0.8, 100: 0.2}``.
        - `category_share`: how much stimuli of one category have in common when features are drawn,
          from 0 to 1.
        - `noise_ar1`: correlation of noise from one frame to the next, within a category and run.
        - `noise_spread`: standard deviation over people of the log of their noise level.

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
        settings=settings,
    ).run()


def _usual_sizes(like: str) -> Sizes:
    if like in PRESETS:
        return PRESETS[like].usual_sizes
    return USUAL_SIZES if like == "synthetic" else TWINS[like].usual_sizes


def _realism(like: str, n_stimuli: int, settings: Mapping[str, object]) -> Realism | None:
    given = [name for name, value in settings.items() if value is not None]
    unknown = [name for name in given if name not in SETTINGS]
    if unknown:
        raise StudyError(f"There is no setting {unknown[0]}; there are {', '.join(SETTINGS)}")
    if like in PRESETS:
        return PRESETS[like].realism.but(n_stimuli, settings)
    if given:
        raise StudyError(f"{given[0]} applies to studies like {' and '.join(PRESETS)} only, not to {like}")
    return None


def _draw_truth(
    like: str, realism: Realism | None, sizes: Sizes, coordinates: FloatArray, noise: float, seed: int
) -> tuple[Truth, Design]:
    if realism is not None:
        return make_realistic(PRESETS[like], realism, sizes, coordinates, noise, seed)
    make = make_synthetic if like == "synthetic" else partial(make_twin, TWINS[like])
    return make(sizes, coordinates, noise, seed)


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


def _voxels(
    coordinates: ArrayLike | None, asked: int | None, usual: int | None, box: Box | None
) -> tuple[Any, FloatArray]:
    if coordinates is None:
        return mni_brain(n_voxels=usual, box=box)
    positions = check_coordinates(coordinates)
    if asked is not None and asked != len(positions):
        raise StudyError(f"n_voxels is {asked}, but coordinates has {len(positions)} voxels; give one of them")
    return None, positions
