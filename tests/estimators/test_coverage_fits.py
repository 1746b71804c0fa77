"""Fits to studies in which participants lack voxels: as good as to complete ones, whoever fits them how."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linear_sum_assignment

import ntfa
from ntfa import HTFA, NTFA, TFA, TLSA, Study
from ntfa.analyses.residuals import residual_sd
from ntfa.report.coverage import coverage_of
from ntfa.report.evidence import gather, prediction_table
from ntfa.report.expected import expected_of
from ntfa.uncertainty.halves import halve

SIMULATED = ntfa.simulate("synthetic", n_voxels=1200, random_state=1)
COMPLETE, HELD_OUT = SIMULATED.study.split("diagonal")
PAIRS = HELD_OUT.trials[["participant", "stimulus"]]
HALF = COMPLETE.participants[1::2]


def without(study: Study, lacking: Any, participants: Any = HALF, **options: Any) -> Study:
    frames = {label: np.array(study.frames[label]) for label in study.participants}
    for label in set(participants) & set(frames):
        frames[label][:, lacking] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Study.from_arrays(frames, study.trials, study.coordinates, study.mask_img, **options)


FIFTH = COMPLETE.coordinates[:, 0] > np.quantile(COMPLETE.coordinates[:, 0], 0.8)
INCOMPLETE = without(COMPLETE, FIFTH)


def fit(study: Study, **options: Any) -> NTFA:
    settings = {"n_factors": 3, "random_state": 0, "uncertainty": "laplace", "max_epochs": 250, "embedding_dim": 2}
    return NTFA(**settings | options).fit(study)


def errors(model: NTFA) -> tuple[float, float]:
    """Mean distance of centres from the truth, mm; squared error of held-out images relative to the true ones."""
    centers = model.factors_.groupby("factor")[["x", "y", "z"]].mean().to_numpy()
    apart = np.linalg.norm(SIMULATED.truth.centers[:, None] - centers, axis=2)
    truth = np.stack([SIMULATED.truth.mean_image(*pair) for pair in PAIRS.itertuples(index=False)])
    images = model.predict(PAIRS)
    return float(apart[linear_sum_assignment(apart)].mean()), float(((images - truth) ** 2).sum() / (truth**2).sum())


@pytest.mark.parametrize("response", ["loadings", "network"])
def test_a_fifth_missing_in_half_of_the_people_costs_next_to_nothing(response: str) -> None:
    whole, found = errors(fit(COMPLETE, response=response)), errors(fit(INCOMPLETE, response=response))
    assert found[0] < whole[0] + 0.5
    assert found[1] < 1.2 * whole[1] + 0.005
    assert found[1] < 0.1


@pytest.mark.parametrize("response", ["loadings", "network"])
def test_what_is_computed_from_a_fit_knows_what_is_missing(response: str, tmp_path: Path) -> None:
    model = fit(INCOMPLETE, response=response)
    assert model.n_data_ == INCOMPLETE.n_data
    # Zeros taken for data would raise the error of trials in who lacks voxels, and lower the noise.
    assert model.noise_ == pytest.approx(1.0, abs=0.01)
    sd = residual_sd(model, INCOMPLETE)
    assert sd[FIFTH].mean() == pytest.approx(sd[~FIFTH].mean(), rel=0.02)
    test = without(HELD_OUT, FIFTH, min_coverage=0)
    n_data = {label: test.select(participants=label).n_data for label in test.participants}
    score = model.score(test, n_samples=4)
    assert score / sum(n_data.values()) == pytest.approx(model.score(HELD_OUT, n_samples=4) / HELD_OUT.n_data, rel=0.01)
    weights, sds = model.transform(INCOMPLETE, return_sd=True)
    whole, whole_sds = model.transform(COMPLETE, return_sd=True)
    lacking = INCOMPLETE.trials["participant"].isin(HALF).to_numpy()
    pd.testing.assert_frame_equal(weights[~lacking], whole[~lacking])
    assert (sds[lacking].to_numpy() >= whole_sds[lacking].to_numpy() * (1 - 1e-6)).all()
    model.save(tmp_path / "model")
    loaded = NTFA.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(PAIRS), model.predict(PAIRS))
    for one, other in zip(loaded.predict(PAIRS, return_sd=True), model.predict(PAIRS, return_sd=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert {label: seen.tolist() for label, seen in loaded._fitted.coverage.items()} == {
        label: seen.tolist() for label, seen in INCOMPLETE.coverage.items()
    }


@pytest.mark.parametrize("response", ["loadings", "network"])
def test_frames_on_disk_and_pooled_voxels_say_the_same(response: str, tmp_path: Path) -> None:
    INCOMPLETE.save(tmp_path / "study")
    from_disk = fit(Study.open(tmp_path / "study"), response=response, memory="8GB", max_epochs=20)
    in_memory = fit(INCOMPLETE, response=response, coarse="always", max_epochs=20)
    np.testing.assert_allclose(from_disk.predict(PAIRS), in_memory.predict(PAIRS), atol=1e-3)


def test_newcomers_who_lack_voxels_are_placed_by_what_they_have() -> None:
    new = COMPLETE.participants[-2:]
    known = COMPLETE.select(participants=COMPLETE.participants[:-2])
    model = fit(known, response="loadings")
    added = COMPLETE.select(participants=new)
    whole, part = model.add(added), model.add(without(added, FIFTH, new, min_coverage=0))
    spread = whole.participants_[["z1", "z2"]].std().mean()
    places = [found.participants_.loc[new, ["z1", "z2"]].to_numpy() for found in (whole, part)]
    apart = np.abs(places[0] - places[1]).max()
    assert apart < 0.5 * spread
    assert set(part._fitted.coverage) == set(new)


@pytest.mark.parametrize("kind", [HTFA, TFA, TLSA])
def test_other_models_count_what_is_seen(kind: Any) -> None:
    small = INCOMPLETE.select(participants=INCOMPLETE.participants[:3])
    whole = COMPLETE.select(participants=small.participants)
    fits = [kind(3, max_epochs=30, random_state=0).fit(study) for study in (small, whole)]
    assert fits[0].noise_ == pytest.approx(fits[1].noise_, rel=0.02)
    assert fits[0].n_data_ == small.n_data


def test_halves_and_voxel_noise_know_what_is_missing() -> None:
    halves = halve(INCOMPLETE).study
    lacking = {INCOMPLETE.participants[int(label[:9])] for label in halves.coverage}
    assert lacking == set(HALF)
    model = fit(INCOMPLETE, response="loadings", noise="voxel", max_epochs=30)
    assert model.voxel_noise_[FIFTH].mean() == pytest.approx(model.voxel_noise_[~FIFTH].mean(), rel=0.03)


def test_the_report_names_factors_that_somebody_lacks() -> None:
    place = SIMULATED.truth.centers[0]
    near = np.linalg.norm(COMPLETE.coordinates - place, axis=1) < 40
    model = fit(without(COMPLETE, near, HALF[:2]), response="loadings", max_epochs=100)
    shown = coverage_of(model)
    assert shown is not None
    assert any(HALF[0] in sentence and HALF[1] in sentence for sentence in shown.warnings)
    assert f"2 of {len(COMPLETE.participants)}" in shown.sentences[0]
    assert coverage_of(fit(COMPLETE, response="loadings", max_epochs=2)) is None
    study = without(COMPLETE, near, HALF[:2])
    table = prediction_table(model, expected_of(model), study)
    assert np.isfinite(table[["correlation", "mse", "mse_of_zero"]]).all(axis=None)
    evidence = gather(model, expected_of(model), study, without(HELD_OUT, near, HALF[:2], min_coverage=0))
    assert evidence.predictions is not None
    assert np.isfinite(evidence.predictions.select_dtypes("number")).all(axis=None)
