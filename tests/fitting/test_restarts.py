"""Agreement between starts."""

import logging
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.spatial import procrustes

from ntfa import HTFA, NTFA, Study
from ntfa.errors import ModelError
from ntfa.fitting.restarts import aligned_correlation, restart_table, warn_if_unstable


def test_correlation_is_the_largest_over_all_turns_and_reflections() -> None:
    one, other = np.random.default_rng(0).normal(size=(2, 15, 2))
    one, other = one - one.mean(0), other - other.mean(0)
    angles = np.linspace(0, 2 * np.pi, 20_001)
    turns = np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]]).transpose(2, 0, 1)
    reflected = turns @ np.diag([1.0, -1.0])
    turned = other @ np.concatenate([turns, reflected])
    correlations = (turned * one).sum((1, 2)) / np.linalg.norm(one) / np.linalg.norm(other)
    assert aligned_correlation(one, other) == pytest.approx(correlations.max(), abs=1e-6)
    assert correlations.max() < 0.9
    # Scales and places are free.
    assert aligned_correlation(3 * one - 5, other + 2) == pytest.approx(correlations.max(), abs=1e-6)


def test_correlation_in_more_dimensions_is_that_of_procrustes() -> None:
    one, other = np.random.default_rng(0).normal(size=(2, 15, 4))
    _, _, disparity = procrustes(one, other)
    assert aligned_correlation(one, other) == pytest.approx(np.sqrt(1 - disparity))


def test_the_same_picture_seen_from_elsewhere_correlates_fully() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=(9, 3))
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    assert aligned_correlation(one, -2 * one @ turn + 5) == pytest.approx(1)
    assert aligned_correlation(one, np.zeros_like(one)) == 0


def test_restarts_are_compared_with_the_kept_one(study: Study) -> None:
    model = NTFA(
        n_factors=2, max_epochs=6, n_restarts=3, random_state=0, uncertainty="mean-field", response="network"
    ).fit(study)
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


def test_a_fit_from_one_start_has_no_table_of_an_earlier_one(study: Study) -> None:
    model = HTFA(n_factors=2, max_epochs=3, n_restarts=2, random_state=0).fit(study)
    assert len(model.restarts_) == 2
    assert not hasattr(model.set_params(n_restarts=1).fit(study), "restarts_")


@pytest.mark.parametrize("kind", [HTFA, NTFA])
def test_the_table_is_saved(study: Study, tmp_path: Path, kind: type) -> None:
    model = kind(n_factors=2, max_epochs=3, n_restarts=2, random_state=0).fit(study)
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.restarts_, model.restarts_, check_exact=True, check_index_type=False)
    loaded.save(tmp_path / "again")
    (tmp_path / "again" / "restarts.tsv").unlink()  # As models of earlier versions were saved.
    assert not hasattr(kind.load(tmp_path / "again"), "restarts_")


@pytest.mark.parametrize(
    "content",
    [
        "restart\tbound\n1\t0.5\n",
        "restart\tbound\tkept\n1\t0.5\tTrue\n2\t0.6\tTrue\n",
        "restart\tbound\tkept\n1\tinf\tTrue\n",
        "restart\tbound\tkept\n1\t0.5\tperhaps\n",
        "\0",
    ],
)
def test_a_table_that_makes_no_sense_is_refused(study: Study, tmp_path: Path, content: str) -> None:
    HTFA(n_factors=2, max_epochs=2, n_restarts=2, random_state=0).fit(study).save(tmp_path / "model")
    (tmp_path / "model" / "restarts.tsv").write_text(content)
    with pytest.raises(ModelError, match="restarts"):
        HTFA.load(tmp_path / "model")


def test_unstable_embeddings_are_warned_of(study: Study, caplog: pytest.LogCaptureFixture) -> None:
    fits = [
        NTFA(n_factors=2, max_epochs=2, random_state=seed, uncertainty="mean-field", response="network")
        .fit(study)
        ._fitted.module
        for seed in range(2)
    ]
    rng = np.random.default_rng(0)
    fits[1].z_participant.mean.data.copy_(fits[1].z_participant.mean.new_tensor(rng.normal(size=(6, 2)) * [1, 0.01]))
    table = restart_table(fits, [1.0, 2.0])
    warn_if_unstable(table.assign(participants=[0.4, 1.0], stimuli=[0.99, 1.0]))
    assert re.search(r"embedding of participants .* start 1 .* 0\.40\b", caplog.text)
    assert "stimuli" not in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ntfa"):
        warn_if_unstable(table.assign(participants=[0.95, 1.0], stimuli=[0.99, 1.0]))
    assert not caplog.records
