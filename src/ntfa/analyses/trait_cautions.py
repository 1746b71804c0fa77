"""What a reader must know before believing a test of a column."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from ntfa.analyses.attenuation import Noise
from ntfa.analyses.permutations import log_arrangements
from ntfa.analyses.sample import Sample
from ntfa.analyses.trait_words import LEVEL, Asked

SMALL_GROUP = 5
FEW_VALUES = 4
# Beyond these a reader is told: share of noise, ratio of groups' noise, correlation of noise with a number, leverage.
MUCH_NOISE, UNEVEN_NOISE, RELATED_NOISE, MUCH_LEVERAGE = 0.5, 1.5, 0.4, 0.5


def cautions_about(
    sample: Sample, table: pd.DataFrame, noise: Noise | None, asked: Asked, is_calibrated: bool
) -> list[str]:
    """List what there is to know, the most important first."""
    return [
        *_few_arrangements(sample),
        *_of_groups(sample, table, noise),
        *_of_numbers(sample, noise, asked),
        *_of_noise(sample, noise, asked, is_calibrated),
    ]


def _few_arrangements(sample: Sample) -> Iterator[str]:
    log_count = log_arrangements(sample.codes, sample.strata)
    if log_count < np.log(1 / LEVEL**2):
        count = round(np.exp(log_count))
        yield f"There are only {count} ways to permute the column, so that no p-value can be below {1 / count:.2g}."


def _of_groups(sample: Sample, table: pd.DataFrame, noise: Noise | None) -> Iterator[str]:
    if not sample.is_groups:
        return
    sizes = sample.values.value_counts()
    small = [f"{name} ({size})" for name, size in sizes[sizes < SMALL_GROUP].items()]
    if small:
        yield f"Groups of fewer than {SMALL_GROUP} tell little, and their spread least: {', '.join(small)}."
    if table.iloc[0]["p_adjusted"] < LEVEL and table.iloc[1]["p_adjusted"] < LEVEL:
        yield (
            "The groups differ in dispersion as well as in location: people of one group are more alike than those of "
            "another, and centres alone do not describe them."
        )
    if noise is None:
        return
    means = pd.Series(noise.variances, index=sample.values.index).groupby(sample.values.to_numpy()).mean()
    if means.max() > UNEVEN_NOISE * means.min():
        yield (
            f"Embeddings are {means.max() / means.min():.1f} times as noisy (in variance) for {means.idxmax()} as for "
            f"{means.idxmin()}: a difference in dispersion may be nothing else."
        )


def _of_numbers(sample: Sample, noise: Noise | None, asked: Asked) -> Iterator[str]:
    if sample.is_groups:
        return
    n_values = sample.values.nunique()
    if n_values <= FEW_VALUES:
        yield (
            f"{asked.column} has {n_values} different values, and was taken for a number; if they stand for groups, "
            "say so (--groups, or groups=True)."
        )
    share = sample.design().predictors[:, 0] ** 2
    if share.max() > MUCH_LEVERAGE:
        yield (
            f"{sample.labels[int(share.argmax())]} alone has {share.max():.0%} of the variance of {asked.column}: look "
            "whether the result stands without."
        )
    if noise is not None and np.ptp(noise.variances) > 1e-6 * noise.variances.max():
        related = float(spearmanr(noise.variances, sample.values).statistic)
        if abs(related) > RELATED_NOISE:
            end = "high" if related > 0 else "low"
            yield (
                f"Embeddings of those with {end} values are noisier (rank correlation {related:.2f}): that those at "
                "the other end are more alike may be nothing else."
            )


def _of_noise(sample: Sample, noise: Noise | None, asked: Asked, is_calibrated: bool) -> Iterator[str]:
    if noise is None:
        yield "The embeddings are point estimates without uncertainty, so that R^2 has no interval."
        return
    total = float(((sample.points - sample.points.mean(0)) ** 2).sum())
    share = float(noise.variances.sum()) * (1 - 1 / len(noise.variances)) / max(total, np.finfo(float).tiny)
    if share > MUCH_NOISE:
        yield (
            f"{min(share, 1):.0%} of the variance between embeddings of {asked.things} is noise: a relation may be "
            "missed, and R^2 is not well known."
        )
    if not is_calibrated:
        yield "The uncertainty of embeddings is not calibrated by halves of the data; the interval may be too narrow."
