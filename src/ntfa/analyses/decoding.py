"""Which category of stimulus was shown? Cross-validated linear classification of trials.

Nothing that depends on labels ever sees a test trial: voxels are chosen, features scaled and classifiers trained inside
each training fold. Features themselves are whatever the caller gives. They must not know the label of the trial they
describe, as NTFA's posterior of a trial's weights does, which leans towards what is expected of the trial's stimulus.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import pandas as pd

from ntfa.analyses.folds import Fold, check_trials_table, folds_across, folds_within
from ntfa.analyses.intervals import mean_interval
from ntfa.errors import ModelError, StudyError
from ntfa.study.checks import some

FeatureMaker = Callable[[pd.Index], pd.DataFrame]
Features = pd.DataFrame | FeatureMaker


def decode(
    features: Features,
    trials: pd.DataFrame,
    category: str,
    *,
    across: str = "trials",
    run: str = "run",
    n_best: int | None = None,
    n_jobs: int = 2,
    random_state: int = 0,
    progress: str | None = None,
) -> pd.DataFrame:
    """Tell each category from the rest with a linear support-vector machine; area under the ROC curve of every fold.

    Parameters
    ----------
    features : DataFrame, or callable
        One row per trial, indexed as `trials`. Or a function that makes such a table for one fold: it is given the
        index of the training trials, and returns features of all trials that the fold trains and tests on, at least.
        It is called once for every fold number, whose trials are held out for all participants at once, so that
        leaving runs or thirds out needs as many calls as there are runs or thirds. With `across="participants"` it is
        called once per participant, none of whose trials it may learn from.
    trials : DataFrame
        With `participant` and `category`; trials without a category are never tested or trained on.
    category : str
        Column that says what to decode.
    across : {"trials", "participants"}
        Within each participant: leave one run out where every run shows every category, otherwise stratified thirds
        (halves where a category has only two trials). Or leave one participant out.
    run : str
        Column that says which trials were recorded together.
    n_best : int, optional
        Keep this many features, those with the largest F between the category and the rest in the training trials.
    n_jobs : int
        Number of processes, each with one thread.
    random_state : int
        Seed of the stratified folds.
    progress : str, optional
        Title of a progress bar; none without.

    Returns
    -------
    DataFrame
        `participant, category, fold, scheme, auc, n_train, n_test`: the tested participant, the category that was told
        from the rest, and how trials were held out ("run", "stratified" or "participant").
    """
    check_trials_table(trials, category)
    _check_choices(across, n_best)
    within = across == "trials"
    folds = folds_within(trials, category, run, random_state) if within else folds_across(trials, category)
    if not folds:
        raise StudyError(f"no participant has two trials of each of two categories of {category!r}: nothing to decode")
    labels = trials[category].to_numpy()
    records: list[dict[str, Any]] = []
    with _Workers(n_jobs, progress, sum(len(fold.categories) for fold in folds)) as workers:
        for own, values, rows in _with_features(features, trials, folds):
            records += workers.run(
                _auc_of_fold,
                [
                    (values, labels == wanted, rows[fold.train], rows[fold.test], fold, wanted, n_best)
                    for fold in own
                    for wanted in fold.categories
                ],
            )
    table = pd.DataFrame(records)
    return table.sort_values(["participant", "category", "fold"], key=_as_text, ignore_index=True)


def summarise(
    rows: pd.DataFrame, by: Sequence[str] = ("category",), *, measure: str = "auc", confidence: float = 0.95
) -> pd.DataFrame:
    """Average over folds and participants, with a t-interval.

    Where a group of rows has several participants, these are the sample: each one's mean counts once. Where it has one,
    the folds are; they share training trials, so that the interval is then a rough guide, as in the paper's tables.

    Parameters
    ----------
    rows : DataFrame
        What `decode` or `classify_means` returned.
    by : list of str
        Columns that make groups: `["category"]`, `["participant", "category"]`, ...; none for one row in all.
    measure : {"auc", "accuracy"}
        Column to average.
    confidence : float

    Returns
    -------
    DataFrame
        The columns of `by`, the mean under the name of the measure, `ci_low` and `ci_high` (missing if n is 1), `n` and
        `unit`, what was counted: "participant" or "fold".
    """
    by = [by] if isinstance(by, str) else list(by)
    missing = [column for column in [*by, measure] if column not in rows]
    if missing:
        raise StudyError(f"the rows to summarise have no column {some(missing)}; they have {some(rows.columns, 20)}")
    groups = rows.groupby(by, sort=True) if by else [((), rows)]
    return pd.DataFrame(
        [dict(zip(by, key, strict=True)) | _interval(group, measure, confidence) for key, group in groups]
    )


def condition_means(features: pd.DataFrame, trials: pd.DataFrame, category: str) -> pd.DataFrame:
    """Average features over the trials of each participant and category: a row each, indexed by both."""
    check_trials_table(trials, category)
    values, rows = _as_array(features, trials, np.arange(len(trials)))
    table = pd.DataFrame(values[rows], index=trials.index, columns=features.columns)
    return table.groupby([trials["participant"], trials[category].rename("category")]).mean()


def classify_means(
    means: pd.DataFrame, categories: Iterable[Any] | None = None, *, n_jobs: int = 2, progress: str | None = None
) -> pd.DataFrame:
    """Name the category of each of a participant's condition means, from those of all other participants.

    Parameters
    ----------
    means : DataFrame
        What `condition_means` returned.
    categories : list, optional
        Tell only these apart, for example `["heat", "rejection"]`; by default all.

    Returns
    -------
    DataFrame
        `participant, accuracy, n_train, n_test`, a row a held-out participant.
    """
    if categories is not None:
        wanted = list(categories)
        unknown = [one for one in wanted if one not in means.index.unique("category")]
        if unknown:
            raise StudyError(f"no condition means of {some(unknown)}")
        means = means[means.index.get_level_values("category").isin(wanted)]
    labels = means.index.get_level_values("category").to_numpy()
    owner = means.index.get_level_values("participant").to_numpy()
    participants = sorted(set(owner))
    if len(participants) < 2 or len(set(labels)) < 2:
        raise StudyError("classifying condition means needs at least two participants and two categories")
    values = means.to_numpy()
    jobs = [(values, labels, owner == participant, participant) for participant in participants]
    with _Workers(n_jobs, progress, len(jobs)) as workers:
        return pd.DataFrame(workers.run(_accuracy_of_participant, jobs))


# Classifiers ---------------------------------------------------------------------------------------------------------


def classifier(n_train: int, n_features: int, n_best: int | None = None) -> Any:
    """Build scikit-learn's pipeline: the best features by F if asked for, z-scores, a linear SVM with C = 1.

    The SVM has the squared hinge loss. With the plain one and few features, the best plane to tell a rare category from
    the rest can be none at all, and the order of the trials is then arbitrary.
    """
    from sklearn.decomposition import KernelPCA
    from sklearn.feature_selection import SelectKBest, f_classif
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import LinearSVC

    n_kept = n_features if n_best is None else min(n_best, n_features)
    # F does not depend on scale, so selecting first is the same and leaves less to scale.
    steps = [] if n_kept == n_features else [SelectKBest(f_classif, k=n_kept)]
    steps += [StandardScaler()]
    if n_kept > n_train:
        # A rotation into the span of the training trials changes no distance and no plane, but saves most of the time.
        steps += [KernelPCA(kernel="linear", remove_zero_eig=True)]
    # The primal problem does not converge where trials are about as many as features, the dual one where they are many.
    dual = n_train < 2 * n_kept
    return make_pipeline(*steps, LinearSVC(dual=dual, tol=1e-5, max_iter=20_000, random_state=0))


def _auc_of_fold(
    values: np.ndarray,
    target: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    fold: Fold,
    category: Any,
    n_best: int | None,
) -> dict[str, Any]:
    from sklearn.metrics import roc_auc_score

    decision = _decide(values[train], target[fold.train], values[test], n_best)
    return {
        "participant": fold.participant,
        "category": category,
        "fold": fold.number,
        "scheme": fold.scheme,
        "auc": float(roc_auc_score(target[fold.test], decision)),
        "n_train": len(train),
        "n_test": len(test),
    }


def _accuracy_of_participant(
    values: np.ndarray, labels: np.ndarray, held_out: np.ndarray, participant: Any
) -> dict[str, Any]:
    decided = _decide(values[~held_out], labels[~held_out], values[held_out], None, "predict")
    n_test = int(held_out.sum())
    return {
        "participant": participant,
        "accuracy": float((decided == labels[held_out]).mean()),
        "n_train": len(labels) - n_test,
        "n_test": n_test,
    }


def _decide(
    train: np.ndarray, target: np.ndarray, test: np.ndarray, n_best: int | None, how: str = "decision_function"
) -> np.ndarray:
    """Train and decide; a feature that is constant in training has no F and comes last, which is no cause for alarm."""
    train, test = train.astype(np.float64), test.astype(np.float64)
    if how == "decision_function" and not np.ptp(train, axis=0).any():
        return np.zeros(len(test))
    model = classifier(len(train), train.shape[1], n_best)
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.filterwarnings("ignore", "Features .* are constant")
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        return np.asarray(getattr(model.fit(train, target), how)(test))


# Plumbing ------------------------------------------------------------------------------------------------------------


def _with_features(
    features: Features, trials: pd.DataFrame, folds: Sequence[Fold]
) -> Iterator[tuple[list[Fold], np.ndarray, np.ndarray]]:
    """Folds with the values of their features and the row of these that each trial has."""
    if isinstance(features, pd.DataFrame):
        yield list(folds), *_as_array(features, trials, _used(folds))
        return
    if not callable(features):
        raise ModelError(f"features must be a table or a function, not {type(features).__name__}")
    for number in sorted({fold.number for fold in folds}):
        own = [fold for fold in folds if fold.number == number]
        learnable = np.ones(len(trials), dtype=bool)
        learnable[np.concatenate([fold.test for fold in own])] = False
        if own[0].scheme == "participant":
            learnable &= (trials["participant"] != own[0].participant).to_numpy()
        yield own, *_as_array(features(trials.index[learnable]), trials, _used(own))


def _used(folds: Iterable[Fold]) -> np.ndarray:
    return np.unique(np.concatenate([np.concatenate([fold.train, fold.test]) for fold in folds]))


def _as_array(features: pd.DataFrame, trials: pd.DataFrame, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the table's values, and each trial's row in them; -1 for a trial that has none and needs none."""
    if not isinstance(features, pd.DataFrame):
        raise StudyError(f"features must come as a table indexed as trials, not {type(features).__name__}")
    if not features.index.is_unique:
        raise StudyError("features must have one row per trial; some trials have several")
    rows = features.index.get_indexer(trials.index)
    without = trials.index[used[rows[used] < 0]]
    if len(without):
        raise StudyError(f"features have no row for trial {some(without)}; index them as trials")
    try:
        values = features.to_numpy(dtype=np.float32 if (features.dtypes == np.float32).all() else np.float64)
    except (TypeError, ValueError) as error:
        raise StudyError(f"features must be numbers: {error}") from error
    broken = np.argwhere(~np.isfinite(values[rows[used]]))
    if len(broken):
        trial, column = trials.index[used[broken[0, 0]]], features.columns[broken[0, 1]]
        raise StudyError(f"feature {column} of trial {trial} is not finite ({len(broken)} such values)")
    return values, rows


class _Workers:
    """Processes of one thread each, and a bar on a terminal if it has a title."""

    def __init__(self, n_jobs: int, title: str | None, n_in_all: int) -> None:
        from joblib import Parallel, parallel_config
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
        from tqdm import tqdm

        # tqdm shows a bar on a terminal only if `disable` is None.
        disable = True if title is None else None
        self._stack = ExitStack()
        self._stack.enter_context(threadpool_limits(1))
        self._stack.enter_context(parallel_config("loky", inner_max_num_threads=1))
        self._parallel = self._stack.enter_context(Parallel(n_jobs=n_jobs, return_as="generator"))
        self._bar = self._stack.enter_context(
            tqdm(total=n_in_all, desc=title, unit="fit", disable=disable, leave=False)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Return the results of all jobs, in order."""
        from joblib import delayed

        results = []
        for result in self._parallel(delayed(function)(*job) for job in jobs):
            results.append(result)
            self._bar.update()
        return results


def _interval(group: pd.DataFrame, measure: str, confidence: float) -> dict[str, Any]:
    unit = "participant" if "fold" not in group or group["participant"].nunique() > 1 else "fold"
    values = group.groupby(unit)[measure].mean()
    return mean_interval(values, measure, confidence=confidence) | {"n": len(values), "unit": unit}


def _check_choices(across: str, n_best: int | None) -> None:
    if across not in ("trials", "participants"):
        raise ModelError(f"across={across!r}: choose 'trials' or 'participants'")
    if n_best is not None and (isinstance(n_best, bool) or int(n_best) != n_best or n_best < 1):
        raise ModelError(f"n_best={n_best!r}: must be a whole number, at least 1, or None")


def _as_text(column: pd.Series) -> pd.Series:
    return column if pd.api.types.is_numeric_dtype(column) else column.astype(str)
