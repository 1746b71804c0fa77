"""How many dimensions stimuli fill: errors against explicit predictions, choices against simulated truth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ntfa import Study
from ntfa.fitting.dimensions import RIDGES, CellImages, dimension_errors, stimulus_dimensions

V = 150


def study_of(rank: int, seed: int, n_participants: int = 10, n_stimuli: int = 12, noise: float = 1.0) -> Study:
    """One frame for every pair: maps of the group's and one's own on `rank` features, and noise."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_stimuli, rank))
    group = rng.normal(size=(rank, V))
    frames, trials = {}, []
    for p in range(n_participants):
        own = group + 0.7 * rng.normal(size=(rank, V))
        label = f"sub-{p:02d}"
        frames[label] = (features @ own + noise * rng.normal(size=(n_stimuli, V))).astype(np.float32)
        trials += [(label, f"s{s:02d}", s, s + 1) for s in range(n_stimuli)]
    table = pd.DataFrame(trials, columns=["participant", "stimulus", "start", "stop"])
    return Study.from_arrays(frames, table, rng.normal(size=(V, 3)) * 30)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_the_rank_of_the_responses_is_found(rank: int) -> None:
    chosen = [stimulus_dimensions(study_of(rank, seed))[0] for seed in range(6)]
    assert sum(dim == rank for dim in chosen) >= 5


def test_errors_are_those_of_explicit_predictions() -> None:
    study = study_of(2, 0, n_participants=4, n_stimuli=4)
    found = dimension_errors(CellImages.of(study))
    assert found is not None
    images = np.stack([study.frames[who] for who in study.participants]).astype(np.float64)
    best = np.full((len(found.dims), len(RIDGES), 4), 0.0)
    for i, n_dim in enumerate(found.dims):
        for j, ridge in enumerate(RIDGES):
            best[i, j] = explicit_errors(images, n_dim, ridge)
    energy = (images**2).sum((1, 2))
    ridge = (best / energy).mean(-1).argmin(1)
    expected = np.stack([best[i, k] / energy for i, k in enumerate(ridge)], 1)
    np.testing.assert_allclose(found.errors, expected, rtol=1e-4)


def explicit_errors(images: np.ndarray, n_dim: int, ridge: float) -> np.ndarray:
    """Leave the cells of each diagonal out, predict them as individual loadings do, [P]."""
    n_people, n_stimuli, _ = images.shape
    errors = np.zeros(n_people)
    for fold in range(n_stimuli):
        seen = np.array([[(p + s) % n_stimuli != fold for s in range(n_stimuli)] for p in range(n_people)])
        group = np.stack([images[seen[:, s], s].mean(0) for s in range(n_stimuli)])
        left, values, _ = np.linalg.svd(group - group.mean(0), full_matrices=False)
        scores = left[:, :n_dim] * values[:n_dim]
        features = np.c_[np.full(n_stimuli, np.sqrt((scores**2).mean())), scores]
        loadings = np.linalg.lstsq(features, group, rcond=None)[0]
        for p in range(n_people):
            own = features[seen[p]]
            squared = own.T @ own
            squared += ridge * np.trace(squared) / len(squared) * np.eye(len(squared))
            deviation = np.linalg.solve(squared, own.T @ (images[p, seen[p]] - own @ loadings))
            for s in np.flatnonzero(~seen[p]):
                errors[p] += ((images[p, s] - features[s] @ (loadings + deviation)) ** 2).sum()
    return errors


def test_stimuli_of_single_people_take_no_dimension_where_they_are_left_out() -> None:
    study = study_of(2, 0, n_participants=9, n_stimuli=6)
    alone = {"s04": "sub-02", "s05": "sub-01"}
    kept = [who == alone.get(what, who) for who, what in study.trials[["participant", "stimulus"]].to_numpy()]
    n_dim, errors = stimulus_dimensions(study.select(trials=np.array(kept)))
    assert n_dim in (2, 3)
    assert errors is not None
    assert np.isfinite(errors.errors).all()


def test_few_stimuli_or_people_leave_nothing_to_choose() -> None:
    assert stimulus_dimensions(study_of(1, 0, n_stimuli=2)) == (1, None)
    assert stimulus_dimensions(study_of(1, 0, n_participants=2)) == (2, None)


def test_stimuli_that_nobody_shares_leave_nothing_to_choose() -> None:
    study = study_of(2, 0)
    trials = study.trials.assign(stimulus=study.trials["participant"] + study.trials["stimulus"])
    nested = Study.from_arrays(dict(study.frames), trials, study.coordinates)
    assert stimulus_dimensions(nested)[1] is None
