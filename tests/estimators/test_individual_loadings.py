"""NTFA with individual loadings: what fails on real studies must hold on simulated ones that are as hard."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ntfa import NTFA, Study, simulate
from ntfa.baselines import MeanImage
from ntfa.errors import ModelError
from ntfa.estimators.trials import cells_left_out, image_errors

K = 12


@pytest.fixture(scope="module")
def hard() -> Any:
    """Eight people, ten stimuli, smooth noise, topographies of their own, as hard as MDTB."""
    return simulate("mdtb", random_state=0, n_participants=8, n_stimuli=10, n_voxels=900, n_factors=60)


@pytest.fixture(scope="module")
def split(hard: Any) -> tuple[Study, Study]:
    return hard.study.split("diagonal")


@pytest.fixture(scope="module")
def fitted(split: tuple[Study, Study]) -> NTFA:
    return NTFA(K, random_state=0, response="loadings", uncertainty="laplace").fit(split[0])


def test_unseen_pairs_are_predicted_better_than_by_the_stimulus_mean(split: Any, fitted: NTFA) -> None:
    mean_image = MeanImage(of="stimulus").fit(split[0])
    ours = image_errors(fitted.predict, split[1]).mean()
    assert ours < image_errors(mean_image.predict, split[1]).mean()


def test_the_papers_networks_fail_where_loadings_hold(split: Any, fitted: NTFA) -> None:
    network = NTFA(K, random_state=0, response="network", embedding_dim=2, uncertainty="mean-field").fit(split[0])
    assert image_errors(network.predict, split[1]).mean() > image_errors(fitted.predict, split[1]).mean() + 0.05


def test_loadings_are_chosen_on_hard_studies_and_networks_where_places_differ(split: Any) -> None:
    chosen = NTFA(K, random_state=0, uncertainty="mean-field", max_epochs=30).fit(split[0])
    assert chosen.response_ == "loadings"
    assert "loadings" in chosen.choice_reason_
    synthetic = simulate("synthetic", random_state=0).study
    assert NTFA(3, random_state=0, uncertainty="mean-field", max_epochs=120).fit(synthetic).response_ == "network"


def test_coverage_of_held_out_frames(split: Any, fitted: NTFA) -> None:
    covered = []
    for participant, stimulus in split[1].trials[["participant", "stimulus"]].drop_duplicates().itertuples(index=False):
        image, sd = fitted.predict([(participant, stimulus)], return_sd=True, n_frames=1)
        own = split[1].trials.query("participant == @participant and stimulus == @stimulus")
        frames = split[1].frames[participant][
            np.concatenate([np.arange(a, b) for a, b in own[["start", "stop"]].values])
        ]
        covered.append((np.abs(frames - image) < 1.96 * sd).mean())
    assert 0.9 < np.mean(covered) < 0.985


def test_dimensions_are_those_asked_for_and_tables_have_as_many(split: Any) -> None:
    model = NTFA(K, random_state=0, response="loadings", embedding_dim=(3, 4), uncertainty="mean-field", max_epochs=20)
    model.fit(split[0])
    assert [name for name in model.participants_ if name[1:].isdigit()] == ["z1", "z2", "z3"]
    assert [name for name in model.stimuli_ if name[1:].isdigit()] == ["z1", "z2", "z3", "z4"]
    shares = model.shares_.loc["stimuli"].dropna()
    assert shares.is_monotonic_decreasing
    assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("dims", [(2, 10), (8, 2), (2, 2, 2), 0, "many"])
def test_dimensions_that_cannot_be_are_refused(split: Any, dims: Any) -> None:
    with pytest.raises(ModelError, match="embedding_dim"):
        NTFA(K, response="loadings", embedding_dim=dims).fit(split[0])


def test_loadings_go_with_collapsed_inference_alone(split: Any) -> None:
    with pytest.raises(ModelError, match="response"):
        NTFA(K, response="loadings", inference="mean-field").fit(split[0])
    paper = NTFA(K, inference="mean-field", max_epochs=2, uncertainty="mean-field").fit(split[0])
    assert paper.response_ == "network"


def test_saved_and_loaded_models_are_the_same(fitted: NTFA, split: Any, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    loaded = NTFA.load(tmp_path / "model")
    pairs = split[1].trials[["participant", "stimulus"]]
    np.testing.assert_array_equal(loaded.predict(pairs), fitted.predict(pairs))
    for table in (
        "participants_",
        "stimuli_",
        "factors_",
        "loadings_",
        "weights_covariance_",
        "shares_",
        "calibration_",
    ):
        pd.testing.assert_frame_equal(getattr(loaded, table), getattr(fitted, table))
    assert loaded.score(split[1], n_samples=4) == fitted.score(split[1], n_samples=4)
    assert (loaded.response_, loaded.choice_reason_) == (fitted.response_, fitted.choice_reason_)


def test_frames_on_disk_give_what_frames_in_memory_give(split: Any, tmp_path: Path) -> None:
    split[0].save(tmp_path / "study")
    settings = {"random_state": 0, "response": "loadings", "embedding_dim": (2, 3), "uncertainty": "mean-field"}
    # Frames on disk begin with pooled voxels; so do those in memory, to be compared.
    settings |= {"coarse": "always", "max_epochs": 40}
    in_memory = NTFA(K, **settings).fit(split[0])
    on_disk = NTFA(K, memory="2GB", **settings).fit(Study.open(tmp_path / "study"))
    assert on_disk.history_["bound"].iloc[-1] == pytest.approx(in_memory.history_["bound"].iloc[-1], rel=1e-6)
    pairs = split[1].trials[["participant", "stimulus"]]
    np.testing.assert_allclose(on_disk.predict(pairs), in_memory.predict(pairs), atol=1e-3)


def test_a_fit_that_was_stopped_goes_on_to_the_same_bits(split: Any, tmp_path: Path) -> None:
    settings = {"random_state": 0, "response": "loadings", "uncertainty": "mean-field"}
    straight = NTFA(K, max_epochs=40, **settings).fit(split[0])
    again = NTFA(K, max_epochs=40, **settings).fit(split[0], checkpoint=tmp_path / "checkpoint")
    resumed = NTFA(K, max_epochs=40, **settings).fit(split[0], checkpoint=tmp_path / "checkpoint")
    for model in (again, resumed):
        pd.testing.assert_frame_equal(model.participants_, straight.participants_)
        pd.testing.assert_frame_equal(model.stimuli_, straight.stimuli_)


def test_weights_that_do_not_know_the_stimulus_follow_the_frames(split: Any, fitted: NTFA) -> None:
    blind = fitted.transform(split[0], condition_on_stimulus=False)
    told = fitted.transform(split[0], condition_on_stimulus=True)
    swapped = split[0].trials.assign(stimulus=split[0].trials["stimulus"].to_numpy()[::-1])
    other = Study.from_arrays(dict(split[0].frames), swapped, split[0].coordinates)
    pd.testing.assert_frame_equal(fitted.transform(other, condition_on_stimulus=False), blind)
    assert not np.allclose(fitted.transform(other, condition_on_stimulus=True), told)


def test_maps_of_loadings_add_up_to_predictions(hard: Any, fitted: NTFA) -> None:
    participant, stimulus = hard.study.participants[1], hard.study.stimuli[2]
    maps = fitted.loading_img(participant).get_fdata()[hard.study.mask_img.get_fdata() > 0].T
    module = fitted._fitted.module
    features = module.features(module.z_stimulus.mean).detach().numpy()[fitted._fitted.labels.stimuli.index(stimulus)]
    np.testing.assert_allclose(features @ maps, fitted.predict([(participant, stimulus)])[0], atol=1e-3)


def test_designs_that_confound_are_fitted_with_a_warning(split: Any, caplog: pytest.LogCaptureFixture) -> None:
    trials = split[0].trials
    nested = trials.assign(stimulus=trials["participant"] + "-" + trials["stimulus"])
    study = Study.from_arrays(dict(split[0].frames), nested, split[0].coordinates)
    with caplog.at_level(logging.WARNING, "ntfa"):
        NTFA(4, random_state=0, uncertainty="mean-field", embedding_dim=(2, 3), max_epochs=3).fit(study)
    assert any("no stimulus" in record.message for record in caplog.records)
    first = trials["participant"] == trials["participant"].iloc[0]
    alone = trials[~first | (trials["stimulus"] == trials["stimulus"].iloc[0])]
    study = Study.from_arrays(
        {who: split[0].frames[who] for who in alone["participant"].unique()}, alone, split[0].coordinates
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ntfa"):
        NTFA(4, random_state=0, uncertainty="mean-field", response="loadings", max_epochs=3).fit(study)
    assert any(repr(str(trials["participant"].iloc[0])) in record.message for record in caplog.records)


def test_cells_are_left_out_such_that_nobody_is_unknown(split: Any) -> None:
    left_out = cells_left_out(split[0])
    assert left_out is not None
    train, test = split[0].split(left_out)
    assert 0.1 < left_out.mean() < 0.4
    assert set(test.participants) <= set(train.participants)
    assert set(test.stimuli) <= set(train.stimuli)


def test_calibration_raises_variances_that_halves_contradict(split: Any) -> None:
    settings = {"random_state": 0, "response": "loadings", "embedding_dim": (2, 2), "max_epochs": 60}
    plain = NTFA(K, uncertainty="laplace", **settings).fit(split[0])
    calibrated = NTFA(K, uncertainty="calibrated", **settings).fit(split[0])
    pd.testing.assert_series_equal(calibrated.stimuli_["z1"], plain.stimuli_["z1"])
    assert (calibrated.stimuli_["z1_sd"] > plain.stimuli_["z1_sd"]).all()
    assert calibrated.calibration_["n_halved"].tolist() == [8, 10]
    assert calibrated.calibration_["reliability"].between(-0.01, 1).all()
