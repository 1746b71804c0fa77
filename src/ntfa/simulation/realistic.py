"""Studies as hard as real ones: smooth noise, people with topographies of their own, responses of many dimensions.

A frame of participant p and stimulus s is ``h_s (A + B_p) + noise``: features of the stimulus (a constant and R others,
each with a smaller share of the response than the one before) times loadings. The group's loadings A are sums of many
blobs; each participant adds smooth random images B_p, the same ones for every stimulus. Noise is smooth in space,
correlated from frame to frame, and louder in some people than in others.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import norm

from ntfa.inference.factors import radial_basis
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
from ntfa.simulation.fields import FWHM_PER_SD, SmoothField
from ntfa.simulation.individual import IndividualTruth
from ntfa.simulation.presets import Preset, Realism
from ntfa.simulation.truth import labelled
from ntfa.study.checks import FrameArray

GROUP = "all"
EMBEDDING_DIM = 2


@dataclass(frozen=True, eq=False)
class SmoothNoise:
    """Noise that is smooth in space and correlated from frame to frame."""

    field: SmoothField
    ar1: float

    @classmethod
    def of(cls, realism: Realism, coordinates: FloatArray) -> "SmoothNoise":
        """The noise of a study over these voxels."""
        return cls(SmoothField.of(realism.noise_fwhm, coordinates), realism.noise_ar1)


def draw_participant(
    truth: IndividualTruth, noise: SmoothNoise, participant: str, trials: pd.DataFrame, seed: int
) -> FrameArray:
    """Draw one participant's frames [frames x V]: the images of the stimuli plus noise."""
    own = trials[trials["participant"] == participant]
    rng = stream(seed, Stream.FRAMES, truth.participants.index(participant))
    frames = noise.field.draw_frames(_stretches(own), noise.ar1, rng)
    frames *= np.float32(truth.participant_noise[participant])
    images = dict(zip(truth.stimuli, truth.images(participant), strict=True))
    for stimulus, start, stop in own[["stimulus", "start", "stop"]].itertuples(index=False):
        frames[start:stop] += images[stimulus]
    return frames


def _stretches(trials: pd.DataFrame) -> list[int]:
    """Numbers of frames recorded in one go: those of one run and category, as tasks have runs of their own."""
    n_frames = trials["stop"] - trials["start"]
    kind = trials[["run", "category"]]
    return n_frames.groupby((kind != kind.shift()).any(axis=1).cumsum()).sum().tolist()


def make_realistic(
    preset: Preset, realism: Realism, sizes: Sizes, coordinates: FloatArray, noise: float, seed: int
) -> tuple[IndividualTruth, Design]:
    """Draw the truth and lay out the runs."""
    labels = participant_labels(sizes.n_participants)
    groups = pd.Series(GROUP, index=labels, name="group")
    categories = numbered_stimuli(preset.categories, sizes.n_stimuli)
    features = _features(categories, realism, seed)
    centers, log_widths, loadings = _group_loadings(realism, sizes.n_factors, coordinates, seed)
    individual = _individual_loadings(realism, len(labels), coordinates, seed)
    levels = _noise_levels(realism.noise_spread, len(labels), seed)
    truth = IndividualTruth(
        coordinates=coordinates,
        participant_groups=groups,
        stimulus_categories=categories,
        participant_embeddings=labelled(labels, list(_principal_components(individual, features)), "participant"),
        stimulus_embeddings=labelled(categories.index.tolist(), list(features), "stimulus"),
        centers=centers,
        log_widths=log_widths,
        participant_centers=np.repeat(centers[None], len(labels), axis=0),
        participant_log_widths=np.repeat(log_widths[None], len(labels), axis=0),
        weights_mean=_weights_mean(labels, categories, features, loadings),
        weights_sd=np.zeros(sizes.n_factors),
        noise=noise,
        group_loadings=loadings,
        individual_loadings=individual,
        participant_noise=pd.Series(noise * levels, index=labels),
    )
    order = [categories.index.tolist()] * sizes.n_runs
    design = make_design(dict.fromkeys(labels, order), sizes.n_frames, lambda n_blocks: 0, groups, categories)
    return truth, design


def spectrum(decay: float, n_features: int) -> FloatArray:
    """Share of each feature: so much of the share of the one before."""
    shares = decay ** np.arange(n_features)
    return shares / shares.sum()


# --- what the group shares


def _features(categories: "pd.Series[str]", realism: Realism, seed: int) -> FloatArray:
    """Features [S x R], centred and uncorrelated over stimuli, with mean squares that decay and sum to 1.

    Stimuli of one category are drawn alike, and the features that come first tell categories apart best.
    """
    n_stimuli = len(categories)
    names = list(dict.fromkeys(categories))
    shared = stream(seed, Stream.TEMPLATE, 1).normal(size=(len(names), n_stimuli))
    drawn = np.stack([stream(seed, Stream.STIMULUS, s).normal(size=n_stimuli) for s in range(n_stimuli)])
    drawn *= math.sqrt(1 - realism.category_share)
    drawn += math.sqrt(realism.category_share) * shared[[names.index(category) for category in categories]]
    directions = np.linalg.svd(drawn - drawn.mean(axis=0))[0][:, : realism.n_features]
    return _fix_signs(directions) * np.sqrt(n_stimuli * spectrum(realism.feature_decay, realism.n_features))


def _group_loadings(
    realism: Realism, n_factors: int, coordinates: FloatArray, seed: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Centres and log widths of the blobs, and each feature's loading on them [(R + 1) x K]."""
    rng = stream(seed, Stream.TEMPLATE)
    centers = scattered_voxels(coordinates, n_factors, rng)
    parts = realism.response_fwhm
    kinds = rng.permutation(spread(n_factors, [str(fwhm) for fwhm in parts], list(parts.values()))).astype(float)
    # A field of blobs exp(-d^2 / r^2) is as smooth as one made by a kernel of sd r / sqrt(2).
    log_widths = np.log(2 * (kinds / FWHM_PER_SD) ** 2)
    factors = radial_basis(coordinates, centers, np.exp(log_widths / 2), np.float32)
    loadings = rng.normal(size=(realism.n_features + 1, n_factors))
    for fwhm, share in parts.items():
        own = kinds == fwhm
        loadings[:, own] *= math.sqrt(share) / _root_mean_square(loadings[:, own] @ factors[own])
    loadings[1:] = _uncorrelated(loadings[1:], factors)
    shares = np.array([realism.mean_share] + [realism.stimulus_share] * realism.n_features)
    loadings *= np.sqrt(shares / realism.noise_share)[:, None] / _root_mean_square(loadings @ factors)
    return centers, log_widths, loadings


def _uncorrelated(loadings: FloatArray, factors: FrameArray) -> FloatArray:
    """Loadings with what earlier features have in common with them taken out of their images, one after the other.

    The responses then have just the spectrum that was asked for, and those that matter most stay as smooth as they are.
    With fewer factors or voxels than features there is no such thing, and loadings are returned as they are.
    """
    images = loadings @ factors
    products = images @ images.T
    if np.linalg.matrix_rank(products, hermitian=True, rtol=1e-8) < len(loadings):
        return loadings
    return np.linalg.solve(np.linalg.cholesky(products), loadings)


def _root_mean_square(images: FloatArray) -> FloatArray:
    """Root mean square of each image, as a column; 1 for images of nothing."""
    found = np.sqrt((images**2).mean(axis=1, keepdims=True))
    return np.where(found > 0, found, 1.0)


def _weights_mean(
    labels: list[str], categories: "pd.Series[str]", features: FloatArray, loadings: FloatArray
) -> pd.DataFrame:
    """The group's mean weights, for every participant."""
    weights = np.column_stack([np.ones(len(features)), features]) @ loadings
    cells = pd.MultiIndex.from_product([labels, categories.index], names=["participant", "stimulus"])
    return pd.DataFrame(np.tile(weights, (len(labels), 1)), index=cells)


# --- what people have of their own


def _individual_loadings(realism: Realism, n_participants: int, coordinates: FloatArray, seed: int) -> FrameArray:
    """Everybody's own loadings as images [P x (R + 1) x V]."""
    n_features = realism.n_features
    relative = spectrum(realism.individual_decay, n_features) / spectrum(realism.feature_decay, n_features)
    shares = np.concatenate([[realism.individual_mean_share], realism.individual_share * relative])
    amplitude = np.sqrt(shares / realism.noise_share).astype(np.float32)[:, None]
    field = SmoothField.of(realism.individual_fwhm, coordinates)
    loadings = np.empty((n_participants, n_features + 1, len(coordinates)), dtype=np.float32)
    for p in range(n_participants):
        rng = stream(seed, Stream.PARTICIPANT, p)
        loadings[p] = amplitude * field.draw(n_features + 1, rng)
    return loadings


def _noise_levels(noise_spread: float, n_participants: int, seed: int) -> FloatArray:
    """Everybody's noise relative to the median: normal in its log, with just the spread asked for at any seed."""
    if n_participants == 1:
        return np.ones(1)
    scores = norm.ppf((np.arange(n_participants) + 0.5) / n_participants)
    scores *= noise_spread / scores.std(ddof=1)
    return np.exp(stream(seed, Stream.TEMPLATE, 2).permutation(scores))


def _principal_components(individual: FrameArray, features: FloatArray) -> FloatArray:
    """The two leading principal components of people's own images of all stimuli, of mean square 1 [P x 2]."""
    n_participants = len(individual)
    products = np.zeros((n_participants, n_participants))
    # Features are uncorrelated, so products of images are sums of those of loadings.
    for r, weight in enumerate([1.0, *(features**2).mean(axis=0)]):
        products += weight * (individual[:, r] @ individual[:, r].T)
    centred = products - products.mean(axis=0) - products.mean(axis=1, keepdims=True) + products.mean()
    leading = np.linalg.eigh(centred)[1][:, ::-1][:, :EMBEDDING_DIM]
    missing = np.zeros((n_participants, EMBEDDING_DIM - leading.shape[1]))
    return np.hstack([_fix_signs(leading) * math.sqrt(n_participants), missing])


def _fix_signs(vectors: FloatArray) -> FloatArray:
    """The same vectors, each with its largest entry positive: which sign they have is a library's choice."""
    largest = np.abs(vectors).argmax(axis=0)
    return vectors * np.sign(vectors[largest, np.arange(vectors.shape[1])])
