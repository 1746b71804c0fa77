"""What came out of a test of a column, in a sentence or two for the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ntfa.analyses.columns import PLURAL
from ntfa.analyses.sample import Sample

LEVEL = 0.05
MOST_GROUPS = 8
INFINITIVES = {"differed": "differ", "went": "go"}


@dataclass(frozen=True)
class Asked:
    """What was asked: which column of what, what was taken out, and how it was permuted."""

    column: str
    kind: str
    confounds: tuple[str, ...]
    strata: str | None
    n_permutations: int

    @property
    def things(self) -> str:
        """Participants or stimuli."""
        return PLURAL[self.kind]


def sentence_for(table: pd.DataFrame, sample: Sample, asked: Asked) -> str:
    """Say what was tested, how, and what came out."""
    said = _of_groups(table, sample, asked) if sample.is_groups else _of_numbers(table, asked)
    return " ".join([*said, _how(sample, asked)])


def p_in_words(p: float) -> str:
    """Write a p-value, after the sign it needs."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 1e4 else f"{value:.3g}"


def _of_groups(table: pd.DataFrame, sample: Sample, asked: Asked) -> list[str]:
    location, dispersion = table.iloc[0], table.iloc[1]
    sizes = [int((sample.values == group).sum()) for group in sample.groups]
    named = ", ".join(f"{group}: {size}" for group, size in zip(sample.groups, sizes, strict=True))
    named = named if len(sizes) <= MOST_GROUPS else f"{len(sizes)} groups of {min(sizes)} to {max(sizes)}"
    start = f"Embeddings of {asked.things} {_did(location, 'differed')} in location by {asked.column}"
    said = [f"{start} ({named}; PERMANOVA, F = {_number(location['statistic'])}, {_numbers(location)})."]
    if len(sample.groups) > 2:
        said.append(_pairs(table, "location", "Pairs that differed in location"))
    spread = "differed" if dispersion["p_adjusted"] < LEVEL else "was not found to differ"
    statistic = f"PERMDISP, F = {_number(dispersion['statistic'])}, {_p_values(dispersion)}"
    said.append(f"Dispersion within groups {spread} ({statistic}).")
    if len(sample.groups) > 2 and dispersion["p_adjusted"] < LEVEL:
        said.append(_pairs(table, "dispersion", "Pairs that differed in dispersion"))
    return said


def _pairs(table: pd.DataFrame, test: str, begin: str) -> str:
    pairs = table[(table["test"] == test) & (table.index > 1)]
    apart = pairs[pairs["p_adjusted"] < LEVEL]
    named = "; ".join(f"{row['compared']} ({p_in_words(row['p_adjusted'])})" for _, row in apart.iterrows())
    return f"{begin} (adjusted for {len(pairs)} pairs by Holm's method): {named or 'none'}."


def _of_numbers(table: pd.DataFrame, asked: Asked) -> list[str]:
    regression, neighbours, one_end = (table.iloc[i] for i in range(3))
    end = "high" if one_end["statistic"] > 0 else "low"
    several = asked.things
    said = [
        f"Embeddings of {several} {_did(regression, 'went')} with {asked.column} (n = {regression['n']}; "
        f"distance-based regression, F = {_number(regression['statistic'])}, {_numbers(regression)}).",
        f"{several.capitalize()} with similar values of {asked.column} {_were(neighbours)} closer to one another than "
        f"others (rank correlation over pairs {neighbours['statistic']:.2f}, {_p_values(neighbours)}).",
    ]
    if one_end["p_adjusted"] < LEVEL:
        said.append(f"Those with {end} values were more alike than those at the other end ({_pair_numbers(one_end)}).")
    else:
        said.append(f"Neither end was found to be more alike than the other ({_pair_numbers(one_end)}).")
    return said


def _pair_numbers(row: pd.Series) -> str:
    return f"rank correlation of closeness with a pair's mean {row['statistic']:.2f}, {_p_values(row)}"


def _numbers(row: pd.Series) -> str:
    """R^2, its interval, and p-values."""
    if np.isfinite(row["r2"]) and np.isfinite(row["r2_low"]):
        r2 = f"R^2 = {row['r2']:.2f}, 95% interval {row['r2_low']:.2f} to {row['r2_high']:.2f}"
    else:
        r2 = f"R^2 of the estimates = {row['r2_means']:.2f}"
    return f"{r2}, {row['r2_chance']:.2f} expected by chance, {_p_values(row)}"


def _p_values(row: pd.Series) -> str:
    return f"{p_in_words(row['p'])}, adjusted {p_in_words(row['p_adjusted'])}"


def _did(row: pd.Series, verb: str) -> str:
    return verb if row["p_adjusted"] < LEVEL else f"were not found to {INFINITIVES[verb]}"


def _were(row: pd.Series) -> str:
    return "were" if row["p_adjusted"] < LEVEL else "were not found to be"


def _how(sample: Sample, asked: Asked) -> str:
    """How p-values, intervals and adjustments came about."""
    flips = sample.is_groups and sample.strata is None
    signs = f" and {asked.n_permutations:,} changes of sign of residuals (the larger is reported)" if flips else ""
    within = f" within {asked.strata}" if asked.strata else " within participants" if sample.strata is not None else ""
    taken = f", {' and '.join(asked.confounds)} taken out" if asked.confounds else ""
    n_tests = 2 if sample.is_groups else 3
    intervals = f"; the interval of R^2 is for these {asked.things}, over the uncertainty of their embeddings"
    intervals = intervals if sample.covariances is not None else ""
    return (
        f"P-values are from {asked.n_permutations:,} permutations{within}{signs}{taken}, with a pseudo-F that allows "
        f"for unequal spread, and adjusted for {n_tests} tests by Holm's method{intervals}."
    )
