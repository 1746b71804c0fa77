"""Does it interact? How much of the response is the stimulus, the person, and the person by the stimulus.

With m_ps the mean image of person p and stimulus s, averages over people and stimuli take it apart,

    m_ps = m + (m_s - m) + (m_p - m) + g_ps,    g_ps = m_ps - m_p - m_s + m

and so its variance over all pairs: what stimuli do in everybody, what people do whatever they see, and what is neither,
the interaction, without which people could be described by one map each and stimuli by one map each (additively). True
responses are not known, and estimates of them vary more, by noise, or less, by shrinkage. So shares are computed of
many draws of all responses given the data (`ntfa.uncertainty.drawn`): their mean is corrected for either, and their
spread is the interval. They are shares of what these people and stimuli have, in the mean, not of single trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from ntfa.analyses.intervals import mean_interval
from ntfa.analyses.recorded import recorded_shares
from ntfa.baselines import AdditiveImage
from ntfa.errors import ModelError, NTFAError
from ntfa.estimators import NTFA
from ntfa.models.loadings import LoadingFactors
from ntfa.models.ntfa import NeuralFactors
from ntfa.study import Study
from ntfa.uncertainty.drawn import ResponseDraws, draw_responses

Floats = NDArray[np.float64]
COMPONENTS = ("stimulus", "person", "person by stimulus")
N_DRAWS = 40
# Of draws of images that are in memory at once, and of numbers that are multiplied in all: some seconds.
MOST_VALUES, MOST_PRODUCTS = 1 << 23, 5e9


@dataclass(frozen=True)
class Interaction:
    """What interacts, and how surely.

    shares : DataFrame
        One row per component, `component, share, ci_low, ci_high`: of the variance of mean responses over all pairs.
    recorded : DataFrame or None
        The same of recorded images, without a model (`ntfa.analyses.recorded`), where trials are repeated.
    pairs : DataFrame
        Every pair, `participant, stimulus, size, sd, ratio`, those first of whose interaction most is known: root mean
        square over voxels of the model's expectation less its additive part, of that map's sd, and their ratio.
    participants, stimuli : DataFrame
        Whose responses the interaction is in: `share` of all of it, the largest first.
    held_out : DataFrame or None
        How well pairs are predicted that the model was not fitted to, one row per additive alternative; see
        `against_additive`.
    """

    shares: pd.DataFrame
    pairs: pd.DataFrame
    participants: pd.DataFrame
    stimuli: pd.DataFrame
    recorded: pd.DataFrame | None = None
    held_out: pd.DataFrame | None = None

    def sentences(self) -> list[str]:
        """Say it for the paper, the most important first."""
        found = [
            "Of the variance of mean responses over people and stimuli, as far as the model holds them, "
            f"{shares_in_words(self.shares)} (95% intervals)."
        ]
        if self.recorded is not None:
            found.append(f"In recorded images, by halves of the trials, {shares_in_words(self.recorded)}.")
        found += [gain_in_words(row) for _, row in ([] if self.held_out is None else self.held_out.iterrows())]
        if len(self.pairs) and self.pairs["ratio"].iloc[0] > 0:
            first = self.pairs.iloc[0]
            found.append(
                f"It was clearest in {first['participant']} with {first['stimulus']}: a map {first['ratio']:.1f} times "
                "as large as its uncertainty beyond what person and stimulus add up to."
            )
        return found


def interaction(
    model: NTFA, train: Study | None = None, held_out: Study | None = None, *, n_draws: int = N_DRAWS
) -> Interaction:
    """Work out how much of the responses is an interaction, whose it is, and whether it predicts held-out pairs.

    Parameters
    ----------
    model : NTFA
        Fitted.
    train, held_out : Study, optional
        What the model was fitted to, and trials of other pairs of the same people and stimuli (`study.split`).
    n_draws : int
        Of all responses, for the intervals.
    """
    fitted = model._require_fitted()
    participants, stimuli = fitted.labels.participants, fitted.labels.stimuli
    if len(participants) < 2 or len(stimuli) < 2:
        raise ModelError("an interaction needs two people and two stimuli at least")
    module = fitted.module
    assert isinstance(module, NeuralFactors | LoadingFactors)
    draws = draw_responses(module, n_draws, intensity=fitted.units.intensity)
    energy = _energies(draws, *_some_voxels(model, draws, n_draws))
    shares = energy.components[1:] / np.maximum(energy.components[1:].sum(1, keepdims=True), np.finfo(float).tiny)
    pairs = _pair_table(energy, participants, stimuli, fitted.units.intensity)
    compared = None if train is None or held_out is None else against_additive(model, train, held_out)
    return Interaction(
        _share_table(shares),
        pairs,
        _whose(energy.pairs.sum(1), participants, "participant"),
        _whose(energy.pairs.sum(0), stimuli, "stimulus"),
        None if train is None else recorded_shares(train),
        compared,
    )


def against_additive(model: NTFA, train: Study, held_out: Study) -> pd.DataFrame:
    """Compare predictions of held-out pairs with additive ones, by their squared error over that of no image.

    Two alternatives: the model's own additive part, m_p + m_s - m, which differs in the interaction alone; and
    `AdditiveImage`, means of recorded images, which differs in all else too. One row for each, `against, error,
    error_of_additive, gain, ci_low, ci_high, n_better, n`: `gain` is the mean over participants of what is gained, with
    its 95% interval over them.
    """
    trials = held_out.trials[["participant", "stimulus"]]
    # Means of images have no part for a voxel that somebody lacks.
    shared = (train.coverage_share == 1) & (held_out.coverage_share == 1)
    train, held_out = train.at(shared), held_out.at(shared)
    observed, images = held_out.mean_images().astype(np.float64), model.predict(trials)[:, shared]
    alternatives = {"its own additive part": additive_images(model, trials)[:, shared]}
    # People who share no stimulus have no images to add up.
    with suppress(NTFAError):
        alternatives["additive images"] = AdditiveImage().fit(train).predict(trials)
    who = trials["participant"].to_numpy()
    zero = _squares(observed, who)
    error = _squares(observed - images, who) / zero
    rows = []
    for name, other in alternatives.items():
        of_additive = _squares(observed - other, who) / zero
        gain = of_additive - error
        row: dict[str, Any] = {"against": name, "error": error.mean(), "error_of_additive": of_additive.mean()}
        rows.append(row | mean_interval(gain, "gain") | {"n_better": int((gain > 0).sum()), "n": len(gain)})
    return pd.DataFrame(rows)


def additive_images(model: NTFA, pairs: pd.DataFrame) -> NDArray[np.float32]:
    """Return the additive part of what a model predicts for pairs, [n, V]."""
    fitted = model._require_fitted()
    participants, stimuli = fitted.labels.participants, fitted.labels.stimuli
    means, of_people = np.zeros((len(stimuli), len(fitted.coordinates))), {}
    wanted = set(pairs["participant"])
    for who in participants:
        own = model.predict([(who, what) for what in stimuli])
        means += own / len(participants)
        if who in wanted:
            of_people[who] = own.mean(0)
    rows = [
        of_people[who] + means[stimuli.index(what)] - means.mean(0)
        for who, what in zip(pairs["participant"], pairs["stimulus"], strict=True)
    ]
    return np.stack(rows).astype(np.float32)


# How it is worked out ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Energies:
    """Mean squares over voxels: of components [1 + n, 3], and of each pair's interaction and its variance [P, S]."""

    components: Floats
    pairs: Floats
    variances: Floats


def _some_voxels(model: NTFA, draws: ResponseDraws, n_draws: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Take all voxels, or some where all would take long: shares are means over them."""
    fitted = model._fitted
    n_pairs = draws.n_participants * draws.n_stimuli
    most = int(MOST_PRODUCTS / ((1 + n_draws) * n_pairs * fitted.module.log_widths.mean.shape[-1]))
    places = np.arange(len(fitted.coordinates))
    if len(places) > max(most, 200):
        places = np.sort(np.random.default_rng(0).choice(places, max(most, 200), replace=False))
    voxels = fitted.units.standardise(torch.from_numpy(fitted.positions[places]))
    device = fitted.module.noise_sd.device
    return voxels.to(fitted.module.noise_sd), torch.from_numpy(places).to(device)


@torch.no_grad()
def _energies(draws: ResponseDraws, voxels: torch.Tensor, places: torch.Tensor) -> _Energies:
    n_people, n_stimuli = draws.n_participants, draws.n_stimuli
    n_draws = len(draws.images(0, voxels[:1], places[:1]))
    at_once = max(1, MOST_VALUES // (n_draws * n_stimuli))
    components, pairs, variances = (
        np.zeros((n_draws, 3)),
        np.zeros((n_people, n_stimuli)),
        np.zeros((n_people, n_stimuli)),
    )
    for own, which in zip(voxels.split(at_once), places.split(at_once), strict=True):
        of_stimuli = draws.images(0, own, which) / n_people
        for p in range(1, n_people):
            of_stimuli += draws.images(p, own, which) / n_people
        mean = of_stimuli.mean(1, keepdim=True)
        components[:, 0] += n_people * _total(of_stimuli - mean)
        for p in range(n_people):
            images = draws.images(p, own, which)
            person = images.mean(1, keepdim=True)
            left = images - person - of_stimuli + mean
            components[:, 1] += n_stimuli * _total(person - mean)
            components[:, 2] += _total(left)
            pairs[p] += left[0].square().sum(-1).cpu().numpy()
            variances[p] += left[1:].var(0).sum(-1).cpu().numpy()
    n = len(voxels)
    return _Energies(components / (n * n_people * n_stimuli), pairs / n, variances / n)


def _total(images: torch.Tensor) -> Floats:
    return np.asarray(images.square().sum((1, 2)).cpu().numpy())


def _share_table(shares: Floats) -> pd.DataFrame:
    mean, reach = shares.mean(0), 1.96 * shares.std(0, ddof=1)
    ends = {"ci_low": np.clip(mean - reach, 0, 1), "ci_high": np.clip(mean + reach, 0, 1)}
    return pd.DataFrame({"component": COMPONENTS, "share": mean, **ends})


def _pair_table(
    energy: _Energies, participants: Sequence[str], stimuli: Sequence[str], intensity: float
) -> pd.DataFrame:
    index = pd.MultiIndex.from_product([participants, stimuli], names=["participant", "stimulus"])
    size, sd = (np.sqrt(part).ravel() * intensity for part in (energy.pairs, energy.variances))
    table = pd.DataFrame({"size": size, "sd": sd, "ratio": size / np.maximum(sd, np.finfo(float).tiny)}, index=index)
    return table.reset_index().sort_values("ratio", ascending=False, kind="stable", ignore_index=True)


def _whose(energy: Floats, labels: Sequence[str], name: str) -> pd.DataFrame:
    table = pd.DataFrame({name: list(labels), "share": energy / max(energy.sum(), np.finfo(float).tiny)})
    return table.sort_values("share", ascending=False, kind="stable", ignore_index=True)


def _squares(images: Any, who: Any) -> pd.Series[float]:
    """Sum of squares of the images of each participant."""
    return pd.Series((np.asarray(images, dtype=np.float64) ** 2).sum(1)).groupby(who).sum()


def shares_in_words(table: pd.DataFrame) -> str:
    """Say what the shares are."""
    parts = [
        f"{100 * row['share']:.0f}% ({100 * max(row['ci_low'], 0):.0f} to {100 * min(row['ci_high'], 1):.0f}) was "
        f"{row['component']}"
        for _, row in table.iterrows()
    ]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def gain_in_words(row: pd.Series[Any]) -> str:
    """Say whether held-out pairs are predicted better than additively."""
    better = "better than" if row["ci_low"] > 0 else "worse than" if row["ci_high"] < 0 else "no differently from"
    return (
        f"Held-out pairs were predicted {better} by {row['against']}: the error, over that of no image, was "
        f"{row['error']:.3f} and {row['error_of_additive']:.3f}, a gain of {row['gain']:.3f} "
        f"({row['ci_low']:.3f} to {row['ci_high']:.3f}; better in {row['n_better']} of {row['n']} people)."
    )
