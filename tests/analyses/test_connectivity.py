"""Connectivity against numpy; regions and clusters against brute force."""

import logging
import socket
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import naming
from nilearn.datasets import fetch_coords_power_2011, fetch_coords_seitzman_2018

from ntfa import NTFA, Study
from ntfa.analyses.connectivity import cluster_signals, connectivity, roi_signals
from ntfa.errors import ModelError, StudyError
from ntfa.study.signals import frame_index


def make_study(coordinates: np.ndarray, lengths: tuple[int, ...] = (4, 6, 3), seed: int = 0) -> Study:
    """Two participants, trials of these lengths in reverse order of time, an index of names, frames between trials."""
    rng = np.random.default_rng(seed)
    stops = np.cumsum(np.array(lengths) + 1)
    own = pd.DataFrame({"stimulus": list("abc"), "start": stops - lengths, "stop": stops})[::-1]
    trials = pd.concat([own.assign(participant=who) for who in ("p", "q")], ignore_index=True)
    trials.index = [f"t{i}" for i in range(len(trials))]
    frames = {who: rng.normal(size=(stops[-1] + 2, len(coordinates))) for who in ("p", "q")}
    return Study.from_arrays(frames, trials, coordinates)


def grid(spacing: float = 8.0, half: float = 40.0) -> np.ndarray:
    axis = np.arange(-half, half + 1, spacing)
    return np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)


def frames_of(study: Study, trial: str) -> np.ndarray:
    row = study.trials.loc[trial]
    return study.frames[row["participant"]][row["start"] : row["stop"]]


def test_fisher_z_of_every_pair_is_numpys():
    study = make_study(grid(20.0))
    signals = cluster_signals(study, 5)
    table = connectivity(signals, study.trials)
    assert table.index.equals(study.trials.index)
    assert table.columns.names == ["signal_1", "signal_2"]
    assert list(table.columns) == [(i, j) for i in range(1, 6) for j in range(i + 1, 6)]
    for trial in study.trials.index:
        expected = np.corrcoef(signals.loc[trial].to_numpy().T)
        for i, j in table.columns:
            assert table.loc[trial, (i, j)] == pytest.approx(np.arctanh(expected[i - 1, j - 1]), abs=1e-5)


def test_order_of_trials_is_that_of_the_table():
    study = make_study(grid(20.0))
    signals = cluster_signals(study, 3)
    some = study.trials.iloc[[4, 0, 2]]
    pd.testing.assert_frame_equal(connectivity(signals, some), connectivity(signals, study.trials).loc[some.index])


def test_weights_of_a_model_are_signals(study):
    model = NTFA(3, max_epochs=2, random_state=0, device="cpu").fit(study)
    signals = model.transform(study, by="frame")
    assert signals.index.equals(frame_index(study))
    assert connectivity(signals, study.trials).shape == (study.n_trials, 3)


def test_constant_and_equal_signals_are_quiet_and_finite():
    index = pd.MultiIndex.from_product([["t"], range(4)])
    signals = pd.DataFrame({"a": [1.0, 2, 3, 5], "b": [2.0, 4, 6, 10], "flat": 0.1, "down": [-1.0, -2, -3, -5]}, index)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = connectivity(signals, pd.DataFrame(index=["t"])).loc["t"]
    assert row["a", "flat"] == row["b", "flat"] == row["flat", "down"] == 0
    assert np.isfinite(row).all()
    assert row["a", "b"] == pytest.approx(-row["a", "down"])
    assert row["a", "b"] > 5


def test_short_trials_are_named():
    study = make_study(grid(20.0), lengths=(4, 2, 3))
    with pytest.raises(StudyError, match=naming("t1", 2, 6)):
        connectivity(cluster_signals(study, 3), study.trials)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s.droplevel(1), "frame"),
        (lambda s: s.iloc[:, :1], naming(1)),
        (lambda s: s.drop(index="t2"), naming("t2", 0)),
        (lambda s: s * np.inf, "signals"),
    ],
)
def test_unusable_signals_are_refused(change, named):
    study = make_study(grid(20.0))
    with pytest.raises(StudyError, match=named):
        connectivity(change(cluster_signals(study, 3)), study.trials)


@pytest.mark.parametrize(
    ("atlas", "fetch"),
    [("power", fetch_coords_power_2011), ("seitzman", lambda: fetch_coords_seitzman_2018(ordered_regions=False))],
)
def test_regions_are_means_of_spheres(atlas, fetch, caplog, monkeypatch):
    study = make_study(grid())

    def no_network(*args, **settings):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "socket", no_network)
    with caplog.at_level(logging.INFO, "ntfa"):
        signals = roi_signals(study, atlas, radius=6.0)
    centers = fetch().rois[["x", "y", "z"]].to_numpy()
    inside = np.linalg.norm(study.coordinates[None] - centers[:, None], axis=-1) <= 6.0
    assert signals.columns.tolist() == (np.flatnonzero(inside.any(1)) + 1).tolist()
    assert f"{inside.any(1).sum()} of {len(centers)}" in caplog.text
    assert signals.index.equals(frame_index(study))
    for region in signals.columns[:20]:
        expected = frames_of(study, "t1")[:, inside[region - 1]].mean(1)
        np.testing.assert_allclose(signals.loc["t1"][region], expected, rtol=1e-5, atol=1e-6)


def test_regions_need_mni_coordinates_and_a_known_atlas():
    study = make_study(grid() + 1000)
    with pytest.raises(StudyError, match=naming("power", "radius=")):
        roi_signals(study)
    with pytest.raises(ModelError, match=naming("atlas='schaefer'", "'seitzman'")):
        roi_signals(study, "schaefer")
    with pytest.raises(ModelError, match="radius"):
        roi_signals(study, radius=0)


def test_clusters_are_compact_and_average_their_voxels():
    """Two far clumps of voxels are the two clusters, whatever the data."""
    near = np.random.default_rng(0).uniform(0, 10, size=(20, 3))
    study = make_study(np.concatenate([near, near + 100]))
    signals = cluster_signals(study, 2)
    frames = frames_of(study, "t3")
    expected = np.stack([frames[:, :20].mean(1), frames[:, 20:].mean(1)], -1)
    found = signals.loc["t3"].to_numpy()
    first = 0 if np.allclose(found[:, 0], expected[:, 0], atol=1e-6) else 1
    np.testing.assert_allclose(found[:, [first, 1 - first]], expected, atol=1e-6)


def test_clusters_are_seeded_and_blind_to_data():
    a, b = make_study(grid(20.0), seed=0), make_study(grid(20.0), seed=1)
    pd.testing.assert_frame_equal(cluster_signals(a, 6), cluster_signals(a, 6))
    same = Study(a.coordinates, a.trials, b.frames)
    pd.testing.assert_frame_equal(cluster_signals(same, 6), cluster_signals(b, 6))
    with pytest.raises(ModelError, match="n_clusters=126"):
        cluster_signals(a, a.n_voxels + 1)
