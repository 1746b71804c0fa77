"""Uncertainty after a fit: the curvature against brute force, and halves against studies in which all is known."""

import gc
import logging
import weakref
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from ntfa import NTFA, Study
from ntfa.errors import ModelError
from ntfa.estimators import base
from ntfa.fitting.arrange import arrange
from ntfa.inference.collapsed import log_likelihood
from ntfa.inference.frames import Frames
from ntfa.inference.normal import Normal
from ntfa.models.networks import features_of
from ntfa.models.ntfa import NeuralFactors
from ntfa.study.rest import halves_of_rest, with_rest
from ntfa.uncertainty.calibration import (
    Embedded,
    calibrated_covariances,
    centers_factor,
    embedding_noise,
    f_factor,
    hotelling_factor,
    interval_factor,
    larger,
    overconfidence,
    shaped_like,
)
from ntfa.uncertainty.curvature import laplace
from ntfa.uncertainty.halves import halve, n_parts

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def quick(study: Study) -> NTFA:
    return NTFA(
        n_factors=2, max_epochs=40, random_state=0, device="cpu", uncertainty="laplace", response="network"
    ).fit(study)


def frames_of(model: NTFA, study: Study) -> Frames:
    fitted = model._fitted
    return arrange(study, fitted.layout, fitted.labels, torch.device("cpu"), fitted.units).frames


# Curvature -----------------------------------------------------------------------------------------------------------


def log_joint(module: NeuralFactors, frames: Frames, z: Tensor, centers: Tensor, log_widths: Tensor) -> Tensor:
    """Log density of frames, factors and participants' embeddings."""
    priors = module.factors_given(z)
    weights = module.weights_given(z, module.z_stimulus.mean, frames.cells)
    projection = frames.project(centers[frames.cells.owner], log_widths[frames.cells.owner])
    return (
        log_likelihood(projection, weights, module.noise_sd)
        + priors[0].log_prob(centers)
        + priors[1].log_prob(log_widths)
        + Normal(torch.zeros_like(z), torch.ones_like(z)).log_prob(z)
    )


def gradient(module: NeuralFactors, frames: Frames, point: Tensor, p: int) -> Tensor:
    """Slope of the log density by x, y, z, log-width of participant p's factors, and by the embedding."""
    k = module.log_widths.mean.shape[1]
    centers, log_widths, z = (
        part.detach().clone() for part in (module.centers.mean, module.log_widths.mean, module.z_participant.mean)
    )
    point = point.clone().requires_grad_()
    centers[p], log_widths[p], z[p] = point[: 3 * k].reshape(3, k).T, point[3 * k : 4 * k], point[4 * k :]
    return torch.autograd.grad(log_joint(module, frames, z, centers, log_widths), point)[0]


def drawn_from(model: NTFA, study: Study, n_frames: int) -> Study:
    """Draw very many frames from what a model says, so that observed and expected information agree."""
    fitted, rng = model._fitted, np.random.default_rng(0)
    module = fitted.module
    assert isinstance(module, NeuralFactors)
    positions = fitted.units.standardise(torch.from_numpy(fitted.coordinates)).numpy()
    frames, rows = {}, []
    for p, who in enumerate(study.participants):
        centers, log_widths = (part.mean[p].detach().numpy() for part in (module.centers, module.log_widths))
        squared = ((positions - centers[:, None]) ** 2).sum(-1)
        shapes = np.exp(-squared * np.exp(-log_widths)[:, None])
        parts = []
        for s, what in enumerate(study.stimuli):
            pair = torch.cat([module.z_participant.mean[p], module.z_stimulus.mean[s]])
            mean, sd = (part.detach().numpy() for part in module.weights_of(pair)[:2])
            weights = mean + sd * rng.standard_normal((n_frames, len(mean)))
            noise = float(module.noise_sd.detach()) * rng.standard_normal((n_frames, len(positions)))
            parts.append((weights @ shapes + noise) * fitted.units.intensity)
            rows.append((who, what, s * n_frames, (s + 1) * n_frames))
        frames[who] = np.concatenate(parts).astype(np.float32)
    return Study.from_arrays(
        frames, pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"]), fitted.coordinates
    )


def test_curvature_agrees_with_finite_differences_of_the_log_density(quick: NTFA, study: Study) -> None:
    """At the posterior means of the embeddings, with factors at their priors' means, where residuals are small."""
    module = quick._fitted.module
    assert isinstance(module, NeuralFactors)
    with torch.no_grad():
        centers, log_widths = module.factors_given(module.z_participant.mean)
        kept = module.centers.mean.clone(), module.log_widths.mean.clone()
        module.centers.mean.copy_(centers.mean)
        module.log_widths.mean.copy_(log_widths.mean)
    large = drawn_from(quick, study, 200)
    frames = frames_of(quick, large)
    found = laplace(module, frames.cells, frames.coordinates)
    p = 1
    point = torch.cat([module.centers.mean[p].T.flatten(), module.log_widths.mean[p], module.z_participant.mean[p]])
    point = point.detach()
    step, hessian = 1e-4, torch.zeros(len(point), len(point), dtype=torch.float64)
    for i in range(len(point)):
        ahead, behind = (
            gradient(module, frames, point + sign * step * torch.eye(len(point))[i], p) for sign in (1, -1)
        )
        hessian[i] = (ahead - behind) / (2 * step)
    expected = torch.linalg.inv(-(hessian + hessian.T) / 2)[-2:, -2:]
    with torch.no_grad():
        module.centers.mean.copy_(kept[0])
        module.log_widths.mean.copy_(kept[1])
    torch.testing.assert_close(found.participants[p], expected, rtol=0.15, atol=0.1 * float(expected.diagonal().mean()))


def test_factors_left_to_the_data_alone_do_not_gain_from_the_network(quick: NTFA, study: Study) -> None:
    """Sds of centres are at least those given the networks, and not much more than those the data alone give."""
    frames = frames_of(quick, study)
    found = laplace(quick._fitted.module, frames.cells, frames.coordinates)
    assert bool((found.centers_sd > 0).all())
    assert bool((found.centers_sd < 1.5).all()), "a centre is somewhere in the brain"
    for covariances in (found.participants, found.stimuli):
        assert bool((torch.linalg.eigvalsh(covariances) > 0).all())
        assert bool((torch.linalg.eigvalsh(covariances) < 1 + 1e-9).all()), "data do not widen a prior of unit variance"


def test_leverages_of_the_cells_that_were_seen_sum_to_the_number_of_features(quick: NTFA, study: Study) -> None:
    module, frames = quick._fitted.module, frames_of(quick, study)
    assert isinstance(module, NeuralFactors)
    found = laplace(module, frames.cells, frames.coordinates)
    cells = frames.cells
    pairs = torch.cat([module.z_participant.mean[cells.participant], module.z_stimulus.mean[cells.stimulus]], 1)
    features = features_of(module.weight_network, pairs).detach()
    leverages = (features @ found.feature_spread * features).sum(1)
    assert float(leverages.sum()) == pytest.approx(float(torch.linalg.matrix_rank(features, rtol=1e-4)), rel=1e-3)
    last = module.weight_network[-1]
    output = module.weight_network(pairs).detach()
    torch.testing.assert_close(features @ torch.cat([last.weight, last.bias[:, None]], 1).T.detach(), output)


def test_predictions_are_less_certain_for_what_the_network_was_learned_from(quick: NTFA, study: Study) -> None:
    """Weights' variance has a part that no certainty of the embeddings removes: leverage times that of a cell."""
    sure = deepcopy(quick)
    module = sure._fitted.module
    assert isinstance(module, NeuralFactors)
    module.uncertainty.participants.mul_(1e-12)
    module.uncertainty.stimuli.mul_(1e-12)
    pairs = [(who, what) for who in study.participants for what in study.stimuli]
    sd = sure.predict_weights(pairs, return_sd=True)[1].to_numpy() / sure._fitted.units.intensity
    total = (sd**2).sum(0) / module.uncertainty.weights_variance.numpy()
    np.testing.assert_allclose(total, total[0], rtol=1e-3)
    assert 2 < total[0] < 17 + 1e-6


# Halves --------------------------------------------------------------------------------------------------------------


def trials_table(counts: dict[tuple[str, str], int]) -> pd.DataFrame:
    rows, at = [], dict.fromkeys({who for who, _ in counts}, 0)
    for (who, what), count in counts.items():
        for _ in range(count):
            rows.append((who, what, at[who], at[who] + 2))
            at[who] += 2
    return pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])


def study_of(counts: dict[tuple[str, str], int]) -> Study:
    trials = trials_table(counts)
    rng = np.random.default_rng(0)
    frames = {who: rng.normal(size=(own["stop"].max(), 8)) for who, own in trials.groupby("participant")}
    return Study.from_arrays(frames, trials, rng.normal(size=(8, 3)) * 10)


@pytest.mark.parametrize("repetitions", [1, 2, 3, 4])
def test_halves_are_balanced(repetitions: int) -> None:
    study = study_of({(who, what): repetitions for who in "abcd" for what in "wxyz"})
    halves = halve(study)
    assert len(halves.participants) == len(halves.stimuli) == 4
    for column in ("participant", "stimulus"):
        sizes = halves.study.trials.groupby(column).size()
        assert len(sizes) == 8
        assert sizes.nunique() == 1
    assert n_parts(halves.study.trials) == 1, "halves share others with halves of others, all of them together"


def test_halves_have_the_frames_of_the_whole() -> None:
    study = study_of({(who, what): 3 for who in "ab" for what in "xy"})
    halves = halve(study)
    assert halves.study.trials.index.equals(study.trials.index)
    assert halves.study.trials[["start", "stop"]].equals(study.trials[["start", "stop"]])
    for label, whole in zip(halves.study.trials["participant"], study.trials["participant"], strict=True):
        assert halves.study.frames[label] is study.frames[whole]


@pytest.mark.parametrize("n_runs", [2, 3, 4])
def test_trials_of_one_run_are_in_one_half_of_a_participant(n_runs: int) -> None:
    study = study_of({(who, what): 2 * n_runs for who in "abcd" for what in "wxyz"})
    repetition = study.trials.groupby(["participant", "stimulus"]).cumcount()
    study.trials["run"] = [f"run-{i // 2 + 1}" for i in repetition]
    trials = halve(study).study.trials
    of_run = trials.groupby([study.trials["participant"], "run"])["participant"].nunique()
    assert (of_run == 1).all()
    assert trials["participant"].nunique() == 8
    of_cell = trials.groupby([study.trials["participant"], study.trials["stimulus"], "run"])["stimulus"].nunique()
    assert (of_cell == 1).all()
    assert n_parts(trials) == 1, "halves share others with halves of others, all of them together"


def test_runs_of_two_sessions_are_told_apart() -> None:
    study = study_of({(who, what): 2 for who in "ab" for what in "xy"})
    study.trials["run"] = "run-1"
    study.trials["session"] = study.trials.groupby(["participant", "stimulus"]).cumcount().map({0: "pre", 1: "post"})
    trials = halve(study).study.trials
    assert (trials.groupby([study.trials["participant"], "session"])["participant"].nunique() == 1).all()


@pytest.mark.parametrize("on_disk", [False, True])
def test_halves_of_one_run_are_z_scored_by_halves_of_the_rest(on_disk: bool, tmp_path: Path) -> None:
    study = study_of({(who, what): 2 for who in "ab" for what in "xy"})
    rest = np.random.default_rng(1).normal(size=(20, 8)).astype(np.float32)
    rest -= rest.mean(0)
    frames, tables = {}, []
    for who in study.participants:
        frames[who], table = with_rest(study.frames[who], study.trials[study.trials["participant"] == who], rest)
        tables.append(table.assign(run="run-1"))
    study = Study.from_arrays(frames, pd.concat(tables), study.coordinates)
    if on_disk:
        study.save(tmp_path / "study")
        study = Study.open(tmp_path / "study")
    halves = halve(study)
    baseline = [rest[rows].mean(0) for rows in halves_of_rest(np.arange(len(rest)))]
    for whole, half in zip(study.trials.itertuples(), halves.study.trials.itertuples(), strict=True):
        own = halves.study.frames[half.participant]
        assert isinstance(own, np.memmap) == on_disk
        expected = study.frames[whole.participant][whole.start : whole.stop] - baseline[int(half.participant[-1])]
        np.testing.assert_allclose(own[half.start : half.stop], expected, atol=1e-6)


def test_one_with_a_single_trial_stays_whole() -> None:
    study = study_of({("a", "x"): 2, ("a", "y"): 2, ("b", "x"): 1, ("c", "x"): 2, ("c", "y"): 2})
    halves = halve(study)
    assert halves.participants[:, 0].tolist() == [0, 2]
    assert len(halves.study.participants) == 5
    for whole, one, other in halves.participants:
        labels = [halves.study.participants[i] for i in (one, other)]
        assert [int(label[:9]) for label in labels] == [whole, whole]
        assert labels[0] != labels[1]


# What halves say ------------------------------------------------------------------------------------------------------


def pca(table: Floats) -> Floats:
    left, values, _ = np.linalg.svd(table - table.mean(0), full_matrices=False)
    return np.asarray(left[:, :2] * values[:2])


def false_positives(signal: Floats, n: int, n_studies: int, n_responses: int = 40) -> float:
    """Share of identical pairs said to differ, where embeddings are principal components: a fit that learns noise."""
    rng, found = np.random.default_rng(0), []
    for _ in range(n_studies):
        truth = (rng.normal(size=(n // 2, 2)) * signal).repeat(2, axis=0) @ rng.normal(size=(2, n_responses))
        one, other = (truth + rng.normal(size=truth.shape) for _ in range(2))
        whole, halves = pca((one + other) / 2), pca(np.concatenate([one, other]))
        where = np.column_stack([np.arange(n), np.arange(n), np.arange(n) + n])
        covariance = np.tile(0.5 * np.eye(2), (n, 1, 1))
        half_covariance = np.tile(np.eye(2), (2 * n, 1, 1))
        after, _ = calibrated_covariances(Embedded(whole, covariance), Embedded(halves, half_covariance), where)
        apart, total = whole[::2] - whole[1::2], after[::2] + after[1::2]
        squared = (apart * np.linalg.solve(total, apart[..., None])[..., 0]).sum(-1)
        found += (squared > stats.chi2.ppf(0.95, 2)).tolist()
    return float(np.mean(found))


@pytest.mark.parametrize("signal", [(0.0, 0.0), (0.3, 0.3), (2.0, 2.0), (2.0, 0.0)], ids=str)
def test_identical_ones_rarely_differ(signal: tuple[float, float]) -> None:
    """Whether all are identical, or differ a little, or a lot, or along one of two dimensions only."""
    assert false_positives(np.array(signal), n=12, n_studies=100) < 0.065


def test_the_own_uncertainty_would_fail_there() -> None:
    """Else the test above could not."""
    rng = np.random.default_rng(0)
    whole = pca(rng.normal(size=(12, 40)) / np.sqrt(2))
    squared = ((whole[::2] - whole[1::2]) ** 2).sum(1)
    assert (squared > stats.chi2.ppf(0.95, 2)).mean() > 0.3


def test_noise_of_embeddings_is_found_however_the_halves_are_turned_and_scaled() -> None:
    rng = np.random.default_rng(0)
    n, noise = 4000, np.array([[0.2, 0.05], [0.05, 0.1]])
    truth, root = rng.normal(size=(n, 2)) * [1.0, 2.0], np.linalg.cholesky(2 * noise)
    one, other = (truth + rng.normal(size=(n, 2)) @ root.T for _ in range(2))
    whole = (one + other) / 2
    turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    for change in (np.eye(2), turn, 3 * turn):
        found = embedding_noise(whole, one @ change + 1, other @ change + 1)
        np.testing.assert_allclose(found.covariance, noise, rtol=0.1, atol=0.005)
        assert found.reliability == pytest.approx(1 - np.trace(noise) / np.cov(whole.T).trace(), abs=0.01)


def test_what_is_not_reproducible_is_all_noise() -> None:
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(3000, 2))
    found = embedding_noise(whole, rng.normal(size=(3000, 2)), rng.normal(size=(3000, 2)))
    np.testing.assert_allclose(found.covariance, np.cov(whole.T), rtol=0.1, atol=0.06)
    assert found.reliability < 0.1


def test_overconfidence_is_a_ratio_of_variances() -> None:
    apart = np.random.default_rng(0).normal(size=(20_000, 2)) * [3.0, 1.5]
    assert overconfidence(apart, np.tile(np.diag([1.0, 0.25]), (20_000, 1, 1))) == pytest.approx(9, rel=0.03)


@pytest.mark.parametrize(("n", "dim"), [(5, 1), (8, 2), (30, 2), (12, 3)])
def test_factors_are_those_of_hotelling_and_f(n: int, dim: int) -> None:
    """By simulation: covariances estimated from n differences, differences tested with them."""
    rng = np.random.default_rng(0)
    sample = rng.normal(size=(20_000, n, dim))
    tested = rng.normal(size=(20_000, dim))
    covariance = sample.mT @ sample / n
    t2 = (tested * np.linalg.solve(covariance, tested[..., None])[..., 0]).sum(-1)
    limit = stats.chi2.ppf(0.95, dim)
    assert (t2 / hotelling_factor(n, dim) > limit).mean() == pytest.approx(0.05, abs=0.006)
    scale = (sample**2).mean((1, 2))
    assert ((tested**2).sum(1) / scale / f_factor(n, dim) > limit).mean() == pytest.approx(0.05, abs=0.006)


def test_the_larger_of_two_covariances_is_larger_than_both() -> None:
    rng = np.random.default_rng(0)
    one, other = (part @ part.T for part in rng.normal(size=(2, 3, 3)))
    both = larger(one, other)
    for smaller in (one, other):
        assert np.linalg.eigvalsh(both - smaller).min() > -1e-9
    np.testing.assert_allclose(larger(one, 0.1 * one), one)
    np.testing.assert_allclose(larger(one, 4 * one), 4 * one)


def test_covariances_keep_their_shape_and_get_the_mean_asked_for() -> None:
    rng = np.random.default_rng(0)
    before = np.stack([part @ part.T for part in rng.normal(size=(6, 2, 2))])
    wanted = np.array([[2.0, 0.3], [0.3, 1.0]])
    after = shaped_like(before, wanted)
    np.testing.assert_allclose(after.mean(0), wanted)
    ratios = np.linalg.det(after) / np.linalg.det(before)
    np.testing.assert_allclose(ratios, ratios[0], err_msg="all are stretched alike")


def test_intervals_are_widened_to_hold_what_they_should() -> None:
    apart = torch.from_numpy(np.random.default_rng(0).normal(size=50_000) * 3)
    assert interval_factor(apart, torch.ones(50_000)) == pytest.approx(3, rel=0.02)
    assert interval_factor(apart, torch.full((50_000,), 100.0)) == 1, "never narrowed"
    assert centers_factor(torch.ones(2, 3, 3), torch.zeros(2, 3, 3), np.empty((0, 3), dtype=np.int64)) == 1


# The estimator -------------------------------------------------------------------------------------------------------


def test_ways_to_find_the_uncertainty_share_the_fit(study: Study) -> None:
    fits = {
        way: NTFA(n_factors=2, max_epochs=40, random_state=0, uncertainty=way, response="network").fit(study)
        for way in ("mean-field", "laplace", "calibrated")
    }
    for name in ("participants_", "stimuli_"):
        tables = {way: getattr(model, name) for way, model in fits.items()}
        for table in tables.values():
            pd.testing.assert_frame_equal(table[["z1", "z2"]], tables["mean-field"][["z1", "z2"]])
        assert "z1_z2_cov" not in tables["mean-field"]
        assert (tables["calibrated"]["z1_sd"] > tables["laplace"]["z1_sd"]).all()
    assert fits["mean-field"].calibration_.isna().all(axis=None)
    seen = fits["calibrated"].calibration_
    assert seen.loc["participants", "n_halved"] == 6
    assert seen["reliability"].between(0, 1).all()
    assert (seen["variance_inflation"] >= 1).all()


def test_frames_of_the_first_fit_have_left_memory_when_the_second_begins(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may fill a GPU; and Python must not need to look for cycles to let them go."""
    fits: list[weakref.ref[Frames]] = []
    still_there = []
    prepare = base.prepare

    def watched(*args: Any, **params: Any) -> Any:
        still_there.append([frames() is not None for frames in fits])
        task = prepare(*args, **params)
        fits.append(weakref.ref(task.frames))
        return task

    monkeypatch.setattr(base, "prepare", watched)
    gc.disable()
    try:
        NTFA(n_factors=2, max_epochs=3, random_state=0, device="cpu", response="network").fit(study)
    finally:
        gc.enable()
    assert still_there == [[], [False]]


def test_an_unknown_way_is_refused(study: Study) -> None:
    with pytest.raises(ModelError, match="uncertainty='guess'"):
        NTFA(n_factors=2, uncertainty="guess").fit(study)


def test_too_few_to_be_halved_are_left_as_they_are(study: Study, caplog: pytest.LogCaptureFixture) -> None:
    two = study.select(participants=study.participants[:2])
    with caplog.at_level(logging.WARNING, "ntfa"):
        model = NTFA(n_factors=2, max_epochs=4, random_state=0).fit(two)
    assert np.isnan(model.calibration_.loc["participants", "variance_inflation"])
    assert model.calibration_.loc["stimuli", "n_halved"] == 4
    assert [record.args[0] for record in caplog.records if "calibration" in record.pathname][:1] == ["participants"]


# Intervals of predictions --------------------------------------------------------------------------------------------


def test_sds_of_predictions_agree_with_draws(quick: NTFA, study: Study) -> None:
    """Of images, to first order in the factors: drawn from the covariances directly, voxel by voxel."""
    quick = deepcopy(quick)
    module, units = quick._fitted.module, quick._fitted.units
    assert isinstance(module, NeuralFactors)
    module.uncertainty.centers_sd.mul_(0.02)
    module.uncertainty.log_widths_sd.mul_(0.02)
    module.uncertainty.participants.mul_(1e-4)
    module.uncertainty.stimuli.mul_(1e-4)
    module.uncertainty.weights_variance.zero_()
    pair, rng, n = (study.participants[2], study.stimuli[1]), np.random.default_rng(1), 4000
    participants, stimuli = module.covariances()
    z = [
        rng.multivariate_normal(mean.detach().numpy(), cov.numpy(), size=n)
        for mean, cov in ((module.z_participant.mean[2], participants[2]), (module.z_stimulus.mean[1], stimuli[1]))
    ]
    weights = module.weights_of(torch.from_numpy(np.concatenate(z, 1))).mean.detach().numpy() * units.intensity
    mean, sd = quick.predict_weights([pair], return_sd=True)
    np.testing.assert_allclose(sd.to_numpy()[0], weights.std(0), rtol=0.1)
    np.testing.assert_allclose(mean.to_numpy()[0], weights.mean(0), atol=0.15 * sd.to_numpy().max())
    centers_sd, log_widths_sd = (part[2].numpy() for part in module.factor_sds())
    centers = module.centers.mean[2].detach().numpy() + centers_sd * rng.normal(size=(n, *centers_sd.shape))
    log_widths = module.log_widths.mean[2].detach().numpy() + log_widths_sd * rng.normal(size=(n, len(log_widths_sd)))
    positions = units.standardise(torch.from_numpy(quick._fitted.coordinates)).numpy()[::30]
    squared = ((positions - centers[:, :, None]) ** 2).sum(-1)
    images = (weights[:, :, None] * np.exp(-squared * np.exp(-log_widths)[..., None])).sum(1)
    image_sd = quick.predict([pair], return_sd=True)[1][0, ::30]
    large = images.std(0) > 0.05 * images.std(0).max()
    np.testing.assert_allclose(image_sd[large], images.std(0)[large], rtol=0.1)


def test_a_trial_is_less_certain_than_its_mean(quick: NTFA, study: Study) -> None:
    pairs = study.trials.head(3)
    images, of_mean = quick.predict(pairs, return_sd=True)
    np.testing.assert_array_equal(images, quick.predict(pairs))
    of_trial = {n: quick.predict(pairs, return_sd=True, n_frames=n)[1] for n in (1, 4)}
    assert (of_mean > 0).all()
    assert (of_trial[1] > of_trial[4]).all()
    assert (of_trial[4] > of_mean).all()
    assert (of_trial[1] >= quick.noise_ * (1 - 1e-6)).all()
    with pytest.raises(ModelError, match="n_frames=0"):
        quick.predict(pairs, return_sd=True, n_frames=0)


def test_predicted_weights_have_the_labels_of_the_pairs(quick: NTFA, study: Study) -> None:
    pairs = [(study.participants[1], study.stimuli[0]), (study.participants[0], study.stimuli[2])]
    table = quick.predict_weights(pairs)
    assert table.index.tolist() == pairs
    assert table.columns.tolist() == [1, 2]
    with pytest.raises(ModelError, match="nobody"):
        quick.predict_weights([("nobody", study.stimuli[0])])


def test_a_design_falls_into_as_many_parts_as_share_nothing() -> None:
    trials = pd.DataFrame({"participant": list("aabbcc"), "stimulus": list("wxwxyz")})
    assert n_parts(trials) == 2
    assert n_parts(trials.assign(stimulus=list("wxxyyz"))) == 1
