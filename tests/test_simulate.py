"""Simulated studies: the data follow the truth that comes with them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import naming
from scipy.spatial.distance import cdist, pdist

import ntfa
from ntfa.errors import StudyError
from ntfa.simulation import Simulation, Simulator, Truth, simulate
from ntfa.simulation.brain import farthest_voxels, mni_brain, scattered_voxels
from ntfa.simulation.design import block_starts, spread
from ntfa.study import Study, StudyWriter

TWIN_NAMES = ("haxby", "lepping", "threatvids")
SMALL: dict[str, Any] = {
    "n_participants": 4,
    "n_stimuli": 6,
    "n_frames": 6,
    "n_voxels": 300,
    "n_factors": 8,
    "n_runs": 2,
}


@pytest.fixture(scope="module")
def synthetic() -> Simulation:
    return simulate("synthetic", random_state=3)


def block(sim: Simulation, participant: str, stimulus: str) -> np.ndarray:
    """All frames of a cell."""
    trials = sim.study.trials.query("participant == @participant and stimulus == @stimulus")
    frames = sim.study.frames[participant]
    return np.concatenate([frames[a:b] for a, b in zip(trials["start"], trials["stop"], strict=True)])


def rest_rows(sim: Simulation, participant: str) -> np.ndarray:
    rest = np.ones(len(sim.study.frames[participant]), dtype=bool)
    for row in sim.study.trials.query("participant == @participant").itertuples():
        rest[row.start : row.stop] = False
    return np.flatnonzero(rest)


# --- the brain


def test_brain_at_8_mm() -> None:
    mask_img, coordinates = mni_brain()
    assert 4_400 <= len(coordinates) <= 5_000
    found = np.argwhere(np.asarray(mask_img.dataobj)) @ mask_img.affine[:3, :3].T + mask_img.affine[:3, 3]
    np.testing.assert_allclose(coordinates, found, atol=1e-9)
    np.testing.assert_allclose(coordinates % 8, 0)
    assert pdist(coordinates[::10]).max() < 200


@pytest.mark.parametrize("n_voxels", [1, 40, 777, 32_233])
def test_brain_of_exactly_so_many_voxels(n_voxels: int) -> None:
    mask_img, coordinates = mni_brain(n_voxels=n_voxels)
    assert len(coordinates) == int(np.asarray(mask_img.dataobj).sum()) == n_voxels


def test_surplus_voxels_are_cut_from_the_bottom() -> None:
    mask_img, coordinates = mni_brain(n_voxels=3_000)
    _, whole = mni_brain(voxel_size=mask_img.affine[0, 0])
    gone = set(map(tuple, whole.round(6))) - set(map(tuple, coordinates.round(6)))
    assert len(gone) == len(whole) - 3_000 < 0.02 * len(whole)
    assert max(z for _, _, z in gone) <= coordinates[:, 2].min() + 1e-6


@pytest.mark.parametrize("size", [{"voxel_size": 1.0}, {"n_voxels": 10**6}])
def test_brain_no_finer_than_its_template(size: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="2"):
        mni_brain(**size)


def test_farthest_voxels_match_brute_force() -> None:
    places = np.random.default_rng(0).uniform(-50, 50, size=(200, 3))
    seeds = np.array([[0.0, 0, 0], [0.1, 0, 0], [40.0, 40, 40]])
    chosen = farthest_voxels(places, seeds, 6)
    expected = [int(cdist(places, seeds[[i]]).argmin()) for i in (0, 2)]
    while len(expected) < 6:
        expected.append(int(cdist(places, places[expected]).min(axis=1).argmax()))
    np.testing.assert_array_equal(chosen, places[expected])


def test_scattered_voxels_are_distinct_and_apart() -> None:
    _, coordinates = mni_brain(n_voxels=2_000)
    rng = np.random.default_rng(0)
    scattered = scattered_voxels(coordinates, 60, rng)
    assert pdist(scattered).min() > 2 * pdist(rng.choice(coordinates, 60, replace=False)).min()
    everything = scattered_voxels(coordinates[:30], 30, rng)
    assert len(np.unique(everything, axis=0)) == 30


# --- the paper's synthetic study


def test_synthetic_has_the_papers_sizes_and_labels(synthetic: Simulation) -> None:
    study, truth = synthetic
    assert (len(study.participants), len(study.stimuli), study.n_trials) == (9, 8, 72)
    assert all(frames.shape == (340, study.n_voxels) for frames in study.frames.values())
    assert truth.participant_groups.value_counts().to_dict() == {f"Group {g}": 3 for g in (1, 2, 3)}
    assert truth.stimulus_categories.value_counts().to_dict() == {"Task 1": 4, "Task 2": 4}
    first = study.trials.iloc[:8]
    assert (first["stop"] - first["start"]).unique().tolist() == [20]
    assert first["start"].tolist() == [20 + 40 * i for i in range(8)]
    assert first["category"].tolist() == ["Task 1", "Task 2"] * 4
    assert study.trials["group"].tolist() == truth.participant_groups[study.trials["participant"]].tolist()
    assert study.mask_img is not None


def test_synthetic_factors_sit_on_voxels_far_apart(synthetic: Simulation) -> None:
    truth = synthetic.truth
    assert (cdist(truth.centers, truth.coordinates).min(axis=1) == 0).all()
    assert pdist(truth.centers).min() > 70
    assert np.abs(truth.log_widths - np.log(400)).max() < 0.5
    np.testing.assert_array_equal(truth.participant_centers, np.broadcast_to(truth.centers, (9, 3, 3)))


@pytest.mark.parametrize("seed", range(5))
def test_each_group_responds_in_its_region_half_as_much_to_task_1(seed: int) -> None:
    truth = simulate(random_state=seed, n_voxels=100, n_frames=2).truth
    groups = truth.participant_groups.str[-1].astype(int) - 1
    means = truth.weights_mean.to_numpy().reshape(9, 8, 3)
    for p, g in enumerate(groups):
        assert (np.delete(means[p], g, axis=1) == 0).all()
        task1, task2 = means[p, :4, g].mean(), means[p, 4:, g].mean()
        assert 0.9 < task2 < 1.5
        assert 0.4 < task1 / task2 < 0.6
        assert 0 < np.ptp(means[p, 4:, g]) < 0.6
    z_p, z_s = truth.participant_embeddings.to_numpy(), truth.stimulus_embeddings.to_numpy()
    np.testing.assert_allclose(means.sum(axis=2), z_p @ z_s.T)


def test_mean_image_is_mean_weights_times_factors(synthetic: Simulation) -> None:
    truth = synthetic.truth
    weight = truth.weights_mean.loc[("sub-05", "task2_stim3"), 1]
    squared = ((truth.coordinates - truth.centers[1]) ** 2).sum(axis=1)
    expected = weight * np.exp(-squared / np.exp(truth.log_widths[1]))
    image = truth.mean_image("sub-05", "task2_stim3")
    np.testing.assert_allclose(image, expected, rtol=1e-5, atol=1e-7)
    assert image.max() == pytest.approx(weight)


@pytest.mark.parametrize("pair", [("sub-77", "task1_stim1"), ("sub-01", "tea")])
def test_mean_image_names_an_unknown_label(synthetic: Simulation, pair: tuple[str, str]) -> None:
    with pytest.raises(StudyError, match=r"sub-77|tea"):
        synthetic.truth.mean_image(*pair)


def test_noise_and_weights_have_their_spread(synthetic: Simulation) -> None:
    study, truth = synthetic
    outside = (truth.factors("sub-01") < 1e-4).all(axis=0)
    assert outside.sum() > 500
    assert study.frames["sub-01"][:, outside].std() == pytest.approx(1.0, abs=0.01)
    residual = block(synthetic, "sub-01", "task1_stim1") - truth.mean_image("sub-01", "task1_stim1")
    assert residual[:, outside].std() == pytest.approx(1.0, abs=0.02)


def test_rest_is_noise_around_zero() -> None:
    sim = simulate(n_voxels=300, n_frames=100, noise=0.0)
    frames = sim.study.frames["sub-01"][rest_rows(sim, "sub-01")]
    weights = np.linalg.lstsq(sim.truth.factors("sub-01").T, frames.T, rcond=None)[0]
    assert weights.shape == (3, 900)
    assert np.abs(weights.mean(axis=1)).max() < 5 * 0.3 / np.sqrt(900)
    np.testing.assert_allclose(weights.std(axis=1), 0.3, rtol=0.1)


@pytest.mark.parametrize("like", ["synthetic", *TWIN_NAMES])
def test_many_frames_average_to_the_mean_image(like: str) -> None:
    sizes = {
        "n_participants": 2,
        "n_stimuli": 2,
        "n_frames": 4_000,
        "n_voxels": 120,
        "n_factors": 3,
        "n_runs": 1,
    }
    sim = simulate(like, **sizes, noise=0.5)
    for participant in sim.study.participants:
        factors = sim.truth.factors(participant)
        sd = np.sqrt(sim.truth.weights_sd**2 @ factors**2 + 0.5**2)
        for stimulus in sim.study.stimuli:
            frames = block(sim, participant, stimulus)
            error = frames.mean(axis=0) - sim.truth.mean_image(participant, stimulus)
            assert np.abs(error / (sd / np.sqrt(len(frames)))).max() < 6
            np.testing.assert_allclose(frames.std(axis=0), sd, rtol=0.08)


# --- the twins


SIZES_OF_TWINS = {
    "haxby": (6, 8, 12 * 121, 32_233, 6 * 8 * 12),
    "lepping": (39, 4, 5 * 105, 62_733, 39 * 4 * 5),
    "threatvids": (21, 36, 3 * 552, 81_638, 21 * 36),
}
CATEGORIES = {
    "haxby": {"animate": 2, "inanimate": 5, "control": 1},
    "lepping": {"music": 2, "nonmusic": 2},
    "threatvids": {"spiders": 12, "heights": 12, "social": 12},
}


@pytest.mark.parametrize("like", TWIN_NAMES)
def test_twins_have_the_sizes_of_the_real_studies(like: str) -> None:
    simulator = Simulator.create(like)
    truth, trials = simulator.truth, simulator.trials
    sizes = (
        len(truth.participants),
        len(truth.stimuli),
        simulator.n_frames,
        len(truth.coordinates),
        len(trials),
    )
    assert sizes == SIZES_OF_TWINS[like]
    assert truth.centers.shape == (100, 3)
    assert truth.stimulus_categories.value_counts().to_dict() == CATEGORIES[like]
    groups = truth.participant_groups.value_counts().to_dict()
    assert groups == ({"mdd": 19, "control": 20} if like == "lepping" else {"all": sizes[0]})
    shown = trials.groupby(["participant", "run"])["stimulus"].agg(["count", "nunique"])
    per_run = 12 if like == "threatvids" else sizes[1]
    assert (shown == per_run).to_numpy().all()
    assert truth.weights_mean.to_numpy().std() == pytest.approx(0.5, abs=0.15)
    assert truth.weights_sd.min() > 0.2
    assert truth.weights_sd.max() < 0.5
    assert pdist(truth.centers).min() > 15


def test_every_run_of_threatvids_has_its_share_of_each_category() -> None:
    trials = Simulator.create("threatvids", n_voxels=200, n_participants=2).trials
    assert (trials.groupby(["participant", "run", "category"]).size() == 4).all()
    assert (trials.groupby("participant")["stimulus"].nunique() == 36).all()


def test_trials_are_shuffled_and_stay_inside_their_run() -> None:
    trials = Simulator.create("haxby", n_voxels=200).trials
    assert ((trials["start"] >= 121 * (trials["run"] - 1)) & (trials["stop"] <= 121 * trials["run"])).all()
    orders = trials.groupby(["participant", "run"])["stimulus"].agg(tuple)
    assert orders.nunique() > 60


def test_layouts_are_individual_but_near_the_template() -> None:
    truth = Simulator.create("lepping", n_voxels=2_000).truth
    shift = np.linalg.norm(truth.participant_centers - truth.centers, axis=2)
    assert 1.0 < shift.mean() < 8.0
    assert shift.max() < 16.0
    assert np.abs(truth.participant_log_widths - truth.log_widths).max() < 0.5
    radius = np.exp(truth.log_widths / 2)
    assert (radius.min() >= 10, radius.max() <= 16) == (True, True)
    own = Truth.factors(truth, "sub-02")
    squared = ((truth.coordinates - truth.participant_centers[1, 7]) ** 2).sum(axis=1)
    np.testing.assert_allclose(own[7], np.exp(-squared / np.exp(truth.participant_log_widths[1, 7])), atol=1e-6)


@pytest.mark.parametrize("like", ["lepping", "threatvids"])
def test_groups_and_categories_are_apart_in_the_embedding(like: str) -> None:
    truth = Simulator.create(like, n_voxels=200).truth
    tables = [(truth.stimulus_embeddings, truth.stimulus_categories)]
    tables += [(truth.participant_embeddings, truth.participant_groups)] if like == "lepping" else []
    for embeddings, labels in tables:
        means = embeddings.groupby(labels).mean()
        within = (embeddings - means.loc[labels].to_numpy()).to_numpy().std()
        assert pdist(means).min() > 3 * within


# --- sizes and seeds


@pytest.mark.parametrize("like", ["synthetic", *TWIN_NAMES])
def test_every_size_can_be_set(like: str) -> None:
    study, truth = simulate(like, **SMALL)
    assert (len(study.participants), len(study.stimuli), study.n_voxels) == (4, 6, 300)
    assert (study.trials["stop"] - study.trials["start"] == 6).all()
    assert truth.centers.shape == (8, 3)
    assert study.trials["run"].nunique() == 2
    assert study.n_trials == 4 * 6 * (1 if like == "threatvids" else 2)


@pytest.mark.parametrize("like", ["synthetic", *TWIN_NAMES])
def test_the_smallest_and_larger_than_usual(like: str) -> None:
    one = dict.fromkeys(("n_participants", "n_stimuli", "n_frames", "n_factors", "n_runs"), 1)
    assert simulate(like, n_voxels=20, **one).study.n_trials == 1
    assert simulate(like, n_voxels=20, n_participants=1, n_stimuli=2, n_factors=2).study.stimuli
    many = Simulator.create(like, n_voxels=20, n_factors=2, n_participants=101, n_stimuli=40, n_runs=1)
    assert many.participants == sorted(many.participants)
    assert many.trials["stimulus"].nunique() == 40


@pytest.mark.parametrize("like", ["synthetic", "threatvids"])
def test_same_seed_same_study(like: str) -> None:
    first, second = (simulate(like, random_state=5, **SMALL) for _ in range(2))
    other = simulate(like, random_state=6, **SMALL)
    pd.testing.assert_frame_equal(first.study.trials, second.study.trials)
    for participant, frames in first.study.frames.items():
        np.testing.assert_allclose(frames, second.study.frames[participant], rtol=1e-5, atol=1e-6)
        assert not np.allclose(frames, other.study.frames[participant])


def test_a_participant_does_not_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = simulate("haxby", random_state=2, **SMALL).study
    simulator = Simulator.create("haxby", random_state=2, **SMALL)
    # To rounding: where an array begins in memory can change the last digit of a product.
    np.testing.assert_allclose(simulator.frames("sub-03"), whole.frames["sub-03"], rtol=1e-5, atol=1e-6)
    monkeypatch.setattr("ntfa.study.checks.CHUNK_VALUES", 7 * 300)
    np.testing.assert_allclose(simulator.frames("sub-01"), whole.frames["sub-01"], rtol=1e-5, atol=1e-5)
    fewer = Simulator.create("haxby", random_state=2, **{**SMALL, "n_participants": 2})
    np.testing.assert_allclose(fewer.frames("sub-02"), whole.frames["sub-02"], rtol=1e-5, atol=1e-6)


def test_no_seed_gives_another_study_each_time() -> None:
    first, second = (Simulator.create(random_state=None, n_voxels=50) for _ in range(2))
    assert first.seed != second.seed
    again = Simulator.create(random_state=first.seed, n_voxels=50)
    np.testing.assert_array_equal(again.frames("sub-01"), first.frames("sub-01"))


def test_given_coordinates_replace_the_brain() -> None:
    coordinates = np.argwhere(np.ones((5, 6, 7))) * 10.0
    study, truth = simulate(coordinates=coordinates, n_factors=4)
    assert study.mask_img is None
    np.testing.assert_array_equal(study.coordinates, coordinates)
    assert len(np.unique(truth.centers, axis=0)) == 4


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"like": "other"}, naming("other", "threatvids")),
        ({"n_participants": 0}, naming("n_participants", 0)),
        ({"n_frames": 2.5}, "n_frames"),
        ({"n_stimuli": True}, "n_stimuli"),
        ({"n_factors": 60}, naming("n_factors", 60, 50)),
        ({"noise": -1.0}, "noise"),
        ({"noise": float("nan")}, "noise"),
        ({"random_state": -1}, "random_state"),
        ({"random_state": "x"}, "random_state"),
        ({"coordinates": np.eye(3)}, naming("n_voxels", 50, "coordinates", 3)),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(StudyError, match=named):
        simulate(**{"n_voxels": 50, **settings})


# --- pieces of the design


@pytest.mark.parametrize(("n_blocks", "n_frames", "n_rest"), [(8, 12, 25), (1, 5, 0), (4, 10, 65), (3, 1, 2)])
def test_rest_is_shared_out_around_the_blocks(n_blocks: int, n_frames: int, n_rest: int) -> None:
    starts = block_starts(n_blocks, n_frames, n_rest)
    gaps = np.diff([0, *starts, n_blocks * n_frames + n_rest]) - np.array([0] + [n_frames] * n_blocks)
    assert gaps.sum() == n_rest
    assert gaps.min() >= 0
    assert np.ptp(gaps) <= 1


def test_spread_is_even_or_by_share() -> None:
    assert spread(7, ["a", "b", "c"]) == list("aaabbcc")
    assert spread(1, ["a", "b"]) == ["a"]
    assert spread(39, ["m", "c"], [19, 20]).count("m") == 19
    assert spread(4, ["m", "c"], [19, 20]) == list("mmcc")


# --- on disk


def test_truth_is_written_as_readable_tables(tmp_path: Path) -> None:
    truth = Simulator.create("lepping", **SMALL).truth
    truth.save(tmp_path / "out")
    tables = {p.stem: pd.read_csv(p, sep="\t") for p in (tmp_path / "out").glob("truth_*.tsv")}
    assert {name: len(table) for name, table in tables.items()} == {
        "truth_factors": 8,
        "truth_participant_factors": 32,
        "truth_participants": 4,
        "truth_stimuli": 6,
        "truth_weights": 24,
    }
    np.testing.assert_allclose(tables["truth_factors"][["x", "y", "z"]], truth.centers)
    own = tables["truth_participant_factors"].query("participant == 'sub-03' and factor == 5")
    np.testing.assert_allclose(own[["x", "y", "z"]].to_numpy()[0], truth.participant_centers[2, 5])
    assert tables["truth_participants"]["group"].tolist() == truth.participant_groups.tolist()
    assert tables["truth_stimuli"].columns.tolist() == ["stimulus", "category", "z1", "z2"]
    np.testing.assert_allclose(tables["truth_weights"].iloc[:, 2:], truth.weights_mean)
    assert json.loads((tmp_path / "out" / "truth.json").read_text())["noise"] == 1.0


def test_streamed_to_disk_equals_in_memory(tmp_path: Path) -> None:
    simulator = Simulator.create("threatvids", **SMALL)
    with StudyWriter(
        tmp_path / "study", simulator.truth.coordinates, simulator.trials, mask_img=simulator.mask_img
    ) as writer:
        simulator.truth.save(writer.working_folder)
        for participant in reversed(writer.participants):
            writer.add(participant, simulator.frames(participant))
    streamed, whole = Study.open(tmp_path / "study"), simulator.run().study
    pd.testing.assert_frame_equal(streamed.trials, whole.trials, check_dtype=False)
    for participant in whole.participants:
        np.testing.assert_array_equal(streamed.frames[participant], whole.frames[participant])
    assert (tmp_path / "study" / "truth_weights.tsv").exists()


def test_the_package_named_as_the_function_can_be_called_as_often_as_one_likes() -> None:
    for _ in range(2):
        assert ntfa.simulate(n_voxels=20, n_factors=1, n_participants=1).study.n_voxels == 20


# --- a truth that was written is read


def assert_same_truth(one: Truth, other: Truth) -> None:
    for field in dataclasses.fields(Truth):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, pd.DataFrame):
            pd.testing.assert_frame_equal(a, b, rtol=1e-14, check_column_type=False, obj=field.name)
        elif isinstance(a, pd.Series):
            pd.testing.assert_series_equal(a, b, check_names=False, obj=field.name)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-14, err_msg=field.name)


@pytest.mark.parametrize("like", ["synthetic", *TWIN_NAMES])
def test_a_truth_is_read_as_it_was_written(like: str, tmp_path: Path) -> None:
    sizes = SMALL | ({"n_factors": 3} if like == "synthetic" else {})
    truth = simulate(like, random_state=4, **sizes).truth
    truth.save(tmp_path)
    found = Truth.open(tmp_path, truth.coordinates)
    assert_same_truth(found, truth)
    pair = truth.participants[1], truth.stimuli[2]
    np.testing.assert_allclose(found.mean_image(*pair), truth.mean_image(*pair), rtol=1e-6)


def test_labels_of_a_truth_stay_text(tmp_path: Path) -> None:
    truth = simulate("synthetic", n_participants=3, n_stimuli=2, n_voxels=100, n_frames=3).truth
    participants, stimuli = pd.Index(["01", "NA", "1.0"]), pd.Index(["None", "a\tb"])
    renamed = dataclasses.replace(
        truth,
        participant_groups=truth.participant_groups.set_axis(participants),
        stimulus_categories=truth.stimulus_categories.set_axis(stimuli),
        participant_embeddings=truth.participant_embeddings.set_axis(participants),
        stimulus_embeddings=truth.stimulus_embeddings.set_axis(stimuli),
        weights_mean=truth.weights_mean.set_axis(
            pd.MultiIndex.from_product([participants, stimuli], names=["participant", "stimulus"])
        ),
    )
    renamed.save(tmp_path)
    found = Truth.open(tmp_path, truth.coordinates)
    assert (found.participants, found.stimuli) == (participants.tolist(), stimuli.tolist())
    np.testing.assert_allclose(found.mean_image("NA", "None"), renamed.mean_image("NA", "None"), rtol=1e-6)


def test_a_folder_without_a_truth_is_named(tmp_path: Path) -> None:
    truth = simulate("synthetic", n_participants=3, n_stimuli=2, n_voxels=100, n_frames=3).truth
    with pytest.raises(StudyError, match=naming(tmp_path, "truth_factors.tsv")):
        Truth.open(tmp_path, truth.coordinates)
    truth.save(tmp_path)
    with pytest.raises(StudyError, match=naming(100, 99)):
        Truth.open(tmp_path, truth.coordinates[:-1])
    (tmp_path / "truth.json").write_text("[]")
    with pytest.raises(StudyError, match=naming(tmp_path)):
        Truth.open(tmp_path, truth.coordinates)
    truth.save(tmp_path)
    (tmp_path / "truth_weights.tsv").write_text("participant\tstimulus\n")
    with pytest.raises(StudyError, match=naming(tmp_path)):
        Truth.open(tmp_path, truth.coordinates)
