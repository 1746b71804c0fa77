"""Studies as hard as real ones: what is drawn agrees with what was asked for."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist

from ntfa import Study
from ntfa.cli import main
from ntfa.errors import StudyError
from ntfa.simulation import IndividualTruth, Simulation, Simulator, Truth, simulate
from ntfa.simulation.bids import write_bids
from ntfa.simulation.fields import correlation
from ntfa.simulation.presets import PRESETS

SMALL: dict[str, Any] = {"n_participants": 4, "n_stimuli": 4, "n_voxels": 300, "n_factors": 30, "n_runs": 3}
# Narrow fields over many voxels have many independent values, and so little sampling error.
EXACT: dict[str, Any] = {
    "n_participants": 12,
    "n_stimuli": 6,
    "n_voxels": 1500,
    "n_runs": 4,
    "mean_share": 0.1,
    "stimulus_share": 0.2,
    "individual_mean_share": 0.05,
    "individual_share": 0.15,
    "n_features": 4,
    "feature_decay": 0.5,
    "individual_decay": 0.8,
    "individual_fwhm": 15.0,
    "noise_fwhm": {15.0: 0.7, 30.0: 0.3},
    "noise_ar1": 0.4,
    "noise_spread": 0.3,
}


@pytest.fixture(scope="module")
def exact() -> Simulation:
    return simulate("woo", random_state=5, **EXACT)


def individual(simulation: Simulation) -> IndividualTruth:
    assert isinstance(simulation.truth, IndividualTruth)
    return simulation.truth


def residuals(simulation: Simulation, participant: str) -> np.ndarray:
    """The participant's noise, of standard deviation 1 [stimuli x runs x V]."""
    study, truth = simulation.study, individual(simulation)
    trials = study.trials[study.trials["participant"] == participant]
    images = np.stack([truth.mean_image(participant, stimulus) for stimulus in trials["stimulus"]])
    noise = (study.frames[participant][trials["start"]] - images) / truth.participant_noise[participant]
    return noise.reshape(trials["run"].nunique(), len(truth.stimuli), -1).swapaxes(0, 1)


def error_of_mean_square(coordinates: np.ndarray, fwhm: dict[float, float], n_images: int) -> float:
    """Sampling sd of the mean square of so many independent images of variance 1."""
    field = correlation(fwhm, cdist(coordinates, coordinates))
    return float(np.sqrt(2 * (field**2).mean() / n_images))


# --- what is drawn is what was asked for


def test_images_are_features_times_loadings(exact: Simulation) -> None:
    truth = individual(exact)
    features = np.column_stack([np.ones(6), truth.stimulus_embeddings])
    np.testing.assert_array_equal(truth.stimulus_features, features)
    loadings = truth.group_loadings @ truth.factors("sub-03") + truth.individual_loadings[2]
    np.testing.assert_allclose(truth.loadings("sub-03"), loadings, atol=1e-4)
    for s, stimulus in enumerate(truth.stimuli):
        np.testing.assert_allclose(truth.mean_image("sub-03", stimulus), features[s] @ loadings, atol=1e-4)
    np.testing.assert_allclose(truth.images("sub-03"), features @ loadings, atol=1e-4)
    group = truth.weights_mean.loc["sub-03"].to_numpy() @ truth.factors("sub-03")
    np.testing.assert_allclose(group, features @ truth.group_loadings @ truth.factors("sub-03"), atol=1e-4)


def test_the_groups_responses_have_the_shares_and_spectrum_asked_for(exact: Simulation) -> None:
    truth = individual(exact)
    images = truth.stimulus_features.to_numpy() @ truth.group_images
    covariance = images @ images.T / images.shape[1]
    # Shares are relative to a noise of variance 1, whose share is what the others leave.
    noise_share = 1 - 0.1 - 0.2 - 0.05 - 0.15
    assert covariance.mean() == pytest.approx(0.1 / noise_share, rel=1e-4)
    centre = np.eye(6) - 1 / 6
    power = np.linalg.eigvalsh(centre @ covariance @ centre)[::-1] / 6
    shares = 0.5 ** np.arange(4)
    np.testing.assert_allclose(power[:4], 0.2 / noise_share * shares / shares.sum(), rtol=1e-4)
    np.testing.assert_allclose(power[4:], 0, atol=1e-6)


def test_peoples_own_loadings_have_the_shares_decay_and_smoothness_asked_for(exact: Simulation) -> None:
    truth = individual(exact)
    own = truth.individual_loadings.astype(np.float64)
    power = (own**2).mean(axis=(0, 2)) * np.array([1, *(truth.stimulus_embeddings**2).mean()])
    shares = 0.8 ** np.arange(4)
    expected = np.array([0.05, *(0.15 * shares / shares.sum())]) / 0.5
    error = error_of_mean_square(truth.coordinates, {15.0: 1.0}, len(own))
    np.testing.assert_allclose(power / expected, 1, atol=4 * error)
    distance = cdist(truth.coordinates, truth.coordinates)
    near = np.argwhere((distance > 0) & (distance < 1.01 * distance[distance > 0].min()))[:2000]
    scaled = own / np.sqrt((own**2).mean(axis=(0, 2), keepdims=True))
    found = (scaled[..., near[:, 0]] * scaled[..., near[:, 1]]).mean()
    assert found == pytest.approx(correlation({15.0: 1.0}, distance[tuple(near[0])]), abs=0.05)


def test_people_do_not_share_their_own_loadings(exact: Simulation) -> None:
    own = individual(exact).individual_loadings
    flat = own[:, 1].astype(np.float64) / np.sqrt((own[:, 1] ** 2).mean())
    error = error_of_mean_square(exact.study.coordinates, {15.0: 1.0}, 1) / np.sqrt(2)
    products = (flat @ flat.T / flat.shape[1])[np.triu_indices(len(flat), k=1)]
    assert np.abs(products).max() < 4.5 * error


def test_noise_has_the_level_and_smoothness_asked_for(exact: Simulation) -> None:
    truth = individual(exact)
    assert np.log(truth.participant_noise).std(ddof=1) == pytest.approx(0.3)
    assert np.log(truth.participant_noise).mean() == pytest.approx(0, abs=1e-9)
    noise = np.stack([residuals(exact, participant) for participant in truth.participants]).astype(np.float64)
    n_images = noise.shape[0] * noise.shape[1] * noise.shape[2]
    # Neighbours in time are alike, which costs some of the independent images.
    error = error_of_mean_square(truth.coordinates, EXACT["noise_fwhm"], n_images / 2)
    assert (noise**2).mean() == pytest.approx(1, abs=4 * error)
    by_person = (noise**2).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(by_person, 1, atol=4.5 * error * np.sqrt(len(by_person)))
    distance = cdist(truth.coordinates, truth.coordinates)
    expected = correlation(EXACT["noise_fwhm"], distance)
    flat = noise.reshape(n_images, -1)
    found = flat.T @ flat / n_images
    for low, high in ((5, 15), (15, 25), (25, 40), (60, 200)):
        apart = (distance > low) & (distance <= high)
        assert found[apart].mean() == pytest.approx(expected[apart].mean(), abs=4 * error)


def test_noise_is_alike_in_neighbours_of_a_category_only(exact: Simulation) -> None:
    noise = np.stack([residuals(exact, participant) for participant in exact.study.participants]).astype(np.float64)
    found = np.einsum("psrv,ptrv->st", noise, noise) / np.prod([noise.shape[i] for i in (0, 2, 3)])
    categories = individual(exact).stimulus_categories.to_numpy()
    assert categories.tolist() == ["thermal", "thermal", "social", "social", "thermal", "thermal"]
    stretch = np.array([0, 0, 1, 1, 2, 2])
    expected = np.where(np.equal.outer(stretch, stretch), 0.4, 0.0)
    np.fill_diagonal(expected, 1)
    error = error_of_mean_square(exact.study.coordinates, EXACT["noise_fwhm"], noise.shape[0] * noise.shape[2])
    np.testing.assert_allclose(found, expected, atol=4 * error)


def test_stimuli_of_a_category_are_as_much_alike_as_asked_for() -> None:
    def likeness(share: float) -> float:
        found = []
        for seed in range(5):
            truth = Simulator.create("mdtb", random_state=seed, settings={"category_share": share}, **sizes).truth
            z, labels = truth.stimulus_embeddings.to_numpy(), truth.stimulus_categories.to_numpy()
            same = np.equal.outer(labels, labels) & ~np.eye(len(z), dtype=bool)
            found.append((z @ z.T)[same].mean())
        return float(np.mean(found))

    sizes = {"n_participants": 1, "n_voxels": 60, "n_factors": 40}
    loose, usual, close = (likeness(share) for share in (0.0, 0.5, 0.95))
    assert loose < 0.2
    assert loose + 0.3 < usual < close


def test_more_noise_leaves_the_responses_as_they_are() -> None:
    quiet, loud = (individual(simulate("woo", noise=noise, **SMALL)) for noise in (1.0, 3.0))
    np.testing.assert_array_equal(quiet.images("sub-02"), loud.images("sub-02"))
    np.testing.assert_allclose(3 * quiet.participant_noise, loud.participant_noise)


# --- sizes, seeds, labels


@pytest.mark.parametrize("like", ["woo", "mdtb"])
def test_the_usual_sizes_are_those_of_the_study(like: str) -> None:
    sizes, simulator = PRESETS[like].usual_sizes, Simulator.create(like, n_voxels=400, n_factors=50)
    assert len(simulator.participants) == sizes.n_participants
    assert simulator.run_frames == (sizes.n_stimuli,) * sizes.n_runs
    frames = simulator.frames("sub-02")
    assert (frames.shape, frames.dtype) == ((simulator.n_frames, 400), np.dtype(np.float32))
    truth = simulator.truth
    assert truth.stimulus_categories.to_dict() == PRESETS[like].categories
    assert truth.participant_groups.unique().tolist() == ["all"]
    assert truth.participant_embeddings.shape == (sizes.n_participants, 2)
    assert truth.stimulus_embeddings.shape == (sizes.n_stimuli, PRESETS[like].realism.n_features)
    trials = simulator.trials
    assert (trials.groupby(["participant", "stimulus"]).size() == sizes.n_runs).all()


def test_mdtb_is_a_part_of_the_brain() -> None:
    box = np.array(PRESETS["mdtb"].box)
    coordinates = Simulator.create("mdtb", n_participants=1, n_voxels=500, n_factors=30).truth.coordinates
    spacing = np.diff(np.unique(coordinates[:, 0])).min()
    assert len(coordinates) == 500
    assert (coordinates >= box[:, 0] - spacing).all()
    assert (coordinates <= box[:, 1] + spacing).all()


@pytest.mark.parametrize("like", ["woo", "mdtb"])
def test_the_smallest_and_larger_than_usual(like: str) -> None:
    one = dict.fromkeys(("n_participants", "n_stimuli", "n_frames", "n_factors", "n_runs"), 1)
    study, truth = simulate(like, n_voxels=20, **one)
    assert (study.n_trials, truth.stimulus_embeddings.shape) == (1, (1, 0))
    assert np.isfinite(study.frames["sub-01"]).all()
    many = simulate(like, n_voxels=20, n_factors=2, n_participants=2, n_stimuli=40, n_frames=3, n_runs=1)
    assert len(many.study.stimuli) == 40
    assert many.study.frames["sub-01"].shape == (120, 20)
    assert np.isfinite(many.study.frames["sub-02"]).all()


def test_given_coordinates_replace_the_brain() -> None:
    coordinates = np.random.default_rng(0).uniform(-30, 30, size=(80, 3))
    study, _ = simulate("mdtb", coordinates=coordinates, n_participants=2, n_factors=20)
    np.testing.assert_array_equal(study.coordinates, coordinates)


def test_same_seed_same_study() -> None:
    first, second = (simulate("mdtb", random_state=5, **SMALL) for _ in range(2))
    other = simulate("mdtb", random_state=6, **SMALL)
    for participant, frames in first.study.frames.items():
        np.testing.assert_array_equal(frames, second.study.frames[participant])
        assert not np.allclose(frames, other.study.frames[participant])
    np.testing.assert_array_equal(individual(first).individual_loadings, individual(second).individual_loadings)


def test_a_participant_is_drawn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = simulate("woo", random_state=2, **SMALL).study
    simulator = Simulator.create("woo", random_state=2, **SMALL)
    np.testing.assert_array_equal(simulator.frames("sub-03"), whole.frames["sub-03"])
    monkeypatch.setattr("ntfa.study.checks.CHUNK_VALUES", 7 * 300)
    np.testing.assert_allclose(simulator.frames("sub-01"), whole.frames["sub-01"], rtol=1e-5, atol=1e-5)


# --- what cannot be


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"noise_ar1": 1.0}, "noise_ar1"),
        ({"noise_ar1": "x"}, "noise_ar1"),
        ({"noise_spread": -0.1}, "noise_spread"),
        ({"noise_fwhm": -2.0}, "noise_fwhm"),
        ({"individual_fwhm": {10.0: 0.5}}, "individual_fwhm"),
        ({"response_fwhm": 0.0}, "response_fwhm"),
        ({"feature_decay": 0.0}, "feature_decay"),
        ({"individual_decay": 1.5}, "individual_decay"),
        ({"category_share": 1.5}, "category_share"),
        ({"n_features": 4}, "n_features"),
        ({"n_features": 0}, "n_features"),
        ({"n_features": 1.5}, "n_features"),
        ({"stimulus_share": -0.1}, "stimulus_share"),
        ({"stimulus_share": float("nan")}, "stimulus_share"),
        ({"stimulus_share": 0.6, "individual_share": 0.4}, "individual_share"),
        ({"noise_colour": "pink"}, "noise_colour"),
        ({"like": "haxby", "noise_fwhm": 8.0}, "noise_fwhm"),
        ({"like": "synthetic", "n_features": 2}, "n_features"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(StudyError, match=named):
        simulate(**{"like": "woo", **SMALL, **settings})


def test_maps_without_rest_are_not_written_as_bids(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="woo"):
        write_bids(Simulator.create("woo", **SMALL), tmp_path / "data")
    assert not any(tmp_path.iterdir())


# --- on disk, and from the command line


def test_a_truth_is_read_as_it_was_written(tmp_path: Path) -> None:
    truth = individual(simulate("mdtb", random_state=4, **SMALL))
    truth.save(tmp_path)
    found = Truth.open(tmp_path, truth.coordinates)
    assert isinstance(found, IndividualTruth)
    for field in dataclasses.fields(IndividualTruth):
        a, b = getattr(truth, field.name), getattr(found, field.name)
        if isinstance(a, pd.DataFrame):
            pd.testing.assert_frame_equal(a, b, rtol=1e-14, check_column_type=False, obj=field.name)
        elif isinstance(a, pd.Series):
            pd.testing.assert_series_equal(a, b, check_names=False, obj=field.name)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-14, err_msg=field.name)
    np.testing.assert_array_equal(found.images("sub-02"), truth.images("sub-02"))


def test_a_damaged_truth_is_named(tmp_path: Path) -> None:
    truth = individual(simulate("woo", **SMALL))
    loadings, table = tmp_path / "truth_individual_loadings.npy", tmp_path / "truth_loadings.tsv"
    for damage, named in (
        (lambda: np.save(loadings, truth.individual_loadings[:, :, 1:]), loadings.name),
        (lambda: np.save(loadings, truth.individual_loadings * np.float32(np.nan)), loadings.name),
        (lambda: loadings.write_bytes(b"nothing"), loadings.name),
        (loadings.unlink, loadings.name),
        (lambda: table.write_text("feature\tfactor0\nconstant\t1\n"), table.name),
    ):
        truth.save(tmp_path)
        damage()
        with pytest.raises(StudyError, match=named):
            Truth.open(tmp_path, truth.coordinates)


def test_simulate_on_the_command_line(tmp_path: Path) -> None:
    sizes = ["--participants", "3", "--voxels", "200", "--factors", "20", "--runs", "2", "-q"]
    settings = ["--noise-ar1", "0.5", "--noise-fwhm", "10:0.8,100:0.2", "--individual-fwhm", "12", "--n-features", "2"]
    out = tmp_path / "study"
    assert main(["simulate", str(out), "--like", "woo", "--seed", "3", *sizes, *settings]) == 0
    expected = simulate(
        "woo",
        random_state=3,
        n_participants=3,
        n_voxels=200,
        n_factors=20,
        n_runs=2,
        noise_ar1=0.5,
        noise_fwhm={10: 0.8, 100: 0.2},
        individual_fwhm=12,
        n_features=2,
    )
    study = Study.open(out)
    for participant in study.participants:
        np.testing.assert_array_equal(study.frames[participant], expected.study.frames[participant])
    found = Truth.open(out, study.coordinates)
    np.testing.assert_allclose(
        found.mean_image("sub-01", "heat"), expected.truth.mean_image("sub-01", "heat"), rtol=1e-5, atol=1e-6
    )
    notes = json.loads((out / "study.json").read_text())["notes"]
    assert notes["settings"]["noise_ar1"] == 0.5
    assert notes["settings"]["noise_fwhm"] == {"10.0": 0.8, "100.0": 0.2}


def test_the_command_line_names_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = ["simulate", str(tmp_path / "study"), "--participants", "2", "--voxels", "50", "--factors", "5"]
    assert main([*command, "--noise-ar1", "0.5"]) == 1
    assert "noise_ar1" in capsys.readouterr().err
    assert main([*command, "--like", "woo", "--noise-spread", "-1"]) == 1
    assert "noise_spread" in capsys.readouterr().err
    assert main([*command, "--like", "woo", "--bids"]) == 1
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--like", "woo", "--noise-fwhm", "10:x"])
    assert "--noise-fwhm" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
