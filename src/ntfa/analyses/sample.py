"""What a test of a column needs, gathered from a fit and a table, and refused where it cannot be tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ntfa.analyses.columns import PLURAL, Table, columns_for, participant_of
from ntfa.analyses.permutations import Design, Floats, Ints, indicators, log_arrangements
from ntfa.errors import ModelError, StudyError
from ntfa.uncertainty.moments import moments

EMBEDDINGS = {"participant": "participants_", "stimulus": "stimuli_"}
FEWEST_POINTS, FEWEST_IN_GROUP, FEWEST_FREE = 6, 3, 4
MOST_NAMED = 5


@dataclass(frozen=True)
class Sample:
    """Points that are tested, and what is known of each.

    labels : of points, or of participants where those of several sessions were averaged
    points : [n, D]
    covariances : [n, D, D], or None for point estimates
    values : of the column, [n]: numbers, or texts that name groups
    confounds : [n, r], without a constant
    strata : code of the stratum of each point, within which points are exchangeable; None if all are
    people : code of the person of each point, where sessions are compared within people; None if they are not
    notes : what was left out, averaged or taken out
    """

    labels: pd.Index
    points: Floats
    covariances: Floats | None
    values: pd.Series
    confounds: Floats
    strata: Ints | None = None
    people: Ints | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def is_groups(self) -> bool:
        """Whether the column names groups, rather than numbers."""
        return not pd.api.types.is_numeric_dtype(self.values)

    @property
    def codes(self) -> Ints:
        """Values as codes 0, 1, ..., in order."""
        return np.unique(self.values.to_numpy(), return_inverse=True)[1].astype(np.int64)

    @property
    def groups(self) -> list[str]:
        """Names of the groups, in the order of their codes."""
        return [str(name) for name in np.unique(self.values.to_numpy())]

    @property
    def predictors(self) -> Floats:
        """The column as numbers, [n, q]."""
        return indicators(self.codes) if self.is_groups else self.values.to_numpy(dtype=np.float64)[:, None]

    def design(self) -> Design:
        """Return the column beside its confounds, and beside people where it is compared within them."""
        own = [] if self.people is None else [indicators(self.people)]
        return Design.of(self.predictors, np.hstack([self.confounds, *own]))

    def around_groups(self) -> Floats:
        """Return points without their groups' means and confounds; people's means stay, for they are part of spread."""
        return Design.of(self.predictors, self.confounds).residuals(self.points)

    def table(self) -> pd.DataFrame:
        """Return the points as a table like `participants_`, with sds and covariances."""
        columns = [f"z{i + 1}" for i in range(self.points.shape[1])]
        table = dict(zip(columns, self.points.T, strict=True))
        if self.covariances is not None:
            for i, one in enumerate(columns):
                table[f"{one}_sd"] = np.sqrt(self.covariances[:, i, i])
            for i, j in combinations(range(len(columns)), 2):
                table[f"{columns[i]}_{columns[j]}_cov"] = self.covariances[:, i, j]
        return pd.DataFrame(table, index=self.labels)

    def rows(self, which: np.ndarray) -> Sample:
        """Keep some of the points."""
        covariances = None if self.covariances is None else self.covariances[which]
        strata, people = (None if codes is None else codes[which] for codes in (self.strata, self.people))
        kept = (self.labels[which], self.points[which], covariances, self.values.iloc[which])
        return Sample(*kept, self.confounds[which], strata, people)


def embeddings_of(model: Any, kind: str) -> pd.DataFrame:
    """Return the embeddings of a fitted model, or the table that was given instead of one."""
    if kind not in EMBEDDINGS:
        raise ModelError(f"kind={kind!r}: choose 'participant' or 'stimulus'")
    table = model if isinstance(model, pd.DataFrame) else getattr(model, EMBEDDINGS[kind], None)
    if table is None:
        raise ModelError(f"this {type(model).__name__} has no {EMBEDDINGS[kind]}: fit a model with embeddings first")
    means = moments(table)[0]
    unusable = [label for label, mean in zip(table.index, means, strict=True) if not np.isfinite(mean).all()]
    if len(unusable):
        raise ModelError(f"the embedding of {unusable[0]!r} is not finite")
    return table


def gather(
    embeddings: pd.DataFrame,
    column: str,
    kind: str,
    table: Table,
    confounds: Sequence[str] = (),
    strata: str | None = None,
    as_groups: bool = False,
) -> Sample:
    """Gather what a test needs; points with anything missing are left out, and noted."""
    for other in [*confounds, *([] if strata is None else [strata])]:
        if other == column:
            raise StudyError(f"{column!r} is the column to test; it cannot be a confound or name the strata as well")
    names = [column, *confounds, *([] if strata is None else [strata])]
    found = columns_for(embeddings.index, names, table, kind)
    _require_finite(found)
    found = found.assign(**{column: _values(found[column], as_groups)})
    complete = found.notna().all(axis=1).to_numpy()
    notes = _left_out(found, complete, kind)
    means, covariances = moments(embeddings)
    known = found[complete]
    sample = Sample(
        known.index,
        means[complete],
        None if covariances is None else covariances[complete],
        known[column],
        confound_columns(known[list(confounds)]),
        None if strata is None else pd.factorize(known[strata])[0].astype(np.int64),
        notes=notes,
    )
    if kind == "participant":
        sample = _with_sessions(sample, known, strata)
    require_testable(sample, column, kind, confounds, strata)
    return sample


def confound_columns(confounds: pd.DataFrame) -> Floats:
    """Numbers as they are, and one column for every value of anything else but the first, [n, r]."""
    parts = [np.empty((len(confounds), 0))]
    for name in confounds:
        values = confounds[name]
        if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
            parts.append(values.to_numpy(dtype=np.float64)[:, None])
        else:
            parts.append(indicators(pd.factorize(values)[0].astype(np.int64)))
    return np.hstack(parts)


def require_testable(sample: Sample, column: str, kind: str, confounds: Sequence[str], strata: str | None) -> None:
    """Refuse, in words, what cannot be tested."""
    n, things = len(sample.values), PLURAL[kind]
    if n < FEWEST_POINTS:
        raise StudyError(f"{column!r} is known of {n} {things}; a test needs {FEWEST_POINTS} or more")
    if sample.values.nunique() < 2:
        raise StudyError(f"{column!r} is {sample.values.iloc[0]!r} for all {n} {things}: there is nothing to compare")
    if sample.is_groups:
        _require_groups(sample, column, kind)
    design = sample.design()
    if design.predictors.shape[1] < sample.predictors.shape[1]:
        named = ", ".join(map(repr, confounds)) or "whose session it is"
        raise StudyError(f"{column!r} cannot be told from the confounds ({named}): they leave nothing of it")
    if design.n_free < FEWEST_FREE:
        raise StudyError(
            f"{n} {things} are too few for {design.confounds.shape[1] - 1} columns of confounds besides {column!r}: "
            f"only {design.n_free} degrees of freedom would be left, and {FEWEST_FREE} are needed"
        )
    if sample.strata is not None and log_arrangements(sample.codes, sample.strata) < 1e-9:
        named = "participant" if strata is None else strata
        raise StudyError(
            f"{column!r} is the same for everybody within each {named}, so that nothing can be permuted within them; "
            f"test it without strata, on one {kind} of each {named}"
        )


def _require_groups(sample: Sample, column: str, kind: str) -> None:
    sizes = sample.values.value_counts()
    if len(sizes) > len(sample.values) // 2:
        raise StudyError(
            f"{column!r} has {len(sizes)} different texts for {len(sample.values)} {PLURAL[kind]}, too many for groups"
            "; numbers must be written as numbers, without units"
        )
    small = sizes[sizes < FEWEST_IN_GROUP]
    if len(small):
        named = ", ".join(f"{name!r} ({size})" for name, size in small.items())
        raise StudyError(
            f"{column!r}: groups of fewer than {FEWEST_IN_GROUP} cannot be tested: {named}. Join them with others, or "
            f"write n/a to leave them out"
        )


def _values(values: pd.Series, as_groups: bool) -> pd.Series:
    """Numbers as they are; anything else as texts."""
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if numeric and not as_groups:
        return values.astype(np.float64)
    if numeric:
        return values.map(lambda value: f"{value:g}", na_action="ignore").astype(object)
    return values.map(str, na_action="ignore").astype(object)


def _require_finite(found: pd.DataFrame) -> None:
    for name in found.select_dtypes("number"):
        infinite = found.index[np.isinf(found[name].to_numpy(dtype=np.float64))]
        if len(infinite):
            raise StudyError(f"{infinite[0]}: {name!r} is infinite; write n/a where it is not known")


def _left_out(found: pd.DataFrame, complete: np.ndarray, kind: str) -> list[str]:
    if complete.all():
        return []
    named = [str(label) for label in found.index[~complete]]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    columns = ", ".join(str(name) for name in found if found[name].isna().any())
    listed = ", ".join(named[:MOST_NAMED]) + more
    return [f"{len(named)} of {len(found)} {PLURAL[kind]} were left out, because {columns} is missing: {listed}."]


def _with_sessions(sample: Sample, known: pd.DataFrame, strata: str | None) -> Sample:
    """Average sessions of one participant if all have the same values; else compare them within participants."""
    people = pd.Index([participant_of(str(label), sample.labels) for label in sample.labels])
    if people.is_unique:
        return sample
    if (known.groupby(people).nunique() <= 1).to_numpy().all():
        return _averaged(sample, people)
    if strata is not None:
        raise StudyError(
            f"sessions of one participant differ in {sample.values.name!r}, so that they are compared within "
            f"participants; strata={strata!r} cannot be respected as well"
        )
    kept = people.duplicated(keep=False)
    codes = pd.factorize(people[kept])[0].astype(np.int64)
    within = sample.rows(kept)
    note = f"Sessions were compared within {codes.max() + 1} participants, whose own means were taken out."
    single = f" {int((~kept).sum())} with one session were left out." if not kept.all() else ""
    notes = [*sample.notes, note + single]
    return replace(within, strata=codes, people=codes, notes=notes)


def _averaged(sample: Sample, people: pd.Index) -> Sample:
    """One point for each participant: the mean of their sessions."""
    codes, names = pd.factorize(people)
    share = (codes == np.arange(len(names))[:, None]).astype(np.float64)
    share /= share.sum(1, keepdims=True)
    first = np.array([int(np.flatnonzero(codes == code)[0]) for code in range(len(names))])
    covariances = sample.covariances
    if covariances is not None:
        covariances = np.einsum("pn,nij->pij", share**2, covariances)
    note = f"Sessions of one participant were averaged: {len(codes)} points of {len(names)} participants."
    one_each = sample.rows(first)
    return replace(
        one_each,
        labels=pd.Index(names),
        values=one_each.values.set_axis(pd.Index(names)),
        points=share @ sample.points,
        covariances=covariances,
        notes=[*sample.notes, note],
    )
