"""Do embeddings go with a column: a diagnosis, an age, a rating? Groups and traits of participants or stimuli.

*Groups* are compared in location (PERMANOVA) and, always beside it, in dispersion (PERMDISP), all together and every
two. *Numbers* are tested by distance-based regression and by the similarity of pairs in two forms. How p-values are
found is in `ntfa.analyses.permutations`, how R^2 gets its interval in `ntfa.analyses.attenuation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ntfa.analyses.attenuation import Interval, Noise, draw_noise, explained_interval
from ntfa.analyses.columns import Table
from ntfa.analyses.dispersion import dispersion_test
from ntfa.analyses.permutations import Design, Floats, Ints, location_test, permuted_orders, random_signs
from ntfa.analyses.sample import Sample, embeddings_of, gather
from ntfa.analyses.similarity import neighbours_test, one_end_test
from ntfa.analyses.trait_cautions import cautions_about
from ntfa.analyses.trait_words import Asked, sentence_for
from ntfa.errors import ModelError
from ntfa.seeds import RandomState, as_seed, is_whole
from ntfa.uncertainty.differences import DEGREES_OF_FREEDOM

COLUMNS = (
    "test",
    "compared",
    "n",
    "statistic",
    "p",
    "p_adjusted",
    "r2",
    "r2_low",
    "r2_high",
    "r2_chance",
    "r2_means",
)


@dataclass(frozen=True)
class ColumnTest:
    """Whether embeddings go with a column.

    column : what was tested
    kind : "participant" or "stimulus"
    table : one row per test; columns as in `ntfa.test`
    sentence : for the paper
    cautions : what to know before believing it
    embeddings : the points that were tested, with their uncertainty
    values : their values of the column
    """

    column: str
    kind: str
    table: pd.DataFrame
    sentence: str
    cautions: list[str]
    embeddings: pd.DataFrame = field(repr=False)
    values: pd.Series = field(repr=False)

    def plot(self, ax: Any = None) -> Any:
        """Draw the embeddings coloured by the column, with centres of groups or the direction of a number."""
        from ntfa.plots.traits import plot_trait

        return plot_trait(self.embeddings, self.values, ax=ax)


@dataclass(frozen=True)
class _Draws:
    """What is random about a test: how often to permute, from which seed, and the noise of points."""

    n_permutations: int
    seed: int
    noise: Noise | None

    def orders(self, sample: Sample) -> Ints:
        return permuted_orders(len(sample.values), self.n_permutations, self.seed, sample.strata)

    def signs(self, sample: Sample) -> Floats | None:
        """Changes of sign, for groups; within strata points are not independent of one another."""
        if not sample.is_groups or sample.strata is not None:
            return None
        return random_signs(len(sample.values), self.n_permutations, self.seed)

    def of(self, rows: np.ndarray) -> _Draws:
        return _Draws(self.n_permutations, self.seed, None if self.noise is None else self.noise.of(rows))


def test(
    model: Any,
    column: str,
    *,
    table: Table,
    kind: str = "participant",
    confounds: Sequence[str] = (),
    strata: str | None = None,
    groups: bool = False,
    n_permutations: int = 4999,
    n_draws: int = 1000,
    random_state: RandomState = 0,
) -> ColumnTest:
    """Test whether embeddings of participants, or of stimuli, go with a column of a table.

    Parameters
    ----------
    model : fitted model or DataFrame
        A model with embeddings, or its `participants_` or `stimuli_`.
    column : str
        What to test. A column of texts names groups; one of numbers is a trait or a rating.
    table : DataFrame, Study or path
        Where the columns are: a table with a column `participant` or `participant_id` (`stimulus` for stimuli), or with
        labels as its index; a TSV or CSV file; a folder of results; or the study, whose trials have the columns. `sub-`
        before a label may be missing on either side.
    kind : {"participant", "stimulus"}
        Whose embeddings.
    confounds : list of str
        Columns to take out of embeddings and column first: numbers linearly, texts as groups.
    strata : str, optional
        Column that names strata (families, for example): only people of the same stratum are exchanged for one another.
    groups : bool
        Whether a column of numbers names groups.
    n_permutations : int
        How often to permute.
    n_draws : int
        Draws from the uncertainty of the embeddings, for the interval of R^2.
    random_state : int, RandomState or Generator
        Seed of permutations and draws.

    Returns
    -------
    ColumnTest
        Its `table` has one row per test, with the columns `test`: "location" and "dispersion" of groups, or
        "regression", "nearest neighbours" and "alike at one end" of numbers; `compared`: all groups, or which two; `n`;
        `statistic`: F, or a rank correlation over pairs; `p`; `p_adjusted`: by Holm's method for the tests of the whole
        column, and for pairs of groups; `r2`, `r2_low`, `r2_high`: the share of the variance that is explained, if
        embeddings were known exactly, with its 95% interval (location and regression only); `r2_chance`: what it is on
        average where there is no relation; and `r2_means`: that of the estimated embeddings.

    Notes
    -----
    The interval of R^2 says what is not known about the embeddings of these very people or stimuli. What is not known
    because they are a sample is in the p-value.
    """
    for name, number in (("n_permutations", n_permutations), ("n_draws", n_draws)):
        if not is_whole(number) or number < 99:
            raise ModelError(f"{name}={number!r}: must be a whole number, at least 99")
    confounds = [confounds] if isinstance(confounds, str) else list(confounds)
    embeddings = embeddings_of(model, kind)
    sample = gather(embeddings, column, kind, table, confounds, strata, groups)
    noise, seed = None, as_seed(random_state)
    freedom = embeddings.attrs.get(DEGREES_OF_FREEDOM)
    if sample.covariances is not None:
        noise = draw_noise(sample.covariances, n_draws, seed, freedom)
    draws = _Draws(n_permutations, seed, noise)
    rows = _group_rows(sample, draws) if sample.is_groups else _number_rows(sample, draws)
    found = _adjusted(pd.DataFrame(rows, columns=list(COLUMNS)))
    asked = Asked(column, kind, tuple(confounds), strata, n_permutations)
    warned = [*sample.notes, *cautions_about(sample, found, noise, asked, is_calibrated=freedom is not None)]
    return ColumnTest(column, kind, found, sentence_for(found, sample, asked), warned, sample.table(), sample.values)


def _group_rows(sample: Sample, draws: _Draws) -> list[dict[str, object]]:
    rows = [*_compare_groups(sample, draws, "all groups" if len(sample.groups) > 2 else " - ".join(sample.groups))]
    if len(sample.groups) > 2:
        for one, other in combinations(range(len(sample.groups)), 2):
            pair = np.isin(sample.codes, (one, other))
            name = f"{sample.groups[one]} - {sample.groups[other]}"
            rows += _compare_groups(sample.rows(pair), draws.of(pair), name)
    return rows


def _compare_groups(sample: Sample, draws: _Draws, compared: str) -> list[dict[str, object]]:
    """Location and dispersion of groups."""
    design, orders = sample.design(), draws.orders(sample)
    apart = dispersion_test(sample.around_groups(), sample.codes, orders)
    shared = {"compared": compared, "n": len(sample.values)}
    return [
        {"test": "location", **shared, **_location(sample, design, draws, orders)},
        {"test": "dispersion", **shared, "statistic": apart.statistic, "r2_means": apart.r2, "p": apart.p},
    ]


def _number_rows(sample: Sample, draws: _Draws) -> list[dict[str, object]]:
    """Regression, and similarity of pairs in two forms."""
    design, orders = sample.design(), draws.orders(sample)
    points, trait = design.without_confounds(sample.points), design.without_confounds(sample.predictors)[:, 0]
    shared = {"compared": "all", "n": len(sample.values)}
    rows: list[dict[str, object]] = [{"test": "regression", **shared, **_location(sample, design, draws, orders)}]
    for name, run in (("nearest neighbours", neighbours_test), ("alike at one end", one_end_test)):
        seen = run(points, trait, orders)
        rows.append(
            {"test": name, **shared, "statistic": seen.correlation, "r2_means": seen.correlation**2, "p": seen.p}
        )
    return rows


def _location(sample: Sample, design: Design, draws: _Draws, orders: Ints) -> dict[str, object]:
    found = location_test(sample.points, design, orders, draws.signs(sample))
    interval = None if draws.noise is None else explained_interval(sample.points, design, draws.noise)
    by_chance = design.predictors.shape[1] / (len(sample.values) - design.confounds.shape[1])
    r2 = {"r2_means": found.r2, "r2_chance": by_chance, **_interval(interval, found.r2)}
    return {"statistic": found.statistic, **r2, "p": found.p}


def _interval(interval: Interval | None, of_points: float) -> dict[str, object]:
    """R^2 and its interval; of point estimates, which have no uncertainty, R^2 alone."""
    if interval is None:
        return {"r2": of_points}
    return {"r2": interval.r2, "r2_low": interval.low, "r2_high": interval.high}


def _adjusted(table: pd.DataFrame) -> pd.DataFrame:
    """Adjust p-values: those of tests of the whole column together, those of pairs of groups by test."""
    first = table["compared"] == table["compared"].iloc[0]
    families = table["test"].where(~first, "whole column")
    return table.assign(p_adjusted=table.groupby(families)["p"].transform(lambda p: holm(p.to_numpy())))


def holm(p: Floats) -> Floats:
    """Adjust p-values for their number, by Holm (1979)."""
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted
