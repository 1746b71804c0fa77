"""Agreement between starts."""

import logging
import re

import numpy as np
import pytest
from scipy.spatial import procrustes

from ntfa import HTFA, NTFA, Study
from ntfa.fitting.restarts import aligned_correlation, restart_table, warn_if_unstable


def test_correlation_is_that_of_procrustes() -> None:
    one, other = np.random.default_rng(0).normal(size=(2, 15, 2))
    _, _, disparity = procrustes(one, other)
    assert aligned_correlation(one, other) == pytest.approx(np.sqrt(1 - disparity))


def test_the_same_picture_seen_from_elsewhere_correlates_fully() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=(9, 3))
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    assert aligned_correlation(one, -2 * one @ turn + 5) == pytest.approx(1)
    assert aligned_correlation(one, np.zeros_like(one)) == 0


def test_restarts_are_compared_with_the_kept_one(study: Study) -> None:
    model = NTFA(n_factors=2, max_epochs=6, n_restarts=3, random_state=0, uncertainty="mean-field").fit(study)
    table = model.restarts_
    assert table.columns.tolist() == ["bound", "kept", "participants", "stimuli"]
    assert table.index.tolist() == [1, 2, 3]
    assert table["kept"].sum() == 1
    kept = table[table["kept"]].iloc[0]
    assert kept["bound"] == table["bound"].max()
    assert kept["participants"] == pytest.approx(1)
    assert (table.loc[~table["kept"], "participants"] < 1 - 1e-6).all()
    assert table["stimuli"].between(0, 1 + 1e-9).all()


def test_models_without_embeddings_tell_bounds_alone(study: Study) -> None:
    model = HTFA(n_factors=2, max_epochs=3, n_restarts=2, random_state=0).fit(study)
    assert model.restarts_.columns.tolist() == ["bound", "kept"]
    assert not hasattr(HTFA(n_factors=2, max_epochs=3, random_state=0).fit(study), "restarts_")


def test_unstable_embeddings_are_warned_of(study: Study, caplog: pytest.LogCaptureFixture) -> None:
    fits = [
        NTFA(n_factors=2, max_epochs=2, random_state=seed, uncertainty="mean-field").fit(study)._fitted.module
        for seed in range(2)
    ]
    rng = np.random.default_rng(0)
    fits[1].z_participant.mean.data.copy_(fits[1].z_participant.mean.new_tensor(rng.normal(size=(6, 2)) * [1, 0.01]))
    table = restart_table(fits, [1.0, 2.0], kept=1)
    warn_if_unstable(table.assign(participants=[0.4, 1.0], stimuli=[0.99, 1.0]))
    assert re.search(r"embedding of participants .* start 1 .* 0\.40\b", caplog.text)
    assert "stimuli" not in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ntfa"):
        warn_if_unstable(table.assign(participants=[0.95, 1.0], stimuli=[0.99, 1.0]))
    assert not caplog.records
